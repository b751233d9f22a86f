"""The loop: it runs one round after the other, and gives each to observers as an immutable value.

The caller does the work of a round with the code of `apply`. `clock` and `wait` are given to the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from time import gmtime, strftime
from typing import Protocol, TypeAlias

from declarative.apply.graph_walk import ActionResult
from declarative.converge.ports import Observer, RunOutcome
from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.status import Outage
from declarative.planner.plan import Action, Plan
from declarative.render.status_view import StatusView


@struct(frozen=True, slots=True, kw_only=True)
class Wait:
    """An action of the plan that this round did not do, and why."""

    address: str
    """The group: `task/train`, `node/gpu-0`, `volume/data`."""
    action: str
    """The cause that would allow the action: `create`, `delete`, …"""
    why: str
    digest: str | None = None
    """The digest for `fleetform approve`; None if no approval is needed."""
    until: float | None = None
    """The latest time of the next try, seconds since the epoch; None if unknown."""
    hint: str = ""
    """What a person can write or run so that it goes on; empty if it goes on by itself."""

    @property
    def steps(self) -> str:
        """All that a person can do, with the command that approves it; empty if it goes on by itself."""
        approve = f"`fleetform approve {self.digest}`" if self.digest else ""
        both = f"{self.hint}; to do it all the same: {approve}"
        return both if self.hint and approve else self.hint or approve


def left_alone(outage: Outage) -> Wait:
    """The part of a backend that the loop leaves alone for now."""
    since = strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(outage.since))
    why = f"{outage.part} cannot be read since {since}: {outage.why}".lstrip()
    return Wait(address=f"backend/{outage.backend}", action="read", why=why, until=outage.until)


@struct(frozen=True, slots=True, kw_only=True)
class Round:
    """The result of one round. Times are seconds since the epoch. The loop sets the first three."""

    number: int = 0
    at: float = 0.0
    duration: float = 0.0
    held: bool = False
    """Whether this replica leads. A replica that follows reads nothing, and its rounds have no status."""
    epoch: int | None = None
    """The number of this writer, which is larger for each new holder; None if it wrote nothing."""
    status: StatusView | None = None
    """The status after the round, as `status` shows it."""
    plan: Plan | None = None
    """The whole plan; None if the round did not get that far."""
    actions: tuple[Action, ...] = ()
    """The part of the plan that the round set out to do."""
    results: tuple[ActionResult, ...] = ()
    """The results of the actions."""
    waits: tuple[Wait, ...] = ()
    """What waits, and why. `backend/hpc` with `read`: the backend cannot be read, and is left alone until
    then.
    """
    backends: tuple[str, ...] = ()
    """All backends that are declared or used."""
    errors: tuple[Diagnostic, ...] = ()
    """Errors of the project's files, the state, or a backend."""
    hourly: float | None = None
    """The cost of all nodes after the planned actions, USD an hour; None if a price is unknown."""
    revision: str | None = None
    """The commit of the project's files, if known."""
    in_force: str | None = None
    """The commit that the loop goes by: an earlier one, while the files have errors."""
    gpus: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    """Node, index and UUID (empty if unknown) → use in percent, for the GPUs that a task's
    `utilization_policy` samples.
    """

    @property
    def well(self) -> bool:
        """Whether the round did all that it had to do."""
        return not self.errors and all(r.outcome == "done" for r in self.results)


RoundObserver: TypeAlias = Callable[[Round], None]
"""Gets each round when it ends. It must return soon: the next round waits for it."""


class RunObserver(Observer, Protocol):
    """Is told what one round finds and does."""

    def finished(self, outcome: RunOutcome) -> None:
        """The round has ended. The lock is still held."""


class LoopObserver(Protocol):
    """Is told what a loop finds. It is called in each round, also where nothing is new."""

    def round(self) -> AbstractContextManager[RunObserver]:
        """A round begins."""

    def waits(self, waits: Collection[Wait]) -> None:
        """This was not done in a round."""

    def returned(self, away: set[str]) -> None:
        """All backends but those that are `away` can be read."""

    def errors(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """The round had these errors."""

    def locked(self, holder: str) -> None:
        """Another command has the lock."""

    def git(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """The repository has these errors."""

    def wrong(self, diagnostics: tuple[Diagnostic, ...], *, held: bool) -> None:
        """The project's files have these errors; `held`: what they declared before holds."""


class Stop(threading.Event):
    """Asks the loop, and the running round, to end."""

    def __init__(self) -> None:
        super().__init__()
        self.halt = threading.Event()
        """Set when the round has to end."""

    def set(self) -> None:
        super().set()
        self.halt.set()


CHECK_INTERVAL = 1.0
"""Seconds between two checks whether the next round must start early."""


class Loop:
    """Runs rounds until `wait` ends the loop."""

    def __init__(
        self,
        step: Callable[[], Round],
        observers: Sequence[RoundObserver],
        *,
        clock: Callable[[], float],
        wait: Callable[[float], bool],
    ) -> None:
        """`wait` waits for the given seconds and returns whether the loop should end."""
        self._step = step
        self._observers = observers
        self._clock = clock
        self._wait = wait
        self._number = 0

    def once(self) -> Round:
        """Run one round, and give it to the observers."""
        at = self._clock()
        self._number += 1
        done = self._step()
        ended = replace(done, number=self._number, at=at, duration=max(0.0, self._clock() - at))
        for observer in self._observers:
            observer(ended)
        return ended

    def run(self, interval: Callable[[], float], early: Callable[[], bool]) -> None:
        """Run rounds, each `interval` seconds after the last, or sooner if `early` returns true."""
        over = self._wait(0.0)
        while not over:
            started = self._clock()
            self.once()
            over = self._wait(min(CHECK_INTERVAL, interval()))
            while not over and self._clock() < started + interval() and not early():
                over = self._wait(min(CHECK_INTERVAL, max(0.0, started + interval() - self._clock())))
