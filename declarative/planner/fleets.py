"""Fleets and their nodes: which stay, which are changed, which go, and what may be launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from declarative.model.blocks import split
from declarative.model.diagnostic import Diagnostic
from declarative.model.inputs import NodeInputs, differing
from declarative.model.record import struct
from declarative.model.resource import Desired, Host, Offer, fleet_marks, offer_of
from declarative.model.schema import in_place
from declarative.model.spec import Fleet, Placement
from declarative.model.spec.values import Duration
from declarative.model.state import (
    ANOTHERS,
    IMAGE,
    TAGS,
    Address,
    Record,
    State,
    drain_of,
    natural,
    readiness_of,
    unused_since,
)
from declarative.model.status import BOOTING, NodeState, Readiness
from declarative.model.text import and_more
from declarative.placement.problem import FleetRule, Node
from declarative.planner.hosts import (
    declared_hosts,
    hosts_in,
    observed_offer,
    offer_of_host,
    shaping,
    unknown_offers,
)
from declarative.planner.inventory import BOOTS, Inventory, usefulness, why_unfit
from declarative.planner.offers import allowed_backends, broken_limit, fleet_offers, unsplittable, why_nothing
from declarative.planner.plan import Reason, warning


@struct(slots=True)
class NodeDecision:
    """The decision about one recorded node."""

    record: Record
    node: Node
    after: NodeInputs
    host: Host | None = None
    """The declared host, or the partition's node, that it is."""
    pinned: bool = False
    """Ranks without another place run on it, so it stays."""
    goes: Reason | None = None
    remade: bool = False
    """It is deleted, and a node of the same name takes its place."""
    because: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """The fields that others changed and that are put back in place."""
    unprotects: bool = False
    """It is recorded as protected, and nothing declared protects it any more: this plan records that, and
    does not also delete it.
    """
    put_off: Reason | None = None
    """Why it would go, if this plan did not only end its protection."""

    def leave(self, reason: Reason, *because: str, remade: bool = False) -> None:
        """Delete it; with `remade`, make it anew."""
        if self.unprotects:
            self.put_off, self.because = reason, because
            self.after = replace(self.record.node, prevent_destroy=False, protected=False)
        else:
            self.goes, self.because, self.remade = reason, because, remade

    @property
    def ends(self) -> bool:
        """Whether it is deleted, and no node of its name takes its place."""
        return self.goes is not None and not self.remade

    @property
    def address(self) -> str:
        """`node/gpu-0`."""
        return str(self.record.address)

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it once this plan is done. An `unknown` node is not idle, except an adopted
        instance that nobody logs in to.
        """
        unknown = self.node.readiness.state is NodeState.UNKNOWN and self.record.node.instance_id is None
        return not self.node.held and not unknown

    @property
    def fresh(self) -> bool:
        """Whether it is a node of a partition that is not recorded yet."""
        return not self.record.outputs and self.record.node.is_shared

    @property
    def planned(self) -> Node:
        """The node, split as it will be."""
        return replace(self.node, total=self.after.blocks)

    @property
    def waits(self) -> bool:
        """Whether it is a drained host. Made anew it would take work again, so it stays as it is."""
        return bool(self.record.node.host and drain_of(self.record))

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields that change in place."""
        return differing(self.record.node, self.after)

    @property
    def occupies(self) -> tuple[str, str]:
        """Its backend, and the key of the host that it is."""
        return self.node.backend, self.record.node.host_key


def least_useful_first(decisions: Iterable[NodeDecision]) -> list[NodeDecision]:
    """The order in which a fleet gives up idle nodes.

    Among equally useful nodes, those that would be made anew come first, then the highest numbers.
    """
    by_number = sorted(decisions, key=lambda f: natural(f.node.name), reverse=True)
    return sorted(by_number, key=lambda f: (usefulness(f.record, f.node.readiness.state), not f.remade))


def fixed_changes(record: Record, fleet: Fleet) -> tuple[str, ...]:
    """The fields of its fleet that cannot change on a node, and differ from those that it was made with."""
    marks, changeable = fleet_marks(fleet), in_place(Fleet)
    return tuple(key for key in marks if key not in changeable and getattr(record.node, key) != marks[key])


NOT_OBSERVED = Readiness(state=NodeState.UNKNOWN, reason="not observed")


def node_of(
    record: Record, readiness: Readiness = NOT_OBSERVED, holders: Mapping[int, str] | None = None
) -> Node:
    """A recorded node as placement sees it."""
    offer = offer_of(record.node)
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
        held=holders or {},
        most=record.node.max_price if offer.price is None else None,
    )


def busy_for(state: State, holders: Iterable[str], now: float) -> float | None:
    """Seconds until all ranks that hold blocks (`rank/train-0`) have reached their `max_duration`; None if
    one of them has none. A rank that has not started yet has all of it before it.
    """
    longest = 0.0
    for name in {holder.removeprefix("rank/") for holder in holders}:
        record, status = state.get("rank", name), state.ranks.get(name)
        limit = None if record is None else Duration.parse(record.rank.max_duration or "off").seconds
        if limit is None:
            return None
        started_at = status.started_at if status else None
        longest = max(longest, limit if started_at is None else started_at + limit - now)
    return longest


MOST_NAMED = 5
"""A message names at most so many nodes above the maximum of a fleet."""


class _Misfit(NamedTuple):
    """A node does not fit its fleet's limits any more."""

    reason: Reason
    field: str
    why: str


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
        spared: frozenset[str] = frozenset(),
        requested: frozenset[str] = frozenset(),
    ) -> None:
        """`freed` are ranks whose blocks are given back. `pinned` nodes stay for the ranks on them. `spared`
        nodes stay as they are though they are idle: the ranks that leave them find no other place.
        `requested` nodes (`node/gpu-0`) are made anew, whatever runs on them.
        """
        self.desired = desired
        self.now = now
        self.state = state
        self.requested, self.spared = requested, spared
        self.inventory = inventory
        self.left_out = {_key(i.host) for i in inventory.left_out}
        self.diagnostics: list[Diagnostic] = []
        self.offers: dict[str, tuple[Offer, ...]] = {}
        self.hosts: dict[tuple[str, str, str], Host] = {}
        self.observed_offers: dict[tuple[str, str, str], Offer] = {}
        for fleet in desired.fleets.values():
            if not fleet.exists:
                self.offers[str(fleet.name)], errors = fleet_offers(desired, fleet, inventory)
                self.diagnostics += errors
            for host in hosts_in(fleet, inventory) if fleet.partition else declared_hosts(fleet):
                self.hosts[_key(host)] = host
                if offer := observed_offer(inventory, host):
                    self.observed_offers[_key(host)] = offer
        held_blocks = state.held_blocks()
        self.decisions: dict[str, NodeDecision] = {}
        for record in state.of("node"):
            name, blocks = record.address.name, held_blocks.get(record.address.name, {})
            staying = {b: h for b, h in blocks.items() if h.removeprefix("rank/") not in freed}
            self.decisions[name] = self._decision(record, staying, pinned=record.address in pinned)
        for decision in self.decisions.values():
            self._judge(decision)
            drain = drain_of(decision.record)
            if drain and not decision.goes:  # in every plan: whoever drained the node may have forgotten
                hint = f"once it is well: `fleetform undrain {decision.node.name}`"
                self._note(decision, "drained", f"takes no new work: {drain}", hint)
        self._offer_hosts()
        for fleet in desired.fleets.values():
            self._shrink(fleet)

    def of(self, fleet: str) -> list[NodeDecision]:
        """The decisions of a fleet's nodes, by name."""
        return [f for f in self.decisions.values() if f.node.fleet == fleet]

    def staying(self, fleet: str | None = None) -> list[NodeDecision]:
        """The decisions of nodes that stay, of all fleets or of one."""
        decisions = self.decisions.values() if fleet is None else self.of(fleet)
        return [f for f in decisions if not f.goes]

    def _decision(self, record: Record, holders: Mapping[int, str], *, pinned: bool) -> NodeDecision:
        """The decision to keep a node as it is, before it is judged."""
        readiness = readiness_of(record, self.inventory.readiness.get(record.address.name, NOT_OBSERVED))
        decision = NodeDecision(
            record=record,
            node=replace(
                node_of(record, readiness, holders), busy_for=busy_for(self.state, holders.values(), self.now)
            ),
            after=record.node,
            pinned=pinned,
            unprotects=self._unprotects(record),
        )
        if record.node.host:
            host = decision.host = self.hosts.get((record.node.fleet, *decision.occupies))
            if host and host.topology:
                decision.node = replace(decision.node, topology=host.topology)
        return decision

    def _unprotects(self, record: Record) -> bool:
        """Whether a node is recorded as protected, and is not protected any more. An adopted one is only
        forgotten.
        """
        node, fleet = record.node, self.desired.fleets.get(record.node.fleet)
        if node.instance_id is not None or not (node.prevent_destroy or node.protected):
            return False
        prevents = fleet.prevent_destroy if fleet else node.prevent_destroy
        return not prevents and not self.desired.is_guarded(str(record.address), node)

    def _judge(self, decision: NodeDecision) -> None:
        """Keep it, change it in place, replace it, or delete it."""
        fleet = self.desired.fleets.get(decision.node.fleet)
        if fleet is None:
            if decision.pinned:
                self._stays(decision, "its fleet is not declared any more", "deleted")
            else:
                decision.leave(Reason.REMOVED)
            if decision.put_off:
                why = "its fleet is not declared any more; it is deleted once its protection has ended"
                decision.node = replace(decision.node, closed=why)
        elif decision.host is None and (
            # Its fleet has hosts, and they are known.
            fleet.exists and (fleet.partition is None or str(fleet.name) in self.inventory.existing)
        ):
            self._let_go(decision)
        elif decision.host is None and decision.address in self.requested:
            if decision.pinned:
                hint = "once they have ended, or fit elsewhere, ask again"
                what = "is not replaced: ranks run on it that have no other place now"
                self._note(decision, "node-mismatch", what, hint)
            else:
                decision.leave(Reason.REQUESTED, remade=True)
        elif changed := fixed_changes(decision.record, fleet):
            if decision.pinned or decision.waits:
                self._stays(decision, f"its fleet's `{changed[0]}` changed", "replaced")
            else:
                decision.leave(Reason.CHANGED, *changed, remade=True)
        else:
            self._keep(decision, fleet)

    def _keep(self, decision: NodeDecision, fleet: Fleet) -> None:
        """Change it in place. If it does not keep the limits any more, replace it once it is idle."""
        sick = None
        if decision.idle:
            name = decision.node.name
            since, silence = self.state.idle_since.get(name), self.inventory.silent.get(name)
            sick = why_unfit(decision.record, decision.node.readiness, since, self.now, silence)
        is_protected = decision.unprotects or self.desired.protects(decision.address, decision.record.node)
        if sick and not is_protected:
            decision.leave(Reason.UNFIT, sick, remade=True)
            return
        if sick and decision.node.readiness.state in BOOTING:  # it stays, and is not waited for any more
            late = replace(decision.node.readiness, state=NodeState.NOT_READY, reason=sick)
            decision.node = replace(decision.node, readiness=late)
        decision.mended = self.inventory.mendable(decision.record.address)
        misfit = self._misfit(decision, fleet)
        if misfit and decision.idle and not decision.waits:
            decision.leave(misfit.reason, misfit.field, remade=True)
            return
        if misfit:
            self._stays(decision, misfit.why, "replaced")
        marks, host = fleet_marks(fleet), decision.host
        # A host's declared shape changes together with its node. If the host was seen not to have that shape,
        # nothing changes: the change would fail.
        declared_before = shaping(decision.record.node.host)
        if host and declared_before == shaping(host.fields) and _key(host) not in self.left_out:
            marks["host"] = dict(host.fields)
        node = decision.record.node
        guarded = node.instance_id is None and self.desired.is_guarded(decision.address, node)
        decision.after = replace(decision.after, protected=guarded, **marks)
        self._resplit(decision, fleet)

    def _misfit(self, decision: NodeDecision, fleet: Fleet) -> _Misfit | None:
        """The limit that a node does not keep, or the field that others changed for good."""
        host, most = decision.host, decision.record.node.max_price
        if host is not None:  # only its declared shape may differ
            anew = shaping(decision.record.node.host) != shaping(host.fields)
            off = "ssh_config" if anew and _key(host) in self.observed_offers else None
        elif most is not None and fleet.max_price is not None and most > fleet.max_price:
            off = "max_price"
        else:
            backends = allowed_backends(self.desired, fleet)
            off = broken_limit(fleet, backends, offer_of(decision.record.node))
        if off:
            return _Misfit(Reason.MISMATCH, off, f"it does not keep the fleet's `{off}` any more")
        reshaped = decision.host if decision.node.readiness.reshaped else None
        # The host as it was looked at now; None if it was not, or is not ready.
        offer = self.observed_offers.get(_key(reshaped)) if reshaped else None
        if offer and offer.shape.gpus >= decision.node.shape.gpus:  # with fewer, a person decides
            has, recorded = offer.shape.gpus, decision.node.shape.gpus
            why = f"its host has {has} GPUs now, not the {recorded} that are recorded of it"
            return _Misfit(Reason.MISMATCH, "ssh_config", why)
        altered = self.inventory.altered.get(decision.record.address, {})
        other = min(altered.keys() - {TAGS, ANOTHERS, IMAGE}, default=None)
        return _Misfit(Reason.DRIFT, other, f"somebody else changed its `{other}`") if other else None

    def _let_go(self, decision: NodeDecision) -> None:
        """Delete a node whose host is not declared any more, once nothing runs on it and it can go."""
        adopted = decision.record.node.instance_id is not None
        why = f"its {'instance' if adopted else 'host'} is not declared any more"
        if decision.pinned or not decision.idle:
            self._stays(decision, why, "deleted")
        elif decision.node.readiness.state is NodeState.UNREACHABLE:
            decision.node = replace(decision.node, closed=f"{why}; it is deleted once it answers")
            what = f"stays for now, although {why}: it does not answer"
            hint = f"it is deleted once it answers; if it is lost: `fleetform state rm {decision.address}`"
            self._note(decision, "host-not-ready", what, hint)
        else:
            host_field = "partition" if decision.record.node.is_shared else "ssh_config"
            decision.leave(Reason.REMOVED, "instance_ids" if adopted else host_field)

    def _offer_hosts(self) -> None:
        """Offer fleets their hosts that are not nodes yet, or whose nodes are replaced."""
        offers = dict(self.observed_offers)
        for decision in self.decisions.values():
            if decision.remade and decision.host:  # as it was when it became a node
                host, node = replace(decision.host, name=decision.node.name), decision.record.node
                known = replace(offer_of(node), limit=1, host=host)
                if node.is_ssh_host:
                    known = offer_of_host(host, decision.node.shape)
                offers.setdefault(_key(decision.host), known)
        occupied = {f.occupies for f in self.staying()}
        for fleet in (fleet for fleet in self.desired.fleets.values() if fleet.exists):
            good: list[Offer] = []
            for key, host in self.hosts.items():
                offer = offers.get(key)
                if host.fleet != fleet.name or offer is None or key[1:] in occupied:
                    continue
                blocks = offer.blocks(fleet)
                if split(offer.shape, blocks) is None:
                    what = f"host {host.key}"
                    self.diagnostics.append(
                        unsplittable(self.desired, fleet, what, offer.shape, blocks=blocks, host=host)
                    )
                else:
                    good.append(offer)
            self.offers[str(fleet.name)] = tuple(good)
            # One error for each shape of a partition's nodes that cannot be split as the fleet says.
            nodes, blocks = self.inventory.existing.get(str(fleet.name), ()), fleet.blocks.number
            for shape in dict.fromkeys(node.shape for node in nodes):
                if split(shape, blocks) is None:
                    what = f"a node of the partition with {shape.cpu} CPUs and {shape.gpus} GPUs"
                    self.diagnostics.append(unsplittable(self.desired, fleet, what, shape, blocks=blocks))

    def _stays(self, decision: NodeDecision, why: str, then: str) -> None:
        """A node that has to go, but ranks run on it or it waits. It takes no new work, and goes later."""
        when = "once undrained" if decision.idle and decision.waits else "once idle"
        decision.node = replace(decision.node, closed=f"{why}; it is {then} {when}")
        hint = f"it takes no new work, and is {then} {when}"
        self._note(decision, "node-mismatch", f"stays for now, although {why}", hint)

    def _resplit(self, decision: NodeDecision, fleet: Fleet) -> None:
        """A change of `blocks` happens in place, when the node is idle."""
        host, node = decision.host, decision.node
        blocks = (host.blocks if host and host.blocks else fleet.blocks).number
        total = split(node.shape, blocks)
        if total == node.total:
            return
        if total is None:
            self.diagnostics.append(
                unsplittable(self.desired, fleet, decision.address, node.shape, blocks=blocks, host=host)
            )
        elif node.held or node.name in self.spared:
            text = f"stays at {node.total} blocks while ranks run on it"
            self._note(decision, "blocks-wait", text, f"it is split into {total} once idle")
        else:
            decision.after = replace(decision.after, blocks=total)

    def _shrink(self, fleet: Fleet) -> None:
        """Idle nodes above the fleet's maximum go now, the least useful first."""
        most = fleet.nodes.max if fleet.nodes else None
        staying = [f for f in self.of(str(fleet.name)) if not f.goes or f.remade]
        if most is None or len(staying) <= most:
            return
        above = len(staying) - most
        idle = [f for f in staying if f.idle and f.node.name not in self.spared]
        going = least_useful_first(idle)[:above]
        for decision in going:
            decision.leave(Reason.SURPLUS, "nodes")
        if len(going) == above:
            return
        # It keeps nodes above its maximum until they are idle.
        address, more = f"fleet/{fleet.name}", above - len(going)
        busy = [f for f in staying if f not in idle]
        asleep = address in self.desired.asleep
        limit = "outside of its `schedule`" if asleep else f"above its maximum of {most}"
        names = and_more(sorted((f.address for f in busy), key=natural), MOST_NAMED)
        summary = f"{address} keeps {more} node{'s' if more > 1 else ''} {limit} for now: "
        summary += f"{names} {'are' if len(busy) > 1 else 'is'} not idle"
        hint = "`fleetform apply` deletes a node above the maximum once it is idle"
        if fleet.prevent_destroy or any(self.desired.is_guarded(f.address, f.record.node) for f in busy):
            hint = "raise `nodes`, or remove the protection: a protected node is not deleted"
        self.diagnostics.append(warning(self.desired, address, "node-mismatch", summary, hint))

    def rules(self) -> dict[str, FleetRule]:
        """The offers that placement may launch, for each fleet."""
        out: dict[str, FleetRule] = {}
        for name, fleet in self.desired.fleets.items():
            nodes, staying = self.of(name), self.staying(name)
            remade = [f for f in nodes if f.remade]
            remade.sort(key=lambda f: f.goes is not Reason.REQUESTED)
            requested = sum(f.goes is Reason.REQUESTED for f in remade)
            missing = fleet.nodes.target - len(staying) if fleet.nodes else len(self.offers[name])
            occupied = {f.occupies for f in staying}
            nothing = partial(why_nothing, self.desired, fleet, self.inventory)
            out[name] = FleetRule(
                fleet=fleet,
                offers=self.offers[name],
                existing=len(staying),
                shrinks=any(f.goes is Reason.SURPLUS for f in nodes),
                baseline=max(missing, requested),
                taken=frozenset(f.node.name for f in nodes if f.ends),
                free_names=tuple(f.node.name for f in remade) if fleet.nodes else (),
                nothing=cache(nothing) if fleet.nodes else None,
                unseen=unknown_offers(fleet, allowed_backends(self.desired, fleet), occupied, self.inventory),
            )
        return out

    def retire(self, used: frozenset[str], launched: Mapping[str, int]) -> Mapping[str, int]:
        """Delete unused nodes above the target that were idle for long enough. Fleet → how many."""
        retired: dict[str, int] = {}
        for name, fleet in self.desired.fleets.items():
            if fleet.nodes is None:
                continue  # hosts exist, idle or not
            staying = self.staying(name)
            spare = max(0, len(staying) + launched.get(name, 0) - fleet.nodes.target)
            unused = [f for f in staying if f.node.name not in used]
            going = self._idle_too_long(fleet, unused, spare)
            for decision in going:
                decision.leave(Reason.IDLE, "idle_duration")
            if going:
                retired[name] = len(going)
        return retired

    def _idle_too_long(self, fleet: Fleet, unused: list[NodeDecision], spare: int) -> list[NodeDecision]:
        """The nodes to delete, at most so many. If some of those that may go stay, a node that can do no work
        goes in place of one that can, however short it was idle: the next plan is to find none that is due.
        """
        wait = fleet.idle_duration.seconds
        idle = [f for f in unused if f.idle and not f.unprotects and "idle_duration" not in f.changed]
        due = [f for f in idle if wait is not None and self._idle_for(f) >= wait]
        may_go = [f for f in idle if f in due or usefulness(f.record, f.node.readiness.state) < BOOTS]
        if not due or spare >= len(may_go):
            return least_useful_first(due)
        return least_useful_first(may_go)[:spare]

    def makes_room(self, retired: Mapping[str, int], launched: Mapping[str, int], refused: int) -> bool:
        """Whether deleted nodes may make room for some of the `refused` ranks."""
        if not refused or not retired:
            return False
        if any(offer.limit is not None for offers in self.offers.values() for offer in offers):
            return True
        for name, count in retired.items():
            fleet, staying = self.desired.fleets[name], len(self.staying(name))
            most = fleet.nodes.max if fleet.nodes else None
            if most is not None and most - staying - count - launched.get(name, 0) < refused:
                return True
            if fleet.placement is Placement.CLUSTER and not staying:
                return True
        return False

    def _idle_for(self, decision: NodeDecision) -> float:
        """Seconds since its last rank ended and its `idle_duration` was recorded; 0 for one whose ranks end
        by this plan.
        """
        since = self.state.idle_since.get(decision.node.name, self.now)
        return self.now - unused_since(decision.record, since)

    def _note(self, decision: NodeDecision, code: str, what: str, hint: str) -> None:
        summary = f"{decision.address} {what}"
        self.diagnostics.append(warning(self.desired, decision.address, code, summary, hint))


def _key(host: Host) -> tuple[str, str, str]:
    """The key by which hosts of a fleet differ."""
    return host.fleet, host.backend, host.key
