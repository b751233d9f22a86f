"""When tasks and fleets run: cron expressions with a time zone. The current time is given by the caller.

Clock changes are handled as in Debian's cron: a start in the skipped hour happens right after it, and a start
in the repeated hour happens once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, ClassVar

from declarative.model.record import set_field, struct
from declarative.model.schema import BadValueError, Doc, Json, Word, describe

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
