"""Placement policies and reservations of the small GCE.

Written from Google's reference, like the rest. It is strict in these points: a policy belongs to a region,
and takes machines of some families, all in one zone; a policy with a machine cannot be deleted; a reservation
takes machines of its type, in its zone, in its own policy or none, up to its number.
"""

from __future__ import annotations

import re
from typing import Any

from tests.providers.cloud.web import Answer

TAKEN = ("a2", "a3", "c2", "n2")
"""Families of types that are taken here."""


class Placed:
    """What is in regions, and what is reserved."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.policies: dict[str, dict[str, Any]] = {}
        """By `region/name`."""
        self.reservations: dict[str, list[dict[str, Any]]] = {}
        """By project."""

    def reserve(self, name: str, zone: str, kind: str, count: int = 9, **more: Any) -> None:
        """Have a reservation; `project` is whose it is."""
        project = more.pop("project", self.project)
        found = {
            "kind": "compute#reservation",
            "name": name,
            "zone": f"https://www.googleapis.com/compute/v1/projects/{project}/zones/{zone}",
            "status": "READY",
            "specificReservationRequired": True,
            "specificReservation": {"count": str(count), "instanceProperties": {"machineType": kind}},
            **more,
        }
        self.reservations.setdefault(project, []).append(found)

    def url(self, region: str, name: str) -> str:
        """That of a policy."""
        root = "https://www.googleapis.com/compute/v1/projects"
        return f"{root}/{self.project}/regions/{region}/resourcePolicies/{name}"

    def change(self, method: str, region: str, name: str, body: Any, used: bool) -> tuple[str, Answer | None]:
        """An error's text and answer, or nothing where it was done. `used`: whether a machine is in it."""
        if method == "POST":
            name = body["name"]
            if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
                return "invalid", (400, f"Invalid value for field 'resource.name': '{name}'")
            if f"{region}/{name}" in self.policies:
                return "alreadyExists", (409, f"The resource '{self.url(region, name)}' already exists")
            assert body["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
            self.policies[f"{region}/{name}"] = {**body, "selfLink": self.url(region, name)}
            return "", None
        if used:
            return "resourceInUseByAnotherResource", (
                400,
                f"The resource_policy '{name}' is already being used",
            )
        del self.policies[f"{region}/{name}"]
        return "", None

    def refused(
        self, zone: str, body: dict[str, Any], there: list[dict[str, Any]]
    ) -> tuple[str, str, int] | None:
        """Code, text and status with which GCE does not make an instance, `there` being the others.

        A status of 0: its operation fails.
        """
        region, kind = zone.rpartition("-")[0], body["machineType"].rpartition("/")[2]
        for url in body.get("resourcePolicies") or ():
            key = f"{region}/{url.rpartition('/')[2]}"
            if key not in self.policies:
                return "notFound", f"The resource '{url}' was not found", 404
            if kind.partition("-")[0] not in TAKEN:
                return "invalid", f"Placement policy is not applicable to machine type {kind}", 400
            zones = {t["zone"].rpartition("/")[2] for t in there if _ends(t, url)}
            if zones - {zone}:
                return "invalid", f"The resource policy is in use in another zone: {zones}", 400
        affinity = body.get("reservationAffinity")
        return self._unreserved(zone, kind, body, affinity, there) if affinity else None

    def _unreserved(
        self, zone: str, kind: str, body: dict[str, Any], affinity: Any, there: list[dict[str, Any]]
    ) -> tuple[str, str, int] | None:
        assert affinity["consumeReservationType"] == "SPECIFIC_RESERVATION"
        assert affinity["key"] == "compute.googleapis.com/reservation-name"
        (value,) = affinity["values"]
        words = value.split("/")
        project, name = (words[1], words[3]) if len(words) > 1 else (self.project, value)
        mine = [r for r in self.reservations.get(project, ()) if r["name"] == name]
        found = next((r for r in mine if r["zone"].endswith(f"/{zone}")), None)
        if found is None:
            return "invalid", f"Specified reservations '{value}' do not exist.", 400
        specific = found["specificReservation"]
        wanted = list((found.get("resourcePolicies") or {}).values())
        own = body.get("resourcePolicies") or []
        if specific["instanceProperties"]["machineType"] != kind or (
            [u.rpartition("/")[2] for u in own] != [u.rpartition("/")[2] for u in wanted]
            and found.get("deploymentType") != "DENSE"
        ):
            return "CONDITION_NOT_MET", f"No available resources in specified reservations '{value}'", 0
        used = [t for t in there if (t.get("reservationAffinity") or {}).get("values") == [value]]
        if len(used) >= int(specific["count"]):
            text = f"Specified reservation '{value}' does not have available resources for the request."
            return "CONDITION_NOT_MET", text, 0
        return None


def in_policy(there: list[dict[str, Any]], name: str) -> bool:
    """Whether a machine is in a policy."""
    return any(url.endswith(f"/{name}") for t in there for url in t.get("resourcePolicies") or ())


def _ends(thing: dict[str, Any], url: str) -> bool:
    return in_policy([thing], url.rpartition("/")[2])
