"""EC2's answers as machines and disks, and its error codes as the port's faults.

The status of an error is misleading: 500 is no capacity, 503 too many requests, 400 a quota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from xml.etree import ElementTree as ET

from declarative.model.status import NodeState
from declarative.provider import PermanentKind, TransientError, TransientKind
from providers.cloud.any.site import Disk, Machine
from providers.cloud.faults import Answer, ErrorInfo, Kind
from providers.cloud.hosts import Holder

BUSY = "busy"
"""The state of an attachment that should end while the machine still uses it."""
LEAVING = ("detaching", BUSY)
"""States of an attachment that should end."""
STATES: Mapping[str, NodeState] = {
    "pending": NodeState.PROVISIONING,
    "running": NodeState.READY,
    "shutting-down": NodeState.TERMINATING,
    "terminated": NodeState.TERMINATING,
}
"""States of an instance; any other can become `running` again."""


BROKEN = {
    "error": "EC2 says `error`",
    **dict.fromkeys(("deleting", "deleted"), "check the right to use its encryption key"),
}
"""Why a volume in a state will never be usable, if it is being made."""


def parsed(text: str) -> ET.Element:
    """A text as XML; `ParseError` otherwise. EC2 uses no entities: a text that declares some is an attack."""
    if "<!DOCTYPE" in text:
        raise ET.ParseError("it has a DOCTYPE")
    return ET.fromstring(text)  # noqa: S314  # see above


def plain(element: ET.Element) -> Any:
    """An element as a mapping, a list (of EC2's `item`), a text, or None. Namespaces are dropped."""
    children = list(element)
    if not children:
        return (element.text or "").strip() or None
    names = [_local(child) for child in children]
    if set(names) == {"item"}:
        return [plain(child) for child in children]
    out: dict[str, Any] = {}
    for name, child in zip(names, children, strict=True):
        value = plain(child)
        if name in out:
            out[name] = [*(out[name] if isinstance(out[name], list) else [out[name]]), value]
        else:
            out[name] = value
    return out


def _local(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def content(action: str, body: object) -> dict[str, Any]:
    """The content of the answer to an action. Any other answer is a fault with an unknown result."""
    if not isinstance(body, str) or not body:
        raise bad_answer(action, "is empty")
    try:
        root = parsed(body)
    except ET.ParseError:
        raise bad_answer(action, "is no XML") from None
    found = plain(root)
    if _local(root) != f"{action}Response" or not isinstance(found, dict):
        raise bad_answer(action, f"is one to something else: {_local(root)[:60]}")
    return found


def listed(action: str, found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list in an answer. A missing list is a fault: it does not mean an empty one."""
    if name not in found:
        raise bad_answer(action, f"has no `{name}`")
    items = found[name] or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise bad_answer(action, f"has a `{name}` that is no list")
    return items


def bad_answer(action: str, what: str) -> TransientError:
    """The fault for an answer that does not fit the question."""
    return TransientError(TransientKind.AMBIGUOUS, f"{action}: the answer {what}")


def _age(made: object, date: str) -> float:
    """Seconds between two times of EC2's clock; 0 if one cannot be read."""
    try:
        then, now = datetime.fromisoformat(str(made)), parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return 0.0
    if then.tzinfo is None or now.tzinfo is None:
        return 0.0
    return max(0.0, (now.astimezone(UTC) - then).total_seconds())


def instance(action: str, found: Mapping[str, Any], region: str, date: str = "") -> Machine:
    """One item of an `instancesSet`; `date` is that of the answer."""
    try:
        reason, word = found.get("stateReason") or {}, found["instanceState"]["name"]
        code, text = str(reason.get("code") or ""), str(reason.get("message") or "")
        text = text if text.startswith(code) else f"{code}: {text}".strip(": ")  # most of them repeat it
        return Machine(
            id=found["instanceId"],
            region=region,
            state=STATES.get(word, NodeState.NOT_READY),
            word=word,
            reason=text or None,
            fault=_fault(text) if text else (PermanentKind.INVALID, "EC2 does not say why"),
            zone=found["placement"]["availabilityZone"],
            type=found["instanceType"],
            identities=_profiles(found),
            address=found.get("privateIpAddress") or "",
            public_address=found.get("ipAddress") or "",
            labels=tags(found),
            image=found.get("imageId") or "",
            made_at=found.get("launchTime") or "",
            age=_age(found.get("launchTime"), date),
            raw=found,
        )
    except (KeyError, TypeError, AttributeError):
        raise bad_answer(action, "has an instance that cannot be read") from None


def _profiles(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The instance profile of an instance, by its ARN."""
    profile = found.get("iamInstanceProfile")
    return (str(profile["arn"]),) if profile else ()


def _fault(text: str) -> tuple[Kind, str]:
    """The fault of an instance that ended while it started. EC2 itself caused reasons that begin with
    `Server.`.
    """
    if text.startswith("Server."):
        return PermanentKind.NO_CAPACITY, text
    return kind_of(text.partition(":")[0].removeprefix("Client.")) or PermanentKind.INVALID, text


def volume(action: str, found: Mapping[str, Any], region: str, date: str = "") -> Disk:
    """One item of a `volumeSet`, or the answer of CreateVolume; `date` is that of the answer."""
    try:
        made, word = found["volumeId"], found["status"]
        held = [item for item in found.get("attachmentSet") or () if item["status"] != "detached"]
        return Disk(
            id=made,
            region=region,
            word=word,
            gone=word in ("deleting", "deleted"),
            busy=word != "available" and not held,
            broken=BROKEN.get(word),
            on=tuple(item["instanceId"] for item in held),
            zone=found["availabilityZone"],
            size=int(found["size"]),
            labels=tags(found),
            type=found.get("volumeType") or "",
            made_at=found.get("createTime") or "",
            age=_age(found.get("createTime"), date),
            holders=tuple(_holder(made, item) for item in held),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(action, "has a volume that cannot be read") from None


def _holder(made: str, held: Mapping[str, Any]) -> Holder:
    """On NVMe, the device reports the volume's id; on Xen it has only its name."""
    device, state = held.get("device") or "", held["status"]
    letters = device.removeprefix("/dev/").removeprefix("xvd").removeprefix("sd")
    return Holder(
        machine=held["instanceId"],
        device=device,
        attached=state == "attached",
        leaving=state in LEAVING,
        busy=state == BUSY,
        serials=(made.replace("-", ""),),
        names=tuple(dict.fromkeys((device, f"/dev/xvd{letters}"))),
    )


def tags(found: Mapping[str, Any]) -> dict[str, str]:
    """The `tagSet` of an item."""
    return {tag["key"]: tag.get("value") or "" for tag in found.get("tagSet") or ()}


MISMATCH = "IdempotentParameterMismatch"
"""An earlier create with this token asked for something else."""

_CODES: Mapping[Kind, str] = {
    TransientKind.THROTTLED: """
        RequestLimitExceeded Throttling ThrottlingException RequestThrottled
        BandwidthLimitExceeded ConcurrentSnapshotLimitExceeded
        ClientInvalidParameterValue.Throttling EC2ThrottledException SlowDown
    """,
    TransientKind.AMBIGUOUS: """
        InternalError InternalFailure ServiceUnavailable Unavailable RequestTimeout
        IdempotentParameterMismatch
    """,
    TransientKind.BUSY: """
        IncorrectState IncorrectInstanceState DependencyViolation VolumeInUse
        ResourceNotReady InvalidVolume.InUse VolumeModificationInProgress
        IncorrectModificationState ConflictingOperation ConcurrentTagAccess InvalidState
    """,
    PermanentKind.NO_CAPACITY: """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientCapacity
        InsufficientReservedInstanceCapacity InsufficientReservedInstancesCapacity
        InsufficientVolumeCapacity InsufficientCapacityOnHost ReservationCapacityExceeded
        SpotMaxPriceTooLow Unsupported UnsupportedInstanceTypeOnHost
        MaxSpotFleetRequestCountExceeded CapacityReservationCapacityExceeded
        InsufficientFreeAddressesInSubnet
    """,
    PermanentKind.QUOTA: """
        VcpuLimitExceeded VolumeLimitExceeded ResourceLimitExceeded
        MaxIOPSLimitExceeded AddressLimitExceeded
        AttachmentLimitExceeded InsufficientAddressCapacity VolumeModificationRateExceeded
        MaximumVolumeIopsLimitExceeded PrivateIpAddressLimitExceeded
        NetworkInterfaceLimitExceeded
    """,
    PermanentKind.INSTANCES: "InstanceLimitExceeded MaxSpotInstanceCountExceeded",
    PermanentKind.AUTH: """
        AuthFailure UnauthorizedOperation InvalidClientTokenId SignatureDoesNotMatch
        OptInRequired Blocked PendingVerification RequestExpired ExpiredToken
        ExpiredTokenException MissingAuthenticationToken AccessDenied AccessDeniedException
        IncompleteSignature NotAuthorized UnrecognizedClientException InvalidAccessKeyId
    """,
    PermanentKind.USED_UP: """
        IdempotentInstanceTerminated UserInitiatedShutdown
    """,
    PermanentKind.CONFLICT: """
        InvalidVolume.ZoneMismatch VolumeAlreadyExists
        OperationNotPermitted InvalidInstanceAttachment
    """,
    PermanentKind.INVALID: """
        InvalidParameterValue InvalidParameterCombination MissingParameter UnknownParameter
        TagLimitExceeded InvalidAttachment.NotFound ValidationError InvalidAction
        VPCIdNotSpecified MissingInput
    """,
}

CODES: Mapping[str, Kind] = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_PATTERNS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r".*\.NotFound"), PermanentKind.NOT_FOUND),
    (re.compile(r".*\.(Malformed|Unavailable|Duplicate|Unknown)"), PermanentKind.INVALID),
    (re.compile(r"Invalid.*"), PermanentKind.INVALID),
    (re.compile(r"Insufficient.*Capacity.*"), PermanentKind.NO_CAPACITY),
    (re.compile(r".*LimitExceeded"), PermanentKind.QUOTA),
)

HINTS: Mapping[str, str] = {
    "AuthFailure": "check the values of the variables that `credentials` names",
    "SignatureDoesNotMatch": "check the value of the variable that `credentials.secret` names",
    "InvalidClientTokenId": "check the value of the variable that `credentials.key` names",
    "RequestExpired": "check this machine's clock",
    "UnauthorizedOperation": "give the key the right to do this, in IAM",
    "OptInRequired": "subscribe the account to this service or image, or enable the region",
    "InvalidAMIID.NotFound": "images are of one region: write one for each, `image: {us-east-1: ami-…}`",
    "InvalidAMIID.Malformed": "the backend's `image` is the id of one: `ami-…`",
    "VcpuLimitExceeded": "ask AWS for a higher quota, or lower the fleet's `nodes`",
    "InstanceLimitExceeded": "ask AWS for a higher quota, or lower the fleet's `nodes`",
    "VolumeModificationRateExceeded": "EC2 changes a volume once in six hours: try again later",
    "IdempotentInstanceTerminated": "what it made is gone by now; apply once more, and it is made anew",
    "VPCIdNotSpecified": "there is no default network: write `network: {subnets: {us-east-1a: subnet-…}}`",
    "MissingInput": "there is no default subnet: write `network: {subnets: {us-east-1a: subnet-…}}`",
    "OperationNotPermitted": "is it protected from termination?",
}


def kind_of(code: str) -> Kind | None:
    """The kind of fault for a code; None if unknown."""
    known = CODES.get(code)
    return known or next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(code)), None)


def error_info(answer: Answer) -> ErrorInfo | None:
    """EC2's error; None if the answer has none, like a page of a gateway."""
    try:
        found = plain(parsed(answer.text))
    except ET.ParseError:
        return None
    errors = found.get("Errors") if isinstance(found, dict) else None
    error = errors.get("Error") if isinstance(errors, dict) else None
    if isinstance(error, list):
        error = error[0]
    if not isinstance(error, dict) or not isinstance(error.get("Code"), str):
        return None
    code = error["Code"]
    return ErrorInfo(kind=kind_of(code), text=f"{code}: {error.get('Message') or ''}", hint=HINTS.get(code))
