"""A node on which a task failed at its start, or twice, is avoided by that task while another place fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.inputs import RankInputs
from declarative.model.resource import Desired
from declarative.model.state import Address
from declarative.model.status import RankState, RankStatus
from declarative.planner.decisions import PlanRequest
from declarative.planner.explain import Explainer
from declarative.planner.plan import Op
from declarative.planner.saved_plan import SavedPlan, dump, facts_of, load
from declarative.render.plan import plan_text
from tests.support.model import World
from tests.support.planned import GPU, carry_out, declared

ONE = {"name": "job", "resources": {"gpu": 8}, "retry": True}
LONG = 7200.0


def fixed(count: int, *tasks: dict, **more) -> Desired:
    """A fleet of so many nodes, each of which holds one rank."""
    return declared(fleets=[{**GPU, "nodes": count}], tasks=tasks or [ONE], **more)


def fail(world: World, rank: str = "job-0", *, after: float | None = 1.0, state=RankState.FAILED) -> None:
    """A rank ends so many seconds after its start; None if it never came to run."""
    world.ranks[rank] = RankStatus(
        state=state,
        exit_code=3,
        cause="exit code 3",
        started_at=None if after is None else 50.0,
        ended_at=None if after is None else 50.0 + after,
    )
    world.settle()


def where(world: World, task: str = "job") -> list[str]:
    """The nodes of its ranks."""
    return [str(r.inputs["node"]) for r in world.of("reservation") if r.inputs["task"] == task]


def retry(world: World, desired: Desired) -> list[str]:
    """Do what the plan says; where the task runs then."""
    world.apply(world.plan(desired))
    return where(world)


@pytest.mark.parametrize("after", [None, 0.0, 59.9])
def test_after_a_failure_at_its_start_it_goes_to_another_node_and_the_plan_says_so(after):
    desired = fixed(3)
    world = carry_out(World(), desired)
    assert where(world) == ["gpu-0"]
    fail(world, after=after)
    plan = world.plan(desired)
    because = {tuple(a.because) for a in plan.actions if a.address.kind == "rank"}
    assert because == {("rank/job-0 failed: exit code 3", "avoids node/gpu-0, where it failed before")}
    text = plan_text(plan, color=False, width=160)
    assert "# retry 1 after rank/job-0 failed: exit code 3; avoids node/gpu-0, where it failed before" in text
    asked = PlanRequest(
        desired=desired, recorded=world.state(), inventory=world.inventory(desired), now=world.now
    )
    answer = Explainer(asked).of_task("job")
    assert ("avoids", "the task avoids node/gpu-0, where it failed before") in [
        (why.key, why.text) for why in answer.ranks[0].why
    ]
    assert retry(world, desired) == ["gpu-1"]
    assert world.plan(desired).actions == ()


def test_a_failure_in_the_middle_is_forgiven_once():
    desired = fixed(2)
    world = carry_out(World(), desired)
    fail(world, after=600)
    assert retry(world, desired) == ["gpu-0"]
    fail(world, after=600)
    assert retry(world, desired) == ["gpu-1"]


def test_also_where_its_node_answered_no_more_twice():
    desired = fixed(2)
    world = carry_out(World(), desired)
    for places in (["gpu-0"], ["gpu-1"]):
        world.ranks["job-0"] = RankStatus(state=RankState.LOST, cause="it restarted", started_at=50.0)
        world.settle()
        assert retry(world, desired) == places


def test_it_counts_also_in_the_next_series():
    """A task that runs for days between two failures of the same node avoids it too."""
    desired = fixed(2)
    world = carry_out(World(), desired)
    for places in (["gpu-0"], ["gpu-1"]):
        world.now += 3 * LONG
        fail(world, after=2 * LONG)
        assert retry(world, desired) == places


def test_where_only_avoided_nodes_fit_it_avoids_the_last_one_only_and_then_none():
    desired = fixed(2)
    world = carry_out(World(), desired)
    found = []
    for _ in range(4):
        fail(world)
        found += retry(world, desired)
    assert found == ["gpu-1", "gpu-0", "gpu-1", "gpu-0"]
    alone = fixed(1)
    world = carry_out(World(), alone)
    fail(world)
    plan = world.plan(alone)
    assert {tuple(a.because) for a in plan.actions if a.address.kind == "rank"} == {
        ("rank/job-0 failed: exit code 3",)
    }
    asked = PlanRequest(
        desired=alone, recorded=world.state(), inventory=world.inventory(alone), now=world.now
    )
    whys = [why.key for why in Explainer(asked).of_task("job").ranks[0].why]
    assert "failed-there" in whys
    assert retry(world, alone) == ["gpu-0"]


def test_a_fleet_that_may_grow_gets_a_node_for_it_but_not_for_a_task_that_fails_everywhere():
    """At most as many as the task has ranks; then it takes what is there."""
    desired = declared(fleets=[{**GPU, "nodes": "0..5"}], tasks=[ONE])
    world = carry_out(World(), desired)
    found = []
    for _ in range(5):
        fail(world)
        found += retry(world, desired)
    assert found == ["gpu-1", "gpu-0", "gpu-1", "gpu-0", "gpu-1"]
    assert len(world.of("node")) == 2


def test_no_other_task_avoids_it_and_a_change_or_a_request_forgets_it():
    other = {"name": "other", "resources": {"gpu": 8}}
    desired = fixed(2)
    world = carry_out(World(), desired)
    fail(world)
    retry(world, desired)
    both = fixed(2, ONE, other)
    world.apply(world.plan(both))
    assert (where(world), where(world, "other")) == (["gpu-1"], ["gpu-0"])
    desired = fixed(2)
    world.apply(world.plan(desired))
    fail(world)
    world.apply(world.plan(desired, requested=frozenset({"task/job"})))
    assert where(world) == ["gpu-0"]
    assert world.records[Address("rank", "job-0")].rank.failed_on == ()


def test_of_a_gang_only_the_node_of_the_first_failure_is_avoided():
    gang = {"name": "job", "nodes": 2, "resources": {"gpu": 8}, "retry": True}
    desired = fixed(3, gang)
    world = carry_out(World(), desired)
    assert where(world) == ["gpu-0", "gpu-1"]
    fail(world, "job-1")
    assert retry(world, desired) == ["gpu-0", "gpu-2"]


def test_a_node_that_was_made_anew_is_another_one():
    desired = fixed(2)
    world = carry_out(World(), desired)
    fail(world)
    plan = world.plan(desired)
    world.apply(plan)
    assert where(world) == ["gpu-1"]
    world.apply(world.plan(desired, requested=frozenset({"node/gpu-0"})))
    fail(world)
    assert retry(world, desired) == ["gpu-0"]
    (failed,) = world.records[Address("rank", "job-0")].rank.failed_on
    assert (failed.machine, failed.count, failed.at_start) == ("gpu-1.1", 1, True)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_many_attempts_in_all_however_long_they_take(most):
    task = {**ONE, "retry": {"max_attempts": most}}
    desired = fixed(2, task)
    world, attempts = carry_out(World(), desired), 1
    while attempts < 9:
        world.now += LONG
        fail(world, after=LONG)
        if not world.plan(desired).actions:
            break
        retry(world, desired)
        attempts += 1
    assert attempts == most


def test_a_saved_plan_knows_what_is_avoided():
    desired = fixed(3)
    world = carry_out(World(), desired)
    fail(world)
    plan = world.plan(desired)
    facts = facts_of(plan, world.state(), world.inventory(desired))
    saved = SavedPlan(
        plan=plan, facts=facts, state="sqlite:///x", directory="/p", made_by="0", made_at="2026-01-01"
    )
    assert load(dump(saved), "plan.json", "0").plan == plan
    (made,) = (a.typed for a in plan.actions if a.op is Op.CREATE and isinstance(a.typed, RankInputs))
    assert [f.machine for f in made.failed_on] == ["gpu-0.1"]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1.0, 600.0])), max_size=6), st.integers(1, 4))
def test_whatever_fails_the_task_has_a_place_while_a_node_fits(failures, count):
    """Avoidance refuses nothing, and the same world gives the same plan."""
    desired = fixed(count)
    world = carry_out(World(), desired)
    for _, after in failures:
        fail(world, after=after)
        plan = world.plan(desired)
        assert plan == world.plan(desired)
        assert plan.unplaced.refusals == ()
        world.apply(plan)
        assert len(where(world)) == 1
        assert world.plan(desired).actions == ()
