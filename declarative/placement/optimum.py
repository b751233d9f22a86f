"""The cheapest launches for tasks that all find a place, and a bound that no plan is below.

Ranks that were placed before, that are pinned, that launch nothing, or that share volumes stay where the
search has seated them; all others go where HiGHS says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from declarative.model.record import struct
from declarative.placement.assignment import Assignment
from declarative.placement.counted import EXACT, SKEW, Counted
from declarative.placement.program import INTERIOR_WORK, NONE, SLACK, Solution, SolverLimits
from declarative.placement.solved import assignment_of, columns_of

SMALL = 30
"""A program with so many times fewer columns than allowed is solved in one step."""

PROVED = 8
"""A program with so many times fewer is solved with all columns if whole nodes do not prove its answer."""

LESS, HALF = 2, 2
"""A program is solved roughly if it has so many times fewer columns then. One for the most of many tasks is
solved roughly if it has more than this part of the columns that are allowed.
"""

FEW_COLUMNS = 1000
"""A program with no more is solved exactly at once."""

INTERIOR = 3_000
"""A program of costs with more columns is solved by an interior-point method where fractions will do."""


class Few(NamedTuple):
    """The columns that may be more than 0, beside those that are so in a solution of fractions or for what is
    seated already: so there is a solution. Of thousands a few hundred are left, and HiGHS needs hundredths of
    a second instead of seconds.
    """

    many: int
    """So many of a sort, the best…"""
    used: bool
    """…and all for ranks on nodes that are in use."""
    gaps: int
    """A solution is taken if it costs at most so many gaps more than the bound."""


FEW_COST = (Few(1, False, 1), Few(2, True, 3))
FEW_SEATS = (Few(1, False, 1),)
"""They are tried one after the other."""

AT_LEAST = 0.4
"""The part of the work that is left for few columns, whatever fractions took."""

QUICK = 0.2
"""The part of the work that a proof may take after a quick search has found seats."""

SURE = 0.03
"""A rough program is solved thoroughly if its solution costs more than this part above the bound."""

THOROUGHLY = 0.4
"""The part of the work that a thorough search of a rough program may take, whatever was before it."""

MOST_THOROUGH = 1_500
"""A program with more columns is never searched thoroughly: that takes longer than all the rest, and hardly
raises the bound.
"""

FEW_BOUGHT, FEW_ARCS = 8, 4
"""So many times as many offers may stay, and arcs of one class, as columns of other sorts."""


@struct(slots=True)
class Known:
    """Programs that were solved. Plans that differ in one task or limit have many programs in common."""

    solutions: dict[object, Solution] = field(default_factory=dict)
    work: float = 0.0
    """The work of all of them."""
    drawn: float = 0.0
    """Their work, counted again each time that one was asked for."""
    seating: float = 0.0
    """The work of seating tasks one after the other, in the same unit."""

    @property
    def total(self) -> float:
        """All work."""
        return self.work + self.seating


def solve(counted: Counted, limits: SolverLimits, known: Known) -> tuple[float, Assignment | None]:
    """The least that launches cost, USD an hour, or minus the most weight that can be seated; -inf if it is
    not known. And the best assignment that was found.
    """
    if counted.large or not counted.possible:
        return -math.inf, None
    key = (limits, counted.worth, counted.rough, counted.program.key, *sorted(_whole(counted)))
    if key not in known.solutions:
        before = counted.program.work
        counted.program.most_work = before + limits.work
        found = _solve(counted, limits)
        known.solutions[key] = replace(found, work=counted.program.work - before)
        known.work += known.solutions[key].work
    found = known.solutions[key]
    known.drawn += found.work
    return found.bound, assignment_of(counted, found.values) if found.values else None


def rough_of(counted: Counted) -> Counted | None:
    """The rough program for the same, if it is much smaller."""
    if not counted.roughens or not (counted.large or counted.size > FEW_COLUMNS):
        return None
    rough = counted.roughened()
    smaller = rough.size * LESS <= counted.size
    return rough if counted.large or smaller else None


def most(
    counted: Counted,
    limits: SolverLimits,
    known: Known,
    until: float,
    *,
    many: bool,
    whole: Callable[[Assignment], Assignment | None] = lambda _: None,
) -> tuple[float, Assignment | None]:
    """Minus the most weight that can be seated, and the best assignment found. `whole` seats all tasks
    on the nodes of one that lacks some which have to be seated; None if it cannot.

    The rough program comes first. The exact one follows if it could be better; with `many` tasks, only if the
    rough one found nothing better than what is seated. The last one tells nodes from each other, if ranks
    were to lie apart. No program begins once the work comes to `until`.
    """
    large = many and counted.size * HALF > limits.columns
    rough = counted.roughened() if large else rough_of(counted)
    least, best, weight = -math.inf, None, 0

    def programs() -> Iterator[Counted | None]:
        yield rough
        yield None if large else counted
        yield counted.told_apart()

    for program in filter(None, programs()):
        if known.drawn >= until or (best and many and weight >= counted.worth):
            break
        program.worth = counted.worth
        lower, assignment = solve(program, limits, known)
        least = max(least, lower)
        good, has = assignment, program.seated
        if assignment and best is None and any(job.index not in has for job in counted.jobs):
            # Others find a place on the nodes of those that may be left out.
            good = whole(assignment_of(program, program.values, program.may) or assignment)
            has = good.seats if good else ()
        if good and all(job.index in has for job in counted.jobs):
            seated = sum(job.weight for job in counted.may if job.index in has)
            best, weight = (good, seated) if best is None or seated > weight else (best, weight)
        if -least < max(counted.worth, weight * (1 - SKEW) + counted.step):
            break
    return least, best


def _solve(counted: Counted, limits: SolverLimits) -> Solution:
    """First with fractions, then with few columns, and with all if those were not good enough."""
    program, small = counted.program, counted.size * SMALL <= limits.columns
    limits = _adapted(counted, limits, small=small)
    first = _fractions(counted, limits)
    if not first.values or (counted.worth and first.bound > -counted.worth):
        return Solution(first.bound, ())
    steps = _steps(counted, small=small)
    if counted.rough and not counted.worth and len(counted.jobs) > EXACT:
        # Which of its ranks find a place is not known anyway.
        return _solve_roughly(counted, limits, first, _with_few(counted, limits, first, steps))
    found = _with_few(counted, limits, first, steps)
    enough = _enough(counted, limits, first.bound, steps[-1].gaps)
    if limits.quick and found.values:
        program.most_work = min(program.most_work, program.work + QUICK * limits.work)
    if program.cost(found.values) <= enough:
        return Solution(first.bound, found.values)
    if not small and not counted.rough:
        return _in_steps(counted, limits, steps, first, found)
    aim = replace(limits, enough=enough, gap=steps[-1].gaps * limits.gap)
    # HiGHS proves less of a rough program that has a start, which would then be solved exactly as well.
    anew = counted.rough and not counted.worth and len(counted.jobs) <= EXACT
    last = program.solve(aim, start=() if anew else found.values)
    return Solution(max(first.bound, last.bound), min(found.values, last.values, key=program.cost))


def _solve_roughly(counted: Counted, limits: SolverLimits, first: Solution, found: Solution) -> Solution:
    """If what was found costs far more than the bound, a thorough search: fractions may be a fifth below what
    whole nodes cost, and few columns do not show whether they are.
    """
    program, cost = counted.program, counted.program.cost(found.values)
    if cost <= first.bound * (1 + SURE) or len(program.costs) > MOST_THOROUGH:
        return Solution(first.bound, found.values)
    program.most_work = max(program.most_work, program.work + limits.work * THOROUGHLY)
    # Without the solution as a start, of which HiGHS proves less.
    last = program.solve(replace(limits, brief=False, interior=False, restart=False))
    return Solution(max(first.bound, last.bound), min(found.values, last.values, key=program.cost))


def _adapted(counted: Counted, limits: SolverLimits, *, small: bool) -> SolverLimits:
    """The limits for a program: it is solved less carefully if it is large, or for many tasks."""
    few_tasks = len(counted.jobs) + len(counted.may) <= EXACT
    limits = replace(limits, brief=not few_tasks) if small else _of_step(limits)
    return replace(limits, interior=not counted.worth and counted.size > INTERIOR)


def _steps(counted: Counted, *, small: bool) -> Sequence[Few]:
    """The few columns that are tried, one after the other."""
    if counted.worth:
        return FEW_SEATS
    if len(counted.jobs) > EXACT:
        return FEW_COST
    steps = [few._replace(gaps=1) for few in FEW_COST]
    return steps[:1] if small else steps


def _fractions(counted: Counted, limits: SolverLimits) -> Solution:
    """With fractions, but not of places where fleets begin: half of each would hold as much as both."""
    if not counted.homes:
        return counted.program.solve(limits, whole=())
    first = counted.program.solve(limits, whole=counted.homes)
    others = [column for column in counted.homes if first.values and first.values[column] < SLACK]
    return replace(counted.program.solve(limits, whole=(), zero=others), bound=first.bound)


def _in_steps(
    counted: Counted, limits: SolverLimits, steps: Sequence[Few], fractions: Solution, found: Solution
) -> Solution:
    """With whole nodes, then with few columns again: to say whose ranks all of them hold takes HiGHS many
    times as long.
    """
    program = counted.program
    fair = replace(limits, gap=steps[-1].gaps * limits.gap)
    first = program.solve(fair, whole=_whole(counted), start=() if counted.worth else found.values)
    if not first.values:
        return Solution(max(fractions.bound, first.bound), found.values)
    if counted.worth and first.bound > -counted.worth:
        return Solution(first.bound, ())
    first = replace(first, duals=fractions.duals)
    found = _with_few(counted, limits, first, steps, found)
    enough = _enough(counted, limits, first.bound, steps[-1].gaps)
    if (
        program.cost(found.values) > enough
        and not limits.quick
        and (len(program.costs) * PROVED <= limits.columns or not found.values)
    ):
        last = program.solve(limits, start=found.values)
        return Solution(max(first.bound, last.bound), min(found.values, last.values, key=program.cost))
    return Solution(first.bound, found.values)


def _with_few(
    counted: Counted, limits: SolverLimits, first: Solution, steps: Sequence[Few], found: Solution = NONE
) -> Solution:
    """The best solution of whole numbers with few columns, or what is `found` already."""
    program = counted.program
    limits = replace(limits, brief=True)
    program.most_work = max(program.most_work, program.work + limits.work * AT_LEAST)
    kept = columns_of(counted, counted.incumbent) if counted.incumbent else set()
    for few in steps:
        enough = _enough(counted, limits, first.bound, few.gaps)
        if program.cost(found.values) <= enough or (limits.quick and found.values):
            break
        zero = [column for column in _left_out(counted, first, few) if column not in kept]
        new = program.solve(replace(limits, enough=enough), zero=zero)
        found = min(found, new, key=lambda one: program.cost(one.values))
    return found


def _left_out(counted: Counted, first: Solution, few: Few) -> list[int]:
    """The columns that stay 0."""
    values = first.values
    in_use = {
        i
        for i, one in enumerate(counted.classes)
        if any(values[counted.bought[j]] > SLACK for j in one.stocks)
    }
    sorts: dict[object, list[int]] = defaultdict(list)
    for number, index, column, run in counted.placed:
        if not (few.used and index in in_use):
            sorts[number, run].append(column)
    for gang, _, column in counted.runs:
        if not few.used:
            sorts[id(gang)].append(column)
    groups = [(FEW_BOUGHT, counted.bought), *((FEW_ARCS, list(one.arcs)) for one in counted.classes)]
    out: list[int] = []
    for times, columns in (*groups, *((1, own) for own in sorts.values())):
        zero = sorted((i for i in columns if values[i] < SLACK), key=first.duals.__getitem__)
        out += zero[times * few.many :]
    return out


def _enough(counted: Counted, limits: SolverLimits, least: float, gaps: float = 1) -> float:
    """The cost up to which a solution is taken, if none costs less than `least`."""
    if counted.worth:  # so that no more weight can be seated; which of equals are, matters less
        return max((least + counted.step) / (1 - SKEW), least * (1 - SLACK))
    return least + max(limits.absolute, gaps * limits.gap * least)


def _of_step(limits: SolverLimits) -> SolverLimits:
    """Where a program is solved in steps, a solution may be dearer by four times as much."""
    return replace(limits, brief=True, gap=4 * limits.gap)


def bound(counted: Counted, limits: SolverLimits) -> float:
    """What launches cost at least, USD an hour; -inf if that is not known."""
    if counted.large or not counted.possible:
        return -math.inf
    counted.program.most_work = counted.program.work + limits.work
    return counted.program.solve(_of_step(limits), whole=_whole(counted)).bound


def least_work(counted: Counted) -> float:
    """The work of the fractions of a large program; 0 if it is small. Twice that if fleets have to begin."""
    columns = counted.size
    return INTERIOR_WORK * columns / 1000 * (2 if counted.homes else 1) if columns > INTERIOR else 0.0


def _whole(counted: Counted) -> set[int]:
    """The columns that count what is launched, and say where."""
    stocks = zip(counted.bought, counted.stocks, strict=True)
    return {*counted.homes, *(column for column, stock in stocks if stock.option)}
