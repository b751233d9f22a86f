"""What is best in a world, by a model of its own for HiGHS: blocks by priority, then cost.

`seated` says how many blocks can be seated, priority by priority; `least_cost` what a set of tasks costs at
least, and `fits` whether a set of tasks fits at all.

Tasks that are alike are one group, and nodes on which every rank takes the same number of blocks are one
class. For each group and each class a column counts the ranks there. How the nodes of a class are cut into
blocks is a flow: along the blocks of a node, from as many as are idle down to 0, each rank is an arc as long
as it takes blocks. So the model grows with the number of different things, hardly with the number of things.

A task with `creation_policy: reuse` sits on nodes that are there and on those that a fleet launches for
itself. That it may also sit on what is launched for others is no part of the model: those seats come on top.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.placement.solver import Model, Solution
from benchmarks.worlds.rules import (
    Facts,
    Place,
    Space,
    area,
    mounts_of,
    need,
    one_maker,
    reuses,
    serves,
    worth,
)
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
    cuts: tuple[Cut, ...] = ()
    """How that is done."""
    tasks: frozenset[str] = frozenset()
    """The tasks that have a place."""
    volumes: Mapping[tuple[str, int, str], str] = {}
    """Task, rank and path → the volume that is mounted there, where other ranks want it too."""


class Level(NamedTuple):
    """The blocks of one priority that can be seated, and a bound of them. `ours`: what the plan seats."""

    priority: int
    blocks: int
    bound: float
    ours: int


class Stock(NamedTuple):
    """Nodes that are alike: how many there are or may be, how many of their blocks are idle."""

    space: Space
    idle: int
    most: float
    new: bool
    name: str | None
    """Of one that is there, if it matters which one it is."""
    base: bool = False
    """Whether its fleet launches them for itself: even `reuse` may use them."""


@dataclass(frozen=True, eq=False)
class Request:
    """What ranks ask for that may go to the same places. `reach`: of each mount, where its volumes are."""

    task: Task
    reach: tuple[frozenset[Place], ...]
    shared: tuple[RankMount, ...] = ()
    """Mounts with volumes that other ranks want too: of such ranks each is a request of its own."""

    def takes(self, facts: Facts, stock: Stock, *, rides: bool) -> int:
        """The blocks of a rank there, 0 if it may not go there."""
        place = stock.space.place
        if stock.new and not stock.base and reuses(self.task) and not rides:
            return 0
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
    claims: dict[tuple[Request, str], dict[str, int]]
    """Request and path → volume → the column that says whether it is taken."""


@dataclass
class _Class:
    """Nodes on which every rank takes the same number of blocks, and whatever else tasks tell apart."""

    takes: tuple[int, ...]
    space: Space
    """One of theirs: alike are all in what `key` names."""
    name: str | None
    stocks: list[int] = field(default_factory=list)
    sizes: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Blocks of a rank → the columns that say how many such ranks there are."""
    arcs: dict[tuple[int, int], int] = field(default_factory=dict)
    """Idle blocks before and blocks of a rank → the column that says how often."""


def least_cost(
    facts: Facts, names: Collection[str], seconds: float, *, least: Mapping[str, int], rides: bool = False
) -> Best:
    """The least that launches cost on which these tasks find a place. `least`: how many each fleet makes.

    With `rides`, nodes may be launched for `reuse` as well: no plan is cheaper than that.
    """
    return _Model(facts, names, least, rides=rides).best(seconds, paid=True)


def fits(facts: Facts, names: Collection[str], seconds: float, *, rides: bool = False) -> bool | None:
    """Whether these tasks find a place beside each other at any price; None if that was not found out."""
    return _Model(facts, names, {}, rides=rides).best(seconds, paid=False).possible


def seated(
    facts: Facts, ours: Mapping[int, int], seconds: float, *, to_the_end: bool = False
) -> tuple[list[Level], Best | None]:
    """The blocks that can be seated of each priority, the highest first, until it is not as many as the plan
    seats (`ours`) or `to_the_end`; and what that costs at least, if it came to the end.
    """
    least = {name: site.least for name, site in facts.sites.items()}
    model = _Model(facts, facts.wants.keys(), least, optional=True)
    values = {name: worth(facts, want) for name, want in facts.wants.items()}
    out: list[Level] = []
    for priority in sorted(ours, reverse=True):
        terms = {
            run.column: float(values[run.unit.names[0]])
            for run in model.runs
            if run.unit.task.priority == priority
        }
        most, bound = model.most(terms, seconds)
        out.append(Level(priority, most, bound, ours[priority]))
        if not to_the_end and (most != ours[priority] or bound >= most + 1):
            return out, None
        model.model.row(most, math.inf, terms)
    return out, model.best(seconds, paid=True)


class _Model:
    """One world and one set of tasks. If they are `optional`, each may be left out."""

    def __init__(
        self,
        facts: Facts,
        names: Collection[str],
        least: Mapping[str, int],
        *,
        optional: bool = False,
        rides: bool = False,
    ) -> None:
        self.facts, self.least, self.optional = facts, least, optional
        self.model = Model()
        self.units = _units(facts, names, by_priority=optional)
        self.requests = list(dict.fromkeys(request for unit in self.units for request in unit.ranks))
        self.ranks = sum(len(unit.names) * unit.task.nodes for unit in self.units)
        self.possible = True
        self.stocks = self._stocks()
        self.takes = [
            tuple(request.takes(facts, stock, rides=rides) for request in self.requests)
            for stock in self.stocks
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
        for group in self.classes:
            self._cut(group)
        self._limits()

    def _most(self) -> float:
        """More nodes of one kind than this nobody needs."""
        return self.ranks + sum(self.least.values())

    def most(self, terms: Mapping[int, float], seconds: float) -> tuple[int, float]:
        """The most that a sum of columns can be, as far as it was found, and a bound of it."""
        if not terms:
            return 0, 0.0
        costs, self.model.costs = self.model.costs, [0.0] * len(self.model.costs)
        for column, factor in terms.items():
            self.model.costs[column] = -factor
        done = self._solved(seconds, gap=0.0)
        self.model.costs = costs
        value = (
            sum(factor * round(done.values[column]) for column, factor in terms.items()) if done.values else 0
        )
        return round(value), -done.bound + 1e-6

    def _solved(self, seconds: float, gap: float) -> Solution:
        done = self.model.solve(whole=True, seconds=seconds, gap=gap)
        if done.impossible:  # HiGHS 1.16 says so wrongly now and then, and never without its presolve
            done = self.model.solve(whole=True, seconds=seconds, gap=gap, presolve=False)
        return done

    def best(self, seconds: float, *, paid: bool) -> Best:
        """Solve it; if not `paid`, any solution is as good as another."""
        if not self.possible:
            return Best(math.inf, None, Counter(), proved=True, possible=False)
        if not self.model.costs:  # nothing is asked for, and nothing is there
            return Best(0.0, 0.0, Counter(), proved=True, possible=True)
        if not paid:
            self.model.costs = [0.0] * len(self.model.costs)
        done = self._solved(seconds, GAP)
        bound = max(done.bound, 0.0)
        if paid and not done.proved and not done.impossible:  # in time, fractions may say more
            bound = max(bound, self.model.solve(whole=False, seconds=seconds).bound)
        if not done.values:
            possible = False if done.impossible else None
            return Best(bound, None, Counter(), done.impossible, possible)
        launches: Counter[Space] = Counter()
        for stock, column in zip(self.stocks, self.bought, strict=True):
            if stock.new and round(done.values[column]):
                launches[stock.space] += round(done.values[column])
        cost = sum(space.price * count for space, count in launches.items())
        values = [round(value) for value in done.values]
        names, volumes = self._named(values)
        return Best(
            bound,
            cost,
            launches,
            done.proved,
            possible=True,
            cuts=tuple(self._cuts(values, names)),
            tasks=frozenset(name for group in names.values() for name in group),
            volumes=volumes,
        )

    def _named(self, values: Sequence[int]) -> tuple[dict[int, list[str]], dict[tuple[str, int, str], str]]:
        """The tasks that run in each domain, by its column, and the shared volumes that ranks get."""
        given: Counter[Unit] = Counter()
        names: dict[int, list[str]] = {}
        volumes = {}
        for run in self.runs:
            first = given[run.unit]
            given[run.unit] += values[run.column]
            names[run.column] = list(run.unit.names[first : given[run.unit]])
            for (request, path), columns in run.claims.items():
                taken = [volume for volume, column in columns.items() if values[column]]
                for name in names[run.column]:
                    for rank in run.unit.ranks[request]:
                        volumes[name, rank, path] = taken.pop()
        return names, volumes

    def _cuts(self, values: Sequence[int], names: Mapping[int, list[str]]) -> Iterator[Cut]:
        """What a solution says, with names."""
        ranks: dict[int, dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for run in self.runs:
            for request, seats in run.seats.items():
                mine = [(name, rank) for name in names[run.column] for rank in run.unit.ranks[request]]
                for column, group in seats:
                    size = group.takes[self.number[request]]
                    ranks[id(group)][size] += [mine.pop() for _ in range(values[column])]
        for group in self.classes:
            nodes = {self.stocks[i]: values[self.bought[i]] for i in group.stocks}
            arcs = Counter({arc: values[column] for arc, column in group.arcs.items()})
            yield Cut(nodes, arcs, ranks[id(group)])
        used = {i for group in self.classes for i in group.stocks}
        idle = {stock: values[self.bought[i]] for i, stock in enumerate(self.stocks) if i not in used}
        yield Cut(idle, Counter(), {})

    # What there is

    def _stocks(self) -> list[Stock]:
        pinned = {name for request in self.requests for name in request.task.instances}
        each = any(unit.task.spread == "node" and not unit.task.whole_nodes for unit in self.units)
        here = Counter(
            (
                node.space,
                node.space.total - len(node.busy),
                node.name if each or node.name in pinned else None,
            )
            for node in self.facts.nodes
            if node.open and node.space.fleet in self.facts.sites
        )
        out = [Stock(space, idle, count, new=False, name=name) for (space, idle, name), count in here.items()]
        reuse = any(reuses(request.task) for request in self.requests)
        for name, site in self.facts.sites.items():
            for space in dict.fromkeys(offer.space for offer in site.offers):
                room = math.inf if site.room is None else site.room
                most = min(room, self.facts.left[space.quota])
                out.append(Stock(space, space.total, most, new=True, name=None))
                if reuse and self.least.get(name):
                    most = min(most, self.least[name])
                    out.append(Stock(space, space.total, most, new=True, name=None, base=True))
        return [stock for stock in out if stock.idle > 0 and stock.most > 0]

    def _classes(self) -> list[_Class]:
        """Nodes that no request tells apart, clusters and makers of GPUs included where a task does."""
        gangs = [unit.task for unit in self.units if unit.task.nodes > 1]
        areas = [task for task in gangs if task.cluster]
        makers = any(one_maker(task) for task in gangs)
        places = any(request.shared for request in self.requests)
        spread = sorted({task.spread for task in gangs if task.spread not in (None, "node")})
        classes: dict[object, _Class] = {}
        for i, (stock, takes) in enumerate(zip(self.stocks, self.takes, strict=True)):
            space = stock.space
            if not any(takes):
                continue
            fleet = self.facts.sites[space.fleet].fleet
            clustered = fleet.placement.value == "cluster"
            key = (
                takes,
                stock.name,
                frozenset(area(task, fleet, space) for task in areas) if clustered else None,
                space.maker if makers else None,
                space.place if places else None,
                tuple((space.place.backend, space.place.region, space.at(level)) for level in spread),
            )
            classes.setdefault(key, _Class(takes, space, stock.name)).stocks.append(i)
        return list(classes.values())

    # Who sits where

    def _seat(self, unit: Unit) -> None:
        """All ranks of its tasks have a place, those of one task in one domain."""
        runs: dict[int, float] = {}
        count = len(unit.names)
        for inside in self._domains(unit.task):
            if not all(any(group.takes[self.number[request]] for group in inside) for request in unit.ranks):
                continue
            run = _Run(unit, self.model.column(0.0, count), {request: [] for request in unit.ranks}, {})
            self.runs.append(run)
            runs[run.column] = 1.0
            for request, ranks in unit.ranks.items():
                terms = {run.column: -float(len(ranks))}
                for group in inside:
                    if size := group.takes[self.number[request]]:
                        column = self.model.column(0.0, count * len(ranks))
                        terms[column] = group.sizes[size][column] = 1.0
                        run.seats[request].append((column, group))
                self.model.row(0, 0, terms)
                self._claim(run, request)
            if unit.task.spread and unit.task.nodes > 1:
                self._keep_apart(unit.task, [seat for seats in run.seats.values() for seat in seats])
        self.possible = self.possible and (self.optional or bool(runs))
        self.model.row(0 if self.optional else count, count, runs)

    def _keep_apart(self, task: Task, seats: Iterable[tuple[int, _Class]]) -> None:
        """One rank of a task, which is the only one of its unit, in each zone."""
        zones: dict[object, dict[int, float]] = defaultdict(dict)
        for column, group in seats:
            if task.spread != "node":
                space = group.space
                zone = (space.place.backend, space.place.region, space.at(str(task.spread)))
                zones[zone][column] = 1.0
            elif group.name is not None:
                zones[group.name][column] = 1.0
            elif not task.whole_nodes:  # as many nodes as ranks at least
                bought = {self.bought[i]: -1.0 for i in group.stocks}
                self.model.row(-math.inf, 0, {column: 1.0, **bought})
        for terms in zones.values():
            self.model.row(0, 1, terms)

    def _domains(self, task: Task) -> Iterator[list[_Class]]:
        """The classes among which all ranks of a task may lie: of each area, and of each maker of GPUs."""
        groups: dict[object, list[_Class]] = {None: self.classes}
        if task.nodes > 1 and task.cluster:
            groups = defaultdict(list)
            for group in self.classes:
                fleet = self.facts.sites[group.space.fleet].fleet
                if fleet.placement.value == "cluster":
                    groups[area(task, fleet, group.space)].append(group)
        makers: Sequence[str | None] = (None,)
        if one_maker(task) and not self._pins_several(task):
            makers = sorted({group.space.maker for group in self.classes if group.space.maker}) or (None,)
        for classes in groups.values():
            for maker in makers:
                yield [group for group in classes if maker is None or group.space.maker in (None, maker)]

    def _pins_several(self, task: Task) -> bool:
        """Whether a task names nodes with GPUs of several makers."""
        pinned = [node.space.maker for node in self.facts.nodes if node.name in task.instances]
        return len(set(pinned) - {None}) > 1

    def _claim(self, run: _Run, request: Request) -> None:
        """The rank of a request that shares its volumes takes one of each mount, near where it sits."""
        for mount in request.shared:
            near: dict[str, int] = {}
            for name in mount.names:
                if name in self.facts.volumes:
                    near[name] = self.model.column(0.0, 1)
                    self.claims[name][near[name]] = 1.0
            run.claims[request, mount.path] = near
            self.model.row(
                0, 0, {run.column: -float(len(run.unit.ranks[request])), **dict.fromkeys(near.values(), 1.0)}
            )
            for column, group in run.seats[request]:
                good = {near[n]: -1.0 for n in near if serves(self.facts.volumes[n], group.space.place)}
                self.model.row(-math.inf, 0, {column: 1.0, **good})

    # How nodes are cut

    def _cut(self, group: _Class) -> None:
        """The flow along the blocks: it begins with the idle blocks of the nodes, and ends anywhere."""
        flow: dict[int, dict[int, float]] = defaultdict(dict)
        for i in group.stocks:
            flow[self.stocks[i].idle][self.bought[i]] = -1.0
        cuts: dict[int, dict[int, float]] = {size: {} for size in group.sizes}
        for start, size in _arcs(list(group.sizes), flow):
            arc = group.arcs[start, size] = self.model.column(0.0, math.inf)
            flow[start][arc], flow[start - size][arc] = 1.0, -1.0
            cuts[size][arc] = -1.0
        for terms in flow.values():
            if any(factor > 0 for factor in terms.values()):
                self.model.row(-math.inf, 0, terms)
        for size, cut in cuts.items():
            self.model.row(-math.inf, 0, {**cut, **group.sizes[size]})

    # What may be launched

    def _limits(self) -> None:
        """Limits of offers, maxima of fleets, and the one place of a cluster fleet."""
        quotas: dict[object, dict[int, float]] = defaultdict(dict)
        fleets: dict[str, dict[int, float]] = defaultdict(dict)
        bases: dict[str, dict[int, float]] = defaultdict(dict)
        homes: dict[str, dict[tuple[str, str], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for stock, column in zip(self.stocks, self.bought, strict=True):
            if stock.new:
                space = stock.space
                quotas[space.quota][column] = fleets[space.fleet][column] = 1.0
                homes[space.fleet][space.place[:2]][column] = 1.0
                if stock.base:
                    bases[space.fleet][column] = 1.0
        for quota, terms in quotas.items():
            left = self.facts.left[quota]  # type: ignore[index]
            if math.isfinite(left):
                self.model.row(0, left, terms)
        for name, terms in bases.items():
            self.model.row(0, self.least[name], terms)
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


# ---------------------------------------------------------------------------------------- what tasks ask for


def alike(facts: Facts, names: Collection[str]) -> list[list[str]]:
    """The tasks in groups that ask for the same, with the same priority; those with volumes by themselves."""
    out: dict[object, list[str]] = {}
    for name in sorted(names):
        want = facts.wants[name]
        own = name if any(want.mounts) else None
        out.setdefault((_asked(want.spec), want.spec.priority, own), []).append(name)
    return list(out.values())


def _units(facts: Facts, names: Collection[str], *, by_priority: bool) -> list[Unit]:
    """The tasks, counted by what they ask for."""
    wanted: Counter[str] = Counter()
    for name in names:
        want = facts.wants[name]
        ranks = range(want.spec.nodes)
        wanted.update(n for rank in ranks for m in mounts_of(want, rank) for n in m.names)
    requests: dict[object, Request] = {}
    units: dict[object, tuple[dict[Request, list[int]], list[str]]] = {}
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
        rank_numbers = tuple((request, tuple(ranks)) for request, ranks in mine.items())
        key = (own, want.spec.priority if by_priority else None, rank_numbers)
        units.setdefault(key, (mine, []))[1].append(name)
    return [
        Unit(facts.wants[names[0]].spec, tuple(names), {r: tuple(ranks) for r, ranks in mine.items()})
        for mine, names in units.values()
    ]


def _asked(task: Task) -> tuple[object, ...]:
    """What of a task decides where its ranks may go."""
    where = (task.fleets, task.instances, task.backends, task.regions, task.spot_policy, task.max_price)
    together = (task.nodes, task.cluster, task.whole_nodes, task.same, task.spread)
    return (task.resources, *together, reuses(task), *where)
