"""`OpenStack`: what it can launch, what is there, and what would keep nodes and volumes from being made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.inputs import Placed, inputs_of
from declarative.provider import Config, PermanentError, ProviderError, Thing
from declarative.resource import Offer
from declarative.state import Address
from providers.cloud import preflight
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.nodes import Nodes
from providers.cloud.openstack import attachments, names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.keys import NovaKeys
from providers.cloud.openstack.nodes import NovaNodes
from providers.cloud.openstack.offers import offers
from providers.cloud.openstack.region import Region
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
        self._servers = Nodes(self._account, NovaNodes(self._account, keys))
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
        return [*super().check(wanted), *preflight_faults(self._account, self._disks.seen, wanted)]


Wanted = Mapping[Address, Mapping[str, Any]]


def preflight_faults(account: Account, seen: preflight.Seen, wanted: Wanted) -> list[PermanentError]:
    """Each fault once. One of the credentials or of the way there is raised: nothing else is seen."""
    probes: list[preflight.Look] = []
    looks: list[preflight.Look] = []
    asked: dict[Address, Placed] = {
        address: inputs_of("node" if address.kind == "node" else "volume", inputs)
        for address, inputs in wanted.items()
    }
    for name in sorted({inputs.region for inputs in asked.values()}):
        region = account.region(name)
        here = {address: wanted[address] for address, inputs in asked.items() if inputs.region == name}
        probes.append(partial(names.zones, region))
        looks += _looks(account, seen, region, here)
    return preflight.found(probes, looks, "Policy doesn't allow")


def _looks(
    account: Account, seen: preflight.Seen, region: Region, wanted: Wanted
) -> Iterator[preflight.Look]:
    if any(address.kind == "node" for address in wanted):
        yield lambda: names.image(region, account.image(region.name))
        yield partial(names.network, region, account.options.get("network"))
    disks = {a: inputs_of("volume", i) for a, i in wanted.items() if a.kind == "volume"}
    for address, disk in disks.items():
        if disk.volume_id is not None:
            yield partial(seen, address, "", wanted[address])
    for zone in sorted({disk.zone for disk in disks.values() if disk.zone}):
        yield partial(names.disk_zone, region, zone)
