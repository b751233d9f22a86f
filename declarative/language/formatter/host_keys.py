"""Writes host keys into a document where it stands: every other byte of the file stays.

The text is edited between the positions that the parser gives, as the formatter does. The result is read
again. If it has another meaning than intended, such as where an alias repeats the place, nothing is written.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declarative.language.source import Document, Path, parse

FIELD = "host_keys"
Edit = tuple[int, int, str]
"""Two offsets, and the new text between them."""
_BREAK = re.compile("\r\n|[\r\n]")
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
        self._lines = [0, *(line_end.end() for line_end in _BREAK.finditer(text))]

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
        line_end = _BREAK.search(text, place.offsets((*path, "hostname"))[1])
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
        line_end = _BREAK.search(text, last)
        yield line, line_end.end() if line_end else len(text), ""
