"""The plan's text about tasks without a place and about money, from one node to thousands, in
golden files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from declarative.placement.problem import Rejection, Suggestion
from declarative.planner.plan import Cost, ReservationStatus
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.placement.test_placement import SHAPE, ask, fleet, node, offer, run
from tests.planner.test_plan import SMALL, TRAIN, brought, wanted
from tests.render.test_render import create_plan, golden, preview, reserved
from tests.support.model import World
from tests.support.planned import GPU, declared, plan_of

GANG = {"nodes": 64, "resources": {"cpu": "8.."}}


def nodes(count):
    """So many nodes of eight blocks, one to seven of them busy."""
    return [node(f"gpu-{i}", total=8, held=range(1 + i % 7), instance_type="x8") for i in range(count)]


def gpu(**more):
    return [fleet(nodes=4, existing=4, placement="cluster", blocks=8, **more)]


CASES = {
    "one-node": lambda: run(ask("big", resources={"cpu": 8}), nodes(1), gpu()),
    "five-nodes": lambda: run(
        ask("big", resources={"cpu": 8}), nodes(5), [fleet(nodes=5, existing=5, blocks=8, offers=[offer()])]
    ),
    "5000-nodes": lambda: run(
        ask("big", resources={"cpu": 8}), [*nodes(4000), *(node(f"old-{i}") for i in range(1000))], gpu()
    ),
    "gang-of-64": lambda: run(
        ask("train", **GANG), [node(f"gpu-{i}", held=[0] if i > 30 else []) for i in range(64)], gpu()
    ),
    "gang-that-never-fits": lambda: run(ask("train", **GANG), [node(f"gpu-{i}") for i in range(31)], gpu()),
    "200-alike": lambda: run(
        [
            *(ask(f"sweep-{i}", resources={"cpu": 8}) for i in range(200)),
            *(ask(name, resources={"cpu": "99.."}) for name in ("anna", "bert", "carl", "dora", "emil")),
        ],
        nodes(3),
        gpu(),
    ),
    "30-different": lambda: run(
        [ask(f"job-{i}", resources={"cpu": f"{9 + i}.."}) for i in range(30)], nodes(1), gpu()
    ),
}


def text_of(refusals, **more):
    return plan_text(plan_of(refusals=tuple(refusals), **more), color=False, width=100)


@pytest.mark.parametrize("name", CASES)
def test_text(name):
    """Never or not now, the cause and what fits, what was wanted and had; counts where there are many."""
    text = text_of(CASES[name]().refusals)
    assert len(text.splitlines()) < 170
    golden(f"unplaced-{name}.txt", text)


def test_every_node_and_offer_is_counted_once():
    """However few of them are named."""
    out = CASES["5000-nodes"]()
    (cause,) = [v for v in out.refusals[0].ranks if v.rejections]
    assert sum(r.count for r in cause.rejections if r.code == "busy") == 4000
    assert sum(r.count for r in cause.rejections) == 5001  # the fleet without an offer is one
    assert len(cause.rejections) < 12
    text = text_of(out.refusals)
    assert "4000  busy " in text
    assert "1000  fleet " in text
    assert "the nearest: wanted 8 blocks, 7 of 8 idle (rank/other-0); short by 1 block\n" in text


def test_the_count_is_not_in_the_json():
    """Its keys are a contract."""
    out = CASES["5000-nodes"]()
    (refusal,) = plan_json(plan_of(refusals=out.refusals))["unplaced"]
    assert list(refusal) == [
        *("task", "code", "summary", "proved", "hint", "starts", "changes", "ranks", "before", "after")
    ]
    keys = {tuple(r) for v in refusal["ranks"] for r in v["rejections"]}
    assert keys == {("target", "code", "detail", "short")}


def test_names_come_in_the_order_in_which_people_count():
    out = run(ask(resources={"cpu": 8}), nodes(12), gpu())
    (cause,) = out.refusals[0].ranks
    named = [r.target for r in cause.rejections if r.code == "busy"]
    assert named == [f"node/gpu-{i}" for i in range(12)]


def test_summary_folds_what_is_alike():
    text = plan_text(
        plan_of(refusals=CASES["200-alike"]().refusals),
        color=False,
        width=100,
        summary_only=True,
    )
    assert [line.partition("]:")[0] for line in text.splitlines()] == [
        "  task/anna, task/bert, task/carl and 2 more[never-fits",
        "  task/sweep-[0-199][no-capacity",
        "No changes. 205 tasks cannot be placed.",
    ]


def test_tasks_that_wait_are_told_from_those_that_do_not():
    """Alike in all else, they are not one entry."""
    text = text_of(CASES["200-alike"]().refusals, waiting=("sweep-0", "sweep-1"))
    assert "task/sweep-[2-199][no-capacity]: 198 tasks alike, each does not fit now" in text
    assert "task/sweep-[0-1][no-capacity]: 2 tasks alike, each does not fit now" in text
    assert text.count("= `retry`: it stays pending, and every `fleetform apply` tries again\n") == 1
    assert text.endswith("205 tasks cannot be placed, 2 of them stay pending.\n")
    one = run(ask(resources={"cpu": 8}), nodes(1), gpu()).refusals
    assert text_of(one, waiting=("train",)).endswith("1 task cannot be placed now and stays pending.\n")


def test_waiting_is_for_what_may_fit_later():
    """`retry` with `no-capacity`; what can never fit is not waited for."""
    retry = {"retry": {"on_events": ["no-capacity"]}}
    tasks: list[dict[str, Any]] = [
        {"name": "aa", "exclusive": True, "priority": 9},
        {"name": "bb", "resources": {"gpu": 1}, **retry},
        {"name": "cc", "resources": {"gpu": 9}, **retry},
        {"name": "dd", "resources": {"gpu": 1}},
    ]
    plan = World().plan(declared([{**GPU, "nodes": 1}], tasks))
    assert {r.task: r.code for r in plan.unplaced.refusals} == {
        "bb": "no-capacity",
        "cc": "never-fits",
        "dd": "no-capacity",
    }
    assert plan.unplaced.waiting == ("bb",)


def test_when_the_nodes_were_observed():
    """The one that was looked at longest ago; offline it is what was recorded."""
    world = brought()
    old: dict[str, Any] = {"observed_at": 86400.0}
    assert world.plan(wanted()).basis.observed_at == world.now
    first = plan_of(refusals=CASES["one-node"]().refusals, **old)
    said = "Nodes: observed at 1970-01-02T00:00:00Z; apply looks at each again before it uses it.\n"
    assert said in plan_text(first, color=False, width=100)
    offline = text_of(first.unplaced.refusals, offline=True, **old)
    assert said.replace("observed at", "as recorded at") in offline
    assert "Nodes:" not in text_of(first.unplaced.refusals)  # there are none


# ----------------------------------------------------------------------------------------------- money


def rank_rows(plan):
    """Task, rank and price of the table of ranks."""
    lines = plan_text(plan, color=False, width=100).partition("\nRanks:\n")[2].partition("\n\nCost")[0]
    rows = [line.split() for line in lines.splitlines()[2:]]
    return [(row[0], row[1], row[-1] if row[1] == "all" else row[-2]) for row in rows]


def test_a_task_of_several_ranks_has_a_sum():
    """Of what its ranks hold or will hold, `?` with one that is unknown; none for a task of one rank."""
    held = (
        *(reserved(i, price=1.25) for i in range(3)),
        reserved(3, price=9.0, status=ReservationStatus.RELEASED),
        reserved(0, task="one", price=2.0),
        *(reserved(i, task="vague", price=p) for i, p in enumerate((1.0, None))),
        *(reserved(i, task="free", price=0.0) for i in range(2)),
    )
    plan = plan_of(actions=create_plan().actions, reservations=held)
    assert rank_rows(plan) == [
        *(("train", str(i), "1.25") for i in range(3)),
        ("train", "3", "9.00"),
        ("train", "all", "3.75"),
        ("one", "0", "2.00"),
        ("vague", "0", "1.00"),
        ("vague", "1", "?"),
        ("vague", "all", "?"),
        ("free", "0", "0.00"),
        ("free", "1", "0.00"),
    ]


def test_shares_of_a_plan_add_up():
    """A rank pays for its blocks of the node's, its task for all of them, and the plan for whole nodes."""
    catalog = [{"instance_type": "x", "cpu": 8, "memory": "64GB", "gpu": "H100:8", "price": 8.0}]
    catalog[0]["spot_price"] = 4.0
    fleets = [{**GPU, "nodes": "0..2", "spot_policy": "spot"}]
    tasks = [{"name": "pair", "nodes": 2, "exclusive": False, "resources": {"gpu": 3}}]
    plan = World().plan(declared(fleets, tasks, catalog=catalog))
    assert rank_rows(plan) == [("pair", "0", "1.50"), ("pair", "1", "1.50"), ("pair", "all", "3.00")]
    text = plan_text(plan, color=False, width=100)
    assert "Cost: 0.00 → 4.00 USD/h (the least possible)\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  node/gpu-0 "))
    assert line.endswith("6/8 busy  new, 4.00 USD/h, spot")


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (0.0, 9.84, "Cost: 0.00 → 9.84 USD/h (not compared with the least possible)"),
        (2.0, 2.0, "Cost: 2.00 USD/h (unchanged)"),
        (2.0, None, "Cost: 2.00 USD/h → unknown (some nodes have no known price)"),
        (None, 0.0, "Cost: unknown → 0.00 USD/h (some nodes have no known price)"),
        (None, None, "Cost: unknown (some nodes have no known price)"),
    ],
)
def test_an_unknown_cost_is_never_a_number(before, after, line):
    plan = plan_of(actions=create_plan().actions, cost=Cost(before=before, after=after))
    assert line in plan_text(plan, color=False, width=100).splitlines()
    if after is None:
        assert plan_json(plan)["cost"]["hourly_after"] is None


@pytest.mark.parametrize(
    ("price", "spot", "note"),
    [
        (80.0, False, "new, 80.00 USD/h"),
        (0.12345, True, "new, 0.1235 USD/h, spot"),
        (None, False, "new, price unknown"),
        (0.0, False, "new"),
    ],
)
def test_a_launch_says_what_it_costs(price, spot, note):
    plan = plan_of(actions=create_plan().actions, nodes=(preview(price=price, spot=spot),))
    assert f"2/2 busy  {note}" in plan_text(plan, color=False, width=100).splitlines()[-4]


def test_the_preview_knows_prices_of_all_nodes():
    """Also of those that stay."""
    plan = brought(tasks=()).plan(wanted(tasks=(TRAIN, SMALL)))
    assert [(n.price, n.spot) for n in plan.preview.nodes] == [(0.0, False)] * len(plan.preview.nodes)


def test_a_rejection_stands_for_itself_unless_it_says_otherwise():
    assert Rejection(target="node/x", code="busy", detail="").count == 1


def test_moves_are_suggested_and_nothing_is_said_without():
    """What could be had by hand, which rank would go where, and that no plan does it."""
    moves = (("rank/tiny-0", "gpu-3", "gpu-1"),)
    plan = plan_of(suggestions=(Suggestion(node="gpu-3", moves=moves, saves=10.32),))
    text = plan_text(plan, color=False, width=100)
    assert "Possible by hand (nothing that runs is moved by a plan):\n" in text
    assert "  1 move would free node/gpu-3: -10.32 USD/h  rank/tiny-0 to gpu-1\n" in text
    assert "Possible" not in plan_text(plan_of(), color=False, width=100)


def test_what_a_model_lacks_is_no_number():
    """`short by 2 gpu model` says nothing: the detail has the names."""
    there = node("gpu-0", total=1, shape=replace(SHAPE, gpus=2, gpu_name="H100"))
    outcome = run(ask("big", resources={"gpu": "A100:2"}), [there], gpu())
    text = text_of(outcome.refusals)
    assert "gpu model: wanted A100, has H100" in text
    assert "short by" not in text
