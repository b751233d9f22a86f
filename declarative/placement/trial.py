"""What a try of one task in one domain comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from declarative.placement.board import Home
from declarative.placement.cover import Choice
from declarative.placement.ledger import Ledger
from declarative.placement.wishes import Domain


@dataclass(slots=True)
class Try:
    """What became of one task in one domain: the node of each rank that found one."""

    domain: Domain
    nodes: dict[int, int] = field(default_factory=dict)
    volumes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    failed: int | None = None
    """The first rank that found no place."""
    cost: float = 0.0
    waste: float = 0.0
    launches: int = 0
    moved: int = 0
    begin: Mapping[str, frozenset[Home]] | None = None
    """Where cluster fleets had to begin for it, if it is not where they would have begun."""

    @property
    def key(self) -> tuple[float, ...]:
        """The least disturbance, then the least cost, then the least waste."""
        return (self.moved, round(self.cost, 6), self.launches, self.waste)

    @property
    def rank(self) -> tuple[float, ...]:
        """The least is the best: one that succeeded, or the one that came furthest."""
        return (0, *self.key) if self.failed is None else (1, -len(self.nodes))


def carry_out(ledger: Ledger, choice: Choice, ranks: int) -> list[int]:
    """Seat ranks as a choice says: the node of each."""
    out: list[int] = []
    for pick in choice.picks:
        out += ledger.take(pick, min(ranks - len(out), pick.count * pick.per))
    for buy in choice.buys:
        out += ledger.launch(buy, min(ranks - len(out), buy.count * buy.per))
    return out
