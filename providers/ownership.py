"""What providers write beside the things that they make: owner, create, inputs; and what of it may change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from declarative.inputs import Inputs, VolumeInputs
from declarative.provider import PermanentError, PermanentKind
from declarative.schema import BadValueError
from declarative.spec.values import Size
from declarative.state import Address


def key_of(token: str) -> str:
    """The id of the thing of one create: 16 letters and digits, whatever the token is."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def as_json(address: Address, body: Mapping[str, Any], indent: int | None = None) -> str:
    """A record of a thing in JSON; `PermanentError` if its inputs cannot be written so."""
    try:
        return json.dumps(body, indent=indent, default=_plain)
    except (TypeError, ValueError) as error:
        message = f"{address}: its inputs cannot be written as JSON: {error}"
        raise PermanentError(PermanentKind.INVALID, message, about="inputs") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def size_mib(volume: VolumeInputs) -> int:
    """The `size` of a volume; 0 if there is none."""
    try:
        return Size.parse(volume.size).mib if volume.size else 0
    except BadValueError as error:
        raise PermanentError(PermanentKind.INVALID, error.summary, about="size", hint=error.hint) from error


def check_update(address: Address, fixed: Sequence[str], before: Inputs, after: Inputs) -> None:
    """Refuse to change a `fixed` field in place, or to make a volume smaller."""
    for key in fixed:
        if getattr(before, key) != getattr(after, key):
            summary = f"{address}: `{key}` cannot be changed in place"
            raise PermanentError(PermanentKind.INVALID, summary, about=key)
    if not isinstance(before, VolumeInputs) or not isinstance(after, VolumeInputs):
        return
    if after.size and size_mib(after) < size_mib(before):
        summary = f"{address}: its size cannot go down from {before.size} to {after.size}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size")
