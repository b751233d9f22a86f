"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative.model.state import natural
from declarative.placement.board import Board
from declarative.placement.finish import finish
from declarative.placement.refusals import Refusals
from declarative.placement.remedies import Remedies
from declarative.placement.search import Search
from declarative.placement.types import Ask, FleetRule, Node, Outcome, Refusal, Remedy, VolumeAt


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    *,
    effort: int = 1,
    about: str | None = None,
) -> Outcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow.

    Deterministic: the order of `asks` and `nodes` does not matter, and ties break by name. A task is placed
    with all of its ranks or is refused. `effort` is how many times as long as usual the cheapest launches are
    looked for. `about` is a task: what would make that one fit is looked for longer, and of no other.
    """
    board = Board(asks, nodes, fleets, volumes)
    found = Search(board, effort).run()
    finished = finish(found.ledger)
    refusals: Sequence[Refusal] = ()
    remedies: Sequence[Remedy] = ()
    if found.left:
        sought = Remedies(board, found.ledger, found.left, effort, about)
        refusals = Refusals(board, found.ledger, finished).of(found.left, sought, found.proved)
        remedies = sought.shared
    return Outcome(
        choices=tuple(finished.choices),
        refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
        remedies=tuple(remedies),
        launches=finished.launches,
        short_fleets=tuple(sorted(found.short.items())),
        zones=dict(sorted(finished.zones.items())),
        bound=found.bound,
    )
