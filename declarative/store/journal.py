"""The journal: calls to backends, written before their result is known, and entries without a backend's part.

It has what identifies a call, and the call's result.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from declarative.model.inputs import zone_asked
from declarative.model.outputs import Key, Moment
from declarative.model.record import struct
from declarative.model.state import ATTEMPT, ENDED_ATTEMPT, MADE_AS, Address, Intent, Record, token
from declarative.store import events, records
from declarative.store.errors import StateError
from declarative.store.lease import Actor, boottime, place
from declarative.store.lock import Access
from declarative.store.schema import value_of
from declarative.store.sql import Connection, Row


@struct(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the journal. `ended_at` and `result` are None while it is open; times since the epoch."""

    id: int
    op: str
    address: str
    was: str | None = None
    """For a move: the address before it."""
    backend: str | None
    generation: int
    begun_at: Moment
    ended_at: Moment | None
    result: str | None
    error: str | None
    reason: str | None = None
    """The reason that a user gave."""
    host: str | None = None
    doing: str | None = None
    """The command that started it last, and its host. None in older entries."""
    actor: str | None = None
    revision: Annotated[str | None, Key("commit")] = None
    """The person or CI that asked for it, and the project's commit. None if unknown."""


def next_id(connection: Connection) -> int:
    """The id of the next entry, inside a writer's transaction. The database does not count them by itself,
    since a push brings entries with the ids that they have.
    """
    if connection.last_id is None:
        connection.last_id = last_id(connection)
    connection.last_id += 1
    return connection.last_id


LAST_ID = "SELECT max(id) FROM operations"


def last_id(connection: Connection) -> int:
    """The id of the last entry; 0 before the first."""
    return connection.execute(LAST_ID).scalar() or 0


def signature(connection: Connection) -> dict[str, str | None]:
    """The user of this connection, as columns of an entry."""
    actor = connection.database.actor or Actor()
    return {"actor": actor.name, "revision": actor.revision}


def actor_of(connection: Connection) -> dict[str, str | None]:
    """The user of this connection and its command, as events have them."""
    actor = connection.database.actor or Actor()
    return {"actor": actor.name, "commit": actor.revision, "doing": connection.holder.get("doing")}


def note(
    connection: Connection,
    op: str,
    about: Address | Record,
    now: float,
    inputs: Mapping[str, Any] | None = None,
    *,
    by: Mapping[str, str] | None = None,
) -> None:
    """Log an operation that calls no backend.

    `by` are the `host` and `doing` of one who does not hold the lock.
    """
    record = about if isinstance(about, Record) else None
    address = about.address if isinstance(about, Record) else about
    backend = record.backend if record else None
    detail = {"backend": backend, **(inputs or {}), **actor_of(connection), **(by or {})}
    events.noted(connection, now, op, address, detail)
    connection.insert(
        "operations",
        {
            **(by or connection.holder),
            **signature(connection),
            "id": next_id(connection),
            "op": op,
            "address": str(address),
            "backend": backend,
            "generation": record.generation if record else 1,
            "token": "",
            "inputs": dict(inputs or {}),
            "needs": [],
            "begun_at": now,
            "ended_at": now,
            "result": "done",
        },
    )


@struct(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """An attempt of a rank that is not recorded any more, as it was recorded."""

    record: Record
    machine: str | None
    """The `state.machine_name` of the node that it ran on; None if that was gone when it was deleted."""


PERMIT = "reconcile"
"""The journal's word for what a loop permits."""


@struct(frozen=True, slots=True)
class Permit:
    """Something that a loop has permitted, and why."""

    address: str
    cause: str
    at: float


class Journal:
    """The journal of a state. This needs no lock."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def operations(self, addresses: Collection[str] = (), limit: int | None = None) -> list[Operation]:
        """The last entries, newest first; with `addresses` only theirs, also under earlier names."""
        page = limit if limit is not None and not addresses else PAGE

        def read(connection: Connection) -> list[Operation]:
            return list(islice(_about(addresses, _newest_first(connection, page)), limit))

        return self._access.query(read, [])

    def earlier_attempts(self, task: str) -> list[EarlierAttempt]:
        """The attempts of a task's ranks that were deleted, oldest first, as far as the journal has them."""
        return self._access.query(lambda connection: _earlier_attempts(connection, task), [])

    def create_with(self, its_token: str) -> Intent | None:
        """The create that was last started with a token, ended or not; None if the journal has none."""

        def read(connection: Connection) -> Intent | None:
            last = "WHERE token = :its_token AND op = 'create' ORDER BY id DESC LIMIT 1"
            row = connection.select("operations", last, its_token=its_token).first()
            return None if row is None else value_of(Intent, row)

        return self._access.query(read, None)

    def permits_since(self, since: float) -> tuple[Permit, ...]:
        """The permits of loops since then, the oldest first."""

        def read(connection: Connection) -> tuple[Permit, ...]:
            where = "WHERE op = :its_op AND begun_at > :its_since ORDER BY id"
            rows = connection.select("operations", where, its_op=PERMIT, its_since=since)
            return tuple(
                Permit(row.address, str((row.inputs or {}).get("cause")), row.begun_at) for row in rows
            )

        return self._access.query(read, ())

    def note(self, op: str, address: Address, doing: str) -> None:
        """Write an entry for something that changes no record."""
        by, access = {"host": socket.gethostname(), "doing": doing}, self._access
        access.change(lambda connection: note(connection, op, address, access.clock(), by=by))


PAGE = 1000
"""Entries that are read at once: a server sends all that it is asked for, however few are shown."""


def _newest_first(connection: Connection, page: int) -> Iterator[Operation]:
    before = _LAST
    while True:
        where = "WHERE id < :its_before ORDER BY id DESC LIMIT :its_page"
        rows = tuple(connection.select("operations", where, its_before=before, its_page=page))
        yield from map(_operation, rows)
        if len(rows) < page:
            return
        before = rows[-1].id


_LAST = (1 << 63) - 1


def _earlier_attempts(connection: Connection, task: str) -> list[EarlierAttempt]:
    # A name has no character that means something to LIKE.
    where = "WHERE op = 'delete' AND address LIKE :its_prefix AND result = 'done' ORDER BY id"
    attempts: list[EarlierAttempt] = []
    for row in connection.select("operations", where, its_prefix=f"rank/{task}-%"):
        place = row.inputs.get(ENDED_ATTEMPT)
        if row.inputs.get("task") != task or not isinstance(place, Mapping) or not place.get("node"):
            continue
        outputs = {"node": str(place["node"]), ATTEMPT: str(place["id"])}
        record = Record(
            address=Address.parse(row.address),
            backend=row.backend,
            inputs=row.inputs,
            outputs=outputs,
            generation=row.generation,
        )
        machine = place.get("machine")
        attempts.append(EarlierAttempt(record=record, machine=None if machine is None else str(machine)))
    return attempts


GROUPS = ("task", "fleet", "volume")


def _group(text: str) -> str:
    """The document that a thing was made for, by its address: `task/train` for `attachment/train-0.data`."""
    kind, _, name = text.partition("/")
    base, _, number = name.partition(".")[0].rpartition("-")
    group = {"node": "fleet", "volume": "volume"}.get(kind, "task")
    return f"{group}/{base}" if number.isdecimal() else ""


def _about(addresses: Collection[str], newest_first: Iterator[Operation]) -> Iterator[Operation]:
    """The entries about these addresses, or all. A task or fleet stands for all that is made for it."""
    selected = set(addresses)
    groups = {address for address in addresses if address.partition("/")[0] in GROUPS}
    for operation in newest_first:
        now, before = (
            name is not None and (name in selected or (bool(groups) and _group(name) in groups))
            for name in (operation.address, operation.was)
        )
        if not addresses or now or before:
            yield operation
            if operation.was and now:
                selected.add(operation.was)  # older entries have that name


def _operation(row: Row) -> Operation:
    return value_of(
        Operation,
        row,
        was=row.inputs.get("from") if row.op == "move" else None,
        reason=row.inputs.get("reason") if row.op in ("drain", "undrain") else None,
    )


def lineage(connection: Connection) -> str:
    """The id of this state, made at random if it has none yet."""
    number = connection.lineage or connection.execute("SELECT lineage FROM meta").scalar()
    if number is None:
        number = str(uuid.uuid4())
        connection.update("meta", {"lineage": number})
    connection.lineage = number
    return number


def identify(connection: Connection, op: str, address: Address, inputs: Mapping[str, Any]) -> tuple[int, str]:
    """The generation that an operation is about, and the token with which it was or will be created.

    The token of a rank is the id of its attempt: see `state.attempt_id`.
    """
    zone: str | None
    if op == "create":
        generation, zone = records.generation(connection, address) + 1, zone_asked(inputs)
        if address.kind == "rank":
            places = records.held_by(connection, Address("reservation", address.name))
            blocks = sum(1 << block for _, block in places)
            return generation, f"{address.name}.{generation}.{blocks:x}.{uuid.uuid4().hex[:16]}"
    else:
        row = connection.select("resources", records.BY_ADDRESS, its_address=str(address)).first()
        generation = row.generation if row else records.generation(connection, address)
        zone = zone_asked(row.inputs if row else inputs)
        if row and (names := value_of(Record, row).names_when_made):
            return generation, names.token
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
    who = {**connection.holder, **signature(connection)}
    connection.update("operations", {**who, **values}, "id = :its_id", its_id=intent.id)
    return replace(intent, **_fields(values))


def begin(
    connection: Connection, op: str, address: Address, identity: tuple[int, str], values: Mapping[str, Any]
) -> Intent:
    """A new intent. `identity`: see `identify`. `values` are the columns that another try writes anew."""
    generation, its_token = identity
    key = next_id(connection)
    row = {"id": key, "op": op, "address": str(address), "generation": generation, "token": its_token}
    who = {**connection.holder, **signature(connection)}
    connection.insert("operations", {**row, **who, **values})
    return Intent(id=key, op=op, address=address, generation=generation, token=its_token, **_fields(values))


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as an intent has them."""
    return {**values, "needs": frozenset(map(Address.parse, values["needs"]))}


def age(intent: Intent, now: float) -> float | None:
    """Seconds since the call was last started; None if that is not known. People can set the clock `now`: it
    counts only for a call that was started on another host, or before this host booted.
    """
    if intent.tick is not None and intent.place == place():
        return boottime() - intent.tick
    return None if intent.begun_at is None else now - intent.begun_at


def left_open(address: Address, earlier: Mapping[str, Intent]) -> StateError:
    """The refusal of something that has to wait for the results of `earlier`."""
    return StateError(
        "open-intent",
        f"it is not known what came of {', '.join(f'{op}:{address}' for op in sorted(earlier))}",
        "it is read back from its backend first: run the command again",
    )


def made_of(connection: Connection, intent: Intent, outputs: Mapping[str, Any] | None) -> Record:
    """The record of what a call made or changed."""
    if outputs is None and intent.op == "update":
        before = records.record(connection, intent.address)
        outputs = before.outputs if before else None
    return Record(
        address=intent.address,
        backend=intent.backend,
        inputs=intent.inputs,
        outputs=outputs or {},
        needs=intent.needs,
        generation=intent.generation,
    )


def may_prune(connection: Connection, keep: int) -> bool:
    """Whether there are more operations than `keep`, or more events than are kept."""
    more = "SELECT count(*) FROM (SELECT id FROM operations LIMIT 1 OFFSET :its_offset) AS more"
    old = f"SELECT (coalesce(max(id) - min(id), 0)) / {events.KEPT} FROM events"
    return bool(connection.execute(f"SELECT ({more}) + ({old})", its_offset=keep).scalar())


def prune(connection: Connection, keep: int) -> None:
    """Drop the oldest ended operations beyond the last `keep`."""
    last = "SELECT id FROM operations ORDER BY id DESC LIMIT 1 OFFSET :its_offset"
    oldest = connection.execute(last, its_offset=keep).scalar()
    if oldest is not None:
        old = "DELETE FROM operations WHERE id <= :its_id AND ended_at IS NOT NULL"
        connection.execute(old, its_id=oldest)
