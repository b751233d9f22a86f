"""The driver `ec2`: Amazon's EC2, and other services with its protocol at another `endpoint`.

Requests use POST, so that URLs contain none of the parameters. Answers are read by element names in any
namespace: libcloud reads an unknown namespace as an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError
from declarative.provider.optional import Existing
from providers.cloud import checks, marks
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.catalog import InstanceType
from providers.cloud.ec2 import answers, volumes
from providers.cloud.ec2.account import INSTANCE, VOLUME, Account, disk_of, look
from providers.cloud.ec2.capacity import Ec2Keys
from providers.cloud.ec2.nodes import Ec2Nodes
from providers.cloud.ec2.region import PAGE, VALUES, Region, endpoint
from providers.cloud.ec2.volumes import Ec2Volumes
from providers.cloud.nodes import Nodes
from providers.cloud.provider import Cloud
from providers.cloud.settings import NODE_DISK
from providers.cloud.volumes import Volumes

Filters = Sequence[Mapping[str, object]] | None


class Ec2(Cloud):
    """One account of EC2, or of a service with its protocol. Secrets are read only when first needed.

    Options: `timeout` (seconds of one request), `architecture` of the image (`x86_64`, `arm64`), `disk_size`
    (GiB) and `disk_type` of the disk that nodes start from (what the image says if left out), `key_name` (a
    key pair of the account, besides the state's own key), `placement_group` (the name of one that is there
    for all fleets with `placement: cluster`; `off` for none), `volume_iops` and `volume_throughput` (MiB/s,
    of volumes that are made), `identity_file` (the private key for the nodes, shared by all who work on the
    state; without it `keys` makes one for this project), and of those of the driver `ssh`: `ssh_config`,
    `connect_timeout`, `root`.
    """

    RESERVES = True

    ADOPTS = ADOPTS_INSTANCES = True

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Ec2Keys(self._account)
        self._node_calls = Ec2Nodes(self._account, keys)
        self._instances = Nodes(self._account, self._node_calls, self._node_calls)
        self._volume_calls = Ec2Volumes(self._account)
        self._disks = Volumes(self._account, self._volume_calls)
        self._held = Attachments(self._account, self._disks, volumes.Ec2Attachments(self._account))
        super().__init__(config, keys, self._instances, self._disks, self._held)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the catalog, without a request."""
        return offers(self._account)

    @asked
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        wanted = sorted(map(str, addresses))
        parts = [wanted[i : i + VALUES] for i in range(0, len(wanted), VALUES)]

        def look(region: Region) -> list[Existing]:
            filters = [[{"Name": f"tag:{marks.ADDRESS}", "Value": part}] for part in parts]
            return [
                *(e for narrow in filters for e in _instances(region, narrow)),
                *(e for narrow in filters for e in _volumes(region, narrow)),
            ]

        return checks.others(self._account.each(look), self._account.owner, addresses)

    @asked
    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        if not self._account.names_image(region):
            return None
        image = self._account.image(region)
        if image not in known:
            look(self._account.region(region), image)
        return image

    @asked
    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        look = existing_volumes if kind == "volume" else existing_instances
        return self._account.each(lambda region: list(look(region, ids)))

    @asked
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        self._node_calls.clear(inputs)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        faults = preflight_faults(self._account, self._node_calls, self._volume_calls, wanted)
        return [*super().check(wanted), *faults]


def existing_instances(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """The instances of a region that have not ended."""
    for filters in _filters("instance-id", INSTANCE, ids):
        yield from _instances(region, filters)


def _instances(region: Region, filters: Filters) -> Iterator[Existing]:
    action = "DescribeInstances"
    for reservation in region.pages(action, "reservationSet", PAGE, Filter=filters):
        for item in answers.listed(action, reservation, "instancesSet"):
            found = answers.instance(action, item, region.name)
            if not found.gone:
                yield checks.existing(
                    found.tags,
                    id=found.id,
                    name=found.tags.get("Name", ""),
                    region=region.name,
                    zone=found.zone,
                    type=found.type,
                    state=found.state,
                    spot=item.get("instanceLifecycle") == "spot",
                )


def existing_volumes(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """The volumes of a region that have not ended."""
    for filters in _filters("volume-id", VOLUME, ids):
        yield from _volumes(region, filters)


def _volumes(region: Region, filters: Filters) -> Iterator[Existing]:
    action = "DescribeVolumes"
    for item in region.pages(action, "volumeSet", PAGE // 2, Filter=filters):
        found = answers.volume(action, item, region.name)
        if not found.gone:
            yield checks.existing(
                found.tags,
                id=found.id,
                name=found.tags.get("Name", ""),
                region=region.name,
                zone=found.zone,
                type=found.type,
                state=found.state,
                size=found.size,
                on=tuple(held.instance for held in found.held),
                boots=any(_goes_along(held) for held in item.get("attachmentSet") or ()),
            )


def _goes_along(held: Mapping[str, Any]) -> bool:
    return str(held.get("deleteOnTermination")).lower() == "true"


def _filters(name: str, form: str, ids: Collection[str] | None) -> Iterator[Filters]:
    """The filters of each listing."""
    if ids is None:
        yield None
        return
    good = sorted(made for made in ids if re.fullmatch(form, made))
    for start in range(0, len(good), VALUES):
        yield [{"Name": name, "Value": good[start : start + VALUES]}]


KIND = ("zone", "instance_type", "spot", "reservation")
"""Inputs of a node that change the conditions under which it is made."""
LEAST_PAGE = 5

Wanted = Mapping[Address, Mapping[str, Any]]


def preflight_faults(
    account: Account, nodes: Ec2Nodes, volumes: Ec2Volumes, wanted: Wanted
) -> list[PermanentError]:
    """Each fault once. A fault of the credentials, the clock or the connection is raised: nothing else can be
    checked then.
    """
    if not wanted:
        return []
    account.regions()  # report the missing zones themselves, not what follows from them
    probes: list[checks.Look] = []
    looks: list[checks.Look] = []
    for name, here in checks.by_region(wanted):
        region = account.region(name)
        probes.append(partial(_probe, region))
        looks += _node_looks(account, nodes, region, here)
        looks += _volume_looks(account, volumes, region, here)
    return checks.faults_of(probes, looks, "UnauthorizedOperation")


def _probe(region: Region) -> None:
    """Every command makes this request, so every usable login may. The number of instances does
    not matter.
    """
    next(region.pages("DescribeInstances", "reservationSet", LEAST_PAGE), None)


def _node_looks(account: Account, nodes: Ec2Nodes, region: Region, wanted: Wanted) -> Iterator[checks.Look]:
    made: list[NodeInputs] = []
    for address, inputs in wanted.items():
        if address.kind != "node":
            continue
        node = inputs_of("node", inputs)
        if node.instance_id is not None:
            yield partial(checks.seen, account, nodes, account.mark(address, "", inputs))
        else:
            made.append(node)
    if made:
        yield partial(_image, account, region)
    kinds = {tuple(str(getattr(node, key)) for key in KIND): node for node in made}
    for kind in sorted(kinds):
        yield partial(nodes.conditions, region, kinds[kind])


def _volume_looks(
    account: Account, volumes: Ec2Volumes, region: Region, wanted: Wanted
) -> Iterator[checks.Look]:
    zones: dict[str, str] = {}
    for address, inputs in wanted.items():
        if address.kind != "volume":
            continue
        disk = inputs_of("volume", inputs)
        if disk.zone:
            zones[disk.zone] = str(address)
        if disk.volume_id is not None:
            yield partial(Volumes(account, volumes).seen, address, "", inputs)
        else:
            yield partial(volumes.ahead, region.name, address, disk)
    if zones:
        yield partial(_zones, region, zones)


def _zones(region: Region, wanted: Mapping[str, str]) -> None:
    """`PermanentError` for a zone that the account does not have. `wanted` names the reasons for
    each zone.
    """
    action = "DescribeAvailabilityZones"
    found = region.ask(action, "availability_zone")
    known = [str(item.get("zoneName")) for item in answers.listed(action, found, "availabilityZoneInfo")]
    for zone in sorted(wanted.keys() - {*known}):
        summary = f"{wanted[zone]}: {region.name} has no zone `{zone}` for this account"
        hint = suggest(zone, known) or f"it has {', '.join(sorted(known))}"
        raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)


def _image(account: Account, region: Region) -> None:
    """`PermanentError` if there is no image, or the nodes cannot start it."""
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


def offers(account: Account) -> tuple[Offer, ...]:
    """Each instance type in each zone of the backend's regions, on demand and as spot, for its architecture.

    It is unknown which zone has which type: in the oldest regions, each account has its own letters for the
    zones, so one account's list would be wrong for others. So all zones of a region are offered. If a zone
    lacks the type, EC2 reports no capacity; a zone left out by mistake could never be used. Prices are of
    `Catalog.priced_on`. Spot prices change by the minute and are unknown.
    """
    config, known = account.config, account.catalog
    out: list[Offer] = []
    for region in dict.fromkeys(config.regions):
        if config.endpoint is None:
            endpoint(region, known.zones)  # an unknown region is an error, not an empty list
        zones = _used_zones(account, region)
        for kind in known.types.values():
            if region in kind.prices and kind.architecture == account.architecture:
                out += _of(account, region, zones, kind)
    return tuple(out)


def _of(account: Account, region: str, zones: Sequence[str], kind: InstanceType) -> list[Offer]:
    """An instance type in each zone of a region, on demand and as spot."""
    price = kind.prices[region]
    shape = replace(kind.shape, disk_mib=(account.disk_size or NODE_DISK) * 1024)
    return [
        Offer(
            backend=account.config.backend,
            region=region,
            zone=zone,
            instance_type=kind.name,
            shape=shape,
            price=None if spot else price,
            spot=spot,
            bids=spot,
            on_demand=price if spot else None,
            priced_on=None if spot or price is None else account.catalog.priced_on,
        )
        for zone in zones
        for spot in (False, True)
    ]


def _used_zones(account: Account, region: str) -> list[str]:
    """The zones of a region in use by the backend."""
    config, subnets = account.config, account.config.network.subnets
    if subnets and config.endpoint is None:
        _check_subnets(account)
    zones = dict.fromkeys(config.zones or account.catalog.zones.get(region, ()))
    return [z for z in zones if z.startswith(region) and (not subnets or z in subnets)]


def _check_subnets(account: Account) -> None:
    """`PermanentError` for a subnet of a zone that is in none of the backend's regions."""
    config = account.config
    there = [zone for name in config.regions for zone in account.catalog.zones.get(name, ())]
    wrong = next((zone for zone in config.network.subnets if zone not in there), None)
    if wrong is not None:
        summary = f"`network.subnets` names {wrong}, which is no zone of the backend's regions"
        hint = suggest(wrong, there) or f"they have {', '.join(there)}"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
