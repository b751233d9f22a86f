"""`apply --wait`: tasks are followed to their end, and those that fail run again as their `retry` says."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from declarative.cli.output import INTERRUPTED, STOPPING, say, stopping
from declarative.converge.state_access import of_state
from declarative.model.inputs import RankInputs
from declarative.model.state import natural

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Due, Retries
    from declarative.apply.watch import Idle
    from declarative.cli.run_output import RunOutput
    from declarative.converge.run import Run
    from declarative.model.status import RankState
    from declarative.planner.plan import Plan
    from declarative.store import Writer

PATIENCE = 5.0
"""Seconds that a retry waits for the lock before it looks again."""
OVERTAKEN = "was changed by another command: this one runs nothing again; `fleetform apply --wait` does"
Step = Literal["on", "over", "interrupted"]
LEAVING = "leaving: the tasks go on (`fleetform status`, `fleetform logs {} -f`)"


def follow(run: Run, output: RunOutput) -> int:
    """Watch the tasks to their end, and say how each ended: 0, 3 if one found no place, 4, or 130.

    4 also if the state is lost, as with its lock, while a task is started again: what was done is reported.
    """
    from declarative.apply.retry_schedule import NOT_STARTED
    from declarative.apply.watch import Idle
    from declarative.apply.watch import follow as watch
    from declarative.store import StateError

    retries, waiting = _retries(run, output)
    idle = Idle(run.desired.fleets, run.now)
    idle.leave(run.store.read())
    tasks = tuple(sorted({*run.running_tasks(), *waiting}))
    if not tasks:
        return 0
    step: Step = "on"
    while step == "on":
        # Made anew each time: the things of a task that runs again may be on other nodes.
        backends = run.session.backends(run.desired, run.store.read())
        with stopping(LEAVING.format(tasks[0])) as stop:
            states = watch(
                run.store,
                backends,
                tasks,
                retries,
                idle=idle,
                stopping=stop,
                settled=run.refresh,
                remind=output.say,
            )
        try:
            step = "interrupted" if stop.is_set() else _step(run, output, tasks, retries, idle)
        except StateError as lost:
            say(of_state(lost, run.session.directory).diagnostics)
            return 4
    if step == "interrupted":
        return INTERRUPTED
    never = {t: NOT_STARTED for t in states if not retries.knew(t)}
    output.say_ended(run.store, states, {**never, **retries.without_place})
    _say_idle(run, output, idle)
    return _code(states, retries.without_place)


def _step(run: Run, output: RunOutput, tasks: tuple[str, ...], retries: Retries, idle: Idle) -> Step:
    """Start the tasks that are to run again, or delete idle nodes; `over` when all tasks have ended."""
    from declarative.apply.watch import is_over

    state = run.store.read()
    ready = retries.ready(state)
    # If a task is ready although it had ended, another command was faster: it runs again.
    over = not ready and is_over(state, tasks, retries)
    # If another command declares the tasks anew, their new ranks come when the old ones have gone.
    amid = over and retries.any and retries.overtaken(state, tasks) is not None
    if over and not amid:
        return "over"
    if ready or amid:
        going = _start_again(run, output, ready, retries, idle)
    else:
        going = not idle.ready(state) or _release_places(run, output, retries, idle)
    return "on" if going else "interrupted"


def _code(states: Mapping[str, RankState], without_place: Collection[str]) -> int:
    from declarative.model.status import RankState

    bad = [task for task, state in states.items() if state is not RankState.SUCCEEDED]
    if not bad:
        return 0
    return 3 if all(t in without_place and states[t] is RankState.PENDING for t in bad) else 4


def _retries(run: Run, output: RunOutput) -> tuple[Retries, tuple[str, ...]]:
    """The retries of tasks, and the tasks that already wait for a place.

    A saved plan has neither: its YAML is not read.
    """
    from declarative.apply.retry_schedule import Retries

    def on_retry(task: str, due: Due) -> None:
        output.say(f"task/{task} runs again in {due.delay:.0f} s: {due.cause}")

    waiting = run.plan.unplaced.waiting if run.plan else ()
    waiting = tuple(task for task in waiting if task in run.desired.tasks)
    retries = Retries(run.desired.tasks, run.now, on_retry=on_retry)
    retries.wait_for_place(waiting)
    lacking = {task: lack.what for task, lack in run.lacking.items()}
    retries.tried(lacking, (), lacking)
    retries.tried(run.unstarted, (), dict.fromkeys(run.unstarted))
    output.say_retries(retries.waits((*waiting, *lacking, *run.unstarted)))
    retries.leave(run.store.read())
    return retries, waiting


def _start_again(run: Run, output: RunOutput, tasks: Collection[str], retries: Retries, idle: Idle) -> bool:
    """Start tasks once more; False after an interruption."""
    from declarative.apply.retry_schedule import lacking

    with stopping(STOPPING) as stop, _locked(run, output, retries, idle) as writer:
        if writer is None:
            return not stop.is_set()
        plan = _part(run, writer, tasks)
        results = run.perform(plan, writer, stop)[0] if plan.actions else ()
        if run.faults:
            raise run.faults[0]
        retries.leave(writer.state())
        idle.leave(writer.state())
    started, broken = _started(plan, results)
    lacks = lacking(plan, results)
    causes = {task: lacks[task].what if task in lacks else None for task in broken}
    retries.tried(tasks, started, causes)
    if not stop.is_set():
        output.say_retries(retries.waits(tasks))
    return not stop.is_set()


def _started(plan: Plan, results: Iterable[ActionResult]) -> tuple[set[str], set[str]]:
    """The tasks with all ranks started, and those with a rank that was not."""
    undone = {r.address for r in results if r.outcome != "done"}
    tasks: set[str] = set()
    broken: set[str] = set()
    for action in plan.actions:
        if action.op == "create" and isinstance(action.typed, RankInputs):
            tasks.add(action.typed.task)
            if str(action.address) in undone:
                broken.add(action.typed.task)
    return tasks - broken, broken


def _release_places(run: Run, output: RunOutput, retries: Retries, idle: Idle) -> bool:
    """Delete nodes that were idle for their fleet's `idle_duration`; False after an interruption."""
    idle.tried()
    with stopping(STOPPING) as stop, _locked(run, output, retries, idle) as writer:
        plan = run.make_plan(writer) if writer else None
        if writer and plan and plan.result != "error":
            spare = tuple(a for a in plan.actions if a.op == "delete" and a.reason == "idle")
            if spare:
                run.perform(plan.only(spare), writer, stop)
                if run.faults:
                    raise run.faults[0]
    return not stop.is_set()


def _say_idle(run: Run, output: RunOutput, idle: Idle) -> None:
    """Which nodes stay although nothing runs on them, and which command gives them back: they are billed."""
    from declarative.render.data import iso

    state = run.store.read()
    for name, when in sorted(idle.when(state).items(), key=lambda item: natural(item[0])):
        node = state.get("node", name)
        if node and node.node.price != 0:
            output.say(f"node/{name} is idle: `fleetform apply` gives it back from {iso(when)} on")


@contextlib.contextmanager
def _locked(run: Run, output: RunOutput, retries: Retries, idle: Idle) -> Iterator[Writer | None]:
    """The lock; None while another command holds it, which may do the same, or after one that has declared
    other things.
    """
    from declarative.store import StateError

    with contextlib.ExitStack() as stack:
        try:
            writer = stack.enter_context(run.store.lock(run.doing, PATIENCE))
        except StateError as error:
            if error.code != "locked":
                raise
            yield None
            return
        changed = retries.overtaken(writer.state())
        if changed:
            output.say(f"task/{changed} {OVERTAKEN}")
            retries.end()
            idle.end()
        yield None if changed else writer


def _part(run: Run, writer: Writer, tasks: Collection[str]) -> Plan:
    """The actions of a new plan that start these tasks; none if it has errors."""
    from declarative.apply.retry_schedule import part_for
    from declarative.converge.run import check_env

    whole = run.make_plan(writer)
    if whole.result == "error":
        say(whole.diagnostics)
        return replace(whole, actions=())
    part = part_for(whole, tasks)
    check_env(part, writer.state())
    return part
