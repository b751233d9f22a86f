"""What placement is given and what it answers, and what nodes have in common that differ in their names.

Immutable values only. Filters ask about a kind of node once and not about each node: a fleet of thousands has
a handful of kinds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, Any

from declarative.model.blocks import Shape, split
from declarative.model.outputs import TEXT_ONLY, Key
from declarative.model.record import struct
from declarative.model.resource import SSH, Offer, TaskWant
from declarative.model.schema import Doc
from declarative.model.spec import Fleet
from declarative.model.status import Readiness


@struct(frozen=True, slots=True, kw_only=True)
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
    busy_for: float | None = None
    """Seconds until all that holds its blocks has reached its `max_duration`; None if some has none."""
    closed: str | None = None
    """Why it takes no new work although it is ready: it is about to be replaced or deleted."""
    new: bool = False
    offer: Offer | None = None
    most: float | None = None
    """See `NodeType.most`."""
    topology: tuple[tuple[str, str], ...] = ()
    """Level → where it stands there, as its host declares."""
    avoided_by: frozenset[str] = frozenset()
    """The tasks that do not go there, since they failed there."""
    beside: frozenset[str] = frozenset()
    """The tasks that get more ranks, and of which one stays there."""


@struct(frozen=True, slots=True, kw_only=True)
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


@struct(frozen=True, slots=True, kw_only=True)
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
    shrinks: bool = False
    """Whether nodes go because they are above its maximum: with a larger one they are in the way."""
    unseen: tuple[Unseen, ...] = ()
    nothing: Callable[[], str] | None = None
    """Says why it has no offers."""

    def why_nothing(self) -> str:
        """Why it has no offers."""
        return self.nothing() if self.nothing else "no backend offers a node that its limits allow"

    def names(self, taken: Collection[str]) -> Iterator[str]:
        """The names that it may give: each is looked for when it is asked for, as others are taken."""
        reused = [name for name in self.free_names if name not in taken]
        yield from reused
        numbered = (f"{self.fleet.name}-{number}" for number in itertools.count())
        yield from (name for name in numbered if name not in taken and name not in reused)


GONE = "nobody: it is gone"
"""The holder of a volume that is recorded, but gone: no rank gets it."""


@struct(frozen=True, slots=True, kw_only=True)
class VolumeAt:
    """Where a volume is, or will be, and who holds it now."""

    backend: str
    region: str
    zone: str | None
    holder: str | None = None
    fresh: bool = False
    """It is made by this plan: without a zone it goes to the one where its rank goes."""


@struct(frozen=True, slots=True, kw_only=True)
class Ask:
    """One task to place. `prior` maps a rank to the node and blocks that it had or was promised."""

    want: TaskWant
    prior: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    reuse: bool = False
    """Launch nothing for it, whatever its `creation_policy`."""
    numbers: tuple[int, ...] = ()
    """The numbers of its ranks, if the task gets more of them: `want` has only those."""
    stay: int = 0
    """How many ranks it has beside them."""

    def number(self, rank: int) -> int:
        """The number of a rank in its task."""
        return self.numbers[rank] if self.numbers else rank


@struct(frozen=True, slots=True, kw_only=True)
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


@struct(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why one node, fleet or offer was turned down. `short` maps a dimension to what was missing."""

    target: str
    code: str
    detail: str
    short: Mapping[str, float] = field(default_factory=dict)
    count: int = 1
    """For how many nodes or offers it stands."""


@struct(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """The verdict on one rank, with the rejections where it is the cause."""

    rank: int
    verdict: Verdict
    rejections: tuple[Rejection, ...] = ()


NEVER, NOT_NOW = "can never fit", "does not fit now"
"""How the summary of a refusal begins."""


@struct(frozen=True, slots=True, kw_only=True)
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
    causes: tuple[tuple[str, str], ...] = ()
    """The fleets that turned its rank down, each with the code of its reason: (fleet, code)."""
    starts: str | None = None
    """When the `schedule` of a fleet starts that the task waits for; None if it waits for no schedule."""

    def until(self, hint: str, starts: str | None = None) -> Refusal:
        """The same refusal of a task that may fit later; `hint` says when."""
        summary = self.summary.replace(NEVER, NOT_NOW, 1)
        return replace(self, code="no-capacity", summary=summary, hint=hint, changes=None, starts=starts)


@struct(frozen=True, slots=True, kw_only=True)
class Remedy:
    """With this change all of these tasks fit, and no other task loses its place."""

    text: Annotated[str, Key("change"), Doc("As in `changes`.")]
    tasks: Annotated[tuple[Annotated[str, Doc("A task's name.")], ...], Doc("Their names.")]
    fleet: Annotated[str | None, TEXT_ONLY] = None
    """The fleet whose `nodes` it changes, if it is that."""


@struct(frozen=True, slots=True, kw_only=True)
class PlacementOutcome:
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


@struct(frozen=True, slots=True)
class NodeType:
    """The facts that nodes and offers have in common. `price` is USD an hour for the whole node."""

    fleet: str
    backend: str
    region: str
    zone: str | None
    instance_type: str
    shape: Shape
    total: int
    price: float | None
    spot: bool
    can: frozenset[str] | None = None
    most: float | None = None
    """USD an hour that it never costs more than, where its price is unknown."""
    topology: tuple[tuple[str, str], ...] = ()
    """See `Node.topology`."""
    avoided_by: frozenset[str] = frozenset()
    """See `Node.avoided_by`."""
    beside: frozenset[str] = frozenset()
    """See `Node.beside`."""

    def at(self, level: str) -> str | None:
        """Where it stands at a level of topology: "" where all of a region are alike, None if unknown."""
        declared = dict(self.topology).get(level)
        if declared is not None or level not in ("zone", "region"):
            return declared
        # A host is a zone of its own to the volumes on its disk, not to the network.
        return "" if level == "region" or self.region == SSH else self.zone or ""

    @property
    def bound(self) -> float | None:
        """What a price cap is held against; None if nobody knows."""
        return self.most if self.price is None else self.price

    @property
    def cost(self) -> float:
        """The price for comparisons: one that is unknown is above all others."""
        return math.inf if self.price is None else self.price

    @property
    def place(self) -> Place:
        """Where it is, as far as volumes care."""
        return (self.backend, self.region, self.zone)


Place = tuple[str, str, str | None]
"""Backend, region, and the zone if there are any."""


def of_node(node: Node) -> tuple[Any, ...]:
    """The fields of a node's kind: most nodes are of a kind that is known already."""
    return (
        node.fleet,
        node.backend,
        node.region,
        node.zone,
        node.instance_type,
        node.shape,
        node.total,
        node.price,
        node.spot,
        node.readiness.can,
        node.most,
        node.topology,
        node.avoided_by,
        node.beside,
    )


def of_offer(offer: Offer, fleet: Fleet) -> tuple[Any, ...]:
    """The fields of the kind of node that `offer` gives the fleet, which splits it."""
    return (
        str(fleet.name),
        offer.backend,
        offer.region,
        offer.zone,
        offer.instance_type,
        offer.shape,
        split(offer.shape, offer.blocks(fleet)) or 1,
        offer.price,
        offer.spot,
        offer.can,
        fleet.max_price if offer.bids and offer.price is None else None,
        offer.host.topology if offer.host else (),
        frozenset(),
        frozenset(),
    )


def offer_name(kind: NodeType) -> str:
    """What an offer is called in a refusal."""
    spot = " spot" if kind.spot else ""
    return f"offer/{kind.backend}:{kind.zone or kind.region}:{kind.instance_type}{spot} (fleet/{kind.fleet})"


def by_name(kind: NodeType) -> tuple[object, ...]:
    """An order of kinds that does not depend on that of the input."""
    shape = kind.shape
    return (
        kind.fleet,
        kind.backend,
        kind.region,
        kind.zone or "",
        kind.instance_type,
        kind.spot,
        kind.cost,
        kind.total,
        (shape.cpu, shape.memory_mib, shape.gpus, shape.gpu_name or "", shape.gpu_memory_mib or 0),
        (shape.disk_mib or 0, shape.disk_mib is None, shape.gpu_memory_mib is None, shape.gpu_vendor or ""),
        (kind.can is None, sorted(kind.can or ())),
        -1.0 if kind.most is None else kind.most,
        kind.topology,
        sorted(kind.avoided_by),
        sorted(kind.beside),
    )


@struct(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What could be had by hand: `moves` are (rank, from, to), `saves` USD an hour."""

    node: str
    moves: tuple[tuple[str, str, str], ...]
    saves: float

    @property
    def text(self) -> str:
        """`2 moves would free node/gpu-3: -10.32 USD/h`."""
        count = len(self.moves)
        return f"{count} move{'' if count == 1 else 's'} would free node/{self.node}: -{self.saves:.2f} USD/h"


Quota = tuple[str, str, str, bool]
"""What an offer's `limit` counts: backend, region, instance type, spot."""


def quota_of(thing: Offer | Node) -> Quota:
    """What an offer's quantity limit counts."""
    host = thing.host if isinstance(thing, Offer) else None  # there is one of each, also of one type
    return (thing.backend, thing.region, host.key if host else thing.instance_type, thing.spot)
