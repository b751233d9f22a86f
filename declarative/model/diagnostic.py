"""Diagnostics: what is wrong, where, and what to type instead.

One type of diagnostic serves people and JSON alike (after Terraform's `tfdiags`). Diagnostics are
collected, not thrown one by one: a stage either returns a whole value or raises one `InvalidError` with
everything that it found. Pure: rendering them as text is `render`'s work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeGuard

from declarative.model.record import struct


class Severity(StrEnum):
    """How bad it is: an error stops the command, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@struct(frozen=True, slots=True)
class Span:
    """A stretch of a source file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""
    """The first line of the stretch, whole, so that a message can show it with a caret."""


@struct(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding. `code` is stable: scripts and `docs/errors.md` key on it."""

    code: str
    summary: str
    hint: str | None = None
    span: Span | None = None
    address: str | None = None
    severity: Severity = Severity.ERROR
    block: tuple[str, ...] = ()
    """Lines of the hint that stand alone below it, to be copied; for programs they are part of it."""


class InvalidError(Exception):
    """What the user wrote or asked for cannot be used. Carries every diagnostic of one pass, in order of
    place.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(d.summary for d in self.diagnostics))


def failed(code: str, summary: str, hint: str | None = None) -> InvalidError:
    """One error without a position."""
    return InvalidError((Diagnostic(code=code, summary=summary, hint=hint),))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sorted by file and place, each once; the ones without a place come first."""

    def key(item: Diagnostic) -> tuple[str, int, int, str, str]:
        span = item.span
        return (
            span.file if span else "",
            span.line if span else 0,
            span.column if span else 0,
            item.code,
            item.summary,
        )

    return tuple(sorted(dict.fromkeys(diagnostics), key=key))


def located(diagnostics: Iterable[Diagnostic], places: Mapping[str, Span]) -> list[Diagnostic]:
    """The diagnostics; those with an address and no place get the place of its declaration."""
    return [replace(d, span=places.get(d.address or "")) if d.span is None else d for d in diagnostics]


def is_version(text: object) -> TypeGuard[str]:
    """Whether what a file says of the version that wrote it is one: only then it may stand in a hint."""
    return isinstance(text, str) and re.fullmatch(r"[0-9][0-9A-Za-z.+!-]{0,39}", text) is not None
