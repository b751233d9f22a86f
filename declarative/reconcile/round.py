"""What one round of the loop has seen and done: an immutable value, for whoever watches the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from declarative.apply.graph_walk import ActionResult
from declarative.model.diagnostic import Diagnostic
from declarative.planner.types import Action, Plan
from declarative.render.views import StatusView


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What the plan would do and this round did not, and why."""

    address: str
    """What is not told apart: `task/train`, `node/gpu-0`, `volume/data`."""
    action: str
    """What class of action it is: `create`, `delete`, …"""
    why: str
    digest: str | None = None
    """What `fleetform approve` takes; None if nobody's approval is missing."""
    until: float | None = None
    """When it is tried at the latest, seconds since the epoch; None if that is not known."""


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
    """What would have to be done so that all is as declared; None if the round did not come so far."""
    actions: tuple[Action, ...] = ()
    """What of that was to be done in this round."""
    results: tuple[ActionResult, ...] = ()
    """What came of the actions."""
    waits: tuple[Wait, ...] = ()
    """With `backend/hpc` and `read` for a backend that cannot be read, and is left alone until then."""
    backends: tuple[str, ...] = ()
    """All that are declared or used."""
    errors: tuple[Diagnostic, ...] = ()
    """What went wrong: with the project's files, the state, or a backend."""
    hourly: float | None = None
    """What all nodes cost after what was to be done, USD an hour; None if a price is not known."""
    revision: str | None = None
    """The commit of the project, where it is known."""

    @property
    def well(self) -> bool:
        """Whether it did all that it had to do."""
        return not self.errors and all(r.outcome == "done" for r in self.results)


Observer: TypeAlias = Callable[[Round], None]
"""Is told of each round after it. It must return soon: the next round waits for it."""
