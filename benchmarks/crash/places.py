"""Where else applies are killed: hosts with real sshd, and EC2's API. What is there is read on the hosts' own
disks and asked of EC2 itself.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.providers.ec2 import run
from tests.providers.ec2.server import AMI
from tests.providers.ssh import journal
from tests.providers.ssh.machines import Machines, impediment
from tests.providers.ssh.rack import SSH, Rack
from tests.support.cli import fleet, task, volume
from tests.support.killing import DEFAULT, Chain, Size

FLEETFORM = "disk/upper/var/lib/fleetform/node"
THINGS = ("claim", "volumes/*/volume", "volumes/*/held")
"""What a host has written down of a node, a volume and an attachment: the last line is JSON."""
LIVES = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep ^FLEETFORM_RUN= | sort -u || true"

There = tuple[Counter[str], Counter[str], Counter[str]]


class OnHosts(Chain):
    """A rack of hosts: their nodes, volumes on their disks, ranks that note that they began."""

    def __init__(
        self, folder: Path, size: Size, machines: Machines, state: str, env: Mapping[str, str]
    ) -> None:
        self.machines = machines
        super().__init__(folder, size, None, state, env)

    def documents(self) -> list[dict[str, Any]]:
        """Two blocks a host; the volume of a task is on one of them."""
        rack, size = Rack(self.project, self.machines), self.size
        hosts = [rack.host(i) for i in range(size.nodes)]
        disks = [
            volume(f"data-{i}", backend="ssh", host=self.machines[i % size.nodes].address, size="1MB")
            for i in range(size.volumes)
        ]
        noted = journal.script(100_000, master=False)
        tasks = [
            task(f"job{i}", noted, resources={"cpu": "1.."}, volumes=[f"data-{i}:/data"])
            for i in range(size.tasks)
        ]
        return [SSH, rack.rack(*hosts), *disks, *tasks]

    def _there(self) -> There:
        found = [
            json.loads(file.read_text().splitlines()[-1])["address"]
            for machine in self.machines
            for pattern in THINGS
            for file in machine.folder.glob(f"{FLEETFORM}/{pattern}")
        ]
        lines = [
            line
            for machine in self.machines
            for file in machine.folder.glob(f"disk/own{journal.FILE}")
            for line in journal.read(machine.name, file.read_text())
        ]
        return Counter(found), Counter(), Counter(run.rank.rpartition("-")[0] for run in journal.runs(lines))

    def left(self) -> list[str]:
        runs = [f"{m.name}: {word}" for m in self.machines for word in m.sh(LIVES).split()]
        return [*self._there()[0], *runs]


class OnEc2(Chain):
    """Nodes that nobody ever reaches, and volumes: what is asked of EC2's API."""

    def __init__(self, folder: Path, size: Size, port: int, state: str, env: Mapping[str, str]) -> None:
        self.port = port
        super().__init__(folder, size, None, state, {**run.SECRETS, **env})

    def documents(self) -> list[dict[str, Any]]:
        """One backend."""
        aws = {
            "type": "backend",
            "name": "aws",
            "driver": "ec2",
            "regions": [run.REGION],
            "endpoint": f"http://127.0.0.1:{self.port}",
            "credentials": run.CREDENTIALS,
            "image": AMI,
        }
        nodes = fleet(nodes=self.size.nodes, placement="any", backends=["aws"])
        place = {"backend": "aws", "region": run.REGION, "availability_zone": run.ZONE}
        return [aws, nodes, volume("data", count=self.size.volumes, **place)]

    def _there(self) -> There:
        """By EC2's own count: what was made without a tag is there as well."""
        region = run.provider(self.port, self.project)._account.region(run.REGION)
        ours = [i.tags.get("Name", i.id) for i in region.instances({}) if not i.gone]
        disks = [v.tags.get("Name", "") for v in region.volumes({})]
        things = [f"node/{name}" for name in ours] + [
            f"volume/{name}" for name in disks if name.startswith("data-")
        ]
        return Counter(things), Counter(), Counter()


@contextmanager
def on_hosts(folder: Path, state: str = DEFAULT, env: Mapping[str, str] | None = None) -> Iterator[Chain]:
    """Six hosts, twelve ranks on them."""
    if reason := impediment():
        raise SystemExit(reason)
    machines = Machines(6)
    machines.up()
    try:
        yield OnHosts(folder, Size(volumes=18, nodes=6, tasks=12), machines, state, env or {})
    finally:
        machines.down()


@contextmanager
def on_ec2(folder: Path, state: str = DEFAULT, env: Mapping[str, str] | None = None) -> Iterator[Chain]:
    """Moto's EC2."""
    os.environ.update(run.SECRETS)  # this process asks EC2 as well
    with run.RunningEc2() as ec2:
        yield OnEc2(folder, Size(volumes=40, nodes=20, tasks=0), ec2.port, state, env or {})
