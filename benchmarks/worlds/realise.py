"""What the model calls the best, as a plan that `check` judges: it is no number that nobody can have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.worlds.exact import Best, Cut, Stock
from benchmarks.worlds.rules import Facts, Space, mounts_of, serves
from benchmarks.worlds.world import Words
from declarative.model.codec import to_data


@dataclass
class _Node:
    """A node, its idle blocks, and the sizes of the ranks that go there."""

    name: str
    space: Space
    new: bool
    idle: list[int]
    sizes: list[int] = field(default_factory=list)


def realised(facts: Facts, best: Best, plan: Words) -> Words:
    """The plan with the places and launches of the best instead of its own; what runs stays where it is."""
    entries = [entry for entry in plan["reservations"] if entry["task"] not in facts.wants]
    actions: list[Words] = []
    spaces: list[Space] = []
    for number, cut in enumerate(best.cuts):
        nodes = list(_nodes(facts, cut, f"new-{number}"))
        _fill(nodes, cut)
        entries += _entries(facts, best, cut, nodes)
        actions += [_create(node) for node in nodes if node.new]
        spaces += [node.space for node in nodes if node.new]
    before = plan["cost"]["hourly_before"]
    known = before is not None and not any(space.unpriced for space in spaces)
    after = before + sum(space.price for space in spaces) if known else None
    refused = [{"task": name} for name in sorted(facts.wants.keys() - best.tasks)]
    cost = {**plan["cost"], "hourly_after": after}
    return {**plan, "actions": actions, "reservations": entries, "cost": cost, "unplaced": refused}


def _nodes(facts: Facts, cut: Cut, prefix: str) -> Iterator[_Node]:
    """The nodes of one class: of those that are there the first by name."""
    made = 0
    for stock, count in cut.nodes.items():
        space = stock.space
        if stock.new:
            for number in range(made, made + count):
                name = space.kind if space.host else f"{prefix}-{number}"
                yield _Node(name, space, new=True, idle=list(range(space.total)))
            made += count
        else:
            for name, idle in _alike(facts, stock)[:count]:
                yield _Node(name, space, new=False, idle=idle)


def _alike(facts: Facts, stock: Stock) -> list[tuple[str, list[int]]]:
    """The nodes that a stock counts, with their idle blocks."""
    found = (here for here in facts.nodes if here.open and here.space == stock.space)
    idle = ((here.name, [b for b in range(here.space.total) if b not in here.busy]) for here in found)
    return sorted((n, blocks) for n, blocks in idle if len(blocks) == stock.idle and stock.name in (None, n))


def _fill(nodes: list[_Node], cut: Cut) -> None:
    """Follow the flow from many idle blocks to few: which sizes go to which node."""
    here: dict[int, list[_Node]] = defaultdict(list)
    for node in nodes:
        here[len(node.idle)].append(node)
    for (start, size), count in sorted(cut.arcs.items(), reverse=True):
        for _ in range(count):
            node = here[start].pop()
            node.sizes.append(size)
            here[start - size].append(node)


def _entries(facts: Facts, best: Best, cut: Cut, nodes: list[_Node]) -> Iterator[Words]:
    """The reservations of the ranks; there may be more room than they need."""
    waiting = {size: list(ranks) for size, ranks in cut.ranks.items()}
    for node in nodes:
        for size in node.sizes:
            if waiting.get(size):
                task, rank = waiting[size].pop()
                blocks, node.idle = node.idle[:size], node.idle[size:]
                volumes = _volumes(facts, best, task, rank, node.space)
                where = {"node": node.name, "blocks": blocks, "volumes": volumes}
                yield {"task": task, "rank": rank, "status": "new", "restart": False, **where}


def _volumes(facts: Facts, best: Best, task: str, rank: int, space: Space) -> Mapping[str, str]:
    """For each mount the volume that the best has for it, else the first one that can be had there."""
    out = {}
    for mount in mounts_of(facts.wants[task], rank):
        near = (name for name in mount.names if serves(facts.volumes[name], space.place))
        out[mount.path] = best.volumes.get((task, rank, mount.path)) or next(near, "")
    return out


def _create(node: _Node) -> Words:
    space = node.space
    after = {
        **space.place._asdict(),
        "fleet": space.fleet,
        "instance_type": space.kind,
        "resources": to_data(space.shape),
        "blocks": space.total,
        "price": None if space.unpriced else space.price,
        "spot": space.spot,
    }
    address = f"node/{node.name}"
    return {"id": f"create:{address}", "op": "create", "address": address, "after": after}
