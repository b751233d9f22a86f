"""Ranks that have to stop, and stopping them: a gang runs whole or not at all; what the user stopped ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from declarative.apply.backends import Backends
from declarative.apply.launch import grace_of
from declarative.apply.parallel import NODES_AT_ONCE, side_by_side
from declarative.apply.polls import PollRounds
from declarative.model.spec import StopCriteria
from declarative.model.state import Address, Record, State, attempt_id, first_failure, is_stopped, rank_name
from declarative.model.status import RankState, RankStatus
from declarative.provider import ProviderError
from declarative.retry import call
from declarative.store import StateError, Writer

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
