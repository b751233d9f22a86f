"""The writer's copy of a state on a server: it reads from the copy, and a group of steps is sent to the
server in one round trip.

Only the holder of the lock changes a state. So a copy that was made under the lock stays true until the lock
is given back or lost, and with each group the server checks that it is not lost. Ended entries of the journal
are not in the copy. A command without the lock may add some; then the copy is made anew.

A reader may see what is not committed yet. To act on it, it begins a step, and steps are committed in order.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from declarative.store import journal, lock, tables
from declarative.store.database import Connection
from declarative.store.faults import StateError, busy, translated
from declarative.store.sqlite import Sqlite

if TYPE_CHECKING:
    from declarative.store.postgres import Postgres

COPIED = {table: f"SELECT {', '.join(columns)} FROM {table}" for table, columns in tables.COLUMNS.items()}
COPIED["operations"] += " WHERE ended_at IS NULL"
COPIED["events"] += " WHERE id IS NULL"  # none: they are only added to


class WorkingCopy(Sqlite):
    """A copy in memory, made when it is first used and anew after a fault. Threads share its connection."""

    def __init__(self, server: Postgres, lease: lock.LockInfo) -> None:
        """`lease` is that of the lock under which it is used."""
        super().__init__(Path(":memory:"), mode="rw", clock=lambda: lease.since)
        self.name, self.typed, self.who = server.name, server.typed, server.who
        self.mutex = threading.RLock()
        self._server, self._lease = server, lease
        self._raw: sqlite3.Connection | None = None
        self._last_id = 0

    def connect(self) -> sqlite3.Connection:
        """See `Database`: all that the server has now."""
        with self._server.reading() as there:
            found = there.raw.execute("; ".join((*COPIED.values(), journal.LAST_ID)))  # one round trip
        made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        tables.create(Connection(self, made))
        for table in COPIED:
            made.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(tables.COLUMNS[table]))
            made.executemany(f"INSERT INTO {table} VALUES ({marks})", found)
            found.nextset()
        self._last_id = found.fetchone()[0] or 0
        made.execute("PRAGMA foreign_keys=ON")
        return made

    def damage(self, connection: Connection) -> list[str]:  # noqa: ARG002 (a copy of this moment has none)
        """See `Database`."""
        return []

    @contextmanager
    def whole_journal(self, connection: Connection) -> Iterator[Connection]:  # noqa: ARG002 (it is not here)
        """See `Database`."""
        with self._server.reading() as there:
            yield there

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """See `Database`; no step is half done in it."""
        with self.mutex, translated(self.name):
            self._raw = self._raw or self.connect()
            yield Connection(self, self._raw)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """See `Database`: it is committed on the server, or nowhere."""
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
        self._send(here)
        with self.mutex:
            here.raw.execute("COMMIT")
            self._last_id = here.last_id or 0

    def _send(self, here: Connection) -> None:
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

    def forget(self) -> None:
        """Give the copy up: the next step makes a new one."""
        with self.mutex:
            if self._raw:
                self._raw.close()
            self._raw = None
