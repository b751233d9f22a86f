"""What may be launched in place of a planned node that cannot be had, and the most that a plan costs then.

This is the one rule of fallbacks. The planner lists what serves. The plan shows that list, people approve
it, and `apply` launches nothing else. `SoldOut` is the part of the rule that only `apply` can know: what a
refusal says about the other offers of the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from declarative.model.blocks import Shape
from declarative.model.inputs import OfferInputs, OfferKey
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.model.spec import Fleet, Task
from declarative.model.spec.values import FallbackPolicy
from declarative.placement.problem import Node
from declarative.planner.plan import Fallback, Op, Plan, Spare
from declarative.provider import PermanentKind

MOST_DEARER = 1.2
"""Without a declared `max_price`, a fallback costs at most 1.2 times the planned price."""
ROUNDING = 1e-9

_STRICTNESS = (FallbackPolicy.NONE, FallbackPolicy.SAME, FallbackPolicy.ANY)


# --------------------------------------------------------------------------------- what the planner lists


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
            return offer.price is None and _type(node) == _type(offer)
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


def _type(what: Node | Offer) -> tuple[str, str]:
    return (what.backend, what.instance_type)


# ---------------------------------------------------------------------------------- what `apply` still tries


def offer_key(offer: OfferInputs) -> tuple[str, str, str, bool]:
    """What limits and quotas count by: backend, region, instance type, spot. All zones share them."""
    return (offer.backend, offer.region, offer.instance_type, offer.spot)


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
        """Whether asking for an offer is known to be in vain."""
        return (offer.backend, offer.region, offer.spot) in self.regions or offer_key(offer) in self.kinds


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
                own = prices.get(names[0])
                # Nobody may know what a spot node costs. What stands in for it may have a limit all the same.
                bounds = [*([] if own is None else [own]), *map(_bound, offers)]
                yield StandIn(
                    names=names,
                    planned=planned,
                    offers=offers,
                    at_most=_highest(bounds),
                    together=fallback.together,
                )


def _highest(prices: Iterable[float | None]) -> float | None:
    """The highest of the prices; None if one is unknown."""
    highest = 0.0
    for price in prices:
        if price is None:
            return None
        highest = max(highest, price)
    return highest


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
