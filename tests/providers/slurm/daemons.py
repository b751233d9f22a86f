"""A whole Slurm on this machine for tests: munged, slurmctld and one slurmd for each node, on loopback.

Debian builds slurmd so that many of them run on one machine (`slurmd -N name`). Everything is in one folder,
with its own key and sockets. The daemons and the jobs run as one user, root or not.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun", "squeue", "scancel")
READY_SECONDS = 60.0
IMPATIENT = "MessageTimeout=1\n"
LEAF = 4
"""Nodes below one leaf switch."""


def impediment() -> str | None:
    """Why no Slurm can run here; None if it can."""
    places = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [p for p in PROGRAMS if shutil.which(p, path=places) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (slurm-wlm slurm-wlm-basic-plugins munge)"
    return None


class Daemons:
    """One cluster. `uid` is whose it is; only root may name another than itself."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        *,
        gpus: int = 8,
        cpus: int = 8,
        uid: int | None = None,
        scheduler: str = "batch_sched_delay=0,sched_interval=1",
        partitions: Sequence[str] = (),
        features: str = "",
    ) -> None:
        self.folder = folder
        self.uid = os.getuid() if uid is None else uid
        self.names = [f"gpu-{n}" for n in range(nodes)]
        self.conf = folder / "slurm.conf"
        self.env = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            "SLURM_CONF": str(self.conf),
            "HOME": str(folder),
        }
        self._write(nodes, gpus, cpus, scheduler, partitions, features)

    def _write(
        self, nodes: int, gpus: int, cpus: int, scheduler: str, partitions: Sequence[str], features: str
    ) -> None:
        last, user = nodes - 1, self.user
        ports = free_ports(nodes + 1)
        for part in ("state", "log"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        lines = [
            "ClusterName=test",
            "SlurmctldHost=localhost",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge.sock",
            "CredType=cred/munge",
            f"SlurmctldPort={ports[0]}",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmctldLogFile={self.folder}/log/slurmctld.log",
            f"SlurmdLogFile={self.folder}/log/%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SchedulerType=sched/backfill",
            f"SchedulerParameters={scheduler},bf_interval=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "ReturnToService=2",
            "GresTypes=gpu",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "InactiveLimit=0",
            "KillWait=5",
            "MinJobAge=300",
            "SlurmdTimeout=10",
            "SlurmctldTimeout=10",
            "SlurmdParameters=config_overrides",
            "TopologyPlugin=topology/tree",
            "LaunchParameters=",
        ]
        gres = ["AutoDetect=off"] if gpus else []
        for n, name in enumerate(self.names):
            own = f" Gres=gpu:h100:{gpus}" if gpus else ""
            more = f" Feature={features}" if features else ""
            lines.append(
                f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[n + 1]} "
                f"CPUs={cpus} RealMemory=8000{own}{more} State=UNKNOWN"
            )
            if gpus:
                gres.append(f"NodeName={name} Name=gpu Type=h100 File={self._devices(name, gpus)}")
        lines += [
            f"PartitionName=gpu Nodes=gpu-[0-{last}] Default=YES MaxTime=INFINITE State=UP",
            *partitions,
        ]
        self.conf.write_text("\n".join(line for line in lines if not line.endswith("=")) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")
        (self.folder / "topology.conf").write_text(_topology(nodes))
        if self.uid != os.getuid():
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def _devices(self, name: str, gpus: int) -> str:
        """Files that stand for GPUs. Of plain ones Slurm knows no index, and gives jobs none."""
        folder = self.folder / f"devices-{name}"
        folder.mkdir()
        for n in range(gpus):
            device = folder / f"nvidia{n}"
            try:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, n))
            except PermissionError:
                device.touch()
        return f"{folder}/nvidia[0-{gpus - 1}]"

    @property
    def numbered(self) -> bool:
        """Whether jobs are told the indexes of their GPUs."""
        return any(p.is_char_device() for p in self.folder.glob("devices-*/*"))

    @property
    def user(self) -> str:
        """Whose it is, by name."""
        return pwd.getpwuid(self.uid).pw_name

    def run(self, *argv: str, check: bool = True, timeout: float = 60.0) -> str:
        """A command with this cluster's configuration, as its user; its output."""
        found = subprocess.run(
            [*self._as_user(), *argv],
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and found.returncode:
            raise AssertionError(f"{argv}: {found.returncode}: {found.stdout}{found.stderr}")
        return found.stdout

    def _as_user(self) -> list[str]:
        if self.uid == os.getuid():
            return []
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--"]

    def up(self) -> None:
        """Start all, and wait until every node is idle."""
        munge = {
            "key-file": "munge.key",
            "socket": "munge.sock",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }
        self.run("munged", "--force", *(f"--{k}={self.folder}/{v}" for k, v in munge.items()))
        self.run("slurmctld", "-c")
        for name in self.names:
            self.run("slurmd", "-N", name)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until nothing runs and every node is ready."""
        deadline = time.monotonic() + READY_SECONDS
        while set(self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()) != {"idle"}:
            logs = "\n".join(p.read_text()[-800:] for p in sorted((self.folder / "log").glob("*.log")))
            assert time.monotonic() < deadline, f"Slurm did not become ready\n{logs}"
            time.sleep(0.05)

    def kill_controller(self) -> None:
        """SIGKILL to slurmctld, once it has written down what runs: it does so seconds later, by itself."""
        saved, asked = self.folder / "state" / "job_state", time.time()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not saved.exists() or saved.stat().st_mtime < asked):
            self.run("scontrol", "update", "PartitionName=gpu", "State=UP")
            time.sleep(0.1)
        self._end("slurmctld.pid", signal.SIGKILL)
        # Each command would look for it for ten seconds.
        self.conf.write_text(f"{self.conf.read_text()}{IMPATIENT}")

    def start_controller(self) -> None:
        """Start it again, from what it has saved."""
        self.conf.write_text(self.conf.read_text().replace(IMPATIENT, ""))
        self.run("slurmctld")

    def kill_node(self, name: str) -> None:
        """SIGKILL to the slurmd of a node."""
        self._end(f"slurmd-{name}.pid", signal.SIGKILL)

    def _end(self, file: str, how: signal.Signals) -> None:
        with suppress(OSError, ValueError):
            pid = int((self.folder / file).read_text())
            os.kill(pid, how)
            deadline = time.monotonic() + 10
            while _alive(pid) and time.monotonic() < deadline:
                time.sleep(0.01)

    def clear(self) -> None:
        """Cancel all jobs, and wait until every node is idle."""
        self.run("scancel", "--full", "-u", self.user, check=False)
        self.wait_idle()

    def down(self) -> None:
        """End all of it, jobs included."""
        self.run("scancel", "-u", self.user, check=False)
        deadline = time.monotonic() + 10
        while self.run("squeue", "-h", check=False).strip() and time.monotonic() < deadline:
            time.sleep(0.05)
        for file in (*(f"slurmd-{n}.pid" for n in self.names), "slurmctld.pid", "munged.pid"):
            self._end(file, signal.SIGTERM)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _topology(nodes: int) -> str:
    leaves = [(n // LEAF, n, min(n + LEAF, nodes) - 1) for n in range(0, nodes, LEAF)]
    lines = [f"SwitchName=leaf{leaf} Nodes=gpu-[{low}-{high}]" for leaf, low, high in leaves]
    lines.append(f"SwitchName=spine Switches={','.join(f'leaf{leaf}' for leaf, _, _ in leaves)}")
    return "\n".join(lines) + "\n"


def free_ports(count: int) -> list[int]:
    """Ports that are unused now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
