"""Moves that would let a node go: priced, and only ever shown. Nothing that runs is moved by a plan.

Over time nodes empty as their tasks end; a few moves are worth more then than any packing
(rule 6 of docs/architecture.md, "Placement").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from declarative.model.blocks import maker_of
from declarative.model.resource import TaskWant
from declarative.model.spec import Fleet, Task
from declarative.model.state import natural
from declarative.placement.consolidation import Targets
from declarative.placement.filters import (
    blocks_wanted,
    fleet_reason,
    level_of,
    one_vendor,
    place_reason,
    ready_reason,
)
from declarative.placement.problem import Node, NodeType, Suggestion, by_name, of_node

MOST = 3
"""Suggestions at most."""

MOST_MOVES = 8
"""Ranks that one suggestion moves at most: each is stopped and started anew."""

MOST_TRIED = 500
"""Nodes that are looked at: a suggestion is not worth a wait."""


def suggest(
    nodes: Iterable[Node], fleets: Mapping[str, Fleet], wants: Mapping[str, TaskWant]
) -> tuple[Suggestion, ...]:
    """Up to three nodes that could be let go if their ranks moved; what saves most by a move comes first.

    `nodes` are those that the plan leaves, `held` being who will sit on them (`rank/train-0`), new ones
    included: those may take ranks, but are not freed. `fleets` are the declared ones by name. `wants` are the
    tasks by name whose ranks may be moved; a rank stays where it is if its task is not among them, is pinned
    or exclusive, or if it mounts a volume. Together the suggestions can be followed one after the other.
    """
    if not wants:
        return ()
    search = _Moves(sorted(nodes, key=lambda n: (natural(n.name), n.name)), fleets, wants)
    out: list[Suggestion] = []
    for node in search.candidates()[:MOST_TRIED]:
        suggestion = search.free(node)
        if suggestion is not None:
            out.append(suggestion)
            if len(out) == MOST:
                break
    return tuple(out)


class _Moves:
    """The idle blocks of the nodes that are in use, and what was promised of them so far."""

    def __init__(
        self, nodes: Sequence[Node], fleets: Mapping[str, Fleet], wants: Mapping[str, TaskWant]
    ) -> None:
        self.nodes, self.fleets, self.wants = nodes, fleets, wants
        kinds = sorted({NodeType(*of_node(n)) for n in nodes}, key=by_name)
        self.kinds = kinds
        number = {kind: i for i, kind in enumerate(kinds)}
        self.kind_of = [number[NodeType(*of_node(n))] for n in nodes]
        self.idle = [n.total - len(n.held) for n in nodes]
        # Idle nodes above the target go by themselves: to move ranks there frees nothing.
        used = Counter(node.fleet for node in nodes if node.held)
        self.spare = {name: used[name] - fleet.nodes.target for name, fleet in fleets.items() if fleet.nodes}
        self.targets = self._targets()
        self.touched: set[int] = set()
        self._fits: dict[tuple[str, object, str | None], dict[int, int]] = {}

    def _targets(self) -> Targets:
        """The nodes in use, which may take ranks."""
        targets = Targets()
        for i, node in enumerate(self.nodes):
            if node.held and node.fleet in self.fleets and ready_reason(node) is None:
                targets.add(self.kind_of[i], self.idle[i], i)
        return targets

    def candidates(self) -> list[int]:
        """Nodes that cost something and whose ranks may all be moved; what saves most by a move first."""
        worth: list[tuple[float, int]] = []
        for i, node in enumerate(self.nodes):
            holders = set(node.held.values())
            few = 0 < len(holders) <= MOST_MOVES
            if node.price and few and self._may_go(node) and all(map(self._movable, holders)):
                worth.append((-node.price / len(holders), i))
        return [i for _, i in sorted(worth)]

    def _may_go(self, node: Node) -> bool:
        """Whether its fleet would let it go if it were idle."""
        fleet = self.fleets.get(node.fleet)
        if node.new or not fleet or self.spare.get(node.fleet, 0) <= 0 or ready_reason(node):
            return False
        return not fleet.prevent_destroy and fleet.idle_duration.seconds is not None

    def _movable(self, holder: str) -> bool:
        task, _, rank = holder.removeprefix("rank/").rpartition("-")
        want = self.wants.get(task)
        # `train-0 (given up)` and `train-0 (orphan)` are no ranks of ours: nobody moves them.
        if want is None or not rank.isdecimal() or int(rank) >= want.spec.nodes:
            return False
        mounted = bool(want.mounts and want.mounts[int(rank)])
        return not (mounted or want.spec.whole_nodes or want.spec.instances or want.spec.spread)

    def free(self, node: int) -> Suggestion | None:
        """The moves that empty a node, the largest ranks first; None if there is no place for one of them."""
        here = self.nodes[node]
        assert here.price is not None
        if node in self.touched or self.spare[here.fleet] <= 0:
            return None  # one who was moved here is not moved on
        sizes: dict[str, int] = {}
        for holder in here.held.values():
            sizes[holder] = sizes.get(holder, 0) + 1
        self.targets.remove(self.kind_of[node], self.idle[node], node)
        taken: list[tuple[int, int, int, int]] = []
        moves: list[tuple[str, str, str]] = []
        for holder in sorted(sizes, key=lambda h: (-sizes[h], natural(h), h)):
            target_blocks = self.targets.best(self._fit(holder, here))
            if target_blocks is None:
                break
            kind, idle, target, need = target_blocks
            self.targets.remove(kind, idle, target)
            self.targets.add(kind, idle - need, target)
            taken.append(target_blocks)
            moves.append((holder, here.name, self.nodes[target].name))
        if len(moves) < len(sizes):
            for kind, idle, target, need in reversed(taken):
                self.targets.remove(kind, idle - need, target)
                self.targets.add(kind, idle, target)
            self.targets.add(self.kind_of[node], self.idle[node], node)
            return None
        for _, _, target, need in taken:
            self.idle[target] -= need
            self.touched.add(target)
        self.spare[here.fleet] -= 1
        return Suggestion(node=here.name, moves=tuple(moves), saves=round(here.price, 6))

    def _fit(self, holder: str, here: Node) -> Mapping[int, int]:
        """Node type → blocks of the rank. The ranks of a cluster stay where the others are, those of
        a gang on GPUs of one vendor.
        """
        name = holder.removeprefix("rank/").rpartition("-")[0]
        task = self.wants[name].spec
        bound = task.cluster and task.nodes > 1
        level = level_of(task, self.fleets[here.fleet])
        home = _area(NodeType(*of_node(here)), level) if bound else None
        maker = maker_of(here.shape) if one_vendor(task) else None
        if (name, home, maker) not in self._fits:
            fits = self._fits[name, home, maker] = {}
            for i, kind in enumerate(self.kinds):
                near = home in (None, _area(kind, level)) and maker in (None, maker_of(kind.shape))
                if near and self._may(task, kind) and (need := blocks_wanted(task, kind)):
                    fits[i] = need
        return self._fits[name, home, maker]

    def _may(self, task: Task, kind: NodeType) -> bool:
        """Whether a task may use a kind of node at all."""
        fleet = self.fleets.get(kind.fleet)
        return fleet is not None and not fleet_reason(task, fleet) and not place_reason(task, kind)


def _area(kind: NodeType, level: str) -> tuple[str | None, ...]:
    """What tells apart where ranks of a cluster lie."""
    return (kind.fleet, kind.backend, kind.region, kind.at(level))
