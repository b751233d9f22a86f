"""Diagnostics: what is wrong, where, and what to type instead.

One type of diagnostic serves people and JSON alike (after Terraform's `tfdiags`). Diagnostics are
collected, not thrown one by one: a stage either returns a whole value or raises one `InvalidError` with
everything that it found. Pure: rendering them as text is `render`'s work.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
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


def and_more(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `most` of `items`, and how many follow."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def is_version(text: object) -> TypeGuard[str]:
    """Whether what a file says of the version that wrote it is one: only then it may stand in a hint."""
    return isinstance(text, str) and re.fullmatch(r"[0-9][0-9A-Za-z.+!-]{0,39}", text) is not None


MAX_EDITS = 3
"""Letters by which a mistyped word may differ: fewer in a short word, where that would be most of it."""
MAX_NEAR = 3
"""Equally near words that a hint names."""


def suggest(word: str, known: Iterable[str], most: int = MAX_EDITS) -> str | None:
    """`did you mean …?` for a mistyped word, or None where nothing is near.

    The word with the fewest edits wins: a letter too many, too few or another one, or two swapped.
    Words that are equally near are all named. An edit for each three letters is allowed. Where none is near,
    a word is the beginning of others: of those whose first part it is (`identity` of `identity_file`), or of
    the only one that begins with these four letters or more. `most` is how many edits there may be.
    """
    near = _near(word.casefold(), tuple(sorted(set(known))), most)
    return f"did you mean {' or '.join(f'`{name}`' for name in near[:MAX_NEAR])}?" if near else None


MAX_COMPARED = 50_000
"""Names with which mistyped ones are compared, in all: about a second. Somebody's file may have thousands."""
MAX_WORD = 100
"""Letters. Longer text is no mistyped word: comparing it would only take time."""


class Near:
    """`suggest`, until all comparisons together take too long."""

    def __init__(self) -> None:
        self._compared = 0

    def __call__(self, word: str, known: Collection[str], most: int = MAX_EDITS) -> str | None:
        """The suggestion for a word; None once too many words were compared."""
        self._compared += len(known)
        usable = self._compared <= MAX_COMPARED and len(word) <= MAX_WORD
        return suggest(word, known, most) if usable else None

    def other_than_number(self, word: str, known: Collection[str]) -> str | None:
        """The suggestion for a name; a name that differs only in its number (`gpu-3`, `gpu-2`) is none."""
        if self._compared > MAX_COMPARED:
            return None
        letters = re.sub(r"[0-9]", "", word)
        others = [name for name in known if re.sub(r"[0-9]", "", name) != letters]
        self._compared += len(known) - len(others)
        return self(word, others)


@lru_cache(maxsize=64)
def _near(typed: str, known: tuple[str, ...], most: int) -> Sequence[str]:
    """The nearest of some words. Kept: who mistypes a field does so in each document."""
    least = min(most, max(1, len(typed) // 3))
    near: list[str] = []
    for name in known:
        edits = _edits(typed, name.casefold(), least)
        if edits is not None and edits < len(typed):
            near = [*near, name] if edits == least else [name]
            least = edits
    if near or not typed:
        return near
    longer = [name for name in known if name.casefold().startswith(typed)]
    first_part = [name for name in longer if not name.casefold()[len(typed)].isalnum()]
    return first_part or (longer if len(longer) == 1 and len(typed) > MAX_EDITS else [])


def _edits(one: str, other: str, most: int) -> int | None:
    """How many edits make one word of the other; None if more than `most`.

    An edit adds, drops or replaces a letter, or swaps two neighbours (optimal string alignment).
    """
    if abs(len(one) - len(other)) > most:
        return None
    if (Counter(one) - Counter(other)).total() > most:
        return None
    # Each row holds the edits from a beginning of `one` to all beginnings of `other`.
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                edits = min(edits, last[j - 2] + 1)
            row.append(edits)
        if min(row) > most:
            return None
    return row[-1] if row[-1] <= most else None
