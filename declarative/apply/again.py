"""Tasks that run again by themselves while somebody follows them: which, and when.

What `retry` means, `plan.again` says; here is the waiting. Failures are waited out longer each time, and so
are tasks that find no place: those also try when blocks were given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from declarative.plan import Plan, again
from declarative.plan.types import Action
from declarative.resource import TaskWant
from declarative.state import RETRIES, STOPPED, Record, State

DELAYS = (1.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds between a failure and the first, second, … retry of its series; the last for all that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """That a task is to run again at `when`, seconds since the epoch, and why."""

    when: float
    cause: str
    delay: float = 0.0
    """Seconds after its failure was noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placeless:
    """A task that found no place, or did not come up there: since when, how often, when next."""

    since: float
    tries: int
    when: float


class Retries:
    """The tasks that one command follows, as far as their `retry` says anything. `now` is our clock."""

    def __init__(
        self,
        tasks: Mapping[str, TaskWant],
        now: Callable[[], float],
        delays: tuple[float, ...] = DELAYS,
        told: Callable[[str, Due], None] | None = None,
    ) -> None:
        """`told` hears of each time that a task is to run again."""
        self._own = frozenset(tasks)
        self._tasks = {name: want for name, want in tasks.items() if want.spec.retry.on_events}
        self._now = now
        self._delays = delays
        self._told = told
        self._said: dict[str, float] = {}
        self._placeless: dict[str, _Placeless] = {}
        self._held: frozenset[tuple[str, int]] = frozenset()
        self._left: dict[str, dict[str, dict[str, Any]]] = {}

    def leave(self, state: State) -> None:
        """Remember what is recorded of ranks, as the command that follows them leaves it."""
        self._left = _by_task(state)

    def overtaken(self, state: State, among: Collection[str] | None = None) -> str | None:
        """The first task that another command has declared anew, added or removed since `leave`; or None.

        What is declared here is out of date then: to plan by it would take back what the other one did.
        With `among` no other tasks are looked at.
        """
        found = _by_task(state)
        every = found.keys() | self._left.keys()
        for task in sorted(every if among is None else every & set(among)):
            now, before = found.get(task), self._left.get(task)
            if before is None and task in self._own:
                continue  # its own start, of which it was not known whether it came to pass
            if now is None or before is None:
                return task
            if any(now[rank] != before[rank] for rank in now.keys() & before.keys()):
                return task
        return None

    def end(self) -> None:
        """Nothing is run again from here on."""
        self._tasks = {}

    @property
    def any(self) -> bool:
        """Whether anything may run again."""
        return bool(self._tasks)

    @property
    def without_place(self) -> frozenset[str]:
        """The tasks that still have none."""
        return frozenset(self._placeless)

    def wait_for_place(self, tasks: Iterable[str]) -> None:
        """Tasks that were tried just now, and found no place."""
        for task in tasks:
            if task in self._tasks:
                now = self._now()
                before = self._placeless.get(task, _Placeless(since=now, tries=0, when=now))
                tries = before.tries + 1
                self._placeless[task] = replace(before, tries=tries, when=now + self._delay(tries))

    def tried(self, tasks: Iterable[str], started: Collection[str]) -> None:
        """What came of a try: those that were not `started` are tried later."""
        for task in tasks:
            if task in started:
                self._placeless.pop(task, None)
            else:
                self.wait_for_place((task,))

    def due(self, state: State) -> dict[str, Due]:
        """When which tasks run again."""
        freed = self._freed(state)
        by_task: dict[str, list[Record]] = {}
        for record in state.of("rank"):
            by_task.setdefault(str(record.inputs["task"]), []).append(record)
        out: dict[str, Due] = {}
        for task, want in self._tasks.items():
            found = self._due(task, want, by_task.get(task, []), state, freed=freed)
            if found:
                out[task] = found
        return out

    def ready(self, state: State) -> tuple[str, ...]:
        """The tasks whose time has come."""
        now = self._now()
        return tuple(task for task, due in self.due(state).items() if due.when <= now)

    def _due(self, task: str, want: TaskWant, have: list[Record], state: State, *, freed: bool) -> Due | None:
        now = self._now()
        if any(not _ended(r, state) or r.outputs.get(STOPPED) for r in have):
            self._placeless.pop(task, None)  # it runs, for somebody else has started it; or was stopped
            return None
        found = again(want, have, state, now)
        if found is None and len(have) == want.spec.nodes:
            self._placeless.pop(task, None)  # it has ended, and not in a way that is retried any more
        waits = self._placeless.get(task)
        if waits:
            if now - waits.since > want.spec.retry.seconds:
                return None
            if freed:
                waits = self._placeless[task] = replace(waits, when=now)
            return Due(when=waits.when, cause="no capacity")
        if found is None:
            return None
        if any(state.get("reservation", r.address.name) for r in have):
            return Due(when=math.inf, cause=found.cause)  # what it held is given back first
        delay = self._delay(found.count - 1)
        due = Due(when=found.noticed + delay, cause=found.cause, delay=delay)
        if self._told and self._said.get(task) != found.noticed:  # the count begins anew with each series
            self._said[task] = found.noticed
            self._told(task, due)
        return due

    def _delay(self, count: int) -> float:
        return self._delays[min(count, len(self._delays) - 1)]

    def _freed(self, state: State) -> bool:
        """Whether blocks were given back since the last look."""
        held = frozenset(
            (str(r.inputs["node"]), int(b)) for r in state.of("reservation") for b in r.inputs["blocks"]
        )
        before, self._held = self._held, held
        return bool(before - held)


def _ended(record: Record, state: State) -> bool:
    status = state.ranks.get(record.address.name)
    return status is not None and status.state.ended


def _by_task(state: State) -> dict[str, dict[str, dict[str, Any]]]:
    """Task → rank → its inputs, save what only counts its retries."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for record in state.of("rank"):
        inputs = {key: value for key, value in record.inputs.items() if key != RETRIES}
        out.setdefault(str(inputs["task"]), {})[record.address.name] = inputs
    return out


def part_for(plan: Plan, tasks: Collection[str]) -> Plan:
    """Of a plan the actions that start `tasks`, and what those need: nobody asked for the rest."""
    actions = {action.id: action for action in plan.actions}
    stack = [a.id for a in plan.actions if _of_task(a) in tasks]
    wanted: set[str] = set()
    while stack:
        key = stack.pop()
        if key not in wanted:
            wanted.add(key)
            stack += actions[key].needs
    return replace(plan, actions=tuple(a for a in plan.actions if a.id in wanted))


def _of_task(action: Action) -> str | None:
    task = (action.after or action.before or {}).get("task")
    return str(task) if task is not None else None
