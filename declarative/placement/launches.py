"""Nodes that fleets want for themselves and that no task has launched yet."""

from __future__ import annotations

from declarative.placement.board import Option
from declarative.placement.ledger import Home, Ledger


def launch_baselines(ledger: Ledger) -> dict[str, int]:
    """Launch them at the lowest price; by fleet, how many could not be had."""
    short: dict[str, int] = {}
    for fleet, owed in ledger.owed.items():
        if owed <= 0:
            continue
        options = [o for o in ledger.board.options if o.fleet == fleet]
        home = _home(ledger, fleet, options, owed)
        for option in options:
            if home and (option.offer.backend, option.offer.region) != home:
                continue
            if ledger.may_launch(option):
                ledger.launch_idle(option, min(ledger.owed[fleet], ledger.most(option)))
        if ledger.owed[fleet]:
            short[fleet] = ledger.owed[fleet]
    return short


def _home(ledger: Ledger, fleet: str, options: list[Option], owed: int) -> Home | None:
    """Where a cluster fleet begins: where all of it can be had, at the lowest price; else most of it."""
    if ledger.bound.get(fleet, True):
        return None
    best: tuple[tuple[float, float], Home] | None = None
    for home in dict.fromkeys((o.offer.backend, o.offer.region) for o in options):
        got, cost = 0, 0.0
        for option in options:
            if (option.offer.backend, option.offer.region) == home:
                here = min(owed - got, ledger.most(option))
                got, cost = got + here, cost + here * min(ledger.board.kinds[option.kind].cost, 1e9)
        if best is None or (-got, cost) < best[0]:
            best = ((-got, cost), home)
    return best[1] if best else None
