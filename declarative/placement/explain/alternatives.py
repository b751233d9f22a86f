"""Why a rank is where it is, and which other places would hold it. Computed from the finished plan.

The search keeps no log. One rank is taken out of the finished plan while all others stay. Then each node and
offer is checked with the filters of a refusal: would it hold the rank?
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.model.record import struct
from declarative.model.state import natural, rank_name
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import finish
from declarative.placement.catalog import Catalog, LaunchOption
from declarative.placement.constrained import Special
from declarative.placement.cover import Try
from declarative.placement.demand import ANYWHERE, Domain, Job
from declarative.placement.explain.refusal import RefusalReports, RejectionReport
from declarative.placement.filters import Mismatch, fleet_reason
from declarative.placement.gangs import best_try
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
    kind: NodeType
    blocks: int
    idle: int
    """Its idle blocks before the rank is placed there."""
    more: float | None
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
    """Which other nodes and offers would hold a rank, best first, and which were rejected. `cheaper` counts
    offers that cost less.
    """

    nodes: tuple[Alternative, ...] = ()
    nodes_count: int = 0
    offers: tuple[Alternative, ...] = ()
    offers_count: int = 0
    cheaper: int = 0
    turned: tuple[Rejected, ...] = ()
    alone: bool = False
    """Whether its node is launched only for it."""
    anyway: bool = False
    """Whether its fleet launches such a node in any case."""


@struct(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The result of placing a whole cluster task in one area: how many ranks find a place, and
    the launches.
    """

    fleet: str
    backend: str
    region: str
    at: str
    """Its zone, or another level that the ranks share; "" if the region is not divided."""
    found: int
    launches: int
    cost: float
    """What the launches add to the cost, USD an hour."""


class PlaceReport(RejectionReport):
    """A tally that checks one place at a time."""

    def of_option(self, option: LaunchOption) -> Mismatch | None:
        """Why the rank cannot have an offer; None if it can. A pinned name must be free for a launch."""
        pins = self.job.task.instances
        reason = self._of_option(option)
        if reason or self._may_be_named(option.fleet):
            return reason
        return Mismatch(
            "instance", f"the task asks for {', '.join(pins)}, and none of them can be launched here"
        )


class Recount:
    """A finished plan without the places of some tasks, or of one rank."""

    def __init__(self, scene: Scene, asks: Sequence[Ask]) -> None:
        self.scene = scene
        self.catalog = Catalog(asks, scene.nodes, scene.rules(), scene.volumes)
        self.assignment = Assignment.start(self.catalog)
        self.refusals = RefusalReports(self.catalog, self.assignment, finish(self.assignment))

    def asks(self, job: Job, rank: int, domain: Domain) -> PlaceReport:
        """A tally for one rank of a task whose other ranks lie in `domain`."""
        if not job.request.one_vendor:
            domain = domain._replace(maker=None)
        return PlaceReport(self.refusals, job, Try(domain=domain), rank, {})

    def domain(self, job: Job) -> Domain:
        """The domain in which a cluster task without a place found the most places."""
        found = best_try(self.assignment, job, {})
        return found.domain if found else ANYWHERE


class _AlternativeSearch:
    """Sorts all nodes and offers into those that would hold a rank and those that would not."""

    def __init__(self, recount: Recount, job: Job, rank: int, domain: Domain, seat: Node | None) -> None:
        self.recount, self.catalog, self.assignment = recount, recount.catalog, recount.assignment
        self.job, self.seat = job, seat
        self.tally = recount.asks(job, rank, domain)
        self.alone = seat is not None and seat.new and seat.name not in self.catalog.index
        self.anyway = self.alone and seat is not None and self.assignment.baseline_left[seat.fleet] > 0
        self.turned: dict[tuple[str, str], list[tuple[Rejection, bool]]] = {}
        self.counts: dict[tuple[str, str], int] = {}

    def instead(self) -> Instead:
        """The alternatives and the rejected ones, named and counted."""
        nodes, offers = self._nodes(), self._offers()
        self._barred()
        cost = self.seat.price if self.seat else None
        cheaper = 0 if cost is None else sum(1 for o in offers if o.kind.cost < cost)
        return Instead(
            nodes=tuple(nodes[:MOST]),
            nodes_count=len(nodes),
            offers=tuple(offers[:MOST]),
            offers_count=len(offers),
            cheaper=cheaper,
            turned=tuple(self._turned()),
            alone=self.alone,
            anyway=self.anyway,
        )

    # Existing nodes

    def _nodes(self) -> list[Alternative]:
        found: list[tuple[tuple[object, ...], int]] = []
        pinned = bool(self.job.task.instances)
        for numbers in self.recount.refusals.alike.values():
            for group in [[n] for n in numbers] if pinned else [numbers]:
                reason = self.tally.of_node(group[0])
                others = [n for n in group if not self._is_seat(n)]
                if reason:
                    names = [self.catalog.nodes[n].name for n in others]
                    self._note("node", reason, [f"node/{n}" for n in names])
                else:
                    found += [((*self._key(n), natural(self.catalog.nodes[n].name)), n) for n in others]
        found.sort()
        return [self._node(n) for _, n in found]

    def _is_seat(self, number: int) -> bool:
        return self.seat is not None and self.catalog.nodes[number].name == self.seat.name

    def _key(self, number: int) -> tuple[float, ...]:
        """Sorts places from best to worst, as seen by this one rank (as in `cover`)."""
        kind, free = self.assignment.kind_of[number], self.assignment.free[number]
        found, need = self.catalog.kinds[kind], self.job.request.fit[kind]
        gpus = need * found.shape.gpus // found.total - self.job.request.gpus
        return (gpus, free == found.total and not self.job.request.whole, free - need, found.cost)

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
        if chosen is None or self.tally.of_node(chosen):
            return None
        mine, its = self._key(chosen), self._key(number)
        gpus, idle, left, _ = (a > b for a, b in zip(its, mine, strict=True))
        if gpus:
            return f"it would take {its[0]:g} GPUs that the rank does not ask for"
        if its[0] == mine[0] and idle:
            return "it is wholly idle, and is kept for ranks that need a whole node"
        if its[:2] == mine[:2] and left:
            return f"it would leave {its[2]:g} blocks idle instead of {mine[2]:g}"
        return None

    # Offers

    def _offers(self) -> list[Alternative]:
        out: list[Alternative] = []
        mine = NodeType(*of_node(self.seat)) if self.seat and self.seat.new else None
        for option in self.catalog.options:
            kind = self.catalog.kinds[option.kind]
            if kind == mine:
                continue
            reason = self.tally.of_option(option)
            if reason:
                self._note("offer", reason, [offer_name(kind)], kind.price)
            else:
                out.append(self._offer(kind, self.job.request.fit[option.kind]))
        for _, reason, target in self.tally.unseen():
            self._note("offer", reason, [target])
        for name in self.recount.refusals.without_offer:
            rule = self.catalog.fleets[name]
            none = Mismatch("no-offer", rule.why_nothing())
            reason = fleet_reason(self.job.task, rule.fleet) or none
            self._note("fleet", reason, [f"fleet/{name}"])
        return out

    def _offer(self, kind: NodeType, blocks: int) -> Alternative:
        saved: float | None = 0.0
        if self.alone and self.seat and (not self.anyway or kind.fleet == self.seat.fleet):
            saved = self.seat.price
        more = None if kind.price is None or saved is None else round(kind.price - saved, 6)
        return Alternative(target=offer_name(kind), kind=kind, blocks=blocks, idle=kind.total, more=more)

    def _barred(self) -> None:
        """Offers that a fleet's own limits rule out, of fleets that the task may use."""
        for fleet, name, price, limit in self.recount.scene.barred:
            if not fleet_reason(self.job.task, self.catalog.fleets[fleet].fleet):
                self._note("offer", barred_reason(fleet, limit), [name], price)

    # Rejected nodes and offers

    def _note(self, what: str, reason: Mismatch, targets: Sequence[str], price: float | None = None) -> None:
        cost = self.seat.price if self.seat else None
        less = price is not None and cost is not None and price < cost
        key = (what, reason.code)
        self.counts[key] = self.counts.get(key, 0) + len(targets)
        self.turned.setdefault(key, []).extend((reason.of(t), less) for t in targets)

    def _turned(self) -> Iterable[Rejected]:
        for (what, code), found in sorted(self.turned.items(), key=lambda p: _turned_order(p[0], len(p[1]))):
            if found:
                items = [r for r, _ in found]
                if what == "node":
                    items.sort(key=lambda r: natural(r.target))
                    items = [self._own_rejection(r) for r in items[:NAMED]]
                cheaper = sum(less for _, less in found)
                yield Rejected(
                    what=what, code=code, count=len(found), cheaper=cheaper, examples=tuple(items[:NAMED])
                )

    def _own_rejection(self, rejection: Rejection) -> Rejection:
        """The rejection for this node's own holders: nodes that are alike were checked as one."""
        reason = self.tally.of_node(self.catalog.index[rejection.target.removeprefix("node/")])
        return reason.of(rejection.target) if reason else rejection


def barred_reason(fleet: str, limit: str) -> Mismatch:
    """Why a fleet launches no such offer for anyone."""
    return Mismatch("no-offer", f"fleet/{fleet} launches no such node: its `{limit}` rules it out")


def _turned_order(key: tuple[str, str], count: int) -> tuple[object, ...]:
    what, code = key
    return (("node", "offer", "fleet").index(what), -count, code)


# ------------------------------------------------------------------------------------------- questions


def instead(scene: Scene, ask: Ask, rank: int, seat: Node, domain: Domain) -> Instead:
    """Which other places would hold a rank that sits on `seat`. Its siblings stay where they are."""
    name = f"rank/{rank_name(str(ask.want.spec.name), rank)}"
    recount = Recount(scene.without({name}), [ask])
    return _AlternativeSearch(recount, recount.catalog.jobs[0], rank, domain, seat).instead()


def places(scene: Scene, ask: Ask, rank: int) -> Instead:
    """Which places would hold one rank of a task that cannot be placed as a whole."""
    task = ask.want.spec
    mine = {f"rank/{rank_name(str(task.name), r)}" for r in range(task.nodes)}
    recount = Recount(scene.without(mine), [ask])
    job = recount.catalog.jobs[0]
    return _AlternativeSearch(recount, job, rank, recount.domain(job), None).instead()


def elsewhere(scene: Scene, ask: Ask) -> tuple[Elsewhere, ...]:
    """The areas in which a whole cluster task could lie, and how far it gets in each; best first."""
    task = ask.want.spec
    mine = {f"rank/{rank_name(str(task.name), r)}" for r in range(task.nodes)}
    recount = Recount(scene.without(mine), [ask])
    job = recount.catalog.jobs[0]
    out: list[tuple[tuple[float, ...], Elsewhere]] = []
    for domain in itertools.islice(recount.catalog.domains(job.request), MOST_DOMAINS):
        if domain.area is None:
            continue
        found = Special(recount.assignment, job, domain).run()
        area = domain.area
        item = Elsewhere(
            fleet=area.fleet,
            backend=area.backend,
            region=area.region,
            at=area.at,
            found=len(found.nodes) if found.failed is not None else job.ranks,
            launches=found.launches,
            cost=round(found.cost, 6),
        )
        out.append(((found.failed is not None, -item.found, *found.key), item))
    return tuple(item for _, item in sorted(out, key=lambda p: p[0])[:MOST])


def launched(scene: Scene, node: Node, seated: Sequence[tuple[Ask, int, Domain]]) -> Instead:
    """Why a node is launched from its offer: which other offers would hold all ranks that sit on it."""
    bare = scene.without(set(node.held.values()))
    bare = replace(bare, nodes=tuple(n for n in bare.nodes if n.name != node.name))
    recount = Recount(bare, list({str(ask.want.spec.name): ask for ask, _, _ in seated}.values()))
    jobs = {str(job.task.name): job for job in recount.catalog.jobs}
    asked = [
        (job, recount.asks(job, rank, domain))
        for ask, rank, domain in seated
        if (job := jobs.get(str(ask.want.spec.name)))
    ]
    return _Launch(recount, node, asked).instead()


def _by_code(turned: Mapping[str, Sequence[tuple[Rejection, bool]]]) -> tuple[Rejected, ...]:
    """Rejected offers by code, most frequent code first, and whether each is cheaper."""
    return tuple(
        Rejected(
            what="offer",
            code=code,
            count=len(found),
            cheaper=sum(less for _, less in found),
            examples=tuple(r for r, _ in found[:NAMED]),
        )
        for code, found in sorted(turned.items(), key=lambda p: (-len(p[1]), p[0]))
    )


class _Launch:
    """The offers that could be launched in place of a node."""

    def __init__(self, recount: Recount, node: Node, asked: Sequence[tuple[Job, PlaceReport]]) -> None:
        self.recount, self.catalog, self.node, self.asked = recount, recount.catalog, node, asked

    def instead(self) -> Instead:
        """The offers that would hold all ranks on it, cheapest first, and the rejected ones."""
        mine = NodeType(*of_node(self.node))
        offers: list[Alternative] = []
        turned: dict[str, list[tuple[Rejection, bool]]] = {}
        for option in self.catalog.options:
            kind = self.catalog.kinds[option.kind]
            if kind == mine or (not self.asked and option.fleet != self.node.fleet):
                continue
            reason = self._reason(option)
            if reason is None:
                offers.append(self._alternative(option, kind, mine))
            else:
                item = (reason.of(offer_name(kind)), kind.cost < mine.cost)
                turned.setdefault(reason.code, []).append(item)
        self._add_barred(turned, mine)
        return Instead(
            offers=tuple(offers[:MOST]),
            offers_count=len(offers),
            cheaper=sum(1 for o in offers if o.kind.cost < mine.cost),
            turned=_by_code(turned),
            alone=True,
            anyway=self.recount.assignment.baseline_left[self.node.fleet] > 0,
        )

    def _add_barred(self, turned: dict[str, list[tuple[Rejection, bool]]], mine: NodeType) -> None:
        """Add the offers that the fleet's own limits keep out of placement."""
        for fleet, name, price, limit in self.recount.scene.barred:
            if fleet == self.node.fleet:
                reason = barred_reason(fleet, limit)
                less = price is not None and price < mine.cost
                turned.setdefault(reason.code, []).append((reason.of(name), less))

    def _alternative(self, option: LaunchOption, kind: NodeType, mine: NodeType) -> Alternative:
        more = None if kind.price is None or mine.price is None else round(kind.price - mine.price, 6)
        blocks = sum(job.request.fit[option.kind] for job, _ in self.asked)
        return Alternative(target=offer_name(kind), kind=kind, blocks=blocks, idle=kind.total, more=more)

    def _reason(self, option: LaunchOption) -> Mismatch | None:
        for _, tally in self.asked:
            reason = tally.of_option(option)
            if reason:
                return reason
        total = self.catalog.kinds[option.kind].total
        needed = sum(job.request.fit[option.kind] for job, _ in self.asked)
        if needed > total:
            text = f"its {total} blocks do not hold all {len(self.asked)} ranks, which need {needed}"
            return Mismatch("too-small", text, {"blocks": needed - total})
        if not self.asked and not self.recount.assignment.may_launch(option):
            if self.recount.assignment.quota_left[option.quota] == 0:
                return Mismatch("limit", f"its limit of {option.offer.limit} is reached", {"nodes": 1})
            return Mismatch("region", "the fleet's other nodes lie elsewhere, and a cluster stays together")
        return None


def looked(scene: Scene, asks: Sequence[tuple[Ask, int]], node: str) -> list[tuple[str, Mismatch | None]]:
    """Why a node rejected each task without a place; None if it would hold a rank of the task."""
    recount = Recount(scene, [ask for ask, _ in asks])
    number = recount.catalog.index[node]
    ranks = {str(ask.want.spec.name): rank for ask, rank in asks}
    known: dict[object, Mismatch | None] = {}
    out: list[tuple[str, Mismatch | None]] = []
    for job in recount.catalog.jobs:
        name = str(job.task.name)
        key: object = (job.key, ranks[name]) if job.unconstrained else job.index
        if key not in known:
            known[key] = recount.asks(job, ranks[name], recount.domain(job)).of_node(number)
        out.append((name, known[key]))
    return out
