"""Text that is safe to show: text from outside as one line, and names in the notation of host lists. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

_COUNTED = re.compile(r"([0-9]+)")
_NUMBER = re.compile(r"(\d+)")
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
    out: list[str] = []
    for (texts, digits), rows in alike.items():
        for row in _linked(_crossed(rows), digits):
            name = clean(texts[0])
            for text, width, counted in zip(texts[1:], digits, row, strict=True):
                shown = ranges(counted, width) or "same"
                name += (f"[{shown}]" if len(counted) != 1 else shown) + clean(text)
            out.append(name)
    return out


def _crossed(rows: list[tuple[Numbers, ...]]) -> list[tuple[Numbers, ...]]:
    """Merge rows that differ at only one place. Starts with the last place."""
    for at in reversed(range(len(rows[0]))):
        merged: dict[tuple[object, ...], list[tuple[Numbers, ...]]] = {}
        for row in rows:
            merged.setdefault((*row[:at], *row[at + 1 :]), []).append(row)
        if len(merged) < len(rows):
            rows = [
                (*same[0][:at], tuple(n for row in same for n in row[at]), *same[0][at + 1 :])
                for same in merged.values()
            ]
    return rows


def _linked(rows: list[tuple[Numbers, ...]], digits: Sequence[int]) -> list[tuple[Numbers, ...]]:
    """Merge rows whose number at one place equals that at another; the second place becomes empty."""
    linked: dict[tuple[int, int, tuple[Numbers, ...]], list[tuple[Numbers, ...]]] = {}
    for row in rows:
        first, second = _same_counts(row, digits)
        rest = row
        if second:
            rest = tuple(numbers for at, numbers in enumerate(row) if at not in {first, second})
        linked.setdefault((first, second, rest), []).append(row)
    out: list[tuple[Numbers, ...]] = []
    for (first, second, _), same in linked.items():
        merged = list(same[0])
        if len(same) > 1:
            merged[first] = tuple(n for row in same for n in row[first])
            merged[second] = ()
        out.append(tuple(merged))
    return out


def _same_counts(row: tuple[Numbers, ...], digits: Sequence[int]) -> tuple[int, int]:
    """The first two places that have the same single number in the same form; 0, 0 without such places."""
    for second, numbers in enumerate(row):
        for first in range(second if len(numbers) == 1 else 0):
            if row[first] == numbers and digits[first] == digits[second]:
                return first, second
    return 0, 0


def numberless(text: str) -> str:
    """The text with its numbers replaced, equal for texts that differ only in numbers."""
    return _NUMBER.sub("#", text)
