"""The parts of a plan beside its actions: every rank's blocks, the block map, the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.model.resource import EXISTING, LOCAL, Desired, Offer
from declarative.model.state import State, natural, rank_name
from declarative.placement.explain.free_a_node import suggest
from declarative.placement.problem import Choice, Node, Suggestion
from declarative.planner.actions import attached_volumes
from declarative.planner.fleets import NodeDecision, node_of
from declarative.planner.plan import (
    Cost,
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
    out = {(c.task, c.rank): _chosen(state, c, after[c.node]) for c in decisions.outcome.choices}
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


def _chosen(state: State, choice: Choice, node: Node) -> Reservation:
    """The reservation of a rank."""
    name = rank_name(choice.task, choice.rank)
    record = state.get("reservation", name)
    reservation = record.reservation if record else None
    same = reservation is not None and (reservation.node, reservation.blocks) == (choice.node, choice.blocks)
    return held_by(
        node,
        choice.task,
        choice.rank,
        choice.blocks,
        volumes=dict(sorted(choice.volumes.items())),
        status=ReservationStatus.KEPT if same and not node.new else ReservationStatus.NEW,
        restart=state.get("rank", name) is not None and not state.has_ended(name),
    )


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
    out = {name: _kept_or_not(decision, holders) for name, decision in decisions.fleets.decisions.items()}
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


def _kept_or_not(decision: NodeDecision, holders: BlockHolders) -> NodePreview:
    """The preview of an existing node."""
    node = decision.node
    return NodePreview(
        name=node.name,
        fleet=node.fleet,
        total=node.total if decision.goes else decision.blocks,
        holders={} if decision.goes else holders.get(node.name, {}),
        status="new" if decision.fresh else "deleted" if decision.goes else "kept",
        state=node.readiness.state.value,
        price=node.price,
        spot=node.spot,
        shared=decision.record.node.is_shared,
    )
