"""The only retry loop: on transient faults alone, with jittered waits and a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.model.record import struct
from declarative.provider import TransientError

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")


@struct(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to retry, in seconds."""

    deadline: float = 300.0
    first: float = 0.5
    longest: float = 30.0
    away: float = 10.0
    """The limit for a machine that cannot be reached at all, from the first such error."""


PATIENCE = Policy(deadline=30.0, longest=5.0)
"""The policy of reads. They wait less long than writes: the user is looking at the screen."""


def call(
    function: Callable[[], T],
    *,
    transient: type[Exception] = TransientError,
    policy: Policy | None = None,
    on_retry: Callable[[Any, float], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> T:
    """Return the result of `function`; retry it on a `transient` error until the deadline.

    Raise the last such error when the deadline passes, when it would pass before the next try, or when
    `stopping` returns true. Raise any other error at once. `on_retry` gets the error and the seconds to wait.
    """
    started = time.monotonic()
    try:
        return function()  # nearly all calls succeed: what a retry needs is made when there is one
    except transient as error:
        first = [error]
    policy = policy or Policy()

    def attempt() -> T:
        if first:
            raise first.pop()
        return function()

    def note(state: tenacity.RetryCallState) -> None:
        if on_retry:
            on_retry(_error_of(state), state.upcoming_sleep)

    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=policy.first, max=policy.longest)
    late = tenacity.stop_before_delay(policy.deadline - (time.monotonic() - started))
    away = _Away(policy.away)

    def wait(state: tenacity.RetryCallState) -> float:
        """The jittered wait, or the server's Retry-After if that is longer."""
        error = _error_of(state)
        after = error.after if isinstance(error, TransientError) and error.after else 0.0
        return max(after, jitter(state))

    def stop(state: tenacity.RetryCallState) -> bool:
        return late(state) | away(state) | (stopping is not None and stopping())

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(transient),
        wait=wait,
        stop=stop,
        before_sleep=note,
        reraise=True,
    )
    return retrying(attempt)


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    """The error of the last try."""
    return state.outcome.exception() if state.outcome else None


class _Away:
    """Stops once a machine was away for so long, try after try."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        error = _error_of(state)
        passed = state.seconds_since_start
        if passed is None or not (isinstance(error, TransientError) and error.away):
            self._since = None
            return False
        self._since = passed if self._since is None else self._since
        return passed - self._since >= self._seconds
