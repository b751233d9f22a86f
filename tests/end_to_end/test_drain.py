"""`drain`, `undrain` and `apply --replace node/…`, by the installed command on this machine."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import fleet, hold, task, until, volume

SMALL = {"resources": {"cpu": 1}}


def node(project, name):
    return next(n for n in project.status()["nodes"] if n["name"] == name)


def drift_free(project):
    assert "sound" in project.run("state", "check").out


@pytest.mark.slow
def test_a_volume_is_made_anew_where_its_content_may_be_lost(project):
    """Its tasks run again on the empty one; a protected one is refused, and so is what is not there."""
    write = task(
        "job",
        "touch $FLEETFORM_VOLUME_DATA/left",
        volumes=["data:/data"],
    )
    project.declare(fleet(), volume(prevent_destroy=True), write)
    project.apply("--wait")
    assert (project.data("data") / "left").exists()
    refused = project.apply("--replace", "volume/data", code=1).err
    assert "volume/data would be made anew (`--replace`), empty, but its `prevent_destroy` is true" in refused
    assert "set `prevent_destroy: false` if its content may be lost" in refused
    assert "did you mean `volume/data`" in project.apply("--replace", "volume/dat", code=1).err
    project.declare(fleet(), volume(prevent_destroy=False), write)
    project.apply()
    ids = project.ids("--replace", "volume/data")
    assert {"delete:volume/data", "create:volume/data"} <= set(ids)
    project.apply("--replace", "volume/data")
    assert not (project.data("data") / "left").exists()
    project.no_changes()


@pytest.mark.slow
def test_a_drained_node_finishes_what_runs_and_gets_nothing_new(project):
    """It says so in status, plans, explain and the history; the state keeps it through pull and push."""
    up = project.path / "up"
    first = task("first", hold(up), instances=["gpu-0"], **SMALL)
    project.declare(fleet(nodes=2), first)
    project.apply()
    until(up.exists)
    done = project.run("drain", "node/gpu-0", "--reason", "bad  NIC")
    assert done.out.startswith("node/gpu-0 takes no new work: drained since 20")
    assert done.out.endswith("Z: bad NIC; rank/first-0 goes on\n")
    assert project.run("drain", "gpu-0").out.startswith("node/gpu-0 is drained since 20")
    found = node(project, "gpu-0")
    assert (found["state"], found["drained"]["reason"]) == ("draining", "bad NIC")
    assert node(project, "gpu-1")["drained"] is None
    assert f"draining since {found['drained']['since']}: bad NIC" in project.run("status").out
    explained = project.run("explain", "node/gpu-0", "--json").json
    assert (explained["state"], "bad NIC" in explained["state_reason"]) == ("draining", True)
    assert "bad NIC" in project.run("plan").err
    project.declare(fleet(nodes=2, tags={"a": "b"}), first, task("second", "true", **SMALL))
    project.apply()
    assert project.ranks("second")[0]["node"] == "gpu-1"
    assert project.ranks("first")[0]["state"] == "running"
    assert node(project, "gpu-0")["drained"] == found["drained"]  # its tags were changed meanwhile
    pulled = project.run("state", "pull").out
    (project.path / "state.json").write_text(pulled)
    project.run("undrain", "gpu-0", "--reason", "new NIC")
    assert node(project, "gpu-0")["drained"] is None
    project.run("state", "push", "--force", "state.json")
    assert node(project, "gpu-0")["drained"] == found["drained"]
    history = project.run("state", "history", "node/gpu-0", "--json").json["operations"]
    said = [(e["op"], e["reason"]) for e in history if e["op"] in ("drain", "undrain")]
    assert said == [("undrain", "new NIC"), ("drain", "bad NIC")]
    drift_free(project)
    broken = json.loads(pulled)
    record = next(r for r in broken["records"] if r["address"] == "node/gpu-0")
    record["outputs"]["drained"] = True
    (project.path / "state.json").write_text(json.dumps(broken))
    assert "does not say since when" in project.run("state", "push", "--force", "state.json", code=1).err
    project.run("stop", "first")


def test_what_cannot_be_drained_is_said(project):
    project.declare(fleet(nodes=1))
    assert "there is no state" in project.run("drain", "gpu-0", code=1).err
    project.apply()
    assert "did you mean `gpu-0`?" in project.run("drain", "gpu-0", "gpu-9", code=1).err
    assert node(project, "gpu-0")["drained"] is None
    assert project.run("undrain", "gpu-0").out == "node/gpu-0 is not drained\n"
    assert "200 characters" in project.run("drain", "gpu-0", "--reason", "x" * 201, code=1).err
    assert "fleetform drain NODE" in project.run("cordon", "gpu-0", code=1).err
    assert "fleetform undrain NODE" in project.run("uncordon", "gpu-0", code=1).err


def test_a_plan_that_was_saved_before_a_node_was_drained_is_refused(project):
    """It might give the node work."""
    project.declare(fleet(nodes=1))
    project.apply()
    project.declare(fleet(nodes=1), task("job", "true", **SMALL))
    project.run("plan", "--out", "a.plan")
    project.run("drain", "gpu-0")
    assert "the state has changed" in project.run("apply", "a.plan", code=1).err


@pytest.mark.slow
def test_a_node_is_made_anew_with_what_runs_on_it(project):
    """By `--replace` or by a saved plan; the plan shows the ranks that restart."""
    up = project.path / "up"
    project.declare(fleet(nodes=2), task("job", hold(up), instances=["gpu-1"], **SMALL))
    project.apply()
    until(up.exists)
    project.run("drain", "gpu-1")
    plan = project.plan("--replace", "node/gpu-1")
    assert [a["id"] for a in plan["actions"] if a["address"].startswith(("node/", "rank/"))] == [
        "delete:rank/job-0",
        "delete:node/gpu-1",
        "create:node/gpu-1",
        "create:rank/job-0",
    ]
    up.unlink()
    project.run("plan", "--replace", "node/gpu-1", "--out", "a.plan")
    project.apply("a.plan")
    until(up.exists)
    assert project.ranks("job")[0]["attempt"] == 2
    assert node(project, "gpu-1")["drained"] is None
    project.no_changes()
    project.run("stop", "job")
    assert "delete:node/gpu-0" in project.ids("--replace", "node/gpu-0")
    project.apply("--replace", "node/gpu-0")
    assert "did you mean `node/gpu-0`" in project.apply("--replace", "node/gpu-7", code=1).err
    assert "launched node" in project.plan("--replace", "node/x", code=1)["diagnostics"][0]["summary"]
