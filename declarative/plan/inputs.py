"""What is recorded of each kind of thing, with its types: what a plan takes out of a record is there. Pure.

Keys that are not named here are passed on as they are: another version may have written them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from declarative.blocks import Shape
from declarative.plan.values import BadDataError, reader
from declarative.schema import BadValueError
from declarative.spec.values import Duration, Size
from declarative.state import KINDS as MADE_IN_ORDER
from declarative.state import Address, Intent, RankStatus, Readiness, Record, State, rank_name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInputs:
    """Of a node. Prices are USD an hour."""

    fleet: str
    backend: str
    region: str
    instance_type: str
    blocks: int
    resources: Shape
    zone: str | None = None
    spot: bool = False
    price: float | None = None
    max_price: float | None = None
    host: Mapping[str, Any] = field(default_factory=dict)
    placement: str = "any"
    tags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prevent_destroy: bool = False
    reservation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInputs:
    """Of a volume."""

    backend: str
    region: str
    zone: str | None = None
    size: str = ""
    volume_type: str | None = None
    volume_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    prevent_destroy: bool = False
    host: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationInputs:
    """Of the blocks that a rank holds."""

    task: str
    rank: int
    node: str
    blocks: tuple[int, ...]
    total_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentInputs:
    """Of a volume on a node; `rank` is the rank's name."""

    task: str
    rank: str
    node: str
    volume: str
    path: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Which files a rank gets."""

    paths: tuple[Any, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Which retry of its task an attempt is. Seconds since the epoch."""

    count: int
    since: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInputs:
    """Of a rank: its task's fields that are read again, and its own mounts."""

    task: str
    rank: int
    commands: tuple[str, ...] = ()
    nodes: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    instance_paths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Files | None = None
    retries: Retries | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    retry: Any = None
    tags: Mapping[str, str] = field(default_factory=dict)
    placement: str | None = None
    exclusive: bool | None = None
    image: str | None = None
    isolation: str | None = None
    working_dir: str | None = None
    startup_order: str | None = None
    stop_criteria: str | None = None
    max_duration: Any = None
    stop_duration: Any = None
    priority: int | None = None
    fleets: tuple[str, ...] = ()
    instances: tuple[Any, ...] = ()
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()


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


Inputs = NodeInputs | VolumeInputs | ReservationInputs | AttachmentInputs | RankInputs
KINDS: Mapping[str, type[Inputs]] = {
    "node": NodeInputs,
    "volume": VolumeInputs,
    "reservation": ReservationInputs,
    "attachment": AttachmentInputs,
    "rank": RankInputs,
}
MOST = 1_000_000
"""Blocks, ranks, CPUs and GPUs: a larger number is none of a node or a task."""
LAST = 253_402_300_799
"""The end of the year 9999, in seconds since the epoch: no later time can be written."""
_BOUNDS = {"blocks": 1, "total_blocks": 1, "nodes": 1, "rank": 0}
"""Numbers among the inputs, and the least that each may be."""
_WORD = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""A name as it is recorded: made of one that is declared, and of numbers."""
_NAMED = ("backend", "fleet", "task", "node", "volume", "rank")
"""Names among the inputs."""
_DURATIONS = ("max_duration", "stop_duration")


def inputs_of(kind: str, data: Mapping[str, Any]) -> Inputs:
    """The inputs of a record of that kind, typed; `BadDataError` with the key that is wrong."""
    found: Inputs = _known(KINDS[kind], data)
    for name, least in _BOUNDS.items():
        value = getattr(found, name, least)
        if isinstance(value, int) and not least <= value <= MOST:
            raise BadDataError(f"a number from {least} to {MOST}").at(name)
    for name in _NAMED:
        value = getattr(found, name, None)
        if isinstance(value, str) and not _WORD.fullmatch(value):
            raise BadDataError("a name").at(name)
    if isinstance(found, NodeInputs):
        _check_shape(found.resources)
    elif isinstance(found, ReservationInputs):
        if not all(0 <= block < found.total_blocks for block in found.blocks):
            raise BadDataError("a list of the node's blocks").at("blocks")
    elif isinstance(found, VolumeInputs):
        _notation(Size, data, "size")
    elif isinstance(found, RankInputs):
        _check_task(found, data)
    return found


def _check_task(found: RankInputs, data: Mapping[str, Any]) -> None:
    for name in _DURATIONS:
        _notation(Duration, data, name)
    if "commands" not in data and found.image is None:
        raise BadDataError("there").at("commands")
    if found.rank >= found.nodes:
        raise BadDataError("below `nodes`").at("rank")


def _known(cls: Any, data: Mapping[str, Any]) -> Any:
    if not isinstance(data, dict):
        raise BadDataError("a mapping")
    names = cls.__dataclass_fields__
    return reader(cls)({key: value for key, value in data.items() if key in names})


def _check_shape(shape: Shape) -> None:
    for item in dataclasses.fields(shape):
        value = getattr(shape, item.name)
        if isinstance(value, int) and not 0 <= value <= 1 << 50:
            raise BadDataError("a number from 0 on").at(item.name).at("resources")


def _notation(notation: type[Duration | Size], inputs: Mapping[str, Any], name: str) -> None:
    try:
        if name in inputs:
            notation.parse(inputs[name])
    except BadValueError:
        raise BadDataError(f"a {notation.__name__.lower()}").at(name) from None


# ------------------------------------------------------------------------------------------ whole states


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
    if not _WORD.fullmatch(name):
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
    earlier = MADE_IN_ORDER[: MADE_IN_ORDER.index(record.address.kind)]
    if not all(need.kind in earlier for need in record.needs):
        raise BadDataError("a list of what is made before it").at("needs")
    try:
        found = inputs_of(record.address.kind, record.inputs)
        _check_name(record.address, found)
    except BadDataError as bad:
        raise bad.at("inputs") from None
    try:
        came: Outputs = _known(Outputs, record.outputs)
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
