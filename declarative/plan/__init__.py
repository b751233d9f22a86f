"""The planner: desired, recorded, observed and now → what to do, in which order, and why. Pure."""

from declarative.plan.make import make
from declarative.plan.observe import effective, vanished
from declarative.plan.types import (
    FORMAT_VERSION,
    Action,
    Cost,
    Drift,
    Inventory,
    NodePreview,
    Op,
    Plan,
    Reason,
    Reservation,
    ReservationStatus,
)

__all__ = [
    "FORMAT_VERSION",
    "Action",
    "Cost",
    "Drift",
    "Inventory",
    "NodePreview",
    "Op",
    "Plan",
    "Reason",
    "Reservation",
    "ReservationStatus",
    "effective",
    "make",
    "vanished",
]
