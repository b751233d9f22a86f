"""What placement is given and what it answers: immutable values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from declarative.model.blocks import Shape
from declarative.model.resource import Offer, TaskWant
from declarative.model.spec import Fleet
from declarative.model.state import Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as placement sees it. `held` maps a busy block to its holder (`rank/train-0`)."""

    name: str
    fleet: str
    backend: str
    region: str
    zone: str | None
    instance_type: str
    shape: Shape
    total: int
    price: float | None
    spot: bool
    readiness: Readiness
    held: Mapping[int, str] = field(default_factory=dict)
    closed: str | None = None
    """Why it takes no new work although it is ready: it is about to be replaced or deleted."""
    new: bool = False
    offer: Offer | None = None
    most: float | None = None
    """See `Kind.most`."""
    topology: tuple[tuple[str, str], ...] = ()
    """Level → where it stands there, as its host declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What a fleet may have besides and cannot now: a declared host that is not ready, or all that a backend
    offers which could not be read. Nothing is placed there, and nothing "can never fit" because of it.
    """

    target: str
    detail: str
    offer: Offer | None = None
    """The host, if it is one; else it stands for all that a backend offers."""
    known: bool = False
    """Whether `offer.shape` is what the host has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRule:
    """A fleet as placement sees it: what it may launch, and how many nodes it has.

    `baseline` is how many it launches for itself, whatever is placed: even `reuse` may use them.
    """

    fleet: Fleet
    offers: tuple[Offer, ...]
    existing: int
    baseline: int
    taken: frozenset[str] = frozenset()
    free_names: tuple[str, ...] = ()
    """Names to give first: those of nodes that are being replaced."""
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeAt:
    """Where a volume is, or will be, and who holds it now."""

    backend: str
    region: str
    zone: str | None
    holder: str | None = None
    fresh: bool = False
    """It is made by this plan: without a zone it goes to the one where its rank goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One task to place. `prior` maps a rank to the node and blocks that it had or was promised."""

    want: TaskWant
    prior: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    reuse: bool = False
    """Launch nothing for it, whatever its `creation_policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where one rank goes. `volumes` maps the declared path to the volume's name."""

    task: str
    rank: int
    node: str
    blocks: tuple[int, ...]
    volumes: Mapping[str, str]


class Verdict(StrEnum):
    """What is said of each rank of a task that was refused."""

    CAUSE = "cause"
    FITS = "fits"
    NOT_TRIED = "not-tried"


SUCH_AS = "such as: "
"""What comes before the reason of one, where many are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why one node, fleet or offer was turned down. `short` maps a dimension to what was missing."""

    target: str
    code: str
    detail: str
    short: Mapping[str, float] = field(default_factory=dict)
    count: int = 1
    """For how many nodes or offers it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """The verdict on one rank, with the rejections where it is the cause."""

    rank: int
    verdict: Verdict
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A task that cannot be placed: `never-fits`, `no-capacity` (not now), or `runs-already`."""

    task: str
    code: str
    summary: str
    hint: str | None
    ranks: tuple[RankVerdict, ...]
    changes: tuple[str, ...] | None = None
    """Single changes that would make it fit, as `with …` or `without …`; None if not all were tried."""
    proved: bool = True
    """Whether it was proved that it does not fit beside all tasks of at least its priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with which all of these tasks fit together, beside everything that is placed without it."""

    text: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All placements, all refusals, and every node to launch (for tasks and for the fleets themselves)."""

    choices: tuple[Choice, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    """Changes that refused tasks share."""
    launches: tuple[Node, ...] = ()
    short_fleets: tuple[tuple[str, int], ...] = ()
    """Fleets that no offer could bring to their size, and by how many nodes."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """The zone of each volume that is made by this plan and goes where its rank goes."""
    bound: float | None = None
    """USD an hour that launches cost at least which hold the same tasks; None if nobody worked that out."""
