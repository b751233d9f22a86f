"""What providers write beside the things that they make: whose a thing is, and by which create it came."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.state import Address


def key_of(token: str) -> str:
    """What tells the thing of one create from all others: 16 letters and digits, whatever the token is."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def as_json(address: Address, body: Mapping[str, Any], indent: int | None = None) -> str:
    """What is kept of a thing, in JSON; `PermanentError` for inputs that have no such form."""
    try:
        return json.dumps(body, indent=indent, default=_plain)
    except (TypeError, ValueError) as error:
        message = f"{address}: its inputs cannot be written as JSON: {error}"
        raise PermanentError(PermanentKind.INVALID, message, about="inputs") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
