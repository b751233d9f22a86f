"""Volumes with an `auto_cleanup_duration`: made for tasks, and deleted when unused for so long.

`laws/test_planner.py` has the law, `test_store` what is recorded.
"""

import json

import pytest

from declarative.model.state import Address
from declarative.model.status import RankState
from declarative.planner.plan import Op, Reason
from declarative.render.plan import plan_text
from tests.support.cli import fleet, hold, lines, task, until
from tests.support.model import World
from tests.support.model import project as declared

FLEET = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}}
CACHE = {"name": "cache", "auto_cleanup_duration": "1h"}
TASK = {"name": "fill", "resources": {"cpu": "1.."}, "mounts": {"/c": "cache"}}


def wanted(volume=CACHE, tasks=(TASK,), **more):
    return declared(fleets=[FLEET], volumes=[volume], tasks=tasks, **more)


def filled(volume=CACHE, tasks=(TASK,)):
    """A world in which the tasks ran and have ended, so that their volumes are detached now."""
    world = World()
    world.apply(world.plan(wanted(volume, tasks)))
    world.now += 500_000  # longer ago than any duration here
    for name in world.running():
        world.end(name, RankState.SUCCEEDED)
    world.settle()
    return world


def ids(plan):
    return [a.id for a in plan.actions]


def later(world, seconds, desired):
    """The plan after so long, carried out; nothing is left to do then."""
    world.now += seconds
    plan = world.plan(desired)
    assert plan.result != "error", plan.diagnostics
    world.apply(plan)
    assert ids(world.plan(desired)) == []
    return plan


@pytest.mark.parametrize(
    ("duration", "seconds", "gone"),
    [
        ("1h", 3599, False),
        ("1h", 3600, True),
        (60, 60, True),
        ("0s", 0, True),
        ("off", 10**9, False),
        (-1, 10**9, False),
        (False, 10**9, False),
        (None, 10**9, False),
    ],
)
def test_a_volume_goes_when_it_was_attached_to_nothing_for_so_long(duration, seconds, gone):
    """Counted from its last use, not from its making; with a reason of its own."""
    volume = {"name": "cache", "auto_cleanup_duration": duration}
    plan = later(filled(volume), seconds, wanted(volume))
    assert ids(plan) == (["delete:volume/cache"] if gone else [])
    assert [(a.reason, a.because) for a in plan.actions] == [
        (Reason.UNUSED, ("auto_cleanup_duration",))
    ] * gone
    assert plan.result == ("changes" if gone else "none")
    if gone:
        said = "- volume/cache  # attached to nothing for longer than its `auto_cleanup_duration`"
        assert said in plan_text(plan, color=False, width=120)


def test_one_that_was_never_attached_goes_by_when_its_duration_was_recorded():
    """It was made before its duration was declared, and no task ever got it."""
    kept = {"name": "cache"}
    world = World()
    world.apply(world.plan(wanted(kept, ())))
    world.now += 10**9
    assert ids(later(world, 0, wanted(tasks=()))) == ["update:volume/cache"], "it may go from now on"
    assert ids(later(world, 3599, wanted(tasks=()))) == []
    assert ids(later(world, 1, wanted(tasks=()))) == ["delete:volume/cache"]


def test_what_is_not_known_is_not_counted():
    """Of a volume that an earlier version recorded: the next apply notes it."""
    world = filled()
    world.detached_since = {}
    world.now += 10**9
    assert ids(world.plan(wanted())) == []


def test_it_is_there_as_long_as_a_rank_has_it():
    world = World()
    world.apply(world.plan(wanted()))
    assert ids(later(world, 10**9, wanted())) == []


def test_it_is_made_for_the_task_that_mounts_it_and_again_for_the_next():
    """And not for the sake of being there: what was cleaned up would be made and deleted for ever."""
    world = World()
    plan = world.plan(wanted(tasks=()))
    assert [a.id for a in plan.actions if a.address.kind == "volume"] == []
    (said,) = [d for d in plan.diagnostics if d.code == "volume-waits"]
    assert said.summary == (
        "volume/cache is not there: it has an `auto_cleanup_duration`, and no rank mounts it"
    )
    world = filled()
    later(world, 3600, wanted())
    assert not world.plan(wanted()).diagnostics, "a task that has ended mounts it"
    again = world.plan(wanted(), requested=frozenset({"task/fill"}))
    assert "create:volume/cache" in ids(again)
    world.apply(again)
    assert ids(world.plan(wanted())) == []


def test_a_task_of_the_same_plan_keeps_it():
    """One that gets it, and one that finds no place for now."""
    world = filled()
    world.now += 10**9
    other = {**TASK, "name": "more"}
    plan = world.plan(wanted(tasks=(TASK, other)))
    assert "delete:volume/cache" not in ids(plan)
    assert "create:attachment/more-0.cache" in ids(plan)
    large = {**TASK, "name": "more", "resources": {"cpu": "99.."}}
    plan = world.plan(wanted(tasks=(TASK, large)))
    assert (plan.result, ids(plan)) == ("unplaced", [])


def test_nothing_is_made_for_a_task_that_finds_no_place():
    large = {**TASK, "resources": {"cpu": "99.."}}
    plan = World().plan(wanted(tasks=(large,)))
    assert [a.id for a in plan.actions if a.address.kind == "volume"] == []


def test_of_alternatives_the_one_that_is_not_used_goes():
    volumes = [CACHE, {**CACHE, "name": "other"}]
    task = {**TASK, "mounts": {"/c": ["cache", "other"]}}
    world = World()
    desired = declared(fleets=[FLEET], volumes=volumes, tasks=[{**TASK, "mounts": {"/c": "other"}}])
    world.apply(world.plan(desired))
    world.now += 10**6
    desired = declared(fleets=[FLEET], volumes=volumes, tasks=[task])
    assert "create:volume/cache" in ids(later(world, 0, desired))
    assert ids(later(world, 3600, desired)) == ["delete:volume/other"]


def test_a_plan_that_ends_its_last_task_may_delete_it_too():
    """With `0s`: after its attachment, as it needs it."""
    volume = {**CACHE, "auto_cleanup_duration": "0s"}
    world = World()
    world.apply(world.plan(wanted(volume)))
    plan = later(world, 0, wanted(volume, ()))
    order = ids(plan)
    assert order.index("delete:attachment/fill-0.cache") < order.index("delete:volume/cache")


def test_what_is_changed_beyond_mending_is_deleted_and_waits():
    world = filled()
    plan = later(world, 0, wanted({**CACHE, "region": "far"}))
    assert [(a.id, a.because) for a in plan.actions] == [("delete:volume/cache", ("region",))]


def test_what_is_gone_waits_too():
    world = filled()
    world.gone.add(Address("volume", "cache"))
    assert ids(world.plan(wanted())) == []


def test_what_was_adopted_is_let_go_and_adopted_again():
    """Never deleted, and protected or not: nothing is lost."""
    volume = {**CACHE, "volume_id": "vol-1", "prevent_destroy": True}
    world = filled(volume)
    plan = later(world, 3600, wanted(volume))
    assert ids(plan) == ["delete:volume/cache"]
    assert "vol-1 itself stays: it was adopted" in plan_text(plan, color=False, width=200)
    again = world.plan(wanted(volume), requested=frozenset({"task/fill"}))
    (made,) = [a for a in again.actions if a.address.kind == "volume"]
    assert (made.op, made.reason) == (Op.CREATE, Reason.ADOPTED)


def test_it_may_be_destroyed_and_replaced_unless_it_is_kept():
    """Who says that it may go need not say so twice; `off` is as if it were not written."""
    given = {"1h": False, "off": True, None: True}
    for duration, protected in given.items():
        (want,) = wanted({"name": "cache", "auto_cleanup_duration": duration}).volumes.values()
        assert want.inputs.prevent_destroy is protected
    world = filled()
    assert "delete:volume/cache" in ids(world.plan(declared(), destroy=True))
    kept = {"name": "cache", "auto_cleanup_duration": "off", "prevent_destroy": True}
    assert ids(world.plan(wanted(kept))) == ["update:volume/cache"]


def test_a_change_of_the_duration_is_recorded_and_its_notation_is_not():
    world = filled()
    plan = later(world, 0, wanted({**CACHE, "auto_cleanup_duration": "2h"}))
    assert [(a.id, a.because) for a in plan.actions] == [("update:volume/cache", ("auto_cleanup_duration",))]
    assert ids(world.plan(wanted({**CACHE, "auto_cleanup_duration": "120m"}))) == []


# ------------------------------------------------------------------------------- by the installed command

WRITES = "echo $FLEETFORM_VOLUME_CACHE >> $FLEETFORM_VOLUME_CACHE/runs"


def declare(project, *commands, **fields):
    cache = {"type": "volume", "name": "cache", "size": "1GB", "auto_cleanup_duration": 1, **fields}
    project.declare(fleet(), cache, task("fill", *commands, volumes=["cache:/cache"]))


@pytest.mark.slow
def test_from_its_first_task_to_its_deletion_and_back(project):
    """`plan` shows it, online and offline; a saved plan does it; the next task gets an empty one."""
    declare(project, WRITES)
    project.apply("--wait")
    assert len(lines(project.data("cache") / "runs")) == 1
    gone = ["delete:volume/cache"]
    until(lambda: project.ids() == gone)
    for way in ("--offline",), ("--out", "p.plan"):
        (action,) = project.plan(*way)["actions"]
        assert (action["id"], action["reason"]) == (*gone, "unused")
    assert lines(project.data("cache") / "runs"), "a plan changes nothing"
    project.run("apply", "p.plan")
    assert not project.data("cache").exists()
    project.no_changes()  # it is not made again for the sake of being there
    up = project.path / "up"
    declare(project, WRITES, hold(up))
    project.apply()
    until(up.exists)
    assert len(lines(project.data("cache") / "runs")) == 1
    assert json.loads(project.run("state", "pull").out)["volumes"] == {}
    declare(project, WRITES, hold(up), auto_cleanup_duration=0)
    assert project.ids() == ["update:volume/cache"]
    project.apply()
    project.no_changes()
