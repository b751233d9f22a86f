"""`Azure`: what it can launch, and what is there."""

from __future__ import annotations

from declarative.provider import Config, Thing
from declarative.resource import Offer
from providers.cloud.azure.account import Account
from providers.cloud.azure.api import Api
from providers.cloud.azure.codes import CODES
from providers.cloud.azure.offers import offers
from providers.cloud.keys import Keys
from providers.cloud.named import Attachments, Nodes, Volumes
from providers.cloud.provider import Cloud


class Azure(Cloud):
    """One resource group of Azure. No secret is read before something has to be asked.

    Credentials: `tenant_id`, `subscription_id`, `key` (the application's id) and `secret`. Options:
    `resource_group`, which is there already; `disk_type` and `disk_size` (GB) of the machine's own disk;
    `admin_user`, a name that Azure wants; `architecture` of the image; `login_endpoint` and `login_resource`
    of another Azure than the public one, beside the backend's `endpoint`; and those of all clouds. Zones are
    written `eastus-1`, and `network.subnets` maps a zone or a region to `network/subnet`.
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
