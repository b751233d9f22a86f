"""The normal form: the order of keys, and values in the notation of their fields."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from declarative.language.formatter.layout import Line, YamlItem, YamlNode
from declarative.language.source import parse
from declarative.model.schema import BadValueError, Syntax, fields_of, kept
from declarative.model.spec import DOCUMENTS, Count, Duration, Gpu, Memory, Mount, Mounts, NodeCount, Variable
from declarative.model.spec.fleet import HostFields, Hosts
from declarative.model.spec.project import Variables
from declarative.model.spec.task import File, Files, Inline
from declarative.model.spec.values import Retry

_ELSEWHERE = re.compile(
    r"(?i:y|n|yes|no|on|off|=|<<|0b[01_]+|\d{4}-\d\d?-\d\d?.*"
    r"|[-+]?[\d_,]+(:[0-5]?\d)*(\.[\d_]*)?(e[-+]?\d+)?)"
)
"""Texts that readers of YAML 1.1 do not take for strings."""
_SIMPLE = re.compile(r"[A-Za-z0-9_.:,+/ -]+")

Hint: TypeAlias = Any

_INSIDE: Mapping[Any, Mapping[str, Hint]] = {
    NodeCount: dict.fromkeys(("min", "target", "max"), int),
    Gpu: {"vendor": str, "name": str, "memory": Memory, "count": Count},
    Retry: {"on_events": Any, "duration": Duration},
    File: dict.fromkeys(("local_path", "path"), str),
    Mount: {
        **dict.fromkeys(("name", "instance_path", "path", "optional"), Any),
        **{f.name: f.hint for f in fields_of(Inline)},
    },
}
"""The keys of mappings that have a reader of their own."""
_ITEMS: Mapping[Any, Hint] = {Hosts: HostFields, Mounts: Mount, Files: File, Variables: Variable}


@functools.cache
def _keys(hint: Hint) -> Mapping[str, Hint]:
    """The known keys of a mapping in order, with their types; empty if any key is allowed."""
    if hint in _INSIDE:
        return _INSIDE[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and not issubclass(hint, Syntax):
        known = {f.name: f.hint for f in fields_of(hint)}
        return {"type": str, **known} if hint in DOCUMENTS.values() else known
    return {}


@functools.lru_cache(maxsize=4096)
def inside(hint: Hint, key: str | int) -> Hint:
    """The type of the value at `key` in a mapping or a list."""
    if isinstance(key, str) and (known := _keys(hint)):
        return known.get(key, Any)
    origin: Any = typing.get_origin(hint)
    if origin in {tuple, Mapping}:
        return typing.get_args(hint)[1 if origin is Mapping else 0]
    return _ITEMS.get(hint, Any)


def hint_of(data: Mapping[str, Any]) -> Hint:
    """The dataclass of a document, by its `type`."""
    kind = data.get("type")
    return DOCUMENTS.get(kind, Any) if isinstance(kind, str) else Any


def arrange(node: YamlNode, hint: Hint, *, root: bool = False) -> None:
    """Put the keys of all mappings in order, innermost first."""
    if not node.laid_out:
        return
    if node.properties:
        hint = Any  # an alias may repeat it where the order matters
    for i, entry in enumerate(node.entries):
        arrange(entry.value, inside(hint, entry.name(i)))
    if node.kind == "map":
        node.entries = _in_order(node.entries, list(_keys(hint)), root=root)
    node.marks = [m for m in node.marks if m[2] == node.start]
    node.marks += [mark for entry in node.entries for mark in entry.value.marks]


def _in_order(entries: list[YamlItem], keys: Sequence[str], *, root: bool) -> list[YamlItem]:
    """The entries in the order of `keys`, unknown ones last; unchanged if an alias would change
    its meaning.
    """
    rank: dict[int | str, int] = {key: i for i, key in enumerate(keys)}
    ranks = [rank.get(e.name(""), len(rank)) for e in entries]
    if ranks == sorted(ranks):
        return entries
    new = sorted(entries, key=lambda e: rank.get(e.name(""), len(rank)))
    if _resolved(entries) != _resolved(new):
        return entries
    return _moved(entries, new, root=root)


def _resolved(entries: Sequence[YamlItem]) -> tuple[dict[int, int | None], dict[str, int]]:
    """The anchor of each alias, and the anchors that are valid afterwards."""
    anchors: dict[str, int] = {}
    aliases: dict[int, int | None] = {}
    for entry in entries:
        for name, is_alias, position in entry.value.marks:
            if is_alias:
                aliases[position] = anchors.get(name)
            else:
                anchors[name] = position
    return aliases, anchors


def _moved(old: Sequence[YamlItem], new: list[YamlItem], *, root: bool) -> list[YamlItem]:
    """`new` with each comment moved along with its entry. Comments about the whole mapping, up to the last
    blank line above its first entry, stay at the top.
    """
    for before, entry in itertools.pairwise(old):
        blank = entry.lead.index((0, "")) if (0, "") in entry.lead else 0
        before.behind, entry.lead = entry.lead[:blank], entry.lead[blank:]
    lead = without_blanks(old[0].lead)
    cut = max((i + 1 for i, line in enumerate(lead) if not line[1]), default=len(lead) if root else 0)
    header, old[0].lead = lead[:cut], lead[cut:]
    top = without_blanks(new[0].lead)
    new[0].lead = [*header, *([(0, "")] if header and top else []), *top]
    if root and not any(text for _, text in new[1].lead):
        new[1].lead = []  # no blank line between `type` and `name`
    return new


def without_blanks(lines: Sequence[Line]) -> list[Line]:
    """The lines without blank ones at the beginning."""
    start = next((i for i, line in enumerate(lines) if line[1]), len(lines))
    return list(lines[start:])


@functools.lru_cache(maxsize=4096)
def _reads_as(text: str, *, flow: bool) -> bool:
    """Whether the string can be written without quotes."""
    documents = parse(f"k: [{text}]\n" if flow else f"k: {text}\n", "").documents
    return bool(documents) and documents[0].data == {"k": [text] if flow else text}


@functools.cache
def _is_notation(hint: Hint) -> bool:
    """Whether scalars there have a notation. A mount is left alone: its long form is valid too."""
    return isinstance(hint, type) and issubclass(hint, Syntax) and hint is not Mount


@kept(4096)
def _meaning(hint: Hint, data: Any) -> Any:
    """The value that a notation stands for; None if it is not one."""
    try:
        return hint.parse(data)
    except BadValueError:
        return None


@kept(4096)
def _normal(hint: Hint, data: Any) -> str | int | None:
    """The value in its field's notation; None if no notation has the same meaning."""
    value = _meaning(hint, data)
    if value is None:
        return None
    try:
        plain = value.plain()
        has_count = "count" in data if isinstance(data, Mapping) else "1.." in str(data)
        if hint is Gpu and isinstance(plain, str) and not has_count:
            plain = plain.removesuffix(":1..")
        if isinstance(plain, bool) or not isinstance(plain, str | int):
            return None
        return plain if hint.parse(plain) == value else None
    except BadValueError:
        return None


def scalar_form(data: Any, hint: Hint, *, flow: bool) -> str | None:
    """`{min: 1, max: 4}` as `1..4`, if the field has such a form with the same meaning."""
    if not _is_notation(hint) or _normal(hint, data) is None:
        return None
    return written(data, "", hint, flow=flow)


def written(data: Any, raw: str, hint: Hint, *, flow: bool) -> str | None:
    """The new text of a scalar; None to keep the old."""
    if hint is bool and isinstance(data, bool):
        return str(data).lower()
    plain = _normal(hint, data) if _is_notation(hint) else None
    if isinstance(plain, int):
        return str(plain)
    if plain is not None and plain != data:
        if _reads_as(plain, flow=flow):
            return plain
        return f'"{plain}"' if _SIMPLE.fullmatch(plain) else None
    if raw[:1] not in {"'", '"'} or raw[1:-1] != data or data[:1] in {"-", "?", ":"}:
        return None
    # Quotes go if every reader takes the text for the same string without them.
    return str(data) if not _ELSEWHERE.fullmatch(data) and _reads_as(data, flow=flow) else None


def same(old: Any, new: Any, hint: Hint) -> bool:
    """Whether two values mean the same to the field that holds them."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        order_counts = not _keys(hint)
        keys = list(old)
        alike = keys == list(new) if order_counts else old.keys() == new.keys()
    elif isinstance(old, list) and isinstance(new, list):
        keys = list(range(len(old)))
        alike = len(old) == len(new)
    elif type(old) is type(new) and old == new:
        return True
    else:
        meaning = _meaning(hint, old) if _is_notation(hint) else None
        return meaning is not None and bool(meaning == _meaning(hint, new))
    return alike and all(same(old[key], new[key], inside(hint, key)) for key in keys)
