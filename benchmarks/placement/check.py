"""Whether a plan keeps every rule of docs/architecture.md, found out without the planner.

It takes what `place` was given and what it answered, and shares no code with it: of `declarative` it imports
the value types alone, and it counts blocks, shares, volumes and limits by itself. It says nothing about how
good a plan is. It needs the standard library only, so that tests may use it too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from declarative.model.blocks import Shape
from declarative.model.resource import Offer
from declarative.model.spec import Fleet, Task
from declarative.model.spec.values import Count, Gpu, Memory, Resources
from declarative.placement.problem import Ask, Choice, FleetRule, Node, PlacementOutcome, VolumeAt

Kind = tuple[str, str, str, bool]
"""What an offer's limit counts: backend, region, instance type, spot; zones are not told apart."""


def violations(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    outcome: PlacementOutcome,
) -> list[str]:
    """Everything that is wrong with `outcome`, one sentence each; empty when nothing is."""
    case = _Case(asks, nodes, fleets, volumes, outcome)
    return [*_all_or_none(case), *_ranks(case), *_blocks(case), *_launches(case), *_fleets(case)]


@dataclass
class _Case:
    """The input and the answer, with the indices that all rules need."""

    asks: Sequence[Ask]
    nodes: Sequence[Node]
    fleets: Mapping[str, FleetRule]
    volumes: Mapping[str, VolumeAt]
    outcome: PlacementOutcome
    here: dict[str, Node] = field(init=False)
    new: dict[str, Node] = field(init=False)
    tasks: dict[str, Ask] = field(init=False)
    placed: dict[str, list[Choice]] = field(init=False)
    _fewest: dict[tuple[int, Shape, int], int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.here = {n.name: n for n in self.nodes}
        self.new = {n.name: n for n in self.outcome.launches}
        self.tasks = {str(a.want.spec.name): a for a in self.asks}
        self.placed = defaultdict(list)
        for choice in self.outcome.choices:
            self.placed[choice.task].append(choice)

    def node(self, name: str) -> Node | None:
        """The node that is there or is launched."""
        return self.here.get(name) or self.new.get(name)

    def fewest(self, want: Resources, node: Node) -> int | None:
        """The fewest blocks of the node whose share does; asked very often of equal objects."""
        key = (id(want), node.shape, node.total)
        if key not in self._fewest:
            counts = range(1, node.total + 1)
            self._fewest[key] = next(
                (b for b in counts if _share_does(want, node.shape, node.total, b)), None
            )
        return self._fewest[key]


# ------------------------------------------------------------------------------------- all ranks or none


def _all_or_none(case: _Case) -> Iterator[str]:
    """Each task has all its ranks placed once, or none and one refusal."""
    refused: dict[str, int] = defaultdict(int)
    for refusal in case.outcome.refusals:
        refused[refusal.task] += 1
    if len(case.tasks) != len(case.asks):
        yield "two tasks have one name"
    for name in sorted((refused.keys() | case.placed.keys()) - case.tasks.keys()):
        yield f"task/{name}: nobody asked for it"
    for name, ask in case.tasks.items():
        ranks = sorted(c.rank for c in case.placed.get(name, ()))
        if refused[name] > 1:
            yield f"task/{name}: refused {refused[name]} times"
        if refused[name] and ranks:
            yield f"task/{name}: refused, and has ranks {ranks} placed"
        if not refused[name] and ranks != list(range(ask.want.spec.nodes)):
            yield f"task/{name}: ranks {ranks} of {ask.want.spec.nodes} placed, and not refused"


# ------------------------------------------------------------------------------------------ rank by rank


def _ranks(case: _Case) -> Iterator[str]:
    """Where each rank goes: the filters, the size of its share, its volumes, and its siblings."""
    for name, choices in case.placed.items():
        ask = case.tasks.get(name)
        if ask is None:
            continue
        homes: set[tuple[str, ...]] = set()
        apart: list[tuple[str, ...]] = []
        task = ask.want.spec
        shapes: list[Shape] = []
        for choice in choices:
            where = f"rank/{name}-{choice.rank} on node/{choice.node}"
            node = case.node(choice.node)
            if node is None:
                yield f"{where}: there is no such node"
                continue
            same = case.fleets[node.fleet].fleet.same if node.fleet in case.fleets else None
            zoned = task.nodes > 1 and (task.same or same) != "region"
            homes.add((node.fleet, node.backend, node.region, (node.zone or "") if zoned else ""))
            place = (node.backend, node.region, node.zone or "")
            apart.append({"node": (node.name,), "region": place[:2]}.get(task.spread or "", place))
            shapes.append(node.shape)
            for fault in (*_filters(case, ask.want.spec, node), *_share(case, ask.want.spec, node, choice)):
                yield f"{where}: {fault}"
            for fault in _mounts(case, ask, node, choice):
                yield f"{where}: {fault}"
        if ask.want.spec.cluster and len(homes) > 1:
            yield f"task/{name}: a cluster in several places: {sorted(homes)}"
        if task.spread and len(set(apart)) < len(apart):
            yield f"task/{name}: `spread: {task.spread}`, and ranks lie together: {sorted(apart)}"
        makers = {_maker(s.gpu_name, s.gpu_vendor) for s in shapes if s.gpus}
        if len(makers) > 1 and not _may_mix(case, ask.want.spec):
            yield f"task/{name}: GPUs of several vendors: {sorted(makers)}"
    yield from _volume_holders(case)


MAKERS = {"nvidia": ("H100", "A100", "V100", "P100", "T4", "A10"), "amd": ("MI300X", "MI250")}


def _maker(model: str | None, vendor: str | None = None) -> str:
    """The vendor of a model, or where nobody knows it the model: two of those are not alike."""
    known = {name: maker for maker, names in MAKERS.items() for name in names}
    return vendor or known.get((model or "").upper()) or (model or "unknown").lower()


def _may_mix(case: _Case, task: Task) -> bool:
    """Whether a gang asks for no GPUs, names models of several vendors, or pins nodes of several."""
    gpu = task.resources.gpu
    if gpu is None or gpu.count.max == 0 or len({_maker(name) for name in gpu.names}) > 1:
        return True
    pinned = [case.here[name].shape for name in task.instances if name in case.here]
    return len({_maker(s.gpu_name, s.gpu_vendor) for s in pinned if s.gpus}) > 1


def _filters(case: _Case, task: Task, node: Node) -> Iterator[str]:
    """Readiness, fleet, pins, backend, region, spot and price."""
    if node.name in case.here and (node.readiness.state.value != "ready" or node.closed):
        yield f"it takes no work: {node.closed or node.readiness.state.value}"
    rule = case.fleets.get(node.fleet)
    if rule is None:
        yield f"fleet/{node.fleet} is not declared"
    elif task.cluster and rule.fleet.placement.value != "cluster":
        yield f"a cluster task in fleet/{node.fleet}, which is none"
    for field_name, allowed, found in (
        ("fleets", task.fleets, node.fleet),
        ("instances", task.instances, node.name),
        ("backends", task.backends, node.backend),
        ("regions", task.regions, node.region),
    ):
        if allowed and found not in allowed:
            yield f"`{field_name}` allows {', '.join(allowed)}, not {found}"
    policy = task.spot_policy.value if task.spot_policy else "auto"
    if policy == ("on-demand" if node.spot else "spot"):
        yield f"`spot_policy: {policy}`"
    if task.max_price is not None and (node.price is None or node.price > task.max_price):
        yield f"`max_price: {task.max_price:g}`, and it costs {node.price} USD/h"


def _share(case: _Case, task: Task, node: Node, choice: Choice) -> Iterator[str]:
    """The fewest blocks whose share does, or the whole of an idle node."""
    if task.whole_nodes:
        if sorted(choice.blocks) != list(range(node.total)):
            yield f"exclusive, and has blocks {choice.blocks} of {node.total}"
        if node.name in case.here and node.held:
            yield "exclusive, and the node is not idle"
        if not _does(task.resources, node.shape, node.shape.cpu, node.shape.memory_mib, node.shape.gpus):
            yield "the whole node does not satisfy its `resources`"
        return
    wanted = case.fewest(task.resources, node)
    if wanted is None:
        yield "no share of the node satisfies its `resources`"
    elif len(choice.blocks) != wanted:
        yield f"has {len(choice.blocks)} blocks, and {wanted} are the fewest that do"


def _share_does(want: Resources, shape: Shape, total: int, blocks: int) -> bool:
    """A share of b blocks of N has `// N * b` of each, and the whole disk (rule 2 of "Blocks")."""
    cpu, memory, gpus = (each // total * blocks for each in (shape.cpu, shape.memory_mib, shape.gpus))
    return _does(want, shape, cpu, memory, gpus)


def _does(want: Resources, shape: Shape, cpu: int, memory_mib: int, gpus: int) -> bool:
    return (
        _within(want.cpu, cpu)
        and _within(want.memory, memory_mib)
        and (shape.disk_mib is None or _within(want.disk, shape.disk_mib))
        and (want.gpu is None or _gpus_do(want.gpu, shape, gpus))
    )


def _within(limits: Count | Memory | None, had: int) -> bool:
    return limits is None or (limits.min <= had and (limits.max is None or had <= limits.max))


def _gpus_do(want: Gpu, shape: Shape, gpus: int) -> bool:
    """Their number; and where there are any, their model and memory, which unknown ones never satisfy."""
    if not _within(want.count, gpus):
        return False
    models = [name.lower() for name in want.names]
    if gpus and models and (shape.gpu_name or "").lower() not in models:
        return False
    return not gpus or _within(want.memory, shape.gpu_memory_mib or 0)


def _mounts(case: _Case, ask: Ask, node: Node, choice: Choice) -> Iterator[str]:
    """Each mount has one of its alternatives, which is there and in the node's place."""
    mounts = ask.want.mounts[choice.rank] if ask.want.mounts else ()
    if sorted(choice.volumes) != sorted(m.path for m in mounts):
        yield f"has mounts {sorted(choice.volumes)}, and declares {sorted(m.path for m in mounts)}"
        return
    rank = f"rank/{choice.task}-{choice.rank}"
    for mount in mounts:
        name = choice.volumes[mount.path]
        volume = case.volumes.get(name)
        if name not in mount.names:
            yield f"volume/{name} is no alternative for {mount.path}"
        elif volume is None:
            yield f"volume/{name} does not exist"
        elif (volume.backend, volume.region) != (node.backend, node.region):
            yield f"volume/{name} is in {volume.backend}/{volume.region}"
        elif volume.zone and node.zone and volume.zone != node.zone:
            yield f"volume/{name} is in zone {volume.zone}, the node in {node.zone}"
        elif volume.holder not in {None, rank}:
            yield f"volume/{name} is held by {volume.holder}"
        elif volume.fresh and not volume.zone and case.outcome.zones.get(name) != node.zone:
            yield f"volume/{name} is to be made in {case.outcome.zones.get(name)}, the node is in {node.zone}"


def _volume_holders(case: _Case) -> Iterator[str]:
    """A volume is at one mount of one rank."""
    holders: dict[str, list[str]] = defaultdict(list)
    for choice in case.outcome.choices:
        for path, name in choice.volumes.items():
            holders[name].append(f"rank/{choice.task}-{choice.rank}:{path}")
    for name, mounts in holders.items():
        if len(mounts) > 1:
            yield f"volume/{name} is given away {len(mounts)} times: {', '.join(sorted(mounts))}"


# ------------------------------------------------------------------------------------------------ blocks


def _blocks(case: _Case) -> Iterator[str]:
    """Blocks lie on the node, were idle, and go to one rank each."""
    taken: dict[tuple[str, int], str] = {}
    for choice in case.outcome.choices:
        rank = f"rank/{choice.task}-{choice.rank}"
        node = case.node(choice.node)
        if node is None:
            continue  # said already
        if not choice.blocks:
            yield f"{rank}: has no blocks"
        if len(set(choice.blocks)) != len(choice.blocks):
            yield f"{rank}: has a block twice: {choice.blocks}"
        held = node.held if node.name in case.here else {}
        for block in choice.blocks:
            where = f"block {block} of node/{node.name}"
            if not 0 <= block < node.total:
                yield f"{rank}: {where}, which has {node.total}"
            if block in held:
                yield f"{rank}: {where}, which is held by {held[block]}"
            if taken.setdefault((node.name, block), rank) != rank:
                yield f"{rank}: {where}, which goes to {taken[node.name, block]} too"
    yield from _shown(case, taken)


def _shown(case: _Case, taken: Mapping[tuple[str, int], str]) -> Iterator[str]:
    """A new node may show its holders; then they are those who were placed there."""
    for node in case.outcome.launches:
        for block, holder in node.held.items():
            if taken.get((node.name, block)) != holder:
                yield f"node/{node.name}: shows block {block} held by {holder}, who was not placed there"


# ---------------------------------------------------------------------------------------------- launches


def _launches(case: _Case) -> Iterator[str]:
    """New nodes have names of their own, and are what an offer of their fleet gives."""
    if len(case.new) != len(case.outcome.launches):
        yield "two launches have one name"
    for node in case.outcome.launches:
        rule = case.fleets.get(node.fleet)
        if rule is None:
            yield f"node/{node.name}: fleet/{node.fleet} is not declared"
            continue
        prefix, _, number = node.name.rpartition("-")
        if (prefix != node.fleet or not number.isdecimal()) and node.name not in rule.free_names:
            yield f"node/{node.name}: no name for a node of fleet/{node.fleet}"
        if node.name in case.here or any(node.name in r.taken for r in case.fleets.values()):
            yield f"node/{node.name}: its name is taken"
        if node.offer not in rule.offers or not _is_of(node, node.offer):
            yield f"node/{node.name}: no offer of fleet/{node.fleet} gives it"
        if node.total != _split(rule.fleet, node.shape):
            yield f"node/{node.name}: split into {node.total}, and not as fleet/{node.fleet} says"
    yield from _limits(case)


def _is_of(node: Node, offer: Offer | None) -> bool:
    return offer is not None and all(
        getattr(node, name) == getattr(offer, name)
        for name in ("backend", "region", "zone", "instance_type", "shape", "price", "spot")
    )


def _split(fleet: Fleet, shape: Shape) -> int:
    """`auto` is the largest number that divides CPUs and GPUs; a number that does not divide them is none."""
    number = fleet.blocks.number
    if number is None:
        return math.gcd(shape.cpu, shape.gpus)  # which is the CPUs where there are no GPUs
    return number if shape.cpu % number == 0 and shape.gpus % number == 0 else 1


def _limits(case: _Case) -> Iterator[str]:
    """An offer is taken while fewer of its kind exist than its limit says, in some order of the launches."""
    counts: dict[Kind, int] = defaultdict(int)
    for node in case.nodes:
        counts[node.backend, node.region, node.instance_type, node.spot] += 1
    limited: dict[Kind, list[float]] = defaultdict(list)
    for node in case.outcome.launches:
        limit = node.offer.limit if node.offer else None
        kind = (node.backend, node.region, node.instance_type, node.spot)
        limited[kind].append(math.inf if limit is None else limit)
    for kind, limits in limited.items():
        for exist, most in enumerate(sorted(limits), start=counts[kind]):
            if exist >= most:
                yield f"offer {kind}: there would be {exist + 1} of it, and its limit is {most:g}"


# ------------------------------------------------------------------------------------------------ fleets


def _fleets(case: _Case) -> Iterator[str]:
    """Sizes, places, and what was launched without need."""
    short = dict(case.outcome.short_fleets)
    makers = {c.node for c in case.outcome.choices if (a := case.tasks.get(c.task)) and _may_create(a)}
    for name, rule in case.fleets.items():
        own = [n for n in case.outcome.launches if n.fleet == name]
        most: int | None = rule.fleet.nodes.max if rule.fleet.nodes else 0
        if own and most is not None and rule.existing + len(own) > most:
            yield f"fleet/{name}: {rule.existing} + {len(own)} nodes, and its maximum is {most}"
        idle = sum(1 for n in own if n.name not in makers)
        if idle > rule.baseline:
            yield f"fleet/{name}: {idle} launches that no task may ask for, and {rule.baseline} of its own"
        if short.get(name, 0) != max(0, rule.baseline - len(own)):
            yield f"fleet/{name}: {len(own)} of {rule.baseline} launched, and short by {short.get(name, 0)}"
        if rule.fleet.placement.value == "cluster" and own:
            there = [n for n in case.nodes if n.fleet == name and not n.closed]
            places = {(n.backend, n.region) for n in (*there, *own)}
            if len(places) > 1:
                yield f"fleet/{name}: a cluster in several places: {sorted(places)}"


def _may_create(ask: Ask) -> bool:
    return not ask.reuse and ask.want.spec.creation_policy.value != "reuse"
