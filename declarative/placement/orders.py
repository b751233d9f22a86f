"""In which order tasks are seated, which kinds are in demand, how many of a size go to which make of node.

Quotas are the answer of a linear program: as much weight as the free blocks of all makes hold, if tasks and
nodes could be cut. Few numbers in it are fractions. For tasks of one rank that ask for GPUs, on nodes that
are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog
from declarative.placement.cover import DEAR
from declarative.placement.demand import ANYWHERE, Job
from declarative.placement.program import SLACK, Program, SolverLimits

ORDERS = ("regret", "scarce", "size")
"""First what would pay most elsewhere; first what few places serve; first what is large."""

LAST_RESORTS = ("roomy",)
"""By size, and the largest nodes are launched."""


class Orders:
    """The keys of the orders. What they need of a request is worked out once."""

    def __init__(self, start: Assignment) -> None:
        self.start = start
        self._regret: dict[int, float] = {}
        self._supply: dict[int, int] = {}
        self._of_kind: list[int] | None = None
        self._text: dict[int, str] = {}
        self._size: dict[tuple[int, int, bool], tuple[object, ...]] = {}

    def key(
        self, job: Job, order: str, front: Collection[object], *, by_priority: bool = True
    ) -> tuple[object, ...]:
        """Priority first; then those that have a place already; then the hardest ones to place."""
        task = job.task
        by = 0.0
        if order == "regret":
            by = -self._regret_of(job)
        elif order == "scarce":
            by = self._supply_of(job)
        return (
            -task.priority if by_priority else 0,
            not job.ask.prior,
            not task.instances,
            job.likeness not in front,
            by,
            self._size_of(job),
            job.unconstrained,
            -job.ranks,
            job.reuse,
            self._text_of(job),
            job.index,
        )

    def _size_of(self, job: Job) -> tuple[object, ...]:
        """The largest first: what lies together counts as one."""
        found = self._size.get(job.key)
        if found is None:
            request, want = job.request, job.task.resources
            cpu = want.cpu.min if want.cpu else 0
            memory = want.memory.min if want.memory else 0
            together = job.ranks if job.task.cluster else 1
            found = self._size[job.key] = (
                not request.whole,
                -together * request.gpus,
                -request.gpus,
                -together * cpu,
                -cpu,
                -memory,
            )
        return found

    def _regret_of(self, job: Job) -> float:
        """What a rank would pay for a block if it had to launch, USD an hour; if it cannot, all there is."""
        found = self._regret.get(id(job.request))
        if found is None:
            catalog, request, best = self.start.catalog, job.request, DEAR
            for option, _, per in catalog.options_in(request, ANYWHERE):
                price = min(catalog.kinds[option.kind].cost, DEAR)
                if price / catalog.most_blocks >= best:
                    break  # the cheapest come first, and no node holds more ranks than it has blocks
                if price / per < best and self.start.may_launch(option):
                    best = price / per
            found = self._regret[id(request)] = round(best / max(1, request.least), 2)
        return found

    def _supply_of(self, job: Job) -> int:
        """The blocks that it could use at all, up to 1000 of each offer."""
        found = self._supply.get(id(job.request))
        if found is None:
            if self._of_kind is None:
                self._of_kind = self._supplies()
            of_kind = self._of_kind
            found = self._supply[id(job.request)] = sum(of_kind[kind] for kind in job.request.fit)
        return found

    def _supplies(self) -> list[int]:
        """Kind → idle blocks, and blocks that can be launched."""
        catalog, out = self.start.catalog, [0] * len(self.start.catalog.kinds)
        for kind, pile in self.start.idle_by_size.items():
            out[kind] += sum(free * len(ids) for free, ids in pile.items())
        for option in catalog.options:
            out[option.kind] += min(1000, self.start.most(option) * catalog.kinds[option.kind].total)
        return out

    def _text_of(self, job: Job) -> str:
        """Something that tells requests apart, whatever the order of the input."""
        found = self._text.get(id(job.request))
        if found is None:
            task = job.request.task
            where = (task.cluster, task.fleets, task.backends, task.regions)
            found = self._text[id(job.request)] = f"{task.resources}{where}{task.spot_policy}{task.max_price}"
        return found

    def wanted(self, jobs: Sequence[Job]) -> dict[int, int]:
        """Kind → blocks that tasks could want of it: what few can use is given out first."""
        weights: dict[int, int] = {}
        requests = {id(j.request): j.request for j in jobs}
        for job in jobs:
            weights[id(job.request)] = weights.get(id(job.request), 0) + job.weight
        # Wishes of one size want the same of a make, and those with the same limits the same kinds.
        by_make: dict[int, dict[int, int]] = {}
        allowed: dict[int, list[int]] = {}
        for key, weight in weights.items():
            request = requests[key]
            allowed[request.limits] = request.fit.allowed
            makes = by_make.setdefault(request.limits, {})
            for make, need in request.fit.needs.items():
                if need:
                    makes[make] = makes.get(make, 0) + weight
        out: dict[int, int] = {}
        hardware_of = self.start.catalog.hardware_of
        for limits, makes in by_make.items():
            for kind in allowed[limits]:
                if wanted := makes.get(hardware_of[kind]):
                    out[kind] = out.get(kind, 0) + wanted
        return out


FRACTIONS = SolverLimits(nodes=1, columns=0)
MORE_GPUS, SPARED = 1e-2, 1e-4
"""What decides between ways to seat as much weight: a GPU that is asked for, then a block that stays free."""

Make = int
"""A kind of node that stands for all of its shape and split."""


def _capacity(assignment: Assignment, makes: Mapping[Make, Sequence[int]]) -> dict[Make, int]:
    """The free blocks of each make that has any."""
    found = {
        make: sum(
            free * len(ids) for kind in kinds for free, ids in assignment.idle_by_size.get(kind, {}).items()
        )
        for make, kinds in makes.items()
    }
    return {make: blocks for make, blocks in found.items() if blocks}


def quotas(
    assignment: Assignment, jobs: Sequence[Job]
) -> list[tuple[tuple[int, int, bool], frozenset[int], int]]:
    """`(key of the jobs, kinds, how many)`, the ones to place first in front."""
    catalog = assignment.catalog
    makes = _makes(catalog)
    capacity = _capacity(assignment, makes)
    sizes = _sizes(jobs, lambda job: _needs(catalog, job, makes, capacity))
    if all(len(set(needs.values())) == 1 for _, _, needs in sizes):
        return []
    alike = tuple((_worth(job), count, tuple(needs.items())) for job, count, needs in sizes)
    shares = _shares(alike, tuple(capacity.items()))
    out = []
    for index, (job, _, needs) in enumerate(sizes):
        for make, need in needs.items():
            number = int(shares.get((index, make), 0.0) + SLACK)
            if number:
                out.append(((-job.request.gpus, -need, index, make), job.key, frozenset(makes[make]), number))
    return [(key, kinds, number) for _, key, kinds, number in sorted(out, key=lambda o: o[0])]


def _worth(job: Job) -> float:
    return job.weight + MORE_GPUS * job.request.gpus


def _sizes(
    jobs: Sequence[Job], needs_of: Callable[[Job], dict[Make, int]]
) -> list[tuple[Job, int, dict[Make, int]]]:
    """One of the tasks of each size that quotas are for, how many there are, and what each make gives it."""
    counts: dict[tuple[int, int, bool], tuple[Job, int]] = {}
    for job in jobs:
        if job.single and job.request.gpus and not job.request.whole:
            first, count = counts.get(job.key, (job, 0))
            counts[job.key] = (first, count + 1)
    return [(job, count, needs) for job, count in counts.values() if (needs := needs_of(job))]


def _makes(catalog: Catalog) -> dict[Make, list[int]]:
    """Kinds that have the same shape and split."""
    first: dict[object, int] = {}
    out: dict[Make, list[int]] = {}
    for i, kind in enumerate(catalog.kinds):
        make = first.setdefault((kind.shape, kind.total), i)
        out.setdefault(make, []).append(i)
    return out


def _needs(
    catalog: Catalog, job: Job, makes: dict[Make, list[int]], capacity: dict[Make, int]
) -> dict[Make, int]:
    """Make with GPUs → the blocks that a rank takes."""
    fit = job.request.fit
    out: dict[Make, int] = {}
    for make in capacity:
        need = next((fit[k] for k in makes[make] if k in fit), 0)
        if need and catalog.kinds[make].shape.gpus:
            out[make] = need
    return out


@functools.lru_cache(maxsize=64)
def _shares(
    sizes: tuple[tuple[float, int, tuple[tuple[Make, int], ...]], ...], capacity: tuple[tuple[Make, int], ...]
) -> Mapping[tuple[int, Make], float]:
    """Size and make → how many tasks; nothing without HiGHS. Most passes of a search ask the same.

    `sizes`: weight, number of tasks, and the blocks that each make costs. `capacity`: the free blocks.
    """
    program = Program()
    columns: dict[tuple[int, Make], int] = {}
    taken: dict[Make, dict[int, float]] = {make: {} for make, _ in capacity}
    for index, (weight, count, needs) in enumerate(sizes):
        for make, need in needs:
            columns[index, make] = column = program.column(SPARED * need - weight, count)
            taken[make][column] = need
        program.row(0, count, {columns[index, make]: 1.0 for make, _ in needs})
    for make, blocks in capacity:
        program.row(0, blocks, taken[make])
    values = program.solve(FRACTIONS, whole=()).values
    return {key: values[column] for key, column in columns.items()} if values else {}
