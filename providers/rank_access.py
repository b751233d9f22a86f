"""Ways into a running rank: for people who type a command, and for its siblings by `mpirun`.

Siblings use an sshd of each rank's own (`peers.sh`). Each rank makes its key on its own host. The controller
tells the others the public half when it lets them run. So no private key leaves its host, and none is the
user's.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from declarative.provider import Launch
from providers.containers import text

_LAUNCHERS = (
    "OMPI_MCA_plm_rsh_agent",  # Open MPI up to 4
    "PRTE_MCA_plm_ssh_agent",  # and from 5 on
    "HYDRA_LAUNCHER_EXEC",  # MPICH, MVAPICH
    "I_MPI_HYDRA_BOOTSTRAP_EXEC",  # Intel MPI
)
VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(_LAUNCHERS, "fleetform-rsh"),
    "HYDRA_LAUNCHER": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    # Open MPI asks whether root means it. The task's user was chosen already.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""By which the launchers of MPI find ours. What the user declares counts more."""


def folder(node: str, attempt: str) -> str:
    """Where the attempt has it; the runner removes it when the attempt has ended."""
    return f"{node}/ranks/{attempt}/peers"


def found(node: str, attempt: str) -> str:
    """The command by which the rank finds it. Open MPI has one name for it on all hosts, so no path."""
    return f'export PATH="$PATH:"{shlex.quote(folder(node, attempt))}'


def shared(node: str, launch: Launch) -> str:
    """The path that leads to each rank's own folder on its host: there MPI begins on all of them."""
    gang = f"{launch.hostfile}\0{launch.env.get('FLEETFORM_TASK_NAME')}"
    return f"{PurePosixPath(node).parent}/gangs/{hashlib.sha256(gang.encode()).hexdigest()[:16]}"


def script(node: str, launch: Launch) -> str:
    """The functions that `meet` needs, and `meet`."""
    attempt, first = launch.attempt, "1" if launch.env.get("FLEETFORM_NODE_RANK") == "0" else ""
    given = shlex.join((f"{node}/work/{attempt}", shared(node, launch), first))
    join, rsh = joins(node, attempt), text("rsh.sh")
    return (
        f"joins() {{ printf %s {shlex.quote(join)}; }}\n"
        f"launches() {{ printf %s {shlex.quote(rsh)}; }}\n{text('peers.sh')}meet {given}\n"
    )


def beside(node: str, attempt: str, command: Sequence[str]) -> tuple[str, ...]:
    """What runs `command` beside a running attempt; without one, a shell. `node` is the node's folder."""
    enter, inside = (text("environ.sh") + text(name) for name in ("exec.sh", "inside.sh"))
    return ("sh", "-c", enter, "sh", inside, node, attempt, *command)


def joins(node: str, attempt: str) -> str:
    """The script that does the same with the command of an ssh session, `$SSH_ORIGINAL_COMMAND`."""
    _, _, enter, _, *words = beside(node, attempt, ("sh", "-c"))
    return f'set -- {shlex.join(words)} "$SSH_ORIGINAL_COMMAND"\n{enter}'
