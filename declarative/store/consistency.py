"""Checks of a whole state: the rules that a state must keep, and the types of its values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from declarative.model.codec import BadDataError, reader
from declarative.model.inputs import (
    WORD,
    AttachmentInputs,
    Inputs,
    NodeInputs,
    RankInputs,
    ReservationInputs,
    VolumeInputs,
    inputs_of,
    known,
    zone_asked,
)
from declarative.model.record import struct
from declarative.model.state import (
    DRAINED,
    KINDS,
    Address,
    Intent,
    NamesWhenMade,
    Record,
    SilentLimit,
    State,
    made_as,
    rank_name,
    token,
)
from declarative.model.status import RankState, RankStatus, Readiness
from declarative.store.schema import plain, plain_reader, stored_fields

HeldBlocks = Mapping[tuple[str, int], str]
"""(node, block) → the name of the reservation that holds it."""


def contradictions(state: State, held: HeldBlocks) -> list[str]:
    """The contradictions as sentences; empty if all is well. Records whose inputs lack their type are left
    to `wrong_values`.
    """
    return [
        *_identity(state),
        *_names(state),
        *_nodes(state, held),
        *_reservations(state, held),
        *_ranks(state),
        *_attachments(state),
        *_needs(state),
        *_intents(state),
    ]


def _typed(state: State, kind: str) -> Iterator[Record]:
    for record in state.of(kind):
        with suppress(BadDataError):
            record.typed  # noqa: B018  # read for its error
            yield record


def _identity(state: State) -> Iterator[str]:
    if state.serial < 0:
        yield f"the serial is {state.serial}"
    if state.lineage is None and state.records:
        yield "there are records but no lineage"
    for address, record in state.records.items():
        used = state.generations.get(address, 0)
        if record.generation > used:
            yield f"{address} is of generation {record.generation}, but only {used} are noted as used"


def _names(state: State) -> Iterator[str]:
    """Two things of one kind never have the same id at their backend."""
    owners: dict[object, Address] = {}
    for address, record in state.records.items():
        if address.kind in ("node", "volume", "attachment"):
            ids: list[object] = [made_as(record)]
            if record.backend and record.external_id is not None:
                ids.append((record.backend, address.kind, record.external_id))
            for key in ids:
                if key in owners:
                    yield f"{address} and {owners[key]} are one and the same at their backend"
                owners.setdefault(key, address)


def _nodes(state: State, held: HeldBlocks) -> Iterator[str]:
    busy: dict[str, list[int]] = {}
    for name, block in held:
        busy.setdefault(name, []).append(block)
    for record in _typed(state, "node"):
        node, total, blocks = record.address, record.node.blocks, busy.get(record.address.name, [])
        if total < 1:
            yield f"{node} is split into {total} blocks"
            continue
        if len(blocks) > total:
            yield f"{node} has {total} blocks, and {len(blocks)} are busy"
        for block in blocks:
            if not 0 <= block < total:
                yield f"{node} has {total} blocks, and block {block} is reserved"
        if blocks and node.name in state.idle_since:
            yield f"{node} is noted as idle, and {len(blocks)} of its blocks are busy"
    for name in busy:
        if state.get("node", name) is None:
            yield f"blocks of node/{name} are reserved, which is not recorded"
    for record in state.of("node"):
        drained = record.outputs.get(DRAINED)
        words = drained if isinstance(drained, Mapping) else {}
        since, reason = words.get("since"), words.get("reason")
        if drained is not None and not (isinstance(since, str) and isinstance(reason, str | None)):
            yield f"{record.address} is drained, and it does not say since when and why"


def _reservations(state: State, held: HeldBlocks) -> Iterator[str]:
    places: dict[str, set[tuple[str, int]]] = {}
    for place, name in held.items():
        places.setdefault(name, set()).add(place)
    for record in _typed(state, "reservation"):
        node = record.reservation.node
        stated = {(node, block) for block in record.reservation.blocks}
        has = places.get(record.address.name, set())
        if stated != has:
            yield f"{record.address} says that it holds {_places(stated)}, and holds {_places(has)}"
        if Address("node", node) not in record.needs:
            yield f"{record.address} is on node/{node} and does not need it"
    for name in places:
        if state.get("reservation", name) is None:
            yield f"blocks are held by reservation/{name}, which is not recorded"


def _places(places: set[tuple[str, int]]) -> str:
    return ", ".join(f"{node}[{block}]" for node, block in sorted(places)) or "nothing"


def _ranks(state: State) -> Iterator[str]:
    # An ended rank may hold blocks: a command that is killed before it gives them back leaves them to the
    # next one.
    for name, status in state.ranks.items():
        rank, reservation = Address("rank", name), Address("reservation", name)
        live = status.state in (RankState.STARTING, RankState.RUNNING)
        if live and rank in state.records and reservation not in state.records:
            yield f"{rank} is {status.state} and holds no blocks"


def _attachments(state: State) -> Iterator[str]:
    holders: dict[str, list[Address]] = {}
    for record in _typed(state, "attachment"):
        name = record.attachment.volume
        holders.setdefault(name, []).append(record.address)
        volume, node = state.get("volume", name), state.get("node", record.attachment.node)
        # A volume on a host's disk is attached only on that host.
        if volume and node and volume.volume.host and volume.volume.zone != node.node.effective_zone:
            where = f"{record.address} is on {node.address}"
            yield f"{where}, and {volume.address} is on the disk of {volume.volume.zone}"
    for name, attachments in holders.items():
        if len(attachments) > 1:
            yield f"volume/{name} is held more than once: {', '.join(map(str, attachments))}"
    for name in state.detached_since:
        if state.get("volume", name) is None:
            yield f"volume/{name} is noted as attached to nothing, and is not recorded"
        elif name in holders:
            yield f"volume/{name} is noted as attached to nothing, and {holders[name][0]} holds it"


def _needs(state: State) -> Iterator[str]:
    for address, record in state.records.items():
        # Not `needs - records.keys()`: that goes through all records, for each of them.
        for need in sorted(need for need in record.needs if need not in state.records):
            yield f"{address} needs {need}, which is not recorded"
    try:
        TopologicalSorter({a: r.needs for a, r in state.records.items()}).prepare()
    except CycleError as error:
        yield f"these need one another: {', '.join(map(str, error.args[1]))}"


def _intents(state: State) -> Iterator[str]:
    """The token of an open call finds what the call made, so it has to be of this lineage."""
    for intent in state.intents:
        record = state.records.get(intent.address) if intent.op != "create" else None
        names = record.names_when_made if record else None
        zone = zone_asked((record or intent).inputs)
        expected = token(state.lineage or "", intent.address, intent.generation, zone)
        if intent.token.startswith(f"{intent.address.name}.{intent.generation}."):
            continue  # a rank's attempt: of no other lineage, for its last part is random
        if (names.token if names else expected) != intent.token:
            yield f"{intent.op}:{intent.address} is open, and its token is not of this lineage"


@struct(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs of any kind of thing. Times are seconds since the epoch."""

    id: Any = None
    address: str | None = None
    node: str | None = None
    made_as: NamesWhenMade | None = None
    noticed_at: float = 0.0
    started_at: float = 0.0
    stopped: bool = False
    silent_since: float | None = None
    silent_limit: SilentLimit | None = None
    cleanup_since: float | None = None
    given_up: tuple[str, ...] | None = ()


LAST = 253_402_300_799
"""The end of the year 9999, in seconds since the epoch: no later time can be written."""


def wrong_values(state: State) -> Iterator[str]:
    """Values that we never record or observe, as sentences that name each thing with its key."""
    for subject, check in _checks(state):
        try:
            check()
        except BadDataError as bad:
            yield f"{subject}: {bad}"
    for record in _typed(state, "reservation"):
        if state.get("node", record.reservation.node) is None:
            yield f"{record.address}: `inputs.node` is not recorded"


def _checks(state: State) -> Iterator[tuple[object, Callable[[], None]]]:
    """What is checked of a state, part by part, and what to call the part."""
    yield "the state", partial(_is, str | None, state.lineage, "lineage")
    yield "the state", partial(_is, int, state.serial, "serial")
    addresses = (*state.records, *state.generations, *(i.address for i in state.intents))
    for address in addresses:
        yield repr(str(address)), partial(_check_word, address.name)
    noted = {
        "rank": state.ranks,
        "node": {**state.readiness, **state.idle_since},
        "volume": state.detached_since,
    }
    for kind, names in noted.items():
        for name in names:
            yield repr(f"{kind}/{name}"), partial(_check_word, name)
    for address, record in state.records.items():
        yield address, partial(_check, record)
    for name, status in state.ranks.items():
        yield f"rank/{name}", partial(_check_rank, status)
    for name, readiness in state.readiness.items():
        yield f"node/{name}", partial(_check_node, readiness)
    for name, since in state.idle_since.items():
        yield f"node/{name}", partial(_is_time, since, "idle_since")
    for name, since in state.detached_since.items():
        yield f"volume/{name}", partial(_is_time, since, "detached_since")
    for address, number in state.generations.items():
        yield address, partial(_is, int, number, "generation")
    for intent in state.intents:
        yield f"{intent.op}:{intent.address}", partial(_check_intent, intent)


def wrong_value(record: Record) -> str | None:
    """A fault of a record as a sentence without its name: its values may come from a backend."""
    try:
        _check(record)
    except BadDataError as bad:
        return str(bad)
    return None


def _is(hint: Any, value: Any, key: str) -> None:
    try:
        reader(hint)(value)
    except BadDataError as bad:
        raise bad.at(key) from None


def _is_value(table: str, status: Any) -> None:
    kind = status.__class__
    names = stored_fields(table, kind)
    plain_reader(kind, names)(plain(status, names))


def _check_word(name: str) -> None:
    """Hints print names in commands: nothing else may come in by them."""
    if not WORD.fullmatch(name):
        raise BadDataError("a name").at("name")


def _is_time(value: Any, key: str) -> None:
    """A time, or none: one that no calendar has cannot be shown."""
    _is(float | None, value, key)
    if value is not None and not 0 <= value <= LAST:
        raise BadDataError("a time").at(key)


def _check_rank(status: RankStatus) -> None:
    _is_value("rank_status", status)
    _is_time(status.started_at, "started_at")
    _is_time(status.ended_at, "ended_at")


def _check_node(readiness: Readiness) -> None:
    _is_value("node_status", readiness)
    _is_time(readiness.observed_at, "observed_at")


def _check(record: Record) -> None:
    if record.address.kind not in KINDS:
        raise BadDataError("of a kind that there is").at("address")
    _is(str | None, record.backend, "backend")
    _is(int, record.generation, "generation")
    earlier = KINDS[: KINDS.index(record.address.kind)]
    if not all(need.kind in earlier for need in record.needs):
        raise BadDataError("a list of what is made before it").at("needs")
    try:
        inputs = record.typed
        _check_name(record.address, inputs)
    except BadDataError as bad:
        raise bad.at("inputs") from None
    try:
        outputs: Outputs = known(Outputs, record.outputs)
        for name in ("noticed_at", "started_at", "silent_since"):
            _is_time(getattr(outputs, name), name)
    except BadDataError as bad:
        raise bad.at("outputs") from None
    if isinstance(inputs, NodeInputs | VolumeInputs) and record.backend != inputs.backend:
        raise BadDataError("the `backend` of its inputs").at("backend")


def _check_name(address: Address, inputs: Inputs) -> None:
    """A name is made of the inputs, so that each can be looked up by the other."""
    if isinstance(inputs, NodeInputs):
        if address.name.rpartition("-")[0] != inputs.fleet:
            raise BadDataError("that of its name").at("fleet")
    elif isinstance(inputs, ReservationInputs | RankInputs):
        if address.name != rank_name(inputs.task, inputs.rank):
            raise BadDataError("that of its name").at("rank" if inputs.task in address.name else "task")
    elif isinstance(inputs, AttachmentInputs):
        if address.name != f"{inputs.rank}.{inputs.volume}":
            key = "volume" if address.name.startswith(f"{inputs.rank}.") else "rank"
            raise BadDataError("that of its name").at(key)
        if inputs.rank.rpartition("-")[0] != inputs.task:
            raise BadDataError("that of its name").at("task")


def _check_intent(intent: Intent) -> None:
    if intent.address.kind not in KINDS:
        raise BadDataError("of a kind that there is").at("address")
    _is(int, intent.id, "id")
    _is(int, intent.generation, "generation")
    _is(str, intent.token, "token")
    _is_time(intent.begun_at, "begun_at")
    if intent.inputs or intent.op != "delete":
        try:
            inputs_of(intent.address.kind, intent.inputs)
        except BadDataError as bad:
            raise bad.at("inputs") from None
