"""Which tasks get a place where not all can: those of a higher priority first, then as many ranks as can be.

Tasks are seated one after the other, and an integer program adds more of them, one priority after the other.
A task that is left out changes nothing for the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Home
from declarative.placement.counted import SKEW
from declarative.placement.demand import Job, movable
from declarative.placement.gangs import Seating, base_for, best_try, open_homes
from declarative.placement.launches import Tidy
from declarative.placement.optimum import FEW_COLUMNS, most
from declarative.placement.orders import LAST_RESORTS, ORDERS, quotas
from declarative.placement.passes import Passes
from declarative.placement.volumes import are_too_few

MANY = 1_000
"""Of more tasks, those that are seated make no room for others of their priority…"""

MUCH = 0.02
"""…if that gains less than this part of their weight."""

MOST_EFFORT = 30_000
"""Tasks seated in tries to add one task, at most: each counts in each try."""

ROUNDS = 3
"""Of more than `Passes.few` tasks: passes with all sizes that were left out in front."""


class TooMuchWorkError(Exception):
    """A search stopped since its programs took too much. What it would find is not known."""


class Admission:
    """Which tasks of one catalog are seated."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.catalog, self.known = passes, passes.catalog, passes.known
        self._hopeless: dict[int, bool] = {}

    @functools.cached_property
    def _ideal(self) -> Assignment:
        return Assignment.start(self.catalog, ideal=True)

    def fullest(self, jobs: Sequence[Job], needed: Collection[int] = ()) -> Seating:
        """Seat as many as can be seated beside all tasks of at least their priority."""
        found = self.passes.seat(jobs, "size", wanted={}, by_quota=False)
        if any(job.request.fit for job in found.left) and quotas(self.passes.start, jobs):
            found = min(found, self.passes.seat(jobs, "size", wanted={}), key=lambda r: r.value)
        proved: set[int] = set()
        orders = len(jobs) > self.passes.few
        """Whether other orders may still be tried."""
        for level in self.catalog.levels:
            if needed and self._is_settled(found, needed, level):
                break
            until = max(self.passes.seats_drawn, self.known.drawn + self.passes.least_seating)
            found, done, answered = self._more(found, jobs, level, until)
            if orders and not answered:
                found, done, _ = self._more(self._rounds(found, jobs), jobs, level, until)
                orders = False
            proved |= done
            left = [job for job in self._left(found, level) if job.index not in done]
            if left and len(jobs) <= self.passes.few:
                found, done = self._admit(found, jobs, left)
                proved |= done
        return replace(found, proved=frozenset(proved))

    def _is_settled(self, found: Seating, needed: Collection[int], level: int) -> bool:
        """Whether all of `needed` are seated, or not, however tasks of this priority and below it are seated:
        a task takes no place from one of a higher priority.
        """
        tasks = {index: self.catalog.jobs[index].task for index in needed}
        lost = any(
            task.priority > level for index, task in tasks.items() if index not in found.assignment.seats
        )
        return lost or all(task.priority > level for task in tasks.values())

    def _is_hopeless(self, job: Job) -> bool:
        """Whether a task with volumes fits not even where all nodes are idle and all volumes free."""
        if not any(job.ask.want.mounts):
            return False
        if job.index not in self._hopeless:
            found = best_try(self._ideal, job, {})
            self._hopeless[job.index] = found is None or found.failed is not None
        return self._hopeless[job.index]

    def _left(self, found: Seating, level: int) -> list[Job]:
        """The tasks of a priority that have no place, and fit some node."""
        return [job for job in found.left if job.task.priority == level and job.request.fit]

    def _more(
        self, found: Seating, jobs: Sequence[Job], level: int, until: float
    ) -> tuple[Seating, set[int], bool]:
        """Seat what the program can of tasks of one priority, and begin none once the work comes to `until`;
        of which it was proved that none can be added; and whether the program had an answer for all of them.
        """
        proved = answered = False
        gain = MUCH if len(jobs) > MANY else 0.0
        held = (job for job in jobs if job.task.priority == level and found.seats(job))
        pays = _weight(self._left(found, level)) > gain * _weight(held)
        # First in the stead of tasks that had no places before, then beside all.
        for exchange in (True, False) if pays else (False,):
            if not exchange:  # this takes less work, and shows that no refusal is needless
                until = max(until, self.known.drawn + self.passes.least_seating)
            left = self._left(found, level)
            keep = self._kept(jobs, level, found)
            free = movable([*keep, *left], {job.index for job in left if self._is_hopeless(job)})
            if proved or all(map(found.seats, free)):
                break
            may = [j for j in free if not found.seats(j) or (exchange and self._may_go(j, level))]
            new, proved, answered = self._most(
                found, keep, free, may, gain=gain if exchange else None, until=until
            )
            found = found if new is None else self._rest(new, jobs, found)
        out = {job.index for job in self._left(found, level)}
        told = out & {job.index for job in free}
        return found, told if proved else set(), not out or (answered and told == out)

    def _may_go(self, job: Job, level: int) -> bool:
        """Whether a task may be left out for others of a priority."""
        return job.task.priority == level and not job.ask.prior

    def _most(
        self,
        found: Seating,
        keep: Sequence[Job],
        free: Sequence[Job],
        may: Sequence[Job],
        *,
        gain: float | None,
        until: float,
    ) -> tuple[Seating | None, bool, bool]:
        """More of the tasks that `may` be left out, beside those to `keep`; whether it was proved that none
        can be added to them; and whether there was an answer. The `free` can move.

        With `gain` only what is found quickly is taken, and only if it adds this part of what is seated. No
        program begins once the work comes to `until`.
        """
        drawn = self.known.drawn >= self.passes.seats_drawn
        if self.known.total >= self.passes.until or (drawn and self.passes.until < math.inf):
            raise TooMuchWorkError
        fixed = {job.index for job in keep} - {job.index for job in free}
        optional = {job.index for job in may}
        still = [job for job in free if job.index not in optional]
        counted = self.passes.counted(base_for(self.passes.start, found.assignment, fixed), still, found, may)
        seated = _weight(filter(found.seats, may))
        if seated:
            counted.worth = seated * (1 + (gain or 0) - SKEW) + (0 if gain else counted.step)
        many = len(self.catalog.jobs) > self.passes.few
        few = not counted.large and counted.size <= FEW_COLUMNS
        # Of many it need not be proved, unless that is easy.
        work = self.passes.least_seating if drawn else self.passes.seats.work
        limits = replace(self.passes.seats, work=work, quick=gain is not None or (many and not few))

        def whole(assignment: Assignment) -> Assignment:
            lost = {job.likeness for job in still if job.index not in assignment.seats}
            every = sorted((*still, *may), key=lambda job: job.index)
            return self.passes.seat(
                every, "size", wanted={}, front=lost, first=assignment, by_priority=False
            ).assignment

        least, assignment = most(counted, limits, self.known, until, many=many, whole=whole)
        weight = _weight(job for job in may if assignment and job.index in assignment.seats)
        taken = weight > seated * (1 + (gain or 0))
        # Where those that stay have to stay, more weight than the bound cannot be seated.
        lightest = 0.99 * min((job.weight for job in may if not found.seats(job)), default=0)
        proved = -least < (weight if taken else seated) * (1 - SKEW) + lightest
        proved = proved and all(self.passes.stays(self.catalog.jobs[i], found) for i in fixed)
        if assignment is None or not taken:
            return None, proved, proved or assignment is not None
        Tidy(assignment).run()
        return Seating(assignment, []), proved, True

    def _kept(self, jobs: Sequence[Job], level: int, found: Seating) -> list[Job]:
        """The seated tasks that keep their places though others of a priority have none."""
        return [job for job in jobs if found.seats(job) and self._keeps(job, level, found)]

    def _keeps(self, job: Job, level: int, found: Seating) -> bool:
        """Whether a seated task keeps its place though others of a priority have none."""
        return job.task.priority >= level or self.passes.stays(job, found)

    def _admit(self, best: Seating, jobs: Sequence[Job], left: Sequence[Job]) -> tuple[Seating, set[int]]:
        """Add each task that can be had beside all that is seated; and which were proved to have no place.

        What is tried for a task depends on the tasks that are seated and on no other that is left out.
        """
        effort = 0
        failed: set[object] = set()
        none: set[object] = set()
        for job in sorted(left, key=lambda j: self.passes.orders.key(j, "size", frozenset())):
            key = job.likeness
            if key in failed or job.index in best.assignment.seats:
                continue
            keep = self._kept(jobs, job.task.priority, best)
            effort += (len(ORDERS) + len(LAST_RESORTS)) * (len(keep) + 1)
            if effort > MOST_EFFORT:
                break
            found = self._with(job, keep) or self._beside(best, job, keep)
            if found is None:
                found, proved = self._loosely(best, job, keep)
                none.update({key} if proved else ())
            if found is None and len(self.catalog.jobs) > self.passes.few:
                break  # this is about tasks that all had places: without one of them it is of no use
            if found is None:
                failed.add(key)
            else:
                best, failed = self._rest(found, jobs, best), set()
        return best, {job.index for job in left if job.likeness in none}

    def _loosely(self, best: Seating, job: Job, others: Sequence[Job]) -> tuple[Seating | None, bool]:
        """An outcome that seats a task and all the others, by a program that does not know all rules of some
        tasks, which are seated afterwards; and whether it was proved that there is none.
        """
        asked = [*others, job]
        kept = {j.index for j in others if j.task.instances or self.passes.stays(j, best)}
        loose = {j.index for j in asked} - {j.index for j in movable(asked)} - kept
        if not loose:
            return None, False
        if self._lacks_volumes(job):
            return None, True
        base = base_for(self.passes.start, best.assignment, kept)
        counted = self.passes.counted(base, [j for j in others if j.index not in kept], best, [job])
        counted.loose = loose
        limits = replace(self.passes.seats, work=self.passes.least_seating)
        least, assignment = most(counted, limits, self.known, self.known.drawn + limits.work, many=False)
        none = -least < counted.worth
        if assignment is None or none:
            # It may fit where one of those that pin nodes takes another of these.
            return None, none and all(self.passes.stays(self.catalog.jobs[index], best) for index in kept)
        found = self.passes.whole(assignment, sorted(asked, key=lambda j: j.index))
        return (None if found.left else found), False

    def _lacks_volumes(self, job: Job) -> bool:
        """Whether there are too few volumes for the ranks of a task, wherever these lie together."""
        mounts, claims = job.ask.want.mounts, self.passes.start.claims
        domains = [
            self.catalog.places_in(job.request, domain) for domain in self.catalog.domains(job.request)
        ]
        return all(are_too_few(mounts, places, self.catalog.volumes, claims) for places in domains)

    def _rest(self, found: Seating, jobs: Sequence[Job], before: Seating) -> Seating:
        """Seat beside `found` what else can be had, first of all what was seated before."""
        rest = [j for j in jobs if j.index not in found.assignment.seats]
        front = {j.likeness for j in rest if j.index in before.assignment.seats}
        return self.passes.seat(jobs, "size", wanted={}, front=front, first=found.assignment)

    def _with(self, job: Job, others: Sequence[Job]) -> Seating | None:
        """An outcome that seats a task and all the others: then their priorities do not matter."""
        jobs = sorted([*others, job], key=lambda j: j.index)
        wanted = self.passes.orders.wanted(jobs)
        front = {job.likeness}
        for order in (*ORDERS, *LAST_RESORTS):
            found = self.passes.seat(jobs, order, wanted=wanted, front=front, by_priority=False)
            if not found.left:
                return found
        for home in open_homes(self.passes.start, [job.request]):
            start = self._beginning(self.passes.start, home)
            found = self.passes.seat(jobs, "size", wanted=wanted, front=front, first=start, by_priority=False)
            if not found.left:
                return found
        return None

    def _beside(self, best: Seating, job: Job, others: Sequence[Job]) -> Seating | None:
        """An outcome by a program, for a task whose volumes only tasks without a place want, too."""
        free = movable([*others, job]) if any(job.ask.want.mounts) else []
        until = self.known.drawn + self.passes.least_seating
        return self._most(best, others, free, [job], gain=None, until=until)[0] if job in free else None

    def _beginning(self, start: Assignment, home: tuple[str, Home]) -> Assignment:
        """An assignment of which one cluster fleet begins at one place."""
        new = start.copy()
        new.allowed_homes = {**new.allowed_homes, home[0]: frozenset((home[1],))}
        return new

    def _rounds(self, best: Seating, jobs: Sequence[Job]) -> Seating:
        """Many tasks: other orders, then the sizes that were left out go to the front."""
        wanted = self.passes.orders.wanted(jobs)
        best, order = self._best_order(best, jobs, wanted)
        front: set[object] = set()
        for _ in range(ROUNDS):
            lost = {job.likeness for job in best.left if job.request.fit} - front
            if not lost:
                break
            front |= lost
            found = self.passes.seat(jobs, order, wanted=wanted, front=front)
            best = min(best, found, key=lambda r: r.value)
        requests = {id(job.request): job.request for job in best.left}
        for home in open_homes(self.passes.start, requests.values()):
            start = self._beginning(self.passes.start, home)
            found = self.passes.seat(jobs, order, wanted=wanted, front=front, first=start)
            best = min(best, found, key=lambda r: r.value)
        return best

    def _best_order(
        self, best: Seating, jobs: Sequence[Job], wanted: Mapping[int, int]
    ) -> tuple[Seating, str]:
        """The best of one pass by size and one of each other order, and its order."""
        # What is free is launched as small as may be: where few may be launched, that leaves some out.
        free = any(not self.catalog.kinds[option.kind].cost for option in self.catalog.options)
        order = "size"
        for other in (*ORDERS, *LAST_RESORTS) if free else ORDERS:
            found = self.passes.seat(jobs, other, wanted=wanted)
            if found.value < best.value:
                best, order = found, other
        return best, order


def _weight(jobs: Iterable[Job]) -> int:
    return sum(job.weight for job in jobs)
