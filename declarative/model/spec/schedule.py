"""When tasks and fleets run: cron expressions with a time zone, and a task's `retry`. The current time is
given by the caller.

Clock changes are handled as in Debian's cron: a start in the skipped hour happens right after it, and a start
in the repeated hour happens once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from declarative.model.diagnostic import MAX_WORD, suggest
from declarative.model.record import set_field, struct
from declarative.model.schema import BadValueError, Doc, Json, Word, closed_mapping, describe, unquoted
from declarative.model.spec.values import Duration


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


MINUTE = 60.0
_ANY = datetime(2000, 1, 1, tzinfo=UTC)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


class Cron(Word):
    """Five fields: minute, hour, day of the month, month, day of the week."""

    __slots__ = ()
    HINT: ClassVar[str] = 'write minute, hour, day, month and weekday: `"0 8 * * 1-5"` is 8:00 on workdays'

    @classmethod
    def parse(cls, value: Json) -> Cron:
        """`bad-cron`."""
        from cronsim import CronSim, CronSimError

        text = " ".join(value.split()) if isinstance(value, str) else ""
        if len(text.split()) != 5 or len(text) > 100:
            raise BadValueError(
                "bad-cron", f"expected a cron expression of five fields, found {describe(value)}", cls.HINT
            )
        try:
            next(CronSim(text, _ANY))
        except (CronSimError, StopIteration) as error:
            why = str(error) or "no time matches it"
            raise BadValueError("bad-cron", f"`{text}` is not a cron expression: {why}", cls.HINT) from None
        return cls(text)

    def last(self, now: float, zone: str) -> float | None:
        """The last time at or before `now`, seconds since the epoch; None if there was none for decades."""
        return _last(str(self), now // MINUTE * MINUTE, zone)

    def next(self, now: float, zone: str) -> datetime | None:
        """The first time after `now`, in that zone; None if there is none for decades."""
        return _next(str(self), now // MINUTE * MINUTE, zone)


class Zone(Word):
    """A time zone by its IANA name."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{_ZONE.pattern}$"}
    HINT: ClassVar[str] = "write its IANA name, such as `Europe/Berlin` or `UTC`"

    @classmethod
    def parse(cls, value: Json) -> Zone:
        """`bad-timezone`."""
        text = value if isinstance(value, str) else ""
        try:
            known = bool(_ZONE.fullmatch(text)) and bool(_zone(text))
        except (KeyError, ValueError, OSError):  # `ZoneInfoNotFoundError` is a KeyError
            known = False
        if not known:
            raise BadValueError("bad-timezone", f"{describe(value)} is not a time zone", cls.HINT)
        return cls(text)


def _zone(name: str) -> tzinfo:
    """UTC needs no time zone file."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


@functools.lru_cache(maxsize=1024)
def _last(text: str, minute: float, zone: str) -> float | None:
    from cronsim import CronSim

    at = datetime.fromtimestamp(minute, _zone(zone)) + timedelta(minutes=1)
    return next((time.timestamp() for time in CronSim(text, at, reverse=True)), None)


@functools.lru_cache(maxsize=1024)
def _next(text: str, minute: float, zone: str) -> datetime | None:
    from cronsim import CronSim

    return next(CronSim(text, datetime.fromtimestamp(minute, _zone(zone))), None)


@struct(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When something runs: from each `start` to the next `stop`."""

    start: Annotated[Cron, Doc('When it starts, as a cron expression: `"0 8 * * 1-5"`.')] = Cron()
    cron: Annotated[Cron | None, Doc("The same as `start`, as in dstack.")] = None
    stop: Annotated[Cron | None, Doc("When it stops; without it, a task runs to its end.")] = None
    timezone: Annotated[Zone, Doc("The time zone: `Europe/Berlin`; default `UTC`.")] = Zone("UTC")

    ELSEWHERE: ClassVar[dict[str, str]] = {"end": "stop", "tz": "timezone"}

    def __post_init__(self) -> None:
        if self.cron is not None and self.start:
            summary = "`cron` and `start` mean the same, and both are set"
            raise BadValueError("bad-value", summary, "remove one of them", ("cron",), at_key=True)
        if self.cron is not None:
            set_field(self, "start", self.cron)
            set_field(self, "cron", None)
        if not self.start:
            hint = 'add `start: "0 8 * * 1-5"`'
            raise BadValueError("missing-field", "`start` is missing", hint)

    def started(self, now: float) -> float | None:
        """The last start at or before `now`; None if there was none."""
        return self.start.last(now, self.timezone)

    def next_start(self, now: float) -> str | None:
        """The first start after `now`, for people: `2026-01-30 08:00 Europe/Berlin`."""
        at = self.start.next(now, self.timezone)
        return f"{at:%Y-%m-%d %H:%M} {self.timezone}" if at else None

    def next_stop(self, now: float) -> float:
        """The first stop after `now`, seconds since the epoch; 0 if there is none."""
        at = self.stop.next(now, self.timezone) if self.stop else None
        return at.timestamp() if at else 0.0

    def on(self, now: float) -> bool:
        """Whether `now` is between a start and the next stop. A start and a stop at the same time count as a
        start.
        """
        start = self.started(now)
        stop = self.stop.last(now, self.timezone) if self.stop else None
        return start is not None and (stop is None or start >= stop)
