"""A volume that is gone is not made anew by itself: a new one would be empty. It stays recorded, and waits
for somebody, with the tasks on it, whatever command looks.

`laws/test_planner.py` has the law for plans.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from declarative.model.spec.project import Cause
from declarative.model.state import Address, Intent
from declarative.model.status import RankState
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.make import make_plan
from declarative.planner.plan import Reason
from declarative.planner.unattended import causes_of
from tests.support.cli import Project, fleet, lines, processes, task, until, volume
from tests.support.model import World, offers_of
from tests.support.model import project as declared
from tests.support.rounds import Clock, Here

PAIR = {"name": "pair", "nodes": 1, "resources": {"cpu": 2}}
DATA = Address("volume", "data")


def wanted(volumes=({"name": "data"},), **fields):
    train = {"name": "train", "resources": {"cpu": "1.."}, "mounts": {"/d": "data"}, **fields}
    return declared(fleets=[PAIR], volumes=volumes, tasks=[train])


def world_without_its_volume(**fields):
    """Its task has ended, too."""
    world = World()
    world.apply(world.plan(wanted(**fields)))
    world.gone.add(DATA)
    world.end("train-0", RankState.FAILED)
    return world


def ids(plan):
    return [a.id for a in plan.actions]


def test_it_waits_and_its_task_waits_with_the_reason():
    """Before and after that is recorded; a task with `retry` is pending, and holds nothing else up."""
    world = world_without_its_volume(retry=True)
    for _ in range(2):
        plan = world.plan(wanted(retry=True))
        assert (plan.result, [i for i in ids(plan) if "create" in i]) == ("waiting", [])
        (said,) = [d for d in plan.diagnostics if d.code == "volume-gone"]
        assert said.summary == "volume/data is gone, and is not made anew by itself: a new one would be empty"
        (refusal,) = plan.unplaced.refusals
        (rank,) = refusal.ranks
        assert "volume-gone" in {r.code for r in rank.rejections}
        assert "--replace volume/NAME" in str(refusal.hint)
        world.settle()
    assert DATA in world.records


def test_it_is_not_well():
    world = world_without_its_volume()
    world.settle()
    plan = world.plan(wanted())
    assert (plan.result, ids(plan)) == ("unhealthy", [])
    assert [(h.address, h.state) for h in plan.health] == [("volume/data", "gone")]


def test_one_that_comes_back_is_as_it_was():
    """After one wrong listing nothing is lost."""
    world = world_without_its_volume()
    world.settle()
    world.gone.clear()
    assert ids(world.plan(wanted())) == []
    again = world.plan(wanted(), requested=frozenset({"task/train"}))
    assert "create:attachment/train-0.data" in ids(again)
    assert "create:volume/data" not in ids(again)


def test_a_rank_that_runs_on_it_is_left_alone():
    """One wrong listing ends no work: the rank is neither lost nor stopped, and keeps all that it holds."""
    world = World()
    world.apply(world.plan(wanted(retry=True)))
    before = world.state()
    world.gone.add(DATA)
    for _ in range(2):
        known = observed_state(world.state(), world.inventory(wanted(retry=True)))
        assert (before.records, before.ranks) == (known.records, known.ranks)
        plan = world.plan(wanted(retry=True))
        assert ids(plan) == []
        assert [d.code for d in plan.diagnostics] == ["volume-gone"]
        world.settle()
    world.gone.clear()
    assert ids(world.plan(wanted(retry=True))) == []
    assert (before.records, before.ranks) == (world.state().records, world.state().ranks)


def test_a_rank_that_runs_on_it_is_lost_with_its_node():
    world = World()
    world.apply(world.plan(wanted()))
    node = Address("node", "pair-0")
    world.gone |= {DATA, node}
    known = observed_state(world.state(), world.inventory(wanted()))
    assert known.ranks["train-0"].state is RankState.LOST
    assert {DATA, Address("rank", "train-0")} == {*known.records}


def test_only_a_request_makes_an_empty_one():
    """Its record is forgotten and nothing deleted: if the listing was wrong, the old one is an orphan."""
    world = world_without_its_volume(retry=True)
    world.settle()
    plan = world.plan(wanted(retry=True), requested=frozenset({"volume/data"}))
    old, new = (a for a in plan.actions if a.address == DATA)
    assert (old.forgets, old.reason, new.id) == (True, Reason.REQUESTED, "create:volume/data")
    assert "create:rank/train-0" in ids(plan)
    world.apply(plan)
    assert ids(world.plan(wanted(retry=True))) == []


def test_an_alternative_is_taken():
    volumes = [{"name": "data"}, {"name": "other"}]
    world = World()
    world.apply(world.plan(wanted(volumes)))
    world.gone.add(DATA)
    world.end("train-0", RankState.FAILED)
    either = {"mounts": {"/d": ["data", "other"]}, "retry": True}
    plan = world.plan(wanted(volumes, **either), requested=frozenset({"task/train"}))
    assert "create:attachment/train-0.other" in ids(plan)


@pytest.mark.parametrize("words", [{"region": "far"}, {"size": "2GB"}, {"prevent_destroy": False}])
def test_a_change_of_its_declaration_is_no_request(words):
    plan = world_without_its_volume().plan(wanted([{"name": "data", **words}]))
    assert not [a for a in plan.actions if a.address == DATA]


def test_one_whose_time_of_clean_up_is_over_waits_as_any_other():
    """It is not there to be deleted, and may come back with its content."""
    cache = ({"name": "data", "auto_cleanup_duration": "1h", "prevent_destroy": False},)
    world = World()
    world.apply(world.plan(wanted(cache)))
    world.end("train-0", RankState.SUCCEEDED)
    world.settle()
    world.now += 3600
    assert ids(world.plan(wanted(cache))) == ["delete:volume/data"]
    world.gone.add(DATA)
    plan = world.plan(wanted(cache))
    assert (ids(plan), [d.code for d in plan.diagnostics]) == ([], ["volume-gone"])


def test_a_protection_keeps_nothing_of_what_is_gone():
    """Who asks for a new one gets it."""
    kept = ({"name": "data", "prevent_destroy": True},)
    world = World()
    world.apply(world.plan(wanted(kept, retry=True)))
    world.gone.add(DATA)
    world.end("train-0", RankState.FAILED)
    plan = world.plan(wanted(kept, retry=True), requested=frozenset({"volume/data"}))
    assert [d.code for d in plan.diagnostics if d.code == "protected"] == []
    assert "create:volume/data" in ids(plan)


def test_no_request_makes_an_adopted_one_anew():
    adopted = ({"name": "data", "volume_id": "vol-1"},)
    world = World()
    world.apply(world.plan(wanted(adopted)))
    world.gone.add(DATA)
    plan = world.plan(wanted(adopted), requested=frozenset({"volume/data"}))
    assert [d.code for d in plan.diagnostics] == ["protected"]


def test_an_adopted_one_may_be_declared_as_another():
    world = World()
    adopted = {"name": "data", "volume_id": "vol-1"}
    world.apply(world.plan(wanted([adopted])))
    world.gone.add(DATA)
    assert not [a for a in world.plan(wanted([adopted])).actions if a.address == DATA]
    plan = world.plan(wanted([{**adopted, "volume_id": "vol-2"}]))
    assert [a.id for a in plan.actions if a.address == DATA] == ["delete:volume/data", "create:volume/data"]


def test_what_a_cut_short_command_deleted_is_made_anew():
    """A replacement that was killed between its two halves goes on: the first half had been asked for."""
    world, far = World(), wanted([{"name": "data", "region": "far", "prevent_destroy": False}])
    world.apply(world.plan(wanted([{"name": "data", "prevent_destroy": False}])))
    record = world.records[DATA]
    intent = Intent(
        id=1, op="delete", address=DATA, backend="local", generation=1, token="t", inputs=record.inputs
    )
    state = replace(world.state(), intents=(intent,))
    seen = Inventory(
        readiness=world.inventory(far).readiness,
        gone=frozenset({DATA}),
        deleting=frozenset({DATA}),
        offers=offers_of(far),
    )
    assert DATA not in observed_state(state, seen).records
    plan = make_plan(far, state, seen, world.now)
    (made,) = [a for a in plan.actions if a.address == DATA]
    assert (made.id, made.reason) == ("create:volume/data", Reason.GONE)
    assert causes_of(plan, observed_state(state, seen))["volume/data"] is Cause.REPLACE_LOST


# ------------------------------------------------------------------------------- by the installed command


@pytest.fixture
def running(tmp_path: Path):
    """A project whose task runs on a volume."""
    project = Project(tmp_path)
    project.declare(fleet(nodes=1), volume(), task("long", "sleep 4321", volumes=["data:/data"]))
    project.apply()
    yield project
    project.clean_up()


@pytest.mark.slow
def test_no_command_ends_what_runs_on_it(running: Project):
    """It comes back from elsewhere, and nothing has happened."""
    (before,) = running.ranks("long").values()
    data, away = running.local / "volumes" / "data", running.path / "away"
    data.rename(away)
    assert not running.plan(code=0)["actions"]
    running.apply(code=None)
    running.run("reconcile", "--once", code=None)
    (during,) = running.ranks("long").values()
    assert (before["state"], before["attempt"]) == (during["state"], during["attempt"])
    assert processes(running.node("gpu-0"))
    away.rename(data)
    running.no_changes()
    assert not running.plan()["drift"]
    running.apply("--replace", "task/long")
    assert running.ranks("long")[0]["state"] == "running"


@pytest.fixture
def lived(tmp_path: Path):
    """A project whose task wrote into its volume, which somebody has removed since."""
    project = Project(tmp_path)
    write = "echo $FLEETFORM_TASK_NAME >> $FLEETFORM_VOLUME_DATA/results; exit 1"
    retried = {"retry": {"on_events": ["error", "interruption"], "duration": "8h"}, "volumes": ["data:/data"]}
    project.declare(fleet(), volume(), task("train", write, **retried))
    project.apply()
    until(lambda: lines(project.data("data") / "results"))
    until(lambda: project.ranks("train")[0]["state"] == "failed")
    shutil.rmtree(project.local / "volumes" / "data")
    shutil.rmtree(project.node("gpu-0"))
    project.apply("--refresh-only", "--accept-vanished")
    yield project
    project.clean_up()


@pytest.mark.slow
def test_one_that_comes_back_after_its_task_ended_is_free(running: Project):
    """It comes back with the attachment of a rank that has ended since; that one holds it no more."""
    data, away = running.local / "volumes" / "data", running.path / "away"
    data.rename(away)
    running.run("stop", "long")
    running.apply(code=None)
    assert running.ranks("long")[0]["state"] == "stopped"
    away.rename(data)
    assert (data / "attachment.json").exists()
    running.apply("--replace", "task/long")
    assert running.ranks("long")[0]["state"] == "running"
    assert not running.plan()["drift"]


def made_nothing(project):
    return not (project.local / "volumes" / "data").exists()


@pytest.mark.slow
def test_no_command_makes_an_empty_one(lived: Project):
    """Not `apply`, nor a saved plan, nor the loop by its defaults; the lost node is made anew."""
    lived.run("plan", "--out", "p.plan", code=None)
    lived.run("apply", "p.plan", code=None)
    assert made_nothing(lived)
    lived.apply(code=None)
    assert made_nothing(lived)
    assert lived.node("gpu-0").exists()
    here = Here(lived.path, Clock())
    try:
        for _ in range(3):
            found = here.step(600)
            assert made_nothing(lived)
        (wait,) = [w for w in found.waits if w.address == "volume/data"]
        assert (wait.action, wait.digest) == ("replace-lost", None)
        assert "--replace" in wait.why
    finally:
        here.close()
    assert lived.run("state", "check", code=1).out == "volume/data: gone: not there any more\n"
    assert lived.status()["volumes"] == [{"name": "data", "state": "gone", "node": None}]
    assert {h["address"]: h["state"] for h in lived.status()["health"]} == {"volume/data": "gone"}


@pytest.mark.slow
def test_a_request_makes_one_and_its_task_goes_on(lived: Project):
    done = lived.apply("--replace", "volume/data")
    assert "requested with `--replace`; it is gone, and an empty one is made" in done.out
    assert "volume/data: it is gone, its record is removed" in done.err + done.out
    assert "stays as it is" not in done.err + done.out
    until(lambda: lines(lived.data("data") / "results"))
    lived.run("stop", "train")
    lived.run("state", "check")
    assert not lived.plan()["health"]
    assert lived.status()["volumes"][0]["state"] != "gone"


@pytest.mark.slow
@pytest.mark.parametrize("destroy", [True, False])
def test_one_that_is_given_up_is_forgotten(lived: Project, destroy: bool):
    entry = {"from": "volume/data", "destroy": destroy}
    lived.declare({"type": "project", "name": "lab", "removed": [entry]}, fleet())
    lived.apply()
    lived.no_changes()
    assert "volume/data" not in lived.run("state", "list").out


@pytest.mark.slow
def test_several_hold_nothing_else_up(tmp_path: Path):
    """Neither an `apply` nor the loop stops for them, and what is new is made."""
    project = Project(tmp_path)
    try:
        project.declare(fleet(nodes=1), volume(count=2))
        project.apply()
        shutil.rmtree(project.local / "volumes")
        project.declare(fleet(nodes=2), volume(count=2))
        project.run("reconcile", "--once")
        assert len(project.status()["nodes"]) == 2
        project.declare(fleet(nodes=3), volume(count=2))
        project.apply(code=None)
        assert len(project.status()["nodes"]) == 3
        assert {v["state"] for v in project.status()["volumes"]} == {"gone"}
    finally:
        project.clean_up()


LAB = {"type": "project", "name": "lab"}
RENAMED = [{**LAB, "moved": [{"from": "fleet/gpu", "to": "fleet/new"}]}, fleet("new", nodes=1)]
FORGETTING = {
    "destroy": (("destroy",), [LAB, fleet(nodes=1), volume(count=2)]),
    "removed": (("apply",), [LAB, fleet(nodes=1)]),
    "one of them": (("apply",), [LAB, fleet(nodes=1), volume(count=1)]),
    "told to go": (
        ("apply",),
        [{**LAB, "removed": [{"from": "volume/data", "destroy": True}]}, fleet(nodes=1)],
    ),
    "renamed too": (("apply",), RENAMED),
    "requested": (("apply", "--replace", "volume/data-1"), [LAB, fleet(nodes=1), volume(count=2)]),
    "saved": (("apply", "p.plan"), [LAB, fleet(nodes=1)]),
    "saved and renamed": (("apply", "p.plan"), RENAMED),
}
"""Case → a command, and the documents."""


@pytest.mark.slow
@pytest.mark.parametrize("case", FORGETTING)
def test_several_are_forgotten_only_if_a_person_says_so(tmp_path: Path, case: str):
    """The listing may err, however often it is asked."""
    command, documents = FORGETTING[case]
    approved = () if "p.plan" in command else ("--auto-approve",)
    project = Project(tmp_path)

    def made() -> set[str]:
        return {*project.run("state", "list", code=None).out.split()} & {"volume/data-0", "volume/data-1"}

    try:
        project.declare(LAB, fleet(nodes=1), volume(count=2))
        project.apply()
        shutil.rmtree(project.local / "volumes")
        project.declare(*documents)
        if "p.plan" in command:
            planned = project.run("plan", "--out", "p.plan", code=None)
            assert "2 things of one backend vanished at once" in planned.out
        for _ in range(2):
            refused = project.run(*command, *approved, code=1)
            assert "error[vanished]: 2 things are gone at once: volume/data-0, volume/data-1" in refused.err
            assert made() == {"volume/data-0", "volume/data-1"}
        project.run(*command, *approved, "--accept-vanished", code=None)
        assert ("volume/data-1" in made()) is (case == "requested")
    finally:
        project.clean_up()


@pytest.mark.slow
def test_what_goes_in_any_case_is_forgotten_without_a_question(tmp_path: Path):
    """The outcome is the same if the listing errs."""
    project = Project(tmp_path)
    try:
        project.declare(LAB, fleet(nodes=1), volume(count=2))
        project.apply()
        shutil.rmtree(project.local / "volumes")
        project.declare({**LAB, "removed": [{"from": "volume/data", "destroy": False}]}, fleet(nodes=1))
        project.apply()
        assert "volume/" not in project.run("state", "list").out
    finally:
        project.clean_up()
