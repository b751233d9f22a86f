"""Volumes bind ranks: which volumes each rank of a task gets, and to which places that ties it.

Rule 5 of docs/architecture.md, "Placement".

A mount may name alternatives, and a volume is for one rank at a time, so this is a matching: ranks are
given their first choice while there is room, and are moved to another one when a later rank has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from declarative.placement.filters import Reason
from declarative.placement.kinds import Place
from declarative.placement.types import VolumeAt
from declarative.resource import RankMount

MOST_OPTIONS = 64
"""Combinations of alternatives that are looked at for one rank in one place."""

MOST_STEPS = 20_000
"""Ranks that are moved in search of a matching before it is given up."""

DEEPEST = 300
"""Ranks that are moved at once."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The volumes that one rank gets, by path, and the place that this was decided for."""

    place: Place
    volumes: Mapping[str, str]


def serves(at: VolumeAt, place: Place) -> bool:
    """Whether a volume can be attached to a node of a place."""
    backend, region, zone = place
    return at.backend == backend and at.region == region and (not at.zone or not zone or at.zone == zone)


def mount_reason(
    mounts: Sequence[RankMount],
    place: Place,
    volumes: Mapping[str, VolumeAt],
    claims: Mapping[str, str],
) -> Reason | None:
    """Why the mounts cannot all be had in a place: the first one that never can, else the first that is held.

    Of alternatives one that is held is enough: it may be let go.
    """
    held: Reason | None = None
    for mount in mounts:
        reasons: list[str] = []
        found: set[str] = set()
        for name in mount.names:
            at = volumes.get(name)
            if at is None:
                reasons.append(f"volume/{name} does not exist")
                found.add("volume-missing")
            elif not serves(at, place):
                reasons.append(f"volume/{name} is in {at.backend}/{at.zone or at.region}")
                found.add("volume-elsewhere")
            elif name in claims:
                reasons.append(f"volume/{name} is held by {claims[name]}")
                found.add("volume-busy")
            else:
                break
        else:
            detail = f"{mount.path}: {'; '.join(reasons)}"
            if "volume-busy" not in found:
                return Reason("volume-missing" if "volume-missing" in found else "volume-elsewhere", detail)
            held = held or Reason("volume-busy", detail)
    return held


def bindings(
    mounts: Sequence[RankMount],
    places: Iterable[Place],
    volumes: Mapping[str, VolumeAt],
    claims: Mapping[str, str],
) -> list[Binding]:
    """Every way to give one rank its volumes, by place; the earlier alternatives first."""
    out: list[Binding] = []
    paths = [m.path for m in mounts]
    for place in places:
        choices = [
            [n for n in m.names if n in volumes and n not in claims and serves(volumes[n], place)]
            for m in mounts
        ]
        if all(choices):
            ways = itertools.islice(itertools.product(*choices), MOST_OPTIONS)
            fair = (names for names in ways if len(set(names)) == len(names))
            out += [Binding(place, dict(zip(paths, names, strict=True))) for names in fair]
    return out


class Matching:
    """Gives each rank one of its bindings, so that no volume is given twice and no place is overfull."""

    def __init__(self, options: Mapping[int, Sequence[Binding]], room: Callable[[Place], int]) -> None:
        """`room` says how many ranks a place holds."""
        self.options = options
        self.room = room
        self.given: dict[int, Binding] = {}
        self.steps = 0
        self._places = {rank: frozenset(b.place for b in found) for rank, found in options.items()}
        self._of_volume: dict[str, int] = {}
        self._of_place: dict[Place, set[int]] = {}
        self._simple = all(len(b.volumes) == 1 for found in options.values() for b in found)
        """Each rank gets one volume: then who could not be moved once need not be asked again, and what is
        found is the most there is.
        """

    def match(self) -> int | None:
        """Match every rank that can be; the first of the others, or None."""
        order = sorted(self.options, key=lambda r: (len(self.options[r]), r))
        every = frozenset[Place]().union(*self._places.values())
        if sum(map(self.room, every)) < len(order):
            self.steps = MOST_STEPS  # there is no room for all of them, however they are moved
        return min((rank for rank in order if not self._seat(rank, {rank})), default=None)

    def _seat(self, rank: int, moving: set[int]) -> bool:
        """Give `rank` a binding, moving others that are in the way; each is moved once at most."""
        for binding in self.options[rank]:
            if not self._in_the_way(binding):
                self._give(rank, binding)
                return True
        for binding in self.options[rank] if self.steps < MOST_STEPS else ():
            for other in self._movable(binding, moving):
                if self.steps >= MOST_STEPS:
                    return False
                if other in moving:
                    continue
                self.steps += 1
                old = self._withdraw(other)
                if not self._in_the_way(binding):
                    self._give(rank, binding)
                    if self._seat(other, self._with(moving, other)):
                        return True
                    self._withdraw(rank)
                self._give(other, old)
        return False

    def _with(self, moving: set[int], other: int) -> set[int]:
        if not self._simple:
            return moving | {other}
        moving.add(other)
        return moving

    def _movable(self, binding: Binding, moving: set[int]) -> list[int]:
        """Ranks whose leaving might make room for the binding."""
        holders = {self._of_volume[v] for v in binding.volumes.values() if v in self._of_volume}
        if len(holders) > 1 or len(moving) > DEEPEST:
            return []
        if not holders:
            here = self._of_place.get(binding.place, set())
            holders = {r for r in here if len(self._places[r]) > 1}
        return sorted(holders - moving)

    def _in_the_way(self, binding: Binding) -> bool:
        if len(self._of_place.get(binding.place, ())) >= self.room(binding.place):
            return True
        return any(v in self._of_volume for v in binding.volumes.values())

    def _give(self, rank: int, binding: Binding) -> None:
        self.given[rank] = binding
        self._of_place.setdefault(binding.place, set()).add(rank)
        self._of_volume.update(dict.fromkeys(binding.volumes.values(), rank))

    def _withdraw(self, rank: int) -> Binding:
        binding = self.given.pop(rank)
        self._of_place[binding.place].discard(rank)
        for volume in binding.volumes.values():
            del self._of_volume[volume]
        return binding
