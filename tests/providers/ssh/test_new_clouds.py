"""Nodes of Hyperstack and Crusoe as hosts: machines come up behind the stand-ins. A gang runs on both, and a
cluster on the InfiniBand of Crusoe.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud.stand_in import Clock
from tests.providers.cloud.web import Answer, Asked, Web
from tests.providers.crusoe import server as crusoe
from tests.providers.hyperstack import server as hyperstack
from tests.providers.ssh.rented import H100S, Rented
from tests.providers.ssh.test_gangs import RENDEZVOUS
from tests.support.cli import Process, Project, fleet, task

pytestmark = pytest.mark.slow

SSH = {"ssh_config": "/dev/null", "connect_timeout": 5}
SECRETS = {
    "HYPERSTACK_API_KEY": hyperstack.KEY,
    "CRUSOE_ACCESS_KEY_ID": crusoe.KEY_ID,
    "CRUSOE_SECRET_KEY": crusoe.SECRET,
    "CRUSOE_DEFAULT_PROJECT": crusoe.PROJECT,
    "NEBIUS_IAM_TOKEN": "static-token",
}


class Hyperstack(hyperstack.Hyperstack):
    rented: Rented

    def _reachable(self, machine: dict[str, Any]) -> None:
        super()._reachable(machine)
        machine["fixed_ip"] = machine["floating_ip"]


class Crusoe(crusoe.Crusoe):
    rented: Rented
    address = ""

    def _run(self, vm: dict[str, Any]) -> dict[str, Any]:
        self.address = self.rented.startup_script(vm["id"], self.bodies[vm["id"]]["startup_script"])
        return super()._run(vm)

    def addresses(self, number: int) -> tuple[str, str]:
        return self.address, self.address


class Account(Project):
    """A project with the secrets in its environment."""

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        return super().start(*args, env={**SECRETS, **(env or {})}, **options)


SMALL = {"cpu": 2, "memory": "4GB", "price": 0.1}


@pytest.fixture
def hyper(rented: Rented) -> Hyperstack:
    made = Hyperstack(Clock(tick=30.0), paced=False)
    made.address = lambda number: rented.cloud_init(str(number), made.user_data[number])
    return made


@pytest.fixture
def cru(rented: Rented) -> Crusoe:
    made = Crusoe(Clock(tick=30.0))
    made.rented = rented
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


def test_a_gang_runs_on_two_clouds(rented: Rented, hyper: Hyperstack, cru: Crusoe, tmp_path: Path) -> None:
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
        assert (len(rented.on), len(hyper.machines), len(cru.vms)) == (2, 1, 1)
        for rank in range(2):
            assert f"{rank} of 2 as fleetform" in project.logs("sweep", "--rank", str(rank))
        project.run("destroy", "--auto-approve")
    assert not hyper.machines
    assert not cru.vms
    no_secret_is_kept(project)


# ------------------------------------------------------------------------------ clusters on InfiniBand


class Deaths:
    """Commands that die as soon as the cloud has carried out a request, before they know its answer."""

    def __init__(self, project: Account) -> None:
        self._project = project
        self.to_come: list[str] = []
        """The lines of those requests, each a pattern, in their order."""

    def after(self, carry_out: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        def served(asked: Asked) -> Answer:
            answer = carry_out(asked)
            if self.to_come and re.search(self.to_come[0], asked.line):
                del self.to_come[0]
                self._project.started[-1].kill()
            return answer

        return served

    def until_done(self, *args: str, at: tuple[str, ...]) -> None:
        """Run a command anew after each of its deaths."""
        self.to_come = list(at)
        for _ in at:
            self._project.run(*args, code=-signal.SIGKILL)
        assert not self.to_come
        self._project.run(*args)


def h100s(backend_: str) -> dict[str, Any]:
    gpus = {"gpu": "H100:80GB:8"}
    return fleet("gpu", "0..2", backends=[backend_], placement="cluster", resources=gpus)


def meeting() -> dict[str, Any]:
    told = f"python3 -c {shlex.quote(RENDEZVOUS)}"
    return task("meet", told, nodes=2, resources={"gpu": "H100:8"})


def ranks_have_met(project: Account) -> None:
    assert "2 ranks agree on 3" in project.logs("meet", "--rank", "0")
    assert len({rank["node"] for rank in project.ranks("meet").values()}) == 2


def test_a_cluster_runs_on_the_infiniband_of_crusoe(rented: Rented, cru: Crusoe, tmp_path: Path) -> None:
    """One partition for both nodes, whenever a command dies; it goes with them."""
    rented.gpus = H100S
    project = Account(tmp_path)
    deaths = Deaths(project)
    with Web(deaths.after(cru)) as web:
        about = backend("crusoe", web.url, crusoe.CENTRAL, "ubuntu22.04:latest", "h100-80gb-sxm-ib.8x")
        about["catalog"][0]["gpu"] = "H100:80GB:8"
        project.declare(about, h100s("crusoe"), meeting())
        partitions, vms = (path.format(project=crusoe.PROJECT) for path in (crusoe.PARTITIONS, crusoe.VMS))
        deaths.until_done("apply", "--auto-approve", "--wait", at=(f"POST {partitions}$", f"POST {vms}$"))
        (partition,) = cru.partitions
        adapters = [one for vm in cru.vms.values() for one in vm["host_channel_adapters"]]
        assert [one["ib_partition_id"] for one in adapters] == [partition] * 2
        assert len(rented.on) == 2
        ranks_have_met(project)
        assert project.plan()["actions"] == []
        gone = (f"DELETE {vms}/", f"DELETE {partitions}/")
        deaths.until_done("destroy", "--auto-approve", at=gone)
        asked = [one.line for one in web.asked]
    assert (asked.count(f"POST {partitions}"), asked.count(f"POST {vms}")) == (1, 2)
    assert not {**cru.vms, **cru.partitions}
    no_secret_is_kept(project)
