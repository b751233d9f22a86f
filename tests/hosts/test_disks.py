"""Volumes of EC2 on its instances (moto's, with machines behind them), by the installed command."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import fleet, task, volume
from tests.cloud_ec2.run import REGION, SECRETS, ZONE, provider
from tests.hosts import disks
from tests.hosts.test_gangs import RENDEZVOUS
from tests.hosts.test_instances import Account, Cloud, backend

pytestmark = pytest.mark.slow


@pytest.fixture
def able(allowed: None) -> None:
    reason = disks.impediment()
    if reason:
        pytest.skip(reason)


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Cloud]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    folder.mkdir()
    cloud = Cloud(folder, **options)
    with cloud:
        yield cloud
    assert not cloud.faults


@pytest.fixture
def sudo() -> None:
    if not shutil.which("sudo"):
        pytest.skip("users who are not root need sudo")


@pytest.fixture
def cloud(able: None, sudo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    yield from made(tmp_path / "cloud", monkeypatch, count=5)


@pytest.fixture
def project(tmp_path: Path) -> Account:
    folder = tmp_path / "project"
    folder.mkdir()
    return Account(folder)


def data(**more: Any) -> dict[str, Any]:
    place = {"backend": "aws", "region": REGION, "availability_zone": ZONE}
    return volume("data", **{**place, "size": "1GB", **more})


def volumes(cloud: Cloud, tmp_path: Path, project: Account) -> dict[str, str]:
    """EC2's own count of this project's volumes: the id by the address."""
    lineage = project.run("state", "pull").json["lineage"]
    found = provider(cloud.port, tmp_path, lineage).inventory()
    return {str(t.address): str(t.outputs["id"]) for t in found if t.address.kind == "volume"}


def test_the_whole_story(cloud: Cloud, project: Account, tmp_path: Path) -> None:
    """Four ranks with a volume each meet, write and end; what they wrote is there for the next task."""
    nodes = fleet("gpu", "0..4", backends=["aws"], placement="cluster", resources={"cpu": 2})
    meet = task(
        "meet",
        f"python3 -c {shlex.quote(RENDEZVOUS)}",
        "echo by $FLEETFORM_NODE_RANK >/data/file && df --output=target /data | tail -1",
        nodes=4,
        volumes=["data-${{ node_rank }}:/data"],
    )
    disks_ = data(count=4, prevent_destroy=True)
    project.declare(backend(cloud.port), nodes, disks_, meet)
    plan = project.plan()
    assert plan["summary"] == {"create": 20, "update": 0, "delete": 0, "replace": 0}
    places = {r["rank"]: (r["node"], r["blocks"], r["volumes"], r["zone"]) for r in plan["reservations"]}
    assert places == {i: (f"gpu-{i}", [0, 1], {"/data": f"data-{i}"}, ZONE) for i in range(4)}
    prices = {a["after"]["price"] for a in plan["actions"] if a["address"].startswith("node/")}
    assert plan["cost"]["hourly_after"] == pytest.approx(4 * prices.pop())
    assert not prices

    project.apply("--wait")
    assert project.logs("meet", "--rank", "0") == "4 ranks agree on 10\n/data\n"
    assert project.logs("meet", "--rank", "3") == "/data\n"
    assert project.busy() == {f"gpu-{i}": 0 for i in range(4)}
    project.no_changes()
    project.run("state", "check")
    kept = volumes(cloud, tmp_path, project)
    assert sorted(kept) == [f"volume/data-{i}" for i in range(4)]

    # Another task, on the volume of one rank: it goes where that is.
    read = task("read", "cat /data/file", "id -un", resources={"cpu": 2}, volumes=["data-2:/data"])
    project.declare(backend(cloud.port), nodes, disks_, read)
    project.apply("--wait")
    assert project.logs("read") == "by 2\nfleetform\n"

    done = project.run("destroy", "--auto-approve")
    assert "Kept, because of `prevent_destroy`: " in done.out
    assert [v["name"] for v in project.status()["volumes"]] == [f"data-{i}" for i in range(4)]
    assert project.status()["nodes"] == []
    assert volumes(cloud, tmp_path, project) == kept
    assert not cloud.disks.plugged

    # On a new node, as it was left.
    again = task("again", "cat /data/file", resources={"cpu": 2}, volumes=["data-3:/data"])
    project.declare(backend(cloud.port), nodes, {**disks_, "prevent_destroy": False}, again)
    project.apply("--wait")
    assert project.logs("again") == "by 3\n"
    project.run("destroy", "--auto-approve")
    assert volumes(cloud, tmp_path, project) == {}
