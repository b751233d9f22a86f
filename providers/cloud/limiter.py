"""One rate limit for all who ask one API: where it says that it is asked too much, everybody slows down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

FIRST_GAP = 0.05
LONGEST_GAP = 2.0
"""Seconds between two requests: none until the API complains, twice as many with each complaint."""
RECOVERY = 0.9
"""What is left of the gap after each request that went well."""
STEADY = 0.98
GENTLY = 1.1
"""What is left of the gap, and how it is widened, where the API's rate is known: it is about right."""
LONGEST_PAUSE = 30.0
"""Seconds. An API that wants more of a pause is asked less often by whoever tries again, not held up here."""


class Limiter:
    """Spreads requests out while there are complaints. Safe to use from many threads."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        rate: float | None = None,
    ) -> None:
        """`rate` is how many requests a second the API is known to grant in the long run: a complaint leads
        there at once, and one keeps close to it.
        """
        known = (FIRST_GAP, 2.0, RECOVERY) if rate is None else (1 / rate, GENTLY, STEADY)
        self._first, self._growth, self._recovery = known
        self._now = now
        self._sleep = sleep
        self._turn = threading.Lock()
        self._gap = 0.0
        self._next = 0.0
        self._widened = 0.0

    def wait(self) -> None:
        """Wait for one's turn; at once if there were no complaints."""
        with self._turn:
            now = self._now()
            mine = max(now, self._next)
            self._next = mine + self._gap
        if mine > now:
            self._sleep(mine - now)

    def throttled(self, after: float | None = None) -> None:
        """The API complained; `after` is the pause in seconds that it asked for."""
        with self._turn:
            now = self._now()
            if now >= self._widened:
                # Once for all requests that were under way together: they are one complaint.
                self._gap = min(LONGEST_GAP, max(self._first, self._gap * self._growth))
                self._widened = now + self._gap * 2
            self._next = max(self._next, now + min(LONGEST_PAUSE, after or self._gap))

    def fine(self) -> None:
        """A request went well."""
        if self._gap:
            with self._turn:
                self._gap = self._gap * self._recovery if self._gap > FIRST_GAP / 10 else 0.0


_LIMITERS: dict[Hashable, Limiter] = {}
_TURN = threading.Lock()


def limiter(*key: Hashable, rate: float | None = None) -> Limiter:
    """The limiter of one API, or of a part of it, the same for all providers of this process."""
    with _TURN:
        return _LIMITERS.setdefault(key, Limiter(rate=rate))
