"""Fields that change in place, with a real Slurm: see `tests/end_to_end/test_in_place.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.providers.slurm.cluster import Cluster
from tests.providers.slurm.daemons import Daemons, impediment
from tests.support.changing import resized_at_work, times_at_work
from tests.support.cli import hold, task, until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(slurm, tmp_path):
    made = Cluster(tmp_path, slurm)
    yield made
    made.clean_up()


def test_the_new_times_of_a_rank_are_at_work(project, tmp_path):
    def declare(job):
        project.declare(project.backend(), project.fleet(), job)

    times_at_work(project, declare, tmp_path / "up")


def shim(daemons, folder, program, line):
    """What a command of Slurm does first; returns the file `asked`, where it may write."""
    (folder / "bin").mkdir()
    real = daemons.run("sh", "-c", f"command -v {program}").strip()
    file = folder / "bin" / program
    file.write_text(f'#!/bin/sh\n{line}\nexec {real} "$@"\n')
    file.chmod(0o755)
    daemons.env["PATH"] = f"{folder}/bin:{daemons.env['PATH']}"
    return folder / "asked"


def limit(project):
    """The time of the only job, in minutes."""
    return project.daemons.run("squeue", "-h", "-o", "%l").strip()


def test_a_longer_max_duration_lengthens_the_job(project, tmp_path):
    """Or the change is refused with the way out, if Slurm would end the rank before its new time."""
    job = task("job", hold(tmp_path / "up"), max_duration="10m")
    project.bring(job)
    until((tmp_path / "up").exists)
    assert limit(project) == "16:00"
    project.bring({**job, "max_duration": "2h"})
    assert limit(project) == "2:06:00"
    project.bring({**job, "max_duration": "1h"})
    assert limit(project) == "2:06:00"
    project.bring({**job, "max_duration": "1h", "stop_duration": "1d"})
    assert limit(project) == "1-01:05:00"
    # An operator may do all. A user is refused, as this one is.
    path = project.daemons.env["PATH"]
    refused = '[ "$1" != update ] || { echo "Access/permission denied" >&2; exit 1; }'
    shim(project.daemons, tmp_path, "scontrol", refused)
    try:
        done = project.bring({**job, "max_duration": "3d"}, code=4)
    finally:
        project.daemons.env["PATH"] = path
    number = project.daemons.run("squeue", "-h", "-o", "%A").strip()
    assert f"Slurm would end job {number} before the new times of job-0" in done.out + done.err
    assert f"`scontrol update JobId={number} TimeLimit=4326`" in done.out + done.err
    assert project.ranks("job")[0]["state"] == "running"
    assert project.plan()["actions"][0]["because"] == ["max_duration", "stop_duration"]


def test_a_rank_that_waits_in_the_queue_learns_its_new_limit(project, slurm, tmp_path):
    """Its host applies it once the rank begins."""
    others = ("--exclusive", "-N2", "-J", "theirs", "--output=/dev/null")
    number = slurm.run("sbatch", "--parsable", *others, "--wrap", "sleep 600").strip()
    until(lambda: slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").strip() == number)
    job = task("job", hold(tmp_path / "up"), queue=True)
    project.bring(job)
    assert project.jobs("PENDING") == ["job"]
    project.bring({**job, "max_duration": "1s"})
    slurm.run("scancel", number)
    until(lambda: project.ranks("job")[0]["state"] == "failed")
    assert "max_duration reached" in project.run("status").out


def test_a_task_that_was_refused_may_wait_from_now_on(project, slurm, tmp_path):
    """Without `queue`, the plan refuses it; with it, its job waits."""
    number = slurm.run(
        "sbatch", "--parsable", "--exclusive", "-N2", "--output=/dev/null", "--wrap", "sleep 600"
    ).strip()
    until(lambda: slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").strip() == number)
    job = task("job", hold(tmp_path / "up"))
    project.bring(job, code=3)
    assert project.jobs("PENDING") == []
    project.bring({**job, "queue": True})
    assert project.jobs("PENDING") == ["job"]
    project.run("stop", "job")


@pytest.fixture
def other():
    """A cluster with two partitions, whose nodes have a feature."""
    if reason := impediment():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        made = Daemons(Path(name), features="ib", partitions=("PartitionName=other Nodes=gpu-[0-1]",))
        try:
            made.up()
            yield made
        finally:
            made.down()


def test_the_next_job_is_asked_for_as_the_fleet_says_now(other, tmp_path):
    """A running one stays as it is."""
    asked = shim(other, tmp_path, "sbatch", f'echo "$*" >>{tmp_path}/asked')
    project = Cluster(tmp_path, other)
    first, second = (task(name, hold(tmp_path / name), resources={"cpu": 1}) for name in ("first", "second"))
    project.declare(project.backend(), project.fleet(account="old", qos="low"), first)
    project.apply()
    until((tmp_path / "first").exists)
    changed = {"partition": "other", "account": "new", "constraint": "ib", "qos": "high"}
    project.declare(project.backend(), project.fleet(**changed), first, second)
    project.apply()
    until((tmp_path / "second").exists)
    told = other.run("squeue", "-h", "-o", "%j %P %a %f")
    jobs = {line.partition("-ff-")[0]: line.split()[1:] for line in told.splitlines()}
    assert jobs == {"first": ["gpu", "old", "(null)"], "second": ["other", "new", "ib"]}
    # Without its accounting, Slurm knows no quality of service: it was asked for one.
    assert [w for w in asked.read_text().split() if "--qos" in w] == ["--qos=low", "--qos=high"]
    project.clean_up()


def test_ranks_come_and_go_and_the_others_run_on(project):
    """A new rank is a job of its own."""
    resized_at_work(project, lambda job: project.declare(project.backend(), project.fleet(), job))
