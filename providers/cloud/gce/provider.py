"""`Gce`: what it can launch, and what is there."""

from __future__ import annotations

from declarative.provider import Config, Thing
from declarative.resource import Offer
from providers.cloud.gce.account import Account
from providers.cloud.gce.api import Api
from providers.cloud.gce.codes import CODES
from providers.cloud.gce.offers import offers
from providers.cloud.keys import Keys
from providers.cloud.named import Attachments, Nodes, Volumes
from providers.cloud.provider import Cloud


class Gce(Cloud):
    """One project of GCE. No secret is read before something has to be asked.

    Credentials: see `login`. Options: `project` (else that of the key), `network` (its name, where no subnets
    are named), `disk_type` and `disk_size` (GB) of the boot disk, `architecture` of the image, and those of
    all clouds. `network.security_groups` are network tags here, which firewall rules go by.
    """

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Keys(self._account)
        api = Api(self._account)
        self._machines = Nodes(self._account, keys, api, CODES)
        self._disks = Volumes(self._account, api)
        self._held = Attachments(self._account, self._disks, api)
        super().__init__(config, keys, self._machines, self._disks, self._held)

    def offers(self) -> tuple[Offer, ...]:
        """From the API."""
        return offers(self._account)

    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        machines = self._machines.listed()
        disks = self._disks.listed()
        return (
            *map(self._machines.thing, machines),
            *map(self._disks.thing, disks),
            *self._held.things(disks, machines),
        )
