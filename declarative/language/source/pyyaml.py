"""Reads YAML as PyYAML does, which dstack and SkyPilot use: YAML 1.1.

`{L4:1, A10G:1}` is two keys without values, `yes` is true, `010` is eight, `1:30` is ninety, `<<` merges, and
the last of equal keys counts. All limits of `reader` hold. Dates stay text.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from declarative.language.source.places import place_of
from declarative.language.source.reader import Reader

MAX_BYTES = 1 << 19
"""The parser that reads such files takes about a second for 100 kB."""
_WORDS: dict[str, bool | None] = {
    form: value
    for words, value in (("yes true on", True), ("no false off", False), ("null", None))
    for word in words.split()
    for form in (word, word.capitalize(), word.upper())
} | {"": None, "~": None}
_NUMBERS = (
    (re.compile(r"[-+]?0b[0-1_]+"), 2),
    (re.compile(r"[-+]?0x[0-9a-fA-F_]+"), 16),
    (re.compile(r"[-+]?0[0-7_]+"), 8),
    (re.compile(r"[-+]?(?:0|[1-9][0-9_]*)"), 10),
)
_SIXTIES = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*")
_REAL = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?")
MAX_DIGITS = 30
"""Longer numbers stay text."""


def plain(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-." or len(text) > MAX_DIGITS:
        return text
    for form, base in _NUMBERS:
        if form.fullmatch(text):
            digits = text.replace("_", "").lower()
            if base in (2, 16):
                digits = re.sub("0[bx]", "", digits, count=1)
            return int(digits, base) if digits.strip("+-") else text
    if _SIXTIES.fullmatch(text):
        sign = -1 if text[0] == "-" else 1
        parts = text.replace("_", "").lstrip("+-").split(":")
        number = float if "." in parts[-1] else int
        total: float = number(0)
        for part in parts:
            total = total * 60 + number(part)
        return sign * total
    return float(text.replace("_", "")) if _REAL.fullmatch(text) else text


class PyYamlReader(Reader):
    """Reads the events of one file of a tool that uses PyYAML."""

    merges: ClassVar[bool] = True

    def _scalar(self, event: Any) -> tuple[Any, int]:
        if event.tag is not None or event.style:
            return super()._scalar(event)
        self._count(1 + (len(event.value) >> 6), event)
        return plain(event.value), place_of(event.start_mark, event.end_mark)
