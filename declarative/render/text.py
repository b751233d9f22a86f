"""Text for a terminal: safe, in columns, with or without colour; similar rows become one.

Text from outside (YAML, a backend, a rank) passes `clean` before it is put into a line. Every rendering
passes `seal` at its end, so that no foreign control character reaches a terminal.
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
"""Unicode categories that move the cursor, change the direction of writing, are invisible or cannot be
encoded.
"""


class _Visible(dict[int, str]):
    """How each character is shown: control pictures for the old control characters, escapes for
    the others.
    """

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
    """Text from outside as one line. Control characters are made visible, not dropped."""
    shown = str(text)
    return shown if shown.isprintable() else shown.translate(_VISIBLE)


def sentence(text: object) -> str:
    """As `clean`, with line breaks as spaces: for messages that other libraries wrap."""
    return clean(" ".join(str(text).split("\n"))) if "\n" in str(text) else clean(text)


def seal(lines: Iterable[str], *, color: bool) -> str:
    """The lines as one text that ends in a newline; empty for no lines.

    It keeps no control characters but our own colours, even if a caller forgot `clean`.
    """
    return "".join(_sealed(line, color=color).rstrip() + "\n" for line in lines)


def _sealed(line: str, *, color: bool) -> str:
    if not color:
        return clean(line)
    return "".join(part if i % 2 else clean(part) for i, part in enumerate(_SGR.split(line)))


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
    """`0-2,5`: numbers in the notation of host lists, padded with zeros to `digits`."""
    out: list[list[int]] = []
    for number in sorted(set(numbers)):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(f"{a:0{digits}}" if a == b else f"{a:0{digits}}-{b:0{digits}}" for a, b in out)


Numbers = tuple[int, ...]


def host_lists(names: Iterable[str]) -> list[str]:
    """Exactly these names in the notation of host lists: `data-[0-3]`, `train-[0-3].data-[same]`. `same`
    repeats the number of the list before it.
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
    """Merge rows that differ at only one place. Starts with the last place."""
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
    """Merge rows whose number at one place equals that at another; the second place becomes empty."""
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
    """The first two places with the same single number in the same form; 0, 0 if there are none."""
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
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return PLAIN_WIDTH
    return max(40, found) if found else PLAIN_WIDTH


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


def numberless(text: str) -> str:
    """The text with its numbers replaced, equal for texts that differ only in numbers."""
    return _NUMBER.sub("#", text)


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
            found = parts[end - 1].step(parts[end])
            if found is None or (moves and found[1] != moves):
                break
            moves, end = found[1], end + 1
        if end - start <= MOST_ALIKE:
            end = start + 1  # the next row may begin a longer run
        yield start, end, moves
        start = end


def _together(rows: Sequence[Sequence[Cell]], moves: Sequence[bool], *, first: bool) -> list[Cell]:
    found = list(rows[0])
    left = list(moves)
    for i, cell in enumerate(found[:-1] if first else found):
        split = [_NUMBER.split(row[i].text) for row in rows]
        # Padding in front of small numbers is dropped.
        parts = split[-1]
        for at in range(1, len(parts), 2):
            if left.pop(0):
                parts[at] = f"[{ranges(int(row[at]) for row in split)}]"
        found[i] = cell._replace(text="".join(parts))
    last = found[-1]
    but = " but for numbers" if first and len({row[-1].text for row in rows}) > 1 else ""
    found[-1] = last._replace(text=f"{last.text} ({len(rows)} alike{but})".lstrip())
    return found
