"""The offers that a fleet may launch: of its backends, within its limits.

It also finds GPUs of local nodes that this machine may not have: what runs on those is a rehearsal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from declarative.model.blocks import Shape, divisors, misfits, split
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import EXISTING, LOCAL, Desired, Host, Offer, shaped, size_order
from declarative.model.spec import Fleet, SpotPolicy
from declarative.model.state import State
from declarative.placement.filters import price_reason
from declarative.placement.problem import PlacementOutcome, Refusal
from declarative.planner.hosts import backend_of, unasked
from declarative.planner.inventory import Inventory
from declarative.planner.types import finding


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
    """The offers that a fleet may launch, cheapest first, and the errors if there are none."""
    backends = allowed_backends(desired, fleet)
    if nowhere := _gpus_nowhere(desired, fleet, backends):
        return (), [nowhere]
    found = [shaped(offer, fleet.resources) for offer in inventory.launched(backends)]
    within = [o for o in found if limits(fleet, backends, o) is None]
    good = [o for o in within if split(o.shape, fleet.blocks.number) is not None]
    out: list[Diagnostic] = []
    if within and not good:
        shape = within[0].shape
        what = f"{shape.cpu} CPUs and {shape.gpus} GPUs"
        out.append(unsplittable(desired, fleet, what, shape, blocks=fleet.blocks.number))
    return tuple(sorted(good, key=cheapest_first)), out


def unsplittable(
    desired: Desired, fleet: Fleet, what: str, shape: Shape, *, blocks: int | None, host: Host | None = None
) -> Diagnostic:
    """The error of a shape that cannot be split as its fleet, or its host, says."""
    address, places = f"fleet/{fleet.name}", desired.places
    own = places.get(f"{address}.hosts.{host.index}.blocks") if host else None
    listing = ", ".join(map(str, divisors(shape)))
    return Diagnostic(
        code="blocks-do-not-divide",
        summary=f"{what} cannot be split into {blocks} blocks",
        hint=f"write `blocks: auto` or one of {listing}",
        span=own or places.get(f"{address}.blocks", places.get(address)),
        address=address,
    )


def _gpus_nowhere(desired: Desired, fleet: Fleet, backends: tuple[str, ...]) -> Diagnostic | None:
    """The error of a fleet that asks for GPUs and has no backend: the local folders cannot be meant."""
    if not _asks_for_gpus(fleet) or backends != (LOCAL,) or fleet.backends or LOCAL in desired.backends:
        return None
    address = f"fleet/{fleet.name}"
    return finding(
        desired,
        address,
        "no-backend",
        summary=f"{address} asks for GPUs, and no backend is declared that could launch its nodes",
        hint="declare a cloud's (`type: backend`), or hosts (`ssh_config`); to rehearse on this machine, "
        "without the GPUs, write `backends: [local]` in the fleet",
    )


def cheapest_first(offer: Offer) -> tuple[object, ...]:
    """The order of offers: by price, unknown prices last."""
    price = math.inf if offer.price is None else offer.price
    where = (offer.backend, offer.region, offer.zone or "", offer.instance_type)
    return (price, offer.spot, size_order(offer), *where)


class Rehearsed(NamedTuple):
    """A node or offer with GPUs. `fleet` is None for an offer without a fleet."""

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
    """Whether this machine's GPUs matter: local nodes have GPUs, or may get some."""
    there = (r.node for r in state.of("node"))
    if any(node.resources.gpus and is_local(desired, node.backend) for node in there):
        return True
    return _may_get_gpus(desired)


def _may_get_gpus(desired: Desired) -> bool:
    """Whether nodes on this machine may be launched with GPUs."""
    fleets = [f for f in desired.fleets.values() if not f.exists]
    local = {b for f in fleets for b in allowed_backends(desired, f) if is_local(desired, b)}
    if local and any(map(_asks_for_gpus, fleets)):
        return True
    return any(entry.gpu for b in local & desired.backends.keys() for entry in desired.backends[b].catalog)


def _asks_for_gpus(fleet: Fleet) -> bool:
    gpu = fleet.resources.gpu
    return gpu is not None and bool(gpu.count.min)


def judged(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[tuple[Rehearsed, bool | None]]:
    """The local nodes with GPUs, and whether this machine lacks some of these; None if that is unknown.

    `together`: the nodes exist at the same time, so their GPUs add up.
    """
    here = [n for n in nodes if n.shape.gpus and is_local(desired, n.backend)]
    if own is None:
        return [(node, None) for node in here]
    counts: Counter[str] = Counter()
    for node in here:
        counts[node.model] += node.shape.gpus
    has = Counter(name.lower() for name in own)
    has[""] = len(own)  # of a model that is not named any will do
    return [(n, has[n.model] < (counts[n.model] if together else n.shape.gpus)) for n in here]


def rehearsals(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[Diagnostic]:
    """A warning for each fleet whose nodes have GPUs that this machine lacks, or may lack."""
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


def not_now(
    outcome: PlacementOutcome, desired: Desired, inventory: Inventory, now: float
) -> PlacementOutcome:
    """The outcome, with `no-capacity` for tasks that wait for a fleet outside of its schedule, or for one
    whose cluster was not asked for its nodes.

    Placement sees such a fleet as one of `nodes: 0`. To write more nodes would not help.
    """
    asleep = [name for name in desired.fleets if f"fleet/{name}" in desired.asleep]
    hints: dict[tuple[str, str], tuple[str, str | None]] = {}
    for name, fleet in desired.fleets.items():
        if name in asleep and fleet.schedule:
            starts = fleet.schedule.next_start(now)
            hint = f"fleet/{name} has no nodes outside of its `schedule`, which starts at {starts}"
            hints[str(name), "fleet-max"] = hint, starts
        if unasked(fleet, inventory):
            hint = f"the nodes of fleet/{name} are known once its cluster is asked"
            hints[str(name), "offers-unknown"] = hint, None
    refusals = (_not_now(refusal, hints) for refusal in outcome.refusals)
    remedies = (remedy for remedy in outcome.remedies if remedy.fleet not in asleep)
    return replace(outcome, refusals=tuple(refusals), remedies=tuple(remedies))


def _not_now(refusal: Refusal, hints: Mapping[tuple[str, str], tuple[str, str | None]]) -> Refusal:
    """The refusal, or one that holds only for now if one of these causes is among its own."""
    later = next((later for cause, later in hints.items() if cause in refusal.causes), None)
    return refusal if later is None else refusal.until(*later)
