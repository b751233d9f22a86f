"""What may change about a thing that is there: providers that keep descriptions of their own hold to it."""

from __future__ import annotations

from collections.abc import Sequence

from declarative.inputs import Inputs, VolumeInputs
from declarative.provider import PermanentError, PermanentKind
from declarative.schema import BadValueError
from declarative.spec.values import Size
from declarative.state import Address


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
