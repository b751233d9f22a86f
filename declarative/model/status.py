"""How ranks and nodes are doing, as it was observed: states, their causes, and when they were seen."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from declarative.model.health import Finding
from declarative.model.record import struct


class RankState(StrEnum):
    """The states of ranks and tasks."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        """Whether it will not change by itself any more."""
        return self in (RankState.SUCCEEDED, RankState.FAILED, RankState.STOPPED, RankState.LOST)


class NodeState(StrEnum):
    """The states of nodes; only `ready` takes work."""

    PENDING = "pending"
    PROVISIONING = "provisioning"
    READY = "ready"
    NOT_READY = "not_ready"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    DRAINING = "draining"
    TERMINATING = "terminating"
    FAILED = "failed"


BOOTING = frozenset({NodeState.PENDING, NodeState.PROVISIONING})
"""The states of a node that was made and was not ready yet. Later ones are others."""

START_UP_LIMIT = 600.0
"""Seconds that a node may take from its making to being ready."""


@struct(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """How a rank is doing. Times are seconds since the epoch by the clock of its host."""

    state: RankState
    exit_code: int | None = None
    cause: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    mounted: tuple[str, ...] = ()
    confinement: str | None = None
    """How it is confined to its blocks: `hard`, `soft` or `none`, and by what means; None if unknown."""
    gpus: tuple[tuple[int, str, int], ...] = field(default=(), compare=False)
    """Index, UUID (empty if unknown) and use in percent of its GPUs, if its `utilization_policy` samples
    them. It is not recorded, and does not count as a change of the rank.
    """


LIMIT_REACHED = "max_duration reached"
"""The cause of a rank's failure that ran for as long as its task allows."""

UNUSED = "one of its GPUs was used less than its `utilization_policy` asks for"
"""The cause of a rank's failure that held GPUs and did not use them."""

PREPARING = "it is being prepared"
WAITING = "it waits for the rest of its gang"
"""The causes of a rank that is `starting`: none of its commands ran yet."""

NOT_RELEASED = "its gang was never complete: none of its commands ran"
"""The cause of a rank that is `lost` while it waited."""

HARD = "hard"
"""An ability of a host: its kernel holds a rank to its CPUs and its memory."""

RUNTIMES = ("podman", "docker")
"""Abilities of a host: what runs a rank's image, the preferred one first."""

ANY_RUNTIME = "any-runtime"
"""An ability of a host: it may have one of `RUNTIMES`, and its backend cannot tell which."""


@struct(frozen=True, slots=True, kw_only=True)
class Risk:
    """What a node may lose that it keeps, although it may take work."""

    what: str
    """`its volumes are in /tmp, and …`."""
    remedy: str
    """What to do about it. `NODE` stands for the node."""


@struct(frozen=True, slots=True, kw_only=True)
class HostRefusal:
    """Why a host that answers is not used: its key does not count, or it does not let us in."""

    hostname: str
    """The host itself, or one on the way to it, with the port and user by which it is reached."""
    port: int | None = None
    user: str | None = None
    name: str = ""
    """Its name in a file of known hosts."""
    key: str = ""
    """The key that it offers, as `ssh-ed25519 AAAA…`; empty if its key counts, and it does not let us in."""
    known: tuple[str, ...] = ()
    """The keys that count instead, in the same form."""
    file: str | None = None
    """The file whose keys count; None if the declared ones do."""
    on_the_way: bool = False
    """The host on the way refused, not the host itself. Both may have the same address."""


@struct(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a node may take work, why not, and when that was seen (seconds since the epoch)."""

    state: NodeState
    reason: str | None = None
    observed_at: float | None = None
    can: frozenset[str] | None = None
    """What its host supports of `HARD` and `RUNTIMES` (or `ANY_RUNTIME`); None if nothing is known."""
    no_key: bool = False
    """The caller lacks the key that logs in: nothing is known of the node itself."""
    reshaped: bool = False
    """Its host has other GPUs than are recorded of it: it is looked at as if it were new."""
    down: bool = False
    """Its backend itself reports that it does not run as it should, so our line is not why it is silent."""
    risk: Risk | None = field(default=None, compare=False)
    """What it may lose. Not recorded."""
    refusal: HostRefusal | None = field(default=None, compare=False)
    """Why its host is not used, though it answers. Not recorded."""
    findings: tuple[Finding, ...] = field(default=(), compare=False)
    """What is wrong with its machine, before its fleet's `health` counts. Not recorded."""


@struct(frozen=True, slots=True, kw_only=True)
class Silence:
    """The silence of a node. Times are seconds since the epoch, by our clock."""

    since: float
    """When that was noticed; by a command that writes, where one has."""
    until: float | None
    """When it is given up, if it does not answer before; None for never."""
    why: str | None = None
    """The error instead of an answer."""
    given_up: bool = False
    """Its ranks count as lost, and run again elsewhere as their tasks' `retry` says."""
    kept: str | None = None
    """Why it is not given up although it is time."""
    limit: float | None = None
    """The declared `unreachable_duration`, in seconds; None for never."""
    counts_from: float | None = None
    """From when that counts, if not from `since`: when a shorter one was first applied."""


@struct(frozen=True, slots=True, kw_only=True)
class Outage:
    """A backend that could not be read, so that a loop leaves it alone. Times are seconds since the epoch."""

    backend: str
    part: str
    """The part that cannot be read, such as `offers`; empty for all of it."""
    since: float
    until: float
    """When it is asked again."""
    why: str


@struct(frozen=True, slots=True, kw_only=True)
class Drain:
    """A user's drain of a node: it takes no new work, and its ranks run on."""

    since: str
    """`2026-01-31T12:00:00Z`, by our clock."""
    reason: str | None = None

    def __str__(self) -> str:
        return f"drained since {self.since}" + (f": {self.reason}" if self.reason else "")
