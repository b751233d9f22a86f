"""Turns ranks into a job: what Slurm is asked for a gang, and what its answer means."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from declarative.model.blocks import Shape
from declarative.model.record import struct
from declarative.model.state import Record
from declarative.model.text import and_more
from declarative.provider import Launch, PermanentError, PermanentKind
from declarative.provider.optional import Seat
from providers import runner
from providers.rank_scripts import prepared
from providers.slurm.cluster import time_of
from providers.slurm.fleets import taken
from providers.slurm.snapshot import Attempt, Need, Snapshot, attempts_in
from providers.transport import ConnectionLost

_OPTIONS = ("partition", "constraint", "account", "qos", "reservation")
_WORD = re.compile(r"[A-Za-z0-9_.,&|!*()\[\]:@+-]{1,255}", re.ASCII)
SPARE_MINUTES = 5
"""Minutes added to a task's limit, which counts from the moment when all ranks can run."""


@struct(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The script, the runner's options and the needs of a rank, written before its job starts."""

    script: str
    options: tuple[str, ...]
    needs: tuple[str, str, str, str, str, str]
    """Slurm's node, CPUs, MiB, GPUs (`model:count`, `count` or `-`), seconds at most or `-`, and `queue` or
    `-`.
    """


@struct(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One job for a gang."""

    token: str
    name: str
    ranks: tuple[str, ...]
    options: tuple[str, ...]
    queue: bool
    """Whether it may wait in Slurm's queue."""


def plan_of(node: Record, folder: str, launch: Launch, volumes: Mapping[str, str]) -> RankPlan:
    """The plan of a rank on a node with that folder. Slurm confines it to CPUs, memory and devices that Slurm
    chooses.
    """
    shape, inside = node.node.resources, f"{folder}/{node.outputs['id'].rpartition('.')[2]}"
    if launch.hard:
        summary = "Slurm confines ranks by its own configuration: `isolation: hard` cannot be promised"
        hint = "leave out `isolation`"
        raise PermanentError(PermanentKind.INVALID, summary, about="isolation", hint=hint)
    env = dict(launch.env)
    if launch.cpus:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env.setdefault(name, str(len(launch.cpus)))
    bare = replace(launch, env=env, cpus=(), gpus=(), memory_mib=None, gate_seconds=None, alone_seconds=None)
    plain = prepared(inside, (), bare, volumes, sees_own_gpus=bool(launch.gpus))
    cpus = min(len(launch.cpus) or shape.cpu, shape.cpu)
    memory = launch.memory_mib or shape.memory_mib * cpus // max(1, shape.cpu)
    gpus = f"{shape.gpu_name}:{len(launch.gpus)}" if shape.gpu_name else str(len(launch.gpus))
    limit = "-" if launch.max_seconds is None else str(launch.max_seconds + launch.stop_seconds)
    name = str(node.node.host.get("slurm"))
    queue = "queue" if launch.queue else "-"
    needs = (name, str(cpus), str(memory), gpus if launch.gpus else "-", limit, queue)
    return RankPlan(script=plain.script, options=tuple(runner.options_of(plain)), needs=needs)


def job_of(task: str, seats: Sequence[Seat], attempts: Sequence[Attempt]) -> JobPlan:
    """The job of these ranks, bound to their nodes, with their needs on each node."""
    names = sorted(f"{a.node}/{a.name}" for a in attempts)
    token = hashlib.sha256("\0".join(names).encode()).hexdigest()[:32]
    options = options_of(task, seats[0].node, attempts)
    short = re.sub(r"[^A-Za-z0-9-]", "-", task)[:40]
    return JobPlan(
        token=token,
        name=f"{short}-ff-{token}",
        ranks=tuple(f"{a.node}/{a.name}" for a in attempts),
        options=options,
        queue=all(a.queue for a in attempts),
    )


def options_of(task: str, node: Record, needs: Sequence[Need]) -> tuple[str, ...]:
    """The options of `sbatch` for ranks with these needs; `node` is one of their fleet."""
    sums = _sums(task, needs)
    cpus, memory, gpus = next(iter(sums.values()))
    host = node.node.host
    options = [f"--{key}={_word(key, host[key])}" for key in _OPTIONS if host.get(key)]
    options += [f"--nodes={len(sums)}", f"--nodelist={','.join(sorted(sums))}", "--ntasks-per-node=1"]
    options += [f"--cpus-per-task={cpus}", f"--mem={memory}", *([f"--gres=gpu:{gpus}"] if gpus else [])]
    options += ["--no-requeue", "--chdir=/", "--output=/dev/null", "--error=/dev/null", "--input=/dev/null"]
    limits = [n.limit for n in needs if n.limit is not None]
    if len(limits) == len(needs):
        options.append(f"--time={minutes_of(max(limits))}")
    return tuple(options)


@overload
def minutes_of(limit: int, grace: int = 0) -> int: ...
@overload
def minutes_of(limit: int | None, grace: int = 0) -> int | None: ...
def minutes_of(limit: int | None, grace: int = 0) -> int | None:
    """How long a job must last for ranks with this limit and this grace; None for no limit."""
    return None if limit is None else math.ceil((limit + grace) / 60) + SPARE_MINUTES


def need_of(node: Record, share: Shape, seconds: int | None) -> Need:
    """The needs of a rank with that share of a node, as `plan_of` writes them."""
    gpus = f"{share.gpu_name}:{share.gpus}" if share.gpu_name else str(share.gpus)
    return Need(
        host=str(node.node.host.get("slurm")),
        cpus=share.cpu,
        memory_mib=share.memory_mib,
        gpus=gpus if share.gpus else "-",
        limit=seconds,
    )


_EXPECTED = re.compile(r"to start at (\S+) using")


def expected_in(text: str) -> float | None:
    """The start time in the output of `sbatch --test-only`."""
    match = _EXPECTED.search(text)
    return time_of(match[1]) if match else None


def _sums(task: str, needs: Sequence[Need]) -> dict[str, tuple[int, int, str]]:
    """The needs of ranks on each node: CPUs, MiB and GPUs; `PermanentError` if they are not the
    same on all.
    """
    by_host: dict[str, list[Need]] = {}
    for need in needs:
        by_host.setdefault(need.host, []).append(need)
    sums = {host: _sum(host_needs) for host, host_needs in by_host.items()}
    if len(set(sums.values())) > 1:
        listing = and_more((f"{h}: {c} CPUs, {m} MiB, {g or 'no GPUs'}" for h, (c, m, g) in sums.items()), 4)
        summary = f"{task}: a Slurm job takes the same of each node, but its ranks do not ({listing})"
        hint = "let each rank have a node of its own (`exclusive: true`), or give them equal shares"
        raise PermanentError(PermanentKind.INVALID, summary, about="nodes", hint=hint)
    return sums


def _sum(needs: Sequence[Need]) -> tuple[int, int, str]:
    models = {n.gpus.rpartition(":")[0] for n in needs if n.gpus != "-"}
    count = sum(int(n.gpus.rpartition(":")[2]) for n in needs if n.gpus != "-")
    model = next(iter(models), "")
    gpus = f"{model}:{count}" if model else str(count)
    return sum(n.cpus for n in needs), sum(n.memory_mib for n in needs), gpus if count else ""


def _word(key: str, value: Any) -> str:
    text = str(value)
    if not _WORD.fullmatch(text):
        raise PermanentError(PermanentKind.INVALID, f"`{key}` cannot be {text!r}", about=key)
    return text


def attempts_of(answer: bytes) -> list[Attempt]:
    """The attempts in the output of `seats`."""
    _, start, text = answer.decode(errors="replace").partition("FLEETFORM-SEATS\n")
    text, end, _ = text.partition("FLEETFORM-END")
    if not start or not end:
        raise ConnectionLost("the answer about prepared ranks is incomplete")
    return attempts_in(text)


def submitted(answer: bytes) -> tuple[int, str, str]:
    """The job's id, state and reason in the output of `submit`."""
    text = answer.decode(errors="replace").partition("FLEETFORM-JOB ")[2].partition("\n")[0]
    number, *rest = text.split("|")
    if not number.isdecimal():
        raise ConnectionLost("the answer to a submission is incomplete")
    return int(number), rest[0] if rest else "", rest[1] if len(rest) > 1 else ""


def not_granted(
    task: str, number: int, reason: str, snapshot: Snapshot, seats: Sequence[Seat]
) -> PermanentError:
    """The fault for a job that Slurm queued although there seemed to be room. It has been cancelled."""
    nodes = sorted({str(s.node.node.host.get("slurm")) for s in seats})
    holders = [f"{name}: {t.holder}" for name in nodes for t in taken(snapshot, name)]
    who = f"; {and_more(holders, 4)}" if holders else ""
    summary = f"Slurm did not start {task} at once, so its job was cancelled (job {number}, {reason}){who}"
    hint = "run this again: it plans with the nodes as they are now"
    return PermanentError(PermanentKind.NO_CAPACITY, summary, about=str(seats[0].node.address), hint=hint)


def task_of(attempt: str) -> str:
    """The task of an attempt: a rank's name is its task's and its number."""
    rank = attempt.partition(".")[0]
    return rank.rpartition("-")[0] or rank


def is_before(attempt: str, oldest: Mapping[str, int]) -> bool:
    """Whether an attempt is of one of these ranks, with a lower number (`state.attempt_id`)."""
    rank, number, *_ = *attempt.split("."), ""
    return rank in oldest and number.isdecimal() and int(number) < oldest[rank]
