"""Running ranks without a record: they are seen, hold their blocks, and can be stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from declarative.model.state import rank_of_attempt
from tests.store.test_restored import by_file
from tests.support.cli import fleet, hold, lines, processes, task, until, volume

pytestmark = pytest.mark.slow

ONE = {"cpu": 1}


@pytest.fixture
def stray(project):
    """A project with a rank on one of two blocks that was forgotten and runs on."""
    project.declare(fleet(), task("old", hold(project.path / "old"), resources=ONE))
    project.apply()
    until(lambda: lines(project.path / "old"))
    project.run("state", "rm", "--auto-approve", "rank/old-0", "reservation/old-0")
    project.declare(fleet())
    return project


def test_they_are_shown_and_hold_their_blocks(stray):
    plan = stray.plan()
    (attempt,) = ((d["address"], d["change"]) for d in plan["drift"])
    assert attempt == ("rank/old-0", "orphan")
    assert "runs on node/gpu-0, but is not recorded" in plan["drift"][0]["detail"]
    (node,) = stray.status()["nodes"]
    assert node["holders"] == {"0": "rank/old-0 (orphan)"}
    assert node["blocks"] == {"total": 2, "busy": 1, "idle": 1}
    assert "rank/old-0: orphan: runs on node/gpu-0" in stray.run("state", "check", code=1).out
    stray.declare(fleet(), task("whole", "true", resources={"cpu": 2}))
    assert "rank/old-0 (orphan)" in stray.run("plan", code=3).out
    stray.declare(fleet(), task("half", hold(stray.path / "half"), resources=ONE))
    stray.apply()
    assert stray.status()["nodes"][0]["holders"] == {"0": "rank/old-0 (orphan)", "1": "rank/half-0"}


def test_a_node_is_not_deleted_below_them(stray):
    """It is not idle, for as long as they run."""
    stray.declare(fleet(nodes="0..1", idle_duration=0))
    assert stray.ids() == ["update:node/gpu-0"]  # which only records the duration
    done = stray.run("destroy", "--auto-approve", code=4)
    assert "`fleetform stop TASK` also stops what runs and is not recorded" in done.err + done.out
    stray.run("stop", "old")
    stray.run("destroy", "--auto-approve")
    assert processes(stray.path) == {}


@pytest.mark.parametrize("way", [("stop", "old"), ("destroy", "--orphans", "--auto-approve")])
def test_they_can_be_stopped(stray, way):
    """By the name of their task, and by no other one."""
    stray.run("stop", "other", code=1)
    assert processes(stray.path) != {}
    stray.run(*way)
    assert processes(stray.path) == {}
    stray.no_changes()
    assert stray.run("stop", "old", code=1).err.startswith("error[not-run]")


def test_they_can_be_recorded_again_as_they_were_started(project):
    """With their blocks and their volumes: nothing is left to do, and they run on."""
    pids = project.path / "old"
    old = task("old", hold(pids), resources=ONE, volumes=["data:/data"])
    project.declare(fleet(), volume(), old)
    project.apply()
    until(lambda: lines(pids))
    before = project.run("state", "show", "--json", "rank/old-0").json
    project.run("state", "rm", "--auto-approve", "--cascade", "reservation/old-0")
    assert project.plan(code=3)["drift"] != []  # it would run twice
    project.run("state", "adopt", "rank/old-0")
    after = project.run("state", "show", "--json", "rank/old-0").json
    for found in (before, after):
        del found["outputs"]["started_at"]  # it is begun a moment before it is called
    assert after == before
    project.no_changes()
    assert len(lines(pids)) == 1
    assert project.busy() == {"gpu-0": 1}
    project.run("stop", "old")
    project.run("destroy", "--auto-approve")
    assert processes(project.path) == {}


def test_what_nobody_knows_how_it_was_started_is_not_recorded(project):
    """After a restore: who says what it runs?"""
    project.declare(fleet())
    project.apply()
    kept = by_file(project)
    project.declare(fleet(), task("new", hold(project.path / "new"), resources=ONE))
    project.apply()
    until(lambda: lines(project.path / "new"))
    kept()
    done = project.run("state", "adopt", "rank/new-0", code=1)
    assert "history does not tell what new-0.1." in done.err
    assert "fleetform stop new" in done.err
    project.run("stop", "new")


def test_after_a_restore_no_block_is_used_twice(project):
    """What was started after the backup runs on, and is known."""
    project.declare(fleet())
    project.apply()
    project.write("kept.json", project.run("state", "pull").out)
    project.declare(fleet(), task("new", hold(project.path / "new"), resources={"cpu": 2}))
    project.apply()
    until(lambda: lines(project.path / "new"))
    project.run("state", "push", "--force", "kept.json")
    project.declare(fleet(), task("other", hold(project.path / "other"), resources=ONE))
    assert "rank/new-0 (orphan)" in project.apply(code=3).out
    assert not (project.path / "other").exists()
    project.run("stop", "new")
    project.apply()
    until(lambda: lines(project.path / "other"))
    project.no_changes()


def test_after_a_restore_a_task_that_runs_is_not_run_a_second_time_beside_it(project):
    """Its record is lost and it is declared as before: two would write the same checkpoints."""
    up = project.path / "up"
    project.declare(fleet())
    project.apply()
    project.write("kept.json", project.run("state", "pull").out)
    project.declare(fleet(), task("job", hold(up), resources=ONE), task("other", "true", resources=ONE))
    project.apply()
    until(lambda: lines(up))
    project.run("state", "push", "--force", "kept.json")
    (refusal,) = project.plan(code=3)["unplaced"]
    assert (refusal["task"], refusal["code"]) == ("job", "runs-already")
    said = project.apply("--allow-unplaced").out
    assert "rank/job-0 runs on node/gpu-0 and is not recorded: task/job might run twice at once" in said
    assert "`fleetform state adopt rank/job-0` records it, `fleetform stop job` stops it" in said
    assert len(lines(up)) == 1
    project.run("stop", "job")
    project.apply()
    until(lambda: len(lines(up)) == 2)
    project.no_changes()


def test_after_a_restore_a_later_attempt_is_adopted_in_place_of_the_recorded_one(project):
    """As the hints say, word by word."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up), resources=ONE))
    project.apply()
    until(lambda: len(lines(up)) == 1)
    project.write("kept.json", project.run("state", "pull").out)
    project.apply("--replace", "task/job")
    until(lambda: len(lines(up)) == 2)
    project.run("state", "push", "--force", "kept.json")
    (refusal,) = project.plan("--replace", "task/job", code=3)["unplaced"]
    assert refusal["hint"].startswith(
        "`fleetform state rm rank/job-0`, then `fleetform state adopt rank/job-0` records it"
    )
    refused = project.run("state", "adopt", "rank/job-0", code=1).err
    assert "another attempt of rank/job-0 is recorded already" in refused
    assert "`fleetform state rm rank/job-0` forgets that one" in refused
    project.run("state", "rm", "--auto-approve", "rank/job-0")
    project.run("state", "adopt", "rank/job-0")
    project.no_changes()
    assert project.ranks("job")[0]["state"] == "running"
    assert len(lines(up)) == 2


def test_the_id_of_an_attempt_tells_its_blocks():
    assert rank_of_attempt("train-2.1.5.00ff") == ("train-2", (0, 2))
    assert rank_of_attempt("train-2.1") == ("train-2", None), "an older version started it"


@pytest.mark.parametrize(
    "made_up", ["x.1.zz.0", "x.1..0", "x.1.-1.0", "x.1.f.0.0", f"x.1.{'f' * 300}.0", "x", "."]
)
def test_an_id_that_a_host_made_up_tells_no_blocks(made_up):
    """All blocks of its node are held then, and nothing fails."""
    assert rank_of_attempt(made_up)[1] is None


def test_a_rank_does_not_outlive_its_nodes_folder_unseen(project):
    """Somebody removed it, and with it what stops the rank: that ends before its blocks are free."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up), resources={"cpu": "1.."}))
    project.apply()
    until(lambda: len(lines(up)) == 1)
    pid = int(lines(up)[0])
    shutil.rmtree(project.node("gpu-0"))
    project.apply("--accept-vanished")
    until(lambda: not Path(f"/proc/{pid}").exists())
