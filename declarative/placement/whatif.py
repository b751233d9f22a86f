"""The single change that would make a refused task fit: each is tried alone, on the finished plan.

What is tried is tried with the search's own `best_try`, so that what is named does fit beside everything
that was placed. The ledger is left as it was. A fleet's own limits (`resources`, `max_price`, …) are not
tried: placement is given only the offers that keep them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from declarative.placement.board import ANYWHERE, Board, Job, is_plain, is_spread, quota_of
from declarative.placement.gangs import best_try
from declarative.placement.ledger import Ledger
from declarative.resource import RankMount
from declarative.spec import CreationPolicy, SpotPolicy, Task
from declarative.spec.fleet import Nodes, Placement
from declarative.spec.text import Level
from declarative.spec.values import MAX_COUNT, Count, Gpu, Resources

MOST_REFUSALS = 50
"""Refusals for which it is worked out; tasks that are alike count once."""

MOST_TRIES = 1_500
MOST_EFFORT = 2_000_000
"""Tries for all of them together, and kinds of nodes that are looked at in them: an answer in time matters
more than the last word on the fiftieth refusal.
"""

NAMED = 4
"""Changes that are named of one task."""

MOST_VALUES = 8
"""Values of one list (`regions`, …) that are tried one by one."""


class Changes:
    """Changes that would make tasks fit which the plan left out."""

    def __init__(self, board: Board, ledger: Ledger) -> None:
        self.board = board
        self.ledger = ledger
        self.asked = 0
        self.tries = min(MOST_TRIES, MOST_EFFORT // (1 + len(board.kinds)))
        """How many more may be made."""
        self._sizes: dict[str, list[int]] = {}

    def of(self, job: Job) -> tuple[str, ...] | None:
        """What to write, as `with …` or `without …`; empty where nothing is enough, None if not known."""
        self.asked += 1
        if self.asked > MOST_REFUSALS or not self.tries:
            return None
        found = tuple(itertools.islice(self._each(job), NAMED))
        return found if found or self.tries else None

    def _each(self, job: Job) -> Iterator[str]:
        """What changes little of what is asked for comes first."""
        yield from self._creation(job)
        yield from self._fleet_sizes(job)
        yield from self._offer_limits(job)
        yield from self._ways(job)
        yield from self._price(job)
        yield from self._lists(job)
        yield from self._mounts(job)
        yield from self._upper_bounds(job)
        yield from self._vendors(job)
        yield from self._fewer_nodes(job)
        yield from self._lower_bounds(job)

    # Trying

    def _fits(self, job: Job, task: Task | None = None, **more: Any) -> bool:
        """Whether the job would fit with another declaration; `more` are other fields of the ask."""
        if not self.tries:
            return False
        self.tries -= 1
        found = best_try(self.ledger, self._job(job, task or job.task, **more), {})
        return found is not None and found.failed is None

    def _job(self, job: Job, task: Task, mounts: Any = None, *, reuse: bool | None = None) -> Job:
        mounts = job.ask.want.mounts if mounts is None else mounts
        want = replace(job.ask.want, spec=task, mounts=mounts)
        flag = job.ask.reuse if reuse is None else reuse
        ask = replace(job.ask, want=want, reuse=flag)
        return Job(
            index=job.index,
            ask=ask,
            wish=self.board.wish(task),
            ranks=task.nodes,
            reuse=flag or task.creation_policy is CreationPolicy.REUSE,
            plain=is_plain(ask),
        )

    def _more(self, limits: dict[Any, int | None], key: object, job: Job) -> int | None:
        """By how much a limit has to grow for the job, at least; None if that does not help."""
        base = limits[key]
        if base is None or base >= job.ranks:
            return None
        try:
            limits[key] = base + job.ranks
            if not self._fits(job):
                return None
            low, high = 1, job.ranks
            while low < high:
                limits[key] = base + (low + high) // 2
                low, high = (low, (low + high) // 2) if self._fits(job) else ((low + high) // 2 + 1, high)
            return low
        finally:
            limits[key] = base

    # What may be launched

    def _creation(self, job: Job) -> Iterator[str]:
        if job.ask.reuse and self._fits(job, reuse=False):
            yield "without `--reuse`"
        policy = CreationPolicy.REUSE_OR_CREATE
        if job.task.creation_policy is not policy and self._fits(
            job, replace(job.task, creation_policy=policy)
        ):
            yield f"with `creation_policy: {policy.value}`"

    def _fleet_sizes(self, job: Job) -> Iterator[str]:
        for name, rule in self.board.fleets.items():
            nodes, room = rule.fleet.nodes, self.ledger.room[name]
            if nodes is None or room is None or (job.task.fleets and name not in job.task.fleets):
                continue
            more = self._more(self.ledger.room, name, job)
            if more is None:
                continue
            mine = sum(1 for x in self.ledger.launches if x.option.fleet == name)
            most = rule.existing + mine + room + more
            if most <= MAX_COUNT:
                text = yaml(Nodes(nodes.min, nodes.target, most).plain())
                yield f"with `nodes: {text}` of fleet/{name}"

    def _offer_limits(self, job: Job) -> Iterator[str]:
        options = {o.quota: o for o, _, _ in self.board.options_in(job.wish, ANYWHERE)}
        said: set[str] = set()
        for quota, option in options.items():
            more = self._more(self.ledger.left, quota, job)
            if more is None:
                continue
            there = sum(1 for node in self.board.nodes if quota_of(node) == quota)
            there += sum(1 for x in self.ledger.launches if x.option.quota == quota)
            limit = there + (self.ledger.left[quota] or 0) + more
            spot = " (spot)" if option.offer.spot else ""
            text = f"with `limit: {limit}` for {option.offer.instance_type}{spot} of {option.offer.backend}"
            if text not in said:  # an entry of a catalog has one limit, whatever the region
                said.add(text)
                yield text

    # How it is placed

    def _ways(self, job: Job) -> Iterator[str]:
        task = job.task
        if task.whole_nodes and self._fits(job, replace(task, exclusive=False)):
            yield "with `exclusive: false`"
        if task.cluster and self._fits(job, replace(task, placement=Placement.ANY, same=None)):
            yield "with `placement: any`"
        if (
            job.wish.together
            and task.same != "region"
            and self._fits(job, replace(task, same=Level("region")))
        ):
            yield "with `same: region`"
        if is_spread(task) and self._fits(job, replace(task, spread=None)):
            yield "without `spread`"
        auto = SpotPolicy.AUTO
        if task.spot_policy not in (None, auto) and self._fits(job, replace(task, spot_policy=auto)):
            yield "with `spot_policy: auto`"

    def _price(self, job: Job) -> Iterator[str]:
        """The least price of a node that makes it fit."""
        task, cap = job.task, job.task.max_price
        if cap is None:
            return
        prices = sorted({k.price for k in self.board.kinds if k.price is not None and k.price > cap})
        found = self._first(prices, lambda price: self._fits(job, replace(task, max_price=price)))
        if found is not None:
            yield f"with `max_price: {yaml(found)}`"
        elif self._fits(job, replace(task, max_price=None)):
            yield "without `max_price` (some prices are unknown)"

    def _lists(self, job: Job) -> Iterator[str]:
        """Limits to some fleets, backends, regions and nodes: one more, or none at all."""
        known = {
            "fleets": list(self.board.fleets),
            "backends": sorted({k.backend for k in self.board.kinds}),
            "regions": sorted({k.region for k in self.board.kinds}),
            "instances": [],
        }
        for field, values in known.items():
            have: tuple[str, ...] = getattr(job.task, field)
            if not have or not self._fits(job, _with(job.task, field, ())):
                continue
            others = [v for v in values if v not in have][:MOST_VALUES]
            more = next((v for v in others if self._fits(job, _with(job.task, field, (*have, v)))), None)
            yield f"with `{field}: {yaml((*have, more))}`" if more else f"without `{field}`"

    def _mounts(self, job: Job) -> Iterator[str]:
        mounts: tuple[tuple[RankMount, ...], ...] = job.ask.want.mounts
        paths = dict.fromkeys(m.path for rank in mounts for m in rank)
        for path in list(paths)[:MOST_VALUES]:
            rest = tuple(tuple(m for m in rank if m.path != path) for rank in mounts)
            if self._fits(job, mounts=rest):
                yield f"without `{path}` in `volumes`"

    def _fewer_nodes(self, job: Job) -> Iterator[str]:
        """As many ranks as found a place, if those would do alone; else half as many, and so on."""
        found = best_try(self.ledger, job, {})
        count = min(len(found.nodes) if found else 0, job.ranks - 1)
        while job.ranks > 1:
            count = max(1, count)
            if self._fits(job, replace(job.task, nodes=count), mounts=job.ask.want.mounts[:count]):
                yield f"with `nodes: {count}` of the task"
                return
            if count == 1:
                return
            count //= 2

    # What it asks for

    def _upper_bounds(self, job: Job) -> Iterator[str]:
        """One bound lifted, or any model of GPU."""
        for name, have in _bounds(job.task.resources):
            if have.max is not None:
                new = replace(have, max=None)
                if self._fits(job, _asking(job.task, name, new)):
                    yield _said(job.task, name, new)
        gpu = job.task.resources.gpu
        if gpu and (gpu.names or gpu.vendor):
            free = replace(gpu, names=(), vendor=None)
            if self._fits(job, _sized(job.task, gpu=free)):
                yield f"with `gpu: {free.plain()}` in `resources`"

    def _vendors(self, job: Job) -> Iterator[str]:
        """GPUs of any model that fits: who names those of several vendors lets a gang mix them."""
        gpu, fit = job.task.resources.gpu, job.wish.fit
        if gpu and job.wish.apart:
            names = sorted({name for k in fit if (name := self.board.kinds[k].shape.gpu_name)})
            mixed = replace(gpu, names=tuple(names))
            if len(names) > 1 and self._fits(job, _sized(job.task, gpu=mixed)):
                yield f"with `gpu: {mixed.plain()}` in `resources` (GPUs of several vendors)"

    def _lower_bounds(self, job: Job) -> Iterator[str]:
        """The most that can be had of what it asks for."""
        for name, have in _bounds(job.task.resources):
            sizes = [n for n in reversed(self._known(name)) if 0 < n < have.min]

            def fits(least: int, name: str = name, have: Any = have) -> bool:
                return self._fits(job, _asking(job.task, name, replace(have, min=least)))

            found = self._first(sizes, fits)
            if found is not None:
                yield _said(job.task, name, replace(have, min=found))

    def _known(self, name: str) -> list[int]:
        """The sizes that nodes and shares of nodes have, in one dimension."""
        if name not in self._sizes:
            found: set[int] = set()
            for shape, total in {(k.shape, k.total) for k in self.board.kinds}:
                whole = {
                    "cpu": shape.cpu,
                    "memory": shape.memory_mib,
                    "disk": shape.disk_mib or 0,
                    "gpu": shape.gpus,
                    "gpu.memory": shape.gpu_memory_mib or 0,
                }[name]
                split = total if name in ("cpu", "memory", "gpu") else 1
                found |= {whole // split * b for b in range(1, split + 1)} | {whole}
            self._sizes[name] = sorted(found)
        return self._sizes[name]

    @staticmethod
    def _first(values: Sequence[Any], fits: Any) -> Any:
        """The first that fits, of values each of which allows more than those before; None if none does."""
        if not values or not fits(values[-1]):
            return None
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(values[middle]) else (middle + 1, high)
        return values[low]


def _with(task: Task, field: str, values: tuple[str, ...]) -> Task:
    return replace(task, **{field: values})  # type: ignore[arg-type]


def _bounds(want: Resources) -> list[tuple[str, Any]]:
    """The ranges of a request, by name."""
    gpu = want.gpu
    found: list[tuple[str, Any]] = [("cpu", want.cpu), ("memory", want.memory), ("disk", want.disk)]
    if gpu:
        found += [("gpu", gpu.count), ("gpu.memory", gpu.memory)]
    return [(name, have) for name, have in found if have is not None]


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
