"""More or fewer `nodes` of a task whose ranks do not know each other: the ranks that stay run on."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declarative.apply.launch import launch_of
from declarative.apply.ranks import stops
from declarative.apply.retry_schedule import lacking
from declarative.converge.planning import RunOptions
from declarative.converge.run import Run
from declarative.model.state import Address
from declarative.model.status import WAITING, RankState, RankStatus
from declarative.planner.plan import Op, Plan
from declarative.planner.unattended import causes_of
from declarative.provider import PermanentError, PermanentKind
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.market import KilledError, Market, Site, no_room
from tests.support.model import World, project


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(Market())
    yield made
    made.close()


def desired(nodes: int, size: Any = 8, **more: Any) -> Any:
    """A task on a fleet of so many nodes with two blocks each."""
    job = {"name": "job", "nodes": nodes, "placement": "any", "resources": {"cpu": "4.."}, **more}
    backend = {"name": "sky", "driver": "ec2", "regions": ["east"], "catalog": more.pop("catalog", CATALOG)}
    job.pop("catalog", None)
    fleet = {"name": "web", "nodes": size, "blocks": 2, **job.pop("fleet", {})}
    return project(backends=[backend], fleets=[fleet], tasks=[job])


CATALOG = [{"instance_type": "big", "cpu": 8, "memory": "16GB", "price": 1.0}]


def made(wanted: Any) -> World:
    world = World()
    world.apply(world.plan(wanted), random.Random(1))
    assert world.plan(wanted).actions == ()
    return world


def ids(plan: Plan) -> list[str]:
    return [a.id for a in plan.actions if a.address.kind != "node"]


def of_ranks(plan: Plan) -> set[str]:
    return {a.id for a in plan.actions if a.address.kind == "rank"}


def sizes(world: World) -> dict[str, int]:
    """Rank → the number of ranks that it records."""
    return {r.address.name: r.rank.nodes for r in world.of("rank")}


def test_more_nodes_start_the_new_ranks_and_leave_the_others():
    world = made(desired(2))
    then = desired(3)
    plan = world.plan(then)
    assert ids(plan) == [
        "create:reservation/job-2",
        "create:rank/job-2",
        "update:rank/job-0",
        "update:rank/job-1",
    ]
    assert not any(a.ends for a in plan.actions)
    before = {n: r.generation for n, r in world.records.items()}
    world.apply(plan, random.Random(1))
    assert sizes(world) == {f"job-{i}": 3 for i in range(3)}
    assert all(world.records[address].generation == number for address, number in before.items())
    assert world.plan(then).actions == ()


def test_fewer_nodes_stop_the_last_ranks_only():
    world = made(desired(3))
    then = desired(2)
    plan = world.plan(then)
    assert ids(plan) == [
        "update:rank/job-0",
        "update:rank/job-1",
        "delete:rank/job-2",
        "delete:reservation/job-2",
    ]
    assert [a.id for a in plan.actions if a.ends] == ["delete:rank/job-2"]
    world.apply(plan, random.Random(1))
    assert sizes(world) == {"job-0": 2, "job-1": 2}
    assert world.plan(then).actions == ()


def test_the_plan_says_what_happens_to_each_rank():
    grown = plan_text(made(desired(2)).plan(desired(3)), color=False, width=None)
    stays = "it is not started anew: its variables keep the number of ranks at its start"
    assert "+ rank/job-2  # `nodes` changed\n" in grown
    assert f"~ rank/job-0, rank/job-1  # `nodes` changed; {stays} (2 alike)\n      nodes: 2 → 3\n" in grown
    plan = made(desired(3)).plan(desired(2))
    shrunk = plan_text(plan, color=False, width=None)
    assert "- rank/job-2  # above the `nodes` of task/job; it runs, and is stopped at once\n" in shrunk
    assert f"~ rank/job-0, rank/job-1  # `nodes` changed; {stays} (2 alike)\n      nodes: 3 → 2\n" in shrunk
    found = {r["rank"]: r["status"] for r in json.loads(json.dumps(plan_json(plan)))["reservations"]}
    assert found == {0: "kept", 1: "kept", 2: "released"}


def test_a_loop_may_start_ranks_as_it_may_start_tasks_and_stops_them_as_it_may_delete():
    """To end work that goes on is to delete it, whatever field says so."""
    for before, after, cause in ((2, 3, "create"), (3, 2, "delete")):
        world = made(desired(before))
        found = causes_of(world.plan(desired(after)), world.state())
        assert found["task/job"].value == cause


def test_each_rank_is_told_what_was_so_when_it_started():
    world = made(desired(2))
    world.apply(world.plan(desired(3)), random.Random(1))
    state = world.state()
    env = launch_of(state, state.records[Address("rank", "job-2")], {}).env
    assert (env["FLEETFORM_NODE_RANK"], env["FLEETFORM_NODES_NUM"]) == ("2", "3")
    assert "FLEETFORM_NODES_IPS" not in env


@settings(max_examples=25)
@given(data=st.data())
def test_an_apply_that_is_cut_short_is_completed_by_the_next(data):
    """Whatever number is declared then: no rank that stays is started anew."""
    numbers = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    order = data.draw(st.integers(0, 1000))
    world = made(desired(numbers[0]))
    always = set(range(min(numbers)))
    first = {rank: world.records[Address("rank", f"job-{rank}")].generation for rank in always}
    for number in numbers[1:]:
        plan = world.plan(desired(number))
        cut = data.draw(st.integers(0, len(plan.actions)))
        world.apply(plan, random.Random(order), stop_after=cut)
        for rank in always:
            assert world.records[Address("rank", f"job-{rank}")].generation == first[rank]
    last = desired(numbers[-1])
    world.apply(world.plan(last), random.Random(order))
    assert sizes(world) == {f"job-{i}": numbers[-1] for i in range(numbers[-1])}
    assert {r.address.name for r in world.of("reservation")} == set(sizes(world))
    assert world.plan(last).actions == ()


@pytest.mark.parametrize(
    "more", [{"placement": "cluster", "fleet": {"placement": "cluster"}}, {"env": {"A": "1"}}]
)
def test_a_gang_and_a_task_with_another_change_start_anew(more):
    """Ranks of a gang know how many they are, and where."""
    before = {"placement": "cluster", "fleet": {"placement": "cluster"}} if "fleet" in more else {}
    plan = made(desired(2, **before)).plan(desired(3, **more))
    starts = {f"create:rank/job-{i}" for i in range(3)}
    assert of_ranks(plan) == starts | {"delete:rank/job-0", "delete:rank/job-1"}


def test_a_field_that_changes_in_place_goes_along():
    plan = made(desired(2)).plan(desired(3, priority=7))
    assert {a.because for a in plan.actions if a.op is Op.UPDATE} == {("nodes", "priority")}
    assert "delete" not in str(of_ranks(plan))


@pytest.mark.parametrize(
    ("states", "anew"),
    [
        ([RankState.SUCCEEDED, RankState.RUNNING], False),
        ([RankState.SUCCEEDED, RankState.SUCCEEDED], True),
        ([RankState.FAILED, RankState.RUNNING], True),
    ],
)
def test_a_task_that_is_over_runs_anew_as_before(states, anew):
    world = made(desired(2))
    for i, state in enumerate(states):
        world.ranks[f"job-{i}"] = RankStatus(state=state)
    starts = {i for i in of_ranks(world.plan(desired(3))) if i.startswith("create")}
    assert starts == {f"create:rank/job-{i}" for i in (range(3) if anew else [2])}


def test_a_gang_that_waits_at_its_gate_starts_anew():
    world = made(desired(2))
    for i in range(2):
        world.ranks[f"job-{i}"] = RankStatus(state=RankState.STARTING, cause=WAITING)
    assert "delete:rank/job-0" in of_ranks(world.plan(desired(3)))


def test_without_a_place_for_more_the_task_runs_on():
    world = made(desired(2, size=1, fleet={"nodes": "1..1"}))
    plan = world.plan(desired(4, size=1, fleet={"nodes": "1..1"}))
    assert of_ranks(plan) == set()
    [refusal] = plan.unplaced.refusals
    assert [v.rank for v in refusal.ranks] == [2, 3]
    assert any(
        "runs on as it is: no place for its new ranks" in line
        for line in plan_text(plan, color=False, width=None).splitlines()
    )
    # What would help is said of the whole task.
    more = world.plan(desired(3, size=1, fleet={"nodes": "1..2"}))
    assert "create:rank/job-2" in of_ranks(more)


@pytest.mark.parametrize(("size", "fits"), [(2, False), (3, True)])
def test_new_ranks_are_spread_from_those_that_stay(size, fits):
    wanted = {"spread": "node", "fleet": {"nodes": size}}
    world = made(desired(2, **{**wanted, "fleet": {"nodes": size}}))
    plan = world.plan(desired(3, **wanted))
    seats = {r.node for r in plan.reservations if r.status.value != "released"}
    assert len(seats) == (3 if fits else 2)
    assert ("create:rank/job-2" in of_ranks(plan)) is fits
    if not fits:
        codes = {x.code for v in plan.unplaced.refusals[0].ranks for x in v.rejections}
        assert "spread" in codes


def test_new_ranks_get_gpus_of_the_same_vendor():
    """As all ranks of one task do that names none of several."""
    kinds = [
        {"instance_type": "green", "cpu": 8, "memory": "16GB", "gpu": "A100:1", "price": 2.0},
        {"instance_type": "red", "cpu": 8, "memory": "16GB", "gpu": "MI300X:1", "price": 1.0},
    ]
    many = {"fleet": {"nodes": "0..4", "blocks": 1}, "resources": {"gpu": 1}}
    world = made(desired(2, catalog=kinds[:1], **many))
    plan = world.plan(desired(3, catalog=kinds, **many))
    assert "create:rank/job-2" in of_ranks(plan)
    assert {r.instance_type for r in plan.reservations} == {"green"}


def test_a_node_that_the_last_rank_leaves_may_go_and_the_others_stay():
    """A node above the fleet's maximum is no reason to start the ranks anew that are elsewhere."""
    one = {"resources": {"cpu": 8}, "fleet": {"nodes": "0..3", "blocks": 1}}
    world = made(desired(3, **one))
    plan = world.plan(desired(2, **{**one, "fleet": {"nodes": "0..2", "blocks": 1}}))
    assert of_ranks(plan) == {"delete:rank/job-2", "update:rank/job-0", "update:rank/job-1"}
    assert sum(a.op is Op.DELETE and a.address.kind == "node" for a in plan.actions) == 1


def test_a_stopped_task_is_not_resized():
    world = made(desired(2))
    for address, record in world.records.items():
        if address.kind == "rank":
            world.records[address] = replace(record, outputs={**record.outputs, "stopped": True})
    assert "delete:rank/job-0" in of_ranks(world.plan(desired(3)))


def running(site: Site) -> set[str]:
    """The attempts that run."""
    return {name for name, status in site.market.ranks.items() if status.state is RankState.RUNNING}


def begun(site: Site, nodes: int) -> set[str]:
    """The attempts of the first two of so many ranks, once all run."""
    assert site.apply(desired(nodes))
    assert len(running(site)) == nodes
    return {name for name in running(site) if name.startswith(("job-0.", "job-1."))}


def test_ranks_run_on_where_another_cannot_join_them(site):
    """The next apply tries it again."""
    first = begun(site, 2)
    start = site.market.start

    def refuse(node, launch):
        if launch.attempt.startswith("job-2"):
            raise PermanentError(PermanentKind.INVALID, "no")
        return start(node, launch)

    site.market.start = refuse
    assert not site.apply(desired(3))
    assert running(site) == first
    site.market.start = start
    assert site.apply(desired(3))
    assert first < running(site)
    assert len(running(site)) == 3
    assert site.plan(desired(3)).actions == ()


def test_a_rank_without_capacity_is_not_waited_for(site):
    """While others of its task run, `apply --wait` starts none of them: the command did not do all of it."""
    grows = {
        "size": "0..3",
        "fleet": {"blocks": 1},
        "retry": {"on_events": ["no-capacity"], "duration": "1h"},
    }
    assert site.apply(desired(2, **grows))
    site.market.room = lambda _inputs: no_room()
    wanted = desired(3, **grows)
    plan = site.plan(wanted)
    assert not site.apply(wanted, plan=plan)
    results = tuple(site.results.values())
    assert "job" in lacking(plan, results)
    run: Any = Run.__new__(Run)
    run.desired, run.options, run.lacking, run.unstarted, run.faults = (
        wanted,
        RunOptions(follows=True),
        {},
        {},
        [],
    )
    run._note_failed_starts(plan, results, SimpleNamespace(note_waiting=lambda _why: None))
    assert (run.lacking, run.unstarted) == ({}, {})  # no try again covers what is not done
    assert any(done.outcome != "done" for done in results)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_no_kill_of_an_apply_harms_the_ranks_that_stay(before, after):
    """At any write, and whenever the next one comes."""
    for step in itertools.count(1):
        site = Site(Market())
        try:
            first = begun(site, before)
            try:
                site.apply(desired(after), die_at=step)
                killed = False
            except KilledError:
                killed = True
            assert stops(site.store.read(), now=1e12) == {}  # as of a gang of which some are missing
            assert site.apply(desired(after))
            assert first <= running(site)
            assert len(running(site)) == after
            assert site.plan(desired(after)).actions == ()
        finally:
            site.close()
        if not killed:
            return
