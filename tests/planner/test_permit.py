"""What a loop may do of a plan without a person: each rule by itself.

`test_reconcile` and `test_renamed_loop` have the rules together, in rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from declarative.apply.graph_walk import ActionResult, Outcome
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import Desired
from declarative.model.spec.project import Budget, Cause, Limits, Reconcile
from declarative.model.spec.schedule import Cron
from declarative.model.spec.values import Duration
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState
from declarative.planner.inventory import observed_state
from declarative.planner.make import make_plan
from declarative.planner.plan import Op, Plan, Reason
from declarative.planner.probable_renames import refused_with, successors
from declarative.planner.unattended import (
    CAUSES,
    DAY,
    EarlierChange,
    PermitInputs,
    PermittedPart,
    WaitingGroup,
    causes_of,
    components,
    permitted_part,
)
from declarative.reconcile.permission import (
    ENVIRONMENT,
    LOST,
    OVER,
    AllowedPart,
    Backoff,
    _waits,
    choose,
    refused,
)
from declarative.store.journal import Permit
from declarative.store.loop_state import Approval
from tests.render.test_render import act, node
from tests.support.model import World
from tests.support.model import project as declared
from tests.support.planned import plan_of, with_parts

PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}}
FREE = {"name": "data", "prevent_destroy": False}
JOB = {"name": "job", "resources": {"cpu": "1.."}}
GANG = {"name": "gang", "nodes": 2, "resources": {"cpu": 2}}
MOUNTS = {"name": "fill", "resources": {"cpu": "1.."}, "mounts": {"/d": "data"}}
ALL = Reconcile(allow=tuple(Cause))
NONE = Reconcile(allow=())
NODES = ["node/pair-0", "node/pair-1"]


def wanted(
    fleets: Iterable[Mapping[str, Any]] = (PAIR,),
    tasks: Iterable[Mapping[str, Any]] = (),
    volumes: Iterable[Mapping[str, Any]] = (),
    rules: Reconcile = ALL,
) -> Desired:
    found = declared(fleets=[*fleets], volumes=[*volumes], tasks=[*tasks])
    return replace(found, project=replace(found.project, reconcile=rules))


def brought(desired: Desired) -> World:
    """A world as declared."""
    world = World()
    world.apply(world.plan(desired))
    return world


def seen(world: World, wants: Desired, **given: Any) -> PermittedPart:
    """What is permitted of the plan for this."""
    state = observed_state(world.state(), world.inventory(wants))
    more = {"rules": wants.project.reconcile, "now": world.now, "desired": wants, **given}
    return permitted_part(world.plan(wants), state, PermitInputs(**more))


def causes(world: World, desired: Desired, **given: Any) -> dict[str, Cause]:
    return causes_of(world.plan(desired), observed_state(world.state(), world.inventory(desired)), **given)


def ids(plan: Plan) -> list[str]:
    return [a.id for a in plan.actions]


def held(found: PermittedPart) -> dict[str, str]:
    """Group → why it is held."""
    return {one.group: one.why for one in found.waiting}


def one(found: PermittedPart, group: str) -> WaitingGroup:
    (wait,) = [h for h in found.waiting if h.group == group]
    return wait


# ------------------------------------------------------------------------------------------- causes


def test_what_is_new_is_created() -> None:
    world = World()
    assert causes(world, wanted(tasks=[JOB], volumes=[FREE])) == {
        "node/pair-0": Cause.CREATE,
        "node/pair-1": Cause.CREATE,
        "task/job": Cause.CREATE,
        "volume/data": Cause.CREATE,
    }


def test_what_vanished_and_was_held_is_no_new_thing() -> None:
    """Only while it would be created: one that is replaced has that cause."""
    found = causes(World(), wanted(), lost_groups=["node/pair-1", "node/other-0"])
    assert found == {"node/pair-0": Cause.CREATE, "node/pair-1": Cause.REPLACE_LOST}
    world = brought(wanted())
    other = {**PAIR, "resources": {"cpu": 4}}
    assert causes(world, wanted([other]), lost_groups=["node/pair-1"])["node/pair-1"] is Cause.REPLACE


def test_what_is_changed_in_place_is_no_cause_of_what_is_made_anew() -> None:
    """Of a node that is gone, others had changed the tags."""
    gone = act(Op.DELETE, "node/pair-0", Reason.GONE, before=node())
    made = act(Op.CREATE, "node/pair-0", Reason.GONE, after=node())
    tagged = act(Op.UPDATE, "node/pair-0", Reason.DRIFT, before=node(), after=node())
    found = causes_of(plan_of(actions=(gone, made, tagged)), World().state())
    assert found == {"node/pair-0": Cause.REPLACE_LOST}


def test_a_task_on_what_is_replaced_has_the_cause_of_that() -> None:
    desired = wanted(tasks=[JOB, MOUNTS], volumes=[FREE])
    world = brought(desired)
    for asked, found in (
        ("node/pair-0", {"node/pair-0": Cause.REPLACE, "task/fill": Cause.REPLACE}),
        ("volume/data", {"volume/data": Cause.DELETE, "task/fill": Cause.DELETE}),
    ):
        assert world.of("attachment")[0].inputs["node"] == "pair-0"
        plan = world.plan(desired, requested=frozenset({asked}))
        assert found.items() <= causes_of(plan, world.state()).items()


def test_what_is_undeclared_is_deleted_and_what_is_idle_is_given_back() -> None:
    world = brought(wanted(volumes=[FREE]))
    assert causes(world, wanted([])) == {
        "node/pair-0": Cause.DELETE,
        "node/pair-1": Cause.DELETE,
        "volume/data": Cause.DELETE,
    }
    spare = {**PAIR, "nodes": "0..2", "idle_duration": "5m", "placement": "cluster"}
    world = brought(wanted([spare], [GANG]))
    for rank in world.running():
        world.end(rank, RankState.SUCCEEDED)
    world.settle()
    world.now += 301
    found = causes(world, wanted([spare], [GANG]))
    assert found == {"node/pair-0": Cause.IDLE, "node/pair-1": Cause.IDLE}


def test_a_change_in_place_is_an_update() -> None:
    world = brought(wanted(volumes=[FREE]))
    grown = {**FREE, "size": "2GB", "tags": {"team": "a"}}
    assert causes(world, wanted(volumes=[grown])) == {"volume/data": Cause.UPDATE}
    assert causes(world, wanted(volumes=[{**FREE, "size": "1GB", "region": "far"}])) == {
        "volume/data": Cause.DELETE
    }


def test_what_others_changed_is_drift() -> None:
    desired = wanted(volumes=[FREE])
    world = brought(desired)
    altered = {Address("volume", "data"): {"tags": {"team": "x"}}}
    plan = make_plan(desired, world.state(), replace(world.inventory(desired), altered=altered), world.now)
    assert causes_of(plan, world.state()) == {"volume/data": Cause.DRIFT}


@pytest.mark.parametrize(
    ("state", "cause"),
    [(RankState.RUNNING, Cause.DELETE), (RankState.SUCCEEDED, Cause.IDLE), (RankState.FAILED, Cause.IDLE)],
)
def test_a_task_whose_records_alone_are_left_is_given_back(state: RankState, cause: Cause) -> None:
    world = brought(wanted(tasks=[JOB]))
    if state.ended:
        world.end("job-0", state)
        world.settle()
    assert causes(world, wanted())["task/job"] is cause


def test_a_task_that_failed_is_retried_and_one_that_changed_is_started_anew() -> None:
    """Nothing of it is stopped: the change alone would be a replacement."""
    world = brought(wanted(tasks=[{**JOB, "retry": True}]))
    changed = wanted(tasks=[{**JOB, "retry": True, "commands": ["false"]}])
    assert causes(world, changed)["task/job"] is Cause.REPLACE
    world.end("job-0", RankState.FAILED)
    world.settle()
    assert causes(world, wanted(tasks=[{**JOB, "retry": True}]))["task/job"] is Cause.RETRY
    assert causes(world, changed)["task/job"] is Cause.CREATE


def test_a_node_that_is_gone_or_unfit_is_replaced() -> None:
    world = brought(wanted())
    world.gone.add(Address("node", "pair-0"))
    assert causes(world, wanted()) == {"node/pair-0": Cause.REPLACE_LOST}


@pytest.mark.parametrize("group", ["task/job", "fleet/pair"])
def test_what_a_schedule_starts_or_ends_has_its_cause(group: str) -> None:
    """Whatever its actions are; of a fleet that sleeps only the nodes that are too many."""
    world = World()
    if group == "task/job":
        found = causes(world, wanted(tasks=[JOB]), asleep=["task/job"])
        assert found == {"node/pair-0": Cause.CREATE, "node/pair-1": Cause.CREATE, group: Cause.SCHEDULE}
        return
    world = brought(wanted())
    asleep = wanted([{**PAIR, "nodes": 1}])
    assert causes(world, asleep, asleep=["fleet/pair"]) == {"node/pair-1": Cause.SCHEDULE}
    assert causes(world, asleep, asleep=["fleet/other"]) == {"node/pair-1": Cause.DELETE}
    other = wanted([{**PAIR, "resources": {"cpu": 4}}])
    assert set(causes(world, other, asleep=["fleet/pair"]).values()) == {Cause.REPLACE}


# -------------------------------------------------------------------------------------------- rules


def test_what_is_not_allowed_waits_or_is_left_to_people() -> None:
    world = World()
    found = seen(world, wanted(rules=NONE))
    assert (ids(found.plan), held(found)) == ([], dict.fromkeys(NODES, "waits for approval"))
    assert {h.approval for h in found.waiting} == {True}
    shown = Reconcile(allow=(), approve=(Cause.DELETE,))
    found = seen(world, wanted(rules=shown))
    why = "is left to people: `create` is neither in `allow` nor in `approve`"
    assert held(found) == dict.fromkeys(NODES, why)
    assert {h.approval for h in found.waiting} == {False}


def test_an_approval_is_for_its_group_and_what_that_needs_if_it_is_harmless() -> None:
    """A task takes along the node that it needs, and no other."""
    desired = wanted(tasks=[{**JOB, "nodes": 1}], rules=NONE)
    found = seen(World(), desired, approved=["task/job"])
    assert [i for i in ids(found.plan) if "node/" in i] == ["create:node/pair-0"]
    assert held(found) == {"node/pair-1": "waits for approval"}
    found = seen(World(), desired, approved=["node/pair-0", "node/pair-1"])
    assert ids(found.plan) == ["create:node/pair-0", "create:node/pair-1"]
    assert held(found) == {"task/job": "waits for approval"}


def test_what_needs_a_held_thing_is_held_with_its_reason() -> None:
    """And waits for the same approval, with the same hint."""
    rules = Reconcile(allow=(Cause.CREATE,), approve=(Cause.REPLACE,))
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    other = {**PAIR, "nodes": 1, "resources": {"cpu": 4}}
    found = seen(world, wanted([other], [{**JOB, "resources": {"cpu": 4}}], rules=rules))
    task = one(found, "task/job")
    assert (task.why, task.approval) == ("needs node/pair-0, which waits for approval", True)
    assert ids(found.plan) == []
    shown = Reconcile(allow=(Cause.CREATE,), approve=())
    task = one(seen(world, wanted([other], [{**JOB, "resources": {"cpu": 4}}], rules=shown)), "task/job")
    assert (task.why.startswith("needs node/pair-0, which is left to people"), task.approval) == (True, False)


def test_a_vanished_node_is_made_for_a_task_that_needs_it() -> None:
    """Though nothing of that kind is allowed: nothing is deleted for it."""
    rules = Reconcile(allow=(Cause.CREATE, Cause.RETRY))
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    world.gone.add(Address("node", "pair-0"))
    desired = wanted([{**PAIR, "nodes": 1}], [JOB], rules=rules)
    assert "create:node/pair-0" in ids(seen(world, desired).plan)
    alone = seen(world, wanted([{**PAIR, "nodes": 1}], rules=rules))
    assert held(alone) == {"node/pair-0": "waits for approval"}


def test_a_protected_thing_is_never_touched() -> None:
    """And the hint says what to write; a finding of something else holds nothing."""
    world = brought(wanted(volumes=[{"name": "data"}]))
    found = seen(world, wanted(volumes=[{"name": "data", "region": "far"}]), approved=["volume/data"])
    wait = one(found, "volume/data")
    assert (wait.why, wait.approval, "prevent_destroy" in wait.hint) == ("is protected", False, True)
    assert ids(found.plan) == []


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.UNKNOWN, NodeState.READY])
def test_a_node_that_may_be_busy_is_not_deleted(state: NodeState) -> None:
    world = brought(wanted())
    world.sick["pair-1"] = state
    found = seen(world, wanted([]))
    kept = {} if state is NodeState.READY else {"node/pair-1": "does not answer, so it may be busy"}
    assert held(found) == kept
    assert ("delete:node/pair-1" in ids(found.plan)) is (state is NodeState.READY)


def test_a_node_with_unrecorded_ranks_is_not_deleted() -> None:
    """Nor one that nothing was seen of."""
    world = brought(wanted())
    desired = wanted([])
    state = observed_state(world.state(), world.inventory(desired))
    given = PermitInputs(rules=ALL, now=world.now, desired=desired)
    stray = replace(state, strays={"pair-0": {0: "rank/x-0 (unrecorded)"}})
    found = permitted_part(world.plan(desired), stray, given)
    assert held(found) == {"node/pair-0": "has ranks that are not recorded"}
    assert one(found, "node/pair-0").hint == "to end them: `fleetform stop x`"
    theirs = replace(state, strays={"pair-0": {0: "slurm job 1 of alice", 1: "rank/y-0", 2: "rank/x-1"}})
    hint = one(permitted_part(world.plan(desired), theirs, given), "node/pair-0").hint
    assert hint == "to end them: `fleetform stop x` and `fleetform stop y`"
    others = replace(state, strays={"pair-0": {0: "slurm job 1 of alice"}})
    assert one(permitted_part(world.plan(desired), others, given), "node/pair-0").hint == ""
    unseen = replace(state, readiness={"pair-0": state.readiness["pair-0"]})
    found = permitted_part(world.plan(desired), unseen, given)
    assert held(found) == {"node/pair-1": "does not answer, so it may be busy"}


def test_a_node_that_is_only_let_go_may_be_busy() -> None:
    """It was adopted, and goes on as it is."""
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    plan = world.plan(wanted([]))
    (action,) = plan.actions
    given = PermitInputs(rules=ALL, now=world.now)
    for forget in (True, False):
        found = permitted_part(replace(plan, actions=(replace(action, forget=forget),)), world.state(), given)
        assert held(found) == ({} if forget else {"node/pair-0": "does not answer, so it may be busy"})


def test_a_node_that_is_replaced_as_lost_is_not_taken_along() -> None:
    """What needs it may only take along what is made: here something is deleted."""
    rules = Reconcile(allow=(Cause.CREATE,))
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    world.sick["pair-0"] = NodeState.FAILED
    desired = wanted([{**PAIR, "nodes": 1}], [JOB], rules=rules)
    assert {"delete:node/pair-0", "create:rank/job-0"} <= {*ids(world.plan(desired))}
    found = seen(world, desired)
    assert found.causes["node/pair-0"] is Cause.REPLACE_LOST
    assert held(found)["node/pair-0"] == "waits for approval"
    assert ids(found.plan) == []


def test_what_failed_is_tried_when_its_time_has_come() -> None:
    desired = wanted()
    later = {"node/pair-0": (World().now + 10, "is tried again later: x")}
    found = seen(World(), desired, retry_after=later)
    wait = one(found, "node/pair-0")
    assert (wait.why, wait.until) == ("is tried again later: x", World().now + 10)
    assert ids(found.plan) == ["create:node/pair-1"]
    assert held(seen(World(), desired, retry_after={"node/pair-0": (World().now, "x")})) == {}


@pytest.mark.parametrize(("most", "ages"), [(2, [10, 20]), (2, [10, 20, 30]), (0, []), (1, [DAY - 1])])
def test_a_node_is_replaced_only_so_often_in_a_day(most: int, ages: list[float]) -> None:
    """Until one of the last of these is a day old; with 0, never."""
    rules = Reconcile(allow=tuple(Cause), replacements_per_day=most)
    world = brought(wanted())
    world.gone.add(Address("node", "pair-0"))
    before = [EarlierChange(group="node/pair-0", cause="replace-lost", at=world.now - age) for age in ages]
    wait = one(seen(world, wanted(rules=rules), earlier_changes=before), "node/pair-0")
    first = sorted(world.now - age for age in ages)[-most] + DAY if most else None
    assert (wait.why, wait.until) == (f"was replaced {most} times in a day", first)


@pytest.mark.parametrize(
    "before",
    [
        ("node/pair-0", "replace-lost", DAY),
        ("node/pair-1", "replace-lost", 10.0),
        ("node/pair-0", "replace", 10.0),
        ("node/pair-0", "retry", 10.0),
    ],
)
def test_other_changes_of_nodes_do_not_count_as_its_replacements(before: tuple[str, str, float]) -> None:
    group, cause, age = before
    rules = Reconcile(allow=tuple(Cause), replacements_per_day=1)
    world = brought(wanted())
    world.gone.add(Address("node", "pair-0"))
    done = [EarlierChange(group=group, cause=cause, at=world.now - age)]
    assert held(seen(world, wanted(rules=rules), earlier_changes=done)) == {}


def test_a_task_may_be_lost_as_often_as_it_is() -> None:
    """Only nodes are counted."""
    rules = Reconcile(allow=tuple(Cause), replacements_per_day=0)
    found = seen(World(), wanted([], volumes=[FREE], rules=rules), lost_groups=["volume/data"])
    assert (found.causes, held(found)) == ({"volume/data": Cause.REPLACE_LOST}, {})


# ------------------------------------------------------------------------------------------ budgets


def limited(*budgets: Budget) -> Reconcile:
    return Reconcile(allow=tuple(Cause), budgets=budgets)


def test_a_budget_lets_so_many_nodes_go_at_once() -> None:
    world = brought(wanted([{**PAIR, "nodes": 3}]))
    found = seen(world, wanted([], rules=limited(Budget(nodes=2))))
    assert held(found) == {"node/pair-2": "waits for a budget: 2 nodes at once"}
    found = seen(world, wanted([], rules=limited(Budget(nodes=1), Budget(nodes=3))))
    assert held(found) == dict.fromkeys(("node/pair-1", "node/pair-2"), "waits for a budget: 1 node at once")
    assert len(held(seen(world, wanted([], rules=limited(Budget(nodes=0)))))) == 3
    assert held(seen(world, wanted([], rules=limited(Budget(nodes=3))))) == {}


def test_a_budget_counts_its_causes_alone() -> None:
    """By default those that delete or replace."""
    assert held(seen(World(), wanted(rules=limited(Budget(nodes=0))))) == {}
    made = limited(Budget(nodes=1, reasons=(Cause.CREATE,)))
    assert held(seen(World(), wanted(rules=made))) == {"node/pair-1": "waits for a budget: 1 node at once"}
    assert held(seen(brought(wanted()), wanted([], rules=made))) == {}


@pytest.mark.parametrize(
    ("group", "cause", "age", "counts"),
    [
        ("node/x-0", "delete", 599.0, True),
        ("node/x-0", "delete", 600.0, False),
        ("node/x-0", "create", 1.0, False),
        ("task/x", "delete", 1.0, False),
        ("node/x-0", LOST, 1.0, False),
    ],
)
def test_a_budget_counts_what_was_done_within_its_time(
    group: str, cause: str, age: float, counts: bool
) -> None:
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    within = Budget(nodes=1, per=Duration(600))
    before = [EarlierChange(group=group, cause=cause, at=world.now - age)]
    why = "waits for a budget: 1 node in 10m"
    found = held(seen(world, wanted([], rules=limited(within)), earlier_changes=before))
    assert found == ({"node/pair-0": why} if counts else {})
    assert held(seen(world, wanted([], rules=limited(Budget(nodes=1))), earlier_changes=before)) == {}


def test_a_task_counts_for_its_nodes_if_it_is_stopped() -> None:
    """One that is larger than the whole budget goes alone, and volumes count for nothing."""
    cluster = {**PAIR, "placement": "cluster"}
    world = brought(wanted([cluster], [GANG], [FREE]))
    assert len(world.running()) == 2
    found = seen(world, wanted([cluster], rules=limited(Budget(nodes=0))))
    assert (held(found), ids(found.plan)) == (
        {"task/gang": "waits for a budget: 0 nodes at once"},
        ["delete:volume/data"],
    )
    before = [EarlierChange(group="node/x-0", cause="delete", at=world.now - 1)]
    for most, waits in ((1, True), (2, True), (3, False)):
        rules = limited(Budget(nodes=most, per=Duration(600)))
        found = seen(world, wanted([cluster], rules=rules), earlier_changes=before)
        assert ("task/gang" in held(found)) is waits
        assert "task/gang" not in held(seen(world, wanted([cluster], rules=rules)))
    created = limited(Budget(nodes=0, reasons=(Cause.CREATE,)))
    started = seen(brought(wanted([cluster])), wanted([cluster], [GANG], rules=created))
    assert held(started) == {}


# -------------------------------------------------------------------------------- what a round keeps


def result(id: str, error: str | None = None) -> ActionResult:
    outcome = Outcome.DONE if error is None else Outcome.FAILED
    op, _, address = id.partition(":")
    return ActionResult(id=id, address=address, op=op, outcome=outcome, error=error)


def test_what_fails_again_waits_longer_and_what_is_done_does_not() -> None:
    plan, waits = World().plan(wanted()), Backoff((1.0, 10.0, 100.0))
    first, second = ids(plan)
    groups = set(NODES)
    for expected in (10.0, 100.0, 100.0):
        waits.take_in(plan, [result(first, "no room")], 50.0)
        why = "is tried again later: no room"
        assert waits.later(groups, 50.0) == {"node/pair-0": (50.0 + expected, why)}
    assert waits.later(groups, 150.0) == {}
    waits.take_in(plan, [result(first), result(second, "")], 50.0)
    assert waits.later(groups, 50.0) == {"node/pair-1": (60.0, "is tried again later: it failed")}
    assert waits.later({"node/pair-0"}, 50.0) == {}
    assert waits.later(groups, 50.0) == {}  # it was forgotten


def test_of_a_group_the_first_failure_counts() -> None:
    """A task has several actions; those that were not reached say nothing."""
    plan, waits = World().plan(wanted(tasks=[JOB])), Backoff((1.0, 10.0))
    mine = [i for i in ids(plan) if "job" in i]
    assert len(mine) == 2
    waits.take_in(plan, [result(mine[0], "first"), result(mine[1], "second")], 0.0)
    assert waits.later({"task/job"}, 0.0) == {"task/job": (10.0, "is tried again later: first")}
    waits.take_in(plan, [result(mine[0]), result(mine[1], "second")], 0.0)
    assert waits.later({"task/job"}, 0.0)["task/job"][1] == "is tried again later: second"
    waits.take_in(plan, [result(mine[0], "first"), result(mine[1])], 0.0)
    assert "task/job" in waits.later({"task/job"}, 0.0)
    waits.take_in(plan, [result(mine[0])], 0.0)
    assert waits.later({"task/job"}, 0.0) == {}


def chosen(
    world: World,
    desired: Desired,
    approvals: Iterable[Approval] = (),
    plan: Plan | None = None,
    **more: Any,
) -> AllowedPart:
    """What a round does."""
    given: dict[str, Any] = {"before": (), "backoff": Backoff(), "lacking": {}, **more}
    state = observed_state(world.state(), world.inventory(desired))
    found = plan or world.plan(desired)
    return choose(found, state, desired, now=world.now, approvals=approvals, **given)


def test_only_a_given_approval_counts_and_only_for_what_it_names() -> None:
    world, desired = World(), wanted(rules=NONE)
    asked = chosen(world, desired)
    digests = {w.address: w.digest for w in asked.waits}
    first, second = (Approval(digest=str(digests[n]), steps=(), since=0.0, approved_at=1.0) for n in NODES)
    assert (first != second, ids(asked.plan)) == (True, [])
    assert ids(chosen(world, desired, [first]).plan) == ["create:node/pair-0"]
    assert ids(chosen(world, desired, [first, second]).plan) == ["create:node/pair-0", "create:node/pair-1"]
    assert ids(chosen(world, desired, [replace(first, approved_at=None)]).plan) == []
    assert asked.approvals[first.digest] == ("create:node/pair-0",)
    done = [result("create:node/pair-0")]
    assert asked.unused(done).keys() == {second.digest}
    assert asked.unused([result("create:node/pair-0", "x")]).keys() == {first.digest, second.digest}


def test_what_is_approved_and_has_no_room_waits_for_no_approval() -> None:
    rules = Reconcile(allow=(), budgets=(Budget(nodes=0, reasons=(Cause.CREATE,)),))
    desired = wanted([{**PAIR, "nodes": 1}], rules=rules)
    (asked,) = chosen(World(), desired).waits
    given = Approval(digest=str(asked.digest), steps=(), since=0.0, approved_at=1.0)
    (wait,) = chosen(World(), desired, [given]).waits
    assert (wait.why, wait.digest) == ("waits for a budget: 0 nodes at once", None)


def test_a_fleet_of_hosts_has_no_number_of_nodes() -> None:
    rack = {"name": "rack", "ssh_config": {"user": "me", "hosts": ["10.0.0.1"]}}
    assert ids(seen(World(), wanted([PAIR, rack])).plan) == ["create:node/pair-0", "create:node/pair-1"]


def test_what_lacks_something_waits_without_an_end() -> None:
    found = chosen(World(), wanted(), lacking={"node/pair-0": "needs HF_TOKEN"})
    (wait,) = found.waits
    assert (wait.address, wait.why, wait.until, wait.digest) == ("node/pair-0", "needs HF_TOKEN", None, None)
    assert wait.hint == ENVIRONMENT
    assert found.nodes == {"node/pair-1": "create"}
    assert found.approvals == {}
    timed = chosen(World(), wanted(), backoff=later("node/pair-0"))
    assert [w.until for w in timed.waits] == [World().now + 1]
    assert ENVIRONMENT not in [w.hint for w in timed.waits]


def later(group: str) -> Backoff:
    waits = Backoff((1.0,))
    waits.failed(group, "x", World().now)
    return waits


def gone_world() -> World:
    world = brought(wanted())
    world.gone.add(Address("node", "pair-0"))
    return world


def test_a_held_thing_that_is_gone_stays_lost_until_it_is_made() -> None:
    """The note is repeated each half day, and ended once: the record of what was gone is not kept."""
    held_back = wanted(rules=Reconcile(allow=(Cause.CREATE,)))
    world = gone_world()
    found = chosen(world, held_back)
    assert (found.lost, found.noted) == (frozenset({"node/pair-0"}), {"node/pair-0": LOST})
    world.settle()
    now = world.now

    def noted(at: float, cause: str = LOST) -> Permit:
        return Permit(address="node/pair-0", cause=cause, at=at)

    for before, again in (
        ([noted(now - 10)], {}),
        ([noted(now - DAY / 2)], {}),
        ([noted(now - DAY / 2 - 1)], {"node/pair-0": LOST}),
        ([noted(now - 20, OVER), noted(now - 10)], {}),
    ):
        found = chosen(world, held_back, before=before)
        assert (found.lost, found.noted) == (frozenset({"node/pair-0"}), again)
        assert found.causes["node/pair-0"] is Cause.REPLACE_LOST
    over = chosen(world, held_back, before=[noted(now - 20), noted(now - 10, OVER)])
    assert (over.lost, over.noted, ids(over.plan)) == (frozenset(), {}, ["create:node/pair-0"])
    done = chosen(world, wanted(), before=[noted(now - 10)])
    assert (done.lost, done.noted, ids(done.plan)) == (
        frozenset(),
        {"node/pair-0": OVER},
        ["create:node/pair-0"],
    )
    assert done.still_lost([]) == {}
    assert done.still_lost([result("create:node/pair-0", "x")]) == {"node/pair-0": LOST}
    assert done.still_lost([result("create:node/pair-0")]) == {}
    new = chosen(World(), wanted())
    assert new.still_lost([result("create:node/pair-0", "x")]) == {}


def finding(code: str, address: str | None, severity: Severity = Severity.ERROR) -> Diagnostic:
    return Diagnostic(code=code, summary=f"{code} of {address}", hint="", address=address, severity=severity)


def test_the_errors_about_what_is_left_out_are_left_out_of_the_plan() -> None:
    """A fleet that is short delays no other; only one whose backend cannot be read is not its fault."""
    plan = World().plan(wanted())
    short = finding("no-offer", "fleet/pair")
    others = (
        finding("no-offer", None),
        finding("protected", "node/pair-0"),
        finding("over-limit", "fleet/pair"),
        finding("over-limit", "fleet/pair", Severity.WARNING),
        finding("other", "fleet/pair"),
    )
    found = chosen(World(), wanted(), plan=with_parts(plan, diagnostics=(short, *others)))
    assert [*found.plan.diagnostics] == [others[0], others[3], others[4]]
    assert ids(found.plan) == ["create:node/pair-1"]
    assert found.errors == (short,)
    assert [(w.address, w.action) for w in found.waits] == [
        ("node/pair-0", "create"),
        ("fleet/pair", "create"),
    ]
    unread = finding("backend-unreadable", "backend/other")
    sky = {"name": "sky", "driver": "local", "regions": ["east"]}
    desired = replace(wanted(), backends=declared(backends=[sky]).backends)
    for where, errors in (("backend/sky", ()), ("backend/other", (short,))):
        with_it = with_parts(plan, diagnostics=(short, replace(unread, address=where)))
        assert chosen(World(), desired, plan=with_it).errors == errors
    gone = finding("volume-gone", "volume/data")
    (wait,) = chosen(World(), wanted(), plan=with_parts(plan, diagnostics=(gone,))).waits
    assert (wait.address, wait.action) == ("volume/data", "replace-lost")
    assert "`fleetform apply --replace`" in wait.why


def test_what_a_backend_refuses_is_what_would_be_made_there() -> None:
    """By its own address, its fleet's or its backend's; the nearest one counts."""
    plan = World().plan(wanted(tasks=[JOB], volumes=[FREE]))
    everything = {"node/pair-0", "node/pair-1", "volume/data"}
    for address, groups in (
        ("backend/local", everything),
        ("fleet/pair", {*NODES}),
        ("volume/data", {"volume/data"}),
        ("node/pair-1", {"node/pair-1"}),
        ("backend/other", set()),
        ("rank/job-0", set()),
    ):
        found = refused(with_parts(plan, diagnostics=(finding("backend-refuses", address),)))
        assert found.keys() == groups
    both = (finding("backend-refuses", "backend/local"), finding("backend-refuses", "fleet/pair"))
    found = refused(with_parts(plan, diagnostics=both))
    assert {g: d.address for g, d in found.items()} == {
        **dict.fromkeys(NODES, "fleet/pair"),
        "volume/data": "backend/local",
    }
    assert refused(with_parts(plan, diagnostics=(finding("other", "backend/local"),))) == {}
    sky = {"name": "sky", "driver": "local", "regions": ["east"]}
    volume = World().plan(declared(backends=[sky], volumes=[{**FREE, "backend": "sky"}]))
    found = refused(with_parts(volume, diagnostics=(finding("backend-refuses", "backend/sky"),)))
    assert found.keys() == {"volume/data"}
    deleting = brought(wanted()).plan(wanted([]))
    assert [a.op for a in deleting.actions] == [Op.DELETE, Op.DELETE]
    assert refused(with_parts(deleting, diagnostics=(finding("backend-refuses", "backend/local"),))) == {}


def test_a_failed_task_runs_again_when_its_time_has_come() -> None:
    desired = wanted(tasks=[{**JOB, "retry": True}])
    world = brought(desired)
    world.end("job-0", RankState.FAILED)
    world.settle()
    wait = next(w for w in chosen(world, desired).waits if w.address == "task/job")
    assert (wait.why.startswith("runs again later: rank/job-0 failed"), wait.until) == (True, world.now + 1.0)
    world.now += 1
    assert [w for w in chosen(world, desired).waits if w.address == "task/job"] == []
    assert math.isinf(chosen(world, desired, lacking={"task/job": "x"}).waits[0].until or math.inf)


# ------------------------------------------------------------------------- what is not known, or far away


def test_without_the_project_only_its_limits_and_names_are_not_known() -> None:
    """A plan that was saved has none."""
    world = brought(wanted(volumes=[FREE]))
    renamed = {**FREE, "name": "store"}
    rules = Reconcile(allow=(Cause.CREATE,))
    desired = wanted(volumes=[renamed], rules=rules)
    assert held(seen(world, desired)).keys() == {"volume/data", "volume/store"}
    assert held(seen(world, desired, desired=None)) == {"volume/data": "waits for approval"}
    assert len(ids(seen(World(), wanted(), desired=None).plan)) == 2


def test_a_limit_lets_the_first_ones_go() -> None:
    """What needs each other goes together or not at all; the rest goes on."""
    desired = wanted(volumes=[FREE])
    limited_to_one = replace(desired, project=replace(desired.project, limits=Limits(nodes=1)))
    found = seen(World(), limited_to_one)
    why = "would go beyond `limits`: there would be 2 nodes; the limit is 1: fleet/pair 2"
    assert held(found) == {"node/pair-1": why}
    assert one(found, "node/pair-1").hint == "declare less, or raise `limits.nodes`"
    assert sorted(ids(found.plan)) == ["create:node/pair-0", "create:volume/data"]
    enough = replace(desired, project=replace(desired.project, limits=Limits(nodes=2)))
    assert held(seen(World(), enough)) == {}


def test_a_budget_counts_only_in_its_hours() -> None:
    world = brought(wanted())
    assert world.now == 1_000_000.0  # 1970-01-12 13:46:40
    for hours, waits in (("* 13 * * *", True), ("* 14 * * *", False)):
        budget = Budget(nodes=0, schedule=Cron.parse(hours))
        assert bool(held(seen(world, wanted([], rules=limited(budget))))) is waits


def test_each_task_counts_for_its_own_nodes() -> None:
    """And one that goes on counts for none."""
    pair = [{**JOB, "name": name, "resources": {"cpu": 2}} for name in ("one", "two")]
    world = brought(wanted(tasks=pair))
    assert held(seen(world, wanted(rules=limited(Budget(nodes=2))))) == {}
    one_waits = held(seen(world, wanted(rules=limited(Budget(nodes=1)))))
    assert one_waits.keys() == {"task/two"}
    alike = brought(wanted(tasks=[{**pair[0], "name": "data"}], volumes=[FREE]))
    assert held(seen(alike, wanted(rules=limited(Budget(nodes=1))))) == {}
    both = (Cause.UPDATE, Cause.DELETE)
    updated = wanted(tasks=[{**pair[0], "priority": 7}], rules=limited(Budget(nodes=0, reasons=both)))
    assert causes(world, updated) == {"task/one": Cause.UPDATE, "task/two": Cause.DELETE}
    assert held(seen(world, updated)).keys() == {"task/two"}


def test_a_task_that_grows_after_its_end_stops_nothing() -> None:
    """Ranks that are new have not ended, and are no reason."""
    world = brought(wanted([{**PAIR, "placement": "cluster"}], [JOB]))
    world.end("job-0", RankState.SUCCEEDED)
    world.settle()
    grown = wanted([{**PAIR, "placement": "cluster"}], [{**JOB, "nodes": 2}])
    assert causes(world, grown)["task/job"] is Cause.CREATE


def test_a_rank_that_a_task_has_no_more_names_no_volume_of_it() -> None:
    """The task mounts other volumes now, on fewer nodes."""
    world = brought(wanted(volumes=[{**FREE, "count": 2}]))
    inputs = {"task": "fill", "rank": 1, "nodes": 2, "commands": ["x"], "volumes": {"/d": ["data-1"]}}
    last = Record(address=Address("rank", "fill-1"), backend=None, inputs=inputs)
    state = replace(world.state(), records={**world.records, last.address: last})
    filling = [{**MOUNTS, "mounts": {"/d": "store-#"}}]
    desired = wanted(tasks=filling, volumes=[{**FREE, "name": "store", "count": 2}])
    found = successors(desired, state, {"volume/data-0", "volume/data-1"})
    assert found == {"volume/store-0": ("volume/data-0",), "volume/store-1": ("volume/data-1",)}


def test_what_waits_has_the_hint_of_what_was_found() -> None:
    few, gone = (replace(finding("x", at), hint=f"do {at}") for at in ("fleet/a", "volume/b"))
    found = _waits((), {}, (), [few, finding("x", None)], [gone, finding("x", None)])
    assert [(w.address, w.action, w.hint) for w in found] == [
        ("fleet/a", "create", "do fleet/a"),
        ("", "create", ""),
        ("volume/b", "replace-lost", "do volume/b"),
        ("", "replace-lost", ""),
    ]


def test_what_is_held_for_itself_is_not_held_for_another() -> None:
    """A creation that waits for its approval says so, though it would take the place of something."""
    world = brought(wanted(volumes=[FREE]))
    found = seen(world, wanted(volumes=[{**FREE, "name": "store"}], rules=NONE))
    assert held(found)["volume/store"] == "waits for approval"


def test_in_the_place_of_several_the_one_that_is_refused_counts() -> None:
    """No approval is enough then."""
    rules = Reconcile(allow=(Cause.CREATE,))
    world = brought(wanted(volumes=[{**FREE, "name": "old-a"}, {"name": "old-b"}]))
    found = seen(world, wanted(volumes=[{**FREE, "name": "new"}], rules=rules))
    wait = one(found, "volume/new")
    assert (wait.why, wait.approval) == (
        "takes the place of volume/old-a or volume/old-b, and volume/old-b is protected",
        False,
    )


def test_what_is_deleted_without_an_obstacle_is_in_nobodys_place() -> None:
    """Beside something else that is held."""
    rules = Reconcile(allow=tuple(c for c in Cause if c is not Cause.DELETE))
    world = brought(wanted(tasks=[JOB], volumes=[FREE]))
    world.end("job-0", RankState.SUCCEEDED)
    world.settle()
    found = seen(world, wanted(tasks=[{**JOB, "name": "work"}], rules=rules))
    assert held(found) == {"volume/data": "waits for approval"}
    assert "create:rank/work-0" in ids(found.plan)


def test_a_fleet_is_replaced_by_another_one_as_a_budget_permits() -> None:
    """Its nodes come one after the other, as the old ones go."""
    world = brought(wanted())
    other = wanted([{**PAIR, "name": "duo"}], rules=limited(Budget(nodes=1)))
    found = seen(world, other)
    assert held(found) == {"node/pair-1": "waits for a budget: 1 node at once"}
    assert {"create:node/duo-0", "create:node/duo-1", "delete:node/pair-0"} == {*ids(found.plan)}


SOME = {**PAIR, "nodes": "0..2", "placement": "cluster"}


def test_a_fleet_is_not_replaced_while_its_nodes_are_used() -> None:
    """Only a later plan deletes them."""
    world, desired = brought(wanted([{**PAIR, "nodes": 1}])), wanted([{**PAIR, "name": "other", "nodes": 1}])
    whole = world.plan(desired)
    plan = replace(whole, actions=tuple(whole.of(Op.CREATE, "node")))
    state = observed_state(world.state(), world.inventory(desired))
    found = permitted_part(plan, state, PermitInputs(rules=ALL, now=world.now, desired=desired))
    why = "takes the place of fleet/pair, and node/pair-0 stays as long as it is used"
    assert held(found) == {"node/other-0": why}


def test_no_node_is_made_for_what_waits_if_its_fleet_has_enough() -> None:
    """The last ones by name are left out, as many as the fleet has beyond its number. A node that goes does
    not count.
    """
    desired = wanted([SOME], [GANG], rules=Reconcile(allow=(Cause.CREATE,)))
    world = World()
    plan = world.plan(desired)
    later = {"task/gang": (math.inf, "lacks something")}

    def left_out(nodes: Iterable[Any]) -> set[str]:
        known = with_parts(plan, nodes=tuple(nodes))
        given = PermitInputs(
            rules=desired.project.reconcile, now=world.now, desired=desired, retry_after=later
        )
        found = held(permitted_part(known, world.state(), given))
        assert found.pop("task/gang") == "lacks something"
        assert {*found.values()} <= {"is for task/gang, which lacks something"}
        return {*found}

    first, second = plan.preview.nodes
    assert left_out([first, second]) == {*NODES}
    assert left_out([first, replace(second, status="deleted")]) == {"node/pair-1"}
    assert left_out([replace(first, fleet="other"), second]) == {"node/pair-1"}
    assert left_out([]) == set()
    two = wanted([{**SOME, "nodes": "1..2"}], [GANG], rules=desired.project.reconcile)
    assert held(seen(World(), two, retry_after=later)).keys() == {"task/gang", "node/pair-1"}


def test_a_node_is_made_for_one_of_its_tasks_though_another_waits() -> None:
    shared = {**PAIR, "nodes": "0..1", "blocks": 2}
    both = [{**JOB, "name": name, "resources": {"cpu": 1}} for name in ("one", "two")]
    desired = wanted([shared], both)
    assert [i for i in ids(World().plan(desired)) if "node/" in i] == ["create:node/pair-0"]
    why = (math.inf, "lacks something")
    found = seen(World(), desired, retry_after={"task/one": why})
    assert held(found) == {"task/one": "lacks something"}
    assert {"create:node/pair-0", "create:rank/two-0"} <= {*ids(found.plan)}
    found = seen(World(), desired, retry_after={"task/one": why, "task/two": why})
    assert held(found)["node/pair-0"] == "is for task/one, which lacks something"
    found = seen(
        World(), desired, retry_after={"task/one": why, "task/two": why, "node/pair-0": (math.inf, "x")}
    )
    assert held(found)["node/pair-0"] == "x"


def test_what_needs_each_other_is_together_once() -> None:
    """Among the groups that are asked for."""
    plan = World().plan(wanted(tasks=[JOB], volumes=[FREE]))
    assert components(plan, ["task/job", "node/pair-0", "node/pair-1"]) == [
        {"node/pair-0", "task/job"},
        {"node/pair-1"},
    ]
    assert components(plan, ["node/pair-0"]) == [{"node/pair-0"}]
    assert components(plan, ["volume/data", "task/job"]) == [{"task/job"}, {"volume/data"}]


def test_a_node_that_is_made_for_another_reason_does_not_wait_for_its_task() -> None:
    """One that vanished is made anew, whoever needs it."""
    rules = Reconcile(allow=(Cause.CREATE, Cause.REPLACE_LOST))
    world = brought(wanted([SOME], [GANG]))
    for rank in world.running():
        world.end(rank, RankState.FAILED)
    world.settle()
    world.gone.add(Address("node", "pair-0"))
    desired = wanted([SOME], [{**GANG, "commands": ["false"]}], rules=rules)
    found = seen(world, desired, retry_after={"task/gang": (math.inf, "lacks something")})
    assert found.causes["node/pair-0"] is Cause.REPLACE_LOST
    assert held(found) == {"task/gang": "lacks something"}
    assert ids(found.plan) == ["create:node/pair-0"]


def test_what_needs_something_that_is_only_changed_back_waits_for_that() -> None:
    """Drift is no harmless change: it is somebody's."""
    rules = Reconcile(allow=(Cause.CREATE,))
    desired = wanted(tasks=[MOUNTS], volumes=[FREE], rules=rules)
    world = brought(wanted(volumes=[FREE]))
    altered = {Address("volume", "data"): {"tags": {"team": "x"}}}
    plan = make_plan(desired, world.state(), replace(world.inventory(desired), altered=altered), world.now)
    given = PermitInputs(rules=rules, now=world.now, desired=desired)
    found = permitted_part(plan, observed_state(world.state(), world.inventory(desired)), given)
    assert found.causes["volume/data"] is Cause.DRIFT
    assert held(found)["volume/data"] == "waits for approval"


def test_a_thing_that_is_there_again_is_not_lost() -> None:
    """Whatever else of it waits; and other notes of the journal end none of the loop's own."""
    world = brought(wanted())
    rules = Reconcile(allow=(Cause.CREATE,))
    note = Permit(address="node/pair-0", cause=LOST, at=world.now - 20)
    back = chosen(world, wanted([], rules=rules), before=[note])
    assert [w.address for w in back.waits] == NODES
    assert (back.lost, back.noted) == (frozenset(), {"node/pair-0": OVER})
    new = chosen(World(), wanted(rules=NONE))
    assert (len(new.waits), new.lost, new.noted) == (2, frozenset(), {})
    gone = gone_world()
    gone.settle()
    other = Permit(address="node/pair-0", cause="replace-lost", at=gone.now - 10)
    still = chosen(gone, wanted(rules=rules), before=[note, other])
    assert still.lost == {"node/pair-0"}


def test_what_is_only_forgotten_is_in_nobodys_place() -> None:
    """A volume that was adopted stays, and its data with it."""
    world = brought(wanted(tasks=[MOUNTS], volumes=[{"name": "data", "volume_id": "vol-1"}]))
    rules = Reconcile(allow=(Cause.CREATE, Cause.REPLACE))
    filling = [{**MOUNTS, "mounts": {"/d": "store"}}]
    found = seen(world, wanted(tasks=filling, volumes=[{**FREE, "name": "store"}], rules=rules))
    assert held(found) == {"volume/data": "waits for approval"}
    assert "create:volume/store" in ids(found.plan)


# --------------------------------------------------------------------------------- a part of a plan


def test_a_part_of_a_plan_gets_around_no_protection() -> None:
    """It would leave out the deletion that is refused, and make what takes the place of that thing."""
    world = brought(wanted(volumes=[{"name": "data"}]))
    desired = wanted(volumes=[{"name": "store"}])
    whole, state = world.plan(desired), world.state()
    (error,) = [d for d in whole.diagnostics if d.code == "protected"]
    part = with_parts(whole, diagnostics=tuple(d for d in whole.diagnostics if d != error))
    made = replace(part, actions=tuple(a for a in part.actions if a.op is Op.CREATE))
    assert [a.id for a in made.actions] == ["create:volume/store"]
    assert refused_with(made, whole, desired, state) == [error]
    assert refused_with(replace(made, actions=()), whole, desired, state) == []
    assert refused_with(whole, whole, desired, state) == []  # it says so itself
    other = with_parts(whole, diagnostics=(replace(error, code="other"),))
    assert refused_with(made, other, desired, state) == []
    elsewhere = with_parts(whole, diagnostics=(replace(error, address="volume/none"),))
    assert refused_with(made, elsewhere, desired, state) == []
    deleting = replace(part, actions=tuple(a for a in part.actions if a.op is Op.DELETE))
    assert refused_with(deleting, whole, desired, state) == []
    used = replace(whole, actions=made.actions)  # a later plan deletes it
    assert refused_with(made, used, desired, state) == [error]


def test_a_part_of_a_plan_gets_around_no_protection_of_nodes() -> None:
    """The error is of a node, and a new fleet takes the place of its fleet."""
    world = brought(wanted([{**PAIR, "nodes": 1}]))
    desired = wanted([{**PAIR, "name": "other", "nodes": 1}])
    whole = world.plan(desired)
    error = finding("protected", "node/pair-0")
    made = replace(whole, actions=tuple(a for a in whole.actions if a.op is Op.CREATE))
    assert [a.id for a in made.actions] == ["create:node/other-0"]
    assert refused_with(made, with_parts(whole, diagnostics=(error,)), desired, world.state()) == [error]


def test_every_reason_is_something_to_the_loop():
    """Of a schedule it is asked first. One without a cause would end a round of the loop with an error."""
    assert {*CAUSES} == {*Reason} - {Reason.SCHEDULE}
