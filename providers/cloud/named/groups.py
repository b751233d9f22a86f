"""Placement groups of clouds that take a name once: see `cloud.groups`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, PermanentKind
from declarative.spec.fleet import Placement
from declarative.state import Address
from providers.cloud import groups
from providers.cloud.account import Account
from providers.cloud.named.api import Api, Reserved, name_of


class Groups(groups.Groups):
    """The placement groups of one account."""

    def __init__(self, account: Account, api: Api) -> None:
        super().__init__(account)
        self._sites = api.sites
        self.CALLED = api.sites.called

    def of_node(self, inputs: NodeInputs, reserved: Reserved | None) -> str:
        """The id of the group of a node that is about to be made, and is there; empty if it has none."""
        if reserved and (reserved.group or not reserved.grouped):
            return reserved.group
        name = self.bring(inputs)
        return self._sites.id_of(name, inputs) if name else ""

    def went(self, error: PermanentError, made: str, inputs: NodeInputs) -> bool:
        """Whether a node could not be made since its group went meanwhile, with the last one of another: it
        is brought again.
        """
        name = self.of(inputs)
        refused = error.kind in (PermanentKind.NOT_FOUND, PermanentKind.INVALID)
        if not refused or not name or made != self._sites.id_of(name, inputs):
            return False
        if self._sites.tags(made) is not None:
            return False
        self.forgotten(name)
        return True

    # -------------------------------------------------------------------------------------- ahead

    def unfit(self, wanted: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        """What keeps nodes from being in their groups, as far as that can be told before they are made."""
        # What is reserved has a group of its own, or none.
        free = (inputs for inputs in wanted if not inputs.reservation)
        cluster = [inputs for inputs in free if inputs.placement == Placement.CLUSTER]
        if self.given == groups.OFF:
            return
        if self.given:
            yield from self._absent(self.given, cluster)
            return
        most = self._sites.most
        crowd = Counter((i.fleet, self.of(i)) for i in cluster)
        for fleet, name in crowd:
            count = crowd[fleet, name]
            if name and most is not None and count > most:
                summary = (
                    f"fleet/{fleet}: a {self.CALLED} takes {most} nodes, and there would be "
                    f"{count} in its zone"
                )
                hint = (
                    f"lower the fleet's `nodes`, or write `options: {{{groups.OPTION}: {groups.OFF}}}` in "
                    "the backend"
                )
                yield PermanentError(PermanentKind.INVALID, summary, about=groups.OPTION, hint=hint)

    def _absent(self, given: str, cluster: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        for made, region in sorted({(self._sites.id_of(given, i), i.region) for i in cluster}):
            try:
                there = self._sites.tags(made) is not None
            except PermanentError as error:
                if error.kind is not PermanentKind.AUTH:
                    raise
                continue  # who may use it need not be let look
            if not there:
                summary = f"there is no {self.CALLED} `{given}` in {region}"
                hint = f"check `options.{groups.OPTION}`; without it, one is made for each fleet"
                yield PermanentError(PermanentKind.NOT_FOUND, summary, about=groups.OPTION, hint=hint)

    # ------------------------------------------------------------------------- what each cloud has

    def takes(self, inputs: NodeInputs) -> bool:
        """See `groups.Groups`."""
        return self._sites.takes(inputs)

    def name(self, inputs: NodeInputs) -> str:
        """See `groups.Groups`: owners are too long to be part of a name."""
        fleet, where = inputs.fleet, inputs.zone or inputs.region
        whose = hashlib.sha256(f"{self._account.owner}\0{fleet}\0{where}".encode()).hexdigest()
        return name_of(Address("fleet", f"fleetform-{fleet}"), whose)

    def make(self, name: str, inputs: NodeInputs, told: Mapping[str, str]) -> None:
        """See `groups.Groups`."""
        self._sites.make(self._sites.id_of(name, inputs), inputs, told)

    def tags(self, name: str, inputs: NodeInputs) -> Mapping[str, str] | None:
        """See `groups.Groups`."""
        return self._sites.tags(self._sites.id_of(name, inputs))

    def used(self, name: str, inputs: NodeInputs) -> bool:
        """See `groups.Groups`."""
        return self._sites.used(self._sites.id_of(name, inputs))

    def remove(self, name: str, inputs: NodeInputs) -> None:
        """See `groups.Groups`."""
        self._sites.remove(self._sites.id_of(name, inputs))
