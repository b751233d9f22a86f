"""P3 and P4: jobs of real sizes on an invented fleet of six regions.

Sizes are drawn from the Philly trace. A job of up to 8 GPUs is one rank; a larger one (cut off at 64) is a
gang of whole nodes with 8. Each (backend, region) is a domain: one cluster fleet, three zones. Invented are
the regions, the zones, the rules and the shares below; PRICES says where each price table comes from.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.placement.problem import READY, Problem
from declarative.model.blocks import Shape
from declarative.model.resource import Offer, RankMount, TaskWant
from declarative.model.spec import Fleet, Name, SpotPolicy, Task
from declarative.model.spec.fleet import NodeCount
from declarative.model.spec.values import Blocks, Count, Gpu, Placement, Resources
from declarative.placement.problem import Ask, FleetRule, Node, VolumeAt

DOMAINS = tuple((backend, region) for backend in ("aa", "bb") for region in ("east", "north", "west"))
ZONES = ("z1", "z2", "z3")
WHOLE = 8
CLUSTERS, TIED, CAPPED, SPOT_JOBS, SPOT_NODES, PART_USED = 0.8, 0.08, 0.1, 0.5, 0.3, 0.5
"""Shares: of gangs that are clusters; of jobs with volumes in one zone, with a price cap, that take spot; of
nodes that are spot, and that run something already.
"""

Domain = tuple[str, str]


@dataclass(frozen=True)
class Kind:
    """An instance type: its GPUs, which are its blocks, and its list price in USD an hour."""

    name: str
    gpus: int
    price: float


PRICES = {
    # As Lambda listed A6000 and A100: a GPU costs the same however many come together.
    "linear": (
        Kind("a6000x1", 1, 0.80),
        Kind("a6000x2", 2, 1.60),
        Kind("a6000x4", 4, 3.20),
        Kind("a100x4", 4, 5.16),
        Kind("a100x8", 8, 10.32),
    ),
    # AWS's g4ad with 1 and 4 cards, which costs more a card the larger it is; 8 is made up.
    "surcharge": (Kind("g1", 1, 0.541), Kind("g4", 4, 3.468), Kind("g8", 8, 7.80)),
    # Made up: the larger the cheaper a GPU. Here packing pays most.
    "discount": tuple(Kind(f"d{n}", n, round(2 * n**0.85, 3)) for n in (1, 2, 4, 8)),
    # Only whole machines on offer.
    "eights": (Kind("n8", WHOLE, 10.32),),
}
MIXES = {"all": "all jobs", "multi": "those over one GPU", "even": "1 to 8 GPUs, evenly (not Philly's)"}


@dataclass(frozen=True)
class Place:
    """What all instances of one kind, place and price have in common. The price is USD an hour."""

    domain: Domain
    zone: str
    kind: Kind
    spot: bool
    price: float


@dataclass(frozen=True)
class Here:
    """A node that is there, and which of its blocks run something."""

    name: str
    place: Place
    busy: tuple[int, ...]


@dataclass(frozen=True)
class Deal:
    """Something to launch. `limit` counts all that exist in its domain, whatever the zone."""

    place: Place
    limit: int | None


@dataclass(frozen=True)
class Tie:
    """So many ranks have a volume there; with zone None, anywhere in the domain."""

    domain: Domain
    zone: str | None
    ranks: int


@dataclass(frozen=True)
class Job:
    """One task: `ranks` of `gpus` GPUs each. All that is equal but the name is placed alike."""

    name: str
    ranks: int
    gpus: int
    cluster: bool
    spot: bool
    cap: float | None
    ties: tuple[Tie, ...]

    @property
    def whole(self) -> bool:
        """Whether each rank takes a whole node."""
        return self.ranks > 1

    def takes(self, place: Place) -> bool:
        """Whether a rank may go there, ties aside. It then takes as many blocks as it asks for GPUs."""
        fits = self.gpus == place.kind.gpus if self.whole else self.gpus <= place.kind.gpus
        return fits and (self.spot or not place.spot) and (self.cap is None or place.price <= self.cap)


@dataclass(frozen=True)
class Scene:
    """A whole case."""

    name: str
    jobs: Sequence[Job]
    heres: Sequence[Here]
    deals: Sequence[Deal]


def scene(count: int, seed: int, mix: str, prices: str, pool: Sequence[int], *, launch: bool) -> Scene:
    """`count` jobs on a fleet with as many idle blocks as they ask for; half of that if more may launch."""
    chance = random.Random(f"{seed} {count} {mix} {prices}")
    kinds = PRICES[prices]
    factor = {domain: 1 + 0.25 * chance.random() for domain in DOMAINS}
    sizes = [g for g in pool if g > 1] if mix == "multi" else pool
    jobs = [
        _job(f"job-{i}", chance.randint(1, 8) if mix == "even" else chance.choice(sizes), kinds, chance)
        for i in range(count)
    ]
    asked = sum(job.ranks * job.gpus for job in jobs)
    heres = _fleet(asked // 2 if launch else asked, kinds, factor, chance)
    deals = _deals(count, kinds, factor, heres, chance) if launch else ()
    return Scene(f"{mix}/{prices}", jobs, heres, deals)


def _job(name: str, gpus: int, kinds: Sequence[Kind], chance: random.Random) -> Job:
    gpus = min(gpus, 64)
    ranks, size = (1, gpus) if gpus <= WHOLE else (math.ceil(gpus / WHOLE), WHOLE)
    ties: tuple[Tie, ...] = ()
    if chance.random() < TIED:
        domain, tied = chance.choice(DOMAINS), chance.randint(1, ranks)
        rest = (Tie(domain, None, ranks - tied),) if ranks > tied else ()
        ties = (Tie(domain, chance.choice(ZONES), tied), *rest)
    cap = None
    if chance.random() < CAPPED:
        # What some node that holds it costs, so that dearer regions or larger nodes fall away.
        kind = chance.choice([k for k in kinds if k.gpus >= size])
        cap = round(kind.price * chance.choice((1, 1.1, 1.2)), 3)
    return Job(name, ranks, size, chance.random() < CLUSTERS, chance.random() < SPOT_JOBS, cap, ties)


def _fleet(
    wanted: int, kinds: Sequence[Kind], factor: dict[Domain, float], chance: random.Random
) -> list[Here]:
    """Nodes of at least 4 GPUs, some part used, until so many blocks are idle."""
    large = [k for k in kinds if k.gpus >= 4]
    count: Counter[Domain] = Counter()
    found: list[Here] = []
    while wanted > 0:
        domain, kind, spot = chance.choice(DOMAINS), chance.choice(large), chance.random() < SPOT_NODES
        used = chance.randint(1, kind.gpus) if chance.random() < PART_USED else 0
        price = round(kind.price * factor[domain] * (0.35 if spot else 1), 5)
        place = Place(domain, chance.choice(ZONES), kind, spot, price)
        busy = tuple(sorted(chance.sample(range(kind.gpus), used)))
        found.append(Here(f"{fleet_of(domain)}-{count[domain]}", place, busy))
        count[domain] += 1
        wanted -= kind.gpus - used
    return found


def _deals(
    jobs: int,
    kinds: Sequence[Kind],
    factor: dict[Domain, float],
    heres: Sequence[Here],
    chance: random.Random,
) -> list[Deal]:
    """Every kind in every zone on demand; and as spot, at a price of the zone's own, up to a limit."""
    exist = Counter((h.place.domain, h.place.kind) for h in heres if h.place.spot)
    found: list[Deal] = []
    for domain in DOMAINS:
        for kind in kinds:
            price = kind.price * factor[domain]
            limit = exist[domain, kind] + max(1, round(jobs * chance.choice((0.002, 0.008, 0.032))))
            for zone in ZONES:
                found.append(Deal(Place(domain, zone, kind, spot=False, price=round(price, 5)), None))
                cheap = round(price * chance.uniform(0.3, 0.6), 5)
                found.append(Deal(Place(domain, zone, kind, spot=True, price=cheap), limit))
    return found


# ---------------------------------------------------------------------------------- in fleetform's values


def fleet_of(domain: Domain) -> str:
    """The name of the domain's fleet."""
    return "-".join(domain)


def shape_of(kind: Kind) -> Shape:
    """8 CPUs and 64 GiB a GPU, so that `blocks: auto` gives a block for each GPU."""
    return Shape(
        cpu=8 * kind.gpus,
        memory_mib=65536 * kind.gpus,
        gpus=kind.gpus,
        gpu_name=kind.name,
        gpu_vendor="nvidia",
    )


def node_of(here: Here) -> Node:
    """The node that is there."""
    place = here.place
    return Node(
        name=here.name,
        fleet=fleet_of(place.domain),
        backend=place.domain[0],
        region=place.domain[1],
        zone=place.zone,
        instance_type=place.kind.name,
        shape=shape_of(place.kind),
        total=place.kind.gpus,
        price=place.price,
        spot=place.spot,
        readiness=READY,
        held={block: f"rank/other-{block}" for block in here.busy},
    )


def offer_of(deal: Deal) -> Offer:
    """The offer."""
    place = deal.place
    return Offer(
        backend=place.domain[0],
        region=place.domain[1],
        zone=place.zone,
        instance_type=place.kind.name,
        shape=shape_of(place.kind),
        price=place.price,
        spot=place.spot,
        limit=deal.limit,
    )


def problem(case: Scene) -> Problem:
    """The case as `place` takes it. Equal requests are one object, as after decoding one document."""
    wants = {n: Resources(gpu=Gpu(Count(n, n))) for n in range(1, WHOLE + 1)}
    volumes: dict[str, VolumeAt] = {}
    asks = []
    for job in case.jobs:
        mounts: list[tuple[RankMount, ...]] = []
        for tie in job.ties:
            for _ in range(tie.ranks):
                name = f"{job.name}-data-{len(mounts)}"
                volumes[name] = VolumeAt(backend=tie.domain[0], region=tie.domain[1], zone=tie.zone)
                mounts.append((RankMount(path="/data", names=(name,), variable="DATA"),))
        task = Task(
            name=Name(job.name),
            nodes=job.ranks,
            placement=Placement.CLUSTER if job.cluster and job.whole else Placement.ANY,
            exclusive=job.whole,
            resources=wants[job.gpus],
            spot_policy=SpotPolicy.AUTO if job.spot else SpotPolicy.ON_DEMAND,
            max_price=job.cap,
            commands=("true",),
        )
        asks.append(Ask(want=TaskWant(spec=task, mounts=tuple(mounts))))
    nodes = [node_of(here) for here in case.heres]
    sizes = Counter(node.fleet for node in nodes)
    fleets = {}
    for domain in DOMAINS:
        name = fleet_of(domain)
        fleet = Fleet(
            name=Name(name),
            nodes=NodeCount(0, 0, None),
            placement=Placement.CLUSTER,
            blocks=Blocks(None),
            backends=(Name(domain[0]),),
            regions=(domain[1],),
            spot_policy=SpotPolicy.AUTO,
        )
        offers = sorted(
            (offer_of(d) for d in case.deals if d.place.domain == domain),
            key=lambda o: (o.price or 0, o.instance_type, o.zone or "", o.spot),
        )
        fleets[name] = FleetRule(fleet=fleet, offers=tuple(offers), existing=sizes[name], baseline=0)
    return Problem(asks, nodes, fleets, volumes)
