"""`queue: true`: a task that waits in Slurm's queue for what others hold, with a real Slurm."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons
from tests.providers.slurm.test_kills import SEEDS, cut_short, ran
from tests.support.cli import hold, until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(slurm: Daemons, tmp_path: Path):
    made = Cluster(tmp_path, slurm)
    yield made
    made.clean_up()


def others(slurm: Daemons, node: str = "gpu-0", minutes: int = 30) -> str:
    """The id of a running job of somebody else, with most of a node."""
    wanted = ("--gres=gpu:h100:6", "--cpus-per-task=6", "--mem=6000", "-N1", "-w", node, "-J", "theirs")
    limit = f"--time={minutes}"
    number = slurm.run(
        "sbatch", "--parsable", "--output=/dev/null", limit, *wanted, "--wrap", "sleep 600"
    ).strip()
    until(lambda: slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i", "-j", number).strip() == number)
    return number


def test_it_is_planned_and_submitted_once_and_starts_by_itself(project, slurm, tmp_path):
    """The plan says behind whom and until when; no command has to run when it starts."""
    number = others(slurm)
    gang = half("gang", hold(tmp_path / "gang"), queue=True)
    project.declare(project.backend(), project.fleet(), gang)
    found = project.plan()
    assert [(q["task"], q["behind"][0].partition(" of ")[0]) for q in found["queued"]] == [
        ("gang", f"slurm job {number}")
    ]
    assert found["queued"][0]["behind_until"]
    assert found["queued"][0]["expected_start"]
    shown = project.run("plan").out
    assert "task/gang waits for slurm job" in shown
    assert "new, queued" in shown
    project.apply()
    assert project.jobs("PENDING") == ["gang"]
    assert {r["state"] for r in project.ranks("gang").values()} == {"pending"}
    told = project.run("status").out
    assert f"waits in Slurm's queue (Resources); gpu-0 is held by slurm job {number} of" in told
    project.no_changes()
    project.apply()
    assert project.jobs("PENDING") == ["gang"]
    explained = project.run("explain", "task/gang").out
    assert f"slurm job {number}" in explained
    slurm.run("scancel", number)
    until(lambda: (tmp_path / "gang").exists() and len((tmp_path / "gang").read_text().split()) == 2)
    assert {r["state"] for r in project.ranks("gang").values()} == {"running"}
    project.no_changes()
    project.run("stop", "gang")
    assert project.jobs("RUNNING", "PENDING") == []


def test_one_that_waits_is_stopped_and_one_that_is_cancelled_is_told(project, slurm):
    """Its job goes; none of its commands ran."""
    others(slurm)
    project.bring(half("gang", "true", queue=True))
    project.run("stop", "gang")
    assert project.jobs("PENDING") == []
    assert {r["state"] for r in project.ranks("gang").values()} == {"stopped"}
    project.apply("--replace", "task/gang")
    number = slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%i").strip()
    slurm.run("scancel", number)
    assert {r["state"] for r in project.ranks("gang").values()} == {"stopped"}
    assert f"its job was cancelled (job {number}, CANCELLED" in project.run("status").out


def test_it_waits_for_who_has_to_end_first(project, slurm):
    """Of two nodes that others hold, it gets the one that is free first."""
    others(slurm, "gpu-0", 60)
    others(slurm, "gpu-1", 20)
    project.declare(project.backend(), project.fleet(), half("one", "true", nodes=1, queue=True))
    assert [r["node"] for r in project.plan()["reservations"]] == ["gpu-1"]


def test_single_ranks_and_what_our_own_tasks_hold(project, slurm, tmp_path):
    """What our own ranks hold is not waited for in Slurm's queue."""
    number = others(slurm)
    one = half("one", hold(tmp_path / "one"), nodes=1, instances=["gpu-0"], queue=True)
    project.bring(one, args=())
    assert project.jobs("PENDING") == ["one"]
    two = half("two", "true", nodes=1, instances=["gpu-0"], resources={"gpu": 8}, queue=True)
    project.declare(project.backend(), project.fleet(), one, two)
    refused = project.plan(code=3)["unplaced"]
    assert [r["task"] for r in refused] == ["two"]
    slurm.run("scancel", number)
    until((tmp_path / "one").exists)
    project.run("stop", "one")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_killed_while_it_is_queued_is_submitted_once(project, slurm, tmp_path, seed):
    """And runs once when its nodes are free."""
    number = others(slurm)
    project.declare(project.backend(), project.fleet(), half("gang", hold(tmp_path / "gang"), queue=True))
    cut_short(project, random.Random(seed), lambda: False, "apply", "--auto-approve")
    assert project.jobs("PENDING") == ["gang"]
    slurm.run("scancel", number)
    until(lambda: ran(project, "gang") == 2)
    project.no_changes()
    project.run("stop", "gang")
    assert ran(project, "gang") == 2
