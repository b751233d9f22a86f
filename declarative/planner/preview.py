"""What a plan shows beside its actions: every rank's blocks, the block map, the cost, and how nodes differ
from what is declared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.model.inputs import NodeInputs
from declarative.model.resource import (
    CATALOGUED,
    EXISTING,
    LOCAL,
    Desired,
    Offer,
    catalog_offers,
    settings_of,
)
from declarative.model.spec import Backend
from declarative.model.state import IMAGE, Record, State, natural, rank_name
from declarative.placement.explain.free_a_node import suggest
from declarative.placement.problem import Node, Suggestion
from declarative.planner.actions import attached_volumes
from declarative.planner.fleets import NodeDecision, node_of
from declarative.planner.inventory import Inventory
from declarative.planner.plan import (
    Cost,
    Difference,
    NodePreview,
    Reservation,
    ReservationStatus,
    held_price,
    total_price,
)
from declarative.planner.tasks import Course
from declarative.planner.volumes import VolumeDecision

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions

BlockHolders = Mapping[str, Mapping[int, str]]
"""Node → block → who will hold it."""


def held_by(node: Node, task: str, rank: int, blocks: tuple[int, ...], **more: Any) -> Reservation:
    """The reservation of blocks of a node by a rank."""
    return Reservation(
        task=task,
        rank=rank,
        node=node.name,
        fleet=node.fleet,
        new_node=node.new,
        blocks=blocks,
        total_blocks=node.total,
        backend=node.backend,
        region=node.region,
        zone=node.zone,
        instance_type=node.instance_type,
        price=None if node.price is None else round(node.price * len(blocks) / node.total, 6),
        **more,
    )


def reservations(recorded: State, state: State, decisions: Decisions) -> tuple[Reservation, ...]:
    """Every rank that holds or will hold blocks, and those whose blocks are given back; by task and rank."""
    before = {r.address.name: node_of(r) for r in recorded.of("node")}
    after = before | decisions.nodes()
    out: dict[tuple[str, int], Reservation] = {}
    for choice in decisions.outcome.choices:
        name, node = rank_name(choice.task, choice.rank), after[choice.node]
        place = state.get("reservation", name)
        held = place and (place.reservation.node, place.reservation.blocks)
        same = held == (choice.node, choice.blocks) and not node.new
        out[choice.task, choice.rank] = held_by(
            node,
            choice.task,
            choice.rank,
            choice.blocks,
            volumes=dict(sorted(choice.volumes.items())),
            status=ReservationStatus.KEPT if same else ReservationStatus.NEW,
            restart=state.get("rank", name) is not None and not state.has_ended(name),
        )
    volumes = attached_volumes(recorded)
    for record in recorded.of("reservation"):
        reservation = record.reservation
        entry = (reservation.task, reservation.rank)
        if entry in out:
            continue
        decision = decisions.tasks.get(reservation.task)
        keeps = (
            decision is not None
            and decision.course is not Course.RUN
            and not decision.leaves(record.address.name)
            and record.address in state.records
        )
        out[entry] = held_by(
            before[reservation.node],
            *entry,
            reservation.blocks,
            volumes=dict(sorted(volumes.get(record.address.name, {}).items())),
            status=ReservationStatus.KEPT if keeps else ReservationStatus.RELEASED,
        )
    return tuple(out[entry] for entry in sorted(out, key=lambda entry: (natural(entry[0]), entry[1])))


def plan_cost(state: State, decisions: Decisions, holders: BlockHolders) -> Cost:
    """The cost of whole nodes, before and after. On a partition's nodes only this project's blocks count."""
    fleets, outcome = decisions.fleets, decisions.outcome
    held_blocks = state.held_blocks()
    before = total_price(_price(f, held_blocks.get(f.node.name, {})) for f in fleets.decisions.values())
    staying = [_price(f, holders.get(f.node.name, {})) for f in fleets.staying()]
    after = total_price([*staying, *(n.price for n in outcome.launches)])
    billed = any(_billed(fleets.desired, decision) for decision in decisions.volumes.values())
    staying_cost = total_price(staying)
    bound = (
        None
        if None in (staying_cost, after, outcome.bound)
        else (staying_cost or 0.0) + (outcome.bound or 0.0)
    )
    # The days of the prices that count, including those of existing nodes.
    counted = {_price_key(n) for n in (*(f.node for f in fleets.decisions.values()), *outcome.launches)}
    offers = [offer for fleet_offers in fleets.offers.values() for offer in fleet_offers]
    dated = {
        o.backend: o.priced_on
        for o in offers
        if o.priced_on and o.price is not None and _price_key(o) in counted
    }
    return Cost(
        before=before,
        after=after,
        priced_on=dict(sorted(dated.items())),
        excludes=("volumes",) if billed else (),
        bound=bound,
        unpriced=any(offer.price is None for offer in offers),
    )


def _price(decision: NodeDecision, holders: Mapping[int, str]) -> float | None:
    """The price of a node an hour. A partition's node exists anyway, and others use it, too."""
    price = decision.node.price
    return held_price(price, holders, decision.node.total) if decision.record.node.is_shared else price


def _billed(desired: Desired, decision: VolumeDecision) -> bool:
    """Whether there is, or will be, a volume that costs money."""
    inputs = decision.record.volume if decision.record else None if decision.waits else decision.after
    if inputs is None:
        return False
    name = inputs.backend
    backend = desired.backends.get(name)
    return (backend.provider if backend else name) not in (LOCAL, *EXISTING)


def _price_key(priced: Node | Offer) -> tuple[object, ...]:
    return (priced.backend, priced.region, priced.instance_type, priced.spot, priced.price)


def block_holders(state: State, held: Iterable[Reservation]) -> dict[str, dict[int, str]]:
    """Who will hold which block: the ranks with these reservations, and what is there and not recorded."""
    holders: dict[str, dict[int, str]] = {}
    for item in held:
        if item.status is not ReservationStatus.RELEASED:
            name = f"rank/{rank_name(item.task, item.rank)}"
            holders.setdefault(item.node, {}).update(dict.fromkeys(item.blocks, name))
    for node, strays in state.strays.items():
        # A queued rank is shown, and not the jobs that it waits for.
        holders[node] = {**strays, **holders.get(node, {})}
    return holders


def suggestions(decisions: Decisions, holders: BlockHolders) -> tuple[Suggestion, ...]:
    """Moves of running ranks that would let a node go."""
    wants = {name: f.want for name, f in decisions.tasks.items() if f.course is not Course.RUN}
    if not wants:
        return ()
    staying = [decision.planned for decision in decisions.fleets.staying()]
    nodes = [replace(n, held=holders.get(n.name, {})) for n in (*staying, *decisions.outcome.launches)]
    return suggest(nodes, decisions.fleets.desired.fleets, wants)


def node_previews(decisions: Decisions, holders: BlockHolders) -> tuple[NodePreview, ...]:
    """The block map: each node as it will be."""
    out: dict[str, NodePreview] = {}
    for name, decision in decisions.fleets.decisions.items():
        node = decision.node
        out[name] = NodePreview(
            name=name,
            fleet=node.fleet,
            total=node.total if decision.goes else decision.after.blocks,
            holders={} if decision.goes else holders.get(name, {}),
            status="new" if decision.fresh else "deleted" if decision.goes else "kept",
            state=node.readiness.state.value,
            price=node.price,
            spot=node.spot,
            shared=decision.record.node.is_shared,
        )
    for node in decisions.outcome.launches:
        if node.name not in out or out[node.name].status == "deleted":
            out[node.name] = NodePreview(
                name=node.name,
                fleet=node.fleet,
                total=node.total,
                holders=holders.get(node.name, {}),
                status="new",
                state="pending",
                price=node.price,
                spot=node.spot,
            )
    return tuple(out[name] for name in sorted(out, key=natural))


# -------------------------------------------------------------------------- differences from what is declared
# What a change of a field does at once is decided in `fleets`. Here is the rest of what shapes a node:
# nothing is done about it, and the plan shows it, so that no plan says that everything is as declared when it
# is not.

OF_NO_NODE: Mapping[str, str] = {
    "backend.credentials": "names of variables: who asks, and not what a node is",
    "backend.endpoint": "where the cloud's API answers; nodes of another cloud are found to be gone",
    "backend.options": "only those in `resource.HOW_REACHED`, and those of drivers whose nodes are folders "
    "or hosts that exist",
    "backend.catalog.limit": "how many more nodes may be launched",
    "fleet.same": "where the ranks of a task may be seated together; holds when a task is placed",
    "fleet.fallback": "what else may be launched; holds when a node is launched, and each plan shows it",
    "fleet.backfill": "who may use what a task waits for; holds when a task is placed",
    "fleet.unreachable_duration": "when a silent node is given up; each plan asks it anew",
    "fleet.schedule": "when nodes are there; each plan asks it anew",
    "fleet.ssh_config.hosts.topology": "which racks a task may use; read when a task is placed",
}
"""Fields whose change is neither an action at once nor a difference: none of them shapes a node. A test goes
through all fields of both documents.
"""


def node_differences(
    nodes: Iterable[Record], desired: Desired, inventory: Inventory, anew: Collection[str] = ()
) -> tuple[Difference, ...]:
    """What differs, by node and field. The actions of the nodes `anew`, which this plan makes anew, say the
    rest: for these, only the image counts that the cloud gives for what is declared.
    """
    known = _Declared(desired, inventory)
    out: list[Difference] = []
    for record in sorted(nodes, key=lambda r: natural(r.address.name)):
        replaced = record.address.name in anew
        for name, before, after in known.differing(record):
            settings = record.node.settings
            if not replaced or (
                name == IMAGE and settings.get(IMAGE) == known.settings(record.node).get(IMAGE)
            ):
                out.append(
                    Difference(
                        address=str(record.address), field=name, before=before, after=after, replaced=replaced
                    )
                )
    return tuple(out)


class _Declared:
    """What is declared for nodes by now, worked out once for each place."""

    def __init__(self, desired: Desired, inventory: Inventory) -> None:
        self._backends = desired.backends
        self._inventory = inventory
        self._settings: dict[tuple[str, str, str | None], dict[str, Any]] = {}
        self._offers: dict[str, dict[tuple[str, str, bool], Offer]] = {}
        self._prices: dict[str, dict[tuple[str, str, bool], float | None]] = {}

    def settings(self, node: NodeInputs) -> dict[str, Any]:
        """The settings that a node made in the place of this one would get."""
        key = (node.backend, node.region, node.zone)
        if key not in self._settings:
            self._settings[key] = settings_of(self._backends.get(node.backend), node.region, node.zone)
        return self._settings[key]

    def differing(self, record: Record) -> Iterator[tuple[str, Any, Any]]:
        """The fields that differ, each with the value of its making and the declared one."""
        node = record.node
        backend = self._backends.get(node.backend)
        if backend is None or node.instance_id is not None or backend.provider in EXISTING:
            return
        image = self._inventory.altered.get(record.address, {}).get(IMAGE) or record.image
        declared_image = self._inventory.images.get((node.backend, node.region))
        ids_known = bool(image and declared_image)
        if ids_known and str(image) != declared_image:
            yield IMAGE, str(image), declared_image
        if node.settings:  # else it is from a time when they were not recorded
            yield from _unlike(node.settings, self.settings(node), (IMAGE,) if ids_known else ())
        regions = [region.casefold() for region in backend.regions]
        if regions and node.region.casefold() not in regions:
            yield "region", node.region, list(backend.regions)
        elif backend.availability_zones and node.zone and node.zone not in backend.availability_zones:
            yield "zone", node.zone, list(backend.availability_zones)
        yield from self._offered(record, backend)

    def _offered(self, record: Record, backend: Backend) -> Iterator[tuple[str, Any, Any]]:
        """What its offer says by now: the shape, and the price where that is declared."""
        node = record.node
        key = (node.region, node.instance_type, node.spot)
        if node.backend not in self._offers:
            catalog = catalog_offers(backend)
            self._prices[node.backend] = {(o.region, o.instance_type, o.spot): o.price for o in catalog}
            reported = self._inventory.offers.get(node.backend, ())
            self._offers[node.backend] = {
                (o.region, o.instance_type, o.spot): o for o in (*reported, *catalog) if o.host is None
            }
        offer = self._offers[node.backend].get(key)
        if offer is None:
            types = {entry.instance_type for entry in backend.catalog}
            known = backend.provider in CATALOGUED and bool(self._inventory.offers.get(node.backend))
            whole = backend.provider != LOCAL or bool(types)  # else it takes any shape
            if node.instance_type in types or (known and whole):
                yield "instance_type", node.instance_type + (" as spot" if node.spot else ""), None
            return
        if offer.shaped:
            return
        for part in dataclasses.fields(offer.shape) if node.resources != offer.shape else ():
            was, now = getattr(node.resources, part.name), getattr(offer.shape, part.name)
            if was is not None and was != now:
                yield f"resources.{part.name}", was, now
        prices = self._prices[node.backend]
        if key in prices and prices[key] != node.price:
            yield "price", node.price, prices[key]


def _unlike(
    before: Mapping[str, Any], after: Mapping[str, Any], known: Collection[str], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """The values that differ, one by one; an image is one value."""
    for key in sorted({*before, *after} - {*known}):
        was, now = before.get(key), after.get(key)
        name = f"{path}{key}"
        if was == now:
            continue
        if name != IMAGE and (isinstance(was, Mapping) or isinstance(now, Mapping)):
            inside = [item if isinstance(item, Mapping) else {} for item in (was, now)]
            yield from _unlike(inside[0], inside[1], (), f"{name}.")
        else:
            yield name, was, now
