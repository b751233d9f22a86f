"""The facts of the inventory that a saved plan relies on, and the message when one of them has changed.

Only facts that were used count: if a node that gets no work fails, or a running rank ends, the plan is not
stale. Records need no facts, since the serial stands for all of them. A fact is what changes by itself, or
by a command that was cut short before it could raise the serial.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from declarative.model.codec import to_data
from declarative.model.diagnostic import Diagnostic
from declarative.model.inputs import AttachmentInputs, NodeInputs, OfferKey, RankInputs, ReservationInputs
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.model.state import Address, State
from declarative.model.status import BOOTING, NodeState, Readiness
from declarative.placement.filters import lacks_hard, lacks_runtime
from declarative.planner.actions import is_used_up
from declarative.planner.inventory import LOSABLE, Inventory, observed_state, rank_holding
from declarative.planner.plan import Op, Plan

AGAIN = "plan again: `fleetform plan --out FILE`"


@struct(frozen=True, slots=True, kw_only=True)
class OfferFact:
    """The promises of an offer to a launch."""

    price: float | None = None
    room: int | None = None
    """How many there may be, counted up to what the plan needs; None if there is no limit."""
    shape: Mapping[str, Any] | None = None
    """None if the node takes the shape that is asked for."""


@struct(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that a plan relies on."""

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """Recorded nodes that are to take work."""
    gone: tuple[str, ...] = ()
    """Recorded nodes and volumes that are missing."""
    found: Mapping[str, str] = field(default_factory=dict)
    """A digest of what commands that were cut short had made."""
    able: Mapping[str, bool] = field(default_factory=dict)
    """Whether nodes are known to support what their ranks ask of a host: an image, hard limits."""
    ranks: Mapping[str, bool] = field(default_factory=dict)
    """Rank → whether it gives its blocks back by itself, for ranks on which other actions depend."""
    offers: Mapping[str, OfferFact | None] = field(default_factory=dict)
    """The offers that nodes are launched from; None for a missing one."""


def canonical(data: Any) -> str:
    """Data as one text: the same data, the same text. ValueError for what JSON does not have."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(data: Any) -> str:
    """A fingerprint of data; ValueError for what UTF-8 and JSON do not have."""
    return "sha256:" + hashlib.sha256(canonical(data).encode()).hexdigest()


def facts_used(plan: Plan, state: State, inventory: Inventory) -> Facts:
    """The facts that `plan`, made of this state and inventory, relies on."""
    known = observed_state(state, inventory)
    ranks = _freed(plan, state, known) | _beside(plan, known) | _stayed(plan, known)
    return _facts(plan, state, inventory, ranks)


def facts_now(plan: Plan, before: Facts, state: State, inventory: Inventory) -> Facts:
    """The facts that `before` names, as they are now."""
    return _facts(plan, state, inventory, before.ranks)


def _facts(plan: Plan, state: State, inventory: Inventory, ranks: Iterable[str]) -> Facts:
    known = observed_state(state, inventory)
    working = _working(plan, known) - {a.address.name for a in plan.of(Op.CREATE, "node")}
    unknown = Readiness(state=NodeState.UNKNOWN)
    return Facts(
        nodes={name: inventory.readiness.get(name, unknown).state for name in sorted(working)},
        gone=tuple(sorted(str(a) for a in inventory.gone if a in state.records and a.kind in LOSABLE)),
        found={
            str(address): digest([record.generation, to_data(record.inputs)])
            for address, record in sorted(inventory.recovered.items())
        },
        able=_able(plan, known, inventory),
        ranks={name: known.get("reservation", name) is None for name in sorted(ranks)},
        offers=_offers(plan, state, inventory),
    )


def _working(plan: Plan, known: State) -> set[str]:
    """Nodes that get a rank, or start one in a place that it holds already."""
    out: set[str] = set()
    for action in plan.actions:
        if action.op is not Op.CREATE:
            continue
        if isinstance(action.typed, ReservationInputs | AttachmentInputs):
            out.add(action.typed.node)
        elif action.address.kind == "rank":
            place = known.get("reservation", action.address.name)
            if place and f"create:{place.address}" not in action.needs:
                out.add(place.reservation.node)
    return out


def _able(plan: Plan, known: State, inventory: Inventory) -> dict[str, bool]:
    # Node → what its host supports: as it was looked at for an offer, or as a node.
    supported = {o.host.name: o.can for offers in inventory.offers.values() for o in offers if o.host}
    supported |= {name: readiness.can for name, readiness in inventory.readiness.items()}
    places = _places(plan, known)
    out: dict[str, bool] = {}
    for action in plan.of(Op.CREATE, "rank"):
        rank, node = action.typed, places.get(action.address.name)
        if node is not None and isinstance(rank, RankInputs) and (rank.isolation or rank.image):
            has = supported.get(node)
            fits = not lacks_hard(has, rank.isolation) and not lacks_runtime(has, rank.image)
            out[node] = out.get(node, True) and fits
    return dict(sorted(out.items()))


def _places(plan: Plan, known: State) -> dict[str, str]:
    """Rank → its node, once the plan is done."""
    places = {r.address.name: r.reservation.node for r in known.of("reservation")}
    for action in plan.of(Op.CREATE, "reservation"):
        if isinstance(action.typed, ReservationInputs):
            places[action.address.name] = action.typed.node
    return places


def _freed(plan: Plan, state: State, known: State) -> set[str]:
    """Ranks that give back by themselves what the plan gives to others, changes or deletes."""
    touched = {address for a in plan.actions for address in (a.address, *a.holds)}
    holders = (*state.of("reservation"), *state.of("attachment"))
    freed = {name for r in holders if r.address not in known.records and (name := rank_holding(r))}
    return {name for r in holders if (name := rank_holding(r)) in freed and name and r.needs & touched}


def _beside(plan: Plan, known: State) -> set[str]:
    """Running ranks of tasks whose other ranks the plan starts: a gang runs with all ranks or not at all."""
    starts = plan.of(Op.CREATE, "rank")
    tasks = {a.task for a in starts}
    touched = {a.address for a in (*starts, *plan.of(Op.DELETE, "rank"))}
    going_on = (r for r in known.of("rank") if r.rank.task in tasks and r.address not in touched)
    return {r.address.name for r in going_on if known.get("reservation", r.address.name)}


def _stayed(plan: Plan, known: State) -> set[str]:
    """Ranks that run anew in the place that they hold. The place is given back when the old rank ends."""
    created = [a for a in plan.actions if a.op is Op.CREATE]
    kept_addresses = {h for a in created for h in a.holds} - {a.address for a in created}
    names = {rank_holding(known.records[address]) for address in kept_addresses & known.records.keys()}
    return {name for name in names if name and Address("rank", name) in known.records}


def _key(node: NodeInputs) -> OfferKey:
    """The offer that a node took."""
    return OfferKey.of(node)._replace(zone=node.effective_zone)


def _offers(plan: Plan, state: State, inventory: Inventory) -> dict[str, OfferFact | None]:
    launches = Counter(_key(a.typed) for a in plan.of(Op.CREATE, "node") if isinstance(a.typed, NodeInputs))
    if not launches:
        return {}
    counts = launches + Counter(key for r in state.of("node") if (key := _key(r.node)) in launches)
    there = {
        OfferKey.of(o): o
        for name in sorted({key.backend for key in counts})
        for o in reversed(inventory.offers.get(name, ()))  # of two the first holds
    }
    return {_offer_name(key): _offer(there.get(key), counts[key]) for key in sorted(counts, key=_offer_name)}


def _offer_name(key: OfferKey) -> str:
    spot = " as spot" if key.spot else ""
    return f"{key.instance_type} of backend {key.backend} in {key.zone or key.region}{spot}"


def _offer(offer: Offer | None, count: int) -> OfferFact | None:
    if offer is None:
        return None
    shape = {k: v for k, v in dataclasses.asdict(offer.shape).items() if v is not None}
    return OfferFact(
        price=offer.price,
        room=None if offer.limit is None else min(offer.limit, count),
        shape=None if offer.shaped else shape,
    )


# --------------------------------------------------------------------------------------- what differs


def record_difference(plan: Plan, state: State) -> Diagnostic | None:
    """Whether the plan was made from another state, or from an earlier serial of this one."""
    if plan.basis.lineage is not None and plan.basis.lineage != state.lineage:
        mine = f"lineage {state.lineage}" if state.lineage else "nothing in it yet"
        return Diagnostic(
            code="plan-other-state",
            summary="the plan was made for another state: "
            f"that one has lineage {plan.basis.lineage}, this one {mine}",
            hint="run it where its state is: `fleetform -C DIR apply FILE`, or `--state URL`",
        )
    if plan.basis.serial != state.serial:
        was = f"its serial was {plan.basis.serial} and is {state.serial} now"
        return Diagnostic(
            code="plan-outdated", summary=f"the state has changed since the plan was made: {was}", hint=AGAIN
        )
    return None


def changed_facts(
    before: Facts, after: Facts, reasons: Mapping[str, Readiness] | None = None
) -> tuple[Diagnostic, ...]:
    """The facts that have changed since the plan; `reasons` may say why a node is not ready."""
    return (
        *_gone(before, after),
        *_found(before, after),
        *_ready(before, after, reasons or {}),
        *_unable(before, after),
        *(_rank(n, freed=freed) for n, freed in before.ranks.items() if after.ranks.get(n) is not freed),
        *_changed_offers(before, after),
    )


def stopped_by_now(plan: Plan, state: State, now: float, hint: str = AGAIN) -> Iterator[Diagnostic]:
    """Ranks that the plan lets run on, though their new `max_duration` is used up by now. `state` has what is
    known of ranks now.
    """
    for action in plan.of(Op.UPDATE, "rank"):
        if action.ends or "max_duration" not in action.because or not isinstance(action.typed, RankInputs):
            continue
        if is_used_up(state.ranks.get(action.address.name), action.typed, now):
            what = f"{action.address} was to run on when the plan was made, and would be stopped now"
            summary = f"{what}: it has run for longer than its new `max_duration`"
            yield Diagnostic(code="plan-rank-state", summary=summary, hint=hint, address=str(action.address))


def _ready(before: Facts, after: Facts, reasons: Mapping[str, Readiness]) -> Iterator[Diagnostic]:
    lost = {Address.parse(a).name for a in after.gone if a.startswith("node/")}
    for name, was in before.nodes.items():
        now = after.nodes.get(name, NodeState.UNKNOWN)
        came_up = was in BOOTING and now in (NodeState.READY, *BOOTING)
        if now is not was and not came_up and name not in lost:
            why = reasons[name].reason if name in reasons else None
            summary = f"node/{name} was {was.value} when the plan was made, and is {now.value} now"
            summary += f": {why}" if why else ""
            hint = f"the plan gives it work: wait until it is ready again, or {AGAIN}"
            yield Diagnostic(code="plan-node-state", summary=summary, hint=hint, address=f"node/{name}")


def _unable(before: Facts, after: Facts) -> Iterator[Diagnostic]:
    for name, able in before.able.items():
        if able and not after.able.get(name, True):
            summary = f"node/{name} cannot do any more what a task that the plan gives it asks for"
            hint = f"the task has `isolation: hard` or an `image`: repair the node, or {AGAIN}"
            yield Diagnostic(code="plan-node-state", summary=summary, hint=hint, address=f"node/{name}")


def _changed_offers(before: Facts, after: Facts) -> Iterator[Diagnostic]:
    for name, promised in before.offers.items():
        what = _offer_difference(promised, after.offers.get(name))
        if what:
            summary = f"what nodes would be launched from has changed: {name} {what}"
            yield Diagnostic(code="plan-offer-changed", summary=summary, hint=AGAIN)


def _gone(before: Facts, after: Facts) -> Iterator[Diagnostic]:
    for address in sorted({*before.gone} ^ {*after.gone}):
        what = "was gone when the plan was made, and is there again"
        if address in after.gone:
            what = "is gone since the plan was made"
        yield Diagnostic(code="plan-gone", summary=f"{address} {what}", hint=AGAIN, address=address)


def _found(before: Facts, after: Facts) -> Iterator[Diagnostic]:
    for address in sorted({*before.found} | {*after.found}):
        was, now = before.found.get(address), after.found.get(address)
        if was != now:
            what = "is found, and the plan does not know of it" if now else "is not there any more"
            summary = f"{address}, of a command that was cut short, {what}"
            hint = f"`fleetform apply` records it; or {AGAIN}"
            yield Diagnostic(code="plan-recovered", summary=summary, hint=hint, address=address)


def _rank(name: str, *, freed: bool) -> Diagnostic:
    if freed:
        what = f"rank/{name} had ended when the plan was made, and its blocks cannot be seen to be free now"
    else:
        what = (
            f"rank/{name} has ended: its place, in which or beside which the plan starts ranks, is given back"
        )
    return Diagnostic(code="plan-rank-state", summary=what, hint=AGAIN, address=f"rank/{name}")


def _offer_difference(was: OfferFact | None, now: OfferFact | None) -> str | None:
    if was == now:
        return None
    if now is None:
        return "is not offered any more"
    if was is None:
        return "is offered now, and was not"
    if was.price != now.price:
        return f"cost {_money(was.price)}, and costs {_money(now.price)}"
    if was.room != now.room:
        most = "any number" if now.room is None else f"at most {now.room}"
        return f"can be had in another number: {most}"
    return "has another shape"


def _money(price: float | None) -> str:
    return "an unknown price" if price is None else f"{price:.15g} USD/h"
