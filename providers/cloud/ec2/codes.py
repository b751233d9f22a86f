"""The codes of EC2's errors as the port's kinds of fault. The status of an answer misleads: no capacity is a
500, too many requests are a 503, a quota is a 400.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.ec2.answers import parsed, plain
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import Answer, Said

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
        InstanceLimitExceeded VcpuLimitExceeded VolumeLimitExceeded ResourceLimitExceeded
        MaxSpotInstanceCountExceeded MaxIOPSLimitExceeded AddressLimitExceeded
        AttachmentLimitExceeded InsufficientAddressCapacity VolumeModificationRateExceeded
        MaximumVolumeIopsLimitExceeded PrivateIpAddressLimitExceeded
        NetworkInterfaceLimitExceeded
    """,
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
    """What a code means; None if nobody knows."""
    known = CODES.get(code)
    return known or next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(code)), None)


def said(answer: Answer) -> Said | None:
    """What an error of EC2 says; None if it is none of EC2's, as the page of a gateway."""
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
    return Said(kind=kind_of(code), text=f"{code}: {error.get('Message') or ''}", hint=HINTS.get(code))
