"""What is recorded, as text: `state list` and `state show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from declarative.render.data import plain
from declarative.render.text import clean, seal
from declarative.render.values import short, written
from declarative.state import KINDS, Record, natural


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
        yield f"{head} {short('', value)}"
