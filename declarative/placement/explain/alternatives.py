"""Why a rank is where it is, and which other places would hold it. Computed from the finished plan.

The search keeps no log. One rank is taken out of the finished plan while all others stay. Then each node and
offer is checked with the filters of a refusal: would it hold the rank?
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from declarative.model.outputs import TEXT_ONLY, As, Key, Of
from declarative.model.record import struct
from declarative.model.state import natural, rank_name
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import finish
from declarative.placement.bound_task import BoundTask
from declarative.placement.catalog import ANYWHERE, Catalog, Domain, Job, LaunchOption
from declarative.placement.explain.refusal import FinishedPlan, RejectionReport, fitting_ranks
from declarative.placement.filters import Mismatch, fleet_reason
from declarative.placement.greedy import best_try
from declarative.placement.problem import (
    Ask,
    FleetRule,
    Node,
    NodeType,
    Rejection,
    VolumeAt,
    of_node,
    offer_name,
)

MOST = 20
"""At most so many nodes, offers and groups of places are named; the rest are only counted."""

NAMED = 5
"""At most so many targets are named for each reason that rejected several."""

MOST_DOMAINS = 50
"""At most so many groups of places are tried for a whole task."""


@struct(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything as it is once a plan is done. `held` of a node names all that will sit on it.

    `loose` are volumes that the plan makes wherever their rank goes; without the rank they could lie
    elsewhere. `barred` are offers that a fleet's own limits rule out: fleet, offer's name, price, name of the
    limit.
    """

    nodes: tuple[Node, ...]
    fleets: Mapping[str, FleetRule]
    volumes: Mapping[str, VolumeAt]
    loose: frozenset[str] = frozenset()
    barred: tuple[tuple[str, str, float | None, str], ...] = ()

    def without(self, ranks: Collection[str]) -> Scene:
        """The scene without these ranks, and without the nodes that are launched only for them."""
        nodes: list[Node] = []
        for node in self.nodes:
            held = {b: h for b, h in node.held.items() if h not in ranks}
            if held or not (node.new and node.held):
                nodes.append(node if len(held) == len(node.held) else replace(node, held=held))
        volumes = {
            name: self._let_go(name, at) if at.holder in ranks else at for name, at in self.volumes.items()
        }
        return replace(self, nodes=tuple(nodes), volumes=volumes)

    def _let_go(self, name: str, at: VolumeAt) -> VolumeAt:
        return replace(at, holder=None, zone=None if name in self.loose else at.zone)

    def rules(self) -> dict[str, FleetRule]:
        """The fleets' rules with planned launches counted as existing nodes."""
        new: dict[str, int] = {}
        for node in self.nodes:
            new[node.fleet] = new.get(node.fleet, 0) + node.new
        return {
            name: replace(
                rule,
                existing=rule.existing + new.get(name, 0),
                baseline=max(0, rule.baseline - new.get(name, 0)),
            )
            for name, rule in self.fleets.items()
        }


@struct(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A node or an offer that would hold the rank. `more` is the added cost of the plan in USD an hour."""

    target: str
    kind: Annotated[NodeType, TEXT_ONLY]
    fleet: ClassVar[Annotated[str, Of("kind.fleet")]]
    backend: ClassVar[Annotated[str, Of("kind.backend")]]
    region: ClassVar[Annotated[str, Of("kind.region")]]
    zone: ClassVar[Annotated[str | None, Of("kind.zone")]]
    instance_type: ClassVar[Annotated[str, Of("kind.instance_type")]]
    spot: ClassVar[Annotated[bool, Of("kind.spot")]]
    blocks: int
    idle: Annotated[int, Key("idle_blocks")]
    """Its idle blocks before the rank is placed there."""
    total_blocks: ClassVar[Annotated[int, Of("kind.total")]]
    price: ClassVar[Annotated[float | None, Of("share")]]
    node_price: ClassVar[Annotated[float | None, Of("kind.price")]]
    more: Annotated[float | None, Key("plan_hourly_change")]
    note: str | None = None
    """Why the search prefers the place that was taken, if it does."""

    @property
    def share(self) -> float | None:
        """The price of the rank's blocks, USD an hour."""
        price = self.kind.price
        return None if price is None else round(price * self.blocks / self.kind.total, 6)


@struct(frozen=True, slots=True, kw_only=True)
class Rejected:
    """All nodes, offers or fleets that one filter rejected. `cheaper` counts those that cost less than the
    chosen one.
    """

    what: str
    code: str
    count: int
    cheaper: int
    examples: tuple[Rejection, ...]


@struct(frozen=True, slots=True, kw_only=True)
class Instead:
    """Which other nodes and offers would hold a rank, best first, and which were rejected."""

    nodes_count: int = 0
    nodes: tuple[Alternative, ...] = ()
    offers_count: int = 0
    offers_cheaper: int = 0
    offers: tuple[Alternative, ...] = ()
    turned_down: tuple[Rejected, ...] = ()
    alone: Annotated[bool, TEXT_ONLY] = False
    """Whether its node is launched only for it."""
    anyway: Annotated[bool, TEXT_ONLY] = False
    """Whether its fleet launches such a node in any case."""


@struct(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The result of placing a whole cluster task in one area: how many ranks find a place, and
    the launches.
    """

    fleet: str
    backend: str
    region: str
    at: Annotated[str, As(str | None), Of(lambda area: area.at or None)]
    """Its zone, or another level that the ranks share; "" if the region is not divided."""
    ranks_found: int
    launches: int
    hourly: float
    """What the launches add to the cost, USD an hour."""


class _Recount:
    """A finished plan without the places of some tasks, or of one rank."""

    def __init__(self, scene: Scene, asks: Sequence[Ask]) -> None:
        self.scene = scene
        self.catalog = Catalog(asks, scene.nodes, scene.rules(), scene.volumes)
        self.assignment = Assignment.start(self.catalog)
        self.plan = FinishedPlan(self.catalog, self.assignment, finish(self.assignment))

    def report(self, job: Job, rank: int, domain: Domain) -> RejectionReport:
        """A report on one rank of a task whose other ranks lie in `domain`."""
        if not job.request.one_vendor:
            domain = domain._replace(maker=None)
        return RejectionReport(self.plan, job, rank, domain, {})

    def domain(self, job: Job) -> Domain:
        """The domain in which a cluster task without a place found the most places."""
        best = best_try(self.assignment, job)
        return best.domain if best else ANYWHERE


class _RejectedGroups:
    """What was rejected, by what it is and by code."""

    def __init__(self, cost: float | None) -> None:
        """`cost` is that of the chosen node, USD an hour; None if it is unknown."""
        self._cost = cost
        self._groups: dict[tuple[str, str], list[tuple[Rejection, bool]]] = {}

    def add(self, what: str, reason: Mismatch, targets: Iterable[str], price: float | None = None) -> None:
        """Add targets that one reason rejected."""
        cheaper = price is not None and self._cost is not None and price < self._cost
        self._groups.setdefault((what, reason.code), []).extend((reason.of(t), cheaper) for t in targets)

    def add_barred(self, scene: Scene, may_use: Callable[[str], bool]) -> None:
        """Add the offers that the limits of fleets rule out for anyone."""
        for fleet, name, price, limit in scene.barred:
            if may_use(fleet):
                detail = f"fleet/{fleet} launches no such node: its `{limit}` rules it out"
                self.add("offer", Mismatch("no-offer", detail), [name], price)

    def listed(self, own: Callable[[Rejection], Rejection] = lambda rejection: rejection) -> list[Rejected]:
        """Nodes, then offers, then fleets; of each the most frequent code first. `own` gives a node's own
        rejection, where nodes that are alike were asked about as one.
        """
        out: list[Rejected] = []
        for (what, code), group in self._groups.items():
            examples = [rejection for rejection, _ in group]
            if what == "node":
                examples.sort(key=lambda r: natural(r.target))
                examples = list(map(own, examples[:NAMED]))
            cheaper = sum(cheaper for _, cheaper in group)
            shown = tuple(examples[:NAMED])
            out.append(Rejected(what=what, code=code, count=len(group), cheaper=cheaper, examples=shown))
        kinds = ("node", "offer", "fleet")
        return sorted((r for r in out if r.count), key=lambda r: (kinds.index(r.what), -r.count, r.code))


class _AlternativeSearch:
    """Sorts all nodes and offers into those that would hold a rank and those that would not."""

    def __init__(self, recount: _Recount, job: Job, rank: int, domain: Domain, seat: Node | None) -> None:
        self.recount, self.catalog, self.assignment = recount, recount.catalog, recount.assignment
        self.job, self.seat = job, seat
        self.report = recount.report(job, rank, domain)
        self.alone = seat is not None and seat.new and seat.name not in self.catalog.index
        self.anyway = self.alone and seat is not None and self.assignment.baseline_left[seat.fleet] > 0
        self.rejected = _RejectedGroups(seat.price if seat else None)

    def instead(self) -> Instead:
        """The alternatives and the rejected ones, named and counted."""
        nodes, offers = self._nodes(), self._offers()
        fleets = self.catalog.fleets
        self.rejected.add_barred(
            self.recount.scene, lambda fleet: not fleet_reason(self.job.task, fleets[fleet].fleet)
        )
        cost = self.seat.price if self.seat else None
        return Instead(
            nodes=tuple(nodes[:MOST]),
            nodes_count=len(nodes),
            offers=tuple(offers[:MOST]),
            offers_count=len(offers),
            offers_cheaper=0 if cost is None else sum(o.kind.cost < cost for o in offers),
            turned_down=tuple(self.rejected.listed(self._own_rejection)),
            alone=self.alone,
            anyway=self.anyway,
        )

    # Existing nodes

    def _nodes(self) -> list[Alternative]:
        names = [node.name for node in self.catalog.nodes]
        numbers: list[int] = []
        for alike in self.recount.plan.alike.values():
            for group in [[n] for n in alike] if self.job.task.instances else [alike]:
                others = [n for n in group if self.seat is None or names[n] != self.seat.name]
                if reason := self.report.of_node(group[0]):
                    self.rejected.add("node", reason, [f"node/{names[n]}" for n in others])
                else:
                    numbers += others
        return [self._node(n) for n in sorted(numbers, key=lambda n: (*self._key(n), natural(names[n]), n))]

    def _key(self, number: int) -> tuple[float, ...]:
        """Sorts places from best to worst, as seen by this one rank (as in `allocate`)."""
        kind, free = self.assignment.kind_of[number], self.assignment.free[number]
        node_type, need = self.catalog.kinds[kind], self.job.request.fit[kind]
        gpus = need * node_type.shape.gpus // node_type.total - self.job.request.gpus
        return (gpus, free == node_type.total and not self.job.request.whole, free - need, node_type.cost)

    def _node(self, number: int) -> Alternative:
        kind = self.assignment.kind_of[number]
        price = self.seat.price if self.alone and not self.anyway and self.seat else 0.0
        return Alternative(
            target=f"node/{self.catalog.nodes[number].name}",
            kind=self.catalog.kinds[kind],
            blocks=self.job.request.fit[kind],
            idle=self.assignment.free[number],
            more=None if price is None else -price or 0.0,
            note=self._why_not_chosen(number),
        )

    def _why_not_chosen(self, number: int) -> str | None:
        """Why the place that was taken is better, if it is on an existing node."""
        chosen = self.catalog.index.get(self.seat.name) if self.seat else None
        if chosen is None or self.report.of_node(chosen):
            return None
        mine, its = self._key(chosen), self._key(number)
        gpus, idle, blocks, _ = (a > b for a, b in zip(its, mine, strict=True))
        if gpus:
            return f"it would take {its[0]:g} GPUs that the rank does not ask for"
        if its[0] == mine[0] and idle:
            return "it is wholly idle, and is kept for ranks that need a whole node"
        if its[:2] == mine[:2] and blocks:
            return f"it would leave {its[2]:g} blocks idle instead of {mine[2]:g}"
        return None

    def _own_rejection(self, rejection: Rejection) -> Rejection:
        """The rejection for this node's own holders: nodes that are alike were asked about as one."""
        reason = self.report.of_node(self.catalog.index[rejection.target.removeprefix("node/")])
        return reason.of(rejection.target) if reason else rejection

    # Offers

    def _offers(self) -> list[Alternative]:
        out: list[Alternative] = []
        mine = NodeType(*of_node(self.seat)) if self.seat and self.seat.new else None
        for _, target, option, reason in self.report.of_offers():
            kind = None if option is None else self.catalog.kinds[option.kind]
            if kind is not None and kind == mine:
                continue
            if reason:
                what = "fleet" if target.startswith("fleet/") else "offer"
                self.rejected.add(what, reason, [target], kind.price if kind else None)
            elif kind is not None and option is not None:
                out.append(self._offer(kind, self.job.request.fit[option.kind]))
        return out

    def _offer(self, kind: NodeType, blocks: int) -> Alternative:
        saved: float | None = 0.0
        if self.alone and self.seat and (not self.anyway or kind.fleet == self.seat.fleet):
            saved = self.seat.price
        more = None if kind.price is None or saved is None else round(kind.price - saved, 6)
        return Alternative(target=offer_name(kind), kind=kind, blocks=blocks, idle=kind.total, more=more)


def instead(scene: Scene, ask: Ask, rank: int, seat: Node, domain: Domain) -> Instead:
    """Which other places would hold a rank that sits on `seat`. Its siblings stay where they are."""
    name = f"rank/{rank_name(str(ask.want.spec.name), rank)}"
    recount = _Recount(scene.without({name}), [ask])
    return _AlternativeSearch(recount, recount.catalog.jobs[0], rank, domain, seat).instead()


def _without_task(scene: Scene, ask: Ask) -> _Recount:
    task = ask.want.spec
    return _Recount(scene.without({f"rank/{rank_name(str(task.name), r)}" for r in range(task.nodes)}), [ask])


def places(scene: Scene, ask: Ask, rank: int) -> Instead:
    """Which places would hold one rank of a task that cannot be placed as a whole."""
    recount = _without_task(scene, ask)
    job = recount.catalog.jobs[0]
    return _AlternativeSearch(recount, job, rank, recount.domain(job), None).instead()


def elsewhere(scene: Scene, ask: Ask) -> tuple[Elsewhere, ...]:
    """The areas in which a whole cluster task could lie, and how far it gets in each; best first."""
    recount = _without_task(scene, ask)
    job = recount.catalog.jobs[0]
    out: list[tuple[tuple[float, ...], Elsewhere]] = []
    for domain in itertools.islice(recount.catalog.domains(job.request), MOST_DOMAINS):
        area = domain.area
        if area is None:
            continue
        tried = BoundTask(recount.assignment, job, domain).run()
        fits = job.ranks if tried.failed is None else len(fitting_ranks(recount.assignment, job, tried))
        elsewhere = Elsewhere(
            fleet=area.fleet,
            backend=area.backend,
            region=area.region,
            at=area.at,
            ranks_found=fits,
            launches=tried.launches,
            hourly=round(tried.cost, 6),
        )
        out.append(((tried.failed is not None, -fits, *tried.key), elsewhere))
    return tuple(elsewhere for _, elsewhere in sorted(out, key=lambda p: p[0])[:MOST])


def launched(scene: Scene, node: Node, seated: Sequence[tuple[Ask, int, Domain]]) -> Instead:
    """Why a node is launched from its offer: which other offers would hold all ranks that sit on it."""
    bare = scene.without(set(node.held.values()))
    bare = replace(bare, nodes=tuple(n for n in bare.nodes if n.name != node.name))
    recount = _Recount(bare, list({str(ask.want.spec.name): ask for ask, _, _ in seated}.values()))
    catalog, assignment = recount.catalog, recount.assignment
    jobs = {str(job.task.name): job for job in catalog.jobs}
    ranks = [(jobs[str(ask.want.spec.name)], rank, domain) for ask, rank, domain in seated]
    reports = [recount.report(*rank) for rank in ranks]
    mine = NodeType(*of_node(node))
    offers: list[Alternative] = []
    rejected = _RejectedGroups(mine.cost)
    for option in catalog.options:
        kind = catalog.kinds[option.kind]
        if kind == mine or (not ranks and option.fleet != node.fleet):
            continue
        reasons = filter(None, (report.of_option(option) for report in reports))
        reason = next(reasons, None) or _too_small(recount, option, ranks)
        if reason is None and not ranks and not assignment.may_launch(option):
            reason = Mismatch("region", "the fleet's other nodes lie elsewhere, and a cluster stays together")
            if assignment.quota_left[option.quota] == 0:
                reason = Mismatch("limit", f"its limit of {option.offer.limit} is reached", {"nodes": 1})
        if reason:
            rejected.add("offer", reason, [offer_name(kind)], kind.price)
            continue
        more = None if kind.price is None or mine.price is None else round(kind.price - mine.price, 6)
        blocks = sum(job.request.fit[option.kind] for job, _, _ in ranks)
        offers.append(
            Alternative(target=offer_name(kind), kind=kind, blocks=blocks, idle=kind.total, more=more)
        )
    rejected.add_barred(bare, lambda fleet: fleet == node.fleet)
    return Instead(
        offers=tuple(offers[:MOST]),
        offers_count=len(offers),
        offers_cheaper=sum(o.kind.cost < mine.cost for o in offers),
        turned_down=tuple(rejected.listed()),
        alone=True,
        anyway=assignment.baseline_left[node.fleet] > 0,
    )


def _too_small(
    recount: _Recount, option: LaunchOption, ranks: Sequence[tuple[Job, int, Domain]]
) -> Mismatch | None:
    """Whether a node of an offer does not hold all ranks, each of which fits it."""
    total = recount.catalog.kinds[option.kind].total
    needed = sum(job.request.fit[option.kind] for job, _, _ in ranks)
    if needed <= total:
        return None
    text = f"its {total} blocks do not hold all {len(ranks)} ranks, which need {needed}"
    return Mismatch("too-small", text, {"blocks": needed - total})


def looked(scene: Scene, asks: Sequence[tuple[Ask, int]], node: str) -> list[tuple[str, Mismatch | None]]:
    """Why a node rejected each task without a place; None if it would hold a rank of the task."""
    recount = _Recount(scene, [ask for ask, _ in asks])
    number = recount.catalog.index[node]
    ranks = {str(ask.want.spec.name): rank for ask, rank in asks}
    known: dict[object, Mismatch | None] = {}
    out: list[tuple[str, Mismatch | None]] = []
    for job in recount.catalog.jobs:
        name = str(job.task.name)
        key: object = (job.key, ranks[name]) if job.unconstrained else job.index
        if key not in known:
            known[key] = recount.report(job, ranks[name], recount.domain(job)).of_node(number)
        out.append((name, known[key]))
    return out
