"""Declared GPUs that this machine lacks are a rehearsal, and all output says so."""

from dataclasses import replace

import pytest

from declarative.model.diagnostic import Severity
from declarative.planner.make import make_plan
from declarative.planner.offers import may_rehearse
from declarative.serve.latest_state import LatestState, Recorded
from declarative.serve.metrics import Metrics
from providers.local import machine
from tests.support.cli import Project, fleet, task, until
from tests.support.model import World, local_offer
from tests.support.model import project as declared
from tests.support.rounds import Clock, Here

GPUS = {"name": "gpu", "nodes": 2, "backends": ["local"], "resources": {"cpu": 2, "gpu": "H100:4"}}
CLOUD = {"name": "sky", "driver": "ec2", "regions": ["us-east-1"]}


def said(own, *fleets, world=None):
    """What a plan says of rehearsals, by address."""
    desired, world = declared(fleets=fleets), world or World()
    inventory = replace(world.inventory(desired), offers={"local": (local_offer(),)}, own_gpus=own)
    plan = make_plan(desired, world.state(), inventory, world.now)
    assert not [d for d in plan.diagnostics if d.severity is Severity.ERROR]
    return {d.address: d.summary for d in plan.diagnostics if d.code == "rehearsal"}


@pytest.mark.parametrize(
    ("own", "end"),
    [
        (None, "they may be a rehearsal"),
        ((), "are a rehearsal: it has none"),
        (("T4",) * 8, "are a rehearsal: it has 8 T4"),
        (("H100",) * 4, "are a rehearsal: it has 4 H100"),
        (("h100",) * 8, None),
    ],
)
def test_a_plan_names_gpus_that_the_machine_lacks(own, end):
    """Both nodes are on this machine, so their GPUs add up. If nobody looked, the plan says so, too."""
    found = said(own, GPUS)
    assert list(found) == ([] if end is None else ["fleet/gpu"])
    assert not end or found["fleet/gpu"].endswith(end)


def test_a_plan_without_changes_says_it_again():
    world, desired = World(), declared(fleets=[GPUS])
    inventory = replace(world.inventory(desired), offers={"local": (local_offer(),)})
    world.apply(make_plan(desired, world.state(), inventory, world.now))
    world.settle()
    assert list(said((), GPUS, world=world)) == ["fleet/gpu"]


def test_nodes_without_gpus_rehearse_nothing():
    assert said((), {**GPUS, "resources": {"cpu": 2}}) == {}


@pytest.mark.parametrize(("backends", "names"), [(["local"], ["fleet/gpu"]), (["sky"], [])])
def test_an_identity_counts_for_no_node_of_this_machine(backends, names):
    fleet_ = {"name": "gpu", "nodes": "0..2", "backends": backends, "resources": {"cpu": 2}}
    desired = declared(backends=[CLOUD], fleets=[{**fleet_, "identity": "ml-nodes"}])
    world = World()
    plan = make_plan(desired, world.state(), world.inventory(desired), world.now)
    found = {d.address: d.summary for d in plan.diagnostics if d.code == "rehearsal"}
    assert list(found) == names
    assert all("`identity: ml-nodes` does not count on this machine" in text for text in found.values())


def test_the_machine_is_looked_at_only_where_that_matters():
    world = World()
    elsewhere = declared(backends=[CLOUD], fleets=[{**GPUS, "backends": ["sky"]}])
    assert not may_rehearse(elsewhere, world.state())
    assert not may_rehearse(declared(fleets=[{"name": "cpu", "nodes": 1}]), world.state())
    assert may_rehearse(declared(fleets=[GPUS]), world.state())


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a stand-in for `nvidia-smi` first on the path."""
    machine.gpus.cache_clear()
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(*lines):
        path = folder / "nvidia-smi"
        path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
        path.chmod(0o755)

    yield install
    machine.gpus.cache_clear()


def test_the_machines_gpus_are_those_that_its_tool_lists(tool):
    tool(*(f"echo '{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 81559, 0'" for i in range(2)))
    assert machine.gpus() == ("H100", "H100")


def test_a_tool_that_fails_tells_nothing(tool):
    tool("echo NVIDIA-SMI has failed", "exit 9")
    assert machine.gpus() is None


@pytest.mark.slow
def test_a_loop_tells_how_gpus_are_used(tmp_path, tool):
    """Of tasks with a `utilization_policy`, as their ranks sample it, and as long as they run."""
    tool(
        "case $* in *utilization*) echo '0, GPU-0, 37'; echo '1, GPU-1, 90' ;; *)",
        *(f"echo '{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 81559, 0'" for i in range(2)),
        "esac",
    )
    project = Project(tmp_path)
    policy = {"utilization_policy": {"min_gpu_utilization": 10, "time_window": "5m"}}
    train = {**task("train", "exec sleep 1000", nodes=1, resources={"gpu": "H100:1"}), **policy}
    shape = {"cpu": 2, "memory": "1GB", "gpu": "H100:2"}
    project.declare(fleet(backends=["local"], nodes=1, blocks=2, resources=shape), train)
    here = Here(tmp_path, Clock())
    seen = LatestState(lambda: "", lambda: Recorded(view=here.seen()), here.clock, lambda: 30.0)
    metrics = Metrics(seen, loop=True)
    try:
        here.step()
        until(lambda: (found := here.step(1)).gpus and found)
        metrics.observe(here.step(1))
        assert b'fleetform_gpu_utilization_ratio{gpu="0",node="gpu-0",uuid="GPU-0"} 0.37\n' in metrics.text()
        project.run("stop", "train")
        metrics.observe(here.step(1))
        assert b"fleetform_gpu_utilization_ratio{" not in metrics.text()
    finally:
        here.close()
        project.clean_up()


def test_plan_offers_and_status_say_so(project, tool):
    """As text and as JSON; offline the machine is not looked at."""
    shape = {"cpu": 2, "memory": "1GB", "gpu": "H100:2"}
    project.declare(fleet(backends=["local"], nodes=1, resources=shape))
    tool("echo '0, GPU-1, Tesla T4, 15360, 0'")
    whole = "the GPUs of fleet/gpu on this machine (H100) are a rehearsal: it has 1 T4"
    unseen = "it was not looked whether the GPUs of fleet/gpu on this machine (H100) are there"

    def told(*command):
        done = project.run(*command)
        return done.err, [d["summary"] for d in project.run(*command, "--json").json["diagnostics"]]

    for command in (("plan",), ("offers", "gpu")):
        text, data = told(*command)
        assert whole in " ".join(text.split()).replace(" | ", " ")
        assert data == [whole]
    text, data = told("plan", "--offline")
    assert [d.partition(": ")[0] for d in data] == [unseen]
    project.apply()
    status = project.run("status")
    assert whole in status.err
    assert "its GPUs are a rehearsal" in status.out
    (node,) = project.run("status", "--json").json["nodes"]
    assert node["rehearsal"] is True
    (node,) = project.run("status", "--json", "--offline").json["nodes"]
    assert node["rehearsal"] is None
