"""One pure function places all ranks of all tasks on one working copy of the inventory.

Its rules: docs/architecture.md, "Placement".
"""

from declarative.placement.place import place
from declarative.placement.types import (
    SUCH_AS,
    Ask,
    Choice,
    FleetRule,
    Node,
    Outcome,
    RankVerdict,
    Refusal,
    Rejection,
    Unseen,
    Verdict,
    VolumeAt,
)

__all__ = [
    "SUCH_AS",
    "Ask",
    "Choice",
    "FleetRule",
    "Node",
    "Outcome",
    "RankVerdict",
    "Refusal",
    "Rejection",
    "Unseen",
    "Verdict",
    "VolumeAt",
    "place",
]
