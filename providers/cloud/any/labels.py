"""Texts as tags without values: `fleetform:OWNER:…` of letters, digits, hyphens, underscores and colons, at
most 255 characters, where upper and lower case are equal. So every text is packed in base 32.

A text fills one or more tags. A new text is added before the old one is deleted. Each tag names its version,
its part and the number of parts; the last complete version counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from declarative.model.record import struct
from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.any import site
from providers.cloud.any.site import Written
from providers.cloud.marks import packed, unpacked

OURS = "fleetform"
LENGTH = 255
PARTS = 7
"""The first words of a tag that is part of a text."""
MOST = 24
"""Tags that one text may fill."""
_NUMBER = re.compile(r"[0-9]{1,9}")
"""The form of the numbers that we write. A tag with another form is not ours."""


def owner_tag(owner: str) -> str:
    """The tag on everything that a state made."""
    return f"{OURS}:owner:{owner}"


@struct(frozen=True, slots=True, kw_only=True)
class Labels:
    """The tags of one thing, parsed. `tags` are ours with a text, by the text's key."""

    token: str
    texts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def tags(mark: Written) -> list[str]:
    """The tags for a new thing."""
    texts = {site.IS: mark.text(), **mark.texts}
    return [
        owner_tag(mark.owner),
        *(t for key, text in texts.items() for t in pack(mark.token, key, text, 1)),
    ]


def written(owner: str, have: Iterable[str], thing: str) -> Written | None:
    """The content of the tags of `thing` (its id); None if they are not of a thing of this owner."""
    have = list(have)
    if owner_tag(owner).lower() not in (tag.lower() for tag in have):
        return None
    found = read(have)
    return site.read(owner, found.token, found.texts, thing)


def read(have: Iterable[str]) -> Labels:
    """Tags as texts."""
    parts: dict[str, dict[tuple[int, int], dict[int, str]]] = {}
    by_key: dict[str, list[str]] = {}
    token = ""
    for tag in sorted(have):
        words = tag.lower().split(":")
        if words[0] != OURS or len(words) != PARTS:
            continue
        _, token, key, version, part, count, chunk = words
        if not all(map(_NUMBER.fullmatch, (version, part, count))):
            continue
        by_key.setdefault(key, []).append(tag)
        parts.setdefault(key, {}).setdefault((int(version), int(count)), {})[int(part)] = chunk
    texts = {key: text for key, found in parts.items() if (text := _newest(found)) is not None}
    versions = {key: max(version for version, _ in found) for key, found in parts.items()}
    return Labels(token=token, texts=texts, versions=versions, tags={k: tuple(v) for k, v in by_key.items()})


def _newest(found: Mapping[tuple[int, int], Mapping[int, str]]) -> str | None:
    """The text of the last complete version, from parts by version and number; None if there is none."""
    whole = [version for version, chunks in found.items() if len(chunks) == version[1]]
    if not whole:
        return None
    last = found[max(whole)]
    return unpacked("".join(last[part] for part in sorted(last)))


def owner_of(have: Iterable[str]) -> str | None:
    """The owner that a thing names."""
    start = owner_tag("")
    return next((tag[len(start) :] for tag in have if tag.lower().startswith(start)), None)


def marks_of(have: Iterable[str], thing: str) -> dict[str, str]:
    """The marks in the tags of `thing` (an id), by the keys of `marks`. An incomplete mark is
    only a token.
    """
    have = list(have)
    owner = owner_of(have)
    mark = written(owner, have, thing) if owner else None
    if mark is None:
        token = read(have).token
        return {marks.TOKEN: token} if token else {}
    return {marks.OWNER: mark.owner, marks.TOKEN: mark.token, marks.ADDRESS: str(mark.address)}


def ours(have: Iterable[str]) -> list[str]:
    """The tags that are part of a mark, which are on one thing only."""
    return [tag for tag in have if tag.lower().startswith(f"{OURS}:") and tag.count(":") == PARTS - 1]


def users(have: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The tags that are not ours, in the user's notation: see `of_users`."""
    pairs = (tag.partition(":") for tag in have if not tag.lower().startswith(f"{OURS}:"))
    return frozenset((key, value) for key, _, value in pairs)


def own(token: str, have: Iterable[str]) -> list[str]:
    """The tags that are on one thing only: each contains its token."""
    return [tag for tag in have if tag.lower().startswith(f"{OURS}:{token}:")]


def pack(token: str, key: str, text: str, version: int) -> list[str]:
    """One text as tags."""
    start = f"{OURS}:{token}:{key}:{version}:"
    room = LENGTH - len(start) - len("00:00:")
    code = packed(text)
    chunks = [code[i : i + room] for i in range(0, len(code), room)]
    if len(chunks) > MOST:
        summary = f"there is too much text: {len(text)} characters"
        hint = "make `env` or `tags` shorter"
        raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return [f"{start}{i}:{len(chunks)}:{chunk}" for i, chunk in enumerate(chunks)]


def of_users(tags: Mapping[str, str]) -> list[str]:
    """A user's `{team: a}` as `team:a`; `PermanentError` if it cannot be written as a tag."""
    out = []
    for key, value in sorted(tags.items()):
        tag = f"{key}:{value}" if value else key
        fine = all(c.isascii() and (c.isalnum() or c in "-_:") for c in tag)
        if not fine or len(tag) > LENGTH or key.lower().startswith(OURS):
            summary = f"`{tag}` cannot be a tag of this cloud"
            hint = (
                "it takes letters, digits, hyphens, underscores and colons, and nothing that begins with ours"
            )
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        out.append(tag)
    return out
