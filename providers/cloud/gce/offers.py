"""What GCE can launch, as its API tells it, with the prices that libcloud ships.

Machine types that have GPUs of their own (`a3-highgpu-8g`) are told with them. GPUs that are put beside a
type are no offer of the API's: `n1-standard-8+nvidia-tesla-t4:2` may be declared in the backend's `catalog`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declarative.blocks import Shape
from declarative.diagnostic import suggest
from declarative.provider import PermanentError, PermanentKind
from declarative.resource import Offer
from providers.cloud.catalog import day, prices
from providers.cloud.gce import answers
from providers.cloud.gce.account import Account
from providers.cloud.rest import pages, strange
from providers.cloud.settings import NODE_DISK, write

WHAT = "list of machine types"
_GPUS: Mapping[str, tuple[str, int]] = {
    "nvidia-b200": ("B200", 184320),
    "nvidia-h200-141gb": ("H200", 144384),
    "nvidia-h100-80gb": ("H100", 81920),
    "nvidia-h100-mega-80gb": ("H100", 81920),
    "nvidia-a100-80gb": ("A100", 81920),
    "nvidia-tesla-a100": ("A100", 40960),
    "nvidia-l4": ("L4", 24576),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 98304),
    "nvidia-tesla-v100": ("V100", 16384),
    "nvidia-tesla-t4": ("T4", 16384),
    "nvidia-tesla-p100": ("P100", 16384),
    "nvidia-tesla-p4": ("P4", 8192),
}
"""Model and MiB of each. One that is not here has a count and no name: it satisfies `gpu: 1` alone."""
_PRICED = ("c2", "e2", "n1", "n2", "n2d")
"""Families whose price is that of their CPUs and memory."""
_ODD = ("e2-micro", "e2-small", "e2-medium")


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    config = account.config
    if not config.regions:
        summary = f"backend {config.backend} names no regions"
        hint = write(config, "regions")
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    out: list[Offer] = []
    for region, zones in _zones(account).items():
        for zone in zones:
            out += [o for found in _types(account, zone) for o in _of(account, region, zone, found)]
    return tuple(sorted(out, key=lambda o: (o.region, o.zone or "", o.instance_type, o.spot)))


def _zones(account: Account) -> dict[str, list[str]]:
    """The backend's regions, and those of their zones that it uses."""
    there: dict[str, list[str]] = {}
    for found in _listed(account, "list of zones", "zones", "compute#zoneList"):
        there.setdefault(answers.tail(found.get("region")), []).append(str(found.get("name")))
    for region in account.config.regions:
        if region not in there:
            hint = suggest(region, sorted(there)) or f"known regions: {', '.join(sorted(there))}"
            summary = f"GCE has no region `{region}`, or nothing in it for this project"
            raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    only = account.config.zones
    return {r: [z for z in sorted(there[r]) if not only or z in only] for r in account.config.regions}


def _types(account: Account, zone: str) -> list[Mapping[str, Any]]:
    return _listed(account, WHAT, f"zones/{zone}/machineTypes", "compute#machineTypeList")


def _listed(account: Account, what: str, path: str, kind: str) -> list[Mapping[str, Any]]:
    def ask(more: str | None) -> Mapping[str, Any]:
        params = {"maxResults": "500", **({"pageToken": more} if more else {})}
        return account.ask(what, "GET", f"{account.project}/{path}", params=params)

    out: list[Mapping[str, Any]] = []
    for page in pages(what, ask, "nextPageToken"):
        # A page with nothing in it has no `items`, and is a page of its kind all the same.
        items = page.get("items", [] if page.get("kind") == kind else None)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise strange(what, "has no `items`")
        out += items
    return out


def _of(account: Account, region: str, zone: str, found: Mapping[str, Any]) -> list[Offer]:
    """A machine type of a zone, on demand and as spot; nothing for what is no offer of this backend's."""
    try:
        shape, name = _shape(found), str(found["name"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise strange(WHAT, "has a type that cannot be read") from None
    architecture = str(found.get("architecture") or "X86_64").lower()
    if shape is None or architecture != account.architecture or _obsolete(found):
        return []
    disk = int(account.options.get("disk_size", NODE_DISK)) * 1024
    price = _price(name, region, shape)
    return [
        Offer(
            backend=account.config.backend,
            region=region,
            zone=zone,
            instance_type=name,
            shape=replace(shape, disk_mib=disk),
            price=None if spot else price,
            spot=spot,
            priced_on=None if spot or price is None else day(),
        )
        for spot in (False, True)
    ]


def _obsolete(found: Mapping[str, Any]) -> bool:
    return (found.get("deprecated") or {}).get("state") in ("DEPRECATED", "OBSOLETE", "DELETED")


def _shape(found: Mapping[str, Any]) -> Shape | None:
    """None for what has accelerators that are no GPUs."""
    cpu, memory = int(found["guestCpus"]), int(found["memoryMb"])
    if cpu < 1 or memory < 1:
        return None
    several = found.get("accelerators") or []
    if not several:
        return Shape(cpu=cpu, memory_mib=memory)
    kind, count = str(several[0]["guestAcceleratorType"]), int(several[0]["guestAcceleratorCount"])
    if not kind.startswith("nvidia-"):
        return None
    model, each = _GPUS.get(kind, (None, None))
    return Shape(
        cpu=cpu, memory_mib=memory, gpus=count, gpu_name=model, gpu_memory_mib=each, gpu_vendor="nvidia"
    )


def _price(name: str, region: str, shape: Shape) -> float | None:
    """USD an hour on demand; None where it is unknown, as it is for all GPUs."""
    family, _, rest = name.partition("-")
    if family not in _PRICED or name in _ODD or shape.gpus or rest.startswith(("custom", "node")):
        return None
    table = prices("gce_instances").get(family) or {}
    try:
        cpu, ram = (float(table[part]["on_demand"][region]["price"]) for part in ("cpu", "ram"))
    except (KeyError, TypeError, ValueError):
        return None
    if cpu <= 0 or ram <= 0:
        return None
    return round(cpu * shape.cpu + ram * shape.memory_mib / 1024, 6)
