"""A connection to PostgreSQL that saves round trips. Imported late, since psycopg is."""

from __future__ import annotations

import select
import time
from typing import Any

import psycopg

FRESH = 5.0
"""Seconds for which an idle connection is used without asking first whether it is still there."""

PATIENCE = 30_000
"""Milliseconds for which an answer is waited for: as `tcp_user_timeout` in `postgres.NO_HANGING`."""


class ServerConnection(psycopg.Connection[Any]):
    """Sends what begins a transaction with its first statement, and does not wait for the end of a
    snapshot: a read takes one round trip instead of three.
    """

    opening = ""
    """The statements that begin the transaction, as long as they are not sent."""
    snapshot = False
    """Whether the transaction only reads."""
    ending = False
    """Whether the answer to a COMMIT is not read yet."""
    used = 0.0
    """When it was last used, by the monotonic clock."""

    def begin(self, opening: str, *, snapshot: bool) -> None:
        """Begin a transaction. Raises `OperationalError` if the connection was lost while it was idle."""
        while self._has_input(0):
            self.pgconn.consume_input()
        fresh = time.monotonic() < self.used + FRESH
        self.opening, self.snapshot = opening, snapshot
        if not fresh:
            self.cursor().close()

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor in the transaction that was begun."""
        self.settle()
        if opening := self._taken():
            super().execute(opening)
        return super().cursor(*args, **options)

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run a statement. The first one of a transaction is sent with what begins it."""
        self.settle()
        opening = self._taken()
        if not opening:
            return super().execute(query, params, **options)
        cursor = psycopg.ClientCursor(self)
        text = query if params is None else cursor.mogrify(query, params)
        cursor.execute(f"{opening}; {text}".encode(self.info.encoding))
        for _ in opening.split(";"):
            cursor.nextset()
        return cursor

    def end(self) -> None:
        """End a snapshot without waiting for the answer, or a transaction without statements."""
        if not self._taken():
            self.pgconn.send_query(b"COMMIT")
            self.pgconn.flush()
            self.ending = True

    def settle(self) -> None:
        """Read the answer to the last `end`."""
        while self.ending and self.pgconn.is_busy():
            if not self._has_input(PATIENCE):
                raise psycopg.OperationalError("the server does not answer")
            self.pgconn.consume_input()
        if self.ending:
            list(iter(self.pgconn.get_result, None))
        self.ending, self.used = False, time.monotonic()

    def _taken(self) -> str:
        opening, self.opening = self.opening, ""
        return opening

    def _has_input(self, milliseconds: Any) -> bool:
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(milliseconds))
