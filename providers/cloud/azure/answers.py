"""Azure's answers as plain values: machines, disks, network interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.cloud.azure.account import zone_of
from providers.cloud.azure.codes import told
from providers.cloud.named import Device, Disk, Machine, Phase
from providers.cloud.rest import strange

_MACHINES: Mapping[str, Phase] = {
    "Creating": Phase.STARTING,
    "Failed": Phase.FAILED,
    "Deleting": Phase.ENDING,
}
"""By the state of what is being done with it. A machine that is being changed runs on."""
_POWER: Mapping[str, Phase] = {
    "starting": Phase.STARTING,
    "stopping": Phase.STOPPED,
    "stopped": Phase.STOPPED,
    "deallocating": Phase.STOPPED,
    "deallocated": Phase.STOPPED,
}
_DISKS: Mapping[str, Phase] = {
    "Creating": Phase.STARTING,
    "Failed": Phase.FAILED,
    "Deleting": Phase.ENDING,
}


def place(resource: object) -> str:
    """`group/name` of a resource's id, in lower case: Azure writes it now so, now so."""
    words = str(resource or "").lower().strip("/").split("/")
    try:
        return f"{words[words.index('resourcegroups') + 1]}/{words[-1]}"
    except (ValueError, IndexError):
        return ""


def states(what: str, found: Mapping[str, Any]) -> list[str]:
    """The codes of an instance view: `PowerState/running`, `ProvisioningState/failed/AllocationFailed`."""
    view = (found.get("properties") or {}).get("instanceView") or {}
    try:
        return [str(status["code"]) for status in view.get("statuses") or ()]
    except (KeyError, TypeError):
        raise strange(what, "has a state that cannot be read") from None


def power(codes: list[str]) -> str:
    """What a machine does, by its instance view; empty if that is not told."""
    found = [code.partition("/")[2] for code in codes if code.startswith("PowerState/")]
    return found[0] if found else ""


def machine(what: str, found: Mapping[str, Any], power_state: str | None = None) -> Machine:
    """One machine, without its addresses. `power_state` is what a listing of states told."""
    try:
        inner, region = found["properties"], str(found["location"])
        doing, does = str(inner["provisioningState"]), power_state or power(states(what, found))
        phase = _MACHINES.get(doing) or _POWER.get(does, Phase.RUNS)
        if phase is Phase.FAILED and does == "running":
            phase = Phase.RUNS  # what failed was a change of a machine that runs on
        code, reason = _why(found)
        disks = (inner.get("storageProfile") or {}).get("dataDisks") or ()
        return Machine(
            id=place(found["id"]),
            name=str(found["name"]).lower(),
            zone=zone_of(region, found.get("zones")),
            phase=phase,
            state=does or doing,
            tags={str(k): str(v) for k, v in (found.get("tags") or {}).items()},
            devices={
                place(d["managedDisk"]["id"]): _device(int(d["lun"]))
                for d in disks
                if (d.get("managedDisk") or {}).get("id") and not d.get("toBeDetached")
            },
            type=str((inner.get("hardwareProfile") or {}).get("vmSize") or ""),
            code=code,
            reason=reason,
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise strange(what, "has a machine that cannot be read") from None


def _device(lun: int) -> Device:
    """Azure's udev makes a link for each LUN of the machine's: of a disk of SCSI, or of one of NVMe."""
    return Device(links=(f"/dev/disk/azure/scsi1/lun{lun}", f"/dev/disk/azure/data/by-lun/{lun}"))


def _why(found: Mapping[str, Any]) -> tuple[str, str]:
    """Why a machine failed, as its instance view says."""
    view = (found.get("properties") or {}).get("instanceView") or {}
    for status in view.get("statuses") or ():
        parts = str(status.get("code")).split("/")
        if parts[:2] == ["ProvisioningState", "failed"]:
            return (parts[2] if len(parts) > 2 else ""), str(status.get("message") or "")
    return "", ""


def disk(what: str, found: Mapping[str, Any]) -> Disk:
    """One disk."""
    try:
        inner = found["properties"]
        doing = str(inner["provisioningState"])
        holders = [inner.get("ownerId") or found.get("managedBy"), *(found.get("managedByExtended") or ())]
        return Disk(
            id=place(found["id"]),
            name=str(found["name"]).lower(),
            region=str(found["location"]),
            zone=zone_of(str(found["location"]), found.get("zones")),
            size=int(inner["diskSizeGB"]),
            phase=_DISKS.get(doing, Phase.RUNS),
            state=str(inner.get("diskState") or doing),
            tags={str(k): str(v) for k, v in (found.get("tags") or {}).items()},
            type=str((found.get("sku") or {}).get("name") or ""),
            holders=tuple(dict.fromkeys(place(holder) for holder in holders if holder)),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise strange(what, "has a disk that cannot be read") from None


def addresses(what: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The private address of a network interface, and the id of its public one; empty if it has none."""
    try:
        settings = found["properties"]["ipConfigurations"][0]["properties"]
        public = (settings.get("publicIPAddress") or {}).get("id")
        return str(settings.get("privateIPAddress") or ""), str(public or "")
    except (KeyError, TypeError, IndexError, AttributeError):
        raise strange(what, "has a network interface that cannot be read") from None


def state(what: str, found: Mapping[str, Any]) -> str:
    """What is being done with a resource: `Succeeded` where nothing is any more."""
    doing = (found.get("properties") or {}).get("provisioningState")
    if not isinstance(doing, str):
        raise strange(what, "has no state")
    return doing


def failure(found: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of an error within an answer."""
    error = found.get("error")
    return told(error) if isinstance(error, dict) else ("", "")
