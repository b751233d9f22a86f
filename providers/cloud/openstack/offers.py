"""What an OpenStack can launch: each flavor in each zone. What one costs, nobody says.

GPUs are those that a flavor's extra specs tell of: virtual ones, classes of resources, devices that are
passed through. What these are called is each cloud's own; a name is read where it says that it is a GPU, or
names a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from declarative.blocks import Shape
from declarative.provider import PermanentError, PermanentKind
from declarative.resource import Offer
from providers.cloud.openstack import names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.answers import strange
from providers.cloud.openstack.region import Region

MODELS = (
    r"G[BH][23]00|B[123]00|H[128]00|H20|A[18]00|A[34]0|A16|A10G?|A2|L40S?|L20|L4|V100S?|P100|P40?|T4G?|K80|M[16]0"
    r"|RTX ?(?:PRO ?)?A?[2-6]0[0-9]0|MI355X|MI325X|MI300[AX]|MI2[15]0X?|MI[15]00?"
)
_MODEL = re.compile(
    rf"(?:(?<![A-Z0-9])|(?<=\dX))({MODELS})(?:[ -]?(?:SXM\d?|PCIE|NVL|\d+GB?))*(?:X\d\d?)?(?![A-Z0-9])"
)
_MEMORY = re.compile(r"(?<![A-Z0-9])(\d{1,3})GB?(?![A-Z0-9])")
_GPU = re.compile(r"(?<![A-Z])V?GPU(?![A-Z])")
_CLASS = re.compile(r"resources\d*:(VGPU|PGPU|CUSTOM_[A-Z0-9_]+)")


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones."""
    return tuple(account.each(lambda region: list(_in(account, region))))


def _in(account: Account, region: Region) -> Iterator[Offer]:
    """Those of one region, if it may still be used."""
    config = account.config
    if region.name not in config.regions:
        return
    known = names.zones(region)
    zones = [zone for zone in known if not config.zones or zone in config.zones]
    if not zones:
        summary = f"{region.name} has none of the zones of backend {config.backend}"
        hint = f"it has these: {', '.join(known)[:200]}"
        raise PermanentError(PermanentKind.INVALID, summary, about="availability_zones", hint=hint)
    for flavor in names.flavors(region):
        if flavor.get("OS-FLV-DISABLED:disabled"):
            continue
        found = shape(flavor)
        for zone in zones:
            yield Offer(
                backend=config.backend,
                region=region.name,
                zone=zone,
                instance_type=str(flavor["name"]),
                shape=found,
                price=None,
                spot=False,
            )


def shape(flavor: Mapping[str, Any]) -> Shape:
    """What a flavor has; its disk is its own one, of an unknown size where it starts from a volume."""
    try:
        cpu, memory, disk = int(flavor["vcpus"]), int(flavor["ram"]), int(flavor.get("disk") or 0)
        str(flavor["name"])
    except (KeyError, TypeError, ValueError):
        raise strange("listing flavors", "has a flavor that cannot be read") from None
    specs = {str(k): str(v) for k, v in (flavor.get("extra_specs") or {}).items()}
    count, says = gpus(specs)
    model, each = _named(" ".join(says))
    if count and model is None:
        model, _ = _named(str(flavor["name"]))  # a size in there may be that of anything
    return Shape(
        cpu=max(1, cpu),
        memory_mib=max(1, memory),
        gpus=count,
        gpu_name=model,
        gpu_memory_mib=each,
        disk_mib=disk * 1024 if disk else None,
    )


def gpus(specs: Mapping[str, str]) -> tuple[int, list[str]]:
    """How many GPUs extra specs tell of, and under which names. Two ways to say it are about the same."""
    ways: dict[str, list[tuple[str, int]]] = {}
    for key, value in specs.items():
        if found := _CLASS.fullmatch(key):
            ways.setdefault("class", []).append((found[1], _number(value)))
        elif key == "pci_passthrough:alias":
            for part in value.split(","):
                name, _, number = part.strip().partition(":")
                ways.setdefault("alias", []).append((name, _number(number or "1")))
        elif key == "accel:device_profile":
            ways.setdefault("profile", []).append((value, 1))
    for named in ways.values():
        found_in = [(name, n) for name, n in named if _about_gpus(name) and n]
        if found_in:
            return sum(n for _, n in found_in), [name for name, _ in found_in]
    return 0, []


def _about_gpus(name: str) -> bool:
    upper = name.upper().replace("_", " ")
    return bool(name == "PGPU" or _GPU.search(upper) or _MODEL.search(upper))


def _named(text: str) -> tuple[str | None, int | None]:
    """The model and the memory of each in MiB, where a name says them."""
    upper = text.upper().replace("_", " ")
    model = _MODEL.search(upper)
    if model is None:
        return None, None
    memory = _MEMORY.search(upper, model.end(1))
    return model[1], int(memory[1]) * 1024 if memory else None


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,4}", text.strip()) else 0
