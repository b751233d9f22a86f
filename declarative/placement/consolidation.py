"""Nodes that are launched: those that fleets want for themselves, and those that tasks do not need after all.

A fleet that cannot be brought to its size is an error of the whole plan, so what it needs comes before tasks.
After a search, ranks are moved off nodes that can be spared, and each node becomes the cheapest that holds
what sits there. Only what is not there yet is moved, and only within one fleet and place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from declarative.model.resource import size_order
from declarative.placement.allocate import DEAR
from declarative.placement.assignment import UNLIMITED, Assignment
from declarative.placement.catalog import Fit, Home, Job, LaunchOption, Request
from declarative.placement.problem import Place, Quota

Bid = tuple[tuple[int, float], list[tuple[LaunchOption, int]]]
"""How good it is (what it comes to, negated, and its price), and how many to launch of which options."""


def keep_baselines(assignment: Assignment) -> None:
    """Note for each fleet what it needs of limited offers, and where it may begin if it is a cluster.

    Those that have the least to choose from go first.
    """
    slack = {
        name: _supply(assignment, name) - owed for name, owed in assignment.baseline_left.items() if owed
    }
    if not slack:
        return
    quotas = dict(assignment.quota_left)
    kept: dict[Quota, dict[str, tuple[int, int]]] = {}
    begin: dict[str, frozenset[Home]] = {}
    for name in sorted(slack, key=lambda name: (slack[name], name)):
        bids = _bids(assignment, name, lambda option: quotas[option.quota])
        if not bids:
            continue
        (most, _), chosen = min(bids.values(), key=lambda bid: bid[0])
        if good := _good_homes(bids, most):
            begin[name] = good
        for option, count in chosen:
            now = quotas[option.quota]
            if now is not None:
                quotas[option.quota] = now - count
                own = kept.setdefault(option.quota, {})
                own[name] = (own.get(name, (0, 0))[0] + count, assignment.baseline_left[name] + most)
    assignment.allowed_homes, assignment.kept = begin, kept


def _good_homes(bids: Mapping[Home | None, Bid], most: int) -> frozenset[Home]:
    """Where a cluster fleet can launch the most; nowhere if it can launch as many wherever it begins."""
    good = frozenset(home for home, bid in bids.items() if home and bid[0][0] == most)
    return good if len(good) < len(bids) else frozenset()


def _supply(assignment: Assignment, fleet: str) -> int:
    """How many nodes a fleet could launch if it were alone."""
    limits = {o.quota: assignment.quota_left[o.quota] for o in assignment.catalog.of_fleet(fleet)}
    return min(UNLIMITED, sum(UNLIMITED if limit is None else limit for limit in limits.values()))


def _bids(
    assignment: Assignment, fleet: str, quota: Callable[[LaunchOption], int | None]
) -> dict[Home | None, Bid]:
    """The cheapest launches of what a fleet wants for itself: by home where it has to choose one.

    `quota` says how many launches an option's quota still allows; None for any number.
    """
    options = [o for o in assignment.catalog.of_fleet(fleet) if not assignment.astray(o)]
    free = assignment.catalog.clustered(fleet) and not assignment.cluster_homes[fleet]
    homes: dict[Home | None, list[LaunchOption]] = {} if free else {None: options}
    for option in options if free else ():
        homes.setdefault(option.home, []).append(option)
    return {
        home: _bid(assignment, assignment.baseline_left[fleet], here, quota) for home, here in homes.items()
    }


def _bid(
    assignment: Assignment,
    missing: int,
    options: list[LaunchOption],
    quota: Callable[[LaunchOption], int | None],
) -> Bid:
    """The launches of so many nodes, or of as many as there are: the first options first."""
    got, cost = 0, 0.0
    chosen: list[tuple[LaunchOption, int]] = []
    used: dict[Quota, int] = {}
    for option in options:
        most, count = quota(option), missing - got
        if count <= 0:
            break
        if most is not None:
            count = min(count, most - used.get(option.quota, 0))
        if count > 0:
            chosen.append((option, count))
            used[option.quota] = used.get(option.quota, 0) + count
            got += count
            cost += count * min(assignment.catalog.kinds[option.kind].cost, DEAR)
    return ((-got, cost), chosen)


def launch_baselines(assignment: Assignment) -> dict[str, int]:
    """Launch, at the lowest price, what tasks have not launched; by fleet, how many could not be had."""
    short: dict[str, int] = {}
    for fleet, owed in assignment.baseline_left.items():
        if not owed:
            continue
        bids = _bids(assignment, fleet, assignment.remain)
        _, chosen = min(bids.values(), key=lambda bid: bid[0], default=(None, []))
        for option, count in chosen:
            assignment.launch_idle(option, min(count, assignment.most(option)))
        if assignment.baseline_left[fleet]:
            short[fleet] = assignment.baseline_left[fleet]
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


class Consolidation:
    """The seats on new nodes, and what can be done about them."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.catalog = assignment.catalog
        self.seats: dict[int, list[FreedSeat]] = {launch.node: [] for launch in assignment.launches}
        self.copied: set[int] = set()
        for index, nodes in assignment.seats.items():
            for rank, node in enumerate(nodes):
                if node in self.seats:
                    self.seats[node].append(FreedSeat(index, rank))

    def run(self) -> None:
        """Empty nodes that others can take the ranks of; then launch the cheapest that holds what is left, of
        equal price the smallest.
        """
        groups: dict[tuple[str, Place], list[int]] = {}
        for launch in self.assignment.launches:
            if launch.name is None:
                groups.setdefault(self._group(launch.option), []).append(launch.node)
        for nodes in groups.values():
            self._drain(nodes)
        option_of = {launch.node: launch.option for launch in self.assignment.launches}
        for group, nodes in groups.items():
            for node in nodes:
                if node in option_of and not self._right_size(
                    node, option_of[node], self.catalog.by_place[group]
                ):
                    self._make_smaller(node, option_of[node])

    def _group(self, option: LaunchOption) -> tuple[str, Place]:
        return (option.fleet, self.catalog.place_of[option.kind])

    def _job(self, seat: FreedSeat) -> Job:
        return self.catalog.jobs[seat.job]

    def _used(self, node: int) -> int:
        return self.catalog.kinds[self.assignment.kind_of[node]].total - self.assignment.free[node]

    def _drain(self, nodes: list[int]) -> None:
        """The least used first, the dearest among equals."""
        assignment, kinds = self.assignment, self.catalog.kinds

        def key(node: int) -> tuple[float, ...]:
            kind = kinds[assignment.kind_of[node]]
            return (self._used(node) / kind.total, -min(kind.cost, 1e12), node)

        order = sorted(nodes, key=key)
        targets = Targets()
        for node in order:
            if 0 < self._used(node) < kinds[assignment.kind_of[node]].total:
                targets.add(assignment.kind_of[node], assignment.free[node], node)
        for node in order:
            if not self._used(node):
                assignment.cancel_launch(node)
            elif assignment.free[node]:
                moves = self._moves(node, targets)
                if moves is None:
                    continue
                for seat, target, need in moves:
                    self._move(seat, target, need)
                self.seats[node] = []
                assignment.fill(node, -self._used(node))
                assignment.cancel_launch(node)

    def _moves(self, node: int, targets: Targets) -> list[tuple[FreedSeat, int, int]] | None:
        """Where each rank of a node would go, or None if one of them has no other place.

        What they take is noted in `targets`, of which the node is one no longer if there is a place for all.
        """
        mine = self.assignment.kind_of[node]
        seats = self.seats[node]
        if not all(self._job(s).unconstrained and not self._job(s).request.whole for s in seats):
            return None
        targets.remove(mine, self.assignment.free[node], node)
        out: list[tuple[FreedSeat, int, int]] = []
        taken: list[tuple[int, int, int, int]] = []
        for seat in sorted(seats, key=lambda s: (-self._job(s).request.fit[mine], s.job, s.rank)):
            request = self._job(seat).request
            move = targets.best(
                self.catalog.made_by(request, self.catalog.maker_of[mine])
                if request.one_vendor
                else request.fit
            )
            if move is None:
                for kind, free, target, need in reversed(taken):
                    targets.remove(kind, free - need, target)
                    targets.add(kind, free, target)
                targets.add(mine, self.assignment.free[node], node)
                return None
            kind, free, target, need = move
            targets.remove(kind, free, target)
            targets.add(kind, free - need, target)
            taken.append(move)
            out.append((seat, target, need))
        return out

    def _move(self, seat: FreedSeat, target: int, need: int) -> None:
        if seat.job not in self.copied:  # the list may be another assignment's too
            self.copied.add(seat.job)
            self.assignment.seats[seat.job] = list(self.assignment.seats[seat.job])
        self.assignment.seats[seat.job][seat.rank] = target
        self.seats[target].append(seat)
        self.assignment.fill(target, need)

    def _right_size(self, node: int, now: LaunchOption, options: Sequence[LaunchOption]) -> bool:
        """Take the cheapest offer of the same fleet and place that holds what sits there, if there is one."""
        price, requests = self.catalog.kinds[now.kind].cost, self._requests(node)
        for option in options:  # the cheapest first
            cost = self.catalog.kinds[option.kind].cost
            if cost >= price - 1e-9 or math.isinf(cost):
                break
            free = self._left_on(node, requests, option)
            if free is not None and self.assignment.remain(option) != 0:
                self.assignment.replace_launch(node, option, free)
                return True
        return False

    def _requests(self, node: int) -> list[Request]:
        """What the ranks on a node ask for."""
        return [self._job(seat).request for seat in self.seats[node]]

    def _left_on(self, node: int, requests: Sequence[Request], option: LaunchOption) -> int | None:
        """How many blocks stay idle if what sits on a node sits on this offer; None if that cannot be."""
        free = self.catalog.kinds[option.kind].total
        for request in requests:
            need = request.fit.get(option.kind)
            free -= need
            if free < 0 or not need:
                return None
        maker, other = (self.catalog.maker_of[k] for k in (self.assignment.kind_of[node], option.kind))
        return free if maker == other or not any(request.one_vendor for request in requests) else None

    def _make_smaller(self, node: int, now: LaunchOption) -> None:
        """Take the smallest offer of the same price that holds what sits there, wherever it may lie."""
        kinds, assignment = self.catalog.kinds, self.assignment
        size = size_order(now.offer)
        free_to_go = all(
            self._job(s).unconstrained and not self._job(s).request.one_area for s in self.seats[node]
        )
        if math.isinf(kinds[now.kind].cost):
            return
        requests = self._requests(node)
        for option in self.catalog.by_price[kinds[now.kind].cost]:
            if size_order(option.offer) >= size:
                return
            if self._group(option) != self._group(now) and not (free_to_go and self._may_go(now, option)):
                continue
            free = self._left_on(node, requests, option)
            if free is not None and assignment.remain(option) != 0:
                assignment.replace_launch(node, option, free)
                return

    def _may_go(self, now: LaunchOption, option: LaunchOption) -> bool:
        """Whether a launch may be another fleet's, or lie elsewhere: no fleet loses one that it needs."""
        assignment, fleets = self.assignment, self.catalog.fleets
        if assignment.astray(option):
            return False
        if option.fleet == now.fleet:
            return True
        theirs = fleets[now.fleet].baseline or fleets[option.fleet].baseline
        return not theirs and not self.catalog.clustered(now.fleet) and assignment.may_launch(option)
