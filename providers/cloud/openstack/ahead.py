"""What would keep nodes and volumes from being made, as far as OpenStack tells without making any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from declarative.provider import PermanentError
from declarative.resource import VOLUME_ID
from declarative.state import Address
from providers.cloud import preflight
from providers.cloud.openstack import adopted, names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.region import Region

Wanted = Mapping[Address, Mapping[str, Any]]


def faults(account: Account, wanted: Wanted) -> list[PermanentError]:
    """Each fault once. One of the credentials or of the way there is raised: nothing else is seen."""
    probes: list[preflight.Look] = []
    looks: list[preflight.Look] = []
    for name in sorted({str(inputs.get("region")) for inputs in wanted.values()}):
        region = account.region(name)
        here = {a: inputs for a, inputs in wanted.items() if inputs.get("region") == name}
        probes.append(partial(names.zones, region))
        looks += _looks(account, region, here)
    return preflight.found(probes, looks, "Policy doesn't allow")


def _looks(account: Account, region: Region, wanted: Wanted) -> Iterator[preflight.Look]:
    if any(address.kind == "node" for address in wanted):
        yield lambda: names.image(region, account.image(region.name))
        yield partial(names.network, region, account.options.get("network"))
    for address, inputs in wanted.items():
        if address.kind == "volume" and VOLUME_ID in inputs:
            yield partial(adopted.seen, account, region, account.mark(address, "", inputs))
    zones = {inputs.get("zone") for address, inputs in wanted.items() if address.kind == "volume"}
    for zone in sorted(str(zone) for zone in zones if zone):
        yield partial(names.disk_zone, region, zone)
