"""The answers to questions about a task, a rank or a node of a plan, and the reasons in words: why a rank is
on its node, why a node is deleted, why a node is launched from its offer, why a node was rejected.

Computed from the finished plan, as everything in `why`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from declarative.model.record import struct
from declarative.model.state import Record, rank_name
from declarative.model.status import NodeState, Readiness
from declarative.placement.catalog import LaunchOption
from declarative.placement.demand import Domain, Job
from declarative.placement.filters import Mismatch
from declarative.placement.problem import Ask, Node, NodeType, Refusal, Rejection, of_node, offer_name
from declarative.planner.decisions import avoids_text
from declarative.planner.nodes import NodeDecision
from declarative.planner.tasks import Course, TaskDecision
from declarative.planner.types import NodePreview, Reason, Reservation
from declarative.why.alternatives import (
    MOST,
    NAMED,
    Alternative,
    Elsewhere,
    Instead,
    PlaceTally,
    Recount,
    Rejected,
    Scene,
    barred_reason,
)


@struct(frozen=True, slots=True, kw_only=True)
class Why:
    """One reason why something is where it is. `key` is stable, the text is for people."""

    key: str
    text: str


@struct(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """Where one rank is or will be, and why. `like` names the rank whose `instead` also applies
    to this one.
    """

    name: str
    rank: int
    state: str
    place: Reservation | None
    node_price: float | None = None
    why: tuple[Why, ...] = ()
    instead: Instead | None = None
    like: int | None = None


@struct(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """A task, or one rank of it. `status`: kept, placed, unplaced, ended, asleep (outside
    of its schedule) or removed.
    """

    address: str
    task: str
    status: str
    reason: str | None = None
    because: tuple[str, ...] = ()
    ranks_count: int
    ranks: tuple[RankAnswer, ...]
    refusal: Refusal | None = None
    places: Instead | None = None
    """Which places would hold a rank of a task that cannot be placed as a whole."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """The areas in which a whole cluster task could lie, and how far it gets there."""


@struct(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """Tasks without a place for which a node was rejected by the same reason. Without a code, it would hold a
    rank.
    """

    code: str | None
    detail: str
    short: Mapping[str, float]
    count: int
    tasks: tuple[str, ...]


@struct(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """A node. `status`: new, kept, changed, replaced, deleted or gone; `idle_price` is the price of its idle
    blocks, USD an hour.
    """

    address: str
    status: str
    why: tuple[Why, ...]
    changed: tuple[str, ...]
    readiness: Readiness
    closed: str | None
    kind: NodeType
    holders: Mapping[int, str]
    idle_price: float | None
    instead: Instead | None = None
    looked: tuple[LookedAt, ...] = ()
    not_asked: int = 0
    """The number of tasks without a place beyond `MOST_LOOKED`."""


Answer = TaskAnswer | NodeAnswer


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

    def __init__(self, recount: Recount, node: Node, asked: Sequence[tuple[Job, PlaceTally]]) -> None:
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


GOES = {
    Reason.REMOVED: "its fleet is not declared any more",
    Reason.CHANGED: "its fleet's `{}` changed",
    Reason.MISMATCH: "it does not keep its fleet's `{}` any more",
    Reason.DRIFT: "somebody else changed its `{}`",
    Reason.UNFIT: "{}",
    Reason.REQUESTED: "`--replace` asks for it",
    Reason.SURPLUS: "its fleet's `{}` allows no more than the others",
    Reason.IDLE: "it is above the fleet's target, and was idle for longer than the fleet's `{}`",
    Reason.DESTROY: "everything is destroyed",
    Reason.SCHEDULE: "its fleet's `schedule` says so",
}


@struct(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Finds the reasons for the place of one rank. `record` is its reservation before the plan."""

    decision: TaskDecision
    ask: Ask
    place: Reservation
    node: Node
    preview: NodePreview
    found: Instead
    scene: Scene
    decisions: Mapping[str, NodeDecision]
    record: Record | None
    together: bool
    """Whether it has siblings and lies with them."""
    stuck: bool
    """Whether it should run anew, but goes on because no other place was found."""

    def all(self) -> list[Why]:
        """All reasons: first what held it there, then what it was chosen for."""
        before = self._before()
        out = [before] if before else []
        out += self._bound()
        out.append(self._fit())
        if self.node.new:
            out += self._launched()
        elif before is None or before.key == "moved":
            out.append(
                Why(key="idle-there", text="its blocks are there and idle: nothing is launched for it")
            )
        return out

    def _bound(self) -> Iterator[Why]:
        """The reasons that leave a rank no choice, and the state of its node."""
        place, task = self.place, self.decision.want.spec
        ready = self.node.readiness
        if ready.state is not NodeState.READY:
            reason = f": {ready.reason}" if ready.reason else ""
            yield Why(key="not-ready", text=f"its node is {ready.state.value}{reason}")
        if task.instances:
            yield Why(key="pinned", text=f"the task asks for {', '.join(task.instances)}")
        if self.decision.avoids:
            yield Why(key="avoids", text=f"the task {avoids_text(self.decision.avoids)}")
        if place.node in self.decision.despite:
            text = f"the task failed on node/{place.node} before, and no other place fits"
            yield Why(key="failed-there", text=text)
        if place.volumes:
            where = f"{place.backend}/{place.zone or place.region}"
            names = ", ".join(f"volume/{v}" for v in place.volumes.values())
            yield Why(key="volumes", text=f"its volumes are in {where}: {names}")
        if self.together:
            text = f"the other ranks lie in fleet/{place.fleet} in {place.backend}/{place.region}"
            yield Why(key="siblings", text=f"{text}, and a cluster task stays together")

    def _before(self) -> Why | None:
        """How its place relates to the one before."""
        place = self.place
        if self.stuck:
            text = "it should run anew and has no place for that, so it goes on where it is"
            return Why(key="goes-on", text=text)
        if self.decision.course is not Course.RUN:
            if place.rank in self.decision.have:
                return Why(key="runs", text="it runs there, and what runs is never moved")
            if self.decision.course is not Course.RESIZED:
                text = "its blocks were reserved before, and it is started there"
                return Why(key="promised", text=text)
        if self.record is None:
            return None
        old = self.record.reservation.node
        if old == place.node and not self.node.new:
            same = self.record.reservation.blocks == place.blocks
            text = "it had this place before and keeps it" if same else "it had blocks of this node before"
            return Why(key="keeps", text=text)
        return Why(key="moved", text=f"it was on node/{old}: {self._why_not(old)}")

    def _why_not(self, old: str) -> str:
        decision = self.decisions.get(old)
        if decision and decision.goes:
            return goes_text(decision)
        if all(n.name != old for n in self.scene.nodes):
            return "that node is gone"
        name = f"rank/{rank_name(self.place.task, self.place.rank)}"
        ((_, reason),) = looked(self.scene.without({name}), [(self.ask, self.place.rank)], old)
        return reason.detail if reason else "it was placed anew with its siblings"

    def _fit(self) -> Why:
        total = self.preview.total
        idle = total - len(self.preview.holders)
        if self.decision.want.spec.whole_nodes:
            return Why(key="whole-node", text="an exclusive rank takes a whole idle node")
        if not idle:
            return Why(key="exact-fit", text="exact fit: no block of the node stays idle")
        return Why(key="blocks-left", text=f"{idle} of {total} blocks of the node stay idle")

    def _launched(self) -> list[Why]:
        if self.found.anyway:
            text = f"fleet/{self.node.fleet} launches the node for itself, to have all its nodes"
            return [Why(key="fleet-size", text=text), offered(self.node, self.found, "would do")]
        if not self.found.alone:
            text = f"the node is launched for others, too: see `fleetform explain node/{self.node.name}`"
            return [Why(key="shared", text=text)]
        return [offered(self.node, self.found, "would do")]


def offered(node: Node, found: Instead, which: str) -> Why:
    """Why a node is launched from its offer. `which` says by what the other offers are compared."""
    total = found.offers_count + 1
    if total == 1:
        return Why(key="only-offer", text=f"launched: the only offer that {which}")
    if node.price is None:
        text = f"launched: one of {total} offers that {which}; its price is unknown"
        return Why(key="price-unknown", text=text)
    if not found.cheaper:
        return Why(key="cheapest", text=f"launched: the cheapest of {total} offers that {which}")
    text = f"launched, although {found.cheaper} of {total} offers that {which} cost less"
    return Why(key="not-cheapest", text=f"{text}: the search found nothing better for the plan as a whole")


def goes_text(decision: NodeDecision) -> str:
    """Why a node is deleted."""
    assert decision.goes is not None
    return GOES[decision.goes].format(decision.because[0] if decision.because else "")
