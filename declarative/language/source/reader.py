"""Reads the events of a file in one pass, within limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Never

from declarative.language.source.places import Document, Node, Shape, Text, packed, place_of, unpacked, where
from declarative.language.source.syntax_hints import QUOTE, explain
from declarative.model.diagnostic import Diagnostic, Span

MAX_DEPTH = 64
MAX_NODES = 500_000
"""Values of one file. Aliases count each time they are used, and text counts once more every 64
characters.
"""
MAX_ITEMS = 50_000
"""Items of one list or mapping: half the limit for the nodes of a fleet."""
MAX_DOCUMENTS = 50_000
"""Documents of one file, including empty ones."""
MAX_KEY = 200
MAX_WHOLE = 2**63 - 1
MAX_TEXTS = 10_000
"""How many texts are kept to share equal ones."""
MAX_FINDINGS = 1_000
"""Findings of one file. A file with more is not meant for us."""

_SCALAR, _ALIAS, _MAPPING, _SEQUENCE, _END, _OTHER = range(6)
_KINDS = {
    "ScalarEvent": _SCALAR,
    "AliasEvent": _ALIAS,
    "MappingStartEvent": _MAPPING,
    "SequenceStartEvent": _SEQUENCE,
    "MappingEndEvent": _END,
    "SequenceEndEvent": _END,
}
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
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
_BASES = {"ten": 10, "eight": 8, "sixteen": 16}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_TAGS = ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class StopReading(Exception):  # noqa: N818 - control flow: the rest of the file is not read
    """The rest of the file cannot be read."""


def too_large(summary: str, span: Span) -> Diagnostic:
    """Report a limit that was exceeded."""
    return Diagnostic(code="too-large", summary=summary, hint="split it, or declare less", span=span)


class Reader:
    """Reads the events of one file."""

    merges: ClassVar[bool] = False
    """Whether `<<` merges mappings, and the last of equal keys counts."""

    def __init__(self, text: Text, out: list[Diagnostic], kept: Events | None = None) -> None:
        """`kept` gets the parser's events as they are read."""
        self.text, self.out = text, out
        self.events = _events(text, out, kept, pure=self.merges)
        self.kinds: dict[type, int] = {}
        self.shapes: dict[tuple[str, ...], Shape] = {}
        self.texts: dict[str, str] = {}
        """The texts read of late, so that equal ones are one object: keys, units, names of teams."""
        self.anchors: dict[str, tuple[Any, Node, int, int] | None] = {}
        self.doubles: list[tuple[str, int, int]] = []
        """Keys that a later one of the same mapping replaced, and the lines of both."""
        self.earlier: set[str] = set()
        """The anchors of the documents above."""
        self.size = 0
        self.deepest = 0
        self.whole = True
        self.lost = False

    def documents(self) -> Iterator[Document]:
        odd: Node = None
        number = 0
        for event in self.events:
            kind = type(event).__name__
            if odd is not None and kind != "DocumentEndEvent":
                # Reported only here: a mistake just after it, such as a missing `:`, would be its cause.
                hint = "write `key: value` lines, beginning with `type:`"
                if isinstance(odd, tuple):
                    hint += "; without `- `, and with `---` between documents"
                self._say("not-a-mapping", "a document is a mapping of fields", odd, hint)
                odd = None
            if kind != "DocumentStartEvent":
                continue
            self.earlier.update(self.anchors)
            self.anchors, self.doubles, self.whole, before = {}, [], True, self.size
            number += 1
            if number > MAX_DOCUMENTS:
                self._too_many(f"the file has more than {MAX_DOCUMENTS} documents", event)
            self._count(1, event)
            if len(self.texts) > MAX_TEXTS:
                self.texts.clear()
            data, node = self._value(next(self.events), 0)
            if data is None and self.whole:
                continue
            if isinstance(data, dict):
                doubles = tuple(self.doubles)
                yield Document(data, self.text.file, self.whole, self.size - before, node, self.text, doubles)
                continue
            self.lost = True
            odd = node if self.whole else None

    def _say(
        self, code: str, summary: str, node: Node, hint: str | None = None, *, broken: bool = False
    ) -> None:
        span = self.text.span(where(node), broken=broken)
        self.out.append(Diagnostic(code=code, summary=summary, hint=hint, span=span))
        self.whole = False
        if len(self.out) >= MAX_FINDINGS:
            raise StopReading

    def _count(self, number: int, event: Any) -> None:
        self.size += number
        if self.size > MAX_NODES:
            self._too_many(f"the file has more than {MAX_NODES} values, aliases unfolded", event)

    def _too_many(self, summary: str, event: Any) -> Never:
        self.out.append(too_large(summary, self.text.span(place_of(event.start_mark, event.end_mark))))
        raise StopReading

    def _kind(self, event: Any) -> int:
        kind = self.kinds.get(type(event))
        if kind is None:
            kind = self.kinds[type(event)] = _KINDS.get(type(event).__name__, _OTHER)
        return kind

    def _value(self, event: Any, depth: int) -> tuple[Any, Node]:
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
            self._deep(depth + 1, event)
            self._count(1, event)
            if event.tag is not None and event.tag not in _PLAIN_TAGS:
                self._tag(event)
            read = self._mapping if kind == _MAPPING else self._sequence
            data, node = read(event, depth + 1)
        if anchor is not None:
            self.anchors[anchor] = (data, node, self.size - size, self.deepest - depth)
        self.deepest = max(self.deepest, outer)
        return data, node

    def _alias(self, event: Any, name: str, depth: int) -> tuple[Any, Node]:
        anchor = self.anchors.get(name)
        if anchor is not None:
            data, node, size, height = anchor
            self._count(size, event)
            self._deep(depth + height, event)
            return data, node
        place = place_of(event.start_mark, event.end_mark)
        if name in self.anchors:
            summary = f"`*{name}` refers to a value that contains it"
            self._say("unsupported-yaml", summary, place, "write the value out")
        else:
            shown = "*…" if self.text.masks(event.start_mark.line) else f"*{name[:40]}"
            hint = f"mark a value with `&…` before it, or put `{shown}` in quotes if it is text"
            summary = f"`{shown}` refers to nothing"
            if name in self.earlier:
                summary += " in this document: an anchor ends with its document, at `---`"
                hint = "write the value out, or mark one with `&…` in this document"
            self._say("yaml-syntax", summary, place, hint, broken=True)
        return None, place

    def _deep(self, depth: int, event: Any) -> None:
        if depth > MAX_DEPTH:
            span = self.text.span(place_of(event.start_mark, event.end_mark))
            summary = f"values are nested more than {MAX_DEPTH} deep"
            self.out.append(Diagnostic(code="too-deep", summary=summary, hint="nest them less", span=span))
            raise StopReading
        self.deepest = max(self.deepest, depth)

    def _sequence(self, start: Any, depth: int) -> tuple[Any, Node]:
        data: list[Any] = []
        nodes: list[Node] = []
        kinds, scalar = self.kinds, self._scalar
        for event in self.events:
            kind = kinds.get(type(event))
            if kind is None:
                kind = self._kind(event)
            if kind == _END:
                last = nodes[-1] if nodes else None
                return data, (_whole_place(start, event, last), None, *nodes)
            if len(data) >= MAX_ITEMS:
                self._too_many(f"a list has more than {MAX_ITEMS} items", event)
            # Most items are plain, and lists may be long: this avoids a call of `_value` for each.
            plain = kind == _SCALAR and event.anchor is None
            value, node = scalar(event) if plain else self._value(event, depth)
            data.append(value)
            nodes.append(node)
        raise StopReading

    def _mapping(self, start: Any, depth: int) -> tuple[Any, Node]:
        data: dict[str, Any] = {}
        nodes: list[Node] = []
        merged: list[tuple[Any, Node]] = []
        at: dict[str, int] = {}
        """Key → the index of its place in `nodes`, if a later key of the same name may replace it."""
        node: Node = None
        kinds, scalar = self.kinds, self._scalar
        for event in self.events:
            kind = kinds.get(type(event))
            if kind is None:
                kind = self._kind(event)
            if kind == _END:
                whole = _whole_place(start, event, node)
                for more, more_node in merged:
                    self._merge(more, more_node, data, nodes)
                keys = tuple(data)
                shape = self.shapes.get(keys)
                if shape is None:  # one for all mappings with the same keys
                    shape = self.shapes[keys] = {key: 2 + 2 * i for i, key in enumerate(keys)}
                return data, (whole, shape, *nodes)
            plain = kind == _SCALAR and event.anchor is None  # as in `_sequence`
            key, key_node = scalar(event) if plain else self._value(event, depth)
            inner = next(self.events)
            plain = kinds.get(type(inner)) == _SCALAR and inner.anchor is None
            if self.merges and _is_merge(key, event):
                merged.append(self._value(inner, depth))
                continue
            if _is_merge(key, event) and self._kind(inner) == _ALIAS:
                value, node = None, key_node  # the key is the mistake, whatever the alias refers to
            else:
                value, node = scalar(inner) if plain else self._value(inner, depth)
            if self.merges and isinstance(key, bool | int | float | None):
                key = str(key)
            elif self.merges and start.flow_style and value is None and isinstance(key, str):
                # The parser leaves the colon of `{a:}` at the key.
                key = key if getattr(event, "style", None) else key.removesuffix(":")
            if not self._usable(key, key_node, event):
                continue
            if key in data:
                if self.merges:
                    lines = (self.text.span(place).line for place in (nodes[at[key]], key_node))
                    self.doubles.append((key, *lines))
                    data[key], nodes[at[key] : at[key] + 2] = value, (key_node, node)
                else:
                    first = self.text.span(nodes[2 * list(data).index(key)]).line
                    whole, summary = self.whole, f"`{key}` is already in line {first}"
                    self._say("duplicate-key", summary, key_node, "remove one of the two")
                    self.whole = whole  # nothing is missing: the first value counts
                continue
            if len(data) >= MAX_ITEMS:
                self._too_many(f"a mapping has more than {MAX_ITEMS} keys", event)
            if self.merges:
                at[key] = len(nodes)
            data[key] = value
            nodes += (key_node, node)
        raise StopReading

    def _merge(self, more: Any, node: Node, data: dict[str, Any], nodes: list[Node]) -> None:
        """Add the keys of one merged mapping, or of a list of them, that are not there yet."""
        if isinstance(more, list):
            for item, item_node in zip(more, node[2:], strict=True):
                self._merge(item, item_node, data, nodes)
        elif isinstance(more, dict):
            for key, at in node[1].items():
                if key not in data:
                    data[key] = more[key]
                    nodes += node[at : at + 2]
        else:
            self._say("yaml-syntax", "`<<` merges mappings, and this is none", node, "write the fields out")

    def _usable(self, key: Any, node: Node, event: Any) -> bool:
        """Whether a key can be a field's name. `event` is its first event."""
        if not isinstance(key, str):
            if isinstance(node, tuple):
                shown = "a list or a mapping"
                hint = 'put the value in quotes where a bracket is text; a template is written "${{ … }}"'
            else:
                shown, hint = f"`{json.dumps(key)}`", f"put it in quotes: `'{json.dumps(key)}'`"
            self._say("non-string-key", f"{shown} cannot be a key: keys are strings", node, hint)
        elif _is_merge(key, event):
            self._say("unsupported-yaml", "merge keys are not supported", node, "write the fields out")
        elif len(key) > MAX_KEY:
            summary = f"a key has more than {MAX_KEY} characters"
            self._say("too-large", summary, node, "check indentation and quotes")
        else:
            return True
        return False

    def _tag(self, event: Any) -> None:
        hint = "remove the tag; " + QUOTE + " where it shall be a string"
        place = place_of(event.start_mark, event.end_mark)
        hidden = self.text.masks(event.start_mark.line)
        shown = "a tag" if hidden else f"the tag `{str(event.tag)[:40]}`"
        self._say("unsupported-yaml", f"{shown} is not supported", place, hint, broken=True)

    def _scalar(self, event: Any) -> tuple[Any, int]:
        text: str = event.value
        text = self.texts.setdefault(text, text)
        start, end = event.start_mark, event.end_mark
        line = start.line
        place: int = ((end.line - line) << 24 | end.column) << 48 | start.column << 24 | line  # `packed`
        self.size += 1 + (len(text) >> 6)
        if self.size > MAX_NODES:
            self._count(0, event)
        tag = event.tag
        if tag is not None:
            if tag not in _TEXT_TAGS:
                self._tag(event)
            return text, place
        if event.style:
            if event.style == '"' and _UNUSABLE.search(text):
                summary = "the text contains a character that cannot be used (U+0000, or half a character)"
                self._say("bad-encoding", summary, place, "remove the escape")
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
            hint = f"whole numbers go up to {MAX_WHOLE}; {QUOTE} if it is text"
            self._say("out-of-range", summary, place, hint)
            return None
        return value


def _is_merge(key: Any, event: Any) -> bool:
    return key == "<<" and not getattr(event, "style", None)


def _whole_place(start: Any, end: Any, last: Node) -> int:
    """The place of a collection. For the parser, a block ends where the next value starts; readers expect the
    end of its last value.
    """
    if start.flow_style or last is None:
        return place_of(start.start_mark, end.end_mark)
    return packed(start.start_mark.line, start.start_mark.column, *unpacked(where(last))[2:])


Events = list[Any]
"""The parser's events."""


def events_of(text: str, *, pure: bool = False) -> Iterator[Any]:
    """The parser's events, as they are read. Errors of ruamel.yaml pass.

    With `pure`, ruamel's own parser: it is many times slower, and reads `{L4:1}` as PyYAML does.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.main import CParser  # type: ignore[attr-defined]

    if CParser and not pure:  # only CPython has it
        parser = CParser(text)
    else:
        # It searches a folder for plug-ins and makes a class, which takes as long as 300 values do. Its
        # `parse` calls the parser twice for each event.
        yaml = YAML(typ="safe", pure=pure)
        if pure:
            yaml.version = "1.1"
        _, parser = yaml.get_constructor_parser(text)
    return iter(parser.get_event, None)


def _events(text: Text, out: list[Diagnostic], kept: Events | None, *, pure: bool = False) -> Iterator[Any]:
    """The parser's events; `kept` gets them, too. A syntax error is reported and ends the reading. For `pure`
    see `events_of`.
    """
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        events = events_of(text.text, pure=pure)
        if kept is None:
            yield from events
            return
        for event in events:
            kept.append(event)
            yield event
    except MarkedYAMLError as bad:
        out.append(explain(text, bad))
        raise StopReading from None
    except (YAMLError, UnicodeError, ValueError) as bad:
        # The checks of `_decoded` should make this impossible.
        span = Span(text.file, 1, 1, 1, 1)
        out.append(Diagnostic(code="yaml-syntax", summary=str(bad)[:200], span=span))
        raise StopReading from None


# ------------------------------------------------------------------------------------ YAML as PyYAML reads it

PYYAML_BYTES = 1 << 19
"""The parser that reads such files takes about a second for 100 kB."""
_WORDS_11: dict[str, bool | None] = {
    form: value
    for words, value in (("yes true on", True), ("no false off", False), ("null", None))
    for word in words.split()
    for form in (word, word.capitalize(), word.upper())
} | {"": None, "~": None}
_NUMBERS = (
    (re.compile(r"[-+]?0b[0-1_]+"), 2),
    (re.compile(r"[-+]?0x[0-9a-fA-F_]+"), 16),
    (re.compile(r"[-+]?0[0-7_]+"), 8),
    (re.compile(r"[-+]?(?:0|[1-9][0-9_]*)"), 10),
)
_SIXTIES = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*")
_REAL = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?")
MAX_DIGITS = 30
"""Longer numbers stay text."""


def _plain_11(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS_11:
        return _WORDS_11[text]
    if text[0] not in "0123456789+-." or len(text) > MAX_DIGITS:
        return text
    for form, base in _NUMBERS:
        if form.fullmatch(text):
            digits = text.replace("_", "").lower()
            if base in (2, 16):
                digits = re.sub("0[bx]", "", digits, count=1)
            return int(digits, base) if digits.strip("+-") else text
    if _SIXTIES.fullmatch(text):
        sign = -1 if text[0] == "-" else 1
        parts = text.replace("_", "").lstrip("+-").split(":")
        number = float if "." in parts[-1] else int
        total: float = number(0)
        for part in parts:
            total = total * 60 + number(part)
        return sign * total
    return float(text.replace("_", "")) if _REAL.fullmatch(text) else text


class PyYamlReader(Reader):
    """Reads the events of one file of a tool that uses PyYAML, as dstack and SkyPilot do: YAML 1.1.

    `{L4:1, A10G:1}` is two keys without values, `yes` is true, `010` is eight, `1:30` is ninety, `<<` merges,
    and the last of equal keys counts. All limits hold. Dates stay text.
    """

    merges: ClassVar[bool] = True

    def _scalar(self, event: Any) -> tuple[Any, int]:
        if event.tag is not None or event.style:
            return super()._scalar(event)
        self._count(1 + (len(event.value) >> 6), event)
        return _plain_11(event.value), place_of(event.start_mark, event.end_mark)
