"""What OpenStack's errors say, as the port's kinds of fault. They have no codes: the status tells some of
them apart, and the text the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import Answer, Said

_NO_CAPACITY = r"no valid host|exhausted all hosts|maximum number of retries|insufficient compute"
_QUOTA = (
    r"quota (is )?exceeded|exceeds? (allowed|available)|limit ?exceeded|exceedsavailable|overquota"
    r"|maximum number of|already used .* of .* instances|toomanyinstances|too many instances"
    r"|no more (free )?(ip|floating) ?(ip )?addresses"
)

TEXTS: tuple[tuple[str, str, Kind], ...] = (
    # Statuses, what the text has, what it means; the first line that fits counts.
    (r"400|403|409|413|500", _NO_CAPACITY, PermanentKind.NO_CAPACITY),
    (r"400|403|409|413", _QUOTA, PermanentKind.QUOTA),
    (r"413", r"", TransientKind.THROTTLED),
    # A page began after something that is gone by now.
    (r"400", r"marker", TransientKind.BUSY),
    (r"400", r"invalid volume: .*(status|state|attached|in use|in-use)", TransientKind.BUSY),
    (r"403", r"zero disk|volume-backed", PermanentKind.INVALID),
    (r"409", r"multiple possible networks", PermanentKind.INVALID),
    (r"409", r"already exists|is locked", PermanentKind.CONFLICT),
    (r"409", r"", TransientKind.BUSY),  # not in this state
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
    """What an error means; None where its status says it."""
    low = text.lower()
    for statuses, pattern, kind in TEXTS:
        if re.fullmatch(statuses, str(status)) and re.search(pattern, low):
            return kind
    return None


def of_fault(message: str) -> Kind | None:
    """What it means that a server ended with this fault; None if nobody knows."""
    return kind_of(500, message) or kind_of(403, message)


def said(answer: Answer) -> Said | None:
    """What an error of OpenStack says; None if it is none, as the page of a gateway."""
    text = message(answer.text)
    if text is None:
        return None
    whole = f"{answer.status} {text}".lower()
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, whole)), None)
    return Said(kind=kind_of(answer.status, text), text=text, hint=hint)


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
