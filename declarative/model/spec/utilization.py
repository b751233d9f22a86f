"""A task's `utilization_policy`: GPUs that do nothing are given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from declarative.model.schema.marks import BadValueError, Doc, Is
from declarative.model.spec.values import Duration

SHORTEST = 300
"""Seconds of the shortest window: programs load data and write checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationPolicy:
    """How much the GPUs of a rank have to be used."""

    min_gpu_utilization: Annotated[
        int,
        Is(minimum=0, maximum=100),
        Doc("Percent. A rank ends if one of its GPUs was used less by every sample."),
    ]
    time_window: Annotated[Duration, Doc("For how long without a break: `30m`, at least `5m`.")]

    def __post_init__(self) -> None:
        found = self.time_window.seconds
        if found is None or found < SHORTEST:
            summary = f"a `time_window` is at least 5m, and this one is `{self.time_window}`"
            raise BadValueError("out-of-range", summary, "write `5m` or more", ("time_window",))
