"""Amounts with a notation of their own: ranges, sizes, durations.

The notations are dstack's, so that its users can bring their files (shared vocabulary, own code):
memory units are MB, GB and TB in powers of 1024, a bare number means GB, ranges are `a..b`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from declarative.model.diagnostic import suggest
from declarative.model.record import struct
from declarative.model.schema.marks import MAX_SHOWN, BadValueError, Json, describe

_UNITS = {"MB": 1, "GB": 1024, "TB": 1024 * 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZE_END = r"\d{1,9}\s*[A-Za-z]{0,2}"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+)\s*([smhdw]?)")
MAX_COUNT = 100_000
"""The most that a fleet, volume or task may ask for. It bounds what a stranger's YAML can cost."""


def unpadded(value: Json, code: str, at: tuple[str, ...] = ()) -> str:
    """The text of an amount. YAML keeps blanks round it only within quotes: they are a slip, and an error."""
    text = str(value)
    bare = text.strip()
    if bare and text != bare:
        shown = f"`{text!r}`" if len(text) <= MAX_SHOWN else "this text"
        what = "line break" if text.rstrip(" ") != text.rstrip() else "space"
        hint = f"remove it: write `{bare}`" if len(bare) <= MAX_SHOWN else "remove it"
        raise BadValueError(code, f"{shown} has a {what} round it", hint, at)
    return bare


def _parts(value: Json, what: str, hint: str) -> tuple[str, str]:
    """The two ends of `a..b`; `a` gives (a, a). One end of `a..b` may be empty. `{min, max}` is dstack's long
    form of the same.
    """
    if isinstance(value, Mapping) and value:
        value = _joined(value, hint)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadValueError("wrong-type", f"expected {what}, found {describe(value)}", hint)
    text = unpadded(value, "bad-range")
    low, dots, high = text.partition("..")
    if not text:
        raise BadValueError("bad-range", f"expected {what}, found {describe(value)}", hint)
    if not dots:
        return text, text
    if not low.strip() and not high.strip():
        raise BadValueError("bad-range", f"`{text}` has neither a lower nor an upper bound", hint)
    return low.strip(), high.strip()


def _joined(value: Mapping[str, Json], hint: str) -> str:
    """`{min: a, max: b}` as `a..b`."""
    ends = {"min": "", "max": ""}
    for key, end in value.items():
        if key not in ends:
            near = suggest(str(key)[:MAX_SHOWN], ends) or hint
            summary = f"`{key}` is not a field of a range"
            raise BadValueError("unknown-field", summary, near, (key,), at_key=True)
        if end is not None and (isinstance(end, bool) or not isinstance(end, str | int | float)):
            summary = f"expected a number or a size, found {describe(end)}"
            raise BadValueError("wrong-type", summary, hint, (key,))
        ends[key] = "" if end is None else unpadded(end, "bad-range", (key,))
        if end is not None and not ends[key]:
            raise BadValueError("bad-range", f"`{key}` is empty", hint, (key,))
    return f"{ends['min']}..{ends['max']}"


def _meant(value: Json, end: str) -> str | None:
    """Suggests `4..` for `4+`, and `2..4` for `2-4`: the notations of other tools."""
    text = str(value).strip()
    if len(text) > MAX_SHOWN:
        return None
    if match := re.fullmatch(rf"({end})\s*(?:\+|(?:-|to|,|:|\.\.\.)\s*({end}))", text):
        return f"write `{match[1]}..{match[2] or ''}`"
    if match := re.fullmatch(rf"([<>])=\s*({end})", text):
        return f"write `{match[2]}..`" if match[1] == ">" else f"write `..{match[2]}`"
    return None


def _ordered(low: int, high: int | None, value: Json, hint: str) -> None:
    if high is not None and low > high:
        raise BadValueError(
            "bad-range", f"{describe(value)} is empty: its lower bound is above its upper bound", hint
        )


@struct(frozen=True, slots=True)
class Count:
    """How many: `2`, `2..4`, `2..`, `..8`. Both ends are inclusive; a single number means exactly that."""

    min: int = 0
    max: int | None = None
    HINT: ClassVar[str] = "write a whole number or a range: `4`, `2..4`, `2..`, `..8`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-range` for anything but whole numbers, `a..b` with a <= b."""
        low, high = _parts(value, "a number or a range", cls.HINT)
        ends: list[int | None] = []
        for end in (low, high):
            if end and not re.fullmatch(r"\d{1,100}", end):
                summary = f"{describe(value)} is not a whole number or a range"
                raise BadValueError("bad-range", summary, _meant(value, r"\d{1,9}") or cls.HINT)
            if end and int(end) > MAX_COUNT:
                hint = f"write a smaller number: at most {MAX_COUNT}"
                raise BadValueError("out-of-range", f"{describe(value)} is more than {MAX_COUNT}", hint)
            ends.append(int(end) if end else None)
        _ordered(ends[0] or 0, ends[1], value, cls.HINT)
        return cls(ends[0] or 0, ends[1])

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "object"}]}

    def plain(self) -> Json:
        """`4` or `2..4`."""
        if self.min == self.max:
            return self.min
        return f"{self.min or ''}..{'' if self.max is None else self.max}"

    def holds(self, number: int) -> bool:
        """Whether `number` lies in the range."""
        return self.min <= number and (self.max is None or number <= self.max)


def parse_mib(text: str, value: Json, hint: str) -> int:
    """`16GB` as MiB. Units are MB, GB, TB (1024-based), any case; a bare number means GB."""
    match = _SIZE.fullmatch(text)
    if match is None:
        if re.match(r"-\s*\d", text):
            raise BadValueError("bad-size", f"`{value}` is below zero", hint)
        raise BadValueError("bad-size", f"{describe(value)} is not a size", _meant(value, _SIZE_END) or hint)
    number, unit = match.group(1), match.group(2).upper() or "GB"
    if unit not in _UNITS:
        near = {"GIB": "GB", "MIB": "MB", "TIB": "TB", "G": "GB", "M": "MB", "T": "TB"}.get(unit)
        near = near or {"GI": "GB", "MI": "MB", "TI": "TB"}.get(unit)
        fix = f"write `{number}{near}` (units are 1024-based)" if near else hint
        raise BadValueError("bad-unit", f"`{match.group(2)}` is not a unit of size", fix)
    mib = float(number) * _UNITS[unit]
    if mib > 1 << 50:
        raise BadValueError("bad-size", f"`{value}` is larger than any disk", "write a smaller size: `1TB`")
    return round(mib)


def show_mib(mib: int) -> str:
    """MiB in the largest unit that keeps it whole: 2048 is `2GB`."""
    for unit in ("TB", "GB"):
        if mib and mib % _UNITS[unit] == 0:
            return f"{mib // _UNITS[unit]}{unit}"
    return f"{mib}MB"


@struct(frozen=True, slots=True)
class Memory:
    """A range of sizes in MiB: `16GB`, `16GB..64GB`, `24GB..`."""

    min: int = 0
    max: int | None = None
    HINT: ClassVar[str] = "write a size or a range of sizes: `16GB`, `16GB..64GB`, `24GB..`, `..8GB`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-size`, `bad-unit` or `bad-range`."""
        low, high = _parts(value, "a size or a range of sizes", cls.HINT)
        least = parse_mib(low, value, cls.HINT) if low else 0
        most = parse_mib(high, value, cls.HINT) if high else None
        _ordered(least, most, value, cls.HINT)
        return cls(least, most)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, {"type": "object"}]}

    def plain(self) -> Json:
        """`16GB..64GB`."""
        if self.min == self.max:
            return show_mib(self.min)
        low = show_mib(self.min) if self.min else ""
        return f"{low}..{'' if self.max is None else show_mib(self.max)}"

    def holds(self, mib: int) -> bool:
        """Whether `mib` lies in the range."""
        return self.min <= mib and (self.max is None or mib <= self.max)


@struct(frozen=True, slots=True)
class Size:
    """One size in MiB, above zero: `500GB`."""

    mib: int
    HINT: ClassVar[str] = "write a size above zero, such as `500GB`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-size` for zero and below, `bad-unit` for an unknown unit."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise BadValueError("wrong-type", f"expected a size, found {describe(value)}", cls.HINT)
        mib = parse_mib(unpadded(value, "bad-size"), value, cls.HINT)
        if mib <= 0:
            raise BadValueError("bad-size", f"`{value}` is not above zero", cls.HINT)
        return cls(mib)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}

    def plain(self) -> Json:
        """`500GB`."""
        return show_mib(self.mib)


@struct(frozen=True, slots=True)
class Duration:
    """Seconds: `90`, `30m`, `2h` or `2 h`, `1d`, `1w`; `off` is None."""

    seconds: int | None
    HINT: ClassVar[str] = "write seconds or a number with s, m, h, d or w: `90`, `30m`, `2h`; or `off`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-duration`."""
        if value == "off" or value is False:
            return cls(None)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadValueError("wrong-type", f"expected a duration, found {describe(value)}", cls.HINT)
        match = _DURATION.fullmatch(unpadded(value, "bad-duration"))
        if re.match(r"\s*-\s*\d", str(value)):
            raise BadValueError("bad-duration", f"`{value}` is below zero", cls.HINT)
        if match is None or len(match.group(1)) > 9:
            raise BadValueError("bad-duration", f"{describe(value)} is not a duration", cls._meant(value))
        return cls(int(match.group(1)) * _SECONDS[match.group(2) or "s"])

    @classmethod
    def _meant(cls, value: Json) -> str:
        """Suggests `90m` for `1h30m`, and `2h` for `2 hours`."""
        text = str(value).strip().lower()
        part = r"(\d{1,6})\s*([smhdw])[a-z]*\s*"
        if len(text) > MAX_SHOWN or not re.fullmatch(rf"(?:{part})+", text):
            return cls.HINT
        parts = re.findall(part, text)
        seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
        return f"write `{cls(seconds).plain()}`: one number and one of s, m, h, d, w"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, {"const": False}]}

    def plain(self) -> Json:
        """The largest unit that keeps it whole."""
        if self.seconds is None:
            return "off"
        for unit in ("w", "d", "h", "m"):
            if self.seconds and self.seconds % _SECONDS[unit] == 0:
                return f"{self.seconds // _SECONDS[unit]}{unit}"
        return f"{self.seconds}s"


class IdleDuration(Duration):
    """How long something may stay unused before it is deleted; `-1` is `off`, as in dstack."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-duration`."""
        return super().parse("off" if value in (-1, "-1") and not isinstance(value, bool) else value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": -1}, {"type": "string"}, {"const": False}]}


class TimeLimit(Duration):
    """The longest time that something may take, above zero."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-duration`, and `out-of-range` for zero."""
        limit = super().parse(value)
        if limit.seconds == 0:
            hint = "write `off` for no limit, or at least `1s`"
            raise BadValueError("out-of-range", f"a limit of `{limit.plain()}` lets nothing run", hint)
        return limit

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, {"const": False}]}
