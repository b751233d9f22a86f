"""Every node and offer, and why a rank could not have it: counted, and the nearest named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.model.spec import Task
from declarative.model.state import natural, rank_name
from declarative.placement.catalog import LaunchOption
from declarative.placement.cover import Try
from declarative.placement.demand import Job, is_spread
from declarative.placement.filters import (
    Mismatch,
    block_reason,
    fleet_reason,
    kept_apart,
    ready_reason,
)
from declarative.placement.problem import (
    SUCH_AS,
    NodeType,
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
        self.catalog, self.assignment = refusals.catalog, refusals.assignment
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
        self.causes = tuple(sorted({*self._by_code, *self._offers}))
        """Fleet and code of all of them."""

    def _nodes(self) -> None:
        for (kind, _), numbers in self.refusals.alike.items():
            fleet = self.catalog.kinds[kind].fleet
            alike = not self.job.task.instances and self.seated.keys().isdisjoint(numbers)
            left = numbers if alike else self._rest(fleet, numbers)
            if left:
                self._note(fleet, self.of_node(left[0]), left)

    def _rest(self, fleet: str, numbers: Sequence[int]) -> Sequence[int]:
        """Note the nodes that the task does not name, and those with other ranks of it; the others."""
        left = {n: None for n in numbers if n not in self.seated and self._named(n)}
        if self.job.task.instances:
            self._note(fleet, not_pinned(self.job.task), [n for n in numbers if n not in left])
        for number in numbers:
            if number in self.seated:
                self._note(fleet, self.of_node(number), [number])
        return list(left)

    def _named(self, number: int) -> bool:
        """Whether the task names the node, or none at all."""
        pins = self.job.task.instances
        return not pins or self.refusals.finished.nodes[number].name in pins

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
        for option in self.catalog.options:
            reason = self._of_option(option)
            if reason:
                self.counts[reason.code] += 1
                target = offer_name(self.catalog.kinds[option.kind])
                self._offers.setdefault((option.fleet, reason.code), []).append(reason.of(target))
        for name, reason, target in self.unseen():
            self.counts[reason.code] += 1
            self._offers.setdefault((name, reason.code), []).append(reason.of(target))
        for name in self.refusals.without_offer:
            rule = self.catalog.fleets[name]
            none = Mismatch("no-offer", rule.why_nothing())
            reason = fleet_reason(self.job.task, rule.fleet) or none
            self.counts[reason.code] += 1
            self._offers.setdefault((name, reason.code), []).append(reason.of(f"fleet/{name}"))

    def unseen(self) -> Iterator[tuple[str, Mismatch, str]]:
        """Fleet, reason and target of what is not there now."""
        for name, rule in self.catalog.fleets.items():
            for item in rule.unseen:
                reason = self.refusals.unseen(self.job, name, item)
                if reason.code not in STRUCTURAL and item.offer:
                    kind = NodeType(*of_offer(item.offer, rule.fleet))
                    reason = self._far(kind) or reason
                yield name, reason, item.target

    # Listing

    def _listing(self) -> tuple[Rejection, ...]:
        """All of them by name, or the first few of each fleet and code and how many more there are."""
        if not self.counts:
            self._by_code = self.own
        nodes = sum(len(numbers) for groups in self._by_code.values() for _, numbers in groups)
        every = nodes + sum(map(len, self._offers.values())) <= MOST_REJECTIONS
        most = None if every else NAMED
        out = [*self._listed_nodes(most), *self._listed_offers(most)]
        return tuple(sorted(out, key=lambda r: (r.code not in STRUCTURAL, r.count > 1, natural(r.target))))

    def _listed_nodes(self, most: int | None) -> Iterator[Rejection]:
        """Up to so many of each fleet and code by name, and how many more there are."""
        for (fleet, _), groups in self._by_code.items():
            # Numbers are sorted in each group: more than the first few are not looked at.
            first = sorted(n for _, found in groups for n in found[:most])[:most]
            for number in first:
                reason = self.of_node(number)
                assert reason is not None
                yield reason.of(f"node/{self.refusals.finished.nodes[number].name}")
            more = sum(len(found) for _, found in groups) - len(first)
            if more:
                nearest = min((r for r, _ in groups), key=_distance)
                yield _counted(fleet, nearest.of("nodes"), more)

    def _listed_offers(self, most: int | None) -> Iterator[Rejection]:
        """The same of offers."""
        for (fleet, _), offers in self._offers.items():
            first = offers[:most]
            yield from first
            if len(offers) > len(first):
                nearest = replace(min(offers, key=_distance), target="offers")
                yield _counted(fleet, nearest, len(offers) - len(first))

    def of_node(self, number: int) -> Mismatch | None:
        """Why the rank cannot have a node."""
        node = self.refusals.finished.nodes[number]
        kind = self.assignment.kind_of[number]
        if not self._named(number):
            return not_pinned(self.job.task)
        if reason := self.refusals.static(self.job, kind):
            of_fleet = reason.code in ("fleet", "not-cluster") and node.fleet in self.catalog.fleets
            return reason._replace(detail=f"fleet/{node.fleet}: {reason.detail}") if of_fleet else reason
        if lasting := self._elsewhere(kind) or self._lasting_mounts(kind):
            return lasting
        # What no waiting mends was said by now; of the rest the node itself comes first.
        return ready_reason(node) or self._mounts(kind) or self._occupied(number)

    def _occupied(self, number: int) -> Mismatch | None:
        """Whether other tasks, or other ranks of this one, have what it needs of a node."""
        task, kind = self.job.task, self.catalog.kinds[self.assignment.kind_of[number]]
        finished = self.refusals.finished
        held = finished.held.get(number, finished.nodes[number].held)
        if reason := block_reason(task, kind, held):
            return reason
        if is_spread(task):
            return self._beside()
        reason = block_reason(task, kind, {**held, **self.seated.get(number, {})})
        return Mismatch(reason.code, OWN) if reason else None

    def _of_option(self, option: LaunchOption) -> Mismatch | None:
        """Why the rank cannot have an offer: what no waiting mends first."""
        task, kind = self.job.task, option.kind
        if reason := self.refusals.static(self.job, kind):
            return reason
        if not self._may_be_named(option.fleet):
            return not_pinned(task)
        home = self.assignment.astray(option)
        if home:
            where = "/".join(home)
            detail = f"fleet/{option.fleet} has its nodes in {where}, and a cluster stays together"
            return Mismatch("region", detail)
        if lasting := self._elsewhere(kind) or self._lasting_mounts(kind) or self._reuses(option):
            return lasting
        return self._no_room(option) or self._mounts(kind) or (self._beside() if is_spread(task) else None)

    def _reuses(self, option: LaunchOption) -> Mismatch | None:
        """Whether the task launches nothing, and the fleet nothing for itself that it could use."""
        if not self.job.reuse or self.assignment.baseline_left[option.fleet] > 0:
            return None
        why = "`--reuse`" if self.job.ask.reuse else "`creation_policy: reuse`"
        return Mismatch("reuse-only", f"{why} launches nothing")

    def _beside(self) -> Mismatch:
        """Why a rank that is kept apart cannot have what would hold it."""
        return kept_apart(self.job.task.spread)

    def _no_room(self, option: LaunchOption) -> Mismatch | None:
        """Whether the fleet's maximum or the offer's limit is reached."""
        rule = self.catalog.fleets[option.fleet]
        if self.assignment.fleet_room[option.fleet] == 0:
            nodes = rule.fleet.nodes
            most = nodes.max if nodes else rule.existing + len(rule.offers)
            detail = f"fleet/{option.fleet} is at its maximum of {most} node{'' if most == 1 else 's'}"
            return Mismatch("fleet-max", detail, {"nodes": 1})
        if self.assignment.remain(option) == 0:
            used = (
                "reached"
                if self.assignment.quota_left[option.quota] == 0
                else "kept for nodes of other fleets"
            )
            return Mismatch("limit", f"its limit of {option.offer.limit} is {used}", {"nodes": 1})
        return None

    def _elsewhere(self, kind: int) -> Mismatch | None:
        """Why it cannot be had beside the other ranks of the gang."""
        if far := self._far(self.catalog.kinds[kind]):
            return far
        maker = self.found.domain.maker
        own = self.catalog.maker_of[kind]
        if maker is None or own in (None, maker):
            return None
        model = self.catalog.kinds[kind].shape.gpu_name
        of = f"{own} ({model})" if model and model.lower() != own else own
        return Mismatch("gpu-vendor", f"its GPUs are of {of}, those of the other ranks of {maker}; {TO_MIX}")

    def _far(self, kind: NodeType) -> Mismatch | None:
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

    def _may_be_named(self, fleet: str) -> bool:
        """Whether a node of the fleet that is launched could get a pinned name, if the task pins any."""
        pins = self.job.task.instances
        return not pins or any(n.rpartition("-")[0] == fleet and n in self.catalog.coming for n in pins)

    def _lasting_mounts(self, kind: int) -> Mismatch | None:
        """What no waiting mends: a volume that is elsewhere, or nowhere."""
        reason = self._mounts(kind)
        return reason if reason and reason.code in STRUCTURAL else None

    def _mounts(self, kind: int) -> Mismatch | None:
        mounts = self.job.ask.want.mounts
        if not mounts or not mounts[self.rank]:
            return None
        place = self.catalog.kinds[kind].place
        if place not in self._mounted:
            name = str(self.job.task.name)
            siblings = {
                volume: f"rank/{rank_name(name, self.job.ask.number(rank))}"
                for rank, volumes in self.found.volumes.items()
                for volume in volumes.values()
                if rank != self.rank
            }
            claims = {**self.assignment.claims, **siblings}
            self._mounted[place] = mount_reason(mounts[self.rank], place, self.catalog.volumes, claims)
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
