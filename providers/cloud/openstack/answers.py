"""OpenStack's answers as plain values: servers, volumes, flavors; and its errors as the port's faults.

Errors have no codes: the status identifies some of them, the text the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from declarative.model.record import struct
from declarative.provider import PermanentKind, TransientError, TransientKind
from providers.cloud.bad_answers import text_at
from providers.cloud.faults import Answer, ErrorInfo, Kind

GONE = ("DELETED", "SOFT_DELETED")
"""States of a server that does not come back."""
STARTING = ("BUILD",)
"""States of a server before it runs for the first time."""
BAD = ("error", "error_deleting", "error_extending", "error_restoring")
"""States of a volume that will not recover by itself."""


@struct(frozen=True, slots=True, kw_only=True)
class Server:
    """One server."""

    id: str
    region: str
    name: str
    status: str
    task: str
    """The running operation; empty if there is none."""
    zone: str
    flavor: str
    """The name of its flavor."""
    image: str
    """The id of its image; empty if it booted from a volume."""
    address: str
    public_address: str | None
    """Nova shows a floating address late, so its absence is never certain."""
    tags: Mapping[str, str]
    """Its metadata."""
    created: str
    launched: bool
    """Whether it ever ran."""
    fault: str

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.status in GONE or self.task in ("deleting", "soft-deleting")

    @property
    def why_gone(self) -> str:
        """The running operation."""
        return f"it is {self.task or self.status}"

    @property
    def stillborn(self) -> bool:
        """Whether it never ran, and never will."""
        return self.status == "ERROR" and not self.launched


@struct(frozen=True, slots=True, kw_only=True)
class Held:
    """A volume on a server."""

    server: str
    device: str


@struct(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume; its size is in GiB."""

    id: str
    region: str
    state: str
    zone: str
    type: str
    size: int
    tags: Mapping[str, str]
    """Its metadata."""
    created: str
    held: tuple[Held, ...] = field(default=())

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.id

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.state in ("deleting", "deleted")


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


def server(what: str, found: Mapping[str, Any], region: str) -> Server:
    """One server from nova's details."""
    try:
        fixed, floating = _addresses(found.get("addresses") or {})
        return Server(
            id=str(found["id"]),
            region=region,
            name=text_at(found, "name"),
            status=str(found["status"]),
            task=text_at(found, "OS-EXT-STS:task_state"),
            zone=text_at(found, "OS-EXT-AZ:availability_zone"),
            flavor=text_at(found, "flavor", "original_name"),
            image=text_at(found, "image", "id"),
            address=fixed,
            public_address=floating or None,
            tags=_texts(found["metadata"]),
            created=text_at(found, "created"),
            launched=found.get("OS-SRV-USG:launched_at") is not None,
            fault=text_at(found, "fault", "message").strip(),
        )
    except (KeyError, TypeError, AttributeError):
        raise bad_answer(what, "has a server that cannot be read") from None


def volume(what: str, found: Mapping[str, Any], region: str) -> Volume:
    """One volume from cinder's details."""
    try:
        return Volume(
            id=str(found["id"]),
            region=region,
            state=str(found["status"]),
            zone=text_at(found, "availability_zone"),
            type=text_at(found, "volume_type"),
            size=int(found["size"]),
            tags=_texts(found["metadata"]),
            created=text_at(found, "created_at"),
            held=tuple(
                Held(server=str(h["server_id"]), device=str(h.get("device") or ""))
                for h in found.get("attachments") or ()
                if h.get("server_id")
            ),
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
