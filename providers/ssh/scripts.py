"""Our scripts and the files of tasks, which are sent to hosts, and the scripts' answers.

Small scripts are sent with the command. The runner is put into the state folder, under a name with the hash
of its content: every version of fleetform finds its own, and supervisors keep the one that started them. A
task's files are sent to a host once, and unpacked there for each attempt.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from declarative.model.record import struct
from declarative.provider import Bundle, Source, TransientError, TransientKind
from providers.ownership import key_of
from providers.runner import ANSWER_SECONDS, RunnerError, checked, joined
from providers.transport import ConnectionLost

if TYPE_CHECKING:
    from providers.ssh.host import Host
    from providers.ssh.transport import SshTransport

_HERE = Path(__file__).resolve().parent
LEFT = b"FLEETFORM-LEFT\n"
"""A script writes it when it removed the state folder, and the runner with it."""
MOST_DIGITS = 16
MOST_CPUS = 1 << 16
"""More than any kernel takes."""
_BEFORE = {
    "enter.sh": ("root.sh",),
    "put.sh": ("root.sh",),
    "probe.sh": ("root.sh", "../runner/confine.sh", "health.sh"),
    "claim.sh": ("../runner/confine.sh", "root.sh", "epoch.sh"),
    "volume.sh": ("root.sh", "epoch.sh"),
}
"""The functions that a script needs: to find the state folder, to make or remove control groups, and to
refuse a writer of the past.
"""
UNPACK_SECONDS = 600.0
SLOWEST = 100_000
"""Bytes a second: a slower connection counts as broken. A lost connection is noticed long before."""
TRIES = 3
"""Another command on the same host may remove files that were just put there."""

_locks: dict[tuple[Host, str], threading.Lock] = defaultdict(threading.Lock)
_locks_lock = threading.Lock()


# ----------------------------------------------------------------------------------------- the scripts


@cache
def text(name: str, *, have: tuple[str, ...] = ()) -> str:
    """A script of this folder, with the functions that it needs before it, but for those in `have`."""
    before = (part for part in _BEFORE.get(name, ()) if part not in have)
    return "".join((_HERE / part).read_text() for part in (*before, name))


@cache
def bundle() -> bytes:
    """The runner, and before it the check whose node the host is. One file: it is whole or not there."""
    return (text("claim.sh") + joined()).encode()


@cache
def runner() -> tuple[str, str]:
    """The name of the runner in its folder on a host, and its hash."""
    digest = hashlib.sha256(bundle()).hexdigest()
    return f"runner-{digest[:16]}.sh", digest


@cache
def visit() -> bytes:
    """Several of the scripts in one, each as a function of its name: see `visit.sh`."""
    once = ("root.sh",)
    parts = [f"{name}() {{\n{text(f'{name}.sh', have=once)}}}\n" for name in ("probe", "enter", "volume")]
    return "".join((*map(text, once), *parts, text("visit.sh"))).encode()


def writer(transport: SshTransport, owner: str) -> tuple[str, ...]:
    """The variables that tell a script who writes an owner's things; none for a reader."""
    epoch = transport.fence()
    return () if epoch is None else (f"FLEETFORM_EPOCH={epoch}", f"FLEETFORM_OWNER={key_of(owner)}")


def inline(
    transport: SshTransport,
    name: str,
    arguments: Sequence[str] = (),
    stdin: bytes | Source = b"",
    seconds: float = ANSWER_SECONDS,
    *,
    env: Sequence[str] = (),
) -> bytes:
    """The output of a small script of this folder on the host; `env` are variables for it (`NAME=value`)."""
    argv = ("sh", "-c", text(name), "sh", *arguments)
    return ask(transport, ("env", *env, *argv) if env else argv, stdin, seconds)


def ask(
    transport: SshTransport, argv: Sequence[str], stdin: bytes | Source = b"", seconds: float = ANSWER_SECONDS
) -> bytes:
    """The output of a command that succeeded; `RunnerError` for one that refused."""
    return checked(transport.run(argv, stdin, seconds), f"a script on {transport.host}")


def lines(answer: bytes, begin: str) -> list[str]:
    """The lines between the marks; a login may write something before and after them."""
    body, whole, _ = answer.decode(errors="replace").partition(f"{begin}\n")[2].partition("FLEETFORM-END\n")
    if not whole:
        raise ConnectionLost("the answer did not come whole")
    return body.splitlines()


def number(written: str) -> int:
    """A count in an answer; `RunnerError` if no host can have so many, or if it is not a number."""
    if not (written.isascii() and written.isdecimal() and len(written) <= MOST_DIGITS):
        raise RunnerError("strange", f"it says `{written[:40]}` where a number belongs")
    return int(written)


def cpu_list(written: str) -> tuple[int, ...]:
    """`0-3,8` as numbers; the kernel's way to write a set of CPUs. `RunnerError` for anything else."""
    cpus: list[int] = []
    for part in filter(None, written.strip().split(",")):
        first, _, last = part.partition("-")
        begin, end = number(first), number(last or first)
        if end >= MOST_CPUS or len(cpus) >= MOST_CPUS:
            raise RunnerError("strange", f"it says `{written[:40]}` where its CPUs belong")
        cpus += range(begin, end + 1)
    return tuple(cpus)


# ------------------------------------------------------------------------------------ the state folder


@struct(frozen=True, slots=True, kw_only=True)
class Entered:
    """The state folder of a host, and what else `enter.sh` tells."""

    root: str
    cpus: tuple[int, ...]
    script: str
    """The path of the runner."""


def enter(transport: SshTransport, root: str | None) -> Entered:
    """Find the state folder and put the runner there, if that was not done over this connection."""
    return transport.once(_known_as(root), lambda: _enter(transport, root))


def enter_if_there(transport: SshTransport, root: str | None) -> Entered | None:
    """Like `enter`, without making the state folder, for readers; None if there is none."""
    try:
        return transport.once(_known_as(root), lambda: _enter(transport, root, make=False))
    except _NotThereError:
        return None


def note(transport: SshTransport, root: str | None, entered: Entered) -> None:
    """Remember what a visit found out: `enter` does not ask for it again."""
    transport.learnt(_known_as(root), entered)


def entered_in(answer: bytes) -> tuple[Entered, bool]:
    """The facts in an answer of `enter.sh`, and whether the runner is there."""
    facts = dict(line.partition("=")[::2] for line in lines(answer, "FLEETFORM-ENTER"))
    root = facts["root"]
    entered = Entered(root=root, cpus=cpu_list(facts.get("cpus", "")), script=f"{root}/bin/{runner()[0]}")
    return entered, "have" in facts


class _NotThereError(Exception):
    """A host has no state folder."""


def _known_as(root: str | None) -> str:
    return f"entered {root}"


def _enter(transport: SshTransport, root: str | None, *, make: bool = True) -> Entered:
    name, digest = runner()
    answer = inline(transport, "enter.sh", (root or "", name, digest))
    entered, have = entered_in(answer)
    if have:
        return entered
    if not make and b"\nthere=1\n" not in answer:
        raise _NotThereError
    content = bundle()
    if b"FLEETFORM-PUT" not in inline(
        transport, "put.sh", (entered.root, name, str(len(content)), digest, "own"), content
    ):
        raise ConnectionLost(f"{transport.host} did not say whether it has the runner")
    return entered


# ---------------------------------------------------------------------------------- the files of tasks


def place_files(transport: SshTransport, root: str, node: str, attempt: str, files: Bundle) -> None:
    """Make the attempt's folder, with the files in it, on a node's host; `root` is the state folder there."""
    for _ in range(TRIES):
        if _placed(transport, root, node, attempt, files.digest):
            return
        with _locks_lock:
            lock = _locks[transport.host, files.digest]
        with lock:
            # Another thread may have put them there while this one waited.
            if not _placed(transport, root, node, attempt, files.digest):
                _put_files(transport, root, node, files)
    if not _placed(transport, root, node, attempt, files.digest):
        summary = f"the files of {attempt} did not stay on {transport.host}"
        raise TransientError(TransientKind.BUSY, summary, about=attempt)


def _placed(transport: SshTransport, root: str, node: str, attempt: str, digest: str) -> bool:
    """Whether the files are in the attempt's folder; they are unpacked if the host has them."""
    answer = inline(transport, "files.sh", ("place", root, node, digest, attempt), seconds=UNPACK_SECONDS)
    if b"FLEETFORM-FILES missing" in answer:
        return False
    if b"FLEETFORM-FILES placed" not in answer:
        raise ConnectionLost(f"{transport.host} did not say whether it has the files")
    return True


def _put_files(transport: SshTransport, root: str, node: str, files: Bundle) -> None:
    with files.open() as archive:
        arguments = ("put", root, node, files.digest, str(archive.size), archive.sha256)
        seconds = ANSWER_SECONDS + UNPACK_SECONDS + archive.size / SLOWEST
        inline(transport, "files.sh", arguments, archive.source, seconds=seconds)
