"""Text for a terminal: in columns, with or without colour; similar rows become one.

Text from outside (YAML, a backend, a rank) passes `clean` before it is put into a line. Every rendering
passes `seal` at its end, so that no foreign control character reaches a terminal.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

from declarative.model.text import clean, ranges

_SGR = re.compile(r"(\x1b\[[0-9;]*m)")
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}


def sentence(text: object) -> str:
    """As `clean`, with line breaks as spaces: for messages that other libraries wrap."""
    return clean(" ".join(str(text).split("\n"))) if "\n" in str(text) else clean(text)


def seal(lines: Iterable[str], *, color: bool) -> str:
    """The lines as one text that ends in a newline; empty for no lines.

    It keeps no control characters but our own colours, even if a caller forgot `clean`.
    """

    def sealed(line: str) -> str:
        if not color:
            return clean(line)
        return "".join(part if i % 2 else clean(part) for i, part in enumerate(_SGR.split(line)))

    return "".join(sealed(line).rstrip() + "\n" for line in lines)


def cells(text: str) -> int:
    """The width of a text on a terminal in columns: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(cell(char) for char in text)


def cell(char: str) -> int:
    """The width of the character in columns."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def wrapped(text: str, width: int | None) -> list[str]:
    """`text` in lines of at most `width` columns, all but the first indented; one line if `width` is None.

    If the terminal wrapped it, a stranger's text could begin a line of its own.
    """
    if width is None or cells(text) <= width:
        return [text]
    indent = " " * min(len(text) - len(text.lstrip(" ")) + 4, width // 2)
    out, line, used = [], "", 0
    for char in text:
        if used + cell(char) > width:
            out.append(line)
            line, used = indent, len(indent)
        line += char
        used += cell(char)
    return [*out, line]


class Paint:
    """Applies colours, if asked for."""

    def __init__(self, *, color: bool) -> None:
        self.color = color

    def __call__(self, style: str | None, text: str) -> str:
        """`text` in a style of `_CODES`; unchanged without colours."""
        if not self.color or not style or not text:
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


PLAIN = Paint(color=False)


class Cell(NamedTuple):
    """One cell of a table. Its text is padded before it is coloured."""

    text: str
    style: str | None = None
    right: bool = False


def columns(rows: Sequence[Sequence[Cell]], paint: Paint, *, indent: str = "  ") -> list[str]:
    """Rows as lines with aligned columns, two spaces between them. Empty columns are left out."""
    if not rows:
        return []
    widths = [max(cells(row[i].text) for row in rows) for i in range(len(rows[0]))]
    shown = [i for i, width in enumerate(widths) if width]
    lines = []
    for row in rows:
        parts = []
        for i in shown:
            gap = " " * (widths[i] - cells(row[i].text))
            painted = paint(row[i].style, row[i].text)
            parts.append(gap + painted if row[i].right else painted + gap)
        lines.append(indent + "  ".join(parts).rstrip())
    return lines


def titled(title: str, lines: Sequence[str]) -> list[str]:
    """A part of a longer text: its title, its lines, and what parts it from the next; empty without lines."""
    return [f"{title}:", "", *lines, ""] if lines else []


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 error`, `2 errors`."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def money(price: float | None) -> str:
    """USD with two digits, or four if two would hide something. An unknown price is `unknown`, never 0."""
    if price is None:
        return "unknown"
    return f"{price:.2f}" if round(price, 2) == round(price, 4) else f"{price:.4f}"


# ------------------------------------------------------------------------- what a stream can show

PLAIN_WIDTH = 100
"""The width for narrow text without a terminal. It is fixed, so that logs are always the same."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. A stream closed before the start (`<&-`) is None."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed meanwhile
        return False


def use_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to use colours: on a capable terminal, unless `NO_COLOR` (https://no-color.org) is set."""
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def width(stream: TextIO) -> int | None:
    """The terminal's width in columns, at least 40. Without a terminal None: nothing is cut."""
    if not is_terminal(stream):
        return None
    try:
        width_now = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return PLAIN_WIDTH
    return max(40, width_now) if width_now else PLAIN_WIDTH


# --------------------------------------------------------------------------- rows that are alike
# Neighbouring rows that differ only by counting become one: `node/gpu-[0-199]`. No information is lost: all
# numbers that change grow by the same step, so the lists of two columns match in their order.

MOST_ALIKE = 4
"""Up to so many similar neighbours get a line each; more share one."""
_NUMBER = re.compile(r"(\d+)")
_BLANKS = re.compile(" +")


class _Parts:
    """A row split into its words and the numbers between them."""

    def __init__(self, row: Sequence[Cell], loosely: str | None) -> None:
        """`loosely`, if given, is compared in place of the last column."""
        compared = row if loosely is None else row[:-1]
        parts = _NUMBER.split("\n".join([cell.text for cell in compared]))
        self.numbers = parts[1::2]
        words = _BLANKS.sub(" ", "\0".join(parts[::2]))
        styles = [cell.style for cell in row]
        self.words = (words, styles, loosely)

    def step(self, after: _Parts) -> tuple[int, tuple[bool, ...]] | None:
        """The common step of the numbers that change, and which ones change; None if the rows are not
        similar.
        """
        pairs = list(zip(self.numbers, after.numbers, strict=False))
        if self.words != after.words or any(a != b and not (_plain(a) and _plain(b)) for a, b in pairs):
            return None
        moves = tuple(a != b for a, b in pairs)
        steps = {int(b) - int(a) for a, b in pairs if a != b}
        return (steps.pop(), moves) if len(steps) == 1 and min(steps) > 0 else None


def _plain(number: str) -> bool:
    return number == "0" or number[0] != "0"


def folded(rows: Sequence[Sequence[Cell]], loosely: Sequence[str] = ()) -> list[list[Cell]]:
    """The rows of a table. More than `MOST_ALIKE` similar neighbours become one row.

    `loosely` has a text for each row, which is compared in place of the last column. The first row's last
    column is shown.
    """
    out: list[list[Cell]] = []
    for start, end, moves in _runs([_Parts(r, loosely[i] if loosely else None) for i, r in enumerate(rows)]):
        if end - start > MOST_ALIKE:
            out.append(_together(rows[start:end], moves, first=bool(loosely)))
        else:
            out += [list(row) for row in rows[start:end]]
    return out


def _runs(parts: Sequence[_Parts]) -> Iterator[tuple[int, int, tuple[bool, ...]]]:
    """The first row and the end of each run of similar rows, and which of their numbers differ."""
    start = 0
    while start < len(parts):
        end = start + 1
        moves: tuple[bool, ...] = ()
        while end < len(parts):
            follows = parts[end - 1].step(parts[end])
            if follows is None or (moves and follows[1] != moves):
                break
            moves, end = follows[1], end + 1
        if end - start <= MOST_ALIKE:
            end = start + 1  # the next row may begin a longer run
        yield start, end, moves
        start = end


def _together(rows: Sequence[Sequence[Cell]], moves: Sequence[bool], *, first: bool) -> list[Cell]:
    merged = list(rows[0])
    moves_left = list(moves)
    for i, cell in enumerate(merged[:-1] if first else merged):
        split = [_NUMBER.split(row[i].text) for row in rows]
        # Padding in front of small numbers is dropped.
        parts = split[-1]
        for at in range(1, len(parts), 2):
            if moves_left.pop(0):
                parts[at] = f"[{ranges(int(row[at]) for row in split)}]"
        merged[i] = cell._replace(text="".join(parts))
    last = merged[-1]
    but = " but for numbers" if first and len({row[-1].text for row in rows}) > 1 else ""
    merged[-1] = last._replace(text=f"{last.text} ({len(rows)} alike{but})".lstrip())
    return merged
