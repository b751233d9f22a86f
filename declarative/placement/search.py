"""The search: tasks are seated in several orders, and the best outcome is kept.

No single order is good everywhere; the best of three is within a few percent of the optimum. Which tasks are
left out is decided before what the rest costs, and so that leaving one out changes nothing for the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from declarative.placement.board import Board, Home
from declarative.placement.consolidate import Tidy
from declarative.placement.counted import SKEW, Counted
from declarative.placement.cover import DEAR, Ground, choose
from declarative.placement.gangs import open_homes, seat, seat_again, seat_alike
from declarative.placement.launches import keep_baselines, launch_baselines
from declarative.placement.ledger import Ledger
from declarative.placement.optimum import base_for, bound, movable, solve
from declarative.placement.orders import LAST_RESORTS, ORDERS, Orders
from declarative.placement.program import Limits
from declarative.placement.quotas import quotas
from declarative.placement.trial import carry_out
from declarative.placement.wishes import Job

FEW = 200
"""Up to that many tasks, each that is left out is tried again by itself, in front of the others."""

MOST_EFFORT = 30_000
"""Tasks seated in such tries."""

COST = Limits(nodes=30, columns=12_000, gap=3e-3)
"""For the cheapest launches…"""

SEATS = Limits(nodes=60, columns=12_000, absolute=1e-4)
"""…and for the most tasks."""

ROUNDED = 1e-6
"""The part of a cost by which sums may differ."""

ROUNDS = 3
"""With more tasks: passes with all sizes that were left out in front."""


@dataclass(slots=True)
class Result:
    """What one pass came to."""

    ledger: Ledger
    left: list[Job]
    short: dict[str, int] = field(default_factory=dict)
    bound: float | None = None
    """USD an hour that all launches cost at least which seat the same tasks; None if that is not known."""
    proved: frozenset[int] = frozenset()
    """Tasks that have no place beside all others of at least their priority: that was proved."""

    @property
    def cost(self) -> float:
        """USD an hour of all launches."""
        kinds = self.ledger.board.kinds
        return sum(min(kinds[x.option.kind].cost, DEAR) for x in self.ledger.launches)

    @property
    def value(self) -> tuple[object, ...]:
        """What is left out, of higher priority first; then the cost; then the launches."""
        out = dict.fromkeys(self.ledger.board.levels, 0)
        for job in self.left:
            out[job.task.priority] += job.weight
        return (tuple(out.values()), round(self.cost, 6), len(self.ledger.launches))


class Search:
    """One board, searched."""

    def __init__(self, board: Board, effort: int = 1) -> None:
        self.board = board
        self.cost, self.seats = COST.times(effort), SEATS.times(effort)
        self.start = Ledger.start(board)
        keep_baselines(self.start)
        self.orders = Orders(self.start)

    def seated(self) -> Collection[int]:
        """The tasks that the best outcome seats, by their index: what they cost does not change that."""
        return self._fuller(self._searched()).ledger.seats

    def run(self) -> Result:
        """The best outcome that was found."""
        found = self._searched()
        fuller = self._fuller(found)
        if len(fuller.ledger.seats) > len(found.ledger.seats):
            fuller = replace(self._cheapest_of(fuller), proved=fuller.proved)
        return replace(self._cheaper(fuller), proved=fuller.proved)

    def _fuller(self, found: Result) -> Result:
        """Seat what can be seated beside all tasks of at least its priority, by the exact model."""
        jobs = self.board.jobs
        proved: set[int] = set()
        for level in self.board.levels:
            left = [j for j in found.left if j.task.priority == level and j.wish.fit]
            keep = [j for j in jobs if j.index in found.ledger.seats and self._keeps(j, level, found)]
            free = movable([*keep, *left])
            still = [j for j in free if j.index in found.ledger.seats]
            may = [j for j in free if j.index not in found.ledger.seats]
            if not may:
                continue
            fixed = {j.index for j in keep} - {j.index for j in still}
            counted = self._counted(base_for(self.start, found.ledger, fixed), still, found, may)
            least, ledger = solve(counted, self.seats)
            fuller = ledger is not None and len(ledger.seats) > len(keep)
            gained = sum(j.weight for j in may if ledger and fuller and j.index in ledger.seats)
            # Where those that stay have to stay, more weight than the bound cannot be seated.
            if -least < gained * (1 - SKEW) + counted.worth and all(jobs[i].ask.prior for i in fixed):
                proved.update(j.index for j in may)
            if ledger is None or not fuller:
                continue
            Tidy(ledger).run()
            best = Result(ledger, [])
            rest = self._rest(best, jobs, found)
            short = launch_baselines(ledger) if rest is best else rest.short
            found = replace(rest, left=[j for j in jobs if j.index not in rest.ledger.seats], short=short)
        return replace(found, proved=frozenset(proved)) if proved else found

    def _keeps(self, job: Job, level: int, found: Result) -> bool:
        """Whether a seated task keeps its place though others of a priority have none."""
        index, seats = self.board.index, found.ledger.seats[job.index]
        had = [index.get(name) for _, (name, _) in sorted(job.ask.prior.items())]
        return job.task.priority >= level or (bool(had) and had == seats)

    def _cheaper(self, found: Result) -> Result:
        """The same tasks on the cheapest launches."""
        if not found.cost:
            return replace(found, bound=0.0)
        jobs = [j for j in self.board.jobs if j.index in found.ledger.seats]
        free = movable(jobs)
        begin = base_for(self.start, found.ledger, {j.index for j in jobs} - {j.index for j in free})
        least, ledger = solve(self._counted(begin, free, found), self.cost)
        if len(free) < len(jobs):  # with those that stay where they are it might be dearer than it has to be
            least = bound(self._counted(self.start, jobs, found), self.cost)
        if ledger is not None:
            Tidy(ledger).run()
            short = launch_baselines(ledger)
            left = self._seat_all(ledger, found.left, {})
            found = min(found, Result(ledger, left, short), key=lambda r: r.value)
        known = math.isfinite(least) and least <= found.cost * (1 + ROUNDED)  # else nothing is proved
        return replace(found, bound=min(max(0.0, least), found.cost) if known else None)

    def _counted(self, base: Ledger, jobs: Sequence[Job], found: Result, may: Sequence[Job] = ()) -> Counted:
        """A program for these tasks, in which each fleet launches for itself what can be had."""
        least = {name: max(0, owed - found.short.get(name, 0)) for name, owed in base.owed.items() if owed}
        return Counted(base, jobs, least, self.cost.columns, may)

    def _searched(self) -> Result:
        """The best of several orders."""
        jobs = self.board.jobs
        if len(jobs) > FEW:
            return self._rounds(jobs)
        first = self._pass(jobs, "size", wanted={})
        if not first.left:
            return self._cheapest(first, jobs)
        return self._cheapest_of(self._admit(first, jobs))

    def _cheapest_of(self, admitted: Result) -> Result:
        """The cheapest pass that seats the same tasks: those that are left out change nothing about it."""
        jobs = [j for j in self.board.jobs if j.index in admitted.ledger.seats]
        left = [j for j in self.board.jobs if j.index not in admitted.ledger.seats]
        first = self._pass(jobs, "size", wanted={})
        best = self._cheapest(replace(admitted, left=[]) if first.left else first, jobs)
        return replace(best, left=left)

    def _cheapest(self, first: Result, jobs: Sequence[Job]) -> Result:
        """The cheapest pass that seats all of `jobs`, as `first` does."""
        best = first
        if self._is_free(first):
            return best
        wanted = self.orders.wanted(jobs)
        levels = {j.task.priority for j in jobs}
        # Where all find a place it does not matter who goes first, but to the price it may.
        for by_priority in (True, False) if len(levels) > 1 else (True,):
            for order in (*ORDERS, *LAST_RESORTS):
                found = self._pass(jobs, order, wanted=wanted, by_priority=by_priority)
                if not found.left and found.value < best.value:
                    best = found
        return best

    def _is_free(self, found: Result) -> bool:
        """Whether all tasks are seated, and what is launched for them is free and cannot be less."""
        if found.left or found.cost:
            return False
        owed = sum(rule.baseline for rule in self.board.fleets.values())
        return len(found.ledger.launches) <= owed or self._is_full(found)

    def _is_full(self, found: Result) -> bool:
        """Whether no block is idle on any node, and all offers are alike: no order needs fewer nodes."""
        board, piles = self.board, found.ledger.piles.values()
        return not any(piles) and len({board.make_of[option.kind] for option in board.options}) == 1

    # Which tasks are left out

    def _admit(self, first: Result, jobs: Sequence[Job]) -> Result:
        """Add to what the first pass seats each task that can be had beside all of it.

        What is tried for a task depends on the tasks that are seated and on no other that is left out.
        """
        best, effort = first, 0
        failed: set[object] = set()
        for job in sorted(first.left, key=lambda j: self.orders.key(j, "size", frozenset())):
            key = job.key if job.plain else job.index
            if not job.wish.fit or key in failed or job.index in best.ledger.seats:
                continue
            level = job.task.priority
            keep = [j for j in jobs if j.index in best.ledger.seats and self._keeps(j, level, best)]
            effort += (len(ORDERS) + len(LAST_RESORTS)) * (len(keep) + 1)
            if effort > MOST_EFFORT:
                break
            found = self._with(job, keep)
            if found is None:
                failed.add(key)
            else:
                best, failed = self._rest(found, jobs, best), set()
        return best

    def _rest(self, found: Result, jobs: Sequence[Job], before: Result) -> Result:
        """Seat beside `found` what else can be had, first of all what was seated before."""
        rest = [j for j in jobs if j.index not in found.ledger.seats and j.wish.fit]
        front = {j.key if j.plain else j.index for j in rest if j.index in before.ledger.seats}
        if not rest:
            return found
        return self._pass(jobs, "size", wanted={}, front=front, first=found.ledger)

    def _with(self, job: Job, others: Sequence[Job]) -> Result | None:
        """An outcome that seats a task and all the others: then their priorities do not matter."""
        jobs = sorted([*others, job], key=lambda j: j.index)
        wanted = self.orders.wanted(jobs)
        front = {job.key} if job.plain else {job.index}
        for order in (*ORDERS, *LAST_RESORTS):
            found = self._pass(jobs, order, wanted=wanted, front=front, by_priority=False)
            if not found.left:
                return found
        for home in open_homes(self.start, [job.wish]):
            start = self._beginning(self.start, home)
            found = self._pass(jobs, "size", wanted=wanted, front=front, first=start, by_priority=False)
            if not found.left:
                return found
        return None

    def _beginning(self, start: Ledger, home: tuple[str, Home]) -> Ledger:
        """A ledger of which one cluster fleet begins at one place."""
        new = start.copy()
        new.begin = {**new.begin, home[0]: frozenset((home[1],))}
        return new

    def _rounds(self, jobs: Sequence[Job]) -> Result:
        """Many tasks: three orders, then the sizes that were left out go to the front."""
        wanted = self.orders.wanted(jobs)
        tried: list[tuple[Result, str]] = []
        # What is free is launched as small as may be: where few may be launched, that leaves some out.
        free = any(not self.board.kinds[option.kind].cost for option in self.board.options)
        for order in (*ORDERS, *LAST_RESORTS) if free else ORDERS:
            tried.append((self._pass(jobs, order, wanted=wanted), order))
            if self._is_free(tried[-1][0]):
                return tried[-1][0]  # nothing is left out, and nothing costs more than it has to
        best, order = min(tried, key=lambda t: t[0].value)
        front: set[object] = set()
        for _ in range(ROUNDS):
            lost = {j.key if j.plain else j.index for j in best.left if j.wish.fit} - front
            if not lost:
                break
            front |= lost
            found = self._pass(jobs, order, wanted=wanted, front=front)
            if found.value < best.value:
                best = found
        start = self.start
        for home in open_homes(start, {id(j.wish): j.wish for j in best.left}.values()):
            other = self._beginning(start, home)
            found = self._pass(jobs, order, wanted=wanted, front=front, first=other)
            if found.value < best.value:
                best, start = found, other
        if not best.left and len({j.task.priority for j in jobs}) > 1:
            found = self._pass(jobs, order, wanted=wanted, by_priority=False)
            if not found.left and found.value < best.value:
                best = found
        return best

    # One pass

    def _pass(
        self,
        jobs: Sequence[Job],
        order: str,
        *,
        wanted: Mapping[int, int],
        front: Collection[object] = frozenset(),
        first: Ledger | None = None,
        by_priority: bool = True,
    ) -> Result:
        """Seat tasks one after the other; those that are alike and have one rank, all at once."""
        ledger = (first or self.start).copy()
        todo = [j for j in jobs if j.index not in ledger.seats]
        ledger.roomy = order == "roomy"
        todo.sort(key=lambda j: self.orders.key(j, order, front, by_priority=by_priority))
        # Who has a place keeps it: a task of higher priority does not take it away.
        again = {j.index for j in todo if j.ask.prior and seat_again(ledger, j)}
        todo = [j for j in todo if j.index not in again]
        left: list[Job] = []
        for _, level in itertools.groupby(todo, key=lambda j: by_priority and j.task.priority):
            left += self._seat_all(ledger, self._by_quota(ledger, list(level), wanted), wanted)
        if ledger.launches:
            Tidy(ledger).run()
        short = launch_baselines(ledger)
        if left and ledger.launches:
            # What was launched since may hold those that launch nothing themselves.
            left = self._seat_all(ledger, left, wanted)
        return Result(ledger, left, short)

    def _seat_all(self, ledger: Ledger, todo: Sequence[Job], wanted: Mapping[int, int]) -> list[Job]:
        left: list[Job] = []
        failed: set[tuple[int, int, bool]] = set()
        i = 0
        while i < len(todo):
            job = todo[i]
            j = i + 1
            if job.plain and job.ranks == 1:
                while j < len(todo) and todo[j].plain and todo[j].key == job.key:
                    j += 1
            alike = todo[i:j]
            i = j
            if not job.wish.fit or (job.plain and job.key in failed):
                left += alike  # room only ever shrinks: what found none finds none later
            elif job.plain and job.ranks == 1:
                left += alike[seat_alike(ledger, alike, wanted) :]
            elif not seat(ledger, job, wanted):
                left.append(job)
                if job.plain:
                    failed.add(job.key)
        return left

    def _by_quota(self, ledger: Ledger, todo: list[Job], wanted: Mapping[int, int]) -> list[Job]:
        """Seat what the quotas name, after all that is harder to seat; what is left to seat."""
        found = quotas(ledger, todo)
        if not found:
            return todo
        hard = [j for j in todo if not j.plain or j.ranks > 1 or j.wish.whole]
        left = self._seat_all(ledger, hard, wanted)
        if hard:
            found = quotas(ledger, todo)  # of what they left
        alike: dict[tuple[int, int, bool], list[Job]] = {}
        for job in todo:
            if job.index not in ledger.seats and job.plain and job.ranks == 1:
                alike.setdefault(job.key, []).append(job)
        for key, kinds, number in found:
            jobs = alike[key][:number]
            if not jobs:
                continue
            choice = choose(ledger, jobs[0].wish, len(jobs), Ground(kinds=kinds))
            seated = len(jobs) - choice.short
            for job, node in zip(jobs, carry_out(ledger, choice, seated), strict=False):
                ledger.seats[job.index] = [node]
            del alike[key][:seated]
        tried = {j.index for j in left}
        return [*left, *(j for j in todo if j.index not in ledger.seats and j.index not in tried)]
