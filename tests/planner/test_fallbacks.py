"""What may be launched where the planned offers are sold out: which offers serve, and what the plan shows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declarative.model.blocks import Shape
from declarative.model.inputs import OfferInputs
from declarative.model.resource import Offer
from declarative.model.spec.project import Limits
from declarative.model.spec.values import FallbackPolicy
from declarative.model.state import Spent, State
from declarative.planner.approval import (
    approval_in,
    approval_of,
    as_approved,
    differences,
    read_approval,
)
from declarative.planner.fallbacks import (
    FallbackTerms,
    MovingNodes,
    affordable,
    extra_cost,
    hourly_at_most,
    may_go_on,
    offer_key,
    same_hardware,
)
from declarative.planner.inventory import Inventory
from declarative.planner.limits import with_limit_errors
from declarative.planner.make import make_plan
from declarative.planner.plan import Fallback, Spare
from declarative.planner.saved_plan import Facts, SavedPlan, dump, load
from declarative.provider import PermanentKind
from declarative.render.html import plan_html
from declarative.render.markdown import plan_markdown
from declarative.render.plan import _places, plan_text
from declarative.render.plan_document import plan_json
from tests.support.market import Market, Site, no_room
from tests.support.model import NOW, World
from tests.support.model import project as declared_plainly
from tests.support.planned import H100, declared

TINY = {"instance_type": "tiny", "cpu": 1, "memory": "1GB", "price": 0.01}
ALONE: dict[str, Any] = {"name": "gpu", "nodes": "0..4", "blocks": 1}
JOB: dict[str, Any] = {"name": "job", "resources": {"cpu": "1.."}}
TRAIN: dict[str, Any] = {"name": "train", "resources": {"gpu": "1.."}}
ZONES: dict[str, Any] = {"availability_zones": ["za", "zb", "zc", "zd"]}


@pytest.fixture
def market():
    return Market()


@pytest.fixture
def site(market):
    made = Site(market)
    yield made
    made.close()


def planned(catalog, *, fleet=(), task=(), words=JOB, **more):
    """The plan of one task on a fleet of its own."""
    fleets, tasks = [{**ALONE, **dict(fleet)}], [{**words, **dict(task)}]
    return World().plan(declared(fleets=fleets, tasks=tasks, catalog=catalog, **more))


def instead(plan):
    """The types, with `*` for spot, that may be launched instead of what is planned."""
    return [o["instance_type"] + "*" * o["spot"] for f in plan_json(plan)["fallbacks"] for o in f["offers"]]


OTHERS: dict[str, dict[str, Any]] = {
    "more-cpus": {"cpu": 128, "price": 84.0},
    "dearer": {"price": 100.0},
    "other-model": {"gpu": "H200:8", "price": 81.0},
    "more-gpus": {"gpu": "H100:16", "price": 82.0},
    "fewer-gpus": {"gpu": "H100:4", "price": 83.0},
}
UNPRICED = {key: value for key, value in H100.items() if key != "price"} | {"instance_type": "unpriced"}
CATALOG = [H100, UNPRICED, *({**H100, "instance_type": name, **words} for name, words in OTHERS.items())]


@pytest.mark.parametrize(
    ("fleet", "task", "types"),
    [
        ({}, {}, ["more-cpus"]),
        ({"fallback": "same"}, {}, ["more-cpus"]),
        ({"fallback": "none"}, {}, []),
        ({}, {"fallback": "none"}, []),
        ({"fallback": "none"}, {"fallback": "any"}, []),
        ({"fallback": "any"}, {"fallback": "none"}, []),
        ({"fallback": "same"}, {"fallback": "any"}, ["more-cpus"]),
        ({"fallback": "any"}, {}, ["other-model", "more-gpus", "fewer-gpus", "more-cpus", "dearer"]),
        ({}, {"fallback": "any"}, ["other-model", "more-gpus", "fewer-gpus", "more-cpus", "dearer"]),
        ({"fallback": "any", "max_price": 83}, {}, ["other-model", "more-gpus", "fewer-gpus"]),
        ({"max_price": 100}, {}, ["more-cpus", "dearer"]),
        ({}, {"max_price": 100}, ["more-cpus", "dearer"]),
        ({"max_price": 83}, {}, []),
    ],
)
def test_which_offers_serve(fleet, task, types):
    """The planned hardware for at most a fifth more; a declared `max_price` or `fallback` says otherwise. An
    offer whose price is unknown never stands in for one whose price is known.
    """
    plan = planned(CATALOG, fleet=fleet, task=task, words=TRAIN)
    assert types == instead(plan)


def test_a_fifth_more_is_the_most():
    catalog = [TINY, *({**TINY, "instance_type": f"at-{p}", "price": p} for p in (0.012, 0.0121))]
    assert instead(planned(catalog)) == ["at-0.012"]


def test_a_task_without_gpus_gets_none():
    """The planned flavor was 800 times cheaper."""
    flavors = [TINY, {**H100, "instance_type": "gpu.h100x2", "gpu": "H100:2", "price": 8.0}]
    assert instead(planned(flavors)) == []
    assert instead(planned([{**f, "price": 1.0} for f in flavors])) == []


def test_of_unknown_prices_only_the_same_type_serves():
    """Nobody knows what another one costs."""
    unknown = [{k: v for k, v in TINY.items() if k != "price"} | {"instance_type": t} for t in ("a", "b")]
    plan = planned(unknown, **ZONES)
    (fallback,) = plan_json(plan)["fallbacks"]
    assert {"a"} == {offer["instance_type"] for offer in fallback["offers"]}
    assert [offer["zone"] for offer in fallback["offers"]] == ["zb", "zc", "zd"]
    assert fallback["hourly_at_most"] is None
    assert hourly_at_most(plan) is None
    known = {**TINY, "instance_type": "known", "price": 0.5}
    plan = planned([*unknown, known], fleet={"max_price": 1})
    assert instead(plan) == []


@pytest.mark.parametrize(
    ("fleet", "types", "most"),
    [
        ({"spot_policy": "auto"}, ["h100x8", "near"], 90.0),
        ({"spot_policy": "auto", "max_price": 85}, ["h100x8"], 80.0),
        ({"spot_policy": "auto", "max_price": 200}, ["h100x8", "near", "far"], 100.0),
        ({"spot_policy": "spot"}, [], 30.0),
        ({"spot_policy": "auto", "fallback": "none"}, [], 30.0),
    ],
)
def test_on_demand_stands_in_for_spot_where_auto_allows_it(fleet, types, most):
    """Up to `max_price`; without one up to a fifth more than the same costs on demand. The plan shows it."""
    near = {**H100, "instance_type": "near", "price": 90.0}
    catalog = [{**H100, "spot_price": 30.0}, near, {**near, "instance_type": "far", "price": 100.0}]
    plan = planned(catalog, fleet=fleet, words=TRAIN)
    assert types == instead(plan)
    assert most == plan_json(plan)["cost"]["hourly_at_most"]
    assert plan_json(plan)["cost"]["hourly_after"] == 30.0


def test_what_costs_more_than_spot_is_no_spot():
    """That the same costs three times as much on demand makes no other spot offer cheaper."""
    other = {**H100, "instance_type": "other", "price": 200.0, "spot_price": 50.0}
    plan = planned([{**H100, "spot_price": 30.0}, other], fleet={"spot_policy": "auto"}, words=TRAIN)
    assert instead(plan) == ["h100x8"]


@pytest.mark.parametrize(
    ("price", "offer", "on_demand", "serves"),
    [
        (1.0, 1.2, None, True),
        (1.0, 1.21, None, False),
        (1.0, 2.0, 2.0, True),
        (1.0, None, 2.0, False),
        (None, 1.0, None, False),
        (None, 1.0, 1.0, True),
        (None, None, None, False),
    ],
)
def test_on_demand_of_another_type_in_place_of_spot(price, offer, on_demand, serves):
    """Its price is held against that of the planned type on demand, if known, and else against spot."""
    shape = Shape(cpu=1, memory_mib=1024)
    node, other = (
        SimpleNamespace(backend="sky", instance_type=name, shape=shape, price=amount, spot=name == "own")
        for name, amount in (("own", price), ("other", offer))
    )
    terms: Any = FallbackTerms(FallbackPolicy.SAME, capped=False)
    assert terms.accept(node, other, on_demand) is serves


@pytest.mark.parametrize(
    ("planned", "other", "same"),
    [(80, 80, True), (80, 96, True), (80, 40, False), (None, 40, True), (80, None, True), (0, None, True)],
)
def test_gpus_of_the_same_model_have_at_least_as_much_memory(planned, other, same):
    first, second = (
        Shape(cpu=1, memory_mib=1, gpus=8, gpu_name="A100", gpu_memory_mib=gib and gib * 1024)
        for gib in (planned, other)
    )
    assert same_hardware(first, second) is same


def test_the_strictest_of_the_tasks_on_a_node_counts():
    """They share what it costs."""
    fleet = {**ALONE, "blocks": 2}
    catalog = [
        {**TINY, "cpu": 2, "memory": "2GB"},
        {**TINY, "instance_type": "large", "cpu": 2, "price": 5.0},
    ]
    first = {"name": "first", "resources": {"cpu": 1}, "fallback": "any"}
    for other, types in (("any", ["large"]), (None, []), ("none", [])):
        second = {"name": "second", "resources": {"cpu": 1}, **({"fallback": other} if other else {})}
        plan = World().plan(declared(fleets=[fleet], tasks=[first, second], catalog=catalog))
        assert len({r.node for r in plan.reservations}) == 1
        assert types == instead(plan)


def limited_by(catalog, spent=None, **limits):
    """The plan of one task under limits of the project."""
    desired = declared(fleets=[{**ALONE, "fallback": "any"}], tasks=[TRAIN], catalog=catalog)
    desired = replace(desired, project=replace(desired.project, limits=Limits(**limits)))
    plan = World().plan(desired)
    cost = replace(plan.preview.cost, spent=spent)
    return with_limit_errors(replace(plan, preview=replace(plan.preview, cost=cost)), desired)


@pytest.mark.parametrize(
    ("limits", "spent"),
    [
        ({"cost_per_hour": 85.0}, None),
        ({"cost_per_month": 85.0 * 730}, None),
        (
            {"cost_per_month": 100.0 * 730},
            Spent(month="2026-03", dollars=15.0 * 365 + 365 * 100, hours=365.0),
        ),
    ],
)
def test_what_would_break_a_limit_is_no_fallback(limits, spent):
    """Also of the month, with what was spent in it."""
    near = {**H100, "instance_type": "near", "price": 84.9}
    catalog = [H100, near, {**near, "instance_type": "far", "price": 85.1}]
    assert instead(limited_by(catalog)) == ["near", "far"]
    plan = limited_by(catalog, spent, **limits)
    assert instead(plan) == ["near"]
    assert plan_json(plan)["cost"]["hourly_at_most"] == 84.9


# ---------------------------------------------------------------------------------------- what is shown


def gang(**more):
    fleet = {**ALONE, "placement": "cluster", "blocks": 8}
    task = {"name": "train", "nodes": 4, "placement": "cluster", "resources": {"gpu": "H100:8"}}
    other = {**H100, "instance_type": "other", "price": 90.0}
    return declared(fleets=[{**fleet, **more}], tasks=[task], catalog=[H100, other], **ZONES)


def test_the_json_lists_them():
    found = plan_json(World().plan(gang()))
    (fallback,) = found["fallbacks"]
    assert [f"node/gpu-{i}" for i in range(4)] == fallback["for"]
    assert (fallback["together"], fallback["hourly_at_most"]) == (True, 90.0)
    first = {"backend": "sky", "region": "east", "zone": "zb", "instance_type": "h100x8", "spot": False}
    assert {**first, "price": 80.0} == fallback["offers"][0]
    assert {"h100x8", "other"} == {offer["instance_type"] for offer in fallback["offers"]}
    assert (found["cost"]["hourly_after"], found["cost"]["hourly_at_most"]) == (320.0, 360.0)
    assert plan_json(World().plan(gang(fallback="none")))["fallbacks"] == []


def test_all_formats_show_them():
    """Text, Markdown, HTML: which nodes, where, and for how much at most."""
    plan = World().plan(gang())
    line = "node/gpu-[0-3]  if sold out: zb…d; other in za…d, at most 90.00 each"
    cost = "Cost: 0.00 → 320.00 USD/h (the least possible); at most 360.00 if offers are sold out"
    for shown in (
        plan_text(plan, color=False, width=None),
        plan_markdown(plan, 60_000),
        plan_html(plan),
    ):
        assert line in shown
        assert cost in shown
    none = World().plan(gang(fallback="none"))
    assert "sold out" not in plan_text(none, color=False, width=None) + plan_markdown(none, 60_000)


@pytest.mark.parametrize(
    ("zones", "text"),
    [
        (["us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f"], "us-east-1b…d us-east-1f"),
        (["us-east-1c", "us-east-1b"], "us-east-1b us-east-1c"),
        (["a1", "a2", "a3", ""], " a1 a2 a3"),
    ],
)
def test_neighbouring_zones_are_one_word(zones, text):
    assert text == " ".join(_places(zones))


def changed(plan, *ways, **words):
    """The plan with other ways of its one fallback."""
    (fallback,) = plan.preview.fallbacks
    fallbacks = (replace(fallback, ways=ways, **words),) if ways else ()
    return replace(plan, preview=replace(plan.preview, fallbacks=fallbacks))


def priced(way, price):
    return tuple(replace(spare, offer=replace(spare.offer, price=price)) for spare in way)


def test_the_planned_offer_is_no_fallback():
    """A cluster's other nodes may take another offer where it is."""
    plan = World().plan(gang())
    first = plan.preview.fallbacks[0].ways[0]
    own = tuple(replace(spare, offer=replace(spare.offer, zone="za")) for spare in first)
    (shown,) = plan_json(changed(plan, own, first))["fallbacks"]
    assert [offer["zone"] for offer in shown["offers"]] == ["zb"]
    assert plan_json(changed(plan, own))["fallbacks"] == []


def test_what_nobody_knows_is_never_a_number():
    """A fallback of unknown price makes the sum unknown; what a spot offer is capped at is known."""
    plan = World().plan(gang())
    *ways, last = plan.preview.fallbacks[0].ways
    unknown = priced(last, None)
    assert hourly_at_most(changed(plan, *ways, unknown)) is None
    bids = tuple(replace(spare, offer=replace(spare.offer, max_price=95.0)) for spare in unknown)
    assert hourly_at_most(changed(plan, *ways, bids)) == 4 * 95.0
    (fallback,) = plan.preview.fallbacks
    assert extra_cost(fallback, last, {}) == math.inf
    assert len(affordable(plan, 40.0)[0].ways) == len(fallback.ways)  # 10 more for each of four
    assert len(affordable(plan, 39.9)[0].ways) < len(fallback.ways)
    assert affordable(plan, -1.0) == ()


def test_a_spot_fallback_costs_its_max_price_at_most():
    """Nobody knows what a spot node costs: each ends before it costs more."""
    spot = Offer(
        backend="sky",
        region="east",
        zone="za",
        instance_type="big",
        shape=Shape(cpu=8, memory_mib=16384),
        spot=True,
        bids=True,
        on_demand=36.05,
    )
    offers = (spot, replace(spot, zone="zb"))

    def shown(**more):
        words = {"name": "gpu", "nodes": 1, "spot_policy": "spot", **more}
        desired = declared_plainly(backends=[{"name": "sky", "driver": "local"}], fleets=[words])
        plan = make_plan(desired, State(), Inventory(offers={"sky": offers}), NOW)
        (fallback,) = plan_json(plan)["fallbacks"]
        return fallback["hourly_at_most"], plan_text(plan, color=False, width=200)

    most, text = shown(max_price=40)
    assert most == 40.0
    assert "if sold out: zb, at most 40.00" in text
    most, text = shown()
    assert most is None
    assert "at an unknown price" in text


def test_the_digest_covers_them():
    """Whoever approves a plan approves what it may launch instead, and its price; and who moves with whom."""
    plan = World().plan(gang())
    *ways, last = plan.preview.fallbacks[0].ways
    others = [
        changed(plan),
        changed(plan, *ways),
        changed(plan, *ways, priced(last, 91.0)),
        changed(plan, *ways, last, together=False),
    ]
    assert len({approval_of(found).digest for found in (plan, *others)}) == 5


def test_of_an_approved_plan_only_approved_fallbacks_are_used():
    """Whatever else could be had by now, or became dearer. The rest of the plan is as it was approved."""
    plan = World().plan(gang())
    first, *middle, last = plan.preview.fallbacks[0].ways
    shown = plan_json(changed(plan, first, *middle))
    approved = read_approval(json.dumps(shown))
    now = changed(plan, priced(first, 79.0), priced(middle[0], 80.5), *middle[1:], last)
    narrowed = as_approved(now, approved)
    assert (priced(first, 79.0), *middle[1:]) == narrowed.preview.fallbacks[0].ways
    assert list(differences(approved, approval_of(narrowed))) == []
    assert plan_json(narrowed)["cost"]["hourly_at_most"] <= shown["cost"]["hourly_at_most"]
    for nothing in ({**shown, "fallbacks": []}, {k: v for k, v in shown.items() if k != "fallbacks"}):
        text = json.dumps({**nothing, "digest": approval_in(nothing).digest})
        assert as_approved(plan, read_approval(text)).preview.fallbacks[0].ways == ()
    only = read_approval(json.dumps({"digest": approved.digest}))
    assert plan == as_approved(plan, only)


def test_a_fallback_that_was_approved_for_one_node_serves_no_other():
    """Whoever approved it saw which nodes it is for."""

    def two(policy):
        own, other = ({**ALONE, "name": name, "nodes": 1} for name in ("own", "other"))
        fleets = [{**own, "fallback": "any"}, {**other, "fallback": policy}]
        catalog = [TINY, {**TINY, "instance_type": "large", "price": 0.02}]
        return World().plan(declared(fleets=fleets, catalog=catalog))

    approved = read_approval(json.dumps(plan_json(two("none"))))
    assert [f["for"] for f in plan_json(two("none"))["fallbacks"]] == [["node/own-0"]]
    assert sorted(f["for"] for f in plan_json(two("any"))["fallbacks"]) == [["node/other-0"], ["node/own-0"]]
    narrowed = as_approved(two("any"), approved)
    assert [f["for"] for f in plan_json(narrowed)["fallbacks"]] == [["node/own-0"]]


def test_a_saved_plan_shows_them():
    desired = gang()
    plan = replace(World().plan(desired), diagnostics=())
    words: dict[str, Any] = {
        "tasks": ("train",),
        "state": "sqlite:///x",
        "directory": "/p",
        "made_by": "1",
        "made_at": "t",
    }
    text = dump(SavedPlan(plan=plan, facts=Facts(), backends=desired.backends, **words))
    read = load(text, "p.plan", "1").plan
    assert json.dumps(plan_json(plan)) == json.dumps(plan_json(read))


@pytest.mark.slow
def test_apply_uses_only_the_fallbacks_of_the_approved_report(project):
    """It says so before it does anything: what became dearer is not named any more."""

    def declare(price):
        catalog = [TINY, {**TINY, "instance_type": "other", "price": price}]
        sky = {"type": "backend", "name": "sky", "driver": "local", "catalog": catalog}
        nodes = {"type": "fleet", "backends": ["sky"], **ALONE, "nodes": 1, "fallback": "any"}
        project.declare(sky, nodes)

    declare(0.02)
    report = project.run("plan", "--json").out
    project.write("plan.json", report)
    assert json.loads(report)["cost"]["hourly_at_most"] == 0.02
    declare(0.03)
    assert "at most 0.03" in project.run("plan").out
    done = project.run("apply", "--expect", "plan.json")
    assert "1 created" in done.out
    assert "sold out" not in done.out


# ------------------------------------------------------------------------------------- what is launched


@pytest.mark.parametrize("kind", [PermanentKind.QUOTA, PermanentKind.INSTANCES])
def test_a_quota_on_the_number_of_instances_is_not_answered_with_another_type(site, market, kind):
    """No type helps in that region, another region may. Of other quotas, such as CPUs, another type may."""
    catalog = [H100, {**H100, "instance_type": "other", "price": 90.0}]
    desired = declared(fleets=[ALONE], tasks=[TRAIN], catalog=catalog, regions=["east", "west"], **ZONES)
    market.room = lambda _: no_room(kind)
    assert not site.apply(desired)
    others = ["other", "other"] if kind is PermanentKind.QUOTA else []
    assert ["h100x8", "h100x8", *others] == [type_ for _, type_, _ in market.asked]
    site.apply(declared(fleets=[ALONE], tasks=[TRAIN], catalog=catalog, regions=["east"]))
    codes = {result.code for result in site.results.values() if result.outcome == "failed"}
    assert ({"backend-quota"} if not others else {"action-failed"}) == codes & {
        "backend-quota",
        "action-failed",
    }


def test_the_number_of_spot_instances_does_not_limit_those_on_demand(site, market):
    catalog = [{**H100, "spot_price": 30.0}, {**H100, "instance_type": "other", "spot_price": 31.0}]
    desired = declared(fleets=[{**ALONE, "spot_policy": "auto"}], tasks=[TRAIN], catalog=catalog, **ZONES)
    market.room = lambda inputs: no_room(PermanentKind.INSTANCES) if inputs.get("spot") else None
    assert site.apply(desired)
    assert len(market.asked) == 2
    assert [node.get("spot") for node in market.nodes().values()] == [None]


def test_without_fallbacks_it_waits_for_the_planned_offer(site, market):
    market.room = lambda inputs: no_room() if inputs["zone"] == "za" else None
    desired = declared(fleets=[{**ALONE, "fallback": "none"}], tasks=[TRAIN], **ZONES)
    assert not site.apply(desired)
    assert market.asked == [("gpu-0", "h100x8", "za")]
    assert site.results["create:node/gpu-0"].code == "backend-no-capacity"


@pytest.mark.parametrize("of", ["fleet", "task"])
def test_a_fallback_that_is_allowed_later_serves_the_next_node(site, market, of):
    def desired(policy):
        words = {"fleet": ALONE, "task": TRAIN}
        words[of] = {**words[of], "fallback": policy}
        return declared(fleets=[words["fleet"]], tasks=[words["task"]], **ZONES)

    market.room = lambda inputs: no_room() if inputs["zone"] == "za" else None
    assert not site.apply(desired("none"))
    assert market.nodes() == {}
    assert site.apply(desired("same"))
    assert [node["zone"] for node in market.nodes().values()] == ["zb"]


@settings(deadline=None, max_examples=50)
@given(
    prices=st.lists(st.sampled_from([None, 1.0, 1.1, 1.2, 1.3, 9.0]), min_size=1, max_size=5),
    gpus=st.lists(st.sampled_from(["", "H100:1", "H100:2", "H200:1"]), min_size=5, max_size=5),
    spot=st.sampled_from([None, 0.5, 0.9]),
    fleet=st.fixed_dictionaries(
        {},
        optional={
            "fallback": st.sampled_from(["same", "any", "none"]),
            "max_price": st.sampled_from([1.2, 5]),
            "spot_policy": st.sampled_from(["auto", "spot", "on-demand"]),
        },
    ),
    task=st.fixed_dictionaries({}, optional={"fallback": st.sampled_from(["same", "any", "none"])}),
)
def test_the_rule_holds_for_every_plan(prices, gpus, spot, fleet, task):
    """Of each listed offer: the hardware that was planned unless `any` is written; no more than a fifth above
    the price unless something says otherwise; no unknown price for a known one.
    """
    catalog = []
    for number, (price, gpu) in enumerate(zip(prices, gpus, strict=False)):
        words = {"instance_type": f"t{number}", "cpu": 2, "memory": "4GB", "gpu": gpu, "price": price}
        words |= {"spot_price": spot} if spot and price and number == 0 else {}
        catalog.append({key: value for key, value in words.items() if value not in ("", None)})
    plan = planned(catalog, fleet=fleet, task=task)
    made = {a.address.name: a.typed for a in plan.actions if a.id.startswith("create:node/")}
    written = {fleet.get("fallback"), task.get("fallback")} - {None}
    types = {words["instance_type"]: words.get("gpu", "") for words in catalog}
    for found in plan_json(plan)["fallbacks"]:
        assert "none" not in written
        for name, offer in (
            (address.removeprefix("node/"), o) for address in found["for"] for o in found["offers"]
        ):
            was = made[name]
            assert offer["price"] is not None or was.price is None
            assert offer["price"] is None or offer["price"] <= fleet.get("max_price", 9.0)
            if written != {"any"}:
                assert types[was.instance_type] == types[offer["instance_type"]]
                on_demand = fleet.get("spot_policy") == "auto" and was.spot and not offer["spot"]
                if not fleet.get("max_price") and not on_demand and was.price is not None:
                    assert offer["price"] <= was.price * 1.2 + 1e-9


def offered(instance_type: str, zone: str = "za") -> OfferInputs:
    return OfferInputs(
        backend="cloud",
        region="eu",
        zone=zone,
        instance_type=instance_type,
        resources=Shape(cpu=1, memory_mib=1024),
    )


def moving(*spares: Spare, nodes: int = 2) -> MovingNodes:
    names = tuple(f"gpu-{number}" for number in range(nodes))
    return MovingNodes(
        fallback=Fallback(kinds=(names,), ways=tuple((spare,) for spare in spares), together=True),
        kinds=dict.fromkeys(names, 0),
        planned=dict.fromkeys(names, offered("planned")),
        followers=frozenset(),
    )


def test_the_next_offer_is_the_first_with_room_for_all_of_them():
    """Other nodes count for the limit of an offer; where the nodes are now does not."""
    few, more = Spare(offer=offered("few"), limit=2), Spare(offer=offered("more"), limit=3)
    nodes, keys = moving(few, more), dict.fromkeys(("gpu-0", "gpu-1"), offer_key(offered("few")))
    assert nodes.next_way(keys) == 1
    assert nodes.next_way({**keys, "other-0": offer_key(few.offer)}) == 2
    others = {
        "other-0": offer_key(few.offer),
        "other-1": offer_key(more.offer),
        "other-2": offer_key(more.offer),
    }
    assert nodes.next_way(keys | others) is None


def test_no_offer_is_taken_twice_and_none_over_a_quota_that_refused_another():
    ways = [
        Spare(offer=offered(of, zone), limit=None) for of, zone in (("a", "zb"), ("a", "zc"), ("b", "za"))
    ]
    nodes = moving(*ways)
    assert nodes.next_way({}) == 1
    nodes.way = 1
    assert nodes.next_way({}) == 2
    nodes.sold_out.add(nodes.offer("gpu-0"), PermanentKind.QUOTA)
    assert nodes.next_way({}) == 3
    nodes.sold_out.add(nodes.offer("gpu-0"), PermanentKind.INSTANCES)
    assert nodes.next_way({}) is None


@pytest.mark.parametrize("kind", PermanentKind)
def test_of_the_planned_offer_only_want_of_capacity_counts(kind):
    capacity = {PermanentKind.NO_CAPACITY, PermanentKind.QUOTA, PermanentKind.INSTANCES}
    assert may_go_on(kind, 0) == (kind in capacity)
    assert may_go_on(kind, 1)


def test_a_node_that_is_where_the_others_go_does_not_move():
    nodes = moving(
        Spare(offer=offered("planned"), limit=None), Spare(offer=offered("planned", "zb"), limit=None)
    )
    nodes.way = 1
    assert not nodes.has_to_follow("gpu-0")
    nodes.way = 2
    assert nodes.has_to_follow("gpu-0")
