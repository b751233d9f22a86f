"""Asking nodes how ranks are doing: those that are recorded, and those that are not and run all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.drift import PATIENCE
from declarative.apply.renamed import Renamed
from declarative.provider import ProviderError
from declarative.retry import call
from declarative.state import RankState, RankStatus, Record, State, attempt_id, attempt_of


def node_of_rank(state: State, rank: str) -> Record | None:
    """The node that a rank holds blocks of."""
    reservation = state.get("reservation", rank)
    return state.get("node", str(reservation.inputs["node"])) if reservation else None


def poll(
    state: State,
    provider: Renamed,
    nodes: Iterable[Record],
    stray: Callable[[Record, str], None] | None = None,
) -> dict[str, RankStatus]:
    """How every rank that has not ended is doing on `nodes`: one call a node, side by side.

    Ranks of a node that cannot be asked are left out. With `stray` all nodes are asked what runs on them, and
    it is told of each attempt that is neither recorded nor about to be.
    """
    live = [r for r in state.of("rank") if not ((s := state.ranks.get(r.address.name)) and s.state.ended)]
    going = {attempt_of(i) for i in state.intents if i.address.kind == "rank"} | {*map(attempt_id, live)}
    by_node: dict[str, dict[str, str]] = {}
    for rank in live:
        if place := state.get("reservation", rank.address.name):
            by_node.setdefault(str(place.inputs["node"]), {})[attempt_id(rank)] = rank.address.name

    def ask(node: Record) -> dict[str, RankStatus]:
        ranks = by_node.get(node.address.name, {})
        wanted = sorted(ranks)
        try:
            if stray is None:
                answers = call(lambda: provider.poll(node, wanted), policy=PATIENCE)
            else:
                answers = call(lambda: provider.attempts(node, wanted), policy=PATIENCE)
        except ProviderError:
            return {}
        runs = (a for a, status in answers.items() if status and not status.state.ended)
        for attempt in runs if stray else ():
            if stray and attempt not in going:
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
