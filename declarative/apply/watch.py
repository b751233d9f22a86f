"""Following tasks to their end: `apply --wait` and `stop`; and idle nodes that a command gives back
meanwhile.

The lock is held only while something is written, so that `stop` in another terminal gets its turn. The
planner decides what `idle_duration` means (`planner.fleets`); this module decides when a plan for it is worth
making.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from declarative.apply.backends import Backends
from declarative.apply.ranks import BY_USER, Note, PollRounds, gang_stops, half_started, stop_ranks
from declarative.apply.retry_schedule import Retries
from declarative.apply.settle import release_ended
from declarative.model.inputs import data_of
from declarative.model.resource import TaskWant
from declarative.model.spec import Fleet
from declarative.model.state import (
    STOPPED,
    Address,
    Record,
    State,
    first_failure,
    given_up,
    natural,
    rank_name,
    silent_since,
    unused_since,
)
from declarative.model.status import RankState, RankStatus
from declarative.model.text import and_more
from declarative.planner.inventory import silence_text
from declarative.planner.tasks import gang_state
from declarative.store import StateError, Store, Writer
from declarative.store.lock import FOLLOWING

AGAIN = 60.0
"""Seconds until what no plan gave back is tried once more: a task that waits may want it."""


class Idle:
    """The nodes above their fleets' targets. Only declared `fleets` count."""

    def __init__(self, fleets: Mapping[str, Fleet], now: Callable[[], float]) -> None:
        self._fleets = {name: fleet for name, fleet in fleets.items() if fleet.nodes is not None}
        self._now = now
        self._next = 0.0
        self._known: frozenset[tuple[Address, int]] = frozenset()

    def leave(self, state: State) -> None:
        """Remember which nodes there are, as the command that follows leaves them."""
        self._known = _nodes(state)

    def ready(self, state: State) -> bool:
        """Whether a plan may give nodes back now. Not where another command has made some since `leave`: it
        may want more of them than is declared here.
        """
        now = self._now()
        if now < self._next or _nodes(state) - self._known:
            return False
        return any(when <= now for when in self.when(state).values())

    def tried(self) -> None:
        """It was tried just now."""
        self._next = self._now() + AGAIN

    def end(self) -> None:
        """Nothing is given back from here on."""
        self._fleets = {}

    def when(self, state: State) -> dict[str, float]:
        """Node → when it is given back if nothing comes to run on it, seconds since the epoch."""
        used = {r.reservation.node for r in state.of("reservation")}
        out: dict[str, float] = {}
        for name, fleet in self._fleets.items():
            wait = fleet.idle_duration.seconds
            nodes = {r.address.name: r for r in state.of("node") if r.node.fleet == name}
            if wait is None or fleet.nodes is None:
                continue
            free = state.idle_since.keys() & nodes.keys() - used
            idle = sorted((unused_since(nodes[n], state.idle_since[n]), natural(n), n) for n in free)
            spare = max(0, len(nodes) - fleet.nodes.target)
            out |= {n: since + wait for since, _, n in idle[:spare]}
        return out


def _nodes(state: State) -> frozenset[tuple[Address, int]]:
    return frozenset((r.address, r.generation) for r in state.of("node"))


PERIOD = 0.5
"""Seconds between two turns; how often nodes are asked, `PollRounds` decides."""

SELDOM = 32
"""Looks after which something that could not be settled is tried again at the latest."""

REMINDER = 60.0
"""Seconds between two reminders of what is waited for."""
MOST_NAMED = 5


def ranks_of(state: State, task: str) -> list[str]:
    """The recorded ranks of a task, by rank."""
    ranks = [r for r in state.of("rank") if r.rank.task == task]
    return [r.address.name for r in sorted(ranks, key=lambda r: r.rank.rank)]


def state_of(state: State, task: str) -> RankState:
    """The state of a recorded task."""
    return gang_state((r for r in state.of("rank") if r.rank.task == task), state)


def cause_of(state: State, task: str) -> str | None:
    """Why a task ended as it did: its first failure, else why a rank of it was stopped."""
    statuses = {name: state.ranks.get(name) for name in ranks_of(state, task)}
    first = first_failure(statuses) or next((n for n, s in statuses.items() if s and s.cause), None)
    status = statuses.get(first) if first else None
    if not statuses:
        return "it was removed meanwhile"
    return f"rank/{first} {status.state.value}: {status.cause}" if status else None


def follow(
    store: Store,
    backends: Backends,
    tasks: Iterable[str],
    retries: Retries,
    *,
    idle: Idle | None = None,
    stopping: threading.Event,
    settled: Callable[[Writer, Backends], State],
    remind: Callable[[str], None],
) -> dict[str, RankState]:
    """Watch until every rank of `tasks` has ended, or `stopping` is set; the states of the tasks.

    If one of them is to run again, it returns when that is due; and when `idle` is ready. `settled` is
    `refresh` with its caller's arguments. `remind` gets a text each minute: what is waited for.
    """
    names = tuple(tasks)
    rounds = PollRounds(backends)
    turn = due = fruitless = 0
    reminded = retries.now()
    while True:
        state = store.read()
        if turn >= due and _has_to_settle(state, rounds.poll(state), retries.now()):
            before = state
            try:
                with store.lock(FOLLOWING) as writer:
                    state = settled(writer, backends)
            except StateError as error:
                if error.code != "locked":  # else another command has done or will do the same
                    raise
            retries.silences = _report_silences(state, retries.silences, retries.now(), remind)
            # What cannot be settled now, since a node does not answer or another command writes, is tried
            # again less and less often.
            fruitless = fruitless + 1 if (before.ranks, before.records) == (state.ranks, state.records) else 0
            due = turn + min(1 << fruitless, SELDOM)
        # Nothing is left to follow, or a plan is due: a task runs again, or nodes are given back.
        over = is_over(state, names, retries) or retries.ready(state) or (idle and idle.ready(state))
        if over or stopping.wait(PERIOD):
            return {task: state_of(state, task) for task in names}
        if retries.now() - reminded >= REMINDER:
            reminded = retries.now()
            remind(_waiting_for(state, names, retries))
        turn += 1


def _report_silences(
    state: State, known: Mapping[str, bool], now: float, say: Callable[[str], None]
) -> Mapping[str, bool]:
    """Say which nodes fell silent, and which answer again; the next value of `Retries.silences` (`known`)."""
    for name, silence in state.silent.items():
        if name not in known or (silence.kept and not known[name]):
            say(f"node/{name} {silence_text(silence, now)}")
    unsure: dict[str, bool] = {}
    for record in filter(None, [state.get("node", name) for name in known]):
        name = record.address.name
        if silent_since(record) is not None:
            unsure[name] = known[name]
        elif name not in state.silent:
            say(f"node/{name} answers again")
    return {**unsure, **{name: bool(silence.kept) for name, silence in state.silent.items()}}


def _waiting_for(state: State, tasks: Iterable[str], retries: Retries) -> str:
    """`waiting for task/train (4 ranks: 3 running, 1 starting)`: the tasks that are not over."""
    due = retries.due(state)
    texts: list[str] = []
    for task in tasks:
        names = ranks_of(state, task)
        states = [status.state if (status := state.ranks.get(n)) else RankState.PENDING for n in names]
        counts = Counter(s.value for s in states if not s.ended)
        if task in due:
            seconds = max(0.0, due[task].when - retries.now())
            texts.append(f"task/{task} (runs again in {seconds:.0f} s: {due[task].cause})")
        elif counts:
            ranks = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
            texts.append(f"task/{task} ({len(names)} {'rank' if len(names) == 1 else 'ranks'}: {ranks})")
    return f"waiting for {and_more(texts, MOST_NAMED)}"


def is_over(state: State, tasks: Iterable[str], retries: Retries | None) -> bool:
    """Whether all ranks of `tasks` have ended, and none is to run again."""
    names = (name for task in tasks for name in ranks_of(state, task))
    return not (retries and retries.due(state)) and all(state.has_ended(name) for name in names)


def _has_to_settle(state: State, statuses: Mapping[str, RankStatus], now: float) -> bool:
    """Whether there is something to record or to do: a change, an end, or a rank that nobody answers for."""
    if any(state.ranks.get(name) != status for name, status in statuses.items()):
        return True
    for name in (rank.address.name for rank in state.of("rank")):
        holds_place = state.get("reservation", name) is not None
        if holds_place if state.has_ended(name) else name not in statuses:
            return True
    silent = any(given_up(r) or silent_since(r) is not None for r in state.of("node"))
    return silent or bool(gang_stops(state)) or bool(half_started(state, now))


def stop_task(
    writer: Writer,
    backends: Backends,
    task: str,
    now: Callable[[], float],
    note: Note,
    *,
    want: TaskWant | None = None,
    silent: Collection[str] = (),
) -> None:
    """Stop every rank of a task side by side, and give back what it held.

    Ranks that were not started are recorded as stopped, as `want` declares them: a task that waits for a
    place, for its schedule or for its next attempt must not start later. Those on nodes that are `silent` are
    stopped by the first command that writes and finds that they answer.
    """
    for rank in _not_started(writer.state(), want) if want else ():
        status = RankStatus(state=RankState.STOPPED, cause=BY_USER)
        writer.observe_ranks({rank.address.name: status})  # first: a recorded rank must never lack it
        writer.adopt(rank)
        note(rank.address.name, status)
    state = writer.state()
    live = [n for n in ranks_of(state, task) if not state.has_ended(n)]
    names = [n for n in live if not ((node := state.node_of_rank(n)) and node.address.name in silent)]

    def ended(rank: str, status: RankStatus) -> None:
        writer.observe_ranks({rank: status})
        note(rank, status)

    # Before they end: whoever follows the task must not start it again.
    writer.note({Address("rank", name): {STOPPED: True} for name in ranks_of(state, task)})
    stop_ranks(state, backends, dict.fromkeys(names, BY_USER), ended)
    release_ended(writer, backends, now)


def _not_started(state: State, want: TaskWant) -> Iterator[Record]:
    """The records, as stopped, of a task's ranks that have none. A start whose result is not known may have
    succeeded: its rank gets no record here. Neither does a rank that the recorded gang does not have.
    """
    task, nodes = str(want.spec.name), want.spec.nodes
    asked = {intent.address for intent in state.intents}
    same = all(r.rank.nodes == nodes for r in state.of("rank") if r.rank.task == task)
    for rank in range(nodes if same else 0):
        address = Address("rank", rank_name(task, rank))
        if address not in state.records and address not in asked:
            yield Record(
                address=address,
                backend=None,
                inputs=data_of(want.rank_inputs(rank)),
                outputs={STOPPED: True},
                generation=max(1, state.generations.get(address, 0)),
            )
