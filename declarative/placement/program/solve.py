"""The best plan that programs find: the most blocks of each priority, the highest first; then the least cost.

Fractions come first: they say what no plan can beat, and which columns matter. Whole numbers are looked for
over these columns only, beside those of a plan that is there already, so there always is a solution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from declarative.placement.assignment import Assignment
from declarative.placement.program.decode import Decoded, columns_of, decode
from declarative.placement.program.model import MOST_COLUMNS, SKEW, PlacementModel
from declarative.placement.program.solver import SLACK, SearchLimits, Solution, SolverCache, cost_of

SMALL = 600
"""A program with no more columns is searched at once."""

FEW_COLUMNS = 1_200
"""A search for whole numbers looks at so many columns."""

GAP = 2.5e-3
"""A plan may cost this part more than the least."""

NEAR = 5e-3
"""If launches cost more than this part above the bound, more columns are looked at."""

CUT_COLUMNS = 5_000
"""A program with more columns does not say how nodes are cut, if that makes it much smaller."""

ROUNDS, NODE = 96, 4
"""The rounds of one search, which looks at a node for each `NODE` rounds."""


class ProgramAnswer(NamedTuple):
    """`bound` holds for every plan; `decoded` is None if no plan was found."""

    bound: float
    decoded: Decoded | None
    impossible: bool = False


def cheapest(
    model: PlacementModel,
    incumbent: Assignment | None,
    cache: SolverCache,
    *,
    effort: int = 1,
    known: float = math.inf,
) -> ProgramAnswer:
    """The least that launches cost, and the cheapest plan that was found. None is looked for if the
    incumbent, whose cost is `known`, is as good.
    """
    solvable = _solvable(model)
    if solvable is None:
        return ProgramAnswer(-math.inf, None)
    limits = _limits(effort, gap=GAP / effort)
    bound, values, impossible = _solve(
        solvable, solvable.prices(), incumbent, limits, cache, known=known, near=NEAR
    )
    decoded = decode(solvable, values, launch_all=True) if values else None
    return ProgramAnswer(bound, decoded, impossible)


def lower_bound(model: PlacementModel, cache: SolverCache, *, effort: int = 1) -> float:
    """The least that launches cost; -inf if that is not known."""
    solvable = _solvable(model)
    if solvable is None:
        return -math.inf
    costs, program = solvable.prices(), solvable.program
    if len(program.most) <= SMALL:
        return program.search(costs, _limits(effort, gap=GAP / effort), cache).bound
    return program.fractions(costs, cache).bound


def fullest(
    model: PlacementModel,
    incumbent: Assignment | None,
    cache: SolverCache,
    factors: Mapping[int, float],
    *,
    effort: int = 1,
    worth: float = -math.inf,
    wide: bool = True,
) -> ProgramAnswer:
    """Minus the most that can be seated of the optional tasks, as `weights` says, and a plan that seats it.
    None is looked for unless it is worth more than the incumbent, which has this `worth`.
    """
    solvable = _solvable(model)
    if solvable is None:
        return ProgramAnswer(-math.inf, None)
    ranked = [job for job in model.optional if job.task.priority in factors]
    grain = float(math.gcd(*(int(factors[job.task.priority]) * job.weight for job in ranked)))
    costs, limits = solvable.weights(factors), _limits(effort, absolute=grain / 2)
    bound, values, impossible = _solve(
        solvable, costs, incumbent, limits, cache, known=-worth, grain=grain, wide=wide
    )
    return ProgramAnswer(bound, decode(solvable, values, launch_all=False) if values else None, impossible)


def _limits(effort: int, *, gap: float = 0.0, absolute: float = SLACK) -> SearchLimits:
    rounds = effort * ROUNDS
    return SearchLimits(rounds=rounds, nodes=rounds // NODE, gap=gap, absolute=absolute)


def _solvable(model: PlacementModel) -> PlacementModel | None:
    """The program, or its relaxation if it is too large; None if that is too large as well."""
    if not model.possible:
        return None
    if model.size <= CUT_COLUMNS:
        return model
    relaxed = model.relaxed()
    if relaxed and 2 * relaxed.size <= model.size:
        model = relaxed
    return model if model.size <= MOST_COLUMNS else None


def _solve(
    model: PlacementModel,
    costs: Sequence[float],
    incumbent: Assignment | None,
    limits: SearchLimits,
    cache: SolverCache,
    *,
    known: float = math.inf,
    near: float = 0.0,
    grain: float = 0.0,
    wide: bool = True,
) -> tuple[float, Sequence[float], bool]:
    """The least cost, and the best solution in whole numbers: over the best columns, and if `wide` over more
    of them unless its cost is `near` the bound, as a part of it. There is none if the incumbent costs as
    little, as far as is `known`. With a `grain`, all costs are multiples of it, but for the `SKEW`.
    """
    program = model.program
    best = known

    def step(cost: float) -> float:
        """So much less has a better solution to cost."""
        return max(limits.absolute, limits.gap * abs(cost)) if math.isfinite(cost) else 0.0

    def whole(bound: float) -> float:
        """The bound if costs have a grain."""
        return (
            -math.floor((SKEW - bound) / grain + SLACK) * grain if grain and abs(bound) < math.inf else bound
        )

    def search(zero: Collection[int]) -> Solution:
        better = replace(limits, enough=bound + step(bound), below=best - step(best))
        return program.search(costs, better, cache, zero=sorted(zero))

    bound = -math.inf
    if len(program.most) <= SMALL:
        every = program.search(costs, replace(limits, below=best - limits.absolute), cache)
        return whole(every.bound), every.values, every.impossible
    first, other_homes = program.fractions(costs, cache), list[int]()
    bound = whole(first.bound)
    if best <= bound + step(bound):
        return bound, (), False
    if first.values and any(SLACK < first.values[home] < 1 - SLACK for home in model.homes):
        # Half of each home would hold as much as both.
        begun = program.search(costs, limits, cache, whole=model.homes)
        bound = max(bound, whole(begun.bound))
        if begun.values:
            other_homes = [home for home in model.homes if begun.values[home] < SLACK]
            first = program.fractions(costs, cache, zero=other_homes)
    if not first.values or best <= bound + step(bound):
        return bound, (), first.impossible
    kept = columns_of(model, incumbent) if incumbent else set()
    values: Sequence[float] = ()
    order = sorted(range(len(program.most)), key=lambda i: (first.values[i] < SLACK, first.duals[i]))
    for many, few in ((1, 0), (2, FEW_COLUMNS)) if wide else ((1, 0),):
        # No better solution has a column that adds more than there is between the bound and the best.
        dear = {i for i in order if first.duals[i] > best - step(best) - first.bound + SLACK}
        zero = {*other_homes, *_left_out(model, first, many)}.difference(kept, order[:few]) | dear
        if complete := len(order) - len(dear) <= few or (zero == dear and not other_homes):
            zero = set() if other_homes else dear
        some = search(zero)
        if complete:
            bound = max(bound, whole(some.bound))
        if (cost := cost_of(some.values, costs)) < best:
            best, values = cost, some.values
        if complete or best <= bound + max(step(bound), near * abs(bound)):
            break
    return bound, values, False


FEW_BOUGHT, FEW_ARCS = 8, 4
"""So many times as many offers may stay, and arcs of one class, as columns of other sorts."""


def _left_out(model: PlacementModel, first: Solution, many: int) -> list[int]:
    """The columns that stay 0: of each sort all but the best, and those in the solution of fractions."""
    values = first.values
    sorts: dict[object, list[int]] = defaultdict(list)
    for number, _, column, run in model.placed:
        sorts[number, run].append(column)
    for group, _, column in model.runs:
        sorts[id(group)].append(column)
    groups = [(FEW_BOUGHT, model.bought), *((FEW_ARCS, list(one.arcs)) for one in model.classes)]
    zero: list[int] = []
    for times, columns in (*groups, *((1, own) for own in sorts.values())):
        unused = sorted((i for i in columns if values[i] < SLACK), key=first.duals.__getitem__)
        zero += unused[times * many :]
    return zero
