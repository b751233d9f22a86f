"""Looks at a host: what it has, whether it may take work, what runs there, and whether it reaches another.

A look is one round trip; see `probe.sh` and `visit.sh`. A declared field counts more than a reported one, and
a host that has less than is declared of it is not ready, unless it is trusted.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.model.blocks import Shape, as_declared
from declarative.model.health import Finding, judge
from declarative.model.record import struct
from declarative.model.spec.gpu_models import parts
from declarative.model.status import NodeState, RankStatus, Readiness, Risk
from declarative.model.text import and_more, show_mib
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    RefusedError,
    Thing,
    TransientError,
)
from declarative.provider.optional import Visit
from providers.ranks import launched
from providers.runner import RunnerError, attempts_in, checked
from providers.ssh import gpus, health, scripts
from providers.ssh.claims import claims_in
from providers.transport import ConnectionLost, Finished

if TYPE_CHECKING:
    from providers.ssh.transport import SshTransport

T = TypeVar("T")

SECONDS = 40.0
"""Seconds for the whole look; a GPU tool may take 10 of them."""
MEBIBYTE = 1024 * 1024
MOST_NAMED = 8
"""Up to this number, GPUs are named one by one."""
LEAST_FREE_MIB = 32
LEAST_FILES = 1000
LEAST_MEMORY_MIB = 64
TOOLS = ("env", "flock", "setsid", "stat", "head", "tail", "sha256sum")
LAST_SECOND = 1e11
"""A clock that shows more counts as unknown, as one that shows no number."""
TOLERANCE = 0.95
"""Kernels keep a little memory back, and not always the same."""
SOLD = 0.85
"""The share of declared memory and disks that must be there: firmware and filesystems take a part."""
READS = 'eval "$(cat)"'
"""A shell that reads all of a script before it begins: it is too long for a command line."""
GPU_TOOLS = frozenset(("nvidia-smi", "rocm-smi"))
"""The tools that report a host's GPUs."""
REACH_SECONDS = 5
"""Seconds of a try. A missing neighbour is noticed within three."""
PORTS = (29500, 49151)
"""Tried beside ssh's: one that jobs meet at, and a high one. A firewall may let through nothing but those of
jobs. Nobody has to listen: a port that refuses shows that the host can be reached."""
SSH_PORT = 22


@struct(frozen=True, slots=True, kw_only=True)
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
    """All that work."""
    gpu_fault: str | None
    tools: frozenset[str]
    can: frozenset[str]
    state_fault: str | None
    later: str | None
    """Where the state folder would be made today, if it is the default of earlier versions."""
    cleaned: str | None
    """The folder around it whose old files are deleted, if nothing excludes the state folder, or will when it
    is made.
    """
    clock_offset: float
    """Seconds that its clock is ahead of ours."""
    claim: str | None
    """The id of its node."""
    last_boot: str | None
    """The boot at the last look; only known of a node."""
    ends: str | None
    """The user, if the processes of this user, ranks included, end with the last login."""
    name: str
    findings: tuple[Finding, ...] = ()
    """What is wrong with its machine, all its GPUs included."""

    @property
    def gpus_known(self) -> bool:
        """Whether it told its GPUs, if not all of them. GPUs that it did not tell are not gone."""
        return not self.gpu_fault or bool(self.gpus)

    @property
    def shape(self) -> Shape:
        """Its shape, with all its GPUs."""
        plain = Shape(cpu=len(self.cpus), memory_mib=self.memory_mib, disk_mib=self.disk_mib)
        return replace(plain, **_of_gpus(self.gpus))


def _of_gpus(own: Sequence[gpus.Gpu]) -> dict[str, Any]:
    """The fields of a shape with these GPUs. Of several models the name lists all (`A6000+T400`), so that
    nobody gets one for the other, and the memory of the smallest counts.
    """
    names = sorted({gpu.name for gpu in own})
    memories = [gpu.memory_mib for gpu in own if gpu.memory_mib is not None]
    return {
        "gpus": len(own),
        "gpu_name": "+".join(names) or None,
        "gpu_memory_mib": min(memories, default=None) if len(memories) == len(own) else None,
        "gpu_vendor": own[0].vendor if own else None,
    }


@struct(frozen=True, slots=True, kw_only=True)
class Declared:
    """The shape that is declared of a host and recorded of its node."""

    resources: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Shape`."""
    choice: tuple[int | str, ...] = ()
    """Its `gpus`: indexes, UUIDs and models. Empty: all."""
    trusted: bool = False
    """Declared things count without being there."""
    recorded: Shape | None = None
    """The shape with which its node was made: it must still have as much."""
    devices: tuple[str, ...] = ()
    """`Gpu.id` of the GPUs that are recorded of the node."""
    node: str | None = None
    """The id of the node that it must be."""

    def gpus_of(self, facts: Facts) -> tuple[gpus.Gpu, ...]:
        """The GPUs that its node has."""
        return gpus.chosen(facts.gpus, self.choice, self.resources)

    def devices_of(self, facts: Facts, count: int) -> tuple[str, ...] | None:
        """`Gpu.id` of the GPUs of a node that has `count`, in the order of its blocks; none if they count
        from 0. None if they are not known: the others of a host with a choice are somebody else's.
        """
        mine = tuple(gpu.id for gpu in self.gpus_of(facts))
        if len(mine) == count:
            return mine
        if not self.choice:
            return ()
        is_answered = facts.gpus_known or not facts.tools & GPU_TOOLS
        numbers = sorted({one for one in self.choice if isinstance(one, int)})
        named = len(numbers) >= count and not any(isinstance(one, str) for one in self.choice)
        return tuple(map(str, numbers[:count])) if self.trusted and is_answered and named else None

    def shape_of(self, facts: Facts) -> Shape:
        """Its shape; a declared field counts instead of a reported one."""
        shape = replace(facts.shape, **_of_gpus(self.gpus_of(facts)))
        if shape.gpus != self.resources.get("gpus", shape.gpus):  # what is reported is of other GPUs
            shape = replace(shape, gpu_name=None, gpu_memory_mib=None, gpu_vendor=None)
        return as_declared(shape, self.resources)


@struct(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look: facts if the host answered, and always its readiness."""

    readiness: Readiness
    facts: Facts | None = None
    shape: Shape | None = None
    """Its shape; a declared field counts instead of a reported one. None if its GPUs are not known."""
    address: str | None = None
    """The address by which other hosts would reach it, if it is known."""
    connected: bool = False
    """Whether its key counts and it let us in, whatever is known of it."""


# -------------------------------------------------------------------------------------------- looks


def look(transport: SshTransport, root: str | None, declared: Declared) -> Look:
    """Look at a host, whose state folder is `root` if it is not the usual one."""
    return _look_by(lambda: probe(transport, root, declared.node), declared)


def visit(
    transport: SshTransport,
    root: str | None,
    owner: str,
    declared: Declared,
    attempts: Callable[[], Mapping[str, RankStatus]],
) -> Visit:
    """Look at the host of a node (see `look`), and list in the same round trip what `owner` has there.

    `attempts` asks only for the attempts. It is called once the host has the runner of this version, if the
    visit found an older one.
    """
    parts: list[Finished] = []

    def read() -> Facts:
        asked_at = time.time()
        parts[:] = _visited(transport, root, owner, declared.node or "")
        return _facts_in(checked(parts[0], f"a script on {transport.host}"), asked_at)

    look = _look_by(read, declared)
    if not look.facts:
        return Visit(readiness=look.readiness)
    cpus = look.facts.cpus

    def things() -> tuple[Thing, ...]:
        answer = checked(parts[2], f"a script on {transport.host}")
        return claims_in(answer, transport, root).things(owner)

    def ranks() -> Mapping[str, RankStatus]:
        entered, have = scripts.entered_in(parts[1].stdout)
        if not have:
            return attempts()
        scripts.note(transport, root, replace(entered, cpus=cpus))
        return launched(attempts_in(checked(parts[1], f"a script on {transport.host}")))

    return Visit(readiness=look.readiness, things=_if_readable(things), attempts=_if_readable(ranks))


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


def _look_by(read: Callable[[], Facts], declared: Declared) -> Look:
    """The result of a look whose facts `read` gives."""
    try:
        try:
            facts = read()
        except ConnectionLost:
            # An old connection may be broken. A new one shows whether the host is there.
            facts = read()
    except (ProviderError, RunnerError, ConnectionLost) as error:
        return Look(readiness=unanswered(error))
    reasons, gone = _unfit(facts, declared), _gone(facts, declared)
    reshaped = not reasons and (gone is not None or _outgrown(facts, declared))
    reasons += [gone] if gone else []
    readiness = Readiness(
        state=NodeState.NOT_READY if reasons else NodeState.READY,
        reason="; ".join(reasons or _remarks(facts, declared)) or None,
        observed_at=time.time(),
        can=facts.can,
        reshaped=reshaped,
        risk=_risk(facts, is_node=declared.node is not None),
        findings=_of_node(facts, declared),
    )
    sized = facts.gpus_known or "gpus" in declared.resources
    return Look(readiness=readiness, facts=facts, shape=declared.shape_of(facts) if sized else None)


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
    refusal = error.refusal if isinstance(error, RefusedError) else None
    return Readiness(state=state, reason=reason, observed_at=time.time(), refusal=refusal)


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

    listed_gpus, fault = _gpus(one, many)
    cpus, offset = scripts.cpu_list(one.get("cpus", "")), _seconds(one.get("now"), now) - now
    disk = count("block") * count("total") // MEBIBYTE, count("block") * count("free") // MEBIBYTE
    return Facts(
        root=one.get("root", ""),
        boot_id=one.get("boot_id"),
        address=one.get("address") or None,
        addresses=tuple(many.get("addresses", ())),
        cpus=cpus,
        memory_mib=count("memory_kib") // 1024,
        memory_free_mib=count("memory_free_kib") // 1024,
        disk_mib=disk[0],
        disk_free_mib=disk[1],
        files_free=_number(one.get("files_free")) if count("files") else None,  # btrfs counts none
        gpus=listed_gpus,
        gpu_fault=fault,
        tools=frozenset(many.get("tool", ())),
        can=frozenset(many.get("can", ())),
        state_fault=one.get("state"),
        later=one.get("old") or None,
        cleaned=one.get("cleaned") or None,
        clock_offset=offset,
        claim=one.get("claim") or None,
        last_boot=one.get("last_boot"),
        ends=one.get("ends"),
        name=one.get("host", ""),
        findings=judge(health.readings(many, cpus=len(cpus), disk=disk, clock=offset)),
    )


def _gpus(one: Mapping[str, str], many: Mapping[str, list[str]]) -> tuple[tuple[gpus.Gpu, ...], str | None]:
    """The GPUs that work, and why there may be more that do not."""
    try:
        if "nvidia_code" in one:
            rows, code = many.get("nvidia", []), scripts.number(one["nvidia_code"])
            return gpus.nvidia(rows, code, many.get("instance", [])), None
        if "rocm_code" in one:
            return gpus.rocm(many.get("rocm", []), scripts.number(one["rocm_code"])), None
    except gpus.BrokenGpuError as error:
        return error.working, str(error)
    if "device" not in one:
        return (), None
    remedy = "install it, or write what it has in the host's `resources`, and `trust: true`"
    return (), f"it has {one['device']}, but no nvidia-smi: {remedy}"


def _unfit(facts: Facts, declared: Declared) -> list[str]:
    """Why a host may not take work."""
    reasons = []
    if declared.node and facts.claim != declared.node:
        reasons.append("it is not this node any more: its claim is gone or another's")
    if missing := [tool for tool in TOOLS if tool not in facts.tools]:
        reasons.append(f"not installed: {', '.join(missing)}")
    reasons += [facts.state_fault] if facts.state_fault else _full_disk(facts)
    if facts.memory_free_mib < LEAST_MEMORY_MIB:
        reasons.append(f"only {facts.memory_free_mib} MiB of memory are free")
    each_named = declared.choice and not any(map(gpus.is_model, declared.choice))
    declared_gpus = declared.resources.get("gpus")
    named = bool(declared.devices) or declared.devices_of(facts, declared_gpus or 0) is not None
    if not facts.gpus_known:
        if declared_gpus != 0 and not (declared_gpus and declared.trusted and named):
            reasons.append(f"its GPUs are not known now: {facts.gpu_fault}")
    elif declared_gpus and declared.trusted and not named:
        has = len(declared.gpus_of(facts))
        reasons.append(
            f"its `gpus` means {has} of the {declared_gpus} GPUs that are declared of it, and no others are "
            "its node's: name all of them by their indexes"
        )
    elif facts.gpu_fault and "gpus" not in declared.resources and not each_named:
        reasons.append(f"its GPUs are in error: {facts.gpu_fault}")
    if not declared.trusted:
        reasons += _falls_short(facts, declared)
    return reasons + _lacks(facts, declared)


def _falls_short(facts: Facts, declared: Declared) -> list[str]:
    """The declared things that a host does not have, with both numbers."""
    short: list[str] = []
    for key, has, word, part in (
        ("cpu", len(facts.cpus), "CPUs", 1.0),
        ("memory_mib", facts.memory_mib, "MiB of memory", SOLD),
        ("disk_mib", facts.disk_mib or math.inf, "MiB of disk", SOLD),
    ):
        declared_count = declared.resources.get(key) or 0
        if has < declared_count * part:
            short.append(f"{has} of the {declared_count} {word}")
    declared_count, has = declared.resources.get("gpus") or 0, len(declared.gpus_of(facts))
    if has < declared_count and facts.gpus_known:
        size = as_declared(Shape(cpu=0, memory_mib=0), declared.resources).gpu_memory_mib
        names = declared.resources.get("gpu_name") or ""
        what = " ".join(filter(None, (declared.resources.get("gpu_vendor"), names, "GPUs")))
        what = what.replace(",", " or ") + (f" with {show_mib(size)} of memory" if size else "")
        sizes = bool(size) or any(parts(name)[1] for name in names.split(","))
        listed = gpus.listing(facts.gpus, sizes=sizes)
        short.append(f"{has} of the {declared_count} {what} (GPUs that work: {listed})")
    out = [f"it has {', '.join(short)} that are declared of it"] if short else []
    if out and has < declared_count and facts.gpus and facts.gpu_fault:
        out.append(facts.gpu_fault)
    if facts.gpus_known and (strange := gpus.absent(facts.gpus, declared.choice)):
        listed = and_more([f"{gpu.index} {gpu.id} {gpu.name}" for gpu in facts.gpus] or ["none"], MOST_NAMED)
        fault = f" ({facts.gpu_fault})" if facts.gpu_fault else ""
        out.append(f"its `gpus` names {', '.join(strange)}, and its GPUs are: {listed}{fault}")
    return [*out, "correct its declaration, or write `trust: true` at the host"] if out else []


def _full_disk(facts: Facts) -> list[str]:
    if facts.disk_free_mib < LEAST_FREE_MIB:
        return [f"only {facts.disk_free_mib} MiB are free on the disk of {facts.root}"]
    if facts.files_free is not None and facts.files_free < LEAST_FILES:
        return [f"only {facts.files_free} more files can be made on the disk of {facts.root}"]
    return []


def _lacks(facts: Facts, declared: Declared) -> list[str]:
    """The things that the host has lost since its node was made."""
    out: list[str] = []
    shape, recorded = declared.shape_of(facts), declared.recorded
    if recorded is None:
        return out
    for key, word, part in (("cpu", "CPUs", 1.0), ("memory_mib", "MiB of memory", TOLERANCE)):
        had, has = getattr(recorded, key), getattr(shape, key)
        if key not in declared.resources and has < had * part:
            out.append(f"it has {has} of the {had} {word} that are recorded of it: {_FEWER}")
    return out


_ANEW = "the next `apply` makes it anew once it is idle"
_FEWER = "to go on without, write what it has in the host's `resources`"


def _gone(facts: Facts, declared: Declared) -> str | None:
    """Which GPUs it does not have any more that are recorded of its node."""
    shape, recorded = declared.shape_of(facts), declared.recorded
    counts = declared.trusted and (
        declared.devices or not (declared.choice and declared.resources.get("gpus"))
    )
    if recorded is None or counts or not facts.gpus_known:
        return None
    if not declared.devices:
        mine = [gpu.index for gpu in declared.gpus_of(facts)]
        if "gpus" not in declared.resources and shape.gpus < recorded.gpus:
            return f"it has {shape.gpus} of the {recorded.gpus} GPUs that are recorded of it: {_FEWER}"
        if len(mine) == recorded.gpus and mine != [*range(len(mine))]:  # made by an earlier version
            numbers = ", ".join(map(str, mine))
            return f"its GPUs are {numbers}, which is not recorded: {_ANEW}"
        return None
    ids = {gpu.id for gpu in facts.gpus}
    missing = [device for device in declared.devices if device not in ids]
    if not missing:
        return None
    new = [gpu.id for gpu in declared.gpus_of(facts) if gpu.id not in declared.devices]
    more = f", {', '.join(new)} new" if new else ""
    had = len(declared.devices)
    then = _FEWER if shape.gpus < recorded.gpus else _ANEW
    return (
        f"it has {had - len(missing)} of the {had} GPUs that are recorded of it "
        f"({', '.join(missing)} missing{more}): {then}"
    )


def _outgrown(facts: Facts, declared: Declared) -> bool:
    """Whether it has more GPUs than are recorded of its node: its driver may have come later."""
    if declared.recorded is None or "gpus" in declared.resources:
        return False
    return len(declared.gpus_of(facts)) > declared.recorded.gpus


def _of_node(facts: Facts, declared: Declared) -> tuple[Finding, ...]:
    """The findings that matter for its node: not those of GPUs that the node does not have. If no GPU works
    or is declared of it, `_unfit` decides what that means.
    """
    mine = {gpu.uuid for gpu in declared.gpus_of(facts)}
    others = {gpu.uuid for gpu in facts.gpus if gpu.uuid} - mine
    return tuple(f for f in facts.findings if f.gpu is None or (mine and f.gpu not in others))


def _remarks(facts: Facts, declared: Declared) -> list[str]:
    """Remarks for the user about a host that may take work."""
    out = []
    mine = declared.gpus_of(facts)
    if _outgrown(facts, declared) and declared.recorded:
        out.append(f"it has {len(mine)} GPUs, and {declared.recorded.gpus} are recorded of it")
    if len({gpu.name for gpu in mine}) > 1:
        first = max(mine, key=lambda gpu: (gpu.memory_mib or 0, gpu.name)).name
        out.append(f"it has {gpus.listing(mine)}: choose with `gpus: [{first}]` at the host")
    if facts.last_boot and facts.boot_id and facts.last_boot != facts.boot_id:
        out.append("it was rebooted since the last look")
    if facts.ends:
        out.append(f"systemd ends its ranks with the last login (`loginctl enable-linger {facts.ends}`)")
    return out


def _risk(facts: Facts, *, is_node: bool) -> Risk | None:
    """The reason why the state folder may lose its content."""
    where = f"its state and volumes are in {facts.root}"
    cleaned = f"old files in {facts.cleaned} are deleted, as by systemd-tmpfiles" if facts.cleaned else ""
    if facts.later:
        keep = f"declare `root: {facts.root}`"
        move = f"fleetform ssh NODE -- sh {facts.root}/bin/{scripts.runner()[0]} @move"
        remedy = f"while no rank runs there, `{move}` moves them to {facts.later}; or {keep}"
        if not is_node:  # `fleetform ssh` knows nodes only
            remedy = f"{keep} to keep them there; once it is a node, a plan names the command that moves them"
        return Risk(
            what=", and ".join(filter(None, (f"{where}, as earlier versions had it", cleaned))), remedy=remedy
        )
    if not cleaned:
        return None
    remedy = "name another folder in the backend's `root`"
    # What is emptied at each boot cannot be excluded from that, and other cleaners have rules of their own.
    fleeting = facts.root.startswith(("/run/", "/dev/shm/"))  # noqa: S108  # it is not used
    if "systemd-tmpfiles" in facts.tools and not fleeting and re.fullmatch(r"[A-Za-z0-9/._-]+", facts.root):
        # Each folder has a file of its own, the one that `root.sh` would write.
        file = f"/etc/tmpfiles.d/fleetform{facts.root.replace('/', '-')}.conf"
        exclude = f"mkdir -p /etc/tmpfiles.d && echo 'x {facts.root}' >{file}"
        remedy += f"; or exclude it, as root of the host: `{exclude}`"
    return Risk(what=f"{where}, and {cleaned}", remedy=remedy)


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
