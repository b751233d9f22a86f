"""The recorded inputs of each kind of thing, with their types. Pure.

Keys that are not named here are passed on as they are: another version may have written them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, cast, overload

from declarative.model.blocks import Shape
from declarative.model.codec import ALWAYS, FIRST, Stored, reader, to_data
from declarative.model.codec import BadDataError as BadDataError  # noqa: PLC0414  # for who calls `inputs_of`
from declarative.model.record import struct
from declarative.model.schema import BadValueError
from declarative.model.spec.values import Duration, Retry, Size

if TYPE_CHECKING:
    from declarative.model.spec.task import Task


class OfferLike(Protocol):
    """Something that is, or takes, an offer: an offer, a node, or the inputs of one."""

    @property
    def backend(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def zone(self) -> str | None: ...
    @property
    def instance_type(self) -> str: ...
    @property
    def spot(self) -> bool: ...


class OfferKey(NamedTuple):
    """What tells offers apart."""

    backend: str
    region: str
    zone: str | None
    instance_type: str
    spot: bool

    @classmethod
    def of(cls, offer: OfferLike) -> OfferKey:
        """The key of an offer, or of what takes one."""
        return cls(offer.backend, offer.region, offer.zone, offer.instance_type, offer.spot)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferInputs:
    """The inputs of a node that follow from its offer. Prices are USD an hour."""

    backend: str
    region: str
    zone: str | None = None
    instance_type: str
    spot: bool = False
    price: float | None = None
    max_price: float | None = None
    resources: Shape
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What its backend's document declared for it when it was made, on a cloud: see
    `resource.settings_of`.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeInputs(OfferInputs):
    """The inputs of a node."""

    fleet: str = field(metadata=FIRST)
    blocks: int
    host: Mapping[str, Any] = field(default_factory=dict)
    placement: str = field(default="any", metadata=ALWAYS)
    tags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prevent_destroy: bool = False
    protected: bool = False
    """The project's `limits.protected` names it, or its fleet."""
    reservation: str | None = None
    identity: str | None = None
    idle_duration: str | None = None
    """Its fleet's, if that is not the usual one."""

    @property
    def instance_id(self) -> str | None:
        """The instance that was adopted, and not made: deleting the node releases it."""
        return cast("str | None", self.host.get("instance_id"))

    @property
    def is_ssh_host(self) -> bool:
        """Whether it is a host of an `ssh_config`."""
        return "hostname" in self.host

    @property
    def is_shared(self) -> bool:
        """Whether it is a node of a partition: it exists anyway, and others use it, too."""
        return "partition" in self.host

    @property
    def effective_zone(self) -> str | None:
        """The zone; a host is one of its own, whether that was recorded or not."""
        return self.zone or (self.instance_type if self.is_ssh_host else None)

    @property
    def host_key(self) -> str:
        """The key of its host within the backend: the instance type, or the id of an adopted instance."""
        return self.instance_id or self.instance_type

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of each rank on it: its fleet's, and its host's over that."""
        return {**self.env, **self.host.get("env", {})}


@struct(frozen=True, slots=True, kw_only=True)
class VolumeInputs:
    """The inputs of a volume."""

    backend: str
    region: str
    zone: str | None = None
    size: str | None = None
    volume_type: str | None = None
    volume_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    prevent_destroy: bool = field(default=False, metadata=ALWAYS)
    protected: bool = False
    """The project's `limits.protected` names it, or all volumes of its `count`."""
    auto_cleanup_duration: str | None = None
    host: Mapping[str, Any] = field(default_factory=dict)


@struct(frozen=True, slots=True, kw_only=True)
class ReservationInputs:
    """The inputs of a reservation: the blocks that a rank holds."""

    task: str
    rank: int
    node: str
    blocks: tuple[int, ...]
    total_blocks: int


@struct(frozen=True, slots=True, kw_only=True)
class AttachmentInputs:
    """The inputs of an attachment: a volume on a node; `rank` is the rank's name."""

    task: str
    rank: str
    node: str
    volume: str
    path: str
    variable: str


@struct(frozen=True, slots=True, kw_only=True)
class RecordedFiles:
    """Which files a rank gets."""

    paths: tuple[Any, ...]
    digest: str


@struct(frozen=True, slots=True, kw_only=True)
class RetrySeries:
    """The series of retries that an attempt belongs to. Times are seconds since the epoch, by our clock."""

    count: int
    """Which retry it is."""
    since: float
    """Since when attempts fail."""
    at: float
    """When this one was decided upon."""


@struct(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """How often attempts of a task failed on one machine, and whether one of them failed at its start."""

    machine: str
    """`state.machine_name` of the node."""
    count: int = 1
    at_start: bool = False

    @property
    def avoids(self) -> bool:
        """Whether the task is better off elsewhere."""
        return self.at_start or self.count > 1


@struct(frozen=True, slots=True, kw_only=True)
class RankInputs:
    """The inputs of a rank: its task's fields that are read again, and its own mounts."""

    task: str
    rank: int
    nodes: int = 1
    placement: str | None = None
    exclusive: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    fleets: tuple[str, ...] = ()
    instances: tuple[Any, ...] = ()
    creation_policy: str | None = None
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    spot_policy: str | None = None
    max_price: float | None = None
    max_duration: Any = None
    stop_duration: Any = None
    startup_order: str | None = None
    stop_criteria: str | None = None
    priority: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    groups: Any = None
    isolation: str | None = None
    image: str | None = None
    registry_auth: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    python: str | None = None
    nvcc: bool = False
    repos: tuple[Mapping[str, str], ...] = ()
    files: RecordedFiles | None = None
    retry: Any = None
    queue: bool = False
    utilization_policy: Mapping[str, Any] | None = None
    file_sums: Any = None
    volumes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    instance_paths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    retries: RetrySeries | None = None
    scheduled: float | None = None
    """The start of its `schedule` that it belongs to, seconds since the epoch."""
    scheduled_until: float | None = None
    """When the `schedule` was to stop it, as of its start, seconds since the epoch; 0 for never, None if that
    is not known.
    """
    failed_on: tuple[NodeFailures, ...] = ()
    """The machines on which earlier attempts of its task failed, the last one last."""


_PREFIXES = ("FLEETFORM_", "DSTACK_")
_SKYPILOT = {
    "SKYPILOT_NODE_RANK": "NODE_RANK",
    "SKYPILOT_SETUP_NODE_RANK": "NODE_RANK",
    "SKYPILOT_NUM_NODES": "NODES_NUM",
    "SKYPILOT_NODE_IPS": "NODES_IPS",
    "SKYPILOT_SETUP_NODE_IPS": "NODES_IPS",
    "SKYPILOT_NUM_GPUS_PER_NODE": "GPUS_PER_NODE",
}
"""SkyPilot's names of the variables; its setup commands are a rank's first."""
VOLUME_VARIABLE = "FLEETFORM_VOLUME_"
"""`FLEETFORM_VOLUME_<NAME>` says where the volume is, rank suffix dropped."""
HOSTFILE_VARIABLES = ("FLEETFORM_MPI_HOSTFILE", "DSTACK_MPI_HOSTFILE")
"""Set for a rank that knows its siblings: the host file that each launcher reads, and that of Open MPI's
form.
"""
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES")
"""Set for every rank, the last one where GPUs are AMD's; the lists are empty without GPUs."""


def knows_siblings(task: RankInputs | Task) -> bool:
    """Whether a rank gets other nodes' addresses: with `placement: any` they need not be reachable."""
    return task.nodes == 1 or task.placement in (None, "cluster")


def gang_variables(task: str, rank: int, nodes: int, gang: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The variables by which a rank knows its gang. `gang`: the address and the number of GPUs of each rank;
    empty if the rank does not know its siblings.
    """
    values = {"NODE_RANK": str(rank), "NODES_NUM": str(nodes)}
    if gang:
        values |= {
            "MASTER_NODE_IP": gang[0][0],
            "NODES_IPS": "\n".join(address for address, _ in gang),
            "GPUS_PER_NODE": str(gang[rank][1]),
            "GPUS_NUM": str(sum(gpus for _, gpus in gang)),
        }
    env = {prefix + name: value for name, value in values.items() for prefix in _PREFIXES}
    env |= {name: values[own] for name, own in _SKYPILOT.items() if own in values}
    env["FLEETFORM_TASK_NAME"] = env["DSTACK_RUN_NAME"] = task
    return env


def always_set(*, siblings: bool) -> frozenset[str]:
    """The variables that fleetform sets for every rank, whatever its task declares in `env`; those of its
    volumes come on top.
    """
    names = gang_variables("", 0, 1, [("", 0)] if siblings else [])
    return frozenset((*names, *GPU_VARIABLES, *(HOSTFILE_VARIABLES if siblings else ())))


T = TypeVar("T")
PlacedInputs = NodeInputs | VolumeInputs
"""The inputs of things that have a place."""
Inputs = NodeInputs | VolumeInputs | ReservationInputs | AttachmentInputs | RankInputs
KINDS: Mapping[str, type[Inputs]] = {
    "node": NodeInputs,
    "volume": VolumeInputs,
    "reservation": ReservationInputs,
    "attachment": AttachmentInputs,
    "rank": RankInputs,
}


def data_of(inputs: Inputs) -> dict[str, Any]:
    """Inputs as they are stored and handed to backends."""
    return cast("dict[str, Any]", to_data(inputs))


def differing(before: Inputs, after: Inputs) -> tuple[str, ...]:
    """The names of the fields that differ, sorted."""
    names = sorted(_names(cast("Any", type(after))))
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


MOST = 1_000_000
"""Blocks, ranks, CPUs and GPUs: no node and no task has more."""
_BOUNDS = {"blocks": 1, "total_blocks": 1, "nodes": 1, "rank": 0}
"""Numbers among the inputs, and the least that each may be."""
WORD = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""A name as it is recorded: made of one that is declared, and of numbers."""
_NAMED = ("backend", "fleet", "task", "node", "volume", "rank")
"""Names among the inputs."""
_DURATIONS = ("max_duration", "stop_duration")
COUNTED = {"node": "idle_duration", "volume": "auto_cleanup_duration"}
"""Kind → the input after which it is deleted when nothing uses it. A new value counts from the apply that
recorded it.
"""


@overload
def inputs_of(kind: Literal["node"], data: Mapping[str, Any]) -> NodeInputs: ...
@overload
def inputs_of(kind: Literal["volume"], data: Mapping[str, Any]) -> VolumeInputs: ...
@overload
def inputs_of(kind: Literal["attachment"], data: Mapping[str, Any]) -> AttachmentInputs: ...
@overload
def inputs_of(kind: str, data: Mapping[str, Any]) -> Inputs: ...
def inputs_of(kind: str, data: Mapping[str, Any]) -> Inputs:
    """The inputs of a record of that kind, typed; `BadDataError` with the key that is wrong."""
    if not isinstance(data, Stored):
        return _read(kind, data)
    known = getattr(data, "typed", None)
    if known is None or known[0] != kind:
        known = data.typed = kind, _read(kind, data)
    return known[1]


def _read(kind: str, data: Mapping[str, Any]) -> Inputs:
    inputs: Inputs = known(KINDS[kind], data)
    _check_bounds(inputs)
    match inputs:
        case NodeInputs():
            for part in dataclasses.fields(inputs.resources):
                size = getattr(inputs.resources, part.name)
                if isinstance(size, int) and not 0 <= size <= 1 << 50:
                    raise BadDataError("a number from 0 on").at(part.name).at("resources")
            _notation(Duration, data, "idle_duration")
        case ReservationInputs():
            if not all(0 <= block < inputs.total_blocks for block in inputs.blocks):
                raise BadDataError("a list of the node's blocks").at("blocks")
        case VolumeInputs():
            _notation(Size, data, "size")
            _notation(Duration, data, "auto_cleanup_duration")
        case RankInputs():
            for name in _DURATIONS:
                _notation(Duration, data, name)
            if inputs.retry is not None:
                _notation(Retry, data, "retry")
            if "commands" not in data and inputs.image is None:
                raise BadDataError("there").at("commands")
            if inputs.rank >= inputs.nodes:
                raise BadDataError("below `nodes`").at("rank")
        case AttachmentInputs():
            pass
    return inputs


def _check_bounds(inputs: Inputs) -> None:
    for name, least in _BOUNDS.items():
        value = getattr(inputs, name, least)
        if isinstance(value, int) and not least <= value <= MOST:
            raise BadDataError(f"a number from {least} to {MOST}").at(name)
    for name in _NAMED:
        value = getattr(inputs, name, None)
        if isinstance(value, str) and not WORD.fullmatch(value):
            raise BadDataError("a name").at(name)


def zone_asked(inputs: Inputs | Mapping[str, Any]) -> str | None:
    """The zone that a node or a volume was asked for in; it is a part of its token."""
    if isinstance(inputs, Mapping):  # as it is stored
        return cast("str | None", inputs.get("zone"))
    return inputs.zone if isinstance(inputs, NodeInputs | VolumeInputs) else None


def known(cls: type[T], data: Mapping[str, Any]) -> T:
    """The data that the class has fields for, as that class; `BadDataError` with the key that is wrong."""
    if not isinstance(data, Mapping):
        raise BadDataError("a mapping")
    names = _names(cast("Any", cls))
    return cast("T", reader(cast("Any", cls))({key: value for key, value in data.items() if key in names}))


@functools.cache
def _names(cls: type) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(cls))


def _notation(notation: type[Duration | Size | Retry], inputs: Mapping[str, Any], name: str) -> None:
    try:
        if name in inputs:
            notation.parse(inputs[name])
    except BadValueError:
        raise BadDataError(f"a {notation.__name__.lower()}").at(name) from None
