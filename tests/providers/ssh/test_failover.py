"""EC2 runs out of capacity in the middle of a cluster task: its nodes and ranks go elsewhere.

If there is no other place, the task waits until there is room.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.ec2.proxy import Line
from tests.providers.ec2.run import REGION, SECRETS, provider
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.providers.ssh.test_instances import Account, Cloud, backend
from tests.support.cli import PATIENCE, fleet, task, until

pytestmark = pytest.mark.slow

RANKS = 4
FIRST, SECOND = f"{REGION}a", f"{REGION}b"
MADE = 2
"""Instances that the first zone still has."""


@pytest.fixture
def cloud(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "cloud"
    folder.mkdir()
    made = Cloud(folder, RANKS + MADE)
    with made:
        yield made
    assert not made.faults


def test_all_of_a_cluster_end_up_in_the_second_zone(cloud: Cloud, tmp_path: Path) -> None:
    """None stays behind in the first zone, the report says so, and nothing is left to do."""
    project = Account(tmp_path / "project")
    project.path.mkdir()
    gang = task("meet", f"python3 -c {shlex.quote(RENDEZVOUS)}", nodes=RANKS)
    nodes = fleet("gpu", "0..4", backends=["aws"], placement="cluster", resources={"cpu": 2})
    left = [MADE]

    def first_zone(asked: dict[str, str]) -> str | None:
        if asked["Action"] != "RunInstances" or asked["Placement.AvailabilityZone"] != FIRST:
            return None
        left[0] -= 1
        return None if left[0] >= 0 else "500=InsufficientInstanceCapacity"

    with Line(cloud.port) as line:
        line.rules.append(first_zone)
        project.declare(backend(line.port), nodes, gang)
        assert {r["zone"] for r in project.plan()["reservations"]} == {FIRST}
        done = project.apply("--json", "--wait")
        assert {n["zone"] for n in project.status()["nodes"]} == {SECOND}
        assert f"{RANKS} ranks agree on" in project.logs("meet", "--rank", "0")
        project.no_changes()
        project.run("state", "check")

    events = [json.loads(text) for text in done.out.splitlines()]
    (moved,) = [e for e in events if e["event"] == "failover"]
    assert moved["addresses"] == [f"node/gpu-{i}" for i in range(RANKS)]
    assert (moved["refused"].split()[-1], moved["next"].split()[-1]) == (FIRST, SECOND)
    assert "InsufficientInstanceCapacity" in moved["error"]
    (summary,) = [e for e in events if e["event"] == "summary"]
    (said,) = summary["elsewhere"]
    assert said["addresses"] == moved["addresses"]
    assert SECOND in said["note"]
    assert FIRST in said["note"]

    lineage = project.run("state", "pull").json["lineage"]
    region = provider(cloud.port, tmp_path, lineage)._account.region(REGION)
    zones = [i.zone for i in region.instances({}) if not i.gone]
    assert zones == [SECOND] * RANKS
    project.declare(backend(cloud.port), nodes, gang)
    project.run("destroy", "--auto-approve")
    assert [i for i in region.instances({}) if not i.gone] == []


def test_who_waits_for_capacity_starts_once_there_is_room(cloud: Cloud, tmp_path: Path) -> None:
    """`apply --wait` goes on when the clouds have none of what was planned. What it got of it goes back."""
    project = Account(tmp_path / "project")
    project.path.mkdir()
    gang = task(
        "meet", f"python3 -c {shlex.quote(RENDEZVOUS)}", nodes=2, retry={"on_events": ["no-capacity"]}
    )
    nodes = fleet("gpu", "0..2", backends=["aws"], placement="cluster", resources={"cpu": 2})
    left = [1]
    full = [True]

    def one_ever(asked: dict[str, str]) -> str | None:
        if asked["Action"] != "RunInstances" or not full[0]:
            return None
        here = asked["Placement.AvailabilityZone"] == FIRST
        left[0] -= here
        return None if here and left[0] >= 0 else "500=InsufficientInstanceCapacity"

    with Line(cloud.port) as line, (project.path / "said").open("w") as said:
        line.rules.append(one_ever)
        project.declare(backend(line.port), nodes, gang)
        follower = project.start("apply", "--auto-approve", "--wait", "--parallelism", "1", stderr=said)
        until(lambda: "task/meet is tried again in" in (project.path / "said").read_text())
        lineage = project.run("state", "pull").json["lineage"]
        region = provider(cloud.port, tmp_path, lineage)._account.region(REGION)
        assert [i for i in region.instances({}) if not i.gone] == []
        assert project.status()["nodes"] == []
        full[0] = False
        out, _ = follower.communicate(timeout=PATIENCE)
        assert follower.returncode == 0, out
        assert out.endswith("task/meet: succeeded\n")
        assert "2 ranks agree on" in project.logs("meet", "--rank", "0")
        assert len([i for i in region.instances({}) if not i.gone]) == 2
        project.no_changes()
        project.run("destroy", "--auto-approve")
    assert (
        "task/meet is tried again in 15 s: no capacity for node/gpu-" in (project.path / "said").read_text()
    )
