"""The offers that could be launched: all of the backends, or those that one fleet may take, narrowed further;
and the limit that keeps a fleet from its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from declarative.model.blocks import Shortfall, misfits
from declarative.model.diagnostic import Diagnostic, Near, Severity
from declarative.model.record import struct
from declarative.model.resource import EXISTING, LOCAL, Desired, Offer, shaped
from declarative.model.spec import Fleet
from declarative.model.spec.gpu_models import spelling
from declarative.model.spec.values import Resources
from declarative.placement.filters import price_reason
from declarative.placement.problem import PlacementOutcome
from declarative.planner.inventory import Inventory
from declarative.planner.launchable import (
    Rehearsed,
    allowed_backends,
    cheapest_first,
    fleet_offers,
    kept,
    rehearsals,
)
from declarative.planner.types import finding


@struct(frozen=True, slots=True, kw_only=True)
class Asked:
    """The requirements on an offer; a missing one is no constraint. `max_price` is USD an hour."""

    resources: Resources = field(default_factory=Resources)
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    spot: bool | None = None
    max_price: float | None = None


@struct(frozen=True, slots=True, kw_only=True)
class Offered:
    """The matching offers, cheapest first, unknown prices last by size; and how many there are in all."""

    offers: tuple[Offer, ...]
    total: int
    diagnostics: tuple[Diagnostic, ...] = ()


def backends_of(desired: Desired, fleet: Fleet | None, asked: Asked) -> tuple[str, ...]:
    """The backends to look at: those that launch nodes, limited to the fleet's and to the requested ones."""
    if fleet is not None:
        names = allowed_backends(desired, fleet)
    else:
        names = tuple(n for n, b in desired.backends.items() if b.provider not in EXISTING) or (LOCAL,)
        names = tuple(dict.fromkeys((*names, *(n for n in asked.backends if n == LOCAL))))
    return tuple(n for n in names if not asked.backends or n in asked.backends)


def offered(desired: Desired, fleet: Fleet | None, asked: Asked, inventory: Inventory) -> Offered:
    """The inventory's offers that match. If none does, a `no-offer` names what excludes them."""
    every = inventory.launched(inventory.offers)
    notes: list[Diagnostic] = []
    if fleet is None:
        left = [shaped(o, asked.resources) for o in every]
    else:
        found, notes = fleet_offers(desired, fleet, inventory)
        left = list(found)
    if notes:
        return Offered(offers=(), total=len(every), diagnostics=tuple(notes))
    if left:
        left, end, hint = _narrowed(asked, left)
    else:
        end, hint = _why_none(desired, fleet, asked, inventory)
    if not left:
        notes.append(_none(fleet, end, hint))
    name = str(fleet.name) if fleet else None
    seen = (Rehearsed(name, o.backend, o.shape) for o in left)
    notes += rehearsals(desired, seen, inventory.own_gpus, together=False)
    return Offered(offers=tuple(sorted(left, key=cheapest_first)), total=len(every), diagnostics=tuple(notes))


def _why_none(desired: Desired, fleet: Fleet | None, asked: Asked, inventory: Inventory) -> Why:
    """Why nothing is offered at all, or nothing to a fleet."""
    if fleet is not None:
        return ruled_out(desired, fleet, inventory, Near())[1]
    backends = backends_of(desired, fleet, asked)
    return nothing_offered(desired, backends, inventory) if backends else ("", "")


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
    """The offers that match; else the requirement that excludes all, and what to write."""
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
    """Offers that differ only in their zone as one, with all zones; in the order of the first of each."""
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
    """Backend → the day of its prices, if known."""
    return dict(
        sorted({o.backend: o.priced_on for o in offers if o.priced_on and o.price is not None}.items())
    )


WIDEN = "widen the fleet's `resources`, `max_price`, `backends` or `regions`, or lower its `nodes`"
MISTYPED = 1
"""Letters by which the names of two regions may differ, for one to be meant by the other."""
NAMED = 8
"""How many names a hint lists."""

Why = tuple[str, str]
"""The end of the summary, and the hint."""


def short(desired: Desired, outcome: PlacementOutcome, inventory: Inventory) -> list[Diagnostic]:
    """A `no-offer` for each fleet that lacks nodes, with the first limit that leaves nothing to launch."""
    out: list[Diagnostic] = []
    near = Near()
    for name, missing in outcome.short_fleets:
        address = f"fleet/{name}"
        _, (end, hint) = ruled_out(desired, desired.fleets[name], inventory, near)
        summary = f"no offer for {missing} of the fleet's nodes{end}"
        out.append(finding(desired, address, "no-offer", summary=summary, hint=hint))
    return out


def _named_regions(desired: Desired) -> Iterator[tuple[str, Sequence[str], tuple[str, ...]]]:
    """Fleets and tasks that name regions: the regions, and the backends that they may use."""
    every: dict[str, None] = {}
    for name, fleet in desired.fleets.items():
        backends = allowed_backends(desired, fleet)
        every |= dict.fromkeys(backends)
        if fleet.regions and backends:
            yield f"fleet/{name}", fleet.regions, tuple(backends)
    for name, want in desired.tasks.items():
        usable = tuple(want.spec.backends or every)
        if want.spec.regions and usable:
            yield f"task/{name}", want.spec.regions, usable


def unknown_regions(desired: Desired, inventory: Inventory, known_of: Iterable[str]) -> list[Diagnostic]:
    """A warning for each named region that none of the allowed backends of a fleet or task has.

    `known_of` are the regions of existing nodes. The regions of a backend without offers are unknown.
    """
    there = {name: {offer.region for offer in offers} for name, offers in inventory.offers.items()}
    out: list[Diagnostic] = []
    near = Near()
    for address, regions, backends in _named_regions(desired):
        if not all(there.get(b) for b in backends):
            continue
        known = {*known_of}.union(*(there[b] for b in backends), _declared_regions(desired, backends))
        same = {region.casefold() for region in known}
        for region in dict.fromkeys(regions):
            if region.casefold() not in same:
                usual = f"there are {_list(known)}; name it in the `regions` of a backend, or remove it"
                hint = near(region, known, MISTYPED) or usual
                summary = f"no backend of {address} has a region `{region}`"
                out.append(
                    finding(
                        desired,
                        address,
                        "unknown-region",
                        summary=summary,
                        hint=hint,
                        severity=Severity.WARNING,
                    )
                )
    return out


def _declared_regions(desired: Desired, backends: Iterable[str]) -> set[str]:
    return {str(r) for name in backends if name in desired.backends for r in desired.backends[name].regions}


def why_nothing(desired: Desired, fleet: Fleet, inventory: Inventory) -> str:
    """How many offers each limit of a fleet rules out, those that are nearest first, and what to write."""
    lost, (end, hint) = ruled_out(desired, fleet, inventory, Near())
    if not lost:
        return f"no backend offers a node{end}; {hint}"
    total, (limit, count), *others = sum(n for _, n in lost), *reversed(lost)
    found = ", ".join([f"`{limit}` rules out {count:,}", *(f"`{name}` {n:,}" for name, n in others)])
    return f"none of {total:,} offers keeps its limits ({found}){end}; {hint}"


def ruled_out(
    desired: Desired, fleet: Fleet, inventory: Inventory, near: Near
) -> tuple[list[tuple[str, int]], Why]:
    """A fleet's limits, each with how many offers it rules out of those that the ones before left, until none
    is left; and why the last one leaves none.
    """
    backends = allowed_backends(desired, fleet)
    left = [shaped(offer, fleet.resources) for offer in inventory.launched(backends)]
    lost: list[tuple[str, int]] = []
    if not left:
        return lost, nothing_offered(desired, backends, inventory)
    for limit in (*_NAMES, "resources", "spot_policy", "max_price"):
        within = [o for o in left if dict(kept(fleet, backends, o))[limit]]
        if len(within) < len(left):
            lost.append((limit, len(left) - len(within)))
        if not within:
            blind = _unread(backends, inventory) if limit in _NAMES else None
            return lost, blind or _nothing_within(fleet, limit, left, near)
        left = within
    return lost, ("", WIDEN)


_NAMES = ("regions", "availability_zones", "instance_types")
"""The limits that are lists of names."""


def _nothing_within(fleet: Fleet, limit: str, offers: Sequence[Offer], near: Near) -> Why:
    """The end of a summary: none of the offers keeps the limit; and the hint."""
    if limit == "resources":
        return _nearest(fleet, offers)
    if limit == "max_price":
        return _dear(offers)
    if limit == "spot_policy":
        kind = "on demand" if offers[0].spot else "spot"
        return f": none of those that fit is {kind}", "change the fleet's `spot_policy`, or widen its limits"
    asked = [str(word) for word in getattr(fleet, limit)]
    if limit == "regions":
        return f": none is in its `{limit}`", regions_hint(asked, offers, near)
    return f": none is in its `{limit}`", names_hint(asked, {_value_of(o, limit) for o in offers}, near)


def _value_of(offer: Offer, limit: str) -> str:
    return offer.instance_type if limit == "instance_types" else offer.zone or ""


def nothing_offered(desired: Desired, backends: Sequence[str], inventory: Inventory) -> Why:
    """Why some backends offer nothing at all."""
    if blind := _unread(backends, inventory):
        return blind
    name = backends[0]
    backend = desired.backends.get(name)
    if len(backends) > 1 or backend is None:
        hint = "check the backends' `regions`, or give them a `catalog`"
        return f": {', '.join(backends)} offer nothing", hint
    if not backend.regions:
        hint = f"write `regions: […]` in backend {name}"
        return f": backend {name} offers nothing, and names no `regions`", hint
    listing = ", ".join(map(str, backend.regions))
    hint = (
        "check its `regions` and `availability_zones`; of some clouds, `--offline` knows only the `catalog`"
    )
    return f": backend {name} offers nothing in {listing}", hint


def _unread(backends: Sequence[str], inventory: Inventory) -> Why | None:
    """The reason if a backend could not be read: its offers are unknown."""
    for name in (b for b in backends if f"backend/{b}" in inventory.unread):
        end = f": what backend {name} offers could not be read"
        return end, f"fix what the warning about backend/{name} names, and plan again"
    return None


def regions_hint(asked: Iterable[str], offers: Sequence[Offer], near: Near) -> str:
    """A hint for a mistyped region. Many regions have similar names, so only near ones are suggested."""
    known = {o.region for o in offers}
    for word in asked:
        if found := near(word, known, MISTYPED):
            return found
    backends = sorted({o.backend for o in offers})
    names = " and ".join(f"backend {name}" for name in backends)
    verb, their = ("is", "its") if len(backends) == 1 else ("are", "their")
    return f"{names} {verb} used in {_list(known)}: write one of these, or widen {their} `regions`"


def names_hint(asked: Iterable[str], known: set[str], near: Near) -> str:
    """A hint with the name that may have been meant, or with all names."""
    for word in asked:
        if found := near(word, known):
            return found
    return f"there are {_list(known)}" if any(known) else WIDEN


def _list(names: Iterable[str]) -> str:
    names = sorted(n for n in names if n)
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def _nearest(fleet: Fleet, offers: Sequence[Offer]) -> Why:
    what, hint = nearest(fleet.resources, offers)
    if hint:
        return f": {what}", hint
    end = f": nothing fits its `resources`; {what}"
    return end, "widen the fleet's `resources`, or its `backends` and `regions`"


def nearest(want: Resources, offers: Sequence[Offer]) -> tuple[str, str | None]:
    """The offer that lacks least, and what it lacks; a hint if that is a GPU's name."""

    def key(found: tuple[Offer, tuple[Shortfall, ...]]) -> tuple[object, ...]:
        offer, lacks = found
        bare = bool(want.gpu) and not offer.shape.gpus
        return (len(lacks), bare, sum(abs(s.short) for s in lacks), offer.instance_type)

    offer, lacks = min(((o, misfits(want, o.shape)) for o in offers), key=key)
    known = {o.shape.gpu_name or "" for o in offers}
    names = want.gpu.names if want.gpu else ()
    if names and not {spelling(n) for n in names} & {spelling(n) for n in known}:
        return f"none has a GPU called {' or '.join(names)}", names_hint(names, known, Near())
    lack = lacks[0]
    what = lack.dimension.removesuffix("_mib").replace("_", " ")
    return f"the nearest, {offer.instance_type}, has {what} {lack.had} where {lack.wanted} is asked for", None


def _dear(offers: Sequence[Offer]) -> Why:
    found = cheapest(offers)
    if found is None:
        hint = "remove `max_price`, or declare prices in the backend's `catalog`"
        return ": what those that fit cost is not known, so none is surely within its `max_price`", hint
    price, name = found
    end = f": the cheapest that fits, {name}, costs {price:g} USD an hour, more than its `max_price`"
    return end, f"write `max_price: {price:g}`, or let it have less: `resources`, `instance_types`, `nodes`"


def cheapest(offers: Iterable[Offer]) -> tuple[float, str] | None:
    """The lowest known price, USD an hour, and its offer; None if no price is known."""
    return min(((o.price, o.instance_type) for o in offers if o.price is not None), default=None)
