"""Shared by the tests of hosts: how a test host is reached, and nodes on it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from declarative.model.state import Address, Record
from declarative.model.status import RankStatus
from declarative.provider import Config, Fence, TransientError, reads_only
from providers.ssh import Ssh
from providers.ssh.host import Host, Timing
from providers.ssh.transport import SshTransport
from providers.testing import launch
from tests.providers.ssh.machines import Machine, Machines, until
from tests.support.model import of_node

TOKEN = "0123456789abcdef0123456789abcdef"
QUICK = Timing(connect=3.0, keepalive=0.5, missed=2)
"""For tests in which a host is silent."""


def fields(machines: Machines, index: int, **more: Any) -> dict[str, Any]:
    """A node's `host`, with all that is declared."""
    machine = machines.machines[index]
    return {
        "hostname": machine.address,
        "user": "root",
        "identity_file": machines.login,
        "host_keys": [machine.public_key],
        "resources": {"cpu": 2, "memory_mib": 512, "gpus": 0},
        **more,
    }


def way(machines: Machines, index: int = 0, **more: Any) -> Host:
    """The way to a host; nothing of the user's own configuration counts."""
    plain: dict[str, Any] = {
        "hostname": machines[index].address,
        "user": "root",
        "identity_file": machines.login,
        "host_keys": (machines[index].public_key,),
        "config": "/dev/null",
        "timing": QUICK,
    }
    return Host(**{**plain, **more})


def transport(machines: Machines, index: int = 0, **more: Any) -> SshTransport:
    """Commands on a host."""
    return SshTransport(way(machines, index, **more))


class Nodes:
    """Hosts as nodes of one state."""

    def __init__(
        self,
        machines: Machines,
        folder: Path,
        lineage: str = "ours",
        *,
        fence: Fence = reads_only,
        **settings: Any,
    ) -> None:
        self.machines = machines
        self.hosts = {f"gpu-{i}": fields(machines, i) for i in range(len(machines))}
        options = {"ssh_config": "/dev/null", "connect_timeout": 3, **settings}
        self.provider = Ssh(
            Config(
                backend="ssh",
                project_dir=folder,
                lineage=lineage,
                hosts=self.hosts,
                options=options,
                fence=fence,
            )
        )
        self.made: list[Record] = []

    def machine(self, node: Record) -> Machine:
        """The host behind a node."""
        return self.machines.machines[int(node.address.name.rpartition("-")[2])]

    def make(self, index: int = 0, recorded: dict[str, Any] | None = None, **more: Any) -> Record:
        """Make a host a node, with the shape that is declared, or another."""
        name = f"gpu-{index}"
        host = {**self.hosts[name], **more}
        shape = recorded or {"cpu": 0, "memory_mib": 0, **host["resources"]}
        inputs = of_node(host=host, resources=shape)
        address = Address("node", name)
        outputs = self.provider.create(address, f"{TOKEN}{index}", inputs, {})
        record = Record(address=address, backend="ssh", inputs=inputs, outputs=outputs)
        self.made.append(record)
        return record

    def start(self, node: Record, attempt: str, *commands: str, **options: Any) -> RankStatus:
        """Start a rank."""
        return self.provider.start(node, launch(attempt, *commands, **options))

    def poll(self, node: Record, attempt: str) -> RankStatus | None:
        """How it is doing."""
        return self.provider.poll(node, [attempt])[attempt]

    def ended(self, node: Record, attempt: str) -> RankStatus:
        """How it ended. A connection from before a cut may be lost only now."""
        found: list[RankStatus] = []

        def look() -> bool:
            with suppress(TransientError):
                status = self.poll(node, attempt)
                found[:] = [status] if status and status.state.ended else []
            return bool(found)

        until(look)
        return found[0]

    def log(self, node: Record, attempt: str) -> str:
        """What it wrote."""
        return self.provider.read_log(node, attempt, 0).decode()
