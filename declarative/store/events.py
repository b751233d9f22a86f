"""Events: what happened, in order. An event is written in the transaction of its change, or not at all.

Event numbers grow. A reader's cursor is the number of its last event. The last event is never dropped, so no
number comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from declarative.model.record import struct
from declarative.model.spec import StopCriteria
from declarative.model.state import Address, Intent, rank_name, task_state
from declarative.model.status import RankState, RankStatus, Readiness
from declarative.store import records
from declarative.store.lock import Access
from declarative.store.schema import dumps, value_of
from declarative.store.sql import ADD_EVENT, Connection

SINCE = 9
"""The format that has events."""
KEPT = 10_000
"""How many events are kept. More are kept only until all webhooks have them."""
MOST = 500
"""How many are read at once."""
DONE = {"create": "created", "update": "updated", "delete": "deleted"}
NOTED = {
    "adopt": "adopted",
    "drain": "drained",
    "exec": "exec",
    "forget": "forgotten",
    "move": "moved",
    "push": "pushed",
    "ssh": "ssh",
    "stop": "stop_requested",
    "undrain": "undrained",
}
"""Operations of the journal that no backend took part in, and what their events are called."""


@struct(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `type` is `rank.failed` or `node.created`, `at` in seconds since the epoch."""

    id: int
    at: float
    type: str
    address: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def write(connection: Connection, now: float, type: str, address: object, detail: Mapping[str, Any]) -> None:
    """Write an event, as a part of the transaction; what is None is left out."""
    known = {name: value for name, value in detail.items() if value is not None}
    connection.execute(ADD_EVENT, at=now, type=type, address=str(address), detail=dumps(known))


class EventLog:
    """The events of a state. This needs no lock."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def after(self, cursor: int, limit: int = MOST) -> tuple[Event, ...]:
        """The events after a cursor, oldest first."""

        def read(connection: Connection) -> tuple[Event, ...]:
            where = "WHERE id > :its_cursor ORDER BY id LIMIT :its_limit"
            rows = connection.select("events", where, its_cursor=cursor, its_limit=limit)
            return tuple(value_of(Event, row) for row in rows)

        return self._access.query(read, (), since=SINCE)

    def bounds(self) -> tuple[int, int]:
        """The numbers of the first event that is kept and of the last one; 0 and 0 before the first."""
        return self._access.query(bounds, (0, 0), since=SINCE)

    def waiting(self) -> dict[str, Waiting]:
        """The tasks that wait for a place: since when, and why."""
        return self._access.query(waiting, {}, since=SINCE)

    def write(self, type: str, address: str, detail: Mapping[str, Any]) -> None:
        """Write an event."""
        access = self._access
        access.change(lambda connection: write(connection, access.clock(), type, address, detail))


def bounds(connection: Connection) -> tuple[int, int]:
    """The numbers of the first event that is kept and of the last one; 0 and 0 before the first."""
    row = connection.execute("SELECT min(id) AS first, max(id) AS last FROM events").one()
    return row.first or 0, row.last or 0


def prune(connection: Connection) -> None:
    """Drop the oldest beyond those that are kept, if all webhooks have them."""
    _, last = bounds(connection)
    delivered = connection.execute("SELECT min(cursor) FROM hooks").scalar()
    end = last - KEPT if delivered is None else min(last - KEPT, max(delivered, last - 10 * KEPT))
    connection.execute("DELETE FROM events WHERE id <= :its_end", its_end=end)


# ------------------------------------------------------------------------------- tasks that wait

WAITING = "task.waiting"


@struct(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A task without a place: since when, in seconds since the epoch, and why."""

    since: float
    why: str


def waiting(connection: Connection) -> dict[str, Waiting]:
    """Task → since when it waits for a place and why, of those that have not started since."""
    out: dict[str, Waiting] = {}
    where = f"WHERE type IN ('{WAITING}', 'rank.created') ORDER BY id"
    for event in connection.select("events", where):
        kind, _, name = event.address.partition("/")
        if kind == "rank":
            out.pop(name.rpartition("-")[0], None)
        else:
            before = out.get(name)
            since = before.since if before else event.at
            out[name] = Waiting(since=since, why=str(event.detail.get("why")))
    return out


def note_waiting(connection: Connection, now: float, why: Mapping[str, str]) -> None:
    """Write why tasks wait, by task."""
    for task, text in why.items():
        write(connection, now, WAITING, Address("task", task), {"action": "create", "why": text})


# ------------------------------------------------------------------------------- events of changes


def ended(connection: Connection, now: float, intent: Intent, result: str, more: Mapping[str, Any]) -> None:
    """Write an event about the result of a call to a backend; `more` says who made it, and why it failed."""
    kind = intent.address.kind
    names = {
        "done": f"{kind}.{DONE[intent.op]}",
        "adopted": f"{kind}.{DONE[intent.op]}",
        "failed": f"{kind}.{intent.op}_failed",
    }
    if result in names:
        detail = {"backend": intent.backend, "generation": intent.generation, **more}
        write(connection, now, names[result], intent.address, detail)


def noted(connection: Connection, now: float, op: str, address: Address, detail: Mapping[str, Any]) -> None:
    """Write an event about something that was done without a backend, if it is of interest to others."""
    if op in NOTED:
        write(connection, now, f"{address.kind}.{NOTED[op]}", address, detail)


def nodes_changed(connection: Connection, now: float, readiness: Mapping[str, Readiness]) -> None:
    """Write which nodes are in another state now. Call it before they are put."""
    before = records.states(connection, records.NODE, list(readiness))
    for name, node in readiness.items():
        if before.get(name) != node.state:
            address = Address(records.NODE, name)
            write(connection, now, f"node.{node.state.value}", address, {"reason": node.reason})


def ranks_changed(connection: Connection, now: float, statuses: Mapping[str, RankStatus]) -> None:
    """Tell which ranks, and their tasks, are in another state now. Before they are put."""
    before = records.states(connection, records.RANK, list(statuses))
    changed = {name: status for name, status in statuses.items() if before.get(name) != status.state}
    for name, status in changed.items():
        detail = {"exit_code": status.exit_code, "cause": status.cause}
        write(connection, now, f"rank.{status.state.value}", Address(records.RANK, name), detail)
    tasks = {name.rpartition("-")[0]: name for name, status in changed.items() if status.state.ended}
    for task, name in tasks.items():
        _task_changed(connection, now, task, name, changed)


def _task_changed(
    connection: Connection, now: float, task: str, one: str, changed: Mapping[str, RankStatus]
) -> None:
    """Tell that a task has ended or failed, if it had not before; `one` is a rank of it."""
    record = records.record(connection, Address(records.RANK, one))
    if record is None:
        return
    # Untyped: a faulty record must not keep a rank from being observed.
    nodes = record.inputs.get("nodes")
    names = [rank_name(task, rank) for rank in range(nodes if isinstance(nodes, int) else 1)]
    known = records.statuses(connection, names)
    latest = {**known, **changed}
    master_done = record.inputs.get("stop_criteria") == StopCriteria.MASTER_DONE.value
    before, state = (task_state(dict(enumerate(map(s.get, names))), master_done) for s in (known, latest))
    if state is not before and (state.ended or state is RankState.FAILED):
        alike = (s for s in map(latest.get, names) if s and s.state is state)
        cause = next(filter(None, (status.cause for status in alike)), None)
        write(connection, now, f"task.{state.value}", Address("task", task), {"cause": cause})
