"""Claims: idle blocks that a waiting task keeps, so that new tasks of lower priority do not take them.

A task that has no place now, and would have one once others have ended, *claims* the nodes where the fewest
blocks are busy. Of each of these it keeps the idle blocks that it needs. So these nodes only drain, whatever
is asked for meanwhile, and each rank that ends there brings the task nearer to its start. Without claims,
small tasks could take each block that a large one waits for, for ever.

A claim binds new tasks of lower priority only. Such a task may still use what is kept if its `max_duration`
is over before the last claimed block can be free (it is *backfilled*), and on fleets with `backfill: any`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from declarative.model.record import struct
from declarative.model.spec.values import Backfill
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog, Job, LaunchOption
from declarative.placement.consolidation import keep_baselines
from declarative.placement.greedy import Seating, base_for, seat, without_riders
from declarative.placement.problem import GONE, Quota

MOST_CLAIMS = 20
"""Tasks that have claims at once, those of the highest priority: each claim is a search of its own, and the
others claim once these have started.
"""


@struct(frozen=True, slots=True)
class Claim:
    """What one waiting task keeps: idle blocks by the number of their node, and launches."""

    task: str
    priority: int
    needs: Mapping[int, int]
    """Node → all blocks that it needs there…"""
    blocks: Mapping[int, int]
    """…and those of them that are idle now."""
    launches: Mapping[str, int]
    """Fleet → nodes that it may yet launch, of its maximum."""
    quotas: Mapping[Quota, int]
    """The same of the limits of offers."""
    free_in: float
    """Seconds until all of it is free, as far as a `max_duration` says when what runs there ends."""

    def lets_in(self, job: Job) -> bool:
        """Whether a task may use what is kept: its priority is as high, or it ends before that is needed."""
        ends = longest(job)
        return job.task.priority >= self.priority or (ends is not None and ends <= self.free_in)


def longest(job: Job) -> float | None:
    """The `max_duration` of a task, in seconds; None if it has none."""
    return job.task.max_duration.seconds if job.task.max_duration else None


def start_beside(catalog: Catalog, claims: Iterable[Claim]) -> Assignment:
    """What can be used before anything is placed, without what is claimed."""
    assignment = Assignment.start(catalog)
    keep(assignment, claims)
    return assignment


def keep(assignment: Assignment, claims: Iterable[Claim]) -> None:
    """Take what is claimed out of what can be used."""
    for claim in claims:
        _change(assignment, claim, -1)


def release(assignment: Assignment, claims: Iterable[Claim]) -> None:
    """Give back what `keep` took."""
    for claim in claims:
        _change(assignment, claim, 1)


def _change(assignment: Assignment, claim: Claim, sign: int) -> None:
    for node, blocks in claim.blocks.items():
        assignment.fill(node, -sign * blocks)
    for fleet, count in claim.launches.items():
        room = assignment.fleet_room[fleet]
        assignment.fleet_room[fleet] = None if room is None else room + sign * count
    for quota, count in claim.quotas.items():
        rest = assignment.quota_left[quota]
        assignment.quota_left[quota] = None if rest is None else rest + sign * count


def idle_part(assignment: Assignment, claim: Claim) -> Claim:
    """What of a claim is idle in a plan: others may have been let in."""

    def most(rest: int | None, count: int) -> int:
        return count if rest is None else min(rest, count)

    return replace(
        claim,
        blocks={node: min(assignment.free[node], blocks) for node, blocks in claim.blocks.items()},
        launches={f: most(assignment.fleet_room[f], count) for f, count in claim.launches.items()},
        quotas={q: most(assignment.quota_left[q], count) for q, count in claim.quotas.items()},
    )


def find_claims(catalog: Catalog, seating: Seating, claims: Sequence[Claim]) -> list[Claim]:
    """The claims of the waiting tasks of the highest priority that have none yet, beside the `claims` of
    others; none where no new task of lower priority is seated.
    """
    stays = {job.index for job in catalog.jobs if seating.stays(job)}
    new = [job.task.priority for job in catalog.jobs if seating.seats(job) and job.index not in stays]
    lowest = min(new, default=math.inf)
    claimed = {claim.task for claim in claims}
    without: set[object] = set()
    out: list[Claim] = []
    beside: _Beside | None = None
    for job in sorted(seating.unseated, key=lambda job: -job.task.priority):
        priority = job.task.priority
        if priority <= lowest or len(claims) + len(out) == MOST_CLAIMS:
            break
        if out and priority < out[0].priority:
            break
        key = (job.likeness, priority)
        if job.task.name in claimed or not job.request.fit or key in without:
            continue
        if beside is None or beside.priority != priority:
            beside = _Beside(seating, priority, claims, stays)
        if claim := _Claimant(beside, job).claim():
            out.append(claim)
            beside.keep(claim)
        else:
            without.add(key)
    return out


class _Beside:
    """What the waiting tasks of one priority may claim: all beside what stays, the new tasks of at least
    their priority, and the claims of others. It is the same for each of them, and takes long to make.
    """

    def __init__(
        self, seating: Seating, priority: int, claims: Iterable[Claim], stays: Collection[int]
    ) -> None:
        self.catalog, self.priority = seating.assignment.catalog, priority
        jobs, seats = self.catalog.jobs, seating.assignment.seats
        ahead = without_riders(
            seating.assignment, (i for i in seats if i in stays or jobs[i].task.priority >= priority)
        )
        start = Assignment.start(self.catalog)
        keep_baselines(start)
        self.base = base_for(start, seating.assignment, ahead)
        """What is seated there gives its volumes back."""
        holders = self.base.volume_holders.items()
        self.base.volume_holders = {volume: holder for volume, holder in holders if holder == GONE}
        self.total = [self.catalog.kinds[kind].total for kind in self.catalog.kind_of]
        """The blocks of each node that no claim needs."""
        for claim in claims:
            self.keep(claim)
        self.new: list[list[Job]] = [[] for _ in self.total]
        """The new ranks of at least that priority on each node."""
        for index in ahead - set(stays):
            for node in seats[index]:
                if node < len(self.total):
                    self.new[node].append(jobs[index])

    def keep(self, claim: Claim) -> None:
        """Take one more claim out of it."""
        keep(self.base, [claim])
        for node, blocks in claim.needs.items():
            self.total[node] -= blocks


class _Claimant:
    """One waiting task, in a world where that ends which holds the nodes that it may claim."""

    def __init__(self, beside: _Beside, job: Job) -> None:
        self.catalog, self.base, self.job = beside.catalog, beside.base, job
        self.total, self.new = beside.total, beside.new
        self.nodes = sorted(
            self._claimable(), key=lambda node: (self.total[node] - self.base.free[node], node)
        )
        """The nodes that it may claim, the least busy first."""

    def _claimable(self) -> Iterator[int]:
        """Nodes that take work. A cluster with a queue of its own decides itself who comes first."""
        for node, kind in enumerate(self.catalog.kind_of):
            rule = self.catalog.fleets.get(self.catalog.kinds[kind].fleet)
            binds = rule and rule.fleet.backfill is not Backfill.ANY and rule.fleet.partition is None
            if binds and kind in self.job.request.fit and self.base.open[node]:
                yield node

    def claim(self) -> Claim | None:
        """What it keeps; None if it has no place even then. It waits for new tasks of at least its priority
        only if it has no place beside them: these have just begun.
        """
        for beside_new in (True, False):
            idle = list(self.total)
            for node, jobs in enumerate(self.new if beside_new else ()):
                idle[node] -= sum(job.request.fit[self.base.kind_of[node]] for job in jobs)
            if world := self._least_busy(idle):
                return self._claim_in(world)
        return None

    def _least_busy(self, idle: Sequence[int]) -> Assignment | None:
        """The task seated on nodes that have so many idle blocks then, and are the least busy now: the
        busiest of them as little as can be, then the second, and so on. So whatever ends on one of them, no
        other nodes are better than these were before.
        """
        needed: list[int] = []
        best = self._seated(self.nodes, idle)
        while best is not None:
            low, high = 0, len(self.nodes)
            while low < high:
                middle = (low + high) // 2
                if world := self._seated([*needed, *self.nodes[:middle]], idle):
                    high, best = middle, world
                else:
                    low = middle + 1
            used = {*best.seats[self.job.index]}
            if not high or used >= {*needed, *self.nodes[:high]}:
                break
            needed.append(self.nodes[high - 1])
        return best

    def _seated(self, nodes: Iterable[int], idle: Sequence[int]) -> Assignment | None:
        """The task on some nodes, and on what can be launched; None if it has no place there."""
        world = self.base.with_idle({node: idle[node] for node in nodes})
        return world if seat(world, self.job) else None

    def _claim_in(self, world: Assignment) -> Claim:
        fit = self.job.request.fit
        seats = [node for node in world.seats[self.job.index] if node < len(self.total)]
        needs = {node: seats.count(node) * fit[world.kind_of[node]] for node in dict.fromkeys(seats)}
        launched = list(self._launched(world))
        ends = [end for node in needs for end in self._ends(node)]
        return Claim(
            task=str(self.job.task.name),
            priority=self.job.task.priority,
            needs=needs,
            blocks={node: min(need, self.base.free[node]) for node, need in needs.items()},
            launches=Counter(option.fleet for option in launched),
            quotas=Counter(option.quota for option in launched),
            free_in=max(ends, default=0.0),
        )

    def _launched(self, world: Assignment) -> Iterator[LaunchOption]:
        """What it launches, beyond what fleets launch for themselves: that they do all the same."""
        own = dict(self.base.baseline_left)
        for launch in world.launches[len(self.base.launches) :]:
            if own[launch.option.fleet]:
                own[launch.option.fleet] -= 1
            else:
                yield launch.option

    def _ends(self, node: int) -> Iterator[float]:
        """In how many seconds what is busy on a node has ended; 0 if nobody knows."""
        if self.catalog.nodes[node].held:
            yield self.catalog.nodes[node].busy_for or 0.0
        for job in self.new[node]:
            yield longest(job) or 0.0
