"""Machines that clouds rent: each is off until a stand-in starts it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.providers.ssh.machines import Machine, Machines
from tests.support.smi import Kind

SERVICE = """#!/bin/sh
# `service ssh restart` on a machine without an init system: sshd with the host key that was put in its place
sed -i 's|^HostKey .*|HostKey /etc/ssh/ssh_host_ed25519_key|' /etc/ssh/sshd_config
kill -HUP "$(cat /run/sshd.pid)"
"""


H100S = Kind(rows=tuple(f"{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 81559, 0, Disabled" for i in range(8)))


class Rented:
    """Machines that are switched on as clouds start them, each with one address."""

    def __init__(self, machines: Machines) -> None:
        self._off = list(machines)
        self.gpus: Kind | None = None
        """What the driver on each image tells of GPUs."""
        self.on: dict[str, Machine] = {}
        self.thread = ThreadPoolExecutor(1)
        """Machines end with the thread that has switched them on; those of requests are short."""

    def cloud_init(self, made: str, user_data: str) -> str:
        """The address of a machine that its image's cloud-init has prepared."""
        machine = self.on[made] = self._off.pop()
        machine.told(user_data)
        self._switch_on(machine)
        return machine.address

    def startup_script(self, made: str, script: str) -> str:
        """The same, prepared by a script that root runs."""
        machine = self.on[made] = self._off.pop()
        machine.prepare("64m", "", "127.0.0.1 localhost\n")
        self._switch_on(machine)
        machine.install("service", SERVICE)
        machine.sh("mv /usr/local/bin/service /usr/sbin/service")
        machine.sh(script)
        return machine.address

    def _switch_on(self, machine: Machine) -> None:
        self.thread.submit(machine.on).result()
        if self.gpus:
            machine.install(self.gpus.tool, self.gpus.script)
