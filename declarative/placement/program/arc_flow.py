"""How nodes are cut into ranks: in a program, as a flow along their blocks, or roughly, by rows that hold
however they are cut; and in a solution, with each rank on its node. Pure.

A rank is an arc as long as it takes blocks (arc-flow: Valério de Carvalho 1999). Ranks that have to lie apart
are cut first: each flow passes one stage for each such task, where it takes one of its ranks or none.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from declarative.placement.program.solver import Program

Sizes = Mapping[int, Mapping[int, float]]
"""Blocks of a rank → the columns that count such ranks."""

Ends = Mapping[int, Sequence[int]]
"""Idle blocks of a node → the columns that count such nodes."""


class RanksApart(NamedTuple):
    """Ranks of which a node takes at most `most`."""

    most: int
    sizes: dict[int, dict[int, float]]


class Vertex(NamedTuple):
    """Where an arc begins or ends: so many blocks of the node are taken, after so many stages."""

    stage: int
    blocks: int


class Arc(NamedTuple):
    """`ranks` of `size` blocks each, one beside the other; or none, or blocks that stay idle."""

    start: Vertex
    end: Vertex
    size: int = 0
    ranks: int = 0


def arcs_of(most: Mapping[int, float], last: int, apart: Sequence[StageCounts] = ()) -> list[Arc]:
    """Where ranks of each size may begin on so many blocks: all cuts, each once. Ranks that lie `apart` come
    first, those of each run at a stage of their own; then all others, the large ones first. `most` is how
    many of these there are of a size.
    """
    arcs: list[Arc] = []
    begins = {0}
    for stage, (limit, counts) in enumerate(apart):
        ends = set(begins)
        for start in sorted(begins):
            arcs.append(Arc(Vertex(stage, start), Vertex(stage + 1, start)))
            for size, count in counts:
                for ranks in range(1, int(min(limit, count, (last - start) // size)) + 1):
                    end = start + ranks * size
                    arcs.append(Arc(Vertex(stage, start), Vertex(stage + 1, end), size, ranks))
                    ends.add(end)
        begins = ends
    used: dict[int, float] = dict.fromkeys(begins, 0)
    for size, count in sorted(most.items(), reverse=True):
        used = dict.fromkeys(used, 0)
        for start in range(last - size + 1):
            if used.get(start, count) < count:
                arcs.append(Arc(Vertex(len(apart), start), Vertex(len(apart), start + size), size, 1))
                used[start + size] = min(used.get(start + size, math.inf), used[start] + 1)
    return arcs


Counts = tuple[tuple[int, float], ...]
"""Blocks of a rank, and how many such ranks there may be."""

StageCounts = tuple[int, Counts]
"""How many ranks of a stage a node takes at most, and the ranks."""


def _counts(program: Program, sizes: Sizes, last: int, least: int = 1) -> Counts:
    fit = ((size, columns) for size, columns in sizes.items() if least <= size <= last)
    return tuple(sorted((size, sum(program.most[i] for i in columns)) for size, columns in fit))


def _all_counts(
    program: Program, sizes: Sizes, apart: Iterable[RanksApart], last: int
) -> tuple[Counts, tuple[StageCounts, ...]]:
    """A rank of a single block that need not lie apart has no arc of its own: it goes where nothing else
    does.
    """
    stages = tuple((one.most, _counts(program, one.sizes, last)) for one in apart)
    return _counts(program, sizes, last, 2), stages


def columns_of(program: Program, sizes: Sizes, ends: Ends, apart: Iterable[RanksApart]) -> int:
    """How many columns `add_flow` adds."""
    last = max(ends)
    arcs, positions = _all_arcs(*_all_counts(program, sizes, apart, last), last)
    return len(arcs) + len(positions.union(ends)) - 1


@functools.lru_cache(maxsize=1024)
def _all_arcs(
    counts: Counts, apart: tuple[StageCounts, ...], last: int
) -> tuple[Sequence[Arc], frozenset[int]]:
    """All arcs, and where those of the last stage begin and end. Plans that differ in one task have most in
    common.
    """
    arcs = arcs_of(dict(counts), last, apart)
    return arcs, frozenset({0}.union(arc.end.blocks for arc in arcs if arc.end.stage == len(apart)))


def add_flow(program: Program, sizes: Sizes, ends: Ends, apart: Sequence[RanksApart]) -> dict[int, Arc]:
    """Say how nodes are cut, as a flow along their blocks: column → its arc."""
    last, final = max(ends), len(apart)
    counts, stages = _all_counts(program, sizes, apart, last)
    cuts_of_ranks, ends_of_ranks = _all_arcs(counts, stages, last)
    positions = sorted(ends_of_ranks.union(ends))
    idle = (Arc(Vertex(final, at), Vertex(final, to), 1, to - at) for at, to in itertools.pairwise(positions))
    arcs = (*cuts_of_ranks, *idle)
    nodes = sum(program.most[node] for of_size in ends.values() for node in of_size)
    balance: dict[Vertex, dict[int, float]] = defaultdict(dict)
    """The columns that begin (-1) and end (1) at a vertex: as much of the one as of the other."""
    cuts: dict[tuple[int, int], dict[int, float]] = {(final, size): {} for size in sizes}
    cuts |= {(stage, size): {} for stage, one in enumerate(apart) for size in one.sizes}
    count_of = {(stage, size): count for stage, (_, own) in enumerate(stages) for size, count in own}
    count_of |= {(final, size): count for size, count in counts}
    arc_of: dict[int, Arc] = {}
    for arc in arcs:
        cut = arc.start.stage, arc.size
        column = program.column(min(nodes, count_of.get(cut, nodes)))
        arc_of[column] = arc
        balance[arc.start][column], balance[arc.end][column] = -1.0, 1.0
        if cut in cuts:
            cuts[cut][column] = -float(arc.ranks)
    for blocks, of_size in ends.items():
        for node in of_size:
            balance[Vertex(final, blocks)][node], balance[Vertex(0, 0)][node] = -1.0, 1.0
    for terms in balance.values():
        program.row(0, 0, terms)
    for (stage, size), taken in cuts.items():
        program.row(-math.inf, 0, {**taken, **(sizes if stage == final else apart[stage].sizes)[size]})
    return arc_of


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
