"""Whether a state is one that we wrote: every value is of its type, and names and references agree. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
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
)
from declarative.model.state import KINDS, Address, Intent, RankStatus, Readiness, Record, State, rank_name


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAs:
    """How a thing was called when it was made, where `state mv` renamed it."""

    address: Address
    token: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What came of any kind of thing. Times are seconds since the epoch."""

    id: Any = None
    address: str | None = None
    node: str | None = None
    made_as: MadeAs | None = None
    noticed_at: float = 0.0
    started_at: float = 0.0
    stopped: bool = False
    silent_since: float | None = None
    given_up: tuple[str, ...] | None = ()


LAST = 253_402_300_799
"""The end of the year 9999, in seconds since the epoch: no later time can be written."""


def faults(state: State) -> Iterator[str]:
    """What is nothing that we record or observe, in sentences that name each thing with its key."""
    tests: tuple[tuple[Iterable[Any], Callable[[Any], object], Callable[[Any], object]], ...] = (
        (((None, state),), lambda _: "the state", _check_head),
        (_names(state), lambda item: item[0], _check_word),
        (state.records.items(), lambda item: item[0], _check),
        (state.ranks.items(), lambda item: f"rank/{item[0]}", _check_rank),
        (state.readiness.items(), lambda item: f"node/{item[0]}", _check_node),
        (state.idle_since.items(), lambda item: f"node/{item[0]}", lambda at: _is_time(at, "idle_since")),
        (state.detached_since.items(), lambda i: f"volume/{i[0]}", lambda at: _is_time(at, "detached_since")),
        (state.generations.items(), lambda item: item[0], lambda number: _is(int, number, "generation")),
        (((i, i) for i in state.intents), lambda item: f"{item[0].op}:{item[0].address}", _check_intent),
    )
    for things, name, check in tests:
        for item in things:
            try:
                check(item[1])
            except BadDataError as bad:
                yield f"{name(item)}: {bad}"
    for record in state.of("reservation"):
        inputs: object = record.inputs  # what it is was told above
        node = inputs.get("node") if isinstance(inputs, Mapping) else None
        if isinstance(node, str) and state.get("node", node) is None:
            yield f"{record.address}: `inputs.node` is not recorded"


def fault(record: Record) -> str | None:
    """What no record of ours has, in a sentence without its name: a backend may have said it."""
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


def _names(state: State) -> Iterator[tuple[str, str]]:
    """(what is named, its name): whatever says of a thing that it is there."""
    addresses = (*state.records, *state.generations, *(i.address for i in state.intents))
    yield from ((repr(str(address)), address.name) for address in addresses)
    noted = {
        "rank": state.ranks,
        "node": {**state.readiness, **state.idle_since},
        "volume": state.detached_since,
    }
    yield from ((repr(f"{kind}/{name}"), name) for kind, names in noted.items() for name in names)


def _check_word(name: str) -> None:
    """Names stand in the commands that hints say: there, nothing else may come in by them."""
    if not WORD.fullmatch(name):
        raise BadDataError("a name").at("name")


def _is_time(value: Any, key: str) -> None:
    """A time, or none: one that no calendar has cannot be shown."""
    _is(float | None, value, key)
    if value is not None and not 0 <= value <= LAST:
        raise BadDataError("a time").at(key)


def _check_head(state: State) -> None:
    _is(str | None, state.lineage, "lineage")
    _is(int, state.serial, "serial")


def _check_rank(status: RankStatus) -> None:
    _is(RankStatus, {**asdict(status), "mounted": list(status.mounted)}, "status")
    _is_time(status.started_at, "started_at")
    _is_time(status.ended_at, "ended_at")


def _check_node(seen: Readiness) -> None:
    _is(str | None, seen.reason, "reason")
    _is_time(seen.observed_at, "observed_at")
    _is(tuple[str, ...], list(seen.can or ()), "can")


def _check(record: Record) -> None:
    if record.address.kind not in KINDS:
        raise BadDataError("of a kind that there is").at("address")
    _is(str | None, record.backend, "backend")
    _is(int, record.generation, "generation")
    earlier = KINDS[: KINDS.index(record.address.kind)]
    if not all(need.kind in earlier for need in record.needs):
        raise BadDataError("a list of what is made before it").at("needs")
    try:
        found = record.typed
        _check_name(record.address, found)
    except BadDataError as bad:
        raise bad.at("inputs") from None
    try:
        came: Outputs = known(Outputs, record.outputs)
        for name in ("noticed_at", "started_at", "silent_since"):
            _is_time(getattr(came, name), name)
    except BadDataError as bad:
        raise bad.at("outputs") from None
    if isinstance(found, NodeInputs | VolumeInputs) and record.backend != found.backend:
        raise BadDataError("the `backend` of its inputs").at("backend")


def _check_name(address: Address, found: Inputs) -> None:
    """A name is made of the inputs: who looks for one by the other finds the same."""
    if isinstance(found, NodeInputs):
        if address.name.rpartition("-")[0] != found.fleet:
            raise BadDataError("that of its name").at("fleet")
    elif isinstance(found, ReservationInputs | RankInputs):
        if address.name != rank_name(found.task, found.rank):
            raise BadDataError("that of its name").at("rank" if found.task in address.name else "task")
    elif isinstance(found, AttachmentInputs):
        if address.name != f"{found.rank}.{found.volume}":
            key = "volume" if address.name.startswith(f"{found.rank}.") else "rank"
            raise BadDataError("that of its name").at(key)
        if found.rank.rpartition("-")[0] != found.task:
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
