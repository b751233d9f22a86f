"""A task with volumes, pins or prior places in one domain."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from declarative.placement.allocate import Allocation, SearchArea, Try, allocate, commit
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Domain, Job, is_spread
from declarative.placement.problem import Place
from declarative.placement.volumes import Binding, Matching, bindings, near, serves


class BoundTask:
    """One try. Ranks that can stay where they were do; all others go in groups that reach the same places."""

    def __init__(self, assignment: Assignment, job: Job, domain: Domain) -> None:
        self.assignment = assignment
        self.catalog = assignment.catalog
        self.job = job
        self.domain = domain
        self.mounts = job.ask.want.mounts
        self.places = self.catalog.places_in(job.request, domain)
        self.spread = job.task.spread if is_spread(job.task) else None
        self.beside: set[int] = set()
        """The nodes of ranks that are seated, if they are to be spread…"""
        self.barred: set[int] = set()
        """…and the kinds that lie where those do."""

    def run(self, *, keep: bool = False) -> Try:
        """What comes of it. The assignment is left as it was, unless it is to `keep` what succeeds."""
        self.beside, self.barred = set(), set()
        stays = self.stays()
        bound, failed = self._bind(stays)
        if failed is not None and stays:
            stays = {}  # those who stay may take what another one needs
            bound, failed = self._bind(stays)
        if failed is not None:
            volumes = {r: b.volumes for r, b in bound.items()}
            return Try(domain=self.domain, nodes=dict.fromkeys(bound, -1), volumes=volumes, failed=failed)
        return self._seat_bound(stays, bound, keep=keep)

    def _seat_bound(self, stays: Mapping[int, int], bound: Mapping[int, Binding], *, keep: bool) -> Try:
        """Seat ranks that have their volumes: the first way that succeeds, else what came of the first."""
        reach = {r: self._reach(b) for r, b in bound.items()}
        first = seating = self._seat(stays, bound, reach, keep=keep)
        if seating.failed is not None and bound:
            # Groups that overlap took one another's places: each rank goes where it was matched.
            exact = {r: frozenset({b.place}) for r, b in bound.items()}
            seating = self._seat(stays, bound, exact, keep=keep)
        if seating.failed is not None and stays:
            seating = self._seat({}, bound, reach, keep=keep)
        return seating if seating.failed is None else first

    # Staying

    def stays(self) -> dict[int, int]:
        """Ranks that can stay on the node that they had, all of them at once."""
        out: dict[int, int] = {}
        free: dict[int, int] = {}
        fit, whole = self.job.request.fit, self.job.request.whole
        for rank, (name, _) in sorted(self.job.ask.prior.items()):
            node = self._usable(name)
            if node is None or rank >= self.job.ranks:
                continue
            if self.spread and any(
                n == node or self.assignment.kind_of[n] in self._near(node) for n in out.values()
            ):
                continue
            kind = self.assignment.kind_of[node]
            idle = free.get(node, self.assignment.free[node])
            if idle >= (self.catalog.kinds[kind].total if whole else fit[kind]):
                out[rank] = node
                free[node] = idle - fit[kind]
        return out

    def _usable(self, name: str) -> int | None:
        """The number of a node of the domain that takes work and would hold a rank if it were idle."""
        node, pins = self.catalog.index.get(name), self.job.task.instances
        if node is None or not self.assignment.open[node] or (pins and name not in pins):
            return None
        kind = self.assignment.kind_of[node]
        fits = kind in self.job.request.fit and self.catalog.inside(self.domain, kind)
        return node if fits else None

    def _near(self, node: int) -> Collection[int]:
        """The kinds of nodes at one place of the level that ranks are spread over with a node."""
        alone = self.spread in (None, "node")
        return () if alone else self.catalog.near(str(self.spread), self.assignment.kind_of[node])

    def _part(self, node: int) -> None:
        """Keep other ranks away from where a rank is seated."""
        if self.spread is not None:
            self.beside.add(node)
            self.barred.update(self._near(node))

    # Volumes

    def _bind(self, stays: Mapping[int, int]) -> tuple[Mapping[int, Binding], int | None]:
        """The volumes of each rank, and the first rank that cannot have its own."""
        if not any(self.mounts):
            return {}, None
        options: dict[int, list[Binding]] = {}
        for rank in range(self.job.ranks):
            places = self.places
            if rank in stays:
                places = (self.catalog.place_of[self.assignment.kind_of[stays[rank]]],)
            options[rank] = bindings(
                self.mounts[rank], places, self.catalog.volumes, self.assignment.volume_holders
            )
        if self.job.ranks == 1 and options[0] and all(b.volumes == options[0][0].volumes for b in options[0]):
            return {0: options[0][0]}, None  # there is nothing to match
        price = functools.cache(self._price)
        for of_rank in options.values():
            of_rank.sort(key=lambda b: price(b.place))  # of alternatives the first, unless another costs less
        room, site = functools.cache(self._room), functools.cache(self._site)
        cheap = {r: [b for b in own if price(b.place) == price(own[0].place)] for r, own in options.items()}
        matching = Matching(cheap, room, site)
        if (failed := matching.match()) is not None and cheap != options:
            matching = Matching(options, room, site)
            failed = matching.match()
        return matching.given, failed

    def _room(self, place: Place) -> int:
        """How many ranks a place holds."""
        if self.spread == "node":
            return self._nodes(place)
        self.assignment.log = []
        choice = self._ask(self.job.ranks, frozenset((place,)))
        self.assignment.undo()
        room = self.job.ranks - choice.short
        return min(1, room) if self.spread else room

    def _site(self, place: Place) -> object:
        """Where a place lies at the level that ranks are spread over: one rank goes there."""
        fit, place_of = self.job.request.fit, self.catalog.place_of
        if self.spread in (None, "node"):
            return place
        here = (self.catalog.kinds[kind] for kind in fit if place_of[kind] == place)
        sites = {(kind.backend, kind.region, kind.at(self.spread)) for kind in here}
        return sites.pop() if len(sites) == 1 else place

    def _nodes(self, place: Place) -> int:
        """How many nodes of a place hold a rank each."""
        self.assignment.log, beside = [], self.beside
        self.beside = set(beside)
        count = 0
        while count < self.job.ranks:
            choice = self._ask(1, frozenset((place,)))
            if choice.short:
                break
            self.beside.update(commit(self.assignment, choice, 1))
            count += 1
        self.assignment.undo()
        self.beside = beside
        return count

    def _price(self, place: Place) -> tuple[int, float]:
        """What one rank costs in a place; places without room come last."""
        self.assignment.log = []
        choice = self._ask(1, frozenset((place,)))
        self.assignment.undo()
        return (choice.short, choice.cost)

    def _reach(self, binding: Binding) -> frozenset[Place]:
        """The places from which a rank reaches its volumes."""
        volumes = [self.catalog.volumes[v] for v in binding.volumes.values()]
        return frozenset(p for p in near(self.places, volumes[:1]) if all(serves(at, p) for at in volumes))

    # Seating

    def _seat(
        self,
        stays: Mapping[int, int],
        bound: Mapping[int, Binding],
        reach: Mapping[int, frozenset[Place]],
        *,
        keep: bool,
    ) -> Try:
        assignment = self.assignment
        assignment.log = []
        self.beside, self.barred = set(), set()
        out = Try(domain=self.domain)
        for rank, node in stays.items():
            ground = SearchArea(domain=self.domain, nodes=(node,), reuse=True)
            commit(assignment, allocate(assignment, self.job.request, 1, ground), 1)
            out.nodes[rank] = node
            self._part(node)
        for places, ranks in self._groups(stays, reach):
            self._group(out, ranks, places)
            if out.failed is not None:
                break
        out.moved = len({r for r in self.job.ask.prior if r < self.job.ranks} - stays.keys())
        if out.failed is None:
            out.volumes = {r: b.volumes for r, b in bound.items()}
        if keep and out.failed is None:
            assignment.log = None
        else:
            assignment.undo()
        return out

    def _groups(
        self, stays: Mapping[int, int], reach: Mapping[int, frozenset[Place]]
    ) -> Iterator[tuple[frozenset[Place] | None, list[int]]]:
        """Ranks that reach the same places, first those that reach few; each by itself if they are spread."""
        groups: dict[frozenset[Place] | None, list[int]] = {}
        for rank in range(self.job.ranks):
            if rank not in stays:
                groups.setdefault(reach.get(rank), []).append(rank)
        every = len(self.places) + 1
        for places in sorted(groups, key=lambda g: (every if g is None else len(g), groups[g])):
            if self.spread:
                yield from ((places, [rank]) for rank in groups[places])
            else:
                yield places, groups[places]

    def _group(self, out: Try, ranks: list[int], places: frozenset[Place] | None) -> None:
        choice = self._ask(len(ranks), places)
        seated = len(ranks) - choice.short
        nodes = sorted(commit(self.assignment, choice, seated))
        out.nodes |= dict(zip(ranks, nodes, strict=False))
        for node in nodes:
            self._part(node)
        out.cost += choice.cost
        out.waste += choice.waste
        out.launches += choice.launches
        if choice.short:
            out.failed = ranks[seated]

    def _ask(self, ranks: int, places: frozenset[Place] | None) -> Allocation:
        assignment = self.assignment
        pins = self.job.task.instances
        if not pins:
            ground = self._ground(places)
            return allocate(assignment, self.job.request, ranks, ground)
        index, open_ = self.catalog.index, self.assignment.open
        nodes = [index[name] for name in pins if name in index and open_[index[name]]]
        names = self._owed(self._give_names([n for n in pins if n in self.catalog.coming], places))
        nodes += [x.node for x in assignment.launches if x.name in pins]
        ground = replace(self._ground(places), nodes=nodes, names=names)
        return allocate(assignment, self.job.request, ranks, ground)

    def _ground(self, places: frozenset[Place] | None) -> SearchArea:
        return SearchArea(
            domain=self.domain,
            places=places,
            reuse=self.job.reuse,
            barred=self.barred,
            beside=self.beside,
        )

    def _give_names(self, names: list[str], places: frozenset[Place] | None) -> list[str]:
        """Nodes that are launched anyhow get the pinned names, if the task fits there; the names left."""
        unused: list[str] = []
        given = {x.name for x in self.assignment.launches}
        for name in (n for n in names if n not in given):
            index = next(
                (i for i in range(len(self.assignment.launches)) if self._suits(i, name, places)), None
            )
            if index is None:
                unused.append(name)
            else:
                self.assignment.name(index, name)
        return unused

    def _suits(self, index: int, name: str, places: frozenset[Place] | None) -> bool:
        """Whether a launch without a name may have this one, and has room for a rank."""
        launch = self.assignment.launches[index]
        kind = launch.option.kind
        place = self.catalog.place_of[kind]
        if place not in (self.places if places is None else places):
            return False
        need = self.job.request.fit.get(kind, 0)
        blocks = self.catalog.kinds[kind].total if self.job.request.whole else need
        mine = launch.name is None and launch.option.fleet == name.rpartition("-")[0]
        if launch.option.offer.name not in (None, name):
            return False
        return mine and need > 0 and self.assignment.free[launch.node] >= blocks

    def _owed(self, names: list[str]) -> list[str]:
        """As many of them as their fleets still launch for themselves; a pin is no reason to launch more."""
        baselines, out = dict(self.assignment.baseline_left), []
        for name in names:
            fleet = name.rpartition("-")[0]
            if baselines[fleet] > 0 or name in self.catalog.fleets[fleet].free_names:
                baselines[fleet] -= 1
                out.append(name)
        return out
