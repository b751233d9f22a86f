"""The best possible placement of a small case, found by trying everything. Knows nothing of `placement`.

What is best, in this order:

1. For each priority, the highest first: the blocks of the tasks that are placed. A task counts with its
   ranks times the fewest blocks that a rank could take anywhere in the case: a number that does not depend
   on where it goes, so that waste is never rewarded.
2. The price an hour of all launched nodes, including those that a fleet wants for itself. (A plan's cost is
   compared with the least cost of the same tasks: price alone does not decide which of two equal tasks is
   placed.)

Cases are `calm` (tests/support/worlds.py): all prices are known; no task has a prior place, asks for `reuse`
(what it may use depends on what others launch) or pins a node that does not exist; a fleet has a baseline
only where no offer has a limit (else fleets would compete for offers, and no rule says who wins).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from declarative.model.blocks import Shape, misfits, share, split
from declarative.model.resource import Offer
from declarative.model.spec import Fleet, SpotPolicy, Task
from declarative.model.spec.values import Resources
from declarative.model.status import NodeState, Readiness
from declarative.placement.problem import Ask, Choice, Node, PlacementOutcome, Refusal, VolumeAt
from tests.support.worlds import Case

Score = tuple[tuple[int, int], ...]
"""Priority and placed blocks, the highest priority first."""


@dataclass(frozen=True)
class Bin:
    """A node that is there, or one that is launched."""

    name: str
    fleet: str
    backend: str
    region: str
    zone: str | None
    price: float | None
    spot: bool
    shape: Shape
    total: int
    free: int
    offer: Offer | None = None


@dataclass(frozen=True)
class Best:
    """The best possible: the score, its cost, and one such placement."""

    score: Score
    cost: float
    outcome: PlacementOutcome

    @property
    def placed(self) -> frozenset[str]:
        """The tasks that it places."""
        return placed(self.outcome)


def home_of(task: Task, where: Bin) -> tuple[str, ...]:
    """What the ranks of a cluster have in common there: a zone, unless a region is enough."""
    zone = "" if task.same == "region" else where.zone or ""
    return (where.fleet, where.backend, where.region, zone)


def spread_of(task: Task, where: Bin, number: int) -> object:
    """What a rank has for itself there; None if the ranks need not be spread."""
    if task.spread is None or task.nodes == 1:
        return None
    zone = (where.zone or "") if task.spread == "zone" else ""
    return number if task.spread == "node" else (where.backend, where.region, zone)


@functools.lru_cache(maxsize=4096)
def _fewest(want: Resources, shape: Shape, total: int) -> int | None:
    return next((b for b in range(1, total + 1) if not misfits(want, share(shape, total, b))), None)


def need(task: Task, fleet: Fleet, where: Bin) -> int | None:
    """How many blocks a rank takes of an idle, ready node; None if it may not go there."""
    spot = {SpotPolicy.ON_DEMAND: not where.spot, SpotPolicy.SPOT: where.spot}
    allowed = (
        (not task.fleets or where.fleet in task.fleets)
        and (not task.cluster or fleet.placement.value == "cluster")
        and (not task.instances or where.name in task.instances)
        and (not task.backends or where.backend in task.backends)
        and (not task.regions or where.region in task.regions)
        and (task.max_price is None or (where.price is not None and where.price <= task.max_price))
        and (task.spot_policy is None or spot.get(task.spot_policy, True))
    )
    if not allowed:
        return None
    if task.whole_nodes:
        return None if misfits(task.resources, where.shape) else where.total
    return _fewest(task.resources, where.shape, where.total)


def maker(shape: Shape) -> str | None:
    """The model of the GPUs: each of the cases' models is of another vendor."""
    return shape.gpu_name if shape.gpus else None


def may_mix(task: Task, bins: Sequence[Bin]) -> bool:
    """Whether the ranks of a task may have GPUs of several vendors."""
    gpu = task.resources.gpu
    pinned = {maker(b.shape) for b in bins if b.name in task.instances} - {None}
    return task.nodes == 1 or gpu is None or len(gpu.names) > 1 or len(pinned) > 1


def bin_of(node: Node) -> Bin:
    """A node that is there; nothing of it is free unless it may take work."""
    ready = node.readiness.state is NodeState.READY and not node.closed
    return Bin(
        node.name,
        node.fleet,
        node.backend,
        node.region,
        node.zone,
        node.price,
        node.spot,
        node.shape,
        node.total,
        node.total - len(node.held) if ready else 0,
    )


def bin_for(offer: Offer, fleet: Fleet, number: int) -> Bin:
    """A node to be launched; no task pins its name."""
    total = split(offer.shape, fleet.blocks.number) or 1
    return Bin(
        f"new {number}",
        str(fleet.name),
        offer.backend,
        offer.region,
        offer.zone,
        offer.price,
        offer.spot,
        offer.shape,
        total,
        total,
        offer,
    )


# ---------------------------------------------------------------------------------------- what is launched


def launches(case: Case) -> list[tuple[float, tuple[Bin, ...]]]:
    """Every set of nodes that may be launched, with its price; the cheapest first."""
    pairs = [(rule.fleet, offer) for _, rule in sorted(case.fleets.items()) for offer in rule.offers]
    most = sum(ask.want.spec.nodes for ask in case.asks) + sum(r.baseline for r in case.fleets.values())
    there = Counter(_kind(n) for n in case.nodes)
    rooms = []
    for fleet, offer in pairs:
        room = min(most, (fleet.nodes.max if fleet.nodes and fleet.nodes.max is not None else most))
        if offer.limit is not None:
            room = min(room, max(0, offer.limit - there[_kind(offer)]))
        rooms.append(range(room + 1))
    found = []
    for counts in itertools.product(*rooms):
        chosen = [pair for pair, count in zip(pairs, counts, strict=True) for _ in range(count)]
        if len(chosen) <= most and _allowed(case, chosen, there):
            bins = tuple(bin_for(offer, fleet, i) for i, (fleet, offer) in enumerate(chosen))
            found.append((sum(b.price or 0.0 for b in bins), bins))
    return sorted(found, key=lambda pair: (pair[0], len(pair[1])))


def _kind(thing: Node | Offer) -> tuple[str, str, str, bool]:
    """What an offer's limit counts."""
    return (thing.backend, thing.region, thing.instance_type, thing.spot)


def _allowed(
    case: Case, chosen: Sequence[tuple[Fleet, Offer]], there: Mapping[tuple[str, str, str, bool], int]
) -> bool:
    """Whether limits and maxima hold, clusters stay together, and fleets have what they want themselves."""
    kinds = Counter(_kind(offer) for _, offer in chosen)
    if any(o.limit is not None and there[_kind(o)] + kinds[_kind(o)] > o.limit for _, o in chosen):
        return False
    for name, rule in case.fleets.items():
        mine = [offer for fleet, offer in chosen if fleet.name == name]
        most = rule.fleet.nodes.max if rule.fleet.nodes else 0
        if mine and most is not None and rule.existing + len(mine) > most:
            return False
        homes = {(n.backend, n.region) for n in case.nodes if n.fleet == name and not n.closed}
        cluster = rule.fleet.placement.value == "cluster"
        if mine and cluster and len(homes | {(o.backend, o.region) for o in mine}) > 1:
            return False
        possible = [o for o in rule.offers if not cluster or homes <= {(o.backend, o.region)}]
        if possible and len(mine) < rule.baseline:
            return False
    return True


# ------------------------------------------------------------------------------------------------ what fits


@dataclass
class Search:
    """Whether all of some tasks fit on some nodes."""

    asks: Sequence[Ask]
    bins: Sequence[Bin]
    fleets: Mapping[str, Fleet]
    volumes: Mapping[str, VolumeAt]
    dead: set[object] = field(default_factory=set)
    path: list[tuple[int, int, int, tuple[str, ...]]] = field(default_factory=list)
    """Task, rank, node and volumes, as far as the search has come; all of them once it has ended well."""

    def __post_init__(self) -> None:
        self.needs = [
            [
                need(a.want.spec, self.fleets[b.fleet], b) if b.fleet in self.fleets else None
                for b in self.bins
            ]
            for a in self.asks
        ]
        self.alike = [
            (b.fleet, b.backend, b.region, b.zone, b.total, maker(b.shape), *(row[i] for row in self.needs))
            for i, b in enumerate(self.bins)
        ]

    def fits(self) -> bool:
        """Whether there is any way."""
        free = tuple(b.free for b in self.bins)
        tight = [min((n for n in row if n is not None), default=None) for row in self.needs]
        sizes = [a.want.spec.nodes * (least or 0) for a, least in zip(self.asks, tight, strict=True)]
        return None not in tight and sum(sizes) <= sum(free) and self._task(0, free, frozenset())

    def _task(self, index: int, free: tuple[int, ...], claimed: frozenset[str]) -> bool:
        if index == len(self.asks):
            return True
        task = self.asks[index].want.spec
        homes = {home_of(task, b) for b in self.bins} if task.cluster and task.nodes > 1 else {None}
        makers = (
            {None} if may_mix(task, self.bins) else {maker(b.shape) for b in self.bins} - {None} or {None}
        )
        each: list[str | None] = [*sorted(filter(None, makers))] or [None]
        ways = itertools.product(sorted(homes, key=str), each)
        return any(self._rank(index, 0, way, free, claimed, ()) for way in ways)

    def _rank(
        self,
        index: int,
        rank: int,
        way: tuple[tuple[str, ...] | None, str | None],
        free: tuple[int, ...],
        claimed: frozenset[str],
        apart: tuple[object, ...],
    ) -> bool:
        """`apart`: where the ranks before this one are, if the task is to be spread."""
        task = self.asks[index].want.spec
        if rank == task.nodes:
            return self._task(index + 1, free, claimed)
        state = (index, rank, way, tuple(sorted(zip(self.alike, free, strict=True), key=str)), claimed, apart)
        if state in self.dead:
            return False
        seen: set[object] = set()
        for i, where in enumerate(self.bins):
            wanted, key = self.needs[index][i], (self.alike[i], free[i])
            if wanted is None or free[i] < wanted or key in seen:
                continue
            home, made = way
            if home and home_of(task, where) != home:
                continue
            if made and maker(where.shape) not in (None, made):
                continue
            own = spread_of(task, where, i)
            if own in apart:
                continue
            seen.add(key)
            less = (*free[:i], free[i] - wanted, *free[i + 1 :])
            for taken in self._mounts(index, rank, where, claimed):
                self.path.append((index, rank, i, taken))
                more = (*apart, own) if own is not None else ()
                if self._rank(index, rank + 1, way, less, claimed.union(taken), more):
                    return True
                self.path.pop()
        self.dead.add(state)
        return False

    def _mounts(
        self, index: int, rank: int, where: Bin, claimed: frozenset[str]
    ) -> Iterator[tuple[str, ...]]:
        """Every choice of one volume for each mount; each volume once."""
        want = self.asks[index].want
        mounts = want.mounts[rank] if want.mounts else ()
        good = [[n for n in m.names if n not in claimed and self._near(n, where)] for m in mounts]
        for names in itertools.product(*good):
            if len(set(names)) == len(names):
                yield names

    def _near(self, name: str, where: Bin) -> bool:
        at = self.volumes.get(name)
        return (
            at is not None
            and at.holder is None
            and (at.backend, at.region) == (where.backend, where.region)
            and (at.zone is None or where.zone is None or at.zone == where.zone)
        )


# --------------------------------------------------------------------------------------------- what is best


def weight(case: Case, ask: Ask) -> int:
    """The blocks that a task counts with."""
    fleets = {name: rule.fleet for name, rule in case.fleets.items()}
    bins = [bin_of(n) for n in case.nodes if n.fleet in fleets]
    bins += [bin_for(o, r.fleet, 0) for r in case.fleets.values() for o in r.offers]
    found = [need(ask.want.spec, fleets[b.fleet], b) for b in bins]
    return ask.want.spec.nodes * min((n for n in found if n is not None), default=1)


def score(case: Case, placed: frozenset[str]) -> Score:
    """What these tasks count for."""
    blocks = {ask.want.spec.priority: 0 for ask in case.asks}
    for ask in case.asks:
        if ask.want.spec.name in placed:
            blocks[ask.want.spec.priority] += weight(case, ask)
    return tuple(sorted(blocks.items(), reverse=True))


def placed(outcome: PlacementOutcome) -> frozenset[str]:
    """The tasks that an outcome places."""
    return frozenset(c.task for c in outcome.choices)


def cost(outcome: PlacementOutcome) -> float:
    """The price of what an outcome launches."""
    return sum(n.price or 0.0 for n in outcome.launches)


def outcome_of(case: Case, search: Search) -> PlacementOutcome:
    """What a search has found, as `place` would answer it."""
    idle = {n.name: [b for b in range(n.total) if b not in n.held] for n in case.nodes}
    names, new = [], []
    for i, where in enumerate(search.bins):
        names.append(where.name if where.offer is None else f"{where.fleet}-{90 + i}")
        if where.offer is not None:
            idle[names[i]] = list(range(where.total))
            new.append(_launched(where, where.offer, names[i]))
    choices = []
    for index, rank, i, taken in search.path:
        want = search.asks[index].want
        count = search.needs[index][i] or 0
        blocks, idle[names[i]] = idle[names[i]][:count], idle[names[i]][count:]
        paths = [m.path for m in want.mounts[rank]] if want.mounts else []
        mounts = dict(zip(paths, taken, strict=True))
        choices.append(
            Choice(task=str(want.spec.name), rank=rank, node=names[i], blocks=tuple(blocks), volumes=mounts)
        )
    left = {str(a.want.spec.name) for a in case.asks} - {c.task for c in choices}
    short = {name: rule.baseline - sum(n.fleet == name for n in new) for name, rule in case.fleets.items()}
    return PlacementOutcome(
        choices=tuple(choices),
        refusals=tuple(Refusal(task=t, code="", summary="", hint=None, ranks=()) for t in sorted(left)),
        launches=tuple(new),
        short_fleets=tuple((name, missing) for name, missing in short.items() if missing > 0),
    )


def _launched(where: Bin, offer: Offer, name: str) -> Node:
    return Node(
        name=name,
        fleet=where.fleet,
        backend=where.backend,
        region=where.region,
        zone=where.zone,
        instance_type=offer.instance_type,
        shape=where.shape,
        total=where.total,
        price=where.price,
        spot=where.spot,
        readiness=Readiness(state=NodeState.READY),
        new=True,
        offer=offer,
    )


def _found(case: Case, asks: Sequence[Ask], more: tuple[Bin, ...]) -> Search | None:
    """A way to place all of these tasks with these launches, or None."""
    fleets = {name: rule.fleet for name, rule in case.fleets.items()}
    hard = sorted(asks, key=lambda a: (-a.want.spec.nodes, not a.want.mounts, str(a.want.spec.name)))
    search = Search(hard, (*(bin_of(n) for n in case.nodes), *more), fleets, case.volumes)
    return search if search.fits() else None


def least_cost(case: Case, names: frozenset[str]) -> float:
    """The least that launches cost which hold exactly these tasks."""
    asks = [a for a in case.asks if a.want.spec.name in names]
    return next(price for price, more in launches(case) if _found(case, asks, more))


def best(case: Case) -> Best:
    """The best possible."""
    options = launches(case)
    able = [ask for ask in case.asks if any(_found(case, (ask,), more) for _, more in options)]
    groups: dict[Score, list[tuple[Ask, ...]]] = {}
    for size in range(len(able) + 1):
        for asks in itertools.combinations(able, size):
            names = frozenset(str(a.want.spec.name) for a in asks)
            groups.setdefault(score(case, names), []).append(asks)
    for value in sorted(groups, key=lambda s: [blocks for _, blocks in s], reverse=True):
        for price, more in options:
            for asks in groups[value]:
                if search := _found(case, asks, more):
                    return Best(value, price, outcome_of(case, search))
    raise AssertionError("nothing at all always fits")
