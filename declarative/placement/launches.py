"""Nodes that fleets want for themselves: kept free of other claims while tasks are seated, launched after.

A fleet that cannot be brought to its size is an error of the whole plan, so what it needs comes before tasks.
"""

from __future__ import annotations

from collections.abc import Callable

from declarative.placement.board import Home, Option, Quota
from declarative.placement.cover import DEAR
from declarative.placement.ledger import UNLIMITED, Ledger

Bid = tuple[tuple[int, float], list[tuple[Option, int]]]
"""How good it is (what it comes to, negated, and its price), and how many to launch of which options."""


def keep_baselines(ledger: Ledger) -> None:
    """Note for each fleet what it needs of limited offers, and where it may begin if it is a cluster.

    Those that have the least to choose from go first.
    """
    fleets = [name for name, owed in ledger.owed.items() if owed]
    if not fleets:
        return
    left = dict(ledger.left)
    slack = {name: _supply(ledger, name) - ledger.owed[name] for name in fleets}
    kept: dict[Quota, dict[str, tuple[int, int]]] = {}
    begin: dict[str, frozenset[Home]] = {}
    for name in sorted(fleets, key=lambda name: (slack[name], name)):
        bids = _bids(ledger, name, lambda option: left[option.quota])
        if not bids:
            continue
        (most, _), chosen = min(bids.values(), key=lambda bid: bid[0])
        good = frozenset(home for home, bid in bids.items() if home and bid[0][0] == most)
        if 0 < len(good) < len(bids):
            begin[name] = good
        for option, count in chosen:
            now = left[option.quota]
            if now is not None:
                left[option.quota] = now - count
                own = kept.setdefault(option.quota, {})
                own[name] = (own.get(name, (0, 0))[0] + count, ledger.owed[name] + most)
    ledger.begin, ledger.kept = begin, kept


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
    out: dict[Home | None, Bid] = {}
    for home, here in homes.items():
        got, cost = 0, 0.0
        chosen: list[tuple[Option, int]] = []
        used: dict[Quota, int] = {}
        for option in here:
            most, count = left(option), ledger.owed[fleet] - got
            if count <= 0:
                break
            if most is not None:
                count = min(count, most - used.get(option.quota, 0))
            if count > 0:
                chosen.append((option, count))
                used[option.quota] = used.get(option.quota, 0) + count
                got += count
                cost += count * min(ledger.board.kinds[option.kind].cost, DEAR)
        out[home] = ((-got, cost), chosen)
    return out


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
