"""Shares of the cost: what the nodes of each fleet cost, and what the blocks of each task cost.

An unknown price is unknown, and stands before all known ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from declarative.model.diagnostic import and_more
from declarative.model.record import struct
from declarative.model.state import ORPHAN
from declarative.planner.plan import total_price

MOST_NAMED = 3


class PricedNode(Protocol):
    """A node with its price, and who holds which of its blocks."""

    @property
    def fleet(self) -> str:
        """The name of its fleet."""

    @property
    def total(self) -> int:
        """The number of its blocks."""

    @property
    def price(self) -> float | None:
        """USD an hour for the whole node; None if unknown."""

    @property
    def cost(self) -> float | None:
        """What it costs this project, USD an hour; None if unknown."""

    @property
    def holders(self) -> Mapping[int, str]:
        """Busy block → its holder, `rank/train-0`."""


@struct(frozen=True, slots=True, kw_only=True)
class TaskShare:
    """The blocks of one task on the nodes of one fleet. `hourly` is USD an hour; None if unknown."""

    task: str
    hourly: float | None


@struct(frozen=True, slots=True, kw_only=True)
class FleetShare:
    """The nodes of one fleet. `hourly` is USD an hour; None if unknown."""

    fleet: str
    nodes: int
    hourly: float | None
    tasks: tuple[TaskShare, ...]

    @property
    def idle(self) -> float | None:
        """The cost of the blocks that no task holds, USD an hour; None if unknown."""
        used = total_price(task.hourly for task in self.tasks)
        return None if self.hourly is None or used is None else max(0.0, self.hourly - used)


def fleet_shares(nodes: Iterable[PricedNode]) -> tuple[FleetShare, ...]:
    """The shares of all fleets, the largest first."""
    costs: dict[str, list[float | None]] = {}
    blocks: dict[str, dict[str, list[float | None]]] = {}
    for node in nodes:
        costs.setdefault(node.fleet, []).append(node.cost)
        tasks = blocks.setdefault(node.fleet, {})
        block = None if node.price is None else node.price / node.total
        for holder in node.holders.values():
            if holder.startswith("rank/"):
                task = holder.removeprefix("rank/").removesuffix(ORPHAN).rpartition("-")[0]
                tasks.setdefault(task, []).append(block)
    out = [
        FleetShare(
            fleet=fleet,
            nodes=len(prices),
            hourly=total_price(prices),
            tasks=tuple(
                sorted(
                    (
                        TaskShare(task=task, hourly=total_price(prices_held))
                        for task, prices_held in blocks[fleet].items()
                    ),
                    key=lambda share: (share.hourly is not None, -(share.hourly or 0.0), share.task),
                )
            ),
        )
        for fleet, prices in costs.items()
    ]
    return tuple(sorted(out, key=lambda s: (s.hourly is not None, -(s.hourly or 0.0), -s.nodes, s.fleet)))


def largest_shares(nodes: Iterable[PricedNode], factor: float = 1.0) -> str:
    """`fleet/gpu 6.00 (task/train 4.00, task/eval 1.00), fleet/cpu 2.00 and 3 more`: those that cost
    something, times `factor`.
    """
    return and_more(
        (
            f"fleet/{fleet.fleet} {_amount(fleet.hourly, factor)}"
            + (f" ({tasks})" if (tasks := _tasks(fleet, factor)) else "")
            for fleet in fleet_shares(nodes)
            if fleet.hourly != 0
        ),
        MOST_NAMED,
    )


def _tasks(fleet: FleetShare, factor: float) -> str:
    dear = (task for task in fleet.tasks if task.hourly != 0)
    return and_more((f"task/{task.task} {_amount(task.hourly, factor)}" for task in dear), MOST_NAMED)


def _amount(hourly: float | None, factor: float) -> str:
    return "unknown" if hourly is None else f"{hourly * factor:,.2f}"
