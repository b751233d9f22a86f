"""Integer programs, solved by HiGHS: least cost over whole-numbered columns, under rows with two ends. Pure.

One thread, a fixed seed, and limits that count rounds and nodes of the search: the same program, the same
answer.
"""

from __future__ import annotations

import importlib
import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from operator import mul
from typing import Any

from declarative.model.record import struct

SLACK = 1e-6
"""A value that is so near a whole number counts as one."""

ROUND_WORK, FRACTION_WORK = 1.0, 8.0
"""The work of one round of a search, and of solving fractions, for a thousand columns: about as many
milliseconds.
"""

FEASIBLE = 2
"""HiGHS's `kSolutionStatusFeasible`."""


@struct(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """When a search for whole numbers stops. A solution may be dearer by `gap` than the best, a part of the
    cost, or by `absolute`. HiGHS's rounds of cuts and its nodes are counted: their work grows with the
    program.
    """

    rounds: int
    nodes: int
    gap: float = 0.0
    absolute: float = SLACK
    enough: float = -math.inf
    """Stop at the first solution that costs no more."""
    below: float = math.inf
    """Only solutions that cost less are looked for: one is known already that costs little more."""


@struct(frozen=True, slots=True)
class Solution:
    """`bound` holds for every solution; `values` is empty if none was found within the limits."""

    bound: float
    values: Sequence[float]
    duals: Sequence[float] = ()
    """What one more of a column adds to the cost, if none has to be whole."""
    work: float = 0.0
    impossible: bool = False
    """Whether it was proved that there is no solution."""


NONE = Solution(-math.inf, ())


@struct(slots=True)
class SolverCache:
    """Programs that were solved. Plans that differ in one task or limit have many programs in common."""

    solutions: dict[object, Solution] = field(default_factory=dict)
    work: float = 0.0
    """The work that was done, in about as many milliseconds of CPU; it is counted and never measured."""


@struct(slots=True)
class Program:
    """Columns are at least 0. What they cost is said when the program is solved."""

    most: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def column(self, most: float = math.inf) -> int:
        """Add a column; its number."""
        self.most.append(most)
        return len(self.most) - 1

    def row(self, low: float, high: float, terms: Mapping[int, float]) -> None:
        """Add a row: low <= the sum of factor x column <= high."""
        self.low.append(low)
        self.high.append(high)
        self.columns += terms.keys()
        self.factors += terms.values()
        self.starts.append(len(self.columns))

    def copy(self) -> Program:
        """Another one that is the same."""
        rows = self.low.copy(), self.high.copy(), self.starts.copy()
        return Program(self.most.copy(), *rows, self.columns.copy(), self.factors.copy())

    def fractions(self, costs: Sequence[float], cache: SolverCache, *, zero: Iterable[int] = ()) -> Solution:
        """The least cost if no column has to be a whole number; `zero` are columns that stay 0."""
        return self._cached(costs, self._without(zero), None, cache)

    def search(
        self,
        costs: Sequence[float],
        limits: SearchLimits,
        cache: SolverCache,
        *,
        zero: Iterable[int] = (),
        whole: Collection[int] | None = None,
    ) -> Solution:
        """The cheapest solution in whole numbers that was found within the limits; `zero` are columns that
        stay 0. With `whole`, only these columns have to be whole numbers.

        No solution is given to HiGHS as a start: 1.16 has answered with wrong optima then.
        """
        return self._cached(costs, self._without(zero), (limits, whole), cache)

    def _without(self, zero: Iterable[int]) -> list[float]:
        """The most of each column, where some stay 0."""
        most = list(self.most)
        for column in zero:
            most[column] = 0.0
        return most

    def _cached(
        self,
        costs: Sequence[float],
        most: Sequence[float],
        search: tuple[SearchLimits, Collection[int] | None] | None,
        cache: SolverCache,
    ) -> Solution:
        numbers = (array("d", x).tobytes() for x in (costs, most, self.low, self.high, self.factors))
        asked = search and (search[0], None if search[1] is None else frozenset(search[1]))
        key = (*numbers, array("q", self.columns + self.starts).tobytes(), asked)
        solution = cache.solutions.get(key)
        if solution is None:
            solution = cache.solutions[key] = self._run(costs, most, search)
            cache.work += solution.work
        return solution

    def _run(
        self,
        costs: Sequence[float],
        most: Sequence[float],
        search: tuple[SearchLimits, Collection[int] | None] | None,
    ) -> Solution:
        """What HiGHS finds. Without HiGHS there is no solution, and a bound of -inf."""
        try:
            np = importlib.import_module("numpy")
            # Not `highspy.Highs`: that writes a banner to standard output when it is made (seen in 1.16.0).
            highspy = importlib.import_module("highspy._core")
        except ImportError:
            return NONE
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(most), len(self.low)
        lp.col_cost_ = np.array(costs, dtype=float)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(most)), np.array(most, dtype=float)
        lp.row_lower_, lp.row_upper_ = np.array(self.low, dtype=float), np.array(self.high, dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array(self.columns)
        lp.a_matrix_.value_ = np.array(self.factors, dtype=float)
        if search:
            kinds, whole = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger), search[1]
            lp.integrality_ = [kinds[whole is None or i in whole] for i in range(len(most))]
        highs = highspy._Highs()  # noqa: SLF001
        for name, value in {**ALWAYS, **(_options(search[0]) if search else {})}.items():
            highs.setOptionValue(name, value)
        highs.passModel(lp)
        rounds = 0
        if search:
            last = search[0].rounds

            def look(_kind: int, _message: str, _found: object, answer: Any, _data: object) -> None:
                nonlocal rounds
                rounds += 1
                answer.user_interrupt = rounds > last

            highs.setCallback(look, None)
            highs.startCallback(highspy.cb.kCallbackMipInterrupt)
        highs.run()
        work = (ROUND_WORK * rounds + FRACTION_WORK) * sum(1 for one in most if one) / 1000
        return _solution(highspy, highs, work, below=search[0].below if search else None)


def _solution(highspy: Any, highs: Any, work: float, *, below: float | None) -> Solution:
    """What HiGHS has found; `below` says what a search in whole numbers was for."""
    info, answer, status = highs.getInfo(), highs.getSolution(), highs.getModelStatus()
    statuses = highspy.HighsModelStatus
    impossible = status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible)
    values = list(answer.col_value) if info.primal_solution_status == FEASIBLE else []
    if below is not None and below < math.inf:
        bound = below if impossible else min(below, info.mip_dual_bound)
        return Solution(bound, values, work=work)
    if below is not None:
        return Solution(info.mip_dual_bound, values, work=work, impossible=impossible)
    bound = info.objective_function_value if status == statuses.kOptimal else -math.inf
    duals = list(answer.col_dual) if values else ()
    return Solution(bound, values, duals, work=work, impossible=impossible)


def cost_of(values: Sequence[float], costs: Sequence[float]) -> float:
    """What a solution costs; infinite if there is none."""
    return sum(map(mul, costs, values)) if values else math.inf


ALWAYS: dict[str, object] = {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0}

BRIEF: dict[str, object] = {
    "mip_allow_restart": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rins": False,
    # Each search near a solution is a program of its own: its presolve takes longer than it saves.
    "mip_root_presolve_only": True,
    "mip_heuristic_effort": 0.0,
    # To see what follows from thousands of cuts that are kept takes longer than to find some again.
    "mip_pool_age_limit": 2,
    "mip_pool_soft_limit": 20,
}
"""What takes HiGHS seconds at the root of a large program, and finds little."""


def _options(limits: SearchLimits) -> dict[str, object]:
    return {
        **BRIEF,
        "mip_max_nodes": limits.nodes,
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": limits.absolute,
        "objective_target": limits.enough,
        "objective_bound": limits.below,
    }
