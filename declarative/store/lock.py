"""One writer at a time: a lock with a lease, which lapses by itself when its holder is gone. Also the access
of those who do without the lock: readers, and writes that need none.

The lock is one row. A holder renews its lease from a thread of its own; every write of it checks in its
own transaction that the row still carries its fence, a number that counts up with each holder. So a
process that slept through its lease and wakes up writes nothing.

Times are those of the database's clock (`database.now`): the clocks of hosts that share a server differ. On
the holder's own host a lease goes by `boottime` instead, so that setting the clock takes no lock away.
Backends that can refuse calls of an earlier holder get its `epoch`. It counts up like the fence, and goes on
counting in a state that was restored from a backup.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from declarative.store.errors import FROM_BACKUP, RetryWhileAway, StateError, once
from declarative.store.lease import LockInfo, boottime, place, started_at
from declarative.store.sql import Connection, Database, Row

LEASE_SECONDS = 30.0
"""Seconds that a holder on another host keeps the lock after its last sign of life."""

POLL_SECONDS = 0.2

FREE = dict.fromkeys(("owner", "host", "place", "pid", "started", "doing", "since", "expires", "ends"))
"""The columns of a lock that nobody holds. Its fence and its epoch stay: they count on."""

FOLLOWING = "apply --wait"
"""The `doing` of `apply --wait` while it writes: it gives the lock back within moments."""
RECONCILING = "reconcile"
"""The `doing` of a loop's round, which gives the lock back when asked (`ask`)."""

WRITER, LEADER = "writer_lock", "leader"
"""The locks: the writer's, and the leading loop's. Each is a table with one row."""


def info_of(row: Row) -> LockInfo | None:
    """The row of the lock as its holder, or None; `StateError` damaged for one of no time or no process."""
    if row.owner is None:
        return None
    times = isinstance(row.expires, int | float) and isinstance(row.ends, int | float | None)
    if not times or not isinstance(row.pid, int) or not 0 < row.pid < 1 << 31:
        raise StateError("damaged", "the state holds a lock of no process or no time", FROM_BACKUP)
    return LockInfo(
        owner=row.owner,
        host=row.host,
        pid=row.pid,
        doing=row.doing,
        since=row.since,
        expires=row.expires,
        fence=row.fence,
        place=row.place,
        started=row.started,
        ends=row.ends,
        epoch=row.epoch or 0,
    )


def holder(connection: Connection, *, to_write: bool = False, table: str = WRITER) -> LockInfo | None:
    """The holder of the lock, lapsed or not. With `to_write`, others' writes wait for this transaction."""
    return info_of(_row(connection, table) if to_write else connection.select(table).one())


def current(connection: Connection) -> LockInfo | None:
    """The holder of the lock; None if there is none, or it is gone. This does not delay writers."""
    info = holder(connection)
    return None if info is None or info.lapsed(connection.database.now(connection)) else info


def ask(database: Database) -> None:
    """Ask a holder that can wait to give the lock back."""
    with database.writing() as connection:
        connection.update(WRITER, {"asked": connection.database.now(connection)})


def asked(connection: Connection, lease: LockInfo) -> bool:
    """Whether somebody has asked for the lock since this holder took it."""
    when = connection.select(WRITER).one().asked
    return when is not None and when >= lease.since


def _row(connection: Connection, table: str = WRITER) -> Row:
    """The row of the lock. SQLite has taken its turn with BEGIN IMMEDIATE; PostgreSQL locks the row."""
    return connection.select(table, connection.database.for_update).one()


def check(connection: Connection, lease: LockInfo, table: str = WRITER) -> None:
    """Refuse the writes of this transaction unless `lease` is still the current one."""
    row = _row(connection, table)
    if row.fence == lease.fence and row.owner == lease.owner:
        connection.holder = {"host": row.host, "doing": row.doing}
        return
    other = info_of(row)
    raise StateError(
        "stale-lease",
        "this command has lost the state's lock"
        + (f" to {other}" if other else "")
        + "; it writes nothing more",
        "what it had begun is in the journal: run it again, and it is taken up from there",
        lock=other,
    )


def take(
    connection: Connection, owner: str, doing: str, seconds: float, table: str = WRITER
) -> LockInfo | None:
    """Take the lock in this transaction; None if another one holds it.

    Doing it again as the same `owner` is harmless: the connection may have been lost during the first commit.
    """
    row = _row(connection, table)
    here = boottime()  # before the database's: for its holder a lease ends no later than for others
    before, time = info_of(row), connection.database.now(connection)
    if before and not before.lapsed(time):
        return before if before.owner == owner else None
    pid = os.getpid()
    lease = LockInfo(
        owner=owner,
        host=socket.gethostname(),
        place=place(),
        pid=pid,
        started=started_at(pid),
        doing=doing,
        since=time,
        expires=time + seconds,
        fence=row.fence + 1,
        ends=here + seconds,
        epoch=max((row.epoch or 0) + 1, int(time * 1000)),
    )
    values = {name: getattr(lease, name) for name in (*FREE, "fence", "epoch")}
    connection.update_unasked(table, values)
    return lease


def count_above(connection: Connection, lease: LockInfo, newest: int) -> LockInfo:
    """The lease with an epoch above `newest`, written down in this transaction."""
    if lease.epoch > newest:
        return lease
    connection.update(WRITER, {"epoch": newest + 1})
    return replace(lease, epoch=newest + 1)


def acquire(
    database: Database,
    doing: str,
    timeout: float,
    *,
    wait: Callable[[float], None],
    seconds: float = LEASE_SECONDS,
    on_wait: Callable[[LockInfo], None] | None = None,
    retry: RetryWhileAway = once,
) -> LockInfo:
    """Take the lock, waiting up to `timeout` seconds; then a `StateError` that names the holder."""
    waited = 0.0  # what was slept: a clock that is set meanwhile changes nothing
    announced: str | None = None
    owner = str(uuid.uuid4())

    def look() -> LockInfo | None:
        with database.reading() as connection:
            return current(connection)

    def attempt() -> LockInfo | None:
        with database.writing() as connection:
            return take(connection, owner, doing, seconds)

    while True:
        other = retry(look)
        if other is None:
            lease = retry(attempt)
            if lease:
                return lease
            continue  # another one was faster; look who
        if waited >= timeout:
            raise StateError(
                "locked",
                f"the state is locked by {other}",
                "wait with `--lock-timeout 10m`; if its holder cannot be alive: `fleetform state unlock`",
                lock=other,
            )
        if announced != other.owner:
            announced = other.owner
            if on_wait:
                on_wait(other)
            if other.doing == RECONCILING:
                retry(lambda: ask(database))
        step = min(POLL_SECONDS, timeout - waited)
        wait(step)
        waited += step


def renew(database: Database, lease: LockInfo, seconds: float, table: str = WRITER) -> float:
    """Move the end of the lease; its new end (`boottime`). `StateError` stale-lease if the lock was lost."""
    with database.writing() as connection:
        check(connection, lease, table)
        ends = boottime() + seconds
        expires = connection.database.now(connection) + seconds
        connection.update_unasked(table, {"expires": expires, "ends": ends})
    return ends


def release(database: Database, lease: LockInfo, table: str = WRITER) -> None:
    """Give the lock back, unless it is another one's by now."""
    mine = "owner = :its_owner AND fence = :its_fence"
    with database.writing() as connection:
        connection.update_unasked(table, FREE, mine, its_owner=lease.owner, its_fence=lease.fence)


def unlock(database: Database, owner: str | None = None) -> LockInfo | None:
    """Take the lock away from its holder, and return the holder; `owner`, if given, must be the holder."""
    with database.writing() as connection:
        info = holder(connection, to_write=True)
        if info is None:
            return None
        if owner is not None and info.owner != owner:
            raise StateError("lock-changed", f"the lock is another one's by now: {info}", lock=info)
        connection.update(WRITER, FREE)
        return info


class Renewal:
    """Renews a lease from a thread until it is stopped or the lease is lost."""

    def __init__(self, renew_once: Callable[[], None], every: float) -> None:
        self._renew = renew_once
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetform-lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._renew()
            except StateError as error:
                # Lost: the next write says so. Anything else (a full disk) may pass before the lease ends.
                if error.code == "stale-lease":
                    return


T = TypeVar("T")


class Access:
    """A state's database, which may not exist, have an older format, or be away for a while."""

    def __init__(
        self,
        database: Database | None,
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
        retry: RetryWhileAway = once,
    ) -> None:
        self._database = database
        self._read_only = read_only
        self.clock = clock
        """Seconds since the epoch, by this host."""
        self._retry = retry

    def query(self, query: Callable[[Connection], T], otherwise: T, *, since: int = 0) -> T:
        """The result of a query in one snapshot; `otherwise` without a database, or in an older format."""
        database = self._database
        if database is None or database.format < since:
            return otherwise

        def read() -> T:
            with database.reading() as connection:
                return query(connection)

        return self._retry(read)

    def change(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, once it is committed: one after the other, also beside the holder of
        the lock. It is done again when the database was away: only for what may be done twice.
        """
        database = self.writable()

        def write() -> T:
            with database.writing() as connection:
                holder(connection, to_write=True)
                return work(connection)

        return self._retry(write)

    def writable(self) -> Database:
        """The database, if it may be written."""
        if self._database is None or self._read_only:
            raise StateError("read-only", "the state was opened for reading only")
        return self._database
