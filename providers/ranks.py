"""Ranks of a node: the methods of the port that ask its runner, and what the runner's answers mean."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from declarative.model.state import Record
from declarative.model.status import (
    LIMIT_REACHED,
    NOT_RELEASED,
    PREPARING,
    UNUSED,
    WAITING,
    RankState,
    RankStatus,
)
from declarative.model.text import show_mib
from declarative.provider import TransientError, TransientKind
from declarative.provider.optional import Terms
from providers import containers, runner
from providers.faults import guarded
from providers.runner import LIVE, Attempt, AttemptState, Runner, RunnerError

MEBIBYTE = 1024 * 1024
LACKING = {
    "absent": "its host has no {} (`instance_path`)",
    "unmounted": "its host does not let {} be mounted (`instance_path`)",
}


class Ranks:
    """The ranks of one node, as the port asks for them. Raises what `Runner` does, and the port's faults."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def start(self, launch: runner.Launch) -> RankStatus:
        begun = status(self.runner.start(launch))
        if begun is None:
            summary = f"{launch.attempt_id} did not come up"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=launch.attempt_id)
        return begun

    def release(self, attempts: Sequence[str], peers: Sequence[str]) -> dict[str, RankStatus | None]:
        """One round trip, however many there are."""
        states = self.runner.release(attempts, peers)
        return {attempt: status(states[attempt]) for attempt in attempts}

    def running(self) -> list[str]:
        """The attempts that run, whoever started them."""
        states = self.runner.poll().items()
        return sorted(name for name, a in states if a.state in LIVE)

    def poll(self, attempts: Sequence[str]) -> dict[str, RankStatus | None]:
        """One round trip, however many there are."""
        states = self.runner.poll(attempts) if attempts else {}
        return {attempt: status(states[attempt]) for attempt in attempts}

    def attempts(self) -> dict[str, RankStatus]:
        return launched(self.runner.poll())

    def stop(self, attempt: str, grace_seconds: int) -> RankStatus | None:
        stopped = self.runner.stop(attempt, grace_seconds)
        if stopped.state in LIVE:
            raise TransientError(TransientKind.BUSY, f"{attempt} could not be killed yet", about=attempt)
        return status(stopped)

    def ended_before(self, oldest: Mapping[str, int]) -> list[str]:
        """The ended attempts of these ranks before the given numbers."""
        out = []
        for name, attempt in self.runner.poll().items():
            rank, number, *_ = *name.split("."), ""  # see `state.attempt_id`
            old = rank in oldest and number.isdecimal() and int(number) < oldest[rank]
            if old and attempt.state not in LIVE:
                out.append(name)
        return sorted(out)

    def forget_lost(self) -> None:
        """Forget lost attempts: their control groups would outlive the node's folder."""
        for name, attempt in self.runner.poll().items():
            if attempt.state is AttemptState.LOST:
                self.runner.forget(name)

    def read_log(self, attempt: str, offset: int, limit: int) -> bytes:
        """An attempt that never started has an empty log."""
        try:
            return self.runner.tail(attempt, offset, limit)
        except RunnerError as error:
            if error.code == "missing":
                return b""
            raise


class RanksOfNodes(ABC):
    """The methods of the port that only ask the runner of a node. A provider says where its runner is."""

    @abstractmethod
    def _ranks(self, node: Record) -> Ranks:
        """The ranks of a node."""

    @guarded
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """One round trip, however many there are."""
        return self._ranks(node).release(attempts, peers)

    @guarded
    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """One round trip, however many there are."""
        return self._ranks(node).runner.peers(attempts)

    @guarded
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """One round trip, however many there are."""
        return self._ranks(node).poll(attempts)

    @guarded
    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        return self._ranks(node).attempts()

    @guarded
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        return self._ranks(node).stop(attempt, grace_seconds)

    @guarded
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        self._ranks(node).runner.set_limit(attempt, seconds)

    @guarded
    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        self._ranks(node).runner.adjust(attempt, terms.stop_seconds, terms.alone_seconds, terms.near)

    @guarded
    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """An attempt that never started has an empty log."""
        return self._ranks(node).read_log(attempt, offset, limit)


# ----------------------------------------------------------------------------------------- the answers


def launched(attempts: Mapping[str, Attempt]) -> dict[str, RankStatus]:
    """The status of the attempts that were launched."""
    every = ((name, status(attempt)) for name, attempt in attempts.items())
    return {name: status_known for name, status_known in every if status_known}


def status(attempt: Attempt) -> RankStatus | None:
    """The status of an attempt; None for one that was never launched."""
    if attempt.state in {
        AttemptState.MISSING,
        AttemptState.CLAIMED,
    }:  # the caller of a claimed one died first
        return None
    state, cause = _meaning(attempt)
    return RankStatus(
        state=state,
        exit_code=attempt.exit_code,
        cause=cause,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        mounted=attempt.mounted,
        confinement=": ".join(filter(None, (attempt.confined, attempt.means))) or None,
        gpus=attempt.used,
    )


_MEANING: Mapping[AttemptState, tuple[RankState, str | None]] = {
    AttemptState.PREPARING: (RankState.STARTING, PREPARING),
    AttemptState.GATED: (RankState.STARTING, WAITING),
    AttemptState.RUNNING: (RankState.RUNNING, None),
    AttemptState.ORPHAN: (RankState.RUNNING, "its supervisor died: how it ends will not be known"),
    AttemptState.LOST: (RankState.LOST, "it and its supervisor died: how it ended is not known"),
    AttemptState.REBOOTED: (RankState.LOST, "the machine restarted while it ran"),
}
_ENDED: Mapping[str, tuple[RankState, str | None]] = {
    **{reason: (RankState.FAILED, cause) for reason, cause in containers.LACKING.items()},
    "limit": (RankState.FAILED, LIMIT_REACHED),
    "unused": (RankState.FAILED, UNUSED),
    "unknown-gpus": (
        RankState.LOST,
        "its host could not tell its GPUs, so none of its commands ran; the log says why",
    ),
    "alone": (RankState.LOST, "its host was cut off: no command reached it, and it reached no other"),
}
"""Reason why something else ended an attempt → its cause; for other reasons, somebody stopped it."""


def _meaning(attempt: Attempt) -> tuple[RankState, str | None]:
    reason = attempt.reason
    if reason == "gate":
        return RankState.LOST, NOT_RELEASED
    if attempt.state is not AttemptState.EXITED:
        return _MEANING[attempt.state]
    if reason == "memory":
        return RankState.FAILED, _memory_cause(attempt)
    if reason in LACKING:
        return RankState.FAILED, LACKING[reason].format(attempt.lacking or "a folder of `volumes`")
    if reason is not None:
        return _ENDED.get(reason, (RankState.STOPPED, None))
    if attempt.exit_code == 0:
        return RankState.SUCCEEDED, None
    return RankState.FAILED, _code_cause(attempt.exit_code)


def _memory_cause(attempt: Attempt) -> str:
    limit = f" (limit {show_mib(attempt.memory_bytes // MEBIBYTE)})" if attempt.memory_bytes else ""
    killed = f"killed: out of memory{limit}"
    if attempt.exit_code == 128 + signal.SIGKILL:
        return killed
    return f"{_code_cause(attempt.exit_code)}, after a process of it was {killed}"  # it may have continued


def _code_cause(code: int | None) -> str:
    cause = f"exit code {code}"
    if code is not None and code - 128 in set(signal.Signals):
        cause += f" ({signal.Signals(code - 128).name})"
    return cause
