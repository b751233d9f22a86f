"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it.

It also finds changes that make refused tasks fit. A change is shown only if another plan was made with it.

A change is a remedy if all tasks that had a place have one, and the tasks that it is for get one. Several
tasks may share a change: the most nodes of a fleet, or the limit of an offer. It is a remedy for all of them
together then, since else each would be told of a node that another one takes. No remedy changes more than it
has to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from declarative.model.record import struct
from declarative.model.state import natural
from declarative.placement.admission import TooMuchWorkError
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import finish
from declarative.placement.catalog import Catalog
from declarative.placement.counted import EXACT
from declarative.placement.demand import Job
from declarative.placement.gangs import Seating
from declarative.placement.optimum import Known
from declarative.placement.passes import SEAT_WORK
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome, Refusal, Remedy, VolumeAt
from declarative.placement.refusals import Refusals
from declarative.placement.search import Search
from declarative.placement.whatif import Change, Changes, Limit

MOST_REFUSALS = 50
"""Changes are looked for of so many refusals. Tasks that are alike count once."""

NAMED = 4
"""So many changes are named of one task."""

LEAST_PLANS, MOST_PLANS, MOST_PLANNED = 5, 20, 1_500
"""How often a plan is made again for all of them, at least and at most; and the tasks in these plans, if they
are more than the least.
"""

SHARED = 0.75
"""The part of the work that may go into changes that tasks share."""

PASSES = 3
"""So many times a plan seats all tasks at least."""

CLOSER = 8
"""How many times as often, and as long, if it is about one task."""

ALL_WORK, MOST_WORK, LEAST_WORK = 280, 120, 25
"""The work of a plan and its hints together; of hints alone at most, and at least. This is for so many tasks
as are in `MANY`, and for `EXACT` or fewer.
"""

MANY, FEWER, TIMES = 350, 0.85, 1.5
"""For others it is in proportion to their number, within these two times as much."""


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
    *,
    effort: int = 1,
    about: str | None = None,
) -> PlacementOutcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow.

    Deterministic: the order of `asks` and `nodes` does not matter, and ties break by name. A task is placed
    with all of its ranks or is refused. `effort` is how many times as long as usual the cheapest launches are
    looked for. `about` is a task: what would make that one fit is looked for longer, and of no other.
    """
    return Placed(Catalog(asks, nodes, fleets, volumes), effort).outcome(about)


class Placed:
    """Where all tasks go. Why some have no place is said by `outcome`, which takes as long again."""

    def __init__(self, catalog: Catalog, effort: int = 1) -> None:
        self.catalog, self.effort = catalog, effort
        self.known = Known()
        self.found = Search(catalog, effort, self.known).run()
        self.finished = finish(self.found.assignment)

    @property
    def used(self) -> frozenset[str]:
        """The nodes where tasks go."""
        return frozenset(choice.node for choice in self.finished.choices)

    @property
    def refused(self) -> int:
        """How many ranks have no place."""
        return sum(job.ranks for job in self.found.left)

    def outcome(
        self, about: str | None = None, *, shared: bool = True, seated: Collection[str] | None = None
    ) -> PlacementOutcome:
        """All of it, with the reasons, and with changes that tasks share if those are wanted. No change takes
        the place of a task that is `seated` in the end, by default of those that are so here.
        """
        found, finished = self.found, self.finished
        refusals: Sequence[Refusal] = ()
        remedies: Sequence[Remedy] = ()
        if found.left:
            sought = Remedies(
                self.catalog, found, self.known, self.effort, about, shared=shared, seated=seated
            )
            told = Refusals(self.catalog, found.assignment, finished, self._may_seat_alone)
            refusals = told.of(found.left, sought.of, found.proved)
            remedies = sought.shared
        return PlacementOutcome(
            choices=tuple(finished.choices),
            refusals=tuple(sorted(refusals, key=lambda r: (natural(r.task), r.task))),
            remedies=tuple(remedies),
            launches=finished.launches,
            short_fleets=tuple(sorted(found.short.items())),
            zones=dict(sorted(finished.zones.items())),
            bound=found.bound,
        )

    def _may_seat_alone(self, start: Assignment, job: Job) -> bool:
        """Whether a task finds a place, from an assignment on, if no other is asked for, or may do so."""
        return Search(self.catalog, self.effort, self.known, start).may_seat_alone(job)


@struct(slots=True)
class _Shared:
    """A limit that refused tasks share."""

    used: int
    need: int = 0
    """How much more all of them would need, each after the other."""
    jobs: list[Job] = field(default_factory=list)


class Remedies:
    """The remedies of one plan: those that tasks share, and those of each task."""

    def __init__(
        self,
        catalog: Catalog,
        found: Seating,
        known: Known,
        effort: int,
        about: str | None = None,
        *,
        shared: bool = True,
        seated: Collection[str] | None = None,
    ) -> None:
        """With `about`, of all tasks that were refused only that one matters."""
        self.catalog, self.known, self.effort = catalog, known, effort
        self.changes = Changes(catalog, found.assignment)
        self.placed = set(found.assignment.seats)
        if seated is not None:
            self.placed = {job.index for job in catalog.jobs if job.task.name in seated}
        left = [job for job in found.left if job.index not in self.placed]
        closer = CLOSER if about else 1
        few = len(catalog.jobs) <= EXACT
        scale = effort * (1 if few else min(TIMES, max(FEWER, len(catalog.jobs) / MANY)))
        work = max(LEAST_WORK * scale, min(MOST_WORK * scale, ALL_WORK * scale - known.total))
        one_plan = PASSES * SEAT_WORK * len(catalog.jobs)
        work = max(work, one_plan) if about else work
        self.work = known.total + work * closer
        """`known` may come to so much."""
        plans = min(MOST_PLANS, max(LEAST_PLANS, MOST_PLANNED // len(catalog.jobs)))
        self.plans = plans * closer if one_plan <= work else 0
        """How many more may be made: none if there is no time for one, unless it is about one task."""
        kinds: dict[object, list[Job]] = {}
        for job in sorted(left, key=lambda job: job.task.name != about):
            kinds.setdefault(_key(job), []).append(job)
        every = dict(list(kinds.items())[:MOST_REFUSALS])
        self.kinds = dict(list(every.items())[:1]) if about else every
        """Refused tasks, those together that are alike and have one priority."""
        self.shared: list[Remedy] = []
        self._own: dict[object, list[str]] = {key: [] for key in self.kinds}
        self._unknown: set[object] = set()
        """Tasks of which not all changes were tried."""
        if self.plans:
            plans, until = self.plans, self.work
            self.work = known.total + SHARED * (until - known.total)
            self._find_shared(every if shared else {})
            self.plans, self.work = max(self.plans, plans // 2), until
            self._find_own()
        else:
            self._unknown.update(self.kinds)

    def of(self, job: Job) -> tuple[str, ...] | None:
        """What to write, as `with …` or `without …`; empty where nothing is enough, None if not known."""
        key = _key(job)
        if key not in self.kinds:
            return None
        name = str(job.task.name)
        shared = [
            r.text if len(r.tasks) == 1 else f"{r.text} (fits {len(r.tasks)} tasks)"
            for r in self.shared
            if name in r.tasks
        ]
        found = (*shared, *self._own[key])[:NAMED]
        return found if found or key not in self._unknown else None

    def _seated(
        self, asks: Mapping[int, Ask], fleets: Mapping[str, FleetRule], needed: Collection[int] = ()
    ) -> set[int] | None:
        """The tasks that a plan with other asks, or other fleets, seats; None if too many were made.

        With `needed`, only whether it seats all of these tasks is right.
        """
        self.plans = self.plans - 1 if self.known.total <= self.work else -1
        if self.plans < 0:
            return None
        changed = [asks.get(job.index, job.ask) for job in self.catalog.jobs]
        catalog = Catalog(changed, self.catalog.nodes, fleets, self.catalog.volumes)
        try:
            return set(Search(catalog, self.effort, self.known, until=self.work).seated(needed))
        except TooMuchWorkError:
            self.plans = -1
            return None

    # What tasks share

    def _find_shared(self, every: Mapping[object, list[Job]]) -> None:
        """Of those tasks too that nobody asks about: they take what a limit leaves."""
        found: dict[Limit, _Shared] = {}
        for key, jobs in every.items():
            for limit, used, value in self.changes.shared(jobs[0]):
                shared = found.setdefault(limit, _Shared(used))
                shared.jobs += jobs
                shared.need += (value - used) * len(jobs)
            if not self.changes.tries:
                self._unknown.add(key)
        mine = {job.index for jobs in self.kinds.values() for job in jobs}
        for limit, shared in sorted(found.items(), key=lambda item: -len(item[1].jobs)):
            if mine.isdisjoint(job.index for job in shared.jobs):
                continue
            remedy = self._least(limit, shared)
            if remedy:
                self.shared.append(remedy)

    def _least(self, limit: Limit, shared: _Shared) -> Remedy | None:
        """The least value with which as many of the tasks fit as can."""
        wanted = {job.index for job in shared.jobs}
        low, high = shared.used + 1, shared.used + shared.need
        enough = self.plans >= 1 + (high - low).bit_length()
        best = self._seated({}, limit.rules(self.catalog, high)) if enough else None
        if best is None:  # or the least value could not be found any more
            self._unknown.update(map(_key, shared.jobs))
        if best is None or not self.placed <= best or not best & wanted:
            return None
        helped = best & wanted
        least = self._least_value(limit, low, high, self.placed | helped)
        if least is None:
            self._unknown.update(map(_key, shared.jobs))
            return None
        names = tuple(str(job.task.name) for job in self.catalog.jobs if job.index in helped)
        return Remedy(text=limit.text(self.catalog, least), tasks=names, fleet=limit.fleet)

    def _least_value(self, limit: Limit, low: int, high: int, needed: set[int]) -> int | None:
        """The least value with which all of these tasks are seated; `high` is enough. None if too many plans
        were made.
        """
        while low < high:
            middle = (low + high) // 2
            now = self._seated({}, limit.rules(self.catalog, middle), needed)
            if now is None:
                return None
            low, high = (low, middle) if needed <= now else (middle + 1, high)
        return high

    # What is of one task

    def _find_own(self) -> None:
        """Look for one more change of each task, turn by turn, while plans may be made."""
        # The last of those that are alike: of equals a plan seats the first, so it is true of all of them.
        tried = {key: self.changes.own(jobs[-1]) for key, jobs in self.kinds.items()}
        while tried:
            if self.plans <= 0 or not self.changes.tries:
                self._unknown.update(tried)
                return
            for key, changes in list(tried.items()):
                if self.plans < 0:
                    self._unknown.update(tried)
                    return
                if not self._find_one(key, changes):
                    del tried[key]

    def _find_one(self, key: object, changes: Iterator[Change]) -> bool:
        """Look for one more change of a task; whether there may be another one worth a name."""
        found = self._next(self.kinds[key][-1], changes)
        if found is not None:
            self._own[key].append(found.text)
        if self.plans < 0 or not self.changes.tries:
            self._unknown.add(key)
        return found is not None and len(self._own[key]) < NAMED

    def _next(self, job: Job, changes: Iterator[Change]) -> Change | None:
        """The next change with which the task fits beside all others, as little of it as will do."""
        for found in changes:
            change = found
            if not self._helps(job, change):
                continue
            while change.milder and (less := change.milder()) and self._helps(job, less):
                change = less
            # Without the plan that shows that less does not do, it may be more than is needed.
            return change if self.plans >= 0 else None
        return None

    def _helps(self, job: Job, change: Change) -> bool:
        needed = self.placed | {job.index}
        seated = self._seated({job.index: change.ask}, self.catalog.fleets, needed)
        return seated is not None and needed <= seated


def _key(job: Job) -> object:
    """Equal for tasks of which a change that helps one helps each: a higher priority would take the place of
    others that keep theirs beside a lower one.
    """
    return job.likeness, job.task.priority
