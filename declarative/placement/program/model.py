"""Placement as an integer program in which all that is alike is counted.

Nodes on which every rank takes the same number of blocks are one class; how they are cut is a flow along
their blocks. Tasks that ask for the same are counted, too: the program grows with what differs. Every rule
is in it: pins, areas and vendors of gangs, spread, shared volumes, reuse, limits, baselines and the homes
of cluster fleets.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from declarative.model.record import struct
from declarative.placement.assignment import UNLIMITED, Assignment
from declarative.placement.catalog import ANYWHERE, Area, Domain, Job, LaunchOption, Request, is_spread
from declarative.placement.problem import Place
from declarative.placement.program.arc_flow import Arc, RanksApart, add_flow, add_relaxation, columns_of
from declarative.placement.program.solver import Program
from declarative.placement.volumes import free_volumes, serves

MOST_COLUMNS = 20_000
"""A program with more columns is not solved."""

ROUGH = 24
"""In a relaxed program, it is not said how nodes with more blocks than that are cut."""

SKEW = 0.1
"""By so much of a block, in all, tasks that come later are worth less: of equals, the first are seated."""

UNKNOWN = 4
"""What an unknown price counts as: so many times the highest that is known."""

Seat = tuple[Job, int]
"""A rank of a task."""

Sites = Mapping[int, tuple[frozenset[Area | None], str | None, tuple[str, ...]]]
"""Node type → its areas, the maker of its GPUs, and the shared volumes that serve it."""

Reach = frozenset[Place] | None
"""The places from which a rank reaches its volumes; None is any."""


class NodeSupply(NamedTuple):
    """Nodes of one type with as many idle blocks: how many there are, or may be launched."""

    kind: int
    idle: int
    most: float
    option: LaunchOption | None
    name: str | None = None
    """The name of a single node that a task names."""
    for_reuse: bool = True
    """Whether tasks that launch nothing may sit there."""


@struct(slots=True)
class DemandClass:
    """Ranks that take the same number of blocks everywhere, and may have the same volumes."""

    takes: dict[int, int]
    """Node type → blocks."""
    reuse: bool
    """Whether they launch nothing."""
    names: frozenset[str] | None
    """The nodes where they may be; None is any."""
    mounts: tuple[tuple[str, ...], ...]
    """The volumes that each mount may have, if other ranks want one of them."""
    seats: list[Seat] = field(default_factory=list)

    def may_be_on(self, supply: NodeSupply) -> bool:
        """Whether a rank may be on such nodes, if they are large enough."""
        return (supply.for_reuse or not self.reuse) and (self.names is None or supply.name in self.names)


@struct(slots=True)
class TaskGroup:
    """Tasks that are alike and may be left out, or whose ranks have a domain in common. `parts`: demand
    class → ranks of each task.
    """

    request: Request
    parts: dict[int, int]
    level: int | None
    """The priority of those that may be left out."""
    spread: str | None = None
    """The level at which the ranks of each task lie apart: then all are of one class, or it is one task."""
    jobs: list[Job] = field(default_factory=list)
    seats: dict[int, list[list[Seat]]] = field(default_factory=lambda: defaultdict(list))
    """Demand class → the ranks of each task that are of it."""


@struct(slots=True)
class NodeClass:
    """Nodes that no rank tells apart."""

    takes: dict[int, int]
    """Demand class → blocks."""
    areas: frozenset[Area | None]
    """Where they lie, at each level at which gangs lie together or apart."""
    maker: str | None
    near: tuple[str, ...]
    """The shared volumes that serve them."""
    supplies: list[int] = field(default_factory=list)
    room: dict[int, float] = field(default_factory=dict)
    """Blocks of a rank → how many such ranks its nodes hold, for those that were asked for."""
    sizes: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Blocks of a rank → the columns that count such ranks."""
    apart: dict[int, RanksApart] = field(default_factory=dict)
    """A run whose ranks lie on nodes apart → the same for these."""
    ends: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Idle blocks → the columns of the nodes that have so many."""
    relaxed: bool = False
    """Whether it is not said how its nodes are cut."""
    arcs: Mapping[int, Arc] = field(default_factory=dict)
    """Column → its arc; empty if the class is relaxed."""

    @property
    def all_sizes(self) -> dict[int, dict[int, float]]:
        """The columns of all ranks, by their blocks."""
        sizes: dict[int, dict[int, float]] = defaultdict(dict)
        for own in (self.sizes, *(one.sizes for one in self.apart.values())):
            for size, columns in own.items():
                sizes[size] |= columns
        return sizes


class GroupRun(NamedTuple):
    """The tasks of a group that lie in one domain; `column` counts them."""

    group: TaskGroup
    domain: Domain
    column: int


class RankColumn(NamedTuple):
    """The column that counts the ranks of a demand class on a node class; `run` is -1 for tasks without a
    group.
    """

    demand: int
    node_class: int
    column: int
    run: int


class PlacementModel:
    """Tasks that are to be seated on `base`, where all others have their places."""

    def __init__(
        self,
        base: Assignment,
        required: Sequence[Job],
        optional: Sequence[Job] = (),
        *,
        baseline: Mapping[str, int],
        stays: Mapping[tuple[int, int], str] | None = None,
        kept_launches: Mapping[LaunchOption, int] | None = None,
        reuse_anywhere: bool = False,
    ) -> None:
        """`optional` tasks may be left out. `baseline`: fleet → how many nodes it launches at least.
        `stays`: task and rank → the node where it stays. `kept_launches`: the launches of fleets for
        themselves, which may be used by tasks that launch nothing. With `reuse_anywhere`, these may sit on
        all launches.
        """
        self.base, self.catalog, self.baseline = base, base.catalog, baseline
        self.required, self.optional = required, optional
        self.stays = stays or {}
        self.kept_launches = {} if reuse_anywhere else kept_launches or {}
        self.reuse_anywhere = reuse_anywhere
        every = (*required, *optional)
        self.most = sum(job.ranks for job in every) + sum(baseline.values())
        """More nodes of one sort than this nobody needs."""
        self.uncut = Program()
        """The program without how nodes are cut."""
        self.demand: list[DemandClass] = []
        self.groups: dict[object, TaskGroup] = {}
        self._numbers: dict[object, int] = {}
        self._wanted = _wanted(every)
        self._names = {name for job in every for name in job.task.instances} | set(self.stays.values())
        self.supplies = self._supplies()
        self.shared: tuple[str, ...] = ()
        """The volumes that several mounts of ranks may have."""
        self.kinds = sorted({supply.kind for supply in self.supplies})
        self._is_supplied = bytearray(len(self.catalog.kinds))
        for kind in self.kinds:
            self._is_supplied[kind] = 1
        self._places = dict.fromkeys(self.catalog.place_of[kind] for kind in self.kinds)
        for job in required:
            self._add(job, None)
        for job in optional:
            self._add(job, job.task.priority)
        self.shared = tuple(sorted({name for one in self.demand for names in one.mounts for name in names}))
        self.replaced: dict[LaunchOption, LaunchOption] = {}
        """Offers that no plan needs, and what holds as much in their stead."""
        sites = self._sites()
        takes = self._takes()
        kept = self._undominated(sites, takes, free=bool(optional))
        self.supplies = [self.supplies[i] for i in kept]
        self.classes = self._classes(sites, [takes[i] for i in kept])
        self.by_area: dict[Area | None, list[int]] = defaultdict(list)
        for i, one in enumerate(self.classes):
            for area in one.areas:
                self.by_area[area].append(i)
        self.bought = [self.uncut.column(min(supply.most, self.most)) for supply in self.supplies]
        self.placed: list[RankColumn] = []
        self.runs: list[GroupRun] = []
        self.homes: dict[int, Collection[int]] = {}
        """Columns that say where cluster fleets begin, with those of the nodes that they launch there."""
        self.volume_columns: dict[tuple[int, int, tuple[str, ...]], dict[str, int]] = {}
        """Demand class, mount and volumes that are near → the columns that give the volumes away."""
        self.possible = self._seat_all()
        for one in self.classes:
            ranks = sum(self.uncut.most[column] for columns in one.all_sizes.values() for column in columns)
            for i in one.supplies:
                supply, column = self.supplies[i], self.bought[i]
                one.ends[supply.idle].append(column)
                own = self.baseline.get(supply.option.fleet, 0) if supply.option else 0
                self.uncut.most[column] = min(self.uncut.most[column], ranks + own)
        self._limits()

    # How it is solved

    @functools.cached_property
    def program(self) -> Program:
        """The whole program. It is made only if it is solved: most of its columns say how nodes are cut."""
        program = self.uncut.copy()
        for one in self.classes:
            if one.relaxed:
                add_relaxation(program, one.all_sizes, one.ends)
            else:
                one.arcs = add_flow(program, one.sizes, one.ends, [*one.apart.values()])
        return program

    @functools.cached_property
    def size(self) -> int:
        """How many columns the program has; if they are too many, no more than that is known of them."""
        count = len(self.uncut.most)
        for one in self.classes:
            if count > MOST_COLUMNS:
                break
            if not one.relaxed:
                count += columns_of(self.uncut, one.sizes, one.ends, one.apart.values())
        return count

    def relaxed(self) -> PlacementModel | None:
        """The program that does not say how nodes with many blocks are cut. There are far fewer columns then,
        and bounds hold; but of what a solution gives to these nodes, some ranks may find no place there. None
        if it says no less.
        """
        large = [max(one.ends) > ROUGH for one in self.classes]
        if not any(large):
            return None
        model = copy.copy(self)
        for cached in ("program", "size"):
            model.__dict__.pop(cached, None)
        model.classes = [
            replace(one, arcs={}, relaxed=relax) for one, relax in zip(self.classes, large, strict=True)
        ]
        return model

    def prices(self) -> list[float]:
        """What launches cost, USD an hour, by column."""
        kinds, costs = self.catalog.kinds, [0.0] * len(self.program.most)
        known = (kinds[s.kind].cost for s in self.supplies if s.option)
        dear = UNKNOWN * max(filter(math.isfinite, known), default=1.0)
        for supply, column in zip(self.supplies, self.bought, strict=True):
            if supply.option:
                costs[column] = min(kinds[supply.kind].cost, dear)
        return costs

    def weights(self, factors: Mapping[int, float]) -> list[float]:
        """Minus what it is worth to seat tasks, by column: their blocks, times the factor of their
        priority.
        """
        costs, order = [0.0] * len(self.program.most), {id(g): i for i, g in enumerate(self.groups.values())}
        for run in self.runs:
            level = run.group.level
            if level is not None and level in factors:
                later = SKEW * order[id(run.group)] / len(order) / len(self.optional)
                costs[run.column] = later - factors[level] * run.group.jobs[0].weight
        return costs

    # What there is

    def _supplies(self) -> list[NodeSupply]:
        base, catalog = self.base, self.catalog
        supplies: list[NodeSupply] = []
        for kind, pile in sorted(base.idle_by_size.items()):
            for idle, ids in sorted(pile.items()):
                named = [node for node in sorted(-i for i in ids) if self.name_of(node) in self._names]
                if len(ids) > len(named):
                    supplies.append(NodeSupply(kind, idle, len(ids) - len(named), None))
                supplies += (NodeSupply(kind, idle, 1, None, self.name_of(node)) for node in named)
        coming = sorted(self._names & catalog.coming)
        for option in catalog.options:
            room, left = base.fleet_room[option.fleet], base.quota_left[option.quota]
            most = min(UNLIMITED if room is None else room, UNLIMITED if left is None else left)
            homes = base.cluster_homes.get(option.fleet)
            if most <= 0 or (homes and homes - {option.home}):
                continue
            total, own = catalog.kinds[option.kind].total, self.kept_launches.get(option, 0)
            if option.offer.name not in coming:
                supplies.append(NodeSupply(option.kind, total, most, option, for_reuse=self.reuse_anywhere))
                if own:
                    supplies.append(NodeSupply(option.kind, total, min(own, most), option))
            for name in coming:
                if name == option.offer.name or (
                    not option.offer.name and name.rpartition("-")[0] == option.fleet
                ):
                    supplies.append(
                        NodeSupply(
                            option.kind, total, 1, option, name, for_reuse=bool(own) or self.reuse_anywhere
                        )
                    )
        return supplies

    def name_of(self, node: int) -> str | None:
        """The name of a node that is there, or is launched under a name."""
        nodes = self.catalog.nodes
        return nodes[node].name if node < len(nodes) else self.base.name_of(node)

    def nodes_of(self, supply: NodeSupply) -> list[int]:
        """The numbers of the nodes of a supply that are there, the first by name first."""
        numbers = sorted(-i for i in self.base.idle_by_size[supply.kind][supply.idle])
        if not self._names:
            return numbers
        named = {node: self.name_of(node) for node in numbers}
        if supply.name is not None:
            return [node for node, name in named.items() if name == supply.name]
        return [node for node, name in named.items() if name not in self._names]

    # What is asked for

    def _add(self, job: Job, level: int | None) -> None:
        domains = self.catalog.domains(job.request)
        if any(job.ask.want.mounts) or job.ask.prior:
            numbers = [self._demand_class(job, rank) for rank in range(job.ranks)]
        else:
            numbers = [self._demand_class(job, 0)] * job.ranks
        spread = job.task.spread if is_spread(job.task) else None
        if domains == [ANYWHERE] and level is None and not spread:
            for rank, number in enumerate(numbers):
                self.demand[number].seats.append((job, rank))
            return
        parts = Counter(numbers)
        own = job.index if spread and len(parts) > 1 else None
        weight = job.weight if level is not None else 0
        key = (tuple(domains), tuple(sorted(parts.items())), level, weight, spread, own)
        group = self.groups.setdefault(key, TaskGroup(job.request, dict(parts), level, spread))
        group.jobs.append(job)
        for number in parts:
            group.seats[number].append([(job, r) for r in range(job.ranks) if numbers[r] == number])

    def _demand_class(self, job: Job, rank: int) -> int:
        reach, mounts = self._volumes(job, rank)
        pins = job.task.instances
        names = frozenset(map(str, pins)) if pins else None
        if stay := self.stays.get((job.index, rank)):
            names = frozenset((stay,))
        key = (id(job.request), reach, job.reuse, names, mounts)
        if key not in self._numbers:
            place_of = self.catalog.place_of
            takes = dict(job.request.fit.among(self._is_supplied))
            if reach is not None:
                takes = {kind: need for kind, need in takes.items() if place_of[kind] in reach}
            same = (*takes.items(), job.reuse, names, mounts)
            if same not in self._numbers:
                self._numbers[same] = len(self.demand)
                self.demand.append(DemandClass(takes, job.reuse, names, mounts))
            self._numbers[key] = self._numbers[same]
        return self._numbers[key]

    def _volumes(self, job: Job, rank: int) -> tuple[Reach, tuple[tuple[str, ...], ...]]:
        """The places where a rank reaches volumes for its mounts, and what each mount may have if others
        want it too.
        """
        mounts = job.ask.want.mounts
        if not any(mounts) or not mounts[rank]:
            return None, ()
        free = free_volumes(mounts[rank], self.catalog.volumes, self.base.volume_holders)
        reach = frozenset(p for p in self._places if all(any(serves(at, p) for _, at in own) for own in free))
        names = tuple(tuple(name for name, _ in own) for own in free)
        shared = any(self._wanted[name] > 1 for own in names for name in own)
        return reach, names if shared else ()

    # What is alike

    def _takes(self) -> list[dict[int, int]]:
        """Of each supply the demand classes that it holds, and the blocks that each takes."""
        of_kind: dict[int, dict[int, int]] = {kind: {} for kind in self.kinds}
        for number, one in enumerate(self.demand):
            for kind, need in one.takes.items():
                of_kind[kind][number] = need
        limited = [
            (number, one) for number, one in enumerate(self.demand) if one.reuse or one.names is not None
        ]
        takes: list[dict[int, int]] = []
        for supply in self.supplies:
            here = of_kind[supply.kind]
            barred = {number for number, one in limited if number in here and not one.may_be_on(supply)}
            takes.append({n: need for n, need in here.items() if n not in barred} if barred else here)
        return takes

    def _sites(self) -> Sites:
        """Node type → where it lies, at each level at which gangs lie together or apart; who made its GPUs,
        if that matters; and the shared volumes that serve it.
        """
        groups, catalog = self.groups.values(), self.catalog
        domains = [domain for group in groups for domain in catalog.domains(group.request)]
        apart = {group.spread for group in groups} - {None, "node"}
        levels = sorted({domain.area.level for domain in domains if domain.area}.union(filter(None, apart)))
        makers = any(group.request.one_vendor for group in groups)
        areas = [catalog.areas(level) for level in levels]
        maker = catalog.maker_of if makers else [None] * len(catalog.kinds)
        near = {
            place: tuple(name for name in self.shared if serves(catalog.volumes[name], place))
            for place in self._places
        }
        return {
            kind: (frozenset(of[kind] for of in areas), maker[kind], near[catalog.place_of[kind]])
            for kind in self.kinds
        }

    def _undominated(self, site: Sites, takes_of: Sequence[Mapping[int, int]], *, free: bool) -> list[int]:
        """The supplies without offers that no plan needs: one without a limit holds as much, and costs no
        more, or is `free`.
        """
        kinds = self.catalog.kinds
        order = list(range(len(self.supplies)))
        if free:  # else they are in the order of their prices
            order.sort(key=lambda i: (-self.supplies[i].idle, -len(takes_of[i]), sum(takes_of[i].values())))
        best: dict[object, list[tuple[NodeSupply, Mapping[int, int]]]] = defaultdict(list)
        same: dict[object, NodeSupply] = {}
        kept: list[int] = []
        for i in order:
            supply, takes, option = self.supplies[i], takes_of[i], self.supplies[i].option
            if option and supply.name is None and supply.for_reuse == self.reuse_anywhere:
                home = option.home if self.base.cluster_homes.get(option.fleet) is not None else None
                where = (option.fleet, home, site[supply.kind])
                alike = (where, supply.idle, tuple(takes.items()))
                better = same.get(alike) or next(
                    (other for other, has in best[where] if _beats(other, has, supply, takes)), None
                )
                cheaper = better and (free or kinds[better.kind].cost <= kinds[supply.kind].cost)
                if better and better.option and cheaper:
                    self.replaced[option] = better.option
                    continue
                if self.base.quota_left[option.quota] is None:
                    same[alike] = supply
                    best[where].append((supply, takes))
            kept.append(i)
        return sorted(kept)

    def _classes(self, site: Sites, takes_of: Sequence[dict[int, int]]) -> list[NodeClass]:
        classes: dict[object, NodeClass] = {}
        for i, (supply, takes) in enumerate(zip(self.supplies, takes_of, strict=True)):
            if takes:
                areas, maker, near = site[supply.kind]
                key = tuple(takes.items()), areas, maker, near
                classes.setdefault(key, NodeClass(takes, areas, maker, near)).supplies.append(i)
        return list(classes.values())

    # Who sits where

    def _seat_all(self) -> bool:
        """Seat everyone; whether there is a class of nodes for each."""
        possible = True
        for number, demand in enumerate(self.demand):
            if demand.seats:
                count = len(demand.seats)
                terms = self._seats(number, count, ANYWHERE, -1)
                self.uncut.row(count, count, terms or {self.uncut.column(0.0): 1.0})
                possible = possible and bool(terms)
        for group in self.groups.values():
            possible = self._seat_group(group) and possible
        self._give_volumes()
        return possible

    def _seats(self, number: int, most: int, domain: Domain, run: int) -> dict[int, float]:
        terms: dict[int, float] = {}
        for index in self._of_domain(domain):
            one = self.classes[index]
            if need := one.takes.get(number):
                column = self.uncut.column(min(most, self._room(one, need)))
                sizes = one.apart[run].sizes if run in one.apart else one.sizes
                terms[column] = sizes.setdefault(need, {})[column] = 1.0
                self.placed.append(RankColumn(number, index, column, run))
        return terms

    def _room(self, one: NodeClass, need: int) -> float:
        """How many ranks of so many blocks the nodes of a class hold."""
        if need not in one.room:
            supplies = (self.supplies[i] for i in one.supplies)
            one.room[need] = sum(supply.most * (supply.idle // need) for supply in supplies)
        return one.room[need]

    def _of_domain(self, domain: Domain) -> list[int]:
        """The numbers of the classes in a domain."""
        numbers = self.by_area[domain.area] if domain.area else range(len(self.classes))
        return [i for i in numbers if domain.maker is None or self.classes[i].maker in (None, domain.maker)]

    def _seat_group(self, group: TaskGroup) -> bool:
        runs: dict[int, float] = {}
        for domain in self.catalog.domains(group.request):
            here = [self.classes[i].takes for i in self._of_domain(domain)]
            if not all(any(number in takes for takes in here) for number in group.parts):
                continue
            column = self.uncut.column(len(group.jobs))
            runs[column] = 1.0
            self.runs.append(GroupRun(group, domain, column))
            first = len(self.placed)
            if group.spread == "node":
                for index in self._of_domain(domain):
                    self.classes[index].apart[len(self.runs) - 1] = RanksApart(len(group.jobs), {})
            for number, ranks in group.parts.items():
                terms = self._seats(number, len(group.jobs) * ranks, domain, len(self.runs) - 1)
                self.uncut.row(0, 0, {column: -float(ranks), **terms})
            if group.spread:
                self._keep_apart(group, column, self.placed[first:])
        if runs:
            self.uncut.row(len(group.jobs) if group.level is None else 0, len(group.jobs), runs)
        return bool(runs) or group.level is not None

    def _keep_apart(self, group: TaskGroup, run: int, seats: Sequence[RankColumn]) -> None:
        """Seat at most one rank of each task of a run at one place of a level. `run` is the column that
        counts the tasks.

        Tasks of as many ranks each can be told apart then: a matrix of zeros and ones has such sums of rows
        and columns (Gale 1957, Ryser 1957).
        """
        at: dict[object, dict[int, float]] = defaultdict(dict)
        for seat in seats:
            index = seat.node_class
            at[index if group.spread == "node" else self.place_apart(group, index)][seat.column] = 1.0
        if group.spread == "node":
            for index, number in {seat.node_class: seat.demand for seat in seats}.items():
                self._keep_apart_on_nodes(self.classes[index], number, len(group.jobs), run, at[index])
        else:
            for terms in at.values():
                self.uncut.row(-math.inf, 0, {**terms, run: -1.0})

    def _keep_apart_on_nodes(
        self, one: NodeClass, number: int, tasks: int, run: int, ranks: Mapping[int, float]
    ) -> None:
        """No node takes more `ranks` than it has room for, nor than there are tasks in the run."""
        room = {i: min(self.supplies[i].idle // one.takes[number], tasks) for i in one.supplies}
        there = [i for i in one.supplies if not self.supplies[i].option]
        fewer = {0, *map(room.__getitem__, there)} if tasks > 1 else set()
        for most in sorted({tasks} | fewer):
            full = [i for i in there if room[i] > most]
            nodes = {self.bought[i]: -float(room[i]) for i in one.supplies if i not in full}
            many = sum(self.supplies[i].most for i in full)
            self.uncut.row(-math.inf, 0, {**ranks, **nodes, run: -float(many)})

    def place_apart(self, group: TaskGroup, index: int) -> object:
        """Where ranks that lie apart are, if they are in a class."""
        areas = self.classes[index].areas
        return next(area[1:] for area in areas if area and area.level == group.spread)

    def _give_volumes(self) -> None:
        """Give each mount of ranks that share volumes with others one that serves the node, and each volume
        once.
        """
        ranks: dict[tuple[int, tuple[str, ...]], dict[int, float]] = defaultdict(dict)
        for seat in self.placed:
            if self.demand[seat.demand].mounts:
                ranks[seat.demand, self.classes[seat.node_class].near][seat.column] = -1.0
        holders: dict[str, dict[int, float]] = defaultdict(dict)
        for (number, near), terms in ranks.items():
            for mount, names in enumerate(self.demand[number].mounts):
                given = {name: self.uncut.column(1.0) for name in names if name in near}
                self.volume_columns[number, mount, near] = given
                self.uncut.row(0, 0, {**terms, **dict.fromkeys(given.values(), 1.0)})
                for name, column in given.items():
                    holders[name][column] = 1.0
        for columns in holders.values():
            if len(columns) > 1:
                self.uncut.row(0, 1, columns)

    # What may be launched

    def _limits(self) -> None:
        quotas: dict[object, dict[int, float]] = defaultdict(dict)
        fleets: dict[str, dict[int, float]] = defaultdict(dict)
        names: dict[str, dict[int, float]] = defaultdict(dict)
        pinned: dict[str, dict[int, float]] = defaultdict(dict)
        kept: dict[LaunchOption, dict[int, float]] = defaultdict(dict)
        homes: dict[str, dict[object, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        base = self.base
        for supply, column in zip(self.supplies, self.bought, strict=True):
            option = supply.option
            if not option:
                continue
            quotas[option.quota][column] = 1.0
            fleets[option.fleet][column] = 1.0
            homes[option.fleet][option.home][column] = 1.0
            if supply.name:
                names[supply.name][column] = 1.0
                if supply.name not in self.catalog.fleets[option.fleet].free_names:
                    pinned[option.fleet][column] = 1.0
            if supply.for_reuse and not self.reuse_anywhere:
                kept[option][column] = 1.0
        for quota, terms in quotas.items():
            left = base.quota_left[quota]  # type: ignore[index]
            if left is not None:
                self.uncut.row(0, left, terms)
        for fleet, terms in fleets.items():
            least, room = self.baseline.get(fleet, 0), _or_inf(base.fleet_room[fleet])
            if least or room < math.inf:
                self.uncut.row(least, room, terms)
            if not base.cluster_homes.get(fleet, True) and len(homes[fleet]) > 1:
                self._one_home(homes[fleet].values(), min(room, self.most))
        for terms in names.values():
            self.uncut.row(0, 1, terms)
        for fleet, terms in pinned.items():  # a pin is no reason to launch more
            self.uncut.row(0, base.baseline_left[fleet], terms)
        for option, terms in kept.items():
            if len(terms) > 1:
                self.uncut.row(0, self.kept_launches.get(option, 0), terms)

    def _one_home(self, homes: Iterable[Mapping[int, float]], most: float) -> None:
        """Launch the nodes of a cluster fleet, of which there are none yet, in one of its homes."""
        chosen: dict[int, float] = {}
        for own in homes:
            here = self.uncut.column(1.0)
            self.homes[here] = own.keys()
            chosen[here] = 1.0
            self.uncut.row(-math.inf, 0, {**own, here: -float(most)})
        self.uncut.row(0, 1, chosen)


def _beats(other: NodeSupply, has: Mapping[int, int], supply: NodeSupply, takes: Mapping[int, int]) -> bool:
    """Whether another sort of nodes has as many blocks, and each rank takes no more of them there."""
    if other.idle < supply.idle or not has.keys() >= takes.keys():
        return False
    return all(has[number] <= need for number, need in takes.items())


def _wanted(jobs: Iterable[Job]) -> Counter[str]:
    """Volume → how many mounts of ranks may have it."""
    return Counter(_volume_names(jobs))


def _volume_names(jobs: Iterable[Job]) -> Iterator[str]:
    for job in jobs:
        for mounts in job.ask.want.mounts:
            for mount in mounts:
                yield from mount.names


def _or_inf(limit: int | None) -> float:
    return math.inf if limit is None else limit
