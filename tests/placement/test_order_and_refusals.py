"""Which task comes first, what stays where it is, and the content of a refusal, in the plan's JSON."""

from dataclasses import replace

import pytest

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.status import NodeState
from declarative.placement.explain import never
from declarative.placement.explain import refusal as refusals
from declarative.planner.make import make_plan
from declarative.render.plan_document import plan_json
from tests.support.model import World
from tests.support.planned import (
    GPU,
    H100,
    bring,
    codes,
    declared,
    look,
    places,
    refused,
    small,
    verdicts,
)

# ------------------------------------------------------------------------------------- order and stability


def test_higher_priority_is_placed_first_when_capacity_is_short():
    """Whatever the names, the sizes and the order of the documents."""
    fleet = {**GPU, "nodes": 1}
    tasks = [
        {"name": "aa", "resources": {"gpu": 8}},
        {"name": "bb", "resources": {"gpu": 6}, "priority": 5},
        {"name": "zz", "resources": {"gpu": 3}, "priority": 9},
    ]
    for order in (tasks, tasks[::-1]):
        found = look(World(), [fleet], order)
        assert set(places(found)) == {"zz-0"}
        assert {r["task"]: r["code"] for r in found["unplaced"]} == dict.fromkeys(("aa", "bb"), "no-capacity")


@pytest.mark.parametrize("priority", [0, 9])
def test_of_equal_priority_as_many_blocks_as_can_be_are_seated(priority):
    """Two tasks fill the node that the largest would leave half idle; unless they count less."""
    fleet = {**GPU, "nodes": 1}
    tasks = [
        {"name": "large", "resources": {"gpu": 5}, "priority": priority},
        *({"name": name, "resources": {"gpu": 4}} for name in ("one", "two")),
    ]
    found = look(World(), [fleet], tasks)
    assert set(places(found)) == ({"large-0"} if priority else {"one-0", "two-0"})


def test_what_has_its_place_keeps_it_though_more_could_be_seated():
    fleet = {**GPU, "nodes": 1}
    large = {"name": "large", "resources": {"gpu": 5}}
    world = bring(World(), [fleet], [large])
    more = [{"name": name, "resources": {"gpu": 4}} for name in ("one", "two")]
    assert set(places(look(world, [fleet], [large, *more]))) == {"large-0"}


def test_planned_ranks_keep_their_place_on_a_new_plan():
    """Ranks that have blocks and were not started yet stay, though another task would fit better there and a
    cheaper node can be had now.
    """
    fleet = {**GPU, "nodes": "0..3", "placement": "any"}
    world = World()
    first = world.plan(declared([fleet], small(3, gpus=3)))
    done = world.apply(
        first, stop_after=sum(a.address.kind in ("node", "reservation") for a in first.actions)
    )
    assert len(done) == 5
    assert world.of("rank") == []
    before = places(plan_json(first))
    cheap = {**H100, "instance_type": "cheap", "price": 8.0}
    tasks = [*small(3, gpus=3), {"name": "aa", "resources": {"gpu": 5}}, {"name": "bb", "exclusive": True}]
    found = look(world, [fleet], tasks, catalog=[H100, cheap])
    assert before.items() <= places(found).items()
    assert not [a for a in found["actions"] if a["op"] != "create"]
    bring(world, [fleet], tasks, catalog=[H100, cheap])


def test_running_ranks_never_move():
    """Not even where moving one would make a whole node."""
    first = small(4, gpus=4)
    world = bring(World(), tasks=first)
    stay = [t for t in first if t["name"] in ("small-0", "small-3")]
    bring(world, tasks=stay)
    before = places(look(world, tasks=stay))
    assert len({node for node, _ in before.values()}) == 2
    found = look(world, tasks=[*stay, {"name": "big", "exclusive": True, "priority": 9}])
    assert (refused(found)["code"], found["actions"], places(found)) == ("no-capacity", [], before)


# ------------------------------------------------------------------------------------------------- refusals


def test_structural_rejections_come_before_those_of_capacity():
    """Reasons that waiting does not remove come first."""
    fleets = [
        {**GPU, "name": "aa", "nodes": 1},
        {**GPU, "name": "bb", "nodes": 1, "placement": "any", "instance_types": ["tiny"], "blocks": 1},
        {**GPU, "name": "cc", "nodes": 1},
    ]
    catalog = [H100, {"instance_type": "tiny", "cpu": 2, "memory": "4GB", "price": 1.0}]
    busy = {"name": "busy", "fleets": ["cc"], "exclusive": True}
    world = bring(World(), fleets, [busy], catalog=catalog)
    world.sick["aa-0"] = NodeState.UNREACHABLE
    task = {"name": "one", "resources": {"gpu": "1.."}}
    refusal = refused(look(world, fleets, [busy, task], catalog=catalog))
    (cause,) = refusal["ranks"]
    listed = [r["code"] for r in cause["rejections"]]
    structural = [code in ("too-small", "too-large", "backend", "region", "fleet") for code in listed]
    assert structural == sorted(structural, reverse=True)
    assert {"too-small", "not-ready", "busy", "fleet-max"} == set(listed)
    assert refusal["code"] == "no-capacity"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"resources": {"cpu": "97.."}}, "never-fits"),
        ({"resources": {"gpu": "A100:1"}}, "never-fits"),
        ({"regions": ["west"]}, "never-fits"),
        ({"max_price": 79}, "never-fits"),
        ({"spot_policy": "spot"}, "never-fits"),
        ({"nodes": 3}, "never-fits"),
        ({"instances": ["gpu-9"]}, "never-fits"),
        ({"nodes": 2}, "no-capacity"),
        ({"resources": {"gpu": 3}}, "no-capacity"),
        ({"instances": ["gpu-0"], "resources": {"gpu": 8}}, "no-capacity"),
        ({"instances": ["gpu-1"]}, "no-capacity"),
    ],
)
def test_what_can_never_fit_and_what_does_not_fit_now_have_different_codes(words, code):
    """One of two nodes is not ready, and six blocks of the other are busy."""
    world = bring(World(), tasks=small(6))
    world.sick["gpu-1"] = NodeState.NOT_READY
    refusal = refused(look(world, tasks=[*small(6), {"name": "more", **words}]))
    assert refusal["code"] == code


def test_a_gang_that_a_smaller_launch_keeps_out_may_fit_later():
    """Another task's new node takes its place below the fleet's maximum: that is no reason for `never`."""
    tiny = {"instance_type": "tiny", "cpu": 12, "memory": "4GB", "price": 1.0}
    fleet = {**GPU, "nodes": "0..2", "blocks": 1}
    tasks = [{"name": "one", "priority": 9}, {"name": "train", "nodes": 2, "resources": {"gpu": 8}}]
    refusal = refused(look(World(), [fleet], tasks, catalog=[H100, tiny]))
    assert (refusal["task"], refusal["code"]) == ("train", "no-capacity")


def test_a_gang_that_one_large_node_holds_may_fit_later():
    """Though the fleet may have one node, and two small ones would be cheaper."""
    half = {"instance_type": "h100x4", "cpu": 48, "memory": "500GB", "gpu": "H100:4", "price": 30.0}
    fleet = {**GPU, "nodes": "0..1", "blocks": 2}
    train = {"name": "train", "nodes": 2, "resources": {"gpu": 4}, "exclusive": False}
    tasks = [{"name": "one", "priority": 9}, train]
    refusal = refused(look(World(), [fleet], tasks, catalog=[H100, half]))
    assert (refusal["task"], refusal["code"]) == ("train", "no-capacity")


@pytest.mark.parametrize(("most", "code"), [(1, "never-fits"), (0, "no-capacity")])
def test_what_was_not_searched_a_place_for_is_not_said_never_to_fit(most, code, monkeypatch):
    """Of ranks that are to lie apart, one try tells only what it found."""
    monkeypatch.setattr(never, "MOST_SEARCHED", most)
    fleet = {**GPU, "nodes": "0..1", "placement": "any"}
    train = {"name": "train", "nodes": 2, "placement": "any", "spread": "node", "resources": {"gpu": 1}}
    refusal = refused(look(World(), [fleet], [train]))
    assert (refusal["task"], refusal["code"]) == ("train", code)


def test_each_rank_has_a_verdict():
    """One is the cause, and has all rejections; those that were placed fit, the rest were not tried."""
    world = bring(World(), tasks=small(1))
    found = look(world, tasks=[*small(1), {"name": "train", "nodes": 4}])
    refusal = refused(found)
    assert [v["rank"] for v in refusal["ranks"]] == [0, 1, 2, 3]
    assert sorted(verdicts(refusal)) == ["cause", "fits", "not-tried", "not-tried"]
    assert [bool(v["rejections"]) for v in refusal["ranks"]] == [v == "cause" for v in verdicts(refusal)]


@pytest.mark.parametrize(
    ("gpu", "detail"),
    [
        (1, "gpu: wanted 1, 1 block of it has 2"),
        (3, "gpu: wanted 3, 1 block of it has 2, 2 blocks have 4"),
        ("5..5", "gpu: wanted 5, 2 blocks of it have 4, 3 blocks have 6"),
    ],
)
def test_what_no_share_has_is_said_of_its_blocks(gpu, detail):
    """A node of eight GPUs has enough for a task that wants one: in its four blocks there are two each."""
    fleets = [{**GPU, "nodes": 1, "blocks": 4}]
    found = refused(look(World(), fleets, [{"name": "one", "resources": {"gpu": gpu}}]))
    (rank,) = found["ranks"]
    (node,) = [r for r in rank["rejections"] if r["target"] == "node/gpu-0"]
    assert (node["code"], node["detail"]) == ("too-large", detail)


def test_a_gang_is_no_obstacle_to_itself():
    """Nodes that its other ranks would have are found ones: none of them is called busy."""
    fleets = [{**GPU, "nodes": 2}]
    world = bring(World(), fleets, [])
    found = refused(look(world, fleets, [{"name": "train", "nodes": 3, "resources": {"gpu": 8}}]))
    assert "3 whole idle nodes in one cluster fleet wanted, 2 found" in found["summary"]
    assert "not wholly idle" not in found["summary"]
    (cause,) = [r for r in found["ranks"] if r["verdict"] == "cause"]
    assert "rank/train" not in str(cause["rejections"])


def test_other_tasks_are_named_as_what_is_in_the_way():
    """Beside the ranks of the gang itself."""
    fleets = [{**GPU, "nodes": 2}]
    tasks = [
        {"name": "aa", "resources": {"gpu": 1}, "priority": 9},
        {"name": "train", "nodes": 2, "resources": {"gpu": 8}},
    ]
    world = bring(World(), fleets, tasks[:1])
    found = refused(look(world, fleets, tasks))
    assert "1 node not wholly idle" in found["summary"]
    assert "rank/aa-0" in str(found["ranks"])
    assert "rank/train" not in str(found["ranks"])


# -------------------------------------------------------------- what no waiting mends, before what one mends

LARGE = {"resources": {"gpu": 9}}
FULL = {**GPU, "nodes": 1}


@pytest.mark.parametrize("sick", [NodeState.NOT_READY, NodeState.UNREACHABLE, NodeState.UNKNOWN, None])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (LARGE, "too-small"),
        ({"resources": {"gpu": "1..2"}, "exclusive": True}, "too-large"),
        ({"mounts": {"/data": "lost"}}, "volume-missing"),
        ({"mounts": {"/data": "far"}}, "volume-elsewhere"),
        ({"mounts": {"/data": ["mine", "far"]}, "resources": {"gpu": 9}}, "too-small"),
    ],
)
def test_each_node_and_offer_says_first_what_no_waiting_mends(words, code, held, sick):
    """Whatever else keeps it from work: it is silent, it is full, its fleet is at its maximum, a volume that
    would do is held.
    """
    volumes = [{"name": "far", "region": "west"}, {"name": "mine", "region": "east"}]
    users = [{"name": "user", "exclusive": True, "mounts": {"/x": "mine"}}] if held else []
    more: dict[str, object] = {"regions": ["east", "west"]}
    fleet = {**FULL, "regions": ["east"]}
    world = bring(World(), [fleet], users, volumes, **more)
    if sick:
        world.sick["gpu-0"] = sick
    refusal = refused(look(world, [fleet], [*users, {"name": "more", **words}], volumes, **more))
    assert set(codes(refusal).values()) == {code}


def test_an_alternative_that_is_held_may_be_let_go():
    """Whatever the order in which alternatives are named: waiting may mend it, so that it can fit later."""
    volumes = [{"name": "mine", "region": "east"}]
    user = {"name": "user", "mounts": {"/x": "mine"}}
    world = bring(World(), tasks=[user], volumes=volumes)
    for names in (["mine", "lost"], ["lost", "mine"]):
        task = {"name": "more", "mounts": {"/data": names}}
        refusal = refused(look(world, tasks=[user, task], volumes=volumes))
        assert (refusal["code"], set(codes(refusal).values())) == (
            "no-capacity",
            {"volume-busy", "fleet-max"},
        )


def test_what_a_backend_offers_that_cannot_be_read_may_fit():
    """It is not certain that a task never fits, unless its fleet may not have so many nodes."""
    fleet = {**GPU, "nodes": "0..2", "resources": {"gpu": 8}}
    desired = declared([fleet], [{"name": "one"}, {"name": "two", "fleets": ["gpu"], "nodes": 3}], catalog=[])
    world = World()
    seen = world.inventory(desired)
    unread = Diagnostic(
        code="backend-unreadable", summary="x", address="backend/sky", severity=Severity.WARNING
    )
    seen = replace(seen, offers={}, diagnostics=(unread,))
    found = make_plan(desired, world.state(), seen, world.now)
    assert {r.task: r.code for r in found.unplaced.refusals} == {"one": "no-capacity", "two": "never-fits"}
    refusal = plan_json(found)["unplaced"][0]
    assert codes(refusal) == {"backend/sky": "offers-unknown"}
    assert "until the backend can be read" in (found.unplaced.refusals[0].hint or "")


@pytest.mark.parametrize(
    ("codes", "busy", "end"),
    [
        (["no-blocks"], True, "; wait until running tasks have ended"),
        (["drained"], False, "; `fleetform undrain` a node"),
        (["drained"], True, "; `fleetform undrain` a node, or wait until running tasks have ended"),
    ],
)
def test_where_no_change_helps_waiting_is_a_sentence_of_its_own(codes, busy, end):
    task = declared([], [{"name": "job"}]).tasks["job"].spec
    hint = refusals.hint_for(task, dict.fromkeys(codes, 1), never=False, changes=(), busy=busy)
    assert hint is not None
    assert hint.startswith("no single change that was tried makes it fit (")
    assert hint.endswith(f"){end}")
