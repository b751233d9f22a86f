"""What is known once the recorded and the observed are put together.

Observing is not changing: an ended rank's reservation counts as released from the moment it is seen,
whoever records it later (docs/architecture.md, "What a change does").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from declarative.model.resource import LOCAL
from declarative.model.state import GIVEN_UP, Address, RankState, RankStatus, Record, State
from declarative.planner.health import lost_with
from declarative.planner.partitions import busy
from declarative.planner.types import Inventory


def rank_of(record: Record) -> str | None:
    """The rank that a reservation or an attachment is for."""
    if record.address.kind == "reservation":
        return record.address.name
    return record.attachment.rank if record.address.kind == "attachment" else None


def _lost(state: State, inventory: Inventory) -> dict[str, str]:
    """Ranks that hold something that is gone, or on a node that was given up, and what that is."""
    causes = {Address("node", n): lost_with(n, s) for n, s in inventory.silent.items() if s.given_up}
    for address in inventory.gone:
        why = inventory.ended.get(address)
        causes[address] = f"{address} is gone" + (f": {why}" if why else "")
    out: dict[str, str] = {}
    for record in state.records.values() if causes else ():
        rank, missing = rank_of(record), sorted(record.needs & causes.keys())
        if rank is not None and missing:
            out.setdefault(rank, causes[missing[0]])
    return out


def effective(state: State, inventory: Inventory) -> State:
    """The state as it would be recorded now: recovered things in, vanished ones out, ended ranks released."""
    records = {**state.records, **inventory.recovered}
    records = {a: r for a, r in records.items() if a not in inventory.gone}
    ranks = {**state.ranks, **inventory.ranks}
    for lost, cause in _lost(state, inventory).items():
        status = ranks.get(lost)
        if Address("rank", lost) in records and not (status and status.state.ended):
            ranks[lost] = RankStatus(state=RankState.LOST, cause=cause)
    ended = {name for name, status in ranks.items() if status.state.ended}
    kept: dict[Address, Record] = {}
    for address, record in records.items():
        rank = rank_of(record)
        released = rank in ended and Address("rank", str(rank)) in records
        if rank is not None and (released or record.needs & inventory.gone):
            continue
        free = address.kind == "rank" and address.name in ended
        kept[address] = replace(record, needs=frozenset()) if free else record
    readiness = {**state.readiness, **inventory.readiness}
    strays = {**inventory.strays, **_others(kept, inventory)}
    return replace(
        state,
        records=kept,
        ranks=ranks,
        readiness=readiness,
        strays=strays,
        silent=inventory.silent,
    )


def _others(records: Mapping[Address, Record], inventory: Inventory) -> dict[str, dict[int, str]]:
    """Node → block → who else holds it, of nodes that are shared with others."""
    held: dict[str, set[int]] = {name: {*inventory.strays.get(name, ())} for name in inventory.taken}
    for record in records.values() if held else ():
        if record.address.kind == "reservation" and record.reservation.node in held:
            held[record.reservation.node].update(record.reservation.blocks)
    out: dict[str, dict[int, str]] = {}
    for name, taken in inventory.taken.items():
        node = records.get(Address("node", name))
        if node is not None:
            found = busy(node.node.resources, node.node.blocks, taken, held[name])
            out[name] = {**inventory.strays.get(name, {}), **found}
    return out


def vanished(recorded: State, inventory: Inventory) -> tuple[Address, ...]:
    """Nodes and volumes that are missing and that nobody was deleting: several of one backend at once, or any
    while nothing shows that it was the right place to ask.

    That is more likely a fault than the truth: the user decides whether to believe it (rule 2 of
    docs/architecture.md, "Rules for backends"). A thing that its backend reports as ended is not missing: any
    number of spot nodes may be taken away at once.
    """
    deleting = {intent.address for intent in recorded.intents if intent.op == "delete"}
    by_backend: dict[str, list[Address]] = {}
    for address in sorted(inventory.gone - deleting - inventory.ended.keys()):
        record = recorded.records.get(address)
        if record and record.outputs.get(GIVEN_UP) is not None and not record.node.host:
            continue  # it was being ended, for it did not answer
        if record and address.kind in {"node", "volume"}:
            by_backend.setdefault(record.backend or LOCAL, []).append(address)
    doubtful = (found for found in by_backend.values() if len(found) > 1 or inventory.unsure & {*found})
    return tuple(a for found in doubtful for a in found)
