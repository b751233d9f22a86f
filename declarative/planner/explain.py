"""Why a task, a rank or a node is as a plan has it: the answers, and the reasons in words.

The plan is the one of `make_plan`, and does not change. `placement.explain` finds the other places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated

from declarative.model.blocks import maker_of, split
from declarative.model.outputs import TEXT_ONLY, Key
from declarative.model.record import struct
from declarative.model.resource import LOCAL, TaskWant, shaped
from declarative.model.state import rank_name
from declarative.model.status import NodeState, RankState, Readiness
from declarative.model.text import and_more
from declarative.placement.catalog import ANYWHERE, Area, Domain
from declarative.placement.explain.alternatives import (
    NAMED,
    Elsewhere,
    Instead,
    Scene,
    elsewhere,
    instead,
    launched,
    looked,
    places,
)
from declarative.placement.filters import level_of
from declarative.placement.problem import (
    Ask,
    Node,
    NodeType,
    Refusal,
    Verdict,
    of_node,
    of_offer,
    offer_name,
)
from declarative.planner.decisions import Decisions, PlanRequest, avoided_by, avoids_text, prior_places
from declarative.planner.fleets import NodeDecision, node_of
from declarative.planner.hosts import with_node_names
from declarative.planner.make import plan_with_decisions
from declarative.planner.offers import allowed_backends, broken_limit
from declarative.planner.plan import NodePreview, Reason, Reservation, ReservationStatus
from declarative.planner.tasks import Course, TaskDecision, end_text

MOST_RANKS = 20
"""At most so many ranks of a task are explained; the rest are only counted."""

MOST_LOOKED = 200
"""The reason why a node rejected tasks without a place is looked up for at most so many of them."""

_NOT_WHILE_QUEUED = ("idle-there", "runs", "promised")
"""Reasons that do not apply to a rank that waits in a queue."""


@struct(frozen=True, slots=True)
class Why:
    """One reason why something is where it is. `key` is stable, the text is for people."""

    key: str
    text: str


@struct(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """Where one rank is or will be, and why. `like` names the rank whose `instead` also applies
    to this one.
    """

    name: Annotated[str, TEXT_ONLY]
    rank: int
    state: str
    place: Reservation | None
    node_price: Annotated[float | None, TEXT_ONLY] = None
    why: tuple[Why, ...] = ()
    instead: Instead | None = None
    like: Annotated[int | None, Key("instead_of_rank")] = None


@struct(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """A task, or one rank of it. `status`: kept, placed, unplaced, ended, asleep (outside
    of its schedule) or removed.
    """

    address: Annotated[str, TEXT_ONLY]
    task: str
    status: Annotated[str, TEXT_ONLY]
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
    """Tasks without a place that a node rejected for the same reason; if there is no code, it would hold a
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
    changed: tuple[str, ...] = ()
    readiness: Readiness
    closed: str | None = None
    kind: NodeType
    holders: Mapping[int, str] = field(default_factory=dict)
    idle_price: float | None = None
    instead: Instead | None = None
    looked: tuple[LookedAt, ...] = ()
    not_asked: int = 0
    """The number of tasks without a place beyond `MOST_LOOKED`."""


Answer = TaskAnswer | NodeAnswer


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


def _bound(decision: TaskDecision, place: Reservation, node: Node) -> Iterator[Why]:
    """The reasons that leave a rank no choice, and the state of its node."""
    task, ready = decision.want.spec, node.readiness
    if ready.state is not NodeState.READY:
        reason = f": {ready.reason}" if ready.reason else ""
        yield Why("not-ready", f"its node is {ready.state.value}{reason}")
    if task.instances:
        yield Why("pinned", f"the task asks for {', '.join(task.instances)}")
    if decision.avoids:
        yield Why("avoids", f"the task {avoids_text(decision.avoids)}")
    if place.node in decision.despite:
        text = f"the task failed on node/{place.node} before, and no other place fits"
        yield Why("failed-there", text)
    if place.volumes:
        where = f"{place.backend}/{place.zone or place.region}"
        names = ", ".join(f"volume/{v}" for v in place.volumes.values())
        yield Why("volumes", f"its volumes are in {where}: {names}")


def _why_offered(node: Node, alternatives: Instead, which: str) -> Why:
    """Why a node is launched from its offer. `which` says by what the other offers are compared."""
    total = alternatives.offers_count + 1
    if total == 1:
        return Why("only-offer", f"launched: the only offer that {which}")
    if node.price is None:
        text = f"launched: one of {total} offers that {which}; its price is unknown"
        return Why("price-unknown", text)
    if not alternatives.offers_cheaper:
        return Why("cheapest", f"launched: the cheapest of {total} offers that {which}")
    text = f"launched, although {alternatives.offers_cheaper} of {total} offers that {which} cost less"
    return Why("not-cheapest", f"{text}: the search found nothing better for the plan as a whole")


def goes_text(decision: NodeDecision) -> str:
    """Why a node is deleted."""
    assert decision.goes is not None
    return GOES[decision.goes].format(decision.because[0] if decision.because else "")


class Explainer:
    """Answers questions about one plan. A plan of more than `max_work` units is refused, as by `make`."""

    def __init__(self, asked: PlanRequest, max_work: int | None = None) -> None:
        self.desired, self.recorded, self.state = asked.desired, asked.recorded, asked.state
        self.inventory, self._reuse = asked.inventory, asked.reuse
        self.plan, self._decisions = plan_with_decisions(asked, max_work)
        self.previews = {n.name: n for n in self.plan.preview.nodes}
        self.seats: dict[str, dict[int, Reservation]] = {}
        for reservation in self.plan.reservations:
            if reservation.status is not ReservationStatus.RELEASED:
                self.seats.setdefault(reservation.task, {})[reservation.rank] = reservation

    @property
    def feasible(self) -> bool:
        """False if the plan was refused because it is too large."""
        return self._decisions is not None

    @property
    def decisions(self) -> Decisions:
        """The decisions of the plan. `ValueError` if the plan was refused."""
        if self._decisions is None:
            raise ValueError("the plan is too large to be made")
        return self._decisions

    # What can be asked about

    def tasks(self) -> dict[str, int]:
        """Declared and recorded tasks, and how many ranks they have."""
        out = {r.rank.task: r.rank.nodes for r in self.recorded.of("rank")}
        return out | {name: want.spec.nodes for name, want in self.desired.tasks.items()}

    def nodes(self) -> list[str]:
        """Recorded nodes and those to launch."""
        return [*dict.fromkeys([*self.previews, *(r.address.name for r in self.recorded.of("node"))])]

    # The scene

    @cached_property
    def scene(self) -> Scene:
        """Everything as it is once the plan is done."""
        avoiding = {task: decision.avoids for task, decision in self.decisions.tasks.items()}
        nodes = [
            avoided_by(decision.planned, avoiding)
            for decision in self.decisions.fleets.decisions.values()
            if not decision.goes
        ]
        holders = {name: preview.holders for name, preview in self.previews.items()}
        users = {
            volume: f"rank/{rank_name(task, rank)}"
            for task, seats in self.seats.items()
            for rank, place in seats.items()
            for volume in place.volumes.values()
        }
        volumes = (v for v in self.decisions.volumes.values() if v.after is not None)
        return Scene(
            nodes=tuple(
                replace(node, held=holders.get(node.name, {}))
                for node in (*nodes, *self.decisions.outcome.launches)
            ),
            fleets=self.decisions.fleets.rules(),
            volumes={v.name: v.at(users.get(v.name)) for v in volumes},
            loose=frozenset(self.decisions.outcome.zones),
            barred=self._barred(),
        )

    def _barred(self) -> tuple[tuple[str, str, float | None, str], ...]:
        """Offers that a fleet's own limits keep out of placement, cheapest first."""
        out: list[tuple[str, str, float | None, str]] = []
        for name, fleet in self.desired.fleets.items():
            backends = allowed_backends(self.desired, fleet)
            for backend in self.desired.backends or {LOCAL}:
                for raw in self.inventory.offers.get(backend, ()):
                    if raw.host or fleet.exists:
                        continue  # a host belongs to one fleet, and such a fleet launches nothing
                    offer = shaped(raw, fleet.resources)
                    limit = broken_limit(fleet, backends, offer)
                    if limit is None and split(offer.shape, fleet.blocks.number) is None:
                        limit = "blocks"
                    if limit:
                        kind = NodeType(*of_offer(offer, fleet))
                        out.append((name, offer_name(kind), offer.price, limit))
        return tuple(sorted(out, key=lambda b: (b[2] is None, b[2] or 0.0, b[1])))

    # A task

    def of_task(self, name: str, rank: int | None = None) -> TaskAnswer:
        """A task, or one rank of it."""
        decision = self.decisions.tasks.get(name)
        refusal = next((r for r in self.plan.unplaced.refusals if r.task == name), None)
        if decision is None:
            status = "asleep" if name in self.desired.tasks else "removed"
        elif refusal:
            status = "unplaced"
        elif self.seats.get(name):
            status = "placed" if decision.course is Course.RUN else "kept"
        else:
            status = "ended"
        count = self.tasks()[name]
        numbers = list(range(min(count, MOST_RANKS))) if rank is None else [rank]
        answer = TaskAnswer(
            address=f"task/{name}" if rank is None else f"rank/{rank_name(name, rank)}",
            task=name,
            status=status,
            ranks_count=count,
            ranks=self._ranks(name, decision, numbers),
            refusal=refusal,
        )
        if decision is None:
            return answer
        # Why the task runs anew, and where else it could be.
        if decision.course is not Course.KEPT:
            answer = replace(answer, reason=decision.reason.value, because=decision.because)
        ask = self._ask(decision)
        if refusal:
            causes = (v.rank for v in refusal.ranks if v.verdict is Verdict.CAUSE)
            answer = replace(answer, places=places(self.scene, ask, next(causes, 0)))
        if status in ("placed", "unplaced"):
            answer = replace(answer, elsewhere=elsewhere(self.scene, ask))
        return answer

    def _ask(self, decision: TaskDecision) -> Ask:
        want = with_node_names(decision.want, self.desired, self.state)
        return Ask(want=want, prior=prior_places(self.state, decision), reuse=self._reuse)

    def _ranks(
        self, name: str, decision: TaskDecision | None, numbers: Sequence[int]
    ) -> tuple[RankAnswer, ...]:
        out: list[RankAnswer] = []
        first: dict[object, int] = {}
        """Where the volumes of a rank are → the first such rank: equal ranks fit the same places."""
        for rank in numbers:
            place = self.seats.get(name, {}).get(rank)
            if decision is None or place is None:
                out.append(self._without_place(name, rank))
                continue
            mounts = decision.want.mounts[rank] if decision.want.mounts else ()
            volumes = (self.scene.volumes.get(v) for m in mounts for v in m.names)
            zones = tuple((at.backend, at.region, at.zone) if at else None for at in volumes)
            like = first.setdefault(zones, rank)
            out.append(self._rank(decision, place, None if like == rank else like))
        return tuple(out)

    def _without_place(self, name: str, rank: int) -> RankAnswer:
        """A rank that holds nothing once the plan is done, and the place that it gives back."""
        place = next((r for r in self.plan.reservations if (r.task, r.rank) == (name, rank)), None)
        decision = self.decisions.fleets.decisions.get(place.node) if place else None
        status, want = self.state.ranks.get(rank_name(name, rank)), self.desired.tasks.get(name)
        why: list[Why] = []
        if status is not None and status.state.ended:
            was = "was " if status.state in (RankState.LOST, RankState.STOPPED) else ""
            why.append(Why("ended", f"its last run {was}{end_text(status)}"))
        if name not in self.decisions.tasks and want is not None and want.starts:
            why.append(Why("schedule", f"its `schedule` starts it at {want.starts}"))
        if place:
            why.append(Why("released", "its blocks are given back"))
        return RankAnswer(
            name=rank_name(name, rank),
            rank=rank,
            state=self._rank_state(name, rank),
            place=place,
            node_price=decision.node.price if decision else None,
            why=tuple(why),
        )

    def _rank_state(self, name: str, rank: int) -> str:
        status = self.state.ranks.get(rank_name(name, rank))
        return (status.state if status else RankState.PENDING).value

    def _domain(self, want: TaskWant, seats: Mapping[int, Reservation], rank: int) -> Domain:
        """What the rank's siblings share: the area of a cluster, and the maker of their GPUs."""
        others = [p for r, p in seats.items() if r != rank]
        if not others:
            return ANYWHERE
        names = {p.node for p in others}
        nodes = [n for n in self.scene.nodes if n.name in names]
        maker = min(filter(None, (maker_of(n.shape) for n in nodes)), default=None)
        if not want.spec.cluster:
            return Domain(None, maker)
        # The area of a running cluster may be wider than the area of a new cluster would be.
        first, fleet = others[0], self.desired.fleets.get(others[0].fleet)
        level = level_of(want.spec, fleet) if fleet else "region"
        at = {NodeType(*of_node(node)).at(level) for node in nodes}
        if len(at) != 1 or None in at:
            level, at = "region", {""}
        where = min(filter(None, at), default="")
        return Domain(Area(first.fleet, first.backend, first.region, level, where), maker)

    def _rank(self, decision: TaskDecision, place: Reservation, like: int | None) -> RankAnswer:
        scene, ask = self.scene, self._ask(decision)
        node = next(n for n in scene.nodes if n.name == place.node)
        domain = self._domain(decision.want, self.seats[place.task], place.rank)
        alternatives = instead(scene, ask, place.rank, node, domain)
        anew = decision.course is Course.RUN or place.rank not in decision.have
        queued = tuple(self._queued(place, anew=anew))
        before = self._why_there(decision, ask, place, node)
        why = [*([before] if before else []), *_bound(decision, place, node)]
        if domain.area is not None:
            text = f"the other ranks lie in fleet/{place.fleet} in {place.backend}/{place.region}"
            why.append(Why("siblings", f"{text}, and a cluster task stays together"))
        total = self.previews[place.node].total
        idle = total - len(self.previews[place.node].holders)
        if decision.want.spec.whole_nodes:
            why.append(Why("whole-node", "an exclusive rank takes a whole idle node"))
        elif not idle:
            why.append(Why("exact-fit", "exact fit: no block of the node stays idle"))
        else:
            why.append(Why("blocks-left", f"{idle} of {total} blocks of the node stay idle"))
        if not node.new:
            if before is None or before.key == "moved":
                why.append(Why("idle-there", "its blocks are there and idle: nothing is launched for it"))
        elif alternatives.alone or alternatives.anyway:
            if alternatives.anyway:
                text = f"fleet/{node.fleet} launches the node for itself, to have all its nodes"
                why.append(Why("fleet-size", text))
            why.append(_why_offered(node, alternatives, "would do"))
        else:
            text = f"the node is launched for others, too: see `fleetform explain node/{node.name}`"
            why.append(Why("shared", text))
        return RankAnswer(
            name=rank_name(place.task, place.rank),
            rank=place.rank,
            state=RankState.PENDING.value if anew else self._rank_state(place.task, place.rank),
            place=place,
            node_price=node.price,
            why=(*queued, *(r for r in why if not queued or r.key not in _NOT_WHILE_QUEUED)),
            instead=None if like is not None else alternatives,
            like=like,
        )

    def _why_there(self, decision: TaskDecision, ask: Ask, place: Reservation, node: Node) -> Why | None:
        """How the place of a rank relates to the one before."""
        if any(r.task == place.task for r in self.plan.unplaced.refusals):
            return Why("goes-on", "it should run anew and has no place for that, so it goes on where it is")
        if decision.course is not Course.RUN:
            if place.rank in decision.have:
                return Why("runs", "it runs there, and what runs is never moved")
            if decision.course is not Course.RESIZED:
                return Why("promised", "its blocks were reserved before, and it is started there")
        name = rank_name(place.task, place.rank)
        record = self.state.get("reservation", name)
        if record is None:
            return None
        old = record.reservation.node
        if old == place.node and not node.new:
            same = record.reservation.blocks == place.blocks
            text = "it had this place before and keeps it" if same else "it had blocks of this node before"
            return Why("keeps", text)
        old_node = self.decisions.fleets.decisions.get(old)
        if old_node and old_node.goes:
            text = goes_text(old_node)
        elif all(n.name != old for n in self.scene.nodes):
            text = "that node is gone"
        else:
            ((_, reason),) = looked(self.scene.without({f"rank/{name}"}), [(ask, place.rank)], old)
            text = reason.detail if reason else "it was placed anew with its siblings"
        return Why("moved", f"it was on node/{old}: {text}")

    def _queued(self, place: Reservation, *, anew: bool) -> Iterator[Why]:
        """What a rank in its cluster's queue waits for, now or after the plan."""
        status = self.state.ranks.get(rank_name(place.task, place.rank))
        for queued in self.plan.preview.queued if anew else ():
            if queued.task == place.task:
                text = f"it waits in the cluster's queue for {and_more(queued.holders, 3)}"
                yield Why("queued", text)
        if not anew and status and status.state is RankState.PENDING and status.cause:
            yield Why("queued", status.cause)

    # A node

    def of_node(self, name: str) -> NodeAnswer:
        """A node that exists, or that the plan launches."""
        decision = self.decisions.fleets.decisions.get(name)
        new = next((n for n in self.decisions.outcome.launches if n.name == name), None)
        if new:
            return self._new_node(new, decision)
        if decision is None:
            record = self.recorded.get("node", name)
            assert record is not None
            gone = Readiness(state=NodeState.UNKNOWN, reason="it is gone")
            return NodeAnswer(
                address=f"node/{name}",
                status="gone",
                why=(Why("gone", "it is recorded and is not there any more"),),
                readiness=gone,
                kind=NodeType(*of_node(node_of(record, gone))),
            )
        preview = self.previews[name]
        status = "deleted" if decision.goes else "changed" if decision.changed else "kept"
        why = [Why(decision.goes.value, goes_text(decision))] if decision.goes else []
        node = decision.node if decision.goes else decision.planned
        looked_at, not_asked = ((), 0) if decision.goes else self._looked(name)
        return NodeAnswer(
            address=f"node/{name}",
            status=status,
            why=tuple(why),
            changed=() if decision.goes else decision.changed,
            readiness=decision.node.readiness,
            closed=decision.node.closed,
            kind=NodeType(*of_node(node)),
            holders=preview.holders,
            idle_price=None
            if decision.goes or decision.record.node.is_shared
            else _idle_price(node, preview),
            looked=looked_at,
            not_asked=not_asked,
        )

    def _new_node(self, node: Node, old: NodeDecision | None) -> NodeAnswer:
        preview = self.previews[node.name]
        seated: list[tuple[Ask, int, Domain]] = []
        for task, seats in self.seats.items():
            decision = self.decisions.tasks[task]
            mine = (rank for rank, place in seats.items() if place.node == node.name)
            seated += [(self._ask(decision), rank, self._domain(decision.want, seats, rank)) for rank in mine]
        alternatives = launched(self.scene, replace(node, held=preview.holders), seated)
        why: list[Why] = []
        if old and old.goes:
            why.append(Why(old.goes.value, f"it is made anew: {goes_text(old)}"))
        if alternatives.anyway:
            why.append(Why("fleet-size", f"fleet/{node.fleet} launches it for itself, to have all its nodes"))
        which = "would hold everything on it" if seated else "the fleet may launch"
        why.append(_why_offered(node, alternatives, which))
        looked_at, not_asked = self._looked(node.name)
        return NodeAnswer(
            address=f"node/{node.name}",
            status="replaced" if old else "new",
            why=tuple(why),
            readiness=Readiness(state=NodeState.PENDING, reason=node.readiness.reason),
            kind=NodeType(*of_node(node)),
            holders=preview.holders,
            idle_price=_idle_price(node, preview),
            instead=alternatives,
            looked=looked_at,
            not_asked=not_asked,
        )

    def _looked(self, name: str) -> tuple[tuple[LookedAt, ...], int]:
        """The reason why the node rejected each task without a place."""
        asks: list[tuple[Ask, int]] = []
        for refusal in self.plan.unplaced.refusals[:MOST_LOOKED]:
            rank = next((v.rank for v in refusal.ranks if v.verdict is Verdict.CAUSE), 0)
            asks.append((self._ask(self.decisions.tasks[refusal.task]), rank))
        groups: dict[tuple[str | None, str, tuple[tuple[str, float], ...]], list[str]] = {}
        for task, reason in looked(self.scene, asks, name) if asks else ():
            code = reason.code if reason else None
            detail = reason.detail if reason else "it would hold a rank of it; the task lacks other places"
            short = tuple(sorted(reason.short.items())) if reason else ()
            groups.setdefault((code, detail, short), []).append(task)
        looked_at = tuple(
            LookedAt(code=code, detail=detail, short=dict(short), count=len(tasks), tasks=(*tasks[:NAMED],))
            for (code, detail, short), tasks in groups.items()
        )
        return looked_at, max(0, len(self.plan.unplaced.refusals) - MOST_LOOKED)


def _idle_price(node: Node, preview: NodePreview) -> float | None:
    """The price of its idle blocks, USD an hour."""
    idle = preview.total - len(preview.holders)
    return None if node.price is None else round(node.price * idle / preview.total, 6)
