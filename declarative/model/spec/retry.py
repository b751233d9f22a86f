"""A task's `retry`: which failures make it run again, and for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from declarative.model.diagnostic import suggest
from declarative.model.schema.decode import MAX_WORD, describe
from declarative.model.schema.marks import BadValueError, Json
from declarative.model.spec.values import Duration


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
    (`no-capacity`), in the plan or with the clouds once they are asked, is tried by every `apply` that
    somebody runs; `duration` limits who tries by itself.
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
        known = ("on_events", "duration")
        for key in value:
            if key not in known:
                summary = f"`{key}` is not a field of retry"
                hint = suggest(key, known) if len(key) <= MAX_WORD else None
                raise BadValueError("unknown-field", summary, hint or cls.HINT, (key,), at_key=True)
        given, duration = value.get("on_events"), Duration(3600)
        events = tuple(RetryEvent) if given is None else cls._events(given)
        if value.get("duration") is not None:
            try:
                duration = Duration.parse(value["duration"])
            except BadValueError as bad:
                raise BadValueError(bad.code, bad.summary, bad.hint, ("duration",)) from None
        return cls(events, duration)

    @property
    def seconds(self) -> float:
        """`duration` in seconds."""
        return math.inf if self.duration.seconds is None else self.duration.seconds

    @property
    def waits(self) -> bool:
        """Whether a task that does not fit now stays pending, and holds nothing else up."""
        return RetryEvent.NO_CAPACITY in self.on_events

    @property
    def of_failures(self) -> bool:
        """Whether a task that failed is run again, or one whose start did: want of capacity is no failure."""
        return any(event is not RetryEvent.NO_CAPACITY for event in self.on_events)

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
        keys = {
            "on_events": {"anyOf": [events, {"type": "null"}]},
            "duration": {"anyOf": [Duration.json_schema(), {"type": "null"}]},
        }
        mapping = {"type": "object", "properties": keys, "additionalProperties": False}
        return {"anyOf": [{"type": "boolean"}, mapping]}

    def plain(self) -> Json:
        """`true`, `false`, or the mapping."""
        if not self.on_events:
            return False
        if self == Retry():
            return True
        return {"on_events": [e.value for e in self.on_events], "duration": self.duration.plain()}
