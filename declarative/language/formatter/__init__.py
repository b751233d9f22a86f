"""Brings YAML text into its normal form, with every comment in its place.

The text is edited between the positions that the parser gives, and not dumped anew. ruamel's own round trip
ties a comment to the key *before* it, so that sorting keys would tear comments from what they explain. It
also rewraps flow collections and long scalars. Here, everything unchanged is copied from the text. `layout`
reads the pieces, `normal` knows the order of keys and the notations of values.

The result is read again and compared with the original, value by value and comment by comment. If it does not
mean the same, it is discarded. `with_host_keys` writes into a document in the same way.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declarative.language.formatter.layout import (
    Layout,
    Line,
    Note,
    YamlItem,
    YamlNode,
    block_indent,
    ended,
    keeps,
    roots,
)
from declarative.language.formatter.normal import (
    Hint,
    arrange,
    hint_of,
    inside,
    same,
    scalar_form,
    without_blanks,
    written,
)
from declarative.language.source import Document, Path, Reading, no_collections, parse
from declarative.language.source.reader import Events
from declarative.model.diagnostic import Diagnostic, Span
from declarative.model.record import struct

STEP = 2
"""How many spaces a level is indented. Lists are one level below their key."""

_BREAK = re.compile("\r\n|\r")
_MARKER = re.compile(r"^(?:---(?=\s|\Z)|\.\.\.(?=\s|\Z)|%).*$", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")


@struct(frozen=True, slots=True)
class Formatted:
    """The text in its normal form; None if it has none, with the findings that say why."""

    text: str | None
    diagnostics: tuple[Diagnostic, ...] = ()


def format_text(content: str | bytes, file: str, known: Reading | None = None) -> Formatted:
    """The normal form of a file's content, as UTF-8 with LF and without a BOM. `known` is its `parse`, with
    the events, if there was one.
    """
    reading = known if known is not None else parse(content, file, events=True)
    if reading.diagnostics:
        return Formatted(None, reading.diagnostics)
    text = content if isinstance(content, str) else content.decode("utf-8")
    text, original = ended(_BREAK.sub("\n", text.removeprefix("\ufeff"))), text
    events = reading.events if text == original else parse(text, file, events=True).events
    with no_collections():
        new = _rewritten("\n" + text, events, reading.documents)
        same_meaning = new == text or _unchanged(text, events, new, reading.documents, file)
    if not same_meaning:
        summary = "formatting would have changed what this file means; it was left as it is"
        hint, span = "this is a fault of fleetform: please report it", Span(file, 1, 1, 1, 1)
        return Formatted(None, (Diagnostic(code="internal-error", summary=summary, hint=hint, span=span),))
    return Formatted(new)


class _Writer:
    """Writes the lines of the new text."""

    def __init__(self, text: str) -> None:
        self.text, self.out = text, list[str]()
        self.prefix: str | None = None
        self.after_literal = 0
        """The number of lines up to the end of the last block scalar that would absorb blank
        lines after it.
        """

    def line(self, column: int, text: str) -> None:
        """Add a line at a column, or after a pending `- `."""
        self.out.append((" " * column if self.prefix is None else self.prefix) + text)
        self.prefix = None

    def lines(self, lines: Sequence[Line], column: int) -> None:
        """Add comments and blank lines: at most one blank line in a row, and none that a block scalar would
        absorb.
        """
        for _, text in lines:
            if text:
                self.line(column, text)
            elif self.prefix is None and len(self.out) != self.after_literal:
                at_start = not self.out or not self.out[-1] or self.out[-1].startswith("---")
                if not at_start:
                    self.out.append("")

    def between(self, text: str) -> None:
        """Add the text between documents, with its markers. A value may follow on the last line."""
        first, *lines, last = text.split("\n") if "\n" in text else ("", text)
        if first.strip():
            self.out[-1] += " " + first.strip()
        for line in lines:
            self.lines([(0, line.strip())], 0)
        if last.strip():
            self.prefix = last.strip() + " "

    def result(self) -> str:
        """The text, without meaningless blank lines at its end."""
        while self.out and not self.out[-1] and len(self.out) != self.after_literal:
            self.out.pop()
        return "".join(f"{line}\n" for line in self.out)

    def document(self, root: YamlNode, lead: Sequence[Line], data: Any) -> None:
        """Add one document, with the lines above it."""
        hint = hint_of(data)
        if root.laid_out:
            root.entries[0].lead = [*lead, *root.entries[0].lead]
            arrange(root, hint, root=True)
            self.block(root, hint, data, 0)
            return
        self.lines(lead, 0)
        lines = self.shifted(root, self.piece(root, hint, data, flow=False), (-1, -1))
        self.value(root, lines, root.column if root.odd else 0)
        self.comment(root.entries[0].eol, 0)

    def block(self, node: YamlNode, hint: Hint, data: Any, column: int) -> None:
        """Add a block collection whose entries begin at `column`."""
        lead = without_blanks(node.entries[0].lead)
        if self.prefix is not None:
            # The first comment follows the `-`. Nothing is kept between that line and the next item.
            lead = lead[:1] + without_blanks(lead[1:])
        node.entries[0].lead = lead
        for i, entry in enumerate(node.entries):
            self.lines(entry.lead, column)
            name = entry.name(i)
            self.entry(entry, inside(hint, name), data[name], (column, node.column))
            self.lines(entry.behind, column)
        self.lines(node.tail, column)

    def entry(self, entry: YamlItem, hint: Hint, data: Any, columns: tuple[int, int]) -> None:
        """Add one item. `columns` are the new and the old column of its collection."""
        column, old = columns
        node, key = entry.value, entry.key
        if node.properties:
            hint = Any  # an alias may repeat this value where another notation applies
        head = self.text[key.start : key.end] + ":" if key else "-"
        new = self.normal(entry, hint, data)
        if new is None and node.laid_out:
            self.opening(entry, head, columns)
            self.block(node, hint, data, column + STEP)
            return
        lines = self.shifted(node, new, columns)
        if entry.on_next_line and not node.laid_out:
            self.line(column, head)
            self.comment(entry.head, column - old)
            self.lines(entry.between, column + STEP)
            self.value(node, lines, column + STEP)
        else:
            first, *rest = lines
            self.value(node, [f"{head} {first}" if first else head, *rest], column)
        self.comment(entry.eol, column - old)

    def opening(self, entry: YamlItem, head: str, columns: tuple[int, int]) -> None:
        """Add what precedes a block collection: the line of its key, or a pending `- ` for its first line."""
        column, old = columns
        if head == "-" and not entry.on_next_line and not entry.properties:
            self.prefix = (" " * column if self.prefix is None else self.prefix) + "- "
            return
        self.line(column, head + (entry.properties and f" {entry.properties}"))
        self.comment(entry.head, column - old)

    def value(self, node: YamlNode, lines: Sequence[str], column: int) -> None:
        """Add a value that is kept whole, its first line at `column`."""
        first, *rest = lines
        self.line(column, first)
        self.out += rest
        if keeps(node, self.text):
            self.after_literal = len(self.out)

    def comment(self, note: Note | None, shift: int) -> None:
        """Add a comment to the end of the last line, in its old column if possible."""
        if note:
            column, text, space = note
            pad = 1 if space <= 1 else max(1, column + shift - len(self.out[-1]))
            self.out[-1] += " " * pad + text

    def shifted(self, node: YamlNode, new: str | None, columns: tuple[int, int]) -> list[str]:
        """The lines of a value that is kept whole; all but the first are indented."""
        column, old = columns
        raw = self.text[node.start : node.end] if new is None else new
        first, *rest = raw.split("\n")
        if node.odd:
            # It begins at its entry's value, unless its first line has only properties.
            shift = column - old if node.properties or column < 0 else column + STEP - node.column
            return [first, *(_shift(line, shift, 0) for line in rest)]
        if node.kind == "scalar" and node.block:
            indent, _ = block_indent([first, *rest], old)
            return [first.rstrip(), *(_literal_line(line, indent, column - old) for line in rest)]
        return [_trimmed(first), *(_trimmed(_shift(line, column - old, column + 1)) for line in rest)]

    def normal(self, entry: YamlItem, hint: Hint, data: Any) -> str | None:
        """The new text of a value that is not written entry by entry; None to keep the old."""
        node = entry.value
        if node.laid_out:
            end = self.text.find("\n", node.after)
            whole = self.text[entry.begin : end if end >= 0 else None]
            return None if "#" in whole or entry.properties else self.as_scalar(node, hint, data, whole)
        return self.piece(node, hint, data, flow=False)

    def as_scalar(self, node: YamlNode, hint: Hint, data: Any, raw: str, *, flow: bool = False) -> str | None:
        """The scalar form of a mapping; None if it would lose something."""
        if node.kind != "map" or node.marks or "${" in raw or "#" in raw:
            return None
        return scalar_form(data, hint, flow=flow)

    def piece(self, node: YamlNode, hint: Hint, data: Any, *, flow: bool) -> str | None:
        """The new text of a scalar or a flow collection. The layout stays."""
        raw = self.text[node.start : node.end]
        if node.properties or node.block or node.kind == "alias":
            return None
        if node.kind == "scalar":
            if "\n" in raw or "${" in raw or (flow and self.text[node.start - 1] not in " \n[{,"):
                return None
            return written(data, raw, hint, flow=flow)
        scalar = self.as_scalar(node, hint, data, raw, flow=flow)
        return self.flow(node, hint, data) if scalar is None else scalar

    def flow(self, node: YamlNode, hint: Hint, data: Any) -> str:
        """A flow collection with its scalars in their notation."""
        out, position = "", node.start
        for i, item in enumerate(node.items):
            if node.kind == "map" and not i % 2:
                continue
            name = node.items[i - 1].value if node.kind == "map" else i
            new = self.piece(item, inside(hint, name), data[name], flow=True)
            out += self.text[position : item.start] + (
                self.text[item.start : item.end] if new is None else new
            )
            position = item.end
        return out + self.text[position : node.end]


def _shift(line: str, shift: int, least: int) -> str:
    """The line with its indentation changed. Text is indented by at least `least`."""
    body = line.lstrip(" ")
    return " " * max(least, len(line) - len(body) + shift) + body if body or not least else ""


def _literal_line(line: str, indent: int, shift: int) -> str:
    """A line of a block scalar, moved by `shift`; empty if blank. The content is indented by `indent`."""
    blank = not line.strip(" ") and len(line) <= indent
    return "" if blank else _shift(line, shift, 0)


def _trimmed(line: str) -> str:
    """The line without trailing spaces; unchanged after a backslash, where the first space may belong to a
    string.
    """
    stripped = line.rstrip(" \t")
    return line if stripped.endswith("\\") else stripped


def _rewritten(text: str, events: Events, documents: Sequence[Document]) -> str:
    """The new text. The old one begins with an extra line break, so that each line has one before it."""
    layout, writer = Layout(text), _Writer(text)
    mappings = (root for root in roots(events, 1) if root.kind == "map")  # one at a time: each is large
    for root, document in zip(mappings, documents, strict=True):
        start = layout.position
        end = max((m.end() for m in _MARKER.finditer(text, start, root.start)), default=start)
        layout.position = end
        lead = layout.lines()
        # A value that follows a marker on the same line stays on that line.
        writer.between(text[start:end] + ("\n" if end > start and text[end] == "\n" else ""))
        layout.root(root)
        writer.document(root, lead, document.data)
    writer.between(text[layout.position :] + "\n")
    return writer.result()


def _unchanged(old: str, old_events: Events, new: str, documents: Sequence[Document], file: str) -> bool:
    """Whether the new text means the same and has the same comments."""
    reading = parse(new, file, events="#" in new)
    if reading.diagnostics or len(reading.documents) != len(documents):
        return False
    for before, after in zip(documents, reading.documents, strict=True):
        if not same(before.data, after.data, hint_of(before.data)):
            return False
    if "#" not in new:
        return "#" not in old or not _comments(old, old_events)
    return _comments(old, old_events) == _comments(new, reading.events)


def _comments(text: str, events: Events) -> Counter[str]:
    """The comments of a text: what begins with `#` outside of scalars."""
    out: list[str] = []
    position = 0
    for event in events:
        if type(event).__name__ == "ScalarEvent":
            start = event.start_mark.index
            if text.find("#", position, start) >= 0:
                out += (m[0].rstrip() for m in _COMMENT.finditer(text, position, start))
            position = event.end_mark.index
    out += (m[0].rstrip() for m in _COMMENT.finditer(text, position))
    return Counter(out)


FIELD = "host_keys"
Edit = tuple[int, int, str]
"""Two offsets, and the new text between them."""
_ANY_BREAK = re.compile("\r\n|[\r\n]")
_ANCHOR = re.compile(r"&[^\s,\[\]{}]+[ \t]+")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def with_host_keys(text: str, file: str, line: int, keys: Mapping[Path, str]) -> str | None:
    """The text with keys at hosts of the document whose name is at `line`; None if they cannot be written
    there. `keys` is the path of a host in the document → its key.
    """
    reading = parse(text, file)
    numbers = [i for i, document in enumerate(reading.documents) if document.span(("name",)).line == line]
    if len(numbers) != 1 or reading.diagnostics:
        return None
    intended = [copy.deepcopy(dict(document.data)) for document in reading.documents]
    place = _Offsets(text=text, document=reading.documents[numbers[0]])
    edits: set[Edit] = set()  # where an alias repeats a mapping, there is one for all
    for path, key in keys.items():
        if not _is_host(place.document.data, path):
            return None
        hosts, host = _at(intended[numbers[0]], path[:-1]), _at(intended[numbers[0]], path)
        hosts[path[-1]] = {**(host if isinstance(host, dict) else {"hostname": host}), FIELD: [key]}
        edits.update(_edits(place, path, key))
    for start, end, new in sorted(edits, reverse=True):  # from the last one back: the others stay in place
        text = text[:start] + new + text[end:]
    reading = parse(text, file)
    is_intended = not reading.diagnostics and [dict(d.data) for d in reading.documents] == intended
    return text if is_intended else None


def _at(data: Any, path: Path) -> Any:
    for step in path:
        if isinstance(data, str):  # a template stands for it
            raise KeyError(step)
        data = data[step]
    return data


def _is_host(data: Any, path: Path) -> bool:
    """Whether a host stands at that path."""
    try:
        return isinstance(_at(data, path), str | dict)
    except (KeyError, IndexError, TypeError):
        return False


class _Offsets:
    """Where the values of a document begin and end in the text of its file."""

    def __init__(self, text: str, document: Document) -> None:
        self.text, self.document = text, document
        self._lines = [0, *(line_end.end() for line_end in _ANY_BREAK.finditer(text))]

    def offsets(self, path: Path) -> tuple[int, int]:
        """The offsets of a value's first character, and of the one after its last."""
        span = self.document.span(path)
        return (
            self._lines[span.line - 1] + span.column - 1,
            self._lines[span.end_line - 1] + span.end_column - 1,
        )


def _edits(place: _Offsets, path: Path, key: str) -> Iterator[Edit]:
    """The edits that write a key at one host."""
    text, host = place.text, _at(place.document.data, path)
    start, end = place.offsets(path)
    if anchor := _ANCHOR.match(text, start):
        start = anchor.end()
    if isinstance(host, str):
        name = host if _WORD.fullmatch(host) else json.dumps(host, ensure_ascii=False)
        yield start, end, f"{{hostname: {name}, {FIELD}: [{key}]}}"
    elif FIELD in host:
        yield from _replaced(place, (*path, FIELD), host[FIELD], key)
    elif text[start] == "{":
        body = text[start:end].rstrip().removesuffix("}").rstrip()
        at = start + len(body)
        yield at, at, f"{' ' if body.endswith(',') else ', '}{FIELD}: [{key}]"
    else:  # Below the line of its name: a comment there stays with it.
        column = place.document.span((*path, "hostname"), key=True).column - 1
        line_end = _ANY_BREAK.search(text, place.offsets((*path, "hostname"))[1])
        at, ending = (line_end.end(), line_end[0]) if line_end else (len(text), "\n")
        yield at, at, f"{'' if line_end else ending}{' ' * column}{FIELD}: [{key}]{ending}"


def _replaced(place: _Offsets, path: Path, old: Any, key: str) -> Iterator[Edit]:
    """The edits that write the new key in place of the first one, and remove the others."""
    text, (start, end) = place.text, place.offsets(path)
    if not isinstance(old, Sequence) or isinstance(old, str) or not old or text[start] == "[":
        yield start, end, f"[{key}]"
        return
    yield (*place.offsets((*path, 0)), key)
    for i in range(1, len(old)):
        first, last = place.offsets((*path, i))
        line = max(text.rfind("\n", 0, first), text.rfind("\r", 0, first)) + 1
        line_end = _ANY_BREAK.search(text, last)
        yield line, line_end.end() if line_end else len(text), ""
