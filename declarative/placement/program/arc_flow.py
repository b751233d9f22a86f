"""How nodes are cut into ranks: in a program, as a flow along their blocks, or roughly, by rows that hold
however they are cut; and in a solution, with each rank on its node. Pure.

A rank is an arc as long as it takes blocks (arc-flow: Valério de Carvalho 1999).
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from declarative.placement.program.solver import Program

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


def _counts(program: Program, sizes: Sizes, last: int) -> dict[int, float]:
    """Blocks of a rank → how many such ranks there may be. One of a single block needs no arc of its own: it
    goes where nothing else does.
    """
    return {size: sum(program.most[i] for i in own) for size, own in sizes.items() if 1 < size <= last}


def columns_of(program: Program, sizes: Sizes, ends: Ends) -> int:
    """How many columns `add_flow` adds."""
    last = max(ends)
    arcs, stops = _extent(tuple(sorted(_counts(program, sizes, last).items())), last)
    return arcs + len(stops.union(ends, (0,))) - 1


@functools.lru_cache(maxsize=1024)
def _extent(counts: tuple[tuple[int, float], ...], last: int) -> tuple[int, frozenset[int]]:
    """How many arcs there are, and where they end. Plans that differ in one task have most arcs in common."""
    arcs = arcs_of(dict(counts), last)
    return len(arcs), frozenset(start + size for start, size in arcs)


def add_flow(program: Program, sizes: Sizes, ends: Ends) -> dict[int, tuple[int, int]]:
    """Say how nodes are cut, as a flow along their blocks: column → where its arc begins and ends, the end
    negative if it is no rank of several blocks.
    """
    last = max(ends)
    counts = _counts(program, sizes, last)
    arcs = arcs_of(counts, last)
    stops = sorted({0, *ends, *(start + size for start, size in arcs)})
    balance: Balance = {at: {} for at in stops}
    cuts: dict[int, dict[int, float]] = {size: {} for size in sizes}
    found: dict[int, tuple[int, int]] = {}
    for start, size in arcs:
        arc = program.column(counts[size])
        found[arc] = (start, start + size)
        lead(balance, arc, start, start + size)
        cuts[size][arc] = -1.0
    many = sum(program.most[node] for nodes in ends.values() for node in nodes)
    for start, end in itertools.pairwise(stops):
        rest = program.column(many)
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

Weights = Mapping[int, float]
"""Blocks → what they weigh, or hold."""


def add_relaxation(program: Program, sizes: Sizes, ends: Ends) -> None:
    """Add rows that hold however nodes are cut. Not all that keeps to them can be cut, but nearly all."""
    ranks, nodes, last = sorted(sizes), sorted(ends), max(ends)
    _weigh(program, sizes, ends, {size: size for size in ranks}, {at: at for at in nodes})
    for end in nodes[:-1][-MOST_ROWS:]:  # what is too large for these and the smaller ones
        large = {size: size for size in ranks if size > end}
        _weigh(program, sizes, ends, large, {at: at for at in nodes if at > end})
    above = [next((size for size in ranks if size > end), 0) for end in nodes[:-1]]
    least = [next((size for size in ranks if last // size == count), 0) for count in range(MOST_ROWS)]
    for size in sorted({*above, *least} - {0})[-2 * MOST_ROWS :]:
        # Both count as often as that size goes into them, rounded down (Chvátal, Gomory).
        weights = {one: one // size for one in ranks}
        _weigh(program, sizes, ends, weights, {at: at // size for at in nodes})
    # Beside a rank that leaves less room lies none that takes as much (Martello, Toth 1990: bound L2).
    small = [size for size in ranks if 2 * size <= last]
    for room in small[:: max(1, math.ceil(len(small) / MOST_ROWS))]:
        whole = {size: last if size > last - room else size for size in ranks if size >= room}
        _weigh(program, sizes, ends, whole, {at: last if at > last - room else at for at in nodes})


def _weigh(program: Program, sizes: Sizes, ends: Ends, weights: Weights, held: Weights) -> None:
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
