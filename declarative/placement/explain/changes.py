"""The changes that might make a refused task fit: each is tried alone, on the finished plan.

`ChangeFinder` tries each with the search's own `best_try`, beside everything that was placed, and leaves the
assignment as it was. `ConfirmedChanges` plans again with those that look good. The limits of a fleet itself
(`resources`, `max_price`, …) are not tried: placement is given only the offers that keep them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from declarative.model.record import struct
from declarative.model.resource import Offer, RankMount
from declarative.model.spec import CreationPolicy, SpotPolicy, Task
from declarative.model.spec.values import MAX_COUNT, Count, Gpu, Level, Placement, Resources
from declarative.placement.assignment import SEAT_WORK, Assignment
from declarative.placement.catalog import ANYWHERE, Catalog, Domain, Job, is_spread
from declarative.placement.greedy import Seating, best_try
from declarative.placement.problem import Ask, FleetRule, Quota, Remedy, quota_of
from declarative.placement.program.solver import SolverCache

MOST_REFUSALS = 50
"""The most refusals whose changes are looked for. Tasks that are alike count once."""

NAMED = 4
"""The most changes that are named of one task."""

LEAST_PLANS, MOST_PLANS, MOST_PLANNED = 5, 20, 1_500
"""How often a plan is made again for all of them, at least and at most; and the tasks in these plans, if they
are more than the least.
"""

SHARED = 0.75
"""The part of the work that may go into changes that tasks share."""

PASSES = 3
"""How often a plan seats all tasks, at least."""

CLOSER = 8
"""How many times as often, and as long, if it is about one task."""

ALL_WORK, MOST_WORK, LEAST_WORK = 280, 120, 25
"""The work of a plan and its hints together; of hints alone at most, and at least."""

MOST_TRIES = 1_500
MOST_EFFORT = 2_000_000
"""Tries for all of them together, and kinds of nodes that are looked at in them: an answer in time matters
more than the last word on the fiftieth refusal.
"""

MOST_VALUES = 8
"""Values of one list (`regions`, …) that are tried one by one."""


@struct(frozen=True, slots=True)
class Change:
    """What one task would ask for instead, and how to write that."""

    text: str
    ask: Ask
    milder: Callable[[], Change | None] | None = None
    """The next change of the same field that changes less; None if there is none."""


@struct(frozen=True, slots=True)
class SharedLimit:
    """What several tasks share: the most nodes of a fleet, or the `limit` of an offer."""

    fleet: str | None = None
    quota: Quota | None = None

    def text(self, catalog: Catalog, value: int) -> str:
        """How to write another value."""
        if self.fleet is not None:
            rule = catalog.fleets[self.fleet]
            assert rule.fleet.nodes is not None
            nodes = replace(rule.fleet.nodes, max=value)
            return f"with `nodes: {yaml(nodes.plain())}` of fleet/{self.fleet}"
        assert self.quota is not None
        backend, _, instance_type, spot = self.quota
        return f"with `limit: {value}` for {instance_type}{' (spot)' if spot else ''} of {backend}"

    def rules(self, catalog: Catalog, value: int) -> Mapping[str, FleetRule]:
        """The fleets with that value. All entries of an instance type have it then, or more."""
        out = dict(catalog.fleets)
        if self.fleet is not None:
            rule = out[self.fleet]
            assert rule.fleet.nodes is not None
            nodes = replace(rule.fleet.nodes, max=value)
            out[self.fleet] = replace(rule, fleet=replace(rule.fleet, nodes=nodes))
            return out
        assert self.quota is not None
        backend, _, instance_type, _ = self.quota
        for name, rule in out.items():
            offers = ((o, _is_entry(o, backend, instance_type)) for o in rule.offers)
            more = tuple(replace(o, limit=max(o.limit or 0, value)) if own else o for o, own in offers)
            out[name] = replace(rule, offers=more)
        return out


def _is_entry(offer: Offer, backend: str, instance_type: str) -> bool:
    """Whether it is one of an instance type that has a limit."""
    return (offer.backend, offer.instance_type) == (backend, instance_type) and offer.limit is not None


class ChangeFinder:
    """Finds changes with which a refused task may fit."""

    def __init__(self, catalog: Catalog, assignment: Assignment) -> None:
        self.catalog = catalog
        self.assignment = assignment
        self.tries = min(MOST_TRIES, MOST_EFFORT // (1 + len(catalog.kinds)))
        """How many more may be made."""
        self._sizes: dict[str, list[int]] = {}

    def own(self, job: Job) -> Iterator[Change]:
        """Changes of the task itself; what changes little of what is asked for comes first."""
        yield from self._creation(job)
        yield from self._ways(job)
        yield from self._price(job)
        yield from self._lists(job)
        yield from self._mounts(job)
        yield from self._upper_bounds(job)
        yield from self._vendors(job)
        yield from self._fewer_nodes(job)
        yield from self._lower_bounds(job)

    def shared(self, job: Job) -> Iterator[tuple[SharedLimit, int, int]]:
        """Limits that several tasks share: what the plan uses of each, and what this one would need."""
        yield from self._maxima(job)
        yield from self._offer_limits(job)

    def _maxima(self, job: Job) -> Iterator[tuple[SharedLimit, int, int]]:
        """The most nodes of fleets."""
        launched = Counter(x.option.fleet for x in self.assignment.launches)
        for name, rule in self.catalog.fleets.items():
            room = self.assignment.fleet_room[name]
            if rule.fleet.nodes is None or room is None or rule.shrinks:
                continue
            if job.task.fleets and name not in job.task.fleets:
                continue
            # A cluster fits in another fleet no more than before.
            domains = [d for d in self.catalog.domains(job.request) if not d.area or d.area.fleet == name]
            more = self._more(self.assignment.fleet_room, name, job, domains) if domains else None
            used = rule.existing + launched[name] + room
            if more is not None and used + more <= MAX_COUNT:
                yield SharedLimit(fleet=name), used, used + more

    def _offer_limits(self, job: Job) -> Iterator[tuple[SharedLimit, int, int]]:
        """The limits of offers: one for all entries of an instance type, whatever the region."""
        there = Counter(map(quota_of, self.catalog.nodes))
        there.update(launch.option.quota for launch in self.assignment.launches)
        limited_entries: set[Quota] = set()
        for quota in dict.fromkeys(o.quota for o, _, _ in self.catalog.options_in(job.request, ANYWHERE)):
            entry = (quota[0], "", quota[2], quota[3])
            more = None if entry in limited_entries else self._more(self.assignment.quota_left, quota, job)
            if more is not None:
                limited_entries.add(entry)
                used = there[quota] + (self.assignment.quota_left[quota] or 0)
                offers = (o.offer for o in self.catalog.options if _is_entry(o.offer, quota[0], quota[2]))
                yield SharedLimit(quota=quota), min((used, *(o.limit or 0 for o in offers))), used + more

    # Trying

    def _fits(self, job: Job, ask: Ask | None = None, domains: Sequence[Domain] | None = None) -> bool:
        """Whether the job would fit if it were asked for otherwise."""
        if not self.tries:
            return False
        self.tries -= 1
        best = best_try(self.assignment, self.catalog.job(job.index, ask) if ask else job, domains)
        return best is not None and best.failed is None

    def _if(self, job: Job, text: str, task: Task | None = None, **more: Any) -> Iterator[Change]:
        """The change, if it is enough. `more` are other fields of the ask."""
        ask = _asked(job, task, **more)
        if self._fits(job, ask):
            yield Change(text, ask)

    def _more(
        self,
        limits: dict[Any, int | None],
        key: object,
        job: Job,
        domains: Sequence[Domain] | None = None,
    ) -> int | None:
        """By how much a limit has to grow for the job, at least; None if that does not help in any domain."""
        base = limits[key]
        if base is None or base >= job.ranks:
            return None
        try:
            limits[key] = base + job.ranks
            if not self._fits(job, domains=domains):
                return None
            low, high = 1, job.ranks
            while low < high:
                middle = (low + high) // 2
                limits[key] = base + middle
                low, high = (low, middle) if self._fits(job, domains=domains) else (middle + 1, high)
            return low
        finally:
            limits[key] = base

    # How it is placed

    def _creation(self, job: Job) -> Iterator[Change]:
        if job.ask.reuse:
            yield from self._if(job, "without `--reuse`", reuse=False)
        policy = CreationPolicy.REUSE_OR_CREATE
        if job.task.creation_policy is not policy:
            task = replace(job.task, creation_policy=policy)
            yield from self._if(job, f"with `creation_policy: {policy.value}`", task)

    def _ways(self, job: Job) -> Iterator[Change]:
        task = job.task
        if task.whole_nodes:
            yield from self._if(job, "with `exclusive: false`", replace(task, exclusive=False))
        if task.cluster:
            loose = replace(task, placement=Placement.ANY, same=None)
            yield from self._if(job, "with `placement: any`", loose)
        if job.request.one_area and task.same != "region":
            yield from self._if(job, "with `same: region`", replace(task, same=Level("region")))
        if is_spread(task):
            yield from self._if(job, "without `spread`", replace(task, spread=None))
        auto = SpotPolicy.AUTO
        if task.spot_policy not in (None, auto):
            yield from self._if(job, "with `spot_policy: auto`", replace(task, spot_policy=auto))

    def _price(self, job: Job) -> Iterator[Change]:
        """The least price of a node that makes it fit."""
        task, cap = job.task, job.task.max_price
        if cap is None:
            return
        prices = sorted({k.price for k in self.catalog.kinds if k.price is not None and k.price > cap})
        change = self._first(
            job, prices, lambda p: (f"with `max_price: {yaml(p)}`", replace(task, max_price=p))
        )
        if change:
            yield change
        else:
            text = "without `max_price` (some prices are unknown)"
            yield from self._if(job, text, replace(task, max_price=None))

    def _lists(self, job: Job) -> Iterator[Change]:
        """Limits to some fleets, backends, regions and nodes: one more, or none at all."""
        known = {
            "fleets": list(self.catalog.fleets),
            "backends": sorted({k.backend for k in self.catalog.kinds}),
            "regions": sorted({k.region for k in self.catalog.kinds}),
            "instances": [],
        }
        for name, names in known.items():
            listed: tuple[str, ...] = getattr(job.task, name)

            def ask(names: tuple[str, ...], name: str = name) -> Ask:
                return _asked(job, replace(job.task, **{name: names}))  # type: ignore[arg-type]

            if not listed or not self._fits(job, ask(())):
                continue
            longer = [(*listed, other) for other in names if other not in listed][:MOST_VALUES]
            enough = next((names for names in longer if self._fits(job, ask(names))), ())
            text = f"with `{name}: {yaml(enough)}`" if enough else f"without `{name}`"
            yield Change(text, ask(enough))

    def _mounts(self, job: Job) -> Iterator[Change]:
        mounts: tuple[tuple[RankMount, ...], ...] = job.ask.want.mounts
        paths = dict.fromkeys(m.path for rank in mounts for m in rank)
        for path in list(paths)[:MOST_VALUES]:
            rest = tuple(tuple(m for m in rank if m.path != path) for rank in mounts)
            yield from self._if(job, f"without `{path}` in `volumes`", mounts=rest)

    def _fewer_nodes(self, job: Job) -> Iterator[Change]:
        """As many ranks as found a place, if those would do alone; else half as many, and so on."""
        best = best_try(self.assignment, job)
        count = max(1, min(len(best.nodes) if best else 0, job.ranks - 1))
        while job.ranks > 1 and count:
            change = _fewer(job, count)
            if self._fits(job, change.ask):
                yield change
                return
            count //= 2

    # What it asks for

    def _upper_bounds(self, job: Job) -> Iterator[Change]:
        """One bound lifted, or any model of GPU."""
        for name, have in _bounds(job.task.resources):
            if have.max is not None:
                new = replace(have, max=None)
                yield from self._if(job, _said(job.task, name, new), _asking(job.task, name, new))
        gpu = job.task.resources.gpu
        if gpu and (gpu.names or gpu.vendor):
            free = replace(gpu, names=(), vendor=None)
            yield from self._if(job, f"with `gpu: {free.plain()}` in `resources`", _sized(job.task, gpu=free))

    def _vendors(self, job: Job) -> Iterator[Change]:
        """GPUs of any model that fits: who names those of several vendors lets a gang mix them."""
        gpu, fit = job.task.resources.gpu, job.request.fit
        if gpu and job.request.one_vendor:
            names = sorted({name for k in fit if (name := self.catalog.kinds[k].shape.gpu_name)})
            mixed = replace(gpu, names=tuple(names))
            if len(names) > 1:
                text = f"with `gpu: {mixed.plain()}` in `resources` (GPUs of several vendors)"
                yield from self._if(job, text, _sized(job.task, gpu=mixed))

    def _lower_bounds(self, job: Job) -> Iterator[Change]:
        """The most that can be had of what it asks for."""
        for name, have in _bounds(job.task.resources):
            sizes = [n for n in reversed(self._known(name)) if 0 < n < have.min]

            def change(least: int, name: str = name, have: Any = have) -> tuple[str, Task]:
                new = replace(have, min=least)
                return _said(job.task, name, new), _asking(job.task, name, new)

            if best := self._first(job, sizes, change):
                yield best

    def _known(self, name: str) -> list[int]:
        """The sizes that nodes and shares of nodes have, in one dimension."""
        if name not in self._sizes:
            sizes: set[int] = set()
            for shape, total in {(k.shape, k.total) for k in self.catalog.kinds}:
                whole = {
                    "cpu": shape.cpu,
                    "memory": shape.memory_mib,
                    "disk": shape.disk_mib or 0,
                    "gpu": shape.gpus,
                    "gpu.memory": shape.gpu_memory_mib or 0,
                }[name]
                split = total if name in ("cpu", "memory", "gpu") else 1
                sizes |= {whole // split * b for b in range(1, split + 1)} | {whole}
            self._sizes[name] = sorted(sizes)
        return self._sizes[name]

    def _first(
        self, job: Job, values: Sequence[Any], change: Callable[[Any], tuple[str, Task]]
    ) -> Change | None:
        """The first that fits, of values each of which allows more than those before; None if none does."""

        def at(index: int) -> Change:
            text, task = change(values[index])
            return Change(text, _asked(job, task), (lambda: at(index - 1)) if index else None)

        if not values or not self._fits(job, at(len(values) - 1).ask):
            return None
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(job, at(middle).ask) else (middle + 1, high)
        return at(low)


def _asked(job: Job, task: Task | None = None, **more: Any) -> Ask:
    """The ask of a job with another declaration; `mounts` and `reuse` may be others, too."""
    want = replace(job.ask.want, spec=task or job.task, mounts=more.pop("mounts", job.ask.want.mounts))
    return replace(job.ask, want=want, **more)


def _fewer(job: Job, count: int) -> Change:
    """The task on fewer nodes."""
    mounts, numbers = job.ask.want.mounts[:count], job.ask.numbers[:count]
    ask = _asked(job, replace(job.task, nodes=count), mounts=mounts, numbers=numbers)
    milder = (lambda: _fewer(job, count + 1)) if count + 1 < job.ranks else None
    return Change(f"with `nodes: {count + job.ask.stay}` of the task", ask, milder)


def _bounds(want: Resources) -> list[tuple[str, Any]]:
    """The ranges of a request, by name."""
    gpu = want.gpu
    ranges: list[tuple[str, Any]] = [("cpu", want.cpu), ("memory", want.memory), ("disk", want.disk)]
    if gpu:
        ranges += [("gpu", gpu.count), ("gpu.memory", gpu.memory)]
    return [(name, have) for name, have in ranges if have is not None]


def _sized(task: Task, **fields: Any) -> Task:
    return replace(task, resources=replace(task.resources, **fields))


def _asking(task: Task, name: str, new: Any) -> Task:
    """The task with another range of one resource."""
    if not name.startswith("gpu"):
        return _sized(task, **{name: new})
    return _sized(task, gpu=_gpu(task, name, new))


def _gpu(task: Task, name: str, new: Any) -> Gpu:
    assert task.resources.gpu is not None
    if name == "gpu":
        return replace(task.resources.gpu, count=Count(new.min, new.max))
    return replace(task.resources.gpu, memory=new if new.min or new.max is not None else None)


def _said(task: Task, name: str, new: Any) -> str:
    """What to write for another range of one resource."""
    if not new.min and new.max is None and name != "gpu.memory":
        return f"without `{name}` in `resources`"
    plain = _gpu(task, name, new).plain() if name.startswith("gpu") else new.plain()
    return f"with `{name.partition('.')[0]}: {plain}` in `resources`"


def yaml(value: Any) -> str:
    """A value as it is written in YAML's short form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {yaml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml, value)) + "]"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


@struct(slots=True)
class _Shared:
    """A limit that refused tasks share."""

    used: int
    need: int = 0
    """How much more all of them would need, each after the other."""
    jobs: list[Job] = field(default_factory=list)


class ConfirmedChanges:
    """The changes that another plan has confirmed: those that refused tasks share, and those of each task."""

    def __init__(
        self,
        catalog: Catalog,
        seating: Seating,
        known: SolverCache,
        effort: int,
        plan: Callable[..., Collection[int] | None],
        *,
        about: str | None = None,
        shared: bool = True,
        seated: Collection[str] | None = None,
    ) -> None:
        """`plan` makes another plan up to some work: which tasks it seats; None if that takes more work.
        With `about`, of all tasks that were refused only that one matters.
        """
        self.catalog, self.known, self._plan, self._fullest = catalog, known, plan, seating.fullest
        self.changes = ChangeFinder(catalog, seating.assignment)
        self.placed = set(seating.assignment.seats)
        if seated is not None:
            self.placed = {job.index for job in catalog.jobs if job.task.name in seated}
        refused = [job for job in seating.unseated if job.index not in self.placed]
        closer = CLOSER if about else 1
        work = max(LEAST_WORK * effort, min(MOST_WORK * effort, ALL_WORK * effort - known.work))
        one_plan = PASSES * SEAT_WORK * len(catalog.jobs)
        work = max(work, one_plan) if about else work
        self.work = known.work + work * closer
        """`known` may come to so much."""
        plans = min(MOST_PLANS, max(LEAST_PLANS, MOST_PLANNED // len(catalog.jobs)))
        self.plans = plans * closer if one_plan <= work else 0
        """How many more may be made: none if there is no time for one, unless it is about one task."""
        kinds: dict[object, list[Job]] = {}
        for job in sorted(refused, key=lambda job: job.task.name != about):
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
            self.work = known.work + SHARED * (until - known.work)
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
        changes = (*shared, *self._own[key])[:NAMED]
        return changes if changes or key not in self._unknown else None

    def _seated(
        self, asks: Mapping[int, Ask], fleets: Mapping[str, FleetRule], needed: Collection[int] = ()
    ) -> set[int] | None:
        """The tasks that a plan with other asks, or other fleets, seats; None if too many were made.

        With `needed`, only whether it seats all of these tasks is right.
        """
        self.plans = self.plans - 1 if self.known.work <= self.work else -1
        if self.plans < 0:
            return None
        if fleets is self.catalog.fleets:
            catalog = self.catalog.asking(asks)
        else:
            changed = [asks.get(job.index, job.ask) for job in self.catalog.jobs]
            catalog = Catalog(changed, self.catalog.nodes, fleets, self.catalog.volumes)
        # Beside one more task no plan seats more of the others than could be seated without it.
        most = self._fullest and fleets is self.catalog.fleets
        most = most and not any(self.catalog.jobs[index].ask.prior for index in asks)
        indexes = self._plan(catalog, needed, self.work, most=most)
        if indexes is None:
            self.plans = -1
            return None
        return set(indexes)

    # What tasks share

    def _find_shared(self, every: Mapping[object, list[Job]]) -> None:
        """Find the changes that tasks share. Tasks that nobody asks about count: they take what is left."""
        limits: dict[SharedLimit, _Shared] = {}
        for key, jobs in every.items():
            for limit, used, value in self.changes.shared(jobs[0]):
                shared = limits.setdefault(limit, _Shared(used))
                shared.jobs += jobs
                shared.need += (value - used) * len(jobs)
            if not self.changes.tries:
                self._unknown.add(key)
        mine = {job.index for jobs in self.kinds.values() for job in jobs}
        for limit, shared in sorted(limits.items(), key=lambda item: -len(item[1].jobs)):
            if mine.isdisjoint(job.index for job in shared.jobs):
                continue
            remedy = self._least(limit, shared)
            if remedy:
                self.shared.append(remedy)

    def _least(self, limit: SharedLimit, shared: _Shared) -> Remedy | None:
        """The least value with which as many of the tasks fit as can."""
        low, high = shared.used + 1, shared.used + shared.need
        enough = self.plans >= 1 + (high - low).bit_length()  # to find the least value, too
        seated = self._seated({}, limit.rules(self.catalog, high)) if enough else None
        helped = {job.index for job in shared.jobs} & (seated or set())
        if seated is not None and (not self.placed <= seated or not helped):
            return None
        needed = self.placed | helped
        while seated is not None and low < high:
            middle = (low + high) // 2
            seated = self._seated({}, limit.rules(self.catalog, middle), needed)
            if seated is not None:
                low, high = (low, middle) if needed <= seated else (middle + 1, high)
        if seated is None:
            self._unknown.update(map(_key, shared.jobs))
            return None
        names = tuple(str(job.task.name) for job in self.catalog.jobs if job.index in helped)
        return Remedy(text=limit.text(self.catalog, high), tasks=names, fleet=limit.fleet)

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
        job = self.kinds[key][-1]
        change = next((change for change in changes if self._helps(job, change)), None)
        while change and change.milder and (less := change.milder()) and self._helps(job, less):
            change = less
        if self.plans < 0 or not self.changes.tries:
            self._unknown.add(key)
        # Without the plan that shows that less does not do, it may be more than is needed.
        if change is None or self.plans < 0:
            return False
        self._own[key].append(change.text)
        return len(self._own[key]) < NAMED

    def _helps(self, job: Job, change: Change) -> bool:
        needed = self.placed | {job.index}
        seated = self._seated({job.index: change.ask}, self.catalog.fleets, needed)
        return seated is not None and needed <= seated


def _key(job: Job) -> object:
    """Equal for tasks of which a change that helps one helps each: a higher priority would take the place of
    others that keep theirs beside a lower one.
    """
    return job.likeness, job.task.priority
