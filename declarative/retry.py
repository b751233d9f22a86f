"""The one place where a call is tried again: on transient faults only, with jittered waits and a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from declarative.model.record import struct
from declarative.provider import TransientError

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


@struct(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to go on: times are seconds."""

    deadline: float = 300.0
    first: float = 0.5
    longest: float = 30.0
    away: float = 10.0
    """For a single machine that cannot be reached at all, from the first try that says so."""


PATIENCE = Policy(deadline=30.0, longest=5.0)
"""Reading waits less long than writing: the user is looking at the screen."""


def call(
    function: Callable[[], T],
    *,
    policy: Policy | None = None,
    on_retry: Callable[[TransientError, float], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> T:
    """The result of `function`, tried again on `TransientError` until the deadline.

    The last `TransientError` is raised when that passes, or would before the next try is due, or when
    `stopping` says so; any other error at once.
    """
    return call_on(TransientError, function, policy=policy, on_retry=on_retry, stopping=stopping)


def call_on(
    transient: type[E],
    function: Callable[[], T],
    *,
    policy: Policy | None = None,
    on_retry: Callable[[E, float], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> T:
    """`call` for another kind of error that passes: that of the state's database is one of the store."""
    started = time.monotonic()
    try:
        return function()  # nearly all calls succeed: what a retry needs is made when there is one
    except transient as error:
        first: list[E] = [error]
    policy = policy or Policy()

    def again() -> T:
        if first:
            raise first.pop()
        return function()

    def note(state: tenacity.RetryCallState) -> None:
        error = _error_of(state)
        if on_retry and isinstance(error, transient):
            on_retry(error, state.upcoming_sleep)

    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=policy.first, max=policy.longest)
    late = tenacity.stop_before_delay(policy.deadline - (time.monotonic() - started))
    away = _Away(policy.away)

    def wait(state: tenacity.RetryCallState) -> float:
        """The server's own Retry-After where that is longer."""
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
    return retrying(again)


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    """What the last try raised."""
    return state.outcome.exception() if state.outcome else None


class _Away:
    """When a machine was away for so long, time after time."""

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
