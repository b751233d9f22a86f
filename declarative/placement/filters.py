"""What turns a node or an offer down, in one order for every path: pins and reuse included (DESIGN §4.1).

Each filter looks at immutable facts and gives a rejection with numbers, or None. No filter is skipped
for hand-picked nodes, and none reads the inventory again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from declarative.blocks import Shape, fewest, misfits, share
from declarative.placement.types import Node, Rejection, VolumeAt
from declarative.resource import Offer, RankMount
from declarative.spec import Fleet, SpotPolicy, Task
from declarative.state import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place that work could go to: the facts that nodes and offers have in common."""

    target: str
    backend: str
    region: str
    zone: str | None
    price: float | None
    spot: bool
    shape: Shape
    total: int


def of_node(node: Node) -> Spot:
    """The common facts of a node."""
    return Spot(
        target=f"node/{node.name}",
        backend=node.backend,
        region=node.region,
        zone=node.zone,
        price=node.price,
        spot=node.spot,
        shape=node.shape,
        total=node.total,
    )


def of_offer(offer: Offer, fleet: Fleet, total: int) -> Spot:
    """The common facts of an offer, as `fleet` would launch it."""
    where = offer.zone or offer.region
    kind = " spot" if offer.spot else ""
    return Spot(
        target=f"offer/{offer.backend}:{where}:{offer.instance_type}{kind} (fleet/{fleet.name})",
        backend=offer.backend,
        region=offer.region,
        zone=offer.zone,
        price=offer.price,
        spot=offer.spot,
        shape=offer.shape,
        total=total,
    )


def fleet_rejection(task: Task, fleet: Fleet) -> Rejection | None:
    """Whether the task may use the fleet at all."""
    target = f"fleet/{fleet.name}"
    if task.fleets and fleet.name not in task.fleets:
        listing = ", ".join(task.fleets)
        return Rejection(target=target, code="fleet", detail=f"the task asks for {listing}")
    if task.cluster and fleet.placement.value != "cluster":
        detail = "its placement is `any`; a cluster task needs a fleet with `placement: cluster`"
        return Rejection(target=target, code="not-cluster", detail=detail)
    return None


def place_rejection(task: Task, spot: Spot) -> Rejection | None:
    """Backend, region, spot and price."""
    if task.backends and spot.backend not in task.backends:
        detail = f"backend {spot.backend}; the task asks for {', '.join(task.backends)}"
        return Rejection(target=spot.target, code="backend", detail=detail)
    if task.regions and spot.region not in task.regions:
        detail = f"region {spot.region}; the task asks for {', '.join(task.regions)}"
        return Rejection(target=spot.target, code="region", detail=detail)
    policy = task.spot_policy
    if policy is SpotPolicy.ON_DEMAND and spot.spot:
        return Rejection(target=spot.target, code="spot", detail="spot; the task asks for on-demand")
    if policy is SpotPolicy.SPOT and not spot.spot:
        return Rejection(target=spot.target, code="spot", detail="on-demand; the task asks for spot")
    return price_rejection(task.max_price, spot, "the task")


def price_rejection(cap: float | None, spot: Spot, whose: str) -> Rejection | None:
    """A price cap; a price that is unknown cannot be shown to keep it."""
    if cap is None:
        return None
    if spot.price is None:
        detail = f"its price is unknown; {whose} allows {cap:g} USD/h"
        return Rejection(target=spot.target, code="price-unknown", detail=detail)
    if spot.price > cap:
        detail = f"{spot.price:g} USD/h; {whose} allows {cap:g}"
        return Rejection(target=spot.target, code="price", detail=detail, short={"price": spot.price - cap})
    return None


def ready_rejection(node: Node) -> Rejection | None:
    """Only ready nodes take work; `unknown` is neither ready nor empty."""
    target = f"node/{node.name}"
    if node.closed:
        return Rejection(target=target, code="closed", detail=node.closed)
    if node.readiness.state is NodeState.READY:
        return None
    why = f": {node.readiness.reason}" if node.readiness.reason else ""
    return Rejection(target=target, code="not-ready", detail=f"{node.readiness.state.value}{why}")


def shape_rejection(task: Task, spot: Spot) -> Rejection | None:
    """Whether some share of it, or the whole of it for exclusive ranks, satisfies the request."""
    if task.whole_nodes:
        off = misfits(task.resources, spot.shape)
    elif fewest(task.resources, spot.shape, spot.total) is not None:
        return None
    else:
        off = misfits(task.resources, spot.shape) or misfits(task.resources, share(spot.shape, spot.total, 1))
    if not off:
        return None
    large = all(item.short < 0 for item in off)
    what = ", ".join(f"{i.dimension}: wanted {i.wanted}, has {i.had}" for i in off)
    if large and task.whole_nodes:
        what += "; an exclusive rank takes the whole node: widen the range, or set `exclusive: false`"
    code = "too-large" if large else "too-small"
    return Rejection(target=spot.target, code=code, detail=what, short={i.dimension: i.short for i in off})


def blocks_wanted(task: Task, spot: Spot) -> int:
    """How many blocks a rank takes there; `shape_rejection` has said that it fits."""
    return spot.total if task.whole_nodes else fewest(task.resources, spot.shape, spot.total) or spot.total


def block_rejection(task: Task, spot: Spot, held: Mapping[int, str]) -> Rejection | None:
    """Whether enough blocks are idle."""
    wanted, idle = blocks_wanted(task, spot), spot.total - len(held)
    if idle >= wanted:
        return None
    holders = ", ".join(sorted(set(held.values())))
    if task.whole_nodes:
        detail = f"not whole: {len(held)} of {spot.total} blocks busy ({holders})"
        return Rejection(target=spot.target, code="not-idle", detail=detail, short={"blocks": wanted - idle})
    detail = f"wanted {wanted} blocks, {idle} of {spot.total} idle ({holders})"
    return Rejection(target=spot.target, code="busy", detail=detail, short={"blocks": wanted - idle})


def pick_volumes(
    mounts: tuple[RankMount, ...],
    spot: Spot,
    volumes: Mapping[str, VolumeAt],
    claims: Mapping[str, str],
    rank: str,
) -> dict[str, str] | Rejection:
    """For each mount the first alternative that can be attached there, or why there is none."""
    chosen: dict[str, str] = {}
    for mount in mounts:
        reasons: list[str] = []
        code = "volume-elsewhere"
        for name in mount.names:
            at = volumes.get(name)
            holder = (
                (claims.get(name) or (at.holder if at else None)) if name not in chosen.values() else rank
            )
            if at is None:
                reasons.append(f"volume/{name} does not exist")
                code = "volume-missing"
            elif (
                at.backend != spot.backend
                or at.region != spot.region
                or (at.zone and spot.zone and at.zone != spot.zone)
            ):
                reasons.append(f"volume/{name} is in {at.backend}/{at.zone or at.region}")
            elif holder:
                reasons.append(f"volume/{name} is held by {holder}")
                code = "volume-busy"
            else:
                chosen[mount.path] = name
                break
        else:
            return Rejection(target=spot.target, code=code, detail=f"{mount.path}: {'; '.join(reasons)}")
    return chosen
