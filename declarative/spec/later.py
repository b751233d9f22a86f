"""Fields of tasks and backends with a notation of their own: `retry`, `files`, and `credentials`, whose work
comes later. It is read in full now, so that a file that is accepted today means the same tomorrow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from declarative.diagnostic import suggest
from declarative.schema import BadValueError, Json, raise_all
from declarative.schema.decode import MAX_WORD, describe
from declarative.spec.values import Duration

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RetryEvent(StrEnum):
    """What makes a task run again."""

    NO_CAPACITY = "no-capacity"
    INTERRUPTION = "interruption"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Retry:
    """`true` (every event, for an hour), `false`, or `{on_events: […], duration: 2h}`.

    A task that failed (`error`) or was lost (`interruption`) runs again for `duration` from the first of a
    series of failures on, by whichever command may act; then it stays ended. One that has no place
    (`no-capacity`) is tried by every `apply` that somebody runs; `duration` limits who tries by itself.
    """

    on_events: tuple[RetryEvent, ...] = tuple(RetryEvent)
    duration: Duration = Duration(3600)
    HINT: ClassVar[str] = "write `true`, or `{on_events: [no-capacity, interruption, error], duration: 1h}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value` for unknown events, `bad-duration`."""
        if isinstance(value, bool):
            return cls() if value else cls(())
        if not isinstance(value, Mapping):
            raise BadValueError(
                "wrong-type", f"expected true, false or a mapping, found {describe(value)}", cls.HINT
            )
        events: tuple[RetryEvent, ...] = tuple(RetryEvent)
        duration = Duration(3600)
        for key, item in value.items():
            if key == "on_events":
                events = cls._events(item)
            elif key == "duration":
                try:
                    duration = Duration.parse(item)
                except BadValueError as bad:
                    raise BadValueError(bad.code, bad.summary, bad.hint, ("duration",)) from None
            else:
                summary = f"`{key}` is not a field of retry"
                hint = suggest(key, ("on_events", "duration")) if len(key) <= MAX_WORD else None
                raise BadValueError("unknown-field", summary, hint or cls.HINT, (key,), at_key=True)
        return cls(events, duration)

    @property
    def seconds(self) -> float:
        """`duration` in seconds."""
        return math.inf if self.duration.seconds is None else self.duration.seconds

    @property
    def waits(self) -> bool:
        """Whether a task that does not fit now stays pending, and holds nothing else up."""
        return RetryEvent.NO_CAPACITY in self.on_events

    @classmethod
    def _events(cls, value: Json) -> tuple[RetryEvent, ...]:
        if not isinstance(value, list | tuple) or not value:
            found = f"expected a list of events, found {describe(value)}"
            raise BadValueError("wrong-type", found, cls.HINT, ("on_events",))
        known = {event.value: event for event in RetryEvent}
        for i, item in enumerate(value):
            if not isinstance(item, str) or item not in known:
                listing = ", ".join(f"`{k}`" for k in known)
                summary = f"expected one of {listing}, found {describe(item)}"
                raise BadValueError("bad-value", summary, cls.HINT, ("on_events", i))
        return tuple(known[str(item)] for item in value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A boolean or a mapping."""
        events = {"type": "array", "minItems": 1, "items": {"enum": [e.value for e in RetryEvent]}}
        keys = {"on_events": events, "duration": Duration.json_schema()}
        mapping = {"type": "object", "properties": keys, "additionalProperties": False}
        return {"anyOf": [{"type": "boolean"}, mapping]}

    def plain(self) -> Json:
        """`true`, `false`, or the mapping."""
        if not self.on_events:
            return False
        if self == Retry():
            return True
        return {"on_events": [e.value for e in self.on_events], "duration": self.duration.plain()}


@dataclass(frozen=True, slots=True)
class File:
    """A path of the project and where it appears in the rank's working folder."""

    local_path: str
    path: str


class Files(tuple[File, ...]):
    """`src`, `src:where`, or `{local_path: src, path: where}`."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a path below the project's directory: `train.py`, or `src:code`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-path` for paths that are absolute or lead out of the project."""
        if not isinstance(value, list | tuple):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        out: list[File] = []
        faults: list[BadValueError] = []
        for i, item in enumerate(value):
            try:
                out.append(cls._file(item))
            except BadValueError as bad:
                faults += bad.below(i)
        raise_all(faults)
        return cls(out)

    @classmethod
    def _file(cls, item: Json) -> File:
        if isinstance(item, str):
            local, colon, where = item.partition(":")
            pair: tuple[Json, Json] = (local, where if colon else local)
        elif isinstance(item, Mapping) and set(item) <= {"local_path", "path"} and "local_path" in item:
            pair = (item["local_path"], item.get("path", item["local_path"]))
        else:
            raise BadValueError("wrong-type", f"expected a path, found {describe(item)}", cls.HINT)
        for text in pair:
            if not isinstance(text, str) or not text or "\0" in text:
                raise BadValueError("bad-path", f"{describe(text)} is not a path", cls.HINT)
            if text.startswith(("/", "~")) or ".." in text.split("/"):
                raise BadValueError("bad-path", f"`{text}` leads out of the project", cls.HINT)
        return File(str(pair[0]), str(pair[1]))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of strings or mappings."""
        keys = {"local_path": {"type": "string"}, "path": {"type": "string"}}
        mapping = {
            "type": "object",
            "properties": keys,
            "required": ["local_path"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, mapping]}}

    def plain(self) -> Json:
        """`src` or `src:where`."""
        return [f.path if f.path == f.local_path else f"{f.local_path}:{f.path}" for f in self]


class Credentials(dict[str, str]):
    """What the driver calls a credential → the environment variable that holds it; never its value."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `key: AWS_ACCESS_KEY_ID`; the secret goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential` for anything but names of variables. The value itself is not shown: it may be
        the secret.
        """
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", "expected a mapping", cls.HINT)
        faults: list[BadValueError] = []
        for key, item in value.items():
            if not isinstance(item, str) or not _VARIABLE.fullmatch(item):
                summary = f"the value of `{key}` is not the name of an environment variable"
                faults.append(BadValueError("bad-credential", summary, cls.HINT, (key,), at_key=True))
        raise_all(faults)
        return cls({str(k): str(v) for k, v in value.items()})

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A mapping of names."""
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"},
        }

    def plain(self) -> Json:
        """A mapping, sorted by key."""
        return dict(sorted(self.items()))
