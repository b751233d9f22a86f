"""Looks at a cloud that many callers need at the same time: they are shared, or run in parallel.

In a cloud without tokens, each create looks for everything of ours before it starts, and again until the
machine runs. With many creates at once, each look would be a listing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Looks(Generic[T]):
    """Shared looks at things by their ids. Safe to use from many threads, if each waits for a different
    thing.
    """

    def __init__(self, ask: Callable[[Sequence[str]], Mapping[str, T]]) -> None:
        """`ask` returns the things that it finds; missing ones do not exist. Its faults go to the thread that
        called it.
        """
        self._ask = ask
        self._change = threading.Condition()
        self._waiting: set[str] = set()
        """Ids that nobody asks for yet."""
        self._asked: set[str] = set()
        """Ids that another thread asks for now."""
        self._found: dict[str, T | None] = {}
        """Things found by another thread, until they are taken."""

    def next(self, key: str, pause: float) -> T | None:
        """The result of a look that begins after this call: after `pause` seconds, or with another thread's
        look.
        """
        due = time.monotonic() + pause
        with self._change:
            while True:
                self._waiting.add(key)
                while key in self._waiting and (left := due - time.monotonic()) > 0:
                    self._change.wait(left)
                if key in self._waiting:
                    break
                while key in self._asked:
                    self._change.wait()
                if key in self._found:
                    return self._found.pop(key)
                # The thread that asked for it got a fault: the next one asks.
            all_of_us = sorted(self._waiting)
            others = {other for other in all_of_us if other != key}
            self._waiting.clear()
            self._asked |= others
        try:
            found = self._ask(all_of_us)
            with self._change:
                self._found |= {other: found.get(other) for other in others}
        finally:
            with self._change:
                self._asked -= others
                self._change.notify_all()
        return found.get(key)


@contextmanager
def asking(at_once: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads for requests that change nothing. Requests that have not started at its end are
    dropped.

    Ctrl-C does not wait for answers, which may take a minute.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


class Shared(Generic[T]):
    """A shared listing that began after the caller asked. Safe to use from many threads."""

    def __init__(self, look: Callable[[], Sequence[T]], now: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._now = now
        self._turn = threading.Lock()
        self._started = float("-inf")
        self._found: tuple[T, ...] = ()

    def fresh(self, age: float = 0.0) -> tuple[T, ...]:
        """The listing. Each caller gets the faults of its own look. It may have started up to `age` seconds
        earlier.
        """
        asked = self._now() - age
        with self._turn:
            if self._started <= asked:
                started = self._now()
                self._found = tuple(self._look())
                self._started = started
            return self._found
