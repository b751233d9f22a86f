"""A partition as a fleet: Slurm grants what is planned, with a real Slurm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons
from tests.support.cli import hold, task, until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(slurm: Daemons, tmp_path: Path):
    made = Cluster(tmp_path, slurm)
    yield made
    made.clean_up()


def test_two_gangs_share_two_nodes_and_a_third_is_told_who_holds_them(project, tmp_path):
    """On disjoint devices, as the plan says; what is refused names the holders."""
    show = 'echo "$SLURMD_NODENAME [$CUDA_VISIBLE_DEVICES] $FLEETFORM_GPUS_PER_NODE of $FLEETFORM_GPUS_NUM"'
    left, right = (half(n, show, hold(tmp_path / n)) for n in ("left", "right"))
    project.declare(project.backend(), project.fleet(), left, right)
    planned = {(r["task"], r["rank"]): (r["node"], len(r["blocks"])) for r in project.plan()["reservations"]}
    assert sorted(planned.values()) == [("gpu-0", 4), ("gpu-0", 4), ("gpu-1", 4), ("gpu-1", 4)]
    project.apply()
    until(lambda: len((tmp_path / "left").read_text().split()) == 2)
    until(lambda: len((tmp_path / "right").read_text().split()) == 2)
    assert project.jobs("RUNNING") == ["left", "right"]
    said = {name: {r: project.logs(f"{name}/{r}").strip() for r in (0, 1)} for name in ("left", "right")}
    for name, ranks in said.items():
        for rank, text in ranks.items():
            assert text.startswith(f"{planned[name, rank][0]} [")
            assert text.endswith("4 of 8")
    if project.daemons.numbered:
        for rank in (0, 1):
            both = [said[n][rank].partition("[")[2].partition("]")[0].split(",") for n in ("left", "right")]
            assert sorted(both[0] + both[1]) == [str(i) for i in range(8)]
    told = project.run("status").out
    assert "limits slurm job" in told
    assert not project.daemons.numbered or ", gpus 0,1,2,3" in told
    project.no_changes()
    third = half("third", "true")
    project.declare(project.backend(), project.fleet(), left, right, third)
    refused = project.plan(code=3)["unplaced"][0]
    told = [r["detail"] for rank in refused["ranks"] for r in rank["rejections"]]
    assert (refused["task"], refused["code"]) == ("third", "no-capacity")
    assert any("rank/left-0" in text and "rank/right-0" in text for text in told), told
    project.run("stop", "left")
    project.run("stop", "right")
    assert project.jobs("RUNNING") == []
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}


def test_a_gang_that_slurm_does_not_start_is_cancelled_and_does_not_wait(project, slurm, tmp_path):
    """Somebody's job takes a node between the plan and the submission. Without `queue`, nothing of ours stays
    in the queue to begin at a time that nobody looks at.
    """
    real = shutil.which("sbatch", path=slurm.env["PATH"])
    theirs = "--parsable --output=/dev/null --exclusive -N1 -w gpu-0 -J theirs --wrap 'sleep 600'"
    script = tmp_path / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(
        f"""#!/bin/sh
if mkdir {tmp_path}/first 2>/dev/null; then
  number=$({real} {theirs})
  until squeue -h -t RUNNING -o %i -j "$number" | grep -q .; do sleep 0.1; done
fi
exec {real} "$@"
"""
    )
    script.chmod(0o755)
    project.declare(project.backend(start_seconds=1), project.fleet(), half("gang", "true"))
    path = f"{script.parent}:{slurm.env['PATH']}"
    done = project.run("apply", "--auto-approve", env={"PATH": path}, code=4)
    assert "Slurm did not start gang at once, so its job was cancelled" in done.err + done.out
    assert project.jobs("RUNNING", "PENDING") == ["theirs|RUNNING"]
    slurm.run("scancel", "-n", "theirs")


def test_what_others_hold_is_busy_and_named(project, slurm, tmp_path):
    """In the block map before the first apply, and in the refusal of what does not fit beside it."""
    others = ("--gres=gpu:h100:6", "--cpus-per-task=6", "--mem=6000", "-N1", "-w", "gpu-0", "-J", "theirs")
    number = slurm.run("sbatch", "--parsable", "--output=/dev/null", *others, "--wrap", "sleep 600").strip()
    until(lambda: slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").strip() == number)
    project.declare(project.backend(), project.fleet(), half("gang", "true"))
    plan = project.plan(code=3)
    detail = [r["detail"] for rank in plan["unplaced"][0]["ranks"] for r in rank["rejections"]]
    assert any(f"slurm job {number} of " in text for text in detail), detail
    shown = project.run("plan", code=3).out
    assert f"2-7 slurm job {number} of" in shown
    small = task("small", "true", nodes=2, exclusive=False, spread="node", resources={"gpu": 2})
    project.bring(small, args=("--wait",))
    assert [r["node"] for r in project.ranks("small").values()] == ["gpu-0", "gpu-1"]
    assert project.busy()["gpu-0"] == 6


def test_a_drained_node_takes_no_work_and_says_why(project, slurm):
    """With Slurm's own reason, and who gave it."""
    slurm.run("scontrol", "update", "NodeName=gpu-1", "State=DRAIN", "Reason=xid 79")
    try:
        project.declare(project.backend(), project.fleet(), half("gang", "true"))
        plan = project.plan(code=3)
        detail = [r["detail"] for rank in plan["unplaced"][0]["ranks"] for r in rank["rejections"]]
        assert any("drained: xid 79 [" in text for text in detail), detail
    finally:
        slurm.run("scontrol", "update", "NodeName=gpu-1", "State=RESUME")


def test_exit_codes_logs_and_the_end_of_a_gang(project, tmp_path):
    """Ranks end by themselves; the job ends with them, and the state knows how."""
    code = "echo rank $FLEETFORM_NODE_RANK; exit $((FLEETFORM_NODE_RANK * 7))"
    project.bring(half("gang", code), args=("--wait",), code=4)
    ranks = project.ranks("gang")
    assert [(r["state"], r["exit_code"]) for r in ranks.values()] == [("succeeded", 0), ("failed", 7)]
    assert project.logs("gang/1") == "rank 1\n"
    until(lambda: project.jobs("RUNNING", "COMPLETING") == [])
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}


def test_the_output_of_the_attempt_before_is_kept(project):
    """A retry goes to another node of the partition, in a job of its own."""
    job = task("job", 'echo "$SLURMD_NODENAME"; exit 5', resources={"gpu": 1}, retry={"max_attempts": 2})
    project.bring(job)
    until(lambda: project.ranks("job")[0]["state"] == "failed")
    first = project.ranks("job")[0]["node"]
    project.apply()
    until(lambda: [r["state"] for r in project.ranks("job").values()] == ["failed"])
    second = project.ranks("job")[0]["node"]
    assert {first, second} == {"gpu-0", "gpu-1"}
    assert (project.logs("job", "--previous"), project.logs("job")) == (f"{first}\n", f"{second}\n")
    project.no_changes()


def test_a_plan_is_saved_before_any_node_is_recorded(project):
    """And applied later: the nodes are looked at once more."""
    project.declare(project.backend(), project.fleet(), half("gang", "echo ran"))
    project.run("plan", "--out", "next.plan")
    project.run("apply", "next.plan", "--wait")
    assert project.logs("gang/0") == "ran\n"


def test_offline_the_recorded_nodes_are_planned_with(project):
    """Nothing is contacted. The second apply has seen all nodes; the first one only made their records."""
    project.bring(task("first", "true"), args=("--wait",))
    project.apply()
    project.declare(project.backend(), project.fleet(), task("first", "true"), half("gang", "true"))
    plan = project.plan("--offline", env={"SLURM_CONF": "/nowhere"})
    assert [r["node"] for r in plan["reservations"] if r["task"] == "gang"] == ["gpu-0", "gpu-1"]


def test_offline_the_nodes_that_nobody_asked_for_may_hold_a_task(project):
    """It is not said that the task can never fit."""
    project.declare(project.backend(), project.fleet(), half("gang", "true"))
    (refusal,) = project.plan("--offline", code=3)["unplaced"]
    assert refusal["code"] == "no-capacity"
    assert refusal["summary"].startswith("does not fit now")
    assert refusal["hint"] == "the nodes of fleet/gpu are known once its cluster is asked"
    rejections = [(r["target"], r["code"]) for r in refusal["ranks"][0]["rejections"]]
    assert rejections == [("backend/hpc", "offers-unknown")]


def test_a_wrong_partition_is_an_error_at_the_fleet(project):
    """It names those that there are."""
    project.declare(project.backend(), project.fleet(partition="gpuu"), half("gang", "true"))
    found = project.plan(code=1)["diagnostics"]
    known = [(d["code"], d["address"], d["hint"]) for d in found if d["severity"] == "error"]
    assert known == [("no-partition", "fleet/gpu", "there are: gpu")]


def test_commands_run_beside_a_rank(project, tmp_path):
    """Within its job, in its folder, with its variables."""
    project.bring(half("gang", hold(tmp_path / "up")))
    until(lambda: (tmp_path / "up").exists() and len((tmp_path / "up").read_text().split()) == 2)
    told = project.run(
        "exec", "gang/1", "--", "sh", "-c", "echo $FLEETFORM_NODE_RANK $SLURM_JOB_ID"
    ).out.split()
    assert told[0] == "1"
    assert told[1].isdigit()
    project.run("stop", "gang")


def test_content_of_a_volume_that_vanished_is_drift(project):
    """Filesystems of clusters purge old files. The volume is used again once somebody says so."""
    data = {"type": "volume", "name": "data", "backend": "hpc", "size": "1GB", "prevent_destroy": False}
    project.declare(project.backend(), project.fleet(), data)
    project.apply()
    project.no_changes()
    (folder,) = (path for path in (project.path / "shared").glob("*/volumes/*") if path.is_dir())
    folder.with_name(f"{folder.name}.kept").unlink()
    (drift,) = project.plan()["drift"]
    assert (drift["address"], drift["change"]) == ("volume/data", "gone")
    subprocess.run(drift["detail"].split("`")[1].split(), check=True)
    project.no_changes()
    folder.rmdir()
    (drift,) = project.plan()["drift"]
    assert drift["detail"] == f"its data are gone: {folder} is no folder"


def test_volumes_are_folders_of_the_shared_filesystem(project):
    """They outlive tasks; each rank has its own."""
    data = {"type": "volume", "name": "data", "backend": "hpc", "count": 2, "size": "1GB"}
    data["prevent_destroy"] = False
    mounts = ["data-${{ node_rank }}:/data"]
    write = half("write", 'echo "$FLEETFORM_NODE_RANK" >"$FLEETFORM_VOLUME_DATA/rank"', volumes=mounts)
    project.bring(data, write, args=("--wait",))
    read = half("read", 'cat "$FLEETFORM_VOLUME_DATA/rank"', volumes=mounts)
    project.bring(data, write, read, args=("--wait",))
    assert [project.logs(f"read/{rank}") for rank in (0, 1)] == ["0\n", "1\n"]
    project.run("destroy", "--auto-approve")
    assert [p.name for p in (project.path / "shared").iterdir()] == ["bin"]


def test_startup_order_and_stop_criteria_hold(project, tmp_path):
    """The master begins first; once it is done, the task is."""
    first = f"date +%s%N >{tmp_path}/$FLEETFORM_NODE_RANK"
    wait = f"[ $FLEETFORM_NODE_RANK = 0 ] && until [ -e {tmp_path}/1 ]; do sleep 0.05; done"
    gang = half(
        "gang",
        first,
        wait + " || sleep 600",
        startup_order="master-first",
        stop_criteria="master-done",
    )
    project.bring(gang, args=("--wait",))
    times = [int((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    assert times[0] < times[1]
    assert project.status()["tasks"][0]["state"] == "succeeded"


def test_hard_limits_are_refused_by_the_plan(project, slurm):
    """Slurm confines ranks itself, and nobody can promise how. An image is another matter."""
    jobs = project.jobs()  # of other tests, which have ended
    project.declare(project.backend(), project.fleet(), half("gang", "true", isolation="hard"))
    refused = project.plan(code=3)["unplaced"][0]
    details = {r["detail"] for rank in refused["ranks"] for r in rank["rejections"]}
    assert any("backend hpc cannot promise to hold a rank to its blocks" in detail for detail in details), (
        details
    )
    done = project.apply(code=3)
    assert "leave out `isolation`" in done.out + done.err
    assert project.run("state", "list").out == ""
    assert project.jobs() == jobs
    project.declare(project.backend(), project.fleet(), half("gang", image="docker.io/library/busybox"))
    assert project.plan()["unplaced"] == []
