"""What a change in place, or anything that is to be done with a thing, is refused for in every cloud."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.state import Address
from providers.cloud.adopted import sized


def gone(address: Address | str) -> PermanentError:
    """The fault of a thing that is recorded, and was taken away."""
    summary = f"{address} is not there any more"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))


def check_fixed(
    address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], fixed: Iterable[str]
) -> None:
    """`PermanentError` if an input that is `fixed` would be another one than the thing was `made` with."""
    for key in fixed:
        if made.get(key) != inputs.get(key):
            summary = f"{address}: `{key}` cannot be changed in place"
            raise PermanentError(PermanentKind.INVALID, summary, about=key)


def size_of(address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], has: int) -> int:
    """The size in GiB that inputs ask for; `PermanentError` if it is less than the disk was `made` with.

    `has`: what it has now.
    """
    size, before = (sized(address, found, has) for found in (inputs, made))
    if size < before:
        was = made.get("size", f"{has}GB")
        summary = f"{address}: its size cannot go down from {was} to {inputs['size']}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size")
    return size
