"""The mark on everything that is made, as tags: its owner, its create, and its inputs.

Clouds limit a tag's length, so a long text uses several tags: the first one begins with their number, and
leftovers of a longer text are never read. If tags do not allow all characters or long values, a text is
packed. A packed text that grows a thousandfold is not read to its end, since anybody may have written it.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from declarative.model.inputs import NodeInputs, VolumeInputs, inputs_of
from declarative.model.record import struct
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, Thing

OURS = "fleetform:"
OWNER = f"{OURS}owner"
ADDRESS = f"{OURS}address"
TOKEN = f"{OURS}token"
INPUTS = f"{OURS}inputs"
PROJECT = f"{OURS}project"
"""The project that it is of, for people and for a project whose state was lost; nothing is found by it."""
HOST_KEY = f"{OURS}host-key"
USER = f"{OURS}user"
TAKEN = f"{OURS}taken"
"""Further keys of a node: its public host key, its login user, and that it was ready once."""
ON = f"{OURS}on:"
"""The key of a disk's tag for one machine, followed by the machine's name or id: the loser of a race for a
disk does not overwrite the winner's tag.
"""
LENGTH = 250
"""Characters in a tag's value: EC2 allows 256, OpenStack and GCE's metadata 255 and more."""
MOST = 24
"""The most tags for one text, of the 50 that EC2 allows."""


@struct(frozen=True, slots=True, kw_only=True)
class Mark:
    """The mark of a thing."""

    owner: str
    address: Address
    token: str
    inputs: Mapping[str, Any]
    project: str = ""
    known: bool = True
    """See `provider.Thing`: if the thing cannot store its inputs, they are empty here."""

    @property
    def node(self) -> NodeInputs:
        """The inputs as those of a node."""
        return inputs_of("node", self.inputs)

    @property
    def volume(self) -> VolumeInputs:
        """The inputs as those of a volume."""
        return inputs_of("volume", self.inputs)

    @property
    def tags(self) -> dict[str, str]:
        """The user's tags, for any kind."""
        return tags_in(self.inputs)


def tags_in(inputs: Mapping[str, Any]) -> dict[str, str]:
    """The user's tags among inputs of any kind."""
    return {str(k): str(v) for k, v in (inputs.get("tags") or {}).items()}


def written(mark: Mark) -> dict[str, str]:
    """The mark as tags."""
    text = json.dumps(mark.inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return {
        OWNER: mark.owner,
        ADDRESS: str(mark.address),
        TOKEN: mark.token,
        **({PROJECT: mark.project} if mark.project else {}),
        **pack(INPUTS, text, mark.address),
    }


def name_of(address: Address, token: str) -> str:
    """The name for a create with this token, where names are unique: `gpu-0-1c6f…`, at most 61 lower case
    letters, digits and dashes, with a letter first.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", address.name.lower()).strip("-")[:36].rstrip("-")
    head = stem if re.match(r"[a-z]", stem) else f"x{stem}"
    tail = re.sub(r"[^a-z0-9]+", "", token.lower())[:24]
    return f"{head}-{tail}" if tail else head


def name_in(tags: Mapping[str, str]) -> str | None:
    """The name of the create with these tags; None if they do not say it."""
    both = ADDRESS in tags and TOKEN in tags
    return name_of(Address.parse(tags[ADDRESS]), tags[TOKEN]) if both else None


def read(tags: Mapping[str, str], thing: str) -> Mark:
    """The mark in the tags of `thing` (its id); `PermanentError` if it is damaged."""
    try:
        return Mark(
            owner=tags[OWNER],
            address=Address.parse(tags[ADDRESS]),
            token=tags[TOKEN],
            inputs=_mapping(unpack(INPUTS, tags)),
            project=tags.get(PROJECT, ""),
        )
    except (KeyError, ValueError, RecursionError) as error:
        raise damaged(thing) from error


def thing(
    mark: Mark, outputs: Mapping[str, Any], actual: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Thing:
    """The port's thing for a thing of ours. `actual` returns what others changed, given the inputs that it
    was made with.
    """
    return Thing(
        address=mark.address,
        token=mark.token,
        inputs=mark.inputs,
        outputs=outputs,
        actual=actual(mark.inputs),
        known=mark.known,
    )


def node(mark: Mark, backend: str, outputs: Mapping[str, Any]) -> Record:
    """The record of a node, from its machine's mark."""
    return Record(address=mark.address, backend=backend, inputs=mark.inputs, outputs=outputs)


def again(
    record: Record, tags: Mapping[str, str] | None = None, actual: Mapping[str, Any] | None = None
) -> Thing:
    """A recorded thing that exists, as recorded. `tags` name its create; `actual`: what others changed."""
    return Thing(
        address=record.address,
        token=(tags or {}).get(TOKEN, ""),
        inputs=record.inputs,
        outputs=record.outputs,
        actual=actual or {},
    )


def of_node(outputs: Mapping[str, Any]) -> dict[str, str]:
    """The further tags of a node that was ready once, from its record."""
    known = {HOST_KEY: outputs.get("host_key"), USER: outputs.get("user"), TAKEN: "yes"}
    return {key: str(value) for key, value in known.items() if value}


def damaged(thing: str) -> PermanentError:
    """The fault for tags that cannot be read."""
    summary = f"the tags `{OURS}…` of {thing} cannot be read: somebody changed them"
    hint = "put them back, or delete it by hand and run `fleetform state rm` for its address"
    return PermanentError(PermanentKind.INVALID, summary, about=thing, hint=hint)


def pack(key: str, text: str, about: Address) -> dict[str, str]:
    """A text as tags: `key`, `key.1` and so on."""
    room = LENGTH - 3
    parts = [text[i : i + room] for i in range(0, len(text), room)] or [""]
    if len(parts) > MOST:
        summary = f"{about} has too much data: {len(text)} characters, {room * MOST} are the most"
        hint = "make its `env` or `tags` shorter"
        raise PermanentError(PermanentKind.INVALID, summary, about=str(about), hint=hint)
    return {f"{key}.{i}" if i else key: part if i else f"{len(parts)}|{part}" for i, part in enumerate(parts)}


def unpack(key: str, tags: Mapping[str, str]) -> str:
    """The text of tags from `pack`. `KeyError`, `ValueError` if a part is missing."""
    number, _, first = tags[key].partition("|")
    return "".join([first, *(tags[f"{key}.{i}"] for i in range(1, int(number)))])


def _mapping(text: str) -> Mapping[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(text)  # noqa: TRY004  # what is wrong is the text
    return found


MOST_BYTES = 1 << 18
"""The limit for one text. All tags of a thing hold less than this, packed or not."""


def packed(text: str) -> str:
    """The text in base 32, in lower case."""
    return base64.b32encode(zlib.compress(text.encode(), 9)).decode().lower().rstrip("=")


def unpacked(code: str) -> str:
    """The text of `packed`; empty if unreadable, which no text of ours is."""
    try:
        data = base64.b32decode(code.upper() + "=" * (-len(code) % 8))
        reader = zlib.decompressobj()
        found = reader.decompress(data, MOST_BYTES)
        return found.decode() if reader.eof else ""
    except (ValueError, zlib.error):
        return ""
