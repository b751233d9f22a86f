"""What is recorded, and what was done: `state list`, `state show` and `state history`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from declarative.model.state import KINDS, Record, natural
from declarative.render.data import iso, iso_ms, plain
from declarative.render.text import Cell, Paint, clean, columns, seal, sentence
from declarative.render.values import one_line, written
from declarative.store.events import Event
from declarative.store.journal import Operation


def state_text(records: Iterable[Record], *, detail: bool = False) -> str:
    """One address a line; with `detail`, everything that is recorded of each."""
    found = sorted(records, key=_place)
    if not detail:
        return seal([clean(record.address) for record in found], color=False)
    lines: list[str] = []
    for record in found:
        lines += [*([""] if lines else []), *_record(record)]
    return seal(lines, color=False)


def _place(record: Record) -> tuple[object, ...]:
    kind, name = record.address
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind, natural(name))


def _record(record: Record) -> Iterator[str]:
    yield clean(record.address)
    yield f"  backend: {clean(record.backend or '-')}"
    yield f"  generation: {record.generation}"
    for title, values in (("inputs", record.inputs), ("outputs", record.outputs)):
        yield f"  {title}:{'' if values else ' -'}"
        yield from _values(plain(values), "    ")
    yield f"  needs:{'' if record.needs else ' -'}"
    for address in sorted(map(str, record.needs)):
        yield f"    {clean(address)}"


def _values(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Nested values, one a line, nothing left out: a record is looked at when something is wrong."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{clean(key)}:"
            yield from _values(value, indent + "  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{clean(key)}:"
            for item in value:
                yield from _text(f"{indent}  -", item)
        else:
            yield from _text(f"{indent}{clean(key)}:", value)


def _text(head: str, value: Any) -> Iterator[str]:
    """A value after its head; a text of several lines as a block below it."""
    if isinstance(value, str):
        yield from written(f"{head} ", value)
    else:
        yield f"{head} {one_line('', value)}"


# ------------------------------------------------------------------------------------------ history

FORMAT_VERSION = 1
SHORT = 10
"""How much of a commit's id is shown to people."""
_STYLES = {"failed": "red", None: "yellow"}


def history_text(operations: Iterable[Operation], *, color: bool) -> str:
    """An entry a line, in the order given: when, what, to what, by whom, with what result."""
    paint = Paint(color=color)
    return seal(columns([entry_cells(entry) for entry in operations], paint, indent=""), color=color)


def entry_cells(entry: Operation) -> tuple[Cell, ...]:
    """When, what, to what, by whom, with what result."""
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


# ------------------------------------------------------------------------------------------- events

_SHOWN = ("cause", "error", "reason", "summary", "exit_code", "backend", "actor")
"""What people are told of an event's details, in this order."""


def event_cells(event: Event) -> tuple[Cell, ...]:
    """When, what, of what, and why."""
    found = (event.detail.get(name) for name in _SHOWN)
    why = ", ".join(sentence(str(text)) for text in found if text is not None)
    return (Cell(iso(event.at) or ""), Cell(clean(event.type)), Cell(clean(event.address)), Cell(why))


def events_text(events: Iterable[Event], *, color: bool) -> str:
    """An event a line."""
    return seal(columns(list(map(event_cells, events)), Paint(color=color), indent=""), color=color)


def event_json(event: Event, lineage: str | None) -> dict[str, Any]:
    """One event as data, for a stream and for webhooks alike. `id` is the same whenever it is told."""
    return {
        "format_version": FORMAT_VERSION,
        "id": f"{lineage or 'none'}-{event.id}",
        "cursor": str(event.id),
        "time": iso_ms(event.at),
        "type": event.type,
        "address": event.address,
        "detail": plain(event.detail),
    }
