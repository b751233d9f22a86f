"""`queue: true`: places for tasks that wait for others on a cluster. Only the planner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.language.loader import load
from declarative.model.blocks import Shape
from declarative.model.diagnostic import InvalidError
from declarative.model.resource import Host, OthersShare
from declarative.model.state import State
from declarative.model.status import NodeState, Readiness
from declarative.planner.inventory import Inventory, PartitionNode
from declarative.planner.make import make_plan
from providers.slurm import jobs
from tests.support.model import project

NODE = Shape(cpu=8, memory_mib=8000, gpus=8, gpu_name="H100")
READY = Readiness(state=NodeState.READY)


def partition_node(number: int, *taken: OthersShare) -> PartitionNode:
    host = Host(
        fleet="gpu", name=f"gpu-{number}", backend="hpc", key=f"n{number}", fields={"partition": "gpu"}
    )
    return PartitionNode(host=host, shape=NODE, readiness=READY, taken=taken)


def theirs(gpus: int, until: float | None = None, number: int = 1) -> OthersShare:
    """What a job of somebody else holds."""
    return OthersShare(
        holder=f"slurm job {number} of alice", cpu=gpus, memory_mib=gpus, gpus=gpus, until=until
    )


def planned(nodes, *tasks):
    fleet = {"name": "gpu", "backends": ["hpc"], "partition": "gpu", "placement": "cluster", "blocks": 8}
    made = [{"commands": ["true"], "exclusive": False, "spread": "node", **t} for t in tasks]
    desired = project(backends=[{"name": "hpc", "driver": "slurm"}], fleets=[fleet], tasks=made)
    seen = Inventory(existing={"gpu": tuple(nodes)}, readiness={n.host.name: READY for n in nodes})
    return make_plan(desired, State(), seen, 0.0)


def gang(name="gang", gpus=4, nodes=2, **more):
    return {"name": name, "nodes": nodes, "resources": {"gpu": gpus}, "queue": True, **more}


def test_it_is_planned_behind_others():
    plan = planned([partition_node(0, theirs(6, 100.0)), partition_node(1)], gang())
    assert [(q.task, q.holders, q.until) for q in plan.preview.queued] == [
        ("gang", ("slurm job 1 of alice",), 100.0)
    ]
    assert plan.result == "changes"
    holders = {n.name: n.holders for n in plan.preview.nodes}
    assert list(holders["gpu-0"].values()).count("rank/gang-0") == 4


def test_without_it_the_task_is_refused():
    plan = planned([partition_node(0, theirs(6)), partition_node(1)], gang(queue=False))
    assert [r.task for r in plan.unplaced.refusals] == ["gang"]
    assert plan.preview.queued == ()


def test_what_fits_now_waits_for_nobody():
    plan = planned([partition_node(0, theirs(4)), partition_node(1)], gang())
    assert plan.preview.queued == ()
    assert plan.result == "changes"


def test_what_never_fits_is_refused():
    plan = planned([partition_node(0, theirs(8)), partition_node(1)], gang(gpus=16))
    assert [r.code for r in plan.unplaced.refusals] == ["never-fits"]


def test_those_that_have_to_end_first_are_waited_for():
    nodes = [
        partition_node(0, theirs(8, None)),
        partition_node(1, theirs(8, 200.0)),
        partition_node(2, theirs(8, 100.0)),
    ]
    plan = planned(nodes, gang(nodes=1))
    assert [(r.node, q.until) for r, q in zip(plan.reservations, plan.preview.queued, strict=True)] == [
        ("gpu-2", 100.0)
    ]


def test_when_it_ends_is_unknown_if_one_has_no_limit():
    plan = planned([partition_node(0, theirs(4, None), theirs(4, 9.0, 2))], gang(nodes=1, gpus=8))
    assert [(q.holders, q.until) for q in plan.preview.queued] == [
        (("slurm job 1 of alice", "slurm job 2 of alice"), None)
    ]


@given(
    held=st.lists(
        st.tuples(st.integers(0, 8), st.one_of(st.none(), st.integers(1, 50))), min_size=1, max_size=4
    ),
    wanted=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3), st.booleans()), min_size=1, max_size=6),
)
def test_no_block_is_given_twice_and_queueing_only_adds(held, wanted):
    """What is placed without a queue is placed the same with one."""
    nodes = [partition_node(i, *([theirs(g, end, i)] if g else [])) for i, (g, end) in enumerate(held)]
    tasks = [gang(f"t-{i}x", gpus, count, queue=queue) for i, (gpus, count, queue) in enumerate(wanted)]
    plan = planned(nodes, *tasks)
    plain = planned(nodes, *({**task, "queue": False} for task in tasks))
    given_ = [(r.node, block) for r in plan.reservations for block in r.blocks]
    assert len(given_) == len(set(given_))
    placed = {(r.task, r.rank): (r.node, r.blocks) for r in plan.reservations}
    before = {(r.task, r.rank): (r.node, r.blocks) for r in plain.reservations}
    assert before.items() <= placed.items()
    queued = {q.task for q in plan.preview.queued}
    assert {task for task, _ in placed.keys() - before.keys()} == queued
    assert queued | {r.task for r in plan.unplaced.refusals} == {r.task for r in plain.unplaced.refusals}
    assert all(task["queue"] for task in tasks if task["name"] in queued)


@pytest.mark.parametrize(
    ("fleet", "refused"), [("nodes: 1", True), ("partition: gpu\nbackends: [hpc]", False)]
)
def test_only_a_cluster_has_a_queue(tmp_path, fleet, refused):
    (tmp_path / "a.yaml").write_text(
        "type: backend\nname: hpc\ndriver: slurm\n---\ntype: backend\nname: local\ndriver: local\n---\n"
        f"type: fleet\nname: gpu\n{fleet}\n---\n"
        "type: task\nname: train\ncommands: ['true']\nqueue: true\n"
    )
    found = []
    try:
        load(tmp_path)
    except InvalidError as error:
        found = [(d.code, d.address) for d in error.diagnostics if "`queue`" in d.summary]
    assert found == ([("bad-value", "task/train")] if refused else [])


def test_slurms_own_estimate_is_read():
    text = (
        "sbatch: Job 7 to start at 2026-01-31T18:57:15 using 8 processors on nodes gpu-[0-1] in partition gpu"
    )
    assert jobs.expected_in(text) == 1769885835.0
    assert jobs.expected_in("allocation failure: Requested node configuration is not available") is None
