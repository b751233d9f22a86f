"""Tasks that run again after a failure: what `retry` says (plan.retries), and the waits (retry_schedule)."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.apply.retry_schedule import Retries, part_for
from declarative.apply.watch import follow as watch
from declarative.apply.watch import is_over, state_of
from declarative.cli import apply
from declarative.model.codec import to_data
from declarative.model.state import NOTICED, RETRIES, SILENT, STOPPED, Address
from declarative.model.status import LIMIT_REACHED, UNUSED, NodeState, RankState, RankStatus
from declarative.planner.inventory import observed_state
from declarative.planner.plan import Op
from declarative.planner.saved_plan import SavedPlan, dump, load
from declarative.planner.tasks import due_retry
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from declarative.render.status import status_text
from declarative.render.status_view import status_view
from declarative.store import StateError
from tests.support.model import NOW, World
from tests.support.planned import GPU, bring, declared

JOB = {"name": "job", "nodes": 2, "resources": {"gpu": 8}}
HOUR = 3600


def job(retry=True, **words):
    """A project with a gang of two on two nodes."""
    return declared(tasks=[{**JOB, "retry": retry, **words}])


def gang(retry=True, **words):
    """A world in which it runs."""
    return bring(World(), tasks=[{**JOB, "retry": retry, **words}])


def fail(world, rank="job-1", state=RankState.FAILED, seconds=1.0, cause="exit code 3"):
    """A rank ends that ran for so long; what follows of it is recorded, as every writing command does."""
    world.ranks[rank] = RankStatus(
        state=state, exit_code=3, cause=cause, started_at=50.0, ended_at=50.0 + seconds
    )
    world.settle()


def retried(world, desired):
    """The series that the ranks of the planned retry are of; None if none is planned."""
    plan = world.plan(desired)
    made = [a for a in plan.actions if a.op is Op.CREATE and a.address.kind == "rank"]
    assert {a.reason for a in plan.actions} <= {"retry"}
    assert len(made) in (0, 2), "the whole gang"
    return to_data(made[0].after.retries) if made else None


def test_the_whole_gang_runs_again_and_the_plan_says_why():
    world = gang()
    assert retried(world, job()) is None
    fail(world)
    found = plan_json(world.plan(job()))
    ids = [a["id"] for a in found["actions"]]
    assert ids == [
        "delete:rank/job-0",
        "delete:rank/job-1",
        "create:reservation/job-0",
        "create:reservation/job-1",
        "create:rank/job-0",
        "create:rank/job-1",
    ]
    assert {a["reason"] for a in found["actions"]} == {"retry"}
    assert found["actions"][0]["because"] == ["rank/job-1 failed: exit code 3"]
    text = plan_text(world.plan(job()), color=False, width=120)
    assert "# retry 1 after rank/job-1 failed: exit code 3: had ended, runs again (2)" in text
    world.apply(world.plan(job()))
    assert world.records[Address("rank", "job-0")].generation == 2
    assert world.plan(job()).actions == ()


@pytest.mark.parametrize(
    ("retry", "state", "cause", "runs"),
    [
        (False, RankState.FAILED, "exit code 3", False),
        (True, RankState.FAILED, "exit code 3", True),
        (True, RankState.LOST, "the machine restarted", True),
        (True, RankState.SUCCEEDED, None, False),
        (True, RankState.STOPPED, "stopped by the user", False),
        (True, RankState.FAILED, LIMIT_REACHED, False),
        (True, RankState.FAILED, UNUSED, False),
        ({"on_events": ["interruption"]}, RankState.FAILED, "exit code 3", False),
        ({"on_events": ["interruption"]}, RankState.LOST, "node/gpu-0 is gone", True),
        ({"on_events": ["error"]}, RankState.LOST, "node/gpu-0 is gone", False),
        ({"on_events": ["no-capacity"]}, RankState.FAILED, "exit code 3", False),
    ],
)
def test_which_ends_are_retried(retry, state, cause, runs):
    world = gang(retry)
    for rank in ("job-0", "job-1"):
        fail(world, rank, state, cause=cause)
    assert (retried(world, job(retry)) is not None) == runs


def test_what_the_user_stopped_stays_stopped_however_it_ended():
    world = gang()
    fail(world)
    rank = Address("rank", "job-0")
    world.records[rank] = replace(world.records[rank], outputs={STOPPED: True})
    assert retried(world, job()) is None


def rerun(world, desired):
    """The retry that its failure leads to, whatever room there is."""
    have = [record for record in world.records.values() if record.address.kind == "rank"]
    state = observed_state(world.state(), world.inventory(desired))
    return due_retry(desired.tasks["job"], have, state, world.now)


def test_no_command_retries_what_the_user_stopped():
    """Loops and those who follow a task ask this before there is a plan."""
    world = gang()
    fail(world)
    assert rerun(world, job()) is not None
    rank = Address("rank", "job-0")
    world.records[rank] = replace(world.records[rank], outputs={STOPPED: True})
    assert rerun(world, job()) is None


def test_no_command_retries_beside_a_rank_that_may_still_run():
    """Its node does not answer, so the rank could not be stopped. Another node has room for it."""
    world = gang()
    world.ranks["job-1"] = RankStatus(state=RankState.FAILED, exit_code=3, cause="exit code 3")
    world.sick["gpu-0"] = NodeState.UNREACHABLE
    assert rerun(world, job()) is None
    del world.sick["gpu-0"]
    assert rerun(world, job()) is not None


def test_rank_0_done_is_enough_where_that_is_said():
    world = gang(stop_criteria="master-done")
    fail(world, "job-0", RankState.SUCCEEDED, cause=None)
    fail(world, "job-1")
    assert retried(world, job(stop_criteria="master-done")) is None


def test_a_broken_task_is_not_retried_for_ever_by_somebody_who_applies_now_and_then():
    """Within `duration` of the first failure, as it was noticed; then it stays ended."""
    world, begun, times = gang(), None, 0
    for _ in range(20):
        fail(world)
        found = retried(world, job())
        if found is None:
            break
        times += 1
        begun = begun or found["since"]
        assert (found["count"], found["since"]) == (times, begun)
        world.apply(world.plan(job()))
        world.now += 600
    assert times == 7  # at 0, 10, … 60 minutes
    world.now += 10 * HOUR
    assert world.plan(job()).actions == ()


def test_whoever_applies_seldom_takes_no_short_attempt_for_a_long_one():
    world = gang()
    fail(world)
    world.apply(world.plan(job()))
    world.now += 24 * HOUR
    fail(world, seconds=5)
    assert retried(world, job()) is None


@pytest.mark.parametrize(("state", "seconds"), [(RankState.FAILED, 2 * HOUR), (RankState.LOST, 0)])
def test_an_attempt_that_held_out_begins_a_new_series(state, seconds):
    """A job that trains for days may be interrupted more than once."""
    world = gang()
    fail(world)
    world.apply(world.plan(job()))
    world.now += 2 * HOUR
    fail(world, state=state, seconds=seconds)
    assert retried(world, job()) == {"count": 1, "since": world.now, "at": world.now}


def test_a_failure_that_was_noticed_long_ago_is_not_retried_because_the_field_comes():
    world = gang(retry=False)
    fail(world)
    world.now += 2 * HOUR
    assert {a.op for a in world.plan(job()).actions} == {Op.UPDATE}


def test_a_change_or_a_request_begins_anew():
    world = gang()
    fail(world)
    world.apply(world.plan(job()))
    fail(world)
    plan = world.plan(job(), requested=frozenset({"task/job"}))
    assert {a.reason for a in plan.actions} == {"requested"}
    assert not any(getattr(a.after, RETRIES, None) for a in plan.actions)


def test_fields_that_change_in_place_leave_the_series_alone():
    world = gang()
    fail(world)
    world.apply(world.plan(job()))
    plan = world.plan(job(priority=3))
    assert [a.because for a in plan.actions] == [("priority",)] * 2
    world.apply(plan)
    assert world.records[Address("rank", "job-0")].inputs[RETRIES]["count"] == 1


def test_a_retry_that_was_cut_short_is_completed_as_the_same_one():
    world = gang()
    fail(world)
    plan = world.plan(job())
    world.apply(plan, stop_after=len(plan.actions) - 1)
    rest = world.plan(job())
    assert [a.id for a in rest.actions] == ["create:rank/job-1"]
    assert rest.actions[0].after.retries.count == 1
    world.apply(rest)
    world.now += 60
    fail(world)
    assert retried(world, job())["count"] == 2


def test_a_lost_node_is_avoided_and_without_another_the_task_waits():
    world = gang()
    world.sick["gpu-1"] = NodeState.NOT_READY
    fail(world, "job-1", RankState.LOST, cause="the machine restarted")
    plan = world.plan(job())
    assert (plan.actions, plan.unplaced.waiting, plan.result) == ((), ("job",), "waiting")
    wider = declared(fleets=[{**GPU, "nodes": "2..3"}], tasks=[{**JOB, "retry": True}])
    plan = world.plan(wider)
    placed = {r.rank: r.node for r in plan.reservations}
    assert placed == {0: "gpu-0", 1: "gpu-2"}
    assert {a.reason for a in plan.actions if a.address.kind != "node"} == {"retry"}


def test_nobody_retries_while_a_rank_may_still_run():
    """Where its node does not answer: it could not be stopped."""
    world = gang()
    world.ranks["job-1"] = RankStatus(state=RankState.FAILED, exit_code=3, cause="exit code 3")
    world.sick["gpu-0"] = NodeState.UNREACHABLE
    assert world.ranks["job-0"].state is RankState.RUNNING
    assert world.plan(job()).actions == ()
    del world.sick["gpu-0"]
    assert retried(world, job()) is not None


def test_what_is_to_be_stopped_first_gets_new_blocks():
    """So the plan is valid before the gang is stopped and after, whoever looks."""
    world, desired = gang(), job()
    world.ranks["job-1"] = RankStatus(state=RankState.FAILED, exit_code=3, cause="exit code 3")
    plan = world.plan(desired)
    assert {"delete:reservation/job-0", "create:reservation/job-0"} <= {a.id for a in plan.actions}


def test_a_saved_plan_of_a_retry_is_the_same_plan():
    from declarative.planner.saved_plan import facts_of

    world, desired = gang(), job()
    fail(world)
    plan = world.plan(desired)
    facts = facts_of(plan, world.state(), world.inventory(desired))
    saved = SavedPlan(
        plan=plan, facts=facts, state="sqlite:///x", directory="/p", made_by="0", made_at="2026-01-01"
    )
    assert load(dump(saved), "plan.json", "0").plan == plan


@pytest.mark.parametrize(
    ("retry", "cause", "state", "why"),
    [
        (
            {"on_events": ["interruption"]},
            "exit code 3",
            RankState.FAILED,
            "its `on_events` do not name `error`",
        ),
        (True, LIMIT_REACHED, RankState.FAILED, f"`retry` does not run it again after: {LIMIT_REACHED}"),
        ({"max_attempts": 1}, "exit code 3", RankState.FAILED, "all 1 attempts of `max_attempts` are used"),
    ],
)
def test_status_says_why_a_failed_task_is_not_run_again(retry, cause, state, why):
    world = gang(retry)
    fail(world, state=state, cause=cause)
    found = status_view(job(retry), world.state(), at=world.now).tasks[0]
    assert found.retry
    assert (found.retry.runs_again, found.retry.why) == (False, why)


def test_status_says_when_a_failed_task_runs_again():
    """The attempt by its number in the series, the loop's next time, and the end of the series."""
    most = {"max_attempts": 4, "duration": "1h"}
    world, desired = gang(most), job(most)
    assert status_view(desired, world.state(), at=world.now).tasks[0].retry is None
    for attempt, delay in ((2, 1), (3, 15), (4, 30)):
        fail(world)
        found = status_view(desired, world.state(), at=world.now).tasks[0]
        assert (found.started_at, found.ended_at, found.seconds) == (50.0, 51.0, 1.0)
        retry = found.retry
        assert retry
        assert (retry.runs_again, retry.attempt, retry.max_attempts) == (True, attempt, 4)
        assert (retry.after, retry.until, retry.why) == (
            world.now + delay,
            NOW + HOUR,
            "rank/job-1 failed: exit code 3",
        )
        world.apply(world.plan(desired))
        world.now += 60
    fail(world)
    found = status_view(desired, world.state(), at=world.now).tasks[0]
    assert found.retry
    assert found.retry.why == "all 4 attempts of `max_attempts` are used"
    world.now += 2 * HOUR
    world = gang()
    fail(world)
    world.now += 2 * HOUR
    found = status_view(job(), world.state(), at=world.now).tasks[0]
    assert found.retry
    assert found.retry.why == "its `duration` of 1h is over"


def test_status_says_since_when_and_how_long():
    world = gang()
    for name in ("job-0", "job-1"):
        world.ranks[name] = RankStatus(state=RankState.RUNNING, started_at=world.now - 7500)
    view = status_view(job(), world.state(), at=world.now)
    (task,) = view.tasks
    assert (task.started_at, task.ended_at, task.seconds) == (world.now - 7500, None, 7500)
    text = status_text(view, color=False, width=None)
    assert re.search(r"task/job +running +since 1970-01-12T11:41:40Z, for 2 h\n", text)
    fail(world)
    text = status_text(status_view(job(), world.state(), at=world.now), color=False, width=None)
    again = "runs again (attempt 2) after 1970-01-12T13:46:41Z, at the latest 1970-01-12T14:46:40Z"
    assert again in text


# ------------------------------------------------------------------------------------- the waiting


class Clock:
    """Seconds that pass on request."""

    def __init__(self, world):
        self.world = world

    def __call__(self):
        return self.world.now


def waiting(world, desired, delays=(2.0, 20.0)):
    """Retries by the world's clock, and their messages."""
    said = []
    tasks = desired.tasks
    return Retries(tasks, Clock(world), delays, lambda task, due: said.append((task, due.cause))), said


def test_the_waits_grow_from_one_retry_to_the_next():
    world, desired = gang(), job()
    retries, said = waiting(world, desired)
    assert retries.due(world.state()) == {}
    for delay in (2, 20, 20):
        fail(world)
        assert retries.due(world.state())["job"].when == world.now + delay
        assert retries.ready(world.state()) == ()
        world.now += delay
        assert retries.ready(world.state()) == ("job",)
        world.apply(world.plan(desired))
        assert retries.due(world.state()) == {}
    assert said == [("job", "rank/job-1 failed: exit code 3")] * 3


def test_a_retry_that_would_come_after_the_duration_is_neither_told_nor_waited_for():
    retry = {"on_events": ["error"], "duration": "10s"}
    world, desired = gang(retry), job(retry)
    retries, said = waiting(world, desired)
    fail(world)
    world.now += 2
    assert retries.ready(world.state()) == ("job",)
    world.apply(world.plan(desired))
    fail(world)
    assert retries.due(world.state()) == {}
    assert is_over(world.state(), ["job"], retries)
    assert len(said) == 1


@pytest.mark.parametrize(("delay", "runs"), [(60.0, True), (60.5, False)])
def test_a_retry_may_come_at_the_very_end_of_the_duration(delay, runs):
    retry = {"on_events": ["error"], "duration": "1m"}
    world, desired = gang(retry), job(retry)
    retries, _ = waiting(world, desired, (delay,))
    fail(world)
    assert retries.due(world.state()).keys() == ({"job"} if runs else set())


def test_each_failure_is_told_once_also_the_first_of_a_new_series():
    world, desired = gang(), job()
    retries, said = waiting(world, desired)
    for told in (1, 2):
        fail(world, seconds=2 * HOUR)
        for _ in range(3):
            world.now += 1
            retries.due(world.state())
        assert len(said) == told
        world.apply(world.plan(desired))
        world.now += 2 * HOUR


def test_what_a_task_held_is_given_back_before_it_runs_again():
    world, desired = gang(), job()
    retries, said = waiting(world, desired)
    world.ranks |= dict.fromkeys(("job-0", "job-1"), RankStatus(state=RankState.FAILED, exit_code=1))
    assert retries.ready(world.state()) == ()
    assert said == [], "nobody knows when that is"
    assert not is_over(world.state(), ["job"], retries), "somebody is about to give it back"
    world.settle()
    world.now += 2
    assert retries.ready(world.state()) == ("job",)


@pytest.mark.parametrize(
    ("tasks", "changed"),
    [
        ([{**JOB, "retry": True}], None),
        ([{**JOB, "retry": True, "commands": ["other"]}], "job"),
        ([{**JOB, "retry": True}, {"name": "more", "resources": {"gpu": 1}}], "more"),
        ([], "job"),
    ],
)
def test_who_follows_sees_that_another_command_has_declared_something_else(tasks, changed):
    """A retry of what was planned before would undo that."""
    fleets = [{**GPU, "nodes": "2..3"}]
    world = bring(World(), fleets=fleets, tasks=[{**JOB, "retry": True}])
    retries, _ = waiting(world, declared(fleets=fleets, tasks=[{**JOB, "retry": True}]))
    retries.leave(world.state())
    fail(world)
    world.apply(world.plan(declared(fleets=fleets, tasks=tasks)))
    assert retries.overtaken(world.state()) == changed
    assert retries.overtaken(world.state(), ["another"]) is None
    retries.end()
    assert retries.due(world.state()) == {}


def test_who_follows_takes_its_own_start_for_its_own():
    """Of which it was not known whether it came to pass when the command was done."""
    desired = job()
    world = bring(World(), tasks=[])
    retries, _ = waiting(world, desired)
    retries.leave(world.state())
    world.apply(world.plan(desired))
    assert retries.overtaken(world.state()) is None


def test_a_task_that_another_command_starts_again_first_is_followed_on(monkeypatch):
    """It was due when it was looked at, and runs when its turn comes."""
    world, desired = gang(), job()
    looks = []

    def look(store, *_, **__):
        looks.append(1)
        if len(looks) == 2:
            ended = RankStatus(state=RankState.SUCCEEDED, exit_code=0)
            world.ranks |= dict.fromkeys(("job-0", "job-1"), ended)
        return {"job": state_of(store.read(), "job")}

    monkeypatch.setattr("declarative.apply.watch.follow", look)
    said = []
    run: Any = SimpleNamespace(
        plan=None,
        now=time.time,
        lacking={},
        unstarted={},
        desired=desired,
        store=SimpleNamespace(read=world.state),
        session=SimpleNamespace(backends=lambda *_: None),
        running_tasks=lambda: ("job",),
        refresh=None,
    )
    output: Any = SimpleNamespace(
        say=None,
        say_retries=lambda _: None,
        say_ended=lambda _, states, __: said.append(states),
    )
    assert apply.TaskFollowing(run, output).follow() == 0
    assert (len(looks), said) == (2, [{"job": RankState.SUCCEEDED}])


def test_one_without_a_place_tries_less_and_less_often_and_when_blocks_are_given_back():
    busy = {"name": "busy", "nodes": 2, "resources": {"gpu": 8}}
    retry = {"on_events": ["no-capacity"], "duration": "10m"}
    fleet = {"name": "gpu", "nodes": "2..2", "placement": "cluster", "blocks": 8}
    desired = declared(fleets=[fleet], tasks=[busy, {**JOB, "retry": retry}])
    world = bring(World(), fleets=[fleet], tasks=[busy])
    assert world.plan(desired).unplaced.waiting == ("job",)
    retries, _ = waiting(world, desired, (1.0, 10.0, 40.0))
    retries.wait_for_place(["job"])
    for delay in (10, 40, 40):
        assert retries.due(world.state())["job"].when == world.now + delay
        world.now += delay
        retries.tried(retries.ready(world.state()), ())
    fail(world, "busy-0")
    assert retries.due(world.state())["job"].when == world.now
    assert retries.ready(world.state()) == ("job",)
    retries.tried(["job"], ["job"])
    assert retries.due(world.state()) == {}
    retries.wait_for_place(["job"])
    world.now += 601
    assert retries.due(world.state()) == {}


def test_the_last_try_is_at_the_end_of_the_duration_and_none_comes_after_it():
    retry = {"on_events": ["no-capacity"], "duration": "50s"}
    desired, world = declared(tasks=[{**JOB, "retry": retry}]), World()
    retries, _ = waiting(world, desired, (1.0, 30.0, 60.0))
    retries.wait_for_place(["job"])
    begun = world.now
    for late, ready in ((50, ("job",)), (50.5, ())):
        world.now = begun + late  # nobody has looked before
        assert retries.ready(world.state()) == ready
    world.now = begun
    for delay in (30, 20):
        assert round(retries.waits(["job"])["job"].delay) == delay
        world.now += delay + 0.2
        assert retries.ready(world.state()) == ("job",)
        retries.tried(["job"], (), {"job": "node/gpu-0"})
    assert retries.waits(["job"]) == retries.due(world.state()) == {}
    assert retries.without_place == {"job": "no capacity for node/gpu-0"}


@pytest.mark.parametrize(("events", "goes_on"), [(["no-capacity"], False), (["no-capacity", "error"], True)])
def test_what_fails_of_other_things_is_no_want_of_a_place(events, goes_on):
    """Who waits for capacity alone has found it."""
    world, desired = World(), job({"on_events": events})
    retries, _ = waiting(world, desired)
    retries.wait_for_place(["job"])
    assert retries.without_place == {"job": "no capacity"}
    retries.tried(["job"], (), {"job": None})
    assert list(retries.due(world.state())) == (["job"] if goes_on else [])
    assert retries.without_place == {}


def test_blocks_that_were_only_promised_wake_nobody_when_they_are_given_back():
    """Else two commands that wait would wake each other, again and again."""
    world, desired = gang(), declared(tasks=[{**JOB, "retry": True}, {"name": "late", "retry": True}])
    retries, _ = waiting(world, desired, (1.0, 10.0))
    place = replace(world.records[Address("reservation", "job-0")], address=Address("reservation", "b-0"))
    world.records[place.address] = place
    del world.records[Address("reservation", "job-0")]
    assert "late" not in retries.due(world.state())
    retries.wait_for_place(["late"])
    del world.records[place.address]
    assert retries.due(world.state())["late"].when == world.now + 10
    fail(world)
    assert retries.due(world.state())["late"].when == world.now


@pytest.mark.parametrize("silent", [True, False])
def test_a_silent_node_that_is_given_up_wakes_who_waits_for_room(silent):
    """Its fleet may have another one: the task does not wait for ten more minutes. One that answered is no
    room when it goes.
    """
    world, desired = gang(), declared(tasks=[{**JOB, "retry": True}, {"name": "late", "retry": True}])
    retries, _ = waiting(world, desired, (1.0, 10.0))
    node = world.records[Address("node", "gpu-1")]
    if silent:
        world.records[node.address] = replace(node, outputs={**node.outputs, SILENT: world.now})
    retries.wait_for_place(["late"])
    assert retries.due(world.state())["late"].when == world.now + 10
    del world.records[node.address]
    assert retries.due(world.state())["late"].when == world.now + (0 if silent else 10)


def test_one_that_found_a_place_and_ended_waits_for_none():
    """Somebody else started it, and nobody saw it run."""
    world, desired = gang(), job()
    retries, _ = waiting(world, desired)
    retries.wait_for_place(["job"])
    for rank in ("job-0", "job-1"):
        world.end(rank, RankState.SUCCEEDED)
    world.settle()
    assert retries.due(world.state()) == retries.without_place == {}


def test_what_the_user_stops_while_it_has_no_place_is_not_started_again():
    world, desired = gang(), job()
    retries, _ = waiting(world, desired)
    fail(world)
    del world.records[Address("rank", "job-1")]  # it did not come up: the gang was taken back
    retries.tried(["job"], ())
    assert list(retries.due(world.state())) == ["job"]
    rank = Address("rank", "job-0")
    world.records[rank] = replace(world.records[rank], outputs={STOPPED: True})
    assert retries.due(world.state()) == {}


def test_nothing_but_the_task_and_what_it_needs_is_carried_out():
    other = {"name": "other", "resources": {"gpu": 1}}
    volume = {"name": "more", "backend": "sky"}
    fleets = [{"name": "gpu", "nodes": 3, "placement": "cluster", "blocks": 8}]
    world = bring(World(), fleets=fleets, tasks=[{**JOB, "retry": True}])
    fail(world)
    desired = declared(fleets=fleets, tasks=[{**JOB, "retry": True}, other], volumes=[volume])
    whole = world.plan(desired)
    part = part_for(whole, ["job"])
    assert {a.reason for a in part.actions} == {"retry"}
    assert len(part.actions) == 6
    assert {"create:volume/more", "create:rank/other-0"} <= {a.id for a in whole.actions}
    world.apply(part)
    assert NOTICED not in world.records[Address("rank", "job-0")].outputs


def test_who_waits_says_each_minute_what_for():
    """By the clock that it is given: of ranks that run how many, of a task that waits when it is tried."""
    tasks: list[dict[str, Any]] = [{**JOB, "retry": True}, {"name": "other", "resources": {"gpu": 8}}]
    desired = declared(fleets=[{**GPU, "nodes": 3}], tasks=tasks)
    world = bring(World(), fleets=[{**GPU, "nodes": 3}], tasks=tasks)
    retries = Retries(desired.tasks, lambda: world.now, on_retry=lambda *_: None)
    retries.leave(world.state())
    said: list[tuple[float, str]] = []
    begun = world.now

    class Clock(threading.Event):
        def wait(self, timeout=None):
            world.now += timeout or 0.0
            if world.now - begun == 100:
                fail(world, "other-0")
            return world.now - begun > 185

    provider = SimpleNamespace(poll=lambda node, attempts: {})
    store: Any = SimpleNamespace(read=world.state, lock=refused)
    backends: Any = SimpleNamespace(get=lambda _: provider, limits={})
    watch(
        store,
        backends,
        ("job", "other"),
        retries,
        stopping=Clock(),
        settled=lambda *_: world.state(),
        remind=lambda text: said.append((world.now - begun, text)),
    )
    both = "waiting for task/job (2 ranks: 2 running), task/other (1 rank: 1 running)"
    assert said == [(60, both), (120, "waiting for task/job (2 ranks: 2 running)"), (180, said[1][1])]


def refused(doing, *_):
    """Another command writes."""
    raise StateError("locked", "no", None)
