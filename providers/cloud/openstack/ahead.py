"""What would keep nodes and volumes from being made, as far as OpenStack tells without making any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from declarative.inputs import Placed, inputs_of
from declarative.provider import PermanentError
from declarative.state import Address
from providers.cloud import preflight
from providers.cloud.openstack import names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.region import Region

Wanted = Mapping[Address, Mapping[str, Any]]


def faults(account: Account, seen: preflight.Seen, wanted: Wanted) -> list[PermanentError]:
    """Each fault once. One of the credentials or of the way there is raised: nothing else is seen."""
    probes: list[preflight.Look] = []
    looks: list[preflight.Look] = []
    asked: dict[Address, Placed] = {
        address: inputs_of("node" if address.kind == "node" else "volume", inputs)
        for address, inputs in wanted.items()
    }
    for name in sorted({inputs.region for inputs in asked.values()}):
        region = account.region(name)
        here = {address: wanted[address] for address, inputs in asked.items() if inputs.region == name}
        probes.append(partial(names.zones, region))
        looks += _looks(account, seen, region, here)
    return preflight.found(probes, looks, "Policy doesn't allow")


def _looks(
    account: Account, seen: preflight.Seen, region: Region, wanted: Wanted
) -> Iterator[preflight.Look]:
    if any(address.kind == "node" for address in wanted):
        yield lambda: names.image(region, account.image(region.name))
        yield partial(names.network, region, account.options.get("network"))
    disks = {a: inputs_of("volume", i) for a, i in wanted.items() if a.kind == "volume"}
    for address, disk in disks.items():
        if disk.volume_id is not None:
            yield partial(seen, address, "", wanted[address])
    for zone in sorted({disk.zone for disk in disks.values() if disk.zone}):
        yield partial(names.disk_zone, region, zone)
