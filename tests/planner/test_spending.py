"""The spending of a month: each hour counted once, from records, and compared with
`limits.cost_per_month`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from declarative.model.diagnostic import Severity
from declarative.model.state import Address, Spent
from declarative.planner.limits import with_limit_errors
from declarative.store import open_store
from declarative.store.rename import RenameMap
from declarative.store.snapshot import parse
from declarative.store.spending import by_month, month_of
from tests.support.model import World, of_node
from tests.support.planned import bring, declared

HOUR = 3600.0
MARCH = datetime(2026, 3, 31, 22, tzinfo=UTC).timestamp()
"""Two hours before its end."""


class Clock:
    at = MARCH

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(new_state, clock):
    with open_store(new_state(), clock=clock) as found:
        yield found


def node(price: float | None) -> dict[str, Any]:
    return {**of_node(), "price": price}


def launch(store, name: str, price: float | None) -> None:
    with store.lock("apply") as writer:
        intent = writer.begin("create", Address("node", name), "aws", node(price))
        writer.finish(intent, {"id": name})
        writer.finish(intent, {"id": name})  # again is no harm


def end(store, name: str) -> None:
    with store.lock("apply") as writer:
        have = writer.state().records[Address("node", name)]
        intent = writer.begin("delete", have.address, "aws", have.inputs)
        writer.finish(intent)
        writer.finish(intent)


def test_nodes_of_a_partition_are_there_anyway(store, clock):
    with store.lock("apply") as writer:
        inputs = {**node(2.0), "host": {"partition": "gpu", "slurm": "n0"}}
        writer.finish(writer.begin("create", Address("node", "a"), "hpc", inputs), {"id": "a"})
    clock.at += HOUR
    assert store.spent().dollars == 0.0


def test_a_time_is_split_where_months_meet():
    assert list(by_month(MARCH, MARCH + 5 * HOUR)) == [("2026-03", 2.0), ("2026-04", 3.0)]
    assert list(by_month(MARCH, MARCH)) == []
    december = month_of(datetime(2026, 12, 5, tzinfo=UTC).timestamp())
    assert (december[0], december[2]) == ("2026-12", datetime(2027, 1, 1, tzinfo=UTC).timestamp())


def test_nodes_are_paid_from_their_launch_to_their_end(store, clock):
    launch(store, "a", 2.0)
    launch(store, "b", None)
    launch(store, "c", 0.0)
    clock.at += HOUR
    assert store.spent().dollars == pytest.approx(2.0)
    clock.at += 2 * HOUR
    found = store.spent()
    assert (found.month, found.dollars, found.hours) == ("2026-04", pytest.approx(2.0), pytest.approx(1.0))
    end(store, "a")
    clock.at += 10 * HOUR
    assert store.spent().dollars == pytest.approx(2.0)
    clock.at = MARCH
    assert store.spent().dollars == pytest.approx(4.0), "March keeps its own"


def test_a_new_price_counts_from_then_on(store, clock):
    launch(store, "a", 2.0)
    clock.at += HOUR
    with store.lock("apply") as writer:
        writer.finish(writer.begin("update", Address("node", "a"), "aws", node(6.0)))
    clock.at += HOUR / 2
    assert store.spent().dollars == pytest.approx(2.0 + 3.0)


def test_a_renamed_node_is_paid_once(store, clock):
    launch(store, "a-0", 2.0)
    clock.at += HOUR
    with store.lock("state mv") as writer:
        writer.move(RenameMap(node={"a-0": "b-0"}))
    clock.at += HOUR / 2
    assert store.spent().dollars == pytest.approx(3.0)


def test_what_is_pushed_ends_and_begins(store, clock):
    launch(store, "a", 2.0)
    before = store.pull()
    launch(store, "b", 4.0)
    clock.at += HOUR
    with store.lock("state push") as writer:
        writer.push(*parse(before), force=True)
    clock.at += HOUR / 2
    assert store.spent().dollars == pytest.approx(2.0 + 4.0 + 1.0)


def beyond(spent: Spent | None, nodes: int, *, there: int = 0) -> list[Severity]:
    """Compares a plan of so many nodes at 80 USD/h with 60,000 USD a month."""
    fleet = {"name": "gpu", "blocks": 8}
    world = bring(World(), fleets=[{**fleet, "nodes": there}]) if there else World()
    desired = declared(fleets=[{**fleet, "nodes": nodes}])
    limits = replace(desired.project.limits, cost_per_month=60_000)
    desired = replace(desired, project=replace(desired.project, limits=limits))
    plan = world.plan(desired)
    preview = replace(plan.preview, cost=replace(plan.preview.cost, spent=spent))
    found = with_limit_errors(replace(plan, preview=preview), desired).diagnostics
    return [d.severity for d in found if d.code == "over-limit"]


def spent(dollars: float, hours: float) -> Spent:
    return Spent(month="2026-03", dollars=dollars, hours=hours)


@pytest.mark.parametrize(
    ("before", "nodes", "there", "found"),
    [
        (None, 1, 0, []),
        (spent(0.0, 0.0), 1, 0, []),
        (spent(1500.0, 0.0), 1, 0, []),
        (spent(1700.0, 0.0), 1, 0, [Severity.ERROR]),  # and 730 hours at 80 USD
        (spent(50_000.0, 630.0), 1, 0, []),
        (spent(53_000.0, 630.0), 1, 0, [Severity.ERROR]),
        (spent(60_001.0, 740.0), 1, 0, [Severity.ERROR]),  # a month of 31 days has more hours
        (spent(60_001.0, 740.0), 1, 1, [Severity.WARNING]),
        (spent(60_001.0, 740.0), 0, 1, [Severity.WARNING]),
    ],
)
def test_what_was_spent_counts_against_the_limit(before, nodes, there, found):
    assert beyond(before, nodes, there=there) == found
