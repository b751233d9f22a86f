"""Integer programs, solved by HiGHS: least cost over whole-numbered columns, under rows with two ends. Pure.

One thread, a fixed seed, and limits that count nodes of the tree: the same program, the same answer.
"""

from __future__ import annotations

import bisect
import importlib
import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import mul
from typing import Any, NamedTuple

from declarative.model.record import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class Solution:
    """`bound` holds for every solution; `values` is empty if none was found within the limits."""

    bound: float
    values: Sequence[float]
    duals: Sequence[float] = ()
    """What one more of a column adds to the cost, if none has to be whole."""
    work: float = 0.0
    """What it took to find it."""


NONE = Solution(-math.inf, ())


@dataclass(slots=True)
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
        return Program(self.costs.copy(), self.most.copy(), *rows, *terms)

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for programs that are the same."""
        numbers = (self.costs, self.most, self.low, self.high, self.factors)
        return (*(array("d", x).tobytes() for x in numbers), array("q", self.columns + self.starts).tobytes())

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
        Without HiGHS there is no solution, and a bound of -inf.
        """
        try:
            np = importlib.import_module("numpy")
            # Not `highspy.Highs`: that writes a banner to standard output when it is made (seen in 1.16.0).
            highspy = importlib.import_module("highspy._core")
        except ImportError:
            return NONE
        if self.work >= self.most_work:
            return NONE
        lp = self._model(np, highspy, whole)
        most = np.array(self.most, dtype=float)
        most[list(zero)] = 0.0
        lp.col_lower_, lp.col_upper_ = np.zeros(len(most)), most
        highs = highspy._Highs()  # noqa: SLF001
        for name, value in (_options(limits) | _interior(limits, whole)).items():
            highs.setOptionValue(name, value)
        highs.passModel(lp)
        if start:
            known = highspy.HighsSolution()
            known.col_value = list(map(round, start))
            highs.setSolution(known)
        fractions = whole is not None and not whole
        columns, some = int(np.count_nonzero(most)), whole is not None
        self._run(highspy, highs, limits, columns, fractions=fractions, some=some)
        info, status = highs.getInfo(), highs.getModelStatus()
        found = info.primal_solution_status == FEASIBLE
        solved = status == highspy.HighsModelStatus.kOptimal
        answer = highs.getSolution()
        said, values = info.objective_function_value, list(answer.col_value) if found else []
        if start and not math.isclose(self.cost(values), said, rel_tol=SLACK, abs_tol=SLACK):
            # HiGHS 1.16 may leave out of a start's cost what presolve has fixed: it finds none better then.
            again = self.solve(limits, whole=whole, zero=zero)
            return again if again.values else Solution(-math.inf, values)
        bound = said if fractions and solved else -math.inf if fractions else info.mip_dual_bound
        return Solution(bound, values, list(answer.col_dual) if fractions and found else ())

    def _run(
        self,
        highspy: Any,
        highs: Any,
        limits: SolverLimits,
        columns: int,
        *,
        fractions: bool,
        some: bool,
    ) -> None:
        """Let HiGHS solve it, and add the work. A search for whole numbers ends when `most_work` is done.
        `columns`: how many may be more than 0; `some`: whether only some have to be whole.
        """
        one = FRACTIONS if fractions else SOME if some else EVERY if limits.brief else THOROUGH
        thousands = columns / 1000
        a_round = one.round + one.column_round * thousands
        self.work += 1 + one.term * len(self.columns) / 1000
        most, rounds = (self.most_work - self.work) / a_round if a_round else math.inf, 0

        def look(_kind: int, _message: str, _found: object, answer: Any, _data: object) -> None:
            nonlocal rounds
            rounds += 1
            answer.user_interrupt = rounds > most

        highs.setCallback(look, None)
        highs.startCallback(highspy.cb.kCallbackMipInterrupt)
        highs.run()
        steps = max(0, highs.getInfo().simplex_iteration_count)
        if limits.interior and (fractions or some):
            self.work += INTERIOR_WORK * len(self.costs) / 1000
        if not (limits.interior and fractions):
            self.work += steps * (one.step + one.column_step * thousands) + a_round * rounds

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


FRACTIONS = Work(0.6, 0.0066, 0.0039)
SOME = Work(0.35, 0.0094, 0.0107, 0.17, 0.63)
EVERY = Work(0.1, 0.06, 0.055, 0.0, 1.5)
THOROUGH = Work(0.2, 0.12, 0.11, 0.0, 3.0)
"""Where no column has to be a whole number, some have to, and all: if brief, and if not."""

INTERIOR_WORK = 15
"""The work of an interior-point method for a thousand columns."""

FEASIBLE = 2
"""HiGHS's `kSolutionStatusFeasible`."""


BRIEF: dict[str, Any] = {
    "mip_allow_restart": False,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    # Each search near a solution is a program of its own: its presolve takes longer than it saves.
    "mip_root_presolve_only": True,
    "mip_heuristic_effort": 0.0,
    # To see what follows from thousands of cuts that are kept takes longer than to find some again.
    "mip_pool_age_limit": 2,
    "mip_pool_soft_limit": 100,
}


def _options(limits: SolverLimits) -> dict[str, Any]:
    return {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 0,
        **(BRIEF if limits.brief else {}),
        "mip_max_nodes": limits.nodes,
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": limits.absolute,
        "objective_target": limits.enough,
    }


def _interior(limits: SolverLimits, whole: Collection[int] | None) -> dict[str, Any]:
    """Options for an interior-point method; none where all have to be whole, which took 20 times as long."""
    return {"solver": "ipm", "mip_lp_solver": "ipm"} if limits.interior and whole is not None else {}


Balance = dict[int, dict[int, float]]
"""A stop of a flow → the columns that begin (-1) and end (1) there: as much of the one as of the other."""


def lead(balance: Balance, column: int, start: int, end: int) -> None:
    """Let a column lead from one stop to another."""
    balance[start][column], balance[end][column] = -1.0, 1.0


def arcs_of(most: Mapping[int, float], last: int) -> list[tuple[int, int]]:
    """Where ranks of each size may begin on so many blocks, the large ones first: all cuts, each once. `most`
    is how many there are of a size.
    """
    arcs: list[tuple[int, int]] = []
    used: dict[int, float] = {0: 0}
    for size, count in sorted(most.items(), reverse=True):
        used = dict.fromkeys(used, 0)
        for start in range(last - size + 1):
            if used.get(start, count) < count:
                arcs.append((start, size))
                used[start + size] = min(used.get(start + size, math.inf), used[start] + 1)
    return arcs


Sizes = Mapping[int, Mapping[int, float]]
"""Blocks of a rank → the columns that count such ranks."""

Ends = Mapping[int, Sequence[int]]
"""Idle blocks of a node → the columns that count such nodes."""


def cut(program: Program, sizes: Sizes, ends: Ends) -> dict[int, tuple[int, int]]:
    """Say how nodes are cut, as a flow along their blocks: column → where its arc begins and ends, the end
    negative if it is no rank of several blocks.
    """
    last, most = max(ends), program.most
    # A rank of one block goes where nothing else does: it needs no arc of its own.
    counts = {size: sum(most[i] for i in own) for size, own in sizes.items() if 1 < size <= last}
    arcs = arcs_of(counts, last)
    stops = sorted({0, *ends, *(start + size for start, size in arcs)})
    balance: Balance = {at: {} for at in stops}
    cuts: dict[int, dict[int, float]] = {size: {} for size in sizes}
    found: dict[int, tuple[int, int]] = {}
    for start, size in arcs:
        arc = program.column(0.0, counts[size])
        found[arc] = (start, start + size)
        lead(balance, arc, start, start + size)
        cuts[size][arc] = -1.0
    for start, end in itertools.pairwise(stops):
        rest = program.column(0.0)
        found[rest] = (start, -end)
        lead(balance, rest, start, end)
        if 1 in cuts:
            cuts[1][rest] = float(start - end)
    for at, nodes in ends.items():
        for node in nodes:
            lead(balance, node, at, 0)
    for terms in balance.values():
        program.row(0, 0, terms)
    for size, taken in cuts.items():
        program.row(-math.inf, 0, {**taken, **sizes[size]})
    return found


MOST_ROWS = 6
"""Rows of one kind for nodes that are cut roughly."""

MOST_TIMES, MOST_CUTS, TOO_MUCH = 6, 2, 1e-4
"""Weights of a size that are tried for rows that a solution does not keep to; how many of them are added; by
which part it has to be above one.
"""

Weights = Mapping[int, float]
"""Blocks → what they weigh, or hold."""


def cut_roughly(program: Program, sizes: Sizes, ends: Ends) -> None:
    """Add rows that hold however nodes are cut. Not all that keeps to them can be cut, but nearly all."""
    ranks, nodes, last = sorted(sizes), sorted(ends), max(ends)
    weigh(program, sizes, ends, {size: size for size in ranks}, {at: at for at in nodes})
    for end in nodes[:-1][-MOST_ROWS:]:  # what is too large for these and the smaller ones
        large = {size: size for size in ranks if size > end}
        weigh(program, sizes, ends, large, {at: at for at in nodes if at > end})
    above = [next((size for size in ranks if size > end), 0) for end in nodes[:-1]]
    least = [next((size for size in ranks if last // size == count), 0) for count in range(MOST_ROWS)]
    for size in sorted({*above, *least} - {0})[-2 * MOST_ROWS :]:  # so many lie on a node at most
        weigh(program, sizes, ends, *_rounded(sizes, ends, 1, size))
    # Beside a rank that leaves less room lies none that takes as much (Martello, Toth 1990: bound L2).
    small = [size for size in ranks if 2 * size <= last]
    for room in small[:: max(1, math.ceil(len(small) / MOST_ROWS))]:
        whole = {size: last if size > last - room else size for size in ranks if size >= room}
        weigh(program, sizes, ends, whole, {at: last if at > last - room else at for at in nodes})


def _rounded(sizes: Iterable[int], ends: Iterable[int], times: int, size: int) -> tuple[Weights, Weights]:
    """What ranks weigh, and what nodes hold, where a rank of one size weighs `times`, and all others as many
    blocks in proportion, rounded down: what is rounded in parts is no more than the whole (Chvátal, Gomory).
    """
    return {one: one * times // size for one in sizes}, {at: at * times // size for at in ends}


def cut_off(program: Program, sizes: Sizes, ends: Ends, values: Sequence[float]) -> bool:
    """Add rows that hold however nodes are cut, and that a solution does not keep to. Return whether any."""
    ranks = {size: sum(values[i] for i in own) for size, own in sizes.items()}
    nodes = {at: sum(values[i] for i in own) for at, own in ends.items()}
    found: list[tuple[float, int, int]] = []
    for size in sorted(size for size, count in ranks.items() if count > SLACK):
        for times in range(1, min(size, MOST_TIMES + 1)):
            weights, held = _rounded(ranks, nodes, times, size)
            holds = 1 + sum(held[at] * count for at, count in nodes.items())
            above = 1 + sum(weights[one] * count for one, count in ranks.items()) - holds
            if above > TOO_MUCH * holds:
                found.append((-above / holds, size, times))
    for _, size, times in sorted(found)[:MOST_CUTS]:
        weigh(program, sizes, ends, *_rounded(sizes, ends, times, size))
    return bool(found)


def weigh(program: Program, sizes: Sizes, ends: Ends, weights: Weights, held: Weights) -> None:
    """Add a row: what ranks weigh, by their blocks, is at most what nodes hold, by their idle blocks."""
    terms = {column: float(weight) for size, weight in weights.items() for column in sizes[size] if weight}
    terms |= {node: -float(most) for at, most in held.items() if most for node in ends[at]}
    program.row(-math.inf, 0, terms)


def pack(idle: Sequence[tuple[int, int]], counts: Mapping[int, int]) -> Mapping[int, list[int]]:
    """Blocks of a rank → the nodes where such ranks lie; some may find no place.

    `idle`: idle blocks and number of each node, the small ones first. `counts`: how many ranks there are of
    each size, the large ones first.
    """

    def lost(found: Mapping[int, list[int]]) -> int:
        return sum(size * (count - len(found[size])) for size, count in counts.items())

    found = _best_fit(idle, counts)
    return (
        min(found, _largest_first(idle, counts), _smallest_full(idle, counts), key=lost)
        if lost(found)
        else found
    )


def _best_fit(idle: Iterable[tuple[int, int]], counts: Mapping[int, int]) -> dict[int, list[int]]:
    """The largest ranks first, each where it leaves the least idle."""
    left, out = list(idle), defaultdict[int, list[int]](list)
    for size, count in counts.items():
        for _ in range(count):
            place = bisect.bisect_left(left, (size, -math.inf))
            if place == len(left):
                break
            at, node = left.pop(place)
            out[size].append(node)
            bisect.insort(left, (at - size, node))
    return out


def _largest_first(idle: Sequence[tuple[int, int]], counts: Mapping[int, int]) -> dict[int, list[int]]:
    """The largest rank that is left on the smallest node that holds it, with what fills that best."""
    nodes, left, out = list(idle), dict(counts), defaultdict[int, list[int]](list)
    for size in counts:
        while left[size] and (place := bisect.bisect_left(nodes, (size, -math.inf))) < len(nodes):
            at, node = nodes.pop(place)
            left[size] -= 1
            for other in (size, *_fullest(at - size, left)):
                out[other].append(node)
    return out


def _smallest_full(idle: Sequence[tuple[int, int]], counts: Mapping[int, int]) -> dict[int, list[int]]:
    """One node after the other, the small ones first, each with what fills it best."""
    left, out = dict(counts), defaultdict[int, list[int]](list)
    for at, node in idle:
        for size in _fullest(at, left):
            out[size].append(node)
    return out


def _fullest(room: int, left: dict[int, int]) -> Sequence[int]:
    """Ranks that take most of so many blocks, which are taken out of what is `left`."""
    sums: dict[int, tuple[int, ...]] = {0: ()}
    for size, count in left.items():
        for _ in range(min(count, room // size)):
            if room in sums:
                break
            more = {total + size: (*ranks, size) for total, ranks in sums.items() if total + size <= room}
            sums = {**more, **sums}
    for size in sums[max(sums)]:
        left[size] -= 1
    return sums[max(sums)]
