"""One look at a cluster: Slurm's report and the content of our folder there, in one round trip.

Polls of many nodes share it. A poll within `FRESH` seconds of a look's end, or within the duration of the
look, gets the same answer, unless this process has changed something since. So a slow cluster is not asked
for each node.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from declarative.model.status import (
    LIMIT_REACHED,
    NOT_RELEASED,
    PREPARING,
    WAITING,
    RankState,
    RankStatus,
)
from declarative.model.text import and_more
from declarative.provider import PermanentError, PermanentKind, Thing, TransientError
from providers import ranks, runner
from providers.ownership import FORMAT, NOT_OWNED, VANISHED, Owned, lost, owned
from providers.slurm import cluster
from providers.slurm.cluster import ENDED, Cluster, Job, Share, held_by
from providers.slurm.login import Place
from providers.transport import ConnectionLost

FRESH = 0.4
AWAY_PAUSE = 8.0
"""Seconds until the next look after the controller did not answer."""
SETTLE_SECONDS = 20.0
"""Seconds after an end until everything about it is visible: a shared filesystem shows files late, and Slurm
its reasons.
"""
_MARK = "FLEETFORM-LOOK "
WITNESS = "witness"
"""Among the outputs of a volume beside whose folder lies a file that nobody touches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The needs of one rank on one node."""

    host: str
    cpus: int
    memory_mib: int
    gpus: str
    """`model:count`, `count`, or `-` for none."""
    limit: int | None
    """Seconds that it may run, including its grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Need):
    """The content of an attempt's folder."""

    node: str
    """The key of the node's thing."""
    name: str
    prepared_at: float
    gate: int | None
    queue: bool
    """Whether its job may wait in Slurm's queue."""
    job: str
    """The token of its job; empty before one is submitted."""
    opened: bool
    step: str
    """`17.0` once a step of a job runs it; `-` if none ever will."""
    devices: str
    started_at: float | None
    ended: tuple[str, str, float] | None
    """Exit code, reason and time, as the runner writes them."""
    confined: str
    mounted: str
    stopping: bool
    refused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster, and what this owner has there."""

    cluster: Cluster
    reserved: Mapping[str, frozenset[str]]
    """Slurm's active reservations and their nodes."""
    things: tuple[tuple[Owned, Mapping[str, object]], ...]
    """Each thing with its outputs."""
    vanished: Mapping[str, str]
    """The keys of volumes that lack something, and which of `VANISHED` that is."""
    jobs: Mapping[str, int | None]
    """The tokens of our jobs, and their ids if known."""
    attempts: Mapping[tuple[str, str], Attempt]

    def job_of(self, attempt: Attempt) -> Job | None:
        """The job that runs an attempt, as long as Slurm knows it."""
        number = self.jobs.get(attempt.job)
        if number is not None:
            return self.cluster.jobs.get(number)
        named = (j for j in self.cluster.jobs.values() if attempt.job and j.name.endswith(attempt.job))
        return min(named, key=lambda j: j.id, default=None)

    def is_queued(self, attempt: Attempt) -> bool:
        """Whether its job waits in Slurm's queue."""
        job = self.job_of(attempt)
        return job is not None and not job.holds and job.state not in ENDED

    def ours(self) -> frozenset[int]:
        """This owner's jobs that are not ending yet. Their resources are those of our ranks."""
        tokens = {token for token, number in self.jobs.items() if number is None}
        numbers = {number for number in self.jobs.values() if number is not None}
        return frozenset(
            n
            for n, job in self.cluster.jobs.items()
            if job.state != "COMPLETING" and (n in numbers or job.name.rpartition("-ff-")[2] in tokens)
        )

    def status(self, attempt: Attempt) -> RankStatus:
        """The status of an attempt."""
        job = self.job_of(attempt)
        if attempt.ended is not None:
            return _ended(attempt, job, self.cluster.now)
        confinement = self._confinement(attempt, job)
        if attempt.started_at is not None and (job is None or not self._over(job)):
            if job is None and self.jobs.get(attempt.job) is not None:
                return _lost(attempt, "Slurm has forgotten its job, and it left no exit code")
            return RankStatus(state=RankState.RUNNING, started_at=attempt.started_at, confinement=confinement)
        if job is not None and self._over(job):
            if not attempt.opened:
                return RankStatus(state=RankState.LOST, cause=NOT_RELEASED, ended_at=job.ended_at)
            return _of_job(attempt, job)
        return self._before(attempt, job, confinement)

    def _over(self, job: Job) -> bool:
        """Whether a job ended long enough ago for all its files to be visible."""
        if job.state not in ENDED:
            return False
        abnormal = job.state not in ("COMPLETED", "FAILED")
        return abnormal or job.ended_at is None or self.cluster.now - job.ended_at > SETTLE_SECONDS

    def _before(self, attempt: Attempt, job: Job | None, confinement: str | None) -> RankStatus:
        """The status of an attempt whose commands have not started."""
        expired = attempt.gate is not None and self.cluster.now > attempt.prepared_at + attempt.gate
        if not attempt.opened:
            if expired and job is None:
                return RankStatus(state=RankState.LOST, cause=NOT_RELEASED, ended_at=self.cluster.now)
            return RankStatus(state=RankState.STARTING, cause=WAITING)
        if job is None and self.jobs.get(attempt.job) is not None:
            return _lost(attempt, "Slurm has forgotten its job, and it never began")
        if job is not None and self.is_queued(attempt):
            return RankStatus(state=RankState.PENDING, cause=self._queued(attempt, job))
        cause = f"job {job.id} is {job.state.lower()}" if job is not None else PREPARING
        return RankStatus(state=RankState.STARTING, cause=cause, confinement=confinement)

    def _queued(self, attempt: Attempt, job: Job) -> str:
        """Why a job waits: Slurm's reason, who holds its node, and when Slurm expects it to begin."""
        others = (j for j in self.cluster.jobs.values() if j.holds and attempt.host in j.shares)
        holders = and_more((held_by(j, j.shares[attempt.host]) for j in others), 2)
        parts = [f"job {job.id} waits in Slurm's queue" + (f" ({job.reason})" if job.reason else "")]
        parts += [f"{attempt.host} is held by {holders}"] if holders else []
        if job.starts_at is not None:
            when = datetime.fromtimestamp(job.starts_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
            parts.append(f"Slurm expects it to begin at {when}")
        return "; ".join(parts)

    def _confinement(self, attempt: Attempt, job: Job | None) -> str | None:
        """How the attempt is confined. The plan sets the number of devices, and Slurm chooses them."""
        if job is None or not job.holds:
            return None
        share = job.shares.get(attempt.host)
        parts = [f"slurm job {job.id}", *([f"gpus {devices(attempt, share)}"] if attempt.gpus != "-" else [])]
        return ": ".join(filter(None, (attempt.confined.partition(":")[0] or None, ", ".join(parts))))


def devices(attempt: Attempt, share: Share | None) -> str:
    """The indexes of an attempt's GPUs: those of its step, else those of its job on its node."""
    if attempt.devices not in ("", "-"):
        return attempt.devices
    return ",".join(map(str, share.devices)) if share and share.devices else "not known yet"


def _lost(attempt: Attempt, cause: str) -> RankStatus:
    return RankStatus(state=RankState.LOST, cause=cause, started_at=attempt.started_at)


_BY_STATE: Mapping[str, tuple[RankState, str]] = {
    "TIMEOUT": (RankState.FAILED, LIMIT_REACHED),
    "DEADLINE": (RankState.FAILED, LIMIT_REACHED),
    "NODE_FAIL": (RankState.LOST, "a node of its job failed"),
    "BOOT_FAIL": (RankState.LOST, "a node of its job did not boot"),
    "PREEMPTED": (RankState.LOST, "its job was preempted"),
    "REVOKED": (RankState.LOST, "its job was revoked"),
    "LAUNCH_FAILED": (RankState.LOST, "its job could not be launched"),
    "CANCELLED": (RankState.STOPPED, "its job was cancelled"),
    "OUT_OF_MEMORY": (RankState.FAILED, "killed: out of memory"),
}
"""Slurm's reasons for a job that it ended without being asked by us."""


def _of_job(attempt: Attempt, job: Job) -> RankStatus:
    """The end of an attempt as its job's end shows it."""
    state, cause = _BY_STATE.get(job.state, (RankState.LOST, "its job ended, and it left no exit code"))
    more = f": {job.reason}" if job.reason and job.reason != "NonZeroExitCode" else ""
    return RankStatus(
        state=state,
        cause=cause if cause == LIMIT_REACHED else f"{cause} (job {job.id}, {job.state}{more})",
        started_at=attempt.started_at,
        ended_at=job.ended_at,
    )


def _stopped_by(attempt: Attempt, job: Job, seconds: float) -> RankStatus | None:
    """The end of an attempt that Slurm stopped this many seconds ago; None if the cause is unknown."""
    if job.restarts:  # it may run again, and has no files of ours
        return _lost(attempt, f"its job was requeued (job {job.id})")
    if job.state in ENDED:
        return _of_job(attempt, job) if job.state in _BY_STATE else None
    # Its processes end before Slurm reports why. An end recorded without a cause would never get one.
    if job.state == "COMPLETING" or seconds < SETTLE_SECONDS:
        cause = f"it was stopped, and its job has not ended yet (job {job.id}, {job.state})"
        return RankStatus(state=RankState.RUNNING, cause=cause, started_at=attempt.started_at)
    return None


def _ended(attempt: Attempt, job: Job | None, now: float) -> RankStatus:
    assert attempt.ended is not None
    code, reason, at = attempt.ended
    by_slurm = job if reason == "stopped" and not attempt.stopping else None
    if by_slurm and (stopped := _stopped_by(attempt, by_slurm, now - at)):
        return replace(stopped, exit_code=int(code), ended_at=at) if stopped.state.ended else stopped
    if reason == "refused":
        cause = f"its node refused it: {attempt.refused or 'no reason is known'}"
        return RankStatus(state=RankState.FAILED, cause=cause, ended_at=at)
    ended_attempt = runner.Attempt(
        attempt_id=attempt.name,
        state=runner.AttemptState.EXITED,
        exit_code=int(code),
        reason=None if reason == "-" else reason,
        started_at=attempt.started_at,
        ended_at=at,
        memory_bytes=attempt.memory_mib * ranks.MEBIBYTE,
    )
    status = ranks.status(ended_attempt)
    assert status is not None
    return status


# ----------------------------------------------------------------------------------------- the answer


class Looks:
    """Snapshots of one place. Safe to use from many threads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._turn = threading.Lock()
        self._started = self._until = self._changed = float("-inf")
        self._found: Snapshot | None = None
        self._failed = float("-inf")
        self._fault: TransientError | None = None

    def get(self, *, fresh: bool = False) -> Snapshot:
        """A recent snapshot, or with `fresh` one that began after this call.

        If the controller is away, Slurm's commands wait for it. So calls soon after a failed one get the same
        fault without waiting.
        """
        called_at = time.monotonic()
        with self._turn:
            if self._fault is not None and called_at < self._failed + AWAY_PAUSE:
                raise self._fault
            old = self._started < (called_at if fresh else self._changed) or (
                not fresh and self._until < called_at
            )
            if self._found is None or old:
                started = time.monotonic()
                try:
                    answer = self._place.ask("look")
                except TransientError as error:
                    self._failed = time.monotonic()
                    self._fault = TransientError(error.kind, error.summary, hint=error.hint, away=True)
                    raise self._fault from error
                self._fault = None
                self._found = read(answer, str(self._place.login.host))
                ended = time.monotonic()
                self._started, self._until = started, ended + max(FRESH, ended - started)
            return self._found

    def changed(self) -> None:
        """Note a change: looks that began before it are no longer used."""
        self._changed = time.monotonic()


def read(answer: bytes, host: str) -> Snapshot:
    """The snapshot in the output of `look`."""
    text = answer.decode(errors="replace")
    body, whole, _ = text.partition("\nFLEETFORM-END")
    if not whole or _MARK not in body:
        raise ConnectionLost(f"the answer of {host} is incomplete")
    parts: dict[str, str] = {}
    for part in body[body.index(_MARK) + len(_MARK) :].split(f"\n{_MARK}"):
        kind, _, rest = part.partition("\n")
        parts.setdefault(kind, rest)  # users' text is only in the last part
    try:
        now = float(parts["now"].strip())
        return Snapshot(
            cluster=Cluster(
                nodes=cluster.nodes_in(parts["node"]),
                partitions=cluster.partitions_in(parts["partition"]),
                jobs=cluster.jobs_in(parts["queue"], parts["job"]),
                switches=cluster.switches_in(parts["topology"]),
                now=now,
            ),
            reserved=cluster.reservations_in(parts["reservation"]),
            things=tuple(_things(parts["things"], host)),
            vanished=dict(line.split(" ") for line in parts.get("vanished", "").split("\n") if line),
            jobs=dict(_job(line) for line in parts["jobs"].split("\n") if line),
            attempts={(a.node, a.name): a for a in attempts_in(parts["attempts"])},
        )
    except (KeyError, ValueError, IndexError) as error:
        summary = f"the answer of Slurm on {host} cannot be read: {type(error).__name__}: {error}"
        raise PermanentError(
            PermanentKind.INVALID,
            summary,
            hint="please report it, with the output of `scontrol -o show node`",
        ) from error


def _job(line: str) -> tuple[str, int | None]:
    token, _, number = line.partition(" ")
    return token, int(number) if number.isdecimal() else None


def _things(text: str, host: str) -> list[tuple[Owned, Mapping[str, object]]]:
    data = text.encode()
    out: list[tuple[Owned, Mapping[str, object]]] = []
    while data:
        head, _, rest = data.partition(b"\n")
        size, _, name = head.partition(b" ")
        if not size:
            break
        out.append(thing_in(rest[: int(size)], name.decode(errors="replace"), host))
        data = rest[int(size) :].lstrip(b"\n")
    return out


def thing_in(content: bytes, name: str, host: str) -> tuple[Owned, Mapping[str, object]]:
    """A thing from its file. A damaged file is a `PermanentError`: the thing is neither gone nor guessed."""
    try:
        body = json.loads(content.partition(b"\n")[2])
        if body["format"] == FORMAT:
            return Owned(**owned(body)), dict(body["outputs"])
    except NOT_OWNED:
        pass
    summary = f"things/{name} on {host} cannot be read: damaged, or of another version"
    hint = "restore the file in the shared folder (`options.root`), or move it away if it is not needed"
    raise PermanentError(PermanentKind.INVALID, summary, about=name, hint=hint)


def as_thing(thing: Owned, outputs: Mapping[str, object], vanished: Mapping[str, str]) -> Thing:
    """The thing as the port defines it. `vanished`: see `Snapshot`."""
    how, path = vanished.get(thing.key), str(outputs.get("path"))
    # Volumes of earlier versions have no witness beside them.
    is_lost = thing.address.kind == "volume" and how in VANISHED and (how != "cleaned" or WITNESS in outputs)
    return Thing(
        address=thing.address,
        token=thing.token,
        inputs=thing.inputs,
        outputs=outputs,
        lost=lost(how, path, f"{path}.") if how and is_lost else None,
    )


def attempts_in(text: str) -> list[Attempt]:
    """The attempts in a text, one a line."""
    return [_attempt(line) for line in text.split("\n") if line]


def _attempt(line: str) -> Attempt:
    node, name, prepared, needs, job, opened, step, started, ended, confined, mounts, stop, refused = (
        line.split("|", 12)
    )
    at, gate, _ = prepared.split()
    host, cpus, memory, gpus, limit, *more = needs.split()  # earlier versions wrote no `queue`
    stepped, _, devices_ = (*step.split(), "", "", "")[:3]
    exit_code, reason, end = (*ended.split(), "", "", "")[:3]
    return Attempt(
        node=node,
        name=name,
        prepared_at=float(at),
        gate=int(gate) if gate.isdecimal() else None,
        host=host,
        cpus=int(cpus),
        memory_mib=int(memory),
        gpus=gpus,
        limit=int(limit) if limit.isdecimal() else None,
        queue=more == ["queue"],
        job=job,
        opened=bool(opened),
        step=stepped,
        devices=devices_,
        started_at=float(started) if started else None,
        ended=(exit_code, reason, float(end)) if end else None,
        confined=confined,
        mounted=mounts,
        stopping=bool(stop),
        refused=refused,
    )
