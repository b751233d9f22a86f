"""Marks that providers write beside things that they make: owner, create, inputs; and which may change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from declarative.model.inputs import Inputs, VolumeInputs
from declarative.model.schema import BadValueError
from declarative.model.spec.values import Size
from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind

FORMAT = 1
"""The format of the marks."""
NOT_OWNED = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
"""The errors that reading damaged marks raises."""


def key_of(token: str) -> str:
    """The id of the thing of one create: 16 letters and digits, whatever the token is."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The marks of a thing: its owner, the token of its create, and its inputs."""

    owner: str
    address: Address
    token: str
    inputs: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The id of this one create, fit for the name of a folder."""
        return key_of(self.token)

    @property
    def id(self) -> str:
        """The id of the thing: a later thing at the same address has another."""
        return f"{self.address}.{self.key}"

    def json(self, **more: Any) -> str:
        """All of it in JSON, with `more` fields; `PermanentError` if the inputs cannot be written so."""
        body = {"format": FORMAT, "owner": self.owner, "address": str(self.address), "token": self.token}
        try:
            return json.dumps({**body, "inputs": self.inputs, **more}, default=_plain)
        except (TypeError, ValueError) as error:
            message = f"{self.address}: its inputs cannot be written as JSON: {error}"
            raise PermanentError(PermanentKind.INVALID, message, about="inputs") from error


def owned(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Owned` in what `json` wrote; one of `NOT_OWNED` for anything else."""
    for key in ("owner", "address", "token"):
        if not isinstance(body[key], str):
            raise TypeError(f"`{key}` is not a text")
    address = Address.parse(body["address"])
    return {
        "owner": body["owner"],
        "address": address,
        "token": body["token"],
        "inputs": dict(body["inputs"]),
    }


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


VANISHED: Mapping[str, str] = {
    "data": "its data are gone: {data} is no folder",
    "cleaned": "a cleaner of old files, such as systemd-tmpfiles, deleted files of it; "
    "once those are back, or to go on without them, where they are: `touch {beside}kept`",
    "emptied": "it held something when it was detached last, and is empty now; "
    "if that is meant, where it is: `rm {beside}filled`",
}
"""The ways in which the content of a volume that is a folder vanishes: see `Thing.lost`."""


def lost(how: str, data: str, beside: str) -> str:
    """One of `VANISHED`, of the folder `data`. `beside`: how the paths of the marks beside it begin."""
    return VANISHED[how].format(data=data, beside=beside)
