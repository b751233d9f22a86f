"""Tasks that run again by themselves while somebody follows them: which, and when.

`planner.tasks` decides what `retry` means; this module only waits. It waits longer after each failure, and
for tasks without a place. Those also try again when blocks were given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.apply.graph_walk import ActionResult, Outcome
from declarative.model.inputs import NodeInputs, RankInputs
from declarative.model.record import struct
from declarative.model.resource import TaskWant
from declarative.model.state import Record, State, is_stopped, silent_since
from declarative.model.text import and_more
from declarative.planner.plan import Action, Op, Plan, Reason
from declarative.planner.tasks import DELAYS, due_retry

NO_CAPACITY = "no capacity"
"""Why a task waits that no plan could place."""
NOT_STARTED = "it did not start"


@struct(frozen=True, slots=True, kw_only=True)
class Due:
    """When a task is to run again (`when`, seconds since the epoch), and why."""

    when: float
    cause: str
    delay: float = 0.0
    """Seconds after its failure was noticed, or after it was tried."""


@struct(frozen=True, slots=True, kw_only=True)
class _Placeless:
    """A task that found no place, or did not start there: since when, how many tries, and the next one."""

    since: float
    tries: int
    due: Due


class Retries:
    """The retries of the tasks that one command follows. `now` is our clock."""

    def __init__(
        self,
        tasks: Mapping[str, TaskWant],
        now: Callable[[], float],
        delays: tuple[float, ...] = DELAYS,
        on_retry: Callable[[str, Due], None] | None = None,
    ) -> None:
        """`on_retry` hears of each time that a task is to run again."""
        self._own = frozenset(tasks)
        self._tasks = {name: want for name, want in tasks.items() if want.spec.retry.on_events}
        self.now = now
        self._delays = delays
        self._on_retry = on_retry
        self._reported: dict[str, float] = {}
        self._placeless: dict[str, _Placeless] = {}
        self._used_blocks: frozenset[tuple[str, int]] = frozenset()
        self._silent: frozenset[str] = frozenset()
        self.silences: Mapping[str, bool] = {}
        """Node → whether the message that it does not answer also said that it is not given up."""
        self._known: dict[str, dict[str, RankInputs]] = {}

    def leave(self, state: State) -> None:
        """Remember the recorded ranks as the command that follows them leaves them."""
        self._known = _by_task(state)

    def overtaken(self, state: State, among: Collection[str] | None = None) -> str | None:
        """The first task that another command has declared anew, added or removed since `leave`; or None.

        Then the declaration here is out of date: a plan from it would undo what the other command did.
        With `among`, only these tasks are looked at.
        """
        recorded = _by_task(state)
        every = recorded.keys() | self._known.keys()
        for task in sorted(every if among is None else every & set(among)):
            now, before = recorded.get(task), self._known.get(task)
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
    def without_place(self) -> dict[str, str]:
        """The tasks that still have no place, and why. Tasks that failed for other reasons are left out."""
        return {t: p.due.cause for t, p in self._placeless.items() if p.due.cause != NOT_STARTED}

    def knew(self, task: str) -> bool:
        """Whether ranks of a task were recorded when the command that follows it was done."""
        return task in self._known

    def wait_for_place(self, tasks: Iterable[str], cause: str = NO_CAPACITY) -> None:
        """Tasks that were tried just now, and found no place."""
        for task in tasks:
            if task in self._tasks:
                now = self.now()
                before = self._placeless.get(task)
                since, tries = (before.since, before.tries + 1) if before else (now, 1)
                when, end = now + self._delay(tries), self._end(task, since)
                when = min(when, end) if now < end else when  # the last try is at the very end
                due = Due(when=when, cause=cause, delay=when - now)
                self._placeless[task] = _Placeless(since=since, tries=tries, due=due)

    def tried(
        self, tasks: Iterable[str], started: Collection[str], failed: Mapping[str, str | None] | None = None
    ) -> None:
        """Note the result of a try. Tasks that were not `started` are tried later, as long as `retry` lasts.

        `failed` are tasks that had a place and were not started there, each with what lacked capacity. None
        means another failure: then a task that only waits for capacity does not try again.
        """
        for task in tasks:
            if task in started:
                self._placeless.pop(task, None)
            elif failed is None or task not in failed:
                self.wait_for_place((task,))
            elif failed[task] is not None:
                self.wait_for_place((task,), f"{NO_CAPACITY} for {failed[task]}")
            elif task in self._tasks and not self._tasks[task].spec.retry.of_failures:
                del self._tasks[task]
                self._placeless.pop(task, None)
            else:
                self.wait_for_place((task,), NOT_STARTED)

    def waits(self, tasks: Iterable[str]) -> dict[str, Due]:
        """When those of `tasks` are tried again that were tried and not started."""
        placeless = {task: self._placeless[task] for task in tasks if task in self._placeless}
        return {task: p.due for task, p in placeless.items() if p.due.when <= self._end(task, p.since)}

    def due(self, state: State) -> dict[str, Due]:
        """When which tasks run again."""
        freed = self._freed(state)
        by_task = state.gangs()
        out: dict[str, Due] = {}
        for task, want in self._tasks.items():
            if due := self._due(task, want, by_task.get(task, []), state, freed=freed):
                out[task] = due
        return out

    def ready(self, state: State) -> tuple[str, ...]:
        """The tasks whose time has come."""
        now = self.now()
        return tuple(task for task, due in self.due(state).items() if due.when <= now)

    def _due(self, task: str, want: TaskWant, have: list[Record], state: State, *, freed: bool) -> Due | None:
        now = self.now()
        if is_stopped(have) or not all(state.has_ended(r.address.name) for r in have):
            self._placeless.pop(task, None)  # it runs, for somebody else has started it; or was stopped
            return None
        retry = due_retry(want, have, state, now)
        if retry is None and len(have) == want.spec.nodes:
            self._placeless.pop(task, None)  # it has ended, and not in a way that is retried any more
        if waits := self._placeless.get(task):
            return self._place_due(task, waits, freed=freed)
        if retry is None:
            return None
        if any(state.get("reservation", r.address.name) for r in have):
            return Due(when=math.inf, cause=retry.cause)  # its blocks are given back first
        delay = self._delay(retry.series.count - 1)
        due = Due(when=retry.noticed + delay, cause=retry.cause, delay=delay)
        if due.when > self._end(task, retry.series.since):
            return None
        # It is reported once for each failure: the count of retries begins anew with each series.
        if self._on_retry and self._reported.get(task) != retry.noticed:
            self._reported[task] = retry.noticed
            self._on_retry(task, due)
        return due

    def _place_due(self, task: str, waits: _Placeless, *, freed: bool) -> Due | None:
        """When a task without a place is tried again: at once where room was `freed`."""
        now, end = self.now(), self._end(task, waits.since)
        if now > end and waits.due.when != end:
            return None
        if freed:
            waits = self._placeless[task] = replace(waits, due=replace(waits.due, when=now))
        return waits.due

    def _end(self, task: str, since: float) -> float:
        return since + self._tasks[task].spec.retry.seconds if task in self._tasks else -math.inf

    def _delay(self, count: int) -> float:
        return self._delays[min(count, len(self._delays) - 1)]

    def _freed(self, state: State) -> bool:
        """Whether there is more room than at the last look: used blocks were given back, or a node that
        did not answer was given up, so that its fleet may have another one.

        A task that only reserved blocks may give them back because it lacks others: that would wake all that
        wait.
        """
        used = (r.reservation for r in state.of("reservation") if state.get("rank", r.address.name))
        used_blocks = frozenset((place.node, block) for place in used for block in place.blocks)
        before, self._used_blocks = self._used_blocks, used_blocks
        silent, nodes = self._silent, state.of("node")
        self._silent = frozenset(n.address.name for n in nodes if silent_since(n) is not None)
        return bool(before - used_blocks) or bool(silent - {n.address.name for n in nodes})


def _by_task(state: State) -> dict[str, dict[str, RankInputs]]:
    """Task → rank → its inputs, save what only counts its retries."""
    return {
        task: {record.address.name: replace(record.rank, retries=None, failed_on=()) for record in ranks}
        for task, ranks in state.gangs().items()
    }


def part_for(plan: Plan, tasks: Collection[str]) -> Plan:
    """The actions of a plan that start `tasks`, and what those need. Nobody asked for the rest."""
    actions = {action.id: action for action in plan.actions}
    needed = _with_needs(actions, (a.id for a in plan.actions if a.task in tasks))
    return replace(plan, actions=tuple(a for a in plan.actions if a.id in needed))


@struct(frozen=True, slots=True, kw_only=True)
class Lack:
    """A task that was not started only because capacity or quota was lacking."""

    what: str
    """What could not be had: `node/gpu-1 and 2 more`."""
    undone: frozenset[str]
    """The actions that were not done of all that it needs."""
    made: frozenset[str]
    """The creates of nodes among them that were done."""
    retried: bool
    """Its `retry` would have run it again."""


def broken_starts(plan: Plan, results: Sequence[ActionResult]) -> dict[str, frozenset[str]]:
    """The tasks that were to be started and were not, and the actions that were not done of all they need."""
    done = {result.id for result in results if result.outcome is Outcome.DONE}
    actions = {action.id: action for action in plan.actions}
    out: dict[str, frozenset[str]] = {}
    for task, ranks in starts_of(plan.actions).items():
        if any(a.id not in done for a in ranks):
            out[task] = frozenset(_with_needs(actions, (a.id for a in ranks)) - done)
    return out


def starts_of(actions: Iterable[Action]) -> dict[str, list[Action]]:
    """Task → the creates of its ranks."""
    starts: dict[str, list[Action]] = {}
    for action in actions:
        if action.op is Op.CREATE and isinstance(action.typed, RankInputs):
            starts.setdefault(action.typed.task, []).append(action)
    return starts


def resized(actions: Iterable[Action]) -> set[str | None]:
    """The tasks with ranks that run on while other ranks are to be started or stopped."""
    return {
        a.task for a in actions if a.op is Op.UPDATE and a.address.kind == "rank" and "nodes" in a.because
    }


def lacking(plan: Plan, results: Sequence[ActionResult]) -> dict[str, Lack]:
    """The tasks that were to be started, and found no capacity where the plan saw some."""
    starts = starts_of(plan.actions)
    actions = {action.id: action for action in plan.actions}
    out: dict[str, Lack] = {}
    for task, missed in broken_starts(plan, results).items():
        what = _scarce([result for result in results if result.id in missed], results, actions)
        if what is not None:
            needed = _with_needs(actions, (a.id for a in starts[task]))
            out[task] = Lack(
                what=what,
                undone=missed,
                made=frozenset(k for k in needed if k.startswith("create:node/")) - missed,
                retried=any(a.reason is Reason.RETRY for a in starts[task]),
            )
    return out


def _scarce(
    undone: Sequence[ActionResult], results: Sequence[ActionResult], actions: Mapping[str, Action]
) -> str | None:
    """What lacked capacity, if these failed for no other reason. If a node was made, and deleted with the
    cluster of another task, it is what that cluster lacked.
    """
    scarce = [r for r in undone if r.scarce]
    failed = [r for r in undone if r.outcome is Outcome.FAILED]
    if not scarce or not all(r.scarce for r in failed):
        return None
    if not failed:
        fleets = {_fleet(actions.get(r.id)) for r in scarce} - {None}
        failed = [r for r in results if r.outcome is Outcome.FAILED and _fleet(actions.get(r.id)) in fleets]
        scarce = [r for r in failed if r.scarce] or scarce
    first = next((r for r in failed if r.scarce), scarce[0])
    return and_more([first.address, *scarce[1:]], 1)


def _fleet(create: Action | None) -> str | None:
    return create.typed.fleet if create and isinstance(create.typed, NodeInputs) else None


def _with_needs(actions: Mapping[str, Action], keys: Iterable[str]) -> set[str]:
    """Actions and all that they need, directly or not."""
    stack, needed = list(keys), set[str]()
    while stack:
        key = stack.pop()
        if key not in needed:
            needed.add(key)
            stack += actions[key].needs
    return needed
