"""Saved plans as values: what is read back, what is refused, and what makes them outdated."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from declarative.model.codec import outline, to_data
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, Span
from declarative.model.resource import LOCAL, Entry, Manifest
from declarative.model.state import Address, State
from declarative.model.status import NodeState, RankState, Readiness
from declarative.planner.inventory import Inventory
from declarative.planner.make import make_plan
from declarative.planner.plan import Plan
from declarative.planner.saved_plan import (
    FILE_VERSION,
    Facts,
    OfferFact,
    SavedPlan,
    canonical,
    changed_facts,
    digest,
    dump,
    facts_of,
    load,
    record_difference,
)
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.examples import examples
from tests.support.model import World, offers_of, project, set_limits
from tests.support.planned import plan_of
from tests.support.strategies import BACKENDS, happen, pairs

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(40),
)
FLEET = {
    "name": "aa",
    "nodes": "2..4",
    "placement": "cluster",
    "blocks": 2,
    "resources": {"cpu": 8},
    "max_price": 5,
}
TASK = {"name": "ta", "nodes": 2, "exclusive": False, "resources": {"cpu": "1.."}}


def kept(
    world: World, desired: Any, plan: Plan | None = None, inventory: Inventory | None = None
) -> SavedPlan:
    """The plan of a world, as it would be saved."""
    seen = inventory or world.inventory(desired)
    made = plan or world.plan(desired)
    return SavedPlan(
        plan=made,
        facts=facts_of(made, world.state(), seen),
        backends=desired.backends,
        tasks=tuple(sorted(desired.tasks)),
        state="sqlite:///state.db",
        directory="/infra",
        made_by="0.1.0",
        made_at="2026-01-31T12:00:00Z",
    )


def brought(found: Any, rng: random.Random) -> World:
    """A world in which a project was applied."""
    world = World()
    desired = project(backends=BACKENDS, **found)
    set_limits(world, desired)
    plan = world.plan(desired)
    if plan.result != "error":
        world.apply(plan, rng)
    return world


def meanwhile(world: World, rng: random.Random) -> None:
    """Ranks end, nodes fall ill or vanish."""
    for name in world.running():
        if rng.random() < 0.4:
            world.end(name, rng.choice((RankState.SUCCEEDED, RankState.FAILED)))
    for record in world.of("node"):
        if rng.random() < 0.15:
            world.sick[record.address.name] = NodeState.NOT_READY
        elif rng.random() < 0.1:
            world.gone.add(record.address)


def back(saved: SavedPlan) -> SavedPlan:
    return load(dump(saved), "`x.plan`", "0.1.0")


def refused(text: str) -> Diagnostic:
    with pytest.raises(InvalidError) as caught:
        load(text, "`x.plan`", "0.1.0")
    (found,) = caught.value.diagnostics
    return found


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.slow
@LAW
@given(pairs(), st.integers(0, 1 << 16))
def test_what_comes_back_is_what_was_saved(found, seed):
    """decode(encode(plan)) == plan, to the byte, the text and the JSON; applied, it makes the same world; and
    nothing has changed, so that nothing says it had.
    """
    rng = random.Random(seed)
    world = brought(found[0], rng)
    happen(world, rng)
    desired = project(backends=BACKENDS, **found[1])
    set_limits(world, desired)
    saved = kept(world, desired)
    event(saved.plan.result)
    text = dump(saved)
    same = back(saved)
    assert saved == same
    assert text == dump(same)
    assert plan_json(saved.plan) == plan_json(same.plan)
    assert plan_text(saved.plan, color=False, width=100) == plan_text(same.plan, color=False, width=100)
    assert facts_of(same.plan, world.state(), world.inventory(desired), same.facts) == same.facts
    if saved.plan.result == "error":
        return
    other = world.copy()
    world.apply(saved.plan, random.Random(seed))
    other.apply(same.plan, random.Random(seed))
    assert world == other


@LAW
@given(pairs(), st.integers(0, 1 << 16))
def test_a_plan_that_is_not_stale_can_be_applied(found, seed):
    """Whatever happens between `plan --out` and `apply FILE`: either it is said, or the plan is carried out
    in any order that its needs allow.
    """
    rng = random.Random(seed)
    world = brought(found[0], rng)
    desired = project(backends=BACKENDS, **found[1])
    set_limits(world, desired)
    for name in world.running():
        if rng.random() < 0.3:
            world.end(name, RankState.SUCCEEDED)  # seen to end by the plan, and not recorded yet
    saved = kept(world, desired)
    if saved.plan.result == "error":
        return
    meanwhile(world, rng)
    now = facts_of(saved.plan, world.state(), world.inventory(desired), saved.facts)
    said = [*changed_facts(saved.facts, now)]
    event(f"stale: {sorted({d.code for d in said})}")
    assert bool(said) is (digest_of(saved.facts) != digest_of(now))
    assert {str(a) for a in world.gone} == {d.address for d in said if d.code == "plan-gone"}
    if not said:
        world.settle()
        sound(world, saved.plan, rng)


def digest_of(facts: Facts) -> str:
    return digest(to_data(facts))


def sound(world: World, plan: Plan, rng: random.Random) -> None:
    """Carry it out as `apply` does, which takes a delete of what went by itself for done."""
    there = {
        a.id
        for a in plan.actions
        if a.op.value != "delete" or a.address in world.records or a.address.kind in ("node", "volume")
    }
    actions = [
        replace(a, needs=tuple(n for n in a.needs if n in there), **_now(world, a))
        for a in plan.actions
        if a.id in there
    ]
    world.apply(replace(plan, actions=tuple(actions)), rng)


def _now(world: World, action: Any) -> dict[str, Any]:
    """An update of an ended rank is one of what it holds now."""
    record = world.records.get(action.address)
    if action.op.value == "update" and action.address.kind == "rank" and record:
        return {"holds": tuple(record.needs)}
    return {}


# ------------------------------------------------------------------------------------------- staleness


@pytest.fixture
def lived():
    """A world in which a task runs on two of three nodes, and what a second task would be placed by."""
    world = World()
    first = project(backends=BACKENDS, fleets=[{**FLEET, "nodes": "3..4"}], tasks=[TASK])
    set_limits(world, first)
    world.apply(world.plan(first))
    second = project(
        backends=BACKENDS,
        fleets=[{**FLEET, "nodes": "3..4"}],
        tasks=[TASK, {"name": "tb", "resources": {"cpu": "1.."}}],
    )
    return world, second, kept(world, second)


def stale(
    world: World, desired: Any, saved: SavedPlan, inventory: Inventory | None = None
) -> list[Diagnostic]:
    seen = inventory or world.inventory(desired)
    now = facts_of(saved.plan, world.state(), seen, saved.facts)
    return list(changed_facts(saved.facts, now, seen.readiness))


def places(plan: Plan) -> set[str]:
    return {r.node for r in plan.reservations if r.status.value == "new"}


def test_only_nodes_that_get_work_count(lived):
    world, desired, saved = lived
    (node,) = places(saved.plan)
    assert set(saved.facts.nodes) == {node}
    for record in world.of("node"):
        if record.address.name != node:
            world.sick[record.address.name] = NodeState.NOT_READY
    assert stale(world, desired, saved) == []
    seen = world.inventory(desired)
    sick = {**seen.readiness, node: Readiness(state=NodeState.NOT_READY, reason="disk is full")}
    (said,) = stale(world, desired, saved, replace(seen, readiness=sick))
    assert said.code == "plan-node-state"
    assert said.summary == (
        f"node/{node} was ready when the plan was made, and is not_ready now: disk is full"
    )


def test_a_node_that_came_up_meanwhile_is_as_was_planned(lived):
    """And one that is booting still; but one that failed is not."""
    world, desired, saved = lived
    (node,) = places(saved.plan)
    booting = replace(saved, facts=replace(saved.facts, nodes={node: NodeState.PROVISIONING}))
    assert stale(world, desired, booting) == []
    world.sick[node] = NodeState.PENDING
    assert stale(world, desired, booting) == []
    world.sick[node] = NodeState.FAILED
    (said,) = stale(world, desired, booting)
    assert f"node/{node} was provisioning when the plan was made, and is failed now" in said.summary


@pytest.mark.parametrize("known", [None, frozenset({"hard"})])
def test_a_node_that_cannot_do_any_more_what_its_task_asks_for_counts(known):
    """A node that can do something else, or of which nothing is known now, does not count."""
    world = World()
    fleets = [{"name": "gpu", "nodes": 1, "resources": {"cpu": 2, "memory": "4GB"}}]
    bare = project(backends=BACKENDS, fleets=fleets)
    world.apply(world.plan(bare), random.Random(1))
    asks = {"name": "train", "commands": ["true"], "isolation": "hard"}
    desired = project(backends=BACKENDS, fleets=fleets, tasks=[asks])

    def seen(can):
        found = world.inventory(desired)
        ready = Readiness(state=NodeState.READY, can=can)
        return replace(found, readiness=dict.fromkeys(found.readiness, ready))

    plan = make_plan(desired, world.state(), seen(known), world.now)
    facts = facts_of(plan, world.state(), seen(known))
    (node,) = facts.able
    assert facts.able == {node: True}
    for later in (None, frozenset({"hard", "podman"})):
        assert not [*changed_facts(facts, facts_of(plan, world.state(), seen(later), facts))]
    (said,) = changed_facts(facts, facts_of(plan, world.state(), seen(frozenset({"podman"})), facts))
    assert (said.code, said.address) == ("plan-node-state", f"node/{node}")
    refused = make_plan(desired, world.state(), seen(frozenset()), world.now)
    assert [r.code for r in refused.unplaced.refusals] == ["never-fits"]


def test_every_recorded_node_and_volume_that_vanishes_counts(lived):
    """What vanished is forgotten by the next command, which changes the record: then another plan is due."""
    world, desired, saved = lived
    for record in world.of("node"):
        world.gone = {record.address}
        assert [(d.code, d.address) for d in stale(world, desired, saved)] == [
            ("plan-gone", str(record.address))
        ]


def test_a_rank_that_ends_does_not_count(lived):
    world, desired, saved = lived
    for name in world.running():
        world.end(name, RankState.FAILED)
    assert stale(world, desired, saved) == []
    assert record_difference(saved.plan, world.state()) is None


def test_blocks_that_were_free_because_a_rank_had_ended_have_to_be(lived):
    """The plan saw a rank end whose node cannot be asked now."""
    world, _, _ = lived
    full = project(
        backends=BACKENDS,
        fleets=[{**FLEET, "nodes": 3}],
        tasks=[TASK, {"name": "tb", "nodes": 5, "placement": "any", "resources": {"cpu": "1.."}}],
    )
    running = world.state().ranks
    for name in world.running():
        world.end(name, RankState.SUCCEEDED)
    saved = kept(world, full)
    assert saved.plan.unplaced.refusals == ()
    assert saved.facts.ranks
    assert set(saved.facts.ranks.values()) == {True}
    world.ranks = dict(running)
    assert {d.code for d in stale(world, full, saved)} == {"plan-rank-state"}


def test_a_rank_beside_which_others_are_started_has_to_run_on(lived):
    world, desired, _ = lived
    del world.records[Address("rank", "ta-1")]
    saved = kept(world, desired)
    assert "create:rank/ta-1" in [a.id for a in saved.plan.actions]
    assert saved.facts.ranks == {"ta-0": False}
    assert stale(world, desired, saved) == []
    world.end("ta-0", RankState.FAILED)
    assert [(d.code, d.address) for d in stale(world, desired, saved)] == [("plan-rank-state", "rank/ta-0")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"price": 4.5}, "cost 4 USD/h, and costs 4.5 USD/h"),
        ({"price": None}, "cost 4 USD/h, and costs an unknown price"),
        ({"limit": 1}, "can be had in another number: at most 1"),
        ({"instance_type": "bigger"}, "is not offered any more"),
        ({"limit": 7}, None),
    ],
)
def test_offers_that_are_launched_have_to_be_as_they_were(change, words):
    """Their price, and as many of them as the plan takes; what others cost is no matter."""
    desired = project(backends=BACKENDS, fleets=[{**FLEET, "nodes": 2, "backends": ["sky"]}])
    world = World()
    saved = kept(world, desired)
    assert set(saved.facts.offers) == {"big of backend sky in east"}
    seen = world.inventory(desired)
    other = tuple(
        replace(o, **change)
        if (o.instance_type, o.region, o.spot) == ("big", "east", False)
        else replace(o, price=99.0)
        for o in seen.offers["sky"]
    )
    found = stale(world, desired, saved, replace(seen, offers={**seen.offers, "sky": other}))
    said = [f"what nodes would be launched from has changed: big of backend sky in east {words}"]
    assert [d.summary for d in found] == (said if words else [])


CHEAP = OfferFact(price=1.0, room=2, shape={"cpu": 1})


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (CHEAP, CHEAP, None),
        (None, None, None),
        (CHEAP, None, "is not offered any more"),
        (None, CHEAP, "is offered now, and was not"),
        (CHEAP, replace(CHEAP, price=2.5, room=1), "cost 1 USD/h, and costs 2.5 USD/h"),
        (CHEAP, replace(CHEAP, price=None), "cost 1 USD/h, and costs an unknown price"),
        (CHEAP, replace(CHEAP, room=1), "can be had in another number: at most 1"),
        (CHEAP, replace(CHEAP, room=None), "can be had in another number: any number"),
        (CHEAP, replace(CHEAP, shape=None), "has another shape"),
    ],
)
def test_what_has_changed_of_an_offer_is_said(was, now, words):
    found = [*changed_facts(Facts(offers={"big": was}), Facts(offers={"big": now}))]
    said = [f"what nodes would be launched from has changed: big {words}"] if words else []
    assert [d.summary for d in found] == said


READY, WAITS, BOOTS, ILL = NodeState.READY, NodeState.PENDING, NodeState.PROVISIONING, NodeState.NOT_READY


@pytest.mark.parametrize(
    ("was", "now", "counts"),
    [
        ({"nodes": {"n-0": READY}}, {"nodes": {"n-0": READY}}, []),
        ({"nodes": {"n-0": BOOTS}}, {"nodes": {"n-0": READY}}, []),
        ({"nodes": {"n-0": BOOTS}}, {"nodes": {"n-0": WAITS}}, []),
        ({"nodes": {"n-0": READY}}, {"nodes": {"n-0": BOOTS}}, ["node/n-0"]),
        ({"nodes": {"n-0": ILL}}, {"nodes": {"n-0": READY}}, ["node/n-0"]),
        ({"nodes": {"n-0": READY}}, {"nodes": {"n-0": ILL}}, ["node/n-0"]),
        ({"nodes": {"n-0": READY}}, {}, ["node/n-0"]),
        ({"nodes": {"n-0": READY}}, {"gone": ("node/n-0",)}, ["node/n-0"]),
        ({"nodes": {"n-0": READY}}, {"gone": ("volume/n-0",)}, ["volume/n-0", "node/n-0"]),
        ({"gone": ("node/n-0",)}, {}, ["node/n-0"]),
        ({"gone": ("node/n-0",)}, {"gone": ("node/n-0",)}, []),
        ({"found": {"node/n-0": "a"}}, {"found": {"node/n-0": "a"}}, []),
        ({"found": {"node/n-0": "a"}}, {"found": {"node/n-0": "b"}}, ["node/n-0"]),
        ({"able": {"n-0": True}}, {"able": {"n-0": True}}, []),
        ({"able": {"n-0": True}}, {"able": {"n-0": False}}, ["node/n-0"]),
        ({"able": {"n-0": True}}, {}, []),
        ({"able": {"n-0": False}}, {"able": {"n-0": False}}, []),
        ({"able": {"n-0": False}}, {"able": {"n-0": True}}, []),
        ({"ranks": {"t-0": True}}, {"ranks": {"t-0": True}}, []),
        ({"ranks": {"t-0": True}}, {"ranks": {"t-0": False}}, ["rank/t-0"]),
        ({"ranks": {"t-0": False}}, {"ranks": {"t-0": True}}, ["rank/t-0"]),
        ({"ranks": {"t-0": False}}, {}, ["rank/t-0"]),
    ],
)
def test_each_fact_that_changed_is_said_once(was, now, counts):
    assert [d.address for d in changed_facts(Facts(**was), Facts(**now))] == counts


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({"gone": ("node/n-0",)}, {}, "node/n-0 was gone when the plan was made, and is there again"),
        ({}, {"gone": ("node/n-0",)}, "node/n-0 is gone since the plan was made"),
        (
            {"found": {"node/n-0": "a"}},
            {},
            "node/n-0, of a command that was cut short, is not there any more",
        ),
        (
            {},
            {"found": {"node/n-0": "a"}},
            "node/n-0, of a command that was cut short, is found, and the plan does not know of it",
        ),
        (
            {"nodes": {"n-0": READY}},
            {"nodes": {"n-0": ILL}},
            "node/n-0 was ready when the plan was made, and is not_ready now",
        ),
        (
            {"nodes": {"n-1": READY}},
            {"nodes": {"n-1": ILL}},
            "node/n-1 was ready when the plan was made, and is not_ready now: full",
        ),
    ],
)
def test_it_is_said_which_way_a_fact_has_changed(was, now, said):
    reasons = {"n-0": Readiness(state=ILL), "n-1": Readiness(state=ILL, reason="full")}
    assert [d.summary for d in changed_facts(Facts(**was), Facts(**now), reasons)] == [said]
    bare = said.removesuffix(": full")
    assert [d.summary for d in changed_facts(Facts(**was), Facts(**now))] == [bare]


def test_what_a_command_that_was_cut_short_had_made_counts(lived):
    world, desired, saved = lived
    record = replace(world.of("node")[0], address=Address("node", "aa-7"))
    seen = replace(world.inventory(desired), recovered={record.address: record})
    (said,) = stale(world, desired, saved, seen)
    assert (said.code, said.address) == ("plan-recovered", "node/aa-7")
    with_it = kept(world, desired, inventory=seen)
    assert stale(world, desired, with_it, seen) == []
    other = replace(seen, recovered={record.address: replace(record, generation=2)})
    assert [d.code for d in stale(world, desired, with_it, other)] == ["plan-recovered"]


@pytest.mark.parametrize(
    ("planned", "state", "said"),
    [
        ((None, 0), State(), None),
        ((None, 0), State(lineage="a"), None),
        ((None, 0), State(lineage="a", serial=3), "its serial was 0 and is 3 now"),
        (("a", 7), State(lineage="a", serial=9), "its serial was 7 and is 9 now"),
        (("a", 7), State(lineage="b", serial=7), "that one has lineage a, this one lineage b"),
        (("a", 7), State(), "that one has lineage a, this one nothing in it yet"),
        (("a", 7), State(lineage="a", serial=7), None),
    ],
)
def test_the_record_has_to_be_the_same(planned, state, said):
    found = record_difference(plan_of(lineage=planned[0], serial=planned[1]), state)
    assert (said is None) is (found is None)
    assert found is None or said in found.summary


# ------------------------------------------------------------------------------------------- the file


@pytest.fixture
def text(lived):
    return dump(lived[2])


def again_sealed(text: str, change: Any) -> str:
    """The file as one would forge it: changed, and with the right checksum."""
    data = json.loads(text)
    change(data)
    data.pop("checksum", None)
    return json.dumps({**data, "checksum": digest(data)})


def test_any_edit_is_found(text):
    """Every scalar of the file, changed by itself."""
    data = json.loads(text)
    seen = 0
    for path in paths(data):
        if path in (("kind",), ("format_version",), ("layout",)):
            continue
        other = copy.deepcopy(data)
        *front, last = path
        where = other
        for part in front:
            where = where[part]
        where[last] = "x" if where[last] != "x" else "y"
        assert refused(json.dumps(other)).code == "plan-edited", path
        seen += 1
    assert seen > 100


def paths(data: Any, front: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        return [front]
    return [p for key, value in items for p in paths(value, (*front, key))]


def test_layout_is_no_edit(text):
    data = json.loads(text)
    assert load(json.dumps(data, indent=2, sort_keys=True), "x", "0") == load(text, "x", "0")


def test_the_format_comes_first(text):
    """A file of another version is reported as such, whatever else is in it."""
    found = refused(json.dumps({"kind": "fleetform plan", "format_version": 9, "made_by": "3.1.4"}))
    assert found.code == "plan-format"
    assert found.summary == (
        "`x.plan` has format 9, made by fleetform 3.1.4; "
        f"this is fleetform 0.1.0, which reads format {FILE_VERSION}"
    )
    assert found.hint == "apply it with fleetform 3.1.4, or plan again: `fleetform plan --out FILE`"
    versions: list[Any] = [None, "1", True, [], 1.0, 10**30]
    for version in versions:
        assert (
            refused(text.replace('"format_version":1,', f'"format_version":{json.dumps(version)},')).code
            == "plan-format"
        )


def test_a_field_that_was_added_is_another_format(text):
    """Even if nobody raised the version."""
    found = refused(again_sealed(text, put("layout", "0123456789ab")))
    assert found.code == "plan-format"
    assert "`x.plan` has format 1 of another build, made by fleetform 0.1.0" in found.summary
    names: dict[str, list[str]] = {}
    outline(SavedPlan, names)
    assert {"Plan", "Action", "Op", "Refusal", "RankVerdict", "Facts", "OfferFact", "NodeState"} <= set(names)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[]",
        '"fleetform plan"',
        "{}",
        '{"kind": "shop"}',
        '{"kind": "fleetform plan", "x": NaN}',
        '{"kind": "fleetform plan", "x": 1e999}',
        '{"kind": "fleetform plan", "x": "\\ud800"}',
        '{"kind": "fleetform plan", "x": ' + "9" * 5000 + "}",
        '{"kind": "fleetform plan", "x": ' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"kind": "fleetform plan", "x": \udcff}',
    ],
)
def test_what_is_no_plan_is_said_to_be_none(content):
    assert refused(content).code == "not-a-plan"


def put(*path: Any) -> Any:
    """A change: the last of `path` is the value, those before lead to where it goes."""
    *front, last, value = path

    def change(data: Any) -> None:
        for part in front:
            data = data[part]
        if value is None:
            del data[last]
        else:
            data[last] = value

    return change


FIRST = ("plan", "actions", 0)
LAST = ("plan", "actions", -1, "after")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (put("plan", None), "`plan` is not there"),
        (put("more", 1), "`more` is not known"),
        (put("plan", []), "`plan` is not a mapping"),
        (put("plan", "actions", {}), "`plan.actions` is not a list"),
        (put(*FIRST, "op", "rm"), "`plan.actions[0].op` is not one of create, update, delete"),
        (put(*FIRST, "op", []), "`plan.actions[0].op` is not one of create, update, delete"),
        (put(*FIRST, "address", "pod/x"), "`plan.actions[0].address` is not an address"),
        (put(*FIRST, "address", 7), "`plan.actions[0].address` is not an address"),
        (put(*FIRST, "after", None), "`plan.actions[0].after` is not there for all but a delete"),
        (put(*FIRST, "after", "blocks", ["0"]), "`plan.actions[0].after.blocks[0]` is not a whole number"),
        (put(*FIRST, "after", "node", 3), "`plan.actions[0].after.node` is not text"),
        (put(*FIRST, "after", "task", None), "`plan.actions[0].after.task` is not there"),
        (put(*FIRST, "holds", []), "`plan.actions[0].holds` is not with one node"),
        (put(*FIRST, "needs", ["create:rank/z-0"]), "`plan.actions[0].needs` is not made of actions"),
        (put(*LAST, "commands", "rm"), "`plan.actions[1].after.commands` is not a list"),
        (put(*LAST, "env", {"A": 1}), "`plan.actions[1].after.env.A` is not text"),
        (put(*LAST, "max_duration", "soon"), "`plan.actions[1].after.max_duration` is not a duration"),
        (put("plan", "basis", "serial", 1.5), "`plan.basis.serial` is not a whole number"),
        (put("plan", "basis", "serial", 1 << 60), "`plan.basis.serial` is not a whole number"),
        (put("plan", "basis", "lineage", 5), "`plan.basis.lineage` is not text"),
        (
            put("plan", "preview", "nodes", 0, "holders", {"x": "a"}),
            "`plan.preview.nodes[0].holders.x` is not a mapping by",
        ),
        (put("backends", "sky", "driver", 4), "`backends.sky` is not a backend"),
        (put("backends", "sky", []), "`backends.sky` is not a backend"),
        (put("facts", "nodes", {"aa-2": "fine"}), "`facts.nodes.aa-2` is not one of"),
        (put("facts_digest", "sha256:0"), "`facts_digest` is not the digest of the facts"),
        (put("tasks", [1]), "`tasks[0]` is not text"),
    ],
)
def test_wrong_types_are_named(text, change, where):
    """With the right checksum, too: nothing of a file is done unless all of it is right."""
    found = refused(again_sealed(text, change))
    assert found.code == "not-a-plan"
    assert where in found.summary


@pytest.mark.parametrize(
    ("before", "where"),
    [
        ({"node": 3}, "before.node` is not text"),
        ({}, "before.task` is not there"),
        (None, "before` is not there for a delete"),
    ],
)
def test_what_is_deleted_is_named_by_its_types(text, before, where):
    """Its volume, its node and its fleet are read from there."""

    def change(data: Any) -> None:
        action = data["plan"]["actions"][0]
        action |= {"op": "delete", "before": before and {**action["after"], **before}, "holds": []}
        del action["after"]
        data["plan"]["actions"] = [action]
        if before is None:
            del action["before"]
        elif not before:
            action["before"] = {}

    found = refused(again_sealed(text, change))
    assert found.code == "not-a-plan"
    assert where in found.summary


@pytest.mark.parametrize("source", ["../x", "/x", "a//b", "a/./b", "", "a\0b"])
@pytest.mark.parametrize("field", ["source", "path"])
def test_files_lie_below_the_project(text, field, source):
    """A name that cannot be one of a file would end in an exception; any other could be outside."""
    entry = Entry(**{"path": "x", "source": "x", "size": 1, "sha256": "0" * 64, field: source})
    manifest = Manifest((entry,))
    found = refused(again_sealed(text, put("files", {manifest.digest: to_data(manifest)})))
    assert found.code == "not-a-plan"
    assert "a list of files" in found.summary


@pytest.mark.parametrize(
    ("files", "rank", "where"),
    [
        (True, True, None),
        (True, False, None),
        (False, False, None),
        (False, True, "`actions.rank/tb-0` is not a task's files"),
        ("0" * 64, False, f"`files.{'0' * 64}` is not a list of files"),
    ],
)
def test_the_files_of_ranks_are_in_the_plan(text, files, rank, where):
    manifest = Manifest((Entry(path="x", source="a/x", size=1, sha256="0" * 64),))
    name = manifest.digest if files is True else files

    def change(data: Any) -> None:
        data["files"] = {name: to_data(manifest)} if name else {}
        if rank:
            data["plan"]["actions"][-1]["after"]["files"] = {"paths": ["a"], "digest": manifest.digest}

    forged = again_sealed(text, change)
    if where is None:
        assert load(forged, "x", "0").files == ({manifest.digest: manifest} if files else {})
    else:
        assert where in refused(forged).summary


@pytest.mark.parametrize(
    ("kinds", "idle", "ways", "where"),
    [
        ([["aa-0"]], [], [], None),
        ([["aa-0", "aa-1"]], [], [], None),
        ([["aa-0"], ["x-0"]], ["x-0"], [], None),
        ([["aa-0"], ["x-0"]], [], [], "kinds` is not made of nodes that are created, or idle"),
        ([["aa-0"]], ["aa-0"], [], "kinds` is not made of nodes that are created, or idle"),
        ([["aa-0"]], ["x-0"], [], "kinds` is not made of nodes that are created, or idle"),
        ([["aa-0", "aa-0"]], [], [], "kinds` is not made of nodes that are created, or idle"),
        ([["aa-0"]], [], [[]], "ways[0]` is not one offer for each kind"),
    ],
)
def test_fallbacks_are_for_nodes_that_the_plan_makes(kinds, idle, ways, where):
    desired = project(backends=BACKENDS, fleets=[{**FLEET, "nodes": 2, "backends": ["sky"]}])
    fallback = {"kinds": kinds, "idle": idle, "ways": ways}
    text = dump(kept(World(), desired))
    forged = again_sealed(text, put("plan", "preview", "fallbacks", [fallback]))
    if where is None:
        assert len(load(forged, "x", "0").plan.preview.fallbacks) == 1
    else:
        assert f"`plan.fallbacks[0].{where}" in refused(forged).summary


def test_the_projects_name_is_one(text):
    assert load(again_sealed(text, put("project", "lab")), "x", "0").project == "lab"
    for name in ("", "a b", "a\n"):
        assert "`project` is not a name" in refused(again_sealed(text, put("project", name))).summary


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (2**31 - 1, str(2**31 - 1)),
        (2**31, "unknown"),
        (-5, "-5"),
        *((other, "unknown") for other in (None, 1.5, True, "1")),
    ],
)
@pytest.mark.parametrize("made_by", ["3.1.4", "`rm`", None])
def test_a_format_and_a_version_are_shown_if_they_may_be_some(found, shown, made_by):
    known = made_by == "3.1.4"
    said = refused(json.dumps({"kind": "fleetform plan", "format_version": found, "made_by": made_by}))
    by = "3.1.4" if known else "of another version"
    assert said.summary.startswith(f"`x.plan` has format {shown}, made by fleetform {by}; ")
    plan_again = "plan again: `fleetform plan --out FILE`"
    assert said.hint == (f"apply it with fleetform 3.1.4, or {plan_again}" if known else plan_again)


def test_each_action_is_there_once_and_of_its_kind(text):
    """A new rank's place is its own, an update needs none, and what was deleted is there no more."""
    one = json.loads(text)["plan"]["actions"][0]
    twice = again_sealed(text, lambda data: data["plan"]["actions"].append(one))
    assert "`plan.actions[2].address` is not given once" in refused(twice).summary

    def of(**words: Any) -> str:
        action = {**json.loads(text)["plan"]["actions"][-1], "needs": [], **words}
        return again_sealed(text, put("plan", "actions", [action]))

    inputs = json.loads(text)["plan"]["actions"][-1]["after"]
    assert "`plan.actions[0].holds` is not with one reservation" in refused(of(holds=[])).summary
    assert load(of(op="update", holds=[], before=inputs), "x", "0").plan.actions
    both = of(op="delete", before=inputs)
    assert "`plan.actions[0].after` is not there for all but a delete" in refused(both).summary


def test_deep_inputs_are_refused(text):
    deep: Any = []
    for _ in range(60):
        deep = [deep]
    assert "so deep" in refused(again_sealed(text, put("plan", "actions", 0, "after", "more", deep))).summary


def test_source_lines_stay_out():
    """A warning may show any line of the YAML; where it stands is enough."""
    span = Span(file="a.yaml", line=3, column=1, end_line=3, end_column=4, text="API_KEY: hunter2")
    warning = Diagnostic(code="x", summary="y", span=span, severity=Severity.WARNING)
    saved = kept(World(), project(), plan_of(diagnostics=(warning,)))
    assert "hunter2" not in dump(saved)
    assert back(saved).plan.diagnostics == (replace(warning, span=replace(span, text="")),)


def test_canonical_is_one_text():
    assert canonical({"b": [1, 2.5, None], "a": "ä"}) == '{"a":"ä","b":[1,2.5,null]}'
    assert offers_of(project())[LOCAL]
