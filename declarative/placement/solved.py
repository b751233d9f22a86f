"""The ledger that a program's solution stands for: which ranks sit on which nodes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from declarative.placement.counted import Class, Counted, Seat
from declarative.placement.cutting import pack
from declarative.placement.ledger import Ledger
from declarative.placement.volumes import hold, serves

NEARLY = 1e-4
"""A number that is this close to a whole number counts as that."""


def ledger_of(counted: Counted, values: Sequence[float]) -> Ledger | None:
    """The ledger that a solution stands for; None if some of its numbers are not whole. Tasks are left out
    whose ranks have to lie apart and would share a node; and, if the program is rough, those of which a rank
    finds no place.
    """
    ledger = counted.base.copy()
    slots = [_slots(counted, one, values, ledger) for one in counted.classes]
    queues = {number: iter(piece.seats) for number, piece in enumerate(counted.pieces)}
    of_run = _of_runs(counted, values)
    seats: list[tuple[Seat, int]] = []
    lost: set[tuple[int, int]] = set()
    nodes_of: dict[int, set[int]] = defaultdict(set)
    """Task → its nodes, if its ranks lie apart: those choose first."""
    crowded: set[int] = set()
    apart = {run for run, (gang, _, _) in enumerate(counted.runs) if gang.spread}
    for number, index, column, run in sorted(counted.placed, key=lambda item: item[3] not in apart):
        count = round(values[column])
        if abs(values[column] - count) > NEARLY:
            return None
        queue = queues[number] if run < 0 else of_run[run, number]
        for seat in itertools.islice(queue, count):
            here = slots[index][counted.classes[index].takes[number]]
            beside = nodes_of[seat[0].index] if run in apart else ()
            place = next((i for i in range(len(here) - 1, -1, -1) if here[i] not in beside), None)
            if place is None:
                crowded.update([seat[0].index] if here else ())
                lost.update(() if here else [(seat[0].index, index)])
            else:
                seats.append((seat, here.pop(place)))
                nodes_of[seat[0].index].add(seats[-1][1])
    if any(next(queue, None) for queue in (*queues.values(), *of_run.values())) or (
        lost and not counted.rough
    ):
        return None
    counted.lost, counted.values = lost, values
    without = {job for job, _ in lost} | crowded
    counted.seated = {seat[0].index for seat, _ in seats} - without
    without |= set(counted.loose)
    for seat, node in seats:
        if seat[0].index not in without:
            _sit(ledger, seat, node)
    return ledger


def _of_runs(counted: Counted, values: Sequence[float]) -> dict[tuple[int, int], Iterator[Seat]]:
    """Run and piece → the ranks of the tasks that go there."""
    out: dict[tuple[int, int], Iterator[Seat]] = {}
    taken: Counter[int] = Counter()
    for run, (gang, _, column) in enumerate(counted.runs):
        first, count = taken[id(gang)], round(values[column])
        taken[id(gang)] += count
        for number in gang.parts:
            of_jobs = gang.seats[number][first : first + count]
            out[run, number] = itertools.chain.from_iterable(of_jobs)
    return out


def _sit(ledger: Ledger, seat: Seat, node: int) -> None:
    """Seat a rank on a node, with its volumes."""
    job, rank = seat
    ledger.seats.setdefault(job.index, [-1] * job.ranks)[rank] = node
    kind = ledger.kind_of[node]
    ledger.fill(node, job.request.fit[kind])
    mounts, volumes = job.ask.want.mounts, ledger.board.volumes
    if any(mounts) and mounts[rank]:
        place, claims = ledger.board.place_of[kind], ledger.claims
        found = {
            m.path: next(n for n in m.names if n in volumes and n not in claims and serves(volumes[n], place))
            for m in mounts[rank]
        }
        hold(ledger, job, rank, found)


def _slots(counted: Counted, one: Class, values: Sequence[float], ledger: Ledger) -> Mapping[int, list[int]]:
    """Blocks of a rank → nodes with a place for it, one for each place; the last is to be taken first."""
    nodes = _nodes(counted, one, values, ledger)
    if not one.arcs:
        sizes = sorted(one.sizes, reverse=True)
        counts = {size: sum(round(values[column]) for column in one.sizes[size]) for size in sizes}
        return pack(sorted((idle, node) for idle, own in nodes.items() for node in own), counts)
    leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
    """Where an arc begins → where it ends and how often it is taken; the long ones are the last."""
    for column, (start, end) in sorted(one.arcs.items(), key=lambda arc: abs(arc[1][1])):
        if count := round(values[column]):
            leaving[start].append((end, count))
    out: dict[int, list[int]] = defaultdict(list)
    for _ in range(sum(map(len, nodes.values()))):
        at, sizes = 0, []
        while leaving[at]:
            end, count = leaving[at].pop()
            if count > 1:
                leaving[at].append((end, count - 1))
            sizes += [end - at] if end > 0 else [1] * (-end - at)
            at = abs(end)
        if not nodes.get(at):
            break
        node = nodes[at].pop()
        for size in sizes:
            out[size].append(node)
    for of_size in out.values():
        of_size.reverse()
    return out


def _nodes(counted: Counted, one: Class, values: Sequence[float], ledger: Ledger) -> dict[int, list[int]]:
    """Idle blocks → the nodes of a class, those that it launches included; the last is to be taken first."""
    out: dict[int, list[int]] = defaultdict(list)
    for i in one.stocks:
        stock, count = counted.stocks[i], round(values[counted.bought[i]])
        if stock.option:
            first = len(ledger.free)
            ledger.launch_idle(stock.option, count)
            out[stock.idle] += range(first, first + count)
        elif count:
            out[stock.idle] += [-n for n in reversed(counted.base.piles[stock.kind][stock.idle][-count:])]
    for found in out.values():
        found.reverse()
    return out
