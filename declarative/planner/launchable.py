"""What a fleet may launch: its backends, the limits that it sets, and the offers that keep them.

GPUs of nodes on this machine that it may not have are here as well: what is done with them is a rehearsal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from declarative.model.blocks import Shape, divisors, misfits, split
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import EXISTING, LOCAL, Desired, Offer, shaped, size_order
from declarative.model.spec import Fleet, SpotPolicy
from declarative.model.state import State
from declarative.placement.filters import price_reason
from declarative.planner.hosts import backend_of
from declarative.planner.inventory import Inventory


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


class Rehearsed(NamedTuple):
    """A node, or what one may be launched from, with GPUs. `fleet` is None for an offer of no fleet."""

    fleet: str | None
    backend: str
    shape: Shape
    name: str | None = None

    @property
    def model(self) -> str:
        """The model of its GPUs, for comparisons."""
        return (self.shape.gpu_name or "").lower()


def is_local(desired: Desired, backend: str) -> bool:
    """Whether the nodes of a backend are on this machine."""
    declared = desired.backends.get(backend)
    return (declared.provider if declared else backend) == LOCAL


def may_rehearse(desired: Desired, state: State) -> bool:
    """Whether it matters which GPUs this machine has: nodes on it have some, or may get some."""
    there = (r.node for r in state.of("node"))
    if any(node.resources.gpus and is_local(desired, node.backend) for node in there):
        return True
    fleets = [f for f in desired.fleets.values() if not f.exists]
    local = {b for f in fleets for b in allowed_backends(desired, f) if is_local(desired, b)}
    asked = any(f.resources.gpu and f.resources.gpu.count.min for f in fleets)
    known = (desired.backends[b].catalog for b in local & desired.backends.keys())
    return bool(local) and (asked or any(entry.gpu for catalog in known for entry in catalog))


def judged(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[tuple[Rehearsed, bool | None]]:
    """The nodes on this machine with GPUs, and whether it lacks some of these; None if nobody looked.

    `together`: the nodes are there at once, so that their GPUs add up.
    """
    here = [n for n in nodes if n.shape.gpus and is_local(desired, n.backend)]
    counts: dict[str, int] = {}
    for node in here:
        counts[node.model] = counts.get(node.model, 0) + node.shape.gpus
    out: list[tuple[Rehearsed, bool | None]] = []
    for node in here:
        wanted = counts[node.model] if together else node.shape.gpus
        has = sum(1 for name in own or () if not node.model or name.lower() == node.model)
        out.append((node, None if own is None else has < wanted))
    return out


def rehearsals(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[Diagnostic]:
    """A warning for each fleet whose nodes have GPUs that this machine lacks, or of which nobody knows."""
    lacks: dict[str | None, list[Rehearsed]] = {}
    for node, lacking in judged(desired, nodes, own, together=together):
        if lacking is not False:
            lacks.setdefault(node.fleet, []).append(node)
    return [_warning(desired, fleet, found, own) for fleet, found in sorted(lacks.items(), key=str)]


def _warning(
    desired: Desired, fleet: str | None, nodes: list[Rehearsed], own: tuple[str, ...] | None
) -> Diagnostic:
    models = sorted({n.shape.gpu_name or "without a model" for n in nodes})
    address = f"fleet/{fleet}" if fleet else None
    what = f"the GPUs of {address or 'offers'} on this machine ({', '.join(models)})"
    if own is None:
        summary = f"it was not looked whether {what} are there: they may be a rehearsal"
    else:
        has = ", ".join(f"{own.count(model)} {model}" for model in sorted(set(own))) or "none"
        summary = f"{what} are a rehearsal: it has {has}"
    return Diagnostic(
        code="rehearsal",
        summary=summary,
        hint="commands run all the same, without such GPUs; for real ones name a cloud's backend, or hosts",
        address=address,
        span=desired.places.get(address) if address else None,
        severity=Severity.WARNING,
    )
