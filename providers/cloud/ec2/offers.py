"""What EC2 can launch, from the catalog: each instance type in each zone, on demand and as spot.

Which zone has which type is not known here: in the oldest regions the letters of zones are shuffled for each
account, so that a list of one account's is wrong for others. All zones of the region are named. Where there
is none of the type after all, EC2 says so, and that is no capacity there; a zone that was left out by mistake
could never be used. Prices are those of `Catalog.priced_on`; what a spot instance costs changes by the minute
and is unknown.
"""

from __future__ import annotations

from dataclasses import replace

from declarative.diagnostic import suggest
from declarative.provider import PermanentError, PermanentKind
from declarative.resource import Offer
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.region import endpoint
from providers.cloud.settings import NODE_DISK


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    config, known = account.config, account.catalog
    disk = (account.disk_size or NODE_DISK) * 1024
    out: list[Offer] = []
    for region in dict.fromkeys(config.regions):
        if config.endpoint is None:
            endpoint(region, known.zones)  # a region that does not exist is an error, not an empty list
        zones = _zones(account, region)
        for kind in known.types.values():
            if region not in kind.prices or kind.architecture != account.architecture:
                continue
            shape = replace(kind.shape, disk_mib=disk)
            for zone in zones:
                for spot in (False, True):
                    out.append(  # noqa: PERF401  # four loops in one expression are not read
                        Offer(
                            backend=config.backend,
                            region=region,
                            zone=zone,
                            instance_type=kind.name,
                            shape=shape,
                            price=None if spot else kind.prices[region],
                            spot=spot,
                            bids=spot,
                            on_demand=kind.prices[region] if spot else None,
                            priced_on=None if spot or kind.prices[region] is None else known.priced_on,
                        )
                    )
    return tuple(out)


def _zones(account: Account, region: str) -> tuple[str, ...]:
    """The zones of a region that the backend uses: where its nodes have subnets, those alone."""
    config, known = account.config, account.catalog.zones.get(region, ())
    subnets = config.network.subnets
    if subnets and config.endpoint is None:
        there = [zone for name in config.regions for zone in account.catalog.zones.get(name, ())]
        wrong = next((zone for zone in subnets if zone not in there), None)
        if wrong is not None:
            summary = f"`network.subnets` names {wrong}, which is no zone of the backend's regions"
            hint = suggest(wrong, there) or f"they have {', '.join(there)}"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
    zones = tuple(z for z in dict.fromkeys(config.zones) if z.startswith(region)) if config.zones else known
    return tuple(z for z in zones if not subnets or z in subnets)
