"""The driver `ec2`: Amazon's EC2, and other services with its protocol at another `endpoint`.

Requests use POST, so that URLs contain none of the parameters. Answers are read by element names in any
namespace: libcloud reads an unknown namespace as an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError
from declarative.provider.optional import Existing
from providers.cloud import checks
from providers.cloud.any.site import What
from providers.cloud.bad_answers import asked
from providers.cloud.catalog import InstanceType
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account, disk_of
from providers.cloud.ec2.capacity import Capacity, Ec2Keys, Groups, Networks
from providers.cloud.ec2.region import VALUES, Region, endpoint
from providers.cloud.ec2.site import IDS, Ec2Site
from providers.cloud.provider import ABILITIES, TaggedCloud, existing
from providers.cloud.settings import NODE_DISK


class Ec2(TaggedCloud):
    """One account of EC2, or of a service with its protocol. Secrets are read only when first needed.

    Options: `timeout` (seconds of one request), `architecture` of the image (`x86_64`, `arm64`), `disk_size`
    (GiB) and `disk_type` of the disk that nodes start from (what the image says if left out), `key_name` (a
    key pair of the account, besides the state's own key), `placement_group` (the name of one that is there
    for all fleets with `placement: cluster`; `off` for none), `volume_iops` and `volume_throughput` (MiB/s,
    of volumes that are made), `identity_file` (the private key for the nodes, shared by all who work on the
    state; without it `keys` makes one for this project), and of those of the driver `ssh`: `ssh_config`,
    `connect_timeout`, `root`.
    """

    CAN = frozenset(ABILITIES)

    ADOPTS_INSTANCES = True

    def __init__(self, config: Config) -> None:
        self._ec2 = account = Account(config, lambda region: Ec2Site(account, region, keys, *shared))
        account.keys = keys = Ec2Keys(account)
        shared = (Groups(account), Capacity(), Networks(config))
        super().__init__(account)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the catalog, without a request."""
        return offers(self._ec2)

    @asked
    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        if not self._ec2.names_image(region):
            return None
        image = self._ec2.image(region)
        if image not in known:
            self._ec2.described(region, image)
        return image

    @asked
    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        what: What = "disk" if kind == "volume" else "machine"
        good = sorted(made for made in ids or () if re.fullmatch(IDS[what], made))
        name = "volume-id" if kind == "volume" else "instance-id"
        parts = [{name: good[i : i + VALUES]} for i in range(0, len(good), VALUES)]
        filters = [{}] if ids is None else parts
        look = _volumes if kind == "volume" else _instances
        return self._ec2.each_region(lambda region: [e for narrow in filters for e in look(region, narrow)])

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """A fault of the credentials, the clock or the connection is raised: nothing else can be checked
        then.
        """
        faults = self._unsupported(wanted)
        if not wanted:
            return faults
        self._ec2.regions()  # report the missing zones themselves, not what follows from them
        probes: list[checks.Look] = []
        looks: list[checks.Look] = []
        for name, here in checks.by_region(wanted):
            site = self._ec2.at(name).site
            assert isinstance(site, Ec2Site)
            # Every command makes this request, so every usable login may.
            probes.append(partial(self._ec2.region(name).has_instance, {}))
            looks += self._looks(site, name, here)
        return faults + checks.faults_of(probes, looks, "UnauthorizedOperation")

    def _looks(
        self, site: Ec2Site, region: str, wanted: Mapping[Address, Mapping[str, Any]]
    ) -> Iterator[checks.Look]:
        """What has to be there in a region for things to be made or adopted."""
        made: dict[tuple[str, ...], NodeInputs] = {}
        zones: dict[str, str] = {}
        for address, inputs in wanted.items():
            if address.kind == "node":
                node = inputs_of("node", inputs)
                if node.instance_id is None:
                    made[tuple(str(getattr(node, key)) for key in KIND)] = node
                else:
                    yield partial(self._nodes.seen, address, "", inputs)
            elif address.kind == "volume":
                disk = inputs_of("volume", inputs)
                if disk.zone:
                    zones[disk.zone] = str(address)
                if disk.volume_id is not None:
                    yield partial(self._volumes.seen, address, "", inputs)
                else:
                    yield partial(site.volume, address, disk)
        if made:
            yield partial(_image, self._ec2, region)
        for kind in sorted(made):
            yield partial(site.network, made[kind].zone)
            if made[kind].reservation:
                yield partial(site.reserved, made[kind])
        if zones:
            yield partial(_zones, self._ec2.region(region), zones)


def _instances(region: Region, narrow: Mapping[str, Iterable[str]]) -> list[Existing]:
    """The instances of a region that have not ended."""
    return [
        existing(
            found,
            spot=found.raw.get("instanceLifecycle") == "spot",
        )
        for found in region.instances(narrow)
        if not found.gone
    ]


def _volumes(region: Region, narrow: Mapping[str, Iterable[str]]) -> list[Existing]:
    """The volumes of a region that have not ended. An instance boots from those that end with it."""
    return [
        existing(
            found,
            size=found.size,
            on=found.on,
            boots=any(
                str(held.get("deleteOnTermination")).lower() == "true"
                for held in found.raw.get("attachmentSet") or ()
            ),
        )
        for found in region.volumes(narrow)
        if not found.gone
    ]


KIND = ("zone", "instance_type", "spot", "reservation")
"""Inputs of a node that change the conditions under which it is made."""


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


def _image(account: Account, region: str) -> None:
    """`PermanentError` if there is no image, or the nodes cannot start it."""
    image = account.image(region)
    item = account.described(region, image)
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
