"""Python's side of `runner.sh`, the script that runs one rank of a task on one host.

Every call may be repeated after a `ConnectionLost`: an attempt is launched at most once, and to stop or
forget it twice is the same as once.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from declarative.model.record import struct
from declarative.provider import Fence, reads_only
from providers.transport import ConnectionLost, Finished, Transport

T = TypeVar("T")

ANSWER_SECONDS = 60.0  # for a short task of a host, which may be busy and wait up to 20 s for a lock
_HERE = Path(__file__).resolve().parent
SCRIPT = str(_HERE / "runner.sh")
_PARTS = ("attempt.sh", "report.sh", "end.sh", "watch.sh", "start.sh", "task.sh", "change.sh", "runner.sh")
IDS_PER_CALL = 500  # keeps the command line far below every host's limit

_HOST, _END, _LOG, _ERROR = b"FLEETFORM-HOST 1", b"FLEETFORM-END", b"FLEETFORM-LOG ", b"FLEETFORM-ERR "
_PEERS, _LAST = b"FLEETFORM-PEERS\n", "."
_PEER = re.compile(r"[0-9]{1,5} [A-Za-z0-9_][A-Za-z0-9._-]* ecdsa-[a-z0-9-]+ [A-Za-z0-9+/=]+", re.ASCII)
_NONE = b"-"
_NEVER_BEGAN = (b"absent", b"unmounted")
_SIGNAL = 128  # a shell's exit code for a killed child is above this
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class AttemptState(StrEnum):
    """The state of an attempt, as its host reports it."""

    RUNNING = "running"
    EXITED = "exited"  # its exit code is known, and nothing of it runs any more
    ORPHAN = "orphan"  # its supervisor died, and it runs on; it can be stopped, its exit code is lost
    LOST = "lost"  # it and its supervisor died: nobody knows how it ended
    REBOOTED = "rebooted"  # the host restarted while it ran
    MISSING = "missing"  # the host never heard of it, or forgot it on demand
    PREPARING = "preparing"  # it prepares what it needs before its gate
    GATED = "gated"  # it waits for `Runner.release`; none of its commands ran
    CLAIMED = "claimed"  # the host launched nothing yet: it can still be started


LIVE = frozenset({AttemptState.RUNNING, AttemptState.ORPHAN, AttemptState.PREPARING, AttemptState.GATED})
"""The states of attempts that have processes."""


@struct(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run, once.

    `script` is a shell script as `script()` makes it. `cpus` are the numbers of the CPUs it is bound to, none
    for all, and `memory_bytes` limits its memory: both as strictly as the host can. With `hard` it does not
    start on a host whose kernel would not enforce them. After `limit_seconds` it is stopped, with
    `grace_seconds` between TERM and KILL. `mounts` are pairs of a folder and of the path where only the task
    sees it, both absolute. If the host does not allow that, the task runs without. `binds` are the same, of
    folders and files that the host may lack: without one that is not optional (the third item) the task ends
    before its first command. With `gate_seconds` the script waits at most so long at a gate (`gate.sh`), and
    `limit_seconds` count from there. After `alone_seconds` in which its host was cut off from us, from its
    gateway and from the addresses that are `near`, it is stopped: see `watch_contact` in watch.sh.
    `unused` is percent and seconds: it is stopped once one of the `gpus` was used less for so long, by every
    sample; without `gpus` those that its environment names. `gpus` are UUIDs, or numbers where none are
    known.
    """

    attempt_id: str
    script: str
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    hard: bool = False
    limit_seconds: int | None = None
    grace_seconds: int = 10
    mounts: tuple[tuple[str, str], ...] = ()
    binds: tuple[tuple[str, str, bool], ...] = ()
    gate_seconds: int | None = None
    alone_seconds: int | None = None
    near: tuple[str, ...] = ()
    unused: tuple[int, int] | None = None
    gpus: tuple[str, ...] = ()


@struct(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt as its host reports it.

    `exit_code` is 128 plus the signal's number for a task that was killed. `reason` is why something else
    ended it: `stopped`, `limit`, `unused` (a GPU was), `alone` (its host was cut off), `memory` (the kernel
    killed a process of it for lack of memory), `gate` (nobody released it: none of its commands ran), or
    None; or why it never began: `absent` and `unmounted` tell of the host's `lacking` path, one of
    `Launch.binds`.
    `started_at` and `ended_at` are seconds since the epoch by the host's clock, which may differ from ours.
    `mounted` holds the paths of `Launch.mounts` and `Launch.binds` that the task sees. `confined` is how it
    is held to its CPUs and memory: `hard`, `soft` or `none`, and by what `means`, within `memory_bytes`; None
    if nobody asked for that, or if an older runner started it. `used` is number, UUID (empty if unknown) and
    percent of GPUs that `Launch.unused` has sampled.
    """

    attempt_id: str
    state: AttemptState
    exit_code: int | None = None
    reason: str | None = None
    log_bytes: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    mounted: tuple[str, ...] = ()
    lacking: str | None = None
    confined: str | None = None
    means: str | None = None
    memory_bytes: int | None = None
    used: tuple[tuple[int, str, int], ...] = ()


class RunnerError(Exception):
    """The host refused a request.

    `code` is one of usage, missing, tools (a program is not there), unwritable, nospace, truncated, busy,
    stale (it knows a higher number than that of our `fence`) and isolation (the host has no hard limits):
    then nothing changed. Or it is `failed`, for everything unforeseen.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Runner:
    """The runner of one host.

    Every method raises `ConnectionLost` if no whole answer came, and `RunnerError` if the host refused.
    """

    def __init__(
        self, transport: Transport, root: str, script: str | None = None, fence: Fence = reads_only
    ) -> None:
        """`root` is the host's folder of attempts, and `script` the path of runner.sh there. `fence` gives
        the number of the writer, which the host refuses once it knows a higher one.
        """
        self._transport = transport
        self._fence = fence
        self._env = ("env", f"FLEETFORM_RUNNER_DIR={root}")
        self._script = ("sh", script or SCRIPT)

    def start(self, launch: Launch) -> Attempt:
        """Launch an attempt, unless it was launched before; how it is now."""
        payload = launch.script.encode(errors="surrogateescape")
        options = options_of(launch)
        answer = self._call(["start", launch.attempt_id, str(len(payload)), *options], payload)
        return attempts_in(answer)[launch.attempt_id]

    def release(self, attempt_ids: Sequence[str], peers: Sequence[str] = ()) -> dict[str, Attempt]:
        """Open the gates of attempts of one gang; how they are now. Twice is the same as once.

        `peers` tells them how to reach the ranks of the gang: the address of each, and what `peers` gave.
        """
        stdin = "".join(f"{line}\n" for line in (*peers, _LAST)) if peers else ""
        return attempts_in(self._call(["release", *attempt_ids], stdin.encode()))

    def peers(self, attempt_ids: Sequence[str]) -> dict[str, str]:
        """The way to these attempts for their siblings: port, user and public key of each that has one."""
        body = _between(_PEERS, self._call(["peers", *attempt_ids]))
        lines = [line.partition(" ") for line in body.decode(errors="replace").splitlines()]
        return {name: way for name, _, way in lines if _PEER.fullmatch(way)}

    def poll(self, attempt_ids: Iterable[str] | None = None) -> dict[str, Attempt]:
        """The status of these attempts; without ids, of all attempts that the host knows."""
        if attempt_ids is None:
            return attempts_in(self._call(["poll"]))
        ids = list(dict.fromkeys(attempt_ids))
        attempts: dict[str, Attempt] = {}
        for first in range(0, len(ids), IDS_PER_CALL):
            attempts |= attempts_in(self._call(["poll", *ids[first : first + IDS_PER_CALL]]))
        return attempts

    def tail(self, attempt_id: str, offset: int, limit: int = 65536) -> bytes:
        """At most `limit` bytes of the log from byte `offset` on; none if it is not that long yet."""
        answer = self._call(["tail", attempt_id, str(offset), str(limit)])
        return counted(_LOG, answer, f"the log of {attempt_id}")

    def stop(self, attempt_id: str, grace_seconds: int) -> Attempt:
        """End an attempt and wait for it: TERM, then KILL to all its processes after `grace_seconds`.

        An attempt that still runs then could not be killed. Nothing happens to one that has ended, or that
        the host does not know.
        """
        answer = self._call(["stop", attempt_id, str(grace_seconds)], seconds=grace_seconds + ANSWER_SECONDS)
        return attempts_in(answer)[attempt_id]

    def set_limit(self, attempt_id: str, seconds: int | None) -> None:
        """Limit a running attempt to `seconds` from its start on, or take the limit away.

        A limit in the past ends it at once. Nothing happens to an attempt that has ended.
        """
        self._call(["limit", attempt_id, "off" if seconds is None else str(seconds)])

    def adjust(
        self, attempt_id: str, grace_seconds: int, alone_seconds: int | None, near: Sequence[str]
    ) -> None:
        """Change these parts of a running attempt's `Launch`. Nothing happens to one that has ended."""
        alone = ["off"] if alone_seconds is None else [str(alone_seconds), ",".join(near)]
        self._call(["adjust", attempt_id, str(grace_seconds), *filter(None, alone)])

    def forget(self, attempt_id: str) -> None:
        """Remove all files of an attempt, log included; the host refuses a running one as `busy`."""
        self._call(["forget", attempt_id])

    def _call(self, arguments: Sequence[str], stdin: bytes = b"", seconds: float = ANSWER_SECONDS) -> bytes:
        epoch = self._fence()
        env = self._env if epoch is None else (*self._env, f"FLEETFORM_EPOCH={epoch}")
        answer = self._transport.run([*env, *self._script, *arguments], stdin, seconds)
        return checked(answer, f"`runner.sh {arguments[0]}`")


@cache
def part(name: str) -> str:
    """The text of one of the runner's files."""
    return (_HERE / name).read_text()


@cache
def joined() -> str:
    """The runner in one text, as hosts get it; `confine.sh` precedes it there."""
    return "".join(map(part, _PARTS))


def checked(answer: Finished, name: str) -> bytes:
    """The output of a script that succeeded; raises what it refused. `name` is the script's, for messages."""
    if answer.exit_code == 0:
        return answer.stdout
    if refusal := _after(_ERROR, answer.stdout).partition(b"\n")[0]:
        code, _, text = refusal.decode(errors="replace").partition(" ")
        raise RunnerError(code, text)
    written = answer.stderr.decode(errors="replace").strip() or "it said nothing"
    failed = f"{name} gave exit code {answer.exit_code}: {written}"
    if answer.exit_code < 0 or answer.exit_code > _SIGNAL:
        raise ConnectionLost(failed)  # killed: it may have done anything before
    raise RunnerError("failed", failed)


def options_of(launch: Launch) -> list[str]:
    """The options with which `runner.sh` starts a launch."""
    options = ["--grace", str(launch.grace_seconds)]
    for option, value in (
        ("--cpus", ",".join(map(str, launch.cpus))),
        ("--memory", launch.memory_bytes),
        ("--hard", "1" if launch.hard else ""),
        ("--limit", launch.limit_seconds),
        ("--gate", launch.gate_seconds),
        ("--alone", launch.alone_seconds),
        ("--unused", "{}:{}".format(*launch.unused) if launch.unused else ""),
        ("--gpus", ",".join(launch.gpus) if launch.unused else ""),
        ("--near", ",".join(launch.near) if launch.alone_seconds is not None else ""),
    ):
        if value not in {None, ""}:
            options += [option, str(value)]
    return options + _mounts_of(launch)


def _mounts_of(launch: Launch) -> list[str]:
    mounts = [(target, "--mount", source) for source, target in launch.mounts]
    mounts += [(t, "--bind-if-any" if optional else "--bind", s) for s, t, optional in launch.binds]
    options: list[str] = []
    for target, option, source in sorted(mounts):  # `/a` before `/a/b`
        options += [option, source, target]
    return options


def script(commands: Sequence[str], env: Mapping[str, str], working_dir: str) -> str:
    """Make the shell script of a task: the environment, the folder, then one command after the other.

    It stops at the first command that fails, with its exit code. A command may have several lines and
    here-documents; the folder and variables that it sets count for the commands after it. The runner runs the
    script with bash if the host has it, and else with sh.

    Args:
        commands: Pieces of shell, as the user wrote them.
        env: Variables to export.
        working_dir: Where to begin: absolute, or relative to the user's home; empty means the home.

    Raises:
        ValueError: A name is not one of a shell's variables, or a text holds a NUL.
    """
    # Without a trap, a shell dies at once of the TERM on which its child saves a checkpoint, and the child's
    # exit code is lost. With a trap it waits for the child, and then ends with the child's exit code.
    lines = ["""trap 'exit "$?"' TERM"""]
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"not a name for an environment variable: {name!r}")
        lines.append(f"export {name}={shlex.quote(value)}")
    if working_dir:
        # `./` because the user's CDPATH may hold another folder of that name.
        folder = working_dir if working_dir.startswith("/") else f"./{working_dir}"
        lines.append(f"cd {shlex.quote(folder)} || exit")
    # `eval`: an unclosed quote or here-document must not swallow the commands after it. No `||`: it would
    # switch off a `set -e` of the user.
    lines += [f"eval {shlex.quote(command)}\ncase $? in 0) ;; *) exit ;; esac" for command in commands]
    text = "\n".join(lines) + "\n"
    if "\0" in text:
        raise ValueError("a shell script cannot hold a NUL")
    return text


def _after(marker: bytes, text: bytes) -> bytes:
    """The text after the marker, which may stand anywhere: a login may write something before it."""
    return text.partition(marker)[2]


def counted(marker: bytes, answer: bytes, name: str) -> bytes:
    """The bytes that follow the marker and their number; `ConnectionLost` if some did not come."""
    count, newline, rest = _after(marker, answer).partition(b"\n")
    if not newline or not count.isdigit() or len(rest) < int(count):
        raise ConnectionLost(f"{name} did not come whole")
    return rest[: int(count)]


def _between(marker: bytes, answer: bytes) -> bytes:
    body, whole, _ = _after(marker, answer).partition(_END)
    if not whole:
        raise ConnectionLost("the runner's answer did not come whole")
    return body


def attempts_in(answer: bytes) -> dict[str, Attempt]:
    """The attempts in an answer of `runner.sh`."""
    lines = _between(_HOST, answer).split(b"\n")[1:-1]
    try:
        attempts = [_attempt(line.split(b" ")) for line in lines]
    except ValueError as error:
        raise RunnerError("failed", f"the runner's answer cannot be read: {error}") from error
    return {attempt.attempt_id: attempt for attempt in attempts}


def _attempt(fields: Sequence[bytes]) -> Attempt:
    attempt_id, state, _pid, code, reason, log_bytes, started, ended, mounts, *more = fields
    paths = () if mounts == _NONE else tuple(map(_path, mounts.split(b",")))
    began = reason not in _NEVER_BEGAN
    # An older runner says nothing of limits.
    level, means, memory = more[0].split(b":") if more and more[0] != _NONE else (_NONE, _NONE, _NONE)
    used = more[1].split(b",") if more[1:] and more[1] != _NONE else ()
    return Attempt(
        attempt_id=attempt_id.decode(),
        state=AttemptState(state.decode()),
        exit_code=_optional(int, code),
        reason=_optional(bytes.decode, reason),
        log_bytes=int(log_bytes),
        started_at=_optional(float, started),
        ended_at=_optional(float, ended),
        mounted=paths if began else (),
        lacking=None if began else next(iter(paths), None),
        confined=_optional(bytes.decode, level),
        means=_optional(bytes.decode, means),
        memory_bytes=_optional(int, memory),
        used=tuple(map(_used, used)),
    )


def _used(sampled: bytes) -> tuple[int, str, int]:
    gpu, _, percent = sampled.partition(b"=")
    number, _, uuid = gpu.partition(b":")
    return int(number), uuid.decode(), int(percent)


def _optional(read: Callable[[bytes], T], field: bytes) -> T | None:
    return None if field == _NONE else read(field)


def _path(text: bytes) -> str:
    return os.fsdecode(unquote_to_bytes(text))
