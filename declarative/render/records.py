"""What is recorded, as text: `state list` and `state show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from declarative.render.data import plain
from declarative.render.text import clean, seal
from declarative.render.values import is_from, short, variable
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
                yield from _text(f"{indent}  -", item, indent + "    ")
        else:
            yield from _text(f"{indent}{clean(key)}:", value, indent + "  ")


def _text(head: str, value: Any, indent: str) -> Iterator[str]:
    """A value after its head; a text of several lines as a block below it."""
    if isinstance(value, str) and "\n" in value.strip("\n") and not is_from(value):
        yield f"{head} |"
        yield from (indent + clean(line) for line in value.strip("\n").split("\n"))
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return variable(value) if is_from(value) else clean(value) or '""'
    return short("", value)
