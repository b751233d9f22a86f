"""Laws of failover, on generated projects and clouds that run out of offers, with and without kills.

FLEETFORM_EXAMPLES=500 pytest tests/laws/test_failover.py looks at that many.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from declarative.model.inputs import data_of
from declarative.model.resource import offer_of
from declarative.placement.filters import blocks_wanted, place_reason
from declarative.placement.problem import NodeType
from declarative.planner.offers import broken_limit
from declarative.planner.plan import Op
from declarative.provider import PermanentKind
from declarative.render.plan_document import plan_json
from tests.support.examples import examples
from tests.support.market import KilledError, Market, Site, no_room
from tests.support.planned import declared

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(20),
)
ZONES = ("za", "zb", "zc")
REGIONS = ("east", "west")


def projects(rng):
    """A project on one backend with a few types, zones and regions."""
    pick = rng.choice
    catalog = []
    for number in range(rng.randint(1, 3)):
        one = {"instance_type": f"t{number}", "cpu": pick((8, 8, 16)), "memory": "32GB"}
        one["price"] = pick((1.0, 2.0, 3.0))
        one |= {"spot_price": one["price"] / 2} if rng.random() < 0.5 else {}
        one |= {"limit": rng.randint(2, 5)} if rng.random() < 0.3 else {}
        catalog.append(one)
    fleets = []
    for name in ("aa", "bb")[: pick((1, 1, 2))]:
        low = pick((0, 0, 1, 2))
        one = {
            "name": name,
            "nodes": f"{low}..4",
            "blocks": pick((1, 2, "auto")),
            "resources": {"cpu": "4.."},
        }
        one |= {"placement": pick(("cluster", "cluster", "any")), "spot_policy": pick(("on-demand", "auto"))}
        one |= {"max_price": pick((1.5, 2.5))} if rng.random() < 0.3 else {}
        one |= {"fallback": pick(("any", "any", "same", "none"))} if rng.random() < 0.5 else {}
        fleets.append(one)
    tasks, volumes = [], []
    for number in range(rng.randint(0, 3)):
        one = {"name": f"job{number}", "nodes": rng.randint(1, 3), "resources": {"cpu": pick((1, 2, "4.."))}}
        one |= {"placement": pick(("cluster", "any"))}
        one |= {"max_price": pick((1.2, 2.2))} if rng.random() < 0.2 else {}
        one |= {"fallback": pick(("any", "none"))} if rng.random() < 0.2 else {}
        if rng.random() < 0.4:
            volume = {"name": f"data{number}", "count": one["nodes"], "backend": "sky", "region": "east"}
            volume |= {"availability_zone": pick(ZONES)} if rng.random() < 0.7 else {}
            volumes.append(volume)
            one |= {"mounts": {"/data": f"data{number}-#"}}
        tasks.append(one)
    where = {"regions": list(REGIONS[: pick((1, 2))]), "availability_zones": list(ZONES[: pick((2, 3))])}
    return declared(fleets=fleets, tasks=tasks, volumes=volumes, catalog=catalog, **where)


def shortage(rng):
    """A cloud with few of each kind in each zone, and now and then a quota."""
    left: dict[object, int] = {}
    quota = rng.choice((None, None, "t0", "t1"))

    def room(inputs):
        kind = inputs["instance_type"]
        key = (inputs["region"], inputs["zone"], kind, bool(inputs.get("spot")))
        if key not in left:
            left[key] = rng.choice((0, 0, 1, 2, 9))
        if kind == quota:
            return no_room(PermanentKind.QUOTA)
        if not left[key]:
            return no_room()
        left[key] -= 1
        return None

    return room


def check(site, market, desired):
    """What was promised holds of everything that is recorded, and what is recorded is there."""
    state = site.store.read()
    nodes = {r.address.name: r for r in state.of("node")}
    there = {t.address: (dict(t.inputs), t.outputs["id"]) for t in market.things.values()}
    assert len(there) == len(market.things)
    made = [r for r in state.records.values() if r.address.kind in ("node", "volume", "attachment")]
    assert {r.address: (dict(r.inputs), r.outputs["id"]) for r in made} == there
    homes: dict[str, set[object]] = {}
    for record in nodes.values():
        fleet = desired.fleets[record.inputs["fleet"]]
        assert broken_limit(fleet, ("sky",), offer_of(record.node)) is None
        if fleet.placement.value == "cluster":
            homes.setdefault(str(fleet.name), set()).add(record.inputs["region"])
    assert all(len(found) == 1 for found in homes.values()), homes
    for entry in desired.backends["sky"].catalog:
        if entry.limit is not None:
            there_of = Counter(
                (r.inputs["region"], bool(r.inputs.get("spot")))
                for r in nodes.values()
                if r.inputs["instance_type"] == entry.instance_type
            )
            assert all(count <= entry.limit for count in there_of.values())
    for record in state.of("reservation"):
        task = desired.tasks[record.inputs["task"]].spec
        inputs = nodes[record.inputs["node"]].inputs
        shape = nodes[record.inputs["node"]].node.resources
        where = (
            inputs["fleet"],
            inputs["backend"],
            inputs["region"],
            inputs["zone"],
            inputs["instance_type"],
        )
        kind = NodeType(*where, shape, inputs["blocks"], inputs["price"], bool(inputs.get("spot")))
        assert place_reason(task, kind) is None
        assert blocks_wanted(task, kind) == len(record.inputs["blocks"])
    for record in state.of("attachment"):
        volume = state.get("volume", record.inputs["volume"])
        node = nodes[record.inputs["node"]]
        assert volume is not None
        assert volume.inputs["region"] == node.inputs["region"]
        assert volume.inputs.get("zone") in (None, node.inputs["zone"])


def as_shown(plan, site, market):
    """All that the apply launched is planned, or listed in the JSON for that address. What all nodes cost is
    never more than the JSON says.
    """
    shown = plan_json(plan)
    keys = ("region", "zone", "instance_type", "spot")
    may: dict[str, set[tuple[object, ...]]] = {}
    for action in plan.of(Op.CREATE, "node"):
        offer = data_of(action.typed)
        may[action.address.name] = {(*(offer.get(key) for key in keys[:3]), bool(offer.get("spot")))}
    for fallback in shown["fallbacks"]:
        offers = {tuple(offer[key] for key in keys) for offer in fallback["offers"]}
        for address in fallback["for"]:
            may.setdefault(address.removeprefix("node/"), set()).update(offers)
    for name, offer in market.launched:
        assert (*(offer.get(key) for key in keys[:3]), bool(offer.get("spot"))) in may[name], (name, offer)
    cost = sum(record.node.price or 0.0 for record in site.store.read().of("node"))
    assert cost <= shown["cost"]["hourly_at_most"] + 1e-6


def together(plan, site):
    """A cluster that was planned in one zone lies in one zone."""
    planned = {a.address.name: a.after for a in plan.actions if a.op.value == "create" and a.after}
    for fallback in plan.preview.fallbacks:
        if fallback.together:
            names = [name for kind in fallback.kinds for name in kind if name in planned]
            found = [site.store.read().get("node", name) for name in names]
            assert len({(r.inputs["region"], r.inputs["zone"]) for r in found if r}) <= 1


@pytest.mark.slow
@LAW
@given(st.integers(0, 1 << 32))
def test_what_is_promised_holds_wherever_nodes_end_up(seed):
    """Whatever a cloud refuses, and wherever the process is killed; and then nothing is left to do."""
    rng = random.Random(seed)
    desired = projects(rng)
    market = Market(room=shortage(rng))
    site = Site(market)
    try:
        first = site.plan(desired)
        if first.result == "error":
            event("error")
            return
        width = rng.choice((1, 1, 4))
        if rng.random() < 0.5:
            try:
                site.apply(desired, parallelism=width, die_at=rng.randint(1, 40))
            except KilledError:
                event("killed")
        plan = site.plan(desired)
        if plan.result == "error":
            return
        market.launched.clear()
        done = site.apply(desired, parallelism=width, plan=plan)
        event(f"done: {done}, elsewhere: {bool(site.heard.moves)}")
        check(site, market, desired)
        together(plan, site)
        as_shown(plan, site, market)
        if not done:
            market.room = lambda _: None
            again = site.plan(desired)
            if again.result == "error":
                return
            assert site.apply(desired, parallelism=width), site.results
            check(site, market, desired)
        assert site.plan(desired).actions == ()
        assert max(market.tokens.values(), default=1) == 1
    finally:
        site.close()
