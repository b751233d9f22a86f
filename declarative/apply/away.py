"""Backends that are down: a loop leaves them alone for a while, and asks again beside its rounds.

Meanwhile what they have counts as unknown, and nothing else waits for them. Only what may pass is left alone:
a backend that refuses what it is asked does so at once, and holds nobody up.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from declarative.apply.answers import begin
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind

T = TypeVar("T")

DELAYS = (15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds until a backend is asked again, after it failed once, twice, …; the last for all that follow."""
AT_FIRST = 90.0
"""Seconds that one is waited for of which it is not known yet how long it takes."""
AT_LEAST = 20.0
"""Seconds that any is waited for, and…"""
TIMES_SLOWER = 3
"""…so many times as long as it took the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """That a backend cannot be read. Times are seconds since the epoch."""

    backend: str
    since: float
    again: float
    """When it is asked again."""
    why: str
    hint: str | None = None


@dataclass(slots=True)
class _Down:
    absence: Absence
    ask: Callable[[], object]
    failures: int = 1
    pending: bool = False


class Away:
    """What is remembered of backends from round to round. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self._down: dict[str, _Down] = {}
        self._took: dict[str, float] = {}
        self._returned = False

    def check(self, backend: str) -> None:
        """Raise why a backend is left alone, if it is. Nothing was asked: to try again at once is no use."""
        with self._turn:
            down = self._down.get(backend)
        if down:
            hint = down.absence.hint
            raise PermanentError(PermanentKind.CONFLICT, down.absence.why, hint=hint)

    def list(self) -> tuple[Absence, ...]:
        """The backends that are left alone."""
        with self._turn:
            return tuple(down.absence for _, down in sorted(self._down.items()))

    def read(self, backend: str, ask: Callable[[], T], once: Callable[[], T]) -> T:
        """What a backend answers. One that fails, or takes much longer than it did, is left alone, and asked
        `once` each time that it is due.
        """
        took = self._took.get(backend)
        limit = AT_FIRST if took is None else max(AT_LEAST, TIMES_SLOWER * took)
        future = self._begun(backend, ask)
        try:
            return future.result(limit)
        except TransientError as error:
            self._failed(backend, error, once)
            raise
        except TimeoutError:
            summary = f"it has not answered for {limit:.0f} s"
            self._failed(backend, TransientError(TransientKind.AMBIGUOUS, summary), once, future)
            raise PermanentError(PermanentKind.CONFLICT, summary) from None

    def ask_again(self) -> None:
        """Ask those that are due, and wait for none."""
        now = self._clock()
        with self._turn:
            due = {n: d for n, d in self._down.items() if not d.pending and d.absence.again <= now}
            for down in due.values():
                down.pending = True
        for name, down in due.items():
            self._follow(name, down.ask, self._begun(name, down.ask))

    def returned(self) -> bool:
        """Whether one has answered again since this was asked last."""
        with self._turn:
            found, self._returned = self._returned, False
        return found

    def _begun(self, backend: str, ask: Callable[[], T]) -> Future[T]:
        context, begun = contextvars.copy_context(), time.monotonic()

        def run() -> T:
            found = context.run(ask)
            self._took[backend] = time.monotonic() - begun
            return found

        return begin({backend: ask}, lambda _: run())[backend]

    def _follow(self, backend: str, ask: Callable[[], object], future: Future[T]) -> None:
        """Take up the answer whenever it comes."""

        def done(future: Future[T]) -> None:
            error = future.exception()
            if isinstance(error, TransientError):
                self._failed(backend, error, ask)
                return
            with self._turn:  # it answers, if only that it refuses: the next round hears what
                self._down.pop(backend, None)
                self._returned = True

        future.add_done_callback(done)

    def _failed(
        self,
        backend: str,
        error: ProviderError,
        ask: Callable[[], object],
        pending: Future[T] | None = None,
    ) -> None:
        now = self._clock()
        with self._turn:
            before = self._down.get(backend)
            failures = before.failures + 1 if before else 1
            again = now + DELAYS[min(failures, len(DELAYS)) - 1]
            first = before.absence if before else None
            absence = Absence(
                backend=backend,
                since=first.since if first else now,
                again=again,
                why=first.why if first else error.summary,  # it is told once
                hint=first.hint if first else error.hint,
            )
            self._down[backend] = _Down(absence, ask, failures, pending=pending is not None)
        if pending is not None:
            self._follow(backend, ask, pending)
