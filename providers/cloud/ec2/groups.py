"""Placement groups: where the nodes of a fleet with `placement: cluster` are close to each other.

One for each fleet and zone: EC2 keeps a group in the zone of its first instance. It is made before the first
node and goes after the last one; in between its tags say whose it is. Nothing is recorded of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.spec.fleet import Placement
from providers.cloud import marks
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.answers import Instance
from providers.cloud.ec2.region import Region, tagged

OPTION = "placement_group"
OFF = "off"
FLEET = f"{marks.OURS}fleet"
IN_USE = "InvalidPlacementGroup.InUse"
UNKNOWN = "InvalidPlacementGroup.Unknown"


class Groups:
    """The placement groups of one account. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._there: set[tuple[str, str]] = set()

    @property
    def given(self) -> str | None:
        """What the user wants instead: the name of a group, or `off`."""
        found = self._account.options.get(OPTION)
        return str(found) if found else None

    def bring(self, region: Region, inputs: Mapping[str, Any]) -> str | None:
        """The group of a node that is about to be made, and is there; None if it has none."""
        if inputs.get("placement") != Placement.CLUSTER or self.given == OFF:
            return None
        if self.given:
            return self.given
        kind = self._account.catalog.types.get(str(inputs.get("instance_type")))
        if kind is not None and not kind.clusters:
            return None
        name = self._name(inputs)
        with self._turn:
            if (region.name, name) not in self._there:
                self._make(region, name, str(inputs.get("fleet") or ""))
                self._there.add((region.name, name))
        return name

    def forgotten(self, region: Region, name: str) -> None:
        """Somebody says that a group is not there any more."""
        with self._turn:
            self._there.discard((region.name, name))

    def _name(self, inputs: Mapping[str, Any]) -> str:
        where = inputs.get("zone") or inputs.get("region")
        return f"fleetform-{self._account.owner}-{inputs.get('fleet')}-{where}"

    def _make(self, region: Region, name: str, fleet: str) -> None:
        told = {"Name": name, marks.OWNER: self._account.owner, FLEET: fleet}
        try:
            region.ask(
                "CreatePlacementGroup",
                name,
                GroupName=name,
                Strategy=Placement.CLUSTER.value,
                TagSpecification=tagged("placement-group", told),
            )
        except PermanentError:
            # Another worker or machine was first, or an answer was lost.
            have = self._tags(region, name)
            if have is None:
                raise
            if have.get(marks.OWNER) != self._account.owner:
                summary = f"the placement group {name} in {region.name} is another's"
                hint = f"delete it, or name one that is to be used under `options.{OPTION}`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=name, hint=hint) from None

    def _tags(self, region: Region, name: str) -> dict[str, str] | None:
        """The tags of a group; None if there is none of that name."""
        action = "DescribePlacementGroups"
        found = region.ask(action, name, Filter=[{"Name": "group-name", "Value": [name]}])
        for item in answers.listed(action, found, "placementGroupSet"):
            if item.get("groupName") == name:
                return answers.tags(item)
        return None

    def leave(self, region: Region, went: Iterable[Mapping[str, Any]], living: Iterable[Instance]) -> None:
        """Take away the groups of nodes that are gone, by their inputs, if none of the `living` is in them.

        `BUSY` while their instances are on the way out, which takes some of them minutes: until then EC2 does
        not let go of a group.
        """
        if self.given:
            return
        used = {instance.group for instance in living}
        names = {self._name(inputs) for inputs in went if inputs.get("placement") == Placement.CLUSTER}
        for name in sorted(names - used):
            self._remove(region, name)

    def _remove(self, region: Region, name: str) -> None:
        have = self._tags(region, name)
        if have is None or have.get(marks.OWNER) != self._account.owner:
            return
        self.forgotten(region, name)
        try:
            region.ask("DeletePlacementGroup", name, GroupName=name)
        except PermanentError as error:
            if UNKNOWN in error.summary:
                return
            if IN_USE not in error.summary:
                raise
            summary = f"the placement group {name} is in use until its last nodes have ended"
            raise TransientError(TransientKind.BUSY, summary, about=name) from None
