"""Diagnostics as text: the code, the place with its source line and a caret, the hint last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from declarative.model.diagnostic import Diagnostic, Severity, Span
from declarative.model.text import clean, ranges
from declarative.render.text import Paint, cell, cells, plural, seal, sentence

WINDOW = 100
"""The number of columns shown of a source line; longer lines are cut around the caret."""
TAB = 4
STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def diagnostics_text(diagnostics: Iterable[Diagnostic], *, color: bool) -> str:
    """All findings and their count; empty if there are none."""
    reported = tuple(diagnostics)
    if not reported:
        return ""
    paint = Paint(color=color)
    lines: list[str] = []
    for finding in _folded(reported):
        lines += [*_one(finding, paint), ""]
    return seal([*lines, count_text(reported)], color=color)


def _folded(findings: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Findings that differ only by the number of their address become one: `volume/scratch-[0-15]`."""
    alike: dict[object, list[tuple[Diagnostic, int]]] = {}
    for finding in findings:
        base, _, number = (finding.address or "").rpartition("-")
        key: object = finding
        if number.isdecimal() and finding.summary.startswith(f"{finding.address} "):
            summary = finding.summary.removeprefix(str(finding.address))
            key = (base, replace(finding, summary=summary, address=None))
        alike.setdefault(key, []).append((finding, int(number) if number.isdecimal() else 0))
    for items in alike.values():
        first, _ = items[0]
        if len(items) == 1:
            yield first
            continue
        old = str(first.address)
        address = f"{old.rpartition('-')[0]}-[{ranges(number for _, number in items)}]"
        summary = f"{address}{first.summary.removeprefix(old)} ({len(items)} alike)"
        yield replace(first, address=address, summary=summary)


def count_text(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`."""
    severities = [finding.severity for finding in diagnostics]
    counts = ((severities.count(s), s.value) for s in (Severity.ERROR, Severity.WARNING))
    return ", ".join(plural(count, word) for count, word in counts if count)


def _one(finding: Diagnostic, paint: Paint) -> Iterator[str]:
    style = STYLES[finding.severity]
    head = paint(style, f"{finding.severity.value}[{clean(finding.code)}]")
    yield f"{head}: {paint('bold', sentence(finding.summary))}"
    span = finding.span
    gutter = 1 + (len(str(span.line)) if span else 1)
    bar = " " * (gutter + 1) + paint("cyan", "|")
    shown = span is not None and bool(span.text.strip())
    if span:
        place = f"{clean(span.file)}:{span.line}:{span.column}"
        yield " " * gutter + paint("cyan", "-->") + f" {place}"
    elif finding.address:
        yield " " * gutter + paint("cyan", "-->") + f" {clean(finding.address)}"
    if span and shown:
        source, start, length = excerpt(span)
        yield bar
        yield " " + paint("cyan", f"{span.line} |") + f" {source}"
        yield f"{bar} " + " " * start + paint(style, "^" * length)
    if finding.hint:
        if shown:
            yield bar
        yield " " * (gutter + 1) + paint("cyan", "=") + f" hint: {sentence(finding.hint)}"
        yield from (" " * (gutter + 5) + clean(line) for line in finding.block)


def excerpt(span: Span) -> tuple[str, int, int]:
    """The source line as shown, the column of the first caret, and the number of carets."""
    # Each character as it is shown: tabs as an arrow up to the next stop, control characters made visible.
    pieces: list[str] = []
    column = 0
    for char in span.text.rstrip("\r\n"):
        pieces.append("→" + " " * (TAB - 1 - column % TAB) if char == "\t" else clean(char))
        column += cells(pieces[-1])
    first = max(0, span.column - 1)
    last = span.end_column - 1 if span.end_line == span.line else len(pieces)
    before = sum(cells(p) for p in pieces[:first])
    start = before + max(0, first - len(pieces))
    length = max(1, sum(cells(p) for p in pieces[first : max(first, last)]))
    text = "".join(pieces)
    if cells(text) <= WINDOW:
        return text, start, length
    return _cut(text, start, length)


def _cut(text: str, start: int, length: int) -> tuple[str, int, int]:
    """The part of the line around the caret; `…` marks what was cut."""
    total = cells(text)
    first = max(0, min(start - WINDOW // 4, total - WINDOW))
    out, column, begin = "", 0, first
    for char in text:
        if column >= first and column + cell(char) <= first + WINDOW:
            if not out:
                begin = column
            out += char
        column += cell(char)
    if first:
        out = "…" + out[1:] if cell(out[0]) == 1 else "… " + out[1:]
    if first + WINDOW < total:
        out += "…"
    start = min(max(0, start - begin), WINDOW)
    return out, start, max(1, min(length, WINDOW - start))
