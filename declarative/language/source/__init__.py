"""Reads YAML text into plain data that knows where it was written.

It reads the C parser's *events*, not its composed nodes: the composer recurses without a limit, and a few
thousand `[` end the process with a segmentation fault. With events, every limit also applies while reading,
so that a stranger's file (alias bombs, deep nesting, a million documents) is refused before it costs
anything. Scalars follow YAML 1.2's core schema: `yes` and dates are strings, `010` is ten.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from declarative.language.source.places import Document, Path, Text
from declarative.language.source.reader import (
    MAX_DEPTH,
    MAX_NODES,
    PYYAML_BYTES,
    Events,
    PyYamlReader,
    Reader,
    StopReading,
    too_large,
)
from declarative.model.diagnostic import Diagnostic, InvalidError, Span, in_order
from declarative.model.record import struct

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_NODES",
    "Document",
    "Path",
    "Reading",
    "no_collections",
    "parse",
    "read",
]

MAX_BYTES = 4 << 20
MAX_MARKS = 600_000
"""Line ends, commas and colons of one file, about one for each value. Counting them takes 2 % of the time for
reading the values; 10,000 usual documents have half as many.
"""
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Characters that YAML forbids. Also characters that end a line for the parser but not for editors, as they
turn comments into values, and characters that change the direction of writing, as they mislead a reviewer.
"""
_USUAL = bytes(range(0x20, 0x7F)) + b"\t\n\r"
"""The bytes of most files, all printable: testing for them is fast."""
_DIRECTIVE = re.compile("(?:^|(?<=[\n\r]))%(?!YAML\\s)\\S*")


@struct(frozen=True, slots=True)
class Reading:
    """The readable documents of a file, and its errors. With `lost` it may have more documents. `events` are
    the parser's, if they were asked for.
    """

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]
    lost: bool = False
    events: Events = field(default_factory=list)


def read(content: str | bytes, file: str, *, pyyaml: bool = False) -> list[Document]:
    """The documents of a file; `InvalidError` with all errors of its YAML. With `pyyaml`, scalars and keys
    are read as PyYAML reads them.
    """
    reading = parse(content, file, pyyaml=pyyaml)
    if reading.diagnostics:
        raise InvalidError(in_order(reading.diagnostics))
    return list(reading.documents)


def parse(content: str | bytes, file: str, *, events: bool = False, pyyaml: bool = False) -> Reading:
    """As `read`, but returns the readable documents beside the findings. Empty documents are left out. With
    `events`, the result has the parser's events, too.
    """
    out: list[Diagnostic] = []
    text = _decoded(content, file, out, PYYAML_BYTES if pyyaml else MAX_BYTES)
    if text is None:
        return Reading((), tuple(out), lost=True)
    documents: list[Document] = []
    kept_events: Events = []
    reader = (PyYamlReader if pyyaml else Reader)(Text(file, text), out, kept_events if events else None)
    try:
        with no_collections():
            for document in reader.documents():
                documents.append(document)  # noqa: PERF402 - those before a stop are kept
    except StopReading:
        reader.lost = True
    return Reading(tuple(documents), tuple(out), lost=reader.lost, events=kept_events)


@contextmanager
def no_collections() -> Iterator[None]:
    """Turns the garbage collector off for objects that live to the end. It would search all of them again and
    again, which doubles the time for many small lists.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # The next new object would start a search of all of them. This moves them to the oldest
            # generation.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def _decoded(content: str | bytes, file: str, out: list[Diagnostic], most: int) -> str | None:
    start = Span(file, 1, 1, 1, 1)
    if len(content) > most:
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        out.append(too_large(f"the file is larger than {size}", start))
        return None
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        text.encode("utf-8")
    except UnicodeError:
        hint = "save it as UTF-8, and keep binary files out of the project's directory"
        summary = "the file is not UTF-8 text"
        out.append(Diagnostic(code="bad-encoding", summary=summary, hint=hint, span=start))
        return None
    text = text.removeprefix("\ufeff")
    if sum(map(text.count, "\n\r,:")) > MAX_MARKS:
        out.append(too_large(f"the file has more than {MAX_MARKS} lines and separators", start))
        return None
    usual = text.isascii() and not text.encode().translate(None, _USUAL)
    if not usual and (bad := _UNPRINTABLE.search(text)):
        summary = f"the file holds the control character U+{ord(bad.group()):04X}"
        place = Text(file, text).at(bad.start())
        hint = "remove it; in double quotes it can be written as an escape, such as `\\x1b`"
        out.append(Diagnostic(code="bad-encoding", summary=summary, hint=hint, span=place))
        return None
    if "%" in text and (directive := _DIRECTIVE.search(text)):
        # They have no use here, and the parser compares each %TAG with all before it.
        summary = f"the directive `{directive.group()[:20]}` is not supported"
        place = Text(file, text).at(directive.start())
        out.append(Diagnostic(code="unsupported-yaml", summary=summary, hint="remove the line", span=place))
        return None
    return text
