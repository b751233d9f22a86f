"""The codes of GCE's errors as the port's kinds of fault: the reasons of refused requests (`quotaExceeded`),
and the codes of failed operations (`QUOTA_EXCEEDED`). The status misleads: a 403 may be a rate, a quota or a
right that is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import Answer, Said

_CODES: Mapping[Kind, str] = {
    TransientKind.THROTTLED: """
        rateLimitExceeded userRateLimitExceeded resourceOperationRateExceeded
        RATE_LIMIT_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED
    """,
    TransientKind.AMBIGUOUS: """
        backendError internalError INTERNAL_ERROR INTERNAL SERVICE_UNAVAILABLE
        OPERATION_CANCELED_BY_USER UNAVAILABLE
    """,
    TransientKind.BUSY: """
        resourceNotReady RESOURCE_NOT_READY resourceInUseByAnotherResource
        RESOURCE_IN_USE_BY_ANOTHER_RESOURCE RESOURCE_IN_USE resourceInUse
        operationInProgress conditionNotMet CONDITION_NOT_MET
        RESOURCE_BEING_CREATED_OR_DELETED resourceBeingUsedByAnotherResource
    """,
    PermanentKind.NO_CAPACITY: """
        ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS
        RESOURCE_POOL_EXHAUSTED STOCKOUT ZONE_UNAVAILABLE VM_MIN_COUNT_NOT_REACHED
    """,
    PermanentKind.QUOTA: """
        quotaExceeded QUOTA_EXCEEDED limitExceeded LIMIT_EXCEEDED
        IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS
    """,
    PermanentKind.AUTH: """
        authError forbidden required insufficientPermissions accessNotConfigured
        PERMISSIONS_ERROR PERMISSION_DENIED FORBIDDEN billingNotEnabled
        invalid_grant invalid_client unauthorized_client invalid_scope
    """,
    PermanentKind.NOT_FOUND: "notFound RESOURCE_NOT_FOUND NOT_FOUND resourceNotFound",
    PermanentKind.CONFLICT: """
        alreadyExists RESOURCE_ALREADY_EXISTS ALREADY_EXISTS duplicate
    """,
    PermanentKind.INVALID: """
        invalid INVALID_USAGE INVALID_FIELD_VALUE badRequest invalidParameter
        parseError UNSUPPORTED_OPERATION INVALID_ARGUMENT wrongUrlPathForMethod
        invalidUsage unsupportedOperation
    """,
}
CODES: Mapping[str, Kind] = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_TEXTS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (
        re.compile(r"reservation .*does not have (available resources|sufficient capacity)"),
        PermanentKind.NO_CAPACITY,
    ),
    (re.compile(r"reservation to be in READY state"), PermanentKind.NO_CAPACITY),
    (re.compile(r"No available resources in specified reservations"), PermanentKind.INVALID),
    (re.compile(r"[Rr]eservations? .*do(es)? not exist"), PermanentKind.NOT_FOUND),
    (re.compile(r"[Cc]ould not find the given reservation"), PermanentKind.NOT_FOUND),
)
"""What is said of reservations has the code of any condition (`CONDITION_NOT_MET`), which is waited for."""

_HINTS: Mapping[str, str] = {
    "accessNotConfigured": "enable the Compute Engine API for the project",
    "billingNotEnabled": "connect the project with a billing account",
    "forbidden": "give the service account the role Compute Admin, and Service Account User, on the project",
    "quotaExceeded": "ask Google for a higher quota, or lower the fleet's `nodes`",
    "QUOTA_EXCEEDED": "ask Google for a higher quota, or lower the fleet's `nodes`",
    "invalid_grant": "is the key still one of the service account's, and this machine's clock right?",
    "PERMISSIONS_ERROR": "give the service account the role Service Account User on the project",
}


def kind_of(code: str, message: str) -> Kind | None:
    """What an error means; None if nobody knows."""
    found = (kind for pattern, kind in _TEXTS if pattern.search(message))
    return next(found, CODES.get(code))


def said(answer: Answer) -> Said | None:
    """What an error of GCE says; None if it is none of Google's, as the page of a gateway."""
    try:
        found = json.loads(answer.text)
    except ValueError:
        return None
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):  # that of a login
        text = f"{error}: {found.get('error_description') or ''}"
        return Said(kind=CODES.get(error), text=text, hint=_HINTS.get(error))
    if not isinstance(error, dict):
        return None
    code, message = first(error)
    # `required` is also what a field is called that was left out.
    required = code == "required" and answer.status == 400
    kind = PermanentKind.INVALID if required else kind_of(code, message)
    return Said(kind=kind, text=f"{code}: {message}" if code else message, hint=_HINTS.get(code))


def first(error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of the first of the errors in an `error`."""
    several = error.get("errors")
    one = several[0] if isinstance(several, list) and several and isinstance(several[0], dict) else error
    code = one.get("reason") or one.get("code") or error.get("status") or ""
    message = one.get("message") or error.get("message") or ""
    return (code if isinstance(code, str) else "", str(message))


def hint(code: str) -> str | None:
    """What to do about a code."""
    return _HINTS.get(code)
