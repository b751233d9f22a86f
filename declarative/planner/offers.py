"""What could be launched: all that the backends offer, or what one fleet may take of it, narrowed further."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from declarative.model.blocks import misfits
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import EXISTING, LOCAL, Desired, Offer, shaped
from declarative.model.spec import Fleet
from declarative.model.spec.values import Resources
from declarative.placement.filters import price_reason
from declarative.planner.launchable import allowed_backends, cheapest_first, fleet_offers
from declarative.planner.rehearsal import Rehearsed, rehearsals
from declarative.planner.shortfalls import (
    Near,
    cheapest,
    names_hint,
    nearest,
    nothing_offered,
    regions_hint,
    why_short,
)
from declarative.planner.types import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an offer has to have; what is left out is unconstrained. `max_price` is USD an hour."""

    resources: Resources = field(default_factory=Resources)
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    spot: bool | None = None
    max_price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The offers that do, cheapest first; of an unknown price last, by size. How many there are in all."""

    offers: tuple[Offer, ...]
    total: int
    diagnostics: tuple[Diagnostic, ...] = ()


def backends_of(desired: Desired, fleet: Fleet | None, asked: Asked) -> tuple[str, ...]:
    """The backends to look at: those that launch, of the fleet, and of those that are asked for."""
    if fleet is not None:
        names = allowed_backends(desired, fleet)
    else:
        names = tuple(n for n, b in desired.backends.items() if b.provider not in EXISTING) or (LOCAL,)
        names = tuple(dict.fromkeys((*names, *(n for n in asked.backends if n == LOCAL))))
    return tuple(n for n in names if not asked.backends or n in asked.backends)


def offered(desired: Desired, fleet: Fleet | None, asked: Asked, inventory: Inventory) -> Offered:
    """What of the inventory's offers does; where nothing does, a `no-offer` says what leaves nothing."""
    every = [o for found in inventory.offers.values() for o in found if o.host is None]
    if fleet is None:
        backends = backends_of(desired, fleet, asked)
        left = [shaped(o, asked.resources) for o in every]
        end, hint = nothing_offered(desired, backends, inventory) if backends and not left else ("", "")
    else:
        found, notes = fleet_offers(desired, fleet, inventory)
        left = list(found)
        end, hint = ("", "") if left else why_short(desired, fleet, inventory, Near())
        if notes:
            return Offered(offers=(), total=len(every), diagnostics=tuple(notes))
    if left:
        left, end, hint = _narrowed(asked, left)
    notes = [] if left else [_none(fleet, end, hint)]
    name = str(fleet.name) if fleet else None
    seen = (Rehearsed(name, o.backend, o.shape) for o in left)
    notes += rehearsals(desired, seen, inventory.own_gpus, together=False)
    return Offered(offers=tuple(sorted(left, key=cheapest_first)), total=len(every), diagnostics=tuple(notes))


def _none(fleet: Fleet | None, end: str, hint: str) -> Diagnostic:
    return Diagnostic(
        code="no-offer",
        summary=f"there is no such offer{end}",
        hint=hint,
        address=f"fleet/{fleet.name}" if fleet else None,
        severity=Severity.WARNING,
    )


_Why = Callable[[Asked, Sequence[Offer]], tuple[str, str]]


def _narrowed(asked: Asked, offers: Sequence[Offer]) -> tuple[list[Offer], str, str]:
    """The offers that do; else what leaves nothing of them, and what to write."""
    regions = {region.casefold() for region in asked.regions}
    types = asked.instance_types
    limits: tuple[tuple[Callable[[Offer], bool], _Why], ...] = (
        (lambda o: not regions or o.region.casefold() in regions, _no_region),
        (lambda o: not types or o.instance_type in types, _no_type),
        (lambda o: not misfits(asked.resources, o.shape), _no_shape),
        (lambda o: asked.spot in (None, o.spot), _no_market),
        (lambda o: not price_reason(asked.max_price, o.price, "it"), _no_price),
    )
    left = list(offers)
    for keeps, why in limits:
        before, left = left, [o for o in left if keeps(o)]
        if not left:
            return [], *why(asked, before)
    return left, "", ""


def _no_region(asked: Asked, offers: Sequence[Offer]) -> tuple[str, str]:
    return ": none is in that region", regions_hint(asked.regions, offers, Near())


def _no_type(asked: Asked, offers: Sequence[Offer]) -> tuple[str, str]:
    hint = names_hint(asked.instance_types, {o.instance_type for o in offers}, Near())
    return ": none is of that type", hint


def _no_shape(asked: Asked, offers: Sequence[Offer]) -> tuple[str, str]:
    end, hint = nearest(asked.resources, offers)
    return f": {end}", hint or "ask for less, or for a range: `--cpu 8..`, `--gpu H100:1..8`"


def _no_market(asked: Asked, _offers: Sequence[Offer]) -> tuple[str, str]:
    kind, flag = ("spot", "--spot") if asked.spot else ("on demand", "--on-demand")
    return f": none of those that fit is {kind}", f"leave `{flag}` out"


def _no_price(_asked: Asked, offers: Sequence[Offer]) -> tuple[str, str]:
    found = cheapest(offers)
    if found is None:
        return ": what those that fit cost is not known", "leave `--max-price` out"
    price, name = found
    end = f": the cheapest that fits, {name}, costs {price:g} USD an hour"
    return end, f"write `--max-price {price:g}`"


def grouped(offers: Iterable[Offer]) -> list[tuple[Offer, tuple[str, ...]]]:
    """Offers that differ in their zone alone as one, with its zones; in the order of the first of each."""
    found: dict[tuple[object, ...], tuple[Offer, list[str]]] = {}
    for offer in offers:
        key = (
            offer.backend,
            offer.region,
            offer.instance_type,
            offer.shape,
            offer.price,
            offer.spot,
            offer.limit,
        )
        zones = found.setdefault(key, (offer, []))[1]
        if offer.zone:
            zones.append(offer.zone)
    return [(offer, tuple(sorted(zones))) for offer, zones in found.values()]


def priced_on(offers: Iterable[Offer]) -> Mapping[str, str]:
    """Backend → the day that its prices are of, where that is known."""
    return dict(
        sorted({o.backend: o.priced_on for o in offers if o.priced_on and o.price is not None}.items())
    )
