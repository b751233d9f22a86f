"""Placement groups: where the nodes of a fleet with `placement: cluster` are close to each other.

One for each fleet and zone: EC2 keeps a group in the zone of its first instance. It is made before the first
node and goes after the last one; in between its tags say whose it is. Nothing is recorded of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from declarative.spec.fleet import Placement
from providers.cloud import marks
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import LIVE, Account
from providers.cloud.ec2.region import Region, tagged
from providers.cloud.pairs import Last

OPTION = "placement_group"
OFF = "off"
FLEET = f"{marks.OURS}fleet"
IN_USE = "InvalidPlacementGroup.InUse"
UNKNOWN = "InvalidPlacementGroup.Unknown"
Key = tuple[str, str]
"""Region and name of a group; no name where a node is in none."""


class Groups:
    """The placement groups of one account. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._there: set[Key] = set()
        self._last: Last[Key] = Last()

    @property
    def given(self) -> str | None:
        """What the user wants instead: the name of a group, or `off`."""
        found = self._account.options.get(OPTION)
        return str(found) if found else None

    def bring(self, region: Region, inputs: Mapping[str, Any]) -> str | None:
        """The group of a node that is about to be made, and is there; None if it has none."""
        if inputs.get("placement") == Placement.CLUSTER and self.given:
            return None if self.given == OFF else self.given
        if not self._has(inputs):
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

    def _has(self, inputs: Mapping[str, Any]) -> bool:
        """Whether a node is in a group that is made here."""
        kind = self._account.catalog.types.get(str(inputs.get("instance_type")))
        clusters = kind is None or kind.clusters
        return inputs.get("placement") == Placement.CLUSTER and not self.given and clusters

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

    @contextmanager
    def changing(self, region: Region, inputs: Mapping[str, Any], *, ends: bool = False) -> Iterator[None]:
        """While a node is made, or ended. The last one to leave takes the group away if it may be empty.

        `BUSY` for who `ends` one, while its instances are on their way out, which takes some of them minutes:
        until then EC2 does not let go of the group.
        """
        key = region.name, self._name(inputs) if self._has(inputs) else ""
        self._last.enter(key)
        if ends:
            self._last.emptied(key)
        try:
            yield
        except ProviderError as error:
            if isinstance(error, PermanentError):
                self._last.emptied(key)
            if self._last.leave(key):
                with suppress(ProviderError):  # what it is about was said
                    self._leave(region, key)
            raise
        if self._last.leave(key):
            with nullcontext() if ends else suppress(ProviderError):
                self._leave(region, key)

    def _leave(self, region: Region, key: Key) -> None:
        name = key[1]
        if not name or region.has_instance({"placement-group-name": [name], "instance-state-name": LIVE}):
            return
        have = self._tags(region, name)
        if have is not None and have.get(marks.OWNER) == self._account.owner:
            self._remove(region, name)

    def _remove(self, region: Region, name: str) -> None:
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
