"""Nodes of Hyperstack and Crusoe as hosts: machines come up behind the stand-ins, and a gang runs on both."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud.stand_in import Clock
from tests.providers.cloud.web import Web
from tests.providers.crusoe import server as crusoe
from tests.providers.hyperstack import server as hyperstack
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.support.cli import Process, Project, fleet, task

pytestmark = pytest.mark.slow

SSH = {"ssh_config": "/dev/null", "connect_timeout": 5}
SECRETS = {
    "HYPERSTACK_API_KEY": hyperstack.KEY,
    "CRUSOE_ACCESS_KEY_ID": crusoe.KEY_ID,
    "CRUSOE_SECRET_KEY": crusoe.SECRET,
    "CRUSOE_DEFAULT_PROJECT": crusoe.PROJECT,
}
SERVICE = """#!/bin/sh
# `service ssh restart` on a machine without an init system: sshd with the host key that was put in its place
sed -i 's|^HostKey .*|HostKey /etc/ssh/ssh_host_ed25519_key|' /etc/ssh/sshd_config
kill -HUP "$(cat /run/sshd.pid)"
"""


class Rack:
    """Machines that are switched on as clouds start them, each with one address."""

    def __init__(self, machines: Machines) -> None:
        self._off = list(machines)
        self.on: dict[str, Machine] = {}
        self.thread = ThreadPoolExecutor(1)
        """Machines end with the thread that has switched them on; those of requests are short."""

    def cloud_init(self, made: str, user_data: str) -> str:
        """The address of a machine that its image's cloud-init has prepared."""
        machine = self.on[made] = self._off.pop()
        machine.told(user_data)
        self.thread.submit(machine.on).result()
        return machine.address

    def startup_script(self, made: str, script: str) -> str:
        """The same, prepared by a script that root runs."""
        machine = self.on[made] = self._off.pop()
        machine.prepare("64m", "", "127.0.0.1 localhost\n")
        self.thread.submit(machine.on).result()
        machine.install("service", SERVICE)
        machine.sh("mv /usr/local/bin/service /usr/sbin/service")
        machine.sh(script)
        return machine.address


class Hyperstack(hyperstack.Hyperstack):
    rack: Rack

    def _reachable(self, machine: dict[str, Any]) -> None:
        super()._reachable(machine)
        machine["fixed_ip"] = machine["floating_ip"]


class Crusoe(crusoe.Crusoe):
    rack: Rack
    address = ""

    def _run(self, vm: dict[str, Any]) -> dict[str, Any]:
        self.address = self.rack.startup_script(vm["id"], self.bodies[vm["id"]]["startup_script"])
        return super()._run(vm)

    def addresses(self, number: int) -> tuple[str, str]:
        return self.address, self.address


class Account(Project):
    """A project with the secrets in its environment."""

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        return super().start(*args, env={**SECRETS, **(env or {})}, **options)


@pytest.fixture
def rack(allowed: None) -> Iterator[Rack]:
    machines = Machines(2)
    machines.up(boot=False)
    made = Rack(machines)
    yield made
    for machine in machines:
        machine.kill()
    made.thread.shutdown()
    machines.down()


SMALL = {"cpu": 2, "memory": "4GB", "price": 0.1}


@pytest.fixture
def hyper(rack: Rack) -> Hyperstack:
    made = Hyperstack(Clock(tick=30.0), paced=False)
    made.address = lambda number: rack.cloud_init(str(number), made.user_data[number])
    return made


@pytest.fixture
def cru(rack: Rack) -> Crusoe:
    made = Crusoe(Clock(tick=30.0))
    made.rack = rack
    return made


def backend(name: str, url: str, region: str, image: str, instance_type: str) -> dict[str, Any]:
    catalog = [{"instance_type": instance_type, **SMALL}]
    about = {"type": "backend", "name": name, "driver": name, "regions": [region], "image": image}
    return {**about, "endpoint": url, "catalog": catalog, "options": SSH}


def crusoe_at(url: str) -> dict[str, Any]:
    return backend("crusoe", url, crusoe.EAST, "ubuntu22.04:latest", "c1a.2x")


def no_secret_is_kept(project: Account) -> None:
    state = (project.path / ".fleetform" / "state.db").read_bytes()
    assert not [value for value in SECRETS.values() if value.encode() in state]


def test_a_gang_runs_on_two_clouds(rack: Rack, hyper: Hyperstack, cru: Crusoe, tmp_path: Path) -> None:
    """From offers to ranks, and nothing is left behind."""
    project = Account(tmp_path)
    with Web(hyper) as one, Web(cru) as other:
        project.declare(
            backend("hyperstack", one.url, "NORWAY-1", hyperstack.IMAGES[0], "n1-cpu-small"),
            crusoe_at(other.url),
            fleet("north", "0..1", backends=["hyperstack"], resources={"cpu": 2}),
            fleet("east", "0..1", backends=["crusoe"], resources={"cpu": 2}),
            task(
                "sweep",
                'echo "$FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM as $(id -un)"',
                nodes=2,
                placement="any",
                spread="node",
            ),
        )
        project.apply("--wait")
        assert (len(rack.on), len(hyper.machines), len(cru.vms)) == (2, 1, 1)
        for rank in range(2):
            assert f"{rank} of 2 as fleetform" in project.logs("sweep", "--rank", str(rank))
        project.run("destroy", "--auto-approve")
    assert not hyper.machines
    assert not cru.vms
    no_secret_is_kept(project)


def test_a_cluster_runs_on_crusoe(rack: Rack, cru: Crusoe, tmp_path: Path) -> None:
    """Its ranks meet."""
    project = Account(tmp_path)
    with Web(cru) as web:
        project.declare(
            crusoe_at(web.url),
            fleet("gpu", "0..2", backends=["crusoe"], placement="cluster", resources={"cpu": 2}),
            task("meet", f"python3 -c {shlex.quote(RENDEZVOUS)}", nodes=2),
        )
        project.apply("--wait")
        assert len(rack.on) == 2
        assert "2 ranks agree on 3" in project.logs("meet", "--rank", "0")
        project.run("destroy", "--auto-approve")
    assert not cru.vms
    no_secret_is_kept(project)
