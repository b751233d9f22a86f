"""The assignment that a solution stands for: which ranks sit on which nodes; and the columns that stand
for an assignment.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from declarative.placement.assignment import Assignment
from declarative.placement.catalog import LaunchOption
from declarative.placement.counted import Counted
from declarative.placement.cutting import Class, Seat, pack
from declarative.placement.demand import Job
from declarative.placement.volumes import hold, serves

NEARLY = 1e-4
"""A number that is this close to a whole number counts as that."""

MOST_TRIES = 20_000
"""Ranks that are looked at to bring another task to nodes where only tasks lie that launch nothing."""


def assignment_of(
    counted: Counted, values: Sequence[float], without: Iterable[Job] = ()
) -> Assignment | None:
    """The assignment that a solution stands for, `without` some of its tasks; None if some of its numbers
    are not whole. Tasks whose ranks have to lie apart and would share a node are left out; and, if
    the program is rough, those of which a rank finds no place.
    """
    launches: list[LaunchOption] = []
    found = _seats_of(counted, values, launches)
    if found is None:
        return None
    seats, lost, crowded = found
    counted.values = values
    counted.lossy.update(index for _, index in lost)
    out = {job for job, _ in lost} | crowded
    counted.seated = {seat[0].index for seat, _ in seats} - out
    # Whether a task may sit on nodes that others launch is seen afterwards.
    may = {
        job.index for (job, _), _ in seats if job.index in counted.loose and job.reuse and job.unconstrained
    }
    out |= (set(counted.loose) - may) | {job.index for job in without}
    assignment = counted.base.copy()
    # Where launches cost nothing, a solution names any number of them.
    used = {node for _, node in seats} if counted.worth else None
    number_of = _launch(assignment, launches, used)
    for seat, node in seats:
        if seat[0].index not in out:
            _sit(assignment, seat, number_of.get(node, node))
    if may:
        accompany(assignment, counted.base, may)
    return assignment


def _seats_of(
    counted: Counted, values: Sequence[float], launches: list[LaunchOption]
) -> tuple[list[tuple[Seat, int]], set[tuple[int, int]], set[int]] | None:
    """Which ranks sit on which nodes, with the numbers of those in `launches`, to which they are added; tasks
    of which a rank finds no place, each with the class where it finds none; and tasks whose ranks would share
    a node. None as `assignment_of`.
    """
    slots = [_slots(counted, one, values, launches) for one in counted.classes]
    queues = {number: iter(piece.seats) for number, piece in enumerate(counted.pieces)}
    of_run = _of_runs(counted, values)
    if any(abs(values[column] - round(values[column])) > NEARLY for _, _, column, _ in counted.placed):
        return None
    seats: list[tuple[Seat, int]] = []
    lost, crowded = set[tuple[int, int]](), set[int]()
    apart = [run for run, (gang, _, _) in enumerate(counted.runs) if gang.spread]
    for run in apart:  # these choose first
        own, without, beside = _seats_apart(counted, values, run, slots, of_run)
        seats += own
        lost |= without
        crowded |= beside
    for number, index, column, run in counted.placed:
        queue = queues[number] if run < 0 else of_run[run, number]
        here = slots[index][counted.classes[index].takes[number]]
        for seat in itertools.islice(queue, 0 if run in apart else round(values[column])):
            if here:
                seats.append((seat, here.pop()))
            else:
                lost.add((seat[0].index, index))
    if any(next(queue, None) for queue in (*queues.values(), *of_run.values())) or (
        lost and not counted.rough
    ):
        return None
    return seats, lost, crowded


def _seats_apart(
    counted: Counted,
    values: Sequence[float],
    run: int,
    slots: Sequence[Mapping[int, list[int]]],
    of_run: Mapping[tuple[int, int], Iterator[Seat]],
) -> tuple[list[tuple[Seat, int]], set[tuple[int, int]], set[int]]:
    """As `_seats_of`, for the tasks of a run whose ranks have to lie apart: each takes the places that have
    most left for them. `slots` are taken, for each class.
    """
    gang, _, column = counted.runs[run]
    seats: list[tuple[Seat, int]] = []
    lost, crowded = set[tuple[int, int]](), set[int]()
    left: dict[int, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    """Piece → place → the nodes there, one for each rank."""
    short: dict[int, int] = {}
    """Piece → the class where a rank finds no place."""
    on, most = Counter[int](), round(values[column])
    """Node → ranks there: no more than there are tasks."""
    for number, index, own, _ in (placed for placed in counted.placed if placed[3] == run):
        here = slots[index][counted.classes[index].takes[number]]
        for _ in range(round(values[own])):
            slot = next((i for i in range(len(here) - 1, -1, -1) if on[here[i]] < most), None)
            if slot is None:
                short |= {} if here else {number: index}
                break
            node = here.pop(slot)
            on[node] += 1
            left[number][node if gang.spread == "node" else counted.place_apart(gang, index)].append(node)
    used: dict[int, set[object]] = defaultdict(set)
    for number in gang.parts:
        for seat in of_run[run, number]:
            job, places = seat[0].index, left[number]
            fit = [place for place, nodes in places.items() if nodes and place not in used[job]]
            if fit:
                place = max(fit, key=lambda one: len(places[one]))
                used[job].add(place)
                seats.append((seat, places[place].pop()))
            elif number in short:
                lost.add((job, short[number]))
            else:
                crowded.add(job)
    if crowded:
        shared = {index for _, index, own, of in counted.placed if of == run and values[own] > 0.5}
        stocks = (counted.stocks[i] for index in shared for i in counted.classes[index].stocks)
        counted.crowded.update(stock.source for stock in stocks)
    return seats, lost, crowded


def accompany(assignment: Assignment, base: Assignment, guests: Collection[int]) -> None:
    """Let tasks that launch nothing sit only where others do: move a rank of these to each node that has
    none, or exchange one for a rank there; or else leave those without a place that lie there. `guests` are
    such tasks, by their index. What sits in the `base` stays.
    """
    jobs, left = assignment.catalog.jobs, set[int]()
    on: dict[int, list[Seat]] = {launch.node: [] for launch in assignment.launches}
    for index, nodes in assignment.seats.items():
        for rank, node in enumerate(nodes):
            if node in on:
                on[node].append((jobs[index], rank))
    hosts = [
        (jobs[index], rank)
        for index, nodes in assignment.seats.items()
        if index not in base.seats and jobs[index].unconstrained and not jobs[index].reuse
        for rank in range(len(nodes))
    ]
    tries = iter(range(MOST_TRIES))
    for node, seats in on.items():
        if not seats or any(job.index not in guests for job, _ in seats):
            continue
        pairs = ((host, back) for back in (None, *seats) for host in hosts)
        looked_at = (pair for pair, _ in zip(pairs, tries, strict=False))
        found = next((pair for pair in looked_at if _may_join(assignment, *pair, node, on)), None)
        if found is None:
            left.update(job.index for job, _ in seats)
            continue
        (host, rank), back = found
        old = assignment.seats[host.index][rank]
        _move(assignment, [(found[0], node), *([(back, old)] if back else ())], on)
    for index in sorted(left):
        for node in assignment.seats.pop(index):
            assignment.fill(node, -jobs[index].request.fit[assignment.kind_of[node]])


def _move(assignment: Assignment, moves: Sequence[tuple[Seat, int]], on: Mapping[int, list[Seat]]) -> None:
    """Move ranks to nodes, all at once. `on` are the ranks on each launched node."""
    for (job, rank), _ in moves:
        old = assignment.seats[job.index][rank]
        assignment.fill(old, -job.request.fit[assignment.kind_of[old]])
        if old in on:
            on[old].remove((job, rank))
    for (job, rank), node in moves:
        assignment.fill(node, job.request.fit[assignment.kind_of[node]])
        assignment.seats[job.index][rank] = node
        if node in on:
            on[node].append((job, rank))


def _may_join(
    assignment: Assignment, host: Seat, back: Seat | None, node: int, on: Mapping[int, Sequence[Seat]]
) -> bool:
    """Whether a rank may go to a launched node, for another one of there that comes `back` if there is one,
    and does not leave alone those that launch nothing. `on` are the ranks on each launched node.
    """
    (job, rank), guest = host, back and back[0]
    old = assignment.seats[job.index][rank]
    kind, before = assignment.kind_of[node], assignment.kind_of[old]
    rest = [*(other for other in on.get(old, ()) if other != host), *([back] if back else ())]
    if old == node or (old in on and rest and all(other.reuse for other, _ in rest)):
        return False
    room = assignment.free[node] + (guest.request.fit[kind] if guest else 0)
    if guest and not _may_move(assignment, guest, node, old, assignment.free[old] + job.request.fit[before]):
        return False
    return _may_move(assignment, job, old, node, room)


def _may_move(assignment: Assignment, job: Job, old: int, node: int, room: int) -> bool:
    """Whether a rank may go from one node to another that has `room` for it."""
    catalog, kind, before = assignment.catalog, assignment.kind_of[node], assignment.kind_of[old]
    near = not job.request.one_area or catalog.area(job.task, kind) == catalog.area(job.task, before)
    alike = not job.request.one_vendor or catalog.maker_of[kind] == catalog.maker_of[before]
    return near and alike and not job.request.whole and 0 < job.request.fit.get(kind, 0) <= room


def _launch(
    assignment: Assignment, options: Sequence[LaunchOption], used: Collection[int] | None
) -> dict[int, int]:
    """Launch those that are used, or all. The number of a node if all were launched → its own."""
    out: dict[int, int] = {}
    for node, option in enumerate(options, len(assignment.free)):
        if used is None or node in used:
            out[node] = len(assignment.free)
            assignment.launch_idle(option, 1)
    return out


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


def _sit(assignment: Assignment, seat: Seat, node: int) -> None:
    """Seat a rank on a node, with its volumes."""
    job, rank = seat
    assignment.seats.setdefault(job.index, [-1] * job.ranks)[rank] = node
    kind = assignment.kind_of[node]
    assignment.fill(node, job.request.fit[kind])
    mounts, volumes = job.ask.want.mounts, assignment.catalog.volumes
    if any(mounts) and mounts[rank]:
        place, claims = assignment.catalog.place_of[kind], assignment.claims
        found = {
            m.path: next(n for n in m.names if n in volumes and n not in claims and serves(volumes[n], place))
            for m in mounts[rank]
        }
        hold(assignment, job, rank, found)


def _slots(
    counted: Counted, one: Class, values: Sequence[float], launches: list[LaunchOption]
) -> Mapping[int, list[int]]:
    """Blocks of a rank → nodes with a place for it, one for each place; the last is to be taken first."""
    nodes = _nodes(counted, one, values, launches)
    if not one.arcs:
        sizes = sorted(one.sizes, reverse=True)
        counts = {size: sum(round(values[column]) for column in one.sizes[size]) for size in sizes}
        return pack(sorted((idle, node) for idle, own in nodes.items() for node in own), counts)
    taken = [(arc, round(values[column])) for column, arc in one.arcs.items() if values[column] > 0.5]
    leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
    """Where an arc begins → where it ends and how often it is taken; the long ones are the last."""
    for (start, end), count in sorted(taken, key=lambda item: abs(item[0][1])):
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


def _nodes(
    counted: Counted, one: Class, values: Sequence[float], launches: list[LaunchOption]
) -> dict[int, list[int]]:
    """Idle blocks → the nodes of a class, the last is to be taken first. Those that it launches are added to
    `launches`, and have the numbers that follow.
    """
    out: dict[int, list[int]] = defaultdict(list)
    for i in one.stocks:
        stock, count = counted.stocks[i], round(values[counted.bought[i]])
        if stock.option:
            first = len(counted.base.free) + len(launches)
            launches += [stock.option] * count
            out[stock.idle] += range(first, first + count)
        elif count:
            ids = counted.base.idle_by_size[stock.kind][stock.idle][::-1]
            out[stock.idle] += [-n for n in ids[stock.first : stock.first + count]]
    for found in out.values():
        found.reverse()
    return out


def columns_of(counted: Counted, found: Assignment) -> set[int]:
    """The columns above 0 where all sit as they do in `found`, as far as there are any. The program has to be
    made already.
    """
    taken = _Taken(counted, found)
    for number, piece in enumerate(counted.pieces):
        for job, rank in piece.seats:
            if job.index in found.seats:
                taken.seat([(number, (job, rank))], -1)
    runs: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    """A gang, one of its pieces, and a class → the runs in which such a rank may sit there."""
    for number, index, _, run in counted.placed:
        if run >= 0:
            runs[id(counted.runs[run][0]), number, index].append(run)
    for gang in counted.gangs.values():
        first = next(iter(gang.seats))
        for place, job in enumerate(gang.jobs):
            if job.index in found.seats:
                seats = [(n, one) for n, of_jobs in gang.seats.items() for one in of_jobs[place]]
                here = runs[id(gang), first, taken.class_at(*seats[0][1])]
                seated = (counted.runs[run][2] for run in here if taken.seat(seats, run))
                taken.columns.update(itertools.islice(seated, 1))
    taken.cut()
    return taken.columns


class _Taken:
    """The columns for what is seated in an assignment."""

    def __init__(self, counted: Counted, found: Assignment) -> None:
        self.counted, self.found = counted, found
        self.columns: set[int] = set()
        # Nodes that are launched for tasks that stay have other numbers in the base.
        pairs = (zip(found.seats[job], own, strict=True) for job, own in counted.base.seats.items())
        self._in_base = dict(itertools.chain.from_iterable(pairs))
        self._option_of = {
            new.node: counted.beaten.get(new.option, new.option)
            for new in found.launches
            if new.node not in self._in_base
        }
        stocks = ((counted.stocks[i], n) for n, one in enumerate(counted.classes) for i in one.stocks)
        self._class_of = {(stock.kind, stock.idle): n for stock, n in stocks}
        self._column_of = {(number, index, run): column for number, index, column, run in counted.placed}
        self._sizes: dict[int, list[int]] = {node: [] for node in self._option_of}
        """Node → the blocks that each of its ranks takes."""

    def class_at(self, job: Job, rank: int) -> int:
        """The number of the class of the node where a rank sits; -1 if it is in none."""
        node, base = self.found.seats[job.index][rank], self.counted.base
        if option := self._option_of.get(node):
            return self._class_of.get((option.kind, base.catalog.kinds[option.kind].total), -1)
        own = self._in_base.get(node, node)
        return self._class_of.get((base.kind_of[own], base.free[own]), -1)

    def seat(self, seats: Iterable[tuple[int, Seat]], run: int) -> bool:
        """Take the columns for ranks, each with the number of its piece; whether there are all of them."""
        own = list[tuple[int, int, int]]()
        for number, (job, rank) in seats:
            index = self.class_at(job, rank)
            column = self._column_of.get((number, index, run))
            if column is None:
                return False
            node = self.found.seats[job.index][rank]
            own.append((column, node, self.counted.classes[index].takes[number]))
        for column, node, blocks in own:
            self.columns.add(column)
            self._sizes.setdefault(node, []).append(blocks)
        return True

    def cut(self) -> None:
        """Take the columns for nodes, for how they are cut, and for where cluster fleets begin."""
        counted, base = self.counted, self.counted.base
        stock_of = {stock.option or (stock.kind, stock.idle): i for i, stock in enumerate(counted.stocks)}
        cuts: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for node, sizes in self._sizes.items():
            own = self._in_base.get(node, node)
            stock = stock_of.get(self._option_of.get(node) or (base.kind_of[own], base.free[own]))
            if stock is not None:
                cuts[stock].add(tuple(sorted(sizes, reverse=True)))
        self.columns.update(counted.bought[stock] for stock in cuts)
        for one in counted.classes:
            here = [(counted.stocks[i].idle, ranks) for i in one.stocks for ranks in cuts.get(i, ())]
            if one.arcs and here:
                self.columns.update(_arcs(one, here))
        homes = counted.homes.items()
        self.columns.update(column for column, own in homes if not self.columns.isdisjoint(own))


def _arcs(one: Class, cuts: Iterable[tuple[int, Sequence[int]]]) -> Iterator[int]:
    """The columns for how nodes are cut: the idle blocks of each, and its ranks, the large ones first."""
    column_of = {arc: column for column, arc in one.arcs.items()}
    rest = {start: end for start, end in column_of if end < 0}
    for idle, sizes in cuts:
        arcs, at = list[tuple[int, int]](), 0
        for size in itertools.takewhile(lambda size: size > 1, sizes):
            arcs.append((at, at + size))
            at += size
        while at < idle and at in rest:
            arcs.append((at, rest[at]))
            at = -rest[at]
        yield from (column_of[arc] for arc in arcs if arc in column_of)
