"""A virtual machine booted by systemd: the only place to test its groups, logins and lingering.

It is made from the folder that `vm.sh` fills, if FLEETFORM_VM names one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.providers.ssh.machines import run, until

ADDRESS = "127.77.0.1"


def impediment() -> str | None:
    """Why there can be none here; None if there can."""
    if "FLEETFORM_VM" not in os.environ:
        return "FLEETFORM_VM names no folder with a virtual machine (CONTRIBUTING.md)"
    if not shutil.which("qemu-system-x86_64"):
        return "a virtual machine needs qemu-system-x86_64"
    return None


class VirtualMachine:
    """One host that keeps everything in memory, so each boot is its first."""

    def __init__(self, console: Path) -> None:
        self.folder = Path(os.environ["FLEETFORM_VM"])
        self.address = ADDRESS
        self.login = str(self.folder / "login")
        self.public_key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        self.machines = [self]
        self._console = console
        self._known = console.with_name("known_hosts")
        self._known.write_text(f"{ADDRESS} {self.public_key}\n")

    def __len__(self) -> int:
        return 1

    def up(self) -> None:
        """Boot it, and wait until it lets us in."""
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
                # Emulated: slower, but it works where there is no virtualisation, or one within another.
                *(
                    "-accel",
                    "tcg,thread=multi",
                    "-cpu",
                    "max",
                    "-smp",
                    "2",
                    "-m",
                    "1536",
                    "-no-reboot",
                    "-nodefaults",
                    "-display",
                    "none",
                ),
                *("-serial", f"file:{self._console}", "-device", "virtio-net-pci,netdev=n,romfile="),
                *("-netdev", f"user,id=n,restrict=on,hostfwd=tcp:{ADDRESS}:22-:22"),
                *("-kernel", str(self.folder / "kernel"), "-initrd", str(self.folder / "system")),
                *(
                    "-append",
                    "rdinit=/sbin/init console=ttyS0 net.ifnames=0 systemd.unified_cgroup_hierarchy=1",
                ),
            ],
            stdin=subprocess.DEVNULL,
        )
        until(self._answers, 120)
        self.sh("systemctl is-system-running --wait || :")

    def down(self) -> None:
        """Switch it off."""
        self._process.kill()
        self._process.wait()

    def sh(self, script: str, user: str = "root") -> str:
        """Run something on it, by a login of its own."""
        options = ["-F", "none", "-i", self.login, "-o", f"UserKnownHostsFile={self._known}"]
        return run("ssh", "-T", *options, f"{user}@{ADDRESS}", "sh -eu", given=script)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._console.read_text()
        try:
            with socket.create_connection((ADDRESS, 22), 1) as connection:
                connection.settimeout(1)
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False
