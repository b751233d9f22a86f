"""`reconcile` of the `project` document: what `fleetform reconcile` may do without a person, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from declarative.model.schema.marks import BadValueError, Doc, Is
from declarative.model.spec.schedule import MINUTE, Cron, Zone
from declarative.model.spec.values import MAX_COUNT, Duration


class Cause(StrEnum):
    """What an action is about: the classes by which it is allowed, approved and limited."""

    CREATE = "create"
    """What is declared and not there is made."""
    UPDATE = "update"
    """What is there is changed in place."""
    RETRY = "retry"
    """A task that failed or was cut short runs again."""
    REPLACE_LOST = "replace-lost"
    """What is gone, does not answer or is unfit is made anew."""
    IDLE = "idle"
    """What nothing uses any more is given back."""
    DRIFT = "drift"
    """What somebody else changed is put back."""
    SCHEDULE = "schedule"
    """A `schedule` starts or stops it."""
    DELETE = "delete"
    """What is not declared any more goes."""
    REPLACE = "replace"
    """What is declared otherwise now is made anew, with the tasks on it."""


DISRUPTIVE = frozenset(
    {Cause.REPLACE_LOST, Cause.IDLE, Cause.DRIFT, Cause.SCHEDULE, Cause.DELETE, Cause.REPLACE}
)
"""What a budget without `reasons` counts."""
ALONE = tuple(cause for cause in Cause if cause not in (Cause.DELETE, Cause.REPLACE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many nodes may be deleted, replaced or made at once, and in a time."""

    nodes: Annotated[int, Is(minimum=0, maximum=MAX_COUNT), Doc("How many nodes; 0 is none.")]
    per: Annotated[Duration | None, Doc("In which time: `10m`. Without it: in each round.")] = None
    reasons: Annotated[
        tuple[Cause, ...],
        Is(most_items=len(Cause)),
        Doc("Which actions count: `[idle, replace-lost]`; default: all that delete or replace a node."),
    ] = ()
    schedule: Annotated[
        Cron | None, Doc('When it holds, as cron has it: `"* 8-17 * * 1-5"`; default: always.')
    ] = None
    duration: Annotated[
        Duration | None, Doc("How long it holds from each time of `schedule` on; default: that minute.")
    ] = None
    timezone: Annotated[Zone, Doc("Whose clock `schedule` goes by; default `UTC`.")] = Zone("UTC")

    def __post_init__(self) -> None:
        if self.duration is not None and self.schedule is None:
            hint = "add `schedule`, or remove it; `per` is the time in which nodes are counted"
            raise BadValueError(
                "bad-value", "`duration` is of a `schedule`, and there is none", hint, ("duration",)
            )

    def counts(self, cause: Cause) -> bool:
        """Whether an action of that class uses it up."""
        return cause in self.reasons if self.reasons else cause in DISRUPTIVE

    def holds(self, now: float) -> bool:
        """Whether it holds at that time."""
        if self.schedule is None:
            return True
        last = self.schedule.last(now, self.timezone)
        length = MINUTE if self.duration is None else (self.duration.seconds or 0.0)
        return last is not None and now < last + length

    @property
    def window(self) -> float:
        """Seconds in which it counts; 0: in one round."""
        return 0.0 if self.per is None else float(self.per.seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """What the loop may do without a person. What it may not waits, as a plan that a person approves."""

    interval: Annotated[Duration, Doc("Between two rounds; default 30s.")] = Duration(30)
    allow: Annotated[
        tuple[Cause, ...],
        Is(most_items=len(Cause)),
        Doc("What it does alone; default: all but `delete` and `replace`."),
    ] = ALONE
    approve: Annotated[
        tuple[Cause, ...] | None,
        Is(most_items=len(Cause)),
        Doc("What it does once `fleetform approve` lets it; default: all that `allow` does not name."),
    ] = None
    budgets: Annotated[
        tuple[Budget, ...],
        Is(most_items=100),
        Doc("How many nodes it may touch: `{nodes: 2, per: 10m, reasons: [idle]}`; the strictest holds."),
    ] = ()
    replacements_per_day: Annotated[
        int, Is(minimum=0, maximum=MAX_COUNT), Doc("How often one node may be replaced a day; default 3.")
    ] = 3

    SHORTEST: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.interval.seconds is None or self.interval.seconds < self.SHORTEST:
            raise BadValueError("out-of-range", "`interval` is too short", "write `30s`", ("interval",))
        both = sorted({*self.allow} & {*(self.approve or ())})
        if both:
            summary = f"`{both[0]}` is in `allow` and in `approve`"
            raise BadValueError("bad-value", summary, "remove it from one of them", ("approve",))

    def waits(self, cause: Cause) -> bool:
        """Whether an action of that class waits for a person. Else what is not allowed is only shown."""
        return cause not in self.allow if self.approve is None else cause in self.approve
