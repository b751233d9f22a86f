"""A connection to PostgreSQL that saves round trips. Imported late, since psycopg is."""

from __future__ import annotations

import select
import time
from contextlib import suppress
from typing import Any

import psycopg

FRESH = 5.0
"""Seconds for which an idle connection is used without asking first whether it is still there."""

LAST_WAIT = 1_000
"""Milliseconds for which the last answer is waited for."""

PATIENCE = 30_000
"""Milliseconds for which an answer is waited for: as `tcp_user_timeout` in `postgres.NO_HANGING`."""


class ServerConnection(psycopg.Connection[Any]):
    """Sends what begins a transaction with its first statement, and does not wait for the end of a
    snapshot: a read takes one round trip instead of three.
    """

    opening: tuple[str, ...] = ()
    """The statements that begin the transaction, as long as they are not sent."""
    deferred: tuple[str, ...] = ()
    """Statements that are sent with the next one, or with the COMMIT."""
    snapshot = False
    """Whether the transaction only reads."""
    ending = False
    """Whether the answer to a COMMIT is not read yet."""
    used = 0.0
    """When it was last used, by the monotonic clock."""

    def begin(self, *opening: str, snapshot: bool) -> None:
        """Begin a transaction. Raises `OperationalError` if the connection was lost while it was idle."""
        while self._has_input(0):
            self.pgconn.consume_input()
        fresh = time.monotonic() < self.used + FRESH
        self.opening, self.deferred, self.snapshot = opening, (), snapshot
        if not fresh:
            self.cursor().close()

    def cursor(self, *args: Any, **options: Any) -> Any:
        """A cursor in the transaction that was begun."""
        self.settle()
        if before := self.taken():
            super().execute("; ".join(before).encode(self.info.encoding))
        return super().cursor(*args, **options)

    def defer(self, query: str, params: Any = None) -> None:
        """Run a statement whose result nobody needs: it is sent with the next one, or with the COMMIT."""
        self.deferred = (*self.deferred, self._text(query, params))

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run a statement, and those before it that were deferred."""
        self.settle()
        before = self.taken()
        if not before:
            return super().execute(query, params, **options)
        cursor = psycopg.ClientCursor(self)
        cursor.execute("; ".join((*before, self._text(query, params))).encode(self.info.encoding))
        for _ in before:
            cursor.nextset()
        return cursor

    def end(self) -> None:
        """End a snapshot without waiting for the answer, or a transaction without statements."""
        if not self.taken():
            self.pgconn.send_query(b"COMMIT")
            self.pgconn.flush()
            self.ending = True

    def close(self) -> None:
        """Close it. PgBouncer gives up its own connection if a client goes before the answer to a COMMIT."""
        with suppress(psycopg.OperationalError):  # it may be lost by now
            if self.ending and self._has_input(LAST_WAIT):
                self.settle()
        super().close()

    def settle(self) -> None:
        """Read the answer to the last `end`."""
        while self.ending and self.pgconn.is_busy():
            if not self._has_input(PATIENCE):
                raise psycopg.OperationalError("the server does not answer")
            self.pgconn.consume_input()
        if self.ending:
            list(iter(self.pgconn.get_result, None))
        self.ending, self.used = False, time.monotonic()

    def taken(self) -> tuple[str, ...]:
        """The statements that are not sent yet. The caller sends them."""
        before = (*self.opening, *self.deferred)
        self.opening = self.deferred = ()
        return before

    def _text(self, query: str, params: Any) -> str:
        return query if params is None else psycopg.ClientCursor(self).mogrify(query, params)

    def _has_input(self, milliseconds: Any) -> bool:
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(milliseconds))
