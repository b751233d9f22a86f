"""Linear and integer models for HiGHS, which only bounds need: `pip install highspy`."""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

HINT = "needs `pip install highspy`"


def available() -> bool:
    """Whether HiGHS can be imported."""
    return importlib.util.find_spec("highspy") is not None


@dataclass(frozen=True)
class Solution:
    """`bound` holds for every plan; `values` is empty if no solution was found in time."""

    bound: float
    values: list[float]
    proved: bool
    seconds: float
    impossible: bool = False
    """There is no solution at all, which is proved."""


@dataclass
class Model:
    """Least cost over columns of at least 0, under rows with a lower and an upper end."""

    costs: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    rows: list[tuple[float, float, Mapping[int, float]]] = field(default_factory=list)

    def column(self, cost: float, most: float) -> int:
        """A new column, by its number."""
        self.costs.append(cost)
        self.most.append(most)
        return len(self.costs) - 1

    def row(self, low: float, high: float, terms: Mapping[int, float]) -> None:
        """A new row: low <= sum of factor x column <= high."""
        if terms:
            self.rows.append((low, high, terms))

    def solve(self, *, whole: bool, seconds: float, gap: float = 1e-5, presolve: bool = True) -> Solution:
        """The best whole-numbered solution, or the best of all (faster, and a bound for the former).

        It is proved once no other one can be better by more than `gap` of it.
        """
        highspy, np = importlib.import_module("highspy"), importlib.import_module("numpy")
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.costs), len(self.rows)
        model.col_cost_ = np.array(self.costs, dtype=float)
        model.col_lower_ = np.zeros(len(self.costs))
        model.col_upper_ = np.array(self.most, dtype=float)
        model.row_lower_ = np.array([low for low, _, _ in self.rows], dtype=float)
        model.row_upper_ = np.array([high for _, high, _ in self.rows], dtype=float)
        starts = [0]
        for _, _, terms in self.rows:
            starts.append(starts[-1] + len(terms))
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(starts)
        model.a_matrix_.index_ = np.array([c for _, _, terms in self.rows for c in terms])
        model.a_matrix_.value_ = np.array([v for _, _, t in self.rows for v in t.values()], dtype=float)
        if whole:
            model.integrality_ = [highspy.HighsVarType.kInteger] * len(self.costs)
        # The class below `highspy.Highs`: that one prints its version before it can be told not to.
        highs = importlib.import_module("highspy._core")._Highs()
        for option, value in (
            ("output_flag", False),
            ("time_limit", float(seconds)),
            ("threads", 1),
            ("mip_rel_gap", gap),
            ("presolve", "on" if presolve else "off"),
        ):
            highs.setOptionValue(option, value)
        start = time.perf_counter()
        highs.passModel(model)
        highs.run()
        info = highs.getInfo()
        status, known = highs.getModelStatus(), highspy.HighsModelStatus
        proved = status == known.kOptimal
        found = info.primal_solution_status == 2  # kSolutionStatusFeasible
        bound = info.mip_dual_bound if whole else info.objective_function_value
        return Solution(
            bound if whole or proved else -math.inf,
            list(highs.getSolution().col_value) if found else [],
            proved,
            time.perf_counter() - start,
            status in (known.kInfeasible, known.kUnboundedOrInfeasible),
        )
