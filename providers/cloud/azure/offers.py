"""The offers of Azure, from its list of SKUs and the prices that libcloud ships; its reservations, in
groups, each for one machine type in a zone or in none; and its placement groups.

The list of SKUs has the number of GPUs but not their model, which is part of the size's name. Placement
groups are proximity placement groups. The first machine in one decides where it is; all its machines are in
one zone, or in none.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.inputs import NodeInputs
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.account import if_there
from providers.cloud.any.site import Machine
from providers.cloud.azure import answers
from providers.cloud.azure.account import ARCHITECTURES, COMPUTE, Account
from providers.cloud.bad_answers import value_at
from providers.cloud.catalog import day, prices
from providers.cloud.placement_groups import OPTION, Groups, Reserved
from providers.cloud.rest import bad_answer
from providers.cloud.settings import NODE_DISK

VERSION = "2021-07-01"
WHAT = "list of SKUs"
_GPUS: tuple[tuple[str, str, str, int], ...] = (
    (r"nd\d+\w*_gb200_v\d+", "nvidia", "GB200", 188416),
    (r"nd\d+\w*_h200_v5", "nvidia", "H200", 144384),
    (r"nd\d+\w*_h100_v5", "nvidia", "H100", 81920),
    (r"ncc?\d+\w*_h100_v5", "nvidia", "H100", 95830),
    (r"nd\d+\w*_mi300x_v5", "amd", "MI300X", 196608),
    (r"nd\d+amsr?_a100_v4", "nvidia", "A100", 81920),
    (r"nd\d+asr_v4", "nvidia", "A100", 40960),
    (r"nc\d+ads_a100_v4", "nvidia", "A100", 81920),
    (r"n[vc]\d+\w*_a10_v\d", "nvidia", "A10", 24576),
    (r"nc\d+as_t4_v3", "nvidia", "T4", 16384),
    (r"nc\d+r?s_v3", "nvidia", "V100", 16384),
    (r"nd\d+rs_v2", "nvidia", "V100", 32768),
)
"""Size name → maker, model and MiB of each of its GPUs."""


_PARTS = re.compile(r"nv(6|12|18)ads_a10_v5|nv\d+as_v4")
"""Sizes with a share of a GPU."""


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    config = account.config
    account.regions()
    out: list[Offer] = []
    for region in config.regions:
        found = [o for item in _skus(account, region) for o in _of(account, region, item)]
        if not found:
            summary = f"Azure has no machines in the region `{region}` for this subscription"
            hint = "regions are written as `az account list-locations` names them: `eastus`"
            raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
        out += [o for o in found if not config.zones or o.zone in config.zones]
    return tuple(sorted(out, key=lambda o: (o.region, o.zone or "", o.instance_type, o.spot)))


def _skus(account: Account, region: str) -> list[dict[str, Any]]:
    path = f"{account.root()}/providers/Microsoft.Compute/skus"
    found = account.all(WHAT, path, VERSION, {"$filter": f"location eq '{region}'"})
    return [item for item in found if item.get("resourceType") == "virtualMachines"]


def _of(account: Account, region: str, found: Mapping[str, Any]) -> list[Offer]:
    """A size in each zone of a region available to this subscription, or in the region as a whole."""
    name, can, shape, zones = _read(found, region)
    fits = can.get("CpuArchitectureType", "x64") == ARCHITECTURES[account.architecture]
    if not fits or shape.memory_mib < 1:
        return []
    disk = int(account.options.get("disk_size", NODE_DISK)) * 1024
    price = _price(name, region)
    kinds = (False, True) if can.get("LowPriorityCapable") == "True" else (False,)
    return [
        Offer(
            backend=account.config.backend,
            region=region,
            zone=zone,
            instance_type=name,
            shape=replace(shape, disk_mib=disk),
            price=None if spot else price,
            spot=spot,
            bids=spot,
            priced_on=None if spot or price is None else day(),
        )
        for zone in zones
        for spot in kinds
    ]


def _read(found: Mapping[str, Any], region: str) -> tuple[str, dict[str, str], Shape, list[str | None]]:
    """A size's name, capabilities, restrictions and locations."""
    try:
        name = str(found["name"])
        can = {str(c["name"]): str(c["value"]) for c in found.get("capabilities") or ()}
        memory = int(float(can["MemoryGB"]) * 1024)
        shape = Shape(cpu=int(can["vCPUs"]), memory_mib=memory, **_gpus(name, can))
        return name, can, shape, _zones(found, region)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(WHAT, "has one that cannot be read") from None


def _zones(found: Mapping[str, Any], region: str) -> list[str | None]:
    """The zones of a region where this subscription can have a size. None stands for the whole region."""
    limits = found.get("restrictions") or ()
    if any(limit.get("type") == "Location" for limit in limits):
        return []
    zones = _listed_zones(found, region)
    if not zones:
        return [None]
    closed = {zone for limit in limits for zone in value_at(limit, "restrictionInfo", "zones") or ()}
    return [f"{region}-{zone}" for zone in sorted(zones - closed)]


def _listed_zones(found: Mapping[str, Any], region: str) -> set[str]:
    """The numbers of a region's zones that offer a size."""
    zones: set[str] = set()
    for place in found.get("locationInfo") or ():
        if str(place.get("location")).lower().replace(" ", "") == region:
            zones |= {str(zone) for zone in place.get("zones") or ()}
    return zones


def _gpus(name: str, can: Mapping[str, str]) -> dict[str, Any]:
    """The GPUs of a size, as fields of a shape. A share of a GPU does not count."""
    count = int(can["GPUs"]) if can.get("GPUs", "").isdecimal() else 0
    if not count:
        return {}
    size = name.lower().removeprefix("standard_")
    if _PARTS.fullmatch(size):
        return {}
    for pattern, vendor, model, each in _GPUS:
        if re.fullmatch(pattern, size):
            return {"gpus": count, "gpu_vendor": vendor, "gpu_name": model, "gpu_memory_mib": each}
    return {"gpus": count}


def _price(name: str, region: str) -> float | None:
    """USD an hour on demand; None if unknown, as for sizes newer than libcloud's table."""
    try:
        found = float(prices("azure_linux")[name.lower().replace("_", "")][region])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found > 0 else None


_NAME = re.compile(r"(?:([\w().-]{1,90})/)?([\w.-]{1,80})")
_PATH = re.compile(
    r"/subscriptions/[\w-]+/resourceGroups/[\w().-]{1,90}/providers/Microsoft\.Compute/"
    r"capacityReservationGroups/[\w.-]{1,80}",
    re.IGNORECASE,
)
KIND = "capacityReservationGroups"


@struct(frozen=True, slots=True)
class Found:
    """The limits that a group sets for where machines can be."""

    region: str
    types: frozenset[tuple[str, str | None]]
    """The reserved types, in lower case, each with its zone."""


class Reservations:
    """The groups that fleets name. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._seen: dict[str, Found | None] = {}

    def asked(self, inputs: NodeInputs) -> Reserved:
        """The part that a machine takes of the group in its inputs.

        Such a machine is in no placement group: Azure does not reserve capacity in one.
        """
        given = str(inputs.reservation)
        path = self._path(given)
        with self._turn:
            if path not in self._seen:
                self._seen[path] = self._read(given, path)
            found = self._seen[path]
        if found is not None:
            _check(found, given, inputs)
        return Reserved(body={"capacityReservation": {"capacityReservationGroup": {"id": path}}})

    def _path(self, given: str) -> str:
        if _PATH.fullmatch(given):
            return given
        parts = _NAME.fullmatch(given)
        if not parts:
            summary = f"`{given}` is no capacity reservation group of Azure"
            hint = "write its name, `GROUP/NAME`, or its whole id: `/subscriptions/…`"
            raise PermanentError(PermanentKind.INVALID, summary, about="reservation", hint=hint)
        group = parts[1] or self._account.group
        return f"{self._account.root(group)}/providers/Microsoft.Compute/{KIND}/{parts[2]}"

    def _read(self, given: str, path: str) -> Found | None:
        """A reservation group; None if it is in another subscription and may not be read."""
        what = f"look at the capacity reservation group {given}"
        try:
            group = self._account.ask(what, "GET", path, COMPUTE, about="reservation")
            items = self._account.all(what, f"{path}/capacityReservations", COMPUTE, {})
        except PermanentError as error:
            shared = not path.lower().startswith(f"{self._account.root()}/".lower())
            if shared and error.kind is PermanentKind.AUTH:
                return None
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            summary = f"there is no capacity reservation group `{given}`"
            hint = "check its name; one of another resource group is `GROUP/NAME`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="reservation", hint=hint) from None
        region = str(group.get("location") or "")
        kinds = (
            (str((i.get("sku") or {}).get("name")).lower(), answers.zone_of(region, i.get("zones")))
            for i in items
        )
        return Found(region, frozenset(kinds))


def _check(found: Found, given: str, inputs: NodeInputs) -> None:
    """Check that the reservation has capacity for the machine: its place and its type."""
    kind, region, zone = inputs.instance_type, inputs.region, inputs.zone
    where = zone or region
    if found.region.replace(" ", "").lower() != region:
        summary = f"the capacity reservation group {given} is in {found.region}, not in {region}"
        hint = f"write `regions: [{found.region}]`"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=where, hint=hint)
    if (kind.lower(), zone) not in found.types:
        there = ", ".join(sorted(f"{name} in {at or found.region}" for name, at in found.types)) or "nothing"
        summary = f"the capacity reservation group {given} has {there}, and no {kind} in {where}"
        hint = "write the fleet's `instance_types` and `availability_zones` as they are reserved"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=where, hint=hint)


_GROUP_NAME = re.compile(r"[\w.-]{1,80}")


class Proximity(Groups):
    """Ids are `group/name`, as for all of Azure's things."""

    CALLED = "proximity placement group"

    def __init__(self, account: Account, machines: Callable[[], Iterable[Machine]]) -> None:
        """`machines` are all of the owner's."""
        super().__init__(account)
        self._resources = account
        self._machines = machines

    def takes(self, inputs: NodeInputs) -> bool:
        """All types can."""
        return True

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        whole = name.startswith("/")
        made = answers.place(name) if whole else f"{self._resources.group}/{name}".lower()
        known = not whole or path_of(self._resources, made).lower() == name.lower()
        if not known or not _GROUP_NAME.fullmatch(made.partition("/")[2]):
            summary = f"`{name}` is no proximity placement group of Azure"
            hint = "write its name in the backend's resource group, or its whole id: `/subscriptions/…`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{OPTION}", hint=hint)
        return made

    def _ask(self, what: str, method: str, made: str, **more: Any) -> dict[str, Any]:
        return self._resources.ask(what, method, path_of(self._resources, made), COMPUTE, **more)

    def tags(self, made: str, inputs: NodeInputs) -> dict[str, str] | None:
        what = f"look at {made.rpartition('/')[2]}"
        found = if_there(self._ask, what, "GET", made)
        return None if found is None else {str(k): str(v) for k, v in (found.get("tags") or {}).items()}

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """A PUT would change an existing group, so it looks first."""
        name = made.rpartition("/")[2]
        if self.tags(made, inputs) is not None:
            raise PermanentError(PermanentKind.CONFLICT, f"there is a {self.CALLED} {name}", about=OPTION)
        body = {
            "location": inputs.region,
            "tags": dict(tags),
            "properties": {"proximityPlacementGroupType": "Standard"},
        }
        self._ask(f"create of the {self.CALLED} {name}", "PUT", made, about=OPTION, body=body)

    def used(self, made: str, inputs: NodeInputs) -> bool:
        return any(not m.gone and _group(m) == made for m in self._machines())

    def remove(self, made: str, inputs: NodeInputs) -> None:
        name = made.rpartition("/")[2]
        try:
            if_there(self._ask, f"end of the {self.CALLED} {name}", "DELETE", made)
        except PermanentError as error:
            if error.kind not in (PermanentKind.CONFLICT, PermanentKind.INVALID):
                raise
            raise TransientError(TransientKind.BUSY, error.summary, about=name) from None


def path_of(account: Account, made: str) -> str:
    """The full id of a group."""
    group, _, name = made.partition("/")
    return f"{account.root(group)}/providers/Microsoft.Compute/proximityPlacementGroups/{name}"


def _group(machine: Machine) -> str:
    inner = machine.raw.get("properties") or {}
    return answers.place((inner.get("proximityPlacementGroup") or {}).get("id"))
