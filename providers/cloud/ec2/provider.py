"""`Ec2`: what it can launch, and what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.provider import Config, ProviderError, Thing
from declarative.resource import Offer
from declarative.state import Address
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.ec2 import ahead, attachments
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.keys import Ec2Keys
from providers.cloud.ec2.nodes import Nodes
from providers.cloud.ec2.offers import offers
from providers.cloud.ec2.volumes import Ec2Volumes
from providers.cloud.provider import Cloud
from providers.cloud.volumes import Volumes


class Ec2(Cloud):
    """One use of EC2, or of what speaks its protocol. No secret is read before something has to be asked.

    Options: `timeout` (seconds of one request), `architecture` of the image (`x86_64`, `arm64`), `disk_size`
    (GiB) and `disk_type` of the disk that nodes start from (what the image says if left out), `key_name`
    (a key pair of the account, besides the state's own key), `placement_group` (the name of one that is there
    for all fleets with `placement: cluster`; `off` for none), `volume_iops` and `volume_throughput` (MiB/s,
    of volumes that are made), `identity_file` (the private key for the nodes,
    shared by all who work on the state; without it `keys` makes one for this project), and of those of the
    driver `ssh`: `ssh_config`, `connect_timeout`, `root`.
    """

    RESERVES = True

    ADOPTS = True

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Ec2Keys(self._account)
        self._instances = Nodes(self._account, keys)
        self._driver = Ec2Volumes(self._account)
        self._disks = Volumes(self._account, self._driver)
        self._held = Attachments(self._account, self._disks, attachments.Driver(self._account))
        super().__init__(config, keys, self._instances, self._disks, self._held)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the catalog, without asking anybody."""
        return offers(self._account)

    @asked
    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        instances = self._instances.listed()
        volumes = self._disks.listed()
        return (
            *map(self._instances.thing, instances),
            *map(self._disks.thing, volumes),
            *self._held.things(volumes, (i.id for i in instances)),
        )

    @asked
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """See `provider.Clears`."""
        self._instances.clear(inputs)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        faults = ahead.faults(self._account, self._instances, self._driver, wanted)
        return [*super().check(wanted), *faults]
