"""Faults that people and administrators cause to a cluster and its jobs get the right message, with a real
Slurm.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from declarative.provider import Config, TransientError
from providers.slurm import Slurm
from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons, impediment
from tests.providers.slurm.test_kills import ran
from tests.support.cli import hold, until

pytestmark = pytest.mark.slow
LINES = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "EnforcePartLimits=ALL",
    "PartitionName=high Nodes=gpu-[0-1] PriorityTier=10",
    "PartitionName=short Nodes=gpu-[0-1] MaxTime=10",
    "PartitionName=narrow Nodes=gpu-[0-1] MaxNodes=1",
)


@pytest.fixture(scope="module")
def strict() -> Iterator[Daemons]:
    """Two nodes in partitions that preempt, or that have limits."""
    if reason := impediment():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        made = Daemons(Path(name), partitions=LINES)
        try:
            made.up()
            yield made
        finally:
            made.down()


@pytest.fixture
def project(strict: Daemons, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, strict)
    yield made
    made.clean_up()
    strict.clear()


def runs(project: Cluster) -> str:
    """The id of the job of a gang that runs."""
    project.bring(half("gang", hold(project.path / "gang")))
    until(lambda: ran(project, "gang") == 2)
    return project.daemons.run("squeue", "-h", "-t", "RUNNING", "-o", "%A").strip()


def test_a_preempted_job_is_lost_and_says_why(project, strict):
    """And does not begin again by itself: that is for `retry` to say."""
    number = runs(project)
    theirs = ("-p", "high", "-N1", "-w", "gpu-0", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600")
    strict.run("sbatch", *theirs)
    until(lambda: {r["state"] for r in project.ranks("gang").values()} == {"lost"})
    assert f"its job was preempted (job {number}, PREEMPTED" in project.run("status").out
    assert project.ids() == []


def test_a_job_that_is_requeued_runs_nothing_twice(project, strict):
    """An administrator may requeue also what asked not to be. It does not wait in the queue for nothing."""
    number = runs(project)
    strict.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    strict.run("scontrol", "requeue", number)
    until(lambda: {r["state"] for r in project.ranks("gang").values()} == {"lost"})
    assert f"its job was requeued (job {number})" in project.run("status").out
    until(lambda: project.jobs("COMPLETING") == [])
    assert project.jobs("RUNNING", "PENDING") == []
    assert f"its job was requeued (job {number})" in project.run("status").out
    assert ran(project, "gang") == 2


def test_a_node_that_is_drained_under_a_rank_keeps_it(project, strict):
    """It takes no more work, and says why."""
    runs(project)
    strict.run("scontrol", "update", "NodeName=gpu-1", "State=DRAIN", "Reason=fan")
    try:
        assert "drained: fan [" in project.run("status").out or "draining: fan [" in project.run("status").out
        assert {r["state"] for r in project.ranks("gang").values()} == {"running"}
        project.run("stop", "gang")
    finally:
        strict.run("scontrol", "update", "NodeName=gpu-1", "State=RESUME")


@pytest.mark.parametrize(
    ("partition", "more", "said"),
    [
        ("short", {"max_duration": "2h"}, "give the task a `max_duration` within the partition's MaxTime"),
        ("narrow", {}, "the partition allows fewer nodes"),
    ],
)
def test_limits_of_a_partition_are_told(project, partition, more, said):
    project.declare(project.backend(), project.fleet(partition=partition), half("gang", "true", **more))
    done = project.run("apply", "--auto-approve", code=None)
    assert done.code not in (0, None)
    assert said in done.out + done.err, done.out + done.err
    assert project.jobs("RUNNING", "PENDING") == []


def test_a_munge_that_is_out_of_step_is_told(strict, tmp_path, monkeypatch):
    """The caller's munged first has another key than the controller's, and then is missing."""
    with tempfile.TemporaryDirectory(prefix="ff-munge-") as name:
        (key := Path(name) / "key").write_bytes(bytes(1024))
        key.chmod(0o600)
        places = [f"--{k}={name}/{k}" for k in ("socket", "key-file", "pid-file", "log-file", "seed-file")]
        key.rename(f"{name}/key-file")
        strict.run("munged", "--force", *places)
        text = strict.conf.read_text().replace(f"{strict.folder}/munge.sock", f"{name}/socket")
        (Path(name) / "slurm.conf").write_text(text)
        (Path(name) / "gres.conf").write_text((strict.folder / "gres.conf").read_text())
        monkeypatch.setenv("SLURM_CONF", f"{name}/slurm.conf")
        options = {"root": str(tmp_path / "shared")}
        config = Config(backend="hpc", project_dir=tmp_path, lineage="x", options=options)
        try:
            with pytest.raises(TransientError, match="closed the connection") as found:
                Slurm(config).inventory()
            assert "munge" in str(found.value.hint)
        finally:
            strict.run("munged", "--stop", f"--socket={name}/socket")
        with pytest.raises(TransientError, match="cannot authenticate us"):
            Slurm(config).inventory()
