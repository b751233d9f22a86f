"""Values with a notation of their own: amounts (ranges, sizes, durations), what a rank asks for (above all
GPUs), where ranks and nodes lie, which capacity they use, when a task runs again; and texts with rules:
names, images, environment variables, tags.

The notations of amounts are dstack's, so that its users can bring their files (shared vocabulary, own code):
memory units are MB, GB and TB in powers of 1024, a bare number means GB, ranges are `a..b`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from declarative.model.record import struct
from declarative.model.schema import (
    MAX_SHOWN,
    BadValueError,
    Doc,
    Is,
    Json,
    Word,
    closed_mapping,
    describe,
    raise_all,
    unquoted,
)
from declarative.model.spec.gpu_models import fits
from declarative.model.text import MAX_WORD, MIB, show_mib, suggest

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
    if unit not in MIB:
        near = {"GIB": "GB", "MIB": "MB", "TIB": "TB", "G": "GB", "M": "MB", "T": "TB"}.get(unit)
        near = near or {"GI": "GB", "MI": "MB", "TI": "TB"}.get(unit)
        fix = f"write `{number}{near}` (units are 1024-based)" if near else hint
        raise BadValueError("bad-unit", f"`{match.group(2)}` is not a unit of size", fix)
    mib = float(number) * MIB[unit]
    if mib > 1 << 50:
        raise BadValueError("bad-size", f"`{value}` is larger than any disk", "write a smaller size: `1TB`")
    return round(mib)


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
    LEAST: ClassVar[int] = 0
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
        return {"anyOf": [{"type": "integer", "minimum": cls.LEAST}, {"type": "string"}, {"const": False}]}

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

    LEAST: ClassVar[int] = -1

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-duration`."""
        return super().parse("off" if value in (-1, "-1") and not isinstance(value, bool) else value)


class TimeLimit(Duration):
    """The longest time that something may take, above zero."""

    LEAST: ClassVar[int] = 1

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-duration`, and `out-of-range` for zero."""
        limit = super().parse(value)
        if limit.seconds == 0:
            hint = "write `off` for no limit, or at least `1s`"
            raise BadValueError("out-of-range", f"a limit of `{limit.plain()}` lets nothing run", hint)
        return limit


# ---------------------------------------------------------------------- what is asked for, and where

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,40}")


class RetryEvent(StrEnum):
    """What makes a task run again."""

    NO_CAPACITY = "no-capacity"
    INTERRUPTION = "interruption"
    ERROR = "error"


@struct(frozen=True, slots=True)
class Retry:
    """`true` (every event, for an hour), `false`, or `{on_events: […], duration: 2h, max_attempts: 3}`.

    A task that failed (`error`) or was lost (`interruption`) runs again within `duration` of the first
    failure of a series, `max_attempts` times in all; any command may start it. After that it stays ended. A
    task without a place (`no-capacity`), in the plan or at the clouds, is tried again by every `apply` that a
    person runs; `duration` limits only the automatic tries, and `max_attempts` counts none of them.
    """

    on_events: tuple[RetryEvent, ...] = tuple(RetryEvent)
    duration: Duration = Duration(3600)
    max_attempts: int | None = None
    """Attempts of a series, the first included; None for any number."""
    COUNT_HINT: ClassVar[str] = "write a number from 1 on: it counts the first attempt too"
    HINT: ClassVar[str] = "write `true`, or `{on_events: [no-capacity, interruption, error], duration: 1h}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value` for unknown events, `bad-duration`."""
        if isinstance(value, bool):
            return cls() if value else cls(())
        if not isinstance(value, Mapping):
            raise BadValueError(
                "wrong-type",
                f"expected true, false or a mapping, found {describe(value)}",
                unquoted(value, (bool,), cls.HINT),
            )
        known = ("on_events", "duration", "max_attempts")
        for key in value:
            if key not in known:
                summary = f"`{key}` is not a field of retry"
                hint = suggest(key, known) if len(key) <= MAX_WORD else None
                raise BadValueError("unknown-field", summary, hint or cls.HINT, (key,), at_key=True)
        names = value.get("on_events")
        if names is not None and (not isinstance(names, list | tuple) or not names):
            message = f"expected a list of events, found {describe(names)}"
            raise BadValueError("wrong-type", message, cls.HINT, ("on_events",))
        events = {event.value: event for event in RetryEvent}
        for i, name in enumerate(names or ()):
            if not isinstance(name, str) or name not in events:
                listing = ", ".join(f"`{k}`" for k in events)
                summary = f"expected one of {listing}, found {describe(name)}"
                raise BadValueError("bad-value", summary, cls.HINT, ("on_events", i))
        most = value.get("max_attempts")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
            message = f"expected a number of attempts, found {describe(most)}"
            hint = unquoted(most, (int,), cls.COUNT_HINT)
            raise BadValueError("wrong-type", message, hint, ("max_attempts",))
        if most is not None and most < 1:
            message = f"`max_attempts` is at least 1, and this one is {most}"
            raise BadValueError("out-of-range", message, cls.COUNT_HINT, ("max_attempts",))
        duration = Duration(3600 if most is None else None)  # attempts alone hold however long they take
        if value.get("duration") is not None:
            try:
                duration = Duration.parse(value["duration"])
            except BadValueError as bad:
                raise bad.within("duration")[0] from None
        return cls(tuple(events[str(name)] for name in names or events), duration, most)

    @property
    def seconds(self) -> float:
        """`duration` in seconds."""
        return math.inf if self.duration.seconds is None else self.duration.seconds

    @property
    def waits(self) -> bool:
        """Whether a task that does not fit now stays pending, and delays nothing else."""
        return RetryEvent.NO_CAPACITY in self.on_events

    @property
    def of_failures(self) -> bool:
        """Whether a task runs again if it, or its start, failed. Lack of capacity is not a failure."""
        return any(event is not RetryEvent.NO_CAPACITY for event in self.on_events)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        events = {"type": "array", "minItems": 1, "items": {"enum": [e.value for e in RetryEvent]}}
        keys = {
            "on_events": {"anyOf": [events, {"type": "null"}]},
            "duration": {"anyOf": [Duration.json_schema(), {"type": "null"}]},
            "max_attempts": {"type": ["integer", "null"], "minimum": 1},
        }
        return {"anyOf": [{"type": "boolean"}, closed_mapping(keys)]}

    def plain(self) -> Json:
        if not self.on_events:
            return False
        if self == Retry():
            return True
        most = {} if self.max_attempts is None else {"max_attempts": self.max_attempts}
        return {"on_events": [e.value for e in self.on_events], "duration": self.duration.plain(), **most}


class Placement(StrEnum):
    """`cluster`: one backend, region and network for all; `any`: wherever it is cheapest."""

    ANY = "any"
    CLUSTER = "cluster"


class SpotPolicy(StrEnum):
    """Whether interruptible capacity may be used."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    AUTO = "auto"


class FallbackPolicy(StrEnum):
    """What may be launched in place of a node whose own offer cannot be had."""

    SAME = "same"
    ANY = "any"
    NONE = "none"


class Backfill(StrEnum):
    """Which new tasks may use idle blocks that a task of higher priority waits for."""

    SHORT = "short"
    ANY = "any"


class Level(Word):
    """A level of topology: `node`, `zone`, `region`, or a label that hosts have in `topology`."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{_LEVEL.pattern}$"}
    HINT: ClassVar[str] = "write `zone`, `region`, or a label that hosts have in `topology`, such as `rack`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` if it is not a level."""
        if not isinstance(value, str) or not _LEVEL.fullmatch(value):
            raise BadValueError("bad-name", f"{describe(value)} is not a level of topology", cls.HINT)
        return cls(value)


class Topology(tuple[tuple[str, str], ...]):
    """Where a host stands: level → value, `{rack: r1, row: "4"}`; sorted by level."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a mapping such as `{rack: r1}`"
    MOST: ClassVar[int] = 10
    BUILT_IN: ClassVar[tuple[str, ...]] = ("node", "region")

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`; `bad-name` if a key is not a level, or is a level that every host has anyway."""
        if not isinstance(value, Mapping) or len(value) > cls.MOST:
            summary = f"expected a mapping of at most {cls.MOST} levels, found {describe(value)}"
            raise BadValueError("wrong-type", summary, cls.HINT)
        faults: list[BadValueError] = []
        for key, item in value.items():
            if not _LEVEL.fullmatch(str(key)) or key in cls.BUILT_IN:
                summary = f"{describe(key)} is not a level that a host can declare"
                hint = "name it after what the hosts share, such as `rack`"
                faults.append(BadValueError("bad-name", summary, hint, (key,), at_key=True))
            elif isinstance(item, bool) or not isinstance(item, str | int) or not 1 <= len(str(item)) <= 255:
                summary = f"expected the name of a {key}, found {describe(item)}"
                faults.append(BadValueError("wrong-type", summary, cls.HINT, (key,)))
        raise_all(faults)
        return cls(sorted((str(key), str(item)) for key, item in value.items()))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {
            "type": "object",
            "maxProperties": cls.MOST,
            "propertyNames": {"pattern": f"^{_LEVEL.pattern}$"},
            "additionalProperties": {"type": ["string", "integer"]},
        }

    def plain(self) -> Json:
        return dict(self)


_PARTS = {"count": "counts", "memory": "amounts of memory", "model": "lists of models", "vendor": "vendors"}
"""The names of the parts of a GPU, for the error that a part is given twice."""
_TIMES = re.compile(
    r"([A-Za-z][\w-]*\d[\w-]*?)\s*[x*;=]\s*(\d{1,3})|(\d{1,3})\s*[x*]?\s*([A-Za-z][A-Za-z]*\d[\w-]*)"
)
"""`H100x8`, `8xH100`: other tools' notation for a number of GPUs."""
_MODEL = re.compile(r"[A-Za-z][\w .+/()-]{0,60}", re.ASCII)
MAX_GPU, MAX_MODELS = 1_000, 100
VENDORS = ("nvidia", "amd", "intel", "google", "tenstorrent")


@struct(frozen=True, slots=True)
class Gpu:
    """GPUs of one rank or node: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`.

    The parts may come in any order: a word is a vendor or a list of models, a part with a unit is the memory
    of each GPU, a number is the count. Without a count, it is one or more.
    """

    count: Count = Count(1, None)
    names: tuple[str, ...] = ()
    memory: Memory | None = None
    vendor: str | None = None
    HINT: ClassVar[str] = (
        "write a count, a model, or both: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`"
    )
    KEYS: ClassVar[tuple[str, ...]] = ("vendor", "name", "memory", "count")
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "total_memory": "write `memory:` of each GPU, and a `count:`",
        "compute_capability": "name the models instead: `name: [A100, H100]`",
    }

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-gpu`, `bad-range`, `bad-unit`."""
        if isinstance(value, Mapping):
            return cls._parse_mapping(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            # The texts of a list joined to one value, as a hint.
            items = value if isinstance(value, list | tuple) else ()
            models = ",".join(item for item in items if isinstance(item, str))
            hint = f"write `{models}`" if 0 < len(models) <= MAX_SHOWN else cls.HINT
            raise BadValueError("wrong-type", f"expected GPUs, found {describe(value)}", hint)
        text = str(value)
        if not text.strip():
            raise BadValueError("bad-gpu", "expected GPUs, found empty text", cls.HINT)
        if len(text) > MAX_GPU:
            raise BadValueError("bad-gpu", f"{describe(value)} is too long", cls.HINT)
        unpadded(text, "bad-gpu")
        parts: dict[str, Any] = {}
        for part in text.split(":"):
            key, item = cls._part(part.strip(), value)
            if key in parts:
                hint, counts = cls.HINT, re.fullmatch(r"(.+):(\d{2,3}):(\d{1,3})", text)
                if counts and key == "count":
                    hint = f"write `{counts[1]}:{counts[2]}GB:{counts[3]}`: memory has a unit"
                raise BadValueError("bad-gpu", f"`{value}` names two {_PARTS[key]}", hint)
            parts[key] = item
        return cls._make(parts)

    @classmethod
    def _make(cls, parts: Mapping[str, Any]) -> Self:
        return cls(
            count=parts.get("count", Count(1, None)),
            names=tuple(parts.get("model", ())),
            memory=parts.get("memory"),
            vendor=parts.get("vendor"),
        )

    @classmethod
    def _part(cls, part: str, value: Json) -> tuple[str, Any]:
        if not part:
            raise BadValueError("bad-gpu", f"{describe(value)} has an empty part", cls.HINT)
        if part.lower() in VENDORS:
            return "vendor", part.lower()
        if match := _TIMES.fullmatch(part):
            name, number = match[1] or match[4], match[2] or match[3]
            raise BadValueError(
                "bad-gpu", f"{describe(value)} is not a way to write GPUs", f"write `{name}:{number}`"
            )
        if part[0].isalpha():
            return "model", [cls._model(name.strip(), value) for name in part.split(",")]
        if re.search(r"[A-Za-z]", part):
            return "memory", Memory.parse(part)
        return "count", Count.parse(part)

    def allows(self, model: str | None, mib: int | None = None) -> bool:
        """Whether a GPU of this model and memory fits, however it is spelled; without `names` any does."""
        return not self.names or any(fits(name, model or "", mib) for name in self.names)

    @classmethod
    def _model(cls, name: str, value: Json) -> str:
        if not name and isinstance(value, str) and "," in value:
            meant = re.sub(r",+(?=:|$)|(?<=,),+", "", re.sub(r"\s*,\s*", ",", value))
            summary = f"a `,` in {describe(value)} has no model beside it"
            raise BadValueError("bad-gpu", summary, f"write `{meant}`")
        if not _MODEL.fullmatch(name):
            raise BadValueError("bad-gpu", f"{describe(name)} in {describe(value)} is not a model", cls.HINT)
        return name

    @classmethod
    def _models(cls, item: Json) -> list[str]:
        """`name:` of the long form: one model, or a list of them."""
        names = [item] if isinstance(item, str) else item
        if not isinstance(names, list | tuple):
            names = [None]
        for wrong, summary in (
            (len(names) > MAX_MODELS, f"more than {MAX_MODELS} models"),
            (not all(isinstance(n, str) for n in names), "`name` is a model or a list of models"),
            (not names, "`name` holds no model"),
            (not all(str(n).strip() for n in names), "`name` has an empty model"),
        ):
            if wrong:
                raise BadValueError("bad-gpu", summary, cls.HINT)
        return [cls._model(str(name).strip(), str(name)) for name in names]

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        parts: dict[str, Any] = {}
        faults: list[BadValueError] = []
        if not value or all(item is None for item in value.values()):
            raise BadValueError("bad-gpu", "the mapping of GPUs is empty", cls.HINT)
        for key, item in value.items():
            if item is None and key in cls.KEYS:
                continue
            try:
                parts |= cls._field(key, item)
            except BadValueError as bad:
                faults += bad.within(key)
        raise_all(faults)
        return cls._make(parts)

    @classmethod
    def _field(cls, key: str, item: Json) -> dict[str, Any]:
        """One field of the long form, as an argument of `_make`."""
        if key == "vendor" and isinstance(item, str) and item.lower() in VENDORS:
            return {"vendor": item.lower()}
        if key == "vendor":
            hint = f"write one of {', '.join(VENDORS)}"
            raise BadValueError("bad-gpu", f"{describe(item)} is not a vendor", hint)
        if key == "name":
            return {"model": cls._models(item)}
        if key in ("memory", "count"):
            return {key: Memory.parse(item) if key == "memory" else Count.parse(item)}
        if key in cls.FOREIGN:
            summary = f"`{key}` is a field of dstack that fleetform does not have"
            raise BadValueError("dstack-field", summary, cls.FOREIGN[key], at_key=True)
        hint = suggest(key[:MAX_SHOWN], cls.KEYS) or f"known fields: {', '.join(cls.KEYS)}"
        raise BadValueError("unknown-field", f"`{key}` is not a field of gpu", hint, at_key=True)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "object"}]}

    def plain(self) -> Json:
        """Vendor, models, memory, count, joined by `:`."""
        parts = [self.vendor or "", ",".join(self.names), str(self.memory.plain()) if self.memory else ""]
        return ":".join([p for p in (*parts, str(self.count.plain())) if p])


class Cpu(Count):
    """A count of CPUs; dstack's long form `{count: 4..}` is the same."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-range`; `not-supported-yet` for an architecture, as in `arm:4..`."""
        if isinstance(value, Mapping) and set(value) == {"count"}:
            return super().parse(value["count"])
        named = isinstance(value, str) and ":" in value
        if named or (isinstance(value, Mapping) and "arch" in value):
            hint = "write the number alone; an architecture is chosen by the fleet's `instance_types`"
            raise BadValueError("not-supported-yet", "a CPU architecture cannot be asked for yet", hint)
        return super().parse(value)


class Disk(Memory):
    """A range of sizes; dstack's long form `{size: 100GB..}` is the same."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """As `Memory`."""
        return super().parse(
            value["size"] if isinstance(value, Mapping) and set(value) == {"size"} else value
        )


@struct(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a rank asks for, or what a node must have. A field left out sets no limit."""

    cpu: Annotated[Cpu | None, Doc("CPUs: `4`, `4..`, `2..8`.")] = None
    memory: Annotated[Memory | None, Doc("Memory: `16GB..64GB`; MB, GB, TB in powers of 1024.")] = None
    disk: Annotated[Disk | None, Doc("Disk of the node, shared by its blocks: `100GB..`.")] = None
    gpu: Annotated[
        Gpu | None,
        Doc("GPUs: `1`, `H100:8`, `A100:80GB:1..4`; of one vendor, unless models of several are named."),
    ] = None

    IGNORED: ClassVar[Mapping[str, str]] = {"shm_size": "ranks share the host's /dev/shm, in an `image` too"}
    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("cpus", "vcpu", "vcpus", "cores"), "cpu"),
        **dict.fromkeys(("ram", "mem"), "memory"),
        **dict.fromkeys(("gpus", "accelerator", "accelerators", "nvidia.com/gpu"), "gpu"),
        **dict.fromkeys(
            ("gpu_count", "gpu_name", "gpu_memory"), "write `gpu: H100:80GB:8`: model, memory, count"
        ),
        **dict.fromkeys(("storage", "disk_size", "ephemeral_storage"), "disk"),
        **dict.fromkeys(("limits", "requests"), "write `cpu`, `memory` and `gpu` right below `resources`"),
    }


@struct(frozen=True, slots=True)
class Blocks:
    """The number of equal blocks into which a node is split: a number, or `auto` (None)."""

    number: int | None = 1
    HINT: ClassVar[str] = "write a whole number of at least 1, or `auto`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-blocks`."""
        if value == "auto":
            return cls(None)
        if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise BadValueError("bad-blocks", f"{describe(value)} is not a number of blocks", cls.HINT)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(auto|\d+)$"}]}

    def plain(self) -> Json:
        return "auto" if self.number is None else self.number


# ---------------------------------------------------------------------- names, images, variables, tags

WORDS = Is(most_items=1_000, longest=255)
"""Lists of names from elsewhere, such as instance types."""
PLACES = replace(WORDS, any_case=True)
"""Lists of regions and zones, compared without case."""
MAX_TAGS = 128
MAX_NAME = 41
MAX_FLEET = 2 * MAX_NAME + 1
NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
_NODE = re.compile(r"[a-z][a-z0-9-]{1,40}-(0|[1-9][0-9]{0,8})")
MAX_NUMBER = 10**9
MAX_ADDRESS = 255
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[a-z0-9]+:[0-9a-f]{{32,128}})?",
    re.ASCII,
)
MAX_IMAGE = 500
_TAG_KEY = re.compile(r"[_\-a-zA-Z0-9]{1,60}")
_TAG_VALUE = re.compile(r"[a-zA-Z0-9 .:/=_\-+@]{0,256}")


def check_name(text: Json) -> str:
    """A name of a fleet, volume, task or backend, matched whole."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        shown = f"`{text[:40]!r}`" if isinstance(text, str) and text != text.strip() else describe(text)
        # The rule, or the most similar valid name.
        hint = rule = "write 2 to 41 characters: a lower-case letter, then lower-case letters, digits and `-`"
        if isinstance(text, str) and len(text) <= 100:
            near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
            if NAME.fullmatch(text.strip()):
                what = "line break" if text.rstrip(" ") != text.rstrip() else "space"
                hint = f"remove the {what} round it: write `{text.strip()}`"
            elif NAME.fullmatch(near):
                hint = f"write `{near}`: {rule.removeprefix('write ')}"
        raise BadValueError("bad-name", f"{shown} is not a name", hint)
    return text


class Name(Word):
    """A name: `[a-z][a-z0-9-]{1,40}`, matched whole."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": "^[a-z][a-z0-9-]{1,40}$"}

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` when it is not one."""
        return cls(check_name(value))


class FleetName(Name):
    """A fleet's name. dstack's `project/fleet` is a fleet of another project, and refused."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name`; `dstack-field` for a fleet of another project."""
        if isinstance(value, str) and "/" in value and value.count("/") == 1 and len(value) <= MAX_FLEET:
            hint = f"declare the fleet in this project, and write `{value.partition('/')[2]}`"
            summary = f"`{value}` is a fleet of another project, which fleetform cannot use"
            raise BadValueError("dstack-field", summary, hint)
        return super().parse(value)


class NodeName(Name):
    """A node by its name; dstack's `{fleet: gpu, instance: 0}` is `gpu-0`.

    `hostname:10.0.0.4`, or `{hostname: 10.0.0.4}`, is the node with this address.
    """

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write a node's name: its fleet's, `-` and a number, such as `gpu-0`; or `{hostname: …}`, or "
        "`{fleet: gpu, instance: 0}`"
    )
    HOST: ClassVar[str] = "hostname:"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name`; `wrong-type` for another mapping; `dstack-field` for a fleet of another project."""
        if isinstance(value, str) and value.startswith(cls.HOST):
            return cls(cls.HOST + cls._address(value.removeprefix(cls.HOST)))
        if not isinstance(value, Mapping):
            return cls._named(value)
        if set(value) == {"fleet", "instance"}:
            number = value["instance"]
            try:
                name = FleetName.parse(value["fleet"])
            except BadValueError as error:
                raise error.within("fleet")[0] from None
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_NUMBER:
                summary = f"{describe(number)} is not the number of a node"
                raise BadValueError("bad-value", summary, "write a number from 0 on", ("instance",))
            return cls(f"{name}-{number}")
        if set(value) not in ({"name"}, {"hostname"}):
            shown = ", ".join(f"`{str(key)[:40]}`" for key in value) or "nothing"
            raise BadValueError("wrong-type", f"a mapping with {shown} names no node", cls.HINT)
        (key, text), *_ = value.items()
        try:
            return cls(cls.HOST + cls._address(text)) if key == "hostname" else cls._named(text)
        except BadValueError as error:
            raise error.within(key)[0] from None

    @classmethod
    def _named(cls, text: Json) -> Self:
        if not isinstance(text, str) or not _NODE.fullmatch(text):
            raise BadValueError("bad-name", f"{describe(text)} is not the name of a node", cls.HINT)
        return cls(text)

    @classmethod
    def _address(cls, text: Json) -> str:
        short = isinstance(text, str) and 0 < len(text) <= MAX_ADDRESS
        if not isinstance(text, str) or not short or not text.isprintable() or " " in text:
            hint = "write it as in the fleet's `ssh_config.hosts`, or the node's IP address"
            summary = f"{describe(text)} is not the name or the address of a host"
            raise BadValueError("bad-value", summary, hint)
        return text

    @property
    def host(self) -> str | None:
        """The address, if the node is given by its address; else None."""
        return self.removeprefix(self.HOST) if self.startswith(self.HOST) else None

    @property
    def fleet(self) -> str:
        """The name of its fleet. Meaningless if there is a `host`."""
        return self.rpartition("-")[0]

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        text = {"type": "string"}
        long_forms: tuple[dict[str, Any], ...] = (
            {"name": text},
            {"hostname": text},
            {"fleet": text, "instance": {"type": "integer", "minimum": 0}},
        )
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^({_NODE.pattern}|{cls.HOST}\\S+)$"},
                *(closed_mapping(keys, list(keys)) for keys in long_forms),
            ]
        }


class Env(tuple[tuple[str, str], ...]):
    """Environment variables, as a list of `NAME=value` or as a map. A bare `NAME` takes the
    caller's value.
    """

    __slots__ = ()
    HINT: ClassVar[str] = "write `NAME=value`, or `NAME` alone to pass the caller's value on"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-env`, `duplicate-key`."""
        pairs: list[tuple[str, str]] = []
        if isinstance(value, Mapping):
            items: list[tuple[str | int, Any, Any]] = [(k, k, v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            items = []
            for i, item in enumerate(value):
                name, equals, text = item.partition("=") if isinstance(item, str) else (None, "=", item)
                items.append((i, name, text if equals else None))
        else:
            hint = "write a list: `env: [NAME=value]`" if isinstance(value, str) else cls.HINT
            shown = "text" if isinstance(value, str) else describe(value)  # the text may hold a secret
            raise BadValueError("wrong-type", f"expected a list or a mapping, found {shown}", hint)
        names: set[str] = set()
        faults: list[BadValueError] = []
        for place, name, item in items:
            fault = cls._fault(name, item, names)
            if fault is not None:
                fault.at_key = isinstance(place, str) and fault.code == "bad-env"
                faults += fault.within(place)
            else:
                names.add(name)
                # As the shell gets it. A bare name is the caller's variable, read when the rank starts.
                text = str(item).lower() if isinstance(item, bool) else str(item)
                pairs.append((name, f"${{{{ env.{name} }}}}" if item is None else text))
        raise_all(faults)
        return cls(pairs)

    @classmethod
    def _fault(cls, name: Any, item: Any, names: set[str]) -> BadValueError | None:
        """What is wrong with one variable."""
        if name is None:
            return BadValueError("wrong-type", f"expected `NAME=value`, found {describe(item)}", cls.HINT)
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            hint = f"{cls.HINT}; names have letters, digits and `_`"
            if isinstance(name, str) and _ENV_NAME.fullmatch(name.strip()):
                hint = f"write `{name.strip()}=…`, without spaces around the name"
            return BadValueError("bad-env", f"{describe(name)} is not a variable's name", hint)
        if name in names:
            return BadValueError("duplicate-key", f"`{name}` is set twice", "remove one of them")
        if isinstance(item, Mapping | list | tuple):
            summary = f"expected a string, found {describe(item)}"
            return BadValueError("wrong-type", summary, "put the value in quotes")
        return None

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
            ]
        }

    def plain(self) -> Json:
        """A mapping, in the order of declaration."""
        return dict(self)


_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


class Image(Word):
    """A container image: `[registry/]name[:tag][@digest]`, as docker and podman read it."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-image` if it is not an image's name."""
        if not isinstance(value, str) or len(value) > MAX_IMAGE or not _IMAGE.fullmatch(value):
            shown = (
                f"`{value[:40]!r}`" if isinstance(value, str) and value != value.strip() else describe(value)
            )
            if isinstance(value, str) and (expression := _EXPRESSION.search(value)):
                hint = "write it out, or declare a variable and write `${{ var.NAME }}`, known to `plan`"
                summary = f"`{expression[0][:60]}` is read when a rank starts, and cannot be part of an image"
                raise BadValueError("bad-image", summary, hint)
            raise BadValueError("bad-image", f"{shown} is not the name of an image", _image_hint(value))
        return cls(value)


def _image_hint(value: Json) -> str:
    """A hint: the most similar valid image, or the form."""
    if isinstance(value, str) and len(value) <= MAX_IMAGE:
        near = value.strip().removeprefix("docker://").removeprefix("https://").removeprefix("docker:")
        name, slash, tag = near.rpartition(":")
        for meant in (near, f"{name.lower()}{slash}{tag}" if name else "", near.lower()):
            if meant != value and _IMAGE.fullmatch(meant):
                return f"write `{meant}`"
    return "write `name:tag`, or with its registry `nvcr.io/nvidia/pytorch:25.01-py3`"


class Tags(dict[str, str]):
    """Tags. Keys have letters, digits, `_` and `-` (60 characters); values allow a little more (256), as in
    dstack.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-tag`."""
        if not isinstance(value, Mapping):
            hint = "write a mapping: `{team: research}`"
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}", hint)
        if len(value) > MAX_TAGS:
            raise BadValueError("too-large", f"more than {MAX_TAGS} tags", "write fewer: no cloud takes more")
        out = cls()
        faults: list[BadValueError] = []
        for key, item in value.items():
            text = str(item).lower() if isinstance(item, bool) else str(item)
            if not _TAG_KEY.fullmatch(str(key)):
                summary, hint = (
                    f"{describe(key)} cannot be a tag's key",
                    "use up to 60 letters, digits, `_`, `-`",
                )
                faults.append(BadValueError("bad-tag", summary, hint, (key,), at_key=True))
            if isinstance(item, Mapping | list | tuple) or item is None or not _TAG_VALUE.fullmatch(text):
                hint = "use up to 256 letters, digits, spaces and `.:/=_-+@`"
                summary = f"{describe(item)} cannot be a tag's value"
                faults.append(BadValueError("bad-tag", summary, hint, (key,)))
            out[str(key)] = text
        raise_all(faults)
        return out

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

    def plain(self) -> Json:
        return dict(sorted(self.items()))
