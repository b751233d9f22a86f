"""One measured case at a time, each in a process of its own, so that its peak memory is its own too."""

from __future__ import annotations

import multiprocessing
import random
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.placement import counted, jobs, naive, openb, solver, traces
from benchmarks.placement.problem import Problem, checked, plan
from declarative.placement.problem import Ask, Choice, PlacementOutcome

P = ParamSpec("P")
T = TypeVar("T")


def alone(measure: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
    """Call it in a new process, and wait."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *args, **words).result()


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ----------------------------------------------------------------------------------------------- P2: openb


@dataclass(frozen=True)
class Blocks:
    """Useful GPUs in per cent of the fleet's. `solved` is None without HiGHS."""

    tasks: int
    nodes: int
    first: float
    best: float
    decreasing: float
    ours: float
    priced: float
    solved: float | None
    cpu: float


def blocks(folder: Path, trace: str, per_gpu: int, seed: int, seconds: float) -> Blocks:
    """One trace with whole-GPU (`per_gpu` 1) or half-GPU blocks."""
    work = openb.workload(traces.machines(folder), traces.pods(folder, trace, seed), per_gpu, seed)
    problem = openb.problem(work)
    outcome, cpu = plan(problem)
    return Blocks(
        len(work.pods),
        len(work.machines),
        work.useful(openb.first_fit(work)),
        work.useful(openb.best_fit(work)),
        work.useful(openb.best_fit(work, decreasing=True)),
        work.useful(openb.placed(checked(problem, outcome, "the planner"))),
        openb.priced_bound(work),
        openb.solved_bound(work, seconds) if solver.available() else None,
        cpu,
    )


# ---------------------------------------------------------------------------------- P3 and P4: fill, launch


@dataclass(frozen=True)
class Score:
    """How good a plan is: blocks left out, and what it launches costs, USD an hour."""

    left: int
    cost: float

    @property
    def objective(self) -> float:
        """What the exact model makes as small as it can."""
        return self.cost + counted.LEFT_OUT * self.left


@dataclass(frozen=True)
class Packed:
    """One case. `best` is None without HiGHS; the simple ones are empty where they would take too long."""

    launch: bool
    nodes: int
    asked: int
    ours: Score
    simple: tuple[Score, ...]
    best: counted.Best | None
    cpu: float
    peak_mib: float

    def extra(self, score: Score) -> int | None:
        """The blocks that it leaves out and the best plan does not."""
        left = self.best.left if self.best else None
        return None if left is None else max(0, score.left - left)

    def gap(self, score: Score) -> float | None:
        """How far from the best possible, in per cent; None where that cannot be said."""
        if self.best is None:
            return None
        return self._cost_gap(self.best, score) if self.launch else self._fill_gap(self.best, score)

    def _fill_gap(self, best: counted.Best, score: Score) -> float:
        """Blocks that could run and do not, of those that could."""
        most = self.asked - best.bound / counted.LEFT_OUT
        return 100 * (most - (self.asked - score.left)) / most

    def _cost_gap(self, best: counted.Best, score: Score) -> float | None:
        """Its price over the least: only of plans that leave out no more than the best one. Where no best
        plan is known but a bound, that of the objective.
        """
        if best.left is None:
            return 100 * (score.objective - best.bound) / best.bound
        if score.left > best.left:
            return None
        least = best.bound - counted.LEFT_OUT * score.left
        return 100 * (score.cost - least) / least


def scored(case: jobs.Scene, problem: Problem, outcome: PlacementOutcome, who: str) -> Score:
    """The score of a plan that keeps all rules."""
    checked(problem, outcome, who)
    size = {job.name: job.ranks * job.gpus for job in case.jobs}
    return Score(sum(size[r.task] for r in outcome.refusals), sum(n.price or 0 for n in outcome.launches))


NAIVE = ("first-fit", "best-fit", "decreasing")


def packed(
    folder: Path, count: int, seed: int, family: tuple[str, str], *, launch: bool, whole: bool, seconds: float
) -> Packed:
    """One case of P3 (`launch` False) or P4. `whole` asks for the exact plan and the simple ones as well."""
    case = jobs.scene(count, seed, *family, traces.job_sizes(folder), launch=launch)
    problem = jobs.problem(case)
    outcome, cpu = plan(problem)
    peak = _peak_mib()
    simple = [
        naive.fit(case, best=how != "first-fit", decreasing=how == "decreasing") for how in NAIVE if whole
    ]
    return Packed(
        launch,
        len(problem.nodes),
        sum(job.ranks * job.gpus for job in case.jobs),
        scored(case, problem, outcome, "the planner"),
        tuple(scored(case, problem, o, how) for o, how in zip(simple, NAIVE, strict=False)),
        counted.best(case, whole=whole, seconds=seconds) if solver.available() else None,
        cpu,
        peak,
    )


# --------------------------------------------------------------------------------------------- P7: re-plan


@dataclass(frozen=True)
class Replanned:
    """Of the ranks that had a place and stay: how many moved, and what was launched beyond, USD an hour."""

    ranks: int
    moved: int
    cost: float
    fresh_moved: int
    fresh_cost: float
    cpu: float


def replanned(folder: Path, count: int, seed: int, family: tuple[str, str]) -> Replanned:
    """95 % of the tasks are planned and their nodes launched; then 5 % go, and the other 5 % come."""
    chance = random.Random(seed)
    case = jobs.scene(count, seed, *family, traces.job_sizes(folder), launch=True)
    churn = count // 20
    before = jobs.problem(replace(case, jobs=case.jobs[: count - churn]))
    first = checked(before, plan(before)[0], "the first plan")
    gone = {job.name for job in chance.sample(case.jobs[: count - churn], churn)}
    all_asks = jobs.problem(case)
    asks = [ask for ask in all_asks.asks if ask.want.spec.name not in gone]
    had = {(c.task, c.rank): (c.node, c.blocks) for c in first.choices if c.task not in gone}
    launched = [replace(node, new=False, offer=None, held={}) for node in first.launches]
    nodes = [*before.nodes, *launched]
    fleets = {
        name: replace(rule, existing=sum(node.fleet == name for node in nodes))
        for name, rule in before.fleets.items()
    }
    fresh = Problem(asks, nodes, fleets, all_asks.volumes)
    kept = replace(fresh, asks=[_with_prior(ask, first.choices) for ask in asks])
    outcome, cpu = plan(kept)
    anew, _ = plan(fresh)
    return Replanned(
        len(had),
        _moved(had, checked(kept, outcome, "the plan that keeps")),
        sum(node.price or 0 for node in outcome.launches),
        _moved(had, checked(fresh, anew, "the plan from scratch")),
        sum(node.price or 0 for node in anew.launches),
        cpu,
    )


def _with_prior(ask: Ask, choices: Sequence[Choice]) -> Ask:
    name = str(ask.want.spec.name)
    return replace(ask, prior={c.rank: (c.node, c.blocks) for c in choices if c.task == name})


def _moved(had: dict[tuple[str, int], tuple[str, tuple[int, ...]]], outcome: PlacementOutcome) -> int:
    """How many of them are elsewhere now, or nowhere."""
    now = {(c.task, c.rank): (c.node, c.blocks) for c in outcome.choices}
    return sum(now.get(rank) != place for rank, place in had.items())
