"""Nodes that are alike, and how they are cut into ranks: in a program, as a flow along their blocks, or
roughly, by rows that hold however they are cut; and in a solution, with each rank on its node. Pure.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from declarative.model.record import struct
from declarative.placement.catalog import LaunchOption
from declarative.placement.demand import Area, Job, Request
from declarative.placement.program import Program

MOST_SINGLE = 8
"""So many nodes that are alike are told from each other, where that is needed."""

Seat = tuple[Job, int]
"""A rank of a task."""


class Stock(NamedTuple):
    """Nodes of one kind with as many idle blocks: how many there are, or may be launched."""

    kind: int
    idle: int
    most: float
    option: LaunchOption | None
    first: int = 0
    """How many of them come before these…"""
    single: bool = False
    """…and whether it is one that is told from the others."""

    @property
    def source(self) -> object:
        """Equal for nodes that are told from each other, or not."""
        return self.option or (self.kind, self.idle)

    def told_apart(self, sources: Collection[object]) -> Iterator[Stock]:
        """The first nodes each by itself, and the rest of them, if the source is one of `sources`."""
        count = int(min(self.most, MOST_SINGLE)) if self.source in sources else 0
        for number in range(count):
            yield self._replace(most=1, first=number, single=True)
        if self.most > count:
            yield self._replace(most=self.most - count, first=count)


@struct(slots=True)
class Piece:
    """Ranks that take the same number of blocks everywhere."""

    takes: dict[int, int]
    """Kind → blocks."""
    reuse: bool
    """Whether they launch nothing themselves."""
    seats: list[Seat] = field(default_factory=list)


@struct(slots=True)
class GangGroup:
    """Tasks that are alike, whose ranks have a domain in common. `parts`: piece → ranks of each task."""

    request: Request
    parts: dict[int, int]
    value: float
    """What one of them is worth, if they may be left out."""
    spread: str | None = None
    """The level at which the ranks of each task have to lie apart: then all are one piece, or it is one task.
    """
    jobs: list[Job] = field(default_factory=list)
    seats: dict[int, list[list[Seat]]] = field(default_factory=lambda: defaultdict(list))
    """Piece → the ranks of each task that are of it."""


@struct(slots=True)
class Class:
    """Nodes that no rank tells apart."""

    takes: dict[int, int]
    """Piece → blocks."""
    areas: frozenset[Area | None]
    """Where they lie, at each level at which gangs lie together."""
    maker: str | None
    stocks: list[int] = field(default_factory=list)
    sizes: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Blocks of a rank → the columns that count such ranks."""
    ends: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Idle blocks → the columns of the nodes that have so many."""
    rough: bool = False
    """Whether it is not told how nodes are cut."""
    arcs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Column → where the arc begins and ends, the end negative if it is no rank of several blocks; empty if
    nodes are cut roughly.
    """


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
    """How many columns `cut` adds."""
    last = max(ends)
    arcs, stops = _extent(tuple(sorted(_counts(program, sizes, last).items())), last)
    return arcs + len(stops.union(ends, (0,))) - 1


@functools.lru_cache(maxsize=1024)
def _extent(counts: tuple[tuple[int, float], ...], last: int) -> tuple[int, frozenset[int]]:
    """How many arcs there are, and where they end. Plans that differ in one task have most arcs in common."""
    arcs = arcs_of(dict(counts), last)
    return len(arcs), frozenset(start + size for start, size in arcs)


def cut(program: Program, sizes: Sizes, ends: Ends) -> dict[int, tuple[int, int]]:
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

Weights = Mapping[int, float]
"""Blocks → what they weigh, or hold."""


def cut_roughly(program: Program, sizes: Sizes, ends: Ends) -> None:
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
