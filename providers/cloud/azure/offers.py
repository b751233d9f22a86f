"""What Azure can launch, as its list of SKUs tells it, with the prices that libcloud ships.

The list has the number of GPUs and not their model, which stands in the size's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declarative.blocks import Shape
from declarative.provider import PermanentError, PermanentKind
from declarative.resource import Offer
from providers.cloud.azure.account import ARCHITECTURES, Account
from providers.cloud.catalog import day, prices
from providers.cloud.rest import strange
from providers.cloud.settings import NODE_DISK, write

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
"""A size's name, and the maker, model and MiB of each of its GPUs."""


_PARTS = re.compile(r"nv(6|12|18)ads_a10_v5|nv\d+as_v4")
"""Sizes with a part of a GPU."""


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    config = account.config
    if not config.regions:
        summary = f"backend {config.backend} names no regions"
        hint = write(config, "regions")
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
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
    """A size in each zone of a region that has it for this subscription, or in the region as a whole."""
    try:
        name = str(found["name"])
        can = {str(c["name"]): str(c["value"]) for c in found.get("capabilities") or ()}
        shape = Shape(
            cpu=int(can["vCPUs"]), memory_mib=int(float(can["MemoryGB"]) * 1024), **_gpus(name, can)
        )
        zones = _zones(found, region)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise strange(WHAT, "has one that cannot be read") from None
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


def _zones(found: Mapping[str, Any], region: str) -> list[str | None]:
    """The zones of a region that have a size for this subscription; None stands for the region as a whole."""
    zones: set[str] = set()
    for place in found.get("locationInfo") or ():
        if str(place.get("location")).lower().replace(" ", "") == region:
            zones |= {str(zone) for zone in place.get("zones") or ()}
    closed: set[str] = set()
    for limit in found.get("restrictions") or ():
        if limit.get("type") == "Location":
            return []
        closed |= set((limit.get("restrictionInfo") or {}).get("zones") or ())
    return [f"{region}-{z}" for z in sorted(zones - closed)] if zones else [None]


def _gpus(name: str, can: Mapping[str, str]) -> dict[str, Any]:
    """The GPUs of a size, as fields of a shape. A part of a GPU is none: nobody could be given it alone."""
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
    """USD an hour on demand; None where it is unknown, as it is for what is newer than libcloud's table."""
    try:
        found = float(prices("azure_linux")[name.lower().replace("_", "")][region])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found > 0 else None
