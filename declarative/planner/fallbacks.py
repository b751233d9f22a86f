"""Other offers for nodes whose own offers turn out to have no capacity. They keep every promise of the plan.

The promises are: the hardware and the price that were planned, as far as `serves` says; the limits of the
fleet and of its tasks, how the node is split, how many blocks each rank gets, the places of the volumes. A
cluster moves as a whole. If it was in one zone, it goes to one zone again. Nodes that cannot move hold it
where it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from declarative.model.blocks import maker_of
from declarative.model.record import struct
from declarative.model.resource import Offer, offer_inputs
from declarative.model.spec import Backend, Fleet, Task
from declarative.model.spec.values import FallbackPolicy, Placement
from declarative.model.state import State, natural
from declarative.placement.filters import blocks_wanted, one_vendor, place_reason
from declarative.placement.problem import Choice, Node, NodeType, Place, VolumeAt, by_name, of_offer
from declarative.planner.fleets import Fleets, offer_of
from declarative.planner.plan import Fallback, Spare
from declarative.planner.serves import terms

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions

MOST_WAYS = 16
"""Ways that are kept for one node or cluster. Beside these, the first ways are kept that differ from all of
them in place, or in being on demand.
"""

MOST_LOOKS = 1_000_000
"""Offers that are looked at for one plan. Nodes after that keep only their own offer."""

MOST_MORE = 2_000
"""Offers beyond the kept ones that are searched for different ones."""

DEAR = 1e9
"""USD an hour that an unknown price counts as."""


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

    def may_take(self, kind: NodeType) -> bool:
        """Whether all its tasks accept the offer."""
        return all(place_reason(guest.task, kind) is None for guest in self.guests)


@struct(frozen=True, slots=True)
class _Bounds:
    """Where nodes may go; None is anywhere."""

    homes: frozenset[tuple[str, str]] | None = None
    zone: tuple[str | None] | None = None

    @classmethod
    def of(cls, place: Place) -> _Bounds:
        """Only this place."""
        return cls(homes=frozenset((place[:2],)), zone=(place[2],))

    def hold(self, place: Place) -> bool:
        """Whether a place is among them."""
        backend, region, zone = place
        if self.homes is not None and (backend, region) not in self.homes:
            return False
        return self.zone is None or zone == self.zone[0]


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
            out += (f for f in search.of_each(new, _Bounds(), wanted=wanted) if f.ways)
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
            idle.append(replace(decision.node, offer=offer_of(decision.record)))
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

    def fitting(self, member: _Member, bounds: _Bounds) -> Iterator[Offer]:
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
            if node_type.total != node.total or not bounds.hold(place) or _is_offer_of(offer, node):
                continue
            if not member.may_go_to(place) or not accepted.accept(node, offer, on_demand):
                continue
            if node_type.shape not in suits:
                suits[node_type.shape] = member.suits(node_type)
            if suits[node_type.shape] and member.may_take(node_type):
                yield offer

    def few_fitting(self, member: _Member, bounds: _Bounds) -> list[Offer]:
        """The cheapest of them, and the cheapest of each other place, on demand and spot."""
        out: list[Offer] = []
        known_traits: set[object] = set()
        more = MOST_MORE
        for offer in self.fitting(member, bounds):
            traits = {("spot", offer.spot), _place(offer)}
            if len(out) < MOST_WAYS or not traits <= known_traits:
                out.append(offer)
                known_traits |= traits
            elif not (more := more - 1):
                break
            if len(out) == 2 * MOST_WAYS:
                break
        return out

    def of_each(self, members: Sequence[_Member], bounds: _Bounds, *, wanted: bool) -> list[Fallback]:
        """The ways of nodes that move one by one."""
        out: list[Fallback] = []
        for alike in _alike(members):
            ways = tuple((self._spare(alike[0], offer),) for offer in self.few_fitting(alike[0], bounds))
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
            return [f for p in places for f in self.of_each(by_place[p], _Bounds.of(p), wanted=wanted)]
        (place,) = by_place
        bounds = _Bounds(homes=frozenset((n.backend, n.region) for n in staying) or None)
        if place in map(_place, staying):  # others stay there, and they may hold one task
            bounds = _Bounds.of(place)
        kinds = _alike([*new, *idle])
        ways = self._cluster_ways(kinds, bounds)
        if {_place(offer) for way in ways for offer in way} <= {place}:
            return self.of_each(new, _Bounds.of(place), wanted=wanted)
        return [
            Fallback(
                kinds=tuple(map(_names, kinds)),
                ways=tuple(tuple(self._spare(new[0], offer) for offer in way) for way in ways),
                together=True,
                idle=tuple(sorted(_names(idle), key=natural)),
                wanted=wanted,
            )
        ]

    def _cluster_ways(self, kinds: Sequence[Sequence[_Member]], bounds: _Bounds) -> list[tuple[Offer, ...]]:
        """Ways that all kinds of a cluster's members can take, each to one place, cheapest first."""
        by_place: dict[Place, list[list[Offer]]] = defaultdict(lambda: [[] for _ in kinds])
        for i, alike in enumerate(kinds):
            for offer in self.few_fitting(alike[0], bounds):
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
