"""What `status` shows, as values: the keys of `status --json`, and beside them what only people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from declarative.blocks import Shape
from declarative.diagnostic import Diagnostic
from declarative.plan.health import Health
from declarative.state import Drain, Silence


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet: how many nodes it has, and how many of their blocks are busy."""

    name: str
    nodes: int
    total: int
    busy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node: `holders` maps each busy block to its holder (`rank/train-0`); `resources` is as recorded.

    `state` is a value of `NodeState` and `reason` says why it is not ready; `observed_at` is in
    seconds since the epoch, and `age`, where it is to be shown to people, in seconds until now.
    """

    name: str
    fleet: str
    state: str
    backend: str
    region: str
    zone: str | None
    instance_type: str
    price: float | None
    resources: Shape
    total: int
    holders: Mapping[int, str] = field(default_factory=dict)
    observed_at: float | None = None
    reason: str | None = None
    age: float | None = None
    drained: Drain | None = None
    silence: Silence | None = None
    """That it does not answer."""
    rehearsal: bool | None = False
    """Whether it is on this machine and has GPUs that this lacks; None if nobody looked."""

    @property
    def busy(self) -> int:
        """The number of busy blocks: derived, never counted up and down."""
        return len(self.holders)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A declared host that is no node yet, for people; `fit` if the next apply makes it one."""

    host: str
    fleet: str
    fit: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeView:
    """A volume, and the node that it is attached to. `size` and `reason` are for people."""

    name: str
    state: str
    node: str | None = None
    size: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """A rank: `node` is None when it holds none; `cause` says why it ended as it did."""

    rank: int
    node: str | None
    state: str
    exit_code: int | None = None
    attempt: int = 1
    cause: str | None = None
    confinement: str | None = None
    """How it is held to its blocks, for people; see `RankStatus`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task, its ranks, and the first cause of its failure."""

    name: str
    state: str
    ranks: tuple[RankView, ...] = ()
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """All of it. `diagnostics` (a backend that did not answer) are the caller's to print, on stderr.

    `hosts` are those that were looked at besides the nodes.
    """

    lineage: str | None
    serial: int
    fleets: tuple[FleetView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    volumes: tuple[VolumeView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    hosts: tuple[HostView, ...] = ()
    health: tuple[Health, ...] = ()
    """What is not well; in text it stands at the nodes and hosts, and on stderr."""
    diagnostics: tuple[Diagnostic, ...] = ()
