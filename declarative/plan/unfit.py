"""Nodes that never came up: whoever waited for one has given up, and the next plan makes it anew."""

from __future__ import annotations

from declarative.state import BOOTING, START_UP_LIMIT, NodeState, Readiness, Record


def unfit(record: Record, seen: Readiness, idle_since: float | None, now: float) -> str | None:
    """Why a node on which nothing runs is made anew; None if it is fit, or may still become it.

    One that was ready before is never starting again, and a host that exists is no better for another try.
    """
    if record.inputs.get("host"):
        return None
    late = idle_since is not None and now - idle_since >= START_UP_LIMIT
    if seen.state is not NodeState.FAILED and not (seen.state in BOOTING and late):
        return None
    why = f": {seen.reason}" if seen.reason else ""
    if seen.state is NodeState.FAILED:
        return f"it failed{why}"
    return f"not ready within {START_UP_LIMIT / 60:.0f} minutes{why}"
