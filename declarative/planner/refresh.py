"""`--refresh-only`: what became of things by themselves, and nothing that a plan would do about it."""

from __future__ import annotations

from collections.abc import Iterator

from declarative.model.state import RankState, State, natural
from declarative.planner.health import of_hosts, of_nodes
from declarative.planner.make import basis_of
from declarative.planner.observe import effective, vanished
from declarative.planner.types import Drift, Inventory, Observed, Plan, Scope


def refreshed(recorded: State, inventory: Inventory, now: float) -> Plan:
    """A plan without actions. `apply` records what it shows; `now` is seconds since the epoch."""
    state = effective(recorded, inventory)
    seen = [(r.address.name, inventory.readiness.get(r.address.name)) for r in state.of("node")]
    return Plan(
        basis=basis_of(state),
        observed=Observed(
            drift=(*inventory.drift, *_ended_badly(recorded, state)),
            vanished=tuple(map(str, vanished(recorded, inventory))),
            unfit=(
                *of_nodes([(n, found) for n, found in seen if found], inventory.silent, now),
                *of_hosts(inventory.left_out),
            ),
        ),
        scope=Scope(refresh_only=True),
        diagnostics=inventory.diagnostics,
    )


def _ended_badly(recorded: State, state: State) -> Iterator[Drift]:
    """Ranks that ended since they were looked at last. That one succeeds is what was declared."""
    for name, status in sorted(state.ranks.items(), key=lambda item: natural(item[0])):
        before = recorded.ranks.get(name)
        if status.state.ended and status.state is not RankState.SUCCEEDED and before != status:
            detail = status.state.value + (f": {status.cause}" if status.cause else "")
            yield Drift(address=f"rank/{name}", change="ended", detail=detail)
