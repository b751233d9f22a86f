"""A limit that is over when it is declared ends work that goes on. The plan says so where it says `update`,
counts it, and the loop classes it by that.
"""

from dataclasses import replace

import pytest

from declarative.model.spec.reconcile import Cause
from declarative.model.status import RankState
from declarative.planner.permit import causes_of
from declarative.planner.tasks import at
from declarative.planner.types import Op
from declarative.render.data import plan_json
from declarative.render.plan import plan_text
from tests.model import NOW, World
from tests.model import project as declared

FLEET = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}, "placement": "cluster"}
HOUR = 3600


def wanted(now=NOW, **fields):
    train = {"name": "train", "nodes": 2, "resources": {"cpu": "1.."}, **fields}
    return at(declared(fleets=[FLEET], tasks=[train]), now)


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
