"""Ranks on their nodes: asking how they are doing, recorded or not; and stopping those that have to stop. A
gang runs whole or not at all, and what the user stopped ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import LOOKS, Backends
from declarative.apply.launch import grace_of
from declarative.apply.parallel import NODES_AT_ONCE, side_by_side, start_calls
from declarative.model.record import struct
from declarative.model.resource import LOCAL
from declarative.model.spec import StopCriteria
from declarative.model.state import (
    Address,
    Record,
    State,
    attempt_id,
    attempt_of,
    first_failure,
    given_up,
    is_stopped,
    rank_name,
)
from declarative.model.status import RankState, RankStatus
from declarative.provider import ProviderError
from declarative.retry import PATIENCE, Policy, call
from declarative.store import StateError, Writer

OFTEN, SELDOM = 0.5, 10.0
"""Seconds between two polls of a node: after a change, and when nothing has changed there for long."""
GROWS = 1.2
"""The growth of pauses: an end is noticed late by at most a fifth of the time since the last change."""
AT_MOST = 1.0
"""Seconds that a round waits for nodes that it asks."""


def poll(
    state: State,
    client: BackendClient,
    nodes: Iterable[Record],
    stray: Callable[[Record, str], None] | None = None,
    past: Callable[[Record, str, RankStatus | None], None] | None = None,
    *,
    reported: Mapping[str, Mapping[str, RankStatus]] | None = None,
    patience: Policy = PATIENCE,
) -> dict[str, RankStatus]:
    """How every rank that has not ended is doing on `nodes`: one call a node, side by side.

    Ranks of a node that cannot be asked are left out. With `stray` all nodes are asked what runs on them:
    `stray` gets each attempt that is neither recorded nor about to be, and `past` those that were given up. A
    node whose ranks were `reported` already is not asked again.
    """
    reported = reported or {}
    ask, by_node = _asking(state, client, stray, past, reported, patience)
    out: dict[str, RankStatus] = {}
    others: list[Record] = []
    for node in nodes:
        if node.address.name in reported:
            out.update(ask(node))
        elif stray or node.address.name in by_node:
            others.append(node)
    for statuses in side_by_side(others, ask):
        out.update(statuses)
    return out


def _asking(
    state: State,
    client: BackendClient,
    stray: Callable[[Record, str], None] | None = None,
    past: Callable[[Record, str, RankStatus | None], None] | None = None,
    reported: Mapping[str, Mapping[str, RankStatus]] | None = None,
    patience: Policy = PATIENCE,
) -> tuple[Callable[[Record], dict[str, RankStatus]], Mapping[str, Mapping[str, str]]]:
    """A function that asks one node for `poll`; and node → attempt → rank, for what it asks."""
    live = [r for r in state.of("rank") if not state.has_ended(r.address.name)]
    known = {attempt_of(i) for i in state.intents if i.address.kind == "rank"} | {*map(attempt_id, live)}
    by_node: dict[str, dict[str, str]] = {}
    for rank in live:
        if place := state.get("reservation", rank.address.name):
            by_node.setdefault(place.reservation.node, {})[attempt_id(rank)] = rank.address.name

    def ask(node: Record) -> dict[str, RankStatus]:
        ranks, old = by_node.get(node.address.name, {}), given_up(node) if past else ()
        asked = sorted({*ranks, *old})
        answers: Mapping[str, RankStatus | None]
        try:
            if reported and node.address.name in reported:
                answers = {**dict.fromkeys(asked), **reported[node.address.name]}
            elif stray is None:
                answers = call(lambda: client.poll(node, asked), policy=patience)
            else:
                answers = call(lambda: client.attempts(node, asked), policy=patience)
            if unlisted := [] if stray is None else [a for a in ranks if answers[a] is None]:
                # A rank can run on although its folder vanished. Asked by name, its node finds its processes.
                answers = {**answers, **call(lambda: client.poll(node, unlisted), policy=patience)}
        except ProviderError:
            return {}
        for attempt, status in answers.items():
            if past and attempt in old:
                past(node, attempt, status)
            elif stray and attempt not in known and status and not status.state.ended:
                stray(node, attempt)
        never = RankStatus(state=RankState.LOST, cause=f"{node.address} knows nothing of it")
        # Nothing is known of an attempt that the answer leaves out.
        return {ranks[a]: status or never for a, status in answers.items() if a in ranks}

    return ask, by_node


def running(state: State) -> dict[str, list[Record]]:
    """Backend → nodes that hold ranks that have not ended."""
    out: dict[str, dict[str, Record]] = {}
    for rank in state.of("rank"):
        node = state.node_of_rank(rank.address.name)
        if node and not state.has_ended(rank.address.name):
            out.setdefault(node.backend or LOCAL, {})[node.address.name] = node
    return {backend: list(nodes.values()) for backend, nodes in out.items()}


@struct(slots=True)
class _Pace:
    """How often one node is asked."""

    attempts: frozenset[str]
    interval: float
    due: float
    seldom: float
    pending: Future[dict[str, RankStatus]] | None = None


class PollRounds:
    """Polls of nodes, each at its own pace: seldom while nothing changes there, and often after a change.

    A slow node holds up no other, and is not asked again before it answers. Until then, and as long as it is
    not due, the recorded statuses of its ranks hold.
    """

    def __init__(self, backends: Backends, clock: Callable[[], float] = time.monotonic) -> None:
        self._backends = backends
        self._clock = clock
        self._paces: dict[str, _Pace] = {}

    def on(self, backends: Backends) -> PollRounds:
        """The same paces, for backends as they are declared now."""
        self._backends = backends
        return self

    def poll(self, state: State) -> dict[str, RankStatus]:
        """How every rank that has not ended is doing; ranks of nodes that cannot be asked are left out."""
        now = self._clock()
        ranks_of = self._ask(state, now)
        self._paces = {name: pace for name, pace in self._paces.items() if name in ranks_of}
        out: dict[str, RankStatus] = {}
        for name, ranks in ranks_of.items():
            pace = self._paces[name]
            if pace.pending is not None and pace.pending.done():
                out.update(pace.pending.result())
                pace.pending = None
                pace.interval = min(pace.interval * GROWS, pace.seldom)
                pace.due = self._clock() + pace.interval
            else:
                out.update({rank: state.ranks[rank] for rank in ranks.values() if rank in state.ranks})
        # The nodes of a changed rank's task are asked soon: its other ranks will change, too.
        changed = (rank for rank, status in out.items() if state.ranks.get(rank) != status)
        tasks = {state.records[Address("rank", rank)].rank.task for rank in changed}
        for name, ranks in ranks_of.items():
            if any(state.records[Address("rank", rank)].rank.task in tasks for rank in ranks.values()):
                self._paces[name].interval = OFTEN
                self._paces[name].due = min(self._paces[name].due, now + OFTEN)
        return out

    def _ask(self, state: State, now: float) -> dict[str, Mapping[str, str]]:
        """Ask the nodes that are due, and wait for a moment. Node → attempt → rank, due or not."""
        futures: list[Future[dict[str, RankStatus]]] = []
        ranks_of: dict[str, Mapping[str, str]] = {}
        for backend, nodes in running(state).items():
            try:
                ask, by_node = _asking(state, self._backends.get(backend))
            except ProviderError:
                continue
            ranks_of |= {node.address.name: by_node[node.address.name] for node in nodes}
            due: dict[str, Record] = {}
            for node in nodes:
                name, fleet = node.address.name, node.node.fleet
                attempts = frozenset(ranks_of[name])
                if name not in self._paces or self._paces[name].attempts != attempts:
                    limit = self._backends.limits.get(fleet) or SELDOM * LOOKS
                    seldom = max(OFTEN, min(SELDOM, limit / LOOKS))
                    self._paces[name] = _Pace(attempts, OFTEN, now, seldom)
                if self._paces[name].pending is None and now >= self._paces[name].due:
                    due[name] = node
            for name, future in start_calls(due, ask).items():
                self._paces[name].pending = future
                futures.append(future)
        wait(futures, timeout=AT_MOST)
        return ranks_of


Note = Callable[[str, RankStatus], None]
"""Gets each rank whose state changed."""

BY_USER = "stopped by the user"

START_LIMIT = 600.0
"""Seconds from the start of a gang's first rank in which the others have to start."""
FIRST_LOOK, NEXT_LOOK = 5.0, 2.0
"""Seconds after which an apply looks at the gangs that it does not touch, and between two looks."""
LOOKS_COST = 20
"""Before the next look, an apply waits at least 20 times as long as the last one took."""


def user_stops(state: State) -> dict[str, RankStatus]:
    """Ranks of tasks that the user has stopped, and that could not be asked then."""
    stopped = RankStatus(state=RankState.STOPPED, cause=BY_USER)
    tasks = (ranks for ranks in state.gangs().values() if is_stopped(ranks))
    names = (rank.address.name for ranks in tasks for rank in ranks)
    return {name: stopped for name in names if not state.has_ended(name)}


def gang_stops(state: State) -> dict[str, RankStatus]:
    """Ranks that have to stop because of a sibling: one failed, or rank 0 is done and that is enough."""
    out: dict[str, RankStatus] = {}
    for members in state.gangs().values():
        if cause := _why_to_stop(members, state):
            stopped = RankStatus(state=RankState.STOPPED, cause=cause)
            known = (r.address.name for r in members if r.address.name in state.ranks)
            out.update({name: stopped for name in known if not state.has_ended(name)})
    return out


def _why_to_stop(members: Sequence[Record], state: State) -> str | None:
    """Why the ranks of a gang that go on have to stop, if they have to."""
    statuses = {r.address.name: state.ranks.get(r.address.name) for r in members}
    if broken := first_failure(statuses):
        failed = state.ranks[broken]
        return f"rank/{broken} {failed.state.value}: {failed.cause}"
    if members[0].rank.stop_criteria == StopCriteria.MASTER_DONE.value:
        for master in (r.address.name for r in members if r.rank.rank == 0):
            if (status := statuses[master]) and status.state is RankState.SUCCEEDED:
                return f"rank/{master} is done"
    return None


def stops(state: State, now: float) -> dict[str, RankStatus]:
    """The ranks of gangs that cannot go on, and those that the user stopped; how they end."""
    return {**half_started(state, now), **gang_stops(state), **user_stops(state)}


def half_started(state: State, now: float) -> dict[str, RankStatus]:
    """Ranks that have waited too long for siblings that were not started: an apply was cut short.

    Until then the next apply starts those that are missing; after it, all of them anew.
    """
    out: dict[str, RankStatus] = {}
    for task, members in state.gangs().items():
        recorded = {r.rank.rank for r in members}
        missing = next((i for i in range(members[0].rank.nodes) if i not in recorded), None)
        if missing is None or not _is_late(members, now):
            continue
        address = Address("rank", rank_name(task, missing))
        asked = any(i.address == address and i.op == "create" for i in state.intents)
        why = "whether it did is not known" if asked else "the apply that began it was cut short"
        cause = f"{address} did not start within {START_LIMIT / 60:.0f} minutes: {why}"
        live = (r.address.name for r in members if not state.has_ended(r.address.name))
        out.update(dict.fromkeys(live, RankStatus(state=RankState.STOPPED, cause=cause)))
    return out


def _is_late(members: Sequence[Record], now: float) -> bool:
    """Whether the first of these ranks was started so long ago that all others should have been."""
    starts = [r.started_at for r in members if r.started_at is not None]
    return bool(starts) and now - min(starts) > START_LIMIT


def stop_rank(state: State, backends: Backends, rank: str, cause: str | None) -> RankStatus | None:
    """Stop one rank as a whole; how it ended, or None if its backend could not be asked."""
    record, node = state.get("rank", rank), state.node_of_rank(rank)
    if record is None or node is None:
        return None
    try:
        client = backends.get(node.backend)
        status = call(lambda: client.stop(node, attempt_id(record), grace_of(record.rank)))
    except ProviderError:
        return None
    if status is None:
        return RankStatus(state=RankState.LOST, cause=f"{node.address} knows nothing of it")
    if status.state is RankState.STOPPED:
        return replace(status, cause=cause or "stopped", confinement=None)
    return status


def stop_ranks(state: State, backends: Backends, causes: Mapping[str, str | None], note: Note) -> None:
    """Stop ranks side by side. `note` gets each rank's status once it has ended.

    Ranks whose backend could not be asked are left as they are.
    """

    def stop(rank: str) -> None:
        ended = stop_rank(state, backends, rank, causes[rank])
        if ended:
            note(rank, ended)

    side_by_side(causes, stop, NODES_AT_ONCE)


@contextmanager
def watched(writer: Writer, backends: Backends, touched: Collection[str], ended: Note) -> Iterator[None]:
    """Meanwhile stop gangs with a failed rank, but not those of `touched` tasks: an apply may wait for
    minutes until a node is up, and no other command looks. `ended` records how a rank has ended.
    """
    over, polls = threading.Event(), PollRounds(backends)

    def look() -> None:
        state = writer.state()
        gangs = state.gangs().items()
        others = (r.address for task, ranks in gangs if task in touched or len(ranks) == 1 for r in ranks)
        state = state.without(others)
        new = {rank: status for rank, status in polls.poll(state).items() if status.state.ended}
        for rank, status in new.items():
            ended(rank, status)
        due = gang_stops(replace(state, ranks={**state.ranks, **new}))
        stop_ranks(state, backends, {rank: status.cause for rank, status in due.items()}, ended)

    def watch() -> None:
        pause = FIRST_LOOK
        with suppress(StateError):  # whoever carries out the plan meets it as well, and says it
            while not over.wait(pause):
                started = time.monotonic()
                look()
                pause = max(NEXT_LOOK, LOOKS_COST * (time.monotonic() - started))

    thread = threading.Thread(target=watch, name="gangs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
