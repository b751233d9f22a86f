"""The working copy of a search: idle blocks by kind, what may still be launched, who sits where.

Nodes of a kind that have as many idle blocks are alike, so they are kept in piles and counted; a name is
taken from a pile only when a rank is seated, the lowest first. Room only ever shrinks.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from declarative.model.record import struct
from declarative.placement.catalog import Catalog, Home, Job, LaunchOption
from declarative.placement.problem import FleetRule, Quota, quota_of

UNLIMITED = 1_000_000_000
SEAT_WORK = 0.025
"""The work of seating a task in one pass, in the unit of `SolverCache`."""


@struct(slots=True)
class UseNodes:
    """`count` nodes out of one pile, `per` ranks on each (the last may get fewer), `need` blocks a rank.

    `only` names the node where it has to be a certain one.
    """

    kind: int
    free: int
    count: int
    per: int
    need: int
    only: int | None = None


@struct(slots=True)
class LaunchNodes:
    """`count` nodes to launch, `per` ranks on each at most, `need` blocks a rank; `name` if it is pinned."""

    option: LaunchOption
    count: int
    per: int
    need: int
    name: str | None = None


class NewNode(NamedTuple):
    """One node to launch. `node` is its number, above those of all nodes that are there."""

    node: int
    option: LaunchOption
    name: str | None


class MovedRank(NamedTuple):
    """A node that had `free` idle blocks."""

    node: int
    free: int


class Added(NamedTuple):
    """A node that was launched, and what was left before."""

    fleet_room: int | None
    quota_left: int | None
    baseline_left: int
    cluster_homes: frozenset[Home] | None


class Named(NamedTuple):
    """A launch that had another name."""

    place: int
    launch: NewNode


Step = MovedRank | Added | Named


@struct(slots=True, eq=False, repr=False, kw_only=True)
class Assignment:
    """What changes while a search runs. `copy` is cheap enough to try things on."""

    catalog: Catalog
    idle_by_size: dict[int, dict[int, list[int]]]
    free: list[int]
    kind_of: list[int]
    open: list[bool]
    """Whether a node that is there takes work."""
    fleet_room: dict[str, int | None]
    baseline_left: dict[str, int]
    base: dict[str, float]
    quota_left: dict[Quota, int | None]
    cluster_homes: dict[str, frozenset[Home]]
    """Cluster fleet → where its nodes lie."""
    allowed_homes: Mapping[str, frozenset[Home]] = field(default_factory=dict)
    """Where a cluster fleet may begin; one that is not named may begin anywhere."""
    kept: Mapping[Quota, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """What of an offer's limit is kept for the nodes that a fleet launches for itself, and how many of those
    cannot be had at all.
    """
    volume_holders: dict[str, str]
    """Volume → the rank that holds it."""
    launches: list[NewNode] = field(default_factory=list)
    new_kinds: dict[str, dict[int, None]] = field(default_factory=dict)
    """Fleet → kinds of nodes that it launches and of which none was there; some may be gone again."""
    seats: dict[int, list[int]] = field(default_factory=dict)
    volumes: dict[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)
    roomy: bool = False
    """Launch the largest nodes rather than the cheapest."""
    riding: bool = True
    """Whether tasks that launch nothing may sit on what is launched for others."""
    log: list[Step] | None = None
    """What `undo` takes back, while something is tried."""

    @classmethod
    def start(cls, catalog: Catalog, *, ideal: bool = False) -> Assignment:
        """Before anything is placed; `ideal`: if all were idle and ready, and the offers had no limits.
        A host is one machine all the same.
        """
        free = [node.total if ideal else node.total - len(node.held) for node in catalog.nodes]
        works = [n.fleet in catalog.fleets for n in catalog.nodes] if ideal else catalog.ready
        return cls(
            catalog=catalog,
            idle_by_size=_piles(catalog, free, works),
            free=free,
            kind_of=list(catalog.kind_of),
            open=works,
            fleet_room={name: _room(rule) for name, rule in catalog.fleets.items()},
            baseline_left={name: rule.baseline for name, rule in catalog.fleets.items()},
            # The cheapest option comes first.
            base={o.fleet: catalog.kinds[o.kind].cost for o in reversed(catalog.options)},
            quota_left=_left(catalog, ideal=ideal),
            cluster_homes=_homes(catalog),
            volume_holders={} if ideal else _volume_holders(catalog),
        )

    def copy(self) -> Assignment:
        """Another one that is the same."""
        return Assignment(
            catalog=self.catalog,
            idle_by_size={
                k: {f: list(ids) for f, ids in pile.items()} for k, pile in self.idle_by_size.items()
            },
            free=list(self.free),
            kind_of=list(self.kind_of),
            open=self.open,
            fleet_room=dict(self.fleet_room),
            baseline_left=dict(self.baseline_left),
            base=self.base,
            quota_left=dict(self.quota_left),
            cluster_homes=dict(self.cluster_homes),
            allowed_homes=self.allowed_homes,
            kept=self.kept,
            volume_holders=dict(self.volume_holders),
            launches=list(self.launches),
            new_kinds={fleet: dict(kinds) for fleet, kinds in self.new_kinds.items()},
            seats=dict(self.seats),
            volumes=dict(self.volumes),
            riding=self.riding,
        )

    def with_idle(self, idle: Mapping[int, int]) -> Assignment:
        """Another one, in which each node has so many idle blocks: 0 if it is not named."""
        other = self.copy()
        other.free[:] = [max(0, idle.get(node, 0)) for node in range(len(self.free))]
        other.idle_by_size = _piles(self.catalog, other.free, self.open)
        return other

    # What is there

    def may_launch(self, option: LaunchOption) -> bool:
        """Whether the fleet's maximum, the offer's limit and the fleet's home leave room for one more."""
        return self.most(option) > 0 and not self.astray(option)

    def astray(self, option: LaunchOption) -> Home | None:
        """Where a cluster fleet's nodes lie, if the option lies elsewhere: they share one network."""
        homes = self.cluster_homes.get(option.fleet)
        if homes is None:
            return None
        if homes:
            return next((home for home in sorted(homes) if home != option.home), None)
        begin = self.allowed_homes.get(option.fleet)
        return min(begin) if begin and option.home not in begin else None

    def most(self, option: LaunchOption) -> int:
        """How many more of it can be launched."""
        room, quota = self.fleet_room[option.fleet], self.remain(option)
        if room is None:
            return UNLIMITED if quota is None else quota
        return room if quota is None else min(room, quota)

    def remain(self, option: LaunchOption) -> int | None:
        """How many more its limit leaves to its fleet: what other fleets want for themselves is theirs."""
        quota = self.quota_left[option.quota]
        if quota is None or not (kept := self.kept.get(option.quota)):
            return quota
        for fleet, (count, lacking) in kept.items():
            homes = self.cluster_homes.get(fleet)
            if fleet != option.fleet and (not homes or option.home in homes):
                quota -= min(count, max(0, self.baseline_left[fleet] - lacking))
        return max(0, quota)

    # Changing it

    def take(self, pick: UseNodes, ranks: int) -> list[int]:
        """Seat `ranks` ranks on the nodes of a pick: the node of each."""
        pile = self.idle_by_size[pick.kind]
        ids = pile[pick.free]
        if pick.only is not None:
            del ids[bisect.bisect_left(ids, -pick.only)]
            chosen = [-pick.only]
        else:
            chosen = ids[-pick.count :]
            chosen.reverse()
            del ids[-pick.count :]
        if not ids:
            del pile[pick.free]
        out: list[int] = []
        by_left: dict[int, list[int]] = {}
        for node in chosen:
            here = min(pick.per, ranks - len(out))
            out += [-node] * here
            idle = pick.free - here * pick.need
            self.free[-node] = idle
            if self.log is not None:
                self.log.append(MovedRank(-node, pick.free))
            by_left.setdefault(idle, []).append(node)
        for idle, nodes in by_left.items():
            self._put(pick.kind, idle, nodes)
        assert len(out) == ranks, "obtained is not requested"
        return out

    def launch(self, buy: LaunchNodes, ranks: int) -> list[int]:
        """Launch the nodes of a buy and seat `ranks` ranks on them: the node of each."""
        option, total = buy.option, self.catalog.kinds[buy.option.kind].total
        out: list[int] = []
        by_left: dict[int, list[int]] = {}
        for _ in range(buy.count):
            node = self.add(option, buy.name)
            here = min(buy.per, ranks - len(out))
            out += [node] * here
            self.free[node] = total - here * buy.need
            by_left.setdefault(self.free[node], []).append(-node)
        for idle, nodes in by_left.items():
            self._put(option.kind, idle, nodes)
        assert len(out) == ranks, "obtained is not requested"
        return out

    def add(self, option: LaunchOption, name: str | None = None) -> int:
        """Launch one node, for now in no pile; its number."""
        node = len(self.free)
        self.free.append(0)  # in no pile yet
        self.kind_of.append(option.kind)
        if not self.catalog.is_present[option.kind]:
            self.new_kinds.setdefault(option.fleet, {})[option.kind] = None
        self.launches.append(NewNode(node, option, name))
        room, quota = self.fleet_room[option.fleet], self.quota_left[option.quota]
        if self.log is not None:
            self.log.append(
                Added(room, quota, self.baseline_left[option.fleet], self.cluster_homes.get(option.fleet))
            )
        self.fleet_room[option.fleet] = None if room is None else room - 1
        self.quota_left[option.quota] = None if quota is None else quota - 1
        self.baseline_left[option.fleet] = max(0, self.baseline_left[option.fleet] - 1)
        if option.fleet in self.cluster_homes:
            self.cluster_homes[option.fleet] |= {option.home}
        return node

    def launch_idle(self, option: LaunchOption, count: int, name: str | None = None) -> None:
        """Launch nodes on which nobody sits yet."""
        total = self.catalog.kinds[option.kind].total
        nodes = [self.add(option, name) for _ in range(count)]
        for node in nodes:
            self.free[node] = total
        self._put(option.kind, total, [-node for node in nodes])

    def name_of(self, node: int) -> str | None:
        """The name under which a node is launched, if a task names it."""
        return self.launches[self._launch_of(node)].name

    def cancel_launch(self, node: int) -> None:
        """Launch a node after all not; nobody sits on it."""
        self._pull(node)
        self.free[node] = 0
        option = self.launches.pop(self._launch_of(node)).option
        self.quota_left[option.quota] = _more(self.quota_left[option.quota])
        self.fleet_room[option.fleet] = _more(self.fleet_room[option.fleet])
        baseline = self.catalog.fleets[option.fleet].baseline
        if baseline:
            mine = sum(1 for launch in self.launches if launch.option.fleet == option.fleet)
            self.baseline_left[option.fleet] = max(0, baseline - mine)

    def replace_launch(self, node: int, option: LaunchOption, free: int) -> None:
        """Launch another option under the same number, on which `free` blocks stay idle."""
        self._pull(node)
        index = self._launch_of(node)
        old = self.launches[index].option
        self.quota_left[old.quota] = _more(self.quota_left[old.quota])
        if old.fleet != option.fleet:
            self.fleet_room[old.fleet] = _more(self.fleet_room[old.fleet])
            room = self.fleet_room[option.fleet]
            self.fleet_room[option.fleet] = None if room is None else room - 1
        if option.fleet in self.cluster_homes:
            self.cluster_homes[option.fleet] |= {option.home}
        quota = self.quota_left[option.quota]
        self.quota_left[option.quota] = None if quota is None else quota - 1
        self.launches[index] = self.launches[index]._replace(option=option)
        self.kind_of[node], self.free[node] = option.kind, free
        if not self.catalog.is_present[option.kind]:
            self.new_kinds.setdefault(option.fleet, {})[option.kind] = None
        self._put(option.kind, free, [-node])

    def _launch_of(self, node: int) -> int:
        """Where a launch stands in the list, which is in the order of the nodes' numbers."""
        return bisect.bisect_left(self.launches, node, key=lambda launch: launch.node)

    def fill(self, node: int, blocks: int) -> None:
        """Take blocks of one node, or give them back (below 0)."""
        self._pull(node)
        self.free[node] -= blocks
        self._put(self.kind_of[node], self.free[node], [-node])

    def unseat(self, job: Job) -> None:
        """Take the places of a task back, and its volumes."""
        for node in self.seats.pop(job.index):
            self.fill(node, -job.request.fit[self.kind_of[node]])
        for rank in range(job.ranks):
            for volume in self.volumes.pop((job.index, rank), {}).values():
                self.volume_holders.pop(volume, None)

    def name(self, index: int, name: str) -> None:
        """Give a launch the name that a task pins."""
        old = self.launches[index]
        self.launches[index] = old._replace(name=name)
        if self.log is not None:
            self.log.append(Named(index, old))

    def undo(self) -> None:
        """Take back all that was done since `log` was begun, the last first."""
        log, self.log = self.log or [], None
        for step in reversed(log):
            if isinstance(step, MovedRank):
                self._pull(step.node)
                self.free[step.node] = step.free
                self._put(self.kind_of[step.node], step.free, [-step.node])
            elif isinstance(step, Named):
                self.launches[step.place] = step.launch
            else:
                self._pull(len(self.free) - 1)
                self.free.pop()
                self.kind_of.pop()
                option = self.launches.pop().option
                self.fleet_room[option.fleet], self.quota_left[option.quota] = (
                    step.fleet_room,
                    step.quota_left,
                )
                self.baseline_left[option.fleet] = step.baseline_left
                if step.cluster_homes is not None:
                    self.cluster_homes[option.fleet] = step.cluster_homes

    def _pull(self, node: int) -> None:
        """Take a node out of its pile."""
        free = self.free[node]
        if free:
            pile = self.idle_by_size[self.kind_of[node]]
            ids = pile[free]
            del ids[bisect.bisect_left(ids, -node)]
            if not ids:
                del pile[free]

    def _put(self, kind: int, free: int, nodes: Sequence[int]) -> None:
        if not free or not nodes:
            return
        pile = self.idle_by_size.setdefault(kind, {})
        ids = pile.get(free)
        if ids is None:
            pile[free] = sorted(nodes)
        elif len(nodes) == 1:
            bisect.insort(ids, nodes[0])
        else:
            ids.extend(nodes)
            ids.sort()  # two runs that are sorted already: linear


def _more(limit: int | None) -> int | None:
    return None if limit is None else limit + 1


def _piles(catalog: Catalog, free: Sequence[int], works: Sequence[bool]) -> dict[int, dict[int, list[int]]]:
    """Kind → idle blocks → the nodes that have so many. Ids are negated: the last is the first by name."""
    idle_by_size: dict[int, dict[int, list[int]]] = {}
    for i in range(len(catalog.nodes) - 1, -1, -1):
        if works[i] and free[i]:
            idle_by_size.setdefault(catalog.kind_of[i], {}).setdefault(free[i], []).append(-i)
    return idle_by_size


def _volume_holders(catalog: Catalog) -> dict[str, str]:
    """Volume → who holds it."""
    return {name: at.holder for name, at in catalog.volumes.items() if at.holder}


def _room(rule: FleetRule) -> int | None:
    """How many more nodes a fleet may have; None for any number."""
    most = rule.fleet.nodes.max if rule.fleet.nodes else rule.existing + len(rule.offers)
    return None if most is None else max(0, most - rule.existing)


def _homes(catalog: Catalog) -> dict[str, frozenset[Home]]:
    """Cluster fleet → where its nodes lie; one that goes does not count."""
    homes: dict[str, set[Home]] = {name: set() for name in catalog.fleets if catalog.clustered(name)}
    for node in catalog.nodes:
        if node.fleet in homes and not node.closed:
            homes[node.fleet].add((node.backend, node.region))
    return {name: frozenset(own) for name, own in homes.items()}


def _left(catalog: Catalog, *, ideal: bool) -> dict[Quota, int | None]:
    """How many nodes of each quota may still be launched; None for any number."""
    used = Counter(quota_of(node) for node in catalog.nodes)
    quota_left: dict[Quota, int | None] = dict.fromkeys((o.quota for o in catalog.options), None)
    for option in catalog.options:
        if option.offer.limit is not None and (option.offer.host or not ideal):
            most, now = max(0, option.offer.limit - used[option.quota]), quota_left[option.quota]
            # Two entries of one catalog may set two limits: the lower one holds.
            quota_left[option.quota] = most if now is None else min(now, most)
    return quota_left
