"""The assignment that a solution stands for: which ranks sit on which nodes; and the columns that stand for
an assignment.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from declarative.model.record import struct
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Job, LaunchOption
from declarative.placement.program.arc_flow import Arc, Vertex, pack
from declarative.placement.program.model import NodeClass, PlacementModel, Seat
from declarative.placement.volumes import hold, serves


class NamedLaunch(NamedTuple):
    """A node that a solution launches, under a name if a task names it."""

    option: LaunchOption
    name: str | None


@struct(slots=True)
class Decoded:
    """An assignment, and the tasks that the solution seats and the assignment does not, by their index: of
    a relaxed program a rank found no place, or ranks that have to lie apart would have shared a node.
    """

    assignment: Assignment
    unseated: set[int]


def decode(model: PlacementModel, values: Sequence[float], *, launch_all: bool) -> Decoded:
    """The assignment that a solution stands for. Where launches cost nothing, a solution names any number
    of them: only those that are used are launched unless `launch_all`.
    """
    counts = [round(value) for value in values]
    launches: list[NamedLaunch] = []
    slots = [_slots(model, one, counts, launches) for one in model.classes]
    queues = {number: iter(demand.seats) for number, demand in enumerate(model.demand)}
    of_run = _seats_of_runs(model, counts)
    seats: list[tuple[Seat, int, int]] = []
    unseated: set[int] = set()
    apart = [number for number, run in enumerate(model.runs) if run.group.spread]
    for number in apart:  # these choose first
        own, without = _seats_apart(model, counts, number, slots, of_run)
        seats += own
        unseated |= without
    for number, index, column, run in model.placed:
        queue = queues[number] if run < 0 else of_run[run, number]
        here = slots[index][-1, model.classes[index].takes[number]]
        for seat in itertools.islice(queue, 0 if run in apart else counts[column]):
            if here:
                seats.append((seat, here.pop(), number))
            else:
                unseated.add(seat[0].index)
    assignment = model.base.copy()
    used = None if launch_all else {node for (job, _), node, _ in seats if job.index not in unseated}
    number_of = _launch(assignment, launches, used)
    volumes = _volumes(model, counts)
    for seat, node, number in seats:
        if seat[0].index not in unseated:
            _sit(model, assignment, seat, number_of.get(node, node), volumes.get(number, {}))
    return Decoded(assignment, unseated)


def _seats_apart(
    model: PlacementModel,
    counts: Sequence[int],
    number: int,
    slots: Sequence[Slots],
    of_run: Mapping[tuple[int, int], Iterator[Seat]],
) -> tuple[list[tuple[Seat, int, int]], set[int]]:
    """The seats of tasks of a run whose ranks lie apart, and the tasks without a place: each takes the
    places that have most left for them. `slots` are taken, for each class.
    """
    group, most = model.runs[number].group, counts[model.runs[number].column]
    seats: list[tuple[Seat, int, int]] = []
    unseated: set[int] = set()
    left: dict[int, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    """Demand class → place → the nodes there, one for each rank."""
    on = Counter[int]()
    """Node → ranks there: no more than there are tasks."""
    for demand, index, column, run in model.placed:
        if run != number:
            continue
        one = model.classes[index]
        stage = number if one.arcs and number in one.apart else -1
        here = slots[index][stage, one.takes[demand]]
        for _ in range(counts[column]):
            slot = next((i for i in range(len(here) - 1, -1, -1) if on[here[i]] < most), None)
            if slot is None:
                break
            node = here.pop(slot)
            on[node] += 1
            left[demand][node if group.spread == "node" else model.place_apart(group, index)].append(node)
    used: dict[int, set[object]] = defaultdict(set)
    for demand in group.parts:
        for seat in of_run[number, demand]:
            job, places = seat[0].index, left[demand]
            fit = [place for place, nodes in places.items() if nodes and place not in used[job]]
            if fit:
                place = max(fit, key=lambda one: len(places[one]))
                used[job].add(place)
                seats.append((seat, places[place].pop(), demand))
            else:
                unseated.add(job)
    return seats, unseated


def _launch(assignment: Assignment, launches: Sequence[NamedLaunch], used: set[int] | None) -> dict[int, int]:
    """Launch those that are used, or all. The number of a node if all were launched → its own."""
    numbers: dict[int, int] = {}
    for node, (option, name) in enumerate(launches, len(assignment.free)):
        if used is None or node in used:
            numbers[node] = len(assignment.free)
            assignment.launch_idle(option, 1, name)
    return numbers


def _seats_of_runs(model: PlacementModel, counts: Sequence[int]) -> dict[tuple[int, int], Iterator[Seat]]:
    """Run and demand class → the ranks of the tasks that go there."""
    seats: dict[tuple[int, int], Iterator[Seat]] = {}
    taken: Counter[int] = Counter()
    for number, (group, _, column) in enumerate(model.runs):
        first, count = taken[id(group)], counts[column]
        taken[id(group)] += count
        for demand in group.parts:
            of_jobs = group.seats[demand][first : first + count]
            seats[number, demand] = itertools.chain.from_iterable(of_jobs)
    return seats


Given = Mapping[tuple[str, ...], list[list[str]]]
"""Shared volumes that serve a node → of each mount the volumes that are given to ranks there."""


def _volumes(model: PlacementModel, counts: Sequence[int]) -> dict[int, Given]:
    """Demand class → the volumes of its ranks."""
    given: dict[int, dict[tuple[str, ...], list[list[str]]]] = defaultdict(dict)
    for (number, mount, near), columns in model.volume_columns.items():
        own = given[number].setdefault(near, [[] for _ in model.demand[number].mounts])
        own[mount] += [name for name, column in columns.items() if counts[column]][::-1]
    return dict(given)


def _sit(model: PlacementModel, assignment: Assignment, seat: Seat, node: int, given: Given) -> None:
    """Seat a rank on a node, with its volumes."""
    job, rank = seat
    assignment.seats.setdefault(job.index, [-1] * job.ranks)[rank] = node
    kind = assignment.kind_of[node]
    assignment.fill(node, job.request.fit[kind])
    mounts, volumes = job.ask.want.mounts, assignment.catalog.volumes
    if not any(mounts) or not mounts[rank]:
        return
    place, holders = assignment.catalog.place_of[kind], assignment.volume_holders
    if given:
        pools = given[tuple(name for name in model.shared if serves(volumes[name], place))]
        held = {mount.path: pools[i].pop() for i, mount in enumerate(mounts[rank])}
    else:
        held = {
            m.path: next(
                n for n in m.names if n in volumes and n not in holders and serves(volumes[n], place)
            )
            for m in mounts[rank]
        }
    hold(assignment, job, rank, held)


Slots = Mapping[tuple[int, int], list[int]]
"""Run (-1 if its ranks need not lie on nodes apart) and blocks of a rank → nodes with a place for it, one for
each place; the last is to be taken first.
"""


def _slots(
    model: PlacementModel, one: NodeClass, counts: Sequence[int], launches: list[NamedLaunch]
) -> Slots:
    nodes = _nodes(model, one, counts, launches)
    if not one.arcs:
        all_sizes = sorted(one.all_sizes.items(), reverse=True)
        wanted = {size: sum(counts[column] for column in columns) for size, columns in all_sizes}
        packed = pack(sorted((idle, node) for idle, own in nodes.items() for node in own), wanted)
        return {(-1, size): of_size for size, of_size in packed.items()}
    taken = [(arc, counts[column]) for column, arc in one.arcs.items() if counts[column]]
    leaving: dict[Vertex, list[tuple[Arc, int]]] = defaultdict(list)
    """Where arcs begin → the arcs, and how often each is taken; the long ones are the last."""
    for arc, count in sorted(taken, key=lambda item: item[0].end.blocks):
        leaving[arc.start].append((arc, count))
    slots: dict[tuple[int, int], list[int]] = defaultdict(list)
    runs = [*one.apart, -1]
    for _ in range(sum(map(len, nodes.values()))):
        at = Vertex(0, 0)
        ranks: list[tuple[tuple[int, int], int]] = []
        while leaving[at]:
            arc, count = leaving[at].pop()
            if count > 1:
                leaving[at].append((arc, count - 1))
            ranks.append(((runs[at.stage], arc.size), arc.ranks))
            at = arc.end
        if not nodes.get(at.blocks):
            break
        node = nodes[at.blocks].pop()
        for slot, count in ranks:
            slots[slot] += [node] * count
    for of_size in slots.values():
        of_size.reverse()
    return slots


def _nodes(
    model: PlacementModel, one: NodeClass, counts: Sequence[int], launches: list[NamedLaunch]
) -> dict[int, list[int]]:
    """Idle blocks → the nodes of a class, the last is to be taken first. Those that it launches are added
    to `launches`, and have the numbers that follow.
    """
    nodes: dict[int, list[int]] = defaultdict(list)
    for i in one.supplies:
        supply, count = model.supplies[i], counts[model.bought[i]]
        if supply.option:
            first = len(model.base.free) + len(launches)
            launches += [NamedLaunch(supply.option, supply.name)] * count
            nodes[supply.idle] += range(first, first + count)
        elif count:
            nodes[supply.idle] += model.nodes_of(supply)[:count]
    for own in nodes.values():
        own.reverse()
    return nodes


def columns_of(model: PlacementModel, assignment: Assignment) -> set[int]:
    """The columns above 0 where all sit as they do in an assignment, as far as there are any. The program
    has to be made already.
    """
    taken = _Taken(model, assignment)
    for number, demand in enumerate(model.demand):
        for job, rank in demand.seats:
            if job.index in assignment.seats:
                taken.seat([(number, (job, rank))], -1)
    runs: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    """A group, one of its demand classes, and a class of nodes → the runs in which such a rank may sit
    there.
    """
    for number, index, _, run in model.placed:
        if run >= 0:
            runs[id(model.runs[run].group), number, index].append(run)
    for group in model.groups.values():
        first = next(iter(group.seats))
        for place, job in enumerate(group.jobs):
            if job.index in assignment.seats:
                seats = [(n, one) for n, of_jobs in group.seats.items() for one in of_jobs[place]]
                here = runs[id(group), first, taken.class_at(*seats[0][1])]
                seated = (model.runs[run].column for run in here if taken.seat(seats, run))
                taken.columns.update(itertools.islice(seated, 1))
    taken.cut()
    return taken.columns


class _Taken:
    """The columns for what is seated in an assignment."""

    def __init__(self, model: PlacementModel, assignment: Assignment) -> None:
        self.model, self.assignment = model, assignment
        self.columns: set[int] = {
            column for given in model.volume_columns.values() for column in given.values()
        }
        # Nodes that are launched for tasks that stay have other numbers in the base.
        pairs = (zip(assignment.seats[job], own, strict=True) for job, own in model.base.seats.items())
        self._in_base = dict(itertools.chain.from_iterable(pairs))
        self._option_of = {
            launch.node: model.replaced.get(launch.option, launch.option)
            for launch in assignment.launches
            if launch.node not in self._in_base
        }
        self._launched_as = {launch.node: launch.name for launch in assignment.launches}
        self._supplies: dict[object, list[int]] = defaultdict(list)
        for i, supply in enumerate(model.supplies):
            self._supplies[supply.option or (supply.kind, supply.idle)].append(i)
        self._class_of = {i: n for n, one in enumerate(model.classes) for i in one.supplies}
        self._column_of = {seat[:2] + seat[3:]: seat.column for seat in model.placed}
        jobs = model.catalog.jobs
        self._reused = {n for i, nodes in assignment.seats.items() if jobs[i].reuse for n in nodes}
        """The nodes where tasks sit that launch nothing."""
        self._ranks: dict[int, list[tuple[int, int]]] = {node: [] for node in self._option_of}
        """Node → the run and the blocks of each of its ranks."""

    def _supply_at(self, node: int) -> int | None:
        """The number of the supply of a node: its own if a task names it."""
        base = self.model.base
        own = self._in_base.get(node, node)
        option = self._option_of.get(node)
        if option is None and own >= len(base.free):
            return None
        numbers = self._supplies.get(option or (base.kind_of[own], base.free[own]), [])
        supplies = [(i, self.model.supplies[i]) for i in numbers]
        name = self._launched_as.get(node) if option else self.model.name_of(own)
        named = next((i for i, s in supplies if s.name is not None and s.name == name), None)
        if named is not None:
            return named
        unnamed = (i for i, s in supplies if s.name is None and (s.for_reuse or node not in self._reused))
        return next(unnamed, None)

    def class_at(self, job: Job, rank: int) -> int:
        """The number of the class of the node where a rank sits; -1 if it is in none."""
        supply = self._supply_at(self.assignment.seats[job.index][rank])
        return -1 if supply is None else self._class_of.get(supply, -1)

    def seat(self, seats: Iterable[tuple[int, Seat]], run: int) -> bool:
        """Take the columns for ranks, each with the number of its demand class; whether there are all of
        them.
        """
        own = list[tuple[int, int, int]]()
        for number, (job, rank) in seats:
            index = self.class_at(job, rank)
            column = self._column_of.get((number, index, run))
            if column is None:
                return False
            node = self.assignment.seats[job.index][rank]
            own.append((column, node, self.model.classes[index].takes[number]))
        for column, node, blocks in own:
            self.columns.add(column)
            self._ranks.setdefault(node, []).append((run, blocks))
        return True

    def cut(self) -> None:
        """Take the columns for nodes, for how they are cut, and for where cluster fleets begin."""
        model = self.model
        cuts: dict[int, set[tuple[tuple[int, int], ...]]] = defaultdict(set)
        for node, ranks in self._ranks.items():
            supply = self._supply_at(node)
            if supply is not None:
                cuts[supply].add(tuple(sorted(ranks, key=lambda rank: rank[1], reverse=True)))
        self.columns.update(model.bought[supply] for supply in cuts)
        for one in model.classes:
            here = [(model.supplies[i].idle, ranks) for i in one.supplies for ranks in cuts.get(i, ())]
            if one.arcs and here:
                self.columns.update(_arcs(one, here))
        homes = model.homes.items()
        self.columns.update(column for column, own in homes if not self.columns.isdisjoint(own))


def _arcs(one: NodeClass, cuts: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> Iterator[int]:
    """The columns for how nodes are cut: the idle blocks of each, and the run and the blocks of each of its
    ranks, the large ones first.
    """
    column_of = {arc: column for column, arc in one.arcs.items()}
    final = len(one.apart)
    rest = {arc.start.blocks: arc for arc in column_of if arc.start.stage == final and arc.size == 1}
    for idle, ranks in cuts:
        arcs, at = list[Arc](), 0
        for stage, run in enumerate(one.apart):
            own = [blocks for here, blocks in ranks if here == run]
            end = Vertex(stage + 1, at + sum(own))
            arcs.append(Arc(Vertex(stage, at), end, own[0] if own else 0, len(own)))
            at = end.blocks
        others = [blocks for run, blocks in ranks if run not in one.apart]
        for size in itertools.takewhile(lambda size: size > 1, others):
            arcs.append(Arc(Vertex(final, at), Vertex(final, at + size), size, 1))
            at += size
        while at < idle and at in rest:
            arcs.append(rest[at])
            at = rest[at].end.blocks
        yield from (column_of[arc] for arc in arcs if arc in column_of)
