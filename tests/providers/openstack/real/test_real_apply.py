"""The installed command on a real OpenStack: from plan to destroy, killed on the way, and with ranks that run
on machines behind its servers.
"""

import os
import shlex
import signal

import pytest

from providers.cloud.openstack import OpenStack
from tests.providers.openstack.real import cloud
from tests.providers.openstack.real.machines import Stack
from tests.providers.ssh import disks
from tests.providers.ssh.machines import impediment
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.support import cli
from tests.support.cli import Project, ended, fleet, task, until, volume

pytestmark = pytest.mark.skipif(not cloud.ASKED_FOR, reason=cloud.WHY_NOT)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """What takes a second elsewhere takes ten here."""
    for name, value in cloud.SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "PATIENCE", 900.0)


@pytest.fixture
def project(tmp_path):
    made = Account(tmp_path / "project")
    made.path.mkdir()
    yield made
    made.run("destroy", "--auto-approve", code=None)
    made.clean_up()


class Account(Project):
    """A project with the secrets in its environment."""

    def start(self, *args, env=None, **options):
        return super().start(*args, env={**cloud.SECRETS, **(env or {})}, **options)


def backend(**options):
    return {
        "type": "backend",
        "name": "stack",
        "driver": "openstack",
        "regions": [cloud.REGION],
        "endpoint": cloud.ENDPOINT,
        "credentials": cloud.CREDENTIALS,
        "image": cloud.IMAGE,
        "options": {"project": "demo", "network": "shared", **options},
    }


def mine(things, lineage):
    """Those of a project, by the cloud's own count: their ids by their addresses."""
    found = [t for t in things if t["metadata"].get("fleetform:owner") == lineage]
    by_address = {t["metadata"]["fleetform:address"]: t["id"] for t in found}
    assert len(by_address) == len(found)
    return by_address


def test_killed_midway_and_applied_again(project):
    """Four nodes with GPUs and four volumes, each once; protected volumes stay, until they are not."""
    admin = cloud.Admin()
    nodes = fleet("gpu", nodes=4, backends=["stack"], resources={"gpu": "H100:2"})
    data = volume("data", count=4, backend="stack", region=cloud.REGION, size="1GB", prevent_destroy=True)
    project.declare(backend(), nodes, data)
    plan = project.plan()
    after = [a["after"] for a in plan["actions"] if a["address"].startswith("node/")]
    assert {(a["instance_type"], a.get("price")) for a in after} == {("gpu.h100x2", None)}
    doomed = project.start("apply", "--auto-approve", "--parallelism", "2")
    until(lambda: sum("fleetform:owner" in s["metadata"] for s in admin.servers()) >= 2)
    os.kill(doomed.pid, signal.SIGKILL)
    ended(doomed, -signal.SIGKILL)
    project.apply()
    lineage = project.run("state", "pull").json["lineage"]
    there, kept = mine(admin.servers(), lineage), mine(admin.volumes(), lineage)
    assert set(there) == {f"node/gpu-{i}" for i in range(4)}
    assert set(kept) == {f"volume/data-{i}" for i in range(4)}
    assert {s["status"] for s in admin.servers() if s["id"] in there.values()} == {"ACTIVE"}
    assert project.plan()["result"] == "none"

    project.run("destroy", "--auto-approve")
    assert mine(admin.servers(), lineage) == {}
    assert mine(admin.volumes(), lineage) == kept
    project.declare(backend(), {**data, "prevent_destroy": False})
    project.apply()
    project.run("destroy", "--auto-approve")
    assert mine(admin.volumes(), lineage) == {}


@pytest.fixture
def stack(tmp_path):
    reason = impediment() or disks.impediment()
    if reason:
        pytest.skip(reason)
    folder = tmp_path / "cloud"
    folder.mkdir()
    made = Stack(folder, 4)
    with made:
        yield made
    assert not made.faults


def test_four_ranks_with_a_volume_each(stack, project):
    """They meet, write and end on machines that came up at their servers' addresses; nothing is left."""
    nodes = fleet("gpu", "0..4", backends=["stack"], placement="cluster", resources={"cpu": 1})
    nodes["instance_types"] = [cloud.FLAVOR]
    meet = task(
        "meet",
        f"python3 -c {shlex.quote(RENDEZVOUS)}",
        "echo by $FLEETFORM_NODE_RANK >/data/file && df --output=target /data | tail -1",
        nodes=4,
        volumes=["data-${{ node_rank }}:/data"],
    )
    data = volume("data", count=4, backend="stack", region=cloud.REGION, size="1GB", prevent_destroy=True)
    place = backend(network=stack.network, ssh_config="/dev/null", connect_timeout=5)
    project.declare(place, nodes, data, meet)
    project.apply("--wait")
    assert project.logs("meet", "--rank", "0") == "4 ranks agree on 10\n/data\n"
    assert project.logs("meet", "--rank", "3") == "/data\n"
    assert project.busy() == {f"gpu-{i}": 0 for i in range(4)}
    project.no_changes()
    lineage = project.run("state", "pull").json["lineage"]
    kept = mine(stack.admin.volumes(), lineage)
    project.run("destroy", "--auto-approve")
    assert mine(stack.admin.servers(), lineage) == {}
    assert mine(stack.admin.volumes(), lineage) == kept
    assert len(kept) == 4
    until(lambda: not stack.disks.plugged)
    project.declare(place, {**data, "prevent_destroy": False})
    project.apply()
    project.run("destroy", "--auto-approve")
    assert mine(stack.admin.volumes(), lineage) == {}


@pytest.fixture
def theirs(tmp_path):
    """The id of a volume that somebody made by hand, and the region."""
    wanted = {"volume": {"name": "results", "size": 1, "metadata": {"team": "theirs"}}}
    region = OpenStack(cloud.config(tmp_path))._nova.region(cloud.REGION)
    made = region.ask("making one", "volume", "POST", "/volumes", wanted)["volume"]["id"]
    yield made, region
    region.ask("deleting it", "volume", "DELETE", f"/volumes/{made}")


def test_what_is_on_an_adopted_volume_stays_there(theirs, stack, project):
    """It was empty, and is formatted once: who adopts it later finds what the first has written."""
    made, region = theirs
    place = backend(network=stack.network, ssh_config="/dev/null", connect_timeout=5)
    node = fleet("gpu", nodes=1, backends=["stack"], resources={"cpu": 1})
    node["instance_types"] = [cloud.FLAVOR]
    for name, command in ("first", "echo kept >/data/file"), ("second", "cat /data/file"):
        data = volume(name, backend="stack", region=cloud.REGION, volume_id=made, prevent_destroy=True)
        project.declare(place, node, data, task(name, command, volumes=[f"{name}:/data"]))
        project.apply("--wait")
        project.no_changes()
        assert project.logs(name) == ("" if name == "first" else "kept\n")
        project.declare(place, node)
        project.apply()
        (there,) = [v for v in stack.admin.volumes() if v["id"] == made]
        assert (there["name"], there["status"], there["attachments"]) == ("results", "available", [])
        assert region.written("volume", f"/volumes/{made}") == {"team": "theirs"}
