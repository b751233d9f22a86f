"""Places instances of EC2: their capacity reservation, placement group and subnet, or as spot; and the
state's key pairs, one in each region with nodes.

EC2 keeps a placement group (see `cloud.placement_groups`) in the zone of its first instance.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.record import struct
from declarative.model.spec.backend import Network
from declarative.model.spec.values import Placement
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import marks, placement_groups
from providers.cloud.any.account import FINGERPRINT
from providers.cloud.bad_answers import text_at
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.region import LIVE, Region, tagged
from providers.cloud.keys import Pairs
from providers.cloud.placement_groups import Reserved
from providers.ssh.key_pairs import Login

DUPLICATE = "InvalidKeyPair.Duplicate"
"""The name exists already, listed or not."""


class Ec2Keys(Pairs[Region, Mapping[str, str]]):
    """A pair is recognized by its tags, which contain the key's fingerprint."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._regions = account

    def before(self, region: Region) -> None:
        """Nodes in another region may have a key that is on another machine."""
        if self._login or self.given or self.file.exists():
            return
        for name in self._regions.regions():
            if name != region.name and self._asked(self._regions.region(name)):
                raise self._missing(f", and nodes in {name} were made with one")

    def _asked(self, region: Region) -> bool:
        try:
            return self.there(region)
        except PermanentError:
            return False  # a login that may not look there has made nothing there

    def _send(self, region: Region, login: Login) -> None:
        tags = {"Name": self.name, marks.OWNER: self._account.owner, FINGERPRINT: login.fingerprint}
        region.ask(
            "ImportKeyPair",
            self.name,
            KeyName=self.name,
            PublicKeyMaterial=base64.b64encode(f"{login.public} {self.name}".encode()).decode(),
            TagSpecification=tagged("key-pair", tags),
        )

    def _refused_pair(self, error: PermanentError) -> ProviderError:
        listed_late = DUPLICATE in error.summary
        return TransientError(TransientKind.BUSY, error.summary, about=error.about) if listed_late else error

    def _is_of(self, there: Mapping[str, str], login: Login) -> bool:
        return self._is_ours(there) and there.get(FINGERPRINT) == login.fingerprint

    def _is_ours(self, tags: Mapping[str, str]) -> bool:
        return tags.get(marks.OWNER) == self._account.owner

    def _another(self, region: Region, login: Login, there: Mapping[str, str]) -> PermanentError:
        have = there.get(FINGERPRINT) or "unknown"
        if self._fresh:
            self._delete_new_key()
            return self._missing(f", and EC2's key pair {self.name} in {region.name} is {have}")
        return self._others(region, f"EC2's key pair {self.name} is {have}, ours is {login.fingerprint}")

    def there(self, region: Region) -> bool:
        """Another account may have a pair of this name."""
        tags = self._find(region)
        return tags is not None and self._is_ours(tags)

    def _find(self, region: Region) -> dict[str, str] | None:
        action = "DescribeKeyPairs"
        found = region.ask(action, self.name, Filter=[{"Name": "key-name", "Value": [self.name]}])
        for item in answers.listed(action, found, "keySet"):
            if item.get("keyName") == self.name:
                return answers.tags(item)
        return None

    def _remove(self, region: Region) -> None:
        if self.there(region):
            region.ask("DeleteKeyPair", self.name, KeyName=self.name)


BLOCK = "capacity-block"
"""EC2's word for capacity bought for some days, which is a market of its own."""
_ID = re.compile(r"cr-[0-9a-f]{4,32}")
_GROUP = re.compile(r"arn:[a-z-]+:resource-groups:[a-z0-9-]+:\d+:group/.+")
NONE_SUCH = "InvalidCapacityReservationId"


@struct(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The limits that a reservation sets for where nodes can be."""

    state: str
    instance_type: str
    zone: str
    kind: str
    """`default`, or `capacity-block`."""


class Capacity:
    """The reservations that fleets name. Safe to use from many threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._seen: dict[tuple[str, str], Reservation] = {}

    def asked(self, region: Region, inputs: NodeInputs) -> Reserved:
        """The part that a node takes. A capacity block has its instances near each other, in no group."""
        made = str(inputs.reservation)
        if _GROUP.fullmatch(made):
            return Reserved(body=_target(CapacityReservationResourceGroupArn=made), grouped=True)
        if not _ID.fullmatch(made):
            summary = f"`{made}` is no capacity reservation of EC2"
            hint = "write its id, `cr-…`, or the ARN of a resource group of reservations"
            raise PermanentError(PermanentKind.INVALID, summary, about="reservation", hint=hint)
        found = self._look(region, made)
        _check(found, made, inputs)
        target = _target(CapacityReservationId=made)
        if found.kind == BLOCK:
            return Reserved(body={**target, "InstanceMarketOptions": {"MarketType": BLOCK}})
        return Reserved(body=target, grouped=True)

    def _look(self, region: Region, made: str) -> Reservation:
        with self._turn:
            found = self._seen.get((region.name, made))
            if found is None or found.state != "active":
                found = self._seen[region.name, made] = _read(region, made)
            return found


def _read(region: Region, made: str) -> Reservation:
    action = "DescribeCapacityReservations"
    try:
        found = region.ask(action, made, CapacityReservationId=[made])
    except PermanentError as error:
        if NONE_SUCH not in error.summary:
            raise
        raise _unknown(region, made) from None
    for item in answers.listed(action, found, "capacityReservationSet"):
        if item.get("capacityReservationId") == made:
            return Reservation(
                state=str(item.get("state") or ""),
                instance_type=str(item.get("instanceType") or ""),
                zone=str(item.get("availabilityZone") or ""),
                kind=str(item.get("reservationType") or "default"),
            )
    raise _unknown(region, made)


def _unknown(region: Region, made: str) -> PermanentError:
    summary = f"{region.name} has no capacity reservation {made}"
    hint = "check its id and the fleet's `regions`: a reservation is in one zone"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about="reservation", hint=hint)


def _check(found: Reservation, made: str, inputs: NodeInputs) -> None:
    """Check that the reservation has capacity for the node: its place and its type."""
    kind, zone = inputs.instance_type, inputs.zone
    if (found.instance_type, found.zone) != (kind, zone or found.zone):
        summary = f"{made} is for {found.instance_type} in {found.zone}, not for {kind} in {zone}"
        hint = f"write `instance_types: [{found.instance_type}]` and `availability_zones: [{found.zone}]`"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=str(zone or "reservation"), hint=hint)
    if found.state != "active":
        summary = f"{made} is {found.state}, and only an active reservation can be used"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about="reservation")


def _target(**what: Any) -> dict[str, Any]:
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": what}}


def market(inputs: NodeInputs) -> dict[str, Any]:
    """The parameters for a node's market: on demand, unless the node is spot. A spot node ends when EC2 needs
    it or it gets too expensive.
    """
    if not inputs.spot:
        return {}
    cap = inputs.max_price
    spot = {
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
        "MaxPrice": None if cap is None else f"{cap:.6f}".rstrip("0").rstrip("."),
    }
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}}


IN_USE = "InvalidPlacementGroup.InUse"
UNKNOWN = "InvalidPlacementGroup.Unknown"


class Groups(placement_groups.Groups):
    """The placement groups of one account."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._regions = account

    def _region(self, inputs: NodeInputs) -> Region:
        return self._regions.region(inputs.region)

    def takes(self, inputs: NodeInputs) -> bool:
        kind = self._regions.catalog.types.get(inputs.instance_type)
        return kind is None or kind.clusters

    def name(self, inputs: NodeInputs) -> str:
        where = inputs.zone or inputs.region
        return f"fleetform-{self._account.owner}-{inputs.fleet}-{where}"

    def was_deleted(self, error: PermanentError, made: str | None, inputs: NodeInputs) -> bool:
        """EC2 itself says it."""
        gone = UNKNOWN in error.summary and made is not None and made != self.given
        if gone and made:
            self.forgotten(made)
        return gone

    def make(self, name: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        self._region(inputs).ask(
            "CreatePlacementGroup",
            name,
            GroupName=name,
            Strategy=Placement.CLUSTER.value,
            TagSpecification=tagged("placement-group", tags),
        )

    def tags(self, name: str, inputs: NodeInputs) -> dict[str, str] | None:
        action = "DescribePlacementGroups"
        found = self._region(inputs).ask(action, name, Filter=[{"Name": "group-name", "Value": [name]}])
        for item in answers.listed(action, found, "placementGroupSet"):
            if item.get("groupName") == name:
                return answers.tags(item)
        return None

    def used(self, name: str, inputs: NodeInputs) -> bool:
        living = {"placement-group-name": [name], **LIVE}
        return self._region(inputs).has_instance(living)

    def remove(self, name: str, inputs: NodeInputs) -> None:
        try:
            self._region(inputs).ask("DeletePlacementGroup", name, GroupName=name)
        except PermanentError as error:
            if UNKNOWN in error.summary:
                return
            if IN_USE not in error.summary:
                raise
            summary = f"the placement group {name} is in use until its last nodes have ended"
            raise TransientError(TransientKind.BUSY, summary, about=name) from None


@struct(frozen=True, slots=True, kw_only=True)
class Found:
    """The subnets and security groups of the named ones that one region has."""

    zones: Mapping[str, str] = field(default_factory=dict)
    """Subnet → its zone."""
    nets: Mapping[str, str] = field(default_factory=dict)
    """Subnet or security group → its VPC."""
    groups: tuple[str, ...] = ()


class Networks:
    """The network of nodes: subnets and security groups, looked up before the first node is made.

    If none is named, EC2 uses the zone's default subnet and its network's default group. Safe to use from
    many threads.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._turn = threading.Lock()
        self._seen: dict[str, Found] = {}

    @property
    def _named(self) -> Network:
        return self._config.network

    def asked(self, region: Region, zone: str | None) -> dict[str, Any]:
        """The parameters for a node in a zone; `PermanentError` if a named subnet or group does not exist."""
        named = self._named
        if named.subnets and zone not in named.subnets:
            summary = f"`network.subnets` names no subnet for {zone or 'a node without a zone'}"
            hint = f"add `{zone or 'ZONE'}: subnet-…`, or keep to others with `availability_zones`"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
        subnet = named.subnets[zone] if zone and named.subnets else None
        found = self._found(region)
        if subnet is not None:
            _check_subnet(found, subnet, str(zone), region.name)
        groups = list(found.groups)
        if named.public_ip is None:
            return {"SubnetId": subnet, "SecurityGroupId": groups}
        card = {"DeviceIndex": 0, "AssociatePublicIpAddress": named.public_ip, "DeleteOnTermination": True}
        return {"NetworkInterface": [{**card, "SubnetId": subnet, "SecurityGroupId": groups}]}

    def _found(self, region: Region) -> Found:
        if not (self._named.subnets or self._named.security_groups):
            return Found()
        with self._turn:
            if region.name not in self._seen:
                self._seen[region.name] = self._look(region)
            return self._seen[region.name]

    def _look(self, region: Region) -> Found:
        mine = {s for zone, s in self._named.subnets.items() if zone.startswith(region.name)}
        subnets = _listed(region, "DescribeSubnets", "subnetSet", "subnet-id", mine)
        there = self._groups(region)
        zones = {str(s.get("subnetId")): text_at(s, "availabilityZone") for s in subnets}
        nets = {str(s.get("subnetId")): text_at(s, "vpcId") for s in subnets}
        return Found(zones=zones, nets={**nets, **there}, groups=tuple(there))

    def _groups(self, region: Region) -> dict[str, str]:
        """The named security groups that are in this region, in order, and the VPC of each."""
        wanted = dict.fromkeys(self._named.security_groups)
        found = _listed(region, "DescribeSecurityGroups", "securityGroupInfo", "group-id", set(wanted))
        nets = {str(group.get("groupId")): text_at(group, "vpcId") for group in found}
        there = {name: nets[name] for name in wanted if name in nets}
        missing = [name for name in wanted if name not in nets]
        # A group belongs to one region. With several regions, groups of all of them are named together.
        if missing and (len(self._config.regions) < 2 or not there):
            summary = f"{region.name} has no security group {missing[0]}"
            hint = "`network.security_groups` takes ids, `sg-…`, of groups in the backend's regions"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="network.security_groups", hint=hint)
        return there


def _check_subnet(found: Found, subnet: str, zone: str, region: str) -> None:
    """Check that a zone's subnet exists, in that zone and in the network of the groups."""
    about = "network.subnets"
    if subnet not in found.zones:
        summary = f"{region} has no subnet {subnet}, which `network.subnets` names for {zone}"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about=about)
    if found.zones[subnet] != zone:
        summary = f"{subnet} is in {found.zones[subnet]}, and `network.subnets` names it for {zone}"
        hint = f"write `{found.zones[subnet]}: {subnet}`, and for {zone} one of its own"
        raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
    away = next((name for name in found.groups if found.nets[name] != found.nets[subnet]), None)
    if away is not None:
        summary = f"{away} is in the VPC {found.nets[away]}, and {subnet} in {found.nets[subnet]}"
        hint = "take a security group of the subnet's VPC"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.security_groups", hint=hint)


def _listed(region: Region, action: str, name: str, key: str, values: set[str]) -> list[dict[str, Any]]:
    """The existing ones of some ids. A filter ignores missing ones."""
    if not values:
        return []
    return answers.listed(action, region.ask(action, Filter=[{"Name": key, "Value": sorted(values)}]), name)
