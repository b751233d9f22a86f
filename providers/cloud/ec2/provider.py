"""`Ec2`: what it can launch, what is there, and what would keep nodes and volumes from being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.diagnostic import suggest
from declarative.inputs import Placed, inputs_of
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError, Thing
from declarative.resource import Offer
from declarative.state import Address
from providers.cloud import preflight
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.ec2 import answers, attachments
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.images import disk_of, look
from providers.cloud.ec2.keys import Ec2Keys
from providers.cloud.ec2.nodes import Ec2Nodes
from providers.cloud.ec2.offers import offers
from providers.cloud.ec2.region import Region
from providers.cloud.ec2.volumes import Ec2Volumes
from providers.cloud.nodes import Nodes
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
        self._node_calls = Ec2Nodes(self._account, keys)
        self._instances = Nodes(self._account, self._node_calls)
        self._volume_calls = Ec2Volumes(self._account)
        self._disks = Volumes(self._account, self._volume_calls)
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
        self._node_calls.clear(inputs)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        faults = preflight_faults(self._account, self._node_calls, self._volume_calls, wanted)
        return [*super().check(wanted), *faults]


KIND = ("zone", "instance_type", "spot", "reservation")
"""Inputs of a node by which the conditions differ under which it is made."""
LEAST_PAGE = 5

Wanted = Mapping[Address, Mapping[str, Any]]


def preflight_faults(
    account: Account, nodes: Ec2Nodes, volumes: Ec2Volumes, wanted: Wanted
) -> list[PermanentError]:
    """Each fault once. One of the credentials, the clock or the way there is raised: nothing else is seen."""
    if not wanted:
        return []
    account.regions()  # that there are none is the fault, and not what comes of it
    probes: list[Callable[[], object]] = []
    looks: list[Callable[[], object]] = []
    asked: dict[Address, Placed] = {
        address: inputs_of("node" if address.kind == "node" else "volume", inputs)
        for address, inputs in wanted.items()
    }
    for name in sorted({inputs.region for inputs in asked.values()}):
        region = account.region(name)
        probes.append(partial(_probe, region))
        here = {address: wanted[address] for address, inputs in asked.items() if inputs.region == name}
        looks += _looks(account, nodes, volumes, region, here)
    return preflight.found(probes, looks, "UnauthorizedOperation")


def _probe(region: Region) -> None:
    """Who may do anything may do this, as every command does. How many there are is no matter."""
    next(region.pages("DescribeInstances", "reservationSet", LEAST_PAGE), None)


def _looks(
    account: Account, nodes: Ec2Nodes, volumes: Ec2Volumes, region: Region, wanted: Wanted
) -> Iterator[Callable[[], object]]:
    machines = [inputs_of("node", inputs) for address, inputs in wanted.items() if address.kind == "node"]
    if machines:
        yield partial(_image, account, region)
    kinds = {tuple(str(getattr(node, key)) for key in KIND): node for node in machines}
    for kind in sorted(kinds):
        yield partial(nodes.conditions, region, kinds[kind])
    disks = {a: inputs_of("volume", i) for a, i in wanted.items() if a.kind == "volume"}
    seen = Volumes(account, volumes).seen
    for address, disk in disks.items():
        if disk.volume_id is not None:
            yield partial(seen, address, "", wanted[address])
        else:
            yield partial(volumes.ahead, region.name, address, disk)
    zones = {disk.zone: str(address) for address, disk in disks.items() if disk.zone}
    if zones:
        yield partial(_zones, region, zones)


def _zones(region: Region, wanted: Mapping[str, str]) -> None:
    """`PermanentError` for a zone that the account does not have there. `wanted` says of what each is."""
    action = "DescribeAvailabilityZones"
    found = region.ask(action, "availability_zone")
    known = [str(item.get("zoneName")) for item in answers.listed(action, found, "availabilityZoneInfo")]
    for zone in sorted(wanted.keys() - {*known}):
        summary = f"{wanted[zone]}: {region.name} has no zone `{zone}` for this account"
        hint = suggest(zone, known) or f"it has {', '.join(sorted(known))}"
        raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)


def _image(account: Account, region: Region) -> None:
    """`PermanentError` if there is no image, or one that the nodes cannot start."""
    image = account.image(region.name)
    item = look(region, image)
    built = item.get("architecture")
    if built not in (None, account.architecture):
        summary = f"the image {image} is for {built}, and nodes are {account.architecture}"
        hint = f"write `options: {{architecture: {built}}}`, or name another image"
        raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)
    least, size = disk_of(item).size, account.disk_size
    if size is not None and size < least:
        summary = f"the image {image} needs a disk of {least} GiB, and `disk_size` is {size}"
        hint = f"write `options: {{disk_size: {least}}}`, or more"
        raise PermanentError(PermanentKind.INVALID, summary, about="options.disk_size", hint=hint)
