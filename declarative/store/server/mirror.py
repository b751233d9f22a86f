"""The writer's copy of a state on a server: it reads from the copy, and all writes of one commit are sent to
the server in one round trip.

Only the holder of the lock changes a state. So a copy that was made under the lock stays true until the lock
is given back or lost, and with each commit the server checks that it is not lost. Ended journal entries
are not in the copy. A command without the lock may add some; then the copy is made anew.

A reader may see what is not committed yet. To act on it, it begins a step, and steps are committed in order.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from declarative.store import journal, lock, schema
from declarative.store.errors import StateError, as_state_error, busy
from declarative.store.lease import LockInfo
from declarative.store.migrations import create
from declarative.store.sql import Connection, Database, Write
from declarative.store.sqlite import Sqlite

COPIED = {table: f"SELECT {', '.join(columns)} FROM {table}" for table, columns in schema.COLUMNS.items()}
COPIED["operations"] += " WHERE ended_at IS NULL"
COPIED["events"] += " WHERE id IS NULL"  # none: they are only added to


class MirroredServer(Database):
    """A database that a mirror sends its writes to."""

    @abstractmethod
    def send(self, writes: Sequence[Write], lease: LockInfo, last_id: int) -> bool:
        """Commit what was written in a mirror: one transaction, one round trip. False if the lock is not that
        lease's any more, or the journal's last entry not `last_id`: then nothing was done.
        """


class Mirror(Sqlite):
    """A copy in memory, made when it is first used and anew after a fault. Threads share its connection."""

    commit_patience = 0.025  # longer is no way back from a commit

    def __init__(self, server: MirroredServer, lease: LockInfo) -> None:
        """`lease` is that of the lock under which it is used."""
        super().__init__(Path(":memory:"), mode="rw", clock=lambda: lease.since)
        self.name, self.typed, self.actor = server.name, server.typed, server.actor
        self.mutex = threading.RLock()
        self._server, self._lease = server, lease
        self._raw: sqlite3.Connection | None = None
        self._last_id = 0

    def connect(self) -> sqlite3.Connection:
        """All that the server has now."""
        with self._server.reading() as there:
            rows = there.raw.execute("; ".join((*COPIED.values(), journal.LAST_ID)))  # one round trip
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        create(Connection(self, copy))
        for table in COPIED:
            copy.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(schema.COLUMNS[table]))
            copy.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            rows.nextset()
        self._last_id = rows.fetchone()[0] or 0
        copy.execute("PRAGMA foreign_keys=ON")
        return copy

    def damage(self, connection: Connection) -> list[str]:  # noqa: ARG002 (a copy of this moment has none)
        return []

    @contextmanager
    def whole_journal(self, connection: Connection) -> Iterator[Connection]:  # noqa: ARG002 (it is not here)
        with self._server.reading() as there:
            yield there

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction of the copy; every write in it is complete."""
        with self.mutex, as_state_error(self.name):
            self._raw = self._raw or self.connect()
            yield Connection(self, self._raw)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed on the server, or nowhere."""
        with self.reading() as here:
            here.raw.execute("BEGIN")
            here.last_id, here.writes = self._last_id, []
        try:
            yield here
        except BaseException as error:
            with self.mutex:
                here.raw.execute("ROLLBACK")
            if isinstance(error, StateError) and error.code == "stale-lease":
                self.forget()  # it does not know who takes the lock from now on
            raise
        try:
            sent = self._server.send(here.writes or (), self._lease, self._last_id)
        except BaseException:
            self.forget()  # it is perhaps not what the server has
            raise
        if not sent:
            self.forget()
            with self._server.writing() as there:
                lock.check(there, self._lease)
            raise busy()  # somebody without the lock has written into the journal
        with self.mutex:
            here.raw.execute("COMMIT")
            self._last_id = here.last_id or 0

    def forget(self) -> None:
        """Give the copy up: the next step makes a new one."""
        with self.mutex:
            if self._raw:
                self._raw.close()
            self._raw = None
