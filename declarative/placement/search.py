"""The search: tasks are seated one after the other, and an integer program says what is better than that.

First it decides which tasks are left out, so that leaving one out changes nothing for the others; then what
the rest costs. The program cannot tell where tasks are pinned or a plan is very large. The search seats tasks
in several orders there, and keeps the best outcome.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.placement.board import Board, Home
from declarative.placement.counted import SKEW, Counted
from declarative.placement.gangs import (
    Seating,
    base_for,
    best_try,
    keep_places,
    open_homes,
    seat_all,
    seat_by_quota,
)
from declarative.placement.launches import Tidy, keep_baselines, launch_baselines
from declarative.placement.ledger import Ledger
from declarative.placement.optimum import (
    FAR_ABOVE,
    FEW_COLUMNS,
    Known,
    bound,
    least_work,
    most,
    rough_of,
    roughly,
    solve,
)
from declarative.placement.orders import LAST_RESORTS, ORDERS, Orders, quotas
from declarative.placement.program import SolverLimits
from declarative.placement.requests import Job, movable

FEW = 200
"""Up to so many tasks, each one that is left out is tried again by itself, in front of the others."""

MANY = 1_000
"""With more tasks, those that are seated make no room for others of their priority…"""

MUCH = 0.02
"""…if that gains less than this part of their weight."""

MOST_EFFORT = 30_000
"""Tasks seated in such tries."""

COST = SolverLimits(nodes=12, columns=12_000, gap=2.5e-3, work=300)
"""For the cheapest launches; so much work if less had no answer…"""

SEATS = SolverLimits(nodes=60, columns=12_000, absolute=1e-4)
"""…and for the most tasks."""

WORK, FEW_WORK, MOST_WORK = 0.55, 460, 2_000
"""The work of all programs of one plan for each task; for at least so many tasks, and for at most so many."""

SEATING, SEATED, ROUGHLY = 0.6, 0.45, 0.5
"""The part of it for programs for the most tasks, and for one of these; and the part of the rest for a rough
program.
"""

SEAT_WORK, DOMAIN_WORK = 0.025, 0.033
"""The work of seating a task in one pass, and of each place where tasks that ask for the same may lie."""

LEAST_SEATING = 0.15
"""The part of it that programs for the tasks of one priority may take, and one of them, whatever those before
them took.
"""

FAIR = 12
"""What is solved roughly is solved exactly too if the outcome costs more than so many gaps above the bound.
Where that takes much work, it has to cost so much more than the rough solution that it came from.
"""

ROUNDED = 1e-6
"""The part of a cost by which sums may differ."""

ROUNDS = 3
"""With more tasks: passes with all sizes that were left out in front."""


class TooMuchWorkError(Exception):
    """A search stopped since its programs took too much. What it would find is not known."""


class Search:
    """One board, searched."""

    def __init__(
        self,
        board: Board,
        effort: int = 1,
        known: Known | None = None,
        start: Ledger | None = None,
        *,
        until: float = math.inf,
    ) -> None:
        """`known` are programs that were solved for other boards; this one adds its own. `start` is what is
        there, if it is not as the board has it. With `until`, the search raises `TooMuchWorkError` once the
        work of `known` comes to that, or where it would go on without a program.
        """
        self.board = board
        self.known = known or Known()
        self.cost, self.seats = COST.times(effort), SEATS.times(effort)
        work = WORK * min(max(len(board.jobs), FEW_WORK), MOST_WORK) * effort
        self.seats = replace(self.seats, work=SEATED * work)
        self.until, self.all_drawn = until, self.known.drawn + work
        self.seats_drawn = self.known.drawn + SEATING * work
        self.least_seating = LEAST_SEATING * work
        self.least_left = (1 - SEATING) * work
        self.start = start.copy() if start else Ledger.start(board)
        keep_baselines(self.start)
        self.orders = Orders(self.start)
        self._hopeless: dict[int, bool] = {}
        requests = {id(job.request): job.request for job in board.jobs}
        domains = sum(len(board.domains(request)) for request in requests.values())
        self._seat_work = SEAT_WORK + DOMAIN_WORK * domains / max(1, len(board.jobs))

    @functools.cached_property
    def _ideal(self) -> Ledger:
        return Ledger.start(self.board, ideal=True)

    def seated(self, needed: Collection[int] = ()) -> Collection[int]:
        """The tasks that the best outcome seats, by their index: what they cost does not change that.

        With `needed`, only whether it seats all of these tasks is right.
        """
        return self._fullest(self.board.jobs, needed).ledger.seats

    def seats_alone(self, job: Job) -> bool:
        """Whether a task finds a place if no other is asked for."""
        return self._fullest([job]).seats(job)

    def run(self) -> Seating:
        """The best outcome that was found."""
        found = self._fullest(self.board.jobs)
        if found.left and len(found.ledger.seats) <= FEW and self.known.drawn < self.seats_drawn:
            # Those that are left out change nothing for the others.
            alone = self._fullest(self._seated(found))
            if not alone.left:
                found = replace(alone, left=found.left, proved=found.proved)
        return self._cheapest(replace(found, left=sorted(found.left, key=lambda job: job.index)))

    def _seated(self, found: Seating) -> list[Job]:
        """The tasks that have their places."""
        return [job for job in self.board.jobs if found.seats(job)]

    # Which tasks are left out

    def _fullest(self, jobs: Sequence[Job], needed: Collection[int] = ()) -> Seating:
        """Seat as many as can be seated beside all tasks of at least their priority."""
        found = self._pass(jobs, "size", wanted={}, by_quota=False)
        if any(job.request.fit for job in found.left) and quotas(self.start, jobs):
            found = min(found, self._pass(jobs, "size", wanted={}), key=lambda r: r.value)
        proved: set[int] = set()
        orders = len(jobs) > FEW
        """Whether other orders may still be tried."""
        for level in self.board.levels:
            if needed and self._is_settled(found, needed, level):
                break
            until = max(self.seats_drawn, self.known.drawn + self.least_seating)
            found, done, answered = self._more(found, jobs, level, until)
            if orders and not answered:
                found, done, _ = self._more(self._rounds(found, jobs), jobs, level, until)
                orders = False
            proved |= done
            left = [job for job in self._left(found, level) if job.index not in done]
            if left and len(jobs) <= FEW:
                found = self._admit(found, jobs, left)
        return replace(found, proved=frozenset(proved))

    def _is_settled(self, found: Seating, needed: Collection[int], level: int) -> bool:
        """Whether all of `needed` are seated, or not, however tasks of this priority and below it are seated:
        a task takes no place from one of a higher priority.
        """
        tasks = {index: self.board.jobs[index].task for index in needed}
        lost = any(task.priority > level for index, task in tasks.items() if index not in found.ledger.seats)
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
                until = max(until, self.known.drawn + self.least_seating)
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
        drawn = self.known.drawn >= self.seats_drawn
        if self.known.total >= self.until or (drawn and self.until < math.inf):
            raise TooMuchWorkError
        fixed = {job.index for job in keep} - {job.index for job in free}
        optional = {job.index for job in may}
        still = [job for job in free if job.index not in optional]
        counted = self._counted(base_for(self.start, found.ledger, fixed), still, found, may)
        seated = _weight(filter(found.seats, may))
        if seated:
            counted.worth = seated * (1 + (gain or 0) - SKEW) + (0 if gain else counted.step)
        many = len(self.board.jobs) > FEW
        few = not counted.large and counted.size <= FEW_COLUMNS
        # Of many it need not be proved, unless that is easy.
        work = self.least_seating if drawn else self.seats.work
        limits = replace(self.seats, work=work, quick=gain is not None or (many and not few))
        least, ledger = most(counted, limits, self.known, until, many=many)
        weight = _weight(job for job in may if ledger and job.index in ledger.seats)
        taken = weight > seated * (1 + (gain or 0))
        # Where those that stay have to stay, more weight than the bound cannot be seated.
        lightest = 0.99 * min((job.weight for job in may if not found.seats(job)), default=0)
        proved = -least < (weight if taken else seated) * (1 - SKEW) + lightest
        proved = proved and all(self._stays(self.board.jobs[i], found) for i in fixed)
        if ledger is None or not taken:
            return None, proved, proved or ledger is not None
        Tidy(ledger).run()
        return Seating(ledger, []), proved, True

    def _kept(self, jobs: Sequence[Job], level: int, found: Seating) -> list[Job]:
        """The seated tasks that keep their places though others of a priority have none."""
        return [job for job in jobs if found.seats(job) and self._keeps(job, level, found)]

    def _keeps(self, job: Job, level: int, found: Seating) -> bool:
        """Whether a seated task keeps its place though others of a priority have none."""
        return job.task.priority >= level or self._stays(job, found)

    def _stays(self, job: Job, found: Seating) -> bool:
        """Whether a seated task is where it was: a node that it had may be gone, or take no work."""
        had = [self.board.index.get(name) for _, (name, _) in sorted(job.ask.prior.items())]
        return bool(had) and had == found.ledger.seats[job.index]

    def _admit(self, best: Seating, jobs: Sequence[Job], left: Sequence[Job]) -> Seating:
        """Add each task that can be had beside all that is seated.

        What is tried for a task depends on the tasks that are seated and on no other that is left out.
        """
        effort = 0
        failed: set[object] = set()
        for job in sorted(left, key=lambda j: self.orders.key(j, "size", frozenset())):
            key = job.likeness
            if key in failed or job.index in best.ledger.seats:
                continue
            keep = self._kept(jobs, job.task.priority, best)
            effort += (len(ORDERS) + len(LAST_RESORTS)) * (len(keep) + 1)
            if effort > MOST_EFFORT:
                break
            found = self._with(job, keep) or self._beside(best, job, keep)
            if found is None and len(self.board.jobs) > FEW:
                break  # this is about tasks that all had places: without one of them it is of no use
            if found is None:
                failed.add(key)
            else:
                best, failed = self._rest(found, jobs, best), set()
        return best

    def _rest(self, found: Seating, jobs: Sequence[Job], before: Seating) -> Seating:
        """Seat beside `found` what else can be had, first of all what was seated before."""
        rest = [j for j in jobs if j.index not in found.ledger.seats]
        front = {j.likeness for j in rest if j.index in before.ledger.seats}
        return self._pass(jobs, "size", wanted={}, front=front, first=found.ledger)

    def _with(self, job: Job, others: Sequence[Job]) -> Seating | None:
        """An outcome that seats a task and all the others: then their priorities do not matter."""
        jobs = sorted([*others, job], key=lambda j: j.index)
        wanted = self.orders.wanted(jobs)
        front = {job.likeness}
        for order in (*ORDERS, *LAST_RESORTS):
            found = self._pass(jobs, order, wanted=wanted, front=front, by_priority=False)
            if not found.left:
                return found
        for home in open_homes(self.start, [job.request]):
            start = self._beginning(self.start, home)
            found = self._pass(jobs, "size", wanted=wanted, front=front, first=start, by_priority=False)
            if not found.left:
                return found
        return None

    def _beside(self, best: Seating, job: Job, others: Sequence[Job]) -> Seating | None:
        """An outcome by a program, for a task whose volumes only tasks without a place want, too."""
        free = movable([*others, job]) if any(job.ask.want.mounts) else []
        until = self.known.drawn + self.least_seating
        return self._most(best, others, free, [job], gain=None, until=until)[0] if job in free else None

    def _beginning(self, start: Ledger, home: tuple[str, Home]) -> Ledger:
        """A ledger of which one cluster fleet begins at one place."""
        new = start.copy()
        new.begin = {**new.begin, home[0]: frozenset((home[1],))}
        return new

    def _rounds(self, best: Seating, jobs: Sequence[Job]) -> Seating:
        """Many tasks: other orders, then the sizes that were left out go to the front."""
        wanted = self.orders.wanted(jobs)
        best, order = self._best_order(best, jobs, wanted)
        front: set[object] = set()
        for _ in range(ROUNDS):
            lost = {job.likeness for job in best.left if job.request.fit} - front
            if not lost:
                break
            front |= lost
            found = self._pass(jobs, order, wanted=wanted, front=front)
            best = min(best, found, key=lambda r: r.value)
        requests = {id(job.request): job.request for job in best.left}
        for home in open_homes(self.start, requests.values()):
            start = self._beginning(self.start, home)
            found = self._pass(jobs, order, wanted=wanted, front=front, first=start)
            best = min(best, found, key=lambda r: r.value)
        return best

    def _best_order(
        self, best: Seating, jobs: Sequence[Job], wanted: Mapping[int, int]
    ) -> tuple[Seating, str]:
        """The best of one pass by size and one of each other order, and its order."""
        # What is free is launched as small as may be: where few may be launched, that leaves some out.
        free = any(not self.board.kinds[option.kind].cost for option in self.board.options)
        order = "size"
        for other in (*ORDERS, *LAST_RESORTS) if free else ORDERS:
            found = self._pass(jobs, other, wanted=wanted)
            if found.value < best.value:
                best, order = found, other
        return best, order

    # What the rest costs

    def _cheapest(self, found: Seating) -> Seating:
        """The same tasks on the cheapest launches, and what they cost at least."""
        jobs = self._seated(found)
        free = movable(jobs)
        if not found.cost:
            return replace(self._orders(found, jobs), bound=0.0)
        stays = {job.index for job in jobs} - {job.index for job in free}
        # The program cannot tell where those are best off that share volumes or are pinned.
        searched = not all(self._stays(self.board.jobs[index], found) for index in stays)
        if searched:
            found = self._orders(found, jobs)
        found, answered = self._cheaper(found, jobs, free)
        is_near = found.bound is not None and found.cost <= found.bound * (1 + self.cost.gap) + ROUNDED
        if not searched and not answered and not is_near:
            found = replace(self._orders(found, jobs), bound=found.bound)
        return found

    def _cheaper(self, found: Seating, jobs: Sequence[Job], free: Sequence[Job]) -> tuple[Seating, bool]:
        """The same tasks where the program puts them, if that is cheaper; and whether it had an answer."""
        begin = base_for(self.start, found.ledger, {j.index for j in jobs} - {j.index for j in free})
        counted = self._counted(begin, free, found)
        least, others = self._by_programs(counted, jobs)
        if len(free) < len(jobs):  # with those that stay where they are it might be dearer than it has to be
            limits = replace(self.cost, work=self._work_left)
            least = bound(self._counted(self.start, jobs, found).roughened(), limits)
        same = [replace(other, left=found.left, proved=found.proved) for other in others]
        found = min([found, *same], key=lambda r: r.value)
        known = math.isfinite(least) and least <= found.cost * (1 + ROUNDED)  # else nothing is proved
        found = replace(found, bound=min(max(0.0, least), found.cost) if known else None)
        return found, bool(others)

    def _by_programs(self, counted: Counted, jobs: Sequence[Job]) -> tuple[float, list[Seating]]:
        """The least that launches cost, and the outcomes that were found. The rough program comes first if it
        is much smaller, else last; the exact one where its fractions do not take all work that is left. If no
        program had a good answer, one may take more work.
        """
        least, found = -math.inf, list[Seating]()
        rough = rough_of(counted)
        last = rough or (counted.roughened() if counted.roughens else None)
        for program in (rough, counted, None if rough else last):
            left = self._work_left
            dear = least_work(counted) if rough and program is counted else 0.0
            reach = rough.reach if rough and dear else 0.0
            fair = max(least, reach) * (1 + FAIR * self.cost.gap) + ROUNDED
            if program and dear <= left and not any(one.cost <= fair for one in found):
                lower, more = self._by(program, jobs, ROUGHLY * left if program.rough else left)
                least, found = max(least, lower), found + more
        if all(one.cost > least * (1 + FAR_ABOVE) + ROUNDED for one in found):
            # By a new rough program: what the other one was tightened by is not true of all plans.
            again = counted.roughened() if last else counted
            lower, more = self._by(again, jobs, self.cost.work)
            least, found = max(least, lower), found + more
        return least, found

    @property
    def _work_left(self) -> float:
        """The work for the cheapest launches."""
        return max(self.least_left, self.all_drawn - self.known.drawn)

    def _by(self, program: Counted, jobs: Sequence[Job], work: float) -> tuple[float, list[Seating]]:
        """The least that launches cost by one program, and the outcomes that it found."""
        limits = replace(self.cost, work=work)
        if program.rough:
            return roughly(program, limits, self.known, lambda ledger: self._whole(ledger, jobs))
        least, ledger = solve(program, limits, self.known)
        return least, [self._whole(ledger)] if ledger else []

    def _whole(self, ledger: Ledger, jobs: Sequence[Job] = ()) -> Seating:
        """A ledger, tidied, with those of the tasks seated that it lacks."""
        if any(job.index not in ledger.seats for job in jobs):
            return self._pass(jobs, "size", wanted={}, first=ledger, by_priority=False)
        Tidy(ledger).run()
        return Seating(ledger, [], launch_baselines(ledger))

    def _counted(self, base: Ledger, jobs: Sequence[Job], found: Seating, may: Sequence[Job] = ()) -> Counted:
        """A program for these tasks, in which each fleet launches for itself what can be had."""
        least = {name: max(0, owed - found.short.get(name, 0)) for name, owed in base.owed.items() if owed}
        return Counted(base, jobs, least, self.cost.columns, may)

    def _orders(self, best: Seating, jobs: Sequence[Job]) -> Seating:
        """The cheapest pass of several orders that seats all of `jobs`, as `best` does."""
        wanted = self.orders.wanted(jobs)
        levels = {j.task.priority for j in jobs}
        orders = ORDERS if len(jobs) > FEW else (*ORDERS, *LAST_RESORTS)
        # Where all find a place it does not matter who goes first, but to the price it may.
        for by_priority in (True, False) if len(levels) > 1 else (True,):
            for order in orders:
                if self._is_free(best):
                    return best
                found = self._pass(jobs, order, wanted=wanted, by_priority=by_priority)
                if not found.left:
                    found = replace(found, left=best.left, proved=best.proved)
                    best = min(best, found, key=lambda r: r.value)
        return best

    def _is_free(self, found: Seating) -> bool:
        """Whether what is launched is free and cannot be less."""
        if found.cost:
            return False
        owed = sum(rule.baseline for rule in self.board.fleets.values())
        return len(found.ledger.launches) <= owed or self._is_full(found)

    def _is_full(self, found: Seating) -> bool:
        """Whether no block is idle on any node, and all offers are alike: no order needs fewer nodes."""
        board, piles = self.board, found.ledger.piles.values()
        return not any(piles) and len({board.make_of[option.kind] for option in board.options}) == 1

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
        by_quota: bool = True,
    ) -> Seating:
        """Seat tasks one after the other; those that are alike and have one rank, all at once."""
        ledger = (first or self.start).copy()
        todo = [j for j in jobs if j.index not in ledger.seats]
        self.known.seating += self._seat_work * len(todo)
        ledger.roomy = order == "roomy"
        todo.sort(key=lambda j: self.orders.key(j, order, front, by_priority=by_priority))
        left: list[Job] = []
        todo = keep_places(ledger, todo)
        for _, group in itertools.groupby(todo, key=lambda j: by_priority and j.task.priority):
            level = list(group)
            left += seat_all(ledger, seat_by_quota(ledger, level, wanted) if by_quota else level, wanted)
        if ledger.launches:
            Tidy(ledger).run()
        short = launch_baselines(ledger)
        if left and ledger.launches:
            # What was launched since may hold those that launch nothing themselves.
            left = seat_all(ledger, left, wanted)
        return Seating(ledger, left, short)


def _weight(jobs: Iterable[Job]) -> int:
    return sum(job.weight for job in jobs)
