"""Volumes bind ranks: which volumes each rank of a task gets, and to which places that ties it.

Rule 5 of docs/architecture.md, "Placement".

A mount may name alternatives, and a volume is for one rank at a time, so this is a matching: ranks are
given their first choice while there is room, and are moved to another one when a later rank has none.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from declarative.model.record import struct
from declarative.model.resource import RankMount
from declarative.model.state import rank_name
from declarative.placement.filters import Mismatch
from declarative.placement.problem import GONE, Place, VolumeAt

if TYPE_CHECKING:
    from declarative.placement.assignment import Assignment
    from declarative.placement.catalog import Job

MOST_OPTIONS, MOST_TRIED = 64, 1_000
"""Combinations of alternatives that are looked at for one rank in one place, and tried to find these."""

MOST_STEPS = 20_000
"""Ranks that are moved in search of a matching before it is given up."""

MOST_VISITS = 2_000_000
"""Ranks, volumes and places that are looked at for a flow before it is given up."""

DEEPEST = 300
"""Ranks that are moved at once."""

MILDEST = ("volume-busy", "volume-gone", "volume-missing", "volume-elsewhere")
"""Of the alternatives of a mount, the first of these is what is said of it."""


Node = tuple[str, Any]
"""Of a flow: a rank, a volume, or a place."""


@struct(frozen=True, slots=True)
class Binding:
    """The volumes that one rank gets, by path, and the place that this was decided for."""

    place: Place
    volumes: Mapping[str, str]

    def gives(self, volume: str, place: Place) -> bool:
        """Whether the volume is one of them, and this is the place."""
        return self.place == place and volume in self.volumes.values()


def serves(at: VolumeAt, place: Place) -> bool:
    """Whether a volume can be attached to a node of a place."""
    backend, region, zone = place
    return at.backend == backend and at.region == region and (not at.zone or not zone or at.zone == zone)


def _volume_reason(
    name: str, place: Place, volumes: Mapping[str, VolumeAt], holders: Mapping[str, str]
) -> Mismatch | None:
    """Why a rank cannot have a volume in a place."""
    at = volumes.get(name)
    if at is None:
        return Mismatch("volume-missing", f"volume/{name} does not exist")
    if not serves(at, place):
        return Mismatch("volume-elsewhere", f"volume/{name} is in {at.backend}/{at.zone or at.region}")
    if holders.get(name) == GONE:
        return Mismatch("volume-gone", f"volume/{name} is gone, and is not made anew by itself")
    if name in holders:
        return Mismatch("volume-busy", f"volume/{name} is held by {holders[name]}")
    return None


def mount_reason(
    mounts: Sequence[RankMount],
    place: Place,
    volumes: Mapping[str, VolumeAt],
    holders: Mapping[str, str],
) -> Mismatch | None:
    """Why the mounts cannot all be had in a place: the first one that never can, else the first that is held.

    Of alternatives one that is held is enough: it may be let go. One that is gone may come back.
    """
    held: Mismatch | None = None
    for mount in mounts:
        reasons: list[Mismatch] = []
        for name in mount.names:
            reason = _volume_reason(name, place, volumes, holders)
            if reason is None:
                break
            reasons.append(reason)
        else:
            code = min((reason.code for reason in reasons), key=MILDEST.index, default=MILDEST[-1])
            mismatch = Mismatch(code, f"{mount.path}: {'; '.join(reason.detail for reason in reasons)}")
            if code not in ("volume-busy", "volume-gone"):
                return mismatch
            held = held or mismatch
    return held


def free_volumes(
    mounts: Sequence[RankMount], volumes: Mapping[str, VolumeAt], holders: Mapping[str, str]
) -> list[list[tuple[str, VolumeAt]]]:
    """Of each mount the alternatives that are there and that nobody holds, with their names."""
    return [[(n, volumes[n]) for n in m.names if n in volumes and n not in holders] for m in mounts]


def near(places: Collection[Place], volumes: Iterable[VolumeAt]) -> Collection[Place]:
    """The places in the zones of volumes, or in no zone; all of them if a volume is in none."""
    zones = {at.zone for at in volumes}
    return [place for place in places if place[2] in zones or not place[2]] if all(zones) else places


def bindings(
    mounts: Sequence[RankMount],
    places: Collection[Place],
    volumes: Mapping[str, VolumeAt],
    holders: Mapping[str, str],
) -> list[Binding]:
    """Every way to give one rank its volumes, by place; the earlier alternatives first."""
    free = free_volumes(mounts, volumes, holders)
    out: list[Binding] = []
    for place in near(places, [at for _, at in free[0]]) if free else places:
        choices = [[name for name, at in own if serves(at, place)] for own in free]
        out += _combined(mounts, place, choices)
    return out


def _combined(
    mounts: Sequence[RankMount], place: Place, choices: Sequence[Sequence[str]]
) -> Iterator[Binding]:
    """The ways to choose one volume for each mount, none of them twice: the first ones, or one at least."""
    paths = [mount.path for mount in mounts]
    combinations = itertools.islice(_distinct(choices), MOST_TRIED)
    names = [own for own in combinations if own][:MOST_OPTIONS] or [_one_each(choices)]
    yield from (Binding(place, dict(zip(paths, own, strict=True))) for own in names if len(own) == len(paths))


def _distinct(choices: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """The ways to take one of each, none of them twice; an empty one for each step back."""
    taken: list[str] = []
    iterators = [iter(own) for own in choices[:1]]  # not by recursion: a task may have a thousand mounts
    while iterators:
        name = next((name for name in iterators[-1] if name not in taken), None)
        if name is None:
            iterators.pop()
            del taken[-1:]
            yield ()
        elif len(iterators) == len(choices):
            yield (*taken, name)
        else:
            taken.append(name)
            iterators.append(iter(choices[len(iterators)]))


def _one_each(choices: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One of each, none of them twice, as far as there are such."""
    return tuple(
        name for _, binding in sorted(_matched(choices).given.items()) for name in binding.volumes.values()
    )


def _matched(choices: Sequence[Sequence[str]]) -> Matching:
    """Each number of these gets one of its names, if there are enough."""
    place: Place = ("", "", "")
    options = {i: [Binding(place, {"": name}) for name in own] for i, own in enumerate(choices)}
    matching = Matching(options, lambda _: len(choices))
    matching.match()
    return matching


class Matching:
    """Gives each rank one of its bindings, so that no volume is given twice and no place is overfull."""

    def __init__(
        self,
        options: Mapping[int, Sequence[Binding]],
        room: Callable[[Place], int],
        site: Callable[[Place], object] = lambda place: place,
    ) -> None:
        """`room` says how many ranks a place holds; places of one `site` share their room."""
        self.options = options
        self.room, self.site = room, site
        self.given: dict[int, Binding] = {}
        self.steps = self.visits = 0
        self._places = {rank: frozenset(b.place for b in of_rank) for rank, of_rank in options.items()}
        self._of_volume: dict[str, int] = {}
        self._of_site: dict[object, set[int]] = {}
        self._reached = self._flow()

    def match(self) -> int | None:
        """Match every rank that can be; the first of the others, or None."""
        order = sorted(self.options, key=lambda r: (len(self.options[r]), r))
        rooms: dict[object, int] = {}
        for place in frozenset[Place]().union(*self._places.values()):
            rooms[self.site(place)] = max(self.room(place), rooms.get(self.site(place), 0))
        if sum(rooms.values()) < len(order):
            self.steps = MOST_STEPS  # there is no room for all of them, however they are moved
        return min((rank for rank in order if not self._seated(rank)), default=None)

    def _flow(self) -> dict[str, list[Place]] | None:
        """Volume → the places where it can be had, if each rank gets one volume and that is so for all ranks.

        Then ranks, volumes and places are a flow, of which the most there is can be found.
        """
        out: dict[str, list[Place]] = {}
        for of_rank in self.options.values():
            own: dict[str, list[Place]] = {}
            for binding in of_rank:
                if len(binding.volumes) != 1:
                    return None
                own.setdefault(next(iter(binding.volumes.values())), []).append(binding.place)
            for volume, places in own.items():
                if set(out.setdefault(volume, places)) != set(places):
                    return None
        return out

    def _seated(self, rank: int) -> bool:
        """Give `rank` a binding; whether there is a way."""
        if self._reached is None:
            return self._seat(rank, {rank})
        free = next((b for b in self.options[rank] if not self._in_the_way(b)), None)
        if free is None:
            return self._augment(rank)
        self._give(rank, free)
        return True

    def _augment(self, rank: int) -> bool:
        """Find the shortest way to move others, and go it (Edmonds and Karp 1972).

        A step leads from a rank to a volume that it may have; from one that is free to a place; from one that
        is held to its holder, which takes another; from a place that is full to a volume there, which goes to
        another place or is given up.
        """
        if self.steps >= MOST_STEPS or self.visits > MOST_VISITS:
            return False
        start: Node = ("rank", rank)
        came: dict[Node, Node | None] = {start: None}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for there in self._steps(here):
                if there in came:
                    continue
                came[there] = here
                if there[0] == "place" and self._has_room(there[1]):
                    self._go(there, came)
                    return True
                queue.append(there)
        self.visits += len(came)
        return False

    def _steps(self, here: Node) -> Iterator[Node]:
        """Where the way may lead from here."""
        assert self._reached is not None
        kind, what = here
        if kind == "rank":
            for binding in self.options[what]:
                volume = next(iter(binding.volumes.values()))
                yield ("held" if volume in self._of_volume else "free", volume)
        elif kind == "held":
            yield ("rank", self._of_volume[what])
        elif kind == "place":
            for other in sorted(self._of_site.get(self.site(what), ())):
                yield ("moved", next(iter(self.given[other].volumes.values())))
        else:
            yield from (("place", place) for place in self._reached[what])
            if kind == "moved":
                yield ("held", what)

    def _go(self, last: Node, came: Mapping[Node, Node | None]) -> None:
        """Change what is given along a way."""
        new = self._given_along(_way(last, came))
        for rank, (volume, where) in new.items():
            old = self.given.get(rank)
            if old and not old.gives(volume, where):
                self._withdraw(rank)
        for rank in new.keys() - self.given.keys():
            self._give(rank, next(b for b in self.options[rank] if b.gives(*new[rank])))

    def _given_along(self, way: Sequence[Node]) -> dict[int, tuple[str, Place]]:
        """Rank → volume and place, after a way was gone."""
        holder = dict(self._of_volume)
        place = {volume: self.given[rank].place for volume, rank in holder.items()}
        for (kind, what), (then, other) in itertools.pairwise(way):
            if kind == "rank":
                holder[other] = what
            elif then == "place":
                place[what] = other
            elif kind == "moved":
                del holder[what], place[what]
        return {rank: (volume, place[volume]) for volume, rank in holder.items()}

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
                    if self._seat(other, moving | {other}):
                        return True
                    self._withdraw(rank)
                self._give(other, old)
        return False

    def _movable(self, binding: Binding, moving: set[int]) -> list[int]:
        """Ranks whose leaving might make room for the binding."""
        holders = {self._of_volume[v] for v in binding.volumes.values() if v in self._of_volume}
        if len(holders) > 1 or len(moving) > DEEPEST:
            return []
        if not holders:
            here = self._of_site.get(self.site(binding.place), set())
            holders = {r for r in here if len(self._places[r]) > 1}
        return sorted(holders - moving)

    def _has_room(self, place: Place) -> bool:
        return len(self._of_site.get(self.site(place), ())) < self.room(place)

    def _in_the_way(self, binding: Binding) -> bool:
        return not self._has_room(binding.place) or any(
            v in self._of_volume for v in binding.volumes.values()
        )

    def _give(self, rank: int, binding: Binding) -> None:
        self.given[rank] = binding
        self._of_site.setdefault(self.site(binding.place), set()).add(rank)
        self._of_volume.update(dict.fromkeys(binding.volumes.values(), rank))

    def _withdraw(self, rank: int) -> Binding:
        binding = self.given.pop(rank)
        self._of_site[self.site(binding.place)].discard(rank)
        for volume in binding.volumes.values():
            del self._of_volume[volume]
        return binding


def _way(last: Node, came: Mapping[Node, Node | None]) -> list[Node]:
    """The steps that led to the last one."""
    way: list[Node] = []
    at: Node | None = last
    while at is not None:
        way.append(at)
        at = came[at]
    return way[::-1]


def hold(assignment: Assignment, job: Job, rank: int, volumes: Mapping[str, str]) -> None:
    """Let a rank have volumes, by the paths where it mounts them."""
    assignment.volumes[job.index, rank] = volumes
    name = rank_name(str(job.task.name), job.ask.number(rank))
    assignment.volume_holders.update(dict.fromkeys(volumes.values(), f"rank/{name}"))
