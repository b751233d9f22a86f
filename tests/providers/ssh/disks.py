"""Disks for the machines: sparse files, each of which is a device of a machine while attached."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.providers.ssh.machines import Machine, run, until


@cache
def impediment() -> str | None:
    """Why there can be no disks here; None if there can."""
    missing = [tool for tool in ("losetup", "mkfs.ext4", "blkid") if not shutil.which(tool)]
    if missing:
        return f"disks need {', '.join(missing)} (util-linux, e2fsprogs)"
    done = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"disks need loop devices: {done.stderr.strip()}"
    return None if "ext4" in Path("/proc/filesystems").read_text() else "disks need a kernel with ext4"


@dataclass(frozen=True, kw_only=True)
class Plugged:
    """A disk on a machine: the loop device, what the machine calls it, and by which links."""

    machine: Machine
    loop: str
    paths: tuple[str, ...]

    @property
    def mounted(self) -> bool:
        """Whether some machine has it mounted, in whatever namespace."""
        name = self.loop.removeprefix("/dev/")
        return any(Path(f"/sys/fs/{kind}/{name}").exists() for kind in ("ext4", "xfs"))


class Disks:
    """The disks of one network of machines. Volumes keep what is on them."""

    def __init__(self, folder: Path, network: str, *, xen: bool = False) -> None:
        """`network` is the name of the machines'. With `xen` a disk says nothing of itself."""
        self.folder, self.network, self.xen = folder, network, xen
        self.plugged: dict[str, Plugged] = {}
        self.busy = False
        """Whether a disk that is mounted stays until its machine ends, as on EC2; else that is a fault."""
        self._sizes: dict[str, float] = {}
        self._count = 0

    def image(self, volume: str) -> Path:
        """Its bytes."""
        return self.folder / f"{self.network}-{volume}.img"

    def bring(self, wanted: Mapping[str, Mapping[str, Any]], machines: Mapping[str, Machine]) -> None:
        """Attach and detach until it is as `wanted`: volume → `instance`, `device`, `size` in GiB."""
        for volume, disk in list(self.plugged.items()):
            if machines.get(wanted.get(volume, {}).get("instance", "")) is not disk.machine:
                self.unplug(volume)
        for volume, told in wanted.items():
            machine = machines.get(told["instance"])
            if volume in self.plugged:
                self._grow(volume, told["size"])
            elif machine:
                self._plug(volume, machine, told)

    def _grow(self, volume: str, size: float) -> None:
        if self._sizes[volume] == size:
            return
        self._sizes[volume] = size
        run("truncate", "-s", f"{int(size * 1024)}M", str(self.image(volume)))
        run("losetup", "-c", self.plugged[volume].loop)

    def link(self, volume: str) -> str:
        """By what it says of itself: as EC2's do."""
        serial = volume.replace("-", "")
        return f"nvme-Amazon_Elastic_Block_Store_{serial}"

    def _plug(self, volume: str, machine: Machine, told: Mapping[str, Any]) -> None:
        self._sizes[volume] = told["size"]
        run("truncate", "-s", f"{int(told['size'] * 1024)}M", str(self.image(volume)))
        loop = run("losetup", "-f", "--show", str(self.image(volume))).strip()
        minor = loop.removeprefix("/dev/loop")
        self._count += 1
        link = f"/dev/disk/by-id/{self.link(volume)}"
        device = told["device"].replace("/dev/sd", "/dev/xvd") if self.xen else f"/dev/nvme{self._count}n1"
        script = f"mknod -m 660 .{device} b 7 {minor}\n"
        if not self.xen:
            script += f"mkdir -p ./dev/disk/by-id && ln -s {device} .{link}\n"
        self.plugged[volume] = Plugged(machine=machine, loop=loop, paths=(device, link))
        with (machine.folder / "devices").open("a") as file:
            file.write(script)
        if machine.runs:
            machine.sh(f"cd / && {script}")

    def unplug(self, volume: str) -> None:
        """Take it away; one that is mounted there is a fault, as it is a loss of data."""
        disk = self.plugged[volume]
        if self.busy and disk.machine.runs and disk.mounted:
            return
        del self.plugged[volume]
        devices = disk.machine.folder / "devices"
        if disk.machine.runs:
            assert not disk.mounted, f"{volume} is taken away, and still mounted"
            disk.machine.sh(f"rm -f {' '.join(disk.paths)}")
        if devices.exists():
            gone = {f".{path}" for path in disk.paths}
            kept = [line for line in devices.read_text().splitlines(True) if not gone & set(line.split())]
            devices.write_text("".join(kept))
        until(lambda: not disk.mounted, 60)
        run("losetup", "-d", disk.loop)

    def close(self) -> None:
        """Take all of them away: the machines are off."""
        for volume in list(self.plugged):
            self.unplug(volume)
