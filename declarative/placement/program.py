"""Integer programs, solved by HiGHS: least cost over whole-numbered columns, under rows with two ends. Pure.

One thread, a fixed seed, and limits that count nodes of the tree: the same program, the same answer.
"""

from __future__ import annotations

import importlib
import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import mul
from typing import Any, NamedTuple

from declarative.model.record import struct


@struct(frozen=True, slots=True, kw_only=True)
class SolverLimits:
    """When to stop. A solution may be dearer by `gap` than the best, a part of the cost, or by `absolute`."""

    nodes: int
    columns: int
    """Of a program that is solved at all."""
    work: float = math.inf
    """The most work of one program, all its steps together, in units of `Program.work`."""
    gap: float = 0.0
    absolute: float = 1e-6
    brief: bool = False
    """Leave out what takes HiGHS seconds at the root of a large program, and finds little."""
    restart: bool = True
    """Begin again with what was learnt at the root: of a small program, this proves more. Of a large one it
    takes most of the time, and adds next to nothing. A brief search never does.
    """
    quick: bool = False
    """Give up where no solution is found at once."""
    interior: bool = False
    """Solve fractions by an interior-point method, which takes far fewer steps in a large program."""
    enough: float = -math.inf
    """Stop at the first solution that costs no more."""

    def times(self, effort: int) -> SolverLimits:
        """So many times as much of everything."""
        nodes, columns, work = self.nodes * effort, self.columns * effort, self.work * effort
        return replace(self, nodes=nodes, columns=columns, work=work, gap=self.gap / effort)


@struct(frozen=True, slots=True)
class Solution:
    """`bound` holds for every solution; `values` is empty if none was found within the limits."""

    bound: float
    values: Sequence[float]
    duals: Sequence[float] = ()
    """What one more of a column adds to the cost, if none has to be whole."""
    work: float = 0.0
    """What it took to find it."""


NONE = Solution(-math.inf, ())


@struct(slots=True)
class Program:
    """Columns are at least 0."""

    costs: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    work: float = 0.0
    """Its work so far, in about as many milliseconds of CPU; it is counted and never measured."""
    most_work: float = math.inf
    """The most work. A search ends early once that is done, and none begins after that."""
    solved: dict[object, Solution] = field(default_factory=dict)
    """What was found by solves that did not end early. Copies share it."""
    _key: tuple[bytes, ...] = ()

    def column(self, cost: float, most: float = math.inf) -> int:
        """Add a column; its number."""
        self.costs.append(cost)
        self.most.append(most)
        return len(self.costs) - 1

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
        terms = self.columns.copy(), self.factors.copy()
        return Program(self.costs.copy(), self.most.copy(), *rows, *terms, solved=self.solved)

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for programs that are the same. Nothing is added to one that has been asked for it."""
        if not self._key:
            numbers = (self.costs, self.most, self.low, self.high, self.factors)
            terms = array("q", self.columns + self.starts).tobytes()
            self._key = *(array("d", x).tobytes() for x in numbers), terms
        return self._key

    def cost(self, values: Sequence[float]) -> float:
        """What a solution costs; infinite if there is none."""
        return sum(map(mul, self.costs, values)) if values else math.inf

    def solve(
        self,
        limits: SolverLimits,
        *,
        whole: Collection[int] | None = None,
        zero: Iterable[int] = (),
        start: Sequence[float] = (),
    ) -> Solution:
        """The cheapest solution within the limits; with `whole`, only these columns have to be whole numbers.

        `zero` are columns that stay 0, `start` is a solution that is known: one that is better is looked for.
        Without HiGHS there is no solution, and a bound of -inf. To solve the same again takes no CPU, but as
        much work.
        """
        zero, start = tuple(zero), tuple(start)
        asked = replace(limits, work=0, columns=0)
        key = self.key, asked, whole if whole is None else frozenset(whole), zero, start
        if key in self.solved:
            self.work += self.solved[key].work
            return self.solved[key]
        solution, ended = self._search(limits, whole, zero, start)
        if ended:
            self.solved[key] = solution
        return solution

    def _search(
        self,
        limits: SolverLimits,
        whole: Collection[int] | None,
        zero: Sequence[int],
        start: Sequence[float],
    ) -> tuple[Solution, bool]:
        """What HiGHS finds; and whether more work would not have found more."""
        try:
            np = importlib.import_module("numpy")
            # Not `highspy.Highs`: that writes a banner to standard output when it is made (seen in 1.16.0).
            highspy = importlib.import_module("highspy._core")
        except ImportError:
            return NONE, False
        most = np.array(self.most, dtype=float)
        most[list(zero)] = 0.0
        thousands, fractions = int(np.count_nonzero(most)) / 1000, whole is not None and not whole
        one = FRACTIONS if fractions else SOME if whole else EVERY if limits.brief else THOROUGH
        if self.work + one.root * thousands >= self.most_work:
            return NONE, False
        lp = self._model(np, highspy, whole)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(most)), most
        highs = highspy._Highs()  # noqa: SLF001
        for name, value in (_options(limits, started=bool(start)) | _interior(limits, whole)).items():
            highs.setOptionValue(name, value)
        highs.passModel(lp)
        if start:
            known = highspy.HighsSolution()
            known.col_value = list(map(round, start))
            highs.setSolution(known)
        before = self.work
        ended = self._run(highspy, highs, one, thousands, interior=limits.interior and whole is not None)
        solution = replace(_solution(highspy, highs, fractions=fractions), work=self.work - before)
        said = highs.getInfo().objective_function_value
        if start and not math.isclose(self.cost(solution.values), said, rel_tol=SLACK, abs_tol=SLACK):
            # HiGHS 1.16 may leave out of a start's cost what presolve has fixed: it finds none better then.
            again = self.solve(limits, whole=whole, zero=zero)
            return again if again.values else Solution(-math.inf, solution.values), False
        return solution, ended

    def _run(self, highspy: Any, highs: Any, one: Work, thousands: float, *, interior: bool) -> bool:
        """Let HiGHS solve it, and add the work. A search for whole numbers ends when `most_work` is done;
        whether it ended before that. `thousands`: of columns that may be more than 0.
        """
        a_round = one.round + one.column_round * thousands
        self.work += 0.4 + one.term * len(self.columns) / 1000
        a_step = one.step + one.column_step * thousands
        # HiGHS does not say before the end how many iterations it took.
        usual = a_round + one.steps * a_step
        most, rounds = (self.most_work - self.work) / usual if a_round else math.inf, 0

        def look(_kind: int, _message: str, _found: object, answer: Any, _data: object) -> None:
            nonlocal rounds
            rounds += 1
            answer.user_interrupt = rounds > most

        highs.setCallback(look, None)
        highs.startCallback(highspy.cb.kCallbackMipInterrupt)
        highs.run()
        steps = max(0, highs.getInfo().simplex_iteration_count)
        if interior:
            self.work += INTERIOR_WORK * len(self.costs) / 1000
        if not (interior and one is FRACTIONS):
            self.work += steps * a_step + a_round * rounds
        return rounds <= most

    def _model(self, np: Any, highspy: Any, whole: Collection[int] | None) -> Any:
        """The program as HiGHS takes it, but for what its columns may be."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.low)
        lp.col_cost_ = np.array(self.costs, dtype=float)
        lp.row_lower_, lp.row_upper_ = np.array(self.low, dtype=float), np.array(self.high, dtype=float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array(self.columns)
        lp.a_matrix_.value_ = np.array(self.factors, dtype=float)
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [kinds[whole is None or i in whole] for i in range(len(self.costs))]
        return lp


def _solution(highspy: Any, highs: Any, *, fractions: bool) -> Solution:
    """What HiGHS has found, where all columns may be `fractions` or not."""
    info, answer = highs.getInfo(), highs.getSolution()
    values = list(answer.col_value) if info.primal_solution_status == FEASIBLE else []
    if not fractions:
        return Solution(info.mip_dual_bound, values)
    solved = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    bound = info.objective_function_value if solved else -math.inf
    return Solution(bound, values, list(answer.col_dual) if values else ())


SLACK = 1e-6
"""A value that is so near a whole number is one."""


class Work(NamedTuple):
    """The work of one solve: about as many milliseconds of CPU, by what those of 240 plans took."""

    term: float
    """For a thousand factors."""
    step: float
    column_step: float
    """For each simplex iteration: in any case, and for a thousand columns above 0."""
    round: float = 0.0
    column_round: float = 0.0
    """For each round of cuts, or node: in any case, and for a thousand columns above 0."""
    steps: float = 0.0
    """The simplex iterations that a limit counts for each round; 0 where plans cost more with that."""
    root: float = 0.0
    """For a thousand columns above 0: a search does not begin with less, since HiGHS does not stop before."""


FRACTIONS = Work(0.7, 0.0066, 0.003)
SOME = Work(0.15, 0.014, 0.008, 0.3, 0.63, steps=40, root=7)
EVERY = Work(0.15, 0.028, 0.11, 0.08, 1.0, root=15)
THOROUGH = Work(0.2, 0.06, 0.11, 0.0, 3.0, root=30)
"""Where no column has to be a whole number, some have to, and all: if brief, and if not."""

INTERIOR_WORK = 15
"""The work of an interior-point method for a thousand columns."""

FEASIBLE = 2
"""HiGHS's `kSolutionStatusFeasible`."""


BRIEF: dict[str, Any] = {
    "mip_heuristic_run_feasibility_jump": False,
    # Each search near a solution is a program of its own: its presolve takes longer than it saves.
    "mip_root_presolve_only": True,
    "mip_heuristic_effort": 0.0,
    # To see what follows from thousands of cuts that are kept takes longer than to find some again.
    "mip_pool_age_limit": 2,
    "mip_pool_soft_limit": 20,
}


def _options(limits: SolverLimits, *, started: bool) -> dict[str, Any]:
    """HiGHS's options. In a brief search, solutions are looked for near the one that is known (RINS), or near
    fractions (RENS); the other of the two takes as long and finds less. A quick one has a start only to
    prove that little more can be had, and does not look near it.
    """
    return {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 0,
        "mip_allow_restart": limits.restart and not limits.brief,
        "mip_heuristic_run_root_reduced_cost": limits.restart and not limits.brief,
        **(BRIEF | {f"mip_heuristic_run_{'rens' if started else 'rins'}": False} if limits.brief else {}),
        **({"mip_heuristic_run_rins": False} if limits.quick else {}),
        "mip_max_nodes": limits.nodes,
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": limits.absolute,
        "objective_target": limits.enough,
    }


def _interior(limits: SolverLimits, whole: Collection[int] | None) -> dict[str, Any]:
    """Options for an interior-point method; none where all have to be whole, which took 20 times as long."""
    return {"solver": "ipm", "mip_lp_solver": "ipm"} if limits.interior and whole is not None else {}
