"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from declarative.model.state import natural
from declarative.placement.block_numbers import finish
from declarative.placement.catalog import Catalog
from declarative.placement.demand import Job
from declarative.placement.explain.changes import ConfirmedChanges
from declarative.placement.explain.refusal import FinishedPlan, RefusalReports
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome, Refusal, Remedy, VolumeAt
from declarative.placement.program.solver import SolverCache
from declarative.placement.search import Search, TooMuchWorkError


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    *,
    effort: int = 1,
    about: str | None = None,
) -> PlacementOutcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow.

    Deterministic: the order of `asks` and `nodes` does not matter, and ties break by name. A task is placed
    with all of its ranks or is refused. `effort` is how many times as long as usual the cheapest launches are
    looked for. `about` is a task: what would make that one fit is looked for longer, and of no other.
    """
    return Placed(Catalog(asks, nodes, fleets, volumes), effort).outcome(about)


class Placed:
    """Where all tasks go. Why some have no place is said by `outcome`, which takes as long again."""

    def __init__(self, catalog: Catalog, effort: int = 1) -> None:
        self.catalog, self.effort = catalog, effort
        self.cache = SolverCache()
        self.seating = Search(catalog, effort, self.cache).run()
        self.finished = finish(self.seating.assignment)

    @property
    def used(self) -> frozenset[str]:
        """The nodes where tasks go."""
        return frozenset(choice.node for choice in self.finished.choices)

    @property
    def refused(self) -> int:
        """How many ranks have no place."""
        return sum(job.ranks for job in self.seating.unseated)

    def outcome(
        self, about: str | None = None, *, shared: bool = True, seated: Collection[str] | None = None
    ) -> PlacementOutcome:
        """All of it, with the reasons, and with changes that tasks share if those are wanted. No change takes
        the place of a task that is `seated` in the end, by default of those that are so here.
        """
        seating, finished = self.seating, self.finished
        refusals: Sequence[Refusal] = ()
        remedies: Sequence[Remedy] = ()
        if seating.unseated:
            changes = ConfirmedChanges(
                self.catalog,
                seating,
                self.cache,
                self.effort,
                self._seats,
                about=about,
                shared=shared,
                seated=seated,
            )
            plan = FinishedPlan(self.catalog, seating.assignment, finished)
            reports = RefusalReports(plan, self._may_fit_alone)
            refusals = reports.of(seating.unseated, changes.of, seating.proved)
            remedies = changes.shared
        return PlacementOutcome(
            choices=tuple(finished.choices),
            refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
            remedies=tuple(remedies),
            launches=finished.launches,
            short_fleets=tuple(sorted(seating.short.items())),
            zones=dict(sorted(finished.zones.items())),
            bound=seating.bound,
        )

    def _may_fit_alone(self, catalog: Catalog, job: Job) -> bool:
        """Whether a task finds a place in a catalog if no other is asked for, or may do so."""
        return Search(catalog, self.effort, self.cache).may_seat_alone(job)

    def _seats(
        self, catalog: Catalog, needed: Collection[int], until: float, *, most: bool
    ) -> Collection[int] | None:
        """The tasks that a plan of another catalog seats; None if it takes more work than `until`."""
        try:
            return Search(catalog, self.effort, self.cache, until=until).seated(needed, most=most)
        except TooMuchWorkError:
            return None
