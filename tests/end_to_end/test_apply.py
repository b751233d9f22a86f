"""From YAML to real ranks and to their removal, by the installed command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli import fleet, free_port, lines, on_terminal, task, volume

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.mark.slow
def test_quickstart(project):
    """The whole life of the example: planned, run, idle, nothing to do, destroyed but for its volumes."""
    for file in QUICKSTART.glob("*.yaml"):
        shutil.copy(file, project.path)
    port = ("--var", f"port={free_port()}")
    planned = project.run("plan", *port).out
    assert "[bandwidth-0 bandwidth-0]" in planned
    assert "Plan: 10 to create, 0 to update, 0 to delete, 0 to replace." in planned
    assert not (project.path / ".fleetform").exists()

    applied = project.apply("--wait", *port)
    assert "Apply complete: 10 created." in applied.out
    assert applied.out.endswith("task/bandwidth: succeeded\n")
    assert "0 | rank 0 received" in project.logs("bandwidth")
    assert "rank 1 sent" in project.logs("bandwidth/1")
    for rank in (0, 1):
        assert lines(project.data(f"data-{rank}") / "bandwidth.txt")[0].startswith(f"rank {rank} ")

    assert project.busy() == {"pair-0": 0, "pair-1": 0}
    plan = project.run("plan", "--detailed-exitcode", *port)
    assert plan.out.endswith("\n\nNo changes. Everything is as declared.\n")

    destroyed = project.run("destroy", "--auto-approve", *port)
    assert "Destroy complete: 4 deleted." in destroyed.out
    assert "Kept, because of `prevent_destroy`: volume/data-0, volume/data-1.\n" in destroyed.out
    assert list((project.local / "nodes").iterdir()) == []
    assert project.run("state", "list").out == "volume/data-0\nvolume/data-1\n"

    # Destroy, then plan: as the first plan was, but for the protected volumes.
    again = project.plan(*port)
    assert again["summary"] == {
        "create": 8,
        "update": 0,
        "delete": 0,
        "replace": 0,
        "restarts": 0,
        "stops": 0,
    }


@pytest.mark.slow
def test_unprotected_volumes_go(project):
    """With `prevent_destroy: false` declared, nothing is left, and nothing is made for it again."""
    docs = [fleet(), task("job", "echo kept > $FLEETFORM_VOLUME_DATA/x", volumes=["data:/data"])]
    project.declare(*docs, {**volume(), "prevent_destroy": True})
    project.apply("--wait")
    _, screen = on_terminal(project, "destroy", answer="no\n")
    assert "Protected, and kept: volume/data.\r\nDestroy this in project? Only `yes`" in screen
    kept = project.run("destroy", "--auto-approve")
    assert "Kept, because of `prevent_destroy`: volume/data.\n" in kept.out
    assert lines(project.data("data") / "x") == ["kept"]

    assert "write `prevent_destroy: false` in their fleets and volumes, and destroy again" in kept.out
    project.declare(*docs, volume())
    gone = project.run("destroy", "--auto-approve")
    assert "delete" in gone.out
    assert "Kept" not in gone.out
    assert [p for p in project.local.rglob("*") if p.is_file()] == []
    assert project.run("state", "list").out == ""
    assert project.run("destroy", "--auto-approve").out == "Nothing to destroy.\n"


@pytest.mark.slow
def test_what_is_declared_now_is_what_destroy_leaves(project):
    """Also protection that was never applied, of volumes and nodes; what is not declared is as recorded."""
    project.declare(fleet(), volume(), volume("old", prevent_destroy=True))
    project.apply()
    project.declare(fleet(prevent_destroy=True), volume(prevent_destroy=True))
    kept = project.run("destroy", "--auto-approve", "--json").events[-1]
    assert kept == {"event": "kept", "addresses": ["node/gpu-0", "volume/data", "volume/old"]}
    project.declare(fleet(), volume(), volume("old"))
    assert project.run("destroy", "--auto-approve", "--json").events[-1]["addresses"] == []
    assert project.run("state", "list").out == ""


def test_the_example_for_ec2_is_planned_without_an_account(project):
    """What it shows is what a newcomer sees first of clouds: places, prices, blocks."""
    for file in (QUICKSTART.parent / "ec2").iterdir():
        shutil.copy(file, project.path)
    planned = project.run("plan", "--offline").out
    assert "instance_type: p5.48xlarge" in planned
    assert "node/gpu-3  [0-7 train-3]  8/8 busy" in planned
    assert "Prices of aws as of 2" in planned
    assert "Plan: 20 to create, 0 to update, 0 to delete, 0 to replace." in planned


def test_a_job_writes_few_lines_for_many_volumes(project):
    project.declare(volume(count=40, prevent_destroy=False))
    lines = project.apply().err.splitlines()
    assert [line.partition(" (")[0] for line in lines if line.startswith("volume/")] == [
        "volume/data-[0-39]: creating 40…",
        "volume/data-[0-39]: 40 created",
    ]
    project.run("destroy", "--auto-approve")
