"""The data of loops in a state, beside its records: which loop leads, what waits for approval, which backends
are left alone, and the last event that each webhook got.

The leader has a lease beside the lock, by the same clock and the same rules. A leader that writes still takes
the lock, which fences each write. The lease only keeps other loops from looking and planning as well. It is
held between rounds, when the lock is free for people.

A webhook's cursor moves only once an event was delivered. A process claims the hook before it delivers, for a
time by the shared clock, so that only one process delivers. If that process dies its claim lapses, and the
event is sent again with the same id.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from declarative.model.record import struct
from declarative.model.status import Outage
from declarative.store import events, lock
from declarative.store.errors import StateError
from declarative.store.lease import LockInfo
from declarative.store.lock import LEADER, Access
from declarative.store.schema import value_of
from declarative.store.sql import Connection, Database, number

LEASE_SECONDS = 10.0
"""Seconds of the leader's lease, and of the lock in its rounds. After that another loop takes over."""
RENEWED_EVERY = LEASE_SECONDS / 3

ERROR_LENGTH = 300

APPROVALS_SINCE = 8
LEFT_ALONE_SINCE = 11
"""The formats that have these tables."""


# --------------------------------------------------------------------------------------- who leads


class Leader:
    """One loop's lease as leader. Its threads may share it."""

    def __init__(self, database: Database, seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._seconds = seconds
        self._owner = str(uuid.uuid4())
        self._turn = threading.Lock()
        self._lease: LockInfo | None = None

    def lead(self) -> bool:
        """Take the lease or renew it; whether this loop leads now. `StateError` if the state is away."""
        with self._turn:
            try:
                if self._lease is not None:
                    lock.renew(self._database, self._lease, self._seconds, LEADER)
                    return True
            except StateError as error:
                self._lease = None
                if error.code != "stale-lease":
                    raise
            with self._database.reading() as connection:  # hinders no writer by looking
                other = lock.holder(connection, table=LEADER)
                # Our own may be there yet, if the connection was lost and not the lease.
                ours = other is None or other.owner == self._owner
                free = ours or (other is not None and other.lapsed(self._database.now(connection)))
            if free:
                with self._database.writing() as connection:
                    self._lease = lock.take(connection, self._owner, lock.RECONCILING, self._seconds, LEADER)
            return self._lease is not None

    @property
    def leads(self) -> bool:
        """Whether it led when it last looked."""
        return self._lease is not None

    def holder(self) -> LockInfo | None:
        """The leader that the state names."""
        with self._database.reading() as connection:
            return lock.holder(connection, table=LEADER)

    def resign(self) -> None:
        """Let another one lead at once."""
        with self._turn, suppress(StateError):
            if self._lease is not None:
                lock.release(self._database, self._lease, LEADER)
            self._lease = None


# --------------------------------------------------------------------------------------- approvals


ENDS = " (ends it)"
"""Suffix of a step that ends work without a replacement, so that people see it when they approve."""


@struct(frozen=True, slots=True, kw_only=True)
class Approval:
    """Some actions that belong together. Times are seconds since the epoch."""

    digest: str
    steps: tuple[str, ...]
    """The ids of the actions, `delete:node/gpu-1`, with `ENDS` where an action does that."""
    since: float
    approved_at: float | None = None
    actor: str | None = None
    """The approver."""


def read_approvals(connection: Connection) -> tuple[Approval, ...]:
    """All of them, the oldest first."""
    return tuple(value_of(Approval, row) for row in connection.select("approvals", "ORDER BY since, digest"))


class LoopRecords:
    """The approvals, the backends left alone, and the leader of a state's loops. This needs no lock."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def leader(self) -> Leader:
        """This process's part in which loop of several acts."""
        return Leader(self._access.writable())

    def approvals(self) -> tuple[Approval, ...]:
        """The actions that wait for approval, and those that are approved and not done yet."""
        return self._access.query(read_approvals, (), since=APPROVALS_SINCE)

    def approve(self, digest: str) -> bool:
        """Let a loop do what it waits with; False if nothing of that digest waits."""

        def work(connection: Connection) -> bool:
            actor = connection.database.actor
            values = {"approved_at": self._access.clock(), "actor": actor.name if actor else None}
            return bool(connection.update("approvals", values, "digest = :its_digest", its_digest=digest))

        return self._access.change(work)

    def left_alone(self) -> tuple[Outage, ...]:
        """The backends that the leading loop leaves alone, by name; none where no loop leads."""
        return self._access.query(_left_alone, (), since=LEFT_ALONE_SINCE)


def _left_alone(connection: Connection) -> tuple[Outage, ...]:
    leads = lock.holder(connection, table=LEADER)
    if leads is None or leads.lapsed(connection.database.now(connection)):
        return ()
    rows = connection.select("left_alone", "ORDER BY backend, part")
    return tuple(
        Outage(
            backend=str(r.backend),
            part=str(r.part),
            since=number(r.since),
            until=number(r.until),
            why=str(r.why),
        )
        for r in rows
    )


# ---------------------------------------------------------------------------------------- webhooks


@struct(frozen=True, slots=True, kw_only=True)
class Hook:
    """The last event that a webhook got."""

    name: str
    cursor: int
    failures: int = 0
    """Tries in a row that were of no use."""
    next_at: float | None = None
    """When it is retried, in seconds since the epoch."""
    error: str | None = None
    rests: bool = False
    """Whether it gets nothing now: after a failure, or because another process delivers."""


class Hooks:
    """The webhooks of a state, and how far each has got. This needs no lock."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def all(self) -> tuple[Hook, ...]:
        """All of them, by name."""

        def read(connection: Connection) -> tuple[Hook, ...]:
            now = connection.database.now(connection)
            return tuple(_hook(row, now) for row in connection.select("hooks", "ORDER BY name"))

        return self._access.query(read, (), since=events.SINCE)

    def claim(self, name: str, seconds: float, *, at_once: bool = False) -> Hook | None:
        """Claim the hook for this process for so long. None if another process has it, or if it rests after
        a failure, unless `at_once`. A new hook gets the events from now on.
        """

        def work(connection: Connection) -> Hook | None:
            now, start = connection.database.now(connection), events.bounds(connection)[1]
            where = f"WHERE name = :its_name{connection.database.for_update}"
            row = connection.select("hooks", where, its_name=name).first()
            if row is None:
                new = {"name": name, "cursor": start, "failures": 0, "busy_until": now + seconds}
                connection.insert("hooks", new)
                return Hook(name=name, cursor=start)
            if (row.busy_until or 0.0) > now or (not at_once and (row.next_at or 0.0) > now):
                return None
            connection.update("hooks", {"busy_until": now + seconds}, "name = :its_name", its_name=name)
            return _hook(row, now)

        return self._access.change(work)

    def advance(self, name: str, cursor: int, *, more: float | None = None) -> None:
        """Note that events up to `cursor` were taken. `more` keeps the hook claimed for so many seconds."""

        def work(connection: Connection) -> None:
            until = None if more is None else connection.database.now(connection) + more
            values = {"cursor": cursor, "failures": 0, "next_at": None, "error": None, "busy_until": until}
            where = "name = :its_name AND cursor <= :its_cursor"
            connection.update("hooks", values, where, its_name=name, its_cursor=cursor)

        self._access.change(work)

    def fail(self, name: str, error: str, wait: float) -> None:
        """An event was not taken; it is tried again after `wait` seconds."""

        def work(connection: Connection) -> None:
            next_at = connection.database.now(connection) + wait
            values = {"next_at": next_at, "error": error[:ERROR_LENGTH], "busy_until": None}
            connection.update("hooks", values, "name = :its_name", its_name=name)
            connection.execute(
                "UPDATE hooks SET failures = failures + 1 WHERE name = :its_name", its_name=name
            )

        self._access.change(work)

    def keep(self, names: Iterable[str]) -> None:
        """Forget the hooks that are not among `names` any more."""
        kept = [*names] or [""]
        sql = "DELETE FROM hooks WHERE name NOT IN (:its_names)"
        self._access.change(lambda connection: connection.execute(sql, its_names=kept))


def _hook(row: Any, now: float) -> Hook:
    rests = max(row.busy_until or 0.0, row.next_at or 0.0) > now
    return value_of(Hook, row, rests=rests)
