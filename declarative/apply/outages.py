"""Backends and hosts that are down: a loop leaves them alone for a while, and asks again beside its rounds.

Meanwhile their things count as unknown, and nothing else waits for them. Only passing faults count: a backend
that refuses a request does so at once, and delays nothing.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from declarative.apply.parallel import start_calls
from declarative.model.record import struct
from declarative.model.status import NodeState, Outage, Readiness
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind

T = TypeVar("T")

DELAYS = (15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds until a backend is asked again, after it failed once, twice, …; the last for all that follow."""
AT_FIRST = 15.0
"""Seconds to wait for one whose usual time is not known yet. A later answer is read when it comes."""
PATIENT = 90.0
"""The same if there is only one round."""
AT_LEAST = 8.0
"""The least time to wait for a backend, in seconds."""
TIMES_SLOWER = 3
"""The longest wait for a backend, in times of its last answer's."""
OFFERS = "offers"
"""The part of a backend that reports its offers."""
NODES = "nodes"
"""The part that says how its nodes and ranks are."""
ADOPTED = "instances"
"""The part that says which instances of a fleet's `instance_ids` are there."""
QUEUE = "queue"
"""The part that says when queued tasks are expected to start."""
HOST = "host/"
"""The prefix of a part that is a host, or the machine of a node."""


class _SilentError(TransientError):
    """A host does not answer."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__(TransientKind.NOT_SENT, readiness.reason or "it does not answer")
        self.readiness = readiness


@struct(slots=True, kw_only=True)
class _Down:
    """A backend, or a part of it, that is left alone, and how it is asked again."""

    outage: Outage
    hint: str | None
    asked: float
    """When it was last known to be down, seconds since the epoch."""
    failures: int
    """How many times in a row it did not answer."""
    readiness: Readiness | None
    """The last readiness of a host; None if unknown."""
    ask: Callable[[], object]
    longest: float
    pending: bool
    used: bool = True


class Outages:
    """The memory of unreadable backends from round to round. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] | None = None, first: float | None = None) -> None:
        """Without a `clock` no backend is left alone: all are waited for. `first`: see `AT_FIRST`."""
        self._clock = clock or time.time
        self._first = first
        self.remembers = clock is not None
        self._lock = threading.Lock()
        self._down: dict[tuple[str, str], _Down] = {}
        self._took: dict[tuple[str, str], float] = {}
        self._read: set[tuple[str, str]] = set()
        self._returned = False

    def _use(self, backend: str, part: str) -> _Down | None:
        with self._lock:
            down = self._down.get((backend, part))
            if down:
                down.used = True
            return down

    def is_down(self, backend: str, part: str = "") -> bool:
        """Whether a backend, or a part of it, is left alone."""
        return self._use(backend, part) is not None

    def check(self, backend: str, part: str = "") -> None:
        """Raise an error if a backend is left alone. It was not asked, so an immediate retry is no use."""
        if down := self._use(backend, part):
            raise PermanentError(PermanentKind.CONFLICT, down.outage.why, hint=down.hint)

    def list(self) -> tuple[Outage, ...]:
        """All that are left alone, single hosts included."""
        with self._lock:
            return tuple(down.outage for _, down in sorted(self._down.items()))

    def backends(self) -> tuple[Outage, ...]:
        """The backends that are left alone, and their parts, without single hosts."""
        return tuple(outage for outage in self.list() if not outage.part.startswith(HOST))

    def forget_unused(self) -> None:
        """Forget those that nobody wanted to read since the last time."""
        with self._lock:
            self._took = {k: t for k, t in self._took.items() if k in self._read or not k[1].startswith(HOST)}
            self._read.clear()
            self._down = {key: down for key, down in self._down.items() if down.used}
            for down in self._down.values():
                down.used = False

    def read(
        self,
        backend: str,
        ask: Callable[[], T],
        once: Callable[[], T],
        *,
        part: str = "",
        least: float = 0.0,
        longest: float = DELAYS[-1],
    ) -> T:
        """The answer of a backend, or of a part of it. If it fails, or takes much longer than before and than
        `least` seconds, it is left alone for at most `longest`, and asked `once` each time that it is due.
        """
        key = backend, part
        with self._lock:
            self._read.add(key)
        self.check(*key)
        limit = max(least, self.patience(key))
        future = self._submit(key, ask)
        try:
            return future.result(limit)
        except TransientError as error:
            self._failed(key, error, once, longest=longest)
            raise
        except TimeoutError:
            summary = f"it has not answered for {limit:.0f} s"
            late = TransientError(TransientKind.AMBIGUOUS, summary)
            self._failed(key, late, once, future, longest=longest)
            raise PermanentError(PermanentKind.CONFLICT, summary) from None

    def patience(self, key: tuple[str, str]) -> float:
        """Seconds to wait for the answer of a backend, or of a part of it."""
        took = self._took.get(key)
        if took is None:
            return AT_FIRST if self._first is None else self._first
        return max(AT_LEAST, TIMES_SLOWER * took)

    def read_host(
        self,
        name: tuple[str, str],
        ask: Callable[[], T],
        readiness_of: Callable[[T], Readiness],
        longest: float,
    ) -> T | Readiness:
        """The answer of one host of a backend. A silent host is left alone, and keeps its last readiness."""
        if not self.remembers:
            return ask()

        def ask_surely() -> T:
            answer = ask()
            self._check_answers(readiness_of(answer))
            return answer

        try:
            return self.read(name[0], ask_surely, ask_surely, part=HOST + name[1], longest=longest)
        except ProviderError:
            last = self.last_readiness(*name)
            if last is None:
                raise
            return last

    def leave_alone(
        self, name: tuple[str, str], readiness: Readiness, ask: Callable[[], Readiness], longest: float
    ) -> None:
        """Leave a node alone if its backend has reported that it does not answer."""
        if self.remembers:
            key = name[0], HOST + name[1]
            self._failed(key, _SilentError(readiness), lambda: self._check_answers(ask()), longest=longest)

    @staticmethod
    def _check_answers(readiness: Readiness) -> None:
        if readiness.state is NodeState.UNREACHABLE:
            raise _SilentError(readiness)

    def last_readiness(self, backend: str, host: str) -> Readiness | None:
        """The last readiness of a host that is left alone; None if it is not left alone."""
        down = self._use(backend, HOST + host)
        if down is None:
            return None
        if down.readiness is None:
            return Readiness(state=NodeState.UNKNOWN, reason=down.outage.why)
        return replace(down.readiness, reason=down.outage.why, observed_at=down.asked)

    def failed_twice(self, backend: str, host: str) -> bool:
        """Whether a silent host was asked more than once in a row."""
        down = self._use(backend, HOST + host)
        return down is not None and down.failures > 1

    def ask_again(self) -> None:
        """Ask those that are due, and wait for none."""
        now = self._clock()
        with self._lock:
            due = {n: d for n, d in self._down.items() if not d.pending and d.outage.until <= now}
            for down in due.values():
                down.pending = True
        for key, down in due.items():
            self._follow(key, down.ask, self._submit(key, down.ask), down.longest)

    def returned(self) -> bool:
        """Whether one has answered again since this was asked last."""
        with self._lock:
            returned, self._returned = self._returned, False
        return returned

    def _submit(self, key: tuple[str, str], ask: Callable[[], T]) -> Future[T]:
        context, started = contextvars.copy_context(), time.monotonic()

        def run() -> T:
            answer = context.run(ask)
            with self._lock:
                self._took[key] = time.monotonic() - started
            return answer

        return start_calls({key[0]: ask}, lambda _: run())[key[0]]

    def _follow(
        self, key: tuple[str, str], ask: Callable[[], object], future: Future[T], longest: float
    ) -> None:
        """Take up the answer whenever it comes."""

        def done(future: Future[T]) -> None:
            error = future.exception()
            with self._lock:
                if key not in self._down:
                    return
            if isinstance(error, TransientError):
                self._failed(key, error, ask, longest=longest)
                return
            with self._lock:  # it answers, if only that it refuses: the next round hears what
                self._down.pop(key, None)
                self._returned = True

        future.add_done_callback(done)

    def _failed(
        self,
        key: tuple[str, str],
        error: ProviderError,
        ask: Callable[[], object],
        pending: Future[T] | None = None,
        *,
        longest: float,
    ) -> None:
        now = self._clock()
        with self._lock:
            before = self._down.get(key)
            failures = before.failures + 1 if before else 1
            outage = Outage(
                backend=key[0],
                part=key[1],
                since=before.outage.since if before else now,
                until=now + min(longest, DELAYS[min(failures, len(DELAYS)) - 1]),
                why=before.outage.why if before else error.summary,  # a loop reports it once
            )
            self._down[key] = _Down(
                outage=outage,
                hint=before.hint if before else error.hint,
                asked=now,
                failures=failures,
                readiness=error.readiness if isinstance(error, _SilentError) else None,
                ask=ask,
                longest=longest,
                pending=pending is not None,
            )
        if pending is not None:
            self._follow(key, ask, pending, longest)
