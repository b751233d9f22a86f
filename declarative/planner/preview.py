"""What a plan shows beside its actions: every rank's blocks, the block map, the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.model.resource import EXISTING, LOCAL, Desired, Offer
from declarative.model.state import NodeState, Readiness, State, natural, rank_name
from declarative.placement.suggest import suggest
from declarative.placement.types import Node, PlacementOutcome, Suggestion
from declarative.planner.fleets import Fleets, NodeDecision, node_of
from declarative.planner.tasks import Course, TaskDecision
from declarative.planner.types import Cost, NodePreview, Reservation, ReservationStatus
from declarative.planner.volumes import VolumeDecision

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions


def held_by(node: Node, entry: tuple[str, int], blocks: tuple[int, ...], **more: Any) -> Reservation:
    """The reservation of blocks of a node by a rank: `entry` is its task and number."""
    task, rank = entry
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


def _attached(state: State) -> dict[str, dict[str, str]]:
    out: dict[str, dict[str, str]] = {}
    for record in state.of("attachment"):
        found = record.attachment
        out.setdefault(found.rank, {})[found.path] = found.volume
    return out


def reservations(
    recorded: State,
    state: State,
    fleets: Fleets,
    decisions: Mapping[str, TaskDecision],
    outcome: PlacementOutcome,
) -> tuple[Reservation, ...]:
    """Every rank that holds or will hold blocks, and those whose blocks are given back; by task and rank."""
    gone = Readiness(state=NodeState.UNKNOWN)
    before = {r.address.name: node_of(r, gone, {}) for r in recorded.of("node")}
    after = before | {f.node.name: replace(f.node, total=f.blocks) for f in fleets.decisions.values()}
    after |= {n.name: n for n in outcome.launches}
    found: dict[str, Reservation] = {}
    for choice in outcome.choices:
        name = rank_name(choice.task, choice.rank)
        record = state.get("reservation", name)
        held = record.reservation if record else None
        node = after[choice.node]
        same = held and (held.node, held.blocks) == (choice.node, choice.blocks)
        status = ReservationStatus.KEPT if same and not node.new else ReservationStatus.NEW
        volumes = dict(sorted(choice.volumes.items()))
        entry = (choice.task, choice.rank)
        rank, seen = state.get("rank", name), state.ranks.get(name)
        restart = rank is not None and not (seen and seen.state.ended)
        found[name] = held_by(node, entry, choice.blocks, volumes=volumes, status=status, restart=restart)
    attached = _attached(recorded)
    for record in recorded.of("reservation"):
        name = record.address.name
        if name in found:
            continue
        held = record.reservation
        decision = decisions.get(held.task)
        kept = decision is not None and decision.course is not Course.RUN and record.address in state.records
        status = ReservationStatus.KEPT if kept else ReservationStatus.RELEASED
        volumes = dict(sorted(attached.get(name, {}).items()))
        entry, node = (held.task, held.rank), before[held.node]
        found[name] = held_by(node, entry, held.blocks, volumes=volumes, status=status)
    return tuple(found[name] for name in sorted(found, key=lambda n: (natural(found[n].task), found[n].rank)))


def total_price(prices: Iterable[float | None]) -> float | None:
    """A sum with an unknown in it is unknown."""
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return round(total, 6)


def cost(state: State, found: Decisions) -> Cost:
    """Whole nodes, before and after. Of a partition's nodes only what this project holds."""
    fleets, outcome, volumes = found.fleets, found.outcome, found.volumes
    held, holders = state.held_blocks(), _holders(state, found.tasks, outcome)
    before = total_price(_price(f, held.get(f.node.name, {})) for f in fleets.decisions.values())
    staying = [_price(f, holders.get(f.node.name, {})) for f in fleets.decisions.values() if not f.goes]
    after = total_price([*staying, *(n.price for n in outcome.launches)])
    billed = any(_billed(fleets.desired, decision) for decision in volumes.values())
    excludes = ("volumes",) if billed else ()
    kept = total_price(staying)
    bound = None if None in (kept, after, outcome.bound) else (kept or 0.0) + (outcome.bound or 0.0)
    return Cost(
        before=before,
        after=after,
        priced_on=_priced_on(fleets, outcome),
        excludes=excludes,
        bound=bound,
    )


def _price(decision: NodeDecision, held: Mapping[int, str]) -> float | None:
    """What a node costs an hour. One of a partition is there anyway, and others use it, too."""
    price = decision.node.price
    if "partition" not in decision.record.node.host:
        return price
    mine = sum(holder.startswith("rank/") for holder in held.values())
    return price if mine and price is None else (price or 0.0) * mine / decision.node.total


def _billed(desired: Desired, decision: VolumeDecision) -> bool:
    """Whether a volume is there now, or will be, that somebody asks money for."""
    inputs = decision.record.volume if decision.record else None if decision.waits else decision.after
    if inputs is None:
        return False
    name = inputs.backend
    backend = desired.backends.get(name)
    return (backend.provider if backend else name) not in (LOCAL, *EXISTING)


def _priced_on(fleets: Fleets, outcome: PlacementOutcome) -> dict[str, str]:
    """The days of the prices that count, those of nodes that are there already included."""
    counted = {_priced(n) for n in (*(f.node for f in fleets.decisions.values()), *outcome.launches)}
    offers = (o for found in fleets.offers.values() for o in found if o.priced_on and _priced(o) in counted)
    return dict(sorted({o.backend: str(o.priced_on) for o in offers if o.price is not None}.items()))


def _priced(what: Node | Offer) -> tuple[object, ...]:
    return (what.backend, what.region, what.instance_type, what.spot, what.price)


def _holders(
    state: State, decisions: Mapping[str, TaskDecision], outcome: PlacementOutcome
) -> dict[str, dict[int, str]]:
    """Node → block → who will hold it."""
    holders: dict[str, dict[int, str]] = {}
    for choice in outcome.choices:
        name = f"rank/{rank_name(choice.task, choice.rank)}"
        holders.setdefault(choice.node, {}).update(dict.fromkeys(choice.blocks, name))
    kept = {f.name for f in decisions.values() if f.course is not Course.RUN}
    for record in state.of("reservation"):
        held = record.reservation
        if held.task in kept:
            name = f"rank/{record.address.name}"
            holders.setdefault(held.node, {}).update(dict.fromkeys(held.blocks, name))
    for node, strays in state.strays.items():
        holders[node] = {**strays, **holders.get(node, {})}  # a queued rank stands before whom it waits for
    return holders


def suggestions(
    state: State, fleets: Fleets, decisions: Mapping[str, TaskDecision], outcome: PlacementOutcome
) -> tuple[Suggestion, ...]:
    """Moves of running ranks that would let a node go."""
    wants = {name: f.want for name, f in decisions.items() if f.course is not Course.RUN}
    if not wants:
        return ()
    holders = _holders(state, decisions, outcome)
    staying = [replace(f.node, total=f.blocks) for f in fleets.decisions.values() if not f.goes]
    nodes = [replace(n, held=holders.get(n.name, {})) for n in (*staying, *outcome.launches)]
    return suggest(nodes, fleets.desired.fleets, wants)


def node_previews(
    state: State, fleets: Fleets, decisions: Mapping[str, TaskDecision], outcome: PlacementOutcome
) -> tuple[NodePreview, ...]:
    """The block map: each node as it will be."""
    holders = _holders(state, decisions, outcome)
    out = [
        NodePreview(
            name=f.node.name,
            fleet=f.node.fleet,
            total=f.node.total if f.goes else f.blocks,
            holders={} if f.goes else holders.get(f.node.name, {}),
            status="new" if f.fresh else "deleted" if f.goes else "kept",
            state=f.node.readiness.state.value,
            price=f.node.price,
            spot=f.node.spot,
        )
        for f in fleets.decisions.values()
    ]
    out += [
        NodePreview(
            name=n.name,
            fleet=n.fleet,
            total=n.total,
            holders=holders.get(n.name, {}),
            status="new",
            state="pending",
            price=n.price,
            spot=n.spot,
        )
        for n in outcome.launches
    ]
    again = {n.name for n in outcome.launches}
    out = [n for n in out if not (n.status == "deleted" and n.name in again)]
    return tuple(sorted(out, key=lambda n: natural(n.name)))
