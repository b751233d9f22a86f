"""What is asked for, digested: tasks that are alike share a request. And where their ranks may lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from declarative.model.record import struct
from declarative.model.spec import Task
from declarative.placement.problem import Ask, Place


class Area(NamedTuple):
    """Where the ranks of a cluster task lie together: in one region of a fleet, at one place of a level."""

    fleet: str
    backend: str
    region: str
    level: str
    at: str


class Domain(NamedTuple):
    """What all ranks of a task have in common: the area, and who made their GPUs. None is any."""

    area: Area | None = None
    maker: str | None = None


ANYWHERE = Domain()


@struct(frozen=True, slots=True)
class Candidate:
    """An area where a cluster may lie. `index` is its place among the domains of a request."""

    index: int
    domain: Domain
    fleet: str
    floor: float
    """USD an hour that a rank costs at least for which something is launched."""
    per: int
    """Ranks that a node which is launched holds at most."""
    alike: object
    """What it shares with areas where another fleet may launch the same; None if the fleet has nodes."""


class Traits(NamedTuple):
    """What matters of a kind of node to a rank that takes so many blocks of it."""

    need: int
    gpus: int
    """GPUs that the rank is given."""
    total: int
    """Blocks of a node."""
    rest: tuple[object, ...]
    """What matters after the fit: USD an hour, the CPUs and memory that the rank is given, which GPUs."""


class Fit:
    """Kind → how many blocks a rank takes there; kinds where it can never go are not in it.

    Limits and sizes have few values each, and requests are their pairs: so this keeps no table of its own.
    """

    __slots__ = ("allowed", "flags", "hardware_of", "needs")

    def __init__(
        self, allowed: list[int], flags: bytearray, hardware_of: list[int], needs: dict[int, int]
    ) -> None:
        self.allowed = allowed
        """The kinds that the limits allow, in order; `flags` has a 1 for each."""
        self.flags = flags
        self.hardware_of = hardware_of
        """Kind → its make: kinds of one shape and split are of one make."""
        self.needs = needs
        """Make → blocks wanted; 0 where it does not fit."""

    def get(self, kind: int, default: int = 0) -> int:
        """The blocks, or `default`."""
        return (self.needs[self.hardware_of[kind]] or default) if self.flags[kind] else default

    def __getitem__(self, kind: int) -> int:
        return self.needs[self.hardware_of[kind]]

    def __contains__(self, kind: int) -> bool:
        return bool(self.flags[kind] and self.needs[self.hardware_of[kind]])

    def __iter__(self) -> Iterator[int]:
        needs, hardware_of = self.needs, self.hardware_of
        return (k for k in self.allowed if needs[hardware_of[k]])

    def items(self) -> Iterator[tuple[int, int]]:
        """Kinds and blocks, in the order of kinds."""
        needs, hardware_of = self.needs, self.hardware_of
        return ((k, need) for k in self.allowed if (need := needs[hardware_of[k]]))

    def among(self, kinds: bytearray) -> list[tuple[int, int]]:
        """The same of those of which `kinds` has a 1."""
        needs, hardware_of = self.needs, self.hardware_of
        return [(k, need) for k in self.allowed if kinds[k] and (need := needs[hardware_of[k]])]

    @property
    def least(self) -> int:
        """The fewest blocks that a rank takes anywhere; 0 if it can go nowhere."""
        return min(
            filter(None, map(self.needs.get, map(self.hardware_of.__getitem__, self.allowed))), default=0
        )

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


class Request:
    """What a rank asks for and where its task may go. Tasks with one request are alike to all filters."""

    __slots__ = (
        "candidates",
        "domains",
        "fit",
        "gpus",
        "grounds",
        "homes",
        "least",
        "limits",
        "made",
        "one_area",
        "one_vendor",
        "places",
        "size",
        "task",
        "whole",
    )

    def __init__(self, task: Task, fit: Fit, limits: int, size: int, *, one_vendor: bool) -> None:
        self.task = task
        self.whole = task.whole_nodes
        self.one_vendor = one_vendor
        """Whether the GPUs of all its ranks are of one maker."""
        self.made: dict[str | None, dict[int, int]] = {}
        """Maker → the kinds with its GPUs that fit, and the blocks a rank takes."""
        self.one_area = lies_together(task)
        self.gpus = task.resources.gpu.count.min if task.resources.gpu else 0
        self.fit = fit
        self.limits, self.size = limits, size
        """Numbers: requests that share them are turned down alike, by place and by shape."""
        self.domains: dict[Domain, tuple[tuple[int, int], ...]] = {}
        """Domain → the kinds of nodes that are there and fit, and the blocks a rank takes."""
        self.grounds: dict[tuple[Domain, frozenset[Place]], tuple[tuple[int, int], ...]] = {}
        """The same for some places of a domain."""
        self.places: dict[Domain, tuple[Place, ...]] = {}
        """Domain → the places where it fits."""
        self.homes: list[Domain] | None = None
        """The domains where its ranks may lie together."""
        self.candidates: Sequence[Candidate] | None = None
        """The areas where its ranks may lie together."""
        self.least = fit.least


@struct(slots=True)
class Job:
    """One task to place. Its index is its place in the order of names."""

    index: int
    ask: Ask
    request: Request
    ranks: int
    reuse: bool
    unconstrained: bool
    """Whether only its request and its number of ranks matter: see `is_unconstrained`."""
    key: tuple[int, int, bool] = field(default=(0, 0, False))

    @property
    def task(self) -> Task:
        """Its declaration."""
        return self.ask.want.spec

    @property
    def single(self) -> bool:
        """Whether it has one rank and only its request matters: all that are alike are seated at once."""
        return self.unconstrained and self.ranks == 1

    @property
    def likeness(self) -> object:
        """Equal for tasks of which each finds a place where another does."""
        return self.key if self.unconstrained else self.index

    @property
    def alike(self) -> bool:
        """Whether one place is as good as another for each rank: none has volumes, or has to lie apart."""
        return not (any(self.ask.want.mounts) or is_spread(self.task))

    @property
    def weight(self) -> int:
        """Blocks that are left out when it is left out: what a search keeps small."""
        return self.ranks * max(1, self.request.least)


def is_unconstrained(ask: Ask) -> bool:
    """Whether a task has no volumes, no prior place and no pins, and its ranks need not be spread."""
    task = ask.want.spec
    return not (ask.prior or task.instances or any(ask.want.mounts) or is_spread(task))


def is_spread(task: Task) -> bool:
    """Whether its ranks have to lie apart."""
    return task.spread is not None and task.nodes > 1


def lies_together(task: Task) -> bool:
    """Whether its ranks have to lie in one domain: one rank always does, wherever it is."""
    return task.cluster and task.nodes > 1
