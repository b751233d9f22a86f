"""Tags as GCE has them: labels of a few small characters, and the metadata of instances for the rest.

Labels alone can be asked for in a listing, and are the only thing on a disk that can be written later. So
owner and token are labels of everything; the rest of the marks is one item of an instance's metadata, and on
a disk a text in as many labels as it takes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.marks import packed, unpacked

OWNER = "fleetform_owner"
TOKEN = "fleetform_token"  # noqa: S105  # the name of a label
PART = "fleetform_mark_"
DISK_OF = "fleetform_disk_of"
"""On an instance's own disk: whose instance it is."""
ITEM = "fleetform"
"""The item of an instance's metadata."""
MOST = 64
"""Labels that one thing has at most."""
LENGTH = 63
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def plain(text: str) -> str:
    """A text as the value of a label: itself, or its digest."""
    return text if text and _VALUE.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:40]


def of_instance(
    tags: Mapping[str, str], about: str, have: Mapping[str, str] | None = None
) -> tuple[dict[str, str], str]:
    """The labels of an instance, and the text of its metadata's item. `have`: the labels that it has."""
    ours, users = _split(tags)
    labels = {**_users(users, about, have), **_found_by(ours)}
    return labels, json.dumps(ours, sort_keys=True)


def of_disk(tags: Mapping[str, str], about: str, have: Mapping[str, str] | None = None) -> dict[str, str]:
    """The labels of a disk. `have`: those that it has."""
    ours, users = _split(tags)
    if not ours:
        return _users(users, about, have)
    text = packed(json.dumps(ours, sort_keys=True))
    parts = [text[i : i + LENGTH] for i in range(0, len(text), LENGTH)]
    labels = {
        **_users(users, about, have),
        **_found_by(ours),
        **{f"{PART}{i:02}": part for i, part in enumerate(parts)},
    }
    if len(labels) > MOST:
        summary = f"{about} has too much to write down: it takes {len(labels)} labels, GCE has {MOST}"
        hint = "make its `tags` fewer"
        raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
    return labels


def read_instance(labels: Mapping[str, str], item: str | None) -> dict[str, str]:
    """The tags of an instance. Whose it is, both have to say."""
    return _read(labels, item)


def read_disk(labels: Mapping[str, str]) -> dict[str, str]:
    """The tags of a disk."""
    text = "".join(value for key, value in sorted(labels.items()) if key.startswith(PART))
    return _read(labels, unpacked(text))


def _read(labels: Mapping[str, str], text: str | None) -> dict[str, str]:
    try:
        given = json.loads(text) if text else {}
    except (ValueError, RecursionError):  # anybody who may write metadata can write this
        given = {}
    if not isinstance(given, dict):
        given = {}
    found = {k: v for k, v in given.items() if isinstance(k, str) and isinstance(v, str)}
    for key, label in ((marks.OWNER, OWNER), (marks.TOKEN, TOKEN)):
        said = labels.get(label)
        if said is None:
            found.pop(key, None)  # somebody took it away: nothing is found by it any more
        elif key not in found or plain(found[key]) != said:
            found[key] = said
    theirs = {k: v for k, v in labels.items() if not k.startswith("fleetform_")}
    return {**theirs, **found}


def _split(tags: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours = {k: v for k, v in tags.items() if k.startswith(marks.OURS)}
    return ours, {k: v for k, v in tags.items() if k not in ours}


def _found_by(ours: Mapping[str, str]) -> dict[str, str]:
    pairs = ((OWNER, marks.OWNER), (TOKEN, marks.TOKEN))
    return {label: plain(ours[key]) for label, key in pairs if key in ours}


def _users(users: Mapping[str, str], about: str, have: Mapping[str, str] | None) -> dict[str, str]:
    """Labels that are none of ours. Those that are there may be in any script, and stay."""
    for key, value in users.items():
        if have and have.get(key) == value:
            continue
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            summary = f"{about}: `{key}: {value}` cannot be a label of GCE"
            hint = (
                "labels have lower case letters, digits, `_` and `-`, up to 63 of them; a key begins with a "
                "letter"
            )
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return dict(users)
