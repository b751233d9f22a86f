"""Reservations of Azure: groups of them, each for one type of machine, in a zone or in none."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.azure.account import COMPUTE, Account, zone_of
from providers.cloud.named import Reserved

_NAME = re.compile(r"(?:([\w().-]{1,90})/)?([\w.-]{1,80})")
_PATH = re.compile(
    r"/subscriptions/[\w-]+/resourceGroups/[\w().-]{1,90}/providers/Microsoft\.Compute/"
    r"capacityReservationGroups/[\w.-]{1,80}",
    re.IGNORECASE,
)
KIND = "capacityReservationGroups"


@dataclass(frozen=True, slots=True)
class Found:
    """A group, as far as it decides on a machine."""

    region: str
    types: frozenset[tuple[str, str | None]]
    """Type, in lower case, and zone of what is reserved in it."""


class Reservations:
    """The groups that fleets name. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._seen: dict[str, Found | None] = {}

    def asked(self, inputs: NodeInputs) -> Reserved:
        """What a machine takes of the group that its inputs name: see `named.Api`.

        In no placement group: Azure reserves nothing that would be in one.
        """
        given = str(inputs.reservation)
        path = self._path(given)
        with self._turn:
            if path not in self._seen:
                self._seen[path] = self._read(given, path)
            found = self._seen[path]
        if found is not None:
            _check(found, given, inputs)
        return Reserved(body={"capacityReservation": {"capacityReservationGroup": {"id": path}}})

    def _path(self, given: str) -> str:
        if _PATH.fullmatch(given):
            return given
        parts = _NAME.fullmatch(given)
        if not parts:
            summary = f"`{given}` is no capacity reservation group of Azure"
            hint = "write its name, `GROUP/NAME`, or its whole id: `/subscriptions/…`"
            raise PermanentError(PermanentKind.INVALID, summary, about="reservation", hint=hint)
        group = parts[1] or self._account.group
        return f"{self._account.root(group)}/providers/Microsoft.Compute/{KIND}/{parts[2]}"

    def _read(self, given: str, path: str) -> Found | None:
        """None for one of another subscription that may not be looked at."""
        what = f"look at the capacity reservation group {given}"
        try:
            group = self._account.ask(what, "GET", path, COMPUTE, about="reservation")
            items = self._account.all(what, f"{path}/capacityReservations", COMPUTE, {})
        except PermanentError as error:
            shared = not path.lower().startswith(f"{self._account.root()}/".lower())
            if shared and error.kind is PermanentKind.AUTH:
                return None
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            summary = f"there is no capacity reservation group `{given}`"
            hint = "check its name; one of another resource group is `GROUP/NAME`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="reservation", hint=hint) from None
        region = str(group.get("location") or "")
        kinds = (
            (str((i.get("sku") or {}).get("name")).lower(), zone_of(region, i.get("zones"))) for i in items
        )
        return Found(region, frozenset(kinds))


def _check(found: Found, given: str, inputs: NodeInputs) -> None:
    """Whether the machine can have it: elsewhere, or of another type, there is no capacity of it."""
    kind, region, zone = inputs.instance_type, inputs.region, inputs.zone
    where = zone or region
    if found.region.replace(" ", "").lower() != region:
        summary = f"the capacity reservation group {given} is in {found.region}, not in {region}"
        hint = f"write `regions: [{found.region}]`"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=where, hint=hint)
    if (kind.lower(), zone) not in found.types:
        there = ", ".join(sorted(f"{name} in {at or found.region}" for name, at in found.types)) or "nothing"
        summary = f"the capacity reservation group {given} has {there}, and no {kind} in {where}"
        hint = "write the fleet's `instance_types` and `availability_zones` as they are reserved"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=where, hint=hint)
