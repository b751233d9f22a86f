"""Calls to backends before their result is known: what identifies them, and what came of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declarative.model.inputs import zone_asked
from declarative.model.state import MADE_AS, Address, Intent, Record
from declarative.provider import token
from declarative.store import history, lock, rows
from declarative.store.database import Connection
from declarative.store.faults import StateError


def lineage(connection: Connection) -> str:
    """The id of this state, made at random if it has none yet."""
    found = connection.lineage or connection.execute("SELECT lineage FROM meta").scalar()
    if found is None:
        found = str(uuid.uuid4())
        connection.update("meta", {"lineage": found})
    connection.lineage = found
    return found


def identify(connection: Connection, op: str, address: Address, inputs: Mapping[str, Any]) -> tuple[int, str]:
    """The generation that an operation is about, and the token with which it was or will be created.

    Of a rank that is the id of its attempt: see `state.attempt_id`.
    """
    zone: str | None
    if op == "create":
        generation, zone = rows.generation(connection, address) + 1, zone_asked(inputs)
        if address.kind == "rank":
            held = rows.held_by(connection, Address("reservation", address.name))
            blocks = sum(1 << block for _, block in held)
            return generation, f"{address.name}.{generation}.{blocks:x}.{uuid.uuid4().hex[:16]}"
    else:
        have = rows.record(connection, address)
        generation = have.generation if have else rows.generation(connection, address)
        zone = zone_asked(have.inputs if have else inputs)
        if have and MADE_AS in have.outputs:
            return generation, str(have.outputs[MADE_AS]["token"])
    return generation, token(lineage(connection), address, generation, zone)


def name_is_free(connection: Connection, address: Address, generation: int) -> None:
    """Refuse to make a second thing by a name that its backend knows a renamed one by."""
    if address.kind not in ("node", "volume", "attachment") or generation == 1:
        return  # nothing was ever made by that name, or its generation tells it apart
    known = connection.database.json_text("outputs", MADE_AS, "address")
    text = str(address)
    other = connection.execute(
        f"SELECT address FROM resources WHERE {known} = :its_text", its_text=text
    ).scalar()
    if other:
        raise StateError(
            "name-in-use",
            f"{address} cannot be made: {other} still has that name at its backend",
            f"declare another name, or rename it back: `fleetform state mv {other} {address}`",
        )


def take_up(connection: Connection, intent: Intent, values: Mapping[str, Any]) -> Intent:
    """An intent that is still open, for another try."""
    moved = intent.backend != values["backend"] or zone_asked(intent.inputs) != zone_asked(values["inputs"])
    if intent.op == "create" and moved:
        # Another place would not find what the first call made.
        raise left_open(intent.address, {intent.op: intent})
    who = {**connection.holder, **history.signature(connection)}
    connection.update("operations", {**who, **values}, "id = :its_id", its_id=intent.id)
    return replace(intent, **_fields(values))


def begin(
    connection: Connection,
    op: str,
    address: Address,
    identity: tuple[int, str],
    values: Mapping[str, Any],
) -> Intent:
    """A new intent. `identity` is what `identify` gives; `values` are those columns of its entry that another
    try writes anew.
    """
    generation, its_token = identity
    key = history.next_id(connection)
    row = {"id": key, "op": op, "address": str(address), "generation": generation, "token": its_token}
    who = {**connection.holder, **history.signature(connection)}
    connection.insert("operations", {**row, **who, **values})
    return Intent(id=key, op=op, address=address, generation=generation, token=its_token, **_fields(values))


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as an intent has them."""
    return {**values, "needs": frozenset(map(Address.parse, values["needs"]))}


def age(intent: Intent, now: float) -> float | None:
    """Seconds since the call was last begun; None if that is not known. `now`, the clock that people can set,
    counts only for what was begun on another host, or before this one was started.
    """
    if intent.tick is not None and intent.place == lock.place():
        return lock.boottime() - intent.tick
    return None if intent.begun_at is None else now - intent.begun_at


def left_open(address: Address, earlier: Mapping[str, Intent]) -> StateError:
    """The refusal of what has to wait until it is known what came of `earlier`."""
    return StateError(
        "open-intent",
        f"it is not known what came of {', '.join(f'{op}:{address}' for op in sorted(earlier))}",
        "it is read back from its backend first: run the command again",
    )


def made_of(connection: Connection, intent: Intent, outputs: Mapping[str, Any] | None) -> Record:
    """The record of what a call made or changed."""
    if outputs is None and intent.op == "update":
        have = rows.record(connection, intent.address)
        outputs = have.outputs if have else None
    return Record(
        address=intent.address,
        backend=intent.backend,
        inputs=intent.inputs,
        outputs=outputs or {},
        needs=intent.needs,
        generation=intent.generation,
    )
