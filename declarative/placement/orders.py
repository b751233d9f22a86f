"""In which order tasks are seated, and which kinds are in demand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from declarative.placement.cover import DEAR
from declarative.placement.ledger import Ledger
from declarative.placement.wishes import ANYWHERE, Job

ORDERS = ("regret", "scarce", "size")
"""First what would pay most elsewhere; first what few places serve; first what is large."""

LAST_RESORTS = ("roomy",)
"""By size, and the largest nodes are launched."""


class Orders:
    """The keys of the orders. What they need of a wish is worked out once."""

    def __init__(self, start: Ledger) -> None:
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
            (job.key if job.plain else job.index) not in front,
            by,
            self._size_of(job),
            job.plain,
            -job.ranks,
            job.reuse,
            self._text_of(job),
            job.index,
        )

    def _size_of(self, job: Job) -> tuple[object, ...]:
        """The largest first: what lies together counts as one."""
        found = self._size.get(job.key)
        if found is None:
            wish, want = job.wish, job.task.resources
            cpu = want.cpu.min if want.cpu else 0
            memory = want.memory.min if want.memory else 0
            together = job.ranks if job.task.cluster else 1
            found = self._size[job.key] = (
                not wish.whole,
                -together * wish.gpus,
                -wish.gpus,
                -together * cpu,
                -cpu,
                -memory,
            )
        return found

    def _regret_of(self, job: Job) -> float:
        """What a rank would pay for a block if it had to launch, USD an hour; if it cannot, all there is."""
        found = self._regret.get(id(job.wish))
        if found is None:
            board, wish, best = self.start.board, job.wish, DEAR
            for option, _, per in board.options_in(wish, ANYWHERE):
                price = min(board.kinds[option.kind].cost, DEAR)
                if price / board.most_blocks >= best:
                    break  # the cheapest come first, and no node holds more ranks than it has blocks
                if price / per < best and self.start.may_launch(option):
                    best = price / per
            found = self._regret[id(wish)] = round(best / max(1, wish.least), 2)
        return found

    def _supply_of(self, job: Job) -> int:
        """The blocks that it could use at all, up to 1000 of each offer."""
        found = self._supply.get(id(job.wish))
        if found is None:
            if self._of_kind is None:
                self._of_kind = self._supplies()
            of_kind = self._of_kind
            found = self._supply[id(job.wish)] = sum(of_kind[kind] for kind in job.wish.fit)
        return found

    def _supplies(self) -> list[int]:
        """Kind → idle blocks, and blocks that can be launched."""
        board, out = self.start.board, [0] * len(self.start.board.kinds)
        for kind, pile in self.start.piles.items():
            out[kind] += sum(free * len(ids) for free, ids in pile.items())
        for option in board.options:
            out[option.kind] += min(1000, self.start.most(option) * board.kinds[option.kind].total)
        return out

    def _text_of(self, job: Job) -> str:
        """Something that tells wishes apart, whatever the order of the input."""
        found = self._text.get(id(job.wish))
        if found is None:
            task = job.wish.task
            where = (task.cluster, task.fleets, task.backends, task.regions)
            found = self._text[id(job.wish)] = f"{task.resources}{where}{task.spot_policy}{task.max_price}"
        return found

    def wanted(self, jobs: Sequence[Job]) -> dict[int, int]:
        """Kind → blocks that tasks could want of it: what few can use is given out first."""
        weights: dict[int, int] = {}
        wishes = {id(j.wish): j.wish for j in jobs}
        for job in jobs:
            weights[id(job.wish)] = weights.get(id(job.wish), 0) + job.weight
        # Wishes of one size want the same of a make, and those with the same limits the same kinds.
        by_make: dict[int, dict[int, int]] = {}
        allowed: dict[int, list[int]] = {}
        for key, weight in weights.items():
            wish = wishes[key]
            allowed[wish.limits] = wish.fit.allowed
            makes = by_make.setdefault(wish.limits, {})
            for make, need in wish.fit.needs.items():
                if need:
                    makes[make] = makes.get(make, 0) + weight
        out: dict[int, int] = {}
        make_of = self.start.board.make_of
        for limits, makes in by_make.items():
            for kind in allowed[limits]:
                if wanted := makes.get(make_of[kind]):
                    out[kind] = out.get(kind, 0) + wanted
        return out
