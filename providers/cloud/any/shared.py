"""Listings that are shared: who asks while one is under way gets the next one, together with all others.

A cloud without tokens is asked for everything of ours before each create, and again until the machine runs.
With many creates at once that would be a listing for each look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """A listing that began after one asked for it. Safe to use from many threads."""

    def __init__(self, look: Callable[[], Sequence[T]], now: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._now = now
        self._turn = threading.Lock()
        self._begun = float("-inf")
        self._found: tuple[T, ...] = ()

    def fresh(self) -> tuple[T, ...]:
        """The listing; faults are those of the look, and everybody's own."""
        asked = self._now()
        with self._turn:
            if self._begun <= asked:
                begun = self._now()
                self._found = tuple(self._look())
                self._begun = begun
            return self._found
