"""What nodes have in common that differ in nothing but their names.

Filters ask about a kind once and not about each of its nodes: a fleet of thousands has a handful of kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from declarative.model.blocks import Shape, split
from declarative.model.resource import SSH, Offer
from declarative.model.spec import Fleet
from declarative.placement.types import Node


@dataclass(frozen=True, slots=True)
class Kind:
    """The facts that nodes and offers have in common. `price` is USD an hour for the whole node."""

    fleet: str
    backend: str
    region: str
    zone: str | None
    instance_type: str
    shape: Shape
    total: int
    price: float | None
    spot: bool
    can: frozenset[str] | None = None
    most: float | None = None
    """USD an hour that it never costs more than, where its price is unknown."""
    topology: tuple[tuple[str, str], ...] = ()
    """See `Node.topology`."""

    def at(self, level: str) -> str | None:
        """Where it stands at a level of topology: "" where all of a region are alike, None if unknown."""
        declared = dict(self.topology).get(level)
        if declared is not None or level not in ("zone", "region"):
            return declared
        # A host is a zone of its own to the volumes on its disk, not to the network.
        return "" if level == "region" or self.region == SSH else self.zone or ""

    @property
    def bound(self) -> float | None:
        """What a price cap is held against; None if nobody knows."""
        return self.most if self.price is None else self.price

    @property
    def cost(self) -> float:
        """The price for comparisons: one that is unknown is above all others."""
        return math.inf if self.price is None else self.price

    @property
    def place(self) -> Place:
        """Where it is, as far as volumes care."""
        return (self.backend, self.region, self.zone)


Place = tuple[str, str, str | None]
"""Backend, region, and the zone if there are any."""


def of_node(node: Node) -> tuple[Any, ...]:
    """The fields of a node's kind: most nodes are of a kind that is known already."""
    return (
        node.fleet,
        node.backend,
        node.region,
        node.zone,
        node.instance_type,
        node.shape,
        node.total,
        node.price,
        node.spot,
        node.readiness.can,
        node.most,
        node.topology,
    )


def of_offer(offer: Offer, fleet: Fleet) -> tuple[Any, ...]:
    """The fields of the kind of node that `offer` gives the fleet, which splits it."""
    return (
        str(fleet.name),
        offer.backend,
        offer.region,
        offer.zone,
        offer.instance_type,
        offer.shape,
        split(offer.shape, offer.blocks(fleet)) or 1,
        offer.price,
        offer.spot,
        offer.can,
        fleet.max_price if offer.bids and offer.price is None else None,
        offer.host.topology if offer.host else (),
    )


def offer_name(kind: Kind) -> str:
    """What an offer is called in a refusal."""
    spot = " spot" if kind.spot else ""
    return f"offer/{kind.backend}:{kind.zone or kind.region}:{kind.instance_type}{spot} (fleet/{kind.fleet})"


def by_name(kind: Kind) -> tuple[object, ...]:
    """An order of kinds that does not depend on that of the input."""
    shape = kind.shape
    return (
        kind.fleet,
        kind.backend,
        kind.region,
        kind.zone or "",
        kind.instance_type,
        kind.spot,
        kind.cost,
        kind.total,
        (shape.cpu, shape.memory_mib, shape.gpus, shape.gpu_name or "", shape.gpu_memory_mib or 0),
        (shape.disk_mib or 0, shape.disk_mib is None, shape.gpu_memory_mib is None, shape.gpu_vendor or ""),
        (kind.can is None, sorted(kind.can or ())),
        -1.0 if kind.most is None else kind.most,
        kind.topology,
    )
