"""The rules of docs/placement.md as this benchmark reads them.

None of the planner's code is asked. Where the planner reads a rule in another way, its plans are either
turned down by `check` or cheaper than what `exact` calls the least possible; both are printed as faults.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.worlds.world import World
from declarative.model.blocks import Shape
from declarative.model.resource import Desired, Offer, RankMount, TaskWant
from declarative.model.spec import Fleet, SpotPolicy, Task
from declarative.model.spec.values import Count, Gpu, Memory, Resources

UNPRICED = 1_000.0
"""What a node of unknown price counts as, USD an hour: more than any other has."""

Quota = tuple[str, str, str, bool]
"""What the limit of an offer counts: backend, region, instance type, spot."""


class Place(NamedTuple):
    """Where a node or a volume is. Without a zone: anywhere in the region."""

    backend: str
    region: str
    zone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What nodes have in common that are alike: of which fleet, where, what they have, their price."""

    fleet: str
    place: Place
    kind: str
    shape: Shape
    total: int
    price: float
    spot: bool
    host: bool = False
    topology: tuple[tuple[str, str], ...] = ()
    unpriced: bool = False

    def at(self, level: str) -> str | None:
        """Where it stands at a level of topology; None if nobody says. All hosts are one zone, one region."""
        if (declared := dict(self.topology).get(level)) is not None or level not in ("zone", "region"):
            return declared
        return "" if self.host or level == "region" else self.place.zone or ""

    @property
    def quota(self) -> Quota:
        """The limit that counts it."""
        return (self.place.backend, self.place.region, self.kind, self.spot)

    @property
    def maker(self) -> str | None:
        """Who made its GPUs; None if there are none."""
        if not self.shape.gpus:
            return None
        return self.shape.gpu_vendor or maker_of(self.shape.gpu_name)


class Here(NamedTuple):
    """A node that is there. One that is not `open` takes no work, and counts all the same."""

    name: str
    space: Space
    busy: frozenset[int]
    open: bool = True


class Offered(NamedTuple):
    """What a fleet may launch."""

    space: Space
    limit: int | None


class Site(NamedTuple):
    """A fleet: what it may launch, how many nodes more it may have, and how many it launches for itself."""

    fleet: Fleet
    offers: tuple[Offered, ...]
    room: int | None
    least: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A world as the rules see it: the tasks that have no place yet, and where they could go."""

    wants: Mapping[str, TaskWant]
    nodes: tuple[Here, ...]
    sites: Mapping[str, Site]
    volumes: Mapping[str, Place]
    """Those that nobody holds."""

    @functools.cached_property
    def left(self) -> dict[Quota, float]:
        """How many more may be launched of what has a limit: of two limits the lower one holds."""
        used = Counter(here.space.quota for here in self.nodes)
        out: dict[Quota, float] = {}
        for site in self.sites.values():
            for space, limit in site.offers:
                most = math.inf if limit is None else max(0, limit - used[space.quota])
                out[space.quota] = min(most, out.get(space.quota, math.inf))
        return out

    def homes(self, fleet: str) -> set[tuple[str, str]]:
        """The backends and regions where a fleet's nodes are."""
        return {here.space.place[:2] for here in self.nodes if here.space.fleet == fleet}


# ------------------------------------------------------------------------------------- what a world comes to


def facts_of(world: World) -> Facts:
    """The tasks without a place, and where they could go. Tasks that run stay where they are."""
    desired = world.desired
    offers = [offer for group in world.inventory.offers.values() for offer in group]
    busy: dict[str, set[int]] = defaultdict(set)
    for run in world.running:
        busy[run["node"]].update(run["blocks"])
    by_words = {_identity(o): o for o in offers}
    nodes = []
    for node in world.nodes:
        words = node["offer"]
        offer = by_words[
            tuple(words[key] for key in ("backend", "region", "zone", "instance_type", "spot", "host"))
        ]
        space = launched(desired.fleets[node["fleet"]], offer)
        nodes.append(Here(node["name"], space, frozenset(busy[node["name"]])))
    there = Counter(here.space.fleet for here in nodes)
    recorded_hosts = {here.name for here in nodes if here.space.host}
    sites = {}
    for name, fleet in desired.fleets.items():
        mine = [o for o in offers if may_launch(desired, fleet, o)]
        mine = [o for o in mine if o.host is None or o.host.name not in recorded_hosts]
        most = fleet.nodes.max if fleet.nodes else there[name] + len(mine)
        target = fleet.nodes.target if fleet.nodes else there[name] + len(mine)
        sites[name] = Site(
            fleet=fleet,
            offers=tuple(Offered(launched(fleet, o), 1 if o.host else o.limit) for o in mine),
            room=None if most is None else max(0, most - there[name]),
            least=max(0, target - there[name]),
        )
    volumes = {n: Place(v.inputs.backend, v.inputs.region, v.inputs.zone) for n, v in desired.volumes.items()}
    running = {run["task"] for run in world.running}
    return Facts(
        wants={n: w for n, w in desired.tasks.items() if n not in running},
        nodes=tuple(nodes),
        sites=sites,
        volumes=volumes,
    )


def _identity(offer: Offer) -> tuple[object, ...]:
    host = offer.host.name if offer.host else None
    return (offer.backend, offer.region, offer.zone, offer.instance_type, offer.spot, host)


def may_launch(desired: Desired, fleet: Fleet, offer: Offer) -> bool:
    """Whether an offer keeps all limits of a fleet, and can be split as that says."""
    if (offer.host is None) != (fleet.ssh_config is None):
        return False
    if offer.host is not None:
        return offer.host.fleet == fleet.name
    clouds = [name for name, backend in desired.backends.items() if backend.provider != "ssh"]
    spot = {SpotPolicy.ON_DEMAND: not offer.spot, SpotPolicy.SPOT: offer.spot}
    return (
        offer.backend in (fleet.backends or clouds)
        and (not fleet.regions or offer.region in fleet.regions)
        and (not fleet.availability_zones or offer.zone in fleet.availability_zones)
        and (not fleet.instance_types or offer.instance_type in fleet.instance_types)
        and spot.get(fleet.spot_policy, True)
        and (fleet.max_price is None or (offer.price is not None and offer.price <= fleet.max_price))
        and does(fleet.resources, offer.shape, offer.shape)
        and split(offer.shape, fleet.blocks.number) is not None
    )


def launched(fleet: Fleet, offer: Offer) -> Space:
    """The nodes that a fleet gets of an offer. A host is its own zone: its volumes lie there."""
    host = offer.host
    return Space(
        fleet=str(fleet.name),
        place=Place(offer.backend, offer.region, offer.zone),
        kind=offer.instance_type if host is None else host.name,
        shape=offer.shape,
        total=split(offer.shape, ((host.blocks if host else None) or fleet.blocks).number) or 1,
        price=UNPRICED if offer.price is None else offer.price,
        spot=offer.spot,
        host=host is not None,
        topology=host.topology if host else (),
        unpriced=offer.price is None,
    )


def split(shape: Shape, blocks: int | None) -> int | None:
    """Into how many blocks; None if that number does not divide CPUs and GPUs. `auto` is the largest."""
    whole = math.gcd(shape.cpu, shape.gpus)  # of nothing and CPUs it is the CPUs
    return whole if blocks is None else blocks if whole % blocks == 0 else None


# ------------------------------------------------------------------------------------------ what fits where


def need(task: Task, fleet: Fleet, space: Space, name: str | None = None) -> int:
    """The blocks that a rank takes of an idle node; 0 if it may not go there. A launch has no name yet."""
    spot = {SpotPolicy.ON_DEMAND: not space.spot, SpotPolicy.SPOT: space.spot}
    allowed = (
        (not task.fleets or space.fleet in task.fleets)
        and (not task.cluster or fleet.placement.value == "cluster")
        and (not task.instances or name in task.instances)
        and (not task.backends or space.place.backend in task.backends)
        and (not task.regions or space.place.region in task.regions)
        and (task.max_price is None or (not space.unpriced and space.price <= task.max_price))
        and all(space.at(level) is not None for level in levels(task, fleet))
        and (task.spot_policy is None or spot.get(task.spot_policy, True))
    )
    if not allowed:
        return 0
    if task.whole_nodes:
        return space.total if does(task.resources, space.shape, space.shape) else 0
    return fewest(task.resources, space.shape, space.total)


def levels(task: Task, fleet: Fleet) -> list[str]:
    """The levels of topology that a task with several ranks has to know of a node."""
    if task.nodes < 2:
        return []
    shared = [level_of(task, fleet)] if task.cluster else []
    return [*shared, *([task.spread] if task.spread not in (None, "node") else [])]


def level_of(task: Task, fleet: Fleet) -> str:
    """What the ranks of a cluster share."""
    return str(task.same or fleet.same or "zone")


def worth(facts: Facts, want: TaskWant) -> int:
    """The blocks that a task counts with: its ranks times the fewest blocks that one takes anywhere."""
    here = [(node.space, node.name) for node in facts.nodes if node.space.fleet in facts.sites]
    new = [(offer.space, None) for site in facts.sites.values() for offer in site.offers]
    sizes = {need(want.spec, facts.sites[space.fleet].fleet, space, name) for space, name in (*here, *new)}
    return want.spec.nodes * min(sizes - {0}, default=1)


@functools.lru_cache(maxsize=1 << 18)
def fewest(want: Resources, shape: Shape, total: int) -> int:
    """The fewest blocks whose share does; 0 if none does. A share has the floor of each, and the disk."""
    for blocks in range(1, total + 1):
        part = Shape(
            cpu=shape.cpu // total * blocks,
            memory_mib=shape.memory_mib // total * blocks,
            gpus=shape.gpus // total * blocks,
        )
        if does(want, part, shape):
            return blocks
    return 0


def does(want: Resources, part: Shape, whole: Shape) -> bool:
    """Whether a part of a node satisfies a request, upper bounds included."""
    return (
        _within(want.cpu, part.cpu)
        and _within(want.memory, part.memory_mib)
        and (whole.disk_mib is None or _within(want.disk, whole.disk_mib))
        and (want.gpu is None or _gpus_do(want.gpu, part.gpus, whole))
    )


def _within(limits: Count | Memory | None, had: int) -> bool:
    return limits is None or (limits.min <= had and (limits.max is None or had <= limits.max))


def _gpus_do(want: Gpu, count: int, whole: Shape) -> bool:
    if not _within(want.count, count):
        return False
    models = [name.lower() for name in want.names]
    named = not models or (whole.gpu_name or "").lower() in models
    made = want.vendor in (None, whole.gpu_vendor or maker_of(whole.gpu_name))
    return not count or (named and made and _within(want.memory, whole.gpu_memory_mib or 0))


VENDORS = {
    "nvidia": ("T4", "L4", "L40S", "A10", "A10G", "A40", "A6000", "A100", "V100", "H100", "H200", "RTX3090"),
    "amd": ("MI250", "MI300X"),
}


def maker_of(model: str | None) -> str:
    """Who made a model of the worlds; another one is taken for its own maker."""
    return next(
        (vendor for vendor, models in VENDORS.items() if model in models), (model or "unknown").lower()
    )


def one_maker(task: Task) -> bool:
    """Whether the GPUs of all ranks are of one maker: unless models of several are named."""
    gpu = task.resources.gpu
    asked = task.nodes > 1 and gpu is not None and gpu.count.max != 0
    return asked and gpu is not None and len({maker_of(name) for name in gpu.names}) < 2


def reuses(task: Task) -> bool:
    """Whether nothing may be launched for it."""
    return task.creation_policy.value == "reuse"


def serves(volume: Place, place: Place) -> bool:
    """Whether a volume can be attached to a node there."""
    near = volume[:2] == place[:2]
    return near and (volume.zone is None or place.zone is None or volume.zone == place.zone)


def area(task: Task, fleet: Fleet, space: Space) -> tuple[str, ...]:
    """Where the ranks of a cluster lie together: one fleet, backend and region, and what `same` says."""
    level = level_of(task, fleet)
    return (space.fleet, space.place.backend, space.place.region, level, space.at(level) or "")


def apart(task: Task, space: Space, node: str) -> tuple[str, ...]:
    """What each rank of a spread task has for itself."""
    if task.spread == "node":
        return (node,)
    return (space.place.backend, space.place.region, space.at(str(task.spread)) or "")


def mounts_of(want: TaskWant, rank: int) -> Sequence[RankMount]:
    """The mounts of one rank."""
    return want.mounts[rank] if want.mounts else ()
