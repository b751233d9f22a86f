"""OpenStack's answers as plain values: servers, volumes, flavors; and its errors as the port's faults.

Errors have no codes: the status identifies some of them, the text the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from declarative.model.status import NodeState
from declarative.provider import PermanentKind, TransientError, TransientKind
from providers.cloud.any.site import Disk, Machine
from providers.cloud.bad_answers import text_at
from providers.cloud.faults import Answer, ErrorInfo, Kind
from providers.cloud.hosts import Holder

GONE = ("DELETED", "SOFT_DELETED")
"""States of a server that does not come back."""
BAD = ("error", "error_deleting", "error_extending", "error_restoring")
"""States of a volume that will not recover by itself."""
_SERIAL = 20
"""Characters of a volume's id in the serial number of its virtual disk."""


def bad_answer(what: str, how: str) -> TransientError:
    """The fault for an answer that does not fit the question."""
    return TransientError(TransientKind.AMBIGUOUS, f"{what}: the answer {how}")


def inside(what: str, found: object, key: str) -> dict[str, Any]:
    """The value under the only key of an answer."""
    inner = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(inner, dict):
        raise bad_answer(what, f"has no `{key}`")
    return inner


def listed(what: str, found: object, key: str) -> list[dict[str, Any]]:
    """A list in an answer. A missing list is a fault: it does not mean an empty one."""
    items = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise bad_answer(what, f"has no list `{key}`")
    return items


def server(what: str, found: Mapping[str, Any], region: str) -> Machine:
    """One server from nova's details. Nova shows a floating address late, so its absence is never certain."""
    try:
        fixed, floating = _addresses(found.get("addresses") or {})
        status, task = str(found["status"]), text_at(found, "OS-EXT-STS:task_state")
        ran = found.get("OS-SRV-USG:launched_at") is not None
        fault = text_at(found, "fault", "message").strip()
        state: NodeState = NodeState.READY
        reason: str | None = None
        if status in GONE or task in ("deleting", "soft-deleting"):
            state, reason = NodeState.TERMINATING, "it is being deleted"
        elif status == "BUILD":
            state, reason = NodeState.PROVISIONING, "it is starting"
        elif status == "ERROR":
            # One that ran is there, whatever it can do.
            state = NodeState.NOT_READY if ran else NodeState.FAILED
            reason = f"OpenStack says ERROR: {fault}" if fault else "it is in ERROR"
        elif status != "ACTIVE":
            state, reason = NodeState.NOT_READY, f"it is {status}"
        return Machine(
            id=str(found["id"]),
            region=region,
            name=text_at(found, "name"),
            state=state,
            reason=reason,
            word=status,
            fault=(of_fault(fault) or PermanentKind.INVALID, fault or "OpenStack does not say why"),
            zone=text_at(found, "OS-EXT-AZ:availability_zone") or None,
            type=text_at(found, "flavor", "original_name"),
            image=text_at(found, "image", "id"),
            address=fixed,
            public_address=floating,
            labels=_texts(found["metadata"]),
            made_at=text_at(found, "created"),
            raw=found,
        )
    except (KeyError, TypeError, AttributeError):
        raise bad_answer(what, "has a server that cannot be read") from None


def volume(what: str, found: Mapping[str, Any], region: str) -> Disk:
    """One volume from cinder's details.

    A disk on a node reports as much of the volume's id as its bus allows: SCSI all of it, virtio the
    beginning. Nova's name for the device is not the name on the node.
    """
    try:
        made, word = str(found["id"]), str(found["status"])
        on = tuple(str(h["server_id"]) for h in found.get("attachments") or () if h.get("server_id"))
        return Disk(
            id=made,
            region=region,
            word=word,
            busy=word not in ("available", *BAD),
            broken=f"cinder says `{word}`" if word in BAD else None,
            gone=word in ("deleting", "deleted"),
            zone=text_at(found, "availability_zone") or None,
            type=text_at(found, "volume_type"),
            size=int(found["size"]),
            labels=_texts(found["metadata"]),
            made_at=text_at(found, "created_at"),
            on=on,
            holders=tuple(
                Holder(
                    machine=machine,
                    device=f"/dev/disk/by-id/virtio-{made[:_SERIAL]}",
                    attached=word == "in-use",
                    leaving=word == "detaching",
                    serials=(made, made[:_SERIAL]),
                )
                for machine in on
            ),
            raw=found,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(what, "has a volume that cannot be read") from None


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()}


def _addresses(networks: Mapping[str, Any]) -> tuple[str, str]:
    """The first fixed address and the first floating one; IPv4 comes first."""
    found = [entry for name in sorted(networks) for entry in networks[name]]
    found.sort(key=lambda entry: int(entry.get("version") or 4))

    def first(kind: str) -> str:
        return next((str(e["addr"]) for e in found if (e.get("OS-EXT-IPS:type") or "fixed") == kind), "")

    return first("fixed"), first("floating")


_NO_CAPACITY = r"no valid host|exhausted all hosts|maximum number of retries|insufficient compute"
_INSTANCES = (
    r"quota exceeded for [^:]*\binstances\b|already used .* of .*\binstances\b|maximum number of instances"
)
_QUOTA = (
    r"quota (is )?exceeded|exceeds? (allowed|available)|limit ?exceeded|exceedsavailable|overquota"
    r"|maximum number of|toomanyinstances|too many instances"
    r"|no more (free )?(ip|floating) ?(ip )?addresses"
)

TEXTS: tuple[tuple[str, str, Kind], ...] = (
    # Status, a part of the text, and its meaning; the first match counts.
    (r"400|403|409|413|500", _NO_CAPACITY, PermanentKind.NO_CAPACITY),
    (r"400|403|409|413", _INSTANCES, PermanentKind.INSTANCES),
    (r"400|403|409|413", _QUOTA, PermanentKind.QUOTA),
    (r"413", r"", TransientKind.THROTTLED),
    # A page began after an item that no longer exists.
    (r"400", r"marker", TransientKind.BUSY),
    (r"400", r"invalid volume: .*(status|state|attached|in use|in-use)", TransientKind.BUSY),
    (r"403", r"zero disk|volume-backed", PermanentKind.INVALID),
    (r"409", r"multiple possible networks", PermanentKind.INVALID),
    (r"409", r"already exists|is locked", PermanentKind.CONFLICT),
    (r"409", r"", TransientKind.BUSY),  # not possible in this state
    (r"406", r"", PermanentKind.INVALID),
)

HINTS: tuple[tuple[str, str], ...] = (
    (
        r"^401 ",
        "check the values of the variables that `credentials` names, `options.project` and the domains",
    ),
    (r"not supported by the api", "this driver needs OpenStack Queens (2018) or a later one"),
    (r"can not find requested image", "`image` is the id or the name of an image of this cloud"),
    (r"zero disk|volume-backed", "write `options: {root_volume: 50}` for nodes that start from a volume"),
    (r"is locked", "unlock it: `openstack server unlock`"),
)


def kind_of(status: int, text: str) -> Kind | None:
    """The kind of fault for an error; None if its status decides."""
    low = text.lower()
    for statuses, pattern, kind in TEXTS:
        if re.fullmatch(statuses, str(status)) and re.search(pattern, low):
            return kind
    return None


def of_fault(message: str) -> Kind | None:
    """The meaning of a server's fault when it ended; None if unknown."""
    return kind_of(500, message) or kind_of(403, message)


def error_info(answer: Answer) -> ErrorInfo | None:
    """OpenStack's error; None if the answer has none, like a page of a gateway."""
    text = message(answer.text)
    if text is None:
        return None
    whole = f"{answer.status} {text}".lower()
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, whole)), None)
    return ErrorInfo(kind=kind_of(answer.status, text), text=text, hint=hint)


def message(text: str) -> str | None:
    """The message in an error of keystone, nova, cinder, glance or neutron; None if there is none."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, Mapping):
        return None
    inner = found if "message" in found else next(iter(found.values()), None)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("message"), str):
        return None
    return re.sub(r"(<br */?>|\s)+", " ", inner["message"]).strip()
