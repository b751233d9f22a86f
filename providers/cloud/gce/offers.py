"""What GCE can launch, as its API tells it, with the prices that libcloud ships.

Machine types that have GPUs of their own (`a3-highgpu-8g`) are told with them. GPUs that are put beside a
type are no offer of the API's: `n1-standard-8+nvidia-tesla-t4:2` may be declared in the backend's `catalog`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative.blocks import Shape
from declarative.diagnostic import suggest
from declarative.provider import PermanentError, PermanentKind
from declarative.resource import Offer
from providers.cloud.bundle import day, prices
from providers.cloud.gce import answers
from providers.cloud.gce.account import Account
from providers.cloud.rest import pages, strange

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
        hint = "write `regions: [us-central1]`, or those that you use"
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    known: set[str] = set()
    out: list[Offer] = []
    for found in _types(account):
        try:
            zone, shape = answers.tail(found["zone"]), _shape(found)
            name = str(found["name"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise strange(WHAT, "has a type that cannot be read") from None
        region = zone.rpartition("-")[0]
        known.add(region)
        if region not in config.regions or (config.zones and zone not in config.zones):
            continue
        architecture = str(found.get("architecture") or "X86_64").lower()
        if shape is None or architecture != account.architecture or _obsolete(found):
            continue
        price = _price(name, region, shape)
        for spot in (False, True):
            out.append(  # noqa: PERF401  # too long for one expression
                Offer(
                    backend=config.backend,
                    region=region,
                    zone=zone,
                    instance_type=name,
                    shape=shape,
                    price=None if spot else price,
                    spot=spot,
                    priced_on=None if spot or price is None else day(),
                )
            )
    for region in config.regions:
        if region not in known:
            hint = suggest(region, sorted(known)) or f"known regions: {', '.join(sorted(known))}"
            summary = f"GCE has no region `{region}`, or nothing in it for this project"
            raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    return tuple(sorted(out, key=lambda o: (o.region, o.zone or "", o.instance_type, o.spot)))


def _types(account: Account) -> list[Mapping[str, Any]]:
    def ask(more: str | None) -> Mapping[str, Any]:
        params = {"maxResults": "500", **({"pageToken": more} if more else {})}
        return account.ask(WHAT, "GET", f"{account.project}/aggregated/machineTypes", params=params)

    found = pages(WHAT, ask, "nextPageToken")
    return [item for page in found for item in answers.scoped(WHAT, page, "machineTypes")]


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
