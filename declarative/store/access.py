"""Access to a state without its lock: what every reader does, and writes that need no lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from declarative.store import lock
from declarative.store.errors import RetryWhileAway, StateError, once
from declarative.store.sql import Connection, Database

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
                lock.holder(connection, to_write=True)
                return work(connection)

        return self._retry(write)

    def writable(self) -> Database:
        """The database, if it may be written."""
        if self._database is None or self._read_only:
            raise StateError("read-only", "the state was opened for reading only")
        return self._database
