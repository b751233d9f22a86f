"""No task runs twice at once: beside ranks that run unrecorded, or a start without an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from declarative.model.inputs import NodeFailures, RetrySeries
from declarative.model.state import FAILED_ON, MACHINE, ORPHAN, Address, Intent, Record, State, machine_name
from declarative.model.status import NodeState, RankState, RankStatus, Readiness, Silence
from declarative.planner.decisions import _twice, _unknown_starts
from declarative.planner.tasks import (
    START_SECONDS,
    Course,
    TaskDecision,
    _failed_before,
    _failed_on,
    _following,
)
from tests.support.model import of_node, of_reservation
from tests.support.planned import declared

NODE, PLACE, RANK = Address("node", "gpu-0"), Address("reservation", "job-0"), Address("rank", "job-0")
OF_RANK = {"task": "job", "rank": 0, "commands": []}
BEGUN = Intent(
    id=1,
    op="create",
    address=RANK,
    backend="sky",
    generation=1,
    token="t",
    inputs=OF_RANK,
    needs=frozenset({PLACE}),
)
PLACED = State(
    lineage="l",
    records={
        NODE: Record(address=NODE, backend="sky", inputs=of_node()),
        PLACE: Record(address=PLACE, backend=None, inputs=of_reservation("job-0", "gpu-0", 0, total=1)),
    },
    intents=(BEGUN,),
)
SILENT = Readiness(state=NodeState.UNREACHABLE)


def decision(nodes: int = 1, course: Course = Course.RUN) -> TaskDecision:
    desired = declared(tasks=[{"name": "job", "nodes": nodes, "resources": {"gpu": 8}}])
    return TaskDecision(desired.tasks["job"], course)


def refused(state: State, course: Course = Course.RUN, nodes: int = 1) -> tuple[list[str], Course]:
    """The tasks that are not started, and what is done about `job`."""
    one = decision(nodes, course)
    return [*_twice(state, {"job": one})], one.course


def stray(*holders: str) -> State:
    return State(lineage="l", strays={"gpu-0": dict(enumerate(holders))})


def test_no_task_starts_beside_ranks_of_its_own_that_are_not_recorded() -> None:
    """Whichever of its ranks runs; those of other tasks, and what others hold, are in no way."""
    assert refused(stray(f"rank/job-0{ORPHAN}")) == (["job"], Course.RUN)
    assert refused(stray(f"rank/job-1{ORPHAN}"), nodes=2) == (["job"], Course.RUN)
    assert refused(stray(f"rank/job-1{ORPHAN}")) == ([], Course.RUN)
    assert refused(stray(f"rank/other-0{ORPHAN}", "somebody")) == ([], Course.RUN)
    assert refused(stray("rank/job-0")) == ([], Course.RUN)


def test_what_would_only_be_completed_is_kept() -> None:
    """And what is kept is not started anyway."""
    assert refused(stray(f"rank/job-0{ORPHAN}"), Course.COMPLETED) == (["job"], Course.KEPT)
    assert refused(stray(f"rank/job-0{ORPHAN}"), Course.KEPT) == ([], Course.KEPT)


@pytest.mark.parametrize("state", NodeState)
def test_a_start_may_have_come_to_a_node_that_does_not_answer(state: NodeState) -> None:
    """It keeps its place then."""
    known = replace(PLACED, readiness={"gpu-0": Readiness(state=state)})
    answers = state in (NodeState.READY, NodeState.NOT_READY)
    if state in (NodeState.UNREACHABLE, NodeState.UNKNOWN):
        assert refused(known) == (["job"], Course.KEPT)
    if answers:
        assert refused(known) == ([], Course.RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"intents": ()},
        {"intents": (replace(BEGUN, op="delete"),)},
        {"intents": (replace(BEGUN, address=PLACE),)},
        {"records": {NODE: PLACED.records[NODE]}},
        {"records": {PLACE: PLACED.records[PLACE]}},
        {"records": {**PLACED.records, RANK: Record(address=RANK, backend="sky", inputs=OF_RANK)}},
        {"silent": {"gpu-0": Silence(since=0.0, until=1.0, given_up=True)}},
    ],
    ids=["none", "delete", "another", "no place", "no node", "recorded", "given up"],
)
def test_another_call_is_no_start_that_may_have_come(change: dict[str, Any]) -> None:
    silent = replace(PLACED, readiness={"gpu-0": SILENT})
    assert _unknown_starts(silent) == {"job-0": "gpu-0"}
    assert _unknown_starts(replace(silent, **change)) == {}


def test_a_start_that_nobody_answered_for_counts_also_where_nothing_was_seen() -> None:
    silence = Silence(since=0.0, until=None)
    assert _unknown_starts(replace(PLACED, silent={"gpu-0": silence})) == {"job-0": "gpu-0"}


@pytest.mark.parametrize("machine", [None, "same", "other", "gone"])
def test_a_failure_counts_for_the_machine_that_it_was_on(machine: str | None) -> None:
    """A node that was made anew since has nothing to do with it; what failed before elsewhere stays known."""
    node = PLACED.records[NODE]
    outputs = {} if machine in (None, "gone") else {MACHINE: machine_name(node) if machine == "same" else "x"}
    other = Record(address=Address("node", "gpu-1"), backend="sky", inputs=of_node())
    before = (NodeFailures(machine=machine_name(other), count=1),)
    inputs = {**OF_RANK, FAILED_ON: [{"machine": machine_name(other), "count": 1, "at_start": False}]}
    rank = Record(address=RANK, backend="sky", inputs=inputs, outputs=outputs)
    assert rank.rank.failed_on == before
    records = {**PLACED.records, other.address: other}
    if machine == "gone":
        del records[NODE]
    state = State(lineage="l", records=records)
    found = _failed_on({"job-0": rank}, "job-0", RankStatus(state=RankState.FAILED), state)
    here = (NodeFailures(machine=machine_name(node), count=1, at_start=True),)
    assert found == (*before, *(here if machine in (None, "same") else ()))
    del records[other.address]
    assert before[0] not in _failed_on({"job-0": rank}, "job-0", RankStatus(state=RankState.FAILED), state)


def lasted(seconds: float) -> RankStatus:
    return RankStatus(state=RankState.FAILED, started_at=100.0, ended_at=100.0 + seconds)


@pytest.mark.parametrize(("seconds", "at_start"), [(START_SECONDS - 1, True), (START_SECONDS, False)])
def test_a_failure_is_where_the_rank_holds_its_blocks(seconds: float, at_start: bool) -> None:
    """Where it was, if it holds none any more."""
    other = Record(address=Address("node", "gpu-1"), backend="sky", inputs=of_node())
    rank = Record(address=RANK, backend="sky", inputs=OF_RANK, outputs={"node": "gpu-1"})
    state = State(lineage="l", records={**PLACED.records, other.address: other})
    (found,) = _failed_on({"job-0": rank}, "job-0", lasted(seconds), state)
    assert (found.machine, found.at_start) == (machine_name(PLACED.records[NODE]), at_start)
    without = {a: r for a, r in state.records.items() if a != PLACE}
    (found,) = _failed_on({"job-0": rank}, "job-0", lasted(seconds), replace(state, records=without))
    assert found.machine == machine_name(other)


def test_one_rank_that_knows_of_failures_is_enough() -> None:
    known = [{"machine": "m", "count": 2, "at_start": False}]
    first = Record(address=RANK, backend="sky", inputs=OF_RANK)
    second = replace(first, address=Address("rank", "job-1"), inputs={**OF_RANK, FAILED_ON: known})
    for have in ([first, second], [second, first]):
        assert _failed_before(have) == (NodeFailures(machine="m", count=2),)
    assert _failed_before([first]) == ()


@pytest.mark.parametrize(("seconds", "count"), [(599.0, 4), (600.0, 1)])
def test_an_attempt_that_ran_for_the_whole_time_begins_a_new_series(seconds: float, count: int) -> None:
    before = RetrySeries(count=3, since=100.0, at=200.0)
    found = _following(before, lasted(seconds), 700.0, 600.0, 700.0)
    assert found is not None
    assert (found.count, found.since) == (count, 100.0 if count > 1 else 700.0)
