"""`never-fits` is true, and so is `no-capacity`: the empty world decides (`placement.explain.never`)."""

import pytest
from hypothesis import HealthCheck, event, example, given, settings

from tests.placement.test_placement import ask, fleet, node, offer, run
from tests.support.examples import examples
from tests.support.model import World
from tests.support.planned import GPU, H100, bring, look, refused, small
from tests.support.varied import empty_worlds
from tests.support.worlds import Taste, cases, seeded

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(100),
)
FRESH, NODES = Taste(fresh=True), Taste(least_nodes=4)


def refusals(*args, **kwargs):
    """Task → the code of its refusal."""
    return {r.task: r.code for r in run(*args, **kwargs).refusals}


# ---------------------------------------------------------------------------------------------------- the law


@LAW
@given(cases() | cases(NODES) | cases(FRESH))
@example(seeded(10))
@example(seeded(408))
@example(seeded(202_799, FRESH))
@example(seeded(214_817))
def test_a_task_never_fits_if_and_only_if_the_empty_world_refuses_it(case):
    """Ranks may differ, by volumes or since they are spread. If nobody proved that such never fit, it is not
    said; of all others it is.
    """
    for refusal in case.place().refusals:
        (task,) = [a for a in case.asks if a.want.spec.name == refusal.task]
        fits = any(world.place().choices for world in empty_worlds(case, task))
        event(f"{refusal.code}, fits: {fits}")
        alike = not any(task.want.mounts) and task.want.spec.spread is None
        assert not fits if refusal.code == "never-fits" else fits or not alike, refusal


# -------------------------------------------------------------------------------------------------- each kind


def test_a_task_that_launches_nothing_waits_for_what_others_launch():
    """On an empty elastic fleet another task may get a node: no node of it is there now."""
    rules = [fleet(offers=[offer()], nodes="0..2")]
    assert refusals(ask("scribe", creation_policy="reuse"), [], rules) == {"scribe": "no-capacity"}
    wide = ask("scribe", creation_policy="reuse", nodes=3, exclusive=True)
    assert refusals(wide, [], rules) == {"scribe": "never-fits"}


@pytest.mark.parametrize(
    ("pin", "code"),
    [("gpu-0", "no-capacity"), ("gpu-1", "no-capacity"), ("gpu-2", "never-fits")],
)
def test_a_pin_waits_for_a_node_that_its_fleet_may_get(pin, code):
    rules = [fleet(offers=[offer()], nodes="0..2")]
    assert refusals(ask("pinned", instances=[pin]), [], rules) == {"pinned": code}


def test_a_pin_to_a_node_that_the_same_plan_launches_waits():
    rules = [fleet(offers=[offer()], nodes="0..1")]
    tasks = [ask("maker", priority=9), ask("pinned", instances=["gpu-0"])]
    assert refusals(tasks, [], rules) == {"pinned": "no-capacity"}


def test_a_limit_of_an_offer_does_not_pass():
    """Nothing runs, so there is nothing to wait for; the numbers, and what to change, are said."""
    rules = [fleet(offers=[offer(limit=3)], nodes="0..9", placement="cluster")]
    (refusal,) = run(ask("gang", nodes=4, exclusive=True), [], rules).refusals
    assert refusal.code == "never-fits"
    assert "4 whole idle nodes in one cluster fleet wanted, 3 found" in refusal.summary
    assert refusal.hint is not None
    assert refusal.hint.startswith("it fits with `limit: 4` for ")
    assert "wait" not in refusal.hint


def test_a_limit_that_running_tasks_use_up_passes():
    """Two of three are there and busy: once their tasks have ended, the third can be launched beside them."""
    nodes = [node(f"gpu-{i}", held=range(4)) for i in range(2)]
    rules = [fleet(offers=[offer(limit=3)], nodes="0..9", placement="cluster")]
    assert refusals(ask("gang", nodes=3, exclusive=True), nodes, rules) == {"gang": "no-capacity"}
    assert refusals(ask("gang", nodes=4, exclusive=True), nodes, rules) == {"gang": "never-fits"}


def test_a_fleet_that_is_full_of_small_nodes_may_get_a_large_one():
    """An idle node above the target goes after `idle_duration`: until then the fleet is at its maximum."""
    tiny = {"instance_type": "tiny", "cpu": 12, "memory": "4GB", "price": 1.0}
    elastic = {**GPU, "nodes": "0..1", "blocks": 1}
    large = {"name": "large", "resources": {"gpu": 8}}
    world = bring(World(), [elastic], [{"name": "one"}], catalog=[H100, tiny])
    for words, code in (
        ({}, "no-capacity"),
        ({"idle_duration": "off"}, "never-fits"),
        ({"nodes": 1}, "never-fits"),
    ):
        refusal = refused(look(world, [{**elastic, **words}], [{"name": "one"}, large], catalog=[H100, tiny]))
        assert (refusal["task"], refusal["code"]) == ("large", code)


def test_more_ranks_of_a_task_do_not_wait_for_its_own():
    """Its first rank fills the one node that the fleet may have, and stays there."""
    fleet_ = {**GPU, "nodes": 1, "placement": "any"}
    task = {"name": "train", "placement": "any", "resources": {"gpu": 8}, "exclusive": False}
    world = bring(World(), [fleet_], [task])
    refusal = refused(look(world, [fleet_], [{**task, "nodes": 2}]))
    assert (refusal["task"], refusal["code"]) == ("train", "never-fits")


def test_what_waits_for_capacity_elsewhere_does_not_stop_the_plan():
    """Case 8 of the issue: `scribe` stays pending, and `maker` is launched."""
    pool = {**GPU, "nodes": "0..2"}
    retry = {"on_events": ["no-capacity", "interruption"], "duration": "1h"}
    scribe = {"name": "scribe", "resources": {"gpu": 1}, "creation_policy": "reuse", "retry": retry}
    tasks = [*small(1, gpus=8, priority=50), scribe]
    refusal = refused(look(World(), [pool], tasks))
    assert (refusal["task"], refusal["code"]) == ("scribe", "no-capacity")


def test_however_many_are_alike_none_of_them_ever_fits():
    """Two ranks in two zones where there is one: what is looked up for the first holds for all."""
    rules = [fleet(offers=[offer(zone="za", cpu=64)], nodes="0..")]
    asks = [
        ask(f"t{i}", nodes=2, priority=i, placement="any", spread="zone", resources={"cpu": "2.."})
        for i in range(60)
    ]
    assert set(refusals(asks, [], rules).values()) == {"never-fits"}
