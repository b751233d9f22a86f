"""GCE's answers as plain values, the form of tags there, and its error codes as the port's faults.

Tags are labels, which allow few characters, and metadata of instances for the rest. Only labels can be
filtered in a listing, and only they can be changed later on a disk. So owner and token are labels of
everything. The rest of the marks is one item of an instance's metadata, and on a disk a text in as many
labels as it needs.

Codes are the reasons of refused requests (`quotaExceeded`), and those of failed operations
(`QUOTA_EXCEEDED`). The status is misleading: 403 may be a rate, a quota or a missing right.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientKind
from providers.cloud import marks
from providers.cloud.any.site import Device, Disk, Machine, reason_of
from providers.cloud.bad_answers import text_at, value_at
from providers.cloud.faults import Answer, ErrorInfo, Kind, by_status, fault
from providers.cloud.marks import packed, unpacked
from providers.cloud.rest import bad_answer

INSTANCES: Mapping[str, NodeState] = {
    "PENDING": NodeState.PROVISIONING,
    "PROVISIONING": NodeState.PROVISIONING,
    "STAGING": NodeState.PROVISIONING,
    "RUNNING": NodeState.READY,
    "REPAIRING": NodeState.NOT_READY,
    "PENDING_STOP": NodeState.NOT_READY,
    "STOPPING": NodeState.NOT_READY,
    "SUSPENDING": NodeState.NOT_READY,
    "SUSPENDED": NodeState.NOT_READY,
    "TERMINATED": NodeState.NOT_READY,
    "DEPROVISIONING": NodeState.TERMINATING,
}
"""`STOPPING` precedes an end and a stop: the instance exists until it is gone."""


def tail(url: object) -> str:
    """The last part of a URL: how GCE names zones, types and disks."""
    return str(url or "").rpartition("/")[2]


def place(url: object, scope: str = "zones") -> str:
    """`project/zone/name` from a URL or a part of it: `…/projects/p/zones/z/disks/d`. Also for `regions`."""
    words = str(url or "").split("/")
    try:
        return f"{words[words.index('projects') + 1]}/{words[words.index(scope) + 1]}/{words[-1]}"
    except (ValueError, IndexError):
        return ""


def scoped(what: str, found: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    """The items of a kind in an aggregated listing of all zones. A zone that could not be asked
    is a fault.
    """
    scopes = found.get("items")
    # An empty listing is also an object of that kind.
    if scopes is None and "AggregatedList" in str(found.get("kind")):
        scopes = {}
    if not isinstance(scopes, dict):
        raise bad_answer(what, "has no `items`")
    if found.get("unreachables"):
        raise bad_answer(what, f"is not whole: {', '.join(map(str, found['unreachables']))[:200]}")
    for name, scope in scopes.items():
        if not isinstance(scope, dict) or not isinstance(scope.get(kind, []), list):
            raise bad_answer(what, f"cannot be read at {name}")
        code = (scope.get("warning") or {}).get("code")
        if code not in (None, "NO_RESULTS_ON_PAGE"):
            raise bad_answer(what, f"is not whole: {name}: {code}")
        yield from scope.get(kind, [])


def instance(what: str, found: Mapping[str, Any]) -> Machine:
    """One instance."""
    try:
        items = {i["key"]: i.get("value") for i in value_at(found, "metadata", "items") or ()}
        network = (found.get("networkInterfaces") or [{}])[0]
        word, why, zone = str(found["status"]), text_at(found, "statusMessage"), tail(found["zone"])
        state = INSTANCES.get(word, NodeState.NOT_READY)
        return Machine(
            id=place(found["selfLink"]),
            name=found["name"],
            region=zone.rpartition("-")[0],
            zone=zone,
            state=state,
            word=word,
            reason=reason_of(state, word, why),
            fault=(PermanentKind.NO_CAPACITY, why) if why else None,
            address=text_at(network, "networkIP"),
            public_address=_outside(network),
            labels=instance_tags(found.get("labels") or {}, items.get(METADATA_ITEM)),
            devices={place(d["source"]): _device(d) for d in found.get("disks") or () if d.get("source")},
            type=tail(found.get("machineType")),
            identities=tuple(str(one["email"]) for one in found.get("serviceAccounts") or ()),
            raw=found,
        )
    except (KeyError, TypeError, AttributeError, IndexError):
        raise bad_answer(what, "has an instance that cannot be read") from None


def _outside(network: Mapping[str, Any]) -> str:
    """The public address of an interface; empty without one."""
    found = [text_at(access, "natIP") for access in network.get("accessConfigs") or ()]
    return next(filter(None, found), "")


def _device(disk: Mapping[str, Any]) -> Device:
    """The link's name: Google's udev uses the name that the disk reports itself."""
    name = str(disk.get("deviceName") or "")
    return Device(links=(f"/dev/disk/by-id/google-{name}",), serials=(name,))


def disk(what: str, found: Mapping[str, Any]) -> Disk:
    """One disk."""
    try:
        word = str(found["status"])
        return Disk(
            id=place(found["selfLink"]),
            label=found["name"],
            region=tail(found["zone"]).rpartition("-")[0],
            zone=tail(found["zone"]),
            size=int(found["sizeGb"]),
            word=word,
            busy=word in ("CREATING", "RESTORING"),
            broken="GCE says that it failed" if word == "FAILED" else None,
            gone=word == "DELETING",
            labels=disk_tags(found.get("labels") or {}),
            type=tail(found.get("type")),
            on=tuple(place(user) for user in found.get("users") or ()),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(what, "has a disk that cannot be read") from None


def done(what: str, found: Mapping[str, Any], about: str | None) -> bool:
    """Whether an operation has ended; a fault if it failed."""
    if found.get("kind") != "compute#operation" or not isinstance(found.get("status"), str):
        raise bad_answer(what, "is no operation")
    if found.get("error"):
        error = found["error"] if isinstance(found["error"], dict) else {}
        code, message = first(error)
        kind = kind_of(code, message)
        if kind is None:
            kind = by_status(int(found.get("httpErrorStatusCode") or 500))
        raise fault(kind, f"{what}: {code}: {message}"[:400], about=about, hint=hint(code))
    return bool(found["status"] == "DONE")


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
    (re.compile(r"Quota '(PREEMPTIBLE_)?(INSTANCES|VM_INSTANCES)' exceeded"), PermanentKind.INSTANCES),
    (re.compile(r"No available resources in specified reservations"), PermanentKind.INVALID),
    (re.compile(r"[Rr]eservations? .*do(es)? not exist"), PermanentKind.NOT_FOUND),
    (re.compile(r"[Cc]ould not find the given reservation"), PermanentKind.NOT_FOUND),
)
"""Errors about reservations share the code `CONDITION_NOT_MET` with conditions that pass, and quotas on the
number of instances that of all quotas.
"""

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
    """The kind of fault for an error; None if unknown."""
    found = (kind for pattern, kind in _TEXTS if pattern.search(message))
    return next(found, CODES.get(code))


def error_info(answer: Answer) -> ErrorInfo | None:
    """GCE's error; None if the answer has none of Google's, like a page of a gateway."""
    try:
        found = json.loads(answer.text)
    except ValueError:
        return None
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):  # the form of a login's errors
        text = f"{error}: {found.get('error_description') or ''}"
        return ErrorInfo(kind=CODES.get(error), text=text, hint=_HINTS.get(error))
    if not isinstance(error, dict):
        return None
    code, message = first(error)
    # `required` is also the code for a missing field.
    required = code == "required" and answer.status == 400
    kind = PermanentKind.INVALID if required else kind_of(code, message)
    return ErrorInfo(kind=kind, text=f"{code}: {message}" if code else message, hint=_HINTS.get(code))


def first(error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of the first error in an `error`."""
    several = error.get("errors")
    one = several[0] if isinstance(several, list) and several and isinstance(several[0], dict) else error
    code = one.get("reason") or one.get("code") or error.get("status") or ""
    message = one.get("message") or error.get("message") or ""
    return (code if isinstance(code, str) else "", str(message))


def hint(code: str) -> str | None:
    """The hint for a code."""
    return _HINTS.get(code)


OWNER_LABEL = "fleetform_owner"
TOKEN_LABEL = "fleetform_token"  # noqa: S105  # the name of a label
PART_LABEL = "fleetform_mark_"
DISK_OF_LABEL = "fleetform_disk_of"
"""Label of an instance's own disk: the instance to which it belongs."""
METADATA_ITEM = "fleetform"
"""The item of an instance's metadata."""
MOST_LABELS = 64
"""The most labels on one thing."""
LABEL_LENGTH = 63
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def plain_label(text: str) -> str:
    """A text as the value of a label: unchanged, or its digest."""
    return text if text and _VALUE.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:40]


def instance_labels(
    tags: Mapping[str, str], about: str, have: Mapping[str, str] | None = None
) -> tuple[dict[str, str], str]:
    """The labels of an instance, and the text of its metadata item. `have`: its present labels."""
    ours, users = _split_tags(tags)
    labels = {**_user_labels(users, about, have), **_found_by(ours)}
    return labels, json.dumps(ours, sort_keys=True)


def disk_labels(tags: Mapping[str, str], about: str, have: Mapping[str, str] | None = None) -> dict[str, str]:
    """The labels of a disk. `have`: its present ones."""
    ours, users = _split_tags(tags)
    if not ours:
        return _user_labels(users, about, have)
    text = packed(json.dumps(ours, sort_keys=True))
    parts = [text[i : i + LABEL_LENGTH] for i in range(0, len(text), LABEL_LENGTH)]
    labels = {
        **_user_labels(users, about, have),
        **_found_by(ours),
        **{f"{PART_LABEL}{i:02}": part for i, part in enumerate(parts)},
    }
    if len(labels) > MOST_LABELS:
        summary = f"{about} has too much data: it takes {len(labels)} labels, GCE has {MOST_LABELS}"
        hint = "give it fewer `tags`"
        raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
    return labels


def instance_tags(labels: Mapping[str, str], item: str | None) -> dict[str, str]:
    """The tags of an instance. Labels and metadata must agree on the owner."""
    return _tags(labels, item)


def disk_tags(labels: Mapping[str, str]) -> dict[str, str]:
    """The tags of a disk."""
    text = "".join(value for key, value in sorted(labels.items()) if key.startswith(PART_LABEL))
    return _tags(labels, unpacked(text))


def _written(item: str | None) -> dict[str, str]:
    """Anybody with access to metadata can write this, so an unreadable text counts as missing."""
    try:
        given = json.loads(item) if item else {}
    except (ValueError, RecursionError):
        return {}
    pairs = given.items() if isinstance(given, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _tags(labels: Mapping[str, str], item: str | None) -> dict[str, str]:
    found = _written(item)
    for key, label in ((marks.OWNER, OWNER_LABEL), (marks.TOKEN, TOKEN_LABEL)):
        value = labels.get(label)
        if value is None:
            found.pop(key, None)  # somebody removed it: it can no longer be found by it
        elif key not in found or plain_label(found[key]) != value:
            found[key] = value
    theirs = {k: v for k, v in labels.items() if not k.startswith("fleetform_")}
    return {**theirs, **found}


def _split_tags(tags: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours = {k: v for k, v in tags.items() if k.startswith(marks.OURS)}
    return ours, {k: v for k, v in tags.items() if k not in ours}


def _found_by(ours: Mapping[str, str]) -> dict[str, str]:
    pairs = ((OWNER_LABEL, marks.OWNER), (TOKEN_LABEL, marks.TOKEN))
    return {label: plain_label(ours[key]) for label, key in pairs if key in ours}


def _user_labels(users: Mapping[str, str], about: str, have: Mapping[str, str] | None) -> dict[str, str]:
    """The labels that are not ours. Existing ones may be in any script, and stay."""
    for key, value in users.items():
        if have and have.get(key) == value:
            continue
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            summary = f"{about}: `{key}: {value}` cannot be a label of GCE"
            hint = (
                "labels have lower case letters, digits, `_` and `-`, up to 63 of them; a key begins with a "
                "letter"
            )
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return dict(users)
