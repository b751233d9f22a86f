"""The block map: a line for each node or for many that are alike, and which rank holds which blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from declarative.render.text import Cell, Paint, cells, clean, columns, folded

CELLS = 4
"""Nodes of up to so many blocks show them one by one; larger ones as stretches with the same holder."""
IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node: `holders` maps busy blocks to holders; None where its blocks do not matter any more."""

    node: str
    total: int
    holders: Mapping[int, str] | None
    note: str
    style: str | None = None
    kind: str | None = None
    """What to compare `note` by, where it tells something of this node alone."""


def map_lines(rows: Sequence[Row], paint: Paint, width: int | None, *, indent: str = "  ") -> list[str]:
    """Aligned columns: node, blocks, how many are busy, what becomes of it. Without a width, all is shown."""
    if not rows:
        return []
    other = max(cells(r.node) + cells(r.note) for r in rows) + 26
    room = math.inf if width is None else max(24, width - other)
    small = [r for r in rows if r.total <= CELLS and r.holders is not None]
    each = max((cells(_holder(row, block)) for row in small for block in range(row.total)), default=0)
    table = [_cells(row, each, room) for row in rows]
    kinds = [clean(row.note if row.kind is None else row.kind) for row in rows]
    loosely = kinds if any(row.kind is not None for row in rows) else ()
    return columns(folded(table, loosely), paint, indent=indent)


def _cells(row: Row, each: int, room: float) -> list[Cell]:
    return [
        Cell(f"node/{clean(row.node)}", "bold" if row.style else None),
        Cell(_blocks(row, each, room)),
        Cell(_busy(row), right=True),
        Cell(clean(row.note), row.style),
    ]


def _holder(row: Row, block: int) -> str:
    return clean((row.holders or {}).get(block, IDLE)).removeprefix("rank/")


def _busy(row: Row) -> str:
    return "" if row.holders is None else f"{len(row.holders)}/{row.total} busy"


def _blocks(row: Row, each: int, room: float) -> str:
    if row.holders is None:
        return "[]"
    if row.total <= CELLS and (each + 1) * row.total + 1 <= room:
        holders = [_holder(row, block) for block in range(row.total)]
        return "[" + " ".join(h + " " * (each - cells(h)) for h in holders).rstrip() + "]"
    return _fit([f"{_range(first, last)} {holder}" for first, last, holder in stretches(row)], room)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def stretches(row: Row) -> list[tuple[int, int, str]]:
    """First block, last block, and who holds them. Idle ones are not gone through: there may be thousands."""
    out: list[tuple[int, int, str]] = []
    free = 0
    for block in sorted(b for b in row.holders or () if 0 <= b < row.total):
        if block > free:
            out.append((free, block - 1, IDLE))
        holder = _holder(row, block)
        if out and out[-1][1:] == (block - 1, holder):
            out[-1] = (out[-1][0], block, holder)
        else:
            out.append((block, block, holder))
        free = block + 1
    if free < row.total:
        out.append((free, row.total - 1, IDLE))
    return out


def _fit(stretches: list[str], room: float) -> str:
    """As many stretches as there is room for, and how many more there are; never none."""
    whole = "[" + " | ".join(stretches) + "]"
    if cells(whole) <= room:
        return whole
    used, count = 12, 0
    for text in stretches:
        used += cells(text) + 3
        if used > room and count:
            break
        count += 1
    more = [f"… {len(stretches) - count} more"] if count < len(stretches) else []
    return "[" + " | ".join([*stretches[:count], *more]) + "]"
