"""Nodes of EC2 as hosts: instances that moto starts come up as machines, and ranks run on them."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from tests.providers.ec2.run import CREDENTIALS, REGION, SECRETS, RunningEc2, provider
from tests.providers.ec2.server import AMI
from tests.providers.ssh.disks import Disks
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.support.cli import Process, Project, fleet, task, until

pytestmark = pytest.mark.slow


class Cloud:
    """EC2 with machines behind its instances."""

    def __init__(self, folder: Path, count: int = 3, *, xen: bool = False) -> None:
        """As many machines as `count`; for `xen` see `Disks`."""
        self.folder = folder
        self.machines = Machines(count)
        self.machines.up(boot=False)
        self.disks = Disks(folder, self.machines.name, xen=xen)
        (folder / "addresses").write_text("\n".join(m.address for m in self.machines))
        self.of: dict[str, Machine] = {}
        self.power = threading.Event()
        """Machines come up while it is set."""
        self.power.set()
        self.turn = threading.RLock()
        """Held while machines are switched on and off."""
        self.faults: list[BaseException] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._server = RunningEc2(folder)

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.port = self._server.port
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._server.__exit__()
        self.machines.down()

    def ended(self, made: str) -> None:
        """An instance has ended, and its machine is off."""

    def _watch(self) -> None:
        """Switch on what began, and off what ended."""
        by_address = {m.address: m for m in self.machines}
        try:
            while not self._ended.wait(0.05):
                with self.turn:
                    self._look(by_address)
        except BaseException as error:
            self.faults.append(error)
            raise
        finally:
            for machine in self.machines:  # they end with this thread in any case
                machine.kill()
            self.disks.close()

    def _look(self, by_address: Mapping[str, Machine]) -> None:
        for file in sorted(self.folder.glob("i-*.json")):
            if file.stem not in self.of and self.power.is_set():
                told = json.loads(file.read_text())
                machine = self.of[file.stem] = by_address[told["address"]]
                machine.told(told["user_data"])
                machine.on()
        for file in sorted(self.folder.glob("i-*.gone")):
            if file.stem in self.of:  # else it has begun since the look above
                self.of[file.stem].off()
                file.unlink()
                self.ended(file.stem)
        if (self.folder / "disks").exists():
            self.disks.bring(json.loads((self.folder / "disks").read_text()), self.of)


@pytest.fixture
def cloud(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "cloud"
    folder.mkdir()
    made = Cloud(folder)
    with made:
        yield made
    assert not made.faults


class Account(Project):
    """A project with the secrets in its environment."""

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        return super().start(*args, env={**SECRETS, **(env or {})}, **options)


@pytest.fixture
def project(tmp_path: Path) -> Account:
    folder = tmp_path / "project"
    folder.mkdir()
    return Account(folder)


def backend(port: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "backend",
        "name": "aws",
        "driver": "ec2",
        "regions": [REGION],
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials": CREDENTIALS,
        "image": AMI,
        "options": {"ssh_config": "/dev/null", "connect_timeout": 5},
        **more,
    }


def there(cloud: Cloud, tmp_path: Path, lineage: str) -> tuple[int, list[str]]:
    """Instances that live, and the names of key pairs, by EC2's own count."""
    region = provider(cloud.port, tmp_path, lineage)._account.region(REGION)
    pairs = region.ask("DescribeKeyPairs")["keySet"] or []
    return len([i for i in region.instances({}) if not i.gone]), [p["keyName"] for p in pairs]


def recorded(project: Project) -> dict[str, str]:
    """Nodes and their states, as the state has them."""
    return {n["name"]: n["state"] for n in project.run("status", "--offline", "--json").json["nodes"]}


def test_a_gang_runs_on_instances(cloud: Cloud, project: Account, tmp_path: Path) -> None:
    """From plan to destroy: offers and prices, nodes, ranks that meet, blocks given back, nothing left."""
    gang = task("meet", f"python3 -c {shlex.quote(RENDEZVOUS)}", 'echo "as $(id -un)"', nodes=2)
    nodes = fleet("gpu", "0..2", backends=["aws"], placement="cluster", resources={"cpu": 2})
    project.declare(backend(cloud.port), nodes, gang)
    plan = project.plan()
    after = {a["address"]: a["after"] for a in plan["actions"]}
    assert {a for a in after if a.startswith(("node/", "rank/"))} == {
        *("node/gpu-0", "node/gpu-1"),
        *("rank/meet-0", "rank/meet-1"),
    }
    assert plan["cost"]["hourly_after"] > 0
    project.apply("--wait")
    assert "2 ranks agree on 3" in project.logs("meet", "--rank", "0")
    assert "as fleetform" in project.logs("meet", "--rank", "1")
    status = project.status()
    assert {n["state"] for n in status["nodes"]} == {"ready"}
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}
    project.no_changes()

    lineage = project.run("state", "pull").json["lineage"]
    assert there(cloud, tmp_path, lineage) == (2, [f"fleetform-{lineage}"])
    key = project.path / ".fleetform" / "keys" / lineage
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_bytes().split(b"\n")[1]
    state = (project.path / ".fleetform" / "state.db").read_bytes()
    assert secret not in state

    project.run("destroy", "--auto-approve")
    assert there(cloud, tmp_path, lineage) == (0, [])


def test_an_apply_killed_while_nodes_boot_is_followed_by_one_that_waits_for_them(
    cloud: Cloud, project: Account, tmp_path: Path
) -> None:
    """No other node is launched in their place, although the fleet has room."""
    nodes = fleet("gpu", "0..4", backends=["aws"], placement="cluster", resources={"cpu": 2})
    project.declare(backend(cloud.port), nodes, task("pair", "echo done", nodes=2))
    cloud.power.clear()
    process = project.start("apply", "--auto-approve")
    until(lambda: recorded(project) == {"gpu-0": "provisioning", "gpu-1": "provisioning"})
    process.kill()
    process.communicate()
    plan = project.run("plan")
    assert "node/gpu-0  [pair-0 pair-0]  2/2 busy  kept, provisioning" in plan.out
    assert "Plan: 4 to create" in plan.out  # two reservations, two ranks
    assert "Plan: 4 to create" in project.run("plan", "--offline").out
    assert "starts once it is ready" in project.run("explain", "node/gpu-0").out
    process = project.start("apply", "--auto-approve", "--wait")
    assert process.stderr
    said = ""
    while "waiting for node/gpu-0: it is starting: " not in said:
        said = process.stderr.readline()
        assert said, "it ended"
    cloud.power.set()
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "done" in project.logs("pair", "--rank", "1")
    lineage = project.run("state", "pull").json["lineage"]
    assert there(cloud, tmp_path, lineage)[0] == 2
    project.no_changes()
