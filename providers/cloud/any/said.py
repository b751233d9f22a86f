"""What errors of clouds say that have no code of their own: JSON with a text somewhere, and words in it."""

from __future__ import annotations

import json
import re

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import Answer, Said, by_status

_WORDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"rate.?limit|too many requests", re.IGNORECASE), TransientKind.THROTTLED),
    (
        re.compile(r"pending event|is (already )?(being|locked)|in progress|try again", re.IGNORECASE),
        TransientKind.BUSY,
    ),
    (
        re.compile(r"(limit|quota|maximum)\b.*(exceed|reach)|(exceed|reach).*(limit|quota)", re.IGNORECASE),
        PermanentKind.QUOTA,
    ),
    (
        re.compile(
            r"(no|not enough|insufficient|out of) (capacity|stock|resources)|sold out|"
            r"(size|plan|instance type|server type)\b.*(not|un)\W*available",
            re.IGNORECASE,
        ),
        PermanentKind.NO_CAPACITY,
    ),
)
"""Words that say more than the status of a refusal: no capacity is a 422 here, and a quota too."""
_REFUSALS = (400, 403, 409, 412, 422)
_TEXTS = ("message", "error", "errors", "detail", "reason", "errortext", "description", "error_message")
_HINTS = {PermanentKind.AUTH: "check the variables that `credentials` names, and what they may do"}


def said(answer: Answer) -> Said | None:
    """What an error says; None if it is no JSON, as the page of a gateway."""
    try:
        text = _text(json.loads(answer.text))
    except ValueError:
        return None
    if not text:
        return None
    kind = by_status(answer.status)
    if answer.status in _REFUSALS:
        kind = next((k for pattern, k in _WORDS if pattern.search(text)), kind)
    hint = _HINTS.get(kind) if isinstance(kind, PermanentKind) else None
    return Said(kind=kind, text=text, hint=hint)


def _text(found: object, depth: int = 0) -> str:
    """The text of an error: the first that stands under a word for it."""
    if depth > 4:
        return ""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "; ".join(filter(None, (_text(item, depth + 1) for item in found[:5])))
    if isinstance(found, dict):
        for key in _TEXTS:
            if text := _text(found.get(key), depth + 1):
                return text
        inner = (_text(item, depth + 1) for item in found.values() if isinstance(item, dict))
        return next(filter(None, inner), "")
    return ""
