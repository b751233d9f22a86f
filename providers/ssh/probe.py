"""A look at a host: what it has, and whether it may take work. One round trip; see `probe.sh`.

What is declared of a host counts more than what is read of it, and is not held against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from declarative.blocks import Shape
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError
from declarative.state import NodeState, Readiness
from providers.runner import RunnerError
from providers.ssh import gpus, scripts
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost

SECONDS = 40.0
"""For the whole look; a GPU tool alone may take 10."""
MEBIBYTE = 1024 * 1024
LEAST_FREE_MIB = 32
LEAST_FILES = 1000
LEAST_MEMORY_MIB = 64
TOOLS = ("env", "flock", "setsid", "stat", "head", "tail", "sha256sum")
CLOCK_SECONDS = 60.0
"""A clock that is off by more is mentioned."""
LAST_SECOND = 1e11
"""A clock that shows more shows nothing; so does one that shows no number."""
TOLERANCE = 0.95
"""Kernels keep a little memory back, and not always the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read of a host."""

    root: str
    boot_id: str | None
    address: str | None
    """By which it was reached, as it sees it."""
    addresses: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_mib: int
    memory_free_mib: int
    disk_mib: int
    """The size of the disk of its state folder, and what is free there."""
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
    """The id of the node that it is."""
    last_boot: str | None
    """The boot at the last look; only asked for when it is a node."""
    ends: str | None
    """The user, if his processes end with his last login, ranks included."""
    name: str

    @property
    def shape(self) -> Shape:
        """What it has. GPUs of several kinds have no common name, and the least of their memories."""
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
    """What came of a look: facts if the host answered, and always its readiness."""

    readiness: Readiness
    facts: Facts | None = None
    shape: Shape | None = None
    """What it has, and where something is declared, that instead."""


def look(
    transport: SshTransport,
    root: str | None,
    declared: Mapping[str, Any],
    recorded: Shape | None = None,
    node: str | None = None,
) -> Look:
    """Look at a host: `judged`, by its way and its state folder, if that is not the usual one."""
    return judged(lambda: probe(transport, root, node), declared, recorded, node)


def judged(
    read: Callable[[], Facts],
    declared: Mapping[str, Any],
    recorded: Shape | None = None,
    node: str | None = None,
) -> Look:
    """What comes of a look at a host.

    Args:
        read: Asks for its facts.
        declared: Fields of `Shape` that were declared of it.
        recorded: What its node was made with: it has to have as much still.
        node: The id of the node that it has to be.
    """
    try:
        try:
            facts = read()
        except ConnectionLost:
            # That says something of a connection that may be old. Whether the host is there, a new one tells.
            facts = read()
    except (ProviderError, RunnerError, ConnectionLost) as error:
        return Look(readiness=unanswered(error))
    state, reason = _fitness(facts, declared, recorded, node)
    readiness = Readiness(state=state, reason=reason, observed_at=time.time(), can=facts.can)
    return Look(readiness=readiness, facts=facts, shape=_completed(facts.shape, declared))


def _completed(read: Shape, declared: Mapping[str, Any]) -> Shape:
    """What is declared, and the rest as read. GPUs are declared as a whole: others have nothing to add."""
    if "gpus" in declared:
        read = replace(read, gpu_name=None, gpu_memory_mib=None, gpu_vendor=None)
    return replace(read, **declared)


def unanswered(error: Exception) -> Readiness:
    """The readiness of a host that could not be looked at."""
    if isinstance(error, PermanentError):
        # It is there. Its key, our login or the declaration has to be mended, and nobody else can do that.
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


def probe(transport: SshTransport, root: str | None, node: str | None = None) -> Facts:
    """Read a host's facts."""
    begun = time.time()
    said = scripts.inline(transport, "probe.sh", (root or "", node or ""), seconds=SECONDS)
    return facts_in(said, (begun + time.time()) / 2)


def facts_in(said: bytes, now: float) -> Facts:
    """The facts in an answer of `probe.sh`, which came while our clock showed `now`."""
    return parse(scripts.lines(said, "FLEETFORM-PROBE"), now)


def parse(lines: list[str], now: float) -> Facts:
    """The facts in what `probe.sh` printed while our clock showed `now`."""
    many: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition("=")
        many.setdefault(name, []).append(value)
    one = {name: values[0] for name, values in many.items()}
    block = _number(one.get("block")) or 0
    files = _number(one.get("files"))
    fault = None
    found: tuple[gpus.Gpu, ...] = ()
    try:
        if "nvidia_code" in one:
            found = gpus.nvidia(many.get("nvidia", []), scripts.number(one["nvidia_code"]))
        elif "rocm_code" in one:
            found = gpus.rocm(many.get("rocm", []), scripts.number(one["rocm_code"]))
        elif "device" in one:
            fault = f"it has {one['device']}, but no nvidia-smi"
    except gpus.BrokenGpuError as error:
        fault = str(error)
    return Facts(
        root=one.get("root", ""),
        boot_id=one.get("boot_id"),
        address=one.get("address") or None,
        addresses=tuple(many.get("addresses", ())),
        cpus=scripts.cpu_list(one.get("cpus", "")),
        memory_mib=(_number(one.get("memory_kib")) or 0) // 1024,
        memory_free_mib=(_number(one.get("memory_free_kib")) or 0) // 1024,
        disk_mib=block * (_number(one.get("total")) or 0) // MEBIBYTE,
        disk_free_mib=block * (_number(one.get("free")) or 0) // MEBIBYTE,
        files_free=_number(one.get("files_free")) if files else None,  # btrfs counts none
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


def _fitness(
    facts: Facts, declared: Mapping[str, Any], recorded: Shape | None, node: str | None
) -> tuple[NodeState, str | None]:
    missing = [tool for tool in TOOLS if tool not in facts.tools]
    reasons = []
    if node and facts.claim != node:
        reasons.append("it is not this node any more: its claim is gone or another's")
    if missing:
        reasons.append(f"not installed: {', '.join(missing)}")
    if facts.state_fault:
        reasons.append(facts.state_fault)
    elif facts.disk_free_mib < LEAST_FREE_MIB:
        reasons.append(f"only {facts.disk_free_mib} MiB are free on the disk of {facts.root}")
    elif facts.files_free is not None and facts.files_free < LEAST_FILES:
        reasons.append(f"only {facts.files_free} more files can be made on the disk of {facts.root}")
    if facts.memory_free_mib < LEAST_MEMORY_MIB:
        reasons.append(f"only {facts.memory_free_mib} MiB of memory are free")
    if facts.gpu_fault and "gpus" not in declared:
        reasons.append(f"its GPUs are in error: {facts.gpu_fault}")
    if recorded:
        reasons += _lacks(facts.shape, declared, recorded)
    if reasons:
        return NodeState.NOT_READY, "; ".join(reasons)
    return NodeState.READY, _remarks(facts)


def _lacks(shape: Shape, declared: Mapping[str, Any], recorded: Shape) -> list[str]:
    """What it had when it was made a node, and has no more."""
    out = []
    for field, word, part in (
        ("cpu", "CPUs", 1.0),
        ("gpus", "GPUs", 1.0),
        ("memory_mib", "MiB of memory", TOLERANCE),
    ):
        wanted, has = getattr(recorded, field), getattr(shape, field)
        if field not in declared and has < wanted * part:
            out.append(f"it has {has} of the {wanted} {word} that are recorded of it")
    return out


def _remarks(facts: Facts) -> str | None:
    """What does not keep it from work, but should be known."""
    out = []
    if facts.last_boot and facts.boot_id and facts.last_boot != facts.boot_id:
        out.append("it was rebooted since the last look")
    if abs(facts.clock_offset) > CLOCK_SECONDS:
        way = "ahead" if facts.clock_offset > 0 else "behind"
        out.append(f"its clock is {abs(facts.clock_offset):.0f} s {way}")
    if facts.ends:
        out.append(f"systemd ends its ranks with the last login (`loginctl enable-linger {facts.ends}`)")
    return "; ".join(out) or None


def _number(text: str | None) -> int | None:
    return scripts.number(text) if text and text.isdecimal() else None


def _seconds(text: str | None, default: float) -> float:
    try:
        said = float((text or "").removesuffix(".%N").removesuffix("N").rstrip("."))
    except ValueError:
        return default
    return said if 0 <= said < LAST_SECOND else default
