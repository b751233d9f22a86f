"""How good nodes are: which one a fleet gives up first, and which one never came up and is made anew."""

from __future__ import annotations

from declarative.model.state import BOOTING, START_UP_LIMIT, NodeState, Readiness, Record, Silence, drain_of
from declarative.planner.silence import lasting

DRAINED, FAILED, BROKEN, BOOTS, WORKS = range(5)


def unfit(
    record: Record, seen: Readiness, idle_since: float | None, now: float, silence: Silence | None = None
) -> str | None:
    """Why a node on which nothing runs is made anew; None if it is fit, or may still become it.

    One that was ready before is never starting again, and a host that exists is no better for another try.
    """
    if record.node.host:
        return None
    if silence and silence.given_up:
        return f"it has not answered for {lasting(now - silence.since)}"
    late = idle_since is not None and now - idle_since >= START_UP_LIMIT
    if seen.state is not NodeState.FAILED and not (seen.state in BOOTING and late):
        return None
    why = f": {seen.reason}" if seen.reason else ""
    if seen.state is NodeState.FAILED:
        return f"it failed{why}"
    return f"not ready within {START_UP_LIMIT / 60:.0f} minutes{why}"


def usefulness(record: Record, state: NodeState) -> int:
    """How much a fleet loses with an idle node: `DRAINED` is the least, `WORKS` the most."""
    if drain_of(record):
        return DRAINED
    if state is NodeState.FAILED:
        return FAILED
    if state is NodeState.READY:
        return WORKS
    return BOOTS if state in BOOTING else BROKEN
