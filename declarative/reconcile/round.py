"""The loop: one round after the other, and observers that get each round as an immutable value.

The caller does the round, with the code of `apply`. Time is a value: `clock` and `wait`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from time import gmtime, strftime
from typing import TypeAlias

from declarative.apply.away import Absence
from declarative.apply.graph_walk import ActionResult
from declarative.model.diagnostic import Diagnostic
from declarative.model.record import dataclass
from declarative.planner.types import Action, Plan
from declarative.render.views import StatusView


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that the plan would do and this round did not, and why."""

    address: str
    """The group: `task/train`, `node/gpu-0`, `volume/data`."""
    action: str
    """The class of the action: `create`, `delete`, …"""
    why: str
    digest: str | None = None
    """The digest for `fleetform approve`; None if no approval is missing."""
    until: float | None = None
    """When it is tried at the latest, seconds since the epoch; None if that is not known."""


def left_alone(found: Absence) -> Wait:
    """The part of a backend that is left alone."""
    since = strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(found.since))
    why = f"{found.part} cannot be read since {since}: {found.why}".lstrip()
    return Wait(address=f"backend/{found.backend}", action="read", why=why, until=found.again)


def unplaced(plan: Plan | None) -> Iterator[Wait]:
    """The tasks of a plan that have no place."""
    for refusal in plan.unplaced.refusals if plan else ():
        yield Wait(address=f"task/{refusal.task}", action="create", why=f"has no place: {refusal.summary}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round. Times are seconds since the epoch."""

    number: int
    at: float
    duration: float
    held: bool
    """Whether this replica leads. One that follows looks at nothing, and its rounds carry no status."""
    epoch: int | None = None
    """The number of this writer, which grows from holder to holder; None if it has written nothing."""
    status: StatusView | None = None
    """As `status` shows it, after the round."""
    plan: Plan | None = None
    """The whole plan; None if the round did not get that far."""
    actions: tuple[Action, ...] = ()
    """The part of the plan that was to be done in this round."""
    results: tuple[ActionResult, ...] = ()
    """The results of the actions."""
    waits: tuple[Wait, ...] = ()
    """With `backend/hpc` and `read` for a backend that cannot be read, and is left alone until then."""
    backends: tuple[str, ...] = ()
    """All that are declared or used."""
    errors: tuple[Diagnostic, ...] = ()
    """Errors of the project's files, the state, or a backend."""
    hourly: float | None = None
    """The cost of all nodes after the planned actions, USD an hour; None if a price is unknown."""
    revision: str | None = None
    """The commit of the project, where it is known."""
    gpus: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Node and index → use in percent, of the GPUs that a task's `utilization_policy` samples."""

    @property
    def well(self) -> bool:
        """Whether it did all that it had to do."""
        return not self.errors and all(r.outcome == "done" for r in self.results)


Observer: TypeAlias = Callable[[Round], None]
"""Gets each round after it. It must return soon: the next round waits for it."""


class Stop(threading.Event):
    """Asks the loop to end, and the running round as well."""

    def __init__(self) -> None:
        super().__init__()
        self.halt = threading.Event()
        """Set when the round has to end."""

    def set(self) -> None:
        """See `threading.Event`."""
        super().set()
        self.halt.set()


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
        """Make one round, and give it to the observers."""
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
            started = self._clock()
            self.once()
            over = self._wait(min(GLANCE, interval()))
            while not over and self._clock() < started + interval() and not early():
                over = self._wait(min(GLANCE, max(0.0, started + interval() - self._clock())))
