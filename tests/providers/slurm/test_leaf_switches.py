"""Sixteen nodes below four leaf switches: gangs that stay below one, and random worlds.

`FLEETFORM_SEEDS=1000,1300` uses other worlds than those in CI. In each world, Slurm grants at once, and in
the same place, what the plan places; what the plan refuses for lack of room would have had to wait.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.slurm.cluster import Cluster
from tests.providers.slurm.daemons import LEAF, Daemons, impediment
from tests.support.cli import task

pytestmark = pytest.mark.slow
WORLDS = range(*map(int, os.environ.get("FLEETFORM_SEEDS", "0,4").split(",")))


@pytest.fixture(scope="module")
def sixteen() -> Iterator[Daemons]:
    """The cluster."""
    if reason := impediment():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        made = Daemons(Path(name), 16)
        try:
            made.up()
            yield made
        finally:
            made.down()


@pytest.fixture
def project(sixteen: Daemons, tmp_path: Path) -> Iterator[Cluster]:
    """A project on it; it is idle afterwards."""
    made = Cluster(tmp_path, sixteen)
    yield made
    made.clean_up()
    sixteen.clear()


def leaf(node: str) -> int:
    return int(node.rpartition("-")[2]) // LEAF


def occupy(slurm: Daemons, held: dict[str, int]) -> None:
    """Jobs of others, each with so many GPUs and CPUs of one node; returns when they run."""
    for node, gpus in held.items():
        shares = (
            f"--gres=gpu:h100:{gpus}",
            f"--cpus-per-task={gpus}",
            f"--mem={gpus * 1000}",
            "-N1",
            "-w",
            node,
        )
        slurm.run("salloc", "--no-shell", "-J", "theirs", *shares)


def test_a_gang_stays_below_one_switch(project, sixteen):
    """Though more nodes are free elsewhere; and is refused where no leaf has room, with the nearest."""
    occupy(sixteen, {f"gpu-{n}": 8 for n in (1, 5, 9)})
    four = task("four", "true", nodes=4, same="leaf")
    project.declare(project.backend(), project.fleet(), four)
    nodes = sorted(r["node"] for r in project.plan()["reservations"])
    assert {leaf(n) for n in nodes} == {3}
    occupy(sixteen, {"gpu-13": 1})
    refused = project.plan(code=3)["unplaced"][0]
    assert refused["code"] == "no-capacity"
    assert "3 found" in refused["summary"], refused["summary"]
    project.declare(project.backend(), project.fleet(same="leaf"), task("three", "true", nodes=3))
    project.apply("--wait")
    assert len({leaf(r["node"]) for r in project.ranks("three").values()}) == 1


@pytest.mark.parametrize("seed", WORLDS)
def test_what_is_planned_is_granted_at_once(project, sixteen, seed):
    """And a task that Slurm would queue is never said to fit."""
    chance = random.Random(seed)
    held = {n: chance.choice((1, 2, 4, 6, 8)) for n in sixteen.names if chance.random() < 0.5}
    occupy(sixteen, held)
    wanted = []
    for i in range(chance.randint(1, 3)):
        count = chance.randint(1, 5)
        shape = {"nodes": count, "resources": {"gpu": chance.choice((1, 2, 4, 8))}}
        level = {"same": "leaf"} if count > 1 and chance.random() < 0.5 else {}
        wanted.append(task(f"t{i}", "sleep 60", exclusive=False, spread="node", **shape, **level))
    project.declare(project.backend(), project.fleet(), *wanted)
    plan = project.run("plan", "--json", code=None).json
    placed: dict[str, list[str]] = {}
    for r in plan["reservations"]:
        placed.setdefault(r["task"], []).append(r["node"])
    refused = {u["task"] for u in plan["unplaced"]}
    project.apply("--allow-unplaced")
    found = sixteen.run("squeue", "-h", "-o", "%j|%T|%N|%b")
    jobs = {line.partition("-ff-")[0]: line.split("|")[1:3] for line in found.splitlines() if "-ff-" in line}
    assert {n: s for n, (s, _) in jobs.items()} == dict.fromkeys(placed, "RUNNING")
    for name, (_, nodes) in jobs.items():
        there = sixteen.run("scontrol", "show", "hostnames", nodes).split()
        assert sorted(there) == sorted(placed[name])
    for each in (t for t in wanted if t["name"] in refused and "same" not in t):
        shares = (
            f"--gres=gpu:h100:{each['resources']['gpu']}",
            f"--cpus-per-task={each['resources']['gpu']}",
        )
        memory = f"--mem={each['resources']['gpu'] * 1000}"
        asked = ("salloc", "--no-shell", "-I", "-N", str(each["nodes"]), "--ntasks-per-node=1", memory)
        sixteen.run(*asked, *shares, "-J", "probe", check=False)
        assert "probe" not in sixteen.run("squeue", "-h", "-t", "RUNNING", "-o", "%j")
