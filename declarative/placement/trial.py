"""One task tried in one domain, on a working copy that is kept or thrown away as a whole."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from declarative.blocks import split
from declarative.placement.filters import (
    Spot,
    block_rejection,
    blocks_wanted,
    fleet_rejection,
    of_node,
    of_offer,
    pick_volumes,
    place_rejection,
    ready_rejection,
    shape_rejection,
)
from declarative.placement.types import Ask, Choice, FleetRule, Node, Rejection, VolumeAt
from declarative.resource import Offer
from declarative.spec import CreationPolicy
from declarative.spec.fleet import Placement
from declarative.state import NodeState, Readiness, natural, rank_name


@dataclass(frozen=True, slots=True)
class Domain:
    """Where the ranks of one trial may lie; None means anywhere."""

    fleet: str | None
    backend: str | None
    region: str | None

    def holds(self, fleet: str, backend: str, region: str) -> bool:
        """Whether a place lies in it."""
        return self.fleet is None or (fleet, backend, region) == (self.fleet, self.backend, self.region)


class World:
    """The working copy: nodes with their busy blocks, what the fleets may still launch, volumes held."""

    def __init__(
        self,
        nodes: list[Node],
        fleets: dict[str, FleetRule],
        volumes: Mapping[str, VolumeAt],
        claims: dict[str, str],
    ) -> None:
        self.nodes = nodes
        self.fleets = fleets
        self.volumes = volumes
        self.claims = claims
        # What follows is derived from the above and kept beside it: a fleet may have very many nodes.
        self._names = {n.name for n in nodes}.union(*(rule.taken for rule in fleets.values()))
        self._free: dict[str, int] = {}
        self._used = Counter(map(_kind, nodes))
        self._lies: dict[str, set[tuple[str, str]]] = {}
        for node in nodes:
            if not node.closed:
                self._lies.setdefault(node.fleet, set()).add((node.backend, node.region))

    def copy(self) -> World:
        """A copy to try something on; the values in it are immutable and shared."""
        twin = World([], {}, self.volumes, dict(self.claims))
        twin.nodes, twin.fleets = list(self.nodes), dict(self.fleets)
        twin._names, twin._free = set(self._names), dict(self._free)
        twin._used = self._used.copy()
        twin._lies = {fleet: set(places) for fleet, places in self._lies.items()}
        return twin

    def become(self, other: World) -> None:
        """Take over what was tried on a copy."""
        self.nodes, self.fleets, self.claims = other.nodes, other.fleets, other.claims
        self._names, self._free = other._names, other._free
        self._used, self._lies = other._used, other._lies

    def astray(self, rule: FleetRule, offer: Offer) -> str | None:
        """Where a cluster fleet's nodes lie, if the offer lies elsewhere: they share one network."""
        if rule.fleet.placement is not Placement.CLUSTER:
            return None
        own = self._lies.get(str(rule.fleet.name), set())
        return next(("/".join(p) for p in sorted(own) if p != (offer.backend, offer.region)), None)

    def can_launch(self, offer: Offer) -> bool:
        """Whether the offer's own quantity limit has room."""
        if offer.limit is None:
            return True
        return self._used[_kind(offer)] < offer.limit

    def free_name(self, rule: FleetRule, among: tuple[str, ...] = ()) -> str:
        """The name of the fleet's next node: one that is being replaced, else the lowest free number."""
        taken = self._names
        for name in rule.free_names:
            if name not in taken and (not among or name in among):
                return name
        for name in sorted(among, key=natural):
            if (
                name not in taken
                and name.rpartition("-")[0] == rule.fleet.name
                and name.rpartition("-")[2].isdecimal()
            ):
                return name
        index = self._free.get(str(rule.fleet.name), 0)
        while f"{rule.fleet.name}-{index}" in taken:
            index += 1
        self._free[str(rule.fleet.name)] = index  # names are taken and never given back
        return f"{rule.fleet.name}-{index}"

    def new_node(self, rule: FleetRule, offer: Offer, name: str) -> Node:
        """The node that `offer` would give the fleet: split as the fleet says, ready once it runs."""
        total = split(offer.shape, rule.fleet.blocks.number)
        return Node(
            name=name,
            fleet=str(rule.fleet.name),
            backend=offer.backend,
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            shape=offer.shape,
            total=total or 1,
            price=offer.price,
            spot=offer.spot,
            readiness=Readiness(state=NodeState.READY, reason="to be launched"),
            new=True,
            offer=offer,
        )

    def add(self, node: Node) -> None:
        """Launch `node`: it counts against its fleet from now on."""
        rule = self.fleets[node.fleet]
        self.nodes.append(node)
        self._names.add(node.name)
        self._used[_kind(node)] += 1
        self._lies.setdefault(node.fleet, set()).add((node.backend, node.region))
        self.fleets[node.fleet] = replace(
            rule, existing=rule.existing + 1, baseline=max(0, rule.baseline - 1)
        )


def _kind(thing: Node | Offer) -> tuple[str, str, str, bool]:
    """What an offer's quantity limit counts."""
    return (thing.backend, thing.region, thing.instance_type, thing.spot)


class Trial:
    """One task in one domain. `choices` is complete or None; nothing is kept before `commit`."""

    def __init__(self, world: World, ask: Ask, domain: Domain) -> None:
        self.world = world
        self.work = world.copy()
        self.ask = ask
        self.task = ask.want.spec
        self.domain = domain
        self.choices: dict[int, Choice] | None = None
        self.partial: dict[int, Choice] = {}
        self.failed: int | None = None
        self.launched: list[tuple[Node, bool]] = []
        self._static: dict[str, Rejection | None] = {}
        self._heap: list[tuple[tuple[object, ...], int]] | None = None
        self._index = {node.name: i for i, node in enumerate(self.work.nodes)} if ask.prior else {}

    def run(self) -> bool:
        """Place every rank; on the first that does not fit the whole task fails, and `failed` names it."""
        for rank in self._rank_order():
            choice = self._reuse(rank) or self._launch(rank)
            if choice is None:
                self.failed = rank
                return False
            self.partial[rank] = choice
        self.choices = self.partial
        return True

    def commit(self) -> None:
        """Make the trial's world the world."""
        self.world.become(self.work)

    def cost_key(self) -> tuple[object, ...]:
        """Least cost of launches, then fewest launches, then fewest idle blocks left beside, then name."""
        extra = [node for node, baseline in self.launched if not baseline]
        cost = sum(math.inf if n.price is None else n.price for n in extra)
        used = {c.node for c in self.partial.values()}
        beside = sum(n.total - len(n.held) for n in self.work.nodes if n.name in used)
        moved = sum(
            1 for r, c in self.partial.items() if r in self.ask.prior and self.ask.prior[r][0] != c.node
        )
        domain = (self.domain.fleet or "", self.domain.backend or "", self.domain.region or "")
        return (moved, cost, len(extra), len(self.launched), beside, domain)

    # Turning down

    def node_rejection(self, node: Node) -> Rejection | None:
        """Every filter that does not depend on the rank or on what this trial has placed so far."""
        if node.name not in self._static:
            self._static[node.name] = self._node_rejection(node)
        return self._static[node.name]

    def _node_rejection(self, node: Node) -> Rejection | None:
        rule = self.work.fleets.get(node.fleet)
        target = f"node/{node.name}"
        if rule is None:
            return Rejection(
                target=target, code="fleet", detail=f"fleet/{node.fleet} is not declared any more"
            )
        off = fleet_rejection(self.task, rule.fleet)
        if off:
            return replace(off, target=target, detail=f"fleet/{node.fleet}: {off.detail}")
        if self.task.instances and node.name not in self.task.instances:
            return Rejection(
                target=target, code="instance", detail=f"the task asks for {', '.join(self.task.instances)}"
            )
        spot = of_node(node)
        return place_rejection(self.task, spot) or ready_rejection(node) or shape_rejection(self.task, spot)

    def offer_rejection(self, rule: FleetRule, offer: Offer) -> Rejection | None:
        """The same for an offer of a fleet, and whether the fleet may launch it at all."""
        spot = of_offer(offer, rule.fleet, split(offer.shape, rule.fleet.blocks.number) or 1)
        off = fleet_rejection(self.task, rule.fleet)
        if off:
            return replace(off, target=spot.target)
        off = place_rejection(self.task, spot) or shape_rejection(self.task, spot)
        if off:
            return off
        where = self.work.astray(rule, offer)
        if where:
            detail = f"fleet/{rule.fleet.name} has its nodes in {where}, and a cluster stays together"
            return Rejection(target=spot.target, code="region", detail=detail)
        most = rule.fleet.nodes.max if rule.fleet.nodes else 0
        if most is not None and rule.existing >= most:
            detail = f"fleet/{rule.fleet.name} is at its maximum of {most} nodes"
            return Rejection(target=spot.target, code="fleet-max", detail=detail, short={"nodes": 1})
        if self.task.creation_policy is CreationPolicy.REUSE and rule.baseline <= 0:
            return Rejection(
                target=spot.target, code="reuse-only", detail="`creation_policy: reuse` launches nothing"
            )
        if not self.work.can_launch(offer):
            return Rejection(
                target=spot.target, code="limit", detail=f"its limit of {offer.limit} is reached"
            )
        if self.task.instances and self.work.free_name(rule, self.task.instances) not in self.task.instances:
            return Rejection(
                target=spot.target,
                code="instance",
                detail=f"the task asks for {', '.join(self.task.instances)}",
            )
        return None

    # Choosing

    def _rank_order(self) -> list[int]:
        """Ranks that can stay where they are first, then the ones with the fewest nodes to go to."""
        ranks = range(self.task.nodes)
        if not self.ask.prior and not any(self.ask.want.mounts):
            return list(ranks)
        there = {n.name for n in self.work.nodes if self._fits_domain(n) and not self.node_rejection(n)}
        stays = {r for r, (name, _) in self.ask.prior.items() if name in there}
        if not any(self.ask.want.mounts):
            return sorted(ranks, key=lambda r: (r not in stays, r))
        nodes = [n for n in self.work.nodes if n.name in there]
        # Nodes in one place are alike to a volume: each place is asked about once.
        places = Counter((n.backend, n.region, n.zone) for n in nodes)
        spots = {(n.backend, n.region, n.zone): of_node(n) for n in nodes}
        room = {
            r: sum(
                count
                for place, count in places.items()
                if not isinstance(self._volumes(r, spots[place]), Rejection)
            )
            for r in ranks
        }
        return sorted(ranks, key=lambda r: (r not in stays, room[r], r))

    def _fits_domain(self, node: Node) -> bool:
        return self.domain.holds(node.fleet, node.backend, node.region)

    def _volumes(self, rank: int, spot: Spot) -> dict[str, str] | Rejection:
        mounts = self.ask.want.mounts[rank] if self.ask.want.mounts else ()
        holder = f"rank/{rank_name(str(self.task.name), rank)}"
        return pick_volumes(mounts, spot, self.work.volumes, self.work.claims, holder)

    def rank_rejection(self, rank: int, node: Node) -> Rejection | None:
        """Why this rank cannot go to this node now; None if it can."""
        spot = of_node(node)
        off = self.node_rejection(node)
        if off:
            return off
        picked = self._volumes(rank, spot)
        if isinstance(picked, Rejection):
            return picked
        return block_rejection(self.task, spot, node.held)

    def _reuse(self, rank: int) -> Choice | None:
        """The best node that is there: its prior one, else the one that it fills best."""
        prior = self._index.get(self.ask.prior.get(rank, ("", ()))[0])
        if prior is not None:
            node = self.work.nodes[prior]
            if self._fits_domain(node) and not self.rank_rejection(rank, node):
                return self._take(rank, prior)
        if self._heap is None:
            self._heap = [(key, i) for i in range(len(self.work.nodes)) if (key := self._fit(i))]
            heapq.heapify(self._heap)
        passed_over: list[tuple[tuple[object, ...], int]] = []
        found: int | None = None
        while self._heap and found is None:
            key, index = heapq.heappop(self._heap)
            if key != self._fit(index):
                continue  # it has been taken from since; what is left of it was put in anew
            if isinstance(self._volumes(rank, of_node(self.work.nodes[index])), Rejection):
                passed_over.append((key, index))
            else:
                found = index
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        return None if found is None else self._take(rank, found)

    def _fit(self, index: int) -> tuple[object, ...] | None:
        """How well a node would be filled by a rank, the best least; None if it cannot take one."""
        node = self.work.nodes[index]
        if not self._fits_domain(node) or self.node_rejection(node):
            return None
        left = node.total - len(node.held) - blocks_wanted(self.task, of_node(node))
        if left < 0:
            return None
        price = math.inf if node.price is None else node.price
        whole = (price, node.shape.gpus, node.shape.cpu, node.shape.memory_mib)
        return (left, not node.held, *whole, natural(node.name))

    def _launch(self, rank: int) -> Choice | None:
        """The cheapest node that may be launched for it; one that its fleet wants anyway comes first."""
        best: tuple[tuple[object, ...], FleetRule, Offer] | None = None
        for rule in self.work.fleets.values():
            for place, offer in enumerate(rule.offers):
                if not self.domain.holds(str(rule.fleet.name), offer.backend, offer.region):
                    continue
                if self.offer_rejection(rule, offer):
                    continue
                spot = of_offer(offer, rule.fleet, split(offer.shape, rule.fleet.blocks.number) or 1)
                if isinstance(self._volumes(rank, spot), Rejection):
                    continue
                price = math.inf if offer.price is None else offer.price
                part = price * blocks_wanted(self.task, spot) / spot.total
                key: tuple[object, ...] = (rule.baseline <= 0, part, price, str(rule.fleet.name), place)
                if best is None or key < best[0]:
                    best = (key, rule, offer)
        if best is None:
            return None
        _, rule, offer = best
        node = self.work.new_node(rule, offer, self.work.free_name(rule, self.task.instances))
        self.launched.append((node, rule.baseline > 0))
        self.work.add(node)
        return self._take(rank, len(self.work.nodes) - 1)

    def _take(self, rank: int, index: int) -> Choice:
        """Hold the blocks and the volumes in the working copy."""
        node = self.work.nodes[index]
        spot = of_node(node)
        volumes = self._volumes(rank, spot)
        assert not isinstance(volumes, Rejection)
        prior_node, prior_blocks = self.ask.prior.get(rank, ("", ()))
        wanted = blocks_wanted(self.task, spot)
        blocks = stretch(node, wanted, prior_blocks if prior_node == node.name else ())
        holder = f"rank/{rank_name(str(self.task.name), rank)}"
        self.work.nodes[index] = replace(node, held={**node.held, **dict.fromkeys(blocks, holder)})
        key = self._fit(index)
        if key and self._heap is not None:
            heapq.heappush(self._heap, (key, index))
        self.work.claims.update(dict.fromkeys(volumes.values(), holder))
        return Choice(task=str(self.task.name), rank=rank, node=node.name, blocks=blocks, volumes=volumes)


def stretch(node: Node, wanted: int, prior: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Which idle blocks to take: the prior ones, else the shortest idle stretch that holds them all.

    So long ones stay whole; scattered ones are taken only where there is no such stretch.
    """
    idle = [b for b in range(node.total) if b not in node.held]
    if len(prior) == wanted and all(b in idle for b in prior):
        return prior
    runs: list[list[int]] = []
    for block in idle:
        if runs and runs[-1][-1] == block - 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    fitting = sorted((len(run), run[0]) for run in runs if len(run) >= wanted)
    if fitting:
        first = fitting[0][1]
        return tuple(range(first, first + wanted))
    return tuple(idle[:wanted])
