"""Which tasks a plan starts: each condition by itself. `test_schedules` has whole stories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.inputs import NodeFailures, RetrySeries, data_of
from declarative.model.resource import Entry, Manifest, TaskWant
from declarative.model.state import FAILED_ON, RETRIES, STOPPED, Address, Record, State
from declarative.model.status import NOT_RELEASED, NodeState, RankState, RankStatus, Readiness
from declarative.planner.plan import Reason
from declarative.planner.tasks import LATE, Course, TaskDecision, decide_task, is_due, is_planned
from tests.support.model import of_attachment, of_node, of_reservation
from tests.support.planned import declared

NOW = 100_000.0
HOURS = {"start": "0 8 * * *", "stop": "0 18 * * *"}
NODE = Address("node", "gpu-0")


def want(started: float | None = None, *, off: bool = False, **fields: Any) -> TaskWant:
    found = declared(tasks=[{"name": "job", "resources": {"gpu": 8}, **fields}]).tasks["job"]
    return replace(found, started=started, off=off)


def rank(number: int = 0, task: TaskWant | None = None, **more: Any) -> Record:
    inputs = {**data_of((task or want()).rank_inputs(number)), **more.pop("inputs", {})}
    return Record(address=Address("rank", f"job-{number}"), backend="sky", inputs=inputs, outputs=more)


def ended(*states: RankState, at: float | None = NOW - 50.0, **more: Any) -> State:
    """Ranks in these states, which ended then."""
    ranks = {f"job-{i}": RankStatus(state=s, ended_at=at if s.ended else None) for i, s in enumerate(states)}
    return State(lineage="l", ranks=ranks, **more)


DONE, FAILED, RUNS = RankState.SUCCEEDED, RankState.FAILED, RankState.RUNNING


# ------------------------------------------------------------------------------------- by a schedule


@pytest.mark.parametrize(
    ("schedule", "started", "off", "there"),
    [
        (None, None, False, True),
        (None, None, True, True),
        (HOURS, NOW - 10 * LATE, False, True),
        (HOURS, NOW - 10, True, False),
        (HOURS, None, False, False),
        ({"start": "0 8 * * *"}, NOW - LATE + 1, False, True),
        ({"start": "0 8 * * *"}, NOW - LATE, False, True),
        ({"start": "0 8 * * *"}, NOW - LATE - 1, False, False),
        ({"start": "0 8 * * *"}, None, False, False),
    ],
)
def test_a_task_that_never_ran_waits_for_its_schedule(
    schedule: Mapping[str, str] | None, started: float | None, off: bool, there: bool
) -> None:
    """A start that was missed counts for an hour; within hours, for all of them."""
    fields = {"schedule": schedule} if schedule else {}
    assert is_planned(want(started, off=off, **fields), [], State(lineage="l"), NOW) is there


@pytest.mark.parametrize("off", [True, False])
@pytest.mark.parametrize("state", [DONE, RUNS])
def test_outside_of_its_hours_only_an_ended_task_stays(off: bool, state: RankState) -> None:
    known = is_planned(want(NOW, off=off, schedule=HOURS), [rank()], ended(state), NOW)
    assert known is (not off or state is DONE)


@pytest.mark.parametrize(
    ("started", "off", "states", "scheduled", "due"),
    [
        (NOW - 10, False, [DONE], None, True),
        (NOW - 90, False, [DONE], None, False),
        (NOW - 50, False, [DONE], None, False),
        (None, False, [DONE], None, False),
        (NOW - 10, True, [DONE], None, False),
        (NOW - 10, False, [RUNS], None, False),
        (NOW - 10, False, [DONE, RUNS], None, False),
        (NOW - 10, False, [DONE, FAILED], None, True),
        (NOW - 90, False, [DONE], NOW - 100, True),
        (NOW - 90, False, [DONE], NOW - 90, False),
        (NOW - 10, False, [DONE], NOW - 10, False),
    ],
)
def test_a_schedule_starts_an_ended_task_once(
    started: float | None, off: bool, states: list[RankState], scheduled: float | None, due: bool
) -> None:
    """By the start that it ran for, if that is recorded; else by its end."""
    more = {"scheduled": scheduled} if scheduled else {}
    ranks = [rank(i, want(nodes=len(states)), inputs=more) for i in range(len(states))]
    assert is_due(want(started, off=off, schedule=HOURS), ranks, ended(*states)) is due


def test_an_end_of_which_no_time_is_known_was_before_each_start() -> None:
    assert is_due(want(NOW, schedule=HOURS), [rank()], ended(DONE, at=None))


# ------------------------------------------------------------------------------------ what is decided


def judged(task: TaskWant, state: State, *ranks: Record, requested: bool = False) -> TaskDecision:
    asked = frozenset({"task/job"} if requested else ())
    return decide_task(task, state, {r.rank.rank: r for r in ranks}, asked, NOW)


def test_a_new_task_runs_and_one_that_goes_on_is_kept() -> None:
    one = want()
    assert (judged(one, State(lineage="l")).course, judged(one, State(lineage="l")).reason) == (
        Course.RUN,
        Reason.NEW,
    )
    for state in (RUNS, DONE, FAILED):
        assert judged(one, ended(state), rank()).course is Course.KEPT
        asked = judged(one, ended(state), rank(), requested=True)
        assert (asked.course, asked.reason) == (Course.RUN, Reason.REQUESTED)


def test_a_changed_task_runs_anew_unless_it_is_outside_of_its_hours() -> None:
    """There the change is kept for the next start."""
    changed = want(NOW - 10, commands=["false"])
    found = judged(changed, ended(DONE), rank())
    assert (found.course, found.reason, found.because) == (Course.RUN, Reason.CHANGED, ("commands",))
    off = judged(replace(changed, off=True), ended(DONE), rank())
    assert (off.course, off.because) == (Course.KEPT, ("commands",))
    by_word = judged(replace(changed, off=True), ended(DONE), rank(), requested=True)
    assert (by_word.course, by_word.reason) == (Course.RUN, Reason.REQUESTED)


def test_what_a_user_stopped_stays_stopped_though_its_schedule_or_its_retry_would_start_it() -> None:
    task = want(NOW, schedule=HOURS, retry=True)
    record = rank(task=task, **{STOPPED: True})
    for state in (RankState.STOPPED, FAILED):
        assert judged(task, ended(state), record).course is Course.KEPT
    due = judged(task, ended(DONE), rank(task=task))
    assert (due.course, due.reason) == (Course.RUN, Reason.SCHEDULE)


KNOWN = {
    RETRIES: {"count": 2, "since": NOW - 60.0, "at": NOW - 55.0},
    FAILED_ON: [{"machine": "gpu-0.1", "count": 2, "at_start": False}],
}
SERIES = RetrySeries(count=2, since=NOW - 60.0, at=NOW - 55.0)
MACHINE = Record(address=NODE, backend="sky", inputs=of_node(), generation=1)


def gang(*causes: str | None, started: float | None = None) -> State:
    ranks = {
        f"job-{i}": RankStatus(state=FAILED, cause=cause, started_at=started, ended_at=NOW - 50.0)
        for i, cause in enumerate(causes)
    }
    return State(lineage="l", ranks=ranks, records={NODE: MACHINE})


def test_a_gang_that_was_never_complete_starts_again_and_counts_no_attempt() -> None:
    """It knows what its earlier attempts knew."""
    task = want(nodes=2)
    ranks = [rank(i, task, inputs=KNOWN) for i in range(2)]
    for causes in ((NOT_RELEASED, None), (NOT_RELEASED, NOT_RELEASED)):
        found = judged(task, gang(*causes), *ranks)
        assert (found.course, found.reason, found.incomplete) == (Course.RUN, Reason.INCOMPLETE, True)
        assert (found.series, found.failed_on) == (SERIES, (NodeFailures(machine="gpu-0.1", count=2),))
        assert found.avoids == ("gpu-0",)
    for state in (gang(None, None), gang(NOT_RELEASED, None, started=1.0)):
        assert judged(task, state, *ranks).course is Course.KEPT
    unknown = State(lineage="l", ranks={"job-0": gang(NOT_RELEASED).ranks["job-0"]})
    assert judged(task, unknown, *ranks).reason is Reason.INCOMPLETE


def placed(
    *, node: bool = True, seen: NodeState | None = NodeState.READY, attached: str | None = None
) -> State:
    """A gang of two of which rank 0 runs, and the place of rank 1."""
    place, held = Address("reservation", "job-1"), Address("attachment", "job-1.data")
    inputs = {**of_reservation("job-1", "gpu-0", 0, total=1)}
    records = {place: Record(address=place, backend=None, inputs=inputs)}
    if node:
        records[NODE] = MACHINE
    if attached:
        of_disk = {**of_attachment("job-1", "gpu-0", "data"), "path": attached}
        records[held] = Record(address=held, backend="sky", inputs=of_disk)
    readiness = {"gpu-0": Readiness(state=seen)} if seen else {}
    return State(lineage="l", records=records, ranks={"job-0": RankStatus(state=RUNS)}, readiness=readiness)


@pytest.mark.parametrize(
    ("state", "course"),
    [
        (placed(), Course.COMPLETED),
        (placed(seen=NodeState.NOT_READY), Course.RUN),
        (placed(seen=None), Course.RUN),
        (placed(node=False), Course.RUN),
        (placed(attached="/d"), Course.RUN),
        (replace(placed(), records={NODE: MACHINE}), Course.RUN),
        (replace(placed(), ranks={"job-0": RankStatus(state=DONE)}), Course.RUN),
    ],
    ids=["whole", "not ready", "unseen", "no node", "another volume", "no place", "ended"],
)
def test_a_gang_is_completed_only_in_the_places_that_it_has(state: State, course: Course) -> None:
    task = want(nodes=2)
    found = judged(task, state, rank(0, task, inputs=KNOWN))
    assert (found.course, found.reason, found.incomplete) == (course, Reason.INCOMPLETE, True)
    assert (found.series, found.failed_on) == (SERIES, (NodeFailures(machine="gpu-0.1", count=2),))


def test_an_incomplete_gang_that_failed_counts_the_failure() -> None:
    task = want(nodes=2, retry=True)
    state = replace(placed(), ranks={"job-0": RankStatus(state=FAILED, started_at=1.0, ended_at=2.0)})
    found = judged(task, state, rank(0, task, inputs=KNOWN))
    assert found.series is not None
    assert found.series.count == 3


def test_a_volume_of_a_place_is_one_that_the_rank_mounts() -> None:
    disk = declared(
        tasks=[{"name": "job", "nodes": 2, "resources": {"gpu": 8}, "mounts": {"/d": "data-#"}}],
        volumes=[{"name": "data", "count": 2}],
    ).tasks["job"]
    for attached, course in (("/d", Course.COMPLETED), (None, Course.RUN)):
        assert judged(disk, placed(attached=attached), rank(0, disk)).course is course


def test_a_failed_task_runs_again_by_its_retry() -> None:
    task = want(retry=True)
    state = State(lineage="l", ranks=gang("exit code 1", started=NOW - 60).ranks)
    found = judged(task, state, rank(task=task))
    assert (found.course, found.reason) == (Course.RUN, Reason.RETRY)
    assert found.because[0].startswith("rank/job-0 failed")
    assert judged(want(), state, rank()).course is Course.KEPT


# ---------------------------------------------------------------------------------- by changed files


def with_files(*entries: tuple[str, str], **fields: Any) -> TaskWant:
    """A task that sends the folder `data` and the file `run.py`: (path, content) of each file."""
    files = tuple(Entry(path=path, source=path, sha256=content) for path, content in sorted(entries))
    return replace(want(files=["data", "run.py"], **fields), files=Manifest(files))


SENT = (("data/a", "one"), ("run.py", "one"))
MORE = (("data/a", "two"), ("run.py", "one"))


@pytest.mark.parametrize(
    ("after", "reason", "files"),
    [
        (with_files(*SENT), None, {}),
        (with_files(*MORE), None, {"data/a": "changed"}),
        (with_files(("data/a", "one"), ("run.py", "two")), Reason.CHANGED, {}),
        (with_files(*MORE, commands=["./other"]), Reason.CHANGED, {}),
        (with_files(*SENT, commands=["./other"]), Reason.CHANGED, {}),
    ],
    ids=["same", "folder", "named", "folder and commands", "commands"],
)
def test_which_changes_run_an_ended_task_again(
    after: TaskWant, reason: Reason | None, files: Mapping[str, str]
) -> None:
    """Changes within folders do not; with another change of the task they do not count."""
    found = decide_task(after, ended(DONE), {0: rank(task=with_files(*SENT))}, frozenset(), NOW)
    assert (found.files, found.reason if found.course is Course.RUN else None) == (files, reason)


def test_outside_of_its_hours_a_task_tells_what_has_changed() -> None:
    before = {0: rank(task=with_files(*SENT, schedule=HOURS))}
    folder = decide_task(
        replace(with_files(*MORE, schedule=HOURS), off=True), ended(DONE), before, frozenset(), NOW
    )
    assert (folder.course, folder.files, folder.because) == (Course.KEPT, {"data/a": "changed"}, ())
    other = with_files(*SENT, schedule=HOURS, commands=["./other"])
    commands = decide_task(replace(other, off=True), ended(DONE), before, frozenset(), NOW)
    assert (commands.course, commands.files, commands.because) == (Course.KEPT, {}, ("commands",))


def test_a_part_of_a_gang_that_failed_knows_where() -> None:
    task = want(nodes=2, retry=True)
    part = rank(0, task, node="gpu-0", machine="gpu-0.1")
    found = judged(task, gang(None, started=NOW - 51.0), part)
    assert (found.course, found.incomplete) == (Course.RUN, True)
    assert found.failed_on == (NodeFailures(machine="gpu-0.1", count=1, at_start=True),)
