"""Why a rank is on its node, and why a node goes, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from declarative.model.state import NodeState, Record, rank_name
from declarative.placement.types import Ask, Node
from declarative.planner.fleets import NodeDecision
from declarative.planner.tasks import Course, TaskDecision
from declarative.planner.types import NodePreview, Reason, Reservation
from declarative.why.alternatives import Instead, Scene
from declarative.why.answers import Why
from declarative.why.nodes import looked

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """What is known of one rank that has a place. `record` is the reservation that it had before."""

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
    """It has siblings, and they lie together."""
    stuck: bool
    """It should run anew, and goes on since there is no place for that."""

    def all(self) -> list[Why]:
        """What held it there first; then what it was chosen for."""
        place, task = self.place, self.decision.want.spec
        before = self._before()
        out = [before] if before else []
        ready = self.node.readiness
        if ready.state is not NodeState.READY:
            reason = f": {ready.reason}" if ready.reason else ""
            out.append(Why(key="not-ready", text=f"its node is {ready.state.value}{reason}"))
        if task.instances:
            out.append(Why(key="pinned", text=f"the task asks for {', '.join(task.instances)}"))
        if place.volumes:
            where = f"{place.backend}/{place.zone or place.region}"
            names = ", ".join(f"volume/{v}" for v in place.volumes.values())
            out.append(Why(key="volumes", text=f"its volumes are in {where}: {names}"))
        if self.together:
            text = f"the other ranks lie in fleet/{place.fleet} in {place.backend}/{place.region}"
            out.append(Why(key="siblings", text=f"{text}, and a cluster task stays together"))
        out.append(self._fit())
        if self.node.new:
            out += self._launched()
        elif before is None or before.key == "moved":
            out.append(
                Why(key="idle-there", text="its blocks are there and idle: nothing is launched for it")
            )
        return out

    def _before(self) -> Why | None:
        """Where it was."""
        place = self.place
        if self.stuck:
            text = "it should run anew and has no place for that, so it goes on where it is"
            return Why(key="goes-on", text=text)
        if self.decision.course is not Course.RUN:
            if place.rank in self.decision.have:
                return Why(key="runs", text="it runs there, and what runs is never moved")
            return Why(key="promised", text="its blocks were reserved before, and it is started there")
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
            text = f"fleet/{self.node.fleet} launches the node for itself, to have its nodes"
            return [Why(key="fleet-size", text=text), offered(self.node, self.found, "would do")]
        if not self.found.alone:
            text = f"the node is launched for others, too: see `fleetform explain node/{self.node.name}`"
            return [Why(key="shared", text=text)]
        return [offered(self.node, self.found, "would do")]


def offered(node: Node, found: Instead, which: str) -> Why:
    """Why a launched node is of its offer. `which` says what the others are compared by."""
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
    """Why a node goes."""
    assert decision.goes is not None
    return GOES[decision.goes].format(decision.because[0] if decision.because else "")
