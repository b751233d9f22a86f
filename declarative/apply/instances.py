"""Instances that a fleet names by their ids: what they are, and why some cannot become nodes.

All of one backend are looked at together, page by page. Nothing is asked of the machines themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from declarative.apply.backends import Backends
from declarative.apply.drift import PATIENCE
from declarative.model.resource import Host, LeftOut, Offer
from declarative.provider import Existing, ProviderError
from declarative.retry import call


def instances(
    hosts: Sequence[Host], name: str, backends: Backends, known: Sequence[Offer], *, offline: bool
) -> tuple[list[Offer], list[LeftOut]]:
    """Those that can be adopted, as what their nodes are made of, and why the others cannot.

    `known` is what the backend launches: the shape and the price of a type.
    """
    if offline:
        return [], [LeftOut(host=host, reason="what it is is not known offline") for host in hosts]
    try:
        backend = backends.get(name)
        there = call(lambda: backend.existing("node", [h.key for h in hosts]), policy=PATIENCE)
    except ProviderError as error:
        reason = f"{error.summary}; {error.hint}" if error.hint else error.summary
        return [], [LeftOut(host=host, reason=reason) for host in hosts]
    found = {each.id: each for each in there}
    shapes = {(o.region, o.instance_type, o.spot): o for o in reversed(known) if o.host is None}
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for host in hosts:
        each = found.get(host.key)
        type_of = shapes.get((each.region, each.type, each.spot)) if each else None
        if each is None:
            left_out.append(LeftOut(host=host, reason=f"backend {name} has no such instance"))
        elif each.lineage not in (None, backends.lineage):
            owner = f"{each.address} of another state (lineage {each.lineage}): take it out of that one first"
            left_out.append(LeftOut(host=host, reason=f"it is {owner}"))
        elif type_of is None:
            why = (
                f"backend {name} does not know its type `{each.type}`: declare it in the backend's `catalog`"
            )
            left_out.append(LeftOut(host=host, reason=why))
        else:
            offers.append(_offer(host, each, type_of))
    return offers, left_out


def _offer(host: Host, each: Existing, type_of: Offer) -> Offer:
    shape = replace(type_of.shape, disk_mib=None)  # its disk is its own
    return replace(type_of, shape=shape, zone=each.zone, limit=1, bids=False, host=host)
