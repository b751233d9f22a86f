"""Where nodes are in EC2's network: subnets and security groups, looked at before the first node is made.

Where nothing is named, EC2 takes the default subnet of the zone and that network's default group.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from declarative.provider import Config, PermanentError, PermanentKind
from declarative.spec.clouds import Network
from providers.cloud.ec2 import answers
from providers.cloud.ec2.region import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one region has of what is named."""

    zones: Mapping[str, str] = field(default_factory=dict)
    """Subnet → its zone."""
    nets: Mapping[str, str] = field(default_factory=dict)
    """Subnet or security group → its VPC."""
    groups: tuple[str, ...] = ()


class Networks:
    """The network settings of a backend. Safe to use from many threads."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._turn = threading.Lock()
        self._seen: dict[str, Found] = {}

    @property
    def _named(self) -> Network:
        return self._config.network

    def asked(self, region: Region, zone: str | None) -> dict[str, Any]:
        """The parameters for a node in a zone; `PermanentError` if what is named is not there."""
        named = self._named
        if named.subnets and zone not in named.subnets:
            summary = f"`network.subnets` has none for {zone or 'a node without a zone'}"
            hint = f"add `{zone or 'ZONE'}: subnet-…`, or keep to others with `availability_zones`"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
        subnet = named.subnets[zone] if zone and named.subnets else None
        found = self._found(region)
        if subnet is not None:
            _check(found, subnet, str(zone), region.name)
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
        wanted = dict.fromkeys(self._named.security_groups)
        groups = _listed(region, "DescribeSecurityGroups", "securityGroupInfo", "group-id", set(wanted))
        there = {str(group.get("groupId")): str(group.get("vpcId") or "") for group in groups}
        missing = [name for name in wanted if name not in there]
        # Each group is one region's: where there are several, the others' are named beside this one's.
        if missing and (len(self._config.regions) < 2 or not there):
            summary = f"{region.name} has no security group {missing[0]}"
            hint = "`network.security_groups` takes ids, `sg-…`, of groups in the backend's regions"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="network.security_groups", hint=hint)
        zones = {str(s.get("subnetId")): str(s.get("availabilityZone") or "") for s in subnets}
        nets = {str(s.get("subnetId")): str(s.get("vpcId") or "") for s in subnets}
        return Found(
            zones=zones, nets={**nets, **there}, groups=tuple(name for name in wanted if name in there)
        )


def _check(found: Found, subnet: str, zone: str, region: str) -> None:
    """Whether the subnet of a zone is there, in that zone, and in the network of the groups."""
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
    """What there is of some ids: one that there is not is no error to a filter."""
    if not values:
        return []
    return answers.listed(action, region.ask(action, Filter=[{"Name": key, "Value": sorted(values)}]), name)
