"""Writes host keys into a document where it stands: every other byte of the file stays.

The text is edited between the positions that the parser gives, as `format` does. The result is read again: if
it does not mean what it should, as where an alias repeats the place elsewhere, nothing is written.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from declarative.language.source import Document, Path, parse
from declarative.model.diagnostic import Span

FIELD = "host_keys"
_BREAK = re.compile("\r\n|[\r\n]")
_ANCHOR = re.compile(r"&[^\s,\[\]{}]+[ \t]+")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def with_host_keys(text: str, file: str, line: int, keys: Mapping[Path, str]) -> str | None:
    """The text with keys at hosts of the document whose name is at `line`; None if they cannot be written
    there. `keys` is the path of a host in the document → its key.
    """
    number = _number(text, file, line)
    wanted = [copy.deepcopy(dict(document.data)) for document in parse(text, file).documents]
    for path, key in keys.items():
        reading = parse(text, file)
        if number is None or reading.diagnostics or not _is_there(reading.documents[number].data, path):
            return None
        _put(wanted[number], path, key)
        document = reading.documents[number]
        host = _at(document.data, path)
        if isinstance(host, str) or host.get(FIELD) != [key]:  # where an alias repeats it, it is there now
            text = _edited(text, document, path, key)
    reading = parse(text, file)
    whole = not reading.diagnostics and [dict(d.data) for d in reading.documents] == wanted
    return text if whole else None


def _number(text: str, file: str, line: int) -> int | None:
    documents = parse(text, file).documents
    found = [i for i, document in enumerate(documents) if document.span(("name",)).line == line]
    return found[0] if len(found) == 1 else None


def _at(data: Any, path: Path) -> Any:
    for step in path:
        if isinstance(data, str):  # a template stands for it
            raise KeyError(step)
        data = data[step]
    return data


def _is_there(data: Any, path: Path) -> bool:
    try:
        return isinstance(_at(data, path), str | dict)
    except (KeyError, IndexError, TypeError):
        return False


def _put(data: Any, path: Path, key: str) -> None:
    above, host = _at(data, path[:-1]), _at(data, path)
    above[path[-1]] = {**(host if isinstance(host, dict) else {"hostname": host}), FIELD: [key]}


def _edited(text: str, document: Document, path: Path, key: str) -> str:
    host, span = _at(document.data, path), document.span(path)
    start, end = _offsets(text, span)
    if anchor := _ANCHOR.match(text, start):
        start = anchor.end()
    if isinstance(host, str):
        name = host if _WORD.fullmatch(host) else json.dumps(host, ensure_ascii=False)
        return f"{text[:start]}{{hostname: {name}, {FIELD}: [{key}]}}{text[end:]}"
    if FIELD in host:
        return _replaced(text, document, (*path, FIELD), host[FIELD], key)
    if text[start] == "{":
        inner = text[start:end].rstrip()
        body = inner.removesuffix("}").rstrip()
        separator = " " if body.endswith(",") else ", "
        return f"{text[:start]}{body}{separator}{FIELD}: [{key}]{inner[len(body) :]}{text[end:]}"
    # Below the line of its name: a comment there stays with it.
    column = document.span((*path, "hostname"), key=True).column - 1
    _, behind = _offsets(text, document.span((*path, "hostname")))
    found = _BREAK.search(text, behind)
    at, ending = (found.end(), found[0]) if found else (len(text), "\n")
    before = "" if found else ending
    return f"{text[:at]}{before}{' ' * column}{FIELD}: [{key}]{ending}{text[at:]}"


def _replaced(text: str, document: Document, path: Path, old: Any, key: str) -> str:
    """With the new key in the place of the first one, and without the others."""
    if not isinstance(old, Sequence) or isinstance(old, str) or not old:
        start, end = _offsets(text, document.span(path))
        return f"{text[:start]}[{key}]{text[end:]}"
    start, _ = _offsets(text, document.span(path))
    if text[start] == "[":
        start, end = _offsets(text, document.span(path))
        return f"{text[:start]}[{key}]{text[end:]}"
    for i in reversed(range(1, len(old))):
        first, last = _offsets(text, document.span((*path, i)))
        line = max(text.rfind("\n", 0, first), text.rfind("\r", 0, first)) + 1
        found = _BREAK.search(text, last)
        text = text[:line] + text[found.end() if found else len(text) :]
    first, last = _offsets(text, document.span((*path, 0)))
    return f"{text[:first]}{key}{text[last:]}"


def _offsets(text: str, span: Span) -> tuple[int, int]:
    starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    return starts[span.line - 1] + span.column - 1, starts[span.end_line - 1] + span.end_column - 1
