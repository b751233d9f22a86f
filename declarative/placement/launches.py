"""Nodes that are launched: those that fleets want for themselves, and those that tasks do not need after all.

A fleet that cannot be brought to its size is an error of the whole plan, so what it needs comes before tasks.
After a search, ranks are moved off nodes that can be spared, and each node becomes the cheapest that holds
what sits there. Only what is not there yet is moved, and only within one fleet and place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from declarative.model.resource import size_order
from declarative.placement.board import Home, Option
from declarative.placement.cover import DEAR
from declarative.placement.ledger import UNLIMITED, Ledger
from declarative.placement.requests import Fit, Job
from declarative.placement.types import Quota

Bid = tuple[tuple[int, float], list[tuple[Option, int]]]
"""How good it is (what it comes to, negated, and its price), and how many to launch of which options."""


def keep_baselines(ledger: Ledger) -> None:
    """Note for each fleet what it needs of limited offers, and where it may begin if it is a cluster.

    Those that have the least to choose from go first.
    """
    slack = {name: _supply(ledger, name) - owed for name, owed in ledger.owed.items() if owed}
    if not slack:
        return
    left = dict(ledger.left)
    kept: dict[Quota, dict[str, tuple[int, int]]] = {}
    begin: dict[str, frozenset[Home]] = {}
    for name in sorted(slack, key=lambda name: (slack[name], name)):
        bids = _bids(ledger, name, lambda option: left[option.quota])
        if not bids:
            continue
        (most, _), chosen = min(bids.values(), key=lambda bid: bid[0])
        if good := _good_homes(bids, most):
            begin[name] = good
        for option, count in chosen:
            now = left[option.quota]
            if now is not None:
                left[option.quota] = now - count
                own = kept.setdefault(option.quota, {})
                own[name] = (own.get(name, (0, 0))[0] + count, ledger.owed[name] + most)
    ledger.begin, ledger.kept = begin, kept


def _good_homes(bids: Mapping[Home | None, Bid], most: int) -> frozenset[Home]:
    """Where a cluster fleet can launch the most; nowhere if it can launch as many wherever it begins."""
    good = frozenset(home for home, bid in bids.items() if home and bid[0][0] == most)
    return good if len(good) < len(bids) else frozenset()


def _supply(ledger: Ledger, fleet: str) -> int:
    """How many nodes a fleet could launch if it were alone."""
    limits = {o.quota: ledger.left[o.quota] for o in ledger.board.of_fleet(fleet)}
    return min(UNLIMITED, sum(UNLIMITED if left is None else left for left in limits.values()))


def _bids(ledger: Ledger, fleet: str, left: Callable[[Option], int | None]) -> dict[Home | None, Bid]:
    """The cheapest launches of what a fleet wants for itself: by home where it has to choose one.

    `left` is how many of an option's quota there are.
    """
    options = [o for o in ledger.board.of_fleet(fleet) if not ledger.astray(o)]
    free = ledger.board.clustered(fleet) and not ledger.bound[fleet]
    homes: dict[Home | None, list[Option]] = {} if free else {None: options}
    for option in options if free else ():
        homes.setdefault(option.home, []).append(option)
    return {home: _bid(ledger, ledger.owed[fleet], here, left) for home, here in homes.items()}


def _bid(ledger: Ledger, wanted: int, options: list[Option], left: Callable[[Option], int | None]) -> Bid:
    """The launches of so many nodes, or of as many as there are: the first options first."""
    got, cost = 0, 0.0
    chosen: list[tuple[Option, int]] = []
    used: dict[Quota, int] = {}
    for option in options:
        most, count = left(option), wanted - got
        if count <= 0:
            break
        if most is not None:
            count = min(count, most - used.get(option.quota, 0))
        if count > 0:
            chosen.append((option, count))
            used[option.quota] = used.get(option.quota, 0) + count
            got += count
            cost += count * min(ledger.board.kinds[option.kind].cost, DEAR)
    return ((-got, cost), chosen)


def launch_baselines(ledger: Ledger) -> dict[str, int]:
    """Launch, at the lowest price, what tasks have not launched; by fleet, how many could not be had."""
    short: dict[str, int] = {}
    for fleet, owed in ledger.owed.items():
        if not owed:
            continue
        bids = _bids(ledger, fleet, ledger.remain)
        _, chosen = min(bids.values(), key=lambda bid: bid[0], default=(None, []))
        for option, count in chosen:
            ledger.launch_idle(option, min(count, ledger.most(option)))
        if ledger.owed[fleet]:
            short[fleet] = ledger.owed[fleet]
    return short


class FreedSeat(NamedTuple):
    """One rank on a node that is launched."""

    job: int
    rank: int


class Targets:
    """Nodes that are launched and partly used, by kind and idle blocks: those that are alike are one pile."""

    def __init__(self) -> None:
        self.piles: dict[tuple[int, int], list[int]] = {}

    def add(self, kind: int, free: int, node: int) -> None:
        """One more; one that is full is no target."""
        if free:
            bisect.insort(self.piles.setdefault((kind, free), []), node)

    def remove(self, kind: int, free: int, node: int) -> None:
        """One less."""
        if free:
            pile = self.piles[kind, free]
            del pile[bisect.bisect_left(pile, node)]
            if not pile:
                del self.piles[kind, free]

    def best(self, fit: Fit | Mapping[int, int]) -> tuple[int, int, int, int] | None:
        """Kind, idle blocks and number of the tightest fit, and the blocks wanted; the lowest of equals."""
        best: tuple[tuple[int, int], tuple[int, int, int, int]] | None = None
        for (kind, free), pile in self.piles.items():
            need = fit.get(kind, 0)
            if need and free >= need:
                key = (free - need, pile[0])
                if best is None or key < best[0]:
                    best = (key, (kind, free, pile[0], need))
        return best[1] if best else None


class Tidy:
    """The seats on new nodes, and what can be done about them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.board = ledger.board
        self.seats: dict[int, list[FreedSeat]] = {launch.node: [] for launch in ledger.launches}
        self.options: dict[tuple[object, ...], list[Option]] = {}
        self.copied: set[int] = set()
        self._by_price: dict[float, list[Option]] | None = None
        for index, nodes in ledger.seats.items():
            for rank, node in enumerate(nodes):
                if node in self.seats:
                    self.seats[node].append(FreedSeat(index, rank))

    def run(self) -> None:
        """Empty nodes that others can take the ranks of; then launch the cheapest that holds what is left, of
        equal price the smallest.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for launch in self.ledger.launches:
            if launch.name is None:
                groups.setdefault(self._group(launch.option), []).append(launch.node)
        for option in self.board.options:
            self.options.setdefault(self._group(option), []).append(option)
        for nodes in groups.values():
            self._drain(nodes)
        option_of = {launch.node: launch.option for launch in self.ledger.launches}
        for group, nodes in groups.items():
            for node in nodes:
                if node in option_of and not self._right_size(node, option_of[node], self.options[group]):
                    self._make_smaller(node, option_of[node])

    def _group(self, option: Option) -> tuple[object, ...]:
        return (option.fleet, self.board.kinds[option.kind].place)

    def _job(self, seat: FreedSeat) -> Job:
        return self.board.jobs[seat.job]

    def _used(self, node: int) -> int:
        return self.board.kinds[self.ledger.kind_of[node]].total - self.ledger.free[node]

    def _drain(self, nodes: list[int]) -> None:
        """The least used first, the dearest among equals."""
        ledger, kinds = self.ledger, self.board.kinds

        def key(node: int) -> tuple[float, ...]:
            kind = kinds[ledger.kind_of[node]]
            return (self._used(node) / kind.total, -min(kind.cost, 1e12), node)

        order = sorted(nodes, key=key)
        targets = Targets()
        for node in order:
            if 0 < self._used(node) < kinds[ledger.kind_of[node]].total:
                targets.add(ledger.kind_of[node], ledger.free[node], node)
        for node in order:
            if not self._used(node):
                ledger.drop(node)
            elif ledger.free[node]:
                moves = self._moves(node, targets)
                if moves is None:
                    continue
                for seat, target, need in moves:
                    self._move(seat, target, need)
                self.seats[node] = []
                ledger.fill(node, -self._used(node))
                ledger.drop(node)

    def _moves(self, node: int, targets: Targets) -> list[tuple[FreedSeat, int, int]] | None:
        """Where each rank of a node would go, or None if one of them has no other place.

        What they take is noted in `targets`, of which the node is one no longer if there is a place for all.
        """
        mine = self.ledger.kind_of[node]
        seats = self.seats[node]
        if not all(self._job(s).plain and not self._job(s).request.whole for s in seats):
            return None
        targets.remove(mine, self.ledger.free[node], node)
        out: list[tuple[FreedSeat, int, int]] = []
        taken: list[tuple[int, int, int, int]] = []
        for seat in sorted(seats, key=lambda s: (-self._job(s).request.fit[mine], s.job, s.rank)):
            request = self._job(seat).request
            found = targets.best(
                self.board.made_by(request, self.board.maker_of[mine]) if request.apart else request.fit
            )
            if found is None:
                for kind, free, target, need in reversed(taken):
                    targets.remove(kind, free - need, target)
                    targets.add(kind, free, target)
                targets.add(mine, self.ledger.free[node], node)
                return None
            kind, free, target, need = found
            targets.remove(kind, free, target)
            targets.add(kind, free - need, target)
            taken.append(found)
            out.append((seat, target, need))
        return out

    def _move(self, seat: FreedSeat, target: int, need: int) -> None:
        if seat.job not in self.copied:  # the list may be another ledger's too
            self.copied.add(seat.job)
            self.ledger.seats[seat.job] = list(self.ledger.seats[seat.job])
        self.ledger.seats[seat.job][seat.rank] = target
        self.seats[target].append(seat)
        self.ledger.fill(target, need)

    def _right_size(self, node: int, now: Option, options: list[Option]) -> bool:
        """Take the cheapest offer of the same fleet and place that holds what sits there, if there is one."""
        price = self.board.kinds[now.kind].cost
        for option in options:  # the cheapest first
            kind = self.board.kinds[option.kind]
            if kind.cost >= price - 1e-9 or math.isinf(kind.cost):
                break
            free = self._left_on(node, option)
            if free is not None and self.ledger.remain(option) != 0:
                self.ledger.swap(node, option, free)
                return True
        return False

    def _left_on(self, node: int, option: Option) -> int | None:
        """How many blocks stay idle if what sits on a node sits on this offer; None if that cannot be."""
        free = self.board.kinds[option.kind].total
        maker, other = (self.board.maker_of[k] for k in (self.ledger.kind_of[node], option.kind))
        for seat in self.seats[node]:
            request = self._job(seat).request
            need = request.fit.get(option.kind, 0)
            free -= need
            if free < 0 or not need or (request.apart and maker != other):
                return None
        return free

    def _make_smaller(self, node: int, now: Option) -> None:
        """Take the smallest offer of the same price that holds what sits there, wherever it may lie."""
        kinds, ledger = self.board.kinds, self.ledger
        size = size_order(now.offer)
        free_to_go = all(self._job(s).plain and not self._job(s).request.together for s in self.seats[node])
        for option in self._at_price(kinds[now.kind].cost):
            if size_order(option.offer) >= size:
                return
            if self._group(option) != self._group(now) and not (free_to_go and self._may_go(now, option)):
                continue
            free = self._left_on(node, option)
            if free is not None and ledger.remain(option) != 0:
                ledger.swap(node, option, free)
                return

    def _may_go(self, now: Option, option: Option) -> bool:
        """Whether a launch may be another fleet's, or lie elsewhere: no fleet loses one that it needs."""
        ledger, fleets = self.ledger, self.board.fleets
        if ledger.astray(option):
            return False
        if option.fleet == now.fleet:
            return True
        theirs = fleets[now.fleet].baseline or fleets[option.fleet].baseline
        return not theirs and not self.board.clustered(now.fleet) and ledger.may_launch(option)

    def _at_price(self, cost: float) -> list[Option]:
        """The offers of one known price, the smallest first."""
        if self._by_price is None:
            self._by_price = {}
            for option in sorted(self.board.options, key=lambda o: (*size_order(o.offer), o.index)):
                self._by_price.setdefault(self.board.kinds[option.kind].cost, []).append(option)
        return [] if math.isinf(cost) else self._by_price[cost]
