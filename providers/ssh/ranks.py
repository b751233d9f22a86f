"""Ranks on a host: what its runner is given to launch. Nothing is made there before the launch itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from declarative.provider import Launch, PermanentError, PermanentKind
from providers import runner
from providers.local.ranks import HOSTFILE_VARIABLES, wrapped

_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)


def prepared(node: str, usable: Sequence[int], launch: Launch) -> runner.Launch:
    """What the runner of a host is to launch; `node` is the node's folder there, `usable` its CPUs.

    The attempt's own folders are made by its first command: a launch that is asked for twice makes them once.
    """
    if not _ATTEMPT.fullmatch(launch.attempt):
        summary = f"`{launch.attempt}` cannot be an attempt's name"
        raise PermanentError(PermanentKind.INVALID, summary, about="attempt")
    if launch.volumes:
        summary = "volumes cannot be used on ssh hosts yet"
        raise PermanentError(PermanentKind.INVALID, summary, about="volumes")
    cpus = wrapped(launch.cpus, usable) if usable else ()
    env = _environment(launch, cpus)
    begin = [_working_folder(node, launch)]
    if launch.hostfile is not None:
        path = f"{node}/hosts/{launch.attempt}"
        env |= dict.fromkeys(HOSTFILE_VARIABLES, path)
        text, quoted = shlex.quote(launch.hostfile), shlex.quote(path)
        begin.insert(0, f"mkdir -p {shlex.quote(node)}/hosts && printf %s {text} >{quoted}")
    try:
        text = runner.script((" && ".join(begin), *launch.commands), env, "")
    except ValueError as error:
        raise PermanentError(PermanentKind.INVALID, str(error), about=launch.attempt) from error
    return runner.Launch(
        attempt_id=launch.attempt,
        script=text,
        cpus=cpus,
        limit_seconds=launch.max_seconds,
        grace_seconds=launch.stop_seconds,
    )


def _working_folder(node: str, launch: Launch) -> str:
    """The command that makes the folder where the rank begins, and goes there."""
    given = PurePosixPath(launch.working_dir or ".")
    own = shlex.quote(f"{node}/work/{launch.attempt}")
    if ".." in given.parts:
        summary = f"`{given}` leads out of the rank's folder"
        hint = "write an absolute path, or one below the rank's own folder"
        raise PermanentError(PermanentKind.INVALID, summary, about="working_dir", hint=hint)
    if given.is_absolute():
        return f"mkdir -p {own} && cd {shlex.quote(str(given))}"
    folder = shlex.quote(f"{node}/work/{launch.attempt}/{given}")
    return f"mkdir -p {folder} && cd {folder}"


def _environment(launch: Launch, cpus: Sequence[int]) -> dict[str, str]:
    env = dict(launch.env)
    if cpus:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env.setdefault(name, str(len(cpus)))
    # Not the declaration's to change: these are the GPUs of the rank's blocks (see providers/local/ranks.py).
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.gpus))
    return env
