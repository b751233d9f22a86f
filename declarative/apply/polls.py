"""Asking nodes how ranks are doing: those that are recorded, and those that are not and run all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.drift import PATIENCE
from declarative.apply.renamed import Renamed
from declarative.provider import ProviderError
from declarative.retry import call
from declarative.state import RankState, RankStatus, Record, State, attempt_id, attempt_of, given_up


def node_of_rank(state: State, rank: str) -> Record | None:
    """The node that a rank holds blocks of."""
    reservation = state.get("reservation", rank)
    return state.get("node", str(reservation.inputs["node"])) if reservation else None


def _by_node(state: State, ranks: Iterable[Record]) -> dict[str, dict[str, str]]:
    """Node → attempt → the rank that it is of."""
    out: dict[str, dict[str, str]] = {}
    for rank in ranks:
        if place := state.get("reservation", rank.address.name):
            out.setdefault(str(place.inputs["node"]), {})[attempt_id(rank)] = rank.address.name
    return out


def poll(
    state: State,
    provider: Renamed,
    nodes: Iterable[Record],
    stray: Callable[[Record, str], None] | None = None,
    past: Callable[[Record, str, RankStatus | None], None] | None = None,
) -> dict[str, RankStatus]:
    """How every rank that has not ended is doing on `nodes`: one call a node, side by side.

    Ranks of a node that cannot be asked are left out. With `stray` all nodes are asked what runs on them, and
    it is told of each attempt that is neither recorded nor about to be; but `past` is told of those that were
    given up.
    """
    live = [r for r in state.of("rank") if not ((s := state.ranks.get(r.address.name)) and s.state.ended)]
    going = {attempt_of(i) for i in state.intents if i.address.kind == "rank"} | {*map(attempt_id, live)}
    by_node = _by_node(state, live)

    def ask(node: Record) -> dict[str, RankStatus]:
        ranks, old = by_node.get(node.address.name, {}), given_up(node) if past else ()
        wanted = sorted({*ranks, *old})
        try:
            if stray is None:
                answers = call(lambda: provider.poll(node, wanted), policy=PATIENCE)
            else:
                answers = call(lambda: provider.attempts(node, wanted), policy=PATIENCE)
        except ProviderError:
            return {}
        for attempt, status in answers.items():
            if past and attempt in old:
                past(node, attempt, status)
            elif stray and attempt not in going and status and not status.state.ended:
                stray(node, attempt)
        never = RankStatus(state=RankState.LOST, cause=f"{node.address} knows nothing of it")
        # Of an attempt that an answer leaves out nothing is known.
        return {ranks[a]: status or never for a, status in answers.items() if a in ranks}

    wanted = [n for n in nodes if n.address.name in by_node or stray]
    out: dict[str, RankStatus] = {}
    if wanted:
        with ThreadPoolExecutor(min(16, len(wanted))) as pool:
            for answers in pool.map(ask, wanted):
                out.update(answers)
    return out
