"""`OpenStack`: what it can launch, and what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.provider import Config, ProviderError, Thing
from declarative.resource import Offer
from declarative.state import Address
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.openstack import ahead, attachments
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.keys import NovaKeys
from providers.cloud.openstack.nodes import Nodes
from providers.cloud.openstack.offers import offers
from providers.cloud.openstack.volumes import CinderVolumes
from providers.cloud.provider import Cloud
from providers.cloud.volumes import Volumes


class OpenStack(Cloud):
    """One use of an OpenStack. No secret is read before something has to be asked.

    Credentials: `username` and `password`, or `id` and `secret` of an application credential.

    Options: `project` or `project_id`; `domain` of the user and the project, or `user_domain` and
    `project_domain`; `interface` (`public`, `internal`, `admin`); `network` (of the nodes: name or id; the
    only one, if left out); `floating_network` (of public addresses); `key_name` (a key pair of the user's,
    besides the state's own key); `root_volume` (GiB: nodes start from a volume, and not from their flavor's
    disk); `settle` (seconds after a create without an answer until it is tried again); `timeout` (seconds of
    one request); `identity_file` (the private key for the nodes, shared by all who work on the state; without
    it `keys` makes one for this project), and of those of the driver `ssh`: `ssh_config`, `connect_timeout`,
    `root`.
    """

    ADOPTS = True

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = NovaKeys(self._account)
        self._servers = Nodes(self._account, keys)
        self._disks = Volumes(self._account, CinderVolumes(self._account))
        self._held = Attachments(self._account, self._disks, attachments.Driver(self._account))
        super().__init__(config, keys, self._servers, self._disks, self._held)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """The flavors, as nova has them now."""
        return offers(self._account)

    @asked
    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        servers = self._servers.listed()
        volumes = self._disks.listed()
        return (
            *map(self._servers.thing, servers),
            *map(self._disks.thing, volumes),
            *self._held.things(volumes, (s.id for s in servers)),
        )

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        return [*super().check(wanted), *ahead.faults(self._account, self._disks.seen, wanted)]
