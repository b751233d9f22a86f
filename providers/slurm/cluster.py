"""Parses what Slurm reports about itself, from `scontrol --oneliner` and `squeue`. Pure.

Only this text form exists in every version since 17 for nodes, partitions, jobs and switches; `scontrol
--json` is newer than the versions in distributions. Unknown keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import islice, zip_longest

from declarative.model.blocks import Shape
from declarative.model.record import struct
from declarative.model.text import show_mib

_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/.]*)=")
_GRES = re.compile(r"(?:gres[:/])?gpu(?::([^:(=,]+))?[:=](\d+)(?:\(IDX:([^)]*)\))?")
_PLAIN_GRES = re.compile(r"gpu(?=,|$|\()")
_NONE = frozenset({"", "(null)", "N/A", "None", "NONE", "n/a", "Unknown", "UNLIMITED", "INFINITE"})
_MOST_NODES = 1 << 17
ENDED = frozenset(
    (
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    )
)
"""States of jobs that run no longer and hold nothing."""
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class UnreadableError(ValueError):
    """An answer that no version of Slurm gives."""


@struct(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of a node that one job holds."""

    cpus: int
    memory_mib: int
    gpus: int
    devices: tuple[int, ...] = ()
    """The indexes of its GPUs on that node."""


@struct(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, or one element of an array."""

    id: int
    name: str
    user: str
    state: str
    reason: str | None
    nodes: tuple[str, ...]
    shares: Mapping[str, Share]
    ended_at: float | None = None
    """When it ended or must end, seconds since the epoch; None without a limit."""
    starts_at: float | None = None
    """When it began, or if it waits, when Slurm expects it to begin."""
    restarts: int = 0
    """How often it was requeued."""

    @property
    def holds(self) -> bool:
        """Whether it holds its nodes."""
        return self.state not in ENDED and self.state not in WAITING


def held_by(job: Job, share: Share) -> str:
    """A job and what it holds, in words: `job 17 of alice (2 GPUs, 4 CPUs, 16GB)`."""
    parts = [f"{share.gpus} GPUs" if share.gpus != 1 else "1 GPU"] if share.gpus else []
    parts += [f"{share.cpus} CPUs", show_mib(share.memory_mib)]
    return f"slurm job {job.id} of {job.user} ({', '.join(parts)})"


@struct(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `shape` is the part that jobs can use."""

    name: str
    address: str
    shape: Shape
    states: frozenset[str]
    reason: str | None
    features: frozenset[str]
    partitions: frozenset[str]
    busy_cpus: int
    busy_memory_mib: int
    busy_gpus: int


@struct(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition."""

    name: str
    state: str
    nodes: frozenset[str]


@struct(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The whole cluster at one time. `now` is by the clock of the login node."""

    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]
    jobs: Mapping[int, Job]
    switches: Mapping[str, tuple[tuple[str, str], ...]]
    """Node → level → the switch at that level, for nodes below a switch."""
    now: float


def fields_in(line: str) -> dict[str, str]:
    """The fields of a line. Values may contain spaces. The first of repeated keys counts."""
    fields: dict[str, str] = {}
    marks = list(_KEY.finditer(line))
    for mark, following in zip_longest(marks, marks[1:]):
        end = following.start() if following else len(line)
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def nodes_in(text: str) -> dict[str, Node]:
    """The nodes in the output of `scontrol show node`."""
    return {n.name: n for n in (_node(fields_in(line)) for line in _lines(text, "NodeName="))}


def _node(fields: Mapping[str, str]) -> Node:
    name = fields["NodeName"]
    cpus = _number(fields.get("CPUEfctv")) or _number(fields.get("CPUTot")) - _number(
        fields.get("CoreSpecCount")
    )
    memory = _number(fields.get("RealMemory")) - _number(fields.get("MemSpecLimit"))
    gpus, model = _gpus(fields.get("Gres", ""))
    used, _ = _gpus(fields.get("GresUsed", ""))
    features = _unless_none(fields.get("ActiveFeatures")) or _unless_none(fields.get("Features")) or ""
    return Node(
        name=name,
        address=fields.get("NodeAddr") or fields.get("NodeHostName") or name,
        shape=Shape(cpu=max(0, cpus), memory_mib=max(0, memory), gpus=gpus, gpu_name=model),
        states=frozenset(re.split(r"[+*~#!%$@^-]+", fields.get("State", "UNKNOWN").strip("*~#!%$@^-")))
        | ({"NOT_RESPONDING"} if "*" in fields.get("State", "") else set()),
        reason=_unless_none(fields.get("Reason")),
        features=frozenset(filter(None, features.split(","))),
        partitions=frozenset(filter(None, (_unless_none(fields.get("Partitions")) or "").split(","))),
        busy_cpus=_number(fields.get("CPUAlloc")),
        busy_memory_mib=_number(fields.get("AllocMem")),
        busy_gpus=used,
    )


def partitions_in(text: str) -> dict[str, Partition]:
    """The partitions in the output of `scontrol show partition`."""
    out: dict[str, Partition] = {}
    for line in _lines(text, "PartitionName="):
        fields = fields_in(line)
        out[fields["PartitionName"]] = Partition(
            name=fields["PartitionName"],
            state=fields.get("State", "UP"),
            nodes=frozenset(hosts(_unless_none(fields.get("Nodes")) or "")),
        )
    return out


_ROW = re.compile(r"(\d{1,15})\|([A-Z_]+)" + r"\|([^|]*)" * 5)
_ONCE = re.compile(r"\s(JobName|JobState|MinCPUsNode)=")


def jobs_in(listed: str, details: str) -> dict[int, Job]:
    """The jobs in the output of `squeue` and `scontrol --details show job`.

    Names, comments and more are text of any user. They may look like fields or, with a line break, like whole
    jobs. So decisions use only fields of `squeue` that no user can write. A job with doubtful details counts
    as one whose details Slurm hides.
    """
    lines: dict[int, list[str]] = {}
    for line in _lines(details, "JobId="):
        lines.setdefault(_number(line.removeprefix("JobId=")), []).append(line)
    out: dict[int, Job] = {}
    for row in filter(None, map(_ROW.fullmatch, listed.split("\n"))):
        number, state, user, nodes, reason, start, end = row.groups()
        job_lines = lines.get(int(number), [])
        sure = len(job_lines) == 1 and len(set(marks := _ONCE.findall(job_lines[0]))) == len(marks)
        line = job_lines[0] if sure else ""
        # No user's text stands between these marks.
        facts = line.partition(" JobState=")[2].partition(" MinCPUsNode=")[0]
        out[int(number)] = Job(
            id=int(number),
            name=fields_in(line).get("JobName", ""),
            user=user,
            state=state,
            reason=_unless_none(reason),
            nodes=tuple(hosts(_unless_none(nodes) or "")),
            shares=_shares(facts),
            ended_at=time_of(end),
            starts_at=time_of(start),
            restarts=_number(fields_in(facts).get("Restarts")),
        )
    return out


_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)(?: GRES(?:_IDX)?=(\S*))?")


def _shares(line: str) -> dict[str, Share]:
    out: dict[str, Share] = {}
    for names, cpus, memory, gres in _SHARE.findall(line):
        gpus, _ = _gpus(gres)
        indexes = [i for match in _GRES.finditer(gres) for i in numbers(match[3] or "")]
        share = Share(cpus=len(numbers(cpus)), memory_mib=int(memory), gpus=gpus, devices=tuple(indexes))
        out.update(dict.fromkeys(hosts(names), share))
    return out


def reservations_in(text: str) -> dict[str, frozenset[str]]:
    """The active reservations in the output of `scontrol show reservation`, and their nodes."""
    reservations = (fields_in(line) for line in _lines(text, "ReservationName="))
    return {
        r["ReservationName"]: frozenset(hosts(_unless_none(r.get("Nodes")) or ""))
        for r in reservations
        if r.get("State", "ACTIVE") == "ACTIVE"
    }


def switches_in(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Node → `leaf` and, above it, `switch-1`, `switch-2` …, from the output of `scontrol show topology`.

    A block topology has blocks in place of leaves: they are the level `block`.
    """
    out: dict[str, dict[str, str]] = {}
    for line in _lines(text, "SwitchName="):
        fields = fields_in(line)
        level = _number(fields.get("Level"))
        for node in hosts(_unless_none(fields.get("Nodes")) or ""):
            out.setdefault(node, {})["leaf" if not level else f"switch-{level}"] = fields["SwitchName"]
    for line in _lines(text, "BlockName="):
        fields = fields_in(line)
        for node in hosts(_unless_none(fields.get("Nodes")) or ""):
            out.setdefault(node, {})["block"] = fields["BlockName"]
    return {node: tuple(sorted(levels.items())) for node, levels in out.items()}


def _lines(text: str, begin: str) -> Iterator[str]:
    return (line for line in text.split("\n") if line.startswith(begin))


def _unless_none(value: str | None) -> str | None:
    return None if value is None or value in _NONE else value


def _number(value: str | None) -> int:
    digits = re.match(r"\d{1,15}", value or "")
    return int(digits[0]) if digits else 0


def _gpus(gres: str) -> tuple[int, str | None]:
    """The number of GPUs in a list of resources, and their model: `gpu:h100:8(S:0-1),shard:8`."""
    count, models = 0, []
    for match in _GRES.finditer(gres):
        count += int(match[2])
        models.append(match[1])
    count += len(_PLAIN_GRES.findall(gres))
    return count, next((m for m in models if m), None)


def time_of(text: str | None) -> float | None:
    """A time in Slurm's text as seconds since the epoch, in the zone of the login node (scripts set UTC)."""
    try:
        return datetime.fromisoformat(f"{_unless_none(text)}+00:00").timestamp()
    except ValueError:
        return None


@cache
def hosts(text: str) -> tuple[str, ...]:
    """The names in a host list: `gpu-[0-3,8],login`; `UnreadableError` for more than Slurm allows."""
    names = tuple(islice((name for part in _parts(text) for name in _expanded(part)), _MOST_NODES + 1))
    if len(names) > _MOST_NODES:
        raise UnreadableError(f"a list of more than {_MOST_NODES} hosts")
    return names


def _parts(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets."""
    depth, begin = 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            yield text[begin:i]
            begin = i + 1
    if text[begin:]:
        yield text[begin:]


def _expanded(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    inside, closed, after = rest.partition("]")
    if not bracket or not closed:
        yield part
        return
    for piece in inside.split(","):
        low, _, high = piece.partition("-")
        first, last = int(low), int(high or low)
        if last - first > _MOST_NODES:
            raise UnreadableError(f"a list of {last - first} hosts")
        for number in range(first, last + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(low)}d}{end}"


def numbers(text: str) -> tuple[int, ...]:
    """`0-3,8` as numbers; none for `N/A`."""
    out: list[int] = []
    for piece in text.split(","):
        low, _, high = piece.partition("-")
        if low.isdecimal() and (not high or high.isdecimal()):
            out += range(int(low), int(high or low) + 1)
    return tuple(out)
