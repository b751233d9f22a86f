"""First-fit and best-fit on the jobs of `jobs`, to compare with: what anyone would write first.

Tasks come one after the other. A cluster tries one zone after the other. First-fit takes the first zone,
the first node with room and, when there is none, the cheapest node on offer that holds the rank. Best-fit
takes the zone that costs least, the node that is left fullest, and the offer whose share costs least;
"decreasing" has the gangs and the large ranks first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.placement.jobs import Deal, Domain, Job, Place, Scene, Tie, fleet_of, offer_of
from benchmarks.placement.problem import READY
from declarative.placement.problem import Choice, Node, PlacementOutcome, Refusal

Area = tuple[Sequence[Domain], str | None]
"""Domains, and the one zone of them that counts; None for all."""


@dataclass
class Bin:
    """A node with its idle blocks."""

    place: Place
    name: str
    idle: list[int]
    deal: Deal | None = None

    def room(self, job: Job) -> int | None:
        """How many blocks a rank would leave; None if it does not go there."""
        left = len(self.idle) - job.gpus
        full = job.whole and len(self.idle) != self.place.kind.gpus
        return None if left < 0 or full or not job.takes(self.place) else left


class Packing:
    """The fleet while it is filled."""

    def __init__(self, case: Scene, *, best: bool) -> None:
        self.best = best
        self.bins: dict[Domain, list[Bin]] = defaultdict(list)
        self.deals: dict[Domain, list[Deal]] = defaultdict(list)
        self.count: Counter[tuple[object, ...]] = Counter()
        self.names: Counter[Domain] = Counter()
        for here in case.heres:
            idle = [b for b in range(here.place.kind.gpus) if b not in here.busy]
            self.bins[here.place.domain].append(Bin(here.place, here.name, idle))
            self.count[_limited(here.place)] += 1
            self.names[here.place.domain] += 1
        for deal in case.deals:
            self.deals[deal.place.domain].append(deal)

    def put(self, job: Job) -> list[tuple[Bin, list[int]]] | None:
        """Place all its ranks, or none."""
        everywhere: Area = (sorted(self.bins.keys() | self.deals.keys()), None)
        tries = self._zones() if job.cluster and job.whole else [everywhere]
        best: tuple[float, Area] | None = None
        for area in tries:
            done = self._try(job, area)
            if done is None:
                continue
            if not self.best or len(tries) == 1:
                return done[1]
            self._undo(done[1])
            if best is None or done[0] < best[0]:
                best = (done[0], area)
        again = self._try(job, best[1]) if best else None
        return again[1] if again else None

    def _zones(self) -> list[Area]:
        """What a cluster may lie in."""
        places = [b.place for bins in self.bins.values() for b in bins]
        places += [deal.place for deals in self.deals.values() for deal in deals]
        return [([domain], zone) for domain, zone in sorted({(p.domain, p.zone) for p in places})]

    def _try(self, job: Job, area: Area) -> tuple[float, list[tuple[Bin, list[int]]]] | None:
        cost = 0.0
        done: list[tuple[Bin, list[int]]] = []
        for tie in _each_rank(job):
            found = self._find(job, tie, area)
            if found is None:
                self._undo(done)
                return None
            if found.deal and len(found.idle) == found.place.kind.gpus:
                cost += found.place.price
            taken, found.idle = found.idle[: job.gpus], found.idle[job.gpus :]
            done.append((found, taken))
        return cost, done

    def _find(self, job: Job, tie: Tie | None, area: Area) -> Bin | None:
        domains, zone = area
        where = [d for d in domains if tie is None or tie.domain == d]
        zones = {zone, tie.zone if tie else None} - {None}
        fits = (
            (left, bin_)
            for d in where
            for bin_ in self.bins[d]
            if (left := bin_.room(job)) is not None and zones <= {bin_.place.zone}
        )
        found = min(fits, key=lambda fit: fit[0], default=None) if self.best else next(fits, None)
        if found:
            return found[1]
        deals = [
            deal
            for d in where
            for deal in self.deals[d]
            if job.takes(deal.place)
            and zones <= {deal.place.zone}
            and (deal.limit is None or self.count[_limited(deal.place)] < deal.limit)
        ]
        if not deals:
            return None
        deal = min(deals, key=lambda d: (self._price(job, d.place), d.place.price))
        domain = deal.place.domain
        new = Bin(
            deal.place,
            f"{fleet_of(domain)}-{self.names[domain]}",
            list(range(deal.place.kind.gpus)),
            deal,
        )
        self.bins[domain].append(new)
        self.count[_limited(deal.place)] += 1
        self.names[domain] += 1
        return new

    def _price(self, job: Job, place: Place) -> float:
        return place.price * job.gpus / place.kind.gpus if self.best else place.price

    def _undo(self, done: Sequence[tuple[Bin, list[int]]]) -> None:
        """Give back blocks, and the nodes that were launched for them alone."""
        for bin_, taken in reversed(done):
            bin_.idle = sorted([*bin_.idle, *taken])
            if bin_.deal and len(bin_.idle) == bin_.place.kind.gpus:
                self.bins[bin_.place.domain].remove(bin_)
                self.count[_limited(bin_.place)] -= 1


def _limited(place: Place) -> tuple[object, ...]:
    return (place.domain, place.kind, place.spot)


def _each_rank(job: Job) -> list[Tie | None]:
    return [tie for tie in job.ties for _ in range(tie.ranks)] or [None] * job.ranks


def fit(case: Scene, *, best: bool, decreasing: bool = False) -> PlacementOutcome:
    """The outcome, in the planner's form, so that the same checker reads it."""
    packing = Packing(case, best=best)
    jobs = sorted(case.jobs, key=lambda j: (not j.whole, -j.ranks, -j.gpus)) if decreasing else case.jobs
    choices: list[Choice] = []
    refusals: list[Refusal] = []
    for job in jobs:
        done = packing.put(job)
        if done is None:
            refusals.append(Refusal(task=job.name, code="no-capacity", summary="", hint=None, ranks=()))
            continue
        for rank, (bin_, taken) in enumerate(done):
            volumes = {"/data": f"{job.name}-data-{rank}"} if job.ties else {}
            choices.append(
                Choice(task=job.name, rank=rank, node=bin_.name, blocks=tuple(taken), volumes=volumes)
            )
    launches = [_node(b) for bins in packing.bins.values() for b in bins if b.deal]
    return PlacementOutcome(choices=tuple(choices), refusals=tuple(refusals), launches=tuple(launches))


def _node(bin_: Bin) -> Node:
    assert bin_.deal is not None
    offer = offer_of(bin_.deal)
    return Node(
        name=bin_.name,
        fleet=fleet_of(bin_.place.domain),
        backend=offer.backend,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        shape=offer.shape,
        total=bin_.place.kind.gpus,
        price=offer.price,
        spot=offer.spot,
        readiness=READY,
        new=True,
        offer=offer,
    )
