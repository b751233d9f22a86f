"""What a run gets from its caller: who is asked, who is told, and what may be done without asking. And how a
run ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Protocol

from declarative.apply.graph_walk import ActionResult, Listener
from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.state import State
from declarative.model.status import RankStatus
from declarative.planner.inventory import Inventory
from declarative.planner.plan import Plan
from declarative.store import Writer

INTERRUPTED = 130
"""The exit code of a run that was asked to stop."""


@struct(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    exit_code: int
    """The exit code of `apply`."""
    result: str
    """The same in one word, for scripts: that of the plan if it was not carried out."""
    plan: Plan
    results: tuple[ActionResult, ...] = ()
    prepared: Mapping[str, str] = field(default_factory=dict)
    """The tasks that are prepared and still wait → why."""
    lacking: tuple[str, ...] = ()
    """The tasks that found no capacity, and whose `retry` says to wait."""
    faults: tuple[Diagnostic, ...] = ()
    """Why the state was lost before the end, as with its lock."""
    carried_out: bool = False
    """Whether the plan was carried out, but for what could not be done."""

    @property
    def is_refused(self) -> bool:
        """Whether nothing was done, because of errors or of a task without a place."""
        return self.result in ("error", "unplaced")

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was asked to stop."""
        return self.exit_code == INTERRUPTED


class Consent(Protocol):
    """Asks a person whether the plan that was shown is to be carried out."""

    def __call__(self) -> None:
        """Return after a yes; raise `InvalidError` after a no."""


class ActionPermit(Protocol):
    """Decides what of a plan is done, for a run that asks nobody."""

    def choose(self, plan: Plan, state: State, writer: Writer) -> Plan:
        """The part to do. `state` is the records with what was observed. What waits is written down."""

    def begin(self, writer: Writer) -> None:
        """The actions begin: what budgets count is written down."""

    def end(
        self, plan: Plan, results: tuple[ActionResult, ...], writer: Writer, *, interrupted: bool
    ) -> None:
        """The actions have ended."""


class ProgressListener(Listener, Protocol):
    """Hears how the actions of a plan go on."""

    def expect(
        self, more: int, records: Iterable[str] = (), ids: Iterable[str] = (), gone: Iterable[str] = ()
    ) -> None:
        """`more` actions begin, with these `ids`. `records` change records alone; those that are `gone`
        delete the record of a thing that is not there.
        """


class Observer(Protocol):
    """Is told what a run finds and does."""

    def rank(self, name: str, status: RankStatus) -> None:
        """A rank changed its state."""

    def planned(self, plan: Plan, inventory: Inventory) -> None:
        """The plan was made from this inventory."""

    def pending(self, plan: Plan, state: State) -> None:
        """These tasks of the plan have no place, and the rest of the plan is done."""

    def renamed(self, plan: Plan, count: int) -> None:
        """`count` records got the names that the plan says."""

    def progress(self) -> ProgressListener:
        """The listener for the actions of the plan."""

    def warn(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """The user should know this; the run goes on."""
