"""Offers that cannot be had: which others are taken, by whom together, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from declarative.provider import PermanentKind
from tests.market import KilledError, Market, Site, no_room, stock
from tests.model import World
from tests.planned import H100, declared

ZONES: dict[str, Any] = {"availability_zones": ["za", "zb", "zc"]}
GANG = {"name": "train", "nodes": 4, "placement": "cluster", "resources": {"gpu": "H100:8"}}
FLEET = {"name": "gpu", "nodes": "0..4", "placement": "cluster", "blocks": 8}


@pytest.fixture
def market():
    return Market()


@pytest.fixture
def site(tmp_path, market):
    made = Site(tmp_path, market)
    yield made
    made.close()


def gang(**more):
    return declared(fleets=[FLEET], tasks=[GANG], **{**ZONES, **more})


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_a_cluster_goes_to_the_next_zone_as_a_whole(site, market, parallelism):
    """Capacity ends in the middle of it: what was made in the first zone is deleted, and all is said."""
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
        "as h100x8 in zb, for it was not to be had as h100x8 in za (Insufficient: there is none of it)"
    )
    assert site.results["create:rank/train-3"].outcome == "done"
    assert site.plan(desired).actions == ()
    assert max(market.tokens.values()) == 1


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
    assert all(spare.inputs["price"] <= 90 for f in plan.fallbacks for way in f.ways for spare in way)
    assert site.apply(desired)
    assert {(n["zone"], n.get("spot"), n["price"]) for n in market.nodes().values()} == {("za", None, 80.0)}
    assert "h100x8 in za as spot" in site.results["create:node/gpu-0"].note
    assert site.plan(desired).actions == ()

    other = {**fleet, "name": "other", "spot_policy": "spot"}
    only = declared(fleets=[other], tasks=[GANG], catalog=catalog, **ZONES)
    assert all(spare.inputs["spot"] for f in site.plan(only).fallbacks for way in f.ways for spare in way)


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
    assert World().plan(alone).fallbacks == ()


def test_blocks_and_shapes_are_as_promised():
    """Another split is none, and neither is a node that a rank fits on otherwise."""
    halves = {**H100, "instance_type": "halves", "cpu": 48, "gpu": "H100:4", "price": 85.0}
    large = {**H100, "instance_type": "large", "cpu": 192, "gpu": "H100:16", "price": 90.0}
    same = {**H100, "instance_type": "same", "cpu": 128, "price": 95.0}
    tasks = [{"name": "small", "resources": {"gpu": 2}}]
    fleet = {**FLEET, "placement": "any"}
    desired = declared(fleets=[fleet], tasks=tasks, catalog=[H100, halves, large, same])
    # Eight blocks each: of `halves` a rank would need four, of `large` one.
    plan = World().plan(desired)
    assert [way[0].inputs["instance_type"] for f in plan.fallbacks for way in f.ways] == ["same"]


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


def test_protected_ones_stay(site, market):
    idle = declared(fleets=[{**FLEET, "nodes": 2, "prevent_destroy": True}], **ZONES)
    assert site.apply(idle)
    market.room = stock(za=0)
    desired = declared(fleets=[{**FLEET, "prevent_destroy": True}], tasks=[GANG], **ZONES)
    assert not site.apply(desired)
    assert market.where() == {"gpu-0": "za", "gpu-1": "za"}


def killed(folder, desired, step, parallelism):
    """Whether an apply was killed at a write; the next one converges: all in one zone, nothing twice."""
    folder.mkdir()
    market = Market(room=stock(za=1))
    site = Site(folder, market)
    try:
        site.apply(desired, parallelism=parallelism, die_at=step)
        died = False
    except KilledError:
        died = True
        market.room = stock(za=0)
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
def test_killed_at_any_write(tmp_path):
    """With nodes in the first zone, on the way, and in the second."""
    desired = declared(fleets=[FLEET], tasks=[{**GANG, "nodes": 3}], **ZONES)
    step = 1
    while killed(tmp_path / str(step), desired, step, 1):
        step += 1
    assert step > 20
    for other in range(4, step, 6):
        killed(tmp_path / f"wide-{other}", desired, other, 4)
