"""Why a task cannot be placed: worked out from the finished plan, not logged by the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from declarative.model.diagnostic import and_more
from declarative.model.spec import Task
from declarative.model.state import natural, rank_name
from declarative.placement.board import Board, Option
from declarative.placement.filters import (
    Reason,
    block_reason,
    blocks_wanted,
    fleet_reason,
    place_reason,
    ready_reason,
    shape_reason,
    topology_reason,
)
from declarative.placement.finish import Finished
from declarative.placement.gangs import best_try, seat_partly
from declarative.placement.kinds import Kind, Place, of_offer, offer_name
from declarative.placement.ledger import Ledger
from declarative.placement.refusal_text import STRUCTURAL, hint_for, summary_of
from declarative.placement.remedies import Remedies, key_of
from declarative.placement.trial import Try
from declarative.placement.types import SUCH_AS, RankVerdict, Refusal, Rejection, Unseen, Verdict
from declarative.placement.volumes import mount_reason
from declarative.placement.wishes import ANYWHERE, Job, is_spread

MOST_REJECTIONS = 200
"""Up to that many nodes and offers are named one by one; more are counted, by fleet and code."""

MOST_ASKED = 1_000_000
"""Nodes and offers that are asked about for all refusals of a plan; beyond, a refusal lists none."""

BRIEF = "too many were refused to say why here: `fleetform explain task/NAME` does"


OWN = "other ranks of the task have it"
TO_MIX = "a gang mixes vendors only if `gpu` names models of both, or `instances` pins nodes of both"

NAMED = 3
"""Nodes of each fleet and code that are named all the same."""


class Refusals:
    """The refusals of one finished plan. Tasks that are alike are refused for the same reasons."""

    def __init__(self, board: Board, ledger: Ledger, finished: Finished) -> None:
        self.board = board
        self.ledger = ledger
        self.finished = finished
        self.start, self.ideal = Ledger.start(board), Ledger.start(board, ideal=True)
        self._by_place: dict[tuple[int, int], Reason | None] = {}
        self._by_shape: dict[tuple[int, int], Reason | None] = {}
        self._asked = 0
        self._alike: dict[tuple[object, ...], Refusal] = {}
        self.alike = _alike_nodes(ledger, finished)
        offered = {option.fleet for option in board.options}
        # Hosts that are nodes, and what is not there now, are named themselves.
        self.without_offer = [
            name
            for name, rule in board.fleets.items()
            if name not in offered and not rule.unseen and not (rule.fleet.exists and rule.existing)
        ]

    def of(self, jobs: Sequence[Job], remedies: Remedies, proved: Collection[int]) -> list[Refusal]:
        """The refusal of each task. `proved`: tasks that were proved to have no place beside all others."""
        out: list[Refusal] = []
        for job in jobs:
            key = (key_of(job), remedies.of(job), job.index in proved)
            if key not in self._alike:
                self._alike[key] = self._refusal(job, key[1], proved=key[2])
            out.append(replace(self._alike[key], task=str(job.task.name)))
        return out

    def never(self, job: Job) -> bool:
        """Whether it fits not even with all nodes and hosts up and idle, and offers without limits."""
        found = best_try(self.ideal, job, {})
        if found is not None and found.failed is None:
            return False
        more = {
            name: sum(self._holds(job, name, unseen) for unseen in rule.unseen)
            for name, rule in self.board.fleets.items()
        }
        if not any(more.values()):
            return True
        if not job.plain:
            return False  # how many ranks volumes and pins leave a place to is not counted
        most = max(more.values()) if job.wish.together else sum(more.values())
        return (len(found.nodes) if found else 0) + most < job.ranks

    def _holds(self, job: Job, fleet: str, unseen: Unseen) -> int:
        """How many ranks of a task it may hold at most, once it is there."""
        if self.unseen(job, fleet, unseen).code in STRUCTURAL:
            return 0
        if unseen.offer is None:
            room = job.ranks if self.ideal.room[fleet] is None else self.ideal.room[fleet] or 0
            return 0 if job.reuse or not room else min(room, job.ranks) if job.wish.whole else job.ranks
        if job.wish.whole:
            return 1
        kind = Kind(*of_offer(unseen.offer, self.board.fleets[fleet].fleet))
        return kind.total // blocks_wanted(job.task, kind) if unseen.known else job.ranks

    def unseen(self, job: Job, fleet: str, unseen: Unseen) -> Reason:
        """Why a task cannot have what is not there now: it may be of no use to it anyway."""
        task, offer = job.task, unseen.offer
        reason = fleet_reason(task, self.board.fleets[fleet].fleet)
        if reason is None and offer is not None:
            kind = Kind(*of_offer(offer, self.board.fleets[fleet].fleet))
            if task.instances and offer.host and offer.host.name not in task.instances:
                reason = _not_pinned(task)
            reason = reason or place_reason(task, kind)
            reason = reason or (shape_reason(task, kind) if unseen.known else None)
        return reason or Reason("not-ready" if offer else "offers-unknown", unseen.detail)

    def _refusal(self, job: Job, changes: tuple[str, ...] | None, *, proved: bool) -> Refusal:
        never = self.never(job)
        proved = never or proved or self._counts_out(job)
        found = best_try(self.ledger, job, {}) or Try(domain=ANYWHERE, failed=0)
        failed = found.failed if found.failed is not None else 0
        self.ledger.log = []
        seated = seat_partly(self.ledger, job, found)
        self._asked += len(self.alike) + len(self.board.options)
        brief = self._asked > MOST_ASKED
        tally = Tally(self, job, found, failed, seated, brief=brief)
        self.ledger.undo()
        verdicts = tuple(
            RankVerdict(rank=r, verdict=Verdict.CAUSE, rejections=tally.rejections)
            if r == failed
            else RankVerdict(rank=r, verdict=Verdict.FITS if r in found.nodes else Verdict.NOT_TRIED)
            for r in range(job.ranks)
        )
        fleets = len(self.board.fleets)
        busy = any(self.finished.held.get(n, node.held) for n, node in self.finished.nodes.items())
        codes = tally.counts or {code: 1 for _, code in tally.own}
        lost = self._unknown_pins(job)
        return Refusal(
            task=str(job.task.name),
            code="never-fits" if never else "no-capacity",
            summary=summary_of(
                job.task, len(found.nodes), tally.counts, never=never, fleets=fleets, proved=proved
            ),
            hint=BRIEF
            if brief
            else lost or hint_for(job.task, codes, never=never, changes=changes, busy=busy),
            ranks=verdicts,
            changes=changes,
            proved=proved,
        )

    def _counts_out(self, job: Job) -> bool:
        """Whether what is there has too few blocks even without this plan's tasks, and no launch may help.

        Nodes are counted then: nothing is chosen that could be chosen otherwise.
        """
        if any(job.ask.want.mounts) or is_spread(job.task):
            return False
        start = self.start
        options = () if job.reuse else self.board.options_in(job.wish, ANYWHERE)
        owed = any(start.owed.values())
        if owed or any(start.may_launch(option) for option, _, _ in options):
            return False
        found = best_try(start, job, {})
        return found is None or found.failed is not None

    def _unknown_pins(self, job: Job) -> str | None:
        """What to say where `instances` names no node that is there or will be, whatever is placed."""
        unseen = (item.offer for rule in self.board.fleets.values() for item in rule.unseen)
        off = {offer.host.name for offer in unseen if offer and offer.host}
        known = {*self.board.index, *self.board.coming, *off}
        pins = [p for p in job.task.instances if p not in known]
        if not pins:
            return None
        there = sorted((n.name for n in self.board.nodes), key=natural)
        fleets = {p.rpartition("-")[0] for p in pins}
        near = [n for n in there if n.rpartition("-")[0] in fleets] or there
        found = f"there are {and_more(near, NAMED)}" if near else "no node is there"
        return (
            f"`instances` names what is there, and launches nothing: {', '.join(pins[:NAMED])} "
            f"{'is' if len(pins) == 1 else 'are'} not; {found}"
        )

    def static(self, job: Job, kind: int) -> Reason | None:
        """What turns a whole kind down, whatever its nodes hold: by its place, else by its shape."""
        where = (job.wish.limits, kind)
        if where not in self._by_place:
            found = self.board.kinds[kind]
            rule = self.board.fleets.get(found.fleet)
            if rule is None:
                reason: Reason | None = Reason("fleet", f"fleet/{found.fleet} is not declared any more")
            else:
                reason = fleet_reason(job.task, rule.fleet) or topology_reason(job.task, rule.fleet, found)
                reason = reason or place_reason(job.task, found)
            self._by_place[where] = reason
        reason = self._by_place[where]
        if reason:
            return reason
        what = (job.wish.size, self.board.make_of[kind])
        if what not in self._by_shape:
            self._by_shape[what] = shape_reason(job.task, self.board.kinds[kind])
        return self._by_shape[what]


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
        self._mounted: dict[Place, Reason | None] = {}
        self._by_code: dict[tuple[str, str], list[tuple[Reason, Sequence[int]]]] = {}
        self.own: dict[tuple[str, str], list[tuple[Reason, Sequence[int]]]] = {}
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
                self._note(fleet, _not_pinned(self.job.task), [n for n in numbers if pins and n not in left])
                for number in (n for n in numbers if n in self.seated):
                    self._note(fleet, self.of_node(number), [number])
            if left:
                reason = self.of_node(left[0])
                self._note(fleet, reason, left)

    def _note(self, fleet: str, reason: Reason | None, numbers: Sequence[int]) -> None:
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
            none = Reason("no-offer", "no backend offers a node that its limits allow")
            reason = fleet_reason(self.job.task, self.board.fleets[name].fleet) or none
            self.counts[reason.code] += 1
            self._offers.setdefault((name, reason.code), []).append(reason.of(f"fleet/{name}"))

    def unseen(self) -> Iterator[tuple[str, Reason, str]]:
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

    def of_node(self, number: int) -> Reason | None:
        """Why the rank cannot have a node."""
        node = self.refusals.finished.nodes[number]
        task = self.job.task
        kind = self.ledger.kind_of[number]
        if task.instances and node.name not in task.instances:
            return _not_pinned(task)
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
        return Reason(reason.code, OWN) if reason else None

    def _of_option(self, option: Option) -> Reason | None:
        """Why the rank cannot have an offer: what no waiting mends first."""
        task, ledger = self.job.task, self.ledger
        reason = self.refusals.static(self.job, option.kind)
        if reason:
            return reason
        if task.instances and not any(self._may_be_named(n, option.fleet) for n in task.instances):
            return _not_pinned(task)
        home = ledger.astray(option)
        if home:
            where = "/".join(home)
            detail = f"fleet/{option.fleet} has its nodes in {where}, and a cluster stays together"
            return Reason("region", detail)
        if apart := self._elsewhere(option.kind):
            return apart
        mounts = self._mounts(option.kind)
        if mounts and mounts.code in STRUCTURAL:
            return mounts
        if self.job.reuse and ledger.owed[option.fleet] <= 0:
            why = "`--reuse`" if self.job.ask.reuse else "`creation_policy: reuse`"
            return Reason("reuse-only", f"{why} launches nothing")
        return self._no_room(option) or mounts or (self._beside() if is_spread(task) else None)

    def _beside(self) -> Reason:
        """Why a rank that is kept apart cannot have what would hold it."""
        level = self.job.task.spread
        return Reason("spread", f"another rank of the task has this {level}, and `spread` keeps them apart")

    def _no_room(self, option: Option) -> Reason | None:
        """Whether the fleet's maximum or the offer's limit is reached."""
        rule = self.board.fleets[option.fleet]
        if self.ledger.room[option.fleet] == 0:
            nodes = rule.fleet.nodes
            most = nodes.max if nodes else rule.existing + len(rule.offers)
            detail = f"fleet/{option.fleet} is at its maximum of {most} node{'' if most == 1 else 's'}"
            return Reason("fleet-max", detail, {"nodes": 1})
        if self.ledger.remain(option) == 0:
            used = "reached" if self.ledger.left[option.quota] == 0 else "kept for nodes of other fleets"
            return Reason("limit", f"its limit of {option.offer.limit} is {used}", {"nodes": 1})
        return None

    def _elsewhere(self, kind: int) -> Reason | None:
        """Why it cannot be had beside the other ranks of the gang."""
        if far := self._far(self.board.kinds[kind]):
            return far
        maker = self.found.domain.maker
        own = self.board.maker_of[kind]
        if maker is None or own in (None, maker):
            return None
        model = self.board.kinds[kind].shape.gpu_name
        of = f"{own} ({model})" if model and model.lower() != own else own
        return Reason("gpu-vendor", f"its GPUs are of {of}, those of the other ranks of {maker}; {TO_MIX}")

    def _far(self, kind: Kind) -> Reason | None:
        """Whether the other ranks of a cluster task lie in another area."""
        area = self.found.domain.area
        if area is None:
            return None
        if (kind.fleet, kind.backend, kind.region) != (area.fleet, area.backend, area.region):
            where = f"fleet/{area.fleet} in {area.backend}/{area.region}"
            return Reason("region", f"the other ranks lie in {where}, and a cluster task stays together")
        if kind.at(area.level) == area.at:
            return None
        where = f"{area.level} {area.at}" if area.at else f"no {area.level}"
        detail = f"the other ranks lie in {where}, and the ranks of a cluster lie in one {area.level}"
        return Reason("zone" if area.level == "zone" else "topology", detail)

    def _may_be_named(self, name: str, fleet: str) -> bool:
        """Whether a node of the fleet that is launched could get a pinned name."""
        return name.rpartition("-")[0] == fleet and name in self.board.coming

    def _mounts(self, kind: int) -> Reason | None:
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


def _distance(reason: Reason | Rejection) -> tuple[float, str]:
    """How far from fitting; what is missing is compared by number alone, whatever its dimension."""
    return (sum(map(abs, reason.short.values())), reason.detail)


def _counted(fleet: str, nearest: Rejection, count: int) -> Rejection:
    """One entry for many of a fleet, with what is said of the nearest."""
    detail = f"{count} more {nearest.target}, {SUCH_AS}{nearest.detail}"
    return replace(nearest, target=f"fleet/{fleet}", detail=detail, count=count)


def _alike_nodes(ledger: Ledger, finished: Finished) -> dict[tuple[int, object], list[int]]:
    """Nodes that every task has the same to say about: by kind, readiness and busy blocks."""
    out: dict[tuple[int, object], list[int]] = {}
    for number, node in finished.nodes.items():
        ready = (node.closed, node.readiness.state, node.readiness.reason)
        busy = len(finished.held.get(number, node.held))
        out.setdefault((ledger.kind_of[number], (ready, busy, node.new)), []).append(number)
    return out


def _not_pinned(task: Task) -> Reason:
    return Reason("instance", f"the task asks for {', '.join(task.instances)}")
