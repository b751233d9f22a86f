"""Which tasks run again after a failure, as their `retry` says, and what is remembered of it.

Failures in a row are a series: it begins when the first of them is noticed, and for `duration` from then on
the task runs again, with all its ranks. An attempt that held out for longer than that begins a new series: a
task that trains for days may be interrupted more than once. What is known of a series stands in the inputs of
the ranks (`state.RETRIES`), so that it is in saved plans and in the journal, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from declarative.model.inputs import RetrySeries
from declarative.model.resource import TaskWant
from declarative.model.spec import RetryEvent, StopCriteria
from declarative.model.state import (
    LIMIT_REACHED,
    NOTICED,
    STOPPED,
    NodeState,
    RankState,
    RankStatus,
    Record,
    State,
    first_failure,
    task_state,
)

UNFIT = frozenset({NodeState.UNREACHABLE, NodeState.UNKNOWN})
"""Of ranks that were running on such a node it is not known whether they still are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """That a task is to run again."""

    cause: str
    """`rank/train-1 failed: exit code 1`."""
    noticed: float
    """When the failure was noticed, seconds since the epoch by our clock."""
    series: RetrySeries
    """What the ranks of the new attempt record under `RETRIES`."""

    @property
    def count(self) -> int:
        """Which retry of its series it is, from 1."""
        return self.series.count


def again(want: TaskWant, have: Iterable[Record], state: State, now: float) -> Again | None:
    """That a task of which `have` is recorded runs again, or None.

    Some of its ranks may still run: whoever acts stops them first. Those of which nobody knows are waited
    for.
    """
    ranks = {r.address.name: r for r in have}
    statuses = {name: state.ranks.get(name) for name in ranks}
    broken = first_failure(statuses)
    status = statuses[broken] if broken else None
    if broken is None or status is None or bad_end(ranks.values(), state) is None:
        return None
    if _event(status) not in want.spec.retry.on_events:
        return None
    if any(r.outputs.get(STOPPED) for r in ranks.values()) or _unknown(statuses, state):
        return None
    noticed = float(ranks[broken].outputs.get(NOTICED, now))
    longest = want.spec.retry.seconds
    since, count = noticed, 0
    before = series(ranks.values())
    if before and _lasted(status, noticed, before) < longest:
        since, count = before.since, before.count
    if now - since > longest:
        return None
    return Again(
        cause=f"rank/{broken} {status.state.value}" + (f": {status.cause}" if status.cause else ""),
        noticed=noticed,
        series=RetrySeries(count=count + 1, since=since, at=now),
    )


def series(have: Iterable[Record]) -> RetrySeries | None:
    """What the ranks of an attempt record of its series; None for a first attempt."""
    return max((r.rank.retries for r in have if r.rank.retries), key=lambda s: s.count, default=None)


def _event(status: RankStatus) -> RetryEvent | None:
    """What kind of failure it was. Who limits how long a rank runs does not mean: and then once more."""
    if status.state is RankState.LOST:
        return RetryEvent.INTERRUPTION
    return None if status.cause == LIMIT_REACHED else RetryEvent.ERROR


def bad_end(ranks: Iterable[Record], state: State) -> RankState | None:
    """`failed` or `lost`, if that is how the task of these ranks ends; rank 0 alone may have to be done."""
    members = list(ranks)
    done = any(r.rank.stop_criteria == StopCriteria.MASTER_DONE.value for r in members)
    found = task_state({r.rank.rank: state.ranks.get(r.address.name) for r in members}, done)
    return found if found in (RankState.FAILED, RankState.LOST) else None


def _unknown(statuses: Mapping[str, RankStatus | None], state: State) -> bool:
    """Whether a rank may run where nobody can ask: it is neither stopped nor known to have ended."""
    for name, status in statuses.items():
        place = state.get("reservation", name)
        if place is None or (status and status.state.ended):
            continue
        node = state.readiness.get(place.reservation.node)
        if node is None or node.state in UNFIT:
            return True
    return False


def _lasted(status: RankStatus, noticed: float, before: RetrySeries) -> float:
    """Seconds that an attempt lasted: as its host measured it, else at most.

    A failure may be noticed long after it, and must not count as a long run then.
    """
    if status.state is RankState.FAILED and status.started_at is not None and status.ended_at is not None:
        return status.ended_at - status.started_at
    return noticed - before.at
