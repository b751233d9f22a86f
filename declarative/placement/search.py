"""The search for one plan: one greedy pass, then programs that seat more and pay less, then what is left
over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from declarative.placement.assignment import SEAT_WORK, Assignment
from declarative.placement.bound_task import BoundTask
from declarative.placement.catalog import Catalog, Job, LaunchOption
from declarative.placement.consolidation import Consolidation, keep_baselines, launch_baselines
from declarative.placement.greedy import CENT, Seating, base_for, keep_places, seat_all, without_riders
from declarative.placement.program.decode import Decoded
from declarative.placement.program.model import SKEW, PlacementModel
from declarative.placement.program.solve import cheapest, fullest, lower_bound
from declarative.placement.program.solver import SolverCache

MOST_WEIGHT = 1e6
"""Priorities share a program while their weights differ by no more than that."""

WIDE_WORK = 200
"""The work, in the unit of the cache, up to which a search for who gets a place looks at more than the
best columns of a program, and for tasks that fit beside all others.
"""


class TooMuchWorkError(Exception):
    """A search stopped since its programs took too much. What it would find is not known."""


class Before(NamedTuple):
    """A plan of the same tasks: at least those of a priority keep their places when all is planned anew."""

    seating: Seating
    priority: int


class Search:
    """One catalog, searched."""

    def __init__(
        self,
        catalog: Catalog,
        effort: int = 1,
        cache: SolverCache | None = None,
        start: Assignment | None = None,
        *,
        until: float = math.inf,
    ) -> None:
        """`cache` has programs that were solved for other catalogs; this one adds its own. `start` is what
        can be used, if that is not all that the catalog has. The search raises `TooMuchWorkError` once the
        work of the cache comes to `until`.
        """
        self.catalog, self.effort = catalog, effort
        self.cache = cache or SolverCache()
        self.until = until
        self.wide_until = self.cache.work + WIDE_WORK * effort
        self.start = start or Assignment.start(catalog)
        keep_baselines(self.start)

    @property
    def _is_wide(self) -> bool:
        """Whether more than the best columns of a program are looked at."""
        return self.cache.work < self.wide_until

    # What is asked

    def run(self, before: Before | None = None) -> Seating:
        """The best plan that was found."""
        jobs = self.catalog.jobs
        seating = self.fullest(jobs, before=before)
        seated = [job for job in jobs if seating.seats(job)]
        seating = replace(self.cheapest(seating, seated), proved=seating.proved, fullest=seating.fullest)
        seating = self._ride(seating, jobs)
        seating.unseated = [job for job in jobs if not seating.seats(job)]
        seating.assignment.riding = True
        seating.unseated = seat_all(seating.assignment, sorted(seating.unseated, key=order_of))
        seating.unseated.sort(key=lambda job: job.index)
        return seating

    def seated(self, needed: Collection[int] = (), *, most: bool = False) -> Collection[int]:
        """The tasks that a plan seats, by their index: what they cost does not change that. With `needed`,
        only whether it seats all of these is right; `most`: no plan seats more than these.
        """
        return self.fullest(self.catalog.jobs, needed, most=most).assignment.seats

    def may_seat_alone(self, job: Job) -> bool:
        """Whether a task finds a place if no other is asked for; or may do so, if its ranks are not alike,
        it pins no nodes, and it was not proved that there is none.
        """
        seating = self.fullest([job])
        settled = job.alike or job.task.instances or job.index in seating.proved
        return seating.seats(job) or not settled

    # Who gets a place

    def fullest(
        self,
        jobs: Sequence[Job],
        needed: Collection[int] = (),
        *,
        most: bool = False,
        before: Before | None = None,
    ) -> Seating:
        """As many blocks as can be seated of each priority, the highest first."""
        kept = self.start.copy()
        kept.riding = False
        todo = keep_places(kept, sorted(jobs, key=order_of))
        fullest = True
        proved: set[int] = set()
        done: set[int] = set()
        """Tasks that were looked at: no program adds one of them."""
        base = kept
        if before:
            ahead = (job.index for job in jobs if job.task.priority >= before.priority)
            done = without_riders(before.seating.assignment, ahead)
            proved = done & before.seating.proved
            fullest = before.seating.fullest
            base = base_for(self.start, before.seating.assignment, kept.seats.keys() | done)
            base.riding = False
        seating = self._greedy(base, todo)
        if not seating.unseated or (most and seating.assignment.seats.keys() == needed):
            return replace(seating, fullest=True)
        while level := self._next_level(seating, done):
            if needed and self._is_settled(seating, needed, level[0]):
                break
            levels = self._factors(todo, level[0])
            seating, none, no_more = self._fuller(kept, todo, seating, levels)
            fullest = fullest and no_more
            proved |= none
            done |= {job.index for job in todo if job.task.priority in levels}
        # A node that a task pins may be there later.
        pinned = {job.index for job in jobs if not self.catalog.index.keys() >= set(job.task.instances)}
        return replace(seating, proved=frozenset(proved - pinned), fullest=fullest)

    def _greedy(self, base: Assignment, todo: Sequence[Job]) -> Seating:
        """One plain pass: the highest priority first, then the large."""
        assignment = base.copy()
        unseated = [job for job in todo if job.index not in assignment.seats]
        self.cache.work += SEAT_WORK * len(unseated)
        unseated = seat_all(assignment, unseated)
        if assignment.launches:
            Consolidation(assignment).run()
        short = launch_baselines(assignment)
        if unseated and assignment.launches:
            # What was launched since may hold those that launch nothing themselves.
            unseated = seat_all(assignment, unseated)
        return Seating(assignment, unseated, short)

    def _next_level(self, seating: Seating, done: Collection[int]) -> tuple[int] | None:
        """The highest priority of which a task is left that fits some node and was not looked at."""
        levels = (job.task.priority for job in seating.unseated if job.request.fit and job.index not in done)
        level = max(levels, default=None)
        return None if level is None else (level,)

    def _is_settled(self, seating: Seating, needed: Collection[int], level: int) -> bool:
        """Whether all of `needed` are seated, or not, however tasks of this priority and below it are
        seated: a task takes no place from one of a higher priority.
        """
        tasks = {index: self.catalog.jobs[index].task for index in needed}
        lost = any(
            task.priority > level for index, task in tasks.items() if index not in seating.assignment.seats
        )
        return lost or all(task.priority > level for task in tasks.values())

    def _factors(self, todo: Sequence[Job], first: int) -> dict[int, float]:
        """Priorities from the first on that share a program, with the factor of their weights."""
        weights: dict[int, int] = {}
        for job in todo:
            if job.task.priority <= first and job.request.fit:
                weights[job.task.priority] = weights.get(job.task.priority, 0) + job.weight
        chosen: list[int] = []
        product = 1.0
        for level in sorted(weights, reverse=True):
            product *= weights[level] + 1
            if chosen and product > MOST_WEIGHT:
                break
            chosen.append(level)
        factors: dict[int, float] = {}
        factor = 1.0
        for level in reversed(chosen):
            factors[level] = factor
            factor *= weights[level] + 1
        return factors

    def _fuller(
        self, kept: Assignment, todo: Sequence[Job], seating: Seating, levels: Mapping[int, float]
    ) -> tuple[Seating, set[int], bool]:
        """A plan that seats more of some priorities, if a program finds one; the tasks of which it was proved
        that none can be added; and whether it was proved that no more can be seated.
        """
        if self.cache.work >= self.until:
            raise TooMuchWorkError
        highest = max(levels)
        required = [job for job in todo if job.task.priority > highest and seating.seats(job)]
        optional = [job for job in todo if job.task.priority in levels and job.request.fit]
        unseated = [job for job in optional if not seating.seats(job)]
        model = self._model(kept, required, optional, seating)
        worth = self._worth(seating.assignment.seats, optional, levels)
        answer = fullest(
            model,
            seating.assignment,
            self.cache,
            levels,
            effort=self.effort,
            worth=worth,
            wide=self._is_wide,
        )
        best = seating
        if answer.decoded:
            new = self._greedy_on(answer.decoded, todo)
            new_worth = self._worth(new.assignment.seats, optional, levels)
            if new_worth > worth and all(map(new.seats, required)):
                best, worth = new, new_worth
        least = min((levels[job.task.priority] * job.weight for job in unseated), default=1.0)
        proved = answer.impossible or -answer.bound < worth + least - SKEW
        no_more = -answer.bound < worth + 1 - SKEW
        if proved:
            return best, {job.index for job in optional if not best.seats(job)}, no_more
        return *self._beside(kept, todo, best, levels), no_more

    def _beside(
        self, kept: Assignment, todo: Sequence[Job], seating: Seating, levels: Mapping[int, float]
    ) -> tuple[Seating, set[int]]:
        """The plan with tasks added that fit beside all others of at least their priority; and those that
        do not.
        """
        proved: set[int] = set()
        for level in sorted(levels, reverse=True):
            unseated = [
                j for j in todo if j.task.priority == level and j.request.fit and not seating.seats(j)
            ]
            if not unseated or not self._is_wide:
                continue
            required = [job for job in todo if job.task.priority >= level and seating.seats(job)]
            model = self._model(kept, required, unseated, seating)
            answer = fullest(
                model,
                seating.assignment,
                self.cache,
                {level: 1.0},
                effort=self.effort,
                worth=0.0,
            )
            if answer.decoded:
                new = self._greedy_on(answer.decoded, todo)
                if all(map(new.seats, required)) and sum(map(new.seats, unseated)) > sum(
                    map(seating.seats, unseated)
                ):
                    seating = new
            if answer.impossible or -answer.bound < min(job.weight for job in unseated) - SKEW:
                proved |= {job.index for job in unseated}
        return seating, proved

    def _greedy_on(self, decoded: Decoded, todo: Sequence[Job]) -> Seating:
        """What a solution seats, with what else can be had beside it: first what the program has a place
        for.
        """
        assignment = decoded.assignment
        seat_all(assignment, [job for job in todo if job.index in decoded.unseated])
        return self._greedy(assignment, todo)

    def _worth(self, seats: Collection[int], jobs: Iterable[Job], levels: Mapping[int, float]) -> float:
        return sum(levels[job.task.priority] * job.weight for job in jobs if job.index in seats)

    def _model(
        self,
        base: Assignment,
        required: Sequence[Job],
        optional: Sequence[Job],
        seating: Seating,
        *,
        anywhere: bool = False,
    ) -> PlacementModel:
        """A program for these tasks, in which each fleet launches for itself what can be had."""
        owed = {name: count - seating.short.get(name, 0) for name, count in base.baseline_left.items()}
        baseline = {name: count for name, count in owed.items() if count > 0}
        return PlacementModel(
            base,
            required,
            optional,
            baseline=baseline,
            stays={} if anywhere else self._stays(base, (*required, *optional)),
            kept_launches=self._kept_launches(base) if baseline else {},
            reuse_anywhere=anywhere,
        )

    def _kept_launches(self, base: Assignment) -> dict[LaunchOption, int]:
        """What fleets launch for themselves at the least cost, whatever is placed."""
        alone = base.copy()
        count = len(alone.launches)
        launch_baselines(alone)
        options: dict[LaunchOption, int] = {}
        for launch in alone.launches[count:]:
            options[launch.option] = options.get(launch.option, 0) + 1
        return options

    def _stays(self, base: Assignment, jobs: Iterable[Job]) -> dict[tuple[int, int], str]:
        """Ranks that can stay on the nodes that they had, of tasks that cannot stay as a whole."""
        stays: dict[tuple[int, int], str] = {}
        for job in jobs:
            if job.ask.prior:
                tries = (BoundTask(base, job, domain).stays() for domain in self.catalog.domains(job.request))
                best = max(tries, key=len, default={})
                stays |= {(job.index, rank): self.catalog.nodes[node].name for rank, node in best.items()}
        return stays

    # What it costs

    def cheapest(self, seating: Seating, jobs: Sequence[Job]) -> Seating:
        """The same tasks on the cheapest launches, and what they cost at least."""
        kept = self.start.copy()
        kept.riding = False
        todo = keep_places(kept, sorted(jobs, key=order_of))
        if seating.unseated:
            plain = self._greedy(kept, todo)
            if not plain.unseated and plain.cost <= seating.cost:
                seating = replace(plain, unseated=seating.unseated)
        if not seating.cost:
            return replace(seating, bound=0.0)
        model = self._model(kept, todo, (), seating)
        known = seating.cost - sum(self.catalog.kinds[new.option.kind].cost for new in kept.launches)
        answer = cheapest(model, seating.assignment, self.cache, effort=self.effort, known=known)
        least = answer.bound
        if answer.decoded:
            new = self._greedy_on(answer.decoded, todo)
            if all(map(new.seats, todo)) and new.cost < seating.cost - CENT:
                seating = replace(new, unseated=seating.unseated)
        if kept.seats or any(job.ask.prior or job.reuse for job in todo):
            least = self._least(seating, jobs)
        known = math.isfinite(least) and least <= seating.cost + CENT
        return replace(seating, bound=min(max(0.0, least), seating.cost) if known else None)

    def _least(self, seating: Seating, jobs: Sequence[Job]) -> float:
        """What launches cost at least that hold these tasks if none has to stay where it is, and those that
        launch nothing may sit on what is launched for others.
        """
        model = self._model(self.start, jobs, (), seating, anywhere=True)
        return lower_bound(model, self.cache, effort=self.effort)

    # Who rides along

    def _ride(self, seating: Seating, jobs: Sequence[Job]) -> Seating:
        """The plan with tasks that launch nothing on what is launched for others: these move where that
        makes room, and each node keeps one of them.
        """
        guests = [job for job in jobs if job.reuse and job.request.fit and not seating.seats(job)]
        if not guests or not seating.assignment.launches:
            return seating
        kept = {job.index for job in jobs if seating.stays(job)}
        base = base_for(self.start, seating.assignment, kept, with_launches=True)
        base.fleet_room = dict.fromkeys(base.fleet_room, 0)
        hosts = [job for job in jobs if seating.seats(job) and job.index not in kept]
        levels = self._factors(guests, max(job.task.priority for job in guests))
        model = PlacementModel(base, hosts, guests, baseline={}, stays=self._stays(base, hosts))
        answer = fullest(model, None, self.cache, levels, effort=self.effort, worth=0.0)
        if answer.decoded is None or not all(job.index in answer.decoded.assignment.seats for job in hosts):
            return seating
        assignment = answer.decoded.assignment
        self._send_away_alone(assignment)
        assignment.fleet_room = dict(seating.assignment.fleet_room)
        rides = any(job.index in assignment.seats for job in guests)
        return replace(seating, assignment=assignment) if rides else seating

    def _send_away_alone(self, assignment: Assignment) -> None:
        """Leave out tasks that launch nothing where nobody else sits on a launched node: it would be
        launched for them. Nodes that fleets launch for themselves are theirs as well.
        """
        hosted = {
            node
            for index, nodes in assignment.seats.items()
            if not self.catalog.jobs[index].reuse
            for node in nodes
        }
        own = {name: rule.baseline for name, rule in self.catalog.fleets.items()}
        alone: set[int] = set()
        for launch in assignment.launches:
            if launch.node not in hosted:
                own[launch.option.fleet] -= 1
                if own[launch.option.fleet] < 0:
                    alone.add(launch.node)
        for index in [i for i, nodes in assignment.seats.items() if not alone.isdisjoint(nodes)]:
            assignment.unseat(self.catalog.jobs[index])


def order_of(job: Job) -> tuple[object, ...]:
    """Priority first; then those that have a place already; then the hardest ones to place: the largest
    first, what lies together counts as one.
    """
    task, request, want = job.task, job.request, job.task.resources
    cpu = want.cpu.min if want.cpu else 0
    memory = want.memory.min if want.memory else 0
    together = job.ranks if task.cluster else 1
    size = (
        not request.whole,
        -together * request.gpus,
        -request.gpus,
        -together * cpu,
        -cpu,
        -memory,
    )
    where = (task.cluster, task.fleets, task.backends, task.regions, task.spot_policy, task.max_price)
    return (
        -task.priority,
        not job.ask.prior,
        not task.instances,
        size,
        job.unconstrained,
        -job.ranks,
        job.reuse,
        f"{task.resources}{where}",
        job.index,
    )
