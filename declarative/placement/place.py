"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative.placement.board import Board
from declarative.placement.finish import finish
from declarative.placement.refusals import Refusals
from declarative.placement.search import Search
from declarative.placement.types import Ask, FleetRule, Node, Outcome, VolumeAt
from declarative.state import natural


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    *,
    effort: int = 1,
) -> Outcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow.

    Deterministic: the order of `asks` and `nodes` does not matter, and ties break by name. A task is placed
    with all of its ranks or is refused. `effort` is how many times as long as usual the cheapest launches are
    looked for.
    """
    board = Board(asks, nodes, fleets, volumes)
    found = Search(board, effort).run()
    finished = finish(found.ledger)
    refusals = Refusals(board, found.ledger, finished).of(found.left) if found.left else ()
    return Outcome(
        choices=tuple(finished.choices),
        refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
        launches=finished.launches,
        short_fleets=tuple(sorted(found.short.items())),
        zones=dict(sorted(finished.zones.items())),
        bound=found.bound,
    )
