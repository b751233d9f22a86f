"""How good plans are, on worlds that nobody has seen before, beside an exact model of its own.

    python -m benchmarks.worlds                          # all families
    python -m benchmarks.worlds --families lab --sizes 30,100 --worlds 10
    python -m benchmarks.worlds --families mixed --sizes 40 --worlds 1 --seed 7 --show
    python -m benchmarks.worlds --beside ../old          # CPU seconds beside another checkout, in turns

Worlds are drawn anew in each run, from seeds that follow one which is printed: a planner cannot be tuned to
them. `--seed` repeats a run. Families are `mixed`, `training`, `lab` and `batch`, four cases that went wrong
once (`place-01` and others) with variants, and the large worlds `volumes`, `priorities` and `plain`, of which
only CPU seconds are measured. HiGHS answers the questions behind most columns (`pip install highspy`):

gap       How much dearer is the plan than the best that the model has found, with the same tasks? In per
          cent, of worlds in which something is launched. `at most`: than the bound, where the best was
          not proved in time. `reuse` tasks that ride on launches for others count as absent.
short     Worlds in which fewer blocks are seated than can be, at the highest priority where the two differ,
          and how many blocks. `behind`: the same at a priority below that of a task that waits until others
          have ended, for which room may have to be left. Up to 100 tasks.
fitting   Refused tasks that fit the finished plan, and would leave room for those that wait.
needless  Refused tasks that fit beside all placed tasks of equal or higher priority, of those looked at.
never     Refusals that say `never-fits` although the task fits once all that runs has ended, or the reverse.
claims    Tasks that wait, and whose last blocks go to new tasks of lower priority.
moved     Ranks that run and do not stay where they are.
bounds    Plans whose own bound is above what is enough.
bytes     Plans that differ if the documents, nodes and ranks come in another order.
wrong     Plans that break a rule, or that the model cannot explain.

CPU seconds are those of the plan alone, its input built already. The exit code is 1 if anything but a small
gap is not as it should be.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.placement import solver
from benchmarks.worlds import cases, speed
from benchmarks.worlds.batch import batch
from benchmarks.worlds.lab import lab
from benchmarks.worlds.measure import Effort, Verdict, look, summary
from benchmarks.worlds.mixed import world as mixed
from benchmarks.worlds.training import training
from benchmarks.worlds.worker import Worker
from benchmarks.worlds.world import World

SIZES = {
    "mixed": (30, 100, 300),
    "training": (30, 100, 300),
    "lab": (30, 60, 100, 300),
    "batch": (60, 200, 500),
    **dict.fromkeys(cases.CASES, (0,)),
    **{family: (size,) for family, (size, _) in speed.CASES.items()},
}
ROOT = Path(__file__).resolve().parents[2]


def draw(family: str, seed: int, size: int) -> World:
    """The world of a seed."""
    if family in cases.CASES:
        return cases.case(family, seed)
    if family in speed.CASES:
        return speed.large(family, seed, size)
    if family == "mixed":
        return mixed(seed, size, broad=True)
    return {"training": training, "lab": lab, "batch": batch}[family](seed, size)


HEAD = (
    f"{'family':>10} {'tasks':>6} {'worlds':>6} {'gap mean':>8} {'worst':>7} {'at most':>7} {'worst':>7} "
    f"{'proved':>6} {'refused':>7} {'short':>5} {'blocks':>6} {'behind':>6} {'fitting':>7} {'needless':>9} "
    f"{'never':>5} {'claims':>6} {'moved':>5} {'bounds':>6} {'bytes':>5} {'wrong':>5} "
    f"{'CPU p50':>8} {'p95':>7} {'beside':>7} {'p95':>7}"
)


def row(family: str, size: int, verdicts: Sequence[Verdict]) -> str:
    """One line: gaps in per cent, CPU seconds of a plan."""
    gaps = [gap for v in verdicts if (gap := v.gap) is not None] or [0.0]
    most = [gap for v in verdicts if (gap := v.most_gap) is not None] or [0.0]
    needless = [answer for v in verdicts for answer in v.needless.values()]
    looked = f"{needless.count(True)}/{len(needless) - needless.count(None)}"
    beside = [v.cpu_beside for v in verdicts if v.cpu_beside is not None]
    return " ".join(
        (
            f"{family:>10} {size:>6} {len(verdicts):>6}",
            f"{100 * statistics.mean(gaps):>8.2f} {100 * max(gaps):>7.2f}",
            f"{100 * statistics.mean(most):>7.2f} {100 * max(most):>7.2f}",
            f"{sum(v.best.proved for v in verdicts) / len(verdicts):>6.0%}",
            f"{sum(len(v.case.refused) for v in verdicts):>7}",
            f"{sum(bool(v.short) for v in verdicts):>5}",
            f"{sum(level.blocks - level.ours for v in verdicts for level in v.short):>6}",
            f"{sum(bool(v.behind) for v in verdicts):>6}",
            f"{sum(len(v.fitting) for v in verdicts):>7} {looked:>9}",
            f"{sum(len(v.never) for v in verdicts):>5} {sum(len(v.claims) for v in verdicts):>6}",
            f"{sum(len(v.case.moved) for v in verdicts):>5}",
            f"{sum(bool(v.false_bound) for v in verdicts):>6}",
            f"{sum(v.differs for v in verdicts):>5} {sum(bool(v.wrong) for v in verdicts):>5}",
            f" {times([v.cpu for v in verdicts])} {times(beside)}",
        )
    )


def times(seconds: Sequence[float]) -> str:
    """The median and the 95th percentile."""
    if not seconds:
        return f"{'':>7} {'':>7}"
    return f"{statistics.median(seconds):>7.2f} {sorted(seconds)[int(0.95 * (len(seconds) - 1) + 0.5)]:>7.2f}"


def show(verdict: Verdict) -> None:
    """What a plan launches, and what is launched at the least cost."""
    ours = summary(verdict.case.plan)
    best: Counter[str] = Counter()
    for space, count in verdict.best.launches.items():
        price = None if space.unpriced else space.price
        best[f"{space.kind} {space.place.zone or space.place.region} {price} ({space.fleet})"] += count
    print(f"\n{verdict.world.name}: {verdict.case.cost:.3f}, at least {verdict.best.bound:.3f} USD/h")
    for title, mine, other in (("plan", ours, best), ("least", best, ours)):
        print(f"  only in the {title}: {', '.join(f'{n} x {k}' for k, n in sorted((mine - other).items()))}")


def runs(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Family, size and number of worlds of each line."""
    for family in args.families.split(","):
        number = args.variants if family in cases.CASES else 1 if family in speed.CASES else args.worlds
        given = [int(size) for size in args.sizes.split(",")] if args.sizes else []
        for size in given if given and family not in (*cases.CASES, *speed.CASES) else SIZES[family]:
            yield family, size, number


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(SIZES), help="comma-separated (default: all)")
    parser.add_argument("--sizes", help="tasks of a world, comma-separated (default: several of each family)")
    parser.add_argument(
        "--worlds", type=int, default=20, help="of each family and size (default: %(default)s)"
    )
    parser.add_argument("--variants", type=int, default=200, help="of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first world; the others follow")
    parser.add_argument("--beside", type=Path, help="another checkout, whose plans take their turns")
    parser.add_argument(
        "--limit", type=float, default=30, help="HiGHS's seconds for a question (%(default)g)"
    )
    parser.add_argument("--dearest", type=float, default=0.03, help="name gaps above that (%(default)g)")
    parser.add_argument("--hints", action="store_true", help="plan again with each change that is named")
    parser.add_argument("--show", action="store_true", help="say what is launched where plans are dear")
    args = parser.parse_args()
    if not solver.available():
        raise SystemExit(solver.HINT)
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    print(f"--seed {seed} repeats this run\n\n{HEAD}", flush=True)
    ours, beside = Worker(ROOT), Worker(args.beside.resolve()) if args.beside else None
    for worker in filter(None, (ours, beside)):
        worker.plan(cases.case("place-02", 0).plain)  # what is imported late is imported now
    effort = Effort(seconds=args.limit, hints=args.hints)
    failed = False
    for family, size, number in runs(args):
        if family in speed.CASES:
            world = draw(family, seed, size)
            cpus = [f"{worker.plan(world.plain)[1]:.2f}" for worker in (ours, beside) if worker]
            print(f"{family:>10} {size:>6} CPU {', beside '.join(cpus)}", flush=True)
            continue
        verdicts = [look(draw(family, seed + i, size), ours, beside, effort) for i in range(number)]
        print(row(family, size, verdicts), flush=True)
        for verdict in verdicts:
            for failure in verdict.failures(args.dearest):
                failed = True
                print(f"    {verdict.world.name}: {failure}", flush=True)
            if args.show and (verdict.most_gap or 0.0) > args.dearest:
                show(verdict)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
