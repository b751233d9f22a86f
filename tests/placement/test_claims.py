"""Claims: a waiting task keeps the blocks that it waits for (docs/placement.md, "Waiting tasks")."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from benchmarks.placement.check import violations
from tests.placement.test_placement import ask, fleet, node, offer, places, run
from tests.support.examples import examples
from tests.support.model import World
from tests.support.model import project as declared
from tests.support.varied import without_claims
from tests.support.worlds import Taste, cases, sizes_that_divide

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(100),
)


def high(**words):
    return ask("high", **{"resources": {"cpu": 8}, "priority": 100, **words})


def small(name="small", **words):
    return ask(name, **{"resources": {"cpu": 2}, **words})


def reasons(outcome, task):
    (refusal,) = (r for r in outcome.refusals if r.task == task)
    return [r.detail for v in refusal.ranks for r in v.rejections]


def test_a_waiting_task_keeps_the_blocks_that_it_waits_for():
    """`high` waits for the whole node, and `small` does not take the three idle blocks; it is told why."""
    out = run([high(), small()], [node("gpu-0", held=[3])], [fleet(existing=1, nodes=1)])
    assert places(out) == {}
    assert {r.task: r.code for r in out.refusals} == {"high": "no-capacity", "small": "no-capacity"}
    assert "wanted 1 block, 0 of 4 idle (rank/other-0, the claim of task/high)" in reasons(out, "small")
    hints = {r.task: r.hint for r in out.refusals}
    kept = "what is idle is kept for task/high, unless `backfill: any` of the fleet says otherwise"
    assert kept in hints["small"]
    assert "is kept for" not in hints["high"]


def test_a_fleet_may_let_all_in():
    """`backfill: any`: what is idle is used, and `high` waits on."""
    out = run([high(), small()], [node("gpu-0", held=[3])], [fleet(existing=1, nodes=1, backfill="any")])
    assert places(out) == {"small-0": ("gpu-0", (0,))}


@pytest.mark.parametrize(
    ("busy_for", "longest", "placed"),
    [(3600, "1h", True), (3600, "59m", True), (3600, "61m", False), (None, "1m", False), (3600, None, False)],
)
def test_a_task_that_ends_before_is_let_in(busy_for, longest, placed):
    """A `max_duration` that is over when the claimed node can be free delays nobody."""
    words = {"max_duration": longest} if longest else {}
    nodes = [node("gpu-0", held=[3], busy_for=busy_for)]
    out = run([high(), small(**words)], nodes, [fleet(existing=1, nodes=1)])
    assert ("small-0" in places(out)) is placed


@pytest.mark.parametrize("priority", [90, 91])
def test_a_claim_binds_lower_priorities_only(priority):
    """What has the same priority, or a higher one, takes what is idle."""
    tasks = [high(priority=90), small(priority=priority)]
    out = run(tasks, [node("gpu-0", held=[3])], [fleet(existing=1, nodes=1)])
    assert places(out) == {"small-0": ("gpu-0", (0,))}


def test_the_node_with_the_fewest_busy_blocks_is_claimed_and_no_other():
    """Three nodes would do for `high`; the others are free for all."""
    nodes = [node("gpu-0", held=[0, 1]), node("gpu-1", held=[0]), node("gpu-2", held=[0, 1])]
    out = run([high(), *(small(f"s{i}") for i in range(6))], nodes, [fleet(existing=3, nodes=3)])
    assert {place for place, _ in places(out).values()} == {"gpu-0", "gpu-2"}
    assert sorted(r.task for r in out.refusals) == ["high", "s4", "s5"]


def test_what_cannot_be_used_is_not_claimed():
    """A task that could never have a place keeps nothing, nor one that waits for what is not there."""
    nodes = [node("gpu-0", held=[3])]
    for waiting in (high(resources={"cpu": 9}), high(instances=["gpu-7"]), high(nodes=9, placement="any")):
        out = run([waiting, small()], nodes, [fleet(existing=1, nodes=1)])
        assert places(out) == {"small-0": ("gpu-0", (0,))}


def test_a_gang_claims_what_it_may_yet_launch():
    """It needs three nodes and could launch one of them: the small task does not take that launch."""
    rules = [fleet(existing=2, nodes="0..3", offers=[offer()])]
    nodes = [node("gpu-0", held=[0]), node("gpu-1", held=[0])]
    gang = high(nodes=3, placement="any")
    out = run([gang, ask("small", exclusive=True)], nodes, rules)
    assert (places(out), out.launches) == ({}, ())
    assert any("task/high" in reason for reason in reasons(out, "small"))
    roomy = [fleet(existing=2, nodes="0..4", offers=[offer()])]
    assert places(run([gang, small()], nodes, roomy)) == {"small-0": ("gpu-1", (1,))}


def test_fleets_launch_what_they_want_for_themselves_whatever_waits():
    """The gang waits for the busy block and for a launch that its fleet makes all the same."""
    out = run(
        [high(nodes=2, placement="any"), small()],
        [node("gpu-0", held=[3])],
        [fleet(nodes=2, existing=1, baseline=1, offers=[offer(cpu=8)], blocks=4)],
    )
    assert ([n.name for n in out.launches], out.short_fleets) == (["gpu-1"], ())
    assert {r.task for r in out.refusals} >= {"high"}


def test_who_rode_on_a_launch_that_is_claimed_buys_none():
    """The gang claims the last launch, which was for `small` alone: `rider` has no place there any more."""
    rider = ask("rider", resources={"cpu": 2}, priority=100, creation_policy="reuse")
    launcher = ask("launcher", exclusive=False, resources={"cpu": 4})
    rules = [fleet(existing=2, nodes="0..3", offers=[offer()], blocks=4)]
    nodes = [node("gpu-0", held=range(4)), node("gpu-1", held=range(4))]
    gang = high(nodes=3, placement="any", priority=50)
    alone = run([launcher, rider], nodes, rules)
    assert places(alone).keys() == {"launcher-0", "rider-0"}
    out = run([gang, launcher, rider], nodes, rules)
    assert (places(out), out.launches) == ({}, ())


def test_a_gang_leaves_the_rest_of_a_node_that_it_needs_in_part():
    """Two ranks of half a node each: one node is idle and one is full, so half of the idle one is kept."""
    gang = high(nodes=2, placement="any", exclusive=False, spread="node", resources={"cpu": 4})
    nodes = [node("gpu-0"), node("gpu-1", held=range(4))]
    out = run([gang, *(small(f"s{i}") for i in range(3))], nodes, [fleet(existing=2, nodes=2)])
    assert sorted(places(out)) == ["s0-0", "s1-0"]


def test_what_runs_of_lower_priority_runs_on():
    """A claim takes no place away: what has its place keeps it."""
    there = small(prior={0: ("gpu-0", (0,))})
    out = run([high(), there, small("other")], [node("gpu-0")], [fleet(existing=1, nodes=1)])
    assert places(out) == {"small-0": ("gpu-0", (0,))}


def test_two_waiting_tasks_claim_two_nodes():
    """Each of them keeps its own; the third node is free for all."""
    nodes = [node(f"gpu-{i}", held=[0]) for i in range(3)]
    waiting = [high(), ask("mid", resources={"cpu": 8}, priority=50)]
    out = run([*waiting, *(small(f"s{i}") for i in range(5))], nodes, [fleet(existing=3, nodes=3)])
    assert len({place for place, _ in places(out).values()}) == 1
    assert len(places(out)) == 3


def test_place_05():
    """A node of 8 GPUs where a small task runs: `later` does not take what `high` waits for."""
    for held in ([0], [3]):
        nodes = [node("gpu-0", held=held)]
        out = run([high(), small("later")], nodes, [fleet(existing=1, nodes="0..8", offers=[offer(limit=1)])])
        assert places(out) == {}


# ------------------------------------------------------------------------------------------------------ laws


LONGEST = 3
"""Rounds that a task runs at most."""


@LAW
@given(st.integers(0, 1 << 32))
@example(3)
def test_no_waiting_task_starves(seed):
    """Small tasks are asked for in each round, and each task ends in a few rounds. Whatever comes and ends,
    the nodes that a waiting task claims are less busy each time that something ends there. There are at most
    35 such steps for up to three nodes of four blocks.
    """
    rng = random.Random(seed)
    count = rng.randint(1, 5)
    nodes = [node(f"gpu-{i}", held=range(rng.randint(0, 4))) for i in range(count)]
    ends = {(n.name, block): rng.randint(1, LONGEST) for n in nodes for block in n.held}
    size = min(count, rng.choice((1, 1, 2, 3)))
    shape = rng.choice(({"exclusive": True}, {"resources": {"cpu": 4}}, {"resources": {"cpu": "6.."}}))
    spread = rng.choice(({}, {"spread": "node"})) if size > 1 and "resources" in shape else {}
    many = {"nodes": size, "placement": "any"} if size > 1 else {}
    waiting = ask("high", priority=rng.choice((1, 100)), **shape, **spread, **many)
    rules = [fleet(existing=count, nodes=count)]
    for moment in range(35 * LONGEST + 1):
        ends = {at: end for at, end in ends.items() if end > moment}
        now = [replace(n, held={b: "rank/old-0" for name, b in ends if name == n.name}) for n in nodes]
        cpus = [rng.choice((2, 2, 4)) for _ in range(rng.randint(1, 9))]
        more = [small(f"new{i}", resources={"cpu": cpu}) for i, cpu in enumerate(cpus)]
        out = run([waiting, *more], now, rules)
        if any(choice.task == "high" for choice in out.choices):
            event(f"waited: {min(moment, 9)}")
            return
        for choice in out.choices:
            end = moment + rng.randint(1, LONGEST)
            ends |= {(choice.node, block): end for block in choice.blocks}
    raise AssertionError("it starves")


@LAW
@given(cases() | cases(Taste(least_nodes=4)) | sizes_that_divide())
def test_claims_take_nothing_from_the_same_or_a_higher_priority(case):
    """A claim changes only what is below it: the tasks of at least the highest priority that waits have the
    same worth of places as on fleets that let all in. And the checker accepts every outcome.
    """
    everywhere, bound = without_claims(case).place(), case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, bound) == []
    priority = {str(a.want.spec.name): a.want.spec.priority for a in case.asks}
    waits = max((priority[r.task] for r in everywhere.refusals), default=None)
    if waits is None:
        assert bound == everywhere
        return
    kept, let_in = ({c.task for c in out.choices if priority[c.task] >= waits} for out in (bound, everywhere))
    assert kept == let_in
    event(f"fewer: {min(3, len(everywhere.choices) - len(bound.choices))}")


# -------------------------------------------------------------------------------------------- in whole plans


@pytest.mark.parametrize(
    ("low", "later", "fields", "runs"),
    [
        ({}, {}, {}, False),
        ({"max_duration": "3h"}, {}, {}, False),
        ({"max_duration": "3h"}, {"max_duration": "2h"}, {}, True),
        ({"max_duration": "3h"}, {"max_duration": "121m"}, {}, False),
        ({}, {"max_duration": "1m"}, {}, False),
        ({}, {}, {"backfill": "any"}, True),
    ],
)
def test_a_plan_knows_when_what_runs_ends(low, later, fields, runs):
    """`low` has run for an hour when `high` is asked for, which needs the whole node, and then `later`."""
    one = {"name": "one", "nodes": 1, "blocks": 4, "resources": {"cpu": 4}, **fields}
    first = {"name": "low", "resources": {"cpu": 1}, **low}
    world = World()
    world.apply(world.plan(declared(fleets=[one], tasks=[first])))
    world.ranks["low-0"] = replace(world.ranks["low-0"], started_at=world.now - 3600)
    tasks = [
        first,
        {"name": "high", "resources": {"cpu": 4}, "priority": 100},
        {"name": "later", "resources": {"cpu": 1}, **later},
    ]
    plan = world.plan(declared(fleets=[one], tasks=tasks))
    assert [r.task for r in plan.unplaced.refusals] == (["high"] if runs else ["high", "later"])
