"""Tasks and their ranks: which go on, which have ended, which run (again), which are deleted.

Failures in a row are a series. It begins when the first failure is noticed. The task runs again, with all its
ranks, for the `duration` of its `retry`. An attempt that ran for longer than that begins a new series:
a task that trains for days may be interrupted more than once. The series is recorded in the inputs of the
ranks (`state.RETRIES`), so that saved plans and the journal have it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from math import isfinite
from typing import Annotated

from declarative.model.inputs import NodeFailures, RankInputs, RetrySeries, differing
from declarative.model.outputs import Moment
from declarative.model.record import struct
from declarative.model.resource import SUMS, Desired, TaskWant, changes
from declarative.model.schema import Doc, Is, in_place
from declarative.model.spec import NodeCount, Placement, RetryEvent, StopCriteria, Task
from declarative.model.spec.schedule import Schedule
from declarative.model.state import (
    FAILED_ON,
    RETRIES,
    SCHEDULED,
    Address,
    Record,
    State,
    first_failure,
    is_stopped,
    machine_name,
    rank_name,
    readiness_of,
    task_state,
)
from declarative.model.status import (
    LIMIT_REACHED,
    NOT_RELEASED,
    PREPARING,
    UNUSED,
    WAITING,
    NodeState,
    RankState,
    RankStatus,
)
from declarative.planner.inventory import rank_holding
from declarative.planner.plan import Reason


class Course(StrEnum):
    """The decision about a task's ranks."""

    KEPT = "kept"
    COMPLETED = "completed"
    """Some of its ranks have started, and the others still have their places: only the others are started."""
    RESIZED = "resized"
    """Its ranks below `nodes` go on, the others are stopped, and missing ones are started beside them."""
    RUN = "run"


@struct(slots=True)
class TaskDecision:
    """The decision about one declared task, and why."""

    want: TaskWant
    course: Course
    reason: Reason = Reason.NEW
    because: tuple[str, ...] = ()
    have: Mapping[int, Record] = field(default_factory=dict)
    """The recorded ranks, by rank."""
    incomplete: bool = False
    """Some ranks of the recorded gang are missing."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Changes in its folders since it has ended (`manifest.changes`)."""
    series: RetrySeries | None = None
    """The series of failures that its new ranks belong to, if any."""
    failed_on: tuple[NodeFailures, ...] = ()
    """The machines on which earlier attempts failed."""
    avoids: tuple[str, ...] = ()
    """The nodes of these machines that a new attempt avoids, the last one last."""
    despite: tuple[str, ...] = ()
    """The avoided nodes that it may still go to, because no other place fits."""

    @property
    def name(self) -> str:
        """The task's name."""
        return str(self.want.spec.name)

    @property
    def missing(self) -> list[int]:
        """The declared ranks that are not recorded."""
        return [rank for rank in range(self.want.spec.nodes) if rank not in self.have]

    def leaves(self, rank: str) -> bool:
        """Whether what a rank (`train-2`) holds is given back although the task goes on: the rank is above
        its `nodes`. An apply that was cut short may have left a place without a rank.
        """
        number = int(rank.rpartition("-")[2])
        above = self.course is not Course.RUN and number >= self.want.spec.nodes
        return above and (self.course is Course.RESIZED or number not in self.have)

    def rank_inputs(self, rank: int) -> RankInputs:
        """The inputs to record for a rank that this plan starts."""
        inputs, started = self.want.rank_inputs(rank), self.want.started
        if self.series is None and started is None:
            return inputs
        until = None if started is None else self.want.stops
        return replace(
            inputs, retries=self.series, scheduled=started, scheduled_until=until, failed_on=self.failed_on
        )


NOT_DECLARED = frozenset({RETRIES, SCHEDULED, "scheduled_until", FAILED_ON, SUMS})
"""Inputs of ranks that are no fields of their task."""


def changed_fields(before: RankInputs, after: RankInputs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields that differ: those that restart the rank, and those that change in place."""
    keys = [name for name in differing(before, after) if name not in NOT_DECLARED]
    marked = in_place(Task)
    return tuple(k for k in keys if k not in marked), tuple(k for k in keys if k in marked)


def _later_files(want: TaskWant, have: Mapping[int, Record], state: State) -> dict[str, str]:
    """Changes in the folders of `files` since a task has ended, which do not run it again.

    Results, notes and the next job's data come and go in a folder. Commands and files that the task names
    directly are different: a change of those is a change of the task.
    """
    if 0 not in have or not all(state.has_ended(r.address.name) for r in have.values()):
        return {}
    before, after = have[0].rank, want.rank_inputs(0)
    if before.file_sums is None or after.file_sums is None:  # older versions recorded none
        return {}
    changed_paths = changes(before.file_sums, after.file_sums)
    same = before.files and after.files and before.files.paths == after.files.paths
    return changed_paths if same and not changed_paths.keys() & want.own_files else {}


def decide_task(
    want: TaskWant, state: State, have: Mapping[int, Record], requested: frozenset[str], now: float
) -> TaskDecision:
    """Decide about a declared task with these recorded ranks."""
    decision = TaskDecision(want, Course.RUN, have=have)
    if not have:
        return decision
    decision.incomplete = len(have) < max(record.rank.nodes for record in have.values())
    ended = any(state.has_ended(record.address.name) for record in have.values())
    changed = {"nodes"} if any(rank >= want.spec.nodes for rank in have) else set[str]()
    for rank, record in have.items():
        if rank < want.spec.nodes:
            changed.update(changed_fields(record.rank, want.rank_inputs(rank))[0])
    if changed == {"files"}:
        decision.files = _later_files(want, have, state)
    if want.off and f"task/{decision.name}" not in requested:  # all its ranks have ended: see `is_planned`
        decision.course = Course.KEPT
        decision.because = () if decision.files else tuple(sorted(changed))
    elif f"task/{decision.name}" in requested:
        decision.reason = Reason.REQUESTED
    elif changed and not decision.files:
        decision.reason, decision.because = Reason.CHANGED, tuple(sorted(changed))
        if changed == {"nodes"} and _may_resize(want, have, state):
            decision.course, decision.incomplete = Course.RESIZED, False
            _remember_failures(decision, state)
    elif is_stopped(have.values()):
        decision.course = Course.KEPT
    elif not decision.missing and _never_began(have.values(), state):
        decision.reason, decision.incomplete = Reason.INCOMPLETE, True
        _remember_failures(decision, state)
    elif is_due(want, have.values(), state):
        decision.reason = Reason.SCHEDULE
    elif decision.missing:
        # Its missing ranks start in their places. Without these, or if a rank ended, the gang starts anew.
        decision.reason, decision.incomplete = Reason.INCOMPLETE, True
        _remember_failures(decision, state, due_retry(want, have.values(), state, now))
        if not ended and all(_has_place(want, rank, state) for rank in decision.missing):
            decision.course = Course.COMPLETED
    elif retry := due_retry(want, have.values(), state, now):
        decision.reason, decision.because = Reason.RETRY, (retry.cause,)
        _remember_failures(decision, state, retry)
    else:
        decision.course = Course.KEPT
    return decision


def _may_resize(want: TaskWant, have: Mapping[int, Record], state: State) -> bool:
    """Whether ranks may come and go while the others run: these do not know each other, and have begun.

    The ranks that stay record the new number last. So if an apply was cut short, the least number that is
    recorded is the one of which all ranks are there.
    """
    if want.spec.placement is not Placement.ANY or is_stopped(have.values()):
        return False
    names = [r.address.name for r in have.values()]
    least = min(want.spec.nodes, *(r.rank.nodes for r in have.values()))
    statuses = [state.ranks.get(name) for name in names]
    begun = all(s and s.cause not in (PREPARING, WAITING, NOT_RELEASED) for s in statuses)
    bad = bad_end(have.values(), state) is not None
    return begun and not bad and have.keys() >= set(range(least)) and not all(map(state.has_ended, names))


def _remember_failures(decision: TaskDecision, state: State, retry: DueRetry | None = None) -> None:
    """The next attempt records the failures so far: as of a due retry, else as of the last attempt."""
    have = decision.have.values()
    decision.series = retry.series if retry else retry_series(have)
    decision.failed_on = retry.failed_on if retry else _failed_before(have)
    decision.avoids = avoided_nodes(decision.failed_on, state)


def _never_began(have: Iterable[Record], state: State) -> bool:
    """Whether a gang was never complete. Then no command of it ran, and it does not count as an attempt."""
    statuses = [s for r in have if (s := state.ranks.get(r.address.name))]
    return any(s.cause == NOT_RELEASED for s in statuses) and all(s.started_at is None for s in statuses)


def _has_place(want: TaskWant, rank: int, state: State) -> bool:
    """Whether a rank that was not started has its blocks, on a ready node, and all its volumes."""
    name = rank_name(str(want.spec.name), rank)
    reservation = state.get("reservation", name)
    if reservation is None:
        return False
    node = state.get("node", reservation.reservation.node)
    observed = state.readiness.get(node.address.name) if node else None
    attached = {r.attachment.path for r in state.of("attachment") if r.attachment.rank == name}
    paths = {m.path for m in want.mounts[rank]} if want.mounts else set()
    ready = node and observed and readiness_of(node, observed).state is NodeState.READY
    return attached == paths and bool(ready)


def decide_tasks(
    desired: Desired, state: State, requested: frozenset[str], now: float
) -> dict[str, TaskDecision]:
    """The decisions of all declared tasks."""
    by_task: dict[str, dict[int, Record]] = {}
    for record in state.of("rank"):
        by_task.setdefault(record.rank.task, {})[record.rank.rank] = record
    return {
        name: decide_task(want, state, by_task.get(name, {}), requested, now)
        for name, want in sorted(desired.tasks.items())
        if is_planned(want, by_task.get(name, {}).values(), state, now)
    }


def cascade(decisions: Mapping[str, TaskDecision], state: State, replaced: frozenset[Address]) -> None:
    """Restart a task when something that its running ranks hold is replaced.

    The whole gang restarts, since its ranks know each other's addresses. Other tasks go on.
    """
    if not replaced:
        return
    holds: dict[str, set[Address]] = {}
    for record in (*state.of("reservation"), *state.of("attachment")):
        decision, rank = decisions.get(str(record.task)), rank_holding(record)
        if decision is None or rank is None or not decision.leaves(rank):
            holds.setdefault(str(record.task), set()).update(record.needs & replaced)
    for decision in decisions.values():
        hit = holds.get(decision.name)
        if decision.course is not Course.RUN and hit:
            decision.course, decision.reason = Course.RUN, Reason.CASCADE
            decision.because = tuple(sorted(map(str, hit)))


UNFIT = frozenset({NodeState.UNREACHABLE, NodeState.UNKNOWN})
"""States of nodes that do not tell whether their ranks still run."""


DELAYS = (1.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds between a failure and the first, second, … retry of its series; the last for all that follow."""


@struct(frozen=True, slots=True, kw_only=True)
class DueRetry:
    """A task that is to run again."""

    cause: str
    """`rank/train-1 failed: exit code 1`."""
    noticed: float
    """When the failure was noticed, seconds since the epoch by our clock."""
    series: RetrySeries
    """The value that ranks of the new attempt record under `RETRIES`."""
    failed_on: tuple[NodeFailures, ...] = ()
    """The value that they record under `FAILED_ON`."""

    @property
    def after(self) -> float:
        """From when on a command that follows the task runs it again."""
        return self.noticed + DELAYS[min(self.series.count, len(DELAYS)) - 1]


def due_retry(want: TaskWant, have: Iterable[Record], state: State, now: float) -> DueRetry | None:
    """Whether a task with the recorded ranks `have` runs again; None if not.

    Some of its ranks may still run: they are stopped first. Ranks whose state is unknown are waited for.
    """
    ranks = {r.address.name: r for r in have}
    failure = _failure(ranks, state)
    if failure is None or _event(failure[1]) not in want.spec.retry.on_events:
        return None
    if is_stopped(ranks.values()) or _unknown(ranks, state):
        return None
    broken, status = failure
    noticed_at = ranks[broken].noticed_at
    noticed = now if noticed_at is None else float(noticed_at)
    following = _following(retry_series(ranks.values()), status, noticed, want.spec.retry.seconds, now)
    most = want.spec.retry.max_attempts
    if following is None or (most is not None and following.count >= most):
        return None
    return DueRetry(
        cause=f"rank/{broken} {end_text(status)}",
        noticed=noticed,
        series=following,
        failed_on=_failed_on(ranks, broken, status, state),
    )


@struct(frozen=True, slots=True, kw_only=True)
class RetryOutlook:
    """What `retry` does about it. Null unless it has a `retry` and failed or was lost."""

    runs_again: Annotated[bool, Doc("Whether it runs again.")]
    attempt: Annotated[
        int, Is(minimum=1), Doc("The number of the next attempt in its series, or of the last one.")
    ]
    max_attempts: Annotated[int | None, Is(minimum=1), Doc("How many there may be. Null for any number.")]
    after: Annotated[
        Moment | None,
        Doc(
            "The loop and `apply --wait` start it from then on, any other `apply` at once. "
            "Null if it does not run again."
        ),
    ] = None
    until: Annotated[Moment | None, Doc("The last time at which it may start. Null for any time.")] = None
    why: Annotated[str, Doc("The failure, or why it does not run again.")]


def retry_outlook(want: TaskWant, have: Iterable[Record], state: State, now: float) -> RetryOutlook | None:
    """What `retry` does next; None if the task has none, or has not failed."""
    ranks = {r.address.name: r for r in have}
    failure = _failure(ranks, state) if want.spec.retry.of_failures else None
    if failure is None:
        return None
    before = retry_series(ranks.values())
    attempt = before.count + 1 if before else 1
    retry = due_retry(want, ranks.values(), state, now)
    if retry is None:
        why = _why_not(want, ranks, failure[1], state)
        most = want.spec.retry.max_attempts
        return RetryOutlook(runs_again=False, attempt=attempt, max_attempts=most, why=why)
    end = retry.series.since + want.spec.retry.seconds
    return RetryOutlook(
        runs_again=True,
        attempt=retry.series.count + 1,
        max_attempts=want.spec.retry.max_attempts,
        after=retry.after,
        until=end if isfinite(end) else None,
        why=retry.cause,
    )


def _why_not(want: TaskWant, ranks: Mapping[str, Record], status: RankStatus, state: State) -> str:
    """Why a failed task does not run again, by its `retry`."""
    retry, event, before = want.spec.retry, _event(status), retry_series(ranks.values())
    if is_stopped(ranks.values()):
        return "it was stopped by the user"
    if event is None:
        return f"`retry` does not run it again after: {status.cause}"
    if event not in retry.on_events:
        return f"its `on_events` do not name `{event.value}`"
    if _unknown(ranks, state):
        return "it is not known whether its ranks still run"
    if retry.max_attempts is not None and (before.count if before else 0) + 1 >= retry.max_attempts:
        return f"all {retry.max_attempts} attempts of `max_attempts` are used"
    return f"its `duration` of {retry.duration.plain()} is over"


START_SECONDS = 60.0
"""A rank that fails within so many seconds, by its host's own clock, failed at its start."""


def _failed_before(have: Iterable[Record]) -> tuple[NodeFailures, ...]:
    """The machines on which attempts before this one failed."""
    return next((r.rank.failed_on for r in have if r.rank.failed_on), ())


def _failed_on(
    ranks: Mapping[str, Record], broken: str, status: RankStatus, state: State
) -> tuple[NodeFailures, ...]:
    """The machines on which attempts failed, this one included. The `broken` rank, which failed first, names
    the machine: its siblings were only stopped. Machines that are gone are left out.
    """
    there = {machine_name(node) for node in state.of("node")}
    before = {f.machine: f for f in _failed_before(ranks.values()) if f.machine in there}
    place = state.get("reservation", broken)
    name = place.reservation.node if place else ranks[broken].node_name
    node = state.get("node", str(name))
    # A node that was made anew since the rank started has nothing to do with its end.
    if node is None or (ranks[broken].machine or machine_name(node)) != machine_name(node):
        return tuple(before.values())
    known = before.pop(machine_name(node), NodeFailures(machine=machine_name(node), count=0))
    at_start = status.started_at is None
    if status.started_at is not None and status.ended_at is not None:
        at_start = status.ended_at - status.started_at < START_SECONDS
    return (*before.values(), replace(known, count=known.count + 1, at_start=known.at_start or at_start))


def avoided_nodes(failed_on: Iterable[NodeFailures], state: State) -> tuple[str, ...]:
    """The nodes on which a task failed at its start, or twice, the last one last."""
    names = {machine_name(node): node.address.name for node in state.of("node")}
    return tuple(names[f.machine] for f in failed_on if f.avoids and f.machine in names)


def _failure(ranks: Mapping[str, Record], state: State) -> tuple[str, RankStatus] | None:
    """The rank that failed first and how, if that is how the task of these ranks ends."""
    broken = first_failure({name: state.ranks.get(name) for name in ranks})
    if broken is None or bad_end(ranks.values(), state) is None:
        return None
    return broken, state.ranks[broken]


def end_text(status: RankStatus) -> str:
    """`failed: exit code 1`."""
    return status.state.value + (f": {status.cause}" if status.cause else "")


def _following(
    before: RetrySeries | None, status: RankStatus, noticed: float, longest: float, now: float
) -> RetrySeries | None:
    """The series that the next attempt records: a new one if the last attempt ran for long enough. None if
    the time of the series is over.
    """
    since, count = noticed, 0
    if before:
        lasted = noticed - before.at
        if status.state is RankState.FAILED and status.started_at is not None and status.ended_at is not None:
            # As its host measured it: the failure may have been noticed long after it happened.
            lasted = status.ended_at - status.started_at
        if lasted < longest:
            since, count = before.since, before.count
    return RetrySeries(count=count + 1, since=since, at=now) if now - since <= longest else None


def retry_series(have: Iterable[Record]) -> RetrySeries | None:
    """The series that the ranks of an attempt record; None for a first attempt."""
    return max((r.rank.retries for r in have if r.rank.retries), key=lambda s: s.count, default=None)


def _event(status: RankStatus) -> RetryEvent | None:
    """The kind of a failure; None if its own limit ended the rank: that is no reason to run it again."""
    if status.state is RankState.LOST:
        return RetryEvent.INTERRUPTION
    return None if status.cause in {LIMIT_REACHED, UNUSED} else RetryEvent.ERROR


def bad_end(ranks: Iterable[Record], state: State) -> RankState | None:
    """`failed` or `lost`, if that is how the task of these ranks ends."""
    state_of_gang = gang_state(ranks, state)
    return state_of_gang if state_of_gang in (RankState.FAILED, RankState.LOST) else None


def gang_state(ranks: Iterable[Record], state: State) -> RankState:
    """The state of the task of these ranks; rank 0 alone may have to be done."""
    members = list(ranks)
    done = any(r.rank.stop_criteria == StopCriteria.MASTER_DONE.value for r in members)
    return task_state({r.rank.rank: state.ranks.get(r.address.name) for r in members}, done)


def _unknown(ranks: Iterable[str], state: State) -> bool:
    """Whether a rank may still run without an answer about it: it is not stopped, nor known to have ended."""
    for name in ranks:
        place = state.get("reservation", name)
        if place is None or state.has_ended(name):
            continue
        node = state.readiness.get(place.reservation.node)
        if node is None or node.state in UNFIT:
            return True
    return False


# ------------------------------------------------------------------------------------------- schedules

LATE = 3600.0
"""Seconds after a scheduled start in which a missed task still starts. Later it waits for the next one."""


def desired_at(desired: Desired, now: float) -> Desired:
    """The declaration as it holds at that time: fleets outside of their schedule have no nodes, and tasks
    know their last scheduled start.
    """
    fleets = {
        name: replace(fleet, nodes=NodeCount(0, 0, 0))
        for name, fleet in desired.fleets.items()
        if _is_off(fleet.schedule, now)
    }
    tasks = {
        name: replace(
            want,
            off=_is_off(schedule, now),
            started=schedule.started(now),
            stops=schedule.next_stop(now),
            starts=schedule.next_start(now),
        )
        for name, want in desired.tasks.items()
        if (schedule := want.spec.schedule)
    }
    if not fleets and not tasks:
        return desired
    asleep = {f"fleet/{name}" for name in fleets} | {f"task/{name}" for name, w in tasks.items() if w.off}
    return replace(
        desired,
        fleets={**desired.fleets, **fleets},
        tasks={**desired.tasks, **tasks},
        asleep=frozenset(asleep),
    )


def _is_off(schedule: Schedule | None, now: float) -> bool:
    return schedule is not None and not schedule.on(now)


def is_planned(want: TaskWant, have: Iterable[Record], state: State, now: float) -> bool:
    """Whether a task is planned. A task outside of its schedule neither runs nor starts; an ended task stays
    ended.
    """
    schedule = want.spec.schedule
    if schedule is None:
        return True
    ranks = list(have)
    if not ranks:
        never = want.started is None or (schedule.stop is None and now - want.started > LATE)
        return not want.off and not never
    return not want.off or all(state.has_ended(r.address.name) for r in ranks)


def is_due(want: TaskWant, have: Iterable[Record], state: State) -> bool:
    """Whether an ended task has had a scheduled start since."""
    ranks = list(have)
    if want.started is None or want.off or not all(state.has_ended(r.address.name) for r in ranks):
        return False
    known = [r.rank.scheduled for r in ranks if r.rank.scheduled is not None]
    ends = [state.ranks[r.address.name].ended_at or 0.0 for r in ranks]
    return want.started > max(known or ends, default=0.0)
