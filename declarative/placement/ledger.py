"""The working copy of a search: idle blocks by kind, what may still be launched, who sits where.

Nodes of a kind that have as many idle blocks are alike, so they are kept in piles and counted; a name is
taken from a pile only when a rank is seated, the lowest first. Room only ever shrinks.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from declarative.placement.board import Board, Option, quota_of

Home = tuple[str, str]
"""Where the nodes of a cluster fleet lie: backend and region."""


@dataclass(frozen=True, slots=True)
class Pick:
    """`count` nodes out of one pile, `per` ranks on each (the last may get fewer), `need` blocks a rank.

    `only` names the node where it has to be a certain one.
    """

    kind: int
    free: int
    count: int
    per: int
    need: int
    only: int | None = None


@dataclass(frozen=True, slots=True)
class Buy:
    """`count` nodes to launch, `per` ranks on each at most, `need` blocks a rank; `name` if it is pinned."""

    option: Option
    count: int
    per: int
    need: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One node to launch. `node` is its number, above those of all nodes that are there."""

    node: int
    option: Option
    name: str | None


class Moved(NamedTuple):
    """A node that had `free` idle blocks."""

    node: int
    free: int


class Added(NamedTuple):
    """A node that was launched, and what was left before."""

    room: int | None
    left: int | None
    owed: int
    bound: frozenset[Home] | None


class Named(NamedTuple):
    """A launch that had another name."""

    place: int
    launch: Launch


Step = Moved | Added | Named


class Ledger:
    """What changes while a search runs. `copy` is cheap enough to try things on."""

    __slots__ = (
        "base",
        "board",
        "bound",
        "claims",
        "free",
        "kind_of",
        "launches",
        "left",
        "log",
        "open",
        "owed",
        "piles",
        "room",
        "roomy",
        "seats",
        "volumes",
    )

    board: Board
    piles: dict[int, dict[int, list[int]]]
    free: list[int]
    kind_of: list[int]
    open: list[bool]
    """Whether a node that is there takes work."""
    room: dict[str, int | None]
    owed: dict[str, int]
    base: dict[str, float]
    left: dict[tuple[str, str, str, bool], int | None]
    bound: dict[str, frozenset[Home]]
    claims: dict[str, str]
    launches: list[Launch]
    seats: dict[int, list[int]]
    volumes: dict[tuple[int, int], Mapping[str, str]]
    roomy: bool
    """Launch the largest nodes rather than the cheapest."""
    log: list[Step] | None
    """What `undo` takes back, while something is tried."""

    @classmethod
    def start(cls, board: Board, *, ideal: bool = False) -> Ledger:
        """Before anything is placed; `ideal`: if all were idle and ready, and the offers had no limits."""
        new = cls()
        new.board = board
        new.kind_of = list(board.kind_of)
        new.free = [n.total if ideal else n.total - len(n.held) for n in board.nodes]
        new.open = [n.fleet in board.fleets for n in board.nodes] if ideal else board.ready
        new.piles = {}
        for i in range(len(board.nodes) - 1, -1, -1):  # ids are stored negated: the last is the first by name
            if new.open[i] and new.free[i]:
                new.piles.setdefault(board.kind_of[i], {}).setdefault(new.free[i], []).append(-i)
        new.room, new.owed = {}, {}
        for name, rule in board.fleets.items():
            most = rule.fleet.nodes.max if rule.fleet.nodes else 0
            new.room[name] = None if most is None else max(0, most - rule.existing)
            new.owed[name] = rule.baseline
        used: dict[tuple[str, str, str, bool], int] = {}
        homes: dict[str, set[Home]] = {}
        for node in board.nodes:
            used[quota_of(node)] = used.get(quota_of(node), 0) + 1
            if not node.closed:
                homes.setdefault(node.fleet, set()).add((node.backend, node.region))
        new.left = {
            o.quota: None if ideal or o.offer.limit is None else max(0, o.offer.limit - used.get(o.quota, 0))
            for o in board.options
        }
        new.bound = {name: frozenset(homes.get(name, ())) for name in board.fleets if board.clustered(name)}
        new.base = {}
        for option in reversed(board.options):  # the cheapest comes first
            new.base[option.fleet] = board.kinds[option.kind].cost
        new.claims = {n: at.holder for n, at in board.volumes.items() if at.holder and not ideal}
        new.launches, new.seats, new.volumes = [], {}, {}
        new.log, new.roomy = None, False
        return new

    def copy(self) -> Ledger:
        """Another one that is the same."""
        new = Ledger()
        new.board, new.base, new.open = self.board, self.base, self.open
        new.piles = {k: {f: list(ids) for f, ids in pile.items()} for k, pile in self.piles.items()}
        new.free, new.kind_of = list(self.free), list(self.kind_of)
        new.room, new.owed, new.left = dict(self.room), dict(self.owed), dict(self.left)
        new.bound, new.claims = dict(self.bound), dict(self.claims)
        new.launches, new.seats, new.volumes = list(self.launches), dict(self.seats), dict(self.volumes)
        new.log, new.roomy = None, False
        return new

    # What is there

    def may_launch(self, option: Option) -> bool:
        """Whether the fleet's maximum, the offer's limit and the fleet's home leave room for one more."""
        if self.room[option.fleet] == 0 or self.left[option.quota] == 0:
            return False
        return not self.astray(option)

    def astray(self, option: Option) -> Home | None:
        """Where a cluster fleet's nodes lie, if the option lies elsewhere: they share one network."""
        homes = self.bound.get(option.fleet)
        own = (option.offer.backend, option.offer.region)
        return next((home for home in sorted(homes) if home != own), None) if homes else None

    def most(self, option: Option) -> int:
        """How many more of it can be launched."""
        limits = [n for n in (self.room[option.fleet], self.left[option.quota]) if n is not None]
        return max(0, min(limits, default=1_000_000_000))

    # Changing it

    def take(self, pick: Pick, ranks: int) -> list[int]:
        """Seat `ranks` ranks on the nodes of a pick: the node of each."""
        pile = self.piles[pick.kind]
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
            left = pick.free - here * pick.need
            self.free[-node] = left
            if self.log is not None:
                self.log.append(Moved(-node, pick.free))
            by_left.setdefault(left, []).append(node)
        for left, nodes in by_left.items():
            self._put(pick.kind, left, nodes)
        assert len(out) == ranks, "obtained is not requested"
        return out

    def launch(self, buy: Buy, ranks: int) -> list[int]:
        """Launch the nodes of a buy and seat `ranks` ranks on them: the node of each."""
        option, total = buy.option, self.board.kinds[buy.option.kind].total
        out: list[int] = []
        by_left: dict[int, list[int]] = {}
        for _ in range(buy.count):
            node = self.add(option, buy.name)
            here = min(buy.per, ranks - len(out))
            out += [node] * here
            self.free[node] = total - here * buy.need
            by_left.setdefault(self.free[node], []).append(-node)
        for left, nodes in by_left.items():
            self._put(option.kind, left, nodes)
        assert len(out) == ranks, "obtained is not requested"
        return out

    def add(self, option: Option, name: str | None = None) -> int:
        """Launch one node, for now in no pile; its number."""
        node = len(self.free)
        self.free.append(0)  # in no pile yet
        self.kind_of.append(option.kind)
        self.launches.append(Launch(node, option, name))
        room, left = self.room[option.fleet], self.left[option.quota]
        if self.log is not None:
            self.log.append(Added(room, left, self.owed[option.fleet], self.bound.get(option.fleet)))
        self.room[option.fleet] = None if room is None else room - 1
        self.left[option.quota] = None if left is None else left - 1
        self.owed[option.fleet] = max(0, self.owed[option.fleet] - 1)
        if option.fleet in self.bound:
            home = (option.offer.backend, option.offer.region)
            self.bound[option.fleet] |= {home}
        return node

    def launch_idle(self, option: Option, count: int) -> None:
        """Launch nodes on which nobody sits yet."""
        nodes = [self.add(option) for _ in range(count)]
        total = self.board.kinds[option.kind].total
        for node in nodes:
            self.free[node] = total
        self._put(option.kind, total, [-node for node in nodes])

    def drop(self, node: int) -> None:
        """Launch a node after all not; nobody sits on it."""
        self._pull(node)
        self.free[node] = 0
        index = next(i for i, launch in enumerate(self.launches) if launch.node == node)
        option = self.launches.pop(index).option
        self._unbuy(option)
        self.room[option.fleet] = _more(self.room[option.fleet])
        mine = sum(1 for launch in self.launches if launch.option.fleet == option.fleet)
        self.owed[option.fleet] = max(0, self.board.fleets[option.fleet].baseline - mine)

    def swap(self, node: int, option: Option, free: int) -> None:
        """Launch another option under the same number, on which `free` blocks stay idle."""
        self._pull(node)
        index = next(i for i, launch in enumerate(self.launches) if launch.node == node)
        self._unbuy(self.launches[index].option)
        left = self.left[option.quota]
        self.left[option.quota] = None if left is None else left - 1
        self.launches[index] = replace(self.launches[index], option=option)
        self.kind_of[node], self.free[node] = option.kind, free
        self._put(option.kind, free, [-node])

    def fill(self, node: int, blocks: int) -> None:
        """Take blocks of one node, or give them back (below 0)."""
        self._pull(node)
        self.free[node] -= blocks
        self._put(self.kind_of[node], self.free[node], [-node])

    def _unbuy(self, option: Option) -> None:
        self.left[option.quota] = _more(self.left[option.quota])

    def name(self, index: int, name: str) -> None:
        """Give a launch the name that a task pins."""
        old = self.launches[index]
        self.launches[index] = replace(old, name=name)
        if self.log is not None:
            self.log.append(Named(index, old))

    def undo(self) -> None:
        """Take back all that was done since `log` was begun, the last first."""
        log, self.log = self.log or [], None
        for step in reversed(log):
            if isinstance(step, Moved):
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
                self.room[option.fleet], self.left[option.quota] = step.room, step.left
                self.owed[option.fleet] = step.owed
                if step.bound is not None:
                    self.bound[option.fleet] = step.bound

    def _pull(self, node: int) -> None:
        """Take a node out of its pile."""
        free = self.free[node]
        if free:
            pile = self.piles[self.kind_of[node]]
            ids = pile[free]
            del ids[bisect.bisect_left(ids, -node)]
            if not ids:
                del pile[free]

    def _put(self, kind: int, free: int, nodes: Iterable[int]) -> None:
        if not free:
            return
        pile = self.piles.setdefault(kind, {})
        ids = pile.get(free)
        if ids is None:
            pile[free] = sorted(nodes)
        else:
            ids.extend(nodes)
            ids.sort()  # two runs that are sorted already: linear


def _more(limit: int | None) -> int | None:
    return None if limit is None else limit + 1
