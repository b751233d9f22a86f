"""Which make of node each size of task should go to, when the blocks that it takes depend on the make.

A block of each make has a price that rises while more of it is asked for than is there, and falls
otherwise (multiplicative weights); a size goes where its blocks cost least, and the average over the later
rounds is its quota. It comes within a few tenths of a percent of the linear program's answer, without a
solver. For tasks of one rank that ask for GPUs, on nodes that are there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from declarative.placement.board import Board
from declarative.placement.ledger import Ledger
from declarative.placement.wishes import Job

ROUNDS = 400

Make = int
"""A kind of node that stands for all of its shape and split."""


def _capacity(ledger: Ledger, makes: Mapping[Make, Sequence[int]]) -> dict[Make, int]:
    """The free blocks of each make that has any."""
    found = {
        make: sum(free * len(ids) for kind in kinds for free, ids in ledger.piles.get(kind, {}).items())
        for make, kinds in makes.items()
    }
    return {make: blocks for make, blocks in found.items() if blocks}


def quotas(ledger: Ledger, jobs: Sequence[Job]) -> list[tuple[tuple[int, int, bool], frozenset[int], int]]:
    """`(key of the jobs, kinds, how many)`, the ones to place first in front."""
    board = ledger.board
    makes = _makes(board)
    capacity = _capacity(ledger, makes)
    counts: dict[tuple[int, int, bool], tuple[Job, int]] = {}
    for job in jobs:
        if job.plain and job.ranks == 1 and job.wish.gpus and not job.wish.whole:
            first, count = counts.get(job.key, (job, 0))
            counts[job.key] = (first, count + 1)
    sizes = [(job, count, _needs(board, job, makes, capacity)) for job, count in counts.values()]
    sizes = [size for size in sizes if size[2]]
    if not any(len({q for _, q in needs}) > 1 for _, _, needs in sizes):
        return []
    alike = tuple((job.wish.gpus, count, tuple(needs)) for job, count, needs in sizes)
    prices = tuple((make, board.kinds[make].shape.gpus / board.kinds[make].total) for make in capacity)
    average = _average(alike, prices, tuple(capacity.values()))
    out = []
    for index, (job, count, needs) in enumerate(sizes):
        for make, need in needs:
            share = average.get((index, make), 0.0)
            if share > 0:
                number = min(count, int(share + 0.999))
                out.append(((-job.wish.gpus, -need, index, make), job.key, frozenset(makes[make]), number))
    return [(key, kinds, number) for _, key, kinds, number in sorted(out, key=lambda o: o[0])]


def _makes(board: Board) -> dict[Make, list[int]]:
    """Kinds that have the same shape and split."""
    first: dict[object, int] = {}
    out: dict[Make, list[int]] = {}
    for i, kind in enumerate(board.kinds):
        make = first.setdefault((kind.shape, kind.total), i)
        out.setdefault(make, []).append(i)
    return out


def _needs(
    board: Board, job: Job, makes: dict[Make, list[int]], capacity: dict[Make, int]
) -> list[tuple[Make, int]]:
    fit = job.wish.fit
    out: list[tuple[Make, int]] = []
    for make in capacity:
        need = next((fit[k] for k in makes[make] if k in fit), 0)
        if need and board.kinds[make].shape.gpus:
            out.append((make, need))
    return out


@functools.lru_cache(maxsize=64)
def _average(
    sizes: tuple[tuple[int, int, tuple[tuple[Make, int], ...]], ...],
    prices: tuple[tuple[Make, float], ...],
    blocks_of: tuple[int, ...],
) -> Mapping[tuple[int, Make], float]:
    """Size and make → how many tasks, the average over the later half of the rounds.

    `sizes`: GPUs, number of tasks, and the blocks that each make costs. `prices` and `blocks_of`: of each
    make, the price of a block to begin with, and how many are free. Most passes of a search ask the same.
    """
    price = dict(prices)
    capacity = dict(zip(price, blocks_of, strict=True))
    average: dict[tuple[int, Make], float] = {}
    late = ROUNDS // 2
    for turn in range(ROUNDS):
        used = dict.fromkeys(capacity, 0)
        for index, (gpus, count, needs) in enumerate(sizes):
            cost, make, need = min([(need * price[make], make, need) for make, need in needs])
            if cost > gpus * (1 + 1e-9):
                continue  # not worth its blocks at these prices
            used[make] += count * need
            if turn >= late:
                average[index, make] = average.get((index, make), 0.0) + count / (ROUNDS - late)
        step = 0.5 / (1 + turn / 20)
        for make, blocks in capacity.items():
            price[make] *= min(2.0, max(0.5, 1 + step * (used[make] / blocks - 1)))
    return average
