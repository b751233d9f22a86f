"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from declarative.model.state import natural
from declarative.placement.block_numbers import finish
from declarative.placement.catalog import Catalog, Job
from declarative.placement.claims import Claim, find_claims, idle_part, keep, release, start_beside
from declarative.placement.explain.changes import ConfirmedChanges
from declarative.placement.explain.never import EmptyWorld
from declarative.placement.explain.refusal import FinishedPlan, RefusalReports
from declarative.placement.greedy import Seating, seat
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome, Refusal, Remedy, VolumeAt
from declarative.placement.program.solver import SolverCache
from declarative.placement.search import Before, Search, TooMuchWorkError, order_of


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
        self.claims: list[Claim] = []
        """What waiting tasks keep: it is taken out of what is idle in the seating."""
        self.seating = self._seated()
        self._let_in()
        self.finished = finish(self.seating.assignment)

    def _seated(self) -> Seating:
        """The best plan in which no new task has what one of higher priority claims."""
        before: Before | None = None
        while True:
            start = start_beside(self.catalog, self.claims)
            seating = Search(self.catalog, self.effort, self.cache, start).run(before)
            before, has_room = None, True
            while has_room and (claims := find_claims(self.catalog, seating, self.claims)):
                self.claims += claims
                # What a claim keeps is idle beside all tasks of at least its priority.
                before = before or Before(seating, claims[0].priority)
                for claim in claims:
                    has_room = has_room and idle_part(seating.assignment, claim) == claim
                    if has_room:
                        keep(seating.assignment, [claim])
            if has_room:
                return seating

    def _let_in(self) -> None:
        """Seat tasks on what others have claimed, if they end before it is needed."""
        assignment = self.seating.assignment
        for job in sorted(self.seating.unseated, key=order_of):
            if any(claim.lets_in(job) for claim in self.claims):
                claims = [claim for claim in self.claims if claim.lets_in(job)]
                release(assignment, claims)
                if seat(assignment, job):
                    self.seating.unseated.remove(job)
                for claim in claims:
                    number = self.claims.index(claim)
                    self.claims[number] = idle_part(assignment, claim)
                    keep(assignment, [self.claims[number]])

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
        finished = self.finished
        refusals: list[Refusal] = []
        remedies: list[Remedy] = []
        unseated = sorted(self.seating.unseated, key=self._number_of_claims)
        for _, jobs in itertools.groupby(unseated, key=self._number_of_claims):
            report = self._refusals(list(jobs), about, shared=shared, seated=seated)
            refusals += report[0]
            remedies += report[1]
        return PlacementOutcome(
            choices=tuple(finished.choices),
            refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
            remedies=tuple(remedies),
            launches=finished.launches,
            short_fleets=tuple(sorted(self.seating.short.items())),
            zones=dict(sorted(finished.zones.items())),
            bound=self.seating.bound,
        )

    def _number_of_claims(self, job: Job) -> int:
        """How many claims bind a task: those of higher priorities, which come first."""
        return sum(claim.priority > job.task.priority for claim in self.claims)

    def _refusals(
        self, jobs: list[Job], about: str | None, *, shared: bool, seated: Collection[str] | None
    ) -> tuple[Sequence[Refusal], Sequence[Remedy]]:
        """The refusals of tasks that the same claims bind, and the changes that these tasks share."""
        count = self._number_of_claims(jobs[0])
        claims = self.claims[:count]
        assignment = self.seating.assignment.copy()
        release(assignment, self.claims[count:])
        seating = replace(self.seating, assignment=assignment, unseated=jobs)

        def seats(
            catalog: Catalog, needed: Collection[int], until: float, *, most: bool
        ) -> Collection[int] | None:
            """The tasks that a plan of another catalog seats; None if it takes more work than `until`."""
            try:
                start = start_beside(catalog, claims)
                return Search(catalog, self.effort, self.cache, start, until=until).seated(needed, most=most)
            except TooMuchWorkError:
                return None

        changes = ConfirmedChanges(
            self.catalog,
            seating,
            self.cache,
            self.effort,
            seats,
            about=about,
            shared=shared,
            seated=seated,
        )
        finished = FinishedPlan(self.catalog, assignment, self.finished, claims)
        world = EmptyWorld(self.catalog, jobs, self._may_fit_alone)
        reports = RefusalReports(finished, world.never_fits)
        return reports.of(jobs, changes.of, seating.proved), changes.shared

    def _may_fit_alone(self, catalog: Catalog, job: Job) -> bool:
        """Whether a task finds a place in a catalog if no other is asked for, or may do so."""
        return Search(catalog, self.effort, self.cache).may_seat_alone(job)
