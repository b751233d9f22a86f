"""The scripts that run on hosts, and how they get there.

Small ones travel with the command. The runner is put into the state folder, under a name that holds its
content's hash: every version of fleetform finds its own, and supervisors keep the one they were started with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from declarative.provider import Source
from providers.ownership import key_of
from providers.runner import ANSWER_SECONDS, RunnerError
from providers.ssh.host import Host
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost, Finished

_HERE = Path(__file__).resolve().parent
_SIGNAL = 128
LEFT = b"FLEETFORM-LEFT\n"
"""What a script says that took the state folder away, and the runner with it."""
MOST_DIGITS = 16
MOST_CPUS = 1 << 16
"""More than any kernel takes."""
_CONFINING = frozenset({"probe.sh", "claim.sh"})
"""Scripts that make control groups, or remove them."""
_WRITING = frozenset({"volume.sh", "claim.sh"})
"""Scripts that refuse who is no longer the one that may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What was found out when a host was entered."""

    root: str
    cpus: tuple[int, ...]
    script: str
    """Where the runner is."""


@cache
def text(name: str) -> str:
    """A script of this folder, with the functions that it needs before it."""
    own = (_HERE / name).read_text()
    if name in _WRITING:
        own = (_HERE / "epoch.sh").read_text() + own
    return _confine() + own if name in _CONFINING else own


def _confine() -> str:
    return (_HERE.parent / "confine.sh").read_text()


def numbered(transport: SshTransport, owner: str) -> tuple[str, ...]:
    """The variables of the one who writes an owner's things; none for who only reads."""
    epoch = transport.fence()
    return () if epoch is None else (f"FLEETFORM_EPOCH={epoch}", f"FLEETFORM_OWNER={key_of(owner)}")


@cache
def bundle() -> bytes:
    """The runner, and before it the check whose node the host is. One file: it is whole or not there."""
    return (text("claim.sh") + (_HERE.parent / "runner.sh").read_text()).encode()


@cache
def bundle_hash() -> str:
    """By which a host tells whether it has this one."""
    return hashlib.sha256(bundle()).hexdigest()


def enter(transport: SshTransport, root: str | None) -> Entered:
    """Find the state folder and put the runner there, if that was not done over this connection."""
    return transport.once(_known_as(root), lambda: _enter(transport, root))


def note(transport: SshTransport, root: str | None, entered: Entered) -> None:
    """Remember what a visit found out, so that nobody has to enter for it."""
    transport.learnt(_known_as(root), entered)


def _known_as(root: str | None) -> str:
    return f"entered {root}"


def enter_if_there(transport: SshTransport, root: str | None) -> Entered | None:
    """`enter` without making the state folder; None if there is none: who only reads leaves nothing."""
    try:
        return transport.once(_known_as(root), lambda: _enter(transport, root, make=False))
    except _NotThereError:
        return None


class _NotThereError(Exception):
    """A host has no state folder."""


def _enter(transport: SshTransport, root: str | None, *, make: bool = True) -> Entered:
    said = inline(transport, "enter.sh", (root or "", *runner()))
    entered, have = entered_in(said)
    if not have and not make and b"\nthere=1\n" not in said:
        raise _NotThereError
    if not have:
        name, digest = runner()
        content = bundle()
        arguments = (entered.root, name, str(len(content)), digest)
        if b"FLEETFORM-PUT" not in inline(transport, "put.sh", arguments, content):
            raise ConnectionLost(f"{transport.host} did not say whether it has the runner")
    return entered


def runner() -> tuple[str, str]:
    """The name of the runner in its folder on a host, and its hash."""
    return f"runner-{bundle_hash()[:16]}.sh", bundle_hash()


def entered_in(said: bytes) -> tuple[Entered, bool]:
    """What an answer of `enter.sh` tells, and whether the runner is there."""
    found = dict(line.partition("=")[::2] for line in lines(said, "FLEETFORM-ENTER"))
    root = found["root"]
    entered = Entered(root=root, cpus=cpu_list(found.get("cpus", "")), script=f"{root}/bin/{runner()[0]}")
    return entered, "have" in found


@cache
def visit() -> bytes:
    """Several of the scripts in one, each as a function of its name: see `visit.sh`."""
    parts = [f"{name}() {{\n{text(f'{name}.sh')}}}\n" for name in ("probe", "enter", "volume")]
    return "".join((*parts, text("visit.sh"))).encode()


def inline(
    transport: SshTransport,
    name: str,
    arguments: Sequence[str] = (),
    stdin: bytes | Source = b"",
    seconds: float = ANSWER_SECONDS,
    *,
    env: Sequence[str] = (),
) -> bytes:
    """What a small script of this folder says on the host; `env` are variables for it (`NAME=value`)."""
    argv = ("sh", "-c", text(name), "sh", *arguments)
    return ask(transport, ("env", *env, *argv) if env else argv, stdin, seconds)


def ask(
    transport: SshTransport, argv: Sequence[str], stdin: bytes | Source = b"", seconds: float = ANSWER_SECONDS
) -> bytes:
    """What a command says that was successful; `RunnerError` for one that refused."""
    return answer(transport.host, transport.run(argv, stdin, seconds))


def answer(host: Host, done: Finished) -> bytes:
    """What a script said on a host; raises what it refused."""
    if done.exit_code == 0:
        return done.stdout
    if refusal := done.stdout.partition(b"FLEETFORM-ERR ")[2].partition(b"\n")[0]:
        code, _, why = refusal.decode(errors="replace").partition(" ")
        raise RunnerError(code, why)
    said = done.stderr.decode(errors="replace").strip() or "it said nothing"
    failed = f"a script on {host} gave exit code {done.exit_code}: {said}"
    if done.exit_code < 0 or done.exit_code > _SIGNAL:
        raise ConnectionLost(failed)
    raise RunnerError("failed", failed)


def lines(said: bytes, begin: str) -> list[str]:
    """What stands between the marks; a login's chatter is before and after them."""
    body, whole, _ = said.decode(errors="replace").partition(f"{begin}\n")[2].partition("FLEETFORM-END\n")
    if not whole:
        raise ConnectionLost("the answer did not come whole")
    return body.splitlines()


def number(written: str) -> int:
    """A count that a host says; `RunnerError` where it is none that any host has."""
    if not (written.isascii() and written.isdecimal() and len(written) <= MOST_DIGITS):
        raise RunnerError("strange", f"it says `{written[:40]}` where a number belongs")
    return int(written)


def cpu_list(written: str) -> tuple[int, ...]:
    """`0-3,8` as numbers; the kernel's way to write a set of CPUs. `RunnerError` where it is none."""
    found: list[int] = []
    for part in filter(None, written.strip().split(",")):
        first, _, last = part.partition("-")
        begin, end = number(first), number(last or first)
        if end >= MOST_CPUS or len(found) >= MOST_CPUS:
            raise RunnerError("strange", f"it says `{written[:40]}` where its CPUs belong")
        found += range(begin, end + 1)
    return tuple(found)
