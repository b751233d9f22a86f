"""Names that say who owns a thing and which create made it: the one text that every cloud keeps.

`f-OWNER-TOKEN-gpu-0`: at most 63 lower case letters, digits and hyphens, with a letter first. This is the
form of a host label, which clouds accept as a name. The kind is that of the listing.
"""

from __future__ import annotations

import base64
import hashlib
import re

from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.any.site import Written

LENGTH = 63
_OWNER = 8
_TOKEN = 26
_PATTERN = re.compile(rf"f-([a-z2-7]{{{_OWNER}}})-([a-z2-7]{{{_TOKEN}}})-([a-z][a-z0-9-]*)")


def name(mark: Written) -> str:
    """The name of a thing; `PermanentError` if its address is too long for it."""
    found = f"f-{_short(mark.owner)}-{_coded(mark.token)}-{mark.address.name}"
    if len(found) > LENGTH or not _PATTERN.fullmatch(found):
        most = LENGTH - (len(found) - len(mark.address.name))
        summary = f"{mark.address}: a name of this driver's things may have {most} characters"
        hint = "the driver stores only a name, which must include the owner: make yours shorter"
        raise PermanentError(PermanentKind.INVALID, summary, about=str(mark.address), hint=hint)
    return found


def read(kind: str, text: object, owner: str) -> Written | None:
    """The mark in a name; None if it is not one of this owner's."""
    found = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] != _short(owner):
        return None
    return Written(owner=owner, token=_token(found[2]), address=Address(kind, found[3]))


def owner_of(text: object, owner: str) -> str | None:
    """The owner that a name gives: `owner`, or what the name holds of another's."""
    found = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else owner if found[1] == _short(owner) else found[1]


def unique(mark: Written, length: int = LENGTH) -> str:
    """A readable name that belongs to one create only: `gpu-0-0123456789abcdef`."""
    end = hashlib.sha256(f"{mark.owner}\0{mark.token}".encode()).hexdigest()[:16]
    return f"{mark.address.name[: length - 17].strip('-.')}-{end}"


def _short(owner: str) -> str:
    digest = hashlib.sha256(owner.encode()).digest()
    return base64.b32encode(digest).decode().lower()[:_OWNER]


def _coded(token: str) -> str:
    """A token's 128 bits in fewer characters."""
    try:
        return base64.b32encode(bytes.fromhex(token)).decode().lower().rstrip("=")
    except ValueError:
        summary = "a create's token is 32 hexadecimal digits"
        raise PermanentError(PermanentKind.INVALID, summary, about="token") from None


def _token(text: str) -> str:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8)).hex()
