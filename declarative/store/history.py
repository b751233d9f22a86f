"""The journal: read back, and with entries of what no backend took part in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from declarative.model.state import Address
from declarative.store import events
from declarative.store.database import Connection, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Who uses a state: a person or the CI's, and the commit of the project; None for what is not known."""

    actor: str | None = None
    revision: str | None = None


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
    actor: str | None = None
    revision: str | None = None
    """Who asked for it, and the commit that the project was at. None where that is not known."""
    was: str | None = None
    """Of a move: the address before it."""
    reason: str | None = None
    """Of what a user did and said why."""


def next_id(connection: Connection) -> int:
    """The id of the next entry, inside a writer's transaction.

    Not the database's own counting: a push brings entries with the ids that they have.
    """
    if connection.last_id is None:
        connection.last_id = last_id(connection)
    connection.last_id += 1
    return connection.last_id


def last_id(connection: Connection) -> int:
    """The id of the last entry; 0 before the first."""
    return connection.execute("SELECT max(id) FROM operations").scalar() or 0


def signature(connection: Connection) -> dict[str, str | None]:
    """Who uses this connection, as columns of an entry."""
    return asdict(connection.database.who or Who())


def actor_of(connection: Connection) -> dict[str, str | None]:
    """Who uses this connection and for what, as events say it."""
    who = connection.database.who or Who()
    return {"actor": who.actor, "commit": who.revision, "doing": connection.holder.get("doing")}


def note(  # noqa: PLR0913 (keywords, each with a default)
    connection: Connection,
    op: str,
    address: Address,
    now: float,
    *,
    backend: str | None = None,
    generation: int = 1,
    inputs: Mapping[str, Any] | None = None,
    by: Mapping[str, str] | None = None,
) -> None:
    """Write that something was done which no backend's intent tells of.

    `by` are the `host` and `doing` of one who does not hold the lock.
    """
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
            "generation": generation,
            "token": "",
            "inputs": dict(inputs or {}),
            "needs": [],
            "begun_at": now,
            "ended_at": now,
            "result": "done",
        },
    )


@dataclass(frozen=True, slots=True)
class Let:
    """That a loop has let something through, and why."""

    address: str
    cause: str
    at: float


def let_since(connection: Connection, op: str, since: float) -> tuple[Let, ...]:
    """What a loop has let through from then on, the oldest first."""
    there = "WHERE op = :its_op AND begun_at > :its_since ORDER BY id"
    rows = connection.select("operations", there, its_op=op, its_since=since)
    return tuple(Let(row.address, str((row.inputs or {}).get("cause")), row.begun_at) for row in rows)


def read(connection: Connection, addresses: Collection[str], limit: int | None) -> list[Operation]:
    """The last entries, newest first; with `addresses` theirs alone, under earlier names as well."""
    found: list[Operation] = []
    wanted = _Wanted(addresses)
    rows = connection.select("operations", "ORDER BY id DESC")
    for operation in _about(map(_operation, rows), wanted):
        if limit is not None and len(found) >= limit:
            break
        found.append(operation)
    return found


class _Wanted:
    """Addresses that are asked for: a task's and a fleet's are those of all that is made for them, too."""

    def __init__(self, addresses: Collection[str]) -> None:
        self.all = not addresses
        self.exact = set(addresses)
        self._groups = {address for address in addresses if address.partition("/")[0] in GROUPS}

    def __contains__(self, text: object) -> bool:
        if text in self.exact:
            return True
        return bool(self._groups) and isinstance(text, str) and _group(text) in self._groups


GROUPS = ("task", "fleet", "volume")


def _group(text: str) -> str:
    """What a thing was made for, by its address: `task/train` for `attachment/train-0.data`."""
    kind, _, name = text.partition("/")
    base, _, number = name.partition(".")[0].rpartition("-")
    group = {"node": "fleet", "volume": "volume"}.get(kind, "task")
    return f"{group}/{base}" if number.isdecimal() else ""


def _about(newest_first: Iterator[Operation], wanted: _Wanted) -> Iterator[Operation]:
    for operation in newest_first:
        if wanted.all or operation.address in wanted or operation.was in wanted:
            yield operation
            if operation.was and operation.address in wanted:
                wanted.exact.add(operation.was)  # what is older was done under that name


def _operation(row: Row) -> Operation:
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
        actor=row.actor,
        revision=row.revision,
        was=row.inputs.get("from") if row.op == "move" else None,
        reason=row.inputs.get("reason") if row.op in ("drain", "undrain") else None,
    )
