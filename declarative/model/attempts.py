"""Attempts: one run of a rank each, by its id on its host; and what ranks' states make of their task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from declarative.model.state import ATTEMPT, Intent, RankState, RankStatus, Record, made_as

_BLOCKS = re.compile(r"[0-9]+\.([0-9a-f]{1,256})\.[0-9a-f]+")
_TELLING = (RankState.FAILED, RankState.LOST, RankState.RUNNING, RankState.STARTING, RankState.STOPPED)
"""What one rank's state says of its task, the first of them that one has."""


def attempt_id(record: Record) -> str:
    """`train-2.1.f.3f9c…`: the id of a rank's attempt on its host; a rank that is made anew gets another one.

    After the generation come the blocks that it runs on, as a hexadecimal number with a bit for each: so its
    host can tell whoever knows nothing of it. The last part is random: a state that was brought back from a
    backup counts the same generations again, and must not take an attempt of its lost future for its own.
    Older versions wrote neither.
    """
    known = record.outputs.get(ATTEMPT)
    return str(known) if known else f"{made_as(record).name}.{record.generation}"


def attempt_of(intent: Intent) -> str:
    """The attempt that the start of a rank is about: its token, unless an older version began it."""
    return intent.token if "." in intent.token else f"{intent.address.name}.{intent.generation}"


def rank_of_attempt(attempt: str) -> tuple[str, tuple[int, ...] | None]:
    """The name of the rank that an attempt was of when it began, and the blocks that it runs on; None where
    its id does not say: an older version started it, or its host made it up.
    """
    name, _, rest = attempt.partition(".")
    found = _BLOCKS.fullmatch(rest)
    if found is None:
        return name, None
    bits = int(found[1], 16)
    return name, tuple(block for block in range(bits.bit_length()) if bits >> block & 1)


def first_failure(statuses: Mapping[str, RankStatus | None]) -> str | None:
    """The rank that failed or was lost first, by its host's clock; by name among equals."""
    bad = [
        (s.ended_at or 0.0, name)
        for name, s in statuses.items()
        if s and s.state in (RankState.FAILED, RankState.LOST)
    ]
    return min(bad)[1] if bad else None


def task_state(ranks: Mapping[int, RankStatus | None], master_done: bool) -> RankState:
    """The state of a task from those of its ranks, by rank; None for one that was not started."""
    states = [status.state if status else RankState.PENDING for _, status in sorted(ranks.items())]
    if master_done and states[:1] == [RankState.SUCCEEDED]:
        return RankState.SUCCEEDED if all(s.ended for s in states) else RankState.RUNNING
    if set(states) == {RankState.SUCCEEDED}:
        return RankState.SUCCEEDED
    return next((state for state in _TELLING if state in states), RankState.PENDING)
