"""How nodes differ from what is declared, where nothing is done about it.

What a change of a field does at once is decided in `fleets`. Here is the rest of what shapes a node: the plan
shows it, so that no plan says that everything is as declared when it is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.resource import (
    CATALOGUED,
    EXISTING,
    LOCAL,
    Desired,
    Offer,
    catalog_offers,
    settings_of,
)
from declarative.model.spec import Backend
from declarative.model.state import IMAGE, Record, natural
from declarative.planner.inventory import Inventory
from declarative.planner.plan import Difference

OF_NO_NODE: Mapping[str, str] = {
    "backend.credentials": "names of variables: who asks, and not what a node is",
    "backend.endpoint": "where the cloud's API answers; nodes of another cloud are found to be gone",
    "backend.options": "only those in `resource.HOW_REACHED`, and those of drivers whose nodes are folders "
    "or hosts that exist",
    "backend.catalog.limit": "how many more nodes may be launched",
    "fleet.same": "where the ranks of a task may be seated together; holds when a task is placed",
    "fleet.fallback": "what else may be launched; holds when a node is launched, and each plan shows it",
    "fleet.backfill": "who may use what a task waits for; holds when a task is placed",
    "fleet.unreachable_duration": "when a silent node is given up; each plan asks it anew",
    "fleet.health": "which findings keep a node from work; each look asks it anew",
    "fleet.schedule": "when nodes are there; each plan asks it anew",
    "fleet.ssh_config.hosts.topology": "which racks a task may use; read when a task is placed",
}
"""Fields whose change is neither an action at once nor a difference: none of them shapes a node. A test goes
through all fields of both documents.
"""


def node_differences(
    nodes: Iterable[Record], desired: Desired, inventory: Inventory, anew: Collection[str] = ()
) -> tuple[Difference, ...]:
    """What differs, by node and field. The actions of the nodes `anew`, which this plan makes anew, say the
    rest: for these, only the image counts that the cloud gives for what is declared.
    """
    known = _Declared(desired, inventory)
    out: list[Difference] = []
    for record in sorted(nodes, key=lambda r: natural(r.address.name)):
        replaced = record.address.name in anew
        for name, before, after in known.differing(record):
            settings = record.node.settings
            if not replaced or (
                name == IMAGE and settings.get(IMAGE) == known.settings(record.node).get(IMAGE)
            ):
                out.append(
                    Difference(
                        address=str(record.address), field=name, before=before, after=after, replaced=replaced
                    )
                )
    return tuple(out)


class _Declared:
    """What is declared for nodes by now, worked out once for each place."""

    def __init__(self, desired: Desired, inventory: Inventory) -> None:
        self._backends = desired.backends
        self._inventory = inventory
        self._settings: dict[tuple[str, str, str | None], dict[str, Any]] = {}
        self._offers: dict[str, dict[tuple[str, str, bool], Offer]] = {}
        self._prices: dict[str, dict[tuple[str, str, bool], float | None]] = {}

    def settings(self, node: NodeInputs) -> dict[str, Any]:
        """The settings that a node made in the place of this one would get."""
        key = (node.backend, node.region, node.zone)
        if key not in self._settings:
            self._settings[key] = settings_of(self._backends.get(node.backend), node.region, node.zone)
        return self._settings[key]

    def differing(self, record: Record) -> Iterator[tuple[str, Any, Any]]:
        """The fields that differ, each with the value of its making and the declared one."""
        node = record.node
        backend = self._backends.get(node.backend)
        if backend is None or node.instance_id is not None or backend.provider in EXISTING:
            return
        image = self._inventory.altered.get(record.address, {}).get(IMAGE) or record.image
        declared_image = self._inventory.images.get((node.backend, node.region))
        ids_known = bool(image and declared_image)
        if ids_known and str(image) != declared_image:
            yield IMAGE, str(image), declared_image
        if node.settings:  # else it is from a time when they were not recorded
            yield from _unlike(node.settings, self.settings(node), (IMAGE,) if ids_known else ())
        regions = [region.casefold() for region in backend.regions]
        if regions and node.region.casefold() not in regions:
            yield "region", node.region, list(backend.regions)
        elif backend.availability_zones and node.zone and node.zone not in backend.availability_zones:
            yield "zone", node.zone, list(backend.availability_zones)
        yield from self._offered(record, backend)

    def _offered(self, record: Record, backend: Backend) -> Iterator[tuple[str, Any, Any]]:
        """What its offer says by now: the shape, and the price where that is declared."""
        node = record.node
        key = (node.region, node.instance_type, node.spot)
        if node.backend not in self._offers:
            catalog = catalog_offers(backend)
            self._prices[node.backend] = {(o.region, o.instance_type, o.spot): o.price for o in catalog}
            reported = self._inventory.offers.get(node.backend, ())
            self._offers[node.backend] = {
                (o.region, o.instance_type, o.spot): o for o in (*reported, *catalog) if o.host is None
            }
        offer = self._offers[node.backend].get(key)
        if offer is None:
            types = {entry.instance_type for entry in backend.catalog}
            known = backend.provider in CATALOGUED and bool(self._inventory.offers.get(node.backend))
            whole = backend.provider != LOCAL or bool(types)  # else it takes any shape
            if node.instance_type in types or (known and whole):
                yield "instance_type", node.instance_type + (" as spot" if node.spot else ""), None
            return
        if offer.shaped:
            return
        for part in dataclasses.fields(offer.shape) if node.resources != offer.shape else ():
            was, now = getattr(node.resources, part.name), getattr(offer.shape, part.name)
            if was is not None and was != now:
                yield f"resources.{part.name}", was, now
        prices = self._prices[node.backend]
        if key in prices and prices[key] != node.price:
            yield "price", node.price, prices[key]


def _unlike(
    before: Mapping[str, Any], after: Mapping[str, Any], known: Collection[str], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """The values that differ, one by one; an image is one value."""
    for key in sorted({*before, *after} - {*known}):
        was, now = before.get(key), after.get(key)
        name = f"{path}{key}"
        if was == now:
            continue
        if name != IMAGE and (isinstance(was, Mapping) or isinstance(now, Mapping)):
            inside = [item if isinstance(item, Mapping) else {} for item in (was, now)]
            yield from _unlike(inside[0], inside[1], (), f"{name}.")
        else:
            yield name, was, now
