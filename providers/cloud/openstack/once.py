"""Making a thing once where the cloud knows no tokens: it is looked for before it is made.

A create whose answer was lost may take effect after all, for a while: that there is nothing is believed once
that while is over. What came twice all the same is for the driver to take away: see `extras`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from declarative.provider import PermanentError, TransientError, TransientKind
from providers.cloud.bad_answers import reading

T = TypeVar("T")

SETTLE = 10
"""Seconds after a create without an answer until whoever looks and finds nothing may make it again."""
_TURNS = tuple(threading.Lock() for _ in range(256))
"""One try for a token at a time, in this process."""


class Once:
    """The creates of one backend, by their tokens. Safe to use from many threads."""

    def __init__(
        self,
        settle: float = SETTLE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settle = settle
        self._now = now
        self._sleep = sleep
        self._unsure: dict[str, float] = {}

    def __call__(self, token: str, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """What `look` finds of this token, or else what `make` makes."""
        with _TURNS[hash(token) % len(_TURNS)]:
            found = look()
            if found is None and token in self._unsure:
                self._sleep(max(0.0, self._unsure[token] + self._settle - self._now()))
                found = look()
            if found is not None:
                return found
            try:
                with reading():
                    made = make()
            except TransientError as error:
                if error.kind is TransientKind.AMBIGUOUS:
                    self._unsure[token] = self._now()
                raise
            except PermanentError:
                # An earlier try may have been what fills the quota now.
                late = look() if token in self._unsure else None
                if late is None:
                    raise
                return late
            self._unsure.pop(token, None)
            return made


def extras(found: Sequence[T], age: Callable[[T], tuple[str, str]]) -> list[T]:
    """All but the oldest of the things that one create made: for all who look, the same ones."""
    return sorted(found, key=age)[1:]
