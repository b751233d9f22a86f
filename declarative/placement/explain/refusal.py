"""Why a task cannot be placed, and what to do about it.

Computed from the finished plan: the search keeps no log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from declarative.model.diagnostic import and_more
from declarative.model.spec import Task
from declarative.model.state import natural, rank_name
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import BlockAssignment
from declarative.placement.catalog import Catalog, LaunchOption
from declarative.placement.cover import Try
from declarative.placement.demand import ANYWHERE, Job, is_spread
from declarative.placement.explain.never import LASTING, PASSING, EmptyWorld, not_pinned, unseen_reason
from declarative.placement.filters import (
    Mismatch,
    beside_reason,
    block_reason,
    fleet_reason,
    kept_apart,
    place_reason,
    ready_reason,
    shape_reason,
    topology_reason,
)
from declarative.placement.gangs import best_try, seat_partly
from declarative.placement.problem import (
    NEVER,
    NOT_NOW,
    SUCH_AS,
    NodeType,
    Place,
    RankVerdict,
    Refusal,
    Rejection,
    Verdict,
    of_offer,
    offer_name,
)
from declarative.placement.volumes import mount_reason

MOST_REJECTIONS = 200
"""Up to that many nodes and offers are named one by one; more are counted, by fleet and code."""

OWN = "other ranks of the task have it"
TO_MIX = "a gang mixes vendors only if `gpu` names models of both, or `instances` pins nodes of both"

NAMED = 3
"""Nodes of each fleet and code that are named all the same."""

MOST_ASKED = 1_000_000
"""Nodes and offers that are asked about for all refusals of a plan; beyond, a refusal lists none."""

BRIEF = "too many were refused to say why here: `fleetform explain task/NAME` does"

ABLE = {
    "isolation": "leave out `isolation`, or let the hosts' user be root there or delegate cgroups to him",
    "no-runtime": "install podman on a host, or leave out the task's `image`",
}
"""What helps where hosts cannot do what a task asks for."""

PINNED = {
    "drained": "`fleetform undrain` the pinned node, or pin another one",
    "not-ready": "wait until the pinned node is ready, or pin another one",
}
"""What helps a task that names its nodes."""


class RefusalReports:
    """The refusals of one finished plan. Tasks that are alike are refused for the same reasons."""

    def __init__(
        self,
        catalog: Catalog,
        assignment: Assignment,
        finished: BlockAssignment,
        may_fit_alone: Callable[[Catalog, Job], bool] = lambda _catalog, _job: False,
    ) -> None:
        """`may_fit_alone` says whether the search finds a task a place in a catalog, or may do so."""
        self.catalog, self._may_fit_alone = catalog, may_fit_alone
        self.assignment = assignment
        self.finished = finished
        self._launched = {n.name: assignment.kind_of[i] for i, n in finished.nodes.items() if n.new}
        self.start = Assignment.start(catalog)
        self._by_place: dict[tuple[int, int], Mismatch | None] = {}
        self._by_shape: dict[tuple[int, int], Mismatch | None] = {}
        self._asked = 0
        self._alike: dict[tuple[object, ...], Refusal] = {}
        self.alike = _alike_nodes(assignment, finished)
        offered = {option.fleet for option in catalog.options}
        # Hosts that are nodes, and what is not there now, are named themselves.
        self.without_offer = [
            name
            for name, rule in catalog.fleets.items()
            if name not in offered and not rule.unseen and not (rule.fleet.exists and rule.existing)
        ]

    def of(
        self, jobs: Sequence[Job], remedies: Callable[[Job], tuple[str, ...] | None], proved: Collection[int]
    ) -> list[Refusal]:
        """The refusal of each task. `proved`: tasks that were proved to have no place beside all others."""
        self._empty_world = EmptyWorld(self.catalog, jobs, self._may_fit_alone)
        out: list[Refusal] = []
        for job in jobs:
            key = (job.likeness, remedies(job), job.index in proved)
            if key not in self._alike:
                self._alike[key] = self._refusal(job, key[1], proved=key[2])
            out.append(replace(self._alike[key], task=str(job.task.name)))
        return out

    def _refusal(self, job: Job, changes: tuple[str, ...] | None, *, proved: bool) -> Refusal:
        never = self._empty_world.never_fits(job)
        proved = never or proved or self._counts_out(job)
        found = best_try(self.assignment, job, {}) or Try(domain=ANYWHERE, failed=0)
        failed = found.failed if found.failed is not None else 0
        self.assignment.log = []
        seated = seat_partly(self.assignment, job, found)
        self._asked += len(self.alike) + len(self.catalog.options)
        brief = self._asked > MOST_ASKED
        tally = RejectionReport(self, job, found, failed, seated, brief=brief)
        self.assignment.undo()
        fits, other = Verdict.FITS, Verdict.NOT_TRIED
        verdicts = [
            RankVerdict(rank=job.ask.number(r), verdict=fits if r in found.nodes else other)
            for r in range(job.ranks)
        ]
        verdicts[failed] = replace(verdicts[failed], verdict=Verdict.CAUSE, rejections=tally.rejections)
        fleets = len(self.catalog.fleets)
        return Refusal(
            task=str(job.task.name),
            code="never-fits" if never else "no-capacity",
            summary=summary_of(
                job.task, len(found.nodes), tally.counts, never=never, fleets=fleets, proved=proved
            ),
            hint=BRIEF if brief else self._hint(job, tally, changes, never=never),
            ranks=tuple(verdicts),
            changes=changes,
            proved=proved,
            causes=tally.causes,
        )

    def _hint(
        self, job: Job, tally: RejectionReport, changes: tuple[str, ...] | None, *, never: bool
    ) -> str | None:
        busy = any(self.finished.held.get(n, node.held) for n, node in self.finished.nodes.items())
        codes = tally.counts or {code: 1 for _, code in tally.taken_by_siblings}
        unknown = self._unknown_pins(job) if job.task.instances else None
        return unknown or hint_for(job.task, codes, never=never, changes=changes, busy=busy)

    def _counts_out(self, job: Job) -> bool:
        """Whether what is there has too few blocks even without this plan's tasks, and no launch may help.

        Nodes are counted then: nothing is chosen that could be chosen otherwise.
        """
        if not job.alike:
            return False
        start = self.start
        options = () if job.reuse else self.catalog.options_in(job.request, ANYWHERE)
        owed = any(start.baseline_left.values())
        if owed or any(start.may_launch(option) for option, _, _ in options):
            return False
        found = best_try(start, job, {})
        return found is None or found.failed is not None

    def _unknown_pins(self, job: Job) -> str | None:
        """What to say where `instances` names no node that is there or will be, whatever is placed."""
        known = {*self.catalog.index, *self.catalog.coming, *self._unseen_hosts()}
        pins = [p for p in job.task.instances if p not in known]
        if pins and self._launched.keys() >= set(pins):
            nodes = ", ".join(f"node/{pin}" for pin in pins[:NAMED])
            return f"this plan launches {nodes}: apply it, then plan again"
        if not pins:
            return None
        there = sorted(self.catalog.index, key=natural)
        fleets = {p.rpartition("-")[0] for p in pins}
        near = [n for n in there if n.rpartition("-")[0] in fleets] or there
        found = f"there are {and_more(near, NAMED)}" if near else "no node is there"
        return (
            f"`instances` names what is there, and launches nothing: {', '.join(pins[:NAMED])} "
            f"{'is' if len(pins) == 1 else 'are'} not; {found}"
        )

    def _unseen_hosts(self) -> set[str]:
        """The names of hosts that are not there now."""
        unseen = (item.offer for rule in self.catalog.fleets.values() for item in rule.unseen)
        return {offer.host.name for offer in unseen if offer and offer.host}

    def static(self, job: Job, kind: int) -> Mismatch | None:
        """What turns a whole kind down, whatever its nodes hold: by its place, else by its shape."""
        where = (job.request.limits, kind)
        if where not in self._by_place:
            found = self.catalog.kinds[kind]
            rule = self.catalog.fleets.get(found.fleet)
            if rule is None:
                reason: Mismatch | None = Mismatch("fleet", f"fleet/{found.fleet} is not declared any more")
            else:
                reason = fleet_reason(job.task, rule.fleet) or topology_reason(job.task, rule.fleet, found)
                reason = reason or place_reason(job.task, found)
                reason = reason or beside_reason(job.task, found, self.catalog.beside.get(job.task.name, ()))
            self._by_place[where] = reason
        reason = self._by_place[where]
        if reason:
            return reason
        what = (job.request.size, self.catalog.hardware_of[kind])
        if what not in self._by_shape:
            self._by_shape[what] = shape_reason(job.task, self.catalog.kinds[kind])
        return self._by_shape[what]


def _alike_nodes(assignment: Assignment, finished: BlockAssignment) -> dict[tuple[int, object], list[int]]:
    """Nodes that every task has the same to say about: by kind, readiness and busy blocks."""
    out: dict[tuple[int, object], list[int]] = {}
    for number, node in finished.nodes.items():
        ready = (node.closed, node.readiness.state, node.readiness.reason)
        busy = len(finished.held.get(number, node.held))
        out.setdefault((assignment.kind_of[number], (ready, busy, node.new)), []).append(number)
    return out


def summary_of(
    task: Task, found: int, counts: Mapping[str, int], *, never: bool, fleets: int, proved: bool = True
) -> str:
    """One sentence: how many places were wanted and found, and what most of the others lacked."""
    nouns = "whole idle nodes" if task.whole_nodes else "places"
    together = " in one cluster fleet" if task.cluster and task.nodes > 1 else ""
    noun = nouns if task.nodes > 1 else nouns[:-1]
    wanted = f"{task.nodes} {noun}{together} wanted, {found} found"
    ordered = sorted(counts.items(), key=lambda p: (p[0] not in LASTING, -p[1], p[0]))
    why = ", ".join(f"{n} {(LASTING | PASSING).get(code, code)}" for code, n in ordered[:4])
    if not fleets:
        why = "the project declares no fleet"
    tail = NEVER if never else NOT_NOW
    return f"{tail}: {wanted}" + (f" ({why})" if why else "") + ("" if proved else "; not proved")


def _own_advice(task: Task, codes: AbstractSet[str], *, never: bool, fits: bool) -> str | None:
    """What helps a task that asks for whole nodes, for what is gone, for what no host can do, or for nodes by
    name.
    """
    if "too-large" in codes and task.whole_nodes and never:
        return "widen the range in the task's `resources`, or set `exclusive: false`"
    if "volume-gone" in codes:
        return "bring the volume back, or have an empty one made: `fleetform apply --replace volume/NAME`"
    unable = sorted(ABLE.keys() & codes)
    if never and unable and not fits:
        return "; ".join(map(ABLE.__getitem__, unable))
    if task.instances:
        return next((PINNED[code] for code in PINNED if code in codes), None)
    return None


def hint_for(
    task: Task,
    counts: Mapping[str, int],
    *,
    never: bool,
    changes: Sequence[str] | None = None,
    busy: bool = True,
) -> str | None:
    """What to do about it. `changes` are those that are enough; None if not all were tried.

    `busy`: other tasks hold blocks.
    """
    codes = set(counts)
    if not codes:
        return "declare a fleet"
    fits = f"it fits {_either(changes)}" if changes else None
    if codes <= {"not-cluster", "fleet"} and "not-cluster" in codes:
        alone = changes is None or "with `placement: any`" in changes
        advice = "set `placement: cluster` on a fleet, or `placement: any` on the task"
        return advice if alone else fits or f"{advice}; that alone is not enough"
    if codes == {"no-offer"} and not fits:
        return "its fleets have no offers: change what they ask for, as is said of each"
    own = _own_advice(task, codes, never=never, fits=bool(fits))
    if own:
        return f"{own}; {fits}" if fits else own
    # Waiting mends only what does not fit now.
    wait = "" if never else _or_wait(codes, busy=busy)
    if fits:
        return f"{fits}{wait}"
    if changes is None:
        return f"`fleetform explain task/NAME` looks for what makes it fit{wait}"
    none = "no single change that was tried makes it fit (task, `nodes` of fleets, `limit` of offers)"
    return f"{none}; {wait.removeprefix(', or ')}" if wait else none


def _or_wait(codes: Collection[str], *, busy: bool) -> str:
    """What else helps where a task does not fit now."""
    undrain = ", or `fleetform undrain` a node" if "drained" in codes else ""
    parts = ["running tasks have ended"] if busy else []
    if not busy and "fleet-max" in codes:
        parts.append("idle nodes were deleted")
    if "reuse-only" in codes:
        parts.append("another task gets a node launched")
    if "not-ready" in codes:
        parts.append("what is not ready is ready")
    if "offers-unknown" in codes:
        parts.append("the backend can be read")
    return f"{undrain}, or wait until {' or '.join(parts)}" if parts else undrain


def _either(changes: Sequence[str]) -> str:
    """`with a, with b, or without c`."""
    *most, last = changes
    return f"{', '.join(most)}, or {last}" if most else last


class RejectionReport:
    """Every node and offer, and why one rank could not have it once its siblings had their places."""

    def __init__(
        self,
        refusals: RefusalReports,
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
        self.taken_by_siblings: dict[tuple[str, str], list[tuple[Mismatch, Sequence[int]]]] = {}
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
                self.taken_by_siblings.setdefault((fleet, reason.code), []).append((reason, numbers))
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
                reason = unseen_reason(self.job.task, rule.fleet, item)
                if reason.code not in LASTING and item.offer:
                    kind = NodeType(*of_offer(item.offer, rule.fleet))
                    reason = self._far(kind) or reason
                yield name, reason, item.target

    # Listing

    def _listing(self) -> tuple[Rejection, ...]:
        """All of them by name, or the first few of each fleet and code and how many more there are."""
        if not self.counts:
            self._by_code = self.taken_by_siblings
        nodes = sum(len(numbers) for groups in self._by_code.values() for _, numbers in groups)
        every = nodes + sum(map(len, self._offers.values())) <= MOST_REJECTIONS
        most = None if every else NAMED
        out = [*self._listed_nodes(most), *self._listed_offers(most)]
        return tuple(sorted(out, key=lambda r: (r.code not in LASTING, r.count > 1, natural(r.target))))

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
        return reason if reason and reason.code in LASTING else None

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
