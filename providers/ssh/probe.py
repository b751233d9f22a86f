"""Looks at a host: what it has, whether it may take work, what runs there, and whether it reaches another.

A look is one round trip; see `probe.sh` and `visit.sh`. A declared field counts more than a reported one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.model.blocks import Shape
from declarative.model.record import dataclass
from declarative.model.status import NodeState, RankStatus, Readiness
from declarative.provider import PermanentError, PermanentKind, ProviderError, Thing, TransientError
from declarative.provider.optional import Visit
from providers.ranks import launched
from providers.runner import RunnerError, attempts_in, checked
from providers.ssh import gpus, scripts
from providers.ssh.claims import found_in
from providers.transport import ConnectionLost, Finished

if TYPE_CHECKING:
    from providers.ssh.transport import SshTransport

T = TypeVar("T")

SECONDS = 40.0
"""Seconds for the whole look; a GPU tool may take 10 of them."""
MEBIBYTE = 1024 * 1024
LEAST_FREE_MIB = 32
LEAST_FILES = 1000
LEAST_MEMORY_MIB = 64
TOOLS = ("env", "flock", "setsid", "stat", "head", "tail", "sha256sum")
CLOCK_SECONDS = 60.0
"""A remark tells of a clock that is off by more."""
LAST_SECOND = 1e11
"""A clock that shows more counts as unknown, as one that shows no number."""
TOLERANCE = 0.95
"""Kernels keep a little memory back, and not always the same."""
READS = 'eval "$(cat)"'
"""A shell that reads all of a script before it begins: it is too long for a command line."""
REACH_SECONDS = 5
"""Seconds of a try. A missing neighbour is noticed within three."""
PORTS = (29500, 49151)
"""Tried beside ssh's: one that jobs meet at, and a high one. A firewall may let through nothing but those of
jobs. Nobody has to listen: a port that refuses shows that the host can be reached."""
SSH_PORT = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that a host reports about itself."""

    root: str
    boot_id: str | None
    address: str | None
    """The one by which it was reached, as it sees it."""
    addresses: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_mib: int
    memory_free_mib: int
    disk_mib: int
    """The size of the disk of its state folder, and the free space there."""
    disk_free_mib: int
    files_free: int | None
    gpus: tuple[gpus.Gpu, ...]
    gpu_fault: str | None
    tools: frozenset[str]
    can: frozenset[str]
    """See `Readiness.can`."""
    state_fault: str | None
    clock_offset: float
    """Seconds that its clock is ahead of ours."""
    claim: str | None
    """The id of its node."""
    last_boot: str | None
    """The boot at the last look; only known of a node."""
    ends: str | None
    """The user, if the processes of this user, ranks included, end with the last login."""
    name: str

    @property
    def shape(self) -> Shape:
        """Its shape. GPUs of several kinds have no common name, and the memory of the smallest counts."""
        names = {gpu.name for gpu in self.gpus}
        return Shape(
            cpu=len(self.cpus),
            memory_mib=self.memory_mib,
            gpus=len(self.gpus),
            gpu_name=names.pop() if len(names) == 1 else None,
            gpu_memory_mib=min((gpu.memory_mib for gpu in self.gpus), default=None),
            disk_mib=self.disk_mib,
            gpu_vendor=self.gpus[0].vendor if self.gpus else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look: facts if the host answered, and always its readiness."""

    readiness: Readiness
    facts: Facts | None = None
    shape: Shape | None = None
    """Its shape; a declared field counts instead of a reported one."""


# -------------------------------------------------------------------------------------------- looks


def look(
    transport: SshTransport,
    root: str | None,
    declared: Mapping[str, Any],
    recorded: Shape | None = None,
    node: str | None = None,
) -> Look:
    """Look at a host, whose state folder is `root` if it is not the usual one.

    Args:
        transport: The way to the host.
        root: Its state folder.
        declared: Fields of `Shape` that were declared of it.
        recorded: The shape with which its node was made: it must still have as much.
        node: The id of the node that it must be.
    """
    return _judged(lambda: probe(transport, root, node), declared, recorded, node)


def visit(
    transport: SshTransport,
    root: str | None,
    owner: str,
    node: str,
    *,
    declared: Mapping[str, Any],
    recorded: Shape | None,
    attempts: Callable[[], Mapping[str, RankStatus]],
) -> Visit:
    """Look at the host of a node (see `look`), and list in the same round trip what `owner` has there.

    `attempts` asks only for the attempts. It is called once the host has the runner of this version, if the
    visit found an older one.
    """
    parts: list[Finished] = []

    def read() -> Facts:
        asked_at = time.time()
        parts[:] = _visited(transport, root, owner, node)
        return _facts_in(checked(parts[0], f"a script on {transport.host}"), asked_at)

    found = _judged(read, declared, recorded, node)
    if not found.facts:
        return Visit(readiness=found.readiness)
    cpus = found.facts.cpus

    def things() -> tuple[Thing, ...]:
        answer = checked(parts[2], f"a script on {transport.host}")
        return found_in(answer, transport, root).things(owner)

    def ranks() -> Mapping[str, RankStatus]:
        entered, have = scripts.entered_in(parts[1].stdout)
        if not have:
            return attempts()
        scripts.note(transport, root, replace(entered, cpus=cpus))
        return launched(attempts_in(checked(parts[1], f"a script on {transport.host}")))

    return Visit(readiness=found.readiness, things=_if_readable(things), attempts=_if_readable(ranks))


def _visited(transport: SshTransport, root: str | None, owner: str, node: str) -> list[Finished]:
    """The answer of each part of a visit, with its exit code."""
    mark = secrets.token_hex(8)
    env = scripts.writer(transport, owner)
    argv = ("sh", "-c", READS, "sh", mark, root or "", node, *scripts.runner())
    answer = scripts.ask(transport, ("env", *env, *argv) if env else argv, scripts.visit(), SECONDS)
    first, *more = answer.split(f"\n{mark} ".encode())
    parts = []
    for piece in more:
        code, _, following = piece.partition(b"\n")
        parts.append(Finished(int(code), first, b""))
        first = following
    if len(parts) != 3:
        raise ConnectionLost(f"the answer of {transport.host} did not come whole")
    return parts


def _if_readable(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except RunnerError as error:
        if error.code == "stale":
            raise
        return None
    except (ProviderError, ConnectionLost):
        return None


def _judged(
    read: Callable[[], Facts], declared: Mapping[str, Any], recorded: Shape | None, node: str | None
) -> Look:
    """The result of a look whose facts `read` gives; the other arguments are those of `look`."""
    try:
        try:
            facts = read()
        except ConnectionLost:
            # An old connection may be broken. A new one shows whether the host is there.
            facts = read()
    except (ProviderError, RunnerError, ConnectionLost) as error:
        return Look(readiness=unanswered(error))
    reasons = _unfit(facts, declared, recorded, node)
    state = NodeState.NOT_READY if reasons else NodeState.READY
    reason = "; ".join(reasons or _remarks(facts)) or None
    shape = facts.shape
    if "gpus" in declared:  # GPUs are declared as a whole: a reported name is that of other GPUs
        shape = replace(shape, gpu_name=None, gpu_memory_mib=None, gpu_vendor=None)
    readiness = Readiness(state=state, reason=reason, observed_at=time.time(), can=facts.can)
    return Look(readiness=readiness, facts=facts, shape=replace(shape, **declared))


def unanswered(error: Exception) -> Readiness:
    """The readiness of a host that gave no answer, or an answer that cannot be used."""
    if isinstance(error, PermanentError):
        # The host is there. Somebody has to fix its key, our login or the declaration.
        state, reason = NodeState.NOT_READY, error.summary
        if error.kind in (PermanentKind.AUTH, PermanentKind.CONFLICT) and error.hint:
            reason = f"{reason}; {error.hint}"
    elif isinstance(error, TransientError):
        state, reason = NodeState.UNREACHABLE, error.summary
    elif isinstance(error, ConnectionLost):
        state, reason = NodeState.UNREACHABLE, str(error)
    else:
        state, reason = NodeState.NOT_READY, f"it could not be looked at: {error}"
    return Readiness(state=state, reason=reason, observed_at=time.time())


# -------------------------------------------------------------------------------------------- facts


def probe(transport: SshTransport, root: str | None, node: str | None = None) -> Facts:
    """Read a host's facts."""
    asked_at = time.time()
    answer = scripts.inline(transport, "probe.sh", (root or "", node or ""), seconds=SECONDS)
    return _facts_in(answer, asked_at)


def _facts_in(answer: bytes, asked_at: float) -> Facts:
    """The facts in an answer of `probe.sh`, which was asked at `asked_at` and came just now."""
    return parse(scripts.lines(answer, "FLEETFORM-PROBE"), (asked_at + time.time()) / 2)


def parse(lines: list[str], now: float) -> Facts:
    """The facts in what `probe.sh` printed while our clock showed `now`."""
    many: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition("=")
        many.setdefault(name, []).append(value)
    one = {name: values[0] for name, values in many.items()}

    def count(name: str) -> int:
        return _number(one.get(name)) or 0

    found, fault = _gpus(one, many)
    return Facts(
        root=one.get("root", ""),
        boot_id=one.get("boot_id"),
        address=one.get("address") or None,
        addresses=tuple(many.get("addresses", ())),
        cpus=scripts.cpu_list(one.get("cpus", "")),
        memory_mib=count("memory_kib") // 1024,
        memory_free_mib=count("memory_free_kib") // 1024,
        disk_mib=count("block") * count("total") // MEBIBYTE,
        disk_free_mib=count("block") * count("free") // MEBIBYTE,
        files_free=_number(one.get("files_free")) if count("files") else None,  # btrfs counts none
        gpus=found,
        gpu_fault=fault,
        tools=frozenset(many.get("tool", ())),
        can=frozenset(many.get("can", ())),
        state_fault=one.get("state"),
        clock_offset=_seconds(one.get("now"), now) - now,
        claim=one.get("claim") or None,
        last_boot=one.get("last_boot"),
        ends=one.get("ends"),
        name=one.get("host", ""),
    )


def _gpus(one: Mapping[str, str], many: Mapping[str, list[str]]) -> tuple[tuple[gpus.Gpu, ...], str | None]:
    """The GPUs, or none and why they are not known."""
    try:
        if "nvidia_code" in one:
            return gpus.nvidia(many.get("nvidia", []), scripts.number(one["nvidia_code"])), None
        if "rocm_code" in one:
            return gpus.rocm(many.get("rocm", []), scripts.number(one["rocm_code"])), None
    except gpus.BrokenGpuError as error:
        return (), str(error)
    return (), f"it has {one['device']}, but no nvidia-smi" if "device" in one else None


def _unfit(facts: Facts, declared: Mapping[str, Any], recorded: Shape | None, node: str | None) -> list[str]:
    """Why a host may not take work."""
    reasons = []
    if node and facts.claim != node:
        reasons.append("it is not this node any more: its claim is gone or another's")
    if missing := [tool for tool in TOOLS if tool not in facts.tools]:
        reasons.append(f"not installed: {', '.join(missing)}")
    reasons += [facts.state_fault] if facts.state_fault else _full_disk(facts)
    if facts.memory_free_mib < LEAST_MEMORY_MIB:
        reasons.append(f"only {facts.memory_free_mib} MiB of memory are free")
    if facts.gpu_fault and "gpus" not in declared:
        reasons.append(f"its GPUs are in error: {facts.gpu_fault}")
    return reasons + _lacks(facts.shape, declared, recorded)


def _full_disk(facts: Facts) -> list[str]:
    if facts.disk_free_mib < LEAST_FREE_MIB:
        return [f"only {facts.disk_free_mib} MiB are free on the disk of {facts.root}"]
    if facts.files_free is not None and facts.files_free < LEAST_FILES:
        return [f"only {facts.files_free} more files can be made on the disk of {facts.root}"]
    return []


def _lacks(shape: Shape, declared: Mapping[str, Any], recorded: Shape | None) -> list[str]:
    """What the host no longer has of its shape when its node was made."""
    out: list[str] = []
    if recorded is None:
        return out
    for field, word, part in (
        ("cpu", "CPUs", 1.0),
        ("gpus", "GPUs", 1.0),
        ("memory_mib", "MiB of memory", TOLERANCE),
    ):
        wanted, has = getattr(recorded, field), getattr(shape, field)
        if field not in declared and has < wanted * part:
            out.append(f"it has {has} of the {wanted} {word} that are recorded of it")
    return out


def _remarks(facts: Facts) -> list[str]:
    """A remark for the user about a host that may take work."""
    out = []
    if facts.last_boot and facts.boot_id and facts.last_boot != facts.boot_id:
        out.append("it was rebooted since the last look")
    if abs(facts.clock_offset) > CLOCK_SECONDS:
        way = "ahead" if facts.clock_offset > 0 else "behind"
        out.append(f"its clock is {abs(facts.clock_offset):.0f} s {way}")
    if facts.ends:
        out.append(f"systemd ends its ranks with the last login (`loginctl enable-linger {facts.ends}`)")
    return out


def _number(text: str | None) -> int | None:
    return scripts.number(text) if text and text.isdecimal() else None


def _seconds(text: str | None, default: float) -> float:
    try:
        shown = float((text or "").removesuffix(".%N").removesuffix("N").rstrip("."))
    except ValueError:
        return default
    return shown if 0 <= shown < LAST_SECOND else default


# --------------------------------------------------------------------------------- ways between hosts


def reaches(transport: SshTransport, address: str, port: int | None) -> str | None:
    """Why `address` cannot be reached from a host; None if it can, or if that cannot be told.

    `port` is that of ssh. It takes some seconds if nothing answers.
    """
    ports = tuple(map(str, (port or SSH_PORT, *PORTS)))
    answer = scripts.inline(transport, "reach.sh", (address, str(REACH_SECONDS), *ports))
    return verdict(scripts.lines(answer, "FLEETFORM-REACH"))


def verdict(lines: Iterable[str]) -> str | None:
    """Why the tries mean that an address cannot be reached, or None.

    One answer is enough. Else the kernel must report that there is no way, or all tries must get no answer.
    """
    tries = dict(line.removeprefix("try=").split(" ", 1) for line in lines if line.startswith("try="))
    answers = tries.values()
    if "yes" in answers:
        return None
    refusals = [answer.removeprefix("no ") for answer in answers if answer.startswith("no ")]
    if refusals:
        return refusals[0]
    if not tries or set(answers) != {"silent"}:
        return None
    return f"no answer within {REACH_SECONDS} s at its ports {', '.join(tries)}, nor to ping"
