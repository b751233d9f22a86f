"""The rules of `limits` at their bounds, on plans as values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.spec.project import HOURS_A_MONTH
from declarative.model.state import Spent
from declarative.planner.limits import over_limit, with_limit_errors
from declarative.planner.plan import ROUNDING, Cost, NodePreview, Op, Reason
from tests.render.test_render import act, node, volume
from tests.support.model import project
from tests.support.planned import plan_of

ERROR, WARNING = Severity.ERROR, Severity.WARNING
MADE = act(Op.CREATE, "node/gpu-1", after=node())
DELETED = act(Op.DELETE, "node/gpu-1", before=node())


def shown(name: str = "gpu-0", price: float | None = 90.0, **more: Any) -> NodePreview:
    known = {"total": 8, "holders": {}, "status": "kept", "state": "ready", **more}
    return NodePreview(name=name, fleet=name.rpartition("-")[0], price=price, **known)


GOES = shown("old-0", 5.0, status="deleted")
POOL = shown("pool-0", 80.0, holders={0: "rank/train-0"}, shared=True)


def takes(at: str) -> Any:
    """A rank takes blocks of this node."""
    return act(Op.CREATE, "reservation/train-0", after={"task": "train", "node": at, "blocks": [0]})


def limits_of(plan: Any, **limits: Any) -> list[tuple[Severity, str]]:
    return [(d.severity, d.summary) for d in with_limit_errors(plan, project(limits=limits)).diagnostics]


@pytest.mark.parametrize(
    ("price", "before", "severity"),
    [
        (80.0, 0.0, None),
        (80.0 + ROUNDING, 0.0, None),
        (80.0 + 3 * ROUNDING, 0.0, ERROR),
        (90.0, 0.0, ERROR),
        (90.0, None, ERROR),
        (90.0, 80.0, ERROR),
        (90.0, 90.0, WARNING),
        (90.0 + ROUNDING, 90.0, WARNING),
        (90.0, 95.0, WARNING),
    ],
)
@pytest.mark.parametrize("made", [True, False])
def test_a_plan_that_makes_nodes_and_costs_more_than_before_adds_to_the_cost(made, price, before, severity):
    cost = Cost(before=before, after=price)
    plan = plan_of(actions=(MADE,) if made else (), nodes=(shown(price=price), GOES), cost=cost)
    found = limits_of(plan, cost_per_hour=80)
    assert [severity for severity, _ in found] == (
        [] if severity is None else [severity if made else WARNING]
    )


@pytest.mark.parametrize(
    ("limit", "summary"),
    [
        ({"cost_per_hour": 80}, "all nodes would cost 90.00 USD/h; the limit is 80.00: fleet/gpu 90.00"),
        (
            {"cost_per_month": 7300},
            "all nodes would cost 65,700.00 USD a month; the limit is 7,300.00: fleet/gpu 65,700.00",
        ),
        ({"nodes": 0}, "there would be 1 nodes; the limit is 0: fleet/gpu 1"),
    ],
)
def test_what_is_deleted_is_neither_counted_nor_named(limit, summary):
    plan = plan_of(actions=(MADE,), nodes=(shown(), GOES), cost=Cost(before=0.0, after=90.0))
    assert limits_of(plan, **limit) == [(ERROR, summary)]
    over = over_limit(plan, project(limits=limit))
    assert over is not None
    assert over.summary == summary
    assert limits_of(plan_of(nodes=(GOES,)), **limit) == []


@pytest.mark.parametrize(
    ("actions", "severity"),
    [((MADE,), ERROR), ((DELETED, MADE), WARNING), ((), WARNING), ((DELETED,), WARNING)],
)
def test_a_plan_that_replaces_nodes_adds_none(actions, severity):
    plan = plan_of(actions=actions, nodes=(shown(), shown("gpu-1")))
    assert [severity for severity, _ in limits_of(plan, nodes=1)] == [severity]
    assert limits_of(plan, nodes=2) == []
    assert (over_limit(plan, project(limits={"nodes": 1})) is not None) == (severity is ERROR)


@pytest.mark.parametrize(("at", "severity"), [("pool-0", ERROR), ("gpu-0", WARNING)])
@pytest.mark.parametrize("price", [80.0, None])
def test_what_takes_more_of_a_partition_adds_to_the_cost(at, severity, price):
    """Its nodes are there anyway: what is held of them costs. What is taken of other nodes costs no more."""
    pool = replace(POOL, price=price)
    plan = plan_of(actions=(takes(at),), nodes=(shown(), pool), cost=Cost(before=90.0, after=100.0))
    found = limits_of(plan, cost_per_hour=95)
    assert [severity for severity, _ in found] == [severity]
    assert ("nobody knows the price of node/pool-0" in found[0][1]) == (price is None)
    spent = Cost(before=90.0, after=100.0, spent=Spent(month="2026-03", dollars=2.0, hours=740.0))
    plan = replace(plan, preview=replace(plan.preview, cost=spent))
    found = limits_of(plan, cost_per_month=1)
    assert [severity for severity, summary in found if "what was spent" in summary] == [severity]


def test_a_known_part_above_the_limit_is_a_lower_bound():
    plan = plan_of(actions=(MADE,), nodes=(shown(), shown("gpu-1", None)), cost=Cost(before=0.0, after=None))
    ((severity, summary),) = limits_of(plan, cost_per_hour=80)
    assert (severity, summary.partition(";")[0]) == (ERROR, "all nodes would cost at least 90.00 USD/h")
    ((severity, summary),) = limits_of(plan, cost_per_hour=91)
    why = "nobody knows the price of node/gpu-1, so the cost may be above `limits.cost_per_hour`"
    assert (severity, summary) == (ERROR, why)


@pytest.mark.parametrize("made", [True, False])
def test_the_rest_of_a_month_may_cost_as_much_as_is_left_of_the_limit(made):
    def found(dollars: float, hours: float) -> list[tuple[Severity, str]]:
        spent = Spent(month="2026-03", dollars=dollars, hours=hours)
        cost = Cost(before=0.0, after=90.0, spent=spent)
        return limits_of(
            plan_of(actions=(MADE,) if made else (), nodes=(shown(), GOES), cost=cost), cost_per_month=80_000
        )

    most = 80_000 + ROUNDING * HOURS_A_MONTH
    assert found(most, HOURS_A_MONTH) == found(most - 900.0, HOURS_A_MONTH - 10.0) == []
    summary = (
        "what was spent in 2026-03, and what all nodes would cost in the rest of it, is above the limit of "
    )
    summary += "80,000.00 USD" + ("" if made else "; this plan does not add to it") + ": fleet/gpu 65,700.00"
    severity = ERROR if made else WARNING
    assert found(most + 1.0, HOURS_A_MONTH) == [(severity, summary)]
    assert found(most - 899.0, HOURS_A_MONTH - 10.0) == [(severity, summary)]


# ------------------------------------------------------------------------------------------- protected


@pytest.mark.parametrize("kind", ["node/pair-0", "volume/data-0"])
def test_what_a_pattern_names_is_neither_deleted_nor_replaced(kind):
    inputs = node() if kind.startswith("node") else volume()
    gone = act(Op.DELETE, kind, before=inputs)
    made = act(Op.CREATE, kind, after=inputs)
    other = act(Op.CREATE, "node/other-0", after=node())
    guard = {"protected": ["fleet/pair", "volume/data"]}

    def found(*actions: Any, diagnostics: Any = ()) -> list[str]:
        plan = plan_of(actions=actions, diagnostics=diagnostics)
        found = with_limit_errors(plan, project(limits=guard)).diagnostics
        return [d.summary.partition(",")[0] for d in found if d.code == "protected"]

    assert found(gone, other) == [f"{kind} would be deleted"]
    assert found(gone, made) == [f"{kind} would be replaced"]
    assert found(made) == []
    assert found(replace(gone, forget=True, reason=Reason.REMOVED)) == []
    assert found(gone, diagnostics=(Diagnostic(code="protected", summary="x", address=kind),)) == ["x"]
    noted = (Diagnostic(code="drift", summary="x", address=kind, severity=WARNING),)
    assert found(gone, diagnostics=noted) == [f"{kind} would be deleted"]


def test_a_node_is_guarded_by_its_fleet_and_not_by_its_name():
    """A node may be named otherwise than its fleet."""
    gone = act(Op.DELETE, "node/other-0", before=node())
    for pattern, count in (("fleet/pair", 1), ("node/other-0", 1), ("fleet/other", 0), ("node/other", 0)):
        found = with_limit_errors(
            plan_of(actions=(gone,)), project(limits={"protected": [pattern]})
        ).diagnostics
        assert len(found) == count, pattern
