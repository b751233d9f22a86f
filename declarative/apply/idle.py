"""Idle nodes that a command gives back while it follows its tasks: when, and what is left for the next one.

What `idle_duration` means, the plan says (`plan.fleets`); here is when it is worth making one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from declarative.model.spec import Fleet
from declarative.model.state import Address, State, natural

AGAIN = 60.0
"""Seconds until what no plan gave back is tried once more: a task that waits may want it."""


class Idle:
    """The nodes above their fleets' targets, as far as `fleets` declare what becomes of them."""

    def __init__(self, fleets: Mapping[str, Fleet], now: Callable[[], float]) -> None:
        self._fleets = {name: fleet for name, fleet in fleets.items() if fleet.nodes is not None}
        self._now = now
        self._next = 0.0
        self._left: frozenset[tuple[Address, int]] = frozenset()

    def leave(self, state: State) -> None:
        """Remember which nodes there are, as the command that follows leaves them."""
        self._left = _nodes(state)

    def ready(self, state: State) -> bool:
        """Whether a plan may give nodes back now. Not where another command has made some since `leave`: it
        may want more of them than is declared here.
        """
        now = self._now()
        if now < self._next or _nodes(state) - self._left:
            return False
        return any(when <= now for when in self.when(state).values())

    def tried(self) -> None:
        """It was tried just now."""
        self._next = self._now() + AGAIN

    def end(self) -> None:
        """Nothing is given back from here on."""
        self._fleets = {}

    def when(self, state: State) -> dict[str, float]:
        """Node → when it is given back if nothing comes to run on it, seconds since the epoch."""
        held = {r.reservation.node for r in state.of("reservation")}
        out: dict[str, float] = {}
        for name, fleet in self._fleets.items():
            wait = fleet.idle_duration.seconds
            nodes = [r for r in state.of("node") if r.node.fleet == name]
            if wait is None or fleet.nodes is None:
                continue
            spare = max(0, len(nodes) - fleet.nodes.target)
            idle = [r.address.name for r in nodes if r.address.name not in held]
            since = {n: state.idle_since[n] for n in idle if n in state.idle_since}
            first = sorted(since, key=lambda n: (since[n], natural(n)))
            out |= {n: since[n] + wait for n in first[:spare]}
        return out


def _nodes(state: State) -> frozenset[tuple[Address, int]]:
    return frozenset((r.address, r.generation) for r in state.of("node"))
