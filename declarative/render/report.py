"""What became of an apply: how many actions were done, and why the others were not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from declarative.render.text import Paint, clean, seal, sentence

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult

MOST_SKIPPED = 10
"""Skipped actions with the same cause that are named; the others are counted."""


def report_text(results: Iterable[ActionResult], *, color: bool, title: str = "Apply") -> str:
    """The failures with their hints, the skipped actions with their cause, and the summary line."""
    found = tuple(results)
    paint = Paint(color=color)
    lines = [*_noted(found, paint), *_failures(found, paint), *_skipped(found, paint)]
    return seal([*lines, _summary(found, paint, title)], color=color)


def result_json(item: ActionResult) -> dict[str, Any]:
    """One result as data."""
    return {
        "id": item.id,
        "address": str(item.address),
        "op": str(item.op),
        "outcome": str(item.outcome),
        "error": item.error,
        "hint": item.hint,
        "note": item.note,
        "code": item.code,
    }


def notes_json(results: Iterable[ActionResult]) -> list[dict[str, Any]]:
    """The notes of actions that are done."""
    return [
        {"addresses": [i.address for i in items], "note": note} for note, items in _notes(results).items()
    ]


def _notes(results: Iterable[ActionResult]) -> dict[str, list[ActionResult]]:
    notes: dict[str, list[ActionResult]] = {}
    for item in results:
        if item.note and item.outcome == "done":
            notes.setdefault(item.note, []).append(item)
    return notes


def _noted(results: Sequence[ActionResult], paint: Paint) -> Iterator[str]:
    for note, items in _notes(results).items():
        yield f"{paint('yellow', 'elsewhere')}: {sentence(note)}"
        yield from _listed(items)
        yield ""


def _listed(items: Sequence[ActionResult]) -> Iterator[str]:
    for item in items[:MOST_SKIPPED]:
        yield f"  {clean(item.op)} {clean(item.address)}"
    if len(items) > MOST_SKIPPED:
        yield f"  … {len(items) - MOST_SKIPPED} more"


def _failures(results: Sequence[ActionResult], paint: Paint) -> Iterator[str]:
    for item in results:
        if item.outcome != "failed":
            continue
        error = sentence(item.error or "no cause is known")
        head = f"failed[{clean(item.code)}]" if item.code else "failed"
        yield f"{paint('red', head)}: {clean(item.op)} {paint('bold', clean(item.address))}: {error}"
        if item.hint:
            yield f"  {paint('cyan', '=')} hint: {sentence(item.hint)}"
        yield ""


def _skipped(results: Sequence[ActionResult], paint: Paint) -> Iterator[str]:
    causes: dict[str, list[ActionResult]] = {}
    for item in results:
        if item.outcome == "skipped":
            causes.setdefault(sentence(item.error or "what it needs was not done"), []).append(item)
    for cause, items in causes.items():
        yield f"{paint('yellow', 'skipped')}: {cause}"
        yield from _listed(items)
        yield ""


def _summary(results: Sequence[ActionResult], paint: Paint, title: str) -> str:
    outcomes = [str(item.outcome) for item in results]
    done, failed, skipped = (outcomes.count(o) for o in ("done", "failed", "skipped"))
    if not failed and not skipped:
        return paint("green", f"{title} complete: {done} done.")
    return paint("red", f"{title} finished with problems: {done} done, {failed} failed, {skipped} skipped.")
