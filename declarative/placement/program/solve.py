"""The best plan that programs find: the most blocks of each priority, the highest first; then the least cost.

Fractions come first: they say what no plan can beat, and which columns matter. Whole numbers are looked for
over these columns only, beside those of a plan that is there already, so there always is a solution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from declarative.placement.assignment import Assignment
from declarative.placement.program.decode import Decoded, columns_of, decode
from declarative.placement.program.model import MOST_COLUMNS, PlacementModel
from declarative.placement.program.solver import NONE, SLACK, SearchLimits, Solution, SolverCache, cost_of

SMALL = 600
"""A program with no more columns is searched at once."""

FEW_COLUMNS = 1_600
"""A search for whole numbers looks at so many columns."""

GAP = 2.5e-3
"""A plan may cost this part more than the least."""

NEAR = 5e-3
"""If launches cost more than this part above the bound, more columns are looked at."""

CUT_COLUMNS, FAR = 5_000, 0.03
"""If launches cost more than this part above the bound of a relaxed program, one with no more columns follows
that says how all nodes are cut.
"""

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
    finer = None
    if decoded and decoded.lossy:
        finer = solvable.relaxed(decoded.lossy) or model
    elif solvable is not model and cost_of(values, solvable.prices()) > bound * (1 + FAR):
        finer = model
    if decoded and finer and finer.size <= CUT_COLUMNS:
        lower, values, _ = _solve(finer, finer.prices(), incumbent, limits, cache, near=NEAR)
        again = decode(finer, values, launch_all=True) if values else decoded
        bound = max(bound, lower)
        if len(again.unseated) <= len(decoded.unseated):
            decoded = again
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
    step: float,
    worth: float = -math.inf,
) -> ProgramAnswer:
    """Minus the most that can be seated of the optional tasks, as `weights` says, and a plan that seats it.
    A plan that is worth less by less than a `step` is as good; none is looked for if the incumbent is,
    which has this `worth`.
    """
    solvable = _solvable(model)
    if solvable is None:
        return ProgramAnswer(-math.inf, None)
    limits = _limits(effort, absolute=step)
    bound, values, impossible = _solve(
        solvable, solvable.weights(factors), incumbent, limits, cache, known=-worth
    )
    return ProgramAnswer(bound, decode(solvable, values, launch_all=False) if values else None, impossible)


def _limits(effort: int, *, gap: float = 0.0, absolute: float = SLACK) -> SearchLimits:
    rounds = effort * ROUNDS
    return SearchLimits(rounds=rounds, nodes=rounds // NODE, gap=gap, absolute=absolute)


def _solvable(model: PlacementModel) -> PlacementModel | None:
    """The program, or its relaxation if it is too large; None if that is too large as well."""
    if not model.possible:
        return None
    if model.size <= FEW_COLUMNS:
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
) -> tuple[float, Sequence[float], bool]:
    """The least cost, and the best solution in whole numbers: over the best columns, and over more of them
    unless its cost is `near` the bound, as a part of it. There is none if the incumbent costs as little, as
    far as is `known`.
    """
    program = model.program
    if len(program.most) <= SMALL:
        found = program.search(costs, limits, cache)
        return found.bound, found.values, found.impossible
    first = program.fractions(costs, cache)
    bound, other_homes = first.bound, list[int]()
    if known <= bound + max(limits.absolute, limits.gap * abs(bound)):
        return bound, (), False
    if first.values and any(SLACK < first.values[home] < 1 - SLACK for home in model.homes):
        # Half of each home would hold as much as both.
        begun = program.search(costs, limits, cache, whole=model.homes)
        bound = max(bound, begun.bound)
        if begun.values:
            other_homes = [home for home in model.homes if begun.values[home] < SLACK]
            first = program.fractions(costs, cache, zero=other_homes)
    enough = bound + max(limits.absolute, limits.gap * abs(bound))
    if not first.values or known <= enough:
        return bound, (), first.impossible
    kept = columns_of(model, incumbent) if incumbent else set()
    limits = replace(limits, enough=enough)
    found = NONE
    order = sorted(range(len(program.most)), key=lambda i: (first.values[i] < SLACK, first.duals[i]))
    for many, best in ((1, 0), (3, FEW_COLUMNS)):
        if cost_of(found.values, costs) <= bound + near * abs(bound):
            break
        zero = {*other_homes, *_left_out(model, first, many)}.difference(kept, order[:best])
        if len(order) <= best:
            zero = set()
        more = program.search(costs, limits, cache, zero=sorted(zero))
        bound = bound if zero else max(bound, more.bound)
        found = min(found, more, key=lambda one: cost_of(one.values, costs))
        if cost_of(found.values, costs) <= enough:
            break
    return bound, found.values, False


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
