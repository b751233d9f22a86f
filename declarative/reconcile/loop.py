"""The loop: one round after the other, and observers that are told of each.

What a round does is the caller's, who does it by the code of `apply`. Time is a value: `clock` and `wait`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from declarative.reconcile.round import Observer, Round


class Loop:
    """Rounds until `stopping` is set."""

    def __init__(
        self,
        step: Callable[[], Round],
        observers: Sequence[Observer],
        *,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        self._step = step
        self._observers = observers
        self._clock = clock
        self._stopping = stopping
        self._number = 0

    def once(self) -> Round:
        """One round, told to the observers."""
        at = self._clock()
        self._number += 1
        found = self._step()
        done = replace(found, number=self._number, at=at, duration=max(0.0, self._clock() - at))
        for observer in self._observers:
            observer(done)
        return done
