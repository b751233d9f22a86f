"""One look for all who wait: hundreds of machines start at once, and each takes a minute.

Who waits for something says so. When the first of them looks, he asks for all of it, and the others take
their answers from his. So a cloud is asked as often as one would ask it, and not as often as all together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
                # Who asked for it got no answer: the next one asks.
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
