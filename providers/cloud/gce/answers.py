"""GCE's answers as plain values: instances, disks, operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.cloud.faults import by_status, fault
from providers.cloud.gce import labels
from providers.cloud.gce.codes import first, hint, kind_of
from providers.cloud.named import Device, Disk, Machine, Phase
from providers.cloud.rest import strange

INSTANCES: Mapping[str, Phase] = {
    "PENDING": Phase.STARTING,
    "PROVISIONING": Phase.STARTING,
    "STAGING": Phase.STARTING,
    "RUNNING": Phase.RUNS,
    "REPAIRING": Phase.STOPPED,
    "PENDING_STOP": Phase.STOPPED,
    "STOPPING": Phase.STOPPED,
    "SUSPENDING": Phase.STOPPED,
    "SUSPENDED": Phase.STOPPED,
    "TERMINATED": Phase.STOPPED,
    "DEPROVISIONING": Phase.ENDING,
}
"""`STOPPING` comes before an end and before a stop: it is there until it is not."""
DISKS: Mapping[str, Phase] = {
    "CREATING": Phase.STARTING,
    "RESTORING": Phase.STARTING,
    "READY": Phase.RUNS,
    "UNAVAILABLE": Phase.STOPPED,
    "FAILED": Phase.FAILED,
    "DELETING": Phase.ENDING,
}


def tail(url: object) -> str:
    """The last part of a URL: how GCE names zones, types and disks."""
    return str(url or "").rpartition("/")[2]


def place(url: object, scope: str = "zones") -> str:
    """`project/zone/name` of a URL or a part of one: `…/projects/p/zones/z/disks/d`. So of `regions`."""
    words = str(url or "").split("/")
    try:
        return f"{words[words.index('projects') + 1]}/{words[words.index(scope) + 1]}/{words[-1]}"
    except (ValueError, IndexError):
        return ""


def scoped(what: str, found: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    """What an aggregated listing has of a kind, in all zones. A zone that could not be asked is a fault."""
    scopes = found.get("items")
    # One with nothing in it is an object all the same, of a kind of its own.
    if scopes is None and "AggregatedList" in str(found.get("kind")):
        scopes = {}
    if not isinstance(scopes, dict):
        raise strange(what, "has no `items`")
    if found.get("unreachables"):
        raise strange(what, f"is not whole: {', '.join(map(str, found['unreachables']))[:200]}")
    for name, scope in scopes.items():
        if not isinstance(scope, dict) or not isinstance(scope.get(kind, []), list):
            raise strange(what, f"cannot be read at {name}")
        code = (scope.get("warning") or {}).get("code")
        if code not in (None, "NO_RESULTS_ON_PAGE"):
            raise strange(what, f"is not whole: {name}: {code}")
        yield from scope.get(kind, [])


def instance(what: str, found: Mapping[str, Any]) -> Machine:
    """One instance."""
    try:
        items = {i["key"]: i.get("value") for i in (found.get("metadata") or {}).get("items") or ()}
        network = (found.get("networkInterfaces") or [{}])[0]
        access = [a.get("natIP") for a in network.get("accessConfigs") or () if a.get("natIP")]
        state = str(found["status"])
        return Machine(
            id=place(found["selfLink"]),
            name=found["name"],
            zone=tail(found["zone"]),
            phase=INSTANCES.get(state, Phase.STOPPED),
            state=state,
            address=network.get("networkIP") or "",
            public_address=access[0] if access else "",
            tags=labels.read_instance(found.get("labels") or {}, items.get(labels.ITEM)),
            devices={place(d.get("source")): _device(d) for d in found.get("disks") or () if d.get("source")},
            type=tail(found.get("machineType")),
            reason=str(found.get("statusMessage") or ""),
            raw=found,
        )
    except (KeyError, TypeError, AttributeError, IndexError):
        raise strange(what, "has an instance that cannot be read") from None


def _device(disk: Mapping[str, Any]) -> Device:
    """Google's udev names its link, and the disk says the same name of itself."""
    name = str(disk.get("deviceName") or "")
    return Device(links=(f"/dev/disk/by-id/google-{name}",), serials=(name,))


def disk(what: str, found: Mapping[str, Any]) -> Disk:
    """One disk."""
    try:
        state = str(found["status"])
        return Disk(
            id=place(found["selfLink"]),
            name=found["name"],
            region=tail(found["zone"]).rpartition("-")[0],
            zone=tail(found["zone"]),
            size=int(found["sizeGb"]),
            phase=DISKS.get(state, Phase.STOPPED),
            state=state,
            tags=labels.read_disk(found.get("labels") or {}),
            type=tail(found.get("type")),
            holders=tuple(place(user) for user in found.get("users") or ()),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise strange(what, "has a disk that cannot be read") from None


def done(what: str, found: Mapping[str, Any], about: str | None) -> bool:
    """Whether an operation has ended; a fault if it failed."""
    if found.get("kind") != "compute#operation" or not isinstance(found.get("status"), str):
        raise strange(what, "is no operation")
    if found.get("error"):
        error = found["error"] if isinstance(found["error"], dict) else {}
        code, message = first(error)
        kind = kind_of(code, message)
        if kind is None:
            kind = by_status(int(found.get("httpErrorStatusCode") or 500))
        raise fault(kind, f"{what}: {code}: {message}"[:400], about=about, hint=hint(code))
    return bool(found["status"] == "DONE")
