"""What was done to the state: `state history`, as text and as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from declarative.render.data import iso
from declarative.render.text import Cell, Paint, clean, columns, seal, sentence
from declarative.store.history import Operation

FORMAT_VERSION = 1
SHORT = 10
"""How much of a commit's id is shown to people."""
_STYLES = {"failed": "red", None: "yellow"}


def history_text(operations: Iterable[Operation], *, color: bool) -> str:
    """An entry a line, in the order given: when, what, to what, by whom, with what result."""
    paint = Paint(color=color)
    return seal(columns([_row(entry) for entry in operations], paint, indent=""), color=color)


def _row(entry: Operation) -> tuple[Cell, ...]:
    was = f" (was {clean(entry.was)})" if entry.was else ""
    result = clean(entry.result or "open: read back by the next apply")
    why = entry.error or entry.reason
    error = f": {sentence(why)}" if why else ""
    who = f"{clean(entry.doing)} on {clean(entry.host)}" if entry.doing and entry.host else ""
    who += f" by {clean(entry.actor)}" if entry.actor else ""
    who += f" at {clean(entry.revision[:SHORT])}" if entry.revision else ""
    return (
        Cell(iso(entry.begun_at) or ""),
        Cell(clean(entry.op)),
        Cell(clean(entry.address) + was),
        Cell(who),
        Cell(result + error, _STYLES.get(entry.result)),
    )


def history_json(operations: Iterable[Operation]) -> dict[str, Any]:
    """The same as data."""
    return {"format_version": FORMAT_VERSION, "operations": [_entry(entry) for entry in operations]}


def _entry(entry: Operation) -> dict[str, Any]:
    return {
        "id": entry.id,
        "op": entry.op,
        "address": entry.address,
        "was": entry.was,
        "backend": entry.backend,
        "generation": entry.generation,
        "begun_at": iso(entry.begun_at),
        "ended_at": iso(entry.ended_at),
        "result": entry.result,
        "error": entry.error,
        "reason": entry.reason,
        "host": entry.host,
        "doing": entry.doing,
        "actor": entry.actor,
        "commit": entry.revision,
    }
