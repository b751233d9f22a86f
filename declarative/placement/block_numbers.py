"""From counts to names: which block indices each rank gets, and what the nodes to launch are called."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import field
from itertools import pairwise

from declarative.model.record import struct
from declarative.model.state import natural, rank_name
from declarative.model.status import NodeState, Readiness
from declarative.placement.assignment import Assignment, NewNode
from declarative.placement.catalog import Catalog, Job
from declarative.placement.problem import Choice, Node


@struct(slots=True)
class BlockAssignment:
    """Every node with all that is held on it, and the choices."""

    nodes: dict[int, Node]
    """By number: those that are there, and those to launch."""
    held: dict[int, dict[int, str]]
    choices: list[Choice]
    zones: dict[str, str] = field(default_factory=dict)

    @property
    def launches(self) -> tuple[Node, ...]:
        """The nodes to launch, by name."""
        return tuple(sorted((n for n in self.nodes.values() if n.new), key=lambda n: natural(n.name)))


def finish(assignment: Assignment) -> BlockAssignment:
    """Give names to the launches and blocks to the ranks."""
    catalog = assignment.catalog
    names = _names(catalog, assignment.launches)
    nodes = dict(enumerate(catalog.nodes))
    nodes |= {x.node: _new_node(catalog, x, names[x.node]) for x in assignment.launches}
    on_node: dict[int, list[tuple[int, Job, int]]] = {}
    for index, seats in assignment.seats.items():
        job = catalog.jobs[index]
        for rank, node in enumerate(seats):
            need = job.request.fit[assignment.kind_of[node]]
            on_node.setdefault(node, []).append((need, job, rank))
    out = BlockAssignment(nodes=nodes, held={}, choices=[])
    for node, here in sorted(on_node.items()):
        _divide(out, assignment, (node, nodes[node]), here)
    order = {str(job.task.name): job.index for job in catalog.jobs}
    out.choices.sort(key=lambda c: (order[c.task], c.rank))
    return out


def _divide(
    out: BlockAssignment, assignment: Assignment, at: tuple[int, Node], seats: list[tuple[int, Job, int]]
) -> None:
    """The blocks of one node: those that have theirs already first, then the large, then by name."""
    index, node = at
    held = dict(node.held)
    if len(seats) > 1:
        seats.sort(key=lambda s: (s[1].index, s[2]))
    prior = _kept_blocks(node, seats)
    if len(seats) > 1:
        seats.sort(key=lambda s: ((s[1].index, s[2]) not in prior, -s[0], s[1].index, s[2]))
    idle = gaps(itertools.chain(held, *prior.values()), node.total)
    for need, job, rank in seats:
        name = str(job.task.name)
        blocks = prior.get((job.index, rank)) or stretch(idle, need, node.total)
        assert len(blocks) == need, f"{name}-{rank}: obtained is not requested"
        number = job.ask.number(rank)
        held.update(dict.fromkeys(blocks, f"rank/{rank_name(name, number)}"))
        volumes = assignment.volumes.get((job.index, rank), {})
        out.choices.append(Choice(task=name, rank=number, node=node.name, blocks=blocks, volumes=volumes))
        if node.zone:
            known = assignment.catalog.volumes
            fresh = (v for v in volumes.values() if known[v].fresh and not known[v].zone)
            out.zones.update(dict.fromkeys(fresh, node.zone))
    out.held[index] = held


def _kept_blocks(node: Node, seats: list[tuple[int, Job, int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Job and rank → the blocks of the node that the rank has already, and keeps."""
    kept: dict[tuple[int, int], tuple[int, ...]] = {}
    spoken_for = set(node.held)
    for need, job, rank in seats:
        name, blocks = job.ask.prior.get(rank, ("", ()))
        if name != node.name or len(blocks) != need:
            continue
        # A node may have been split anew since, and has other blocks then.
        if spoken_for.isdisjoint(blocks) and max(blocks) < node.total:
            kept[job.index, rank] = blocks
            spoken_for.update(blocks)
    return kept


def gaps(held: Iterable[int], total: int) -> list[tuple[int, int]]:
    """The stretches of idle blocks: how long each is, and where it begins."""
    ends = [-1, *sorted(block for block in held if block < total), total]
    return [(b - a - 1, a + 1) for a, b in pairwise(ends) if b - a > 1]


def stretch(idle: list[tuple[int, int]], number: int, total: int) -> tuple[int, ...]:
    """Which idle blocks to take, from the shortest stretch that holds them all; they are idle no more.

    So long ones stay whole; scattered ones are taken only where there is no such stretch. Where their number
    divides that of the node's, they begin at a multiple of it if they can: half a node is one of its halves
    then, which mostly share a processor's memory and the links between GPUs.
    """
    if total % number == 0 and (aligned := _aligned(idle, number)):
        return aligned
    fitting = min((gap for gap in idle if gap[0] >= number), default=None)
    taken: list[int] = []
    for gap in [fitting] if fitting else sorted(idle, key=lambda gap: gap[1]):
        size, first = gap
        count = min(size, number - len(taken))
        taken.extend(range(first, first + count))
        idle.remove(gap)
        if size > count:
            idle.append((size - count, first + count))
        if len(taken) == number:
            break
    return tuple(taken)


def _aligned(idle: list[tuple[int, int]], number: int) -> tuple[int, ...] | None:
    """Take idle blocks that begin at a multiple of their number, from the shortest stretch that has them."""
    starts = ((size, first, -(-first // number) * number) for size, first in idle)
    tightest = min((start for start in starts if start[2] + number <= start[0] + start[1]), default=None)
    if tightest is None:
        return None
    size, first, at = tightest
    idle.remove((size, first))
    rest = ((at - first, first), (first + size - at - number, at + number))
    idle += [gap for gap in rest if gap[0]]
    return tuple(range(at, at + number))


def _names(catalog: Catalog, launches: list[NewNode]) -> dict[int, str]:
    """Pinned names as they are; then those of nodes that are replaced; then the lowest free numbers."""
    taken = {node.name for node in catalog.nodes}.union(*(rule.taken for rule in catalog.fleets.values()))
    taken |= {x.name for x in launches if x.name}
    free = {fleet: rule.names(taken) for fleet, rule in catalog.fleets.items()}
    out: dict[int, str] = {}
    for launch in launches:
        name = launch.option.offer.name or launch.name or next(free[launch.option.fleet])
        taken.add(name)
        out[launch.node] = name
    return out


def _new_node(catalog: Catalog, launch: NewNode, name: str) -> Node:
    """The node that an offer gives a fleet: split as the fleet says, ready once it runs."""
    kind, offer = catalog.kinds[launch.option.kind], launch.option.offer
    return Node(
        name=name,
        fleet=kind.fleet,
        backend=kind.backend,
        region=kind.region,
        zone=kind.zone,
        instance_type=kind.instance_type,
        shape=kind.shape,
        total=kind.total,
        price=kind.price,
        most=kind.most,
        spot=kind.spot,
        readiness=Readiness(state=NodeState.READY, reason="to be launched", can=kind.can),
        new=True,
        offer=offer,
        topology=kind.topology,
    )
