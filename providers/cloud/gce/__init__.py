"""The driver `gce`: Google's Compute Engine.

Names are taken once in a zone, so what is made is named after its token. A request that changes something is
answered with an operation, whose errors come later than its answer.
"""

from __future__ import annotations

from declarative.model.resource import Offer
from declarative.provider import Config
from providers.cloud.bad_answers import asked
from providers.cloud.gce import offers
from providers.cloud.gce.account import Account
from providers.cloud.gce.answers import CODES
from providers.cloud.gce.api import Api
from providers.cloud.keys import Keys
from providers.cloud.named import Named


class Gce(Named):
    """One project of GCE. No secret is read before something has to be asked.

    Credentials: see `login`. Options: `project` (else that of the key), `network` (its name, where no subnets
    are named), `disk_type` and `disk_size` (GB) of the boot disk, `architecture` of the image,
    `placement_group` (a placement policy that is there, for all fleets with `placement: cluster`; `off` for
    none), and those of all clouds. `network.security_groups` are network tags here, which firewall rules go
    by.
    """

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Keys(self._account)
        super().__init__(self._account, keys, Api(self._account), CODES)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the API."""
        return offers.offers(self._account)
