"""Volumes of EC2 on its instances (moto's, with machines behind them), by the installed command."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.ec2.run import REGION, SECRETS, ZONE, provider
from tests.providers.ssh import disks
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.providers.ssh.test_instances import Account, Cloud, backend
from tests.support.cli import fleet, release, task, until, volume

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
    assert plan["summary"] == {
        "create": 20,
        "update": 0,
        "delete": 0,
        "replace": 0,
        "restarts": 0,
        "stops": 0,
    }
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


@pytest.fixture
def xen(able: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """One machine, whose disks do not say which they are."""
    yield from made(tmp_path / "cloud", monkeypatch, count=1, xen=True)


RESIZE = """\
#!/bin/sh
echo grown "$@" >>/var/tmp/resized
"""


def test_what_becomes_of_a_node_becomes_of_its_volumes(xen: Cloud, project: Account, tmp_path: Path) -> None:
    """Mounted again after a reboot, grown while a rank runs, given up with a node that is silent."""
    machine = xen.machines[0]
    root = backend(xen.port, ssh_user="root")
    nodes = fleet("gpu", "0..1", backends=["aws"], resources={"cpu": 2})
    disk = data(prevent_destroy=False)

    def count(name: str, *more: str) -> dict[str, Any]:
        return task(name, "echo x >>/data/n && wc -l </data/n", *more, volumes=["data:/data"])

    project.declare(root, nodes, disk, count("one"))
    project.apply("--wait")
    assert project.logs("one") == "1\n"

    machine.reboot()
    project.declare(root, nodes, disk, count("two", release(Path("/var/tmp/go"))))
    project.apply()
    until(lambda: project.logs("two") == "2\n", "the second rank to read")

    # The kernel grows an ext4 for CAP_SYS_RESOURCE alone, which tests may be without: so they see who asks.
    machine.sh(f"cat >/usr/sbin/resize2fs <<'END'\n{RESIZE}END\n")
    larger = {**disk, "size": "2GB"}
    project.declare(root, nodes, larger, count("two", release(Path("/var/tmp/go"))))
    assert project.ids() == ["update:volume/data"]
    project.apply()
    (plugged,) = xen.disks.plugged.values()
    asked = machine.sh("cat /var/tmp/resized").splitlines()  # more than once where an answer came late
    assert set(asked) == {f"grown {plugged.paths[0]}"}
    assert xen.disks.image(next(iter(xen.disks.plugged))).stat().st_size == 2 << 30
    machine.sh("touch /var/tmp/go")
    project.apply("--wait")
    assert project.ranks("two")[0]["state"] == "succeeded"

    machine.cut()
    xen.disks.busy = True
    project.run("destroy", "--auto-approve")
    assert volumes(xen, tmp_path, project) == {}
    assert project.status()["nodes"] == []
    until(lambda: not machine.runs, "its machine to be off")
