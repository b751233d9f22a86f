"""A limit that is over when it is declared ends work that goes on. The plan says so where it says `update`,
counts it, and the loop classes it by that.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.apply.graph_walk import ActionResult, Outcome
from declarative.cli import apply as cli_apply
from declarative.cli import cli
from declarative.converge import project as project_session
from declarative.model.spec.project import Cause
from declarative.model.status import RankState
from declarative.planner.approval import approval_of, differences
from declarative.planner.plan import Op
from declarative.planner.saved_plan import stopped_by_now
from declarative.planner.tasks import desired_at
from declarative.planner.unattended import causes_of
from declarative.reconcile.permission import Backoff, choose
from declarative.render.html import plan_html
from declarative.render.listings import approvals_json, approvals_text
from declarative.render.markdown import plan_markdown
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from declarative.store.loop_state import Approval
from tests.support.cli import Project, fleet, task, until
from tests.support.model import NOW, World
from tests.support.model import project as declared
from tests.support.rounds import Clock

FLEET = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}, "placement": "cluster"}
HOUR = 3600


def wanted(now=NOW, **fields):
    train = {"name": "train", "nodes": 2, "resources": {"cpu": "1.."}, **fields}
    return desired_at(declared(fleets=[FLEET], tasks=[train]), now)


def running(seconds=2 * HOUR, **fields):
    """A world in which the task has run for so long."""
    world = World()
    world.apply(world.plan(wanted(**fields)))
    for name in world.running():
        world.ranks[name] = replace(world.ranks[name], started_at=world.now - seconds)
    return world


def text(plan):
    return plan_text(plan, color=False, width=200)


def test_a_max_duration_below_the_time_already_run():
    world = running(max_duration="8h")
    plan = world.plan(wanted(max_duration="1h"))
    assert [(a.op, a.ends) for a in plan.actions] == [(Op.UPDATE, True)] * 2
    assert "`max_duration` changed; has run for longer: is stopped at once" in text(plan)
    assert "2 ranks stop: running now, stopped at once by what is declared now." in text(plan)
    assert plan_json(plan)["summary"]["stops"] == 2
    assert causes_of(plan, world.state()) == {"task/train": Cause.DELETE}


def test_the_maps_say_which_ranks_stop():
    world = running(max_duration="8h")
    plan = world.plan(wanted(max_duration="1h"))
    shown = text(plan)
    assert re.search(r"pair-0 .* kept, 1 rank stops\n", shown)
    assert re.search(r"train +0 +pair-0 .* kept, stops\n", shown)
    assert "kept, 1 rank stops" in plan_html(plan)
    assert "kept, stops" in plan_markdown(plan, 60_000)
    assert "stops" not in text(running(max_duration="8h").plan(wanted(max_duration="3h")))


def test_an_approval_says_which_actions_end_work():
    """`approve` names more than the ids, and what was approved is done once."""
    world = running(max_duration="8h")
    desired = wanted(max_duration="1h")
    plan = world.plan(desired)
    known = {"now": world.now, "before": (), "backoff": Backoff(), "lacking": {}}
    found = choose(plan, world.state(), desired, approvals=(), **known)
    ((digest, steps),) = found.approvals.items()
    assert steps == ("update:rank/train-0 (ends it)", "update:rank/train-1 (ends it)")
    waits = Approval(digest=digest, steps=steps, since=NOW)
    assert "  update:rank/train-0 (ends it)\n" in approvals_text([waits])
    (shown,) = approvals_json([waits])["waiting"]
    assert shown["actions"] == shown["ends"] == [a.id for a in plan.actions]
    done = [
        ActionResult(id=a.id, address=str(a.address), op=a.op.value, outcome=Outcome.DONE)
        for a in plan.actions
    ]
    assert found.unused(done) == {}
    assert found.unused(done[:1]) == found.approvals


def test_an_approval_of_a_later_limit_ends_nothing():
    """The time passes between approval and apply: what then ends work was not approved. The other way round
    less is done than was approved.
    """
    world = running(max_duration="8h")
    early = approval_of(world.plan(wanted(max_duration="3h")))
    world.now += 2 * HOUR
    late = approval_of(world.plan(wanted(now=NOW + 2 * HOUR, max_duration="3h")))
    assert early.digest != late.digest
    assert list(differences(early, late)) == ["not as approved: rank/train-[0-1] ends what is running"]
    assert list(differences(late, early)) == []


def test_a_saved_plan_that_let_ranks_run_on_stops_none():
    """Its new limit is over by the time that it is applied. One that said so stops them."""
    world = running(max_duration="8h")
    early = world.plan(wanted(max_duration="3h"))
    assert list(stopped_by_now(early, world.state(), NOW + HOUR - 1)) == []
    refused = list(stopped_by_now(early, world.state(), NOW + HOUR))
    assert [(d.code, d.address) for d in refused] == [
        ("plan-rank-state", "rank/train-0"),
        ("plan-rank-state", "rank/train-1"),
    ]
    assert "would be stopped now: it has run for longer than its new `max_duration`" in refused[0].summary
    world.now += HOUR
    late = world.plan(wanted(now=world.now, max_duration="3h"))
    assert [a.ends for a in late.actions] == [True, True]
    assert list(stopped_by_now(late, world.state(), world.now + HOUR)) == []


@pytest.mark.slow
def test_a_plan_that_waited_at_the_prompt_stops_nothing_that_it_let_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The answer is to what was shown. Asked again, the plan says what it stops."""
    project, clock = Project(tmp_path), Clock()

    def confirm(*_: Any, **__: Any) -> None:
        clock.at += 3 * HOUR

    monkeypatch.setattr(project_session, "time", SimpleNamespace(time=clock))
    try:
        project.declare(fleet(nodes=1), task("long", "sleep 4321"))
        project.apply()
        until(lambda: project.ranks("long")[0]["state"] == "running")
        project.declare(fleet(nodes=1), task("long", "sleep 4321", max_duration="2h"))
        with monkeypatch.context() as patched:
            patched.setattr(cli_apply, "confirm", confirm)
            done = CliRunner().invoke(cli, ["-C", str(tmp_path), "apply"])
        said = " ".join(done.output.split())
        assert done.exit_code == 1, done.output
        assert "rank/long-0 was to run on when the plan was made, and would be stopped now" in said
        assert "hint: run this again" in said
        assert project.ranks("long")[0]["state"] == "running"
        asked_again = CliRunner().invoke(cli, ["-C", str(tmp_path), "plan", "--json"]).stdout
        assert [a["ends"] for a in json.loads(asked_again)["actions"]] == [True]
    finally:
        project.clean_up()


@pytest.mark.parametrize("limit", ["3h", "off", None])
def test_a_max_duration_that_is_not_over_is_an_update(limit):
    world = running(max_duration="8h")
    plan = world.plan(wanted(**({"max_duration": limit} if limit else {})))
    assert [(a.op, a.ends) for a in plan.actions] == [(Op.UPDATE, False)] * 2
    assert plan_json(plan)["summary"]["stops"] == 0
    assert causes_of(plan, world.state()) == {"task/train": Cause.UPDATE}


def test_one_that_has_ended_is_not_stopped():
    world = running(max_duration="8h")
    for name in world.running():
        world.end(name, RankState.SUCCEEDED)
    plan = world.plan(wanted(max_duration="1h"))
    assert not any(a.ends for a in plan.actions)


def later(**fields):
    """A schedule that was not started by now: NOW is 13:46 UTC of a Monday in 1970."""
    return {"schedule": {"start": "0 20 * * *", "stop": "0 21 * * *"}, **fields}


def test_a_schedule_that_is_added_outside_of_its_hours():
    world = running()
    plan = world.plan(wanted(**later()))
    gone = plan.of(Op.DELETE, "rank")
    assert [a.ends for a in gone] == [True, True]
    assert "as the `schedule` of task/train says; it runs, and is stopped at once" in text(plan)
    assert plan.stops == 2
    scheduled = wanted(**later()).asleep
    assert causes_of(plan, world.state(), scheduled)["task/train"] is Cause.DELETE


def test_a_schedule_that_stops_what_it_started_is_a_schedule():
    world = World()
    on = {"schedule": {"start": "0 13 * * *", "stop": "0 14 * * *"}}
    world.apply(world.plan(wanted(**on)))
    assert world.running()
    over = wanted(NOW + HOUR, **on)
    world.now += HOUR
    plan = world.plan(over)
    assert plan.of(Op.DELETE, "rank")
    assert plan.stops == 0
    assert causes_of(plan, world.state(), over.asleep)["task/train"] is Cause.SCHEDULE


@pytest.mark.parametrize(
    "hours",
    [
        {"stop": "30 13 * * *"},
        {"start": "0 20 * * *", "stop": "0 21 * * *"},
        {"stop": "30 13 * * *", "timezone": "Europe/Berlin"},
    ],
)
def test_changed_hours_that_end_a_run_are_a_deletion(hours):
    """It was started by its schedule, and was to stop at 14:00. NOW is 13:46 UTC."""
    world, before = World(), {"start": "0 13 * * *", "stop": "0 14 * * *"}
    world.apply(world.plan(wanted(schedule=before)))
    assert world.running()
    changed = wanted(schedule={**before, **hours})
    plan = world.plan(changed)
    assert [a.ends for a in plan.of(Op.DELETE, "rank")] == [True, True]
    assert plan.stops == 2
    assert causes_of(plan, world.state(), changed.asleep)["task/train"] is Cause.DELETE


def test_a_stop_that_is_added_to_a_schedule_is_a_deletion():
    world, before = World(), {"start": "0 13 * * *"}
    world.apply(world.plan(wanted(schedule=before)))
    plan = world.plan(wanted(schedule={**before, "stop": "30 13 * * *"}))
    assert [a.ends for a in plan.of(Op.DELETE, "rank")] == [True, True]


def test_a_change_in_place_keeps_to_the_schedule_that_started_it():
    """Other tags, and the run still belongs to its start, and is stopped as it was to be."""
    on = {"schedule": {"start": "0 13 * * *", "stop": "0 14 * * *"}}
    world = World()
    world.apply(world.plan(wanted(**on)))
    world.apply(world.plan(wanted(tags={"a": "b"}, **on)))
    assert [r.rank.scheduled for r in world.of("rank")] == [NOW - 46 * 60 - 40] * 2
    over = wanted(NOW + HOUR, tags={"a": "b"}, **on)
    world.now += HOUR
    assert causes_of(world.plan(over), world.state(), over.asleep)["task/train"] is Cause.SCHEDULE


def test_a_retry_that_is_shorter_than_the_time_since_the_failure():
    """It would have run again, and is given up."""
    world = running(retry={"duration": "8h"})
    world.end("train-0", RankState.FAILED)
    world.settle()
    for name in world.running():
        world.end(name, RankState.STOPPED)
    world.settle()
    world.now += 2 * HOUR
    assert any(a.reason.value == "retry" for a in world.plan(wanted(retry={"duration": "8h"})).actions)
    plan = world.plan(wanted(retry={"duration": "1h"}))
    assert [(a.op, a.ends, a.stops) for a in plan.actions] == [(Op.UPDATE, True, False)] * 2
    assert "`retry` changed; its time is over: is not run again" in text(plan)
    assert causes_of(plan, world.state()) == {"task/train": Cause.DELETE}
