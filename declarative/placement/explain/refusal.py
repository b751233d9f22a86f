"""Why a task cannot be placed, and what to do about it.

Computed from the finished plan: the search keeps no log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.model.spec import Task
from declarative.model.state import natural, rank_name
from declarative.model.text import and_more
from declarative.placement.allocate import Try
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import BlockAssignment
from declarative.placement.catalog import ANYWHERE, Catalog, Domain, Job, LaunchOption, is_spread
from declarative.placement.filters import (
    LASTING,
    PASSING,
    Mismatch,
    beside_reason,
    block_reason,
    fleet_reason,
    kept_apart,
    not_pinned,
    place_reason,
    ready_reason,
    shape_reason,
    topology_reason,
    unseen_reason,
)
from declarative.placement.greedy import best_try, seat_partly
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

if TYPE_CHECKING:
    from declarative.placement.claims import Claim

MOST_REJECTIONS = 200
"""Up to that many nodes and offers are named one by one; more are counted, by fleet and code."""

NAMED = 3
"""Nodes of each fleet and code that are named all the same."""

MOST_ASKED = 1_000_000
"""Nodes and offers that are asked about for all refusals of a plan; beyond, a refusal lists none."""

BRIEF = "too many were refused to say why here: `fleetform explain task/NAME` does"
TAKEN_BY_SIBLINGS = "other ranks of the task have it"
TO_MIX = "a gang mixes vendors only if `gpu` names models of both, or `instances` pins nodes of both"

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


class FinishedPlan:
    """What a plan leaves: the nodes with all that sits on them, and what turns kinds of nodes down."""

    def __init__(
        self,
        catalog: Catalog,
        assignment: Assignment,
        blocks: BlockAssignment,
        claims: Sequence[Claim] = (),
    ) -> None:
        """`claims` are those that bind the refused tasks."""
        self.catalog, self.assignment, self.claims = catalog, assignment, claims
        self.nodes = blocks.nodes
        self.held = {number: blocks.held.get(number, node.held) for number, node in blocks.nodes.items()}
        for claim in claims:
            for number, count in claim.blocks.items():
                held = self.held[number]
                idle = [block for block in range(self.nodes[number].total) if block not in held][:count]
                self.held[number] = {**held, **dict.fromkeys(idle, f"the claim of task/{claim.task}")}
        self.alike: dict[tuple[object, ...], list[int]] = {}
        """Nodes that are alike to every task: of one kind and readiness, with as many busy blocks."""
        for number, node in self.nodes.items():
            ready = (node.closed, node.readiness.state, node.readiness.reason)
            key = (assignment.kind_of[number], ready, len(self.held[number]), node.new)
            self.alike.setdefault(key, []).append(number)
        offered = {option.fleet for option in catalog.options}
        # Hosts that are nodes, and what is not there now, are named themselves.
        self.without_offer = [
            name
            for name, rule in catalog.fleets.items()
            if name not in offered and not rule.unseen and not (rule.fleet.exists and rule.existing)
        ]
        self._by_place: dict[tuple[int, int], Mismatch | None] = {}
        self._by_shape: dict[tuple[int, int], Mismatch | None] = {}

    def kind_reason(self, job: Job, kind: int) -> Mismatch | None:
        """What turns a whole kind down, whatever its nodes hold: by its place, else by its shape."""
        task, catalog = job.task, self.catalog
        where, node_type = (job.request.limits, kind), catalog.kinds[kind]
        if where not in self._by_place:
            rule = catalog.fleets.get(node_type.fleet)
            if rule is None:
                reason: Mismatch | None = Mismatch(
                    "fleet", f"fleet/{node_type.fleet} is not declared any more"
                )
            else:
                reason = fleet_reason(task, rule.fleet) or topology_reason(task, rule.fleet, node_type)
                reason = reason or place_reason(task, node_type)
                reason = reason or beside_reason(task, node_type, catalog.beside.get(task.name, ()))
            self._by_place[where] = reason
        if self._by_place[where]:
            return self._by_place[where]
        shape = (job.request.size, catalog.hardware_of[kind])
        if shape not in self._by_shape:
            self._by_shape[shape] = shape_reason(task, node_type)
        return self._by_shape[shape]


def fitting_ranks(assignment: Assignment, job: Job, best: Try | None) -> list[int]:
    """The ranks of a refused task that have places together. `best` is the try that came furthest."""
    ranks = sorted(best.nodes.keys() - {best.failed}) if best else []
    # Places may share room, such as the maximum of a fleet, so that ranks with volumes have too many of them.
    while ranks and not job.unconstrained:
        ask = job.ask
        mounts = tuple(ask.want.mounts[rank] for rank in ranks) if ask.want.mounts else ()
        want = replace(ask.want, spec=replace(job.task, nodes=len(ranks)), mounts=mounts)
        part = replace(ask, want=want, prior={}, numbers=tuple(map(ask.number, ranks)))
        tried = best_try(assignment, assignment.catalog.job(job.index, part))
        if tried is not None and tried.failed is None:
            break
        ranks = ranks[: min(len(tried.nodes) if tried else 0, len(ranks) - 1)]
    return ranks


class RefusalReports:
    """The refusals of one finished plan. Tasks that are alike are refused for the same reasons."""

    def __init__(self, plan: FinishedPlan, never_fits: Callable[[Job], bool]) -> None:
        """`never_fits` says whether a task has no place in the empty world."""
        self.plan, self._never_fits = plan, never_fits
        self.catalog, self.assignment = plan.catalog, plan.assignment
        self._launched = {node.name for node in plan.nodes.values() if node.new}
        self._busy = any(plan.held.values())
        self._asked = 0

    def of(
        self, jobs: Sequence[Job], changes: Callable[[Job], tuple[str, ...] | None], proved: Collection[int]
    ) -> list[Refusal]:
        """The refusal of each task. `proved`: tasks that were proved to have no place beside all others."""
        out: list[Refusal] = []
        alike: dict[tuple[object, ...], Refusal] = {}
        for job in jobs:
            key = (job.likeness, changes(job), job.index in proved)
            if key not in alike:
                alike[key] = self._refusal(job, key[1], proved=key[2])
            out.append(replace(alike[key], task=str(job.task.name)))
        return out

    def _refusal(self, job: Job, changes: tuple[str, ...] | None, *, proved: bool) -> Refusal:
        never = self._never_fits(job)
        proved = never or proved or self._counts_out(job)
        best = best_try(self.assignment, job) or Try(domain=ANYWHERE, failed=0)
        failed = best.failed or 0
        fits = fitting_ranks(self.assignment, job, replace(best, failed=failed))
        self._asked += len(self.plan.alike) + len(self.catalog.options)
        brief = self._asked > MOST_ASKED
        self.assignment.log = []
        siblings = seat_partly(self.assignment, job, best)
        report = RejectionReport(self.plan, job, failed, best.domain, siblings, volumes=best.volumes)
        if not brief:
            report.ask_all()
        self.assignment.undo()
        verdicts = [
            RankVerdict(rank=job.ask.number(r), verdict=Verdict.FITS if r in fits else Verdict.NOT_TRIED)
            for r in range(job.ranks)
        ]
        verdicts[failed] = replace(verdicts[failed], verdict=Verdict.CAUSE, rejections=report.rejections())
        hint = self._unknown_pins(job) if job.task.instances else None
        codes = report.counts or {code for _, code in report.taken_by_siblings}
        hint = hint or hint_for(job.task, codes, never=never, changes=changes, busy=self._busy)
        if hint and (owners := self._claimants(job)):
            unless = "unless `backfill: any` of the fleet says otherwise"
            hint += f"; what is idle is kept for {and_more(owners, NAMED)}, {unless}"
        why = report.counted() if self.catalog.fleets else "the project declares no fleet"
        return Refusal(
            task=str(job.task.name),
            code="never-fits" if never else "no-capacity",
            summary=summary_of(job.task, len(fits), why, never=never, proved=proved),
            hint=BRIEF if brief else hint,
            ranks=tuple(verdicts),
            changes=changes,
            proved=proved,
            causes=report.causes,
        )

    def _claimants(self, job: Job) -> list[str]:
        """The waiting tasks that keep blocks which a task could use."""
        kind_of, fit = self.assignment.kind_of, job.request.fit
        claims = self.plan.claims
        return [
            f"task/{c.task}"
            for c in claims
            if any(c.blocks[node] and kind_of[node] in fit for node in c.blocks)
        ]

    def _counts_out(self, job: Job) -> bool:
        """Whether what is there has too few blocks even without this plan's tasks, and no launch may help.

        Nodes are counted then: nothing is chosen that could be chosen otherwise.
        """
        if not job.alike:
            return False
        start = Assignment.start(self.catalog)
        options = () if job.reuse else self.catalog.options_in(job.request, ANYWHERE)
        if any(start.baseline_left.values()) or any(start.may_launch(option) for option, _, _ in options):
            return False
        best = best_try(start, job)
        return best is None or best.failed is not None

    def _unknown_pins(self, job: Job) -> str | None:
        """What to say where `instances` names no node that is there or will be, whatever is placed."""
        unseen = (thing.offer for rule in self.catalog.fleets.values() for thing in rule.unseen)
        hosts = {offer.host.name for offer in unseen if offer and offer.host}
        pins = [p for p in job.task.instances if p not in {*self.catalog.index, *self.catalog.coming, *hosts}]
        if not pins:
            return None
        if self._launched >= set(pins):
            nodes = ", ".join(f"node/{pin}" for pin in pins[:NAMED])
            return f"this plan launches {nodes}: apply it, then plan again"
        names = sorted(self.catalog.index, key=natural)
        fleets = {p.rpartition("-")[0] for p in pins}
        near = [n for n in names if n.rpartition("-")[0] in fleets] or names
        there = f"there are {and_more(near, NAMED)}" if near else "no node is there"
        return (
            f"`instances` names what is there, and launches nothing: {', '.join(pins[:NAMED])} "
            f"{'is' if len(pins) == 1 else 'are'} not; {there}"
        )


def summary_of(task: Task, had: int, why: str, *, never: bool, proved: bool) -> str:
    """One sentence: how many places were wanted and found, and why no more."""
    noun = ("whole idle node" if task.whole_nodes else "place") + ("s" if task.nodes > 1 else "")
    together = " in one cluster fleet" if task.cluster and task.nodes > 1 else ""
    counts = f"{task.nodes} {noun}{together} wanted, {had} found"
    short = f", short by {task.nodes - had}" if had else ""
    text = f"{NEVER if never else NOT_NOW}: {counts}{short}"
    return text + (f" ({why})" if why else "") + ("" if proved else "; not proved")


def hint_for(
    task: Task,
    codes: Collection[str],
    *,
    never: bool,
    changes: Sequence[str] | None = None,
    busy: bool = True,
) -> str | None:
    """What to do about it. `changes` are those that are enough; None if not all were tried.

    `busy`: other tasks hold blocks.
    """
    codes = set(codes)
    if not codes:
        return "declare a fleet"
    fits: str | None = None
    if changes:
        *most, last = changes
        fits = f"it fits {', '.join(most)}, or {last}" if most else f"it fits {last}"
    if codes <= {"not-cluster", "fleet"} and "not-cluster" in codes:
        alone = changes is None or "with `placement: any`" in changes
        advice = "set `placement: cluster` on a fleet, or `placement: any` on the task"
        return advice if alone else fits or f"{advice}; that alone is not enough"
    if codes == {"no-offer"} and not fits:
        return "its fleets have no offers: change what they ask for, as is said of each"
    if special := _advice(task, codes, never=never, fits=bool(fits)):
        return f"{special}; {fits}" if fits else special
    # Waiting helps only what does not fit now.
    wait = "" if never else _or_wait(codes, busy=busy)
    if fits:
        return f"{fits}{wait}"
    if changes is None:
        return f"`fleetform explain task/NAME` looks for what makes it fit{wait}"
    none = "no single change that was tried makes it fit (task, `nodes` of fleets, `limit` of offers)"
    return f"{none}; {wait.removeprefix(', or ')}" if wait else none


def _advice(task: Task, codes: Collection[str], *, never: bool, fits: bool) -> str | None:
    """What helps a task that asks for whole nodes, for what is gone, for what no host can do, or for nodes by
    name.
    """
    if "too-large" in codes and task.whole_nodes and never:
        return "widen the range in the task's `resources`, or set `exclusive: false`"
    if "volume-gone" in codes:
        return "bring the volume back, or have an empty one made: `fleetform apply --replace volume/NAME`"
    if never and not fits and not ABLE.keys().isdisjoint(codes):
        return "; ".join(text for code, text in ABLE.items() if code in codes)
    if task.instances:
        return next((text for code, text in PINNED.items() if code in codes), None)
    return None


def _or_wait(codes: Collection[str], *, busy: bool) -> str:
    """What else helps where a task does not fit now."""
    undrain = ", or `fleetform undrain` a node" if "drained" in codes else ""
    events = {
        "running tasks have ended": busy,
        "another task gets a node launched": "reuse-only" in codes,
        "what is not ready is ready": "not-ready" in codes,
        "the backend can be read": "offers-unknown" in codes,
    }
    parts = [text for text, helps in events.items() if helps]
    if not parts and "fleet-max" in codes:  # else it could never fit
        parts = ["idle nodes were deleted"]
    return f"{undrain}, or wait until {' or '.join(parts)}" if parts else undrain


class RejectionReport:
    """Why one rank of a task cannot have a node or an offer, once its siblings have their places."""

    def __init__(
        self,
        plan: FinishedPlan,
        job: Job,
        rank: int,
        domain: Domain,
        siblings: Mapping[int, Mapping[int, str]],
        volumes: Mapping[int, Mapping[str, str]] = {},
    ) -> None:
        """`siblings` is node → the blocks of other ranks there, `volumes` rank → the volumes that it gets."""
        self.plan, self.catalog, self.assignment = plan, plan.catalog, plan.assignment
        self.job, self.rank, self.domain, self.siblings = job, rank, domain, siblings
        name = str(job.task.name)
        self._volume_holders = {
            **self.assignment.volume_holders,
            **{
                volume: f"rank/{rank_name(name, job.ask.number(other))}"
                for other, own in volumes.items()
                for volume in own.values()
                if other != rank
            },
        }
        self._mounts_at: dict[Place, Mismatch | None] = {}
        self.counts: Counter[str] = Counter()
        self._nouns: dict[str, Counter[str]] = {}
        self._nodes: dict[tuple[str, str], list[tuple[Mismatch, Sequence[int]]]] = {}
        self.taken_by_siblings: dict[tuple[str, str], list[tuple[Mismatch, Sequence[int]]]] = {}
        """Nodes that other ranks of the task have: named if there is nothing else to say."""
        self._offers: dict[tuple[str, str], list[Rejection]] = {}

    @property
    def causes(self) -> tuple[tuple[str, str], ...]:
        """Fleet and code of all rejections."""
        return tuple(sorted({*self._nodes, *self._offers}))

    # All of them

    def ask_all(self) -> None:
        """Ask about every node and offer."""
        for numbers in self.plan.alike.values():
            groups = [numbers]
            if self.job.task.instances or not self.siblings.keys().isdisjoint(numbers):
                others = [n for n in numbers if n not in self.siblings]
                groups = [
                    [n for n in others if self._is_named(n)],
                    [n for n in others if not self._is_named(n)],
                ]
                groups += [[n] for n in numbers if n in self.siblings]
            for group in filter(None, groups):
                if reason := self.of_node(group[0]):
                    self._note_nodes(reason, group)
        for fleet, target, _, reason in self.of_offers():
            if reason:
                self._count(reason.code, target.partition("/")[0], 1)
                self._offers.setdefault((fleet, reason.code), []).append(reason.of(target))
        if not self.counts:
            self._nodes = self.taken_by_siblings

    def _note_nodes(self, reason: Mismatch, numbers: Sequence[int]) -> None:
        if reason.code in ("not-idle", "busy"):  # of a node that this plan launches it says nothing
            numbers = [n for n in numbers if not self.plan.nodes[n].new]
        if not numbers:
            return
        key = (self.catalog.kinds[self.assignment.kind_of[numbers[0]]].fleet, reason.code)
        if reason.detail == TAKEN_BY_SIBLINGS:
            self.taken_by_siblings.setdefault(key, []).append((reason, numbers))
            return
        self._count(reason.code, "node", len(numbers))
        self._nodes.setdefault(key, []).append((reason, numbers))

    def _count(self, code: str, noun: str, number: int) -> None:
        self.counts[code] += number
        self._nouns.setdefault(code, Counter())[noun] += number

    def counted(self) -> str:
        """How many nodes and offers each of the most frequent reasons turned down, in words."""
        ordered = sorted(self.counts.items(), key=lambda p: (p[0] not in LASTING, -p[1], p[0]))
        words = LASTING | PASSING
        return ", ".join(
            " and ".join(f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in self._nouns[code].items())
            + f" {words.get(code, code)}"
            for code, _ in ordered[:4]
        )

    def rejections(self) -> tuple[Rejection, ...]:
        """All of them by name, or the first few of each fleet and code and how many more there are."""
        nodes = sum(len(numbers) for groups in self._nodes.values() for _, numbers in groups)
        every = nodes + sum(map(len, self._offers.values())) <= MOST_REJECTIONS
        most = None if every else NAMED
        out: list[Rejection] = []
        for (fleet, _), groups in self._nodes.items():
            # Numbers are sorted in each group: more than the first few are not looked at.
            first = sorted(n for _, numbers in groups for n in numbers[:most])[:most]
            own = ((self.of_node(n), self.plan.nodes[n].name) for n in first)
            out += [reason.of(f"node/{name}") for reason, name in own if reason]
            more = sum(len(numbers) for _, numbers in groups) - len(first)
            out += _not_named(fleet, [reason.of("nodes") for reason, _ in groups], more)
        for (fleet, _), offers in self._offers.items():
            out += offers[:most]
            more = len(offers) - len(offers[:most])
            out += _not_named(fleet, [replace(offer, target="offers") for offer in offers], more)
        return tuple(sorted(out, key=lambda r: (r.code not in LASTING, r.count > 1, natural(r.target))))

    # One of them

    def _is_named(self, number: int) -> bool:
        """Whether the task names the node, or none at all."""
        pins = self.job.task.instances
        return not pins or self.plan.nodes[number].name in pins

    def of_node(self, number: int) -> Mismatch | None:
        """Why the rank cannot have a node; None if it can."""
        node, kind = self.plan.nodes[number], self.assignment.kind_of[number]
        if not self._is_named(number):
            return not_pinned(self.job.task)
        if reason := self.plan.kind_reason(self.job, kind):
            of_fleet = reason.code in ("fleet", "not-cluster") and node.fleet in self.catalog.fleets
            return reason._replace(detail=f"fleet/{node.fleet}: {reason.detail}") if of_fleet else reason
        if lasting := self._elsewhere(kind) or self._lasting_mounts(kind):
            return lasting
        # What no waiting helps was said by now; of the rest the node itself comes first.
        if reason := ready_reason(node) or self._mounts(kind):
            return reason
        task, node_type, held = self.job.task, self.catalog.kinds[kind], self.plan.held[number]
        if reason := block_reason(task, node_type, held):
            return reason
        if is_spread(task):
            return kept_apart(task.spread)
        reason = block_reason(task, node_type, {**held, **self.siblings.get(number, {})})
        return Mismatch(reason.code, TAKEN_BY_SIBLINGS) if reason else None

    def of_offers(self) -> Iterator[tuple[str, str, LaunchOption | None, Mismatch | None]]:
        """Each offer, what is not seen now, and each fleet without an offer: the fleet, the target's name, an
        offer's option, and why the rank cannot have it.
        """
        task = self.job.task
        for option in self.catalog.options:
            target = offer_name(self.catalog.kinds[option.kind])
            yield option.fleet, target, option, self.of_option(option)
        for fleet, rule in self.catalog.fleets.items():
            for unseen in rule.unseen:
                reason = unseen_reason(task, rule.fleet, unseen)
                if reason.code not in LASTING and unseen.offer:
                    reason = self._far(NodeType(*of_offer(unseen.offer, rule.fleet))) or reason
                yield fleet, unseen.target, None, reason
        for fleet in self.plan.without_offer:
            rule = self.catalog.fleets[fleet]
            none = fleet_reason(task, rule.fleet) or Mismatch("no-offer", rule.why_nothing())
            yield fleet, f"fleet/{fleet}", None, none

    def of_option(self, option: LaunchOption) -> Mismatch | None:
        """Why the rank cannot have an offer, None if it can: what no waiting helps comes first."""
        task, kind, fleet = self.job.task, option.kind, option.fleet
        if reason := self.plan.kind_reason(self.job, kind):
            return reason
        coming = self.catalog.coming
        if task.instances and not any(n.rpartition("-")[0] == fleet and n in coming for n in task.instances):
            return not_pinned(task)
        if home := self.assignment.astray(option):
            detail = f"fleet/{fleet} has its nodes in {'/'.join(home)}, and a cluster stays together"
            return Mismatch("region", detail)
        if lasting := self._elsewhere(kind) or self._lasting_mounts(kind):
            return lasting
        if self.job.reuse and self.assignment.baseline_left[fleet] <= 0:
            why = "`--reuse`" if self.job.ask.reuse else "`creation_policy: reuse`"
            return Mismatch("reuse-only", f"{why} launches nothing")
        apart = kept_apart(task.spread) if is_spread(task) else None
        return self._no_room(option) or self._mounts(kind) or apart

    def _no_room(self, option: LaunchOption) -> Mismatch | None:
        """Whether the fleet's maximum or the offer's limit is reached."""
        rule = self.catalog.fleets[option.fleet]
        if self.assignment.fleet_room[option.fleet] == 0:
            nodes = rule.fleet.nodes
            most = nodes.max if nodes else rule.existing + len(rule.offers)
            detail = f"fleet/{option.fleet} is at its maximum of {most} node{'' if most == 1 else 's'}"
            if tasks := [f"task/{c.task}" for c in self.plan.claims if c.launches.get(option.fleet)]:
                detail += f", with those that {and_more(tasks, NAMED)} may yet launch"
            return Mismatch("fleet-max", detail, {"nodes": 1})
        if self.assignment.remain(option) == 0:
            used_up = self.assignment.quota_left[option.quota] == 0
            why = "reached" if used_up else "kept for nodes of other fleets"
            if tasks := [f"task/{c.task}" for c in self.plan.claims if c.quotas.get(option.quota)]:
                why = f"kept for {and_more(tasks, NAMED)}"
            return Mismatch("limit", f"its limit of {option.offer.limit} is {why}", {"nodes": 1})
        return None

    def _elsewhere(self, kind: int) -> Mismatch | None:
        """Why it cannot be had beside the other ranks of the gang."""
        if far := self._far(self.catalog.kinds[kind]):
            return far
        maker, own = self.domain.maker, self.catalog.maker_of[kind]
        if maker is None or own in (None, maker):
            return None
        model = self.catalog.kinds[kind].shape.gpu_name
        of = f"{own} ({model})" if model and model.lower() != own else own
        return Mismatch("gpu-vendor", f"its GPUs are of {of}, those of the other ranks of {maker}; {TO_MIX}")

    def _far(self, node_type: NodeType) -> Mismatch | None:
        """Whether the other ranks of a cluster task lie in another area."""
        area = self.domain.area
        if area is None:
            return None
        if (node_type.fleet, node_type.backend, node_type.region) != (area.fleet, area.backend, area.region):
            where = f"fleet/{area.fleet} in {area.backend}/{area.region}"
            return Mismatch("region", f"the other ranks lie in {where}, and a cluster task stays together")
        if node_type.at(area.level) == area.at:
            return None
        where = f"{area.level} {area.at}" if area.at else f"no {area.level}"
        detail = f"the other ranks lie in {where}, and the ranks of a cluster lie in one {area.level}"
        return Mismatch("zone" if area.level == "zone" else "topology", detail)

    def _lasting_mounts(self, kind: int) -> Mismatch | None:
        """What no waiting helps: a volume that is elsewhere, or nowhere."""
        reason = self._mounts(kind)
        return reason if reason and reason.code in LASTING else None

    def _mounts(self, kind: int) -> Mismatch | None:
        mounts = self.job.ask.want.mounts
        if not mounts or not mounts[self.rank]:
            return None
        place = self.catalog.kinds[kind].place
        if place not in self._mounts_at:
            self._mounts_at[place] = mount_reason(
                mounts[self.rank], place, self.catalog.volumes, self._volume_holders
            )
        return self._mounts_at[place]


def _distance(reason: Rejection) -> tuple[float, str]:
    """How far from fitting; what is missing is compared by number alone, whatever its dimension."""
    return (sum(map(abs, reason.short.values())), reason.detail)


def _not_named(fleet: str, rejections: Sequence[Rejection], count: int) -> Iterator[Rejection]:
    """One entry for those of a fleet that are only counted, with what is said of the nearest."""
    if count:
        nearest = min(rejections, key=_distance)
        detail = f"{count} more {nearest.target}, {SUCH_AS}{nearest.detail}"
        yield replace(nearest, target=f"fleet/{fleet}", detail=detail, count=count)
