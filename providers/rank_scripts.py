"""The shell scripts of a rank: what its runner launches, and the ways into it while it runs.

Nothing is made on the node before the launch itself: the first command of an attempt makes its folders. So a
launch that is asked for twice makes them once.

People enter a rank with a command; its siblings enter it by `mpirun`, with an sshd of each rank's own
(`peers.sh`). Each rank makes its key on its own host. The controller tells the others the public half when it
lets them run. So no private key leaves its host, and none is the user's.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from declarative.model.inputs import GPU_VARIABLES, HOSTFILE_VARIABLES, VOLUME_VARIABLE
from declarative.provider import Launch, PermanentError, PermanentKind
from providers import containers, runner
from providers.containers import text

_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)

MEBIBYTE = 1024 * 1024
_GPU_WORDS = "unset visible named counted known number id fault earlier answer seconds code"
_FUNCTION = re.compile(r"^([a-z_]+)\(\)", re.MULTILINE)
_LAUNCHERS = (
    "OMPI_MCA_plm_rsh_agent",  # Open MPI up to 4
    "PRTE_MCA_plm_ssh_agent",  # and from 5 on
    "HYDRA_LAUNCHER_EXEC",  # MPICH, MVAPICH
    "I_MPI_HYDRA_BOOTSTRAP_EXEC",  # Intel MPI
)
_FOUND_BY = {
    "openmpi": ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    "hydra": ("HYDRA_HOST_FILE",),
    "intel": ("I_MPI_HYDRA_HOST_FILE",),
}
"""Variables by which launchers find their host files, of `Launch.hostfiles`."""
MPI_VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(_LAUNCHERS, "fleetform-rsh"),
    "HYDRA_LAUNCHER": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    # Open MPI asks whether root is intended. The user of the task was chosen already.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""Variables by which MPI's launchers find our login script. One that the user declares counts instead."""


# ------------------------------------------------------------------------------------------ the launch


def prepared(
    node: str,
    usable: Sequence[int],
    launch: Launch,
    volumes: Mapping[str, str],
    *,
    must: bool = False,
    meets: bool = False,
    devices: Sequence[str] = (),
    sees_own_gpus: bool = False,
) -> runner.Launch:
    """The launch that the runner of a node gets.

    Args:
        node: The node's folder on its host.
        usable: The numbers of the host's CPUs that may be used; none if unknown.
        launch: The port's launch.
        volumes: The declared path of each volume, and the folder on the host that holds its data.
        must: The rank does not start if the host cannot show it a volume at the declared path.
        meets: If it knows its siblings, its programs can reach theirs (`meet` in `peers.sh`).
        devices: The UUIDs of the node's GPUs, as `launch.gpus` counts them; none if they are unknown.
        sees_own_gpus: The process that runs it on the node says which GPUs it sees.
    """
    if not _ATTEMPT.fullmatch(launch.attempt):
        summary = f"`{launch.attempt}` cannot be an attempt's name"
        raise PermanentError(PermanentKind.INVALID, summary, about="attempt")
    cpus = wrapped(launch.cpus, usable) if usable else ()
    meets = meets and launch.hostfile is not None and launch.gate_seconds is not None
    try:
        gpus = None if sees_own_gpus else tuple(_device(devices, gpu) for gpu in launch.gpus)
        script = _script(node, launch, cpus, volumes, meets=meets, gpus=gpus)
    except ValueError as error:
        raise PermanentError(PermanentKind.INVALID, str(error), about=launch.attempt) from error
    plain = runner.Launch(
        attempt_id=launch.attempt,
        script=script,
        cpus=cpus,
        limit_seconds=launch.max_seconds,
        grace_seconds=launch.stop_seconds,
        alone_seconds=launch.alone_seconds,
        near=launch.near,
        gate_seconds=launch.gate_seconds,
        unused=launch.unused,
        gpus=gpus or (),
    )
    # A container has limits and mounts of its own.
    return plain if launch.image is not None else _bare(plain, launch, volumes, must=must)


def _bare(plain: runner.Launch, launch: Launch, volumes: Mapping[str, str], *, must: bool) -> runner.Launch:
    """The launch, with the limits and mounts that the runner gives to a rank outside of a container."""
    memory = launch.memory_mib * MEBIBYTE if launch.memory_mib else None
    binds = tuple((bind.source, bind.target, bind.optional) for bind in launch.binds)
    plain = replace(plain, memory_bytes=memory, hard=launch.hard, binds=binds)
    if not must:
        return replace(plain, mounts=tuple((folder, path) for path, folder in sorted(volumes.items())))
    every = *((folder, path, False) for path, folder in volumes.items()), *binds
    return replace(plain, binds=tuple(sorted(every, key=lambda bind: bind[1])))  # `/a` before `/a/b`


def _device(devices: Sequence[str], gpu: int) -> str:
    """The UUID of a node's GPU, or its number where nothing is recorded."""
    return devices[gpu] if gpu < len(devices) else str(gpu)


def _script(
    node: str,
    launch: Launch,
    cpus: Sequence[int],
    volumes: Mapping[str, str],
    *,
    meets: bool,
    gpus: tuple[str, ...] | None,
) -> str:
    """The shell script of a launch; `ValueError` if there can be none."""
    env = _environment(launch, cpus, volumes)
    own = f"{node}/work/{launch.attempt}"
    begin = [f"mkdir -p {shlex.quote(own)}"]
    if launch.hostfile is not None:
        files, named = _hostfiles(node, launch, meets=meets)
        env = {**named, **env, **{name: named[name] for name in HOSTFILE_VARIABLES}}
        written = (f"printf %s {shlex.quote(text)} >{shlex.quote(path)}" for path, text in files.items())
        begin.insert(0, " && ".join((f"mkdir -p {shlex.quote(_hosts_folder(node, launch))}", *written)))
    commands, shared, before = launch.commands, own, ""
    if meets:
        env = {**MPI_VARIABLES, **env}
        # Open MPI has one name for its launcher on all hosts, so it cannot be a path.
        commands = (f'export PATH="$PATH:"{shlex.quote(_peers_folder(node, launch))}', *commands)
        shared, before = _shared_folder(node, launch), _meet(node, launch)
    go = _working_folder(own, shared, launch, volumes)
    if launch.image is None:
        # Before the rank's own variables: its PATH may lead elsewhere.
        if gpus is not None:
            before += f'{text("gpus.sh")}devices {shlex.join(gpus)}\neval "$(exports)"\n{_GPU_WORDS}\n'
        if launch.gate_seconds is not None:
            before += f"{text('gate.sh')}behind || exit 75\nunset patience waited\n"
        before += _forgotten(before)
        return before + runner.script((" && ".join((*begin, go)), *commands), env, "")
    if not (launch.commands or launch.working_dir):
        go = "true"  # the image's own program begins where the image says
    if launch.gpus:
        go = f"{go} && {{ {containers.recounted(len(launch.gpus), privileged=launch.privileged)}; }}"
    inside = runner.script((go, *commands, *(() if launch.commands else (containers.OWN,))), env, "")
    container = _container(node, launch, cpus, gpus or (), volumes, meets=meets)
    return before + containers.script(container, begin, sorted(volumes), inside)


def _forgotten(before: str) -> str:
    """Takes back the functions that `before` defines: the task's programs may have their names."""
    functions = sorted({*_FUNCTION.findall(before)})
    return f"unset -f {' '.join(functions)}\n" if functions else ""


def _hosts_folder(node: str, launch: Launch) -> str:
    """The folder of an attempt's host files, beside the rank's folder, which is the user's."""
    return f"{node}/hosts/{launch.attempt}"


def _hostfiles(node: str, launch: Launch, *, meets: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Path → text of a rank's host files, and variable → path. Only ranks that reach each other's programs
    get the variables by which launchers find theirs: elsewhere `mpirun` is for the rank's own node.
    """
    folder = _hosts_folder(node, launch)
    texts = {"plain": launch.hostfile or "", "openmpi": launch.hostfile or "", **launch.hostfiles}
    named = dict(zip(HOSTFILE_VARIABLES, (f"{folder}/plain", f"{folder}/openmpi"), strict=True))
    for launcher in launch.hostfiles if meets else ():
        named |= dict.fromkeys(_FOUND_BY.get(launcher, ()), f"{folder}/{launcher}")
    return {f"{folder}/{name}": text for name, text in texts.items()}, named


def _container(
    node: str,
    launch: Launch,
    cpus: Sequence[int],
    gpus: tuple[str, ...],
    volumes: Mapping[str, str],
    *,
    meets: bool,
) -> containers.Container:
    """The container of a rank with an image."""
    own, hosts = f"{node}/work/{launch.attempt}", _hosts_folder(node, launch)
    mounts = [containers.Mount(source=own, target=own)]
    if meets:
        mounts.append(containers.Mount(source=own, target=_shared_folder(node, launch)))
    if launch.hostfile is not None:
        mounts.append(containers.Mount(source=hosts, target=hosts, read_only=True))
    # `/a` before `/a/b`
    mounts += [containers.Mount(source=source, target=target) for target, source in sorted(volumes.items())]
    return containers.Container(
        image=launch.image or "",
        name=containers.name_of(node, launch.attempt),
        mounts=tuple(mounts),
        binds=tuple(
            containers.Mount(source=bind.source, target=bind.target, optional=bind.optional)
            for bind in launch.binds
        ),
        peers=_peers_folder(node, launch) if meets else None,
        cpus=tuple(cpus),
        memory_mib=launch.memory_mib,
        gpus=gpus,
        privileged=launch.privileged,
        login=launch.login,
        own=not launch.commands,
        hard=launch.hard,
    )


def wrapped(declared: Sequence[int], usable: Sequence[int]) -> tuple[int, ...]:
    """The machine's CPUs for declared ones: numbers beyond the machine's begin again at its first."""
    return tuple(dict.fromkeys(usable[cpu % len(usable)] for cpu in declared))


def _working_folder(own: str, shared: str, launch: Launch, volumes: Mapping[str, str]) -> str:
    """The command that changes to the folder in which the rank begins, once its own folder is there."""
    declared = PurePosixPath(launch.working_dir or ".")
    for target, source in volumes.items():
        # At the declared path only if it really is the volume: if the host mounts nothing, another folder
        # of that name may be there.
        if launch.working_dir and launch.image is None and declared.is_relative_to(target):
            inside = shlex.quote(f"./{declared.relative_to(target)}")
            at_target, real = shlex.quote(target), shlex.quote(source)
            return f"if [ {at_target} -ef {real} ]; then cd {at_target}; else cd {real}; fi && cd {inside}"
    if ".." in declared.parts:
        summary = f"`{declared}` leads out of the rank's folder"
        hint = "write an absolute path, or one below the rank's own folder"
        raise PermanentError(PermanentKind.INVALID, summary, about="working_dir", hint=hint)
    if declared.is_absolute():
        return f"cd {shlex.quote(str(declared))}"
    folder, same = shlex.quote(f"{own}/{declared}"), shlex.quote(f"{shared}/{declared}")
    if shared == own:
        return f"mkdir -p {folder} && cd {folder}"
    return f"mkdir -p {folder} && if [ {same} -ef {folder} ]; then cd {same}; else cd {folder}; fi"


def _environment(launch: Launch, cpus: Sequence[int], volumes: Mapping[str, str]) -> dict[str, str]:
    """The rank's variables: the declared ones, its volumes' real folders and its CPUs. The declaration
    cannot change those of its GPUs, which the host sets: see `gpus.sh`.
    """
    env = {name: value for name, value in launch.env.items() if name not in GPU_VARIABLES}
    for name, value in env.items():
        # A container has its volumes at the declared paths.
        if launch.image is None and name.startswith(VOLUME_VARIABLE) and value in volumes:
            env[name] = volumes[value]
    if cpus:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env.setdefault(name, str(len(cpus)))
    return env


# -------------------------------------------------------------------------- ways into a running rank


def beside(node: str, attempt: str, command: Sequence[str]) -> tuple[str, ...]:
    """The words that run `command`, or a shell, beside a running attempt. `node` is the node's folder."""
    enter, inside = (text("environ.sh") + text(name) for name in ("exec.sh", "inside.sh"))
    return ("sh", "-c", enter, "sh", inside, node, attempt, *command)


def _meet(node: str, launch: Launch) -> str:
    """The script that lets siblings in: the functions that `meet` needs, and `meet`."""
    first = "1" if launch.env.get("FLEETFORM_NODE_RANK") == "0" else ""
    arguments = shlex.join((f"{node}/work/{launch.attempt}", _shared_folder(node, launch), first))
    # What `beside` runs, with the command of an ssh session.
    _, _, enter, _, *words = beside(node, launch.attempt, ("sh", "-c"))
    joins = f'set -- {shlex.join(words)} "$SSH_ORIGINAL_COMMAND"\n{enter}'
    return (
        f"joins() {{ printf %s {shlex.quote(joins)}; }}\n"
        f"launches() {{ printf %s {shlex.quote(text('rsh.sh'))}; }}\n{text('peers.sh')}meet {arguments}\n"
    )


def _peers_folder(node: str, launch: Launch) -> str:
    """The launcher for MPI and the keys of an attempt; the runner removes it when the attempt has ended."""
    return f"{node}/ranks/{launch.attempt}/peers"


def _shared_folder(node: str, launch: Launch) -> str:
    """A path that leads to each rank's own folder on its host: MPI begins there on all of them."""
    gang = f"{launch.hostfile}\0{launch.env.get('FLEETFORM_TASK_NAME')}"
    return f"{PurePosixPath(node).parent}/gangs/{hashlib.sha256(gang.encode()).hexdigest()[:16]}"
