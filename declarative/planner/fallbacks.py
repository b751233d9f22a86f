"""What may be launched in place of a planned node that has no capacity after all, and what a plan costs then.

This is the one rule of fallbacks. The planner lists what serves, and each offer of the list keeps every
promise of the plan: the hardware and the price that were planned, as far as `FallbackTerms` says; the limits
of the fleet and of its tasks, how the node is split, how many blocks each rank gets, the places of the
volumes. A cluster moves as a whole. If it was in one zone, it goes to one zone again. Nodes that cannot move
hold it where it is. The plan shows the list, people approve it, and `apply` launches nothing else. When a
cloud refuses an offer, `MovingNodes` says which one of the list is next, and `apply` carries that out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, cast

from declarative.model.blocks import Shape, maker_of
from declarative.model.inputs import OfferInputs, OfferKey
from declarative.model.record import struct
from declarative.model.resource import Offer, offer_inputs, offer_of
from declarative.model.spec import Backend, Fleet, Task
from declarative.model.spec.values import FallbackPolicy, Placement
from declarative.model.state import State, natural
from declarative.placement.filters import blocks_wanted, one_vendor, place_reason
from declarative.placement.problem import Choice, Node, NodeType, Place, VolumeAt, by_name, of_offer
from declarative.planner.plan import Fallback, Op, Plan, Spare
from declarative.provider import QUOTAS, PermanentKind

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions
    from declarative.planner.fleets import Fleets

MOST_WAYS = 16
"""Ways that are kept for one node or cluster. The first ways that differ from all of them in place, or in
being on demand, are kept as well.
"""

MOST_LOOKS = 1_000_000
"""Offers that are looked at for one plan. Nodes after that keep only their own offer."""

MOST_MORE = 2_000
"""Offers beyond the kept ones that are searched for different ones."""

DEAR = 1e9
"""USD an hour that an unknown price counts as."""

MOST_DEARER = 1.2
"""Without a declared `max_price`, a fallback costs at most 1.2 times the planned price."""
ROUNDING = 1e-9

_STRICTNESS = (FallbackPolicy.NONE, FallbackPolicy.SAME, FallbackPolicy.ANY)


@struct(frozen=True, slots=True)
class FallbackTerms:
    """The terms on which other offers may stand in for one node."""

    policy: FallbackPolicy
    capped: bool
    """Whether a declared `max_price` limits what the node costs; the filters of offers keep it."""

    def accept(self, node: Node, offer: Offer, on_demand: float | None) -> bool:
        """Whether the offer serves in place of the node's own. `on_demand` is the price of the node's own
        type on demand, if known.
        """
        if self.policy is FallbackPolicy.NONE or (offer.price is None and node.price is not None):
            return False
        if self.policy is FallbackPolicy.ANY:
            return True
        if not same_hardware(node.shape, offer.shape):
            return False
        if self.capped:
            return True
        planned = node.price
        if node.spot and not offer.spot and on_demand is not None:
            planned = on_demand  # `spot_policy: auto`, or there would be no such offer
        if planned is None or offer.price is None:
            # Nobody can compare: only the same type elsewhere is surely no dearer thing.
            own_type = (node.backend, node.instance_type)
            return offer.price is None and own_type == (offer.backend, offer.instance_type)
        return offer.price <= planned * MOST_DEARER + ROUNDING


def terms(fleet: Fleet, tasks: Sequence[Task]) -> FallbackTerms:
    """The terms for a node of the fleet that these tasks are on: the strictest of what is written counts."""
    declared = [policy for policy in (fleet.fallback, *(task.fallback for task in tasks)) if policy]
    if fleet.fallback is None and any(task.fallback is None for task in tasks):
        declared.append(FallbackPolicy.SAME)
    return FallbackTerms(
        policy=min(declared, key=_STRICTNESS.index, default=FallbackPolicy.SAME),
        capped=fleet.max_price is not None
        or (bool(tasks) and all(task.max_price is not None for task in tasks)),
    )


def same_hardware(planned: Shape, other: Shape) -> bool:
    """Whether a node has as many GPUs of the same model, with at least as much memory. That it has the CPUs
    and the memory that were asked for is a matter of the fleet's and the tasks' own limits.
    """
    if planned.gpus != other.gpus:
        return False
    if (planned.gpu_name or "").lower() != (other.gpu_name or "").lower():
        return False
    if planned.gpu_memory_mib is None or other.gpu_memory_mib is None:
        return True
    return other.gpu_memory_mib >= planned.gpu_memory_mib


# ------------------------------------------------------------------------------------- what the planner lists


@struct(frozen=True, slots=True)
class _Guest:
    """What a rank requires of its node."""

    task: Task
    blocks: int

    @property
    def key(self) -> tuple[object, ...]:
        """Guests with the same key refuse the same offers."""
        task = self.task
        where = (task.backends, task.regions, task.spot_policy, task.max_price)
        size = (task.resources, task.whole_nodes, one_vendor(task), self.blocks)
        return (*where, *size, task.isolation, task.image is None, task.fallback)


@struct(frozen=True, slots=True)
class _Member:
    """A node that may have to go elsewhere, and what it must keep."""

    node: Node
    guests: tuple[_Guest, ...]
    tied: frozenset[Place]
    """The places of its volumes."""

    @property
    def key(self) -> tuple[object, ...]:
        """Members with the same key may take the same offers."""
        node = self.node
        own = (node.backend, node.region, node.zone, node.instance_type, node.spot, node.total)
        return (*own, node.price, self.tied, tuple(sorted({repr(g.key) for g in self.guests})))

    def suits(self, kind: NodeType) -> bool:
        """Whether each rank gets as many blocks, and gangs GPUs of the same vendor."""
        same = maker_of(kind.shape) == maker_of(self.node.shape)
        return all(
            blocks_wanted(g.task, kind) == g.blocks and (same or not one_vendor(g.task)) for g in self.guests
        )

    def may_go_to(self, place: Place) -> bool:
        """Whether all its volumes can be attached there."""
        zone = place[2]
        return all(v[:2] == place[:2] and (not v[2] or not zone or v[2] == zone) for v in self.tied)


def fallbacks(decisions: Decisions, state: State) -> tuple[Fallback, ...]:
    """The ways of all nodes that are launched, by the name of the first."""
    fleets, launches = decisions.fleets, decisions.outcome.launches
    if not launches:
        return ()
    search = _Search(fleets.offers, fleets.desired.fleets, fleets.desired.backends)
    member = _members(decisions)
    by_fleet: dict[str, list[Node]] = defaultdict(list)
    for node in launches:
        by_fleet[node.fleet].append(node)
    rules = fleets.rules()
    out: list[Fallback] = []
    for name, nodes in sorted(by_fleet.items()):
        wanted = bool(rules[name].baseline)
        if fleets.desired.fleets[name].placement is Placement.CLUSTER:
            idle, staying = _existing_members(fleets, name, state)
            new = [member(node) for node in nodes]
            out += search.of_cluster(new, [member(node) for node in idle], staying, wanted=wanted)
        elif any(not _is_offer_of(offer, node) for node in nodes for _, offer in search.offers_of(name)):
            new = [member(node) for node in nodes]
            out += (f for f in search.of_each(new, lambda _: True, wanted=wanted) if f.ways)
    return tuple(sorted(out, key=lambda f: natural(f.kinds[0][0])))


def _existing_members(fleets: Fleets, name: str, state: State) -> tuple[list[Node], list[Node]]:
    """The existing nodes of a cluster: those that may move with it, and those that stay. A node may move if
    nothing is on it, and it is not protected.
    """
    used = {address for record in state.records.values() for address in record.needs}
    idle: list[Node] = []
    staying: list[Node] = []
    for decision in fleets.staying(name):
        inputs = decision.record.node
        protected = decision.changed or decision.mended or inputs.prevent_destroy or inputs.protected
        free = decision.idle and not decision.node.closed and decision.record.address not in used
        if free and not protected:
            idle.append(replace(decision.node, offer=offer_of(decision.record.node)))
        elif not decision.node.closed:
            staying.append(decision.node)
    return idle, staying


def _members(decisions: Decisions) -> Callable[[Node], _Member]:
    """A function that makes members from nodes."""
    on_node: dict[str, list[Choice]] = defaultdict(list)
    for choice in decisions.outcome.choices:
        on_node[choice.node].append(choice)
    places = {volume.name: _place(volume.at(None)) for volume in decisions.volumes.values() if volume.after}

    def member(node: Node) -> _Member:
        choices = on_node.get(node.name, ())
        guests = (_Guest(decisions.tasks[c.task].want.spec, len(c.blocks)) for c in choices)
        tied = frozenset(places[v] for c in choices for v in c.volumes.values() if v in places)
        return _Member(node, tuple({guest.key: guest for guest in guests}.values()), tied)

    return member


@struct(slots=True)
class _Search:
    """The offers of fleets, and how many may still be looked at."""

    offers: Mapping[str, tuple[Offer, ...]]
    fleets: Mapping[str, Fleet]
    backends: Mapping[str, Backend]
    looks_left: int = MOST_LOOKS
    by_fleet: dict[str, list[tuple[NodeType, Offer]]] = field(default_factory=dict)

    def offers_of(self, fleet: str) -> list[tuple[NodeType, Offer]]:
        """The offers that a fleet may launch, cheapest first. A host is left out: it is one node only."""
        if fleet not in self.by_fleet:
            rule = self.fleets[fleet]
            offers = [o for o in self.offers.get(fleet, ()) if o.host is None]
            types = [(NodeType(*of_offer(offer, rule)), offer) for offer in offers]
            self.by_fleet[fleet] = sorted(types, key=lambda t: (t[0].cost, *by_name(t[0])))
        return self.by_fleet[fleet]

    def fitting(self, member: _Member, allowed: Callable[[Place], bool]) -> Iterator[Offer]:
        """The offers that a member may take instead of its own."""
        node = member.node
        accepted = terms(self.fleets[node.fleet], [guest.task for guest in member.guests])
        if accepted.policy is FallbackPolicy.NONE:
            return
        own = (node.backend, node.region, node.instance_type)
        same_type = (
            o for _, o in self.offers_of(node.fleet) if own == (o.backend, o.region, o.instance_type)
        )
        prices = (o.on_demand if o.spot else o.price for o in same_type)
        on_demand = next((price for price in prices if price is not None), None)
        suits: dict[object, bool] = {}
        for node_type, offer in self.offers_of(node.fleet):
            self.looks_left -= 1
            if self.looks_left < 0:
                return
            place = node_type.place
            if node_type.total != node.total or not allowed(place) or _is_offer_of(offer, node):
                continue
            if not member.may_go_to(place) or not accepted.accept(node, offer, on_demand):
                continue
            if node_type.shape not in suits:
                suits[node_type.shape] = member.suits(node_type)
            tasks = (guest.task for guest in member.guests)
            if suits[node_type.shape] and all(place_reason(task, node_type) is None for task in tasks):
                yield offer

    def few_fitting(self, member: _Member, allowed: Callable[[Place], bool]) -> list[Offer]:
        """The cheapest of them, and the cheapest of each other place, on demand and spot."""
        out: list[Offer] = []
        known_traits: set[object] = set()
        more = MOST_MORE
        for offer in self.fitting(member, allowed):
            traits = {("spot", offer.spot), _place(offer)}
            if len(out) < MOST_WAYS or not traits <= known_traits:
                out.append(offer)
                known_traits |= traits
            elif not (more := more - 1):
                break
            if len(out) == 2 * MOST_WAYS:
                break
        return out

    def of_each(
        self, members: Sequence[_Member], allowed: Callable[[Place], bool], *, wanted: bool
    ) -> list[Fallback]:
        """The ways of nodes that move one by one."""
        out: list[Fallback] = []
        for alike in _alike(members):
            ways = tuple((self._spare(alike[0], offer),) for offer in self.few_fitting(alike[0], allowed))
            out.append(Fallback(kinds=(_names(alike),), ways=ways, wanted=wanted))
        return out

    def of_cluster(
        self, new: Sequence[_Member], idle: Sequence[_Member], staying: Sequence[Node], *, wanted: bool
    ) -> list[Fallback]:
        """The ways of a cluster's nodes: all go the same way, unless all ways lead to where they are."""
        by_place: dict[Place, list[_Member]] = defaultdict(list)
        for member in new:
            by_place[_place(member.node)].append(member)
        if len(by_place) > 1:
            places = sorted(by_place, key=_place_key)
            return [f for p in places for f in self.of_each(by_place[p], p.__eq__, wanted=wanted)]
        (place,) = by_place
        homes = {(node.backend, node.region) for node in staying}
        at_home = place in map(_place, staying)  # others stay there, and they may hold one task

        def allowed(other: Place) -> bool:
            return other == place if at_home else not homes or other[:2] in homes

        kinds = _alike([*new, *idle])
        ways = self._cluster_ways(kinds, allowed)
        if {_place(offer) for way in ways for offer in way} <= {place}:
            return self.of_each(new, place.__eq__, wanted=wanted)
        return [
            Fallback(
                kinds=tuple(map(_names, kinds)),
                ways=tuple(tuple(self._spare(new[0], offer) for offer in way) for way in ways),
                together=True,
                idle=tuple(sorted(_names(idle), key=natural)),
                wanted=wanted,
            )
        ]

    def _cluster_ways(
        self, kinds: Sequence[Sequence[_Member]], allowed: Callable[[Place], bool]
    ) -> list[tuple[Offer, ...]]:
        """Ways that all kinds of a cluster's members can take, each to one place, cheapest first."""
        by_place: dict[Place, list[list[Offer]]] = defaultdict(lambda: [[] for _ in kinds])
        for i, alike in enumerate(kinds):
            for offer in self.few_fitting(alike[0], allowed):
                by_place[_place(offer)][i].append(offer)
        ways: list[tuple[tuple[object, ...], tuple[Offer, ...]]] = []
        for place, of_kinds in by_place.items():
            for offers, (first, *_) in zip(of_kinds, kinds, strict=True):
                if not offers and _place(first.node) == place and first.node.offer is not None:
                    offers.append(first.node.offer)  # another kind takes another offer where they are
            if not all(of_kinds):
                continue
            for turn in range(max(map(len, of_kinds))):
                way = tuple(offers[min(turn, len(offers) - 1)] for offers in of_kinds)
                cost = sum(
                    (DEAR if offer.price is None else offer.price) * len(alike)
                    for offer, alike in zip(way, kinds, strict=True)
                )
                ways.append(((cost, turn, *_place_key(place)), way))
        ways.sort(key=lambda item: item[0])
        return [way for _, way in ways[:MOST_WAYS]]

    def _spare(self, member: _Member, offer: Offer) -> Spare:
        fleet = self.fleets[member.node.fleet]
        return Spare(offer=offer_inputs(fleet, offer, self.backends.get(offer.backend)), limit=offer.limit)


def _alike(members: Sequence[_Member]) -> list[list[_Member]]:
    """The members by what they may take."""
    out: dict[tuple[object, ...], list[_Member]] = {}
    for member in sorted(members, key=lambda m: natural(m.node.name)):
        out.setdefault(member.key, []).append(member)
    return list(out.values())


def _names(members: Sequence[_Member]) -> tuple[str, ...]:
    return tuple(member.node.name for member in members)


def _is_offer_of(offer: Offer, node: Node) -> bool:
    own = (*_place(node), node.instance_type, node.spot)
    return own == (*_place(offer), offer.instance_type, offer.spot)


def _place(what: Node | Offer | VolumeAt) -> Place:
    return (what.backend, what.region, what.zone)


def _place_key(place: Place) -> tuple[str, str, str]:
    return (place[0], place[1], place[2] or "")


# ------------------------------------------------------------------------------------- which offer is next

REFUSED = (PermanentKind.NO_CAPACITY, *QUOTAS)
"""Faults of a planned offer after which another one is taken."""


def offer_key(offer: OfferInputs) -> tuple[str, str, str, bool]:
    """What limits and quotas count by: backend, region, instance type, spot. All zones share them."""
    return (offer.backend, offer.region, offer.instance_type, offer.spot)


def may_go_on(kind: PermanentKind, way: int) -> bool:
    """Whether the next offer is taken after this fault. Of a spare offer any lasting fault counts."""
    return way > 0 or kind in REFUSED


@struct(slots=True)
class SoldOut:
    """The offers that cannot be had, as far as the refusals of others say."""

    kinds: set[tuple[str, str, str, bool]] = field(default_factory=set)
    """The keys of offers that are over a quota: see `offer_key`."""
    regions: set[tuple[str, str, bool]] = field(default_factory=set)
    """Backend, region and spot where the number of instances is used up: no other type helps."""

    def add(self, offer: OfferInputs, kind: PermanentKind) -> None:
        """The cloud refused an offer for this reason."""
        if kind is PermanentKind.QUOTA:
            self.kinds.add(offer_key(offer))
        if kind is PermanentKind.INSTANCES:
            self.regions.add((offer.backend, offer.region, offer.spot))

    def has(self, offer: OfferInputs) -> bool:
        """Whether an offer is known to be sold out."""
        return (offer.backend, offer.region, offer.spot) in self.regions or offer_key(offer) in self.kinds


@struct(slots=True)
class MovingNodes:
    """Nodes that take the offers of one fallback in turn: a cluster together, or a single node."""

    fallback: Fallback
    kinds: Mapping[str, int]
    """Name → the number of its kind."""
    planned: Mapping[str, OfferInputs]
    """Name → its planned offer, or the one that it has."""
    followers: frozenset[str]
    """Nodes that existed before. They move last, and only if the others could be had elsewhere."""
    way: int = 0
    """0 is the planned way; the fallback's ways count from 1."""
    sold_out: SoldOut = field(default_factory=SoldOut)

    def offer(self, name: str) -> OfferInputs:
        """The offer that a node takes where they are now."""
        return self.fallback.ways[self.way - 1][self.kinds[name]].offer if self.way else self.planned[name]

    def next_way(self, keys: Mapping[str, tuple[str, str, str, bool]]) -> int | None:
        """The next way whose offers are not known to be refused, and whose limits have room for all of them.
        `keys` are those of all nodes, see `offer_key`.
        """
        others = Counter(key for name, key in keys.items() if name not in self.kinds)
        for number in range(self.way + 1, len(self.fallback.ways) + 1):
            way = self.fallback.ways[number - 1]
            taken = others + Counter(offer_key(way[kind].offer) for kind in self.kinds.values())
            if not any(
                self.sold_out.has(spare.offer)
                or (spare.limit is not None and taken[offer_key(spare.offer)] > spare.limit)
                for spare in way
            ):
                return number
        return None

    def has_to_follow(self, name: str) -> bool:
        """Whether a node that existed before is elsewhere than the others, or on another offer."""
        planned, offer = self.planned[name], self.offer(name)
        return (*offer_key(planned), planned.zone) != (*offer_key(offer), offer.zone)

    @property
    def needs_all(self) -> bool:
        """Whether they are given up if one of them cannot be had: a cluster that is launched for its task."""
        return self.fallback.together and not self.fallback.wanted


def moving_nodes(
    plan: Plan, launched: Mapping[str, OfferInputs], existing: Mapping[str, OfferInputs]
) -> Iterator[MovingNodes]:
    """The nodes of a plan that may have to go elsewhere: each cluster together, all others one by one."""
    planned = {**existing, **launched}
    for fallback in plan.preview.fallbacks:
        kinds = {name: i for i, names in enumerate(fallback.kinds) for name in names}
        new = [name for name in kinds if name in launched]
        if not fallback.ways or not new:
            continue
        followers = frozenset(
            name for name in fallback.idle if fallback.together and name in existing and name not in launched
        )
        for names in [new] if fallback.together else [[name] for name in new]:
            members = {name: kinds[name] for name in (*names, *sorted(followers))}
            yield MovingNodes(fallback=fallback, kinds=members, planned=planned, followers=followers)


# --------------------------------------------------------------------------------------- what a plan shows


@struct(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Nodes, and the offers that may stand in for theirs."""

    names: tuple[str, ...]
    planned: OfferInputs | None
    """The offer of the first of them; None if they exist already and move with their cluster."""
    offers: tuple[OfferInputs, ...]
    at_most: float | None
    """The most that one of them may cost, USD an hour; None if unknown."""
    together: bool


def stand_ins(plan: Plan) -> Iterator[StandIn]:
    """All fallbacks of a plan: a node is in one of them at most."""
    planned_inputs = {a.address.name: cast("OfferInputs", a.typed) for a in plan.of(Op.CREATE, "node")}
    prices = _prices(plan)
    for fallback in plan.preview.fallbacks:
        for number, names in enumerate(fallback.kinds):
            planned = planned_inputs.get(names[0])
            first: dict[OfferKey, OfferInputs] = {}
            for way in fallback.ways:
                first.setdefault(OfferKey.of(way[number].offer), way[number].offer)
            if planned is not None:
                first.pop(OfferKey.of(planned), None)
            offers = tuple(first.values())
            if offers:
                # Nobody may know what a spot node costs. What stands in for it may have a limit all the same.
                bounds = [price for price in map(_bound, offers) if price is not None]
                known = len(bounds) == len(offers)
                yield StandIn(
                    names=names,
                    planned=planned,
                    offers=offers,
                    at_most=max(prices.get(names[0]) or 0.0, *bounds) if known else None,
                    together=fallback.together,
                )


# ----------------------------------------------------------------------------------------- what it costs


def hourly_at_most(plan: Plan) -> float | None:
    """The most that all nodes cost after the plan, whatever is sold out, USD an hour; None if unknown."""
    after, prices = plan.preview.cost.after, _prices(plan)
    if after is None:
        return None
    dearest = (
        max((extra_cost(f, way, prices) for way in f.ways), default=0.0) for f in plan.preview.fallbacks
    )
    most = after + sum(dearest)
    return most if math.isfinite(most) else None


def affordable(plan: Plan, room: float) -> tuple[Fallback, ...]:
    """The fallbacks without the ways that may cost more than so much beyond the plan, in any combination."""
    prices = _prices(plan)
    out: list[Fallback] = []
    for fallback in plan.preview.fallbacks:
        fits = [(x, way) for way in fallback.ways if (x := extra_cost(fallback, way, prices)) <= room]
        if fits:
            room -= max(extra for extra, _ in fits)
            out.append(replace(fallback, ways=tuple(way for _, way in fits)))
    return tuple(out)


def extra_cost(fallback: Fallback, way: Sequence[Spare], prices: Mapping[str, float | None]) -> float:
    """The extra cost of a way, USD an hour, at most; infinite if unknown."""
    total = 0.0
    for names, spare in zip(fallback.kinds, way, strict=True):
        price = _bound(spare.offer)
        for name in names:
            planned = prices.get(name)
            if price is None or planned is None:
                return math.inf
            total += max(0.0, price - planned)
    return total


def _bound(offer: OfferInputs) -> float | None:
    """The price of an offer, or what it never costs more than; None if nobody knows."""
    return offer.max_price if offer.price is None else offer.price


def _prices(plan: Plan) -> dict[str, float | None]:
    return {node.name: node.price for node in plan.preview.nodes}
