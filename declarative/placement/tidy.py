"""After a search: nodes that it launches and that are not needed after all, or are larger than needed.

Only what is not there yet is moved, and only within one fleet and place, where every filter has said yes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from declarative.placement.board import Job, Option
from declarative.placement.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank on a node that is launched."""

    job: int
    rank: int


class Tidy:
    """The seats on new nodes, and what can be done about them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.board = ledger.board
        self.seats: dict[int, list[Seat]] = {launch.node: [] for launch in ledger.launches}
        self.options: dict[tuple[object, ...], list[Option]] = {}
        for index, nodes in ledger.seats.items():
            for rank, node in enumerate(nodes):
                if node in self.seats:
                    self.seats[node].append(Seat(index, rank))

    def run(self) -> None:
        """Empty nodes that others can take the ranks of; then launch the cheapest that holds what is left."""
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
                if node in option_of:
                    self._right_size(node, option_of[node], self.options[group])

    def _group(self, option: Option) -> tuple[object, ...]:
        return (option.fleet, self.board.kinds[option.kind].place)

    def _job(self, seat: Seat) -> Job:
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
        open_ = {n for n in order if 0 < self._used(n) < kinds[ledger.kind_of[n]].total}
        for node in order:
            if not self._used(node):
                ledger.drop(node)
            elif node in open_:
                open_.discard(node)
                moves = self._moves(node, open_)
                if moves is None:
                    open_.add(node)
                    continue
                for seat, target, need in moves:
                    self._move(seat, target, need)
                self.seats[node] = []
                ledger.fill(node, -self._used(node))
                ledger.drop(node)
                open_ = {n for n in open_ if ledger.free[n]}

    def _moves(self, node: int, targets: set[int]) -> list[tuple[Seat, int, int]] | None:
        """Where each rank of a node would go, or None if one of them has no other place."""
        left: dict[int, int] = {}
        out: list[tuple[Seat, int, int]] = []
        mine = self.ledger.kind_of[node]
        seats = self.seats[node]
        if len(targets) * len(seats) > 20_000:
            return None
        for seat in sorted(seats, key=lambda s: (-self._job(s).wish.fit[mine], s.job, s.rank)):
            job = self._job(seat)
            if not job.plain or job.wish.whole:
                return None
            fits = [
                (room - need, n, need)
                for n in targets
                if (need := job.wish.fit.get(self.ledger.kind_of[n], 0))
                and (room := left.get(n, self.ledger.free[n])) >= need
            ]
            if not fits:
                return None
            room, target, need = min(fits)
            left[target] = room
            out.append((seat, target, need))
        return out

    def _move(self, seat: Seat, target: int, need: int) -> None:
        nodes = list(self.ledger.seats[seat.job])
        nodes[seat.rank] = target
        self.ledger.seats[seat.job] = nodes
        self.seats[target].append(seat)
        self.ledger.fill(target, need)

    def _right_size(self, node: int, now: Option, options: list[Option]) -> None:
        """The cheapest offer of the same fleet and place that holds what sits there."""
        price = self.board.kinds[now.kind].cost
        for option in options:  # the cheapest first
            kind = self.board.kinds[option.kind]
            if kind.cost >= price - 1e-9 or math.isinf(kind.cost):
                return
            needs = [self._job(s).wish.fit.get(option.kind, 0) for s in self.seats[node]]
            left = self.ledger.left[option.quota]
            if all(needs) and sum(needs) <= kind.total and left != 0:
                self.ledger.swap(node, option, kind.total - sum(needs))
                return
