"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative.model.state import natural
from declarative.placement.board import Board
from declarative.placement.finish import finish
from declarative.placement.refusals import Refusals
from declarative.placement.remedies import Remedies
from declarative.placement.search import Search
from declarative.placement.types import Ask, FleetRule, Node, PlacementOutcome, Refusal, Remedy, VolumeAt


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    *,
    effort: int = 1,
    about: str | None = None,
) -> PlacementOutcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow.

    Deterministic: the order of `asks` and `nodes` does not matter, and ties break by name. A task is placed
    with all of its ranks or is refused. `effort` is how many times as long as usual the cheapest launches are
    looked for. `about` is a task: what would make that one fit is looked for longer, and of no other.
    """
    return Placed(Board(asks, nodes, fleets, volumes), effort).outcome(about)


class Placed:
    """Where all tasks go. Why some have no place is said by `outcome`, which takes as long again."""

    def __init__(self, board: Board, effort: int = 1) -> None:
        self.board, self.effort = board, effort
        self.found = Search(board, effort).run()
        self.finished = finish(self.found.ledger)

    @property
    def used(self) -> frozenset[str]:
        """The nodes where tasks go."""
        return frozenset(choice.node for choice in self.finished.choices)

    @property
    def refused(self) -> int:
        """How many ranks have no place."""
        return sum(job.ranks for job in self.found.left)

    def outcome(self, about: str | None = None) -> PlacementOutcome:
        """All of it, with the reasons."""
        found, finished = self.found, self.finished
        refusals: Sequence[Refusal] = ()
        remedies: Sequence[Remedy] = ()
        if found.left:
            sought = Remedies(self.board, found.ledger, found.left, self.effort, about)
            refusals = Refusals(self.board, found.ledger, finished).of(found.left, sought, found.proved)
            remedies = sought.shared
        return PlacementOutcome(
            choices=tuple(finished.choices),
            refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
            remedies=tuple(remedies),
            launches=finished.launches,
            short_fleets=tuple(sorted(found.short.items())),
            zones=dict(sorted(finished.zones.items())),
            bound=found.bound,
        )
