"""The driver `azure` (in libcloud `azure_arm`): virtual machines and managed disks of one resource group.

Names are taken once in a resource group, so what is made is named after its token. A PUT makes or changes,
so one that is tried again is preceded by a look, and asks that there be none yet where Azure takes that.
"""

from __future__ import annotations

from declarative.model.resource import Offer
from declarative.provider import Config
from providers.cloud.azure import offers
from providers.cloud.azure.account import Account
from providers.cloud.azure.answers import CODES
from providers.cloud.azure.api import Api
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
        return offers.offers(self._account)
