"""The least that a set of tasks can cost, and whether they fit at all, by a model of its own for HiGHS.

Things that are alike are counted. Nodes on which every rank takes the same number of blocks are one class,
and how they are cut is a flow: along the blocks of a node, from as many as are idle down to 0, each rank is
an arc as long as it takes blocks. So the model grows with the number of different things, hardly with the
number of things.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.placement.solver import Model
from benchmarks.worlds.rules import Facts, Place, Space, area, mounts_of, need, one_maker, serves
from declarative.model.resource import RankMount
from declarative.model.spec import Task

GAP = 1e-4
"""A cost is taken for proved if no other can be lower by more than this part of it."""


class Cut(NamedTuple):
    """Of nodes that are alike to all ranks: how many there are of each kind, and who sits on them."""

    nodes: Mapping[Stock, int]
    arcs: Counter[tuple[int, int]]
    """Idle blocks before a rank was seated, and its size → how often that is done."""
    ranks: Mapping[int, list[tuple[str, int]]]
    """Size → the ranks, by task and number."""


class Best(NamedTuple):
    """`bound` holds for every plan. `cost` and `launches` are of the best that was found, if any was."""

    bound: float
    cost: float | None
    launches: Counter[Space]
    proved: bool
    possible: bool | None
    seconds: float
    cuts: tuple[Cut, ...] = ()
    """How that is done."""


class Stock(NamedTuple):
    """Nodes that are alike: how many there are or may be, how many of their blocks are idle."""

    space: Space
    idle: int
    most: float
    new: bool
    name: str | None
    """Of one that is there and that some task names."""


@dataclass(frozen=True, eq=False)
class Request:
    """What ranks ask for that may go to the same places. `reach`: of each mount, where its volumes are."""

    task: Task
    reach: tuple[frozenset[Place], ...]
    shared: tuple[RankMount, ...] = ()
    """Mounts with volumes that other ranks want too: of such ranks each is a request of its own."""

    def takes(self, facts: Facts, stock: Stock) -> int:
        """The blocks of a rank there, 0 if it may not go there."""
        place = stock.space.place
        if not all(any(serves(at, place) for at in places) for places in self.reach):
            return 0
        return need(self.task, facts.sites[stock.space.fleet].fleet, stock.space, stock.name)


@dataclass(frozen=True, eq=False)
class Unit:
    """Tasks that are alike: their names, and of each request which of their ranks have it."""

    task: Task
    names: tuple[str, ...]
    ranks: Mapping[Request, tuple[int, ...]]


class _Run(NamedTuple):
    """The column that says how many tasks of a unit run in one domain, and those that say on what."""

    unit: Unit
    column: int
    seats: Mapping[Request, list[tuple[int, _Class]]]


@dataclass
class _Class:
    """Nodes on which every rank takes the same number of blocks, and which of those they can be had."""

    takes: tuple[int, ...]
    area: tuple[str, ...] | None
    maker: str | None
    place: Place | None
    stocks: list[int] = field(default_factory=list)
    sizes: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Blocks of a rank → the columns that say how many such ranks there are."""
    arcs: dict[tuple[int, int], int] = field(default_factory=dict)
    """Idle blocks before and blocks of a rank → the column that says how often."""


def least_cost(facts: Facts, names: Collection[str], seconds: float, *, least: Mapping[str, int]) -> Best:
    """The least that launches cost on which these tasks find a place. `least`: how many each fleet makes."""
    return _Model(facts, names, least).best(seconds, paid=True)


def fits(facts: Facts, names: Collection[str], seconds: float) -> bool | None:
    """Whether these tasks find a place beside each other at any price; None if that was not found out."""
    return _Model(facts, names, {}).best(seconds, paid=False).possible


class _Model:
    """One world and one set of tasks."""

    def __init__(self, facts: Facts, names: Collection[str], least: Mapping[str, int]) -> None:
        self.facts, self.least = facts, least
        self.model = Model()
        self.units = _units(facts, names)
        self.requests = list(dict.fromkeys(request for unit in self.units for request in unit.ranks))
        self.ranks = sum(len(unit.names) * unit.task.nodes for unit in self.units)
        self.possible = True
        self.stocks = self._stocks()
        self.takes = [
            tuple(request.takes(facts, stock) for request in self.requests) for stock in self.stocks
        ]
        self.number = {request: i for i, request in enumerate(self.requests)}
        self.classes = self._classes()
        self.bought = [
            self.model.column(s.space.price if s.new else 0.0, min(s.most, self._most())) for s in self.stocks
        ]
        self.claims: dict[str, dict[int, float]] = defaultdict(dict)
        self.runs: list[_Run] = []
        for unit in self.units:
            self._seat(unit)
        for volume in self.claims.values():
            self.model.row(0, 1, volume)
        for one in self.classes:
            self._cut(one)
        self._limits()

    def _most(self) -> float:
        """More nodes of one kind than this nobody needs."""
        return self.ranks + sum(self.least.values())

    def best(self, seconds: float, *, paid: bool) -> Best:
        """Solve it; if not `paid`, any solution is as good as another."""
        if not self.possible:
            return Best(math.inf, None, Counter(), proved=True, possible=False, seconds=0.0)
        if not self.model.costs:  # nothing is asked for, and nothing is there
            return Best(0.0, 0.0, Counter(), proved=True, possible=True, seconds=0.0)
        if not paid:
            self.model.costs = [0.0] * len(self.model.costs)
        done = self.model.solve(whole=True, seconds=seconds, gap=GAP)
        if done.impossible:  # HiGHS 1.16 says so wrongly now and then, and never without its presolve
            done = self.model.solve(whole=True, seconds=seconds, gap=GAP, presolve=False)
        if not done.values:
            possible = False if done.impossible else None
            return Best(done.bound, None, Counter(), done.impossible, possible, done.seconds)
        launches: Counter[Space] = Counter()
        for stock, column in zip(self.stocks, self.bought, strict=True):
            if stock.new and round(done.values[column]):
                launches[stock.space] += round(done.values[column])
        cost = sum(space.price * count for space, count in launches.items())
        cuts = tuple(self._cuts([round(value) for value in done.values]))
        return Best(done.bound, cost, launches, done.proved, True, done.seconds, cuts)

    def _cuts(self, values: Sequence[int]) -> Iterator[Cut]:
        """What a solution says, with names."""
        ranks: dict[int, dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
        given: Counter[Unit] = Counter()
        for run in self.runs:
            first = given[run.unit]
            given[run.unit] += values[run.column]
            names = run.unit.names[first : given[run.unit]]
            for request, seats in run.seats.items():
                mine = [(name, rank) for name in names for rank in run.unit.ranks[request]]
                for column, one in seats:
                    size = one.takes[self.number[request]]
                    ranks[id(one)][size] += [mine.pop() for _ in range(values[column])]
        for one in self.classes:
            nodes = {self.stocks[i]: values[self.bought[i]] for i in one.stocks}
            arcs = Counter({arc: values[column] for arc, column in one.arcs.items()})
            yield Cut(nodes, arcs, ranks[id(one)])
        used = {i for one in self.classes for i in one.stocks}
        idle = {stock: values[self.bought[i]] for i, stock in enumerate(self.stocks) if i not in used}
        yield Cut(idle, Counter(), {})

    # What there is

    def _stocks(self) -> list[Stock]:
        named = {name for request in self.requests for name in request.task.instances}
        here = Counter(
            (node.space, node.space.total - len(node.busy), node.name if node.name in named else None)
            for node in self.facts.nodes
            if node.open and node.space.fleet in self.facts.sites
        )
        out = [Stock(space, idle, count, new=False, name=name) for (space, idle, name), count in here.items()]
        for site in self.facts.sites.values():
            for space in dict.fromkeys(offer.space for offer in site.offers):
                room = math.inf if site.room is None else site.room
                most = min(room, self.facts.left[space.quota])
                out.append(Stock(space, space.total, most, new=True, name=None))
        return [stock for stock in out if stock.idle > 0 and stock.most > 0]

    def _classes(self) -> list[_Class]:
        """Nodes that no request tells apart, clusters and makers of GPUs included where a task does."""
        gangs = [unit.task for unit in self.units if unit.task.nodes > 1]
        areas = any(task.cluster for task in gangs)
        makers = any(one_maker(task) for task in gangs)
        places = any(request.shared for request in self.requests) or any(task.spread for task in gangs)
        found: dict[object, _Class] = {}
        for i, (stock, takes) in enumerate(zip(self.stocks, self.takes, strict=True)):
            space = stock.space
            if not any(takes):
                continue
            clustered = self.facts.sites[space.fleet].fleet.placement.value == "cluster"
            where = area(space) if areas and clustered else None
            maker = space.maker if makers else None
            place = space.place if places else None
            key = (takes, where, maker, place)
            found.setdefault(key, _Class(takes, where, maker, place)).stocks.append(i)
        return list(found.values())

    # Who sits where

    def _seat(self, unit: Unit) -> None:
        """All ranks of its tasks have a place, those of one task in one domain."""
        runs: dict[int, float] = {}
        count = len(unit.names)
        for domain in self._domains(unit.task):
            inside = [one for one in self.classes if _inside(one, *domain)]
            if not all(any(one.takes[self.number[request]] for one in inside) for request in unit.ranks):
                continue
            run = _Run(unit, self.model.column(0.0, count), {request: [] for request in unit.ranks})
            self.runs.append(run)
            runs[run.column] = 1.0
            for request, ranks in unit.ranks.items():
                terms = {run.column: -float(len(ranks))}
                for one in inside:
                    if size := one.takes[self.number[request]]:
                        column = self.model.column(0.0, count * len(ranks))
                        terms[column] = one.sizes[size][column] = 1.0
                        run.seats[request].append((column, one))
                self.model.row(0, 0, terms)
                self._claim(request, run.seats[request])
            if unit.task.spread:
                self._keep_apart(seat for seats in run.seats.values() for seat in seats)
        self.possible = self.possible and bool(runs)
        self.model.row(count, count, runs)

    def _keep_apart(self, seats: Iterable[tuple[int, _Class]]) -> None:
        """One rank of a task, which is the only one of its unit, in each zone."""
        zones: dict[Place | None, dict[int, float]] = defaultdict(dict)
        for column, one in seats:
            zones[one.place][column] = 1.0
        for terms in zones.values():
            self.model.row(0, 1, terms)

    def _domains(self, task: Task) -> Iterator[tuple[tuple[str, ...] | None, str | None]]:
        """Where all ranks of a task may lie, and of whose make their GPUs may be. None: whatever it is."""
        gang = task.nodes > 1
        areas: Iterable[tuple[str, ...] | None] = (None,)
        makers: Sequence[str | None] = (None,)
        if gang and task.cluster:
            areas = dict.fromkeys(one.area for one in self.classes if one.area)
        if one_maker(task):
            makers = sorted({one.maker for one in self.classes if one.maker}) or (None,)
        for where in areas:
            for maker in makers:
                yield where, maker

    def _claim(self, request: Request, seats: Sequence[tuple[int, _Class]]) -> None:
        """The rank of a request that shares its volumes takes one of each mount, near where it sits."""
        for mount in request.shared:
            near: dict[str, int] = {}
            for name in mount.names:
                if name in self.facts.volumes:
                    near[name] = self.model.column(0.0, 1)
                    self.claims[name][near[name]] = 1.0
            for column, one in seats:
                good = {near[n]: -1.0 for n in near if one.place and serves(self.facts.volumes[n], one.place)}
                self.model.row(-math.inf, 0, {column: 1.0, **good})

    # How nodes are cut

    def _cut(self, one: _Class) -> None:
        """The flow along the blocks: it begins with the idle blocks of the nodes, and ends anywhere."""
        flow: dict[int, dict[int, float]] = defaultdict(dict)
        for i in one.stocks:
            flow[self.stocks[i].idle][self.bought[i]] = -1.0
        cuts: dict[int, dict[int, float]] = {size: {} for size in one.sizes}
        for start, size in _arcs(list(one.sizes), flow):
            arc = one.arcs[start, size] = self.model.column(0.0, math.inf)
            flow[start][arc], flow[start - size][arc] = 1.0, -1.0
            cuts[size][arc] = -1.0
        for terms in flow.values():
            if any(factor > 0 for factor in terms.values()):
                self.model.row(-math.inf, 0, terms)
        for size, cut in cuts.items():
            self.model.row(-math.inf, 0, {**cut, **one.sizes[size]})

    # What may be launched

    def _limits(self) -> None:
        """Limits of offers, maxima of fleets, and the one place of a cluster fleet."""
        quotas: dict[object, dict[int, float]] = defaultdict(dict)
        fleets: dict[str, dict[int, float]] = defaultdict(dict)
        homes: dict[str, dict[tuple[str, str], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for stock, column in zip(self.stocks, self.bought, strict=True):
            if stock.new:
                space = stock.space
                quotas[space.quota][column] = fleets[space.fleet][column] = 1.0
                homes[space.fleet][space.place[:2]][column] = 1.0
        for quota, terms in quotas.items():
            left = self.facts.left[quota]  # type: ignore[index]
            if math.isfinite(left):
                self.model.row(0, left, terms)
        for name, terms in fleets.items():
            site = self.facts.sites[name]
            most = math.inf if site.room is None else site.room
            self.model.row(self.least.get(name, 0), most, terms)
            if site.fleet.placement.value == "cluster":
                self._one_home(name, homes[name], min(most, self._most()))

    def _one_home(self, fleet: str, homes: Mapping[tuple[str, str], dict[int, float]], most: float) -> None:
        """A cluster fleet lies in one backend and region: where its nodes are, else anywhere."""
        there = self.facts.homes(fleet)
        chosen = {}
        for home, terms in homes.items():
            here = self.model.column(0.0, 0.0 if there - {home} else 1.0)
            chosen[here] = 1.0
            self.model.row(-math.inf, 0, {**terms, here: -most})
        self.model.row(0, 1, chosen)


def _arcs(sizes: Sequence[int], starts: Iterable[int]) -> list[tuple[int, int]]:
    """From how many idle blocks ranks of each size may be taken, if the large ones go first."""
    reached = set(starts)
    arcs = []
    for size in sorted(sizes, reverse=True):
        for start in range(max(reached), size - 1, -1):
            if start in reached:
                reached.add(start - size)
                arcs.append((start, size))
    return arcs


def _inside(one: _Class, where: tuple[str, ...] | None, maker: str | None) -> bool:
    return where in (None, one.area) and (maker is None or one.maker in (None, maker))


# ---------------------------------------------------------------------------------------- what tasks ask for


def alike(facts: Facts, names: Collection[str]) -> list[list[str]]:
    """The tasks in groups that ask for the same, with the same priority; those with volumes by themselves."""
    out: dict[object, list[str]] = {}
    for name in sorted(names):
        want = facts.wants[name]
        own = name if any(want.mounts) else None
        out.setdefault((_asked(want.spec), want.spec.priority, own), []).append(name)
    return list(out.values())


def _units(facts: Facts, names: Collection[str]) -> list[Unit]:
    """The tasks, counted by what they ask for."""
    wanted: Counter[str] = Counter()
    for name in names:
        want = facts.wants[name]
        ranks = range(want.spec.nodes)
        wanted.update(n for rank in ranks for m in mounts_of(want, rank) for n in m.names)
    requests: dict[object, Request] = {}
    units: dict[tuple[str | None, tuple[tuple[Request, tuple[int, ...]], ...]], list[str]] = defaultdict(list)
    for name in sorted(names):
        want = facts.wants[name]
        asked = _asked(want.spec)
        mine: dict[Request, list[int]] = defaultdict(list)
        for rank in range(want.spec.nodes):
            mounts = mounts_of(want, rank)
            reach = tuple(frozenset(facts.volumes[n] for n in m.names if n in facts.volumes) for m in mounts)
            request = Request(want.spec, reach, tuple(mounts))
            if all(wanted[n] == 1 for m in mounts for n in m.names):
                request = requests.setdefault((asked, reach), Request(want.spec, reach))
            mine[request].append(rank)
        own = name if want.spec.spread else None
        units[own, tuple((request, tuple(ranks)) for request, ranks in mine.items())].append(name)
    return [Unit(facts.wants[found[0]].spec, tuple(found), dict(key)) for (_, key), found in units.items()]


def _asked(task: Task) -> tuple[object, ...]:
    """What of a task decides where its ranks may go."""
    where = (task.fleets, task.instances, task.backends, task.regions, task.spot_policy, task.max_price)
    return (task.resources, task.nodes, task.cluster, task.whole_nodes, task.spread, *where)
