"""Other offers for nodes whose own offers turn out to have no capacity. They keep every promise of the plan.

The promises are: the hardware and the price that were planned, as far as `serves` says; the limits of the
fleet and of its tasks, how the node is split, how many blocks each rank gets, the places of the volumes. A
cluster moves as a whole. If it was in one zone, it goes to one zone again. Nodes that cannot move hold it
where it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from declarative.model.blocks import maker_of
from declarative.model.record import struct
from declarative.model.resource import Offer, offer_inputs
from declarative.model.spec import Backend, Fleet, Task
from declarative.model.spec.values import FallbackPolicy, Placement
from declarative.model.state import Address, State, natural
from declarative.placement.filters import blocks_wanted, one_vendor, place_reason
from declarative.placement.problem import Choice, Node, NodeType, Place, by_name, of_offer
from declarative.planner.fleets import Fleets, NodeDecision, offer_of
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
        return all(_serves(volume, place) for volume in self.tied)

    def may_take(self, kind: NodeType) -> bool:
        """Whether all its tasks accept the offer."""
        return all(place_reason(guest.task, kind) is None for guest in self.guests)


@struct(slots=True)
class _Search:
    """The offers of fleets as kinds, cheapest first, and how many may still be looked at."""

    offers: Mapping[str, tuple[Offer, ...]]
    fleets: Mapping[str, Fleet]
    backends: Mapping[str, Backend]
    left: int = MOST_LOOKS
    kinds: dict[str, list[tuple[NodeType, Offer]]] = field(default_factory=dict)

    def of(self, fleet: str) -> list[tuple[NodeType, Offer]]:
        """The kinds that a fleet may launch, without hosts: each of those is one node only."""
        if fleet not in self.kinds:
            rule = self.fleets[fleet]
            found = [(NodeType(*of_offer(o, rule)), o) for o in self.offers.get(fleet, ()) if o.host is None]
            self.kinds[fleet] = sorted(found, key=lambda f: (f[0].cost, *by_name(f[0])))
        return self.kinds[fleet]

    def on_demand(self, node: Node) -> float | None:
        """The price of a node's own type on demand, where the node would be; None if unknown."""
        own = (node.backend, node.region, node.instance_type)
        same = (o for _, o in self.of(node.fleet) if own == (o.backend, o.region, o.instance_type))
        known = (o.on_demand if o.spot else o.price for o in same)
        return next((price for price in known if price is not None), None)

    def fitting(self, member: _Member, bounds: _Bounds) -> Iterator[Offer]:
        """The offers that a member may take instead of its own."""
        node = member.node
        accepted = terms(self.fleets[node.fleet], [guest.task for guest in member.guests])
        if accepted.policy is FallbackPolicy.NONE:
            return
        on_demand = self.on_demand(node)
        fits: dict[object, bool] = {}
        for kind, offer in self.of(node.fleet):
            self.left -= 1
            if self.left < 0:
                return
            if kind.total != node.total or not bounds.hold(kind.place) or _same(offer, node):
                continue
            if not member.may_go_to(kind.place) or not accepted.accept(node, offer, on_demand):
                continue
            if kind.shape not in fits:
                fits[kind.shape] = member.suits(kind)
            if fits[kind.shape] and member.may_take(kind):
                yield offer


@struct(frozen=True, slots=True)
class _Bounds:
    """Where nodes may go; None is anywhere."""

    homes: frozenset[tuple[str, str]] | None = None
    zone: tuple[str | None] | None = None

    def hold(self, place: Place) -> bool:
        """Whether a place is among them."""
        backend, region, zone = place
        if self.homes is not None and (backend, region) not in self.homes:
            return False
        return self.zone is None or zone == self.zone[0]


def fallbacks(found: Decisions, state: State) -> tuple[Fallback, ...]:
    """The ways of all nodes that are launched, by the name of the first."""
    fleets, launches = found.fleets, found.outcome.launches
    if not launches:
        return ()
    desired = fleets.desired
    search = _Search(offers=fleets.offers, fleets=desired.fleets, backends=desired.backends)
    members = _members(found)
    by_fleet: dict[str, list[Node]] = defaultdict(list)
    for node in launches:
        by_fleet[node.fleet].append(node)
    rules = fleets.rules()
    out: list[Fallback] = []
    for name, nodes in sorted(by_fleet.items()):
        wanted = bool(rules[name].baseline)
        if fleets.desired.fleets[name].placement is Placement.CLUSTER:
            idle, staying = _there(fleets, name, state)
            new = [members(node) for node in nodes]
            out += _cluster(search, new, [members(node) for node in idle], staying, wanted=wanted)
        elif any(not _same(offer, node) for node in nodes for _, offer in search.of(name)):
            new = [members(node) for node in nodes]
            out += (f for f in _each(search, new, _Bounds(), wanted=wanted) if f.ways)
    return tuple(sorted(out, key=lambda f: natural(f.kinds[0][0])))


def _there(fleets: Fleets, name: str, state: State) -> tuple[list[Node], list[Node]]:
    """The existing nodes of a cluster: those that may move with it, and those that stay."""
    held = {address for record in state.records.values() for address in record.needs}
    idle: list[Node] = []
    staying: list[Node] = []
    for decision in fleets.staying(name):
        if _may_move(decision, held):
            idle.append(replace(decision.node, offer=offer_of(decision.record)))
        elif not decision.node.closed:
            staying.append(decision.node)
    return idle, staying


def _members(found: Decisions) -> Callable[[Node], _Member]:
    """A function that makes members from nodes."""
    on_node: dict[str, list[Choice]] = defaultdict(list)
    for choice in found.outcome.choices:
        on_node[choice.node].append(choice)
    ends = {decision.name: decision.at(None) for decision in found.volumes.values() if decision.after}
    places = {name: (at.backend, at.region, at.zone) for name, at in ends.items()}

    def member(node: Node) -> _Member:
        choices = on_node.get(node.name, ())
        guests = (_Guest(found.tasks[c.task].want.spec, len(c.blocks)) for c in choices)
        tied = frozenset(places[v] for c in choices for v in c.volumes.values() if v in places)
        return _Member(node, tuple({guest.key: guest for guest in guests}.values()), tied)

    return member


def _may_move(decision: NodeDecision, held: Container[Address]) -> bool:
    """Whether an existing node may move with its cluster: nothing is on it, and it is not protected."""
    inputs = decision.record.node
    protected = decision.changed or decision.mended or inputs.prevent_destroy or inputs.protected
    free = decision.idle and not decision.node.closed and decision.record.address not in held
    return free and not protected


def _each(search: _Search, members: Sequence[_Member], bounds: _Bounds, *, wanted: bool) -> list[Fallback]:
    """The ways of nodes that move one by one."""
    out: list[Fallback] = []
    for alike in _alike(members):
        fleet = search.fleets[alike[0].node.fleet]
        ways = tuple((_spare(search, fleet, o),) for o in _few(search.fitting(alike[0], bounds)))
        out.append(Fallback(kinds=(_names(alike),), ways=ways, wanted=wanted))
    return out


def _beside(staying: Sequence[Node], place: Place) -> _Bounds:
    """Where nodes of a cluster may go: where they are, if others stay there. They may hold one task."""
    if place in map(_place, staying):
        return _at(place)
    return _Bounds(homes=frozenset((n.backend, n.region) for n in staying) or None)


def _cluster(
    search: _Search, new: Sequence[_Member], idle: Sequence[_Member], staying: Sequence[Node], *, wanted: bool
) -> list[Fallback]:
    """The ways of a cluster's nodes: all go the same way, unless all ways lead to where they are."""
    fleet = search.fleets[new[0].node.fleet]
    by_place: dict[Place, list[_Member]] = defaultdict(list)
    for member in new:
        by_place[_place(member.node)].append(member)
    if len(by_place) > 1:
        apart = sorted(by_place.items(), key=lambda item: _place_key(item[0]))
        return [f for place, here in apart for f in _each(search, here, _at(place), wanted=wanted)]
    (place,) = by_place
    kinds = _alike([*new, *idle])
    ways = _ways(search, kinds, _beside(staying, place))
    if {_place_of(offer) for way in ways for offer in way} <= {place}:
        return _each(search, new, _at(place), wanted=wanted)
    spares = tuple(tuple(_spare(search, fleet, offer) for offer in way) for way in ways)
    names = tuple(sorted(_names(idle), key=natural))
    return [Fallback(kinds=tuple(map(_names, kinds)), ways=spares, together=True, idle=names, wanted=wanted)]


def _names(alike: Sequence[_Member]) -> tuple[str, ...]:
    return tuple(member.node.name for member in alike)


def _ways(search: _Search, kinds: Sequence[Sequence[_Member]], bounds: _Bounds) -> list[tuple[Offer, ...]]:
    """Ways that all kinds of a cluster's members can take, each to one place, cheapest first."""
    by_place: dict[Place, list[list[Offer]]] = defaultdict(lambda: [[] for _ in kinds])
    for i, alike in enumerate(kinds):
        for offer in _few(search.fitting(alike[0], bounds)):
            by_place[_place_of(offer)][i].append(offer)
    found: list[tuple[tuple[object, ...], tuple[Offer, ...]]] = []
    for place, lists in by_place.items():
        for offers, (first, *_) in zip(lists, kinds, strict=True):
            if not offers and _place(first.node) == place and first.node.offer is not None:
                offers.append(first.node.offer)  # another kind takes another offer where they are
        found += _ways_to(place, lists, [len(alike) for alike in kinds])
    found.sort(key=lambda f: f[0])
    return [way for _, way in found[:MOST_WAYS]]


def _ways_to(
    place: Place, lists: Sequence[Sequence[Offer]], counts: Sequence[int]
) -> Iterator[tuple[tuple[object, ...], tuple[Offer, ...]]]:
    """Ways that lead to one place, with the order that they have among all; none if a kind has no offer."""
    if not all(lists):
        return
    for turn in range(max(map(len, lists))):
        way = tuple(offers[min(turn, len(offers) - 1)] for offers in lists)
        cost = sum(_cost(offer) * count for offer, count in zip(way, counts, strict=True))
        yield (cost, turn, *_place_key(place)), way


def _few(found: Iterable[Offer]) -> list[Offer]:
    """The cheapest ways, and the cheapest of each other place and kind."""
    out: list[Offer] = []
    seen: set[object] = set()
    more = MOST_MORE
    for offer in found:
        traits = {("spot", offer.spot), (offer.backend, offer.region, offer.zone)}
        if len(out) < MOST_WAYS or not traits <= seen:
            out.append(offer)
            seen |= traits
        elif not (more := more - 1):
            break
        if len(out) == 2 * MOST_WAYS:
            break
    return out


def _alike(members: Sequence[_Member]) -> list[list[_Member]]:
    out: dict[tuple[object, ...], list[_Member]] = {}
    for member in sorted(members, key=lambda m: natural(m.node.name)):
        out.setdefault(member.key, []).append(member)
    return list(out.values())


def _same(offer: Offer, node: Node) -> bool:
    own = (node.backend, node.region, node.zone, node.instance_type, node.spot)
    return own == (offer.backend, offer.region, offer.zone, offer.instance_type, offer.spot)


def _serves(volume: Place, place: Place) -> bool:
    """Whether a volume can be attached there."""
    return volume[:2] == place[:2] and (not volume[2] or not place[2] or volume[2] == place[2])


def _place(node: Node) -> Place:
    return (node.backend, node.region, node.zone)


def _place_of(offer: Offer) -> Place:
    return (offer.backend, offer.region, offer.zone)


def _place_key(place: Place) -> tuple[str, str, str]:
    return (place[0], place[1], place[2] or "")


def _at(place: Place) -> _Bounds:
    return _Bounds(homes=frozenset((place[:2],)), zone=(place[2],))


def _cost(offer: Offer) -> float:
    return DEAR if offer.price is None else offer.price


def _spare(search: _Search, fleet: Fleet, offer: Offer) -> Spare:
    return Spare(offer=offer_inputs(fleet, offer, search.backends.get(offer.backend)), limit=offer.limit)
