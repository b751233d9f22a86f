"""What a fleet may launch: its backends, the limits that it sets, and the offers that keep them."""

from __future__ import annotations

import math

from declarative.model.blocks import divisors, misfits, split
from declarative.model.diagnostic import Diagnostic
from declarative.model.resource import EXISTING, LOCAL, Desired, Offer, shaped, size_order
from declarative.model.spec import Fleet, SpotPolicy
from declarative.placement.filters import price_reason
from declarative.planner.hosts import backend_of
from declarative.planner.types import Inventory


def allowed_backends(desired: Desired, fleet: Fleet) -> tuple[str, ...]:
    """The backends that a fleet may use: those it names, else all that launch, else `local`."""
    if fleet.exists:
        return (backend_of(fleet),)
    no = (*EXISTING, LOCAL) if fleet.reservation else EXISTING
    launching = sorted(name for name, backend in desired.backends.items() if backend.provider not in no)
    return tuple(map(str, fleet.backends)) or tuple(launching) or (LOCAL,)


def limits(fleet: Fleet, backends: tuple[str, ...], offer: Offer) -> str | None:
    """The first limit of the fleet that an offer (or a node like it) does not keep; None if it keeps all."""
    return next((name for name, ok in kept(fleet, backends, offer) if not ok), None)


def kept(fleet: Fleet, backends: tuple[str, ...], offer: Offer) -> tuple[tuple[str, bool], ...]:
    """Each limit of the fleet, and whether an offer keeps it."""
    spot_ok = {SpotPolicy.ON_DEMAND: not offer.spot, SpotPolicy.SPOT: offer.spot}
    return (
        ("backends", offer.backend in backends),
        ("regions", not fleet.regions or offer.region in fleet.regions),
        ("availability_zones", not fleet.availability_zones or offer.zone in fleet.availability_zones),
        ("instance_types", not fleet.instance_types or offer.instance_type in fleet.instance_types),
        ("spot_policy", spot_ok.get(fleet.spot_policy, not (offer.spot and fleet.reservation))),
        ("max_price", _cheap(fleet, offer)),
        ("resources", not misfits(fleet.resources, offer.shape)),
    )


def _cheap(fleet: Fleet, offer: Offer) -> bool:
    return (offer.price is None and offer.bids) or not price_reason(fleet.max_price, offer.price, "the fleet")


def fleet_offers(
    desired: Desired, fleet: Fleet, inventory: Inventory
) -> tuple[tuple[Offer, ...], list[Diagnostic]]:
    """What a fleet may launch, cheapest first, and what to say where that is nothing, or nowhere."""
    backends = allowed_backends(desired, fleet)
    if nowhere := _gpus_nowhere(desired, fleet, backends):
        return (), [nowhere]
    found = [shaped(o, fleet.resources) for b in backends for o in _launched(inventory, b)]
    within = [o for o in found if limits(fleet, backends, o) is None]
    good = [o for o in within if split(o.shape, fleet.blocks.number) is not None]
    address = f"fleet/{fleet.name}"
    span = desired.places.get(f"{address}.blocks", desired.places.get(address))
    out: list[Diagnostic] = []
    if within and not good:
        shape = within[0].shape
        listing = ", ".join(map(str, divisors(shape)))
        out.append(
            Diagnostic(
                code="blocks-do-not-divide",
                summary=f"{shape.cpu} CPUs and {shape.gpus} GPUs cannot be split into "
                f"{fleet.blocks.number} blocks",
                hint=f"write `blocks: auto` or one of {listing}",
                span=span,
                address=address,
            )
        )
    return tuple(sorted(good, key=cheapest_first)), out


def _launched(inventory: Inventory, backend: str) -> list[Offer]:
    """What a backend offers, without the instances that are there."""
    return [offer for offer in inventory.offers.get(backend, ()) if offer.host is None]


def _gpus_nowhere(desired: Desired, fleet: Fleet, backends: tuple[str, ...]) -> Diagnostic | None:
    """The error of a fleet that asks for GPUs and has no backend: nobody meant this machine's folders."""
    gpu = fleet.resources.gpu
    if not gpu or not gpu.count.min or backends != (LOCAL,) or fleet.backends or LOCAL in desired.backends:
        return None
    address = f"fleet/{fleet.name}"
    return Diagnostic(
        code="no-backend",
        summary=f"{address} asks for GPUs, and no backend is declared that could launch its nodes",
        hint="declare a cloud's (`type: backend`), or hosts (`ssh_config`); to rehearse on this machine, "
        "without the GPUs, write `backends: [local]` in the fleet",
        span=desired.places.get(address),
        address=address,
    )


def cheapest_first(offer: Offer) -> tuple[object, ...]:
    """The order of offers: by price, those of an unknown one last."""
    price = math.inf if offer.price is None else offer.price
    where = (offer.backend, offer.region, offer.zone or "", offer.instance_type)
    return (price, offer.spot, size_order(offer), *where)
