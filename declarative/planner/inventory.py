"""What was observed, and the state that results from the records with it. Pure.

Observing is not changing: an ended rank's reservation counts as released once it is seen, before any command
records that (docs/architecture.md, "What a change does").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from declarative.model.blocks import Shape, share
from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.resource import LOCAL, Desired, Host, LeftOut, Offer, OthersShare
from declarative.model.state import ANOTHERS, GIVEN_UP, TAGS, Address, Record, State
from declarative.model.status import RankState, RankStatus, Readiness, Silence
from declarative.planner.health import UNREAD, lost_with
from declarative.planner.plan import Action, Drift

LOSABLE = ("node", "volume")
"""Kinds whose loss matters. A gone attachment only means that its rank has ended."""


@struct(frozen=True, slots=True, kw_only=True)
class PartitionNode:
    """A node of a partition, as it was observed. It exists without being made, and others use it, too."""

    host: Host
    shape: Shape
    readiness: Readiness
    taken: tuple[OthersShare, ...] = ()
    price: float | None = None


@struct(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What was observed, as values. A node that is not in `readiness` is unknown: neither ready nor empty."""

    readiness: Mapping[str, Readiness] = field(default_factory=dict)
    ranks: Mapping[str, RankStatus] = field(default_factory=dict)
    gone: frozenset[Address] = frozenset()
    unsure: frozenset[Address] = frozenset()
    """Gone things that may only seem so: their place showed nothing of this state."""
    deleting: frozenset[Address] = frozenset()
    """Things whose deletion was cut short: if they are gone, that is what was asked for."""
    ended: Mapping[Address, str] = field(default_factory=dict)
    """Gone things that their backend reports as ended, with its reason: there is no doubt."""
    altered: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    """Existing things that others changed, with their values now (`provider.Thing.actual`)."""
    drift: tuple[Drift, ...] = ()
    recovered: Mapping[Address, Record] = field(default_factory=dict)
    strays: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Node → block → the rank that runs there and is not recorded."""
    silent: Mapping[str, Silence] = field(default_factory=dict)
    """The nodes that do not answer."""
    offers: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    existing: Mapping[str, tuple[PartitionNode, ...]] = field(default_factory=dict)
    """Fleet → all nodes of its partition, recorded or not. A partition that could not be read is left out."""
    taken: Mapping[str, tuple[OthersShare, ...]] = field(default_factory=dict)
    """Recorded node → what others hold there."""
    left_out: tuple[LeftOut, ...] = ()
    """Declared hosts that are not ready to be nodes as they are declared now."""
    images: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Backend and region → the id of the image that a node made there now would start from, where nodes are
    recorded and the cloud says so.
    """
    own_gpus: tuple[str, ...] | None = None
    """The models of this machine's GPUs, for nodes of the driver `local`; None if they were not looked at."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def lost(self) -> frozenset[Address]:
        """The gone volumes that nobody was deleting. They stay recorded: a new one would be empty, so a
        person decides what becomes of them.
        """
        return frozenset(a for a in self.gone - self.deleting if a.kind == "volume")

    @property
    def unread(self) -> frozenset[str | None]:
        """The addresses of the backends that could not be read."""
        return frozenset(d.address for d in self.diagnostics if d.code == UNREAD)

    def launched(self, backends: Iterable[str]) -> list[Offer]:
        """The offers of these backends, without existing hosts and instances."""
        return [offer for name in backends for offer in self.offers.get(name, ()) if offer.host is None]

    def mendable(self, address: Address) -> tuple[str, ...]:
        """The changes by others that can be put back: tags, unless they say that the thing is another's."""
        changes = self.altered.get(address, {})
        return (TAGS,) if TAGS in changes and ANOTHERS not in changes else ()


def rank_holding(record: Record) -> str | None:
    """The rank that a reservation or an attachment is for."""
    if record.address.kind == "reservation":
        return record.address.name
    return record.attachment.rank if record.address.kind == "attachment" else None


def _lost(state: State, inventory: Inventory) -> dict[str, str]:
    """Ranks that hold something gone, or something on a node that was given up, and what that is. No rank is
    lost with a `lost` volume: one wrong listing would end it. Its node says when it has ended.
    """
    causes = {Address("node", n): lost_with(n, s) for n, s in inventory.silent.items() if s.given_up}
    for address in inventory.gone - inventory.lost:
        why = inventory.ended.get(address)
        causes[address] = f"{address} is gone" + (f": {why}" if why else "")
    out: dict[str, str] = {}
    for record in state.records.values() if causes else ():
        rank, missing = rank_holding(record), sorted(record.needs & causes.keys())
        if rank is not None and missing:
            out.setdefault(rank, causes[missing[0]])
    return out


def observed_state(state: State, inventory: Inventory) -> State:
    """The state as it would be recorded now: with recovered things, without vanished ones and ended ranks.
    A volume that is `lost` stays recorded, with the ranks that run on it.
    """
    records = {**state.records, **inventory.recovered}
    for address in (inventory.gone - inventory.lost) | unstarted(records, state, inventory):
        records.pop(address, None)
    ranks = {**state.ranks, **inventory.ranks}
    for lost, cause in _lost(state, inventory).items():
        if Address("rank", lost) in records and not (lost in ranks and ranks[lost].state.ended):
            ranks[lost] = RankStatus(state=RankState.LOST, cause=cause)
    staying = _kept(
        records,
        {name for name, status in ranks.items() if status.state.ended},
        inventory.gone - inventory.lost,
    )
    return replace(
        state,
        records=staying,
        ranks=ranks,
        readiness={**state.readiness, **inventory.readiness},
        strays={**inventory.strays, **_others(staying, inventory)},
        silent=inventory.silent,
    )


def unstarted(records: Mapping[Address, Record], state: State, inventory: Inventory) -> frozenset[Address]:
    """The attachments of `lost` volumes for ranks that were not started: these wait for the volume."""
    begun = {*records, *(intent.address for intent in state.intents)}
    return frozenset(
        address
        for address, record in (records.items() if inventory.lost else ())
        if address.kind == "attachment" and record.needs & inventory.lost
        if Address("rank", record.attachment.rank) not in begun
    )


def _kept(
    records: Mapping[Address, Record], ended: Collection[str], gone: frozenset[Address]
) -> dict[Address, Record]:
    """The records without `gone` things, and without what ranks on them or `ended` ranks held."""
    out: dict[Address, Record] = {}
    for address, record in records.items():
        rank = rank_holding(record)
        if rank is not None and ((rank in ended and Address("rank", rank) in records) or record.needs & gone):
            continue
        free = address.kind == "rank" and address.name in ended
        out[address] = replace(record, needs=frozenset()) if free else record
    return out


def _others(records: Mapping[Address, Record], inventory: Inventory) -> dict[str, dict[int, str]]:
    """Node → block → its other holder, for nodes that are shared with others."""
    our_blocks: dict[str, set[int]] = {name: {*inventory.strays.get(name, ())} for name in inventory.taken}
    for record in records.values() if our_blocks else ():
        if record.address.kind == "reservation" and record.reservation.node in our_blocks:
            our_blocks[record.reservation.node].update(record.reservation.blocks)
    out: dict[str, dict[int, str]] = {}
    for name, taken in inventory.taken.items():
        node = records.get(Address("node", name))
        if node is not None:
            holders = blocks_of_others(node.node.resources, node.node.blocks, taken, our_blocks[name])
            out[name] = {**inventory.strays.get(name, {}), **holders}
    return out


def shown_drift(inventory: Inventory, desired: Desired) -> tuple[Drift, ...]:
    """What differs from what is recorded. A volume that `removed` forgets is meant to stay, and no orphan."""
    is_forgotten = desired.project.removed.keeps
    return tuple(d for d in inventory.drift if d.change != "orphan" or not is_forgotten(d.address))


def vanished(recorded: State, inventory: Inventory, actions: Iterable[Action] = ()) -> tuple[Address, ...]:
    """Missing nodes and volumes that nobody was deleting: several of one backend at once, or any if nothing
    shows that the right place was asked.

    If the right place was asked, volumes alone do not count: none that is gone is made anew by itself,
    however many they are. They do if `actions` would forget one of them, for a plan may err with a listing.

    This is more likely a fault than the truth, so the user decides (rule 2 of docs/architecture.md, "Rules
    for backends"). A thing that its backend reports as ended is not missing: any number of spot nodes may be
    taken away at once. Nor is a volume that was known to be gone before.
    """
    deleting = {intent.address for intent in recorded.intents if intent.op == "delete"}
    missing = sorted(inventory.gone - deleting - inventory.ended.keys())
    by_backend: dict[str, list[Address]] = {}
    for address in missing:
        record = recorded.records.get(address)
        known = record is None or _was_given_up(record) or record.gone_since is not None
        if record and address.kind in LOSABLE and not known:
            by_backend.setdefault(record.backend or LOCAL, []).append(address)
    forgotten = {action.address for action in actions if action.believes}
    doubtful: list[Address] = []
    for addresses in by_backend.values():
        matters = any(address.kind == "node" or address in forgotten for address in addresses)
        if (matters and len(addresses) > 1) or inventory.unsure & {*addresses}:
            doubtful += addresses
    return tuple(doubtful)


def _was_given_up(record: Record) -> bool:
    """Whether its cloud was ending it because it did not answer."""
    return record.outputs.get(GIVEN_UP) is not None and not record.node.host


def blocks_of_others(
    shape: Shape, total: int, taken: Iterable[OthersShare], our_blocks: Collection[int]
) -> dict[int, str]:
    """The blocks of a node that others hold, each with its holder, from the last block on.

    A block counts as busy if others hold any of its CPUs, memory or GPUs: it cannot be given away whole.
    """
    per = share(shape, total, 1)
    free = [block for block in reversed(range(total)) if block not in our_blocks]
    out: dict[int, str] = {}
    cpus = memory = gpus = 0
    for one in taken:
        cpus, memory, gpus = cpus + one.cpu, memory + one.memory_mib, gpus + one.gpus
        sums = ((cpus, per.cpu), (memory, per.memory_mib), (gpus, per.gpus))
        busy_blocks = max(-(-has // each) if each else total if has else 0 for has, each in sums)
        for block in free[len(out) : busy_blocks]:
            out[block] = one.holder
    return out
