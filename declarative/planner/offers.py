"""The offers that could be launched: all of the backends, or those that one fleet may take, narrowed further;
and the limit that keeps a fleet from its size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from declarative.model.blocks import Shape, Shortfall, divisors, misfits, split
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.record import struct
from declarative.model.resource import EXISTING, LOCAL, Desired, Host, Offer, shaped, size_order
from declarative.model.spec import Fleet, SpotPolicy
from declarative.model.spec.gpu_models import spelling
from declarative.model.spec.values import Resources
from declarative.model.state import State
from declarative.model.text import Near
from declarative.placement.filters import price_reason
from declarative.placement.problem import PlacementOutcome
from declarative.planner.hosts import backend_of
from declarative.planner.inventory import Inventory
from declarative.planner.plan import finding, warning


def allowed_backends(desired: Desired, fleet: Fleet) -> tuple[str, ...]:
    """The backends that a fleet may use: those it names, else all that launch, else `local`."""
    if fleet.exists:
        return (backend_of(fleet),)
    no = (*EXISTING, LOCAL) if fleet.reservation or fleet.identity else EXISTING
    launching = sorted(name for name, backend in desired.backends.items() if backend.provider not in no)
    return tuple(map(str, fleet.backends)) or tuple(launching) or (LOCAL,)


def broken_limit(fleet: Fleet, backends: tuple[str, ...], offer: Offer) -> str | None:
    """The first limit of the fleet that an offer (or a node like it) does not keep; None if it keeps all."""
    return next((name for name, ok in limits_kept(fleet, backends, offer) if not ok), None)


def limits_kept(fleet: Fleet, backends: tuple[str, ...], offer: Offer) -> tuple[tuple[str, bool], ...]:
    """Each limit of the fleet, and whether an offer keeps it."""
    is_cheap = offer.price is None and offer.bids
    spot_ok = {SpotPolicy.ON_DEMAND: not offer.spot, SpotPolicy.SPOT: offer.spot}
    return (
        ("backends", offer.backend in backends),
        ("regions", not fleet.regions or offer.region in fleet.regions),
        ("availability_zones", not fleet.availability_zones or offer.zone in fleet.availability_zones),
        ("instance_types", not fleet.instance_types or offer.instance_type in fleet.instance_types),
        ("spot_policy", spot_ok.get(fleet.spot_policy, not (offer.spot and fleet.reservation))),
        ("max_price", is_cheap or not price_reason(fleet.max_price, offer.price, "the fleet")),
        ("resources", not misfits(fleet.resources, offer.shape)),
    )


def fleet_offers(
    desired: Desired, fleet: Fleet, inventory: Inventory
) -> tuple[tuple[Offer, ...], list[Diagnostic]]:
    """The offers that a fleet may launch, cheapest first, and the errors if there are none."""
    backends = allowed_backends(desired, fleet)
    if (
        _asks_for_gpus(fleet)
        and backends == (LOCAL,)
        and not fleet.backends
        and LOCAL not in desired.backends
    ):
        # It has no backend: the local folders cannot be meant.
        address = f"fleet/{fleet.name}"
        summary = f"{address} asks for GPUs, and no backend is declared that could launch its nodes"
        hint = (
            "declare a cloud's (`type: backend`), or hosts (`ssh_config`); to rehearse on this machine, "
            "without the GPUs, write `backends: [local]` in the fleet"
        )
        return (), [finding(desired, address, "no-backend", summary, hint)]
    offers = [shaped(offer, fleet.resources) for offer in inventory.launched(backends)]
    within = [o for o in offers if broken_limit(fleet, backends, o) is None]
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


def cheapest_first(offer: Offer) -> tuple[object, ...]:
    """The order of offers: by price, unknown prices last."""
    price = math.inf if offer.price is None else offer.price
    where = (offer.backend, offer.region, offer.zone or "", offer.instance_type)
    return (price, offer.spot, size_order(offer), *where)


class GpuNode(NamedTuple):
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
    fleets = [f for f in desired.fleets.values() if not f.exists]
    local = {b for f in fleets for b in allowed_backends(desired, f) if is_local(desired, b)}
    if local and any(map(_asks_for_gpus, fleets)):
        return True
    return any(entry.gpu for b in local & desired.backends.keys() for entry in desired.backends[b].catalog)


def _asks_for_gpus(fleet: Fleet) -> bool:
    gpu = fleet.resources.gpu
    return gpu is not None and bool(gpu.count.min)


def lacking_gpus(
    desired: Desired, nodes: Iterable[GpuNode], own: tuple[str, ...] | None, *, together: bool = True
) -> list[tuple[GpuNode, bool | None]]:
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
    desired: Desired, nodes: Iterable[GpuNode], own: tuple[str, ...] | None, *, together: bool = True
) -> list[Diagnostic]:
    """A warning for each fleet whose nodes have GPUs that this machine lacks, or may lack."""
    lacks: dict[str | None, list[GpuNode]] = {}
    for node, lacking in lacking_gpus(desired, nodes, own, together=together):
        if lacking is not False:
            lacks.setdefault(node.fleet, []).append(node)
    hint = "commands run all the same, without such GPUs; for real ones name a cloud's backend, or hosts"
    out: list[Diagnostic] = []
    for fleet, gpu_nodes in sorted(lacks.items(), key=str):
        models = sorted({n.shape.gpu_name or "without a model" for n in gpu_nodes})
        address = f"fleet/{fleet}" if fleet else None
        what = f"the GPUs of {address or 'offers'} on this machine ({', '.join(models)})"
        if own is None:
            summary = f"it was not looked whether {what} are there: they may be a rehearsal"
        else:
            has = ", ".join(f"{own.count(model)} {model}" for model in sorted(set(own))) or "none"
            summary = f"{what} are a rehearsal: it has {has}"
        out.append(warning(desired, address, "rehearsal", summary, hint))
    return out


def identities_on_this_machine(desired: Desired) -> list[Diagnostic]:
    """A warning for each fleet with an `identity` whose nodes may be on this machine."""
    fleets = (f for _, f in sorted(desired.fleets.items()) if f.identity and not f.exists)
    hint = "nothing has to be done for a rehearsal; for the identity name a backend of EC2, GCE or Azure"
    return [
        warning(
            desired,
            f"fleet/{fleet.name}",
            "rehearsal",
            f"`identity: {fleet.identity}` does not count on this machine: ranks there have your own rights",
            hint,
        )
        for fleet in fleets
        if any(is_local(desired, backend) for backend in allowed_backends(desired, fleet))
    ]


@struct(frozen=True, slots=True, kw_only=True)
class OfferQuery:
    """The requirements on an offer; a missing one is no constraint. `max_price` is USD an hour."""

    resources: Resources = field(default_factory=Resources)
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    spot: bool | None = None
    max_price: float | None = None


@struct(frozen=True, slots=True, kw_only=True)
class OfferListing:
    """The matching offers, cheapest first, unknown prices last by size; and how many there are in all."""

    offers: tuple[Offer, ...]
    total: int
    diagnostics: tuple[Diagnostic, ...] = ()


def backends_of(desired: Desired, fleet: Fleet | None, query: OfferQuery) -> tuple[str, ...]:
    """The backends to look at: those that launch nodes, limited to the fleet's and to the requested ones."""
    if fleet is not None:
        names = allowed_backends(desired, fleet)
    else:
        names = tuple(n for n, b in desired.backends.items() if b.provider not in EXISTING) or (LOCAL,)
        names = tuple(dict.fromkeys((*names, *(n for n in query.backends if n == LOCAL))))
    return tuple(n for n in names if not query.backends or n in query.backends)


def matching_offers(
    desired: Desired, fleet: Fleet | None, query: OfferQuery, inventory: Inventory
) -> OfferListing:
    """The inventory's offers that match. If none does, a `no-offer` names what excludes them."""
    every = inventory.launched(inventory.offers)
    notes: list[Diagnostic] = []
    if fleet is None:
        offers = [shaped(o, query.resources) for o in every]
    else:
        launchable, notes = fleet_offers(desired, fleet, inventory)
        offers = list(launchable)
    if notes:
        return OfferListing(offers=(), total=len(every), diagnostics=tuple(notes))
    backends = backends_of(desired, fleet, query)
    if offers:
        offers, (end, hint) = _narrowed(query, offers)
    elif fleet is not None:
        end, hint = ruled_out(desired, fleet, inventory, Near())[1]
    else:
        end, hint = nothing_offered(desired, backends, inventory) if backends else ("", "")
    if not offers:
        notes.append(
            Diagnostic(
                code="no-offer",
                summary=f"there is no such offer{end}",
                hint=hint,
                address=f"fleet/{fleet.name}" if fleet else None,
                severity=Severity.WARNING,
            )
        )
    nodes = (GpuNode(str(fleet.name) if fleet else None, o.backend, o.shape) for o in offers)
    notes += rehearsals(desired, nodes, inventory.own_gpus, together=False)
    offers.sort(key=cheapest_first)
    return OfferListing(offers=tuple(offers), total=len(every), diagnostics=tuple(notes))


def _narrowed(query: OfferQuery, offers: Sequence[Offer]) -> tuple[list[Offer], Explanation]:
    """The offers that match; else the requirement that excludes all, and what to write."""
    matching = list(offers)
    if query.regions:
        regions = {region.casefold() for region in query.regions}
        matching = [o for o in offers if o.region.casefold() in regions]
        if not matching:
            return [], (": none is in that region", regions_hint(query.regions, offers, Near()))
    if query.instance_types:
        offers, matching = matching, [o for o in matching if o.instance_type in query.instance_types]
        if not matching:
            hint = names_hint(query.instance_types, {o.instance_type for o in offers}, Near())
            return [], (": none is of that type", hint)
    offers, matching = matching, [o for o in matching if not misfits(query.resources, o.shape)]
    if not matching:
        end, hint_or_none = nearest(query.resources, offers)
        return [], (
            f": {end}",
            hint_or_none or "ask for less, or for a range: `--cpu 8..`, `--gpu H100:1..8`",
        )
    matching = [o for o in matching if query.spot in (None, o.spot)]
    if not matching:
        kind, flag = ("spot", "--spot") if query.spot else ("on demand", "--on-demand")
        return [], (f": none of those that fit is {kind}", f"leave `{flag}` out")
    offers, matching = matching, [o for o in matching if not price_reason(query.max_price, o.price, "it")]
    if not matching:
        lowest = cheapest(offers)
        if lowest is None:
            return [], (": what those that fit cost is not known", "leave `--max-price` out")
        price, name = lowest
        end = f": the cheapest that fits, {name}, costs {price:g} USD an hour"
        return [], (end, f"write `--max-price {price:g}`")
    return matching, ("", "")


def grouped_by_zone(offers: Iterable[Offer]) -> list[tuple[Offer, tuple[str, ...]]]:
    """Offers that differ only in their zone as one, with all zones; in the order of the first of each."""
    groups: dict[tuple[object, ...], tuple[Offer, list[str]]] = {}
    for offer in offers:
        where, what = (offer.backend, offer.region), (offer.instance_type, offer.shape, offer.spot)
        key = (*where, *what, offer.price, offer.limit)
        zones = groups.setdefault(key, (offer, []))[1]
        if offer.zone:
            zones.append(offer.zone)
    return [(offer, tuple(sorted(zones))) for offer, zones in groups.values()]


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

Explanation = tuple[str, str]
"""The end of the summary, and the hint."""


def fleet_shortages(desired: Desired, outcome: PlacementOutcome, inventory: Inventory) -> list[Diagnostic]:
    """A `no-offer` for each fleet that lacks nodes, with the first limit that leaves nothing to launch."""
    out: list[Diagnostic] = []
    near = Near()
    for name, missing in outcome.short_fleets:
        address = f"fleet/{name}"
        _, (end, hint) = ruled_out(desired, desired.fleets[name], inventory, near)
        summary = f"no offer for {missing} of the fleet's nodes{end}"
        out.append(finding(desired, address, "no-offer", summary, hint))
    return out


def unknown_regions(desired: Desired, inventory: Inventory, known_of: Iterable[str]) -> list[Diagnostic]:
    """A warning for each named region that none of the allowed backends of a fleet or task has.

    `known_of` are the regions of existing nodes. The regions of a backend without offers are unknown.
    """
    there = {name: {offer.region for offer in offers} for name, offers in inventory.offers.items()}
    out: list[Diagnostic] = []
    near = Near()
    of_fleets = {name: allowed_backends(desired, fleet) for name, fleet in desired.fleets.items()}
    every = tuple(dict.fromkeys(backend for backends in of_fleets.values() for backend in backends))
    specs = {name: want.spec for name, want in desired.tasks.items()}
    named = [(f"fleet/{name}", fleet.regions, of_fleets[name]) for name, fleet in desired.fleets.items()]
    named += [(f"task/{name}", spec.regions, spec.backends or every) for name, spec in specs.items()]
    for address, regions, backends in named:
        if not backends or not all(there.get(b) for b in backends):
            continue
        declared = (desired.backends[name].regions for name in backends if name in desired.backends)
        known = {*known_of}.union(*(there[b] for b in backends), *(map(str, names) for names in declared))
        same = {region.casefold() for region in known}
        for region in dict.fromkeys(regions):
            if region.casefold() not in same:
                usual = f"there are {_list(known)}; name it in the `regions` of a backend, or remove it"
                hint = near(region, known, MISTYPED) or usual
                summary = f"no backend of {address} has a region `{region}`"
                out.append(warning(desired, address, "unknown-region", summary, hint))
    return out


def why_nothing(desired: Desired, fleet: Fleet, inventory: Inventory) -> str:
    """How many offers each limit of a fleet rules out, those that are nearest first, and what to write."""
    lost, (end, hint) = ruled_out(desired, fleet, inventory, Near())
    if not lost:
        return f"no backend offers a node{end}; {hint}"
    total, (limit, count), *others = sum(n for _, n in lost), *reversed(lost)
    counts = ", ".join([f"`{limit}` rules out {count:,}", *(f"`{name}` {n:,}" for name, n in others)])
    return f"none of {total:,} offers keeps its limits ({counts}){end}; {hint}"


def ruled_out(
    desired: Desired, fleet: Fleet, inventory: Inventory, near: Near
) -> tuple[list[tuple[str, int]], Explanation]:
    """A fleet's limits, each with how many offers it rules out of those that the ones before left, until none
    is left; and why the last one leaves none.
    """
    backends = allowed_backends(desired, fleet)
    remaining = [shaped(offer, fleet.resources) for offer in inventory.launched(backends)]
    lost: list[tuple[str, int]] = []
    if not remaining:
        return lost, nothing_offered(desired, backends, inventory)
    for limit in (*_NAMES, "resources", "spot_policy", "max_price"):
        within = [o for o in remaining if dict(limits_kept(fleet, backends, o))[limit]]
        if len(within) < len(remaining):
            lost.append((limit, len(remaining) - len(within)))
        if not within:
            blind = _unread(backends, inventory) if limit in _NAMES else None
            return lost, blind or _nothing_within(fleet, limit, remaining, near)
        remaining = within
    return lost, ("", WIDEN)


_NAMES = ("regions", "availability_zones", "instance_types")
"""The limits that are lists of names."""


def _nothing_within(fleet: Fleet, limit: str, offers: Sequence[Offer], near: Near) -> Explanation:
    """The end of a summary: none of the offers keeps the limit; and the hint."""
    if limit == "resources":
        lack, hint = nearest(fleet.resources, offers)
        if hint:
            return f": {lack}", hint
        end = f": nothing fits its `resources`; {lack}"
        return end, "widen the fleet's `resources`, or its `backends` and `regions`"
    if limit == "max_price":
        lowest = cheapest(offers)
        if lowest is None:
            hint = "remove `max_price`, or declare prices in the backend's `catalog`"
            return ": what those that fit cost is not known, so none is surely within its `max_price`", hint
        price, name = lowest
        end = f": the cheapest that fits, {name}, costs {price:g} USD an hour, more than its `max_price`"
        less = "`resources`, `instance_types`, `nodes`"
        return end, f"write `max_price: {price:g}`, or let it have less: {less}"
    if limit == "spot_policy":
        kind = "on demand" if offers[0].spot else "spot"
        return f": none of those that fit is {kind}", "change the fleet's `spot_policy`, or widen its limits"
    names = [str(word) for word in getattr(fleet, limit)]
    if limit == "regions":
        return f": none is in its `{limit}`", regions_hint(names, offers, near)
    known = {o.instance_type if limit == "instance_types" else o.zone or "" for o in offers}
    return f": none is in its `{limit}`", names_hint(names, known, near)


def nothing_offered(desired: Desired, backends: Sequence[str], inventory: Inventory) -> Explanation:
    """Why some backends offer nothing at all."""
    if blind := _unread(backends, inventory):
        return blind
    if unasked := sorted(inventory.unasked.intersection(backends)):
        end = f": offline, the cloud of backend {unasked[0]} is not asked, and its `catalog` has no type"
        types = "`catalog: [{instance_type: …, cpu: …, memory: …, gpu: …, price: …}]`"
        return end, f"plan without `--offline`, or write in the backend which types it has: {types}"
    name = backends[0]
    backend = desired.backends.get(name)
    if len(backends) > 1 or backend is None:
        hint = "check the backends' `regions`, or give them a `catalog`"
        return f": {', '.join(backends)} offer nothing", hint
    if not backend.regions:
        hint = f"write `regions: […]` in backend {name}"
        return f": backend {name} offers nothing, and names no `regions`", hint
    listing = ", ".join(map(str, backend.regions))
    hint = "check its `regions` and `availability_zones`"
    return f": backend {name} offers nothing in {listing}", hint


def _unread(backends: Sequence[str], inventory: Inventory) -> Explanation | None:
    """The reason if a backend could not be read: its offers are unknown."""
    for name in (b for b in backends if f"backend/{b}" in inventory.unread):
        end = f": what backend {name} offers could not be read"
        return end, f"fix what the warning about backend/{name} names, and plan again"
    return None


def regions_hint(names_asked: Iterable[str], offers: Sequence[Offer], near: Near) -> str:
    """A hint for a mistyped region. Many regions have similar names, so only near ones are suggested."""
    known = {o.region for o in offers}
    for word in names_asked:
        if suggestion := near(word, known, MISTYPED):
            return suggestion
    backends = sorted({o.backend for o in offers})
    names = " and ".join(f"backend {name}" for name in backends)
    verb, their = ("is", "its") if len(backends) == 1 else ("are", "their")
    return f"{names} {verb} used in {_list(known)}: write one of these, or widen {their} `regions`"


def names_hint(names: Iterable[str], known: set[str], near: Near) -> str:
    """A hint with the name that may have been meant, or with all names."""
    for word in names:
        if suggestion := near(word, known):
            return suggestion
    return f"there are {_list(known)}" if any(known) else WIDEN


def _list(names: Iterable[str]) -> str:
    names = sorted(n for n in names if n)
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def nearest(want: Resources, offers: Sequence[Offer]) -> tuple[str, str | None]:
    """What the offer lacks that lacks least; a hint if that is a GPU's name."""

    def key(candidate: tuple[Offer, tuple[Shortfall, ...]]) -> tuple[object, ...]:
        offer, lacks = candidate
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


def cheapest(offers: Iterable[Offer]) -> tuple[float, str] | None:
    """The lowest known price, USD an hour, and its offer; None if no price is known."""
    return min(((o.price, o.instance_type) for o in offers if o.price is not None), default=None)
