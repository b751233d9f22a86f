"""What all parts of a search share: where it starts, the work that is left, and one pass over the tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog
from declarative.placement.counted import EXACT, Counted
from declarative.placement.demand import Job, movable
from declarative.placement.gangs import CENT, Seating, base_for, keep_places, seat_all, seat_by_quota
from declarative.placement.launches import Tidy, keep_baselines, launch_baselines
from declarative.placement.optimum import Known, solve
from declarative.placement.orders import Orders
from declarative.placement.program import SolverLimits

COST = SolverLimits(nodes=12, columns=12_000, gap=2.5e-3, work=300)
"""For the cheapest launches; so much work if less had no answer…"""

SEATS = SolverLimits(nodes=12, columns=12_000, absolute=1e-4)
"""…and for the most tasks."""

WORK, FEW_WORK, MOST_WORK = 0.55, 380, 2_000
"""The work of all programs of one plan for each task; for at least so many tasks, and for at most so many."""

EXACT_WORK = 460
"""For `EXACT` tasks or fewer there is the work of so many, since all that is said of them is to be proved."""

SEATING, SEATED = 0.6, 0.45
"""The part of it for programs for the most tasks, and for one of these."""

LEAST_SEATING = 0.15
"""The part of it that programs for the tasks of one priority may take, and one of them, whatever those before
them took.
"""

MOST_LEFT, MENDED = 60, (30, 120, 480)
"""Up to so many tasks that are left are seated again with about so many ranks: few, or else more of them."""

MENDED_WORK = 0.2
"""The part of the most work of a program that one for them may take."""

IMPROVED, TURNS, A_TURN = 40, 12, 0.07
"""Ranks that are seated anew to make launches cheaper, how often that is tried, and the part of the most work
of a program that each turn may take; all of them take no more than one that mends.
"""

SEAT_WORK, DOMAIN_WORK = 0.025, 0.033
"""The work of seating a task in one pass, and of each place where tasks that ask for the same may lie."""


class Passes:
    """Passes over the tasks of one catalog, and what they start from."""

    few = 200
    """Up to so many tasks, more is tried: each one that is left out by itself, and more orders."""

    def __init__(
        self,
        catalog: Catalog,
        effort: int = 1,
        known: Known | None = None,
        start: Assignment | None = None,
        *,
        until: float = math.inf,
    ) -> None:
        """`known` are programs that were solved for other catalogs; this one adds its own. `start` is what is
        there, if it is not as the catalog has it. The work of `known` may come to `until`.
        """
        self.catalog = catalog
        self.known = known or Known()
        self.cost, self.seats = COST.times(effort), SEATS.times(effort)
        tasks = min(max(len(catalog.jobs), FEW_WORK), MOST_WORK) if len(catalog.jobs) > EXACT else EXACT_WORK
        work = WORK * tasks * effort
        self.seats = replace(self.seats, work=SEATED * work)
        self.until, self.all_drawn = until, self.known.drawn + work
        self.seats_drawn = self.known.drawn + SEATING * work
        self.least_seating = LEAST_SEATING * work
        self.least_left = (1 - SEATING) * work
        self.start = start.copy() if start else Assignment.start(catalog)
        keep_baselines(self.start)
        self.orders = Orders(self.start)
        requests = {id(job.request): job.request for job in catalog.jobs}
        domains = sum(len(catalog.domains(request)) for request in requests.values())
        self._seat_work = SEAT_WORK + DOMAIN_WORK * domains / max(1, len(catalog.jobs))

    def seated(self, found: Seating) -> list[Job]:
        """The tasks that have their places."""
        return [job for job in self.catalog.jobs if found.seats(job)]

    def stays(self, job: Job, found: Seating) -> bool:
        """Whether a seated task is where it was: a node that it had may be gone, or take no work."""
        had = [self.catalog.index.get(name) for _, (name, _) in sorted(job.ask.prior.items())]
        return bool(had) and had == found.assignment.seats[job.index]

    @property
    def work_left(self) -> float:
        """The work for the cheapest launches."""
        return max(self.least_left, self.all_drawn - self.known.drawn)

    def counted(
        self, base: Assignment, jobs: Sequence[Job], found: Seating, may: Sequence[Job] = ()
    ) -> Counted:
        """A program for these tasks, in which each fleet launches for itself what can be had."""
        least = {
            name: max(0, owed - found.short.get(name, 0)) for name, owed in base.baseline_left.items() if owed
        }
        counted = Counted(base, jobs, least, self.cost.columns, may)
        counted.incumbent = found.assignment
        return counted

    def seat(
        self,
        jobs: Sequence[Job],
        order: str,
        *,
        wanted: Mapping[int, int],
        front: Collection[object] = frozenset(),
        first: Assignment | None = None,
        by_priority: bool = True,
        by_quota: bool = True,
    ) -> Seating:
        """Seat tasks one after the other; those that are alike and have one rank, all at once."""
        assignment = (first or self.start).copy()
        todo = [j for j in jobs if j.index not in assignment.seats]
        self.known.seating += self._seat_work * len(todo)
        assignment.roomy = order == "roomy"
        todo.sort(key=lambda j: self.orders.key(j, order, front, by_priority=by_priority))
        left: list[Job] = []
        todo = keep_places(assignment, todo)
        for _, group in itertools.groupby(todo, key=lambda j: by_priority and j.task.priority):
            level = list(group)
            left += seat_all(
                assignment, seat_by_quota(assignment, level, wanted) if by_quota else level, wanted
            )
        if assignment.launches:
            Tidy(assignment).run()
        short = launch_baselines(assignment)
        if left and assignment.launches:
            # What was launched since may hold those that launch nothing themselves.
            left = seat_all(assignment, left, wanted)
        return Seating(assignment, left, short)

    def whole(self, assignment: Assignment, jobs: Sequence[Job]) -> Seating:
        """An assignment, tidied, with those of the tasks seated that it lacks."""
        others = [job for job in jobs if not job.reuse]
        found = Seating(assignment, [job for job in others if job.index not in assignment.seats])
        found = self._mended(found, others)
        if found.left:
            found = self.seat(others, "size", wanted={}, first=found.assignment, by_priority=False)
            found = self._mended(found, others)
        if found.left:
            found = self._anew(assignment, others, found.left)
        if found.left:
            return found
        assignment = found.assignment
        # Now nodes are gone that nobody needs. Tasks that launch nothing must not keep them.
        if all(job.index in assignment.seats for job in jobs):
            Tidy(assignment).run()
            return Seating(assignment, [], launch_baselines(assignment))
        tidy = assignment.copy()
        Tidy(tidy).run()
        found = self.seat(jobs, "size", wanted={}, first=tidy, by_priority=False)
        if found.left:  # they may need a larger node than the others that sit there
            _drop_idle(assignment)
            found = self.seat(jobs, "size", wanted={}, first=assignment, by_priority=False)
        return found

    def _mended(self, found: Seating, jobs: Sequence[Job]) -> Seating:
        """With those seated that are left and may go anywhere, if a program finds places for them and for
        some that sit where they might (a large neighbourhood: Shaw 1998).
        """
        free = self._moving(found.assignment, jobs) if found.left else {}
        left = {job.index: job for job in found.left if job.index in free}
        if not 0 < len(left) <= MOST_LEFT:
            return found
        assignment, kinds = found.assignment, {kind for job in left.values() for kind in job.request.fit}

        def rank(node: int) -> tuple[object, ...]:
            """Where those that are left may sit comes first, and of that what is used least."""
            kind = assignment.kind_of[node]
            return kind not in kinds, -assignment.free[node] / self.catalog.kinds[kind].total, node

        on = _on_nodes(assignment, free)
        order = [on[node] for node in sorted(on, key=rank)]
        for most in MENDED:
            again = left | _first(order, free, most)
            if new := self._seated_again(found, again, MENDED_WORK):
                return replace(
                    found, assignment=new, left=[job for job in found.left if job.index not in again]
                )
        return found

    def improved(self, found: Seating, jobs: Sequence[Job], least: float) -> Seating:
        """The same tasks on cheaper launches, if programs find some for those on a few nodes: in turns, first
        on those of which most is paid for in vain. Until it costs no more than the `least`, or so.
        """
        free, kinds = self._moving(found.assignment, jobs), self.catalog.kinds
        until, skip = self.known.drawn + MENDED_WORK * self.cost.work, 0
        for _ in range(TURNS):
            if found.cost <= least * (1 + self.cost.gap) or self.known.drawn > until:
                break
            assignment = found.assignment
            on = _on_nodes(assignment, free)

            def rank(node: int, assignment: Assignment = assignment) -> tuple[float, int]:
                kind = kinds[assignment.kind_of[node]]
                return -kind.cost * assignment.free[node] / kind.total, node

            launched = {new.node for new in assignment.launches}
            order = [on[node] for node in sorted(on.keys() & launched, key=rank)]
            again = _first(order[skip % max(1, len(order)) :], free, IMPROVED)
            if new := self._seated_again(found, again, A_TURN):
                Tidy(new).run()
                other = replace(found, assignment=new, short=launch_baselines(new))
            if new and other.cost < found.cost - CENT:
                found = other
            else:
                skip += max(1, len(again) // 2)
        return found

    def _moving(self, assignment: Assignment, jobs: Sequence[Job]) -> dict[int, Job]:
        """The tasks that may go anywhere, but for those beside which one sits that launches nothing: it must
        not be left alone.
        """
        launched = {new.node for new in assignment.launches}
        guests = {
            node for i, nodes in assignment.seats.items() if self.catalog.jobs[i].reuse for node in nodes
        } & launched
        return {j.index: j for j in movable(jobs) if guests.isdisjoint(assignment.seats.get(j.index, ()))}

    def _seated_again(self, found: Seating, again: Mapping[int, Job], part: float) -> Assignment | None:
        """An assignment in which some tasks are seated anew by an exact program, all others as found;
        None if it finds no place for one of them. It may take a `part` of the most work of a program.
        """
        base = base_for(self.start, found.assignment, found.assignment.seats.keys() - again)
        counted = self.counted(base, [again[index] for index in sorted(again)], found)
        new = solve(counted, replace(self.cost, work=part * self.cost.work), self.known)[1]
        return new if new and again.keys() <= new.seats.keys() else None

    def _anew(self, assignment: Assignment, jobs: Sequence[Job], front: Sequence[Job]) -> Seating:
        """The tasks on the nodes that an assignment launches, some of them first."""
        new = self.start.copy()
        for launch in assignment.launches[len(new.launches) :]:
            new.launch_idle(launch.option, 1)
            if launch.name:
                new.name(len(new.launches) - 1, launch.name)
        first = {job.likeness for job in front}
        return self.seat(jobs, "size", wanted={}, front=first, first=new, by_priority=False)


def _drop_idle(assignment: Assignment) -> None:
    """Launch no nodes on which nobody sits."""
    used = {node for nodes in assignment.seats.values() for node in nodes}
    for launch in list(assignment.launches):
        if launch.name is None and launch.node not in used:
            assignment.cancel_launch(launch.node)


def _on_nodes(assignment: Assignment, free: Collection[int]) -> dict[int, set[int]]:
    """Node → those of the `free` tasks that sit there, by their index; but for nodes that are pinned."""
    on: dict[int, set[int]] = {}
    for index in assignment.seats.keys() & free:
        for node in assignment.seats[index]:
            on.setdefault(node, set()).add(index)
    for new in assignment.launches:
        if new.name:
            on.pop(new.node, None)
    return on


def _first(order: Iterable[Collection[int]], free: Mapping[int, Job], most: int) -> dict[int, Job]:
    """The first tasks, node by node, until they have so many ranks."""
    again: dict[int, Job] = {}
    ranks = 0
    for here in order:
        if ranks >= most:
            break
        ranks += sum(free[index].ranks for index in set(here) - again.keys())
        again |= {index: free[index] for index in here}
    return again
