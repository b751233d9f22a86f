"""Going on after the database was away: every step of the store may be done twice.

A connection that breaks during COMMIT leaves it open whether the step was recorded. So each step is such
that doing it again is no harm (an open intent is taken up again, an ended one stays ended, blocks that are
held are held), checks the fence anew in its own transaction, and may simply be repeated; if another one
has taken the lock meanwhile, it is refused. How often and how long is for the caller to say (tenacity has its
one home in `declarative.retry`): a `Resume` is given a step and calls it, again on `UnreachableError` if it
likes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Resume(Protocol):
    """Calls a step, perhaps several times; the first result, or the last error."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """What came of it."""


def once(step: Callable[[], T], /) -> T:
    """No patience: the first fault is the last one."""
    return step()


class Resuming(Protocol):
    """What has a `Resume` of its own."""

    _resume: Resume


S = TypeVar("S", bound=Resuming)


def resumed(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that is done again when the database was away: only for what may be done twice."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._resume(lambda: method(self, *args, **kwargs))

    return call
