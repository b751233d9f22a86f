"""The one place where a call is tried again: on transient faults only, with jittered waits and a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from declarative.provider import TransientError

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to go on: times are seconds."""

    deadline: float = 300.0
    first: float = 0.5
    longest: float = 30.0
    away: float = 10.0
    """For a single machine that cannot be reached at all, from the first try that says so."""


PATIENCE = Policy(deadline=30.0, longest=5.0)
"""Reading waits less long than writing: the user is looking at the screen."""


class _Wait(tenacity.wait.wait_base):
    """A jittered exponential wait, or the server's own Retry-After where that is longer."""

    def __init__(self, policy: Policy) -> None:
        self._jitter = tenacity.wait_random_exponential(multiplier=policy.first, max=policy.longest)

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        after = error.after if isinstance(error, TransientError) and error.after else 0.0
        return max(after, self._jitter(retry_state))


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
    policy = policy or Policy()

    def note(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if on_retry and isinstance(error, transient):
            on_retry(error, state.next_action.sleep if state.next_action else 0.0)

    stop: tenacity.stop.stop_base = tenacity.stop_before_delay(policy.deadline) | _StopAway(policy.away)
    if stopping is not None:
        stop = stop | _StopWhen(stopping)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(transient),
        wait=_Wait(policy),
        stop=stop,
        before_sleep=note,
        reraise=True,
    )
    return retrying(function)


class _StopAway(tenacity.stop.stop_base):
    """When a machine was away for so long, time after time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        passed = retry_state.seconds_since_start
        if passed is None or not (isinstance(error, TransientError) and error.away):
            self._since = None
            return False
        self._since = passed if self._since is None else self._since
        return passed - self._since >= self._seconds


class _StopWhen(tenacity.stop.stop_base):
    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:  # noqa: ARG002
        return self._stopping()
