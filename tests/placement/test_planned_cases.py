"""Placement from a project to the plan's JSON, case by case: blocks, pins, growth.

Order and refusals are in test_order_and_refusals.py, volumes in test_volumes.py, laws of every world in
laws/test_placement.py.
"""

import re

import pytest

from declarative.model.status import BOOTING, NodeState, RankState
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from declarative.render.status_view import status_json, status_view
from tests.support.model import World
from tests.support.planned import (
    GPU,
    H100,
    bring,
    codes,
    created,
    declared,
    look,
    places,
    refused,
    rejections,
    small,
    verdicts,
)

WHOLE = tuple(range(8))

# ---------------------------------------------------------------------------------- whole nodes and blocks


def test_two_ranks_reuse_two_split_nodes():
    """A gang takes all blocks of nodes that are split, without a launch."""
    world = bring(World())
    train = {"name": "train", "nodes": 2, "creation_policy": "reuse"}
    found = look(world, tasks=[train])
    assert places(found) == {"train-0": ("gpu-0", WHOLE), "train-1": ("gpu-1", WHOLE)}
    assert created(found) == []
    bring(world, tasks=[train])


@pytest.mark.parametrize("policy", ["reuse", "reuse-or-create"])
def test_four_ranks_on_three_nodes_are_refused(policy):
    """Nodes are counted and not blocks: 24 idle blocks are three places for exclusive ranks."""
    fleet = {**GPU, "nodes": 3}
    world = bring(World(), [fleet])
    found = look(world, [fleet], [{"name": "train", "nodes": 4, "creation_policy": policy}])
    refusal = refused(found)
    assert re.search(r"\b4 whole idle nodes\b.*\b3 found\b", refusal["summary"])
    assert (found["result"], found["reservations"], created(found)) == ("unplaced", [], [])
    assert verdicts(refusal).count("fits") == 3


def test_one_busy_block_makes_a_node_not_whole():
    """The refusal says which node, who holds the block, and what is missing."""
    world = bring(World(), tasks=small(1))
    found = look(world, tasks=[*small(1), {"name": "train", "nodes": 2}])
    refusal = refused(found)
    assert refusal["code"] == "no-capacity"
    off = rejections(refusal)["node/gpu-0"]
    assert (off["code"], off["short"]) == ("not-idle", {"blocks": 1})
    assert "rank/small-0-0" in off["detail"]
    assert places(found) == {"small-0-0": ("gpu-0", (0,))}


def shown(world, desired):
    """The blocks of the only fleet, as `status` counts them."""
    return status_json(status_view(desired, world.state()))["fleets"][0]["blocks"]


@pytest.mark.parametrize("how", ["ended", "removed"])
def test_what_is_busy_is_derived_from_the_reservations(how):
    """Six of eight blocks busy are two idle; once all are stopped, eight are, never eleven."""
    fleet = {**GPU, "nodes": 1}
    desired = declared([fleet], small(6))
    plan = World().plan(desired)
    assert [(n.name, n.total, len(n.holders)) for n in plan.preview.nodes] == [("gpu-0", 8, 6)]
    world = bring(World(), [fleet], small(6))
    assert shown(world, desired) == {"total": 8, "busy": 6, "idle": 2}
    if how == "ended":
        for name in world.running():
            world.end(name, RankState.STOPPED)
        world.settle()
    else:
        bring(world, [fleet])
    assert shown(world, desired) == {"total": 8, "busy": 0, "idle": 8}


@pytest.mark.parametrize(
    ("asked", "blocks"),
    [
        ({"gpu": "H100:3"}, 3),
        ({"cpu": "33.."}, 3),
        ({"cpu": "36.."}, 3),
        ({"cpu": "37.."}, 4),
        ({"gpu": "H100:1", "cpu": "..12"}, 1),
        ({"memory": "129GB.."}, 2),
        ({}, 1),
    ],
)
def test_a_rank_takes_the_fewest_blocks_that_hold_it(asked, blocks):
    """A block has a GPU, 12 CPUs and 128 GB; its price is its part of the node's."""
    found = look(World(), [{**GPU, "nodes": "0..1"}], [{"name": "one", "resources": asked}])
    (place,) = found["reservations"]
    assert (len(place["blocks"]), place["total_blocks"]) == (blocks, 8)
    assert place["price"] == pytest.approx(blocks * 10.0)
    assert found["cost"]["hourly_after"] == 80.0


def test_upper_bounds_hold_for_the_whole_node():
    """An exclusive rank gets all of a node: more than it allows is too large, and both ways out are named."""
    gang = {"name": "train", "nodes": 2, "resources": {"cpu": 12}}
    refusal = refused(look(World(), tasks=[gang]))
    assert refusal["code"] == "never-fits"
    off = [r for r in rejections(refusal).values() if r["code"] == "too-large"]
    assert off
    for rejection in off:
        assert rejection["short"]["cpu"] < 0
        assert "widen the range" in rejection["detail"]
        assert "exclusive: false" in rejection["detail"]
    assert len(places(look(World(), tasks=[{**gang, "resources": {"cpu": "12..96"}}]))) == 2
    assert len(places(look(World(), tasks=[{**gang, "exclusive": False}]))) == 2


def test_tasks_never_fight_over_a_block():
    """All tasks of a plan are placed on one working copy: each block has one holder."""
    fleet = {**GPU, "nodes": "0..3", "placement": "any"}
    sizes = [5, 3, 1, 4, 2, 1, 3, 2, 2, 1]
    tasks = [{"name": f"t{i}", "resources": {"gpu": n}} for i, n in enumerate(sizes)]
    found = look(World(), [fleet], tasks)
    assert (found["unplaced"], created(found)) == ([], ["node/gpu-0", "node/gpu-1", "node/gpu-2"])
    held = [(node, block) for node, blocks in places(found).values() for block in blocks]
    assert len(held) == len(set(held)) == sum(sizes) == 24
    bring(World(), [fleet], tasks)


# ------------------------------------------------------------------------------------------ pins, readiness

SICK = sorted({*NodeState} - BOOTING - {NodeState.READY, NodeState.FAILED})
"""One that has failed is made anew, if it is idle; one that boots is waited for."""


def not_ready(state):
    """The code of what turns down a node in that state."""
    return "drained" if state is NodeState.DRAINING else "not-ready"


@pytest.mark.parametrize("state", SICK)
def test_a_pinned_node_that_is_not_ready_is_refused_by_name(state):
    """The task goes nowhere else, however idle the others are, and to it once it is ready."""
    fleet = {**GPU, "nodes": "2..4"}
    world = bring(World(), [fleet])
    world.sick["gpu-0"] = state
    pinned = [{"name": "one", "instances": ["gpu-0"]}]
    found = look(world, [fleet], pinned)
    refusal = refused(found)
    off = codes(refusal)
    said = (refusal["code"], off["node/gpu-0"], off["node/gpu-1"])
    assert said == ("no-capacity", not_ready(state), "instance")
    assert state is NodeState.DRAINING or state.value in rejections(refusal)["node/gpu-0"]["detail"]
    assert (found["reservations"], found["actions"]) == ([], [])
    del world.sick["gpu-0"]
    assert places(look(world, [fleet], pinned)) == {"one-0": ("gpu-0", (0,))}


def test_a_pinned_node_that_failed_is_made_anew_for_its_task():
    """And nothing is placed on what is there."""
    fleet = {**GPU, "nodes": "2..4"}
    world = bring(World(), [fleet])
    world.sick["gpu-0"] = NodeState.FAILED
    found = look(world, [fleet], [{"name": "one", "instances": ["gpu-0"]}])
    assert places(found) == {"one-0": ("gpu-0", (0,))}
    assert [r["new_node"] for r in found["reservations"]] == [True]
    made = [(a["id"], a["reason"]) for a in found["actions"] if a["address"] == "node/gpu-0"]
    assert made == [("delete:node/gpu-0", "unfit"), ("create:node/gpu-0", "unfit")]


@pytest.mark.parametrize("state", SICK)
def test_a_gang_does_not_shrink_to_the_pinned_nodes_that_are_ready(state):
    """One of two pinned nodes is not ready: the whole task is refused."""
    fleet = {**GPU, "nodes": "3..4"}
    world = bring(World(), [fleet])
    world.sick["gpu-1"] = state
    found = look(world, [fleet], [{"name": "train", "nodes": 2, "instances": ["gpu-0", "gpu-1"]}])
    refusal = refused(found)
    assert sorted(verdicts(refusal)) == ["cause", "fits"]
    assert codes(refusal)["node/gpu-1"] == not_ready(state)
    assert (found["reservations"], found["actions"]) == ([], [])


def test_a_gang_does_not_shrink_when_a_pinned_node_is_lost():
    """A gang that lost a node, which cannot be had again, is refused whole when it is to run again."""
    gang = {"name": "train", "nodes": 2, "instances": ["gpu-0", "gpu-1"]}
    world = bring(World(), tasks=[gang])
    world.gone.add(next(r.address for r in world.of("node") if r.address.name == "gpu-1"))
    world.settle()
    desired = declared(tasks=[gang], catalog=[{**H100, "limit": 1}])
    found = plan_json(world.plan(desired, requested=frozenset({"task/train"})))
    refusal = refused(found)
    assert sorted(verdicts(refusal)) == ["cause", "fits"]
    assert places(found) == {}
    assert created(found, "rank") == created(found, "reservation") == []


def test_unknown_is_neither_ready_nor_empty():
    """A node whose readiness cannot be read gets no work, and it is not deleted as one that is idle."""
    world = bring(World(), [{**GPU, "idle_duration": "0s"}])
    world.sick["gpu-1"] = NodeState.UNKNOWN
    found = look(world, [{**GPU, "idle_duration": "0s"}], tasks=small(9))
    assert {node for node, _ in places(found).values()} == {"gpu-0"}
    assert codes(refused(found))["node/gpu-1"] == "not-ready"
    found = look(world, [{**GPU, "nodes": "0..2", "idle_duration": "0s"}])
    assert [a["id"] for a in found["actions"]] == ["delete:node/gpu-0"]


# ------------------------------------------------------------------------------------------ regions, growth


def test_any_spans_two_regions_and_cluster_does_not():
    """One node in each of two regions are two places for `placement: any` and none for a cluster of two."""
    catalog = [{**H100, "limit": 1}]
    fleets = [{**GPU, "nodes": "0..2", "blocks": 1, "placement": "any"}]
    task = {"name": "train", "nodes": 2, "placement": "any"}
    both = ("east", "west")
    found = look(World(), fleets, [task], catalog=catalog, regions=both)
    assert [r["region"] for r in found["reservations"]] == ["east", "west"]
    cluster = {**task, "placement": "cluster"}
    refusal = refused(look(World(), fleets, [cluster], catalog=catalog, regions=both))
    assert (refusal["code"], set(codes(refusal).values())) == ("never-fits", {"not-cluster"})
    fleets[0]["placement"] = "cluster"
    found = look(World(), fleets, [cluster], catalog=catalog, regions=both)
    assert refused(found)["code"] == "never-fits"
    assert (found["reservations"], found["actions"]) == ([], [])


def test_small_tasks_share_the_nodes_that_are_launched_for_them():
    """New nodes are split as the fleet says, though its `resources` are those of whole nodes."""
    fleet = {**GPU, "nodes": "0..2", "resources": {"gpu": "H100:8", "cpu": "90.."}}
    found = look(World(), [fleet], small(8))
    assert created(found) == ["node/gpu-0"]
    assert {r["total_blocks"] for r in found["reservations"]} == {8}
    found = look(World(), [fleet], small(9))
    assert created(found) == ["node/gpu-0", "node/gpu-1"]
    assert sorted(b for n, blocks in places(found).values() for b in blocks if n == "gpu-0") == list(WHOLE)


def test_a_small_task_makes_a_split_fleet_grow_up_to_its_maximum():
    """And not beyond: the seventeenth one-GPU task of a fleet of two is refused (dstack #4188, #3056)."""
    fleet = {**GPU, "nodes": "0..2", "resources": {"gpu": "H100:8"}}
    world = World()
    for count in (8, 9, 16):
        bring(world, [fleet], small(count))
        assert len(world.of("node")) == (1 if count == 8 else 2)
    found = look(world, [fleet], small(17))
    refusal = refused(found)
    assert (refusal["task"], refusal["code"]) == ("small-16", "no-capacity")
    assert {"busy", "fleet-max"} <= set(codes(refusal).values())
    assert found["actions"] == []


@pytest.mark.parametrize(
    ("declares", "asks", "fits"),
    [
        ("amd:MI300X:8", "nvidia:1..", False),
        ("amd:MI300X:8", "amd:1..", True),
        ("amd:MI300X:8", "MI300X:1", True),
        ("amd:MI300X:8", "1", True),
        ("nvidia:H100:8", "amd:1..", False),
        ("nvidia:H100:8", "nvidia:H100:1", True),
        ("H100:8", "nvidia:H100:1", True),
    ],
)
def test_a_vendor_is_respected(declares, asks, fits):
    """`gpu: nvidia:…` takes no AMD GPU; where the catalog names no vendor, the model tells."""
    fleet = {**GPU, "nodes": "0..1"}
    task = {"name": "one", "resources": {"gpu": asks}}
    found = look(World(), [fleet], [task], catalog=[{**H100, "gpu": declares}])
    assert bool(found["reservations"]) is fits
    if not fits:
        refusal = refused(found)
        assert refusal["code"] == "never-fits"
        (off,) = [r for r in rejections(refusal).values() if r["target"].startswith("offer/")]
        assert (off["code"], list(off["short"])) == ("too-small", ["gpu_vendor"])


FLAVORS = [
    {"instance_type": "a-large", "cpu": 32, "memory": "128GB", "gpu": "H100:4"},
    {"instance_type": "b-small", "cpu": 4, "memory": "16GB", "gpu": "H100:1"},
    {"instance_type": "c-middle", "cpu": 8, "memory": "32GB", "gpu": "H100:1"},
    {"instance_type": "d-tiny", "cpu": 2, "memory": "8GB"},
]


@pytest.mark.parametrize("blocks", [1, "auto"])
@pytest.mark.parametrize(
    ("nodes", "tasks", "chosen"),
    [
        (1, [], "b-small"),
        ("0..4", [{"name": "one", "resources": {"gpu": 1}}], "b-small"),
        ("0..4", [{"name": "one", "resources": {"gpu": 1, "cpu": "5.."}}], "c-middle"),
        ("0..4", [{"name": "one", "resources": {"gpu": 4}}], "a-large"),
    ],
    ids=["fleet", "task", "more CPUs", "four GPUs"],
)
def test_where_no_price_is_known_the_smallest_that_fits_is_launched(blocks, nodes, tasks, chosen):
    """And not the first by name: who asks for one GPU is not given four."""
    fleet = {**GPU, "nodes": nodes, "blocks": blocks, "resources": {"gpu": "1.."}}
    found = look(World(), [fleet], tasks, catalog=FLAVORS)
    assert [a["after"]["instance_type"] for a in found["actions"] if a["address"].startswith("node/")] == [
        chosen
    ]


def test_a_known_price_comes_before_a_smaller_node():
    fleet = {**GPU, "nodes": 1, "blocks": 1, "resources": {"gpu": "1.."}}
    found = look(World(), [fleet], catalog=[{**FLAVORS[0], "price": 9.0}, *FLAVORS[1:]])
    assert [a["after"]["instance_type"] for a in found["actions"]] == ["a-large"]


@pytest.mark.parametrize(
    ("ranks", "changes", "hint"),
    [
        (
            2,
            ["with `placement: any`", "with `nodes: 1` of the task"],
            "set `placement: cluster` on a fleet, or",
        ),
        (5, ["with `nodes: 1` of the task"], "it fits with `nodes: 1` of the task"),
    ],
)
def test_a_cluster_fleet_is_named_only_where_that_is_enough(ranks, changes, hint):
    fleets = [{"name": "gpu", "nodes": "0..2", "blocks": 8}]
    refusal = refused(look(World(), fleets, [{"name": "train", "nodes": ranks, "exclusive": True}]))
    assert (refusal["changes"], refusal["hint"].startswith(hint)) == (changes, True)


def test_what_a_fleet_asks_for_is_changed_where_it_says_how():
    """The reason names the price to write, so no hint says that nothing helps."""
    fleets = [{"name": "gpu", "nodes": "0..2", "max_price": 50}]
    refusal = refused(look(World(), fleets, [{"name": "train"}]))
    assert "write `max_price: 80`" in str(refusal["ranks"])
    assert refusal["hint"].startswith("its fleets have no offers: change what they ask for")


def test_the_least_possible_is_of_the_prices_that_are_known():
    spot = {**H100, "spot_price": None, "price": None, "instance_type": "other"}
    for catalog, said in (
        ([H100], "(the least possible)"),
        ([H100, spot], "(the least possible at known prices)"),
    ):
        plan = World().plan(
            declared([{"name": "gpu", "nodes": "0..2", "blocks": 8}], [{"name": "train"}], (), catalog)
        )
        assert f"Cost: 0.00 → 80.00 USD/h {said}" in plan_text(plan, color=False, width=None)
