"""Volumes with an `auto_cleanup_duration`: made for a task, and deleted when nothing had them attached for so
long. So are nodes above a fleet's target.

What was cleaned up is made again for the next task that mounts it, and not for the sake of being there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from declarative.model.resource import Desired
from declarative.model.state import State
from declarative.placement.types import Outcome
from declarative.planner.types import Reason
from declarative.planner.volumes import VolumeDecision


def cleaned(
    desired: Desired,
    state: State,
    decisions: Mapping[str, VolumeDecision],
    outcome: Outcome,
    *,
    freed: Collection[str],
    now: float,
) -> dict[str, VolumeDecision]:
    """The decisions of all volumes, once it is known which ranks get them; `freed` ranks give theirs back."""
    used = {name for choice in outcome.choices for name in choice.volumes.values()}
    used |= {r.attachment.volume for r in state.of("attachment") if r.attachment.rank not in freed}
    asked = [desired.tasks[refusal.task].mounts for refusal in outcome.refusals]
    wanted = {name for ranks in asked for mounts in ranks for mount in mounts for name in mount.names}
    out = dict(decisions)
    for name, want in desired.volumes.items():
        decision = decisions[name]
        if want.cleanup is None or name in used or decision.after is None:
            continue
        # One that is attached until this plan, or that this plan would make, is so from now on.
        since = state.detached_since.get(name, now)
        if decision.record is None:
            out[name] = replace(decision, waits=True)
        elif decision.replaced:
            out[name] = replace(decision, unused=True)
        elif name not in wanted and now - since >= want.cleanup:
            because = ("auto_cleanup_duration",)
            out[name] = replace(decision, unused=True, reason=Reason.UNUSED, because=because)
    return out
