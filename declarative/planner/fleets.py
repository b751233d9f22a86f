"""Fleets and their nodes: which stay, which are changed, which go, and what may be launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from declarative.model.blocks import Shape, divisors, split
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import NodeInputs, differing
from declarative.model.resource import (
    Desired,
    Host,
    Offer,
    fleet_marks,
)
from declarative.model.schema import in_place
from declarative.model.spec import Fleet, Placement
from declarative.model.state import (
    ANOTHERS,
    BOOTING,
    TAGS,
    Address,
    NodeState,
    Readiness,
    Record,
    State,
    drain_of,
    natural,
    readiness_of,
)
from declarative.placement.types import FleetRule, Node
from declarative.planner.health import BOOTS, unfit, usefulness
from declarative.planner.hosts import declared_hosts, found_offer, hosts_in, offer_of_host, unseen
from declarative.planner.inventory import Inventory
from declarative.planner.launchable import allowed_backends, fleet_offers, limits
from declarative.planner.types import Reason


@dataclass(slots=True)
class NodeDecision:
    """What becomes of one recorded node."""

    record: Record
    node: Node
    after: NodeInputs
    goes: Reason | None = None
    again: bool = False
    """It goes and a node of the same name takes its place."""
    because: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """What others changed about it, and is put back in place."""

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it once this plan is done; `unknown` is not empty, except an instance that
        was adopted and where nobody logs in.
        """
        unknown = self.node.readiness.state is NodeState.UNKNOWN and self.record.node.instance_id is None
        return not self.node.held and not unknown

    @property
    def fresh(self) -> bool:
        """Whether it is a node of a partition that is not recorded yet."""
        return not self.record.outputs and "partition" in self.record.node.host

    @property
    def blocks(self) -> int:
        """Into how many it is split by this plan."""
        return self.after.blocks

    @property
    def waits(self) -> bool:
        """Whether it is a drained host: made anew it would take work again, so it stays as it is."""
        return bool(self.record.node.host and drain_of(self.record))

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields that change in place."""
        return differing(self.record.node, self.after)


def offer_of(record: Record) -> Offer:
    """A recorded node as the offer that it was."""
    inputs = record.node
    return Offer(
        backend=inputs.backend,
        region=inputs.region,
        zone=inputs.effective_zone,
        instance_type=inputs.instance_type,
        shape=inputs.resources,
        price=inputs.price,
        spot=inputs.spot,
        bids=inputs.max_price is not None,
    )


def node_of(record: Record, readiness: Readiness, held: Mapping[int, str]) -> Node:
    """A recorded node as placement sees it."""
    offer = offer_of(record)
    return Node(
        name=record.address.name,
        fleet=record.node.fleet,
        backend=offer.backend,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        shape=offer.shape,
        total=record.node.blocks,
        price=offer.price,
        spot=offer.spot,
        readiness=readiness,
        held=held,
        most=record.node.max_price if offer.price is None else None,
    )


class Fleets:
    """The decisions of all recorded nodes, and the rules by which placement may launch more."""

    def __init__(
        self,
        desired: Desired,
        state: State,
        inventory: Inventory,
        now: float,
        *,
        freed: frozenset[str] = frozenset(),
        pinned: frozenset[Address] = frozenset(),
        requested: frozenset[str] = frozenset(),
    ) -> None:
        """`freed` are ranks whose blocks are given back; `pinned` nodes have to stay for those on them, and
        those that are `requested` (`node/gpu-0`) are made anew whatever is on them.
        """
        self.desired = desired
        self.now = now
        self.state = state
        self.pinned = pinned
        self.requested = requested
        self.altered = inventory.altered
        self.inventory = inventory
        self.left_out = {(i.host.fleet, i.host.backend, i.host.key) for i in inventory.left_out}
        self.diagnostics: list[Diagnostic] = []
        self.decisions: dict[str, NodeDecision] = {}
        self.offers: dict[str, tuple[Offer, ...]] = {}
        held = state.held_blocks()
        unknown = Readiness(state=NodeState.UNKNOWN, reason="not observed")
        for record in state.of("node"):
            name = record.address.name
            staying = {b: h for b, h in held.get(name, {}).items() if h.removeprefix("rank/") not in freed}
            seen = readiness_of(record, inventory.readiness.get(name, unknown))
            node = node_of(record, seen, staying)
            self.decisions[name] = NodeDecision(record=record, node=node, after=record.node)
        self.hosts: dict[tuple[str, str, str], Host] = {}
        self.found: dict[tuple[str, str, str], Offer] = {}
        for fleet in desired.fleets.values():
            if not fleet.exists:
                self.offers[str(fleet.name)], found = fleet_offers(desired, fleet, inventory)
                self.diagnostics += found
            for host in hosts_in(fleet, inventory) if fleet.partition else declared_hosts(fleet):
                self.hosts[host.fleet, host.backend, host.key] = host
                offer = found_offer(inventory, host)
                if offer:
                    self.found[host.fleet, host.backend, host.key] = offer
        for decision in self.decisions.values():
            self._judge(decision)
            self._tell_drained(decision)
        for fleet in desired.fleets.values():
            if fleet.exists:
                self.offers[str(fleet.name)] = self._host_offers(fleet)
                self._check_split(fleet)
        for fleet in desired.fleets.values():
            self._shrink(fleet)

    def of(self, fleet: str) -> list[NodeDecision]:
        """The decisions of a fleet's nodes, by name."""
        return [f for f in self.decisions.values() if f.node.fleet == fleet]

    def _judge(self, decision: NodeDecision) -> None:
        """Keep it, change it in place, make it anew, or let it go."""
        fleet = self.desired.fleets.get(decision.node.fleet)
        pinned = decision.record.address in self.pinned
        if fleet is None:
            if pinned:
                self._stays(decision, "its fleet is not declared any more", "deleted")
            else:
                decision.goes = Reason.REMOVED
            return
        host = self.hosts.get(_host_key(decision))
        if host is not None and host.topology:
            decision.node = replace(decision.node, topology=host.topology)
        unread = fleet.partition is not None and str(fleet.name) not in self.inventory.existing
        if fleet.exists and host is None and not unread:
            self._let_go(decision, pinned=pinned)
        elif str(decision.record.address) in self.requested and host is None:
            if pinned:
                hint = "once they have ended, or fit elsewhere, ask again"
                what = "is not replaced: ranks run on it that have no other place now"
                self._note(decision, "node-mismatch", what, hint)
            else:
                decision.goes, decision.again = Reason.REQUESTED, True
        elif not self._changed(decision, fleet, pinned=pinned):
            self._keep(decision, fleet, host)

    def _changed(self, decision: NodeDecision, fleet: Fleet, *, pinned: bool) -> bool:
        """Whether the fleet changed in what cannot be changed on a node: it is made anew."""
        marks = fleet_marks(fleet)
        fixed = (key for key in marks if key not in in_place(Fleet))
        changed = tuple(key for key in fixed if getattr(decision.record.node, key) != marks[key])
        if changed and (pinned or decision.waits):
            self._stays(decision, f"its fleet's `{changed[0]}` changed", "replaced")
        elif changed:
            decision.goes, decision.again, decision.because = Reason.CHANGED, True, changed
        return bool(changed)

    def _keep(self, decision: NodeDecision, fleet: Fleet, host: Host | None) -> None:
        """Change it in place, or make it anew once it is idle if it does not keep the limits any more."""
        marks = fleet_marks(fleet)
        since = self.state.idle_since.get(decision.node.name)
        silence = self.inventory.silent.get(decision.node.name)
        sick = (
            unfit(decision.record, decision.node.readiness, since, self.now, silence)
            if decision.idle
            else None
        )
        if sick and not self.desired.protects(str(decision.record.address), decision.record.node):
            decision.goes, decision.again, decision.because = Reason.UNFIT, True, (sick,)
            return
        if sick and decision.node.readiness.state in BOOTING:  # it stays, and is waited for no more
            late = replace(decision.node.readiness, state=NodeState.NOT_READY, reason=sick)
            decision.node = replace(decision.node, readiness=late)
        off, other = self._off(decision, fleet, host), self._altered(decision)
        if (off or other) and decision.idle and not decision.waits:
            decision.goes, decision.again = (Reason.MISMATCH, True) if off else (Reason.DRIFT, True)
            decision.because = (off or str(other),)
            return
        if off:
            self._stays(decision, f"it does not keep the fleet's `{off}` any more", "replaced")
        elif other:
            self._stays(decision, f"somebody else changed its `{other}`", "replaced")
        # What is declared of a host's shape changes with its node alone. What was seen not to do as it is
        # declared now stays as it is: the change would fail.
        if (
            host is not None
            and _declared(decision) == host.declared
            and _host_key(decision) not in self.left_out
        ):
            marks["host"] = dict(host.fields)
        decision.after = replace(decision.after, **marks)
        self._resplit(decision, fleet, host)

    def _off(self, decision: NodeDecision, fleet: Fleet, host: Host | None) -> str | None:
        """The limit that a node does not keep. A host has none, but its shape may have been declared anew."""
        if host is None:
            most = decision.record.node.max_price
            if most is not None and fleet.max_price is not None and most > fleet.max_price:
                return "max_price"
            return limits(fleet, allowed_backends(self.desired, fleet), offer_of(decision.record))
        anew = _declared(decision) != host.declared and _host_key(decision) in self.found
        return "ssh_config" if anew else None

    def _altered(self, decision: NodeDecision) -> str | None:
        """What others changed about a node and cannot be put back: it is not what was planned with."""
        found = self.altered.get(decision.record.address, {})
        decision.mended = (TAGS,) if TAGS in found and ANOTHERS not in found else ()
        return next((key for key in sorted(found) if key not in (TAGS, ANOTHERS)), None)

    def _let_go(self, decision: NodeDecision, *, pinned: bool) -> None:
        """Its host is not declared any more: it goes when nothing runs on it, and when it can."""
        adopted = decision.record.node.instance_id is not None
        why = f"its {'instance' if adopted else 'host'} is not declared any more"
        if pinned or not decision.idle:
            self._stays(decision, why, "deleted")
        elif decision.node.readiness.state is NodeState.UNREACHABLE:
            decision.node = replace(decision.node, closed=f"{why}; it is deleted once it answers")
            what = f"stays for now, although {why}: it does not answer"
            address = decision.record.address
            hint = f"it is deleted once it answers; if it is lost: `fleetform state rm {address}`"
            self._note(decision, "host-not-ready", what, hint)
        else:
            partition = "partition" in decision.record.node.host
            field = "instance_ids" if adopted else "partition" if partition else "ssh_config"
            decision.goes, decision.because = Reason.REMOVED, (field,)

    def _host_offers(self, fleet: Fleet) -> tuple[Offer, ...]:
        """The hosts that are no nodes, or whose nodes are made anew."""
        occupied = {_occupied(f) for f in self.decisions.values() if not f.goes}
        again = {_host_key(f): f for f in self.decisions.values() if f.again}
        out: list[Offer] = []
        for key, host in self.hosts.items():
            offer = self.found.get(key)
            if key in again and offer is None:
                offer = _same(again[key], host)
            if host.fleet != fleet.name or offer is None or (host.backend, host.key) in occupied:
                continue
            if split(offer.shape, offer.blocks(fleet)) is None:
                self._unsplit(fleet, offer.shape, offer.blocks(fleet), f"host {host.key}", host)
            else:
                out.append(offer)
        return tuple(out)

    def _check_split(self, fleet: Fleet) -> None:
        """The error of nodes of a partition that cannot be split as the fleet says: once for each shape."""
        for shape in dict.fromkeys(f.shape for f in self.inventory.existing.get(str(fleet.name), ())):
            if split(shape, fleet.blocks.number) is None:
                what = f"a node of the partition with {shape.cpu} CPUs and {shape.gpus} GPUs"
                self._unsplit(fleet, shape, fleet.blocks.number, what, None)

    def _tell_drained(self, decision: NodeDecision) -> None:
        """Every plan names it: whoever drained it may have forgotten."""
        drain = drain_of(decision.record)
        if drain and not decision.goes:
            hint = f"once it is well: `fleetform undrain {decision.node.name}`"
            self._note(decision, "drained", f"takes no new work: {drain}", hint)

    def _stays(self, decision: NodeDecision, why: str, then: str) -> None:
        """It has to go, but ranks run on it or it waits: it takes no new work, and goes later."""
        when = "once undrained" if decision.idle and decision.waits else "once idle"
        decision.node = replace(decision.node, closed=f"{why}; it is {then} {when}")
        hint = f"it takes no new work, and is {then} {when}"
        self._note(decision, "node-mismatch", f"stays for now, although {why}", hint)

    def _resplit(self, decision: NodeDecision, fleet: Fleet, host: Host | None = None) -> None:
        """A change of `blocks` happens in place, when the node is idle."""
        blocks = (host.blocks if host and host.blocks else fleet.blocks).number
        total = split(decision.node.shape, blocks)
        if total == decision.node.total:
            return
        if total is None:
            self._unsplit(fleet, decision.node.shape, blocks, str(decision.record.address), host)
        elif decision.node.held:
            text = f"stays at {decision.node.total} blocks while ranks run on it"
            self._note(decision, "blocks-wait", text, f"it is split into {total} once idle")
        else:
            decision.after = replace(decision.after, blocks=total)

    def _shrink(self, fleet: Fleet) -> None:
        """Idle nodes above the fleet's maximum go now, the least useful first."""
        most = fleet.nodes.max if fleet.nodes else None
        staying = [f for f in self.of(str(fleet.name)) if not f.goes or f.again]
        if most is None or len(staying) <= most:
            return
        for decision in _least_useful_first(f for f in staying if f.idle)[: len(staying) - most]:
            decision.goes, decision.again, decision.because = Reason.SURPLUS, False, ("nodes",)

    def rules(self) -> dict[str, FleetRule]:
        """What placement may launch for each fleet."""
        out: dict[str, FleetRule] = {}
        for name, fleet in self.desired.fleets.items():
            staying = [f for f in self.of(name) if not f.goes]
            target = fleet.nodes.target if fleet.nodes else len(staying) + len(self.offers[name])
            going = [f for f in self.of(name) if f.goes and not f.again]
            again = [f for f in self.of(name) if f.again]
            wanted = [f.node.name for f in again if f.goes is Reason.REQUESTED]
            others = [f.node.name for f in again if f.goes is not Reason.REQUESTED]
            out[name] = FleetRule(
                fleet=fleet,
                offers=self.offers[name],
                existing=len(staying),
                baseline=max(target - len(staying), len(wanted)),
                taken=frozenset(f.node.name for f in going),
                free_names=(*wanted, *others) if fleet.nodes else (),
                unseen=unseen(
                    fleet, allowed_backends(self.desired, fleet), {*map(_occupied, staying)}, self.inventory
                ),
            )
        return out

    def retire(self, used: frozenset[str], launched: Mapping[str, int]) -> Mapping[str, int]:
        """Let unused nodes above the target go that were idle for long enough: by fleet, how many.

        Where one has to go, one that can do no work goes in its place, however short it was idle.
        """
        retired: dict[str, int] = {}
        for name, fleet in self.desired.fleets.items():
            wait = fleet.idle_duration.seconds
            staying = [f for f in self.of(name) if not f.goes]
            if fleet.nodes is None:
                continue  # hosts are there, whatever is idle
            spare = len(staying) + launched.get(name, 0) - fleet.nodes.target
            idle = [f for f in staying if f.idle and f.node.name not in used]
            due = {f.node.name for f in idle if wait is not None and self._idle_for(f) >= wait}
            first = _least_useful_first(f for f in idle if f.node.name in due or _usefulness(f) < BOOTS)
            for decision in first[: max(0, min(spare, len(due)))]:
                decision.goes, decision.because = Reason.IDLE, ("idle_duration",)
                retired[name] = retired.get(name, 0) + 1
        return retired

    def makes_room(self, retired: Mapping[str, int], launched: Mapping[str, int], refused: int) -> bool:
        """Whether nodes that go may leave their place to some of so many ranks that have none."""
        if not refused or not retired:
            return False
        if any(offer.limit is not None for offers in self.offers.values() for offer in offers):
            return True
        return any(self._lacks(name, n + launched.get(name, 0), refused) for name, n in retired.items())

    def _lacks(self, name: str, count: int, wanted: int) -> bool:
        """Whether a fleet, with so many nodes beside those that stay, may not launch what is wanted."""
        fleet = self.desired.fleets[name]
        staying = sum(1 for decision in self.of(name) if not decision.goes)
        most = fleet.nodes.max if fleet.nodes else None
        if most is not None and most - staying - count < wanted:
            return True
        return fleet.placement is Placement.CLUSTER and not staying

    def _idle_for(self, decision: NodeDecision) -> float:
        """Seconds since its last rank ended; 0 for one whose ranks end by this plan."""
        return self.now - self.state.idle_since.get(decision.node.name, self.now)

    def _note(self, decision: NodeDecision, code: str, what: str, hint: str) -> None:
        address = str(decision.record.address)
        summary = f"{address} {what}"
        self.diagnostics.append(
            Diagnostic(code=code, summary=summary, hint=hint, address=address, severity=Severity.WARNING)
        )

    def _unsplit(self, fleet: Fleet, shape: Shape, blocks: int | None, what: str, host: Host | None) -> None:
        listing = ", ".join(map(str, divisors(shape)))
        summary, hint = (
            f"{what} cannot be split into {blocks} blocks",
            f"write `blocks: auto` or one of {listing}",
        )
        self._error(fleet, "blocks-do-not-divide", summary, hint, host)

    def _error(self, fleet: Fleet, code: str, summary: str, hint: str, host: Host | None = None) -> None:
        address, places = f"fleet/{fleet.name}", self.desired.places
        own = places.get(f"{address}.hosts.{host.index}.blocks") if host else None
        span = own or places.get(f"{address}.blocks", places.get(address))
        self.diagnostics.append(Diagnostic(code=code, summary=summary, hint=hint, address=address, span=span))


def _least_useful_first(decisions: Iterable[NodeDecision]) -> list[NodeDecision]:
    """The order in which a fleet gives up idle nodes.

    Of those that are equally useful the ones that would be made anew come first, then the highest numbers.
    """
    by_number = sorted(decisions, key=lambda f: natural(f.node.name), reverse=True)
    return sorted(by_number, key=lambda f: (_usefulness(f), not f.again))


def _usefulness(decision: NodeDecision) -> int:
    return usefulness(decision.record, decision.node.readiness.state)


def _declared(decision: NodeDecision) -> Mapping[str, Any]:
    """What was declared of its host's shape when it was made."""
    return decision.record.node.host.get("resources") or {}


def _host_key(decision: NodeDecision) -> tuple[str, str, str]:
    node = decision.node
    return (node.fleet, *_occupied(decision)) if decision.record.node.host else ("", "", "")


def _occupied(decision: NodeDecision) -> tuple[str, str]:
    """The backend of a node, and the key of the host that it is."""
    return decision.node.backend, decision.record.node.host_key


def _same(old: NodeDecision, host: Host) -> Offer:
    """The host of a node that is made anew, as it was when it became one."""
    host = replace(host, name=old.node.name)
    if "hostname" in old.record.node.host:
        return offer_of_host(host, old.node.shape)
    return replace(offer_of(old.record), limit=1, host=host)
