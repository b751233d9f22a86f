"""Places for tasks that may wait in the queue of a cluster (`queue: true`) until others let go. Pure.

Such a task is planned on nodes as if others' jobs had ended: those that have to end first. What ranks of this
project hold is not waited for here, but by `retry`. Who comes first is the cluster's decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from declarative.model.resource import Taken
from declarative.model.state import natural, rank_name
from declarative.placement.board import Board
from declarative.placement.finish import finish
from declarative.placement.search import Search
from declarative.placement.types import Ask, Choice, Node, PlacementOutcome, VolumeAt
from declarative.planner.inventory import Inventory, busy
from declarative.planner.types import Queued

MOST_STEPS = 8
"""Moments at which it is looked what has become free by then."""


def behind_others(
    waiting: Mapping[str, Ask],
    board: Board,
    outcome: PlacementOutcome,
    partitions: Collection[str],
    seen: Inventory,
) -> tuple[PlacementOutcome, tuple[Queued, ...]]:
    """The outcome with places for those of the refused tasks `waiting` that fit once others have let go.

    `partitions` are the fleets whose nodes are shared with others.
    """
    taken = {found.host.name: found.taken for nodes in seen.existing.values() for found in nodes} | {
        **seen.taken
    }
    if not waiting or not any(taken.values()):
        return outcome, ()
    choices = list(outcome.choices)
    queued: list[Queued] = []
    left = dict(waiting)
    for moment in _moments(taken.values()):
        nodes = [_at(node, moment, taken, choices) for node in board.nodes if node.fleet in partitions]
        rules = {name: rule for name, rule in board.fleets.items() if name in partitions}
        trial = Board([*left.values()], nodes, rules, _volumes(board.volumes, choices))
        placed = finish(Search(trial).run().ledger).choices
        found: dict[str, list[str]] = {}
        for choice in placed:
            found.setdefault(choice.task, []).append(choice.node)
        choices += placed
        queued += [_queued(task, on, taken) for task, on in found.items()]
        left = {task: ask for task, ask in left.items() if task not in found}
        if not left:
            break
    waits = {one.task for one in queued}
    refusals = tuple(r for r in outcome.refusals if r.task not in waits)
    remedies = outcome.remedies if refusals else ()
    found_all = replace(outcome, choices=tuple(choices), refusals=refusals, remedies=remedies)
    return found_all, tuple(sorted(queued, key=lambda one: natural(one.task)))


def _moments(taken: Collection[Sequence[Taken]]) -> list[float]:
    """When something is given back at the latest, earliest first; at the last of them everything is."""
    ends = sorted({one.until for held in taken for one in held if one.until is not None})
    step = max(1, -(-len(ends) // (MOST_STEPS - 1)))
    return [*ends[step - 1 :: step], float("inf")]


def _at(node: Node, moment: float, taken: Mapping[str, Sequence[Taken]], choices: Sequence[Choice]) -> Node:
    """A node as it will be when everything has ended that has to end by then."""
    held = {block: holder for block, holder in node.held.items() if holder.startswith("rank/")}
    for choice in choices:
        if choice.node == node.name:
            held |= dict.fromkeys(choice.blocks, f"rank/{rank_name(choice.task, choice.rank)}")
    still = [
        one for one in taken.get(node.name, ()) if moment < (float("inf") if one.until is None else one.until)
    ]
    return replace(node, held={**busy(node.shape, node.total, still, held), **held})


def _volumes(volumes: Mapping[str, VolumeAt], choices: Sequence[Choice]) -> dict[str, VolumeAt]:
    """The volumes, those that the choices take included."""
    holders = {name: f"rank/{rank_name(c.task, c.rank)}" for c in choices for name in c.volumes.values()}
    return {name: replace(at, holder=holders.get(name, at.holder)) for name, at in volumes.items()}


def _queued(task: str, nodes: Sequence[str], taken: Mapping[str, Sequence[Taken]]) -> Queued:
    before = [one for name in sorted(set(nodes), key=natural) for one in taken.get(name, ())]
    ends = [one.until for one in before]
    until = None if None in ends else max((end for end in ends if end is not None), default=None)
    return Queued(task=task, holders=tuple(dict.fromkeys(one.holder for one in before)), until=until)
