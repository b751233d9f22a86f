"""Where a number of ranks with one request go: idle blocks first, the tightest fit first; then launches.

A choice changes nothing: it is compared with others first, and carried out by the assignment.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from declarative.model.record import struct
from declarative.placement.assignment import UNLIMITED, Assignment, LaunchNodes, UseNodes
from declarative.placement.catalog import ANYWHERE, Catalog, Domain, Home, LaunchOption, Request, Traits
from declarative.placement.problem import Place, Quota

DEAR = 1e9
"""What an unknown price counts as, USD an hour: more than any that is known."""


@struct(slots=True, kw_only=True)
class SearchArea:
    """Where to look: a domain, some places of it, some nodes; and whether anything may be launched."""

    domain: Domain = ANYWHERE
    places: frozenset[Place] | None = None
    nodes: Collection[int] | None = None
    """Numbers of the nodes that may be used; None is any."""
    names: Sequence[str] | None = None
    """Names that a node may be launched under; None is any."""
    reuse: bool = False
    barred: Collection[int] = frozenset()
    """Kinds that are ruled out…"""
    beside: Collection[int] = frozenset()
    """…and numbers of nodes: other ranks of a task are there that is to be spread."""


@struct(slots=True, kw_only=True)
class Allocation:
    """Where ranks would go. `short` is how many found no place; `cost` what the launches add, USD an hour."""

    picks: tuple[UseNodes, ...]
    buys: tuple[LaunchNodes, ...]
    cost: float
    waste: float
    short: int

    @property
    def launches(self) -> int:
        """How many nodes are launched."""
        return sum(buy.count for buy in self.buys)


def allocate(
    assignment: Assignment,
    request: Request,
    ranks: int,
    ground: SearchArea,
) -> Allocation:
    """Where `ranks` ranks go."""
    slots = _slots(assignment, request, ground)
    heapq.heapify(slots)  # a few are taken of many
    picks: list[UseNodes] = []
    missing, waste = ranks, 0.0
    while missing > 0 and slots:
        _, kind, free, count, per, need, only = heapq.heappop(slots)
        nodes = min(count, -(-missing // per))
        picks.append(UseNodes(kind, free, nodes, per, need, only))
        here = min(missing, nodes * per)
        missing -= here
        waste += nodes * free - here * need
    buys: list[LaunchNodes] = []
    cost = 0.0
    area = ground.domain.area
    if missing > 0 and (area is None or assignment.fleet_room[area.fleet] != 0):
        buys, cost, missing = _buy(assignment, request, missing, ground)
    return Allocation(picks=tuple(picks), buys=tuple(buys), cost=cost, waste=waste, short=missing)


Slot = tuple[tuple[object, ...], int, int, int, int, int, int | None]
"""Key, kind, idle blocks a node, nodes, ranks a node, blocks a rank, the one node that it is."""


def _slots(assignment: Assignment, request: Request, ground: SearchArea) -> list[Slot]:
    """Places among what is there, in no order: the least is the best."""
    catalog = assignment.catalog
    if ground.nodes is not None:
        return _slots_of_nodes(assignment, request, ground)
    out: list[Slot] = []
    piles, traits, barred = assignment.idle_by_size, catalog.traits, ground.barred
    whole = request.whole
    first_new = len(catalog.nodes) if ground.reuse and not assignment.riding else None
    kinds = catalog.kinds_at(request, ground.domain, ground.places)
    # Written out: with a thousand unlike hosts this is done a million times.
    for kind, need in itertools.chain(kinds, _new_kinds(assignment, request, ground)):
        pile = piles.get(kind)
        if not pile or kind in barred:
            continue
        of_kind = traits.get((kind, need)) or _traits(catalog, request, kind)
        least = of_kind.total if whole else need
        for free, ids in pile.items():
            if free >= least:
                key = _key(request, kind, free, of_kind)
                # The ids are negated, and the lowest nodes are the last.
                count = len(ids) if first_new is None else len(ids) - bisect.bisect_right(ids, -first_new)
                if count:
                    out.append((key, kind, free, count, 1 if whole else free // need, need, None))
    return _apart(assignment, out, ground.beside) if ground.beside else out


def _apart(assignment: Assignment, slots: list[Slot], beside: Collection[int]) -> list[Slot]:
    """One node of each slot, and one rank on it: ranks that are to be spread are seated one by one."""
    out: list[Slot] = []
    for key, kind, free, _, _, need, _ in slots:
        ids = assignment.idle_by_size[kind][free]
        node = next((-n for n in reversed(ids) if -n not in beside), None)
        if node is not None:
            out.append((key, kind, free, 1, 1, need, node))
    return out


def _is_inside(catalog: Catalog, ground: SearchArea, kind: int) -> bool:
    """Whether nodes of a kind lie where is looked, and are not ruled out."""
    if kind in ground.barred or not catalog.inside(ground.domain, kind):
        return False
    return ground.places is None or catalog.place_of[kind] in ground.places


def _new_kinds(assignment: Assignment, request: Request, ground: SearchArea) -> Iterator[tuple[int, int]]:
    """Kinds of which there are only nodes that were launched before."""
    catalog = assignment.catalog
    area = ground.domain.area
    for kind in (
        assignment.new_kinds.get(area.fleet, ())
        if area
        else itertools.chain.from_iterable(assignment.new_kinds.values())
    ):
        need = request.fit.get(kind)
        if need and _is_inside(catalog, ground, kind):
            yield kind, need


def _slots_of_nodes(assignment: Assignment, request: Request, ground: SearchArea) -> list[Slot]:
    catalog = assignment.catalog
    out: list[Slot] = []
    for node in sorted(ground.nodes or ()):
        kind, free = assignment.kind_of[node], assignment.free[node]
        need = request.fit.get(kind, 0)
        if not need or node in ground.beside or not _is_inside(catalog, ground, kind):
            continue
        if free >= (catalog.kinds[kind].total if request.whole else need):
            key = (*_key(request, kind, free, _traits(catalog, request, kind)), node)
            per = 1 if request.whole else free // need
            out.append((key, kind, free, 1, per, need, node))
    return out


def _traits(catalog: Catalog, request: Request, kind: int) -> Traits:
    """What of a kind matters to a request and does not change."""
    need = request.fit[kind]
    traits = catalog.traits.get((kind, need))
    if traits is None:
        of = catalog.kinds[kind]
        shape = of.shape
        cpu, memory, gpus = (need * each // of.total for each in (shape.cpu, shape.memory_mib, shape.gpus))
        rest = (of.cost, cpu, memory, catalog.gpu_order[kind])
        traits = catalog.traits[kind, need] = Traits(need, gpus, of.total, rest)
    return traits


def _key(request: Request, kind: int, free: int, traits: Traits) -> tuple[object, ...]:
    """How good a place is, the best least.

    No GPU for those that want none; a node that is in use before one that is idle; the tightest fit; the
    cheapest; the least CPUs, memory and GPUs.
    """
    need, gpus, total, rest = traits
    gpus -= request.gpus
    if request.whole:
        return (gpus, False, 0, 0, rest, kind)
    return (gpus, free == total, free % need, free, rest, kind)


def _buy(
    assignment: Assignment, request: Request, left: int, ground: SearchArea
) -> tuple[list[LaunchNodes], float, int]:
    """The launches that hold `left` ranks: again and again the best offer by what it would hold."""
    market = Market(assignment, request, ground)
    buys: list[LaunchNodes] = []
    cost = 0.0
    while left > 0:
        best = market.best(left)
        if best is None:
            break
        buy, price = best
        market.sell(buy)
        buys.append(buy)
        cost += buy.count * price
        left -= min(left, buy.count * buy.per)
    return buys, cost, left


class Market:
    """What can be launched and at what price, while one choice is made.

    Nodes that a fleet launches for itself anyway cost only what is above its cheapest.
    """

    def __init__(self, assignment: Assignment, request: Request, ground: SearchArea) -> None:
        self.assignment = assignment
        self.kinds = assignment.catalog.kinds
        self.reuse = ground.reuse
        self.names = None if ground.names is None else list(ground.names)
        self.by_fleet: dict[str, int] = {}
        self.by_quota: dict[Quota, int] = {}
        self.home: dict[str, Home] = {}
        self.request, self.ground = request, ground
        # What a fleet owes itself costs only what is above its cheapest: so much less than it says.
        fleets = (ground.domain.area.fleet,) if ground.domain.area else assignment.baseline_left
        owing = [
            min(assignment.base[f], DEAR)
            for f in fleets
            if assignment.baseline_left[f] > 0 and f in assignment.base
        ]
        self.discount = max(owing, default=0.0)

    def best(self, ranks: int) -> tuple[LaunchNodes, float] | None:
        """What to launch for so many ranks, and its price: the cheapest by what it would hold."""
        best: tuple[tuple[Any, ...], LaunchOption, int, int, int, str | None] | None = None
        assignment = self.assignment
        roomy, room, quotas = assignment.roomy, assignment.fleet_room, assignment.quota_left
        for option, need, per in assignment.catalog.options_in(self.request, self.ground.domain):
            least = min(self.kinds[option.kind].cost, DEAR) - self.discount
            if best is not None and not roomy and least / ranks > best[0][0]:
                break  # the cheapest come first: none that follows can be better
            if room[option.fleet] == 0 or quotas[option.quota] == 0:
                continue  # as for most where tasks are refused
            most, price, name = self._offered(option)
            if most <= 0:
                continue
            # Where few nodes may be launched each has to hold much.
            by = -self.kinds[option.kind].total / need if roomy else price / min(per, ranks)
            key = (by, price, *self._size(option, per, min(per, ranks), price), option.index)
            if best is None or key < best[0]:
                best = (key, option, need, per, most, name)
        if best is None:
            return None
        (_, price, *_), option, need, per, most, name = best
        return LaunchNodes(option, max(1, min(most, ranks // per)), per, need, name), price

    def _offered(self, option: LaunchOption) -> tuple[int, float, str | None]:
        """How many of it may be launched here at once, at what price each, and under which pinned name."""
        places = self.ground.places
        if places is not None and self.assignment.catalog.place_of[option.kind] not in places:
            return 0, 0.0, None
        name = self._name(option)
        if option.kind in self.ground.barred or (self.names is not None and name is None):
            return 0, 0.0, None
        most, price = self._of(option)
        return (most if name is None else min(most, 1)), price, name

    def _size(self, option: LaunchOption, per: int, ranks: int, price: float) -> tuple[float, ...]:
        """What to prefer at one price, for so many ranks on a node that holds `per`.

        What is paid for: the node that others can use too (`tidy` makes it smaller if nobody does). What is
        free: the least of it for a rank. Where the price is unknown: none larger than needed.
        """
        kind = self.kinds[option.kind]
        if kind.price is None:
            return (0,)
        if price > 0:
            return (-per,)
        shape = kind.shape
        return (shape.gpus / ranks, shape.cpu / ranks, shape.memory_mib / ranks, -ranks)

    def sell(self, buy: LaunchNodes) -> None:
        """Note that it is taken."""
        option = buy.option
        self.by_fleet[option.fleet] = self.by_fleet.get(option.fleet, 0) + buy.count
        self.by_quota[option.quota] = self.by_quota.get(option.quota, 0) + buy.count
        if option.fleet in self.assignment.cluster_homes:
            self.home[option.fleet] = option.home
        if buy.name is not None and self.names is not None:
            self.names.remove(buy.name)

    def _name(self, option: LaunchOption) -> str | None:
        """The first pinned name that is a name of the option's fleet."""
        if not self.names:
            return None
        own = option.offer.name
        if own is not None:
            return own if own in self.names else None
        return next((n for n in self.names if n.rpartition("-")[0] == option.fleet), None)

    def _of(self, option: LaunchOption) -> tuple[int, float]:
        """How many of it can be had, and at what price each."""
        assignment = self.assignment
        if self.home.get(option.fleet, option.home) != option.home or assignment.astray(option):
            return 0, 0.0
        sold = self.by_fleet.get(option.fleet, 0)
        room, quota = assignment.fleet_room[option.fleet], assignment.remain(option)
        most = UNLIMITED if room is None else room - sold
        if quota is not None:
            most = min(most, quota - self.by_quota.get(option.quota, 0))
        owed = assignment.baseline_left[option.fleet] - sold
        price = min(self.kinds[option.kind].cost, DEAR)
        if owed > 0:
            more = max(0.0, price - min(assignment.base[option.fleet], DEAR))
            return (0, 0.0) if self.reuse and more else (min(most, owed), more)
        return (0, 0.0) if self.reuse else (most, price)


@struct(slots=True)
class Try:
    """What became of one task in one domain: the node of each rank that found one."""

    domain: Domain
    nodes: dict[int, int] = field(default_factory=dict)
    volumes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    failed: int | None = None
    """The first rank that found no place."""
    cost: float = 0.0
    waste: float = 0.0
    launches: int = 0
    moved: int = 0
    begin: Mapping[str, frozenset[Home]] | None = None
    """Where cluster fleets had to begin for it, if it is not where they would have begun."""

    @property
    def key(self) -> tuple[float, ...]:
        """The least disturbance, then the least cost, then the least waste."""
        return (self.moved, round(self.cost, 6), self.launches, self.waste)

    @property
    def rank(self) -> tuple[float, ...]:
        """The least is the best: one that succeeded, or the one that came furthest."""
        return (0, *self.key) if self.failed is None else (1, -len(self.nodes))


def commit(assignment: Assignment, choice: Allocation, ranks: int) -> list[int]:
    """Seat ranks as a choice says: the node of each."""
    out: list[int] = []
    for pick in choice.picks:
        out += assignment.take(pick, min(ranks - len(out), pick.count * pick.per))
    for buy in choice.buys:
        out += assignment.launch(buy, min(ranks - len(out), buy.count * buy.per))
    return out
