"""What `place` is given in one case, and one call of it with its CPU time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.placement.check import violations
from declarative.model.status import NodeState, Readiness
from declarative.placement.place import place
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome, VolumeAt

READY = Readiness(state=NodeState.READY)


class WrongPlanError(Exception):
    """A plan that breaks a rule: its figures mean nothing."""


@dataclass(frozen=True)
class Problem:
    """One call's arguments."""

    asks: Sequence[Ask]
    nodes: Sequence[Node]
    fleets: Mapping[str, FleetRule]
    volumes: Mapping[str, VolumeAt]


def plan(problem: Problem) -> tuple[PlacementOutcome, float]:
    """The planner's answer and the CPU seconds of the call alone. Not checked yet."""
    start = time.process_time()
    outcome = place(problem.asks, problem.nodes, problem.fleets, problem.volumes)
    return outcome, time.process_time() - start


def checked(problem: Problem, outcome: PlacementOutcome, who: str) -> PlacementOutcome:
    """The same outcome; raises `WrongPlanError` if it breaks a rule, whoever made it."""
    found = violations(problem.asks, problem.nodes, problem.fleets, problem.volumes, outcome)
    if found:
        more = f"\n  … and {len(found) - 10} more" if len(found) > 10 else ""
        raise WrongPlanError(f"{who} breaks {len(found)} rules:\n  " + "\n  ".join(found[:10]) + more)
    return outcome
