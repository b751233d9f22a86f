"""Following tasks to their end: `apply --wait` and `stop`.

The lock is held only while something is written, so that `stop` in another terminal gets its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from declarative.apply.backends import Backends
from declarative.apply.settle import Note, gang_stops, poll_running, refresh, release_ended, stop_rank
from declarative.spec import StopCriteria
from declarative.state import RankState, State, task_state
from declarative.store import Store, Writer

PERIOD = 0.5
"""Seconds between two looks."""


def ranks_of(state: State, task: str) -> list[str]:
    """The recorded ranks of a task, by rank."""
    found = [r for r in state.of("rank") if r.inputs["task"] == task]
    return [r.address.name for r in sorted(found, key=lambda r: int(r.inputs["rank"]))]


def state_of(state: State, task: str) -> RankState:
    """The state of a recorded task."""
    records = [r for r in state.of("rank") if r.inputs["task"] == task]
    done = any(r.inputs.get("stop_criteria") == StopCriteria.MASTER_DONE.value for r in records)
    return task_state({int(r.inputs["rank"]): state.ranks.get(r.address.name) for r in records}, done)


def follow(
    store: Store,
    backends: Backends,
    tasks: Iterable[str],
    *,
    stopping: threading.Event,
    now: Callable[[], float],
    lock_timeout: float,
    note: Note,
) -> dict[str, RankState]:
    """Watch until every rank of `tasks` has ended, or `stopping` is set; the states of the tasks."""
    names = tuple(tasks)
    while True:
        state = store.read()
        seen = poll_running(state, backends)
        changed = {n: s for n, s in seen.items() if state.ranks.get(n) != s}
        unreleased = any(
            (s := state.ranks.get(r.address.name)) and s.state.ended and state.get("rank", r.address.name)
            for r in state.of("reservation")
        )
        if changed or unreleased or gang_stops(state):
            with store.lock("apply --wait", lock_timeout) as writer:
                state = refresh(writer, backends, now, note)
        open_ranks = [
            name
            for task in names
            for name in ranks_of(state, task)
            if not ((s := state.ranks.get(name)) and s.state.ended)
        ]
        if not open_ranks or stopping.wait(PERIOD):
            return {task: state_of(state, task) for task in names}


def stop_task(writer: Writer, backends: Backends, task: str, now: Callable[[], float], note: Note) -> None:
    """Stop every rank of a task side by side, and give back what it held."""
    state = writer.state()
    names = [n for n in ranks_of(state, task) if not ((s := state.ranks.get(n)) and s.state.ended)]
    threads = []
    for name in names:

        def stop_one(rank: str = name) -> None:
            status = stop_rank(state, backends, rank, "stopped by the user")
            if status:
                writer.observe_rank(rank, status)
                note(rank, status)

        threads.append(threading.Thread(target=stop_one, name=f"stop-{name}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    release_ended(writer, backends, now)
