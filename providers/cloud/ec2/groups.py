"""Placement groups of EC2: see `cloud.groups`. EC2 keeps one in the zone of its first instance."""

from __future__ import annotations

from collections.abc import Mapping

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, TransientError, TransientKind
from declarative.spec.fleet import Placement
from providers.cloud import groups
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import LIVE, Account
from providers.cloud.ec2.region import Region, tagged

IN_USE = "InvalidPlacementGroup.InUse"
UNKNOWN = "InvalidPlacementGroup.Unknown"


class Groups(groups.Groups):
    """The placement groups of one account."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._regions = account

    def _region(self, inputs: NodeInputs) -> Region:
        return self._regions.region(inputs.region)

    def takes(self, inputs: NodeInputs) -> bool:
        """See `groups.Groups`."""
        kind = self._regions.catalog.types.get(inputs.instance_type)
        return kind is None or kind.clusters

    def name(self, inputs: NodeInputs) -> str:
        """See `groups.Groups`."""
        where = inputs.zone or inputs.region
        return f"fleetform-{self._account.owner}-{inputs.fleet}-{where}"

    def make(self, name: str, inputs: NodeInputs, told: Mapping[str, str]) -> None:
        """See `groups.Groups`."""
        self._region(inputs).ask(
            "CreatePlacementGroup",
            name,
            GroupName=name,
            Strategy=Placement.CLUSTER.value,
            TagSpecification=tagged("placement-group", told),
        )

    def tags(self, name: str, inputs: NodeInputs) -> dict[str, str] | None:
        """See `groups.Groups`."""
        action = "DescribePlacementGroups"
        found = self._region(inputs).ask(action, name, Filter=[{"Name": "group-name", "Value": [name]}])
        for item in answers.listed(action, found, "placementGroupSet"):
            if item.get("groupName") == name:
                return answers.tags(item)
        return None

    def used(self, name: str, inputs: NodeInputs) -> bool:
        """See `groups.Groups`."""
        living = {"placement-group-name": [name], "instance-state-name": LIVE}
        return self._region(inputs).has_instance(living)

    def remove(self, name: str, inputs: NodeInputs) -> None:
        """See `groups.Groups`."""
        try:
            self._region(inputs).ask("DeletePlacementGroup", name, GroupName=name)
        except PermanentError as error:
            if UNKNOWN in error.summary:
                return
            if IN_USE not in error.summary:
                raise
            summary = f"the placement group {name} is in use until its last nodes have ended"
            raise TransientError(TransientKind.BUSY, summary, about=name) from None
