"""Text for people: text from outside as one safe line, lists of names cut short or as host lists, sizes, and
what a mistyped word may mean. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

_COUNTED = re.compile(r"([0-9]+)")
_NUMBER = re.compile(r"(\d+)")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the direction of writing, are invisible or cannot be
encoded.
"""

MIB = {"MB": 1, "GB": 1024, "TB": 1024 * 1024}
"""The MiB of each unit of memory."""


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


def show_mib(mib: int) -> str:
    """MiB in the largest unit that keeps it whole: 2048 is `2GB`."""
    for unit in ("TB", "GB"):
        if mib and mib % MIB[unit] == 0:
            return f"{mib // MIB[unit]}{unit}"
    return f"{mib}MB"


def and_more(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `most` of `items`, and how many follow."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


MAX_EDITS = 3
"""Letters by which a mistyped word may differ: fewer in a short word, where that would be most of it."""
MAX_NEAR = 3
"""Equally near words that a hint names."""


def suggest(word: str, known: Iterable[str], most: int = MAX_EDITS) -> str | None:
    """`did you mean …?` for a mistyped word, or None where nothing is near.

    The word with the fewest edits wins: a letter too many, too few or another one, or two swapped.
    Words that are equally near are all named. An edit for each three letters is allowed. Where none is near,
    a word is the beginning of others: of those whose first part it is (`identity` of `identity_file`), or of
    the only one that begins with these four letters or more. `most` is how many edits there may be.
    """
    near = _near(word.casefold(), tuple(sorted(set(known))), most)
    return f"did you mean {' or '.join(f'`{name}`' for name in near[:MAX_NEAR])}?" if near else None


MAX_COMPARED = 50_000
"""Names with which mistyped ones are compared, in all: about a second. Somebody's file may have thousands."""
MAX_WORD = 100
"""Letters. Longer text is no mistyped word: comparing it would only take time."""


class Near:
    """`suggest`, until all comparisons together take too long."""

    def __init__(self) -> None:
        self._compared = 0

    def __call__(self, word: str, known: Collection[str], most: int = MAX_EDITS) -> str | None:
        """The suggestion for a word; None once too many words were compared."""
        self._compared += len(known)
        usable = self._compared <= MAX_COMPARED and len(word) <= MAX_WORD
        return suggest(word, known, most) if usable else None

    def other_than_number(self, word: str, known: Collection[str]) -> str | None:
        """The suggestion for a name; a name that differs only in its number (`gpu-3`, `gpu-2`) is none."""
        if self._compared > MAX_COMPARED:
            return None
        letters = re.sub(r"[0-9]", "", word)
        others = [name for name in known if re.sub(r"[0-9]", "", name) != letters]
        self._compared += len(known) - len(others)
        return self(word, others)


@lru_cache(maxsize=64)
def _near(typed: str, known: tuple[str, ...], most: int) -> Sequence[str]:
    """The nearest of some words. Kept: who mistypes a field does so in each document."""
    least = min(most, max(1, len(typed) // 3))
    near: list[str] = []
    for name in known:
        edits = _edits(typed, name.casefold(), least)
        if edits is not None and edits < len(typed):
            near = [*near, name] if edits == least else [name]
            least = edits
    if near or not typed:
        return near
    longer = [name for name in known if name.casefold().startswith(typed)]
    first_part = [name for name in longer if not name.casefold()[len(typed)].isalnum()]
    return first_part or (longer if len(longer) == 1 and len(typed) > MAX_EDITS else [])


def _edits(one: str, other: str, most: int) -> int | None:
    """How many edits make one word of the other; None if more than `most`.

    An edit adds, drops or replaces a letter, or swaps two neighbours (optimal string alignment).
    """
    if abs(len(one) - len(other)) > most:
        return None
    if (Counter(one) - Counter(other)).total() > most:
        return None
    # Each row holds the edits from a beginning of `one` to all beginnings of `other`.
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                edits = min(edits, last[j - 2] + 1)
            row.append(edits)
        if min(row) > most:
            return None
    return row[-1] if row[-1] <= most else None
