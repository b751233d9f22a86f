"""Reservations of GCE: of a zone, and of one type of machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.gce import answers
from providers.cloud.gce.account import Account
from providers.cloud.named import Reserved
from providers.cloud.rest import pages

KEY = "compute.googleapis.com/reservation-name"
READY = ("READY", "UPDATING")
DENSE = "DENSE"
"""Where the machines of a reservation are next to each other, and end with it."""
PAGE = 500
_PART = "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(
    rf"(?:(?:.*/)?projects/([a-z0-9.:-]{{1,100}})/(?:zones/[a-z0-9-]+/)?reservations/)?({_PART})"
    rf"(/reservationBlocks/{_PART}(?:/reservationSubBlocks/{_PART})?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A reservation, as far as it decides on a machine."""

    zone: str
    state: str
    instance_type: str
    """Empty where it is not told."""
    dense: bool
    policies: tuple[str, ...]
    """The placement policies that its machines have to be in, by their ids."""


class Reservations:
    """The reservations that fleets name. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._seen: dict[tuple[str, str], dict[str, Found] | None] = {}

    def asked(self, inputs: NodeInputs, zone: str) -> Reserved:
        """What a machine in a zone takes of the reservation that its inputs name: see `named.Api`."""
        given = str(inputs.reservation)
        parts = _NAME.fullmatch(given)
        if not parts:
            summary = f"`{given}` is no reservation of GCE"
            hint = "write its name, or `projects/P/reservations/NAME` for one that another project shares"
            raise PermanentError(PermanentKind.INVALID, summary, about="reservation", hint=hint)
        project, name, block = parts[1] or self._account.project, parts[2], parts[3] or ""
        here = project == self._account.project
        value = f"{name}{block}" if here and not block else f"projects/{project}/reservations/{name}{block}"
        body = {"consumeReservationType": "SPECIFIC_RESERVATION", "key": KEY, "values": [value]}
        places = self._look(project, name)
        if places is None:
            # Whoever shares it need not let one look at it: GCE says whether it is for this machine.
            return Reserved(body={"reservationAffinity": body})
        found = places.get(zone)
        if found is None:
            raise _elsewhere(given, zone, sorted(places))
        _check(found, given, inputs)
        scheduling = {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"}
        return Reserved(
            body={"reservationAffinity": body, **({"scheduling": scheduling} if found.dense else {})},
            group=next(iter(found.policies), ""),
            grouped=found.dense,
        )

    def _look(self, project: str, name: str) -> dict[str, Found] | None:
        """A reservation by its zones; None where one may not look at another project's."""
        with self._turn:
            key = project, name
            # What is not ready yet may be by now.
            if any(found.state not in READY for found in (self._seen.get(key) or {}).values()):
                del self._seen[key]
            if key not in self._seen:
                try:
                    self._seen[key] = self._read(project, name)
                except PermanentError as error:
                    if project == self._account.project or error.kind is not PermanentKind.AUTH:
                        raise
                    self._seen[key] = None
            return self._seen[key]

    def _read(self, project: str, name: str) -> dict[str, Found]:
        what = f"look for the reservation {name}"

        def ask(more: str | None) -> Mapping[str, Any]:
            params = {"filter": f'name="{name}"', "maxResults": str(PAGE), "returnPartialSuccess": "false"}
            if more:
                params["pageToken"] = more
            path = f"{project}/aggregated/reservations"
            return self._account.ask(what, "GET", path, about="reservation", params=params)

        out: dict[str, Found] = {}
        for page in pages(what, ask, "nextPageToken"):
            for item in answers.scoped(what, page, "reservations"):
                if item.get("name") == name:
                    found = _found(item)
                    out[found.zone] = found
        if not out:
            summary = f"the project {project} has no reservation `{name}`"
            hint = "check its name; one that another project shares is `projects/P/reservations/NAME`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="reservation", hint=hint)
        return out


def _found(item: Mapping[str, Any]) -> Found:
    specific = (item.get("specificReservation") or {}).get("instanceProperties") or {}
    policies = item.get("resourcePolicies") or {}
    urls = policies.values() if isinstance(policies, dict) else policies
    return Found(
        zone=answers.tail(item.get("zone")),
        state=str(item.get("status") or ""),
        instance_type=answers.tail(specific.get("machineType")),
        dense=item.get("deploymentType") == DENSE,
        policies=tuple(filter(None, (answers.place(url, "regions") for url in urls))),
    )


def _elsewhere(given: str, zone: str, zones: list[str]) -> PermanentError:
    summary = f"the reservation {given} is not in {zone}, but in {', '.join(zones)}"
    hint = f"write `availability_zones: [{zones[0]}]`"
    return PermanentError(PermanentKind.NO_CAPACITY, summary, about=zone, hint=hint)


def _check(found: Found, given: str, inputs: NodeInputs) -> None:
    """Whether the machine can have it: of another type, there is no capacity of it."""
    kind = inputs.instance_type.partition("+")[0]
    if found.instance_type and found.instance_type != kind:
        summary = f"the reservation {given} is for {found.instance_type} in {found.zone}, not for {kind}"
        hint = f"write `instance_types: [{found.instance_type}]`"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=found.zone, hint=hint)
    if found.state not in READY:
        summary = (
            f"the reservation {given} is {found.state or 'in no state'}, and only one that is READY is of use"
        )
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about="reservation")
