"""YAML text into plain data that knows where it was written.

The C parser's *events* are read, not its composed nodes: its composer recurses without a limit, and a few
thousand `[` end the process with a segmentation fault. Events also let every limit hold while reading, so
that a stranger's file (alias bombs, deep nesting, a million documents) is refused before it costs anything.
Scalars are those of YAML 1.2's core schema: `yes` and dates are strings, `010` is ten.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from declarative.diagnostic import Diagnostic, InvalidError, Span, in_order

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NODES = 500_000
"""Values of one file, aliases counted each time they are used, text once more every 64 characters."""
MAX_KEY = 200
MAX_WHOLE = 2**63 - 1
MAX_LINE = 2_000
"""A longer line is not shown under a message."""

Path: TypeAlias = tuple[str | int, ...]
_Node: TypeAlias = Any
"""Where a value stands: a place, or for a collection `(place, places of the keys, nodes of the values)`.

A place is one number (see `_place`): the garbage collector walks through objects, and hundreds of thousands
of them made reading four times as slow. An alias shares the node that it stands for.
"""

_SCALAR, _ALIAS, _MAPPING, _SEQUENCE, _END, _OTHER = range(6)
_KINDS = {
    "ScalarEvent": _SCALAR,
    "AliasEvent": _ALIAS,
    "MappingStartEvent": _MAPPING,
    "SequenceStartEvent": _SEQUENCE,
    "MappingEndEvent": _END,
    "SequenceEndEvent": _END,
}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_DIRECTIVE = re.compile(r"^%(?!YAML\s)\S*", re.MULTILINE)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(
    r"(?P<ten>[-+]?[0-9]+)|0o(?P<eight>[0-7]+)|0x(?P<sixteen>[0-9a-fA-F]+)"
    r"|(?P<real>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<odd>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
_BASES = {"ten": 10, "eight": 8, "sixteen": 16}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_TAGS = ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_QUOTE = 'put the value in quotes: "…"'
_HINTS = (
    ("cannot start any token", "indent with spaces, not tabs; " + _QUOTE + " where it starts with @, ` or %"),
    ("mapping values are not allowed", "check the indentation, and " + _QUOTE + " where it holds `: `"),
    ("unknown escape", "use single quotes, or write `\\\\` for a backslash"),
    ("unexpected end of stream", "close the quote"),
    ("']'", "close the list with `]`"),
    ("'}'", "close the mapping with `}`; " + _QUOTE + " where it is text"),
    ("could not find expected ':'", "write `key: value`; text of several lines needs `|`"),
    ("incompatible YAML", "remove the `%YAML` line"),
)


_BITS = 24
_ONES = (1 << _BITS) - 1
_ENDS = (1 << 2 * _BITS) - 1


def _place(start: Any, end: Any) -> int:
    """Lines and columns of both ends, in one number."""
    return int(start.line << 3 * _BITS | start.column << 2 * _BITS | end.line << _BITS | end.column)


def _of(node: _Node) -> int:
    return int(node[0]) if isinstance(node, tuple) else int(node)


class _Stop(Exception):  # noqa: N818 - control flow: the rest of the file is not read
    """The rest of the file cannot be read."""


@dataclass(slots=True)
class _Text:
    """The text of a file, cut into lines only once a line has to be shown."""

    file: str
    text: str
    _lines: list[str] | None = None
    _held: tuple[str, bool] | None = None

    def line(self, number: int) -> str:
        if self._lines is None:
            self._lines = _BREAK.split(self.text)
        line = self._lines[number] if number < len(self._lines) else ""
        return line if len(line) <= MAX_LINE else ""

    def span(self, place: int) -> Span:
        line, column = place >> 3 * _BITS, place >> 2 * _BITS & _ONES
        end_line, end_column = place >> _BITS & _ONES, place & _ONES
        return Span(self.file, line + 1, column + 1, end_line + 1, end_column + 1, self.line(line))

    def may_hold(self, text: str) -> bool:
        if self._held is None or self._held[0] != text:
            self._held = text, text in self.text or "\\" in self.text  # it may be written as an escape
        return self._held[1]

    def at(self, offset: int) -> Span:
        before = _BREAK.split(self.text[:offset])
        line, column = len(before), len(before[-1]) + 1
        return Span(self.file, line, column, line, column + 1, self.line(line - 1))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its data, and on request the place of any part of it.

    `whole` is false where something could not be read, so that fields may be missing that were written.
    `size` is the number of its values.
    """

    data: Mapping[str, Any]
    file: str
    whole: bool
    size: int
    _root: _Node = field(repr=False, compare=False)
    _text: _Text = field(repr=False, compare=False)

    def may_hold(self, text: str) -> bool:
        """Whether a value may hold `text`: a cheap test by the whole file, as written."""
        return self._text.may_hold(text)

    def span(self, path: Path = (), *, key: bool = False) -> Span:
        """Where the value at `path` stands, or with `key` its key; else the nearest thing above it."""
        node, at = self._root, None
        for step in path:
            _, keys, values = node if isinstance(node, tuple) else (0, None, ())
            if keys is not None and step in keys:
                at, node = keys[step], values[step]
            elif isinstance(values, list) and isinstance(step, int) and 0 <= step < len(values):
                at, node = None, values[step]
            else:
                break
        if key and at is not None:
            return self._text.span(at)
        return self._text.span(self._title() if node is self._root else _of(node))

    def _title(self) -> int:
        """What stands for the whole document: its name, else its type, else its first key."""
        place, keys, values = self._root
        for name in ("name", "type"):
            if isinstance(values.get(name), int):
                return int(values[name])
        return int(next(iter(keys.values()), place))


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of a file, and what could not. With `lost` there may be more documents in it."""

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]
    lost: bool = False


def read(content: str | bytes, file: str) -> list[Document]:
    """The documents of a file; `InvalidError` with everything that is wrong with its YAML."""
    reading = parse(content, file)
    if reading.diagnostics:
        raise InvalidError(in_order(reading.diagnostics))
    return list(reading.documents)


def parse(content: str | bytes, file: str) -> Reading:
    """As `read`, but whatever is readable comes beside the findings. Empty documents are left out."""
    out: list[Diagnostic] = []
    text = _decoded(content, file, out)
    if text is None:
        return Reading((), tuple(out), lost=True)
    documents: list[Document] = []
    reader = _Reader(_Text(file, text), out)
    try:
        for document in reader.documents():
            documents.append(document)  # noqa: PERF402 - what came before a stop is kept
    except _Stop:
        reader.lost = True
    return Reading(tuple(documents), tuple(out), lost=reader.lost)


def _decoded(content: str | bytes, file: str, out: list[Diagnostic]) -> str | None:
    start = Span(file, 1, 1, 1, 1)
    if len(content) > MAX_BYTES:
        out.append(_too_large(f"the file is larger than {MAX_BYTES >> 20} MiB", start))
        return None
    encoding = Diagnostic(code="bad-encoding", summary="the file is not UTF-8 text", span=start)
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        text.encode("utf-8")
    except UnicodeError:
        out.append(
            _hinted(encoding, "save it as UTF-8, and keep binary files out of the project's directory")
        )
        return None
    text = text.removeprefix("\ufeff")
    if bad := _UNPRINTABLE.search(text):
        summary = f"the file holds the control character U+{ord(bad.group()):04X}"
        place = _Text(file, text).at(bad.start())
        hint = "remove it; in double quotes it can be written as an escape, such as `\\x1b`"
        out.append(Diagnostic(code="bad-encoding", summary=summary, hint=hint, span=place))
        return None
    if directive := _DIRECTIVE.search(text):
        # Apart from being of no use here: the parser compares each %TAG with all before it.
        summary = f"the directive `{directive.group()[:20]}` is not supported"
        place = _Text(file, text).at(directive.start())
        out.append(Diagnostic(code="unsupported-yaml", summary=summary, hint="remove the line", span=place))
        return None
    return text


def _hinted(item: Diagnostic, hint: str) -> Diagnostic:
    return Diagnostic(code=item.code, summary=item.summary, hint=hint, span=item.span)


def _too_large(summary: str, span: Span) -> Diagnostic:
    return Diagnostic(code="too-large", summary=summary, hint="split it, or declare less", span=span)


class _Reader:
    """One pass over the events of one file."""

    def __init__(self, text: _Text, out: list[Diagnostic]) -> None:
        self.text, self.out = text, out
        self.events = _events(text, out)
        self.kinds: dict[type, int] = {}
        self.anchors: dict[str, tuple[Any, _Node, int, int] | None] = {}
        self.size = 0
        self.deepest = 0
        self.whole = True
        self.lost = False

    def documents(self) -> Iterator[Document]:
        for event in self.events:
            if type(event).__name__ != "DocumentStartEvent":
                continue
            self.anchors, self.whole, before = {}, True, self.size
            self._count(1, event)
            data, node = self._value(next(self.events), 0)
            if data is None and self.whole:
                continue
            if isinstance(data, dict):
                yield Document(data, self.text.file, self.whole, self.size - before, node, self.text)
                continue
            self.lost = True
            if self.whole:
                hint = "write `key: value` lines, beginning with `type:`"
                self._say("not-a-mapping", "a document is a mapping of fields", node, hint)

    def _say(self, code: str, summary: str, node: _Node, hint: str | None = None) -> None:
        span = self.text.span(_of(node))
        self.out.append(Diagnostic(code=code, summary=summary, hint=hint, span=span))
        self.whole = False

    def _count(self, number: int, event: Any) -> None:
        self.size += number
        if self.size > MAX_NODES:
            span = self.text.span(_place(event.start_mark, event.end_mark))
            self.out.append(_too_large(f"the file has more than {MAX_NODES} values, aliases unfolded", span))
            raise _Stop

    def _kind(self, event: Any) -> int:
        kind = self.kinds.get(type(event))
        if kind is None:
            kind = self.kinds[type(event)] = _KINDS.get(type(event).__name__, _OTHER)
        return kind

    def _value(self, event: Any, depth: int) -> tuple[Any, _Node]:
        """The value that begins with `event`, and its node."""
        kind, anchor = self._kind(event), event.anchor
        if kind == _ALIAS:
            return self._alias(event, anchor, depth)
        if kind == _SCALAR and anchor is None:
            return self._scalar(event)
        size, outer, self.deepest = self.size, self.deepest, depth
        if anchor is not None:
            self.anchors[anchor] = None
        if kind == _SCALAR:
            data, node = self._scalar(event)
        else:
            data, node = self._collection(event, kind, depth + 1)
        if anchor is not None:
            self.anchors[anchor] = (data, node, self.size - size, self.deepest - depth)
        self.deepest = max(self.deepest, outer)
        return data, node

    def _alias(self, event: Any, name: str, depth: int) -> tuple[Any, _Node]:
        found = self.anchors.get(name)
        if found is not None:
            data, node, size, height = found
            self._count(size, event)
            self._deep(depth + height, event)
            return data, node
        place = _place(event.start_mark, event.end_mark)
        if name in self.anchors:
            self._say(
                "unsupported-yaml", f"`*{name}` refers to what it is part of", place, "write the value out"
            )
        else:
            hint = f"mark a value with `&{name}` before it, or put `*{name}` in quotes if it is text"
            self._say("yaml-syntax", f"`*{name}` refers to nothing", place, hint)
        return None, place

    def _deep(self, depth: int, event: Any) -> None:
        if depth > MAX_DEPTH:
            span = self.text.span(_place(event.start_mark, event.end_mark))
            summary = f"values are nested more than {MAX_DEPTH} deep"
            self.out.append(Diagnostic(code="too-deep", summary=summary, hint="nest them less", span=span))
            raise _Stop
        self.deepest = max(self.deepest, depth)

    def _collection(self, event: Any, kind: int, depth: int) -> tuple[Any, _Node]:
        self._deep(depth, event)
        self._count(1, event)
        if event.tag is not None and event.tag not in _PLAIN_TAGS:
            self._tag(event)
        return self._mapping(event, depth) if kind == _MAPPING else self._sequence(event, depth)

    def _sequence(self, start: Any, depth: int) -> tuple[Any, _Node]:
        data: list[Any] = []
        nodes: list[_Node] = []
        for event in self.events:
            if self._kind(event) == _END:
                last = nodes[-1] if nodes else None
                return data, (_whole_place(start, event, last), None, nodes)
            value, node = self._value(event, depth)
            data.append(value)
            nodes.append(node)
        raise _Stop

    def _mapping(self, start: Any, depth: int) -> tuple[Any, _Node]:
        data: dict[str, Any] = {}
        keys: dict[str, int] = {}
        nodes: dict[str, _Node] = {}
        node: _Node = None
        for event in self.events:
            if self._kind(event) == _END:
                return data, (_whole_place(start, event, node), keys, nodes)
            quoted = bool(getattr(event, "style", None))
            key, key_node = self._value(event, depth)
            value, node = self._value(next(self.events), depth)
            if not self._usable(key, key_node, quoted=quoted):
                continue
            if key in data:
                self._duplicate(key, key_node, keys[key])
                continue
            data[key] = value
            keys[key], nodes[key] = key_node, node
        raise _Stop

    def _duplicate(self, key: str, place: int, first: int) -> None:
        whole = self.whole
        line = self.text.span(first).line
        self._say("duplicate-key", f"`{key}` is already there in line {line}", place, "remove one of the two")
        self.whole = whole  # nothing is missing: the first one holds

    def _usable(self, key: Any, node: _Node, *, quoted: bool) -> bool:
        """Whether it can be a field's name."""
        if not isinstance(key, str):
            if isinstance(node, tuple):
                shown, hint = "a list or a mapping", None
            else:
                shown, hint = f"`{json.dumps(key)}`", f"put it in quotes: `'{json.dumps(key)}'`"
            self._say("non-string-key", f"{shown} cannot be a key: keys are strings", node, hint)
        elif key == "<<" and not quoted:
            self._say("unsupported-yaml", "merge keys are not supported", node, "write the fields out")
        elif len(key) > MAX_KEY:
            self._say(
                "too-large", f"a key has more than {MAX_KEY} characters", node, "check indentation and quotes"
            )
        else:
            return True
        return False

    def _tag(self, event: Any) -> None:
        hint = "remove the tag; " + _QUOTE + " where it shall be a string"
        place = _place(event.start_mark, event.end_mark)
        self._say("unsupported-yaml", f"the tag `{str(event.tag)[:40]}` is not supported", place, hint)

    def _scalar(self, event: Any) -> tuple[Any, int]:
        text: str = event.value
        start, end = event.start_mark, event.end_mark
        place: int = start.line << 72 | start.column << 48 | end.line << 24 | end.column
        self.size += 1 + (len(text) >> 6)
        if self.size > MAX_NODES:
            self._count(0, event)
        tag = event.tag
        if tag is not None:
            if tag not in _TEXT_TAGS:
                self._tag(event)
            return text, place
        if event.style:
            return text, place
        if text in _WORDS:
            return _WORDS[text], place
        if text[0] in "0123456789+-.":
            match = _NUMBER.fullmatch(text)
            if match is not None:
                return self._number(match, place), place
        return text, place

    def _number(self, match: re.Match[str], place: int) -> int | float | None:
        kind, digits = str(match.lastgroup), match[match.lastgroup or 0]
        value: float = math.nan
        if kind == "real":
            value = float(digits)
        elif kind in _BASES and len(digits) <= 64:
            value = int(digits, _BASES[kind])
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > MAX_WHOLE):
            summary = f"`{match[0][:40]}` is not a number that can be used here"
            self._say(
                "out-of-range", summary, place, f"whole numbers go up to {MAX_WHOLE}; {_QUOTE} if it is text"
            )
            return None
        return value


def _whole_place(start: Any, end: Any, last: _Node) -> int:
    """The place of a collection. A block ends, to the parser, where the next thing starts; its last value's
    end is what a reader means.
    """
    if start.flow_style or last is None:
        return _place(start.start_mark, end.end_mark)
    return _place(start.start_mark, start.start_mark) & ~_ENDS | _of(last) & _ENDS


def _events(text: _Text, out: list[Diagnostic]) -> Iterator[Any]:
    """The parser's events; what it does not understand is reported and ends the reading."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yield from YAML(typ="safe").parse(text.text)
    except MarkedYAMLError as bad:
        problem = bad.problem or "this is not YAML"
        mark = bad.problem_mark or bad.context_mark
        hint = next((hint for part, hint in _HINTS if part in problem), None)
        span = text.span(_place(mark, mark)) if mark else None
        out.append(Diagnostic(code="yaml-syntax", summary=problem, hint=hint, span=span))
        raise _Stop from None
    except (YAMLError, UnicodeError, ValueError) as bad:
        # Not known to happen after the checks of `_decoded`.
        span = Span(text.file, 1, 1, 1, 1)
        out.append(Diagnostic(code="yaml-syntax", summary=str(bad)[:200], span=span))
        raise _Stop from None
