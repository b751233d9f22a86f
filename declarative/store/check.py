"""Proof of what is recorded: every rule that a state must keep, tried on a whole one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from declarative.model.inputs import zone_asked
from declarative.model.resource import zone_of
from declarative.model.state import DRAINED, MADE_AS, Address, RankState, Record, State, made_as
from declarative.provider import token

Held = Mapping[tuple[str, int], str]
"""(node, block) → the name of the reservation that holds it."""


def check(state: State, held: Held) -> list[str]:
    """What is wrong, in sentences; empty when all is well."""
    return [
        *_identity(state),
        *_names(state),
        *_nodes(state, held),
        *_drained(state),
        *_reservations(state, held),
        *_ranks(state),
        *_volumes(state),
        *_needs(state),
        *_intents(state),
    ]


def _identity(state: State) -> Iterator[str]:
    if state.serial < 0:
        yield f"the serial is {state.serial}"
    if state.lineage is None and state.records:
        yield "there are records but no lineage"
    for address, record in state.records.items():
        used = state.generations.get(address, 0)
        if record.generation > used:
            yield f"{address} is of generation {record.generation}, but only {used} are noted as used"


def _total(node: Record) -> object:
    return node.inputs.get("blocks", 1)


def _nodes(state: State, held: Held) -> Iterator[str]:
    busy: dict[str, list[int]] = {}
    for node, block in held:
        busy.setdefault(node, []).append(block)
    for record in state.of("node"):
        total, blocks = _total(record), busy.pop(record.address.name, [])
        if not isinstance(total, int) or total < 1:
            yield f"{record.address} is split into {total!r} blocks"
            continue
        if not 0 <= len(blocks) <= total:
            yield f"{record.address} has {total} blocks, and {len(blocks)} are busy"
        for block in blocks:
            if not 0 <= block < total:
                yield f"{record.address} has {total} blocks, and block {block} is reserved"
        if blocks and record.address.name in state.idle_since:
            yield f"{record.address} is noted as idle, and {len(blocks)} of its blocks are busy"
    for node in busy:
        yield f"blocks of node/{node} are reserved, which is not recorded"


def _reservations(state: State, held: Held) -> Iterator[str]:
    rows: dict[str, set[tuple[str, int]]] = {}
    for place, name in held.items():
        rows.setdefault(name, set()).add(place)
    for record in state.of("reservation"):
        name, node = record.address.name, str(record.inputs.get("node"))
        said = {(node, block) for block in record.inputs.get("blocks", ())}
        has = rows.pop(name, set())
        if said != has:
            yield f"{record.address} says that it holds {_places(said)}, and holds {_places(has)}"
        if Address("node", node) not in record.needs:
            yield f"{record.address} is on node/{node} and does not need it"
    for name in rows:
        yield f"blocks are held by reservation/{name}, which is not recorded"


def _places(places: set[tuple[str, int]]) -> str:
    return ", ".join(f"{node}[{block}]" for node, block in sorted(places, key=str)) or "nothing"


def _ranks(state: State) -> Iterator[str]:
    # An ended rank may hold blocks: a command that is killed before it gives them back leaves them to the
    # next one.
    for name, status in state.ranks.items():
        rank, reservation = Address("rank", name), Address("reservation", name)
        live = status.state in (RankState.STARTING, RankState.RUNNING)
        if live and rank in state.records and reservation not in state.records:
            yield f"{rank} is {status.state} and holds no blocks"


def _volumes(state: State) -> Iterator[str]:
    holders: dict[str, list[str]] = {}
    for record in state.of("attachment"):
        volume = str(record.inputs.get("volume"))
        holders.setdefault(volume, []).append(str(record.address))
    for volume, found in holders.items():
        if len(found) > 1:
            yield f"volume/{volume} is held more than once: {', '.join(found)}"
    for name in state.detached_since:
        if state.get("volume", name) is None:
            yield f"volume/{name} is noted as attached to nothing, and is not recorded"
        elif name in holders:
            yield f"volume/{name} is noted as attached to nothing, and {holders[name][0]} holds it"
    for record in state.of("attachment"):
        disk, node = state.get("volume", str(record.inputs.get("volume"))), _node_of(state, record)
        if disk and node and disk.inputs.get("host") and disk.inputs.get("zone") != zone_of(node.node):
            yield (
                f"{record.address} is on {node.address}, and {disk.address} is on the disk of "
                f"{disk.inputs.get('zone')}"
            )


def _drained(state: State) -> Iterator[str]:
    for record in state.of("node"):
        found = record.outputs.get(DRAINED)
        words = found if isinstance(found, Mapping) else {}
        since, reason = words.get("since"), words.get("reason")
        if found is not None and not (isinstance(since, str) and isinstance(reason, str | None)):
            yield f"{record.address} is drained, and it does not say since when and why"


def _node_of(state: State, attachment: Record) -> Record | None:
    return state.get("node", str(attachment.inputs.get("node")))


def _intents(state: State) -> Iterator[str]:
    """By its token, what an open call made is found again: it has to be this lineage's."""
    for intent in state.intents:
        have = state.records.get(intent.address) if intent.op != "create" else None
        known = have.outputs.get(MADE_AS) if have else None
        zone = zone_asked((have or intent).inputs)
        wanted = token(state.lineage or "", intent.address, intent.generation, zone)
        if intent.token.startswith(f"{intent.address.name}.{intent.generation}."):
            continue  # a rank's attempt: of no other lineage, for its last part is random
        if (known["token"] if known else wanted) != intent.token:
            yield f"{intent.op}:{intent.address} is open, and its token is not of this lineage"


def _names(state: State) -> Iterator[str]:
    """What a backend calls a thing, no other thing of its kind is called."""
    seen: dict[object, Address] = {}
    for address, record in state.records.items():
        if address.kind in ("node", "volume", "attachment"):
            own = made_as(record)
            ids = [("known", own)]
            if record.backend and record.outputs.get("id") is not None:
                ids.append((f"{record.backend} {record.outputs['id']}", Address(address.kind, "")))
            for key in ids:
                if key in seen:
                    yield f"{address} and {seen[key]} are one and the same at their backend"
                seen.setdefault(key, address)


def _needs(state: State) -> Iterator[str]:
    for address, record in state.records.items():
        for need in sorted(record.needs - state.records.keys()):
            yield f"{address} needs {need}, which is not recorded"
    try:
        TopologicalSorter({a: r.needs for a, r in state.records.items()}).prepare()
    except CycleError as error:
        yield f"these need one another: {', '.join(map(str, error.args[1]))}"
