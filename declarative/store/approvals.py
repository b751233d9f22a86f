"""What a loop waits for a person to approve, and what was approved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from declarative.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Some actions that belong together. Times are seconds since the epoch."""

    digest: str
    steps: tuple[str, ...]
    """The ids of the actions: `delete:node/gpu-1`."""
    since: float
    approved_at: float | None = None
    actor: str | None = None
    """Who approved it."""


def read(connection: Connection) -> tuple[Approval, ...]:
    """All of them, the oldest first."""
    rows = connection.select("approvals", "ORDER BY since, digest")
    return tuple(
        Approval(
            digest=row.digest,
            steps=tuple(row.steps),
            since=row.since,
            approved_at=row.approved_at,
            actor=row.actor,
        )
        for row in rows
    )


def write(connection: Connection, wanted: Mapping[str, Sequence[str]], now: float) -> None:
    """What waits now, by digest. What does not any more is forgotten, with its approval."""
    known = {found.digest for found in read(connection)}
    gone = sorted(known - wanted.keys())
    if gone:
        connection.execute("DELETE FROM approvals WHERE digest IN (:its_digests)", its_digests=gone)
    new = [
        {"digest": digest, "steps": list(steps), "since": now}
        for digest, steps in wanted.items()
        if digest not in known
    ]
    connection.insert("approvals", *new)


def approve(connection: Connection, digest: str, now: float) -> bool:
    """Whether that waits; it is approved from now on."""
    who = connection.database.who
    values = {"approved_at": now, "actor": who.actor if who else None}
    return bool(connection.update("approvals", values, "digest = :its_digest", its_digest=digest))
