"""Looks at a cloud that many need at once: they are shared, or go side by side.

A cloud without tokens is asked for everything of ours before each create, and again until the machine runs.
With many creates at once that would be a listing for each look.
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
    """Looks at things by their ids. Safe to use from many threads, if each waits for something of its own."""

    def __init__(self, ask: Callable[[Sequence[str]], Mapping[str, T]]) -> None:
        """`ask` gives what it finds; what it leaves out is not there. Its faults are those of who asked."""
        self._ask = ask
        self._change = threading.Condition()
        self._waiting: set[str] = set()
        """Nobody asks for it yet."""
        self._asked: set[str] = set()
        """Somebody else does just now."""
        self._found: dict[str, T | None] = {}
        """What he found, until it is taken."""

    def next(self, key: str, pause: float) -> T | None:
        """What a look finds that begins from now on: after `pause` seconds, or when somebody else looks."""
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
                # The thread that asked for it got no answer: the next one asks.
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
    """A pool of threads for questions that change nothing. What is not asked yet when this ends, never is.

    Ctrl-C does not wait for answers: one may take a minute.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


class Shared(Generic[T]):
    """A listing that began after one asked for it. Safe to use from many threads."""

    def __init__(self, look: Callable[[], Sequence[T]], now: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._now = now
        self._turn = threading.Lock()
        self._started = float("-inf")
        self._found: tuple[T, ...] = ()

    def fresh(self, age: float = 0.0) -> tuple[T, ...]:
        """The listing; faults are those of the look, and everybody's own. It may have started `age` seconds
        before.
        """
        asked = self._now() - age
        with self._turn:
            if self._started <= asked:
                started = self._now()
                self._found = tuple(self._look())
                self._started = started
            return self._found


class RecentLook(Generic[T]):
    """Looks of many, each at one thing of a listing that may have started a moment ago. What this process has
    changed since is looked at anew.
    """

    def __init__(self, look: Callable[[], Mapping[str, T]], age: float) -> None:
        """`look` gives things by their ids; `age` is how many seconds ago it may have started."""
        self._all: Shared[tuple[str, T]] = Shared(lambda: tuple(look().items()))
        self._age = age
        self._turn = threading.Lock()
        self._changed: set[str] = set()

    def find(self, key: str) -> T | None:
        """The thing of that id, if it was there."""
        with self._turn:
            changed = key in self._changed
            self._changed.discard(key)
        return dict(self._all.fresh(0.0 if changed else self._age)).get(key)

    def changed(self, key: str) -> None:
        """The next look at it is to be a new one."""
        with self._turn:
            self._changed.add(key)
