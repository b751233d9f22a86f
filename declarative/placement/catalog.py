"""What a search is given, digested once: kinds instead of nodes, requests that tasks share instead of tasks,
and the domains where their ranks may lie.

All of it is fixed while the search runs; what changes is in the assignment.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from declarative.model.blocks import Shape, gpu_order, maker_of
from declarative.model.record import struct
from declarative.model.resource import Offer, size_order
from declarative.model.spec import CreationPolicy, Task
from declarative.model.spec.values import Placement
from declarative.model.state import natural
from declarative.model.status import BOOTING
from declarative.placement.filters import (
    asks_little,
    beside_reason,
    blocks_of_makes,
    blocks_wanted,
    fleet_reason,
    level_of,
    one_vendor,
    place_reason,
    ready_reason,
    topology_reason,
)
from declarative.placement.problem import (
    Ask,
    FleetRule,
    Node,
    NodeType,
    Place,
    Quota,
    VolumeAt,
    by_name,
    of_node,
    of_offer,
    quota_of,
)


class Area(NamedTuple):
    """Where the ranks of a cluster task lie together: in one region of a fleet, at one place of a level."""

    fleet: str
    backend: str
    region: str
    level: str
    at: str


class Domain(NamedTuple):
    """What all ranks of a task have in common: the area, and who made their GPUs. None is any."""

    area: Area | None = None
    maker: str | None = None


ANYWHERE = Domain()


@struct(frozen=True, slots=True)
class Candidate:
    """An area where a cluster may lie. `index` is its place among the domains of a request."""

    index: int
    domain: Domain
    fleet: str
    floor: float
    """USD an hour that a rank costs at least for which something is launched."""
    per: int
    """Ranks that a node which is launched holds at most."""
    alike: object
    """What it shares with areas where another fleet may launch the same; None if the fleet has nodes."""


class Traits(NamedTuple):
    """What matters of a kind of node to a rank that takes so many blocks of it."""

    need: int
    gpus: int
    """GPUs that the rank is given."""
    total: int
    """Blocks of a node."""
    rest: tuple[object, ...]
    """What matters after the fit: USD an hour, the CPUs and memory that the rank is given, which GPUs."""


class Fit:
    """Kind → how many blocks a rank takes there; kinds where it can never go are not in it.

    Limits and sizes have few values each, and requests are their pairs: so this keeps no table of its own.
    """

    __slots__ = ("allowed", "flags", "hardware_of", "needs")

    def __init__(
        self, allowed: list[int], flags: bytearray, hardware_of: list[int], needs: dict[int, int]
    ) -> None:
        self.allowed = allowed
        """The kinds that the limits allow, in order; `flags` has a 1 for each."""
        self.flags = flags
        self.hardware_of = hardware_of
        """Kind → its make: kinds of one shape and split are of one make."""
        self.needs = needs
        """Make → blocks wanted; 0 where it does not fit."""

    def get(self, kind: int, default: int = 0) -> int:
        """The blocks, or `default`."""
        return (self.needs[self.hardware_of[kind]] or default) if self.flags[kind] else default

    def __getitem__(self, kind: int) -> int:
        return self.needs[self.hardware_of[kind]]

    def __contains__(self, kind: int) -> bool:
        return bool(self.flags[kind] and self.needs[self.hardware_of[kind]])

    def __iter__(self) -> Iterator[int]:
        needs, hardware_of = self.needs, self.hardware_of
        return (k for k in self.allowed if needs[hardware_of[k]])

    def items(self) -> Iterator[tuple[int, int]]:
        """Kinds and blocks, in the order of kinds."""
        needs, hardware_of = self.needs, self.hardware_of
        return ((k, need) for k in self.allowed if (need := needs[hardware_of[k]]))

    def among(self, kinds: bytearray) -> list[tuple[int, int]]:
        """The same of those of which `kinds` has a 1."""
        needs, hardware_of = self.needs, self.hardware_of
        return [(k, need) for k in self.allowed if kinds[k] and (need := needs[hardware_of[k]])]

    @property
    def least(self) -> int:
        """The fewest blocks that a rank takes anywhere; 0 if it can go nowhere."""
        return min(
            filter(None, map(self.needs.get, map(self.hardware_of.__getitem__, self.allowed))), default=0
        )

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


class Request:
    """What a rank asks for and where its task may go. Tasks with one request are alike to all filters."""

    __slots__ = (
        "candidates",
        "domains",
        "fit",
        "gpus",
        "grounds",
        "homes",
        "least",
        "limits",
        "made",
        "one_area",
        "one_vendor",
        "places",
        "size",
        "task",
        "whole",
    )

    def __init__(self, task: Task, fit: Fit, limits: int, size: int, *, one_vendor: bool) -> None:
        self.task = task
        self.whole = task.whole_nodes
        self.one_vendor = one_vendor
        """Whether the GPUs of all its ranks are of one maker."""
        self.made: dict[str | None, dict[int, int]] = {}
        """Maker → the kinds with its GPUs that fit, and the blocks a rank takes."""
        self.one_area = lies_together(task)
        self.gpus = task.resources.gpu.count.min if task.resources.gpu else 0
        self.fit = fit
        self.limits, self.size = limits, size
        """Numbers: requests that share them are turned down alike, by place and by shape."""
        self.domains: dict[Domain, tuple[tuple[int, int], ...]] = {}
        """Domain → the kinds of nodes that are there and fit, and the blocks a rank takes."""
        self.grounds: dict[tuple[Domain, frozenset[Place]], tuple[tuple[int, int], ...]] = {}
        """The same for some places of a domain."""
        self.places: dict[Domain, tuple[Place, ...]] = {}
        """Domain → the places where it fits."""
        self.homes: list[Domain] | None = None
        """The domains where its ranks may lie together."""
        self.candidates: Sequence[Candidate] | None = None
        """The areas where its ranks may lie together."""
        self.least = fit.least


@struct(slots=True)
class Job:
    """One task to place. Its index is its place in the order of names."""

    index: int
    ask: Ask
    request: Request
    ranks: int
    reuse: bool
    unconstrained: bool
    """Whether only its request and its number of ranks matter: see `is_unconstrained`."""
    key: tuple[int, int, bool] = field(default=(0, 0, False))

    @property
    def task(self) -> Task:
        """Its declaration."""
        return self.ask.want.spec

    @property
    def single(self) -> bool:
        """Whether it has one rank and only its request matters: all that are alike are seated at once."""
        return self.unconstrained and self.ranks == 1

    @property
    def likeness(self) -> object:
        """Equal for tasks of which each finds a place where another does."""
        return self.key if self.unconstrained else self.index

    @property
    def alike(self) -> bool:
        """Whether one place is as good as another for each rank: none has volumes, or has to lie apart."""
        return not (any(self.ask.want.mounts) or is_spread(self.task))

    @property
    def weight(self) -> int:
        """Blocks that are left out when it is left out: what a search keeps small."""
        return self.ranks * max(1, self.request.least)


def is_unconstrained(ask: Ask) -> bool:
    """Whether a task has no volumes, no prior place and no pins, and its ranks need not be spread."""
    task = ask.want.spec
    return not (ask.prior or task.instances or any(ask.want.mounts) or is_spread(task))


def is_spread(task: Task) -> bool:
    """Whether its ranks have to lie apart."""
    return task.spread is not None and task.nodes > 1


def lies_together(task: Task) -> bool:
    """Whether its ranks have to lie in one domain: one rank always does, wherever it is."""
    return task.cluster and task.nodes > 1


Home = tuple[str, str]
"""Where the nodes of a cluster fleet lie: backend and region."""


@struct(frozen=True, slots=True)
class LaunchOption:
    """An offer as one fleet would launch it."""

    index: int
    kind: int
    fleet: str
    quota: Quota
    offer: Offer

    @property
    def home(self) -> Home:
        """Where a cluster fleet lies that launches it."""
        return (self.offer.backend, self.offer.region)


class Catalog:
    """The digest. Nodes are numbered in the order of their names, so that ties break by name; those that boot
    come last.
    """

    def __init__(
        self,
        asks: Sequence[Ask],
        nodes: Sequence[Node],
        fleets: Mapping[str, FleetRule],
        volumes: Mapping[str, VolumeAt],
    ) -> None:
        self.nodes = sorted(nodes, key=lambda n: (n.readiness.state in BOOTING, _order(n.name)))
        self.fleets = dict(sorted(fleets.items()))
        self.volumes = volumes
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self.ready = [n.fleet in self.fleets and ready_reason(n) is None for n in self.nodes]
        offers = self._number_kinds()
        self._avoiding = frozenset().union(*(kind.avoided_by for kind in self.kinds))
        self.options = [
            LaunchOption(i, kind, self.kinds[kind].fleet, quota_of(offer), offer)
            for i, (kind, offer) in enumerate(self._priced(offers))
        ]
        self._index_kinds()
        names = frozenset().union(*(kind.beside for kind in self.kinds))
        self.beside = {name: [kind for kind in self.kinds if name in kind.beside] for name in names}
        """Task that gets more ranks → the kinds of the nodes where others of it stay."""
        self._by_domain: dict[Domain, list[LaunchOption]] = {ANYWHERE: self.options}
        self._fitting: dict[tuple[Request, Domain], list[tuple[LaunchOption, int, int]]] = {}
        self._near: dict[str, list[set[int]]] = {}
        self._by_fleet: dict[str, list[LaunchOption]] = {}
        for option in self.options:
            self._by_fleet.setdefault(option.fleet, []).append(option)
        self.traits: dict[tuple[int, int], Traits] = {}
        """Of a kind of nodes, for a rank that takes so many blocks of it."""
        self._allowed: dict[tuple[object, ...], tuple[int, list[int], bytearray]] = {}
        self._needs: dict[tuple[object, ...], tuple[int, dict[int, int]]] = {}
        self._requests: dict[tuple[object, ...], Request] = {}
        ordered = sorted(asks, key=lambda a: _order(str(a.want.spec.name)))
        self.jobs = [self.job(i, ask) for i, ask in enumerate(ordered)]

    def asking(self, asks: Mapping[int, Ask]) -> Catalog:
        """The same nodes and offers, with other asks of some tasks, by their index."""
        catalog = copy.copy(self)
        catalog.jobs = [
            self.job(job.index, asks[job.index]) if job.index in asks else job for job in self.jobs
        ]
        return catalog

    def _number_kinds(self) -> list[tuple[int, Offer]]:
        """Number the kinds of what is there and of what may be launched; each offer with its kind."""
        fields_of_nodes = [of_node(n) for n in self.nodes]
        offers = [(of_offer(o, rule.fleet), o) for rule in self.fleets.values() for o in rule.offers]
        kinds = {
            fields: NodeType(*fields) for fields in {*fields_of_nodes, *(fields for fields, _ in offers)}
        }
        self.kinds: list[NodeType] = sorted(kinds.values(), key=by_name)
        number = {id(kind): i for i, kind in enumerate(self.kinds)}
        self.kind_of = [number[id(kinds[fields])] for fields in fields_of_nodes]
        return [(number[id(kinds[fields])], offer) for fields, offer in offers]

    def _index_kinds(self) -> None:
        """Tables of what is often read of kinds, by their numbers."""
        self.place_of: list[Place] = [kind.place for kind in self.kinds]
        self.present = sorted(set(self.kind_of))
        """The kinds of nodes that are there."""
        self.is_present = bytearray(len(self.kinds))
        for i in self.present:
            self.is_present[i] = 1
        makes: dict[tuple[Shape, int], int] = {}
        self.hardware_of = [
            makes.setdefault((kind.shape, kind.total), i) for i, kind in enumerate(self.kinds)
        ]
        self.makes = list(makes.values())
        """Each make once."""
        blocks = [(make, self.kinds[make].shape, self.kinds[make].total) for make in self.makes]
        self.shares = [(make, of.cpu // total, of.memory_mib // total, total) for make, of, total in blocks]
        """Make, the CPUs and the memory of one of its blocks, and how many it has."""
        self.most_blocks = max((kind.total for kind in self.kinds), default=1)
        self._areas: dict[str, list[Area | None]] = {}
        self.maker_of = [maker_of(kind.shape) for kind in self.kinds]
        self.gpu_order = [gpu_order(kind.shape) for kind in self.kinds]

    def _priced(self, offers: Iterable[tuple[int, Offer]]) -> list[tuple[int, Offer]]:
        """Offers with their kinds, the cheapest first; of a cluster those where most of its nodes are."""
        there = Counter((kind.fleet, kind.place) for kind in map(self.kinds.__getitem__, self.kind_of))

        def order(offered: tuple[int, Offer]) -> tuple[object, ...]:
            kind = self.kinds[offered[0]]
            near = -there[kind.fleet, kind.place] if self.clustered(kind.fleet) else 0
            return (kind.cost, near, size_order(offered[1]), *by_name(kind))

        return sorted(offers, key=order)

    @cached_property
    def alike(self) -> Mapping[str, int]:
        """Fleet without nodes → a number that it shares with those that may launch the same."""
        there = {self.kinds[kind].fleet for kind in self.present}
        numbers: dict[object, int] = {}
        return {
            name: numbers.setdefault(
                (
                    rule.fleet.nodes,
                    rule.baseline,
                    tuple((of_offer(o, rule.fleet)[1:], quota_of(o)) for o in rule.offers),
                ),
                len(numbers),
            )
            for name, rule in self.fleets.items()
            if name not in there
        }

    @cached_property
    def by_place(self) -> Mapping[tuple[str, Place], Sequence[LaunchOption]]:
        """Fleet and place → what it may launch there, in the order of `options`."""
        options: dict[tuple[str, Place], list[LaunchOption]] = defaultdict(list)
        for option in self.options:
            options[option.fleet, self.place_of[option.kind]].append(option)
        return options

    @cached_property
    def by_price(self) -> Mapping[float, Sequence[LaunchOption]]:
        """The offers of one price, the smallest first."""
        options: dict[float, list[LaunchOption]] = defaultdict(list)
        for option in sorted(self.options, key=lambda o: (*size_order(o.offer), o.index)):
            options[self.kinds[option.kind].cost].append(option)
        return options

    @cached_property
    def owing(self) -> frozenset[str]:
        """Fleets that launch nodes for themselves."""
        return frozenset(name for name, rule in self.fleets.items() if rule.baseline)

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """The areas where a cluster may lie, those first in which launches cost the least."""
        if request.candidates is None:
            unsorted = [
                self._candidate(request, index, domain)
                for index, domain in enumerate(self.domains(request))
                if domain.area
            ]
            request.candidates = sorted(unsorted, key=lambda candidate: (candidate.floor, candidate.index))
        return request.candidates

    def _candidate(self, request: Request, index: int, domain: Domain) -> Candidate:
        assert domain.area
        options = self.options_in(request, domain)
        fleet = domain.area.fleet
        number = self.alike.get(fleet)
        return Candidate(
            index=index,
            domain=domain,
            fleet=fleet,
            floor=min((self.kinds[o.kind].cost / per for o, _, per in options), default=math.inf),
            per=max((per for _, _, per in options), default=0),
            alike=None if number is None else (number, domain.area[1:], domain.maker),
        )

    def of_fleet(self, fleet: str) -> Sequence[LaunchOption]:
        """What a fleet may launch, in the order of `options`."""
        return self._by_fleet.get(fleet, ())

    @cached_property
    def coming(self) -> frozenset[str]:
        """Names of nodes that are not there yet and will be, whatever is placed.

        Those are hosts that are no nodes yet, nodes made anew, and what fleets launch for themselves.
        """
        taken = set(self.index).union(*(rule.taken for rule in self.fleets.values()))
        out: set[str] = set()
        for fleet, rule in self.fleets.items():
            hosts = {o.offer.name for o in self.of_fleet(fleet) if o.offer.name}
            reused = sum(name not in taken for name in rule.free_names)
            out |= hosts or set(itertools.islice(rule.names(taken), max(reused, rule.baseline)))
        return frozenset(out)

    def job(self, index: int, ask: Ask) -> Job:
        """A task to place, under a number."""
        task = ask.want.spec
        job = Job(
            index=index,
            ask=ask,
            request=self.request(task),
            ranks=task.nodes,
            reuse=ask.reuse or task.creation_policy is CreationPolicy.REUSE,
            unconstrained=is_unconstrained(ask),
        )
        job.key = (id(job.request), job.ranks, job.reuse)
        return job

    def request(self, task: Task) -> Request:
        """The request of a task; the same object for tasks that are alike."""
        limits = (
            task.cluster,
            task.fleets,
            task.backends,
            task.regions,
            task.spot_policy,
            task.max_price,
            task.isolation,
            task.image is None,
            (task.same, task.spread) if task.nodes > 1 else None,
            task.name if task.name in self._avoiding else None,
            (task.name, task.spread, task.instances) if task.name in self.beside else None,
        )
        size = (task.resources, task.whole_nodes)
        apart = self._apart(task)
        key = (limits, size, lies_together(task), apart)
        request = self._requests.get(key)
        if request is None:
            number, allowed, flags = self._allow(task, limits)
            size_number, needs = self._need(task, size)
            fit = Fit(allowed, flags, self.hardware_of, needs)
            request = self._requests[key] = Request(task, fit, number, size_number, one_vendor=apart)
        return request

    def _apart(self, task: Task) -> bool:
        """Whether all ranks get GPUs of one maker. Who pins nodes of several has seen what they are."""
        if not one_vendor(task):
            return False
        pinned = (self.kind_of[self.index[name]] for name in task.instances if name in self.index)
        return len({self.maker_of[kind] for kind in pinned} - {None}) < 2

    def _allow(self, task: Task, limits: tuple[object, ...]) -> tuple[int, list[int], bytearray]:
        """The kinds that a task's limits allow."""
        entry = self._allowed.get(limits)
        if entry is None:
            allowed = [i for i, kind in enumerate(self.kinds) if self._may(task, kind)]
            flags = bytearray(len(self.kinds))
            for i in allowed:
                flags[i] = 1
            entry = self._allowed[limits] = (len(self._allowed), allowed, flags)
        return entry

    def _need(self, task: Task, size: tuple[object, ...]) -> tuple[int, dict[int, int]]:
        """Make → the blocks that a rank wants."""
        entry = self._needs.get(size)
        if entry is None:
            if asks_little(task):
                needs = dict.fromkeys(self.makes, 0) | blocks_of_makes(task, self.shares)
            else:
                needs = {make: blocks_wanted(task, self.kinds[make]) for make in self.makes}
            entry = self._needs[size] = (len(self._needs), needs)
        return entry

    def _may(self, task: Task, kind: NodeType) -> bool:
        rule = self.fleets.get(kind.fleet)
        if rule is None or fleet_reason(task, rule.fleet):
            return False
        if topology_reason(task, rule.fleet, kind) or place_reason(task, kind):
            return False
        return not beside_reason(task, kind, self.beside.get(task.name, ()))

    def domains(self, request: Request) -> list[Domain]:
        """What the ranks of a task may have in common."""
        if not request.one_area and not request.one_vendor:
            return [ANYWHERE]
        if request.homes is None:
            makers = self._makers(request)
            request.homes = [
                Domain(area, maker)
                for area in self._nearest(request, makers)
                for maker in (sorted(makers[area]) if len(makers[area]) > 1 else (None,))
            ]
        return request.homes

    def _makers(self, request: Request) -> dict[Area | None, set[str]]:
        """The areas where ranks may lie together, None if they need not, and who made the GPUs there."""
        areas: dict[Area | None, set[str]] = {} if request.one_area else {None: set()}
        for kind in request.fit:
            makers = areas.setdefault(self.area(request.task, kind) if request.one_area else None, set())
            maker = self.maker_of[kind] if request.one_vendor else None
            if maker:
                makers.add(maker)
        return areas

    def _nearest(self, request: Request, areas: Iterable[Area | None]) -> list[Area | None]:
        """Areas by name. A cluster grows where it is, if that costs no more."""
        mine = (k for k in self.kind_of if k in request.fit) if request.one_area else ()
        there = Counter(self.area(request.task, kind) for kind in mine)
        return sorted(areas, key=lambda area: (*area[:3], -there[area]) if area else ())

    def areas(self, level: str) -> list[Area | None]:
        """Node type → the area of a level where it lies; None where nobody knows."""
        if level not in self._areas:
            places = ((k, k.at(level)) for k in self.kinds)
            self._areas[level] = [
                None if at is None else Area(k.fleet, k.backend, k.region, level, at) for k, at in places
            ]
        return self._areas[level]

    def area(self, task: Task, kind: int) -> Area | None:
        """Where the ranks of a cluster task would lie that has one of them there."""
        return self.areas(level_of(task, self.fleets[self.kinds[kind].fleet].fleet))[kind]

    def kinds_in(self, request: Request, domain: Domain) -> tuple[tuple[int, int], ...]:
        """The kinds of nodes that are there and fit, in a domain, and the blocks a rank takes."""
        kinds = request.domains.get(domain)
        if kinds is None:
            there = request.fit.among(self.is_present)
            kinds = request.domains[domain] = tuple(
                there if domain == ANYWHERE else (pair for pair in there if self.inside(domain, pair[0]))
            )
        return kinds

    def kinds_at(
        self, request: Request, domain: Domain, places: frozenset[Place] | None
    ) -> tuple[tuple[int, int], ...]:
        """The same, of some places of the domain."""
        if places is None:
            return self.kinds_in(request, domain)
        kinds = request.grounds.get((domain, places))
        if kinds is None:
            kinds = request.grounds[domain, places] = tuple(
                (k, q) for k, q in self.kinds_in(request, domain) if self.place_of[k] in places
            )
        return kinds

    def places_in(self, request: Request, domain: Domain) -> tuple[Place, ...]:
        """The places of a domain where the request fits."""
        places = request.places.get(domain)
        if places is None:
            kinds = (k for k in request.fit if self.inside(domain, k))
            places = request.places[domain] = tuple(dict.fromkeys(self.place_of[k] for k in kinds))
        return places

    def options_in(self, request: Request, domain: Domain) -> Sequence[tuple[LaunchOption, int, int]]:
        """A domain's options where the request fits, cheapest first: blocks of a rank, ranks of a node."""
        fitting = self._fitting.get((request, domain))
        if fitting is None:
            options = self._by_domain.get(domain)
            if options is None:
                of_fleet = self.of_fleet(domain.area.fleet) if domain.area else self.options
                options = self._by_domain[domain] = [o for o in of_fleet if self.inside(domain, o.kind)]
            fit, kinds, whole = request.fit, self.kinds, request.whole
            needs = ((option, fit.get(option.kind)) for option in options)
            fitting = self._fitting[request, domain] = [
                (option, need, 1 if whole else kinds[option.kind].total // need)
                for option, need in needs
                if need
            ]
        return fitting

    def near(self, level: str, kind: int) -> Collection[int]:
        """The kinds of nodes at one place of a level with this one, which is among them."""
        if level not in self._near:
            places: dict[object, set[int]] = defaultdict(set)
            of_kind = [places[k.backend, k.region, k.at(level)] for k in self.kinds]
            for number, place in enumerate(of_kind):
                place.add(number)
            self._near[level] = of_kind
        return self._near[level][kind]

    def inside(self, domain: Domain, kind: int) -> bool:
        """Whether nodes of a kind lie in a domain."""
        area, maker = domain
        return (area is None or self.areas(area.level)[kind] == area) and (
            maker is None or self.maker_of[kind] in (None, maker)
        )

    def made_by(self, request: Request, maker: str | None) -> Mapping[int, int]:
        """The kinds with GPUs of one maker that fit, and the blocks a rank takes; None is those without."""
        if maker not in request.made:
            request.made[maker] = {k: need for k, need in request.fit.items() if self.maker_of[k] == maker}
        return request.made[maker]

    def clustered(self, fleet: str) -> bool:
        """Whether a fleet's nodes have to lie together."""
        return self.fleets[fleet].fleet.placement is Placement.CLUSTER


def _order(name: str) -> tuple[object, ...]:
    """As people count; `a-1` and `a-01` are two names all the same."""
    return (natural(name), name)
