"""Drafts of our documents, made from those of dstack and SkyPilot, with notes about what was lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

from declarative.model.record import dataclass
from declarative.model.resource import LOCAL, SSH
from declarative.model.schema import Problem, decode
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.text import NAME

CLOUDS: dict[str, dict[str, Any]] = {
    "aws": {"driver": "ec2", "credentials": {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}},
    "gcp": {"driver": "gce"},
    "azure": {"driver": "azure"},
    "vultr": {"driver": "vultr"},
    "digitalocean": {"driver": "digitalocean"},
}
"""dstack's and SkyPilot's names of clouds, and the first fields of a `backend` document for each."""
_PLAIN = re.compile(
    r"[A-Za-z_./$][\w ./:@%+=,$(){}<>-]*|(?!\d+$)\d+(?:[MGT]B|[smhdw])?(?:\.\.(?:\d+(?:[MGT]B)?)?)?", re.ASCII
)
_MEANS_ELSE = re.compile(
    r"(?i:true|false|null|~|yes|no|on|off|y|n|\.inf|\.nan)|.*(?:: | #).*|.*[: ]", re.DOTALL
)
_COMMAND = re.compile(r"##|^\s*::", re.MULTILINE)
"""Text that a CI agent may obey in a block; it is safe in quotes."""
_BLOCK = re.compile(r"[^\s\x00-\x1f][\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]*")
MOST_ROUNDS = 200
"""At most so many parts of one document are left out one by one."""


class Noted(str):
    """A text with a comment after it."""

    __slots__ = ("note",)
    note: str

    def __new__(cls, text: str, note: str) -> Self:
        """`note` is empty for no comment."""
        found = super().__new__(cls, text)
        found.note = note
        return found


@dataclass(slots=True)
class Draft:
    """A draft of one document: its fields, and notes about it."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def drop(self, name: str, why: str) -> None:
        """Note that a field was left out. Its value is not shown: it may be a secret."""
        self.notes.append(f"left out `{name}`: {why}")

    def drop_invalid(self) -> bool:
        """Leave out what our documents do not allow; returns whether the rest is valid."""
        for _ in range(MOST_ROUNDS):
            problems: list[Problem] = []
            decode(DOCUMENTS[self.kind], self.fields, (), problems)
            if not problems:
                return True
            problem = problems[0]
            if not problem.path or not _remove(self.fields, problem.path):
                self.notes.append(f"{problem.summary}: {problem.hint}")
                return False
            self.drop(".".join(map(str, problem.path)), problem.hint or problem.summary)
        return False


def _remove(data: Any, path: Sequence[str | int]) -> bool:
    """Remove the value at `path`; returns whether there was one."""
    *above, last = path
    for step in above:
        if not isinstance(data, Mapping | list) or (isinstance(data, Mapping) and step not in data):
            return False
        data = data[step]  # type: ignore[index]  # a list by number, a mapping by key
    if isinstance(data, dict) and last in data:
        del data[last]
        return True
    if isinstance(data, list) and isinstance(last, int) and last < len(data):
        del data[last]
        return True
    return False


def name_of(text: object, default: str | None, notes: list[str]) -> str | None:
    """A valid name: the text, or the nearest valid name, or the default. A change is added to `notes`."""
    near = re.sub(r"[^a-z0-9]+", "-", str(text or "").lower()).strip("-")
    name = near if NAME.fullmatch(near) else default
    if text and name and name != text:
        notes.append(f"the name is now `{name}`: 2 to 41 lower-case letters, digits and `-`")
    return name


def known_backends(draft: Draft, names: Sequence[Any]) -> list[str]:
    """The backends that have a driver. The draft notes the others as left out."""
    out: list[str] = []
    for name in dict.fromkeys(map(str, names)):
        if name in CLOUDS or name in (LOCAL, SSH):
            out.append(name)
        else:
            draft.drop(f"backends: {name}", "declare it if libcloud has a driver for it: `type: backend`")
    return out


def backends_of(drafts: Sequence[Draft]) -> list[Draft]:
    """A `backend` document for each cloud that the drafts name."""
    named = {b for d in drafts for b in d.fields.get("backends", ())}
    named |= {str(d.fields["backend"]) for d in drafts if "backend" in d.fields}
    return [
        Draft(
            "backend", {"name": name, **CLOUDS[name]}, ["see docs/clouds.md for its credentials and `image`"]
        )
        for name in sorted(named)
        if name in CLOUDS
    ]


# ---------------------------------------------------------------------------------------------- as YAML


def text_of(drafts: Sequence[Draft], heading: str) -> str:
    """The documents as YAML, each below its notes. A draft without a document becomes a comment."""
    parts = []
    for draft in drafts:
        good = bool(draft.fields) and draft.drop_invalid()
        lines = [f"# {line}" for note in draft.notes for line in _shown(note)]
        body = list(_mapping({"type": draft.kind, **draft.fields}, "")) if draft.fields else []
        if body and not good:
            lines.insert(0, "# This could not be converted:")
            body = [f"# {line}" for line in body]
        parts.append("\n".join([*lines, *body]))
    return "\n".join(f"# {line}" for line in _shown(heading)) + "\n" + "\n---\n".join(parts) + "\n"


def _shown(text: str) -> Iterator[str]:
    """Text for a comment: its names may be a stranger's."""
    for line in text.splitlines():
        yield "".join(c if c.isprintable() else "?" for c in line)


def _mapping(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        yield from _item(f"{indent}{_scalar(str(key))}:", value, indent)


def _item(start: str, value: Any, indent: str) -> Iterator[str]:
    """Lines that begin with `start`. A value of several lines is indented by two more than `indent`."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        yield start
        yield from _mapping(value, inner)
    elif isinstance(value, list | tuple) and value:
        yield start
        for item in value:
            yield from _dashed(item, inner)
    elif isinstance(value, str) and _fits_block(value):
        yield f"{start} |{'' if value.endswith(chr(10)) else '-'}"
        yield from _indented(value.removesuffix("\n"), inner)
    else:
        yield f"{start} {_scalar(value)}"


def _indented(text: str, indent: str) -> Iterator[str]:
    return (f"{indent}{line}" if line else "" for line in text.split("\n"))


def _dashed(item: Any, indent: str) -> Iterator[str]:
    """An item of a list."""
    first, *rest = _item("", item, indent)
    if first:
        yield f"{indent}-{first}"
    else:  # the first line of a mapping or a list follows the dash
        yield f"{indent}- {rest.pop(0).lstrip()}"
    yield from rest


def _fits_block(text: str) -> bool:
    """Whether a text of several lines can be written as a `|` block."""
    if "\n" not in text or text.endswith("\n\n"):
        return False
    return bool(_BLOCK.fullmatch(text)) and not _COMMAND.search(text)


def _scalar(value: Any) -> str:
    if isinstance(value, Noted) and value.note:
        return f"{_scalar(str(value))}  # {' '.join(_shown(value.note))}"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _MEANS_ELSE.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable()).replace("##", r"\u0023#")
