"""What a project declares at a time: what a `schedule` starts and stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from declarative.model.resource import Desired, TaskWant
from declarative.model.spec import Nodes
from declarative.model.state import Record, State

LATE = 3600.0
"""Seconds after a start in which a task that never ran still runs: after that it waits for the next one."""


def at(desired: Desired, now: float) -> Desired:
    """What is declared, as it is at that time: fleets outside of their schedule have no nodes, and tasks know
    when they were last to start.
    """
    fleets = {n: f for n, f in desired.fleets.items() if f.schedule and not f.schedule.on(now)}
    tasks = {name: _at(want, now) for name, want in desired.tasks.items() if want.spec.schedule}
    if not fleets and not tasks:
        return desired
    asleep = {f"fleet/{name}" for name in fleets} | {f"task/{name}" for name, w in tasks.items() if w.off}
    return replace(
        desired,
        fleets={**desired.fleets, **{n: replace(f, nodes=Nodes(0, 0, 0)) for n, f in fleets.items()}},
        tasks={**desired.tasks, **tasks},
        asleep=frozenset(asleep),
    )


def _at(want: TaskWant, now: float) -> TaskWant:
    schedule = want.spec.schedule
    assert schedule is not None
    return replace(want, off=not schedule.on(now), started=schedule.started(now))


def is_there(want: TaskWant, have: Iterable[Record], state: State, now: float) -> bool:
    """Whether a task is to be looked at: one that its schedule keeps from running neither runs nor begins to.
    One that has ended stays as it ended.
    """
    schedule = want.spec.schedule
    if schedule is None:
        return True
    ranks = list(have)
    if not ranks:
        never = want.started is None or (schedule.stop is None and now - want.started > LATE)
        return not want.off and not never
    return not want.off or all((s := state.ranks.get(r.address.name)) and s.state.ended for r in ranks)


def is_due(want: TaskWant, have: Iterable[Record], state: State) -> bool:
    """Whether a task that has ended was to start since."""
    ranks = list(have)
    statuses = [state.ranks.get(r.address.name) for r in ranks]
    if want.started is None or want.off or not all(s and s.state.ended for s in statuses):
        return False
    known = [r.rank.scheduled for r in ranks if r.rank.scheduled is not None]
    ends = [s.ended_at or 0.0 for s in statuses if s]
    return want.started > max(known or ends, default=0.0)
