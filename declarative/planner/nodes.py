"""The decision about one recorded node, and the node as placement sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from declarative.model.inputs import NodeInputs, differing
from declarative.model.record import struct
from declarative.model.resource import Host, Offer
from declarative.model.state import Record, drain_of, natural
from declarative.model.status import NodeState, Readiness
from declarative.placement.problem import Node
from declarative.planner.health import usefulness
from declarative.planner.hosts import offer_of_host, shaping
from declarative.planner.types import Reason


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
    again: bool = False
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

    def leave(self, reason: Reason, *because: str, again: bool = False) -> None:
        """Delete it; with `again` it is made anew."""
        if self.unprotects:
            self.put_off, self.because = reason, because
            self.after = replace(self.record.node, prevent_destroy=False, protected=False)
        else:
            self.goes, self.because, self.again = reason, because, again

    @property
    def ends(self) -> bool:
        """Whether it is deleted, and no node of its name takes its place."""
        return self.goes is not None and not self.again

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
    def shared(self) -> bool:
        """Whether it is a node of a partition: it exists anyway, and others use it, too."""
        return "partition" in self.record.node.host

    @property
    def fresh(self) -> bool:
        """Whether it is a node of a partition that is not recorded yet."""
        return not self.record.outputs and self.shared

    @property
    def blocks(self) -> int:
        """The number of blocks that this plan splits it into."""
        return self.after.blocks

    @property
    def planned(self) -> Node:
        """The node, split as it will be."""
        return replace(self.node, total=self.blocks)

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

    @property
    def usefulness(self) -> int:
        """How much its fleet loses with it while it is idle."""
        return usefulness(self.record, self.node.readiness.state)

    @property
    def declared(self) -> Mapping[str, Any]:
        """What was declared of its host's shape when it was made."""
        return shaping(self.record.node.host)

    def offer_again(self) -> Offer | None:
        """Its host, as it was when it became a node; None without a host."""
        if self.host is None:
            return None
        host = replace(self.host, name=self.node.name)
        if "hostname" in self.record.node.host:
            return offer_of_host(host, self.node.shape)
        return replace(offer_of(self.record), limit=1, host=host)


def least_useful_first(decisions: Iterable[NodeDecision]) -> list[NodeDecision]:
    """The order in which a fleet gives up idle nodes.

    Among equally useful nodes, those that would be made anew come first, then the highest numbers.
    """
    by_number = sorted(decisions, key=lambda f: natural(f.node.name), reverse=True)
    return sorted(by_number, key=lambda f: (f.usefulness, not f.again))


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
