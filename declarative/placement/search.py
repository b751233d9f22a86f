"""The search: tasks are seated one after the other, and an integer program says what is better than that.

First it decides which tasks are left out, so that leaving one out changes nothing for the others; then what
the rest costs. The program cannot tell where tasks are pinned or a plan is very large. The search seats tasks
in several orders there, and keeps the best outcome.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from declarative.placement.admission import Admission
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog, LaunchOption
from declarative.placement.counted import Counted
from declarative.placement.demand import Job, movable
from declarative.placement.gangs import Seating, base_for
from declarative.placement.optimum import Known, bound, least_work, rough_of, solve
from declarative.placement.orders import LAST_RESORTS, ORDERS
from declarative.placement.passes import Passes
from declarative.placement.problem import Place
from declarative.placement.program import SolverLimits

ROUGHLY = 0.5
"""The part of the work for the cheapest launches that a rough program may take."""

FAIR = 12
"""The exact program follows if what the rough one came to costs more than so many gaps above the bound."""

FAR_ABOVE = 0.08
"""Launches that cost more than this part above the bound are looked for once more, with more work."""

ABOVE = 0.03
"""Launches that still cost more than this part above it are looked at node by node."""

AGAIN = 0.5
"""The part of the most work of a program that a second look at launches may take that cost far too much; for
few tasks, or if there is no outcome at all, it may take all of it.
"""

MOST_PLACES = 12
"""Places at which outcomes begin, if volumes are at several."""

ROUNDED = 1e-6
"""The part of a cost by which sums may differ."""


class Search:
    """One catalog, searched."""

    def __init__(
        self,
        catalog: Catalog,
        effort: int = 1,
        known: Known | None = None,
        start: Assignment | None = None,
        *,
        until: float = math.inf,
    ) -> None:
        """As `Passes`. With `until`, the search raises `TooMuchWorkError` once that work is done, or where it
        would go on without a program.
        """
        self.catalog = catalog
        self.passes = Passes(catalog, effort, known, start, until=until)
        self.known = self.passes.known
        self.admission = Admission(self.passes)
        self._lost: set[int] = set()
        """Tasks without a place in solutions that no outcome came of, by their index."""

    def seated(self, needed: Collection[int] = ()) -> Collection[int]:
        """The tasks that the best outcome seats, by their index: what they cost does not change that.

        With `needed`, only whether it seats all of these tasks is right.
        """
        return self.admission.fullest(self.catalog.jobs, needed).assignment.seats

    def may_seat_alone(self, job: Job) -> bool:
        """Whether a task finds a place if no other is asked for; or may do so, if its ranks are not alike, it
        pins no nodes, and it was not proved that there is none.
        """
        found = self.admission.fullest([job])
        settled = job.alike or job.task.instances or job.index in found.proved
        return found.seats(job) or not settled

    def run(self) -> Seating:
        """The best outcome that was found."""
        found = self.admission.fullest(self.catalog.jobs)
        few = len(found.assignment.seats) <= self.passes.few
        if found.left and few and self.known.drawn < self.passes.seats_drawn:
            # Those that are left out change nothing for the others.
            alone = self.admission.fullest(self.passes.seated(found))
            if not alone.left:
                found = replace(alone, left=found.left, proved=found.proved)
        return self._cheapest(replace(found, left=sorted(found.left, key=lambda job: job.index)))

    def _cheapest(self, found: Seating) -> Seating:
        """The same tasks on the cheapest launches, and what they cost at least."""
        jobs = self.passes.seated(found)
        free = movable(jobs)
        if not found.cost:
            return replace(self._orders(found, jobs), bound=0.0)
        stays = {job.index for job in jobs} - {job.index for job in free}
        # The program cannot tell where those are best off that share volumes or are pinned.
        searched = not all(self.passes.stays(self.catalog.jobs[index], found) for index in stays)
        if searched:
            found = self._orders(found, jobs)
        found, answered = self._cheaper(found, jobs, free)
        if not searched and not answered and not self._is_near(found, found.bound):
            found = replace(self._orders(found, jobs), bound=found.bound)
        return found

    def _cheaper(self, found: Seating, jobs: Sequence[Job], free: Sequence[Job]) -> tuple[Seating, bool]:
        """The same tasks where the program puts them, if that is cheaper; and whether it had an answer."""
        others = list[Seating]()
        least, loose = -math.inf, len(free) < len(jobs)
        if loose:
            least, others = self._loosely(found, jobs, free)
        if not any(self._is_near(other, least) for other in others):
            self._lost.clear()
            lower, more = self._by_programs(self._beside(found, jobs, free), jobs)
            if self._lost and not more:
                free = [job for job in free if job.index not in self._lost]
                more = self._by_programs(self._beside(found, jobs, free), jobs, quick=True)[1]
            # With those that stay where they are it might be dearer than it has to be.
            least, others = least if loose else lower, others + more
        same = [replace(other, left=found.left, proved=found.proved) for other in others]
        found = min([found, *same], key=lambda r: r.value)
        known = math.isfinite(least) and least <= found.cost * (1 + ROUNDED)  # else nothing is proved
        if known and found.cost > least * (1 + ABOVE):
            found = self.passes.improved(found, jobs, least)
        found = replace(found, bound=min(max(0.0, least), found.cost) if known else None)
        return found, bool(others)

    def _beside(self, found: Seating, jobs: Sequence[Job], free: Sequence[Job]) -> Counted:
        """A program for tasks that may go anywhere; all others stay where they are."""
        stay = {job.index for job in jobs} - {job.index for job in free}
        return self.passes.counted(base_for(self.passes.start, found.assignment, stay), free, found)

    def _loosely(
        self, found: Seating, jobs: Sequence[Job], free: Sequence[Job]
    ) -> tuple[float, list[Seating]]:
        """The least that launches cost, and outcomes by a program that does not know all rules of some tasks:
        of those that have volumes in common, or launch nothing. They are seated afterwards.
        """
        limits = replace(self.passes.cost, work=self.passes.work_left)
        least = bound(self.passes.counted(self.passes.start, jobs, found).roughened(), limits)
        may_go = {job.index for job in free}
        kept = {j.index for j in jobs if j.task.instances or self.passes.stays(j, found)} - may_go
        if len(kept) + len(free) == len(jobs):
            return least, []
        asked = [job for job in jobs if job.index not in kept]
        base = base_for(self.passes.start, found.assignment, kept)
        counted = self.passes.counted(base, asked, found)
        counted.loose = {job.index for job in asked} - may_go
        others = self._by_programs(counted, jobs, quick=True)[1]
        if not any(self._is_near(other, least) for other in others) and len(jobs) <= self.passes.few:
            others += self._at_each_place(base, asked, jobs)
        return least, others

    def _at_each_place(self, base: Assignment, asked: Sequence[Job], jobs: Sequence[Job]) -> list[Seating]:
        """Outcomes that begin with an idle node at one place each: tasks whose volumes may be at several
        places go there then, and not each to where the first of its own is.
        """
        catalog, first = self.catalog, dict[Place, LaunchOption]()
        mounting = [
            job for job in asked if any(len(mount.names) > 1 for own in job.ask.want.mounts for mount in own)
        ]
        for option in catalog.options:
            if base.may_launch(option) and any(job.request.fit.get(option.kind) for job in mounting):
                first.setdefault(catalog.place_of[option.kind], option)
        found: list[Seating] = []
        for option in list(first.values())[:MOST_PLACES]:
            assignment = base.copy()
            assignment.launch_idle(option, 1)
            found.append(self.passes.whole(assignment, jobs))
        return [one for one in found if not one.left]

    def _is_near(self, found: Seating, least: float | None) -> bool:
        """Whether it costs no more than the least, within the gap that is allowed."""
        return least is not None and found.cost <= least * (1 + self.passes.cost.gap) + ROUNDED

    def _by_programs(
        self, counted: Counted, jobs: Sequence[Job], *, quick: bool = False
    ) -> tuple[float, list[Seating]]:
        """The least that launches cost, and the outcomes that were found. The rough program comes first if it
        is much smaller, else last; the exact one where its fractions do not take all work that is left. If no
        program had a good answer, one may take more work, unless it has to be quick.
        """
        least, found = -math.inf, list[Seating]()
        rough = rough_of(counted)
        last = rough or (counted.roughened() if counted.roughens else None)
        for program in (rough, counted, None if rough else last):
            left = self.passes.work_left
            dear = least_work(counted) if last and program is counted else 0.0
            fair = least * (1 + FAIR * self.passes.cost.gap) + ROUNDED
            if program and dear <= left and not any(one.cost <= fair for one in found):
                limits = replace(
                    self.passes.cost, work=ROUGHLY * left if program.rough else left, quick=quick
                )
                lower, more = self._by(program, jobs, limits)
                least, found = max(least, lower), found + more
        if not quick and all(one.cost > least * (1 + FAR_ABOVE) + ROUNDED for one in found):
            work = (AGAIN if found and not counted.few_tasks else 1.0) * self.passes.cost.work
            limits = replace(self.passes.cost, work=work)
            lower, more = self._by(counted.finer(), jobs, limits)
            least, found = max(least, lower), found + more
        return least, found

    def _by(self, program: Counted, jobs: Sequence[Job], limits: SolverLimits) -> tuple[float, list[Seating]]:
        """The least that launches cost by one program, and the outcome with the launches that it names, if
        all tasks find a place then. Else those are noted that had none by the program.
        """
        least, assignment = solve(program, limits, self.known)
        if assignment is None:
            return least, []
        without = {job.index for job in jobs} - assignment.seats.keys()
        found = self.passes.whole(assignment, jobs)
        self._lost.update(without if found.left else ())
        return least, [] if found.left else [found]

    def _orders(self, best: Seating, jobs: Sequence[Job]) -> Seating:
        """The cheapest pass of several orders that seats all of `jobs`, as `best` does."""
        wanted = self.passes.orders.wanted(jobs)
        levels = {j.task.priority for j in jobs}
        orders = ORDERS if len(jobs) > self.passes.few else (*ORDERS, *LAST_RESORTS)
        # Where all find a place it does not matter who goes first, but to the price it may.
        for by_priority in (True, False) if len(levels) > 1 else (True,):
            for order in orders:
                if self._is_free(best):
                    return best
                found = self.passes.seat(jobs, order, wanted=wanted, by_priority=by_priority)
                if not found.left:
                    found = replace(found, left=best.left, proved=best.proved)
                    best = min(best, found, key=lambda r: r.value)
        return best

    def _is_free(self, found: Seating) -> bool:
        """Whether what is launched is free and cannot be less."""
        if found.cost:
            return False
        owed = sum(rule.baseline for rule in self.catalog.fleets.values())
        return len(found.assignment.launches) <= owed or self._is_full(found)

    def _is_full(self, found: Seating) -> bool:
        """Whether no block is idle on any node, and all offers are alike: no order needs fewer nodes."""
        catalog, piles = self.catalog, found.assignment.idle_by_size.values()
        return not any(piles) and len({catalog.hardware_of[option.kind] for option in catalog.options}) == 1
