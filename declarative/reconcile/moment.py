"""The time of a round, which knows for how long the same plan would be made from the same facts.

A plan depends on the time where something is late, idle or due. `Moment` is a number for the planner, and
notes how it was used: a comparison has the same result until the time reaches the other number, and any other
use makes the result one of this moment only. So nothing has to list what depends on the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self


class Use:
    """How the time was used so far, and the times that were computed from it."""

    def __init__(self) -> None:
        self.seconds = math.inf


class Moment(float):
    """Seconds since the epoch, or since something. It grows as time passes."""

    use: Use

    def __new__(cls, at: float, use: Use | None = None) -> Self:
        """Without `use` it is a new time, which was compared with nothing yet."""
        moment = super().__new__(cls, at)
        moment.use = use or Use()
        return moment

    @property
    def seconds(self) -> float:
        """For how many seconds everything that was asked of it has the same answer."""
        return self.use.seconds

    def __sub__(self, other: float, /) -> float:
        """The time since `other`, which grows as well."""
        if isinstance(other, Moment):
            self.use.seconds = 0.0
            return float.__sub__(self, other)
        return Moment(float.__sub__(self, other), self.use)

    def __add__(self, other: float, /) -> float:
        """A later time, which grows as well."""
        if isinstance(other, Moment):
            self.use.seconds = 0.0
            return float.__add__(self, other)
        return Moment(float.__add__(self, other), self.use)

    __radd__ = __add__


def _compared(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Moment, other: object) -> Any:
        if isinstance(other, Moment) and other.use is self.use:
            pass  # both grow
        elif not isinstance(other, int | float):
            self.use.seconds = 0.0
        elif (until := float.__sub__(float(other), self)) >= 0:
            self.use.seconds = min(self.use.seconds, until)
        return operation(self, other)

    return run


def _at_once(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Moment, *others: Any) -> Any:
        self.use.seconds = 0.0
        return operation(self, *others)

    return run


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Moment, f"__{_name}__", _compared(getattr(float, f"__{_name}__")))
for _name in (
    *("rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "divmod"),
    *("rdivmod", "pow", "rpow", "neg", "pos", "abs", "int", "float", "trunc", "floor", "ceil", "round"),
    *("bool", "hash", "str", "repr", "format"),
):
    setattr(Moment, f"__{_name}__", _at_once(getattr(float, f"__{_name}__")))
Moment.is_integer = _at_once(float.is_integer)  # type: ignore[method-assign]
Moment.as_integer_ratio = _at_once(float.as_integer_ratio)  # type: ignore[method-assign]
Moment.hex = _at_once(float.hex)  # type: ignore[method-assign]
