"""The best that any plan for a case of `jobs` can do: an exact model, solved by HiGHS.

Jobs that are equal but for their names are counted, and so are nodes: how many of each kind of node are cut
by which pattern (sizes of ranks that fit beside each other), how many ranks of each kind of job lie on each
kind of node, and how many jobs run in each domain. So the model grows with the number of different things,
hardly with the number of things. Without whole numbers it is solved faster, and is a bound all the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.placement import solver
from benchmarks.placement.jobs import DOMAINS, Deal, Domain, Job, Place, Scene, Tie

LEFT_OUT = 100.0
"""What a block that is not placed costs, USD an hour: far above any price, so that all is placed that can."""


@dataclass(frozen=True)
class Stock:
    """Nodes that are alike: of what place, with how many idle blocks, how many; launched ones cost."""

    place: Place
    idle: int
    count: float
    deal: Deal | None = None

    def takes(self, job: Job) -> bool:
        """Whether a rank can go there."""
        room = self.idle == self.place.kind.gpus if job.whole else job.gpus <= self.idle
        return room and job.takes(self.place)


@dataclass(frozen=True)
class Best:
    """`cost` (USD an hour) and `left` (blocks not placed) are a plan's that was found; `bound` is of the
    objective, cost + LEFT_OUT x left, and holds for all plans.
    """

    bound: float
    cost: float | None
    left: int | None
    proved: bool
    seconds: float


def best(case: Scene, *, whole: bool, seconds: float) -> Best:
    """Solve the case; `whole` asks for a real plan and not only for the bound."""
    model = solver.Model()
    stocks = _stocks(case)
    slots: dict[tuple[int, int], list[int]] = defaultdict(list)
    left_out: dict[int, int] = {}
    alike: Counter[Job] = Counter(replace(job, name="") for job in case.jobs)
    for job, count in alike.items():
        runs = dict.fromkeys(_placings(model, job, count, stocks, slots), 1.0)
        out = model.column(LEFT_OUT * job.ranks * job.gpus, count)
        left_out[out] = job.ranks * job.gpus
        model.row(count, count, {**runs, out: 1.0})
    _cuts(model, stocks, slots)
    done = model.solve(whole=whole, seconds=seconds)
    if not done.values or not whole:
        return Best(done.bound, None, None, done.proved, done.seconds)
    left = round(sum(size * done.values[column] for column, size in left_out.items()))
    paid = sum(c * v for c, v in zip(model.costs, done.values, strict=True)) - LEFT_OUT * left
    return Best(done.bound, paid, left, done.proved, done.seconds)


def _stocks(case: Scene) -> list[Stock]:
    """Nodes without idle blocks are in it: they count against the limits of what is launched."""
    here = Counter((h.place, h.place.kind.gpus - len(h.busy)) for h in case.heres)
    there = [Stock(place, idle, count) for (place, idle), count in here.items()]
    return there + [Stock(d.place, d.place.kind.gpus, math.inf, d) for d in case.deals]


def _placings(
    model: solver.Model,
    job: Job,
    count: int,
    stocks: Sequence[Stock],
    slots: dict[tuple[int, int], list[int]],
) -> Iterator[int]:
    """A column for each domain that all ranks may lie in: how many such jobs run there."""
    takers = [i for i, stock in enumerate(stocks) if stock.takes(job)]
    groups: Sequence[Tie | None] = job.ties or (None,)
    together: Sequence[Domain | None] = DOMAINS if job.cluster and job.whole else (None,)
    for domain in together:
        near = [i for i in takers if domain in {None, stocks[i].place.domain}]
        within = [[i for i in near if _tied(stocks[i].place, tie)] for tie in groups]
        if not all(within):
            continue
        runs = model.column(0, count)
        for tie, those in zip(groups, within, strict=True):
            ranks = tie.ranks if tie else job.ranks
            row = {runs: -float(ranks)}
            for i in those:
                column = model.column(0, count * ranks)
                slots[i, job.gpus].append(column)
                row[column] = 1.0
            model.row(0, 0, row)
        yield runs


def _tied(place: Place, tie: Tie | None) -> bool:
    return tie is None or (place.domain == tie.domain and tie.zone in {None, place.zone})


def _cuts(model: solver.Model, stocks: Sequence[Stock], slots: dict[tuple[int, int], list[int]]) -> None:
    """How many of each kind of node are cut how; ranks of a size go into cuts of that size."""
    sizes: dict[int, set[int]] = defaultdict(set)
    for i, size in slots:
        sizes[i].add(size)
    launched: dict[tuple[Domain, str], dict[int, float]] = defaultdict(dict)
    limits: dict[tuple[Domain, str], int] = {}
    exist: Counter[tuple[Domain, str]] = Counter()
    for i, stock in enumerate(stocks):
        kind = (stock.place.domain, stock.place.kind.name)
        if stock.deal is None and stock.place.spot:
            exist[kind] += int(stock.count)
        price = stock.place.price if stock.deal else 0.0
        cut: dict[int, dict[int, float]] = {size: {} for size in sizes[i]}
        all_cuts: dict[int, float] = {}
        for pattern in _patterns(stock.idle, tuple(sorted(sizes[i], reverse=True))):
            column = model.column(price, stock.count)
            all_cuts[column] = 1.0
            for size, times in pattern.items():
                cut[size][column] = -float(times)
        for size, terms in cut.items():
            model.row(-math.inf, 0, {**terms, **dict.fromkeys(slots[i, size], 1.0)})
        if stock.deal is None:
            model.row(0, stock.count, all_cuts)
        elif stock.deal.limit is not None:
            launched[kind].update(all_cuts)
            limits[kind] = stock.deal.limit
    for kind, terms in launched.items():
        model.row(0, max(0, limits[kind] - exist[kind]), terms)


def _patterns(idle: int, sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """All ways to fill `idle` blocks with sizes (largest first) so that no further one fits."""
    if not sizes:
        return
    first, *rest = sizes
    for times in range(idle // first, -1, -1):
        left = idle - times * first
        if not rest:
            if times == idle // first:
                yield {first: times} if times else {}
            continue
        for pattern in _patterns(left, rest):
            yield {first: times, **pattern} if times else pattern
