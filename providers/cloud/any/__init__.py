"""Any driver of libcloud's, by what it can do, and those that are wired: `digitalocean`, `vultr`.

`site.Site` is what a cloud has to be able to do; a driver is wired by a class that does it. For every other
driver `libcloud_site.LibcloudSite` does, with libcloud's own methods. What a site is asked for is in `nodes`
and `volumes`; everything else is the same as in other clouds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.provider import ProviderError
from providers.cloud import checks
from providers.cloud.any.account import Account
from providers.cloud.any.nodes import SiteNodes
from providers.cloud.any.site import Size
from providers.cloud.any.volumes import SiteAttachments, SiteVolumes, Volumes
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.nodes import Nodes
from providers.cloud.provider import Cloud


class AnyCloud(Cloud):
    """One use of a cloud without client tokens. No secret is read before something has to be asked."""

    def __init__(self, account: Account, *, adopts: bool = False) -> None:
        """`adopts`: see `Site.adopts`."""
        self.ADOPTS = adopts
        self._account = account
        self._disks = Volumes(account, SiteVolumes(account))
        held = Attachments(account, self._disks, SiteAttachments(account))
        super().__init__(account.config, account.keys, Nodes(account, SiteNodes(account)), self._disks, held)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """What the cloud says that it has, in the backend's regions and zones."""
        config = self._account.config
        self._account.regions()
        out: list[Offer] = []
        for region in config.regions:
            site = self._account.at(region).site
            kinds = (False, True) if site.spots else (False,)
            for size in site.sizes():
                places = self._places(region, size)
                out += [self._offer(region, zone, size, spot) for spot in kinds for zone in places]
        return tuple(out)

    def _places(self, region: str, size: Size) -> list[str | None]:
        """The zones of a region that have a size and are used; None stands for the region itself."""
        if size.regions is not None and region not in size.regions:
            return []
        zones, used = size.zones.get(region), self._account.config.zones
        return [zone for zone in zones if not used or zone in used] if zones else [None]

    def _offer(self, region: str, zone: str | None, size: Size, spot: bool) -> Offer:
        return Offer(
            backend=self._account.config.backend,
            region=region,
            zone=zone,
            instance_type=size.name,
            shape=size.shape,
            price=None if spot else size.price,
            spot=spot,
        )

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        missing = super().check(wanted)
        return [*missing, *(checks.unfit_volumes(self._disks.seen, wanted) if self.ADOPTS else ())]
