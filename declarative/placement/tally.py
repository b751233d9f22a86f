"""Every node and offer, and why a rank could not have it: counted, and the nearest named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.model.spec import Task
from declarative.model.state import natural, rank_name
from declarative.placement.board import Option
from declarative.placement.cover import Try
from declarative.placement.filters import (
    Mismatch,
    block_reason,
    fleet_reason,
    ready_reason,
)
from declarative.placement.requests import Job, is_spread
from declarative.placement.types import (
    SUCH_AS,
    Kind,
    Place,
    Rejection,
    of_offer,
    offer_name,
)
from declarative.placement.volumes import mount_reason

if TYPE_CHECKING:
    from declarative.placement.refusals import Refusals

STRUCTURAL = (
    "fleet",
    "not-cluster",
    "instance",
    "backend",
    "region",
    "zone",
    "topology",
    "spread",
    "gpu-vendor",
    "spot",
    "price",
    "price-unknown",
    "isolation",
    "no-runtime",
    "too-small",
    "too-large",
    "volume-missing",
    "volume-elsewhere",
    "reuse-only",
    "no-offer",
)
"""Codes that no waiting mends; they are named before those that are about capacity."""

MOST_REJECTIONS = 200
"""Up to that many nodes and offers are named one by one; more are counted, by fleet and code."""

OWN = "other ranks of the task have it"
TO_MIX = "a gang mixes vendors only if `gpu` names models of both, or `instances` pins nodes of both"

NAMED = 3
"""Nodes of each fleet and code that are named all the same."""


class Tally:
    """Every node and offer, and why one rank could not have it once its siblings had their places."""

    def __init__(
        self,
        refusals: Refusals,
        job: Job,
        found: Try,
        rank: int,
        seated: Mapping[int, Mapping[int, str]],
        *,
        brief: bool = False,
    ) -> None:
        self.refusals = refusals
        self.board, self.ledger = refusals.board, refusals.ledger
        self.job, self.found, self.rank, self.seated = job, found, rank, seated
        self.counts: Counter[str] = Counter()
        self._mounted: dict[Place, Mismatch | None] = {}
        self._by_code: dict[tuple[str, str], list[tuple[Mismatch, Sequence[int]]]] = {}
        self.own: dict[tuple[str, str], list[tuple[Mismatch, Sequence[int]]]] = {}
        """Nodes that other ranks of the task would have: named where nothing else is to be said."""
        self._offers: dict[tuple[str, str], list[Rejection]] = {}
        if not brief:
            self._nodes()
            self._options()
        self.rejections = self._listing()

    def _nodes(self) -> None:
        nodes = self.refusals.finished.nodes
        pins = set(self.job.task.instances)
        for (kind, _), numbers in self.refusals.alike.items():
            fleet = self.board.kinds[kind].fleet
            left: Sequence[int] = numbers
            if pins or not self.seated.keys().isdisjoint(numbers):
                left = [n for n in numbers if n not in self.seated and (not pins or nodes[n].name in pins)]
                self._note(fleet, not_pinned(self.job.task), [n for n in numbers if pins and n not in left])
                for number in (n for n in numbers if n in self.seated):
                    self._note(fleet, self.of_node(number), [number])
            if left:
                reason = self.of_node(left[0])
                self._note(fleet, reason, left)

    def _note(self, fleet: str, reason: Mismatch | None, numbers: Sequence[int]) -> None:
        if reason and numbers:
            nodes = self.refusals.finished.nodes
            if reason.code in ("not-idle", "busy"):  # of a node that this plan launches it says nothing
                numbers = [n for n in numbers if not nodes[n].new]
        if reason and numbers:
            if reason.detail == OWN:
                self.own.setdefault((fleet, reason.code), []).append((reason, numbers))
                return
            self.counts[reason.code] += len(numbers)
            self._by_code.setdefault((fleet, reason.code), []).append((reason, numbers))

    def _options(self) -> None:
        for option in self.board.options:
            reason = self._of_option(option)
            if reason:
                self.counts[reason.code] += 1
                target = offer_name(self.board.kinds[option.kind])
                self._offers.setdefault((option.fleet, reason.code), []).append(reason.of(target))
        for name, reason, target in self.unseen():
            self.counts[reason.code] += 1
            self._offers.setdefault((name, reason.code), []).append(reason.of(target))
        for name in self.refusals.without_offer:
            none = Mismatch("no-offer", "no backend offers a node that its limits allow")
            reason = fleet_reason(self.job.task, self.board.fleets[name].fleet) or none
            self.counts[reason.code] += 1
            self._offers.setdefault((name, reason.code), []).append(reason.of(f"fleet/{name}"))

    def unseen(self) -> Iterator[tuple[str, Mismatch, str]]:
        """Fleet, reason and target of what is not there now."""
        for name, rule in self.board.fleets.items():
            for item in rule.unseen:
                reason = self.refusals.unseen(self.job, name, item)
                if reason.code not in STRUCTURAL and item.offer:
                    kind = Kind(*of_offer(item.offer, rule.fleet))
                    reason = self._far(kind) or reason
                yield name, reason, item.target

    # Listing

    def _listing(self) -> tuple[Rejection, ...]:
        """All of them by name, or the first few of each fleet and code and how many more there are."""
        if not self.counts:
            self._by_code = self.own
        rows = (numbers for groups in self._by_code.values() for _, numbers in groups)
        every = sum(map(len, rows)) + sum(map(len, self._offers.values())) <= MOST_REJECTIONS
        out: list[Rejection] = []
        for (fleet, _), groups in self._by_code.items():
            count = sum(len(found) for _, found in groups)
            # Numbers are sorted in each group: more than the first few are not looked at.
            first = sorted(n for _, found in groups for n in (found if every else found[:NAMED]))
            for number in first if every else first[:NAMED]:
                reason = self.of_node(number)
                assert reason is not None
                out.append(reason.of(f"node/{self.refusals.finished.nodes[number].name}"))
            if not every and count > NAMED:
                nearest = min((r for r, _ in groups), key=_distance)
                out.append(_counted(fleet, nearest.of("nodes"), count - NAMED))
        for (fleet, _), offers in self._offers.items():
            out += offers if every else offers[:NAMED]
            if not every and len(offers) > NAMED:
                nearest_offer = min(offers, key=_distance)
                out.append(_counted(fleet, replace(nearest_offer, target="offers"), len(offers) - NAMED))
        return tuple(sorted(out, key=lambda r: (r.code not in STRUCTURAL, r.count > 1, natural(r.target))))

    def of_node(self, number: int) -> Mismatch | None:
        """Why the rank cannot have a node."""
        node = self.refusals.finished.nodes[number]
        task = self.job.task
        kind = self.ledger.kind_of[number]
        if task.instances and node.name not in task.instances:
            return not_pinned(task)
        reason = self.refusals.static(self.job, kind)
        if reason and reason.code in ("fleet", "not-cluster") and node.fleet in self.board.fleets:
            return reason._replace(detail=f"fleet/{node.fleet}: {reason.detail}")
        if reason:
            return reason
        if apart := self._elsewhere(kind):
            return apart
        # What no waiting mends was said by now, but for volumes; of the rest the node itself comes first.
        mounts = self._mounts(kind)
        if mounts and mounts.code in STRUCTURAL:
            return mounts
        held = self.refusals.finished.held.get(number, node.held)
        reason = ready_reason(node) or mounts or block_reason(task, self.board.kinds[kind], held)
        if reason is None and is_spread(task):
            return self._beside()
        if reason or number not in self.seated:
            return reason
        reason = block_reason(task, self.board.kinds[kind], {**held, **self.seated[number]})
        return Mismatch(reason.code, OWN) if reason else None

    def _of_option(self, option: Option) -> Mismatch | None:
        """Why the rank cannot have an offer: what no waiting mends first."""
        task, ledger = self.job.task, self.ledger
        reason = self.refusals.static(self.job, option.kind)
        if reason:
            return reason
        if task.instances and not any(self._may_be_named(n, option.fleet) for n in task.instances):
            return not_pinned(task)
        home = ledger.astray(option)
        if home:
            where = "/".join(home)
            detail = f"fleet/{option.fleet} has its nodes in {where}, and a cluster stays together"
            return Mismatch("region", detail)
        if apart := self._elsewhere(option.kind):
            return apart
        mounts = self._mounts(option.kind)
        if mounts and mounts.code in STRUCTURAL:
            return mounts
        if self.job.reuse and ledger.owed[option.fleet] <= 0:
            why = "`--reuse`" if self.job.ask.reuse else "`creation_policy: reuse`"
            return Mismatch("reuse-only", f"{why} launches nothing")
        return self._no_room(option) or mounts or (self._beside() if is_spread(task) else None)

    def _beside(self) -> Mismatch:
        """Why a rank that is kept apart cannot have what would hold it."""
        level = self.job.task.spread
        return Mismatch("spread", f"another rank of the task has this {level}, and `spread` keeps them apart")

    def _no_room(self, option: Option) -> Mismatch | None:
        """Whether the fleet's maximum or the offer's limit is reached."""
        rule = self.board.fleets[option.fleet]
        if self.ledger.room[option.fleet] == 0:
            nodes = rule.fleet.nodes
            most = nodes.max if nodes else rule.existing + len(rule.offers)
            detail = f"fleet/{option.fleet} is at its maximum of {most} node{'' if most == 1 else 's'}"
            return Mismatch("fleet-max", detail, {"nodes": 1})
        if self.ledger.remain(option) == 0:
            used = "reached" if self.ledger.left[option.quota] == 0 else "kept for nodes of other fleets"
            return Mismatch("limit", f"its limit of {option.offer.limit} is {used}", {"nodes": 1})
        return None

    def _elsewhere(self, kind: int) -> Mismatch | None:
        """Why it cannot be had beside the other ranks of the gang."""
        if far := self._far(self.board.kinds[kind]):
            return far
        maker = self.found.domain.maker
        own = self.board.maker_of[kind]
        if maker is None or own in (None, maker):
            return None
        model = self.board.kinds[kind].shape.gpu_name
        of = f"{own} ({model})" if model and model.lower() != own else own
        return Mismatch("gpu-vendor", f"its GPUs are of {of}, those of the other ranks of {maker}; {TO_MIX}")

    def _far(self, kind: Kind) -> Mismatch | None:
        """Whether the other ranks of a cluster task lie in another area."""
        area = self.found.domain.area
        if area is None:
            return None
        if (kind.fleet, kind.backend, kind.region) != (area.fleet, area.backend, area.region):
            where = f"fleet/{area.fleet} in {area.backend}/{area.region}"
            return Mismatch("region", f"the other ranks lie in {where}, and a cluster task stays together")
        if kind.at(area.level) == area.at:
            return None
        where = f"{area.level} {area.at}" if area.at else f"no {area.level}"
        detail = f"the other ranks lie in {where}, and the ranks of a cluster lie in one {area.level}"
        return Mismatch("zone" if area.level == "zone" else "topology", detail)

    def _may_be_named(self, name: str, fleet: str) -> bool:
        """Whether a node of the fleet that is launched could get a pinned name."""
        return name.rpartition("-")[0] == fleet and name in self.board.coming

    def _mounts(self, kind: int) -> Mismatch | None:
        mounts = self.job.ask.want.mounts
        if not mounts or not mounts[self.rank]:
            return None
        place = self.board.kinds[kind].place
        if place not in self._mounted:
            name = str(self.job.task.name)
            siblings = {
                volume: f"rank/{rank_name(name, rank)}"
                for rank, volumes in self.found.volumes.items()
                for volume in volumes.values()
                if rank != self.rank
            }
            claims = {**self.ledger.claims, **siblings}
            self._mounted[place] = mount_reason(mounts[self.rank], place, self.board.volumes, claims)
        return self._mounted[place]


def _distance(reason: Mismatch | Rejection) -> tuple[float, str]:
    """How far from fitting; what is missing is compared by number alone, whatever its dimension."""
    return (sum(map(abs, reason.short.values())), reason.detail)


def _counted(fleet: str, nearest: Rejection, count: int) -> Rejection:
    """One entry for many of a fleet, with what is said of the nearest."""
    detail = f"{count} more {nearest.target}, {SUCH_AS}{nearest.detail}"
    return replace(nearest, target=f"fleet/{fleet}", detail=detail, count=count)


def not_pinned(task: Task) -> Mismatch:
    """Why a task that names its nodes cannot have another one."""
    return Mismatch("instance", f"the task asks for {', '.join(task.instances)}")
