"""What is answered when a task, a rank or a node of a plan is asked about: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from declarative.model.state import Readiness
from declarative.placement.types import Kind, Refusal
from declarative.planner.types import Reservation
from declarative.why.alternatives import Elsewhere, Instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """One reason why something is where it is. `key` is stable, the text is for people."""

    key: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """Where one rank is or will be, and why. `like` names the rank whose `instead` holds for it, too."""

    name: str
    rank: int
    state: str
    place: Reservation | None
    node_price: float | None = None
    why: tuple[Why, ...] = ()
    instead: Instead | None = None
    like: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """A task or one rank of it. `status`: kept, placed, unplaced, ended or removed."""

    address: str
    task: str
    status: str
    reason: str | None
    because: tuple[str, ...]
    ranks_count: int
    ranks: tuple[RankAnswer, ...]
    refusal: Refusal | None = None
    places: Instead | None = None
    """What would hold a rank of a task that has no place as a whole."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """What comes of a whole cluster task wherever its ranks could lie together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """Tasks without a place that a node was turned down for by one reason; no code: it would hold a rank."""

    code: str | None
    detail: str
    short: Mapping[str, float]
    count: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """A node. `status`: new, kept, changed, replaced, deleted or gone; `idle_price` is of its idle blocks."""

    address: str
    status: str
    why: tuple[Why, ...]
    changed: tuple[str, ...]
    readiness: Readiness
    closed: str | None
    kind: Kind
    holders: Mapping[int, str]
    idle_price: float | None
    instead: Instead | None = None
    looked: tuple[LookedAt, ...] = ()
    not_asked: int = 0
    """Tasks without a place that are beyond `MOST_LOOKED`."""


Answer = TaskAnswer | NodeAnswer
