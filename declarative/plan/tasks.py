"""Tasks and their ranks: which go on, which have ended, which are run (again), which go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from declarative.plan.types import Reason
from declarative.resource import RANK_IN_PLACE, Desired, TaskWant
from declarative.state import Address, Record, State, rank_name


class Fate(StrEnum):
    """What becomes of one task."""

    KEPT = "kept"
    COMPLETED = "completed"
    """Some of its ranks have started, the others still have their places: only those are started."""
    RUN = "run"


@dataclass(slots=True)
class TaskFate:
    """What becomes of one declared task, and why."""

    want: TaskWant
    fate: Fate
    reason: Reason = Reason.NEW
    because: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The task's name."""
        return str(self.want.spec.name)


def records_of(state: State, task: str) -> dict[int, Record]:
    """The recorded ranks of a task, by rank."""
    return {int(r.inputs["rank"]): r for r in state.of("rank") if r.inputs["task"] == task}


def changed_fields(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields that differ: those that restart the rank, and those that change in place."""
    keys = sorted(k for k in set(before) | set(after) if before.get(k) != after.get(k))
    return tuple(k for k in keys if k not in RANK_IN_PLACE), tuple(k for k in keys if k in RANK_IN_PLACE)


def judge(
    want: TaskWant,
    state: State,
    by_task: Mapping[str, dict[int, Record]],
    requested: frozenset[str],
) -> TaskFate:
    """What becomes of a declared task, given what is recorded of its ranks."""
    name, nodes = str(want.spec.name), want.spec.nodes
    have = by_task.get(name, {})
    if not have:
        return TaskFate(want, Fate.RUN)
    if f"task/{name}" in requested:
        return TaskFate(want, Fate.RUN, Reason.REQUESTED)
    changed: set[str] = set()
    for rank, record in have.items():
        if rank < nodes:
            changed.update(changed_fields(record.inputs, want.rank_inputs(rank))[0])
    if changed or any(rank >= nodes for rank in have):
        return TaskFate(
            want,
            Fate.RUN,
            Reason.CHANGED,
            tuple(sorted(changed | ({"nodes"} if len(have) > nodes else set()))),
        )
    missing = [rank for rank in range(nodes) if rank not in have]
    if not missing:
        return TaskFate(want, Fate.KEPT)
    ended = any((s := state.ranks.get(r.address.name)) and s.state.ended for r in have.values())
    placed = all(state.get("reservation", rank_name(name, rank)) for rank in missing)
    if placed and not ended:
        return TaskFate(want, Fate.COMPLETED, Reason.INCOMPLETE)
    return TaskFate(want, Fate.RUN, Reason.INCOMPLETE)


def judge_all(desired: Desired, state: State, requested: frozenset[str]) -> dict[str, TaskFate]:
    """The fates of all declared tasks."""
    by_task: dict[str, dict[int, Record]] = {}
    for record in state.of("rank"):
        by_task.setdefault(str(record.inputs["task"]), {})[int(record.inputs["rank"])] = record
    return {name: judge(want, state, by_task, requested) for name, want in sorted(desired.tasks.items())}


def cascade(fates: Mapping[str, TaskFate], state: State, replaced: frozenset[Address]) -> None:
    """Make a task run anew when something that its running ranks hold is replaced: the whole gang, since
    its ranks know each other's addresses, and no other task."""
    if not replaced:
        return
    holds: dict[str, set[Address]] = {}
    for record in (*state.of("reservation"), *state.of("attachment")):
        holds.setdefault(str(record.inputs["task"]), set()).update(record.needs & replaced)
    for fate in fates.values():
        hit = holds.get(fate.name)
        if fate.fate is not Fate.RUN and hit:
            fate.fate, fate.reason = Fate.RUN, Reason.CASCADE
            fate.because = tuple(sorted(map(str, hit)))
