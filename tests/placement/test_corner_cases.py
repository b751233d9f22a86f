"""Corner cases of placement that were wrong once: where clusters begin, shared limits, names, old blocks."""

import time
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from declarative.placement.problem import VolumeAt
from declarative.placement.volumes import Binding, Matching
from tests.placement.test_placement import ask, fleet, node, offer, places, refused, run

# ---------------------------------------------------------------------------------- where a cluster begins


def regions(outcome):
    return [n.region for n in outcome.launches]


LIMITED = (offer(1.0, "east", limit=1), offer(2.0, "west"))


@pytest.mark.parametrize(
    "tasks",
    [
        [ask(nodes=3, placement="any", exclusive=True)],
        [ask(f"t{i}", exclusive=True) for i in range(3)],
        [ask(f"t{i}", exclusive=True, resources={"cpu": f"{i + 1}.."}) for i in range(3)],
    ],
)
def test_a_cluster_fleet_begins_where_all_find_a_place(tasks):
    """The first launch decides the region: not for the cheapest one if that cannot hold the others."""
    out = run(tasks, [], [fleet(placement="cluster", offers=LIMITED)])
    assert (regions(out), out.refusals) == (["west"] * 3, ())


def test_a_cluster_fleet_begins_where_all_of_many_find_a_place():
    """The same of tasks that are not alike."""
    tasks = [ask(f"t{i}", exclusive=True, resources={"cpu": f"{i + 1}.."}) for i in range(3)]
    assert regions(run(tasks, [], [fleet(placement="cluster", offers=LIMITED)])) == ["west"] * 3


def test_a_task_does_not_draw_a_fleet_to_where_its_own_nodes_cannot_be_had():
    """A fleet that wants three nodes starts where there are three, whichever task launches the first."""
    out = run([ask("t1")], [], [fleet(placement="cluster", offers=LIMITED, baseline=3)])
    assert (regions(out), out.short_fleets) == (["west"] * 3, ())


def test_zones_do_not_double_a_limit():
    """A limit counts for the region: one in each of two zones is not two."""
    offers = [offer(1.0, "east", zone=zone, limit=1) for zone in ("za", "zb")]
    out = run([], [], [fleet(placement="cluster", offers=[*offers, offer(2.0, "west")], baseline=2)])
    assert (regions(out), out.short_fleets) == (["west", "west"], ())


def test_the_ranks_of_single_tasks_need_not_lie_together():
    """`placement: cluster` of one rank: two such tasks find their places in two fleets."""
    fleets = [fleet(name, placement="cluster") for name in ("aa", "bb")]
    tasks = [ask(name, placement="cluster", exclusive=True) for name in ("t1", "t2")]
    out = run(tasks, [node("aa-0"), node("bb-0")], fleets)
    assert {rank: name for rank, (name, _) in places(out).items()} == {"t1-0": "aa-0", "t2-0": "bb-0"}


# ------------------------------------------------------------------------------------------- shared limits


def test_the_lower_of_two_limits_holds():
    """Two entries of a catalog may set two limits for what counts as one."""
    offers = [offer(1.0, zone="za", limit=1), offer(2.0, zone="zb", limit=5)]
    out = run([ask(f"t{i}", exclusive=True) for i in range(2)], [], [fleet(offers=offers)])
    assert (len(out.launches), refused(out).code) == (1, "no-capacity")


@pytest.mark.parametrize(("tasks", "baseline"), [([ask("t1", fleets=["aa"])], 0), ([], 1)])
def test_a_fleet_has_its_own_nodes_before_others_take_what_it_needs(tasks, baseline):
    """A fleet that cannot be brought to its size is an error of the plan: others take what is dearer."""
    last = offer(1.0, limit=1)
    more = offer(2.0, instance_type="yy")
    fleets = [fleet("aa", offers=[last, more], baseline=baseline), fleet("bb", offers=[last], baseline=1)]
    out = run(tasks, [], fleets)
    assert [(n.name, n.instance_type) for n in out.launches] == [("aa-0", "yy"), ("bb-0", "x")]
    assert out.short_fleets == ()


def test_what_a_fleet_cannot_have_at_all_is_not_kept_for_it():
    """`bb` wants two, but one is left beside those of `aa`: that one it has, and `aa` has its two."""
    offers = [offer(1.0, limit=3)]
    fleets = [fleet("aa", offers=offers, baseline=2), fleet("bb", offers=offers, baseline=2)]
    out = run([ask("t1", fleets=["bb"])], [], fleets)
    assert [n.fleet for n in out.launches] == ["aa", "aa", "bb"]
    assert out.short_fleets == (("bb", 1),)


# --------------------------------------------------------------------------------------------- price


def test_of_alternatives_the_one_that_costs_nothing():
    """An idle block beside the second volume is better than a launch beside the first."""
    volumes = {name: VolumeAt(backend="b", region=name, zone=None) for name in ("east", "west")}
    out = run(
        ask(mounts={"/d": ["east", "west"]}),
        [node("gpu-0", region="west")],
        [fleet(offers=[offer(1.0, "east")])],
        volumes,
    )
    assert (places(out)["train-0"][0], out.launches) == ("gpu-0", ())
    assert out.choices[0].volumes == {"/d": "west"}


def test_of_equal_prices_the_node_that_others_can_share():
    """Two fleets offer the same for the same price, one of them split: two small tasks share one node."""
    fleets = [fleet("aa", offers=[offer()]), fleet("bb", offers=[offer()], blocks=4)]
    out = run([ask("t1", priority=9), ask("t2", resources={"cpu": "1.."})], [], fleets)
    assert [n.name for n in out.launches] == ["bb-0"]


def test_where_all_find_a_place_priority_costs_nothing():
    """The one that may go anywhere joins the one that may not, though it has the higher priority."""
    offers = [offer(1.0, "east"), offer(1.5, "west")]
    tasks = [ask("t1", priority=9), ask("t2", resources={"cpu": "1.."}, regions=["west"])]
    assert regions(run(tasks, [], [fleet(offers=offers, blocks=4)])) == ["west"]


# ------------------------------------------------------------------------------------- names and blocks


def test_blocks_that_a_node_no_longer_has_are_not_kept():
    """Split anew, a node has other blocks: a rank that had block 7 of 8 takes one that is there."""
    out = run(ask(prior={0: ("gpu-0", (7,))}, resources={"cpu": 2}), [node("gpu-0", total=4)])
    assert places(out) == {"train-0": ("gpu-0", (0,))}


def test_who_lost_its_blocks_does_not_take_those_of_another():
    """`aa` had a block that somebody holds now; `bb` keeps its own all the same."""
    out = run(
        [ask("aa", prior={0: ("gpu-0", (3,))}), ask("bb", prior={0: ("gpu-0", (0,))})],
        [node("gpu-0", held=[3])],
    )
    assert places(out) == {"aa-0": ("gpu-0", (1,)), "bb-0": ("gpu-0", (0,))}


def test_names_that_count_alike_are_told_apart():
    """`t-1` and `t-01` are two tasks, and the order of the input does not matter."""
    tasks = [ask("t-1"), ask("t-01")]
    assert places(run(tasks, [node("gpu-0")])) == places(run(tasks[::-1], [node("gpu-0")]))


def test_a_pinned_name_is_not_given_to_a_node_in_another_zone():
    """A node that is launched anyhow gets the pinned name only where the task's volume is."""
    volumes = {"data": VolumeAt(backend="b", region="r", zone="zb")}
    offers = [offer(1.0, zone="za"), offer(2.0, zone="zb")]
    pinned = ask("pin", instances=["gpu-1"], mounts={"/d": "data"}, resources={"cpu": 1})
    rules = [fleet(offers=offers, blocks=8, baseline=2)]
    out = run([ask("aa", priority=9, max_price=1, resources={"cpu": 1}), pinned], [], rules, volumes)
    assert out.refusals == ()
    assert [(n.name, n.zone) for n in out.launches] == [("gpu-0", "za"), ("gpu-1", "zb")]


# ----------------------------------------------------------------------------------------- many, and size


def test_many_half_empty_new_nodes_are_tidied_in_no_time():
    """Each of them was compared with every other one: minutes for some ten thousand."""
    tasks = [ask(f"t{i}", resources={"cpu": 5}) for i in range(5000)]
    begun = time.process_time()
    out = run(tasks, [], [fleet(nodes="0..", offers=[offer()], blocks=8)])
    assert len(out.launches) == 5000
    assert time.process_time() - begun < 2.5


# ------------------------------------------------------------------------------------------------ matching

PLACES = tuple(("b", "r", zone) for zone in ("za", "zb", "zc"))
NAMES = tuple(f"v{i}" for i in range(6))


@given(
    st.dictionaries(st.sampled_from(PLACES), st.integers(0, 3), min_size=1),
    st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), min_size=1, max_size=5),
    st.lists(st.sampled_from((*PLACES, None)), min_size=6, max_size=6),
)
@example(
    room={PLACES[0]: 3, PLACES[1]: 1},
    wanted=[["v0"], ["v0", "v4"], ["v0", "v1", "v2"], ["v4", "v0", "v1"]],
    lie=[PLACES[0]] * 4 + [PLACES[1], None],
)
def test_a_matching_is_found_if_there_is_one(room, wanted, lie):
    """Of all ways to give ranks their volumes one does, or none is found: no place is overfull."""
    at = dict(zip(NAMES, lie, strict=True))
    options = {
        rank: [Binding(p, {"/d": v}) for p in room for v in names if at[v] in (None, p)]
        for rank, names in enumerate(wanted)
    }

    def good(ways):
        volumes = [b.volumes["/d"] for b in ways]
        fits = all(sum(b.place == p for b in ways) <= most for p, most in room.items())
        return fits and len(set(volumes)) == len(volumes)

    matching = Matching(options, room.__getitem__)
    found = matching.match() is None
    assert found is any(map(good, product(*options.values())))
    assert not found or good([matching.given[rank] for rank in options])
