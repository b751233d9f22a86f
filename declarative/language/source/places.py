"""Places, spans and documents: where each value is in its file.

Messages do not show the values of secret fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from declarative.model.diagnostic import Span
from declarative.model.record import struct

SECRET_FIELDS = ("credentials", "creds", "registry_auth", "state", "plan_keys", "notify")
"""Fields that might contain a secret by mistake."""
MASKED_FIELDS = ("env",)
"""Fields whose values are masked if the syntax is broken: it is unclear then which text is a value, and a
secret may be what breaks the syntax.
"""

MAX_SEARCHED = 2_000
"""Longer lines are not searched for secrets, and not shown at all."""
MAX_STARTS = 10_000
"""The limit for such fields in one file. After it, everything is hidden."""

_NAMED = re.compile(
    r"(?:secret|passw|token(?!iz|s\b)|credential|api_?key|\bkey|[_-]key)[\w-]*[\"']?\s*(?::\s|=)\s*[\"']?(?![\s\"'$]|$)",
    re.IGNORECASE,
)
"""A name like `HF_TOKEN` with a value. `${{ env.HF_TOKEN }}` is not a value."""
_SHAPED = re.compile(
    r"(?:AKIA|ASIA|hf_|ghp_|github_pat_|glpat-|sk-)[\w-]{12,}|://[^\s/:@]*:[^\s/@]+@|-----BEGIN "
)
"""Text that looks like a secret: cloud keys, tokens, a password in a URL."""
_KEY = re.compile(r"\s*[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
_ITEM = re.compile(r"\s*-\s")
_FIRST = re.compile(rf"\s*(?:-\s+)*[\"']?(?:{'|'.join(MASKED_FIELDS)})\b")
_MARKER = re.compile(r"(?:---|\.\.\.)(?:\s|$)")


def may_hold_secret(line: str) -> bool:
    """Whether a line looks as if it contained a secret."""
    return bool(_NAMED.search(line) or _SHAPED.search(line))


def masked(line: str) -> str:
    """The line with all letters and digits masked, so that a caret still shows the place."""
    key = _FIRST.match(line)
    start = key.end() if key else 0
    return line[:start] + re.sub(r"\w", "*", line[start:])


def lines_of_fields(lines: Sequence[str], fields: Sequence[str], *, broken: bool) -> bytearray:
    """For each line, 1 if it belongs to one of these fields. With `broken`, a field's `:` may be missing."""
    behind = r"(?![\w.-])" if broken else r"[\"']?\s*:(?:\s|$)"
    start = re.compile(rf"(?:^|[{{,\[])\s*(?:-\s+)*[\"']?({'|'.join(fields)}){behind}")
    out = bytearray(len(lines))
    column, depth, starts = -1, 0, 0
    for number, line in enumerate(lines):
        text = line
        if column >= 0 and _ends(line, column, depth):
            column = -1
        if column < 0:
            key = start.search(line[:MAX_SEARCHED]) if any(map(line.__contains__, fields)) else None
            if not key:
                continue
            # In a flow mapping, columns mean little: a line ends the field only if it begins left of this
            # one.
            first = len(line) - len(line.lstrip(" -\"'"))
            column = first if key.start(1) == first else _indent(line)
            depth, text = 0, line[key.end() :]
            starts += 1
        if starts > MAX_STARTS:
            out[number:] = b"\1" * (len(lines) - number)
            break
        out[number] = 1
        depth = max(0, depth + sum(map(text.count, "[{")) - sum(map(text.count, "]}")))
    return out


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _ends(line: str, column: int, depth: int) -> bool:
    """Whether a line is certainly no longer part of the field whose key begins at `column`."""
    if _MARKER.match(line):
        return True
    if depth > 0:
        return False
    head, indent = line[:MAX_SEARCHED], _indent(line)
    return bool((indent <= column and _KEY.match(head)) or (indent < column and _ITEM.match(head)))


MAX_LINE = 2_000
"""Longer lines are not shown under a message."""

Path: TypeAlias = tuple[str | int, ...]
Node: TypeAlias = Any
"""The place of a value: a number, or for a collection a tuple.

Of a list it is `(place, None, nodes of the items…)`. Of a mapping it is `(place, shape, place of the first
key, node of its value, …)`, where the shape says behind which key's place a node stands. Mappings with the
same keys share their shape: most documents of a file have the same few fields, and a table for each took as
much memory as the values.

A place is a single number (see `place_of`), not an object: the garbage collector searches all objects, and
hundreds of thousands of them made reading four times as slow. An alias shares the node of its anchor.
"""
Shape: TypeAlias = Mapping[str | int, int]
"""Key → where its place stands in the node of its mapping; the node of its value is next to it."""

_BREAK = re.compile("\r\n|[\r\n]")
_BITS = 24
_MASK = (1 << _BITS) - 1


def packed(line: int, column: int, end_line: int, end_column: int) -> int:
    """Both ends in one number, which is small where both are in one line."""
    return ((end_line - line) << _BITS | end_column) << 2 * _BITS | column << _BITS | line


def unpacked(place: int) -> tuple[int, int, int, int]:
    """Line and column of the start, and of the end."""
    line, column, end_column = place & _MASK, place >> _BITS & _MASK, place >> 2 * _BITS & _MASK
    return line, column, line + (place >> 3 * _BITS), end_column


def place_of(start: Any, end: Any) -> int:
    """Line and column of both ends, packed into one number."""
    return packed(start.line, start.column, end.line, end.column)


def where(node: Node) -> int:
    """The place of a value."""
    return int(node[0]) if isinstance(node, tuple) else int(node)


@struct(slots=True)
class Text:
    """The text of a file. It is split into lines only when a line is shown."""

    file: str
    text: str
    _lines: list[str] | None = None
    _searched: tuple[str, bool] | None = None
    _hidden: dict[tuple[object, ...], bytearray] = field(default_factory=dict)

    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = _BREAK.split(self.text)
        return self._lines

    def line(self, number: int) -> str:
        """The line with that number, from 0; empty if too long."""
        lines = self.lines()
        line = lines[number] if number < len(lines) else ""
        return line if len(line) <= MAX_LINE else ""

    def hides(self, number: int, *, broken: bool = False) -> bool:
        """Whether a line must be hidden because it may contain a secret. `broken`: it is not valid YAML."""
        return self._is_of(number, SECRET_FIELDS, broken=broken) or may_hold_secret(self.line(number))

    def masks(self, number: int) -> bool:
        """Whether at most the punctuation of a line may be shown, in a text that is not valid YAML."""
        return self._is_of(number, MASKED_FIELDS, broken=True) or self.hides(number, broken=True)

    def _is_of(self, number: int, fields: tuple[str, ...], *, broken: bool) -> bool:
        key = (*fields, broken)
        if key not in self._hidden:
            is_named = any(name in self.text for name in fields)
            lines = lines_of_fields(self.lines(), fields, broken=broken) if is_named else bytearray()
            self._hidden[key] = lines
        hidden = self._hidden[key]
        return number < len(hidden) and hidden[number] == 1

    def span(self, place: int, *, broken: bool = False) -> Span:
        """The span of a place, without its line if that must be hidden."""
        line, column, end_line, end_column = unpacked(place)
        text = "" if self.hides(line, broken=broken) else self.line(line)
        if text and broken and self.masks(line):
            text = masked(text)
        return Span(self.file, line + 1, column + 1, end_line + 1, end_column + 1, text)

    def may_hold(self, text: str) -> bool:
        """Whether a value may contain `text`, either as it is or written with escapes."""
        if self._searched is None or self._searched[0] != text:
            self._searched = text, text in self.text or "\\" in self.text
        return self._searched[1]

    def at(self, offset: int) -> Span:
        """The span of one character in a text that may not be valid YAML."""
        before = _BREAK.split(self.text[:offset])
        line, column = len(before) - 1, len(before[-1])
        return self.span(packed(line, column, line, column + 1), broken=True)


def _below(node: Node, step: str | int) -> tuple[int | None, Node] | None:
    """The place of a key (None in a list), and the node of its value; None if there is none."""
    if not isinstance(node, tuple):
        return None
    shape: Shape | None = node[1]
    if shape is not None:
        at = shape.get(step)
        return (node[at], node[at + 1]) if at else None
    if isinstance(step, int) and 0 <= step < len(node) - 2:
        return None, node[step + 2]
    return None


@struct(frozen=True, slots=True)
class Spot:
    """A place whose span is made only when it is shown. Spans cost time and memory, and a hundred thousand
    documents show only a few.
    """

    text: Text
    place: int

    @property
    def span(self) -> Span:
        """The span, without its line if that must be hidden."""
        return self.text.span(self.place)


@struct(frozen=True, slots=True)
class Document:
    """One YAML document: its data, and on request the place of any part of it.

    `whole` is false if something could not be read, so that written fields may be missing. `size` is the
    number of its values.
    """

    data: Mapping[str, Any]
    file: str
    whole: bool
    size: int
    _root: Node = field(repr=False, compare=False)
    _text: Text = field(repr=False, compare=False)
    doubles: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)
    """Keys that a later one of the same mapping replaced, and the lines of both."""

    def may_hold(self, text: str) -> bool:
        """Whether a value may contain `text`: a cheap test on the text of the whole file."""
        return self._text.may_hold(text)

    def span(self, path: Path = (), *, key: bool = False) -> Span:
        """The span of the value at `path`, or with `key` of its key. If it is missing, of the nearest value
        above it.
        """
        return self.spot(path, key=key).span

    def spot(self, path: Path = (), *, key: bool = False) -> Spot:
        """As `span`, but the span is made later."""
        node, at = self._root, None
        for step in path:
            below = _below(node, step)
            if below is None:
                break
            at, node = below
        if key and at is not None:
            return Spot(self._text, at)
        if node is not self._root:
            return Spot(self._text, where(node))
        # The whole document: its name stands for it, else its type, else its first key.
        for name in ("name", "type"):
            below = _below(self._root, name)
            if below is not None and isinstance(below[1], int):
                return Spot(self._text, below[1])
        return Spot(self._text, int(self._root[2] if len(self._root) > 2 else self._root[0]))

    def written(self, path: Path) -> str:
        """The scalar at `path` as the file has it, without an anchor; empty if it is in several lines."""
        line, column, end_line, end_column = unpacked(self.spot(path).place)
        text = self._text.lines()[line][column:end_column] if line == end_line else ""
        return re.sub(r"^&\S+\s+", "", text)

    def line_with(self, path: Path, text: str) -> int:
        """The number of the line that has `text`, a line of the value at `path`; else that of its key."""
        first, _, last, _ = unpacked(self.spot(path).place)
        for number, line in enumerate(self._text.lines()[first : last + 1], first):
            if text in line:
                return number + 1
        return self.span(path, key=True).line
