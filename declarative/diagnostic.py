"""What is wrong, where, and what to type instead.

One type of diagnostic serves people and JSON alike (after Terraform's `tfdiags`). Diagnostics are
collected, not thrown one by one: a stage either returns a whole value or raises one `InvalidError` with
everything that it found. Pure: rendering them as text is `render`'s work.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is: an error stops the command, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""
    """The first line of the stretch, whole, so that a message can show it with a caret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding. `code` is stable: scripts and `docs/errors.md` key on it."""

    code: str
    summary: str
    hint: str | None = None
    span: Span | None = None
    address: str | None = None
    severity: Severity = Severity.ERROR

    def to_json(self) -> dict[str, object]:
        """The form of DESIGN §5: positions are null where the finding is not about a file."""
        span = self.span
        return {
            "severity": self.severity.value,
            "code": self.code,
            "summary": self.summary,
            "hint": self.hint,
            "address": self.address,
            "file": span.file if span else None,
            "line": span.line if span else None,
            "column": span.column if span else None,
            "end_line": span.end_line if span else None,
            "end_column": span.end_column if span else None,
        }


class InvalidError(Exception):
    """What the user gave cannot be used; carries every diagnostic of one pass, in order of place."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(d.summary for d in self.diagnostics))


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
    """The same; what has an address and no place is given the one where that is declared."""
    return [replace(d, span=places.get(d.address or "")) if d.span is None else d for d in diagnostics]


def suggest(word: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """`did you mean …?` for a mistyped word, or None where nothing is near: `alike` is 1 for the same."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=alike)
    return f"did you mean `{near[0]}`?" if near else None
