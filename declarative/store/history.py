"""The journal: read back, and with entries of what no backend took part in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from declarative.state import Address
from declarative.store import statements as sql
from declarative.store.tables import every, operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One entry of the journal. `ended_at` and `result` are None while it is open; times since the epoch."""

    id: int
    op: str
    address: str
    backend: str | None
    generation: int
    begun_at: float
    ended_at: float | None
    result: str | None
    error: str | None
    host: str | None = None
    doing: str | None = None
    """Who began it last: the command, and the host that it ran on. None for what is older than that."""
    was: str | None = None
    """Of a move: the address before it."""
    reason: str | None = None
    """Of what a user did and said why."""


def next_id(connection: Connection) -> int:
    """The id of the next entry, inside a writer's transaction.

    Not the database's own counting: a push brings entries with the ids that they have.
    """
    last: int | None = connection.execute(sql.LAST_OPERATION).scalar()
    return (last or 0) + 1


def note(
    connection: Connection,
    op: str,
    address: Address,
    now: float,
    *,
    backend: str | None = None,
    generation: int = 1,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Write that something was done to what is recorded, which no backend took part in."""
    connection.execute(
        sql.ADD_OPERATION,
        {
            "id": next_id(connection),
            "op": op,
            "address": str(address),
            "backend": backend,
            "generation": generation,
            "token": "",
            "inputs": dict(inputs or {}),
            "needs": [],
            "begun_at": now,
            "ended_at": now,
            "result": "done",
        },
    )


def read(connection: Connection, addresses: Collection[str], limit: int | None) -> list[Operation]:
    """The last entries, newest first; with `addresses` theirs alone, under earlier names as well."""
    found: list[Operation] = []
    rows = connection.execute(every(operations, connection).order_by(operations.c.id.desc()))
    for operation in _about(map(_operation, rows), set(addresses)):
        if limit is not None and len(found) >= limit:
            break
        found.append(operation)
    return found


def _about(newest_first: Iterator[Operation], wanted: set[str]) -> Iterator[Operation]:
    every = not wanted
    for operation in newest_first:
        if every or operation.address in wanted or operation.was in wanted:
            yield operation
            if operation.was and operation.address in wanted:
                wanted.add(operation.was)  # what is older was done under that name


def _operation(row: Row[Any]) -> Operation:
    return Operation(
        id=row.id,
        op=row.op,
        address=row.address,
        backend=row.backend,
        generation=row.generation,
        begun_at=row.begun_at,
        ended_at=row.ended_at,
        result=row.result,
        error=row.error,
        host=row.host,
        doing=row.doing,
        was=row.inputs.get("from") if row.op == "move" else None,
        reason=row.inputs.get("reason") if row.op in ("drain", "undrain") else None,
    )
