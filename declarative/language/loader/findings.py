"""Collects the findings of one load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from declarative.model.codes import CODES
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, Span, in_order
from declarative.model.text import Near

MAX_FINDINGS = 1_000
"""Nobody reads more at once, and showing one takes as long as reading a document."""
MAX_SUMMARY = 300


class Findings:
    """Collects errors and warnings.

    `lost`: some document could not be read at all, so a name that seems undeclared may be in it. `published`:
    documents are checked against the published schemas as well.
    """

    def __init__(self, *, published: bool = True) -> None:
        self.published = published
        self.items: list[Diagnostic] = []
        self.lost = False
        self.near = Near()

    def add(
        self,
        code: str,
        summary: str,
        hint: str | None = None,
        *,
        span: Span | None = None,
        address: str | None = None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Add one finding. Long values in its text are cut."""
        if len(summary) > MAX_SUMMARY:
            summary = summary[:MAX_SUMMARY] + "…"
        self.extend(
            [Diagnostic(code=code, summary=summary, hint=hint, span=span, address=address, severity=severity)]
        )

    def extend(self, items: Iterable[Diagnostic]) -> None:
        """Add findings of the layers below. One without a hint gets its code's."""
        for item in items:
            if not self.full:
                known = CODES.get(item.code) if item.hint is None else None
                self.items.append(replace(item, hint=known.fix) if known else item)

    @property
    def full(self) -> bool:
        """Whether the limit for findings is reached."""
        return len(self.items) >= MAX_FINDINGS

    def finish(self) -> tuple[Diagnostic, ...]:
        """The warnings; `InvalidError` with all findings if one is an error."""
        items = in_order(self.items)
        if any(item.severity is Severity.ERROR for item in items):
            if self.full:
                summary = f"only the first {MAX_FINDINGS} findings are shown"
                items = (*items, Diagnostic(code="too-many-errors", summary=summary, hint="fix these first"))
            raise InvalidError(items)
        return items
