"""Azure's answers as plain values, and its error codes as the port's faults.

The status of an error is misleading: 409 means sold out, busy or already existing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from declarative.model.status import NodeState
from declarative.provider import PermanentKind, TransientKind
from providers.cloud.any.site import Device, Disk, Machine, reason_of
from providers.cloud.bad_answers import text_at, value_at
from providers.cloud.faults import Answer, ErrorInfo, Kind
from providers.cloud.rest import bad_answer

_MACHINES: Mapping[str, NodeState] = {
    "Creating": NodeState.PROVISIONING,
    "Failed": NodeState.FAILED,
    "Deleting": NodeState.TERMINATING,
}
"""Provisioning state → state. A machine that is being changed still runs."""
_POWER: Mapping[str, NodeState] = {
    "starting": NodeState.PROVISIONING,
    "stopping": NodeState.NOT_READY,
    "stopped": NodeState.NOT_READY,
    "deallocating": NodeState.NOT_READY,
    "deallocated": NodeState.NOT_READY,
}


def place(resource: object) -> str:
    """`group/name` from a resource's id, in lower case: Azure's answers vary."""
    words = str(resource or "").lower().strip("/").split("/")
    try:
        return f"{words[words.index('resourcegroups') + 1]}/{words[-1]}"
    except (ValueError, IndexError):
        return ""


def states(what: str, found: Mapping[str, Any]) -> list[str]:
    """The codes of an instance view: `PowerState/running`, `ProvisioningState/failed/AllocationFailed`."""
    statuses = value_at(found, "properties", "instanceView", "statuses")
    try:
        return [str(status["code"]) for status in statuses or ()]
    except (KeyError, TypeError):
        raise bad_answer(what, "has a state that cannot be read") from None


def power(codes: list[str]) -> str:
    """A machine's power state in its instance view; empty if missing."""
    found = [code.partition("/")[2] for code in codes if code.startswith("PowerState/")]
    return found[0] if found else ""


def machine(what: str, found: Mapping[str, Any], power_state: str | None = None) -> Machine:
    """One machine, without its addresses. `power_state` comes from a listing of states."""
    try:
        inner, region = found["properties"], str(found["location"])
        doing, does = str(inner["provisioningState"]), power_state or power(states(what, found))
        code, why = _why(found)
        state = _state(doing, does)
        text = f"{code}: {why}".strip(": ")
        kind = CODES.get(code, PermanentKind.INVALID if code else PermanentKind.NO_CAPACITY)
        return Machine(
            id=place(found["id"]),
            name=str(found["name"]).lower(),
            region=region,
            zone=zone_of(region, found.get("zones")),
            state=state,
            word=does or doing,
            reason=reason_of(state, does or doing, why),
            fault=(kind, text) if text else None,
            labels=_tags(found),
            devices=_devices(inner),
            type=text_at(inner, "hardwareProfile", "vmSize"),
            identities=tuple((found.get("identity") or {}).get("userAssignedIdentities") or ()),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(what, "has a machine that cannot be read") from None


def _state(doing: str, does: str) -> NodeState:
    """The state for a machine's provisioning state and power state."""
    if doing == "Failed" and does == "running":
        return NodeState.READY  # the failed operation was a change of a running machine
    return _MACHINES.get(doing) or _POWER.get(does, NodeState.READY)


def _tags(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in (found.get("tags") or {}).items()}


def _devices(properties: Mapping[str, Any]) -> dict[str, Device]:
    """A machine's disks except its own and those that it is releasing."""
    out: dict[str, Device] = {}
    for disk in value_at(properties, "storageProfile", "dataDisks") or ():
        if value_at(disk, "managedDisk", "id") and not disk.get("toBeDetached"):
            out[place(disk["managedDisk"]["id"])] = _device(int(disk["lun"]))
    return out


def _device(lun: int) -> Device:
    """Azure's udev makes a link for each LUN of the machine, for SCSI disks and for NVMe disks."""
    return Device(links=(f"/dev/disk/azure/scsi1/lun{lun}", f"/dev/disk/azure/data/by-lun/{lun}"))


def _why(found: Mapping[str, Any]) -> tuple[str, str]:
    """Why a machine failed, from its instance view."""
    for status in value_at(found, "properties", "instanceView", "statuses") or ():
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
            label=str(found["name"]).lower(),
            region=str(found["location"]),
            zone=zone_of(str(found["location"]), found.get("zones")),
            size=int(inner["diskSizeGB"]),
            busy=doing == "Creating",
            broken="Azure says that it failed" if doing == "Failed" else None,
            gone=doing == "Deleting",
            word=str(inner.get("diskState") or doing),
            labels=_tags(found),
            type=text_at(found, "sku", "name"),
            on=tuple(dict.fromkeys(place(holder) for holder in holders if holder)),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(what, "has a disk that cannot be read") from None


def addresses(what: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The private address of a network interface, and the id of its public address; empty without one."""
    try:
        settings = found["properties"]["ipConfigurations"][0]["properties"]
        public = (settings.get("publicIPAddress") or {}).get("id")
        return str(settings.get("privateIPAddress") or ""), str(public or "")
    except (KeyError, TypeError, IndexError, AttributeError):
        raise bad_answer(what, "has a network interface that cannot be read") from None


def state(what: str, found: Mapping[str, Any]) -> str:
    """The provisioning state of a resource: `Succeeded` if no operation is running."""
    doing = (found.get("properties") or {}).get("provisioningState")
    if not isinstance(doing, str):
        raise bad_answer(what, "has no state")
    return doing


def failure(found: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of an error inside an answer."""
    error = found.get("error")
    return code_and_message(error) if isinstance(error, dict) else ("", "")


_CODES: Mapping[Kind, str] = {
    TransientKind.THROTTLED: """
        TooManyRequests OperationNotAllowedDueToThrottling SubscriptionRequestsThrottled
        ResourceRequestsThrottled ServerBusy
    """,
    TransientKind.AMBIGUOUS: """
        InternalServerError InternalExecutionError InternalOperationError ServiceUnavailable
        GatewayTimeout ServerTimeout OperationPreempted NetworkingInternalOperationError
        OverconstrainedRetryableError
    """,
    TransientKind.BUSY: """
        AnotherOperationInProgress RetryableError RetryableErrorDueToAnotherOperation
        ConflictingUserInput OperationNotAllowedWhileUpdating
        AttachDiskWhileBeingDetached DiskBeingDetached NicReservedForAnotherVm
        NicInUse InUseDiskCannotBeDeleted PublicIPAddressCannotBeDeleted
        ReferencedResourceNotProvisioned ResourceNotReady
        ResourceGroupBeingDeleted DiskBlobBeingDetached
    """,
    PermanentKind.NO_CAPACITY: """
        SkuNotAvailable AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest
        OverconstrainedZonalAllocationRequest SpotAllocationFailed
        AllocationTimeout DiskAllocationFailed CapacityReservationFull
        InsufficientCapacity
    """,
    PermanentKind.QUOTA: """
        QuotaExceeded ResourceQuotaExceeded SubnetIsFull PublicIPCountLimitReached
        MaxStorageAccountsCountPerSubscriptionExceeded
        ReadOnlyResourceQuotaExceeded PublicIpAddressQuotaReached
    """,
    PermanentKind.AUTH: """
        AuthorizationFailed AuthenticationFailed InvalidAuthenticationToken
        InvalidAuthenticationTokenTenant ExpiredAuthenticationToken LinkedAuthorizationFailed
        SubscriptionNotFound SubscriptionNotRegistered MissingSubscriptionRegistration
        ReadOnlyDisabledSubscription DisallowedOperation RequestDisallowedByPolicy
        invalid_client unauthorized_client invalid_request invalid_grant
        MarketplacePurchaseEligibilityFailed ScopeLocked
    """,
    PermanentKind.NOT_FOUND: "ResourceNotFound NotFound ParentResourceNotFound",
    PermanentKind.CONFLICT: "PreconditionFailed",
    PermanentKind.INVALID: """
        ResourceGroupNotFound InvalidParameter InvalidRequestFormat InvalidResourceReference
        PropertyChangeNotAllowed PlatformImageNotFound ImageNotFound GalleryImageNotFound
        LocationNotAvailableForResourceType NoRegisteredProviderFound InvalidTemplate
        BadRequest ResourceTypeNotSupported LinkedInvalidPropertyId InvalidResourceLocation
        OSProvisioningTimedOut OSProvisioningClientError VMMarketplaceInvalidInput
        AttachDiskFailed InvalidApiVersionParameter
    """,
}
CODES: Mapping[str, Kind] = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_HINTS: Mapping[str, str] = {
    "AuthorizationFailed": "give the application the role Contributor on the resource group",
    "invalid_client": "check the values of the variables that `credentials.key` and `.secret` name",
    "unauthorized_client": "check the values that `credentials.key` and `credentials.tenant_id` name",
    "invalid_request": "check the value of the variable that `credentials.tenant_id` names",
    "SubscriptionNotFound": "check the value of the variable that `credentials.subscription_id` names",
    "MissingSubscriptionRegistration": "register Microsoft.Compute and .Network for the subscription",
    "ResourceGroupNotFound": "make it: `az group create`, or correct `options.resource_group`",
    "PlatformImageNotFound": "the backend's `image` is `Publisher:Offer:Sku:Version`, or the id of one",
    "QuotaExceeded": "ask Azure for a higher quota, or lower the fleet's `nodes`",
}


def error_info(answer: Answer) -> ErrorInfo | None:
    """Azure's error; None if the answer has none, like a page of a gateway."""
    try:
        found = json.loads(answer.text)
    except ValueError:
        return None
    error = found.get("error", found) if isinstance(found, dict) else None
    if isinstance(error, str):  # the form of a login's errors
        text = f"{error}: {found.get('error_description') or ''}"
        return ErrorInfo(kind=CODES.get(error), text=text, hint=_HINTS.get(error))
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return None
    code, message = code_and_message(error)
    if answer.status == 412:  # the thing was required to be new
        return ErrorInfo(kind=PermanentKind.CONFLICT, text=f"{code}: {message}")
    return ErrorInfo(kind=kind_of(code, message), text=f"{code}: {message}", hint=hint(code, message))


def code_and_message(error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of an error; those of its first detail if the code is only `Conflict`."""
    details = error.get("details")
    if error.get("code") in ("Conflict", "DeploymentFailed", "MultipleErrorsOccurred") and details:
        inner = details[0] if isinstance(details, list) and isinstance(details[0], dict) else {}
        if inner.get("code"):
            return str(inner["code"]), str(inner.get("message") or "")
    return str(error.get("code") or ""), str(error.get("message") or "")


def kind_of(code: str, message: str) -> Kind | None:
    """The kind of fault for a code; None if unknown. `OperationNotAllowed` says only in its message what is
    wrong.
    """
    if code == "OperationNotAllowed":
        return PermanentKind.QUOTA if "quota" in message.lower() else PermanentKind.CONFLICT
    return CODES.get(code)


def hint(code: str, message: str) -> str | None:
    """The hint for a code."""
    quota = kind_of(code, message) is PermanentKind.QUOTA
    return _HINTS.get("QuotaExceeded" if quota else code)


def zone_of(region: str, numbers: object) -> str | None:
    """`eastus-1`: Azure numbers zones within each region."""
    first = numbers[0] if isinstance(numbers, list) and len(numbers) == 1 else None
    return f"{region}-{first}" if first else None


def number_of(zone: object) -> list[str]:
    """A zone's number for requests; empty without a zone."""
    return [str(zone).rpartition("-")[2]] if zone else []
