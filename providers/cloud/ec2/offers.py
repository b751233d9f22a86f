"""What EC2 can launch, from the catalog: each instance type in each zone, on demand and as spot.

Which zone has which type differs between accounts, so all zones of the region are named; where there is
none after all, EC2 says so. Prices are those of `Catalog.priced_on`; what a spot instance costs changes by
the minute and is unknown.
"""

from __future__ import annotations

from declarative.resource import Offer
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.region import endpoint


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    config, known = account.config, account.catalog
    out: list[Offer] = []
    for region in config.regions:
        if config.endpoint is None:
            endpoint(region, known.zones)  # a region that does not exist is an error, not an empty list
        zones = tuple(z for z in config.zones if z.startswith(region)) if config.zones else None
        for kind in known.types.values():
            if region not in kind.prices or kind.architecture != account.architecture:
                continue
            for zone in known.zones[region] if zones is None else zones:
                for spot in (False, True):
                    out.append(  # noqa: PERF401  # four loops in one expression are not read
                        Offer(
                            backend=config.backend,
                            region=region,
                            zone=zone,
                            instance_type=kind.name,
                            shape=kind.shape,
                            price=None if spot else kind.prices[region],
                            spot=spot,
                        )
                    )
    return tuple(out)
