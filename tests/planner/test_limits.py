"""`limits` of the project: cost, nodes, protected things; and other policies on `plan --json`."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Project, fleet, task, volume

ROOT = Path(__file__).parents[2]
CLOUD = {
    "type": "backend",
    "name": "aws",
    "driver": "ec2",
    "regions": ["us-east-1"],
    "catalog": [{"instance_type": "t3.medium", "cpu": 2, "memory": "4GB", "price": 2.0}],
}
OFFLINE = ("--offline", "--assume-empty")


def limits(**found: Any) -> dict[str, Any]:
    return {"type": "project", "limits": found}


def on_cloud(count: int, /, **found: Any) -> list[dict[str, Any]]:
    return [
        CLOUD,
        fleet(nodes=count, resources={"cpu": 2}, blocks=1, instance_types=["t3.medium"], backends=["aws"]),
        limits(**found),
    ]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"cost_per_hour": 5}, "all nodes would cost 6.00 USD/h; the limit is 5.00"),
        ({"cost_per_month": 4000}, "all nodes would cost 4,380.00 USD a month; the limit is 4,000.00"),
        ({"cost_per_hour": 5, "cost_per_month": 1}, "4,380.00 USD a month; the limit is 1.00"),
        ({"nodes": 2}, "there would be 3 nodes; the limit is 2"),
        ({"nodes": 0}, "the limit is 0"),
    ],
)
def test_beyond_a_limit(project: Project, found, message):
    project.declare(*on_cloud(3, **found))
    done = project.run("plan", *OFFLINE, code=1)
    assert message in done.err
    assert "error[over-limit]" in done.err
    assert "main.yaml:" in done.err
    assert f'"{list(found)[-1]}"' in done.err


def two_fleets(**found: Any) -> list[dict[str, Any]]:
    """6.00 USD/h in two fleets, of which one task holds 2.00."""
    small = {"resources": {"cpu": 2}, "blocks": 1, "instance_types": ["t3.medium"], "backends": ["aws"]}
    train = task("train", "true", fleets=["big"])
    return [CLOUD, fleet("big", nodes=2, **small), fleet("small", nodes=1, **small), train, limits(**found)]


def test_a_refused_plan_is_shown_with_what_costs_most(project):
    """By `plan` and by `apply`, in every format; and nothing is done."""
    project.declare(*two_fleets(cost_per_hour=5))
    done = project.run("plan", *OFFLINE, "--report", "p.md", "--report", "p.html", code=1)
    most = "the limit is 5.00: fleet/big 4.00 (task/train 2.00), fleet/small 2.00"
    assert most in done.err
    assert "+ node/big-0, node/big-1" in done.out
    assert "Plan: 5 to create" in done.out
    assert done.out.endswith("The plan cannot be applied: 1 error.\n")
    table = [
        ["fleet/big", "4.00", "2,920.00", "2", "nodes"],
        ["task/train", "2.00", "1,460.00"],
        ["idle", "2.00", "1,460.00"],
        ["fleet/small", "2.00", "1,460.00", "1", "node"],
    ]
    for text in (done.out, *((project.path / name).read_text() for name in ("p.md", "p.html"))):
        rows = [line.split() for line in re.sub("<[^>]*>", "", text).splitlines()]
        assert [row for row in table if row in rows] == table
    assert "### fleetform, `project`: refused: 5 to create" in (project.path / "p.md").read_text()
    assert "| USD an hour | 0.00 | 6.00 | +6.00 |" in (project.path / "p.md").read_text()
    shown = project.run("plan", *OFFLINE, "--json", code=1).json
    assert shown["result"] == "error"
    assert len(shown["actions"]) == 5
    assert shown["cost"]["fleets"] == [
        {"fleet": "big", "nodes": 2, "hourly": 4.0, "tasks": [{"task": "train", "hourly": 2.0}]},
        {"fleet": "small", "nodes": 1, "hourly": 2.0, "tasks": []},
    ]
    explained = project.run("explain", "task/train", "--offline", code=1)
    assert most in explained.err
    assert "task/train is placed by this plan" in explained.out


def test_a_limit_of_nodes_names_the_largest_fleets(project):
    project.declare(fleet("more", nodes=2), fleet("few", nodes=1), limits(nodes=2))
    done = project.apply(code=1)
    assert "there would be 3 nodes; the limit is 2: fleet/more 2, fleet/few 1" in done.err
    assert "+ node/more-0, node/more-1" in done.out
    assert project.run("state", "list").out == ""


def test_errors_that_are_no_rules_show_no_plan(project):
    odd = {"resources": {"cpu": 2}, "instance_types": ["t3.medium"], "backends": ["aws"]}
    project.declare(*two_fleets(cost_per_hour=5), fleet("none", nodes=1, blocks=3, **odd))
    assert project.run("plan", *OFFLINE, code=1).out == ""


def test_status_says_which_limit_is_exceeded_and_by_what(project):
    """A limit may be set later than what it limits was made."""
    priced = {"name": "here", "type": "backend", "driver": "local"}
    kind = {"instance_type": "box", "cpu": 2, "memory": "1GB", "price": 2.0}
    here = {**priced, "regions": ["east"], "catalog": [kind]}
    mine = fleet("dear", nodes=2, backends=["here"], blocks=2, resources={"cpu": 2})
    project.declare(here, mine)
    project.apply()
    project.declare(here, mine, limits(cost_per_hour=3, nodes=2))
    done = project.run("status")
    assert "4.00 USD/h" in done.out
    assert (
        "Beyond the project's `limits`: 4 cost_per_hour, the limit is 3; USD/h: fleet/dear 4.00" in done.out
    )
    shown = project.status()
    assert shown["limits"] == [
        {"limit": "cost_per_hour", "most": 3.0, "now": 4.0},
        {"limit": "nodes", "most": 2, "now": 2},
    ]
    assert [f["hourly"] for f in shown["fleets"]] == [4.0]


def test_explain_names_the_limit_that_refuses(project):
    """Of the month as well, which counts what was spent in it: here more than the limit, on any day of it."""
    train = task("train", "true", nodes=3, fleets=["gpu"])
    project.declare(*on_cloud(3, cost_per_hour=5), train)
    done = project.run("explain", "task/train", "--offline", code=1)
    assert "all nodes would cost 6.00 USD/h; the limit is 5.00" in done.err
    project.declare(fleet("here", backends=["local"], nodes=1), CLOUD)
    project.apply("--target", "fleet/here", env={})
    with closing(sqlite3.connect(project.path / ".fleetform/state.db")) as state, state:
        month = datetime.now(UTC).strftime("%Y-%m")
        state.execute("INSERT INTO spent_months VALUES (?, 5000)", (month,))
    project.declare(*on_cloud(3, cost_per_month=6 * 730), train)
    done = project.run("explain", "task/train", "--offline", "--json", code=1)
    (found,) = [d for d in done.json["diagnostics"] if d["code"] == "over-limit"]
    assert f"what was spent in {month}" in found["summary"]
    assert "is above the limit of 4,380.00 USD" in found["summary"]
    assert "`limits.cost_per_month`" in found["hint"]


def test_within_all_limits(project):
    project.declare(*on_cloud(3, cost_per_hour=6, cost_per_month=6 * 730, nodes=3))
    project.run("plan", *OFFLINE)


def test_an_unknown_price_is_not_0(project):
    kind = {"instance_type": "t3.medium", "cpu": 2, "memory": "4GB"}
    documents = on_cloud(3, cost_per_hour=1000)
    project.declare({**CLOUD, "catalog": [kind]}, *documents[1:])
    done = project.run("plan", *OFFLINE, code=1)
    assert "nobody knows the price of node/gpu-0, node/gpu-1, node/gpu-2" in done.err


def test_a_part_is_held_against_the_limits_by_itself(project):
    project.declare(*on_cloud(2, nodes=2), fleet("more", backends=["local"]))
    project.run("plan", *OFFLINE, code=1)
    project.run("plan", *OFFLINE, "--target", "fleet/gpu")


def test_what_is_there_already_is_a_warning(project):
    """A limit that is set later stops what adds to it, and nothing else."""
    project.declare(fleet(nodes=3))
    project.apply()
    project.declare(fleet(nodes=3), volume(), limits(nodes=2))
    done = project.run("plan")
    assert "there would be 3 nodes; the limit is 2; this plan does not add to it" in done.err
    project.apply()
    project.declare(fleet(nodes=4), limits(nodes=2))
    project.apply(code=1)
    assert len(project.busy()) == 3


def test_protected_things_are_not_deleted(project):
    guarded = limits(protected=["fleet/prod-*", "volume/data"])
    fleets = [fleet("prod-a", nodes=1), fleet("dev-a", nodes=1)]
    project.declare(*fleets, volume(count=2), guarded)
    project.apply()
    project.declare(guarded)
    done = project.run("plan", code=1)
    assert (
        "node/prod-a-0 would be deleted, and the project's `limits.protected` has `fleet/prod-*`" in done.err
    )
    assert "volume/data-[0-1] would be deleted" in done.err
    assert "dev-a" not in done.err
    assert "main.yaml:" in done.err
    project.declare(*fleets, volume(count=2), guarded)
    project.run("plan", "--replace", "node/prod-a-0", code=1)
    done = project.run("destroy", "--auto-approve")
    kept = "node/prod-a-0, volume/data-0, volume/data-1"
    assert f"Kept, because of the project's `limits.protected`: {kept}.\nTo delete them too: take" in done.out
    assert "prevent_destroy" not in done.out
    assert set(project.run("state", "list").out.split()) == {
        "node/prod-a-0",
        "volume/data-0",
        "volume/data-1",
    }
    project.declare(*fleets, volume(count=2))
    project.run("destroy", "--auto-approve")
    assert project.run("state", "list").out == ""


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"protected": ["task/train"]}, "write `fleet/NAME`, `node/NAME` or `volume/NAME`"),
        ({"protected": "fleet/prod"}, "expected a list"),
        ({"cost_per_hour": -1}, "cost_per_hour"),
        ({"hourly": 1}, "`hourly` is not a field of limits"),
    ],
)
def test_wrong_limits(project, found, message):
    project.declare(limits(**found), fleet())
    assert message in project.run("validate", code=1).err


# ------------------------------------------------------------------------------------------- policies


def denied(plan: dict[str, Any]) -> list[str]:
    engine = pytest.importorskip("regorus", reason="no Rego engine on this machine").Engine()
    engine.add_policy_from_file(str(ROOT / "examples" / "policy" / "plan.rego"))
    engine.set_input_json(json.dumps(plan))
    found: list[str] = engine.eval_rule("data.main.deny")
    return sorted(found)


def test_the_example_of_a_policy(project):
    """What conftest would say of it: `conftest test --policy examples/policy plan.json`."""
    project.declare(*on_cloud(6))
    plan = project.plan(*OFFLINE)
    assert denied(plan) == ["the plan costs 12 USD/h more, and 10 is the most that one change may add"]
    project.declare(fleet(), volume())
    assert denied(project.plan()) == []
    project.apply()
    project.declare(fleet(blocks=1))
    assert denied(project.plan()) == ["volume/data would be deleted: its data would be lost"]
    assert denied({**plan, "cost": {**plan["cost"], "hourly_after": None}}) == [
        "the cost is unknown: a node has no known price"
    ]
