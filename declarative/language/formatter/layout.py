"""The layout of a text: values as ranges of the text, and the comments that belong to each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from declarative.language.source.reader import Events, events_of
from declarative.model.record import struct

_REST = re.compile(r"([ \t]*)(#[^\n]*)?(?=\n|\Z)")
_LINE = re.compile(r"\n([ \t]*)(#[^\n]*)?(?=\n|\Z)")
_COLON = re.compile(r"[ \t]*:(?=\s|\Z)")
_DASH = re.compile(r"\s*-(?=\s|\Z)")
_PROPERTIES = re.compile(r"(?:[&!]\S*[ \t]*)+")
_HEADER = re.compile(r"((?:[&!]\S*\s+|#[^\n]*\s+)*[|>])([-+]?)([1-9]?)([-+]?)")

Line: TypeAlias = tuple[int, str]
"""A comment with its column; a blank line is `(0, "")`."""
Note: TypeAlias = tuple[int, str, int]
"""A comment at the end of a line: its column, its text, the space before it."""


@struct(slots=True)
class YamlNode:
    """A value as a range of the text. `items` of a mapping are key, value, key, value, ….

    `block`: a block collection or a block scalar. `marks` are its anchors and aliases in order: name, whether
    it is an alias, position. `odd`: a block that is moved only as a whole.
    """

    kind: str
    start: int
    end: int
    block: bool = False
    properties: bool = False
    value: str = ""
    items: Sequence[YamlNode] = ()
    marks: Sequence[tuple[str, bool, int]] = ()
    odd: bool = False
    column: int = 0
    entries: list[YamlItem] = field(default_factory=list)
    tail: Sequence[Line] = ()
    after: int = 0
    """The position after the value and its comments."""

    @property
    def laid_out(self) -> bool:
        """Whether the value is written entry by entry."""
        return self.block and self.kind != "scalar" and not self.odd


@struct(slots=True)
class YamlItem:
    """One item of a block collection, and the comments around it."""

    value: YamlNode
    key: YamlNode | None = None
    lead: Sequence[Line] = ()
    begin: int = 0
    """The position after `:` or `-`."""
    properties: str = ""
    head: Note | None = None
    on_next_line: bool = False
    between: Sequence[Line] = ()
    eol: Note | None = None
    behind: Sequence[Line] = ()

    def name(self, default: int | str) -> int | str:
        """The item's key, or `default` in a list."""
        return self.key.value if self.key else default


_KINDS = {
    "ScalarEvent": "scalar",
    "AliasEvent": "alias",
    "MappingStartEvent": "map",
    "SequenceStartEvent": "seq",
}
_ENDS = frozenset({"MappingEndEvent", "SequenceEndEvent"})


def roots(events: Events, shift: int) -> Iterator[YamlNode]:
    """The documents' values, in order; `shift` is added to all places."""
    rest = iter(events)
    for event in rest:
        if type(event).__name__ == "DocumentStartEvent":
            yield _node(next(rest), rest, shift)


def _node(event: Any, rest: Iterator[Any], shift: int) -> YamlNode:
    kind = _KINDS[type(event).__name__]
    node = YamlNode(kind, event.start_mark.index + shift, event.end_mark.index + shift)
    if event.anchor is not None:
        node.marks = [(event.anchor, kind == "alias", node.start)]
    if kind == "alias":
        return node
    node.properties = event.anchor is not None or event.tag is not None
    if kind == "scalar":
        node.value, node.block = event.value, event.style in {"|", ">"}
        return node
    node.block = not event.flow_style
    node.items = items = list[YamlNode]()
    for inner in rest:
        if type(inner).__name__ in _ENDS:
            node.end = inner.end_mark.index + shift if event.flow_style else items[-1].end
            break
        items.append(_node(inner, rest, shift))
    below = [mark for item in items if item.marks for mark in item.marks]
    if below:
        node.marks = [*node.marks, *below]
    return node


class Layout:
    """Gives every comment and blank line of the text to the entry that it belongs to."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def column(self, position: int) -> int:
        return position - self.text.rfind("\n", 0, position) - 1

    def root(self, node: YamlNode) -> None:
        """Lay out a document's mapping. `position` is before the lines above it."""
        node.column = self.column(node.start)
        node.odd = node.block and (node.properties or self._is_odd(node))
        entry = YamlItem(node)
        self._settle(entry, -1)
        node.entries = node.entries or [entry]

    def _is_odd(self, node: YamlNode) -> bool:
        """Whether the mapping has keys with `?`, keys of several lines, or keys with an anchor. It is not
        rewritten then.
        """
        if node.kind == "seq":
            return False
        return any(
            key.kind != "scalar"
            or key.properties
            or "\n" in self.text[key.start : key.end]
            or not _COLON.match(self.text, key.end)
            for key in node.items[::2]
        )

    def _settle(self, entry: YamlItem, column: int) -> None:
        """Lay out an entry's value, from `:` or `-` on. `column` is that of the surrounding collection."""
        node, text = entry.value, self.text
        if node.laid_out:
            node.odd = self._is_odd(node)
        entry.begin = self.position
        entry.on_next_line = "\n" in text[self.position : node.start]
        if column >= 0:
            entry.head = self._rest()
        if node.laid_out and node.properties:
            self._properties(entry)
        if node.laid_out:
            self._entries(node, column)
            return
        entry.between = self.lines() if entry.on_next_line else []
        node.column = self.column(node.start)
        node.end = node.after = self._end(node, column)
        self.position = node.end
        entry.eol = self._rest()

    def _properties(self, entry: YamlItem) -> None:
        """Read the anchor and tag after a block's key. Anywhere else, the block is kept as written."""
        node = entry.value
        match = _PROPERTIES.match(self.text, node.start)
        between = re.sub(r"#[^\n]*", "", self.text[match.end() : node.items[0].start]) if match else ""
        is_below = between.startswith("\n") and between.strip() in {"", "-"}
        if entry.on_next_line or match is None or not is_below:
            node.odd = True
            return
        entry.properties = match[0].rstrip()
        self.position = node.start + len(entry.properties)
        entry.head = self._rest()

    def _entries(self, node: YamlNode, outer: int) -> None:
        keys = node.items[::2] if node.kind == "map" else [None] * len(node.items)
        values = node.items[1::2] if node.kind == "map" else node.items
        for key, value in zip(keys, values, strict=True):
            entry = YamlItem(value, key, self.lines())
            sign = _COLON.match(self.text, key.end) if key else _DASH.match(self.text, self.position)
            assert sign is not None
            if not node.entries:
                node.column = self.column(key.start if key else sign.end() - 1)
            node.entries.append(entry)
            self.position = sign.end()
            self._settle(entry, node.column)
        node.end = values[-1].end
        node.tail = self.lines(outer)
        node.after = self.position

    def _end(self, node: YamlNode, column: int) -> int:
        """The end of a value that is kept as written, without the blank lines after its content."""
        if node.kind == "scalar" and node.block:
            lines = self.text[node.start : node.end].split("\n")
            indent, keep = block_indent(lines, column)
            blank = itertools.takewhile(lambda line: not line[indent:] and not line.strip(" "), lines[::-1])
            dropped = min(len(list(blank)), 1 if keep else len(lines) - 1)
            return node.start + len("\n".join(lines[: len(lines) - dropped]))
        if not node.block:
            return node.end
        last = node.items[-1]
        end = self._end(last, self.column(node.start if node.kind == "seq" else node.items[0].start))
        if last.start == end and self.text[end - 1] not in ":-?":
            return self._end(node.items[-2], column)  # an empty value is placed where the next item begins
        return end

    def _rest(self) -> Note | None:
        """The comment at the end of the line: its column, its text, the space before it."""
        rest = _REST.match(self.text, self.position)
        if rest is None:
            return None
        self.position = rest.end()
        return (self.column(rest.start(2)), rest[2].rstrip(), len(rest[1])) if rest[2] else None

    def lines(self, outer: int | None = None) -> list[Line]:
        """The comments and blank lines that follow; with `outer`, those that are indented more."""
        out: list[Line] = []
        position, taken, end = self.position, 0, self.position
        while line := _LINE.match(self.text, position):
            comment = (line[2] or "").rstrip()
            if comment and outer is not None and len(line[1]) <= outer:
                break
            out.append((len(line[1]), comment) if comment else (0, ""))
            position = line.end()
            if comment or outer is None:
                taken, end = len(out), position
        self.position = end
        return out[:taken]


def keeps(node: YamlNode, text: str) -> bool:
    """Whether a value would absorb the blank lines after it."""
    while node.items:
        node = node.items[-1]
    return (
        node.kind == "scalar" and node.block and block_indent(text[node.start : node.end].split("\n"), 0)[1]
    )


def block_indent(lines: Sequence[str], column: int) -> tuple[int, bool]:
    """How far the content of a block scalar is indented, and whether the blank lines after it
    belong to it.
    """
    raw = "\n".join(lines)
    header = _HEADER.match(raw)
    assert header is not None
    keep = "+" in header[2] + header[4]
    if header[3]:
        return max(column, 0) + int(header[3]), keep
    body = lines[raw.count("\n", 0, header.end()) + 1 :]
    content = next((line for line in body if line.strip(" ")), None)
    return (len(content) - len(content.lstrip(" ")) if content else 1 << 30), keep


def ended(text: str) -> str:
    """The text with a line break at its end that does not become part of a block scalar."""
    if text.endswith("\n"):
        return text
    last = next((e for e in reversed(list(events_of(text))) if type(e).__name__ == "ScalarEvent"), None)
    if last is not None and last.style in {"|", ">"} and not text[last.end_mark.index :].strip(" "):
        if last.value.endswith("\n"):
            return text.rstrip(" ")
        start = last.start_mark.index
        text = text[:start] + _HEADER.sub(r"\1-\3", text[start:], count=1)
    return f"{text}\n"
