"""Offers without capacity: which others are taken, by whom together, and what is reported."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from declarative.apply import execute
from declarative.apply.graph_walk import ActionResult, Outcome, Tools
from declarative.apply.retry_schedule import Retries, broken_starts, lacking
from declarative.apply.run import give_back
from declarative.apply.settle import refresh
from declarative.apply.watch import follow
from declarative.model.diagnostic import InvalidError
from declarative.model.inputs import inputs_of
from declarative.model.state import Address, State
from declarative.model.status import NodeState, Readiness
from declarative.planner.fallbacks import MOST_WAYS
from declarative.planner.make import basis_of
from declarative.planner.plan import Action, Op, Plan, Reason
from declarative.planner.saved_plan import Facts, SavedPlan, digest, dump, load
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from tests.support.cli import until
from tests.support.market import KilledError, Market, Site, no_room, stock
from tests.support.model import World, of_node
from tests.support.planned import H100, declared

ZONES: dict[str, Any] = {"availability_zones": ["za", "zb", "zc"]}
GANG = {"name": "train", "nodes": 4, "placement": "cluster", "resources": {"gpu": "H100:8"}}
FLEET = {"name": "gpu", "nodes": "0..4", "placement": "cluster", "blocks": 8}


@pytest.fixture
def market():
    return Market()


@pytest.fixture
def site(market):
    made = Site(market)
    yield made
    made.close()


def gang(**more):
    return declared(fleets=[FLEET], tasks=[GANG], **{**ZONES, **more})


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_a_cluster_goes_to_the_next_zone_as_a_whole(site, market, parallelism):
    """Capacity ends in the middle of it: what was made in the first zone is deleted, and all of it is
    reported.
    """
    market.room = stock(za=2)
    desired = gang()
    assert site.apply(desired, parallelism=parallelism)
    assert set(market.where().values()) == {"zb"}
    assert len(market.nodes()) == 4
    assert {r.inputs["zone"] for r in site.store.read().of("node")} == {"zb"}
    (move,) = site.heard.moves
    assert move.nodes == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert (move.refused, move.taken) == ("h100x8 in za", "h100x8 in zb")
    note = site.results["create:node/gpu-0"].note
    assert note == (
        "uses h100x8 in zb because h100x8 in za (Insufficient: there is none of it) was unavailable"
    )
    assert site.results["create:rank/train-3"].outcome == "done"
    assert site.plan(desired).actions == ()
    assert max(market.tokens.values()) == 1


@pytest.mark.parametrize("parallelism", [1, 8])
def test_none_is_made_elsewhere_before_the_others_have_left(site, market, parallelism):
    """A command killed in between leaves no cluster in two zones: all nodes would exist for its task."""
    create = market.create

    def room(inputs):
        assert set(market.where().values()) <= {inputs["zone"]}
        return full(inputs)

    full, market.room = stock(za=2, zb=3), room
    refused = threading.Event()

    def late(address, token, inputs, needs):
        """With many at a time one is made in the first zone after another was refused there."""
        if parallelism > 1 and address.name == "gpu-0" and inputs["zone"] == "za":
            assert refused.wait(60)
        try:
            return create(address, token, inputs, needs)
        finally:
            if address.kind == "node" and address.name != "gpu-0":
                refused.set()

    market.create = late
    assert site.apply(gang(), parallelism=parallelism)
    assert list(market.where().values()) == ["zc"] * 4


def test_one_that_cannot_leave_keeps_the_others_from_going(site, market):
    """Else its cluster would lie in two zones."""
    market.room = stock(za=2)
    delete = market.delete

    def stuck(have):
        if have.address.name == "gpu-1":
            raise no_room(PermanentKind.AUTH)
        delete(have)

    market.delete = stuck
    desired = gang()
    assert not site.apply(desired)
    assert market.where() == {"gpu-1": "za"}
    failed = [r.id for r in site.results.values() if r.outcome == "failed"]
    assert failed == ["create:node/gpu-1"]
    market.delete, market.room = delete, stock(za=0)
    assert site.apply(desired)
    assert set(market.where().values()) == {"zb"}


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_as_many_actions_end_as_are_said_to_be(site, market, parallelism):
    """Else a display that waits for the last one stays where the report is to be."""
    market.room = stock(za=2)
    desired = gang()
    plan = site.plan(desired)
    assert site.apply(desired, plan=plan, parallelism=parallelism)
    assert len(site.heard.moves) == 1
    assert len(site.heard.ends) == len(plan.actions) + site.heard.more


def test_as_many_actions_end_as_are_said_to_be_if_nothing_is_left(site, market):
    market.room = stock(za=3, zb=1, zc=1)
    desired = gang()
    plan = site.plan(desired)
    assert not site.apply(desired, plan=plan)
    assert len(site.heard.ends) == len(plan.actions) + site.heard.more


@pytest.mark.parametrize("parallelism", [2, 8])
@pytest.mark.parametrize("takes_effect", [True, False])
def test_nobody_goes_while_it_is_not_known_what_came_of_one(site, market, takes_effect, parallelism):
    """It may be there: then its cluster would lie in two zones. The next apply looks, and goes."""
    create = market.create

    def late(address, token, inputs, needs):
        """The first zone has none for one of them; the answer to another is lost after that."""
        if address.kind == "node" and inputs["zone"] == "za":
            if address.name == "gpu-0":
                raise no_room()
            if address.name == "gpu-1":
                until(lambda: site.heard.moves)
                if takes_effect:
                    create(address, token, inputs, needs)
                raise TransientError(TransientKind.AMBIGUOUS, "no answer")
        return create(address, token, inputs, needs)

    market.create = late
    tasks = [{**GANG, "nodes": 2}, {**GANG, "name": "other", "nodes": 2}]
    desired = declared(fleets=[FLEET], tasks=tasks, **ZONES)
    assert not site.apply(desired, parallelism=parallelism)
    assert site.results["create:node/gpu-1"].outcome == "failed"
    assert set(market.where()) <= {"gpu-1"}
    assert not [zone for _, _, zone in market.asked if zone != "za"]
    market.create, market.room = create, stock(za=0)
    assert site.apply(desired, parallelism=parallelism)
    assert list(market.where().values()) == ["zb"] * 4
    assert site.plan(desired).actions == ()


def test_nothing_is_put_on_a_cluster_that_may_still_go(site, market):
    """Reservations wait for all of its nodes, and for no other fleet's."""
    desired = gang()
    plan = site.plan(desired)
    assert site.apply(desired, parallelism=1)
    order = [e.id for e in site.heard.ends]
    last = max(order.index(f"create:node/gpu-{i}") for i in range(4))
    assert all(order.index(f"create:reservation/train-{i}") > last for i in range(4))
    # What joins them in the plan is as it was: only single things.
    needs = {a.id: a.needs for a in plan.actions}
    assert needs["create:reservation/train-0"] == ("create:node/gpu-0",)


def test_everything_was_tried(site, market):
    """It fails, says what was tried, and leaves nothing."""
    market.room = stock(za=3, zb=1, zc=0)
    desired = gang()
    for parallelism in (1, 8):
        market.room = stock(za=3, zb=1, zc=0)
        assert not site.apply(desired, parallelism=parallelism)
        assert market.nodes() == {}
        assert site.store.read().of("node") == ()
        failed = [r for r in site.results.values() if r.outcome == "failed"]
        assert len(failed) >= 1
        said = next(r.error for r in failed if r.error.startswith("none of the plan's offers"))
        assert all(f"h100x8 in {zone} (Insufficient" in said for zone in ("za", "zb", "zc"))
        assert site.heard.moves[-1].taken is None
    market.room = stock()
    assert site.apply(desired)
    assert set(market.where().values()) == {"za"}


def test_what_the_fleet_wants_for_itself_is_kept(site, market):
    """A part of it is better than nothing, where no task waits for the whole."""
    market.room = stock(za=3, zb=2, zc=2)
    desired = declared(fleets=[{**FLEET, "nodes": 4}], **ZONES)
    assert not site.apply(desired)
    assert list(market.where().values()) == ["zc", "zc"]


def test_nodes_without_a_cluster_go_each_their_own_way(site, market):
    market.room = stock(za=2)
    fleet = {**FLEET, "placement": "any"}
    task = {**GANG, "placement": "any"}
    desired = declared(fleets=[fleet], tasks=[task], **ZONES)
    assert site.apply(desired)
    assert sorted(market.where().values()) == ["za", "za", "zb", "zb"]
    assert site.plan(desired).actions == ()


def test_spot_falls_back_to_on_demand_within_the_cap(site, market):
    """`auto` may; the price cap of the task holds; `spot` may not."""

    def none_as_spot(inputs):
        return no_room() if inputs.get("spot") else None

    market.room = none_as_spot
    catalog = [{**H100, "spot_price": 30.0}, {**H100, "instance_type": "dear", "price": 95.0}]
    fleet = {**FLEET, "spot_policy": "auto"}
    desired = declared(fleets=[fleet], tasks=[{**GANG, "max_price": 90}], catalog=catalog, **ZONES)
    plan = site.plan(desired)
    spares = (spare for f in plan.preview.fallbacks for way in f.ways for spare in way)
    assert all((spare.offer.price or 0.0) <= 90 for spare in spares)
    assert site.apply(desired)
    assert {(n["zone"], n.get("spot"), n["price"]) for n in market.nodes().values()} == {("za", None, 80.0)}
    assert "h100x8 in za as spot" in site.results["create:node/gpu-0"].note
    assert site.plan(desired).actions == ()

    other = {**fleet, "name": "other", "spot_policy": "spot"}
    only = declared(fleets=[other], tasks=[GANG], catalog=catalog, **ZONES)
    assert all(spare.offer.spot for f in site.plan(only).preview.fallbacks for way in f.ways for spare in way)


def test_a_quota_is_one_of_all_zones(site, market):
    """Where it is reached there is no use in asking for more of the same in the next zone."""
    market.room = lambda i: no_room(PermanentKind.QUOTA) if i["instance_type"] == "h100x8" else None
    catalog = [H100, {**H100, "instance_type": "other", "price": 90.0}]
    desired = gang(catalog=catalog)
    assert site.apply(desired)
    assert {kind for _, kind, _ in market.asked} == {"h100x8", "other"}
    assert sum(kind == "h100x8" for _, kind, _ in market.asked) == 1


def test_limits_of_offers_hold(site, market):
    """Those that are there count, and those of other fleets."""
    market.room = lambda i: no_room() if i["instance_type"] == "h100x8" else None
    few = {**H100, "instance_type": "few", "price": 85.0, "limit": 3}
    many = {**H100, "instance_type": "many", "price": 90.0, "limit": 4}
    desired = gang(catalog=[H100, few, many])
    assert site.apply(desired)
    assert {n["instance_type"] for n in market.nodes().values()} == {"many"}


def test_volumes_hold_their_ranks(site, market):
    """A volume that is there, or will be, stays where it is; its node takes another type there."""
    market.room = lambda i: no_room() if i["instance_type"] == "h100x8" and i["zone"] == "za" else None
    volumes = [{"name": "data", "count": 4, "backend": "sky", "region": "east", "availability_zone": "za"}]
    tasks = [{**GANG, "mounts": {"/data": "data-#"}}]
    other = {**H100, "instance_type": "other", "price": 95.0}
    desired = declared(fleets=[FLEET], tasks=tasks, volumes=volumes, catalog=[H100, other], **ZONES)
    assert site.apply(desired)
    assert {(n["zone"], n["instance_type"]) for n in market.nodes().values()} == {("za", "other")}

    alone = declared(fleets=[FLEET], tasks=tasks, volumes=volumes, **ZONES)
    assert all(not f.ways for f in World().plan(alone).preview.fallbacks)


def test_blocks_and_shapes_are_as_promised():
    """Neither another split nor another node that a rank fits on is accepted."""
    halves = {**H100, "instance_type": "halves", "cpu": 48, "gpu": "H100:4", "price": 85.0}
    large = {**H100, "instance_type": "large", "cpu": 192, "gpu": "H100:16", "price": 90.0}
    same = {**H100, "instance_type": "same", "cpu": 128, "price": 95.0}
    tasks = [{"name": "small", "resources": {"gpu": 2}}]
    fleet = {**FLEET, "placement": "any"}
    desired = declared(fleets=[fleet], tasks=tasks, catalog=[H100, halves, large, same])
    # Eight blocks each: of `halves` a rank would need four, of `large` one.
    plan = World().plan(desired)
    assert [way[0].offer.instance_type for f in plan.preview.fallbacks for way in f.ways] == ["same"]

    # It is still empty: it is split as planned all the same.
    bare = {**fleet, "nodes": 1, "blocks": "auto"}
    plan = World().plan(declared(fleets=[bare], catalog=[H100, halves, large, same]))
    assert [way[0].offer.instance_type for f in plan.preview.fallbacks for way in f.ways] == ["same"]


def test_who_stays_holds_the_others(site, market):
    """Nodes with work on them are not moved, and no cluster is torn apart between zones."""
    desired = declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2}], **ZONES)
    assert site.apply(desired)
    market.room = stock(za=0)
    more = {"name": "more", "nodes": 2, "placement": "cluster", "resources": {"gpu": "H100:8"}}
    both = declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2}, more], **ZONES)
    assert not site.apply(both)
    assert market.where() == {"gpu-0": "za", "gpu-1": "za"}


def test_idle_ones_go_with_the_others_and_last(site, market):
    """Once those that are made are there: before that they stay what they are."""
    fleet = {**FLEET, "nodes": "0..4"}
    idle = declared(fleets=[{**FLEET, "nodes": 2}], **ZONES)
    assert site.apply(idle)
    market.room = stock(za=0, zb=1)
    desired = declared(fleets=[fleet], tasks=[GANG], **ZONES)
    market.asked.clear()
    assert site.apply(desired)
    assert set(market.where().values()) == {"zc"}
    assert [a for a in market.asked if a[2] == "zb"] == [("gpu-2", "h100x8", "zb"), ("gpu-3", "h100x8", "zb")]
    assert [name for name, _, zone in market.asked if zone == "zc"][2:] == ["gpu-0", "gpu-1"]
    assert site.plan(desired).actions == ()


@pytest.mark.parametrize("held", [True, False])
def test_a_cluster_grows_where_it_is(site, market, held):
    """Where other zones cost no less: in one, as long as that has room. Then what is idle goes along."""
    market.room = stock(za=0, zb=0)
    first = {**GANG, "nodes": 2, "name": "first"}
    begin = declared(fleets=[{**FLEET, "nodes": "2..4"}], tasks=[first] if held else [], **ZONES)
    assert site.apply(begin)
    market.room = stock()
    tasks = [first, {**GANG, "nodes": 2}] if held else [GANG]
    plan = site.plan(declared(fleets=[FLEET], tasks=tasks, **ZONES))
    assert {r.zone for r in plan.reservations} == {"zc"}
    market.room = stock(zc=0)
    assert site.apply(declared(fleets=[FLEET], tasks=tasks, **ZONES)) is not held
    assert set(market.where().values()) == ({"zc"} if held else {"za"})


def growing(site, market):
    """A project whose cluster has two idle nodes, and goes where there is room with two more for its task."""
    assert site.apply(declared(fleets=[{**FLEET, "nodes": 2}], **ZONES))
    market.room = stock(za=0)
    return gang()


@pytest.mark.parametrize("parallelism", [1, 8])
@pytest.mark.parametrize("takes_effect", [True, False])
def test_nothing_is_put_on_one_of_which_it_is_not_known_whether_it_left(
    site, market, takes_effect, parallelism
):
    """It may be gone: a rank would be on nothing, and no command could record that the node went."""
    desired, delete = growing(site, market), market.delete

    def lost(have):
        if have.address.name != "gpu-1" or takes_effect:
            delete(have)
        if have.address.name == "gpu-1":
            raise TransientError(TransientKind.AMBIGUOUS, "no answer")

    market.delete = lost
    assert not site.apply(desired, parallelism=parallelism)
    assert site.results["create:reservation/train-1"].error == "needs create:node/gpu-1, which failed"
    state = site.store.read()
    assert (state.of("reservation"), state.of("rank")) == ((), ())
    market.delete = delete
    assert site.apply(desired, parallelism=parallelism)
    assert site.plan(desired).actions == ()


@pytest.mark.parametrize("parallelism", [1, 8])
def test_one_that_may_not_leave_is_no_want_of_capacity(site, market, parallelism):
    """The others would be made and deleted in one zone after another, and it would stay."""
    desired, delete = growing(site, market), market.delete

    def kept(have):
        if have.address.name == "gpu-1":
            raise PermanentError(PermanentKind.INVALID, "OperationNotPermitted: it is protected")
        delete(have)

    market.delete = kept
    assert not site.apply(desired, parallelism=parallelism)
    failed = [(r.id, r.error) for r in site.results.values() if r.outcome == "failed"]
    said = "it cannot leave where it is: OperationNotPermitted: it is protected"
    assert failed == [("create:node/gpu-1", said)]
    assert {zone for _, _, zone in market.asked} == {"za", "zb"}
    assert market.where() == {"gpu-0": "zb", "gpu-1": "za", "gpu-2": "zb", "gpu-3": "zb"}
    assert site.store.read().of("rank") == ()


@pytest.mark.parametrize("parallelism", [1, 8])
def test_what_is_pointless_was_not_interrupted(site, market, parallelism):
    """A place that is not needed any more, and the volumes there."""
    market.room = stock(za=1)
    volumes = [{"name": "data", "count": 2, "backend": "sky", "region": "east"}]
    tasks = [{**GANG, "nodes": 2, "mounts": {"/data": "data-#"}}]
    desired = declared(fleets=[FLEET], tasks=tasks, volumes=volumes, availability_zones=["za"])
    assert not site.apply(desired, parallelism=parallelism)
    held = {r.id: r.error for r in site.results.values() if r.id.startswith("create:attachment/")}
    assert "what needs it cannot be done" in held.values()
    assert "interrupted" not in held.values()


@pytest.mark.parametrize("guarded", [False, True], ids=["prevent_destroy", "protected"])
def test_protected_ones_stay(site, market, guarded):
    own, more = {**FLEET, "prevent_destroy": not guarded}, dict(ZONES)
    if guarded:
        more["limits"] = {"protected": [f"fleet/{FLEET['name']}"]}
    idle = declared(fleets=[{**own, "nodes": 2}], **more)
    assert site.apply(idle)
    market.room = stock(za=0)
    desired = declared(fleets=[own], tasks=[GANG], **more)
    assert not site.apply(desired)
    assert market.where() == {"gpu-0": "za", "gpu-1": "za"}


def lacks(site, desired, **more):
    """The tasks that found no capacity in an apply of what is planned now, and what could not be had."""
    plan = site.plan(desired)
    assert not site.apply(desired, plan=plan, **more)
    found = lacking(plan, tuple(site.results.values()))
    for lack in found.values():
        assert lack.undone <= {r.id for r in site.results.values() if r.outcome != "done"}
    return {task: lack.what for task, lack in found.items()}


@pytest.mark.parametrize("fleet", ["gpu", "other"])
def test_what_was_had_and_went_with_another_cluster_lacked_nothing(fleet):
    """The reason names what that cluster lacked; a node of another fleet is none of it."""
    nodes = {"gpu-0": "gpu", "gpu-1": fleet}
    creates = [
        Action(
            op=Op.CREATE,
            address=Address("node", name),
            reason=Reason.NEW,
            after=inputs_of("node", of_node(fleet=its, placement="cluster")),
        )
        for name, its in nodes.items()
    ]
    rank = Action(
        op=Op.CREATE,
        address=Address("rank", "alone-0"),
        reason=Reason.NEW,
        after=inputs_of("rank", {"task": "alone", "rank": 0, "commands": []}),
        needs=("create:node/gpu-0",),
    )

    def result(action, outcome, **more):
        return ActionResult(
            id=action.id, address=str(action.address), op="create", outcome=outcome, error=None, **more
        )

    results = (
        result(creates[0], Outcome.SKIPPED, scarce=True),
        result(creates[1], Outcome.FAILED, scarce=True),
        result(rank, Outcome.SKIPPED),
    )
    found = lacking(Plan(basis=basis_of(State()), actions=(*creates, rank)), results)
    assert found["alone"].what == ("node/gpu-1" if fleet == "gpu" else "node/gpu-0")


@pytest.mark.parametrize("parallelism", [1, 8])
@pytest.mark.parametrize("kind", [PermanentKind.NO_CAPACITY, PermanentKind.QUOTA])
def test_who_finds_no_capacity_is_told_from_who_fails(site, market, kind, parallelism):
    """All tasks of the cluster, and none of another fleet. There is nothing left of it, and the next try goes
    where there is room by then.
    """
    made: list[int] = []

    def room(inputs):
        if inputs["fleet"] == "gpu" and inputs["zone"] == "za" and len(made) < 2:
            made.append(1)
        elif inputs["fleet"] == "gpu":
            return no_room(kind)
        return None

    market.room = room
    alone = {"name": "alone", "fleets": ["other"], "resources": {"gpu": "H100:8"}}
    first: dict[str, Any] = {**GANG, "fleets": ["gpu"], "nodes": 2}
    tasks = [first, {**first, "name": "second"}, alone]
    desired = declared(fleets=[FLEET, {**FLEET, "name": "other"}], tasks=tasks, **ZONES)
    found = lacks(site, desired, parallelism=parallelism)
    assert found.keys() == {"train", "second"}
    assert all(what.startswith("node/gpu-") for what in found.values())
    assert market.where() == {"other-0": "za"}
    assert site.results["create:rank/alone-0"].outcome == "done"
    market.room = stock(za=3)
    assert site.apply(desired)
    assert {zone for name, zone in market.where().items() if name.startswith("gpu")} == {"zb"}


def test_the_node_that_could_not_be_had_is_named_and_not_one_that_went_with_it(site, market):
    """Of the task that needs it; one that was started lacks nothing."""
    two = stock(za=2)
    market.room = lambda inputs: two(inputs) if inputs["fleet"] == "gpu" else None
    alone: dict[str, Any] = {"name": "alone", "fleets": ["other"], "resources": {"gpu": "H100:8"}}
    tasks = [{**GANG, "fleets": ["gpu"]}, alone]
    fleets = [FLEET, {**FLEET, "name": "other"}]
    desired = declared(fleets=fleets, tasks=tasks, availability_zones=["za"])
    plan = site.plan(desired)
    assert lacks(site, desired) == {"train": "node/gpu-2 and 3 more"}
    assert broken_starts(plan, tuple(site.results.values())).keys() == {"train"}


def test_who_fails_of_something_else_as_well_has_failed(site, market):
    """One that may not be made would not be made where there is room either."""

    def room(inputs):
        return no_room(PermanentKind.AUTH if len(market.asked) == 1 else PermanentKind.NO_CAPACITY)

    market.room = room
    assert lacks(site, declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2}], **ZONES)) == {}
    market.room = lambda _: no_room(PermanentKind.AUTH)
    assert lacks(site, gang()) == {}


@pytest.mark.parametrize("placement", ["any", "cluster"])
def test_what_a_spare_offer_is_refused_for_is_want_of_capacity(site, market, placement):
    """It was not to be had where it was planned; and elsewhere not for other reasons."""
    market.room = lambda i: no_room(PermanentKind.NO_CAPACITY if i["zone"] == "za" else PermanentKind.INVALID)
    fleet, task = ({**words, "placement": placement} for words in (FLEET, GANG))
    for width in (1, 8):
        assert lacks(site, declared(fleets=[fleet], tasks=[task], **ZONES), parallelism=width).keys() == {
            "train"
        }


def test_a_volume_that_is_over_the_quota_is_waited_for(site, market):
    create = market.create

    def none_left(address, *words):
        if address.kind == "volume":
            raise no_room(PermanentKind.QUOTA)
        return create(address, *words)

    market.create = none_left
    volumes = [{"name": "data", "backend": "sky", "region": "east", "availability_zone": "za"}]
    tasks = [{**GANG, "nodes": 1, "mounts": {"/data": "data"}}]
    assert lacks(site, declared(fleets=[FLEET], tasks=tasks, volumes=volumes, **ZONES)) == {
        "train": "volume/data"
    }


@pytest.mark.parametrize("parallelism", [1, 8])
def test_nothing_is_kept_of_a_cluster_that_cannot_be_completed_where_it_is(site, market, parallelism):
    """In the only zone: it would cost money while it waits. What another task is on stays, and what the fleet
    wants for itself.
    """
    where: dict[str, Any] = {"availability_zones": ["za"]}
    market.room = stock(za=3)
    assert lacks(site, gang(**where), parallelism=parallelism).keys() == {"train"}
    assert market.nodes() == {}
    assert site.store.read().of("node") == ()
    undone = "its cluster cannot be completed: nothing of it is kept"
    assert [r.error for r in site.results.values() if r.op == "create"].count(undone) == 3
    assert [(e.op, e.outcome) for e in site.heard.ends[-3:]] == [("delete", "done")] * 3

    market.room = stock(za=3)
    both = [{**GANG, "nodes": 2, "name": "first", "priority": 9}, {**GANG, "nodes": 2}]
    assert lacks(site, declared(fleets=[FLEET], tasks=both, **where)).keys() == {"train"}
    assert market.nodes().keys() == {"gpu-0", "gpu-1"}
    assert {r.inputs["task"] for r in site.store.read().of("rank")} == {"first"}

    market.room = stock(za=1)
    more = {**FLEET, "name": "more", "nodes": "2..4"}
    wanting = declared(fleets=[FLEET, more], tasks=[both[0], {**GANG, "fleets": ["more"]}], **where)
    assert lacks(site, wanting).keys() == {"train"}
    assert market.nodes().keys() == {"gpu-0", "gpu-1", "more-0"}


@pytest.mark.parametrize("nodes", ["0..4", "2..4"])
@pytest.mark.parametrize("placement", ["any", "cluster"])
def test_who_waits_for_capacity_holds_nothing(site, market, nodes, placement):
    """What was made for it is idle, and goes with its cluster once that finds another place."""
    market.room = stock(za=3, zb=2, zc=2) if placement == "cluster" else stock(za=1, zb=1, zc=1)
    fleet, task = ({**words, "placement": placement} for words in (FLEET, GANG))
    desired = declared(fleets=[{**fleet, "nodes": nodes}], tasks=[task], **ZONES)
    assert lacks(site, desired).keys() == {"train"}
    state = site.store.read()
    kept = {r.address.name for r in state.of("node")}
    assert len(kept) == {"any": 3, "cluster": int(nodes[0])}[placement]
    assert state.of("reservation") == ()
    assert state.idle_since.keys() == kept
    market.room = stock(za=0, zc=0)
    assert site.apply(desired)
    if placement == "cluster":
        assert set(market.where().values()) == {"zb"}
    assert site.plan(desired).actions == ()


def boot(market, looks):
    """What is there is on its way, and ready when it was looked at so often."""
    booting = Readiness(state=NodeState.PROVISIONING, reason="it is starting")
    market.states = dict.fromkeys(market.nodes(), booting)
    left = iter(range(looks))

    def looked():
        if next(left, None) is None:
            market.states = {}

    market.looked = looked


def tools(site, writer, desired):
    """What an apply works with."""
    return Tools(
        writer=writer,
        backends=site.backends(desired),
        environ={},
        now=site.now,
        stopping=threading.Event(),
        listener=site.heard,
    )


def killed_when(desired, there):
    """A project whose apply was killed at the first write after which its state is so, and its cloud."""
    for step in itertools.count(1):
        site = Site(Market())
        with pytest.raises(KilledError):
            site.apply(desired, die_at=step)
        if there(site.store.read()):
            return site, site.market
        site.close()
    raise AssertionError


def test_nothing_more_is_given_back_after_an_interruption():
    """A cloud may take its time to detach each volume."""
    volumes = [{"name": "data", "count": 3, "backend": "sky", "region": "east", "availability_zone": "za"}]
    tasks = [{**GANG, "nodes": 3, "mounts": {"/data": "data-#"}}]
    desired = declared(fleets=[FLEET], tasks=tasks, volumes=volumes, **ZONES)
    site, market = killed_when(desired, lambda state: len(state.of("attachment")) == 3)
    assert site.store.read().of("rank") == ()
    with site.store.lock("apply") as writer:
        found, delete = tools(site, writer, desired), market.delete

        def interrupted(have):
            found.stopping.set()
            delete(have)

        market.delete = interrupted
        give_back(["train"], found)
    assert len(site.store.read().of("reservation")) == len(site.store.read().of("attachment")) == 2
    site.close()


def test_a_place_is_kept_for_a_volume_that_may_still_be_attached():
    """By a command that was killed while it asked for that: once it is there it could not be recorded."""
    volumes = [{"name": "data", "backend": "sky", "region": "east", "availability_zone": "za"}]
    tasks = [{**GANG, "nodes": 1, "mounts": {"/data": "data"}}]
    desired = declared(fleets=[FLEET], tasks=tasks, volumes=volumes, **ZONES)
    site, market = killed_when(desired, lambda s: any(i.address.kind == "attachment" for i in s.intents))
    cut = next(i for i in site.store.read().intents if i.address.kind == "attachment")
    late = market.things.pop((cut.address, cut.token))
    with site.store.lock("apply") as writer:
        give_back(["train"], tools(site, writer, desired))
    market.things[cut.address, cut.token] = late
    assert site.apply(desired)
    assert site.plan(desired).actions == ()
    site.close()


def killed(desired, step, parallelism):
    """Whether an apply was killed at a write; the next one converges: all in one zone, nothing twice."""
    market = Market(room=stock(za=1))
    site = Site(market)
    try:
        site.apply(desired, parallelism=parallelism, die_at=step)
        died = False
    except KilledError:
        died = True
        market.room = stock(za=0) if step % 3 else stock()
        boot(market, looks=4)
        assert site.apply(desired, parallelism=parallelism), site.results
    assert len(market.nodes()) == 3
    assert len(set(market.where().values())) == 1, (step, market.where())
    assert site.plan(desired).actions == ()
    recorded = {r.address.name: r.outputs["id"] for r in site.store.read().of("node")}
    there = {t.address.name: t.outputs["id"] for t in market.things.values() if t.address.kind == "node"}
    assert recorded == there
    site.close()
    return died


@pytest.mark.slow
def test_killed_at_any_write():
    """With nodes in the first zone, on the way, and in the second; what was made is booting still, and the
    fleet has room for as many again.
    """
    desired = declared(fleets=[{**FLEET, "nodes": "0..8"}], tasks=[{**GANG, "nodes": 3}], **ZONES)
    step = 1
    while killed(desired, step, 1):
        step += 2
    assert step > 20
    for other in range(4, step, 8):
        killed(desired, other, 4)


# ----------------------------------------------------------------------------------- after it was made


@pytest.mark.slow
def test_who_is_cut_short_while_nodes_boot_makes_no_more_of_them(site, market):
    """Though the fleet has room for as many again; what was planned meanwhile holds once they are ready."""
    desired = declared(fleets=[{**FLEET, "nodes": "0..8"}], tasks=[GANG], **ZONES)
    with pytest.raises(KilledError):
        site.apply(desired, die_at=10)
    boot(market, looks=6)
    made = sorted(market.nodes())
    plan = site.plan(desired)
    assert len(made) + sum(a.id.startswith("create:node/") for a in plan.actions) == 4
    assert site.apply(desired), site.results
    assert len(market.nodes()) == 4
    assert site.plan(desired).actions == ()


def test_a_node_that_does_not_come_up_is_deleted_and_made_anew(site, market):
    """With its reason; what is only late is waited for, and what came up stays."""
    desired = declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2}], **ZONES)
    late = Readiness(state=NodeState.PROVISIONING, reason="it is starting: no answer")
    market.states = {"gpu-1": late}

    def pass_time():
        site.time += 250

    market.looked = pass_time
    assert not site.apply(desired)
    told = ("create:reservation/train-1", "node/gpu-1", "it is starting: no answer")
    assert site.heard.waits == [told]
    failed = site.results["create:reservation/train-1"]
    assert failed.error == "node/gpu-1 was not ready within 10 minutes: it is starting: no answer"
    assert failed.hint.startswith("it is deleted, and made anew by the next try; ")
    assert "`network`" in failed.hint
    assert site.store.read().of("rank") == ()
    assert site.results["delete:node/gpu-1"].outcome == "done"
    before = {a.name: t.outputs["id"] for (a, _), t in market.things.items() if a.kind == "node"}
    assert list(before) == ["gpu-0"]
    market.looked = lambda: None
    market.states = {}
    assert site.apply(desired, plan=None)
    after = {a.name: t.outputs["id"] for (a, _), t in market.things.items() if a.kind == "node"}
    assert (after["gpu-0"], len(after)) == (before["gpu-0"], 2)
    assert site.plan(desired).actions == ()


@pytest.mark.parametrize("state", [NodeState.FAILED, NodeState.PROVISIONING])
def test_what_is_unfit_is_replaced(site, market, state):
    """One that was made an hour ago is not starting any more; a protected one is left alone."""
    desired = declared(fleets=[{**FLEET, "nodes": 2}], **ZONES)
    assert site.apply(desired)
    market.states = {"gpu-1": Readiness(state=state, reason="no answer")}
    if state is NodeState.PROVISIONING:
        assert site.plan(desired).actions == ()
        site.time += 3600
    ids = [a.id for a in site.plan(desired).actions]
    assert ids == ["delete:node/gpu-1", "create:node/gpu-1"]
    market.states["gpu-1"] = Readiness(state=NodeState.UNREACHABLE)
    assert site.plan(desired).actions == ()
    market.states["gpu-1"] = Readiness(state=state)
    fleet = {**FLEET, "nodes": 2, "prevent_destroy": True}
    protected = declared(fleets=[fleet], **ZONES)
    assert site.apply(protected)
    site.time += 3600
    assert site.plan(protected).actions == ()
    (refusal,) = site.plan(declared(fleets=[fleet], tasks=[{**GANG, "nodes": 2}], **ZONES)).unplaced.refusals
    codes = {r.target: r.code for verdict in refusal.ranks for r in verdict.rejections}
    assert codes["node/gpu-1"] == "not-ready"


def test_an_interrupted_node_is_made_anew_and_its_task_runs_again(site, market):
    """Its rank is lost, its sibling stops, and both run again as `retry` says: on what there is then."""
    spot = [{**H100, "spot_price": 30.0}]
    fleet = {**FLEET, "spot_policy": "auto"}
    retry = {"on_events": ["interruption"]}
    desired = declared(fleets=[fleet], tasks=[{**GANG, "nodes": 2, "retry": retry}], catalog=spot, **ZONES)
    assert site.apply(desired)
    kept = next(k for k in market.things if k[0].name == "gpu-0")
    market.things = {k: t for k, t in market.things.items() if k[0].name != "gpu-1"}
    market.room = lambda i: no_room() if i.get("spot") and i["zone"] == "za" else None
    plan = site.plan(desired)
    state = site.store.read()
    assert state.ranks["train-1"].state.value == "lost"
    assert state.ranks["train-1"].cause == "node/gpu-1 is gone"
    assert state.ranks["train-0"].state.value == "stopped"
    reasons = {a.id: a.reason.value for a in plan.actions}
    assert reasons["create:rank/train-0"] == reasons["create:rank/train-1"] == "retry"
    assert site.apply(desired)
    # The one that was left had nothing to do by then: it goes with the new one.
    assert kept not in market.things
    assert set(market.where().values()) == {"zb"}
    assert site.plan(desired).actions == ()
    assert {r.generation for r in site.store.read().of("rank")} == {2}


@pytest.fixture
def hurried(monkeypatch):
    """Nodes have three seconds to come up."""
    monkeypatch.setattr(execute, "START_UP_LIMIT", 3.0)


def test_nodes_that_stay_pending_are_deleted_and_the_next_offer_is_taken(site, market, hurried):
    """They are there and would be billed, whether or not they ever run."""
    market.stuck = lambda inputs: inputs.get("zone") == "za"
    desired = gang()
    assert site.apply(desired, parallelism=4)
    assert set(market.where().values()) == {"zb"}
    assert len(market.nodes()) == 4
    assert "not up within 0 minutes, and deleted: gpu-" in site.results["create:node/gpu-0"].note
    assert {r.inputs["zone"] for r in site.store.read().of("node")} == {"zb"}


def test_nodes_that_stay_pending_everywhere_leave_nothing(site, market, hurried):
    """Neither in the cloud nor in the state; it waits for capacity, as its `retry` says."""
    market.stuck = lambda _inputs: True
    desired = gang()
    assert not site.apply(desired, parallelism=4)
    assert market.nodes() == {}
    assert (site.store.read().records, site.store.read().intents) == ({}, ())
    assert {r.scarce for r in site.results.values() if r.outcome == "failed"} == {True}


def test_nodes_that_stay_pending_and_cannot_be_deleted_are_not_forgotten(site, market, hurried):
    """They may come to run, and the next command finds them by their tokens: none is made besides."""
    market.stuck = lambda _inputs: True
    desired = gang()

    def refused(_have):
        raise PermanentError(PermanentKind.AUTH, "you may not delete")

    may, market.delete = market.delete, refused
    assert not site.apply(desired, parallelism=4)
    assert "is still starting" in site.results["create:node/gpu-0"].error
    assert len(market.nodes()) == 4
    market.delete, market.stuck = may, lambda _inputs: False
    assert site.apply(desired, parallelism=4)
    assert (len(market.nodes()), max(market.tokens.values())) == (4, 1)
    assert site.plan(desired).actions == ()


def test_a_node_that_fails_while_it_boots_is_deleted(site, market):
    market.states = {"gpu-1": Readiness(state=NodeState.FAILED, reason="no disk")}
    assert not site.apply(declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2}], **ZONES))
    assert set(market.where()) == {"gpu-0"}
    assert site.results["create:reservation/train-1"].error == "node/gpu-1 is failed: no disk"
    assert site.results["delete:node/gpu-1"].outcome == "done"


def test_who_takes_over_from_a_killed_command_makes_anew_what_stays_pending(site, market, monkeypatch):
    """It waits no longer than who began it: the clock runs since it was asked for."""
    desired = gang()

    def die(_inputs):
        raise KilledError

    market.stuck = die
    assert not site.apply(desired)
    assert set(market.where().values()) == {"za"}
    market.stuck = lambda _inputs: False
    market.states = {"gpu-0": Readiness(state=NodeState.PROVISIONING, reason="it is starting")}
    monkeypatch.setattr(sys.modules["declarative.apply.settle"], "age", lambda _intent, _now: 1_000.0)
    found = {a.id: a for a in site.plan(desired).actions}
    assert found["delete:node/gpu-0"].because == ("not ready within 10 minutes: it is starting",)
    market.states = {}
    assert site.apply(desired)
    assert len(market.nodes()) == 4


def test_who_follows_sees_an_interrupted_node(site, market):
    """Its node does not answer any more, and then it is found to be gone: the task is due to run again."""
    retry = {"on_events": ["interruption"]}
    desired = declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 2, "retry": retry}], **ZONES)
    assert site.apply(desired)
    market.things = {k: t for k, t in market.things.items() if k[0].name != "gpu-1"}
    retries = Retries(desired.tasks, site.now, delays=(0.0,))
    seen: dict[str, str] = {}

    def settled(writer, backends):
        return refresh(writer, backends, site.now, lambda rank, s: seen.update({rank: s.state.value}))

    states = follow(
        site.store,
        site.backends(desired),
        ("train",),
        retries,
        stopping=threading.Event(),
        settled=settled,
        remind=lambda _: None,
    )
    assert states["train"].value == "lost"
    assert seen == {"train-0": "stopped", "train-1": "lost"}
    assert retries.ready(site.store.read()) == ("train",)
    assert site.apply(desired)
    assert market.where() == {"gpu-0": "za", "gpu-1": "za"}


def test_a_saved_plan_knows_where_else(site, market):
    """It is carried out without the YAML; a file with invalid ways is refused."""
    market.room = stock(za=2)
    desired = gang()
    with site.store.lock("plan") as writer:
        writer.ensure_lineage()
    plan = site.plan(desired)
    words: dict[str, Any] = {
        "tasks": ("train",),
        "state": "sqlite:///x",
        "directory": "/p",
        "made_by": "1",
        "made_at": "t",
    }
    text = dump(SavedPlan(plan=plan, facts=Facts(), backends=desired.backends, **words))
    found = load(text, "p.plan", "1").plan
    assert found.preview.fallbacks == plan.preview.fallbacks
    assert site.apply(desired, plan=found)
    assert set(market.where().values()) == {"zb"}

    (fallback,) = plan.preview.fallbacks
    for wrong in (
        replace(fallback, ways=((),)),
        replace(fallback, kinds=(("gpu-0", "gpu-7"),)),
        replace(fallback, kinds=(("gpu-0", "gpu-0"),)),
    ):
        bad = replace(plan, preview=replace(plan.preview, fallbacks=(wrong,)))
        text = dump(SavedPlan(plan=bad, facts=Facts(), backends=desired.backends, **words))
        with pytest.raises(InvalidError) as refused:
            load(text, "p.plan", "1")
        assert refused.value.diagnostics[0].code == "not-a-plan"

    data = json.loads(dump(SavedPlan(plan=plan, facts=Facts(), backends=desired.backends, **words)))
    spare = data["plan"]["preview"]["fallbacks"][0]["ways"][0][0]
    for offer in ({**spare["offer"], "blocks": 1}, {"backend": "sky"}):
        spare["offer"] = offer
        rest = {key: value for key, value in data.items() if key != "checksum"}
        with pytest.raises(InvalidError) as refused:
            load(json.dumps({**rest, "checksum": digest(rest)}), "p.plan", "1")
        assert refused.value.diagnostics[0].code == "not-a-plan"
        assert "offer" in refused.value.diagnostics[0].summary


def test_an_answer_that_was_lost_is_looked_for_where_it_was_asked(site, market):
    """A create whose answer is lost and that is refused then is not made in two zones."""
    lost: set[str] = set()

    def room(inputs):
        """The first create of each node takes effect, but its answer is lost."""
        zone = inputs["zone"]
        if zone == "za" and len(lost) < 2:
            lost.add(str(len(lost)))
            return TransientError(TransientKind.AMBIGUOUS, "no answer")
        return no_room() if zone == "za" else None

    market.room = room
    desired = gang()
    assert not site.apply(desired)
    # The result of the first is unknown: nothing is made elsewhere by that address before it is known.
    assert {i.address.name for i in site.store.read().intents} <= set(market.where()) | {"gpu-0", "gpu-1"}
    market.room = stock(za=0)
    assert site.apply(desired)
    assert set(market.where().values()) == {"zb"}
    assert site.store.read().intents == ()


def test_the_ways_of_a_plan_are_few():
    """Whatever a stranger's catalog has: and on demand and other zones are among them."""
    types = [
        {**H100, "instance_type": f"t{i:03}", "price": 50 + i / 100, "spot_price": 20 + i / 100}
        for i in range(400)
    ]
    fleet = {**FLEET, "spot_policy": "auto", "nodes": "0..40"}
    tasks = [{**GANG, "name": f"job{i}", "nodes": 2} for i in range(5)]
    plan = World().plan(declared(fleets=[fleet], tasks=tasks, catalog=types, **ZONES))
    (fallback,) = plan.preview.fallbacks
    assert len(fallback.ways) <= MOST_WAYS
    spares = [spare.offer for way in fallback.ways for spare in way]
    assert {s.zone for s in spares} == {"za", "zb", "zc"}
    each = {**fleet, "placement": "any"}
    loose = [{**t, "placement": "any"} for t in tasks]
    plan = World().plan(declared(fleets=[each], tasks=loose, catalog=types, **ZONES))
    (fallback,) = plan.preview.fallbacks
    assert len(fallback.ways) <= 2 * MOST_WAYS
    assert {way[0].offer.spot for way in fallback.ways} == {True, False}
