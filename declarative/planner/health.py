"""What is not well and no action mends: nodes that take no work, hosts left out, backends unread. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from declarative.model.diagnostic import Diagnostic
from declarative.model.resource import LeftOut
from declarative.model.state import NodeState, Readiness, Silence, natural
from declarative.planner.silence import silence_text

SICK = (NodeState.NOT_READY, NodeState.UNREACHABLE, NodeState.FAILED)
"""States of nodes that need somebody. The others are ready, on their way, or nobody looked."""
LEFT_OUT, UNREADABLE = "left_out", "unreadable"
UNREAD = "backend-unreadable"
"""The code of the warning about a backend that does not answer."""
UNTOLD = "no reason is known"
NODE_HINT = "fix that by hand: no plan does it; `fleetform status --refresh` shows how nodes are"
HOST_HINT = "the next `apply` that finds it ready makes it a node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One thing that is not well. Times are seconds since the epoch, by our clock."""

    address: str
    """`node/NAME`, `backend/NAME`; of a declared host that is no node, `fleet/NAME`."""
    state: str
    """A node's, or `left_out` of a host, `unreadable` of a backend."""
    detail: str
    host: str | None = None
    """The host that is left out."""
    since: float | None = None
    """Since when a node does not answer."""
    until: float | None = None
    """When it is given up, if it does not answer before."""
    hint: str | None = None


def of_nodes(
    seen: Iterable[tuple[str, Readiness]], silent: Mapping[str, Silence], now: float
) -> tuple[Health, ...]:
    """Of nodes that stay, by how they were seen; of those that do not answer, what comes of that."""
    return tuple(
        Health(
            address=f"node/{name}",
            state=found.state.value,
            detail=silence_text(silent[name], now) if name in silent else found.reason or UNTOLD,
            since=silent[name].since if name in silent else None,
            until=silent[name].until if name in silent else None,
            hint=NODE_HINT,
        )
        for name, found in sorted(seen, key=lambda item: natural(item[0]))
        if found.state in SICK
    )


def of_hosts(left_out: Iterable[LeftOut]) -> tuple[Health, ...]:
    """Of declared hosts that are no nodes."""
    return tuple(
        Health(
            address=f"fleet/{i.host.fleet}", state=LEFT_OUT, detail=i.reason, host=i.host.key, hint=HOST_HINT
        )
        for i in left_out
    )


def of_backends(diagnostics: Iterable[Diagnostic]) -> tuple[Health, ...]:
    """Of backends that did not answer as they should."""
    return tuple(
        Health(address=d.address or "", state=UNREADABLE, detail=d.summary, hint=d.hint)
        for d in diagnostics
        if d.code == UNREAD
    )
