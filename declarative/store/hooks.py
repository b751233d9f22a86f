"""How far each webhook was told of events: a cursor that only moves once an event was taken.

Whoever delivers claims the hook first, for a time by the clock that all share, so that of several processes
one delivers. One that dies leaves a claim that lapses; the event is then sent again, with the same id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from declarative.store.database import Connection

ERROR_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """How far one webhook was told."""

    name: str
    cursor: int
    failures: int = 0
    """Tries in a row that were of no use."""
    next_at: float | None = None
    """When it is tried again after that; seconds since the epoch."""
    error: str | None = None
    rests: bool = False
    """That it is not to be told now: after a failure, or since another process tells it."""


def claim(
    connection: Connection, name: str, *, start: int, seconds: float, now: float, at_once: bool
) -> Hook | None:
    """The hook, for this process alone for so long; None if another one has it, or if it is to rest after a
    failure, unless it is to be told `at_once`. One that is new begins after the event `start`.
    """
    row = connection.select("hooks", f"WHERE name = :its_name{connection.database.for_update}", its_name=name)
    found = row.first()
    if found is None:
        connection.insert(
            "hooks", {"name": name, "cursor": start, "failures": 0, "busy_until": now + seconds}
        )
        return Hook(name=name, cursor=start)
    if (found.busy_until or 0.0) > now or (not at_once and (found.next_at or 0.0) > now):
        return None
    connection.update("hooks", {"busy_until": now + seconds}, "name = :its_name", its_name=name)
    return _hook(found, now)


def advance(connection: Connection, name: str, cursor: int, *, until: float | None = None) -> None:
    """Events up to `cursor` were taken; `until` keeps the claim for so long, without it the hook is free."""
    values = {"cursor": cursor, "failures": 0, "next_at": None, "error": None, "busy_until": until}
    connection.update(
        "hooks", values, "name = :its_name AND cursor <= :its_cursor", its_name=name, its_cursor=cursor
    )


def fail(connection: Connection, name: str, error: str, next_at: float) -> None:
    """An event was not taken; it is tried again from `next_at` on."""
    values: dict[str, Any] = {"next_at": next_at, "error": error[:ERROR_LENGTH], "busy_until": None}
    connection.update("hooks", values, "name = :its_name", its_name=name)
    connection.execute("UPDATE hooks SET failures = failures + 1 WHERE name = :its_name", its_name=name)


def keep(connection: Connection, names: list[str]) -> None:
    """Forget the hooks that are not declared any more."""
    connection.execute("DELETE FROM hooks WHERE name NOT IN (:its_names)", its_names=names or [""])


def read(connection: Connection) -> tuple[Hook, ...]:
    """All of them, by name."""
    now = connection.database.now(connection)
    return tuple(_hook(row, now) for row in connection.select("hooks", "ORDER BY name"))


def _hook(row: Any, now: float) -> Hook:
    rests = max(row.busy_until or 0.0, row.next_at or 0.0) > now
    return Hook(
        name=row.name,
        cursor=row.cursor,
        failures=row.failures,
        next_at=row.next_at,
        error=row.error,
        rests=rests,
    )
