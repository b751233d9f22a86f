"""The loop: one round after the other, and observers that are told of each.

What a round does is the caller's, who does it by the code of `apply`. Time is a value: `clock` and `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from declarative.reconcile.round import Observer, Round

GLANCE = 1.0
"""Seconds between two looks whether the next round has to come early."""


class Loop:
    """Rounds until `wait` says that it is over."""

    def __init__(
        self,
        step: Callable[[], Round],
        observers: Sequence[Observer],
        *,
        clock: Callable[[], float],
        wait: Callable[[float], bool],
    ) -> None:
        """`wait` waits so many seconds, and says whether the loop is to end."""
        self._step = step
        self._observers = observers
        self._clock = clock
        self._wait = wait
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

    def run(self, interval: Callable[[], float], early: Callable[[], bool]) -> None:
        """Rounds, each `interval` after the last, or once it is time `early`."""
        over = self._wait(0.0)
        while not over:
            begun = self._clock()
            self.once()
            over = self._wait(min(GLANCE, interval()))
            while not over and self._clock() < begun + interval() and not early():
                over = self._wait(min(GLANCE, max(0.0, begun + interval() - self._clock())))
