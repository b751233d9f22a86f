"""Ranks of a node, whatever launched it: what its runner is given, and what the runner's answers mean.

Nothing is made on the node before the launch itself: the attempt's own folders are made by its first
command, so that a launch which is asked for twice makes them once.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from declarative.provider import Launch, PermanentError, PermanentKind, TransientError, TransientKind
from declarative.spec.amounts import show_mib
from declarative.state import (
    LIMIT_REACHED,
    NOT_RELEASED,
    PREPARING,
    WAITING,
    RankState,
    RankStatus,
)
from providers import containers, rank_access, runner
from providers.runner import LIVE, Attempt, AttemptState, Runner, RunnerError

_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)

MEBIBYTE = 1024 * 1024
VOLUME_VARIABLE = "FLEETFORM_VOLUME_"
LACKING = {
    "absent": "its host has no {} (`instance_path`)",
    "unmounted": "its host does not let {} be mounted (`instance_path`)",
}
HOSTFILE_VARIABLES = ("FLEETFORM_MPI_HOSTFILE", "DSTACK_MPI_HOSTFILE")


class Ranks:
    """The ranks of one node, as the port asks for them. Raises what `Runner` does, and the port's faults."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def start(self, launch: runner.Launch) -> RankStatus:
        """See `Provider.start`."""
        found = status(self._runner.start(launch))
        if found is None:
            summary = f"{launch.attempt_id} did not come up"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=launch.attempt_id)
        return found

    def release(self, attempts: Sequence[str], peers: Sequence[str]) -> dict[str, RankStatus | None]:
        """See `provider.Gates`. One round trip, however many there are."""
        found = self._runner.release(attempts, peers)
        return {attempt: status(found[attempt]) for attempt in attempts}

    def peers(self, attempts: Sequence[str]) -> dict[str, str]:
        """See `provider.Gates`. One round trip, however many there are."""
        return self._runner.peers(attempts)

    def running(self) -> list[str]:
        """The attempts that run, whoever started them."""
        found = self._runner.poll().items()
        return sorted(name for name, a in found if a.state in LIVE)

    def poll(self, attempts: Sequence[str]) -> dict[str, RankStatus | None]:
        """See `Provider.poll`. One round trip, however many there are."""
        found = self._runner.poll(attempts) if attempts else {}
        return {attempt: status(found[attempt]) for attempt in attempts}

    def attempts(self) -> dict[str, RankStatus]:
        """See `provider.Tells`."""
        return launched(self._runner.poll())

    def stop(self, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See `Provider.stop`."""
        found = self._runner.stop(attempt, grace_seconds)
        if found.state in LIVE:
            raise TransientError(TransientKind.BUSY, f"{attempt} could not be killed yet", about=attempt)
        return status(found)

    def change_limit(self, attempt: str, seconds: int | None) -> None:
        """See `Provider.change_limit`."""
        self._runner.set_limit(attempt, seconds)

    def ended_before(self, oldest: Mapping[str, int]) -> list[str]:
        """The attempts of these ranks that have ended, before the one named."""
        out = []
        for name, attempt in self._runner.poll().items():
            rank, number, *_ = *name.split("."), ""  # see `state.attempt_id`
            old = rank in oldest and number.isdecimal() and int(number) < oldest[rank]
            if old and attempt.state not in LIVE:
                out.append(name)
        return sorted(out)

    def forget_lost(self) -> None:
        """Let go of what nobody ended: control groups would outlive the node's folder."""
        for name, attempt in self._runner.poll().items():
            if attempt.state is AttemptState.LOST:
                self._runner.forget(name)

    def forget(self, attempt: str) -> None:
        """Forget an attempt that has ended; its log goes with it."""
        self._runner.forget(attempt)

    def read_log(self, attempt: str, offset: int, limit: int) -> bytes:
        """See `Provider.read_log`. An attempt that never started has an empty log."""
        try:
            return self._runner.tail(attempt, offset, limit)
        except RunnerError as error:
            if error.code == "missing":
                return b""
            raise


# ------------------------------------------------------------------------------------------ the launch


def prepared(
    node: str,
    usable: Sequence[int],
    launch: Launch,
    volumes: Mapping[str, str],
    *,
    must: bool = False,
    meets: bool = False,
) -> runner.Launch:
    """What the runner of a node is to launch.

    Args:
        node: The node's folder on its host.
        usable: The numbers of the host's CPUs that may be used; none if that is not known.
        launch: What the port was asked for.
        volumes: The declared path of each volume, and the folder on the host that holds its data.
        must: It is not to begin where they cannot be shown at their paths.
        meets: If it is told of its siblings, its programs can reach theirs (`peers`).
    """
    if not _ATTEMPT.fullmatch(launch.attempt):
        summary = f"`{launch.attempt}` cannot be an attempt's name"
        raise PermanentError(PermanentKind.INVALID, summary, about="attempt")
    cpus = wrapped(launch.cpus, usable) if usable else ()
    meets = meets and launch.hostfile is not None and launch.gate_seconds is not None
    try:
        text = _text(node, launch, cpus, volumes, meets=meets)
    except ValueError as error:
        raise PermanentError(PermanentKind.INVALID, str(error), about=launch.attempt) from error
    plain = runner.Launch(
        attempt_id=launch.attempt,
        script=text,
        cpus=cpus,
        limit_seconds=launch.max_seconds,
        grace_seconds=launch.stop_seconds,
        alone_seconds=launch.alone_seconds,
        near=launch.near,
        gate_seconds=launch.gate_seconds,
    )
    if launch.image is not None:
        return plain  # a container has limits and mounts of its own
    mounts, binds = _shown(launch, volumes, must=must)
    memory = launch.memory_mib * MEBIBYTE if launch.memory_mib else None
    return replace(plain, memory_bytes=memory, hard=launch.hard, mounts=mounts, binds=binds)


def _text(node: str, launch: Launch, cpus: Sequence[int], volumes: Mapping[str, str], *, meets: bool) -> str:
    """The shell script of a launch; `ValueError` if there can be none."""
    env = _environment(launch, cpus, volumes)
    own = f"{node}/work/{launch.attempt}"
    begin = [f"mkdir -p {shlex.quote(own)}"]
    if launch.hostfile is not None:
        # Beside the rank's folder, which is the user's.
        path = f"{node}/hosts/{launch.attempt}"
        env |= dict.fromkeys(HOSTFILE_VARIABLES, path)
        written = f"printf %s {shlex.quote(launch.hostfile)} >{shlex.quote(path)}"
        begin.insert(0, f"mkdir -p {shlex.quote(node)}/hosts && {written}")
    commands, shared, before = launch.commands, own, ""
    if meets:
        env = {**rank_access.VARIABLES, **env}
        commands = (rank_access.found(node, launch.attempt), *commands)
        shared, before = rank_access.shared(node, launch), rank_access.script(node, launch)
    go = _working_folder(own, shared, launch, volumes)
    if launch.image is None:
        text = runner.script((" && ".join((*begin, go)), *commands), env, "")
        if launch.gate_seconds is not None:
            # Before the rank's own variables: its PATH may lead elsewhere.
            text = f"{containers.text('gate.sh')}behind || exit 75\n{text}"
        return before + text
    # What the image is made for begins where the image says.
    there = _recounted(launch, go if launch.commands or launch.working_dir else "true")
    last = () if launch.commands else (containers.OWN,)
    box = _container(node, launch, cpus, volumes, meets=meets)
    inside = runner.script((there, *commands, *last), env, "")
    return before + containers.script(box, begin, sorted(volumes), inside)


def _shown(
    launch: Launch, volumes: Mapping[str, str], *, must: bool
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, bool], ...]]:
    """What is shown to a rank if it can be, and what has to be: from where, at which path, and whether it may
    be absent.
    """
    binds = [(b.source, b.target, b.optional) for b in launch.binds]
    shown = [(folder, path) for path, folder in sorted(volumes.items())]
    if not must:
        return tuple(shown), tuple(binds)
    every = [*((folder, path, False) for folder, path in shown), *binds]
    return (), tuple(sorted(every, key=lambda bind: bind[1]))  # `/a` before `/a/b`


def _container(
    node: str, launch: Launch, cpus: Sequence[int], volumes: Mapping[str, str], *, meets: bool
) -> containers.Container:
    """What a rank with an image runs in."""
    own, hosts = f"{node}/work/{launch.attempt}", f"{node}/hosts/{launch.attempt}"
    mounts = [containers.Mount(source=own, target=own)]
    if meets:
        mounts.append(containers.Mount(source=own, target=rank_access.shared(node, launch)))
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
        peers=rank_access.folder(node, launch.attempt) if meets else None,
        cpus=tuple(cpus),
        memory_mib=launch.memory_mib,
        gpus=launch.gpus,
        privileged=launch.privileged,
        login=launch.login,
        own=not launch.commands,
        hard=launch.hard,
    )


def _recounted(launch: Launch, go: str) -> str:
    return (
        f"{go} && {{ {containers.recounted(launch.gpus, privileged=launch.privileged)}; }}"
        if launch.gpus
        else go
    )


def wrapped(declared: Sequence[int], usable: Sequence[int]) -> tuple[int, ...]:
    """The machine's CPUs for declared ones: those beyond the machine's begin anew at its first."""
    return tuple(dict.fromkeys(usable[cpu % len(usable)] for cpu in declared))


def _working_folder(own: str, shared: str, launch: Launch, volumes: Mapping[str, str]) -> str:
    """The command that goes where the rank begins, once its own folder is there."""
    given = PurePosixPath(launch.working_dir or ".")
    for target, source in volumes.items():
        # At the declared path only if it really is the volume: where nothing may be mounted, another folder
        # of that name may be there.
        if launch.working_dir and launch.image is None and given.is_relative_to(target):
            inside = shlex.quote(f"./{given.relative_to(target)}")
            there, real = shlex.quote(target), shlex.quote(source)
            return f"if [ {there} -ef {real} ]; then cd {there}; else cd {real}; fi && cd {inside}"
    if ".." in given.parts:
        summary = f"`{given}` leads out of the rank's folder"
        hint = "write an absolute path, or one below the rank's own folder"
        raise PermanentError(PermanentKind.INVALID, summary, about="working_dir", hint=hint)
    if given.is_absolute():
        return f"cd {shlex.quote(str(given))}"
    folder, same = shlex.quote(f"{own}/{given}"), shlex.quote(f"{shared}/{given}")
    if shared == own:
        return f"mkdir -p {folder} && cd {folder}"
    return f"mkdir -p {folder} && if [ {same} -ef {folder} ]; then cd {same}; else cd {folder}; fi"


def _environment(launch: Launch, cpus: Sequence[int], volumes: Mapping[str, str]) -> dict[str, str]:
    """The rank's variables: the declared ones, its volumes' real folders, its CPUs and its GPUs."""
    env = dict(launch.env)
    for name, value in launch.env.items():
        # A container has it where it is declared.
        if launch.image is None and name.startswith(VOLUME_VARIABLE) and value in volumes:
            env[name] = volumes[value]
    if cpus:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env.setdefault(name, str(len(cpus)))
    # Not the declaration's to change: these are the GPUs of the rank's blocks. For AMD's as well, whose HIP
    # heeds it; with `ROCR_VISIBLE_DEVICES` beside it, the numbers would be counted twice.
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.gpus))
    return env


# ----------------------------------------------------------------------------------------- the answers


def launched(found: Mapping[str, Attempt]) -> dict[str, RankStatus]:
    """How those are that were launched."""
    every = ((name, status(attempt)) for name, attempt in found.items())
    return {name: known for name, known in every if known}


def status(attempt: Attempt) -> RankStatus | None:
    """What an attempt's state means; None for one that was never launched."""
    state, cause = _meaning(attempt)
    if state is None:
        return None
    return RankStatus(
        state=state,
        exit_code=attempt.exit_code,
        cause=cause,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        mounted=attempt.mounted,
        confinement=": ".join(filter(None, (attempt.confined, attempt.means))) or None,
    )


_MEANING: Mapping[AttemptState, tuple[RankState | None, str | None]] = {
    AttemptState.MISSING: (None, None),
    AttemptState.CLAIMED: (None, None),  # its caller died first; it can be started
    AttemptState.PREPARING: (RankState.STARTING, PREPARING),
    AttemptState.GATED: (RankState.STARTING, WAITING),
    AttemptState.RUNNING: (RankState.RUNNING, None),
    AttemptState.ORPHAN: (RankState.RUNNING, "its supervisor died: how it ends will not be known"),
    AttemptState.LOST: (RankState.LOST, "it and its supervisor died: how it ended is not known"),
    AttemptState.REBOOTED: (RankState.LOST, "the machine restarted while it ran"),
}


def _meaning(attempt: Attempt) -> tuple[RankState | None, str | None]:
    if attempt.reason == "gate":
        return RankState.LOST, NOT_RELEASED
    return _end(attempt) if attempt.state is AttemptState.EXITED else _MEANING[attempt.state]


def _end(attempt: Attempt) -> tuple[RankState, str | None]:
    if attempt.reason == "limit":
        return RankState.FAILED, LIMIT_REACHED
    if attempt.reason == "alone":
        return RankState.LOST, "its host was cut off: no command reached it, and it reached no other"
    if attempt.reason in LACKING:
        return RankState.FAILED, LACKING[attempt.reason].format(attempt.lacking or "a folder of `volumes`")
    if attempt.reason == "memory":
        return RankState.FAILED, _memory_cause(attempt)
    if attempt.reason in containers.LACKING:
        return RankState.FAILED, containers.LACKING[attempt.reason]
    if attempt.reason is not None:
        return RankState.STOPPED, None
    if attempt.exit_code == 0:
        return RankState.SUCCEEDED, None
    return RankState.FAILED, _code_cause(attempt.exit_code)


def _memory_cause(attempt: Attempt) -> str:
    limit = f" (limit {show_mib(attempt.memory_bytes // MEBIBYTE)})" if attempt.memory_bytes else ""
    killed = f"killed: out of memory{limit}"
    if attempt.exit_code == 128 + signal.SIGKILL:
        return killed
    return f"{_code_cause(attempt.exit_code)}, after a process of it was {killed}"  # it may have gone on


def _code_cause(code: int | None) -> str:
    cause = f"exit code {code}"
    if code is not None and code - 128 in set(signal.Signals):
        cause += f" ({signal.Signals(code - 128).name})"
    return cause
