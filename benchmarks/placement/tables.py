"""The tables: which cases are run, and what is printed beside which target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.placement import cases, command, solver, traces

FAMILIES = (
    ("multi", "discount"),
    ("multi", "linear"),
    ("multi", "surcharge"),
    ("multi", "eights"),
    ("all", "linear"),
    ("even", "discount"),
    ("even", "linear"),
)
"""Which jobs are drawn (`jobs.MIXES`), and what nodes cost (`jobs.PRICES`)."""
QUICK = (FAMILIES[0], FAMILIES[3], FAMILIES[5])
SEEDS = {100: 3, 1000: 2}


@dataclass(frozen=True)
class Options:
    """What the command line says. `seconds` is what HiGHS may take for one case; of `seed` on openb's pods
    are drawn.
    """

    folder: Path
    quick: bool
    seconds: float
    seed: int

    @property
    def families(self) -> tuple[tuple[str, str], ...]:
        """Fewer when it has to be quick."""
        return QUICK if self.quick else FAMILIES


class Table:
    """Columns that are printed as they come, one row after the other."""

    def __init__(self, title: str, *columns: str) -> None:
        self.widths = [max(7, len(column)) for column in columns]
        print(f"\n{title}")
        self.row(*columns)

    def row(self, *cells: str | float | None, last: str = "") -> None:
        """A dash for what is not known. `last` may be as long as it likes."""
        texts = [
            "-" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells
        ]
        line = "  ".join(f"{text:>{width}}" for text, width in zip(texts, self.widths, strict=False))
        print(f"{line}  {last}".rstrip(), flush=True)


def blocks(options: Options) -> None:
    """P2."""
    table = Table(
        "blocks: GPUs of openb's fleet that placed pods ask for, %; CPUs and memory count as well.\n"
        f"        Lists that the folder does not have are drawn, seed {options.seed}; `below`: the bound",
        *("trace      ", "block", "tasks", "nodes", "first-fit", "best-fit", "decreasing"),
        *("ours", "bound", "by HiGHS", "below", "CPU s"),
    )
    for trace in traces.QUICK_LISTS if options.quick else traces.LISTS:
        for per_gpu, name, most in ((1, "whole", 0.3), (2, "half", 0.7)):
            seeds = range(options.seed, options.seed + (1 if options.quick else 3))
            runs = [
                cases.alone(cases.blocks, options.folder, trace, per_gpu, seed, options.seconds)
                for seed in seeds
            ]
            below = max((run.priced if run.solved is None else run.solved) - run.ours for run in runs)
            table.row(
                *(trace, name, runs[0].tasks, runs[0].nodes),
                *(mean(r.first for r in runs), mean(r.best for r in runs), mean(r.decreasing for r in runs)),
                *(mean(run.ours for run in runs), mean(r.priced for r in runs), mean(r.solved for r in runs)),
                *(below, max(run.cpu for run in runs)),
                last=f"below <= {most} {verdict(good=below <= most)}",
            )


def fill(options: Options) -> None:
    """P3."""
    title = "fill: blocks that could run on a fixed fleet and do not, %"
    _packed(options, title, {100: 0.5, 1000: 0.5}, launch=False)


def cost(options: Options) -> None:
    """P4."""
    title = (
        "cost: price of the launches over the least possible, %, of plans that leave out as much as the\n"
        "      best one; `extra`: blocks left out beyond that"
    )
    _packed(options, title, {100: 4.0, 1000: 2.0}, launch=True)


def _case(
    options: Options, count: int, seed: int, family: tuple[str, str], *, launch: bool, whole: bool
) -> cases.Packed:
    """One case, in a process of its own."""
    return cases.alone(
        cases.packed,
        options.folder,
        count,
        seed,
        family,
        launch=launch,
        whole=whole,
        seconds=options.seconds,
    )


def _packed(options: Options, title: str, targets: dict[int, float], *, launch: bool) -> None:
    """A row for each family, and the mean of all beside its target."""
    table = Table(
        title,
        *("family         ", "tasks", "nodes", "blocks", *cases.NAIVE),
        *("ours", "worst", "extra", "proved", "CPU s"),
    )
    for count, target in targets.items():
        ours: list[float | None] = []
        extra: list[int | None] = []
        for family in options.families:
            runs = [
                _case(options, count, seed, family, launch=launch, whole=True)
                for seed in range(1 if options.quick else SEEDS[count])
            ]
            own = [run.gap(run.ours) for run in runs]
            more = [run.extra(run.ours) for run in runs]
            proved = sum(bool(run.best and run.best.proved) for run in runs)
            table.row(
                *("/".join(family), count, runs[0].nodes, runs[0].asked),
                *(mean(run.gap(run.simple[how]) for run in runs) for how in range(len(cases.NAIVE))),
                *(mean(own), max(known(own), default=None), sum(known(more)) if known(more) else None),
                *(f"{proved}/{len(runs)}", max(run.cpu for run in runs)),
            )
            ours += own
            extra += more
        _summary(count, target, ours, extra, launch=launch)


def _summary(
    count: int, target: float, gaps: Sequence[float | None], extra: Sequence[int | None], *, launch: bool
) -> None:
    """The line that counts."""
    average = mean(gaps)
    if average is None:
        print(f"{count} tasks: the bound {solver.HINT}" if not solver.available() else f"{count} tasks: -")
        return
    line = f"{count} tasks: mean {average:.2f} %, target <= {target:g} {verdict(good=average <= target)}"
    if launch:
        more = sum(known(extra))
        line += (
            f"; blocks left out beyond the best plan {more}, target 0 {verdict(good=more == 0)}"
            f"; {len(gaps) - len(known(gaps))} of {len(gaps)} cases have no gap for it"
        )
    print(line)


def replan(options: Options) -> None:
    """P7."""
    count = 100 if options.quick else 1000
    table = Table(
        f"replan: of {count} tasks 5 % go and 5 % come; USD/h of what is launched beyond what was before",
        *("family         ", "ranks", "moved", "USD/h", "moved if planned afresh, %", "USD/h", "CPU s"),
    )
    moved = 0
    for family in options.families:
        run = cases.alone(cases.replanned, options.folder, count, 0, family)
        moved += run.moved
        table.row(
            *("/".join(family), run.ranks, run.moved, run.cost),
            *(100 * run.fresh_moved / run.ranks, run.fresh_cost, run.cpu),
        )
    print(f"ranks moved: {moved}, target 0 {verdict(good=moved == 0)}")


def speed(options: Options) -> None:
    """CPU time and memory of the large cases."""
    limits = {8000: 1.0, 32000: 4.0}
    table = Table(
        "speed: CPU seconds of `place` alone, the least of some runs; growth: of CPU time per task; gap:\n"
        "       of blocks (fill) or of cost + 100 USD/h a block left out (cost) to a bound",
        *("case", "family         ", "tasks", "nodes", "CPU s", "growth", "peak MiB", "gap %"),
    )
    for launch in (False, True):
        for family in (FAMILIES[0],) if options.quick else (FAMILIES[0], FAMILIES[4]):
            before: float | None = None
            for count in (1000, 8000) if options.quick else (1000, 8000, 32000):
                runs = [
                    _case(options, count, 0, family, launch=launch, whole=False)
                    for _ in range(1 if options.quick else 3)
                ]
                run, limit = min(runs, key=lambda r: r.cpu), limits.get(count)
                table.row(
                    *("cost" if launch else "fill", "/".join(family), count, run.nodes, run.cpu),
                    *(run.cpu / count / before if before else None, round(run.peak_mib), run.gap(run.ours)),
                    last=f"target < {limit:g} s {verdict(good=run.cpu < limit)}" if limit else "",
                )
                before = run.cpu / count


def whole_command(options: Options) -> None:
    """What a user waits for."""
    count = 500 if options.quick else 8000
    figure = command.measure(count, traces.job_sizes(options.folder))
    good = figure.code == 0 and figure.cpu < 10 and figure.memory_mib < 1024
    print(f"\ncommand: `fleetform plan --offline`, {count} task documents, nothing there yet")
    print(
        f"{figure.cpu:.2f} CPU s, target < 10; peak {figure.memory_mib:.0f} MiB, target < 1024; "
        f"exit code {figure.code} {verdict(good=good)}"
    )


def verdict(*, good: bool) -> str:
    """Beside a target."""
    return "ok" if good else "MISSED"


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are."""
    return [value for value in values if value is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    some = known(values)
    return statistics.fmean(some) if some else None


PARTS: dict[str, Callable[[Options], None]] = {
    "blocks": blocks,
    "fill": fill,
    "cost": cost,
    "replan": replan,
    "speed": speed,
}
