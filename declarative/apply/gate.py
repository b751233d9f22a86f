"""The gate of a gang: its ranks are prepared, each on its node, and run only when all of them can. Before the
first one is prepared, the nodes are asked whether they reach rank 0's: they meet there.

A rank is recorded as soon as it is prepared, and `starting` until it is released. So if a command is cut
short, the next one knows what waits: it prepares the missing ranks and releases all, or stops them. A rank
that is not released ends by itself, without running a command.

One gap remains: a command dies between two releases of a gang, and no command follows for GATE_SECONDS. Then
the released ranks run without the rest, until the next command that may act stops them. Their task is lost,
and runs again as `retry` says. All ranks are released at once, unless `startup_order` wants otherwise, so the
gap lasts only moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import Backends
from declarative.apply.failover import ActionError
from declarative.apply.graph_walk import InterruptedApplyError, KnownPaths, Tools
from declarative.apply.parallel import NODES_AT_ONCE, side_by_side
from declarative.model.inputs import RankInputs, knows_siblings
from declarative.model.spec import StartupOrder
from declarative.model.state import Address, Record, State, attempt_id, rank_name
from declarative.model.status import PREPARING, WAITING, RankState, RankStatus
from declarative.planner.hosts import MEET_HINT, addresses_of, no_meeting
from declarative.provider import ProviderError
from declarative.provider.optional import Gang, Seat
from declarative.retry import call

GATE_SECONDS = 3600
"""The longest wait of a prepared rank; it is longer than any command that would release it."""

PREPARE_LIMIT = 1800.0
"""Seconds for which a command waits until all ranks are prepared: their images may have to be pulled."""

T = TypeVar("T")
_RankCall = Callable[[Record, Sequence[str]], Mapping[str, RankStatus | None]]


def is_gang(inputs: RankInputs) -> bool:
    """Whether a rank has siblings. A rank without siblings waits for nothing."""
    return inputs.nodes > 1


def waiting(state: State) -> dict[str, list[Record]]:
    """The gangs with all ranks recorded, none ended, and some not released; their ranks in order."""
    out: dict[str, list[Record]] = {}
    for task, ranks in sorted(state.gangs().items()):
        statuses = [state.ranks.get(r.address.name) for r in ranks]
        whole = {r.rank.rank for r in ranks} == set(range(ranks[0].rank.nodes))
        live = all(status is not None and not status.state.ended for status in statuses)
        if is_gang(ranks[0].rank) and whole and live and any(map(is_prepared, statuses)):
            out[task] = sorted(ranks, key=lambda rank: rank.rank.rank)
    return out


def is_prepared(status: RankStatus | None) -> bool:
    """Whether a rank is prepared, or is being prepared, and was not released."""
    return status is not None and status.state is RankState.STARTING and status.cause in {PREPARING, WAITING}


def release(task: str, tools: Tools, id: str | None = None) -> None:
    """Let a gang run if it is whole, once all its ranks are prepared; the action `id` says what it waits for.

    Raises `ProviderError`, `StateError` or `InterruptedApplyError`. If a rank of the gang has ended
    meanwhile, none is released: the next look stops the others.
    """
    state, ranks = _prepared(task, tools, id)
    if not ranks:
        return
    # Nodes are had for the whole gang, where its place gives them to gangs (`provider.Gangs`).
    seats: dict[str | None, list[Seat]] = {}
    for rank in ranks:
        if node := state.node_of_rank(rank.address.name):
            seats.setdefault(node.backend, []).append(Seat(node=node, attempt=attempt_id(rank)))
    for backend, its_seats in seats.items():
        gang = Gang(task=task, seats=tuple(its_seats))
        _retried(partial(tools.backends.get(backend).reserve, gang), tools)
    peers = _peers(ranks, state, tools) if knows_siblings(ranks[0].rank) else []
    groups = {
        StartupOrder.MASTER_FIRST.value: (ranks[:1], ranks[1:]),
        StartupOrder.WORKERS_FIRST.value: (ranks[1:], ranks[:1]),
    }
    for group in groups.get(str(ranks[0].rank.startup_order), (ranks,)):
        _ask(group, state, tools, lambda client: partial(client.release, peers=peers))


def _prepared(task: str, tools: Tools, id: str | None) -> tuple[State, list[Record]]:
    """The ranks of a gang once all are prepared; none if it does not wait, or took too long."""
    start = tools.now()
    pause, reported = 0.1, False
    while True:
        ranks = waiting(state := tools.writer.state()).get(task, [])
        slow = [r for r in ranks if (s := state.ranks.get(r.address.name)) and s.cause == PREPARING]
        if not slow:
            return state, ranks
        late = tools.now() - start
        if late > PREPARE_LIMIT:
            return state, []
        if id and not reported and late > 1:
            tools.listener.wait(id, str(slow[0].address), PREPARING)
            reported = True
        if tools.stopping.wait(pause):
            raise InterruptedApplyError
        pause = min(5.0, pause * 2)
        _ask(slow, state, tools, lambda client: client.poll)


def release_all(tools: Tools) -> dict[str, str]:
    """Let all gangs run that are whole and wait: the command that began them was cut short. Task → why it
    could not be released now, for those that could not.
    """
    out: dict[str, str] = {}
    for task in waiting(tools.writer.state()):
        try:
            release(task, tools)
        except InterruptedApplyError:
            break
        except ProviderError as error:
            out[task] = error.summary
    return out


def _peers(ranks: list[Record], state: State, tools: Tools) -> list[str]:
    """How the ranks of a gang reach each other."""
    lines: dict[str, str] = {}

    def ask(node: Record, names: Mapping[str, str]) -> None:
        peers = _retried(lambda: tools.backends.get(node.backend).peers(node, sorted(names)), tools)
        lines.update({names[a]: f"{node.node_address} {line}" for a, line in peers.items()})

    _at_nodes(ranks, state, ask)
    return [lines[r.address.name] for r in ranks if r.address.name in lines]


def _ask(
    ranks: list[Record], state: State, tools: Tools, call_of: Callable[[BackendClient], _RankCall]
) -> None:
    """Release ranks, or only look at them; the answers of their nodes are recorded."""

    def ask(node: Record, names: Mapping[str, str]) -> None:
        rank_call = call_of(tools.backends.get(node.backend))
        answers = _retried(lambda: rank_call(node, sorted(names)), tools)
        never = RankStatus(state=RankState.LOST, cause=f"{node.address} knows nothing of it")
        tools.writer.observe_ranks({names[a]: status or never for a, status in answers.items()})

    _at_nodes(ranks, state, ask)


def _retried(ask: Callable[[], T], tools: Tools) -> T:
    return call(ask, policy=tools.policy, stopping=tools.stopping.is_set)


def _at_nodes(ranks: list[Record], state: State, ask: Callable[[Record, Mapping[str, str]], None]) -> None:
    """Call for each node, side by side, with its ranks by their attempts."""
    by_node: dict[Address, tuple[Record, dict[str, str]]] = {}
    for rank in ranks:
        node = state.node_of_rank(rank.address.name)
        if node:
            by_node.setdefault(node.address, (node, {}))[1][attempt_id(rank)] = rank.address.name

    side_by_side(by_node.values(), lambda entry: ask(*entry), NODES_AT_ONCE)


# ------------------------------------------------------------------------------ whether its nodes can meet

HINT = f"{MEET_HINT}; or let them through in the firewall"


def check_peers(inputs: RankInputs, state: State, backends: Backends, known: KnownPaths) -> None:
    """`ActionError` if nodes of a gang have no addresses of their own, or one is known not to reach rank 0's.

    `inputs` are those of one of its ranks. `known` answers are not asked for again.
    """
    if not is_gang(inputs) or not knows_siblings(inputs):
        return
    first, *rest = (state.node_of_rank(rank_name(inputs.task, rank)) for rank in range(inputs.nodes))
    if why := no_meeting(addresses_of({n.address.name for n in (first, *rest) if n}, state.records, ())):
        raise ActionError(why, HINT)
    if first is None or not first.node_address:
        return
    address = first.node_address
    others = {node.address.name: node for node in filter(None, rest)}
    others.pop(first.address.name, None)
    new = [node for name, node in sorted(others.items()) if (name, address) not in known]

    def ask(node: Record) -> str | None:
        try:
            return backends.get(node.backend).reaches(node, address)
        except ProviderError:
            return None  # whoever starts a rank there hears of it

    for node, why in zip(new, side_by_side(new, ask, NODES_AT_ONCE), strict=True):
        known[node.address.name, address] = why
    for name, node in others.items():
        if why := known[name, address]:
            raise ActionError(
                f"{node.address} ({node.node_address}) cannot reach {first.address} at {address}, "
                f"where its ranks would look for rank 0: {why}",
                HINT,
            )
