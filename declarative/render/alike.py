"""Rows of a table that differ by counting alone, as one: `node/gpu-[0-199]`.

Nothing is lost by it: the first number that differs leads, and every other one that does is as far from it in
each row, so that the lists of two columns pair up in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from declarative.render.text import Cell, ranges

MOST = 4
"""So many neighbours that are alike get a line each; more share one."""
_NUMBER = re.compile(r"(\d+)")


class _Parts:
    """A row as its words, and the numbers between them."""

    def __init__(self, row: Sequence[Cell], loosely: str | None) -> None:
        """`loosely` is compared in the last column's stead."""
        told = row if loosely is None else row[:-1]
        self.cells = [_NUMBER.split(cell.text) for cell in told]
        self.numbers = [number for parts in self.cells for number in parts[1::2]]
        words = tuple(" ".join(text.split()) for parts in self.cells for text in (*parts[::2], "|"))
        styles = tuple(cell.style for cell in row)
        self.words = (words, styles, loosely)

    def step(self, after: _Parts) -> tuple[int, tuple[bool, ...]] | None:
        """By how much those numbers grow that do, and which; None where the rows are not alike."""
        pairs = list(zip(self.numbers, after.numbers, strict=False))
        if self.words != after.words or any(a != b and not (_plain(a) and _plain(b)) for a, b in pairs):
            return None
        moves = tuple(a != b for a, b in pairs)
        steps = {int(b) - int(a) for a, b in pairs if a != b}
        return (steps.pop(), moves) if len(steps) == 1 and min(steps) > 0 else None


def numberless(text: str) -> str:
    """What texts have in common that differ by their numbers."""
    return _NUMBER.sub("#", text)


def _plain(number: str) -> bool:
    return number == "0" or number[0] != "0"


def folded(rows: Sequence[Sequence[Cell]], loosely: Sequence[str] = ()) -> list[list[Cell]]:
    """The rows of a table, from more than `MOST` neighbours on that are alike one in their stead.

    With `loosely`, a text for each row, the last columns are compared by that one; the first row's is shown.
    """
    out: list[list[Cell]] = []
    for start, end, moves in _runs([_Parts(r, loosely[i] if loosely else None) for i, r in enumerate(rows)]):
        if end - start > MOST:
            out.append(_together(rows[start:end], moves, first=bool(loosely)))
        else:
            out += [list(row) for row in rows[start:end]]
    return out


def _runs(parts: Sequence[_Parts]) -> Iterator[tuple[int, int, tuple[bool, ...]]]:
    """Where rows that are alike begin and end, and which of their numbers differ."""
    start = 0
    while start < len(parts):
        end = start + 1
        moves: tuple[bool, ...] = ()
        while end < len(parts):
            found = parts[end - 1].step(parts[end])
            if found is None or (moves and found[1] != moves):
                break
            moves, end = found[1], end + 1
        if end - start <= MOST:
            end = start + 1  # the next row may begin more
        yield start, end, moves
        start = end


def _together(rows: Sequence[Sequence[Cell]], moves: Sequence[bool], *, first: bool) -> list[Cell]:
    found = list(rows[0])
    left = list(moves)
    for i, cell in enumerate(found[:-1] if first else found):
        split = [_NUMBER.split(row[i].text) for row in rows]
        # What fills small numbers up to the width of large ones is not needed any more.
        parts = split[-1]
        for at in range(1, len(parts), 2):
            if left.pop(0):
                parts[at] = f"[{ranges(int(row[at]) for row in split)}]"
        found[i] = replace(cell, text="".join(parts))
    last = found[-1]
    but = " but for numbers" if first and len({row[-1].text for row in rows}) > 1 else ""
    found[-1] = replace(last, text=f"{last.text} ({len(rows)} alike{but})".lstrip())
    return found
