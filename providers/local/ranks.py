"""Ranks of a node: what the runner is given to launch, and what its answers mean at the port."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from declarative.provider import Launch, PermanentError, PermanentKind
from declarative.state import RankState, RankStatus
from providers import runner
from providers.runner import Attempt, AttemptState
from providers.transport import Finished, LocalTransport

_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME"),
)
"""The caller's variables that a rank gets, besides `LC_*`: what programs need to run at all.

A list of what is let through, not of what is held back: nobody can list the names that people give to
their secrets. What else a task needs, it names in its `env`.
"""

VOLUME_VARIABLE = "FLEETFORM_VOLUME_"
HOSTFILE_VARIABLES = ("FLEETFORM_MPI_HOSTFILE", "DSTACK_MPI_HOSTFILE")


class BareTransport:
    """The way to this machine, without what the caller's environment holds for the caller alone."""

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Finished:
        """See `Transport.run`."""
        pairs = [f"{name}={value}" for name, value in inherited(os.environ).items()]
        return LocalTransport().run(["env", "-i", *pairs, *argv], stdin, timeout)


def inherited(caller: Mapping[str, str]) -> dict[str, str]:
    """What a rank gets of its caller's environment."""
    kept = {k: v for k, v in caller.items() if k in INHERITED or k.startswith("LC_")}
    kept.setdefault("PATH", os.defpath)
    if "HOME" not in kept:
        try:
            kept["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            kept["HOME"] = "/"
    return kept


def usable_cpus() -> tuple[int, ...]:
    """The numbers of the CPUs that this process may use, which need not begin at 0."""
    return tuple(sorted(os.sched_getaffinity(0)))


def wrapped(declared: Sequence[int], usable: Sequence[int]) -> tuple[int, ...]:
    """The machine's CPUs for declared ones: those beyond the machine's begin anew at its first."""
    return tuple(dict.fromkeys(usable[cpu % len(usable)] for cpu in declared))


def work_folder(node: Path, attempt: str) -> Path:
    """The folder that an attempt has for itself."""
    if not _ATTEMPT.fullmatch(attempt):
        summary = f"`{attempt}` cannot be an attempt's name"
        raise PermanentError(PermanentKind.INVALID, summary, about="attempt")
    return node / "work" / attempt


def prepare(node: Path, launch: Launch, data: Mapping[str, Path]) -> runner.Launch:
    """Make the attempt's folders, and what the runner is to launch. `data` maps declared paths to folders."""
    cpus = wrapped(launch.cpus, usable_cpus())
    folder = work_folder(node, launch.attempt)
    folder.mkdir(parents=True, exist_ok=True)
    commands = launch.commands
    begin = _beginning(launch.working_dir, data)
    if begin is None:
        relative = Path(launch.working_dir or ".")
        if ".." in relative.parts:
            summary = f"`{relative}` leads out of the rank's folder"
            hint = "write an absolute path, or one below the rank's own folder"
            raise PermanentError(PermanentKind.INVALID, summary, about="working_dir", hint=hint)
        folder = folder / relative  # which is the other one, if that is absolute
        if not relative.is_absolute():
            folder.mkdir(parents=True, exist_ok=True)
    else:
        commands = (begin, *commands)
    env = _environment(launch, cpus, data)
    if launch.hostfile is not None:
        hostfile = str(_write_hosts(node, launch.attempt, launch.hostfile))
        env |= dict.fromkeys(HOSTFILE_VARIABLES, hostfile)
    try:
        text = runner.script(commands, env, str(folder))
    except ValueError as error:
        raise PermanentError(PermanentKind.INVALID, str(error), about=launch.attempt) from error
    return runner.Launch(
        attempt_id=launch.attempt,
        script=text,
        cpus=cpus,
        limit_seconds=launch.max_seconds,
        grace_seconds=launch.stop_seconds,
        mounts=tuple((str(source), target) for target, source in sorted(data.items())),
    )


def _write_hosts(node: Path, attempt: str, text: str) -> Path:
    """Write the MPI host file, beside the rank's folder, which is the user's."""
    path = node / "hosts" / attempt
    path.parent.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".new.", dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)  # whole at any time: it may be a rank that runs already
    return path


def _beginning(working_dir: str | None, data: Mapping[str, Path]) -> str | None:
    """The command that goes to a working folder on a volume, wherever the rank finds that volume.

    At the declared path only if it really is the volume: where nothing may be mounted, another folder of
    that name may be there.
    """
    for target, source in data.items():
        if working_dir and Path(working_dir).is_relative_to(target):
            inner = Path(working_dir).relative_to(target)
            there, real = shlex.quote(target), shlex.quote(str(source))
            inside = shlex.quote(str(inner))
            return f"if [ {there} -ef {real} ]; then cd {there}; else cd {real}; fi && cd ./{inside}"
    return None


def _environment(launch: Launch, cpus: Sequence[int], data: Mapping[str, Path]) -> dict[str, str]:
    """The rank's variables: the declared ones, its volumes' real folders, its CPUs and its GPUs."""
    env = dict(launch.env)
    for name, value in launch.env.items():
        if name.startswith(VOLUME_VARIABLE) and value in data:
            env[name] = str(data[value])
    if cpus:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env.setdefault(name, str(len(cpus)))
    # Not the declaration's to change: these are the GPUs of the rank's blocks. For AMD's as well, whose HIP
    # heeds it; with `ROCR_VISIBLE_DEVICES` beside it, the numbers would be counted twice.
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.gpus))
    return env


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
    )


def _meaning(attempt: Attempt) -> tuple[RankState | None, str | None]:
    match attempt.state:
        case AttemptState.MISSING | AttemptState.CLAIMED:  # claimed: its caller died first; it can be started
            return None, None
        case AttemptState.RUNNING:
            return RankState.RUNNING, None
        case AttemptState.ORPHAN:
            return RankState.RUNNING, "its supervisor died: how it ends will not be known"
        case AttemptState.LOST:
            return RankState.LOST, "it and its supervisor died: how it ended is not known"
        case AttemptState.REBOOTED:
            return RankState.LOST, "the machine restarted while it ran"
        case AttemptState.EXITED:
            return _end(attempt)


def _end(attempt: Attempt) -> tuple[RankState, str | None]:
    if attempt.reason == "limit":
        return RankState.FAILED, "max_duration reached"
    if attempt.reason is not None:
        return RankState.STOPPED, None
    code = attempt.exit_code
    if code == 0:
        return RankState.SUCCEEDED, None
    cause = f"exit code {code}"
    if code is not None and code - 128 in set(signal.Signals):
        cause += f" ({signal.Signals(code - 128).name})"
    return RankState.FAILED, cause
