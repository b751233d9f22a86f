"""Text for a terminal: safe, in columns, with or without colour; rows that are alike as one.

Whatever comes from outside (YAML, a backend, a rank) passes `clean` before it is put into a line, and
every rendering passes `seal` at its end, so that no control character of a stranger reaches a terminal.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

_SGR = re.compile(r"(\x1b\[[0-9;]*m)")
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
_COUNTED = re.compile(r"([0-9]+)")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories that move the cursor, turn the direction of writing, hide themselves or cannot be encoded."""


class _Visible(dict[int, str]):
    """Each character as it is shown: control pictures for the old controls, escapes for the others."""

    def __missing__(self, point: int) -> str:
        char = chr(point)
        shown = char
        if point < 0x20:
            shown = chr(0x2400 + point)
        elif point == 0x7F:
            shown = "\N{SYMBOL FOR DELETE}"
        elif unicodedata.category(char) in _UNSAFE:
            shown = f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
        self[point] = shown
        return shown


_VISIBLE = _Visible()


def clean(text: object) -> str:
    """Text from outside as one line without control characters: they are made visible, not dropped."""
    shown = str(text)
    return shown if shown.isprintable() else shown.translate(_VISIBLE)


def sentence(text: object) -> str:
    """As `clean`, with line breaks as spaces: for messages that other libraries wrap."""
    return clean(" ".join(str(text).split("\n"))) if "\n" in str(text) else clean(text)


def seal(lines: Iterable[str], *, color: bool) -> str:
    """The lines as one text that ends in a newline; empty for no lines.

    Of control characters our own colours alone are left, even if a caller forgot to clean.
    """
    return "".join(_sealed(line, color=color).rstrip() + "\n" for line in lines)


def _sealed(line: str, *, color: bool) -> str:
    if not color:
        return clean(line)
    return "".join(part if i % 2 else clean(part) for i, part in enumerate(_SGR.split(line)))


def cells(text: str) -> int:
    """How many columns a terminal takes for it: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(cell(char) for char in text)


def cell(char: str) -> int:
    """The columns of one character."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def wrapped(text: str, width: int | None) -> list[str]:
    """`text` in lines of at most `width` columns, all but the first indented below it; whole with None.

    Left to the terminal, what a stranger wrote could begin a line of its own.
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
    """Colours, where they were asked for."""

    def __init__(self, *, color: bool) -> None:
        self.color = color

    def __call__(self, style: str | None, text: str) -> str:
        """`text` in a style of `_CODES`, or as it is."""
        if not self.color or not style or not text:
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


class Cell(NamedTuple):
    """One entry of a table: its text is padded first and painted then."""

    text: str
    style: str | None = None
    right: bool = False


def columns(rows: Sequence[Sequence[Cell]], paint: Paint, *, indent: str = "  ") -> list[str]:
    """Rows as lines whose columns are aligned, two spaces between them; empty columns are left out."""
    if not rows:
        return []
    widths = [max(cells(row[i].text) for row in rows) for i in range(len(rows[0]))]
    shown = [i for i, width in enumerate(widths) if width]
    return [indent + _row(row, shown, widths, paint).rstrip() for row in rows]


def _row(row: Sequence[Cell], shown: list[int], widths: list[int], paint: Paint) -> str:
    parts: list[str] = []
    for i in shown:
        entry = row[i]
        gap = " " * (widths[i] - cells(entry.text))
        painted = paint(entry.style, entry.text)
        parts.append(gap + painted if entry.right else painted + gap)
    return "  ".join(parts)


def ranges(numbers: Iterable[int], digits: int = 0) -> str:
    """`0-2,5`: numbers in the notation of host lists, each with at least so many digits."""
    out: list[list[int]] = []
    for number in sorted(set(numbers)):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(f"{a:0{digits}}" if a == b else f"{a:0{digits}}-{b:0{digits}}" for a, b in out)


Numbers = tuple[int, ...]


def host_lists(names: Iterable[str]) -> list[str]:
    """`data-[0-3]`, `train-[0-3].data-[same]`: names in the notation of host lists, which stand for exactly
    these. `same` is the number that the list before it has.
    """
    alike: dict[tuple[tuple[str, ...], tuple[int, ...]], list[tuple[Numbers, ...]]] = {}
    for name in dict.fromkeys(names):
        parts = _COUNTED.split(name)
        texts, numbers = tuple(parts[::2]), parts[1::2]
        digits = tuple([len(n) if n[0] == "0" and n != "0" else 0 for n in numbers])
        alike.setdefault((texts, digits), []).append(tuple([(int(n),) for n in numbers]))
    return [
        _host_list(texts, digits, row)
        for (texts, digits), rows in alike.items()
        for row in _linked(_crossed(rows), digits)
    ]


def _crossed(rows: list[tuple[Numbers, ...]]) -> list[tuple[Numbers, ...]]:
    """Rows that differ at one place as one that has all their numbers there; the last place first."""
    for at in reversed(range(len(rows[0]))):
        found: dict[tuple[object, ...], list[tuple[Numbers, ...]]] = {}
        for row in rows:
            found.setdefault((*row[:at], *row[at + 1 :]), []).append(row)
        if len(found) < len(rows):
            rows = [
                (*same[0][:at], tuple(n for row in same for n in row[at]), *same[0][at + 1 :])
                for same in found.values()
            ]
    return rows


def _linked(rows: list[tuple[Numbers, ...]], digits: Sequence[int]) -> list[tuple[Numbers, ...]]:
    """Rows as one that count the same at two places; the second place is empty then."""
    found: dict[tuple[int, int, tuple[Numbers, ...]], list[tuple[Numbers, ...]]] = {}
    for row in rows:
        first, second = _same_counts(row, digits)
        rest = row
        if second:
            rest = tuple(numbers for at, numbers in enumerate(row) if at not in {first, second})
        found.setdefault((first, second, rest), []).append(row)
    out: list[tuple[Numbers, ...]] = []
    for (first, second, _), same in found.items():
        merged = list(same[0])
        if len(same) > 1:
            merged[first] = tuple(n for row in same for n in row[first])
            merged[second] = ()
        out.append(tuple(merged))
    return out


def _same_counts(row: tuple[Numbers, ...], digits: Sequence[int]) -> tuple[int, int]:
    """The first two places with the same single number in as many digits; twice 0 if there are none."""
    for second, numbers in enumerate(row):
        for first in range(second if len(numbers) == 1 else 0):
            if row[first] == numbers and digits[first] == digits[second]:
                return first, second
    return 0, 0


def _host_list(texts: Sequence[str], digits: Sequence[int], row: Sequence[Numbers]) -> str:
    out = clean(texts[0])
    for text, width, numbers in zip(texts[1:], digits, row, strict=True):
        found = ranges(numbers, width) or "same"
        out += (f"[{found}]" if len(numbers) != 1 else found) + clean(text)
    return out


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 error`, `2 errors`."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def money(price: float | None) -> str:
    """USD with two digits, four where two would hide something; `unknown` is never 0."""
    if price is None:
        return "unknown"
    return f"{price:.2f}" if round(price, 2) == round(price, 4) else f"{price:.4f}"


# ------------------------------------------------------------------------- what a stream can show

PLAIN_WIDTH = 100
"""The width for narrow text where there is no terminal: fixed, so that logs do not depend on who looks."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. One that was closed before the start (`<&-`) is None."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed meanwhile
        return False


def use_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Colours on a terminal that can show them, unless `NO_COLOR` (https://no-color.org) is set."""
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def width(stream: TextIO) -> int | None:
    """The columns of the terminal, at least 40; None where there is none: then nothing is cut."""
    if not is_terminal(stream):
        return None
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return PLAIN_WIDTH
    return max(40, found) if found else PLAIN_WIDTH


# --------------------------------------------------------------------------- rows that are alike
#
# Rows of a table that differ by counting alone become one: `node/gpu-[0-199]`. Nothing is lost by it: the
# first number that differs leads, and every other one that does is as far from it in each row, so that the
# lists of two columns pair up in their order.

MOST_ALIKE = 4
"""So many neighbours that are alike get a line each; more share one."""
_NUMBER = re.compile(r"(\d+)")
_BLANKS = re.compile(" +")


class _Parts:
    """A row as its words, and the numbers between them."""

    def __init__(self, row: Sequence[Cell], loosely: str | None) -> None:
        """`loosely` is compared in the last column's stead."""
        compared = row if loosely is None else row[:-1]
        parts = _NUMBER.split("\n".join([cell.text for cell in compared]))
        self.numbers = parts[1::2]
        words = _BLANKS.sub(" ", "\0".join(parts[::2]))
        styles = [cell.style for cell in row]
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
    """The rows of a table, from more than `MOST_ALIKE` neighbours on that are alike one in their stead.

    With `loosely`, a text for each row, the last columns are compared by that one; the first row's is shown.
    """
    out: list[list[Cell]] = []
    for start, end, moves in _runs([_Parts(r, loosely[i] if loosely else None) for i, r in enumerate(rows)]):
        if end - start > MOST_ALIKE:
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
        if end - start <= MOST_ALIKE:
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
        found[i] = cell._replace(text="".join(parts))
    last = found[-1]
    but = " but for numbers" if first and len({row[-1].text for row in rows}) > 1 else ""
    found[-1] = last._replace(text=f"{last.text} ({len(rows)} alike{but})".lstrip())
    return found
