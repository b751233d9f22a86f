"""Rounds of a loop in which nothing has changed: they repeat the last round instead of making it anew.

A round comes from the declaration, the records, what backends say, and the time. A `RepeatableRound` keeps
these of a round that left nothing to do. As long as each is the same, so is the round: the declaration and
the policy are compared, the seal stands for the records (`Store.seal`), a mark for each backend
(`TellsChange`), and `Moment` knows until when the time changes nothing. Ranks may end at any time, and no
mark shows that: those that run are asked in each round. No age decides.

A plan depends on the time where something is late, idle or due. `Moment` is a number for the planner, and
notes how it was used: a comparison has the same result until the time reaches the other number, and any other
use makes the result one of this moment only. So nothing has to list what depends on the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from declarative.apply.ranks import poll, running, stops
from declarative.model.record import struct
from declarative.model.status import NodeState, RankState
from declarative.provider import ProviderError
from declarative.store.records import SEEN_ANEW

if TYPE_CHECKING:
    from declarative.apply.backend_look import Observation
    from declarative.apply.backends import Backends
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.model.state import Record, State
    from declarative.reconcile.loop import Round
    from declarative.store import Store

Marks = Mapping[str, object]


def marks_of(backends: Backends, names: Iterable[str]) -> Marks | None:
    """Backend → its mark; None if one of them cannot tell whether something has changed."""
    out: dict[str, object] = {}
    for name in sorted(names):
        try:
            mark = backends.get(name).mark()
        except ProviderError:
            return None
        if mark is None:
            return None
        out[name] = mark
    return out


def _live(state: State) -> list[Record]:
    return [r for r in state.of("rank") if not state.has_ended(r.address.name)]


@struct(frozen=True, slots=True, kw_only=True)
class RepeatableRound:
    """A round that left nothing to do, and what it came from."""

    desired: Desired
    policy: OperatorPolicy
    store: Store
    seal: str
    backends: Backends
    marks: Marks
    state: State
    since: float
    """The time of that round."""
    until: float
    """When the time may change something."""
    due: float
    """When it has to be recorded that nodes were seen."""
    round: Round

    def holds(self, desired: Desired, policy: OperatorPolicy, now: float) -> bool:
        """Whether nothing has changed since."""
        same = self.since <= now < self.until and desired == self.desired and policy == self.policy
        same = same and self.store.seal() == self.seal and marks_of(self.backends, self.marks) == self.marks
        if not same:
            return False
        try:  # whether each rank that has not ended is doing as it is recorded
            polls = [
                poll(self.state, self.backends.get(name), nodes)
                for name, nodes in running(self.state).items()
            ]
        except ProviderError:
            return False
        live = {r.address.name: self.state.ranks.get(r.address.name) for r in _live(self.state)}
        return {name: status for statuses in polls for name, status in statuses.items()} == live

    def repeated(self) -> Round:
        """The same round, with what was spent until now."""
        plan = self.round.plan
        assert plan is not None
        cost = replace(plan.preview.cost, spent=self.store.spent())
        return replace(self.round, plan=replace(plan, preview=replace(plan.preview, cost=cost)))


def settled(before: State, after: State) -> bool:
    """Whether a round that found `before` and left `after` would find nothing else to record: nothing but
    times differs, no call is open, no rank starts or is to stop, now or later, and none has its GPUs sampled,
    which each round shows anew.
    """
    for record in _live(after):
        status = after.ranks.get(record.address.name)
        if status is None or status.state is not RankState.RUNNING or record.rank.utilization_policy:
            return False
    if after.intents or stops(after, math.inf):
        return False
    if before is after:
        return True
    expected = replace(before, readiness=after.readiness, silent=after.silent)
    return expected == after and all(
        name in after.readiness
        and replace(readiness, observed_at=None) == replace(after.readiness[name], observed_at=None)
        for name, readiness in before.readiness.items()
    )


def lasts(observation: Observation, after: State) -> float | None:
    """Seconds until these observations have to be recorded anew; None if they may change by themselves, or
    call for something.
    """
    inventory = observation.inventory
    special = (
        *(
            observation.resolutions,
            observation.past,
            inventory.gone,
            inventory.unsure,
            inventory.silent,
            inventory.strays,
            inventory.taken,
        ),
        *(inventory.recovered, inventory.existing, inventory.diagnostics, inventory.left_out),
    )
    if any(special) or any(r.state is not NodeState.READY for r in inventory.readiness.values()):
        return None
    recorded = after.readiness
    if recorded.keys() != inventory.readiness.keys():
        return None
    ages = (
        (now.observed_at or 0.0) - (recorded[name].observed_at or 0.0)
        for name, now in inventory.readiness.items()
    )
    return SEEN_ANEW - max(ages, default=0.0)


# --------------------------------------------------------------------------- the time of a round


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
