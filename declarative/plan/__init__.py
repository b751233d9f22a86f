"""The planner: desired, recorded, observed and now → what to do, in which order, and why. Pure."""

from declarative.plan.hosts import hosts_of, hosts_of_plan
from declarative.plan.observe import effective, vanished
from declarative.plan.rehearsal import may_rehearse
from declarative.plan.silence import silence_text
from declarative.plan.size import OFFLINE_WORK
from declarative.plan.types import (
    FORMAT_VERSION,
    Action,
    Cost,
    Drift,
    Fallback,
    Inventory,
    NodePreview,
    Op,
    Plan,
    Reason,
    Reservation,
    ReservationStatus,
    Spare,
)

__all__ = [
    "FORMAT_VERSION",
    "OFFLINE_WORK",
    "Action",
    "Cost",
    "Drift",
    "Fallback",
    "Inventory",
    "NodePreview",
    "Op",
    "Plan",
    "Reason",
    "Reservation",
    "ReservationStatus",
    "Spare",
    "effective",
    "hosts_of",
    "hosts_of_plan",
    "may_rehearse",
    "silence_text",
    "vanished",
]
