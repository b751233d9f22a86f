"""What may change about a thing that is there: providers that keep descriptions of their own hold to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.schema import BadValueError
from declarative.spec.values import Size
from declarative.state import Address


def size_mib(inputs: Mapping[str, Any]) -> int:
    """The `size` in a volume's inputs; 0 if there is none."""
    try:
        return Size.parse(inputs["size"]).mib if inputs.get("size") else 0
    except BadValueError as error:
        raise PermanentError(PermanentKind.INVALID, error.summary, about="size", hint=error.hint) from error


def check_update(
    address: Address, fixed: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Refuse to change a `fixed` field in place, or to make a volume smaller."""
    for key in fixed:
        if before.get(key) != after.get(key):
            summary = f"{address}: `{key}` cannot be changed in place"
            raise PermanentError(PermanentKind.INVALID, summary, about=key)
    if after.get("size") and size_mib(after) < size_mib(before):
        summary = f"{address}: its size cannot go down from {before['size']} to {after['size']}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size")
