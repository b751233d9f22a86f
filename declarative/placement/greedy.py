"""Seating tasks, one tried in each domain: all of its ranks find a place, or it is left out as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from declarative.model.record import struct
from declarative.model.state import rank_name
from declarative.placement.allocate import DEAR, SearchArea, Try, allocate, commit
from declarative.placement.assignment import UNLIMITED, Assignment
from declarative.placement.bound_task import BoundTask
from declarative.placement.catalog import ANYWHERE, Candidate, Domain, Home, Job, Request
from declarative.placement.volumes import hold

CENT = 1e-6
"""USD an hour that do not matter."""

MOST_HOMES = 12
"""Places that are tried for cluster fleets that have no nodes yet."""


@struct(slots=True)
class Seating:
    """What one pass came to."""

    assignment: Assignment
    unseated: list[Job]
    short: dict[str, int] = field(default_factory=dict)
    bound: float | None = None
    """USD an hour that all launches cost at least which seat the same tasks; None if that is not known."""
    proved: frozenset[int] = frozenset()
    """Tasks that have no place beside all others of at least their priority: that was proved."""
    fullest: bool = False
    """Whether it was proved of each priority that no more of it can be seated beside those above."""

    def seats(self, job: Job) -> bool:
        """Whether a task has its places."""
        return job.index in self.assignment.seats

    def stays(self, job: Job) -> bool:
        """Whether a task has the places that it had: a node of those may be gone, or take no work."""
        index = self.assignment.catalog.index
        had = [index.get(name) for _, (name, _) in sorted(job.ask.prior.items())]
        return bool(had) and had == self.assignment.seats.get(job.index)

    @property
    def cost(self) -> float:
        """USD an hour of all launches."""
        kinds = self.assignment.catalog.kinds
        return sum(min(kinds[x.option.kind].cost, DEAR) for x in self.assignment.launches)


def keep_places(assignment: Assignment, todo: Sequence[Job]) -> list[Job]:
    """Seat those that have a place where it is, the others are left: no higher priority takes it away."""
    left: list[Job] = []
    for job in todo:
        if job.ask.prior and seat_again(assignment, job):
            continue
        left.append(job)
    return left


def seat_all(assignment: Assignment, todo: Sequence[Job]) -> list[Job]:
    """Seat tasks one after the other, those at once that are alike and have one rank; what is left."""
    left: list[Job] = []
    failed: set[object] = set()
    for key, group in itertools.groupby(todo, key=lambda job: job.key if job.single else job.index):
        alike = list(group)
        job = alike[0]
        if not job.request.fit or (job.unconstrained and job.key in failed):
            left += alike  # room only ever shrinks: what found none finds none later
        elif key == job.key:
            left += alike[seat_alike(assignment, alike) :]
        elif not seat(assignment, job):
            left.append(job)
            if job.unconstrained:
                failed.add(job.key)
    return left


def seat_alike(assignment: Assignment, jobs: Sequence[Job]) -> int:
    """Seat tasks of one rank that are alike, all in one choice; how many were seated, the first by name."""
    first = jobs[0]
    ground = SearchArea(reuse=first.reuse)
    begin = assignment.allowed_homes
    best, found_at = allocate(assignment, first.request, len(jobs), ground), begin
    for other in homes_to_try(assignment, first.request) if best.short else ():
        assignment.allowed_homes = other
        found = allocate(assignment, first.request, len(jobs), ground)
        if found.short < best.short:
            best, found_at = found, other
    assignment.allowed_homes = found_at
    seated = len(jobs) - best.short
    for job, node in zip(jobs[:seated], commit(assignment, best, seated), strict=True):
        assignment.seats[job.index] = [node]
    assignment.allowed_homes = begin
    return seated


def seat(assignment: Assignment, job: Job) -> bool:
    """Seat one task where it costs least; whether it found a place."""
    domains = assignment.catalog.domains(job.request)
    once = not job.unconstrained and len(domains) == 1
    if once:
        at_once = BoundTask(assignment, job, domains[0]).run(keep=True)
        if at_once.failed is None:
            _note(assignment, job, at_once)
            return True
        if not homes_to_try(assignment, job.request):
            return False
    found = best_try(assignment, job)
    if found is None or found.failed is not None:
        return False
    begin = assignment.allowed_homes
    assignment.allowed_homes = begin if found.begin is None else found.begin
    if job.unconstrained:
        ground = SearchArea(domain=found.domain, reuse=job.reuse)
        nodes = commit(assignment, allocate(assignment, job.request, job.ranks, ground), job.ranks)
        found.nodes = dict(enumerate(sorted(nodes)))
    else:
        found = BoundTask(assignment, job, found.domain).run(keep=True)
    assignment.allowed_homes = begin
    _note(assignment, job, found)
    return True


def seat_again(assignment: Assignment, job: Job) -> bool:
    """Seat a task where all of its ranks were, or not at all."""
    for domain in assignment.catalog.domains(job.request):
        special = BoundTask(assignment, job, domain)
        if len(special.stays()) == job.ranks and not (found := special.run()).moved and found.failed is None:
            _note(assignment, job, special.run(keep=True))
            return True
    return False


def _note(assignment: Assignment, job: Job, found: Try) -> None:
    """Write down who sits where, and who holds which volumes."""
    assert sorted(found.nodes) == list(range(job.ranks)), f"{job.task.name}: obtained is not requested"
    assignment.seats[job.index] = [found.nodes[r] for r in range(job.ranks)]
    for rank, volumes in found.volumes.items():
        hold(assignment, job, rank, volumes)


def without_riders(assignment: Assignment, tasks: Iterable[int]) -> set[int]:
    """The tasks but those that launch nothing and sit on a launch: it is made for others."""
    launched, jobs = {launch.node for launch in assignment.launches}, assignment.catalog.jobs
    seats = assignment.seats
    return {i for i in tasks if not jobs[i].reuse or launched.isdisjoint(seats.get(i, ()))}


def base_for(
    start: Assignment, found: Assignment, stay: Collection[int], *, with_launches: bool = False
) -> Assignment:
    """An assignment in which of all tasks that `found` seats only those are seated, where they are there."""
    new = start.copy()
    number: dict[int, int] = {}
    option_of = {launch.node: launch for launch in found.launches}
    for launch in found.launches if with_launches else ():
        number[launch.node] = len(new.free)
        new.launch_idle(launch.option, 1, launch.name)
    for index, seats in sorted(found.seats.items()):
        if index not in stay:
            continue
        job = start.catalog.jobs[index]
        own = []
        for node in seats:
            if node in option_of and node not in number:
                number[node] = len(new.free)
                new.launch_idle(option_of[node].option, 1, option_of[node].name)
            own.append(number.get(node, node))
            new.fill(own[-1], job.request.fit[new.kind_of[own[-1]]])
        new.seats[index] = own
        for rank in range(len(own)):
            if volumes := found.volumes.get((index, rank)):
                hold(new, job, rank, volumes)
    return new


def best_try(assignment: Assignment, job: Job, domains: Iterable[Domain] | None = None) -> Try | None:
    """The best domain, or the one that came furthest; None where no domain fits at all. `domains` are those
    that are looked at; by default all.
    """
    if domains is None and job.unconstrained and job.request.one_area:
        return _best_cluster(assignment, job)
    every = assignment.catalog.domains(job.request)
    tries = [_try(assignment, job, domain) for domain in (every if domains is None else domains)]
    best = min(tries, key=lambda found: found.rank, default=None)
    if best is None or best.failed is None:
        return best
    begin = assignment.allowed_homes
    for other in homes_to_try(assignment, job.request):
        assignment.allowed_homes = other
        for domain in every:
            found = _try(assignment, job, domain)
            found.begin = other
            best = min(best, found, key=lambda found: found.rank)
    assignment.allowed_homes = begin
    return best


def _best_cluster(assignment: Assignment, job: Job) -> Try | None:
    """The best domain of a cluster: those first where something is idle, then those where all is launched.

    Of the latter the cheapest come first, and only those are tried that may be better than the best so far.
    """
    catalog, room = assignment.catalog, assignment.fleet_room
    every = catalog.candidates(job.request)
    if not every:
        return None
    idle = {
        catalog.kinds[kind].fleet for kind, pile in assignment.idle_by_size.items() if pile
    } | catalog.owing
    best = _Best(assignment, job)
    rest: list[Candidate] = []
    for candidate in every:
        if candidate.fleet in idle:
            best.look(candidate)
        elif room[candidate.fleet] != 0:
            rest.append(candidate)
    if not job.reuse:
        best.launch(rest)
    if best.found is None:
        best.look(min(every, key=lambda candidate: candidate.index))
    return best.found


def _holds(room: int | None, candidate: Candidate) -> int:
    """How many ranks a fleet can hold in an area at most, if it may launch so many nodes."""
    return UNLIMITED if room is None else room * candidate.per


class _Best:
    """The best of the domains that were tried; of equals the first in the order of domains."""

    def __init__(self, assignment: Assignment, job: Job) -> None:
        self.assignment, self.job = assignment, job
        self.found: Try | None = None
        self._key: tuple[float, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether there is no place for all ranks, so far."""
        return self.found is None or self.found.failed is not None

    @property
    def seated(self) -> int:
        """How many ranks found a place."""
        return len(self.found.nodes) if self.found else 0

    def launch(self, candidates: Sequence[Candidate]) -> None:
        """Try areas where all is launched: those first that may hold all ranks."""
        room = self.assignment.fleet_room
        self._cheapest([c for c in candidates if _holds(room[c.fleet], c) >= self.job.ranks])
        if self.failed:
            for candidate in candidates:
                if _holds(room[candidate.fleet], candidate) >= self.seated:
                    self.look(candidate)

    def _cheapest(self, candidates: Iterable[Candidate]) -> None:
        """Try the cheapest first, until the others cost more; of fleets that may launch the same, one."""
        seen: set[object] = set()
        for candidate in candidates:
            if not self.failed and self.found and self._dearer(candidate, self.found):
                break
            untouched = not self.assignment.allowed_homes and not self.assignment.new_kinds.get(
                candidate.fleet
            )
            if not untouched or candidate.alike is None or candidate.alike not in seen:
                self.look(candidate)
            if untouched:
                seen.add(candidate.alike)

    def _dearer(self, candidate: Candidate, found: Try) -> bool:
        return candidate.floor * self.job.ranks > found.cost + CENT

    def look(self, candidate: Candidate) -> None:
        """Try one."""
        found = _try_plain(self.assignment, self.job, candidate.domain)
        key = (*found.rank, candidate.index)
        if self.found is None or key < self._key:
            self.found, self._key = found, key


def homes_to_try(assignment: Assignment, request: Request) -> list[Mapping[str, frozenset[Home]]]:
    """Where else cluster fleets could begin that have no nodes yet, for ranks that may lie anywhere.

    The first launch decides where a fleet lies; the cheapest place may not hold the rest.
    """
    if request.one_area:
        return []
    return [
        {**assignment.allowed_homes, fleet: frozenset((home,))}
        for fleet, home in open_homes(assignment, [request])
    ]


def open_homes(assignment: Assignment, requests: Iterable[Request]) -> list[tuple[str, Home]]:
    """The places where cluster fleets may begin that have more than one to choose from; a few at most."""
    if all(assignment.cluster_homes.values()):
        return []
    homes: dict[str, dict[Home, None]] = {}
    for request in requests:
        for option, _, _ in assignment.catalog.options_in(request, ANYWHERE):
            if not assignment.cluster_homes.get(option.fleet, True) and assignment.may_launch(option):
                homes.setdefault(option.fleet, {})[option.home] = None
    found = [(fleet, home) for fleet, own in sorted(homes.items()) if len(own) > 1 for home in sorted(own)]
    return found[:MOST_HOMES]


def _try(assignment: Assignment, job: Job, domain: Domain) -> Try:
    if job.unconstrained:
        return _try_plain(assignment, job, domain)
    return BoundTask(assignment, job, domain).run()


def _try_plain(assignment: Assignment, job: Job, domain: Domain) -> Try:
    choice = allocate(assignment, job.request, job.ranks, SearchArea(domain=domain, reuse=job.reuse))
    seated = job.ranks - choice.short
    return Try(
        domain=domain,
        nodes=dict.fromkeys(range(seated), -1),
        failed=seated if choice.short else None,
        cost=choice.cost,
        waste=choice.waste,
        launches=choice.launches,
    )


def seat_partly(assignment: Assignment, job: Job, found: Try) -> dict[int, dict[int, str]]:
    """Seat the ranks that found a place although the task did not: node → who sits there, for a refusal.

    The blocks are made-up numbers below 0: which ones they would be was never decided.
    """
    if not job.unconstrained or not found.nodes:
        return {}
    ground = SearchArea(domain=found.domain, reuse=job.reuse)
    choice = allocate(assignment, job.request, job.ranks, ground)
    out: dict[int, dict[int, str]] = {}
    nodes = commit(assignment, choice, job.ranks - choice.short)
    for rank, node in enumerate(sorted(nodes)):
        held = out.setdefault(node, {})
        holder = f"rank/{rank_name(str(job.task.name), job.ask.number(rank))}"
        for _ in range(job.request.fit[assignment.kind_of[node]]):
            held[-len(held) - 1] = holder
    return out
