"""This machine: what it can do, its processes, and what ranks get of the caller's environment."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from declarative.model.status import HARD, RUNTIMES
from providers.runner import part
from providers.transport import ConnectionLost, Finished, LocalTransport

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME"),
)
"""The caller's variables that a rank gets, besides `LC_*`: programs need them to run at all.

The list names what a rank may see, because the names of secrets cannot be listed. A task declares all other
variables in its `env`.
"""


class BareTransport:
    """Runs commands on this machine with nothing of the caller's environment but `inherited`."""

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Finished:
        pairs = [f"{name}={value}" for name, value in inherited(os.environ).items()]
        return LocalTransport().run(["env", "-i", *pairs, *argv], stdin, timeout)


def inherited(caller: Mapping[str, str]) -> dict[str, str]:
    """The variables of the caller that a rank gets."""
    variables = {k: v for k, v in caller.items() if k in INHERITED or k.startswith("LC_")}
    variables.setdefault("PATH", os.defpath)
    if "HOME" not in variables:
        try:
            variables["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            variables["HOME"] = "/"
    return variables


_CAN_SECONDS = 60.0
_DOCKER = Path("/var/run/docker.sock")


@cache
def can() -> frozenset[str]:
    """The features of this machine for this user (`Readiness.can`). Hard limits are tried once.

    It does not try runtimes: asking for a version takes longer than the rest of a plan.
    """
    abilities = {name for name in RUNTIMES if shutil.which(name)}
    if "DOCKER_HOST" not in os.environ and not os.access(_DOCKER, os.W_OK):
        abilities.discard("docker")  # only a client
    trial = BareTransport().run(["sh", "-c", f"{part('confine.sh')}\nable"], timeout=_CAN_SECONDS)
    return frozenset(abilities | {HARD} if trial.exit_code == 0 else abilities)


_GPU_SECONDS = 10.0
_GPU_TOOLS = {
    "nvidia-smi": ("--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits"),
    "rocm-smi": ("--showproductname", "--showmeminfo", "vram", "--csv"),
}


@cache
def gpus() -> tuple[str, ...] | None:
    """The models of this machine's GPUs by their vendor's tool; None if it fails."""
    tool = next((name for name in _GPU_TOOLS if shutil.which(name)), None)
    if tool is None:
        return ()
    from providers.ssh.gpus import BrokenGpuError, nvidia, rocm

    try:
        answer = BareTransport().run([tool, *_GPU_TOOLS[tool]], timeout=_GPU_SECONDS)
        rows = answer.stdout.decode(errors="replace").splitlines()
        reported = (nvidia if tool == "nvidia-smi" else rocm)(rows, answer.exit_code)
    except (BrokenGpuError, ConnectionLost):
        return None
    return tuple(gpu.name for gpu in reported)


def usable_cpus() -> tuple[int, ...]:
    """The numbers of the CPUs that this process may use, which need not begin at 0."""
    return tuple(sorted(os.sched_getaffinity(0)))


def kill_marked(ranks: str) -> None:
    """KILL all processes of attempts whose folder was below `ranks`, and those that they start meanwhile."""
    mark = f"FLEETFORM_RUN={ranks}".encode()
    for _ in range(MOST_ROUNDS):
        pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal() and _has(p, mark)]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return


MOST_ROUNDS = 100


def _has(process: Path, mark: bytes) -> bool:
    """Whether a process runs, and its environment has a variable that begins with `mark`."""
    try:
        return any(word.startswith(mark) for word in (process / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False
