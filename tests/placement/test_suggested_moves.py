"""Suggested moves that would free a node. They are shown, and no plan makes them."""

import time
from dataclasses import replace

import pytest

from declarative.model.blocks import Shape
from declarative.model.resource import TaskWant
from declarative.model.spec import Fleet, Task
from declarative.model.status import NodeState, Readiness
from declarative.placement.explain.free_a_node import suggest
from declarative.placement.problem import Node, Suggestion
from tests.support.model import World, rank_mounts, spec
from tests.support.planned import GPU, bring, declared

SHAPE = Shape(cpu=8, memory_mib=8192)


def node(name, *holders, price=10.0, **more):
    """A node of 8 blocks; `holders` are the ranks that hold its blocks, one after the other."""
    words = {"backend": "b", "region": "r", "zone": None, "instance_type": "x", "spot": False, **more}
    return Node(
        name=name,
        fleet=name.rpartition("-")[0],
        shape=SHAPE,
        total=8,
        price=price,
        **{"readiness": Readiness(state=NodeState.READY), **words},
        held={i: f"rank/{rank}" for i, rank in enumerate(holders)},
    )


def wants(*names, mounts=None, **words):
    tasks = [spec(Task, {"name": n, "commands": ["true"], "resources": {"cpu": 1}, **words}) for n in names]
    return {str(t.name): TaskWant(spec=t, mounts=rank_mounts(t, mounts or {})) for t in tasks}


def fleets(**words):
    return {"gpu": spec(Fleet, {"name": "gpu", "nodes": "0..9", "blocks": 8, **words})}


TWO = [node("gpu-0", *["aa-0"] * 3), node("gpu-1", "bb-0", "cc-0")]
FREES_1 = Suggestion(
    node="gpu-1", moves=(("rank/bb-0", "gpu-1", "gpu-0"), ("rank/cc-0", "gpu-1", "gpu-0")), saves=10.0
)
SMALL = wants("bb", "cc")


def test_moves_that_free_a_node_are_priced():
    """Two ranks could go to the idle blocks of another node that is in use."""
    assert suggest(TWO, fleets(), SMALL) == (FREES_1,)
    assert FREES_1.text == "2 moves would free node/gpu-1: -10.00 USD/h"


@pytest.mark.parametrize(
    ("nodes", "words", "tasks"),
    [
        (TWO, {"nodes": "2..9"}, SMALL),  # no node above the target
        (TWO, {"prevent_destroy": True}, SMALL),
        (TWO, {"idle_duration": "off"}, SMALL),  # it would stay
        (TWO, {}, wants("bb")),  # a rank that must not move
        ([TWO[0], node("gpu-1", "bb-0 (given up)", "cc-0 (orphan)")], {}, SMALL),  # without an owner
        (TWO, {}, wants("bb", "cc", instances=["gpu-1"])),
        (TWO, {}, wants("bb", "cc", exclusive=True)),
        (TWO, {}, wants("bb", "cc", mounts={"/d": "data"})),
        (TWO, {}, wants("bb", "cc", max_price=5)),  # the other node costs too much
        ([replace(n, price=None) for n in TWO], {}, SMALL),  # a price that is unknown saves nothing
        ([node("gpu-0"), TWO[1]], {}, SMALL),  # an idle node is deleted by itself
        ([node("gpu-0", *["aa-0"] * 7), TWO[1]], {}, SMALL),  # there is room for one of two
        ([replace(TWO[0], closed="it is replaced once idle"), TWO[1]], {}, SMALL),
        ([replace(TWO[0], readiness=Readiness(state=NodeState.UNKNOWN)), TWO[1]], {}, SMALL),
        ([TWO[0], replace(TWO[1], new=True)], {}, SMALL),  # placement has done that itself
    ],
)
def test_nothing_is_suggested(nodes, words, tasks):
    """Where a node would not go, or a rank may not."""
    assert suggest(nodes, fleets(**words), tasks) == ()


def test_a_cluster_stays_together():
    """A rank of a gang goes nowhere else than where its fleet's other nodes are."""
    both = fleets(placement="cluster") | {"other": spec(Fleet, {"name": "other", "nodes": "0..9"})}
    gang = wants("bb", nodes=2, placement="cluster", exclusive=False)
    nodes = [node("gpu-0", *["aa-0"] * 7), node("gpu-1", "bb-0", "bb-1"), node("other-0", "dd-0")]
    assert suggest(nodes, both, gang) == ()
    assert len(suggest([node("gpu-0", "aa-0"), *nodes[1:]], both, gang)) == 1


def test_the_largest_gain_by_a_move_comes_first_and_all_can_be_followed():
    """Three at most; no block is promised twice, and who was moved is not moved on."""
    names = [f"t{i}" for i in range(9)]
    nodes = [node("gpu-0", *["aa-0"] * 5)]
    nodes += [node(f"gpu-{i + 1}", name + "-0", price=float(i + 1)) for i, name in enumerate(names)]
    found = suggest(nodes, fleets(), wants(*names))
    assert [(s.node, s.saves) for s in found] == [("gpu-9", 9.0), ("gpu-8", 8.0), ("gpu-7", 7.0)]
    assert {s.moves[0][2] for s in found} == {"gpu-0"}
    assert suggest(nodes[::-1], fleets(), dict(reversed(wants(*names).items()))) == found
    full = [node("gpu-0", *["aa-0"] * 8), *nodes[1:3]]
    assert [s.moves for s in suggest(full, fleets(), wants(*names))] == [
        (("rank/t1-0", "gpu-2", "gpu-1"),)  # and gpu-1, where it goes, stays
    ]


def test_it_is_quick():
    """Ten thousand nodes that cannot be emptied are not all looked at."""
    names = [f"t{i}" for i in range(10_000)]
    nodes = [node(f"gpu-{i}", *[f"{name}-0"] * 5) for i, name in enumerate(names)]
    begun = time.process_time()
    tasks = wants("tt", resources={"cpu": 5})
    assert suggest(nodes, fleets(), dict.fromkeys(names, tasks["tt"])) == ()
    assert time.process_time() - begun < 3


def test_a_plan_shows_them_and_moves_nothing():
    """Two running tasks on two nodes of a fleet that may shrink to none."""
    fleet = {**GPU, "nodes": "0..2"}
    tasks = [{"name": "aa", "resources": {"gpu": 5}}, {"name": "bb", "resources": {"gpu": 4}}]
    tasks.append({"name": "cc", "resources": {"gpu": 1}})
    world = bring(World(), [fleet], tasks)
    assert world.plan(declared([fleet], tasks)).preview.suggestions == ()
    # Without `bb` its node is idle and deleted by itself; without `aa` two are hardly used.
    assert world.plan(declared([fleet], [tasks[0], tasks[2]])).preview.suggestions == ()
    bring(world, [fleet], tasks[1:])
    plan = world.plan(declared([fleet], tasks[1:]))
    assert plan.preview.suggestions == (
        Suggestion(node="gpu-0", moves=(("rank/cc-0", "gpu-0", "gpu-1"),), saves=80.0),
    )
    assert plan.actions == ()
