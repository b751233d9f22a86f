"""`Azure`: what it can launch, and what is there."""

from __future__ import annotations

from declarative.model.resource import Offer
from declarative.provider import Config
from providers.cloud.azure.account import Account
from providers.cloud.azure.answers import CODES
from providers.cloud.azure.api import Api
from providers.cloud.azure.offers import offers
from providers.cloud.bad_answers import asked
from providers.cloud.keys import Keys
from providers.cloud.named import Named


class Azure(Named):
    """One resource group of Azure. No secret is read before something has to be asked.

    Credentials: `tenant_id`, `subscription_id`, `key` (the application's id) and `secret`. Options:
    `resource_group`, which is there already; `disk_type` and `disk_size` (GB) of the machine's own disk;
    `placement_group`, a proximity placement group that is there, for all fleets with `placement: cluster`, or
    `off` for none; `admin_user`, a name that Azure wants; `architecture` of the image; `login_endpoint` and
    `login_resource` of another Azure than the public one, beside the backend's `endpoint`; and those of all
    clouds. Zones are written `eastus-1`, and `network.subnets` maps a zone or a region to `network/subnet`.
    """

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Keys(self._account)
        super().__init__(self._account, keys, Api(self._account), CODES)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the API."""
        return offers(self._account)
