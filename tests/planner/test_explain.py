"""`fleetform explain`: texts and JSON against golden files (`FLEETFORM_ACCEPT=1` rewrites them), its rules,
and the installed command. laws/test_explain.py checks that the answers are true.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from declarative.model.resource import Desired
from declarative.model.status import NodeState, RankState
from declarative.placement.explain.alternatives import MOST
from declarative.planner.decisions import PlanRequest
from declarative.planner.explain import GOES, Answer, Explainer
from declarative.planner.plan import Reason
from declarative.render.explain import explain_json, explain_text
from declarative.render.output_json import to_json
from tests.support.cli import fleet, task
from tests.support.golden import check_golden
from tests.support.model import World
from tests.support.planned import GPU, H100, bring, declared, small

GOLDEN = Path(__file__).parents[1] / "golden" / "explain"

DEAR = {**H100, "instance_type": "h100x8-b", "price": 90.0}
TINY = {"instance_type": "tiny", "cpu": 8, "memory": "64GB", "gpu": "H100:1", "price": 9.0}
MARKET = [H100, DEAR, TINY]
POOL = {**GPU, "nodes": "0..4", "placement": "any"}
ALT = {**GPU, "name": "alt", "nodes": "0..3"}
BIG = {"name": "big", "nodes": 3, "placement": "any", "exclusive": True, "resources": {"gpu": 8}}
HUGE = {"name": "huge", "resources": {"gpu": 16}}
TRAIN = {"name": "train", "nodes": 2, "resources": {"gpu": 8}}
DATA = {"name": "data", "count": 2, "availability_zone": "a", "region": "east"}
MOUNTED = {**TRAIN, "mounts": {"/data": "data-#"}}
ZONES = {"availability_zones": ["a", "b"]}


def question(world: World, desired: Desired, **options: Any) -> PlanRequest:
    """What `explain` asks for."""
    inventory = world.inventory(desired)
    return PlanRequest(desired=desired, recorded=world.state(), inventory=inventory, now=world.now, **options)


def ask(world: World, desired: Desired, address: str, **options: Any) -> Answer:
    """What `explain` answers."""
    explainer = Explainer(question(world, desired, **options))
    assert explainer.feasible
    kind, _, name = address.partition("/")
    if kind == "node":
        return explainer.of_node(name)
    if kind == "task":
        return explainer.of_task(name)
    found, _, rank = name.rpartition("-")
    return explainer.of_task(found, int(rank))


def data(answer: Answer) -> Any:
    """Its JSON, as a script reads it."""
    return json.loads(to_json(explain_json(answer, ())))


def text(answer: Answer) -> str:
    """Its text."""
    return explain_text(answer, color=False, width=100)


def golden(name: str, text: str) -> None:
    check_golden(GOLDEN / name, text)


# ------------------------------------------------------------------------------------------------- golden


def new() -> tuple[World, Desired]:
    """Two nodes are launched for three tasks that could share; a third offer cannot be split."""
    return World(), declared([POOL], small(3, gpus=3), catalog=MARKET)


def busy() -> tuple[World, Desired]:
    """Three tasks run; one more fits, one finds too few whole nodes, one never fits."""
    world = bring(World(), [POOL], small(3, gpus=3), catalog=MARKET)
    tiny = {"name": "tiny", "resources": {"gpu": 1}}
    return world, declared([POOL], [*small(3, gpus=3), tiny, BIG, HUGE], catalog=MARKET)


def gang() -> tuple[World, Desired]:
    """A fleet has the nodes for a gang anyway; another fleet would have to launch them."""
    return World(), declared([GPU, ALT], [TRAIN], catalog=[H100, DEAR])


def tied() -> tuple[World, Desired]:
    """A gang whose volumes lie in one zone of two."""
    return World(), declared([{**GPU, "nodes": "0..4"}], [MOUNTED], [DATA], [H100, DEAR], **ZONES)


def sick() -> tuple[World, Desired]:
    """The same, running, with a node that cannot be reached."""
    world, desired = tied()
    bring(world, [{**GPU, "nodes": "0..4"}], [MOUNTED], [DATA], [H100, DEAR], **ZONES)
    world.sick["gpu-1"] = NodeState.UNREACHABLE
    return world, desired


def renewed() -> tuple[World, Desired]:
    """The same, once the fleet's `env` was changed: its nodes are replaced."""
    world, _ = tied()
    bring(world, [{**GPU, "nodes": "0..4"}], [MOUNTED], [DATA], [H100, DEAR], **ZONES)
    changed = {**GPU, "nodes": "0..4", "env": {"A": "b"}}
    return world, declared([changed], [MOUNTED], [DATA], [H100, DEAR], **ZONES)


def removed() -> tuple[World, Desired]:
    """Nothing of what runs is declared any more."""
    world, _ = tied()
    bring(world, [{**GPU, "nodes": "0..4"}], [MOUNTED], [DATA], [H100, DEAR], **ZONES)
    return world, declared([], [], [DATA], [H100, DEAR], **ZONES)


CASES = {
    "new-task": (new, "task/small-0"),
    "new-node": (new, "node/gpu-0"),
    "kept-task": (busy, "task/small-2"),
    "idle-blocks": (busy, "task/tiny"),
    "no-capacity": (busy, "task/big"),
    "never-fits": (busy, "task/huge"),
    "kept-node": (busy, "node/gpu-1"),
    "gang": (gang, "task/train"),
    "fleet-node": (gang, "node/gpu-1"),
    "volumes": (tied, "rank/train-1"),
    "sick-task": (sick, "task/train"),
    "sick-node": (sick, "node/gpu-1"),
    "moved": (renewed, "rank/train-0"),
    "replaced-node": (renewed, "node/gpu-0"),
    "removed-task": (removed, "task/train"),
    "deleted-node": (removed, "node/gpu-0"),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name):
    world, address = CASES[name]
    golden(f"{name}.txt", text(ask(*world(), address)))


@pytest.mark.parametrize("name", ["new-task", "idle-blocks", "no-capacity", "gang", "new-node", "kept-node"])
def test_json(name):
    world, address = CASES[name]
    golden(f"{name}.json", to_json(explain_json(ask(*world(), address), ())))


# -------------------------------------------------------------------------------------------------- rules


def test_the_keys_are_the_same_for_every_answer_of_a_kind():
    """Scripts find each key whatever there is to say."""
    task_keys = {tuple(data(ask(*w(), a))) for w, a in CASES.values() if not a.startswith("node/")}
    node_keys = {tuple(data(ask(*w(), a))) for w, a in CASES.values() if a.startswith("node/")}
    assert len(task_keys) == len(node_keys) == 1
    head = ("format_version", "address", "kind", "status")
    assert task_keys.pop()[:4] == node_keys.pop()[:4] == head


def test_an_explanation_changes_no_plan_and_is_the_same_each_time():
    for world, address in CASES.values():
        there, desired = world()
        explainer = Explainer(question(there, desired))
        assert explainer.plan == there.plan(desired)
        assert ask(there, desired, address) == ask(*world(), address)


def test_all_ranks_have_the_place_of_the_plan():
    """Node, blocks and price are those of the plan's reservations."""
    world, desired = gang()
    found = data(ask(world, desired, "task/train"))
    plan = world.plan(desired)
    assert [
        (r["place"]["node"], tuple(r["place"]["blocks"]), r["place"]["price"]) for r in found["ranks"]
    ] == [(r.node, r.blocks, r.price) for r in plan.reservations]


def test_cheaper_offers_that_were_turned_down_are_counted():
    """And each says which filter turned it down, those too that the fleet itself never launches."""
    cheap = {**H100, "instance_type": "cheap", "price": 20.0}
    spot = {**H100, "instance_type": "other", "price": 60.0, "spot_price": 5.0}
    few = {**H100, "instance_type": "few", "price": 30.0, "limit": 0}
    pool = {**POOL, "instance_types": ["h100x8", "h100x8-b", "other", "few"], "spot_policy": "auto"}
    job = {"name": "job", "resources": {"gpu": 8}, "spot_policy": "on-demand"}
    desired = declared([pool], [job], catalog=[H100, DEAR, cheap, spot, few])
    (rank,) = data(ask(World(), desired, "task/job"))["ranks"]
    assert rank["place"]["instance_type"] == "other"
    turned = {t["code"]: (t["count"], t["cheaper"]) for t in rank["instead"]["turned_down"]}
    assert turned == {"spot": (1, 1), "limit": (1, 1), "no-offer": (1, 1)}
    offers = [
        (o["instance_type"], o["node_price"], o["plan_hourly_change"]) for o in rank["instead"]["offers"]
    ]
    assert offers == [("h100x8", 80.0, 20.0), ("h100x8-b", 90.0, 30.0)]
    assert [w["key"] for w in rank["why"]] == ["exact-fit", "cheapest"]


def test_what_a_place_costs_the_plan():
    """Instead of a launch for the rank alone: the difference; beside a node that is there: all of it."""
    world = bring(World(), [POOL], [{"name": "old", "resources": {"gpu": 2}}], catalog=[H100])
    both = [{"name": "old", "resources": {"gpu": 2}}, {"name": "job", "resources": {"gpu": 7}}]
    (rank,) = data(ask(world, declared([POOL], both, catalog=[H100, DEAR]), "task/job"))["ranks"]
    assert rank["place"]["new_node"]
    assert [o["plan_hourly_change"] for o in rank["instead"]["offers"]] == [10.0]
    (kept,) = data(ask(world, declared([POOL], both, catalog=[H100, DEAR]), "task/old"))["ranks"]
    assert [(n["target"], n["plan_hourly_change"]) for n in kept["instead"]["nodes"]] == []
    assert {t["code"] for t in kept["instead"]["turned_down"]} == {"busy"}


def test_an_unknown_price_is_unknown():
    """Neither free nor cheaper."""
    unknown = {k: v for k, v in H100.items() if k != "price"}
    desired = declared([POOL], small(1), catalog=[unknown])
    (rank,) = data(ask(World(), desired, "task/small-0"))["ranks"]
    assert (rank["place"]["price"], rank["place"]["node_price"]) == (None, None)
    desired = declared([POOL], small(1), catalog=[H100, {**unknown, "instance_type": "what"}])
    (rank,) = data(ask(World(), desired, "task/small-0"))["ranks"]
    (other,) = rank["instead"]["offers"]
    assert (other["price"], other["plan_hourly_change"], rank["instead"]["offers_cheaper"]) == (None, None, 0)
    assert "unknown" in text(ask(World(), desired, "task/small-0"))


def test_a_pinned_rank_says_so_and_others_are_not_pinned():
    world = bring(World(), tasks=[])
    desired = declared(tasks=[{"name": "job", "resources": {"gpu": 1}, "instances": ["gpu-1"]}])
    (rank,) = data(ask(world, desired, "task/job"))["ranks"]
    assert "pinned" in [w["key"] for w in rank["why"]]
    assert {(t["what"], t["code"]) for t in rank["instead"]["turned_down"]} >= {("node", "instance")}
    assert rank["instead"]["nodes"] == []


def test_a_pinned_name_that_is_taken_is_launched_by_no_offer():
    """Though the offer is one of the pinned node's fleet."""
    full = {"name": "full", "resources": {"gpu": 8}}
    world = bring(World(), [POOL], [full])
    found = data(
        ask(world, declared([POOL], [full, {**full, "name": "job", "instances": ["gpu-0"]}]), "task/job")
    )
    assert (found["status"], found["places"]["nodes_count"], found["places"]["offers_count"]) == (
        "unplaced",
        0,
        0,
    )
    assert {t["code"] for t in found["places"]["turned_down"]} == {"busy", "instance"}


def test_two_ranks_on_one_launched_node_need_offers_that_hold_both():
    """Of the offers for the node itself: what holds one of them is not enough."""
    half = {**H100, "instance_type": "half", "gpu": "H100:4", "price": 60.0}
    mixed = {**POOL, "blocks": "auto"}
    desired = declared([mixed], small(2, gpus=3), catalog=[H100, half])
    found = data(ask(World(), desired, "node/gpu-0"))
    assert sorted(found["holders"].values()) == ["rank/small-0-0"] * 3 + ["rank/small-1-0"] * 3
    assert [(t["code"], t["cheaper"]) for t in found["instead"]["turned_down"]] == [("too-small", 1)]
    assert found["instead"]["offers"] == []


def test_a_node_that_its_fleet_launches_for_itself():
    """No rank sits on it: other fleets' offers are no alternative, nor is one whose limit is reached."""
    few = {**H100, "instance_type": "few", "price": 30.0, "limit": 1}
    desired = declared([{**GPU, "nodes": 2, "placement": "any"}, ALT], catalog=[H100, DEAR, few])
    found = data(ask(World(), desired, "node/gpu-1"))
    assert (found["instance_type"], [w["key"] for w in found["why"]]) == (
        "h100x8",
        ["fleet-size", "cheapest"],
    )
    assert [(t["code"], t["count"], t["cheaper"]) for t in found["instead"]["turned_down"]] == [
        ("limit", 1, 1)
    ]
    assert [o["target"] for o in found["instead"]["offers"]] == ["offer/sky:east:h100x8-b (fleet/gpu)"]


def test_volumes_of_others_are_in_use():
    """As the plan leaves them, those of other tasks of the same plan included."""
    volume = {"name": "disk", "region": "east"}
    tasks = [{"name": n, "resources": {"gpu": 1}, "mounts": {"/d": "disk"}} for n in ("one", "two")]
    world = World()
    found = data(ask(world, declared([POOL], tasks, [volume]), "task/two"))
    assert {t["code"] for t in found["places"]["turned_down"]} == {"volume-busy"}


def test_each_node_is_held_by_its_own():
    """Nodes that are alike are asked about as one, and each is named with who sits on it."""
    three = declared([{**GPU, "nodes": "0..4"}], [{**TRAIN, "nodes": 3}], catalog=[H100])
    found = text(ask(World(), three, "rank/train-0"))
    held = [line for line in found.splitlines() if "not-idle" in line or "busy" in line]
    for line in held:
        for number in ("1", "2"):
            if f"node/gpu-{number} " in line:
                assert f"rank/train-{number})" in line
    assert held


def test_limits_of_fleets_that_the_task_may_not_use_are_not_its_business():
    other = {**POOL, "name": "other", "max_price": 1}
    desired = declared([POOL, other], [{"name": "job", "fleets": ["gpu"], "resources": {"gpu": 1}}])
    (rank,) = data(ask(World(), desired, "task/job"))["ranks"]
    assert {(t["what"], t["code"]) for t in rank["instead"]["turned_down"]} == {("fleet", "fleet")}


def test_a_task_that_goes_on_because_it_has_no_other_place():
    """It is refused and still has its place: the answer says both."""
    world = bring(World(), tasks=[{**TRAIN}])
    changed = {**TRAIN, "resources": {"gpu": 8, "cpu": "1000.."}}
    found = data(ask(world, declared(tasks=[changed]), "task/train"))
    assert (found["status"], found["refusal"]["code"]) == ("unplaced", "never-fits")
    assert [r["why"][0]["key"] for r in found["ranks"]] == ["goes-on", "goes-on"]


def test_a_task_that_has_ended_gives_its_place_back():
    """From the moment that its end is seen; nothing else is asked about it, and it is no error."""
    world = bring(World(), tasks=small(1))
    world.end("small-0-0", RankState.SUCCEEDED)
    desired = declared(tasks=small(1))
    found = data(ask(world, desired, "task/small-0"))
    (rank,) = found["ranks"]
    assert (found["status"], rank["state"], rank["instead"]) == ("ended", "succeeded", None)
    assert (rank["place"]["status"], [w["key"] for w in rank["why"]]) == ("released", ["ended", "released"])
    world.settle()
    (rank,) = data(ask(world, desired, "task/small-0"))["ranks"]
    assert (rank["state"], rank["place"]) == ("succeeded", None)
    assert text(ask(world, desired, "task/small-0")) == (
        "task/small-0 has ended\n\n  rank/small-0-0: succeeded\n  - its last run succeeded\n\n"
        "Its output: `fleetform logs small-0`. Again: `fleetform apply --replace task/small-0`.\n"
    )


def test_a_node_says_why_it_takes_no_work():
    """Its state, and when that was seen; who looked at it, and what turned it down for them."""
    world = bring(World(), tasks=[])
    world.sick["gpu-0"] = NodeState.NOT_READY
    desired = declared(tasks=[{"name": "job", "instances": ["gpu-0"]}, HUGE])
    found = data(ask(world, desired, "node/gpu-0"))
    assert (found["state"], found["observed_at"]) == ("not_ready", "1970-01-12T13:46:40Z")
    assert [(x["code"], x["tasks"]) for x in found["looked"]] == [
        ("too-small", ["huge"]),  # that it is not ready as well is no matter: no waiting mends it
        ("not-ready", ["job"]),
    ]
    assert found["blocks"] == {"total": 8, "busy": 0, "idle": 8}


def test_long_lists_are_cut_and_counted():
    """Hundreds of nodes and offers make neither a long text nor long JSON."""
    count = 300
    pool = {**POOL, "nodes": count}
    catalog = [{**H100, "instance_type": f"type-{i}", "price": 80.0 + i} for i in range(200)]
    world = bring(World(), [pool], [], catalog=catalog)
    desired = declared([{**pool, "nodes": f"{count}..400"}], [*small(1), HUGE], catalog=catalog)
    answer = ask(world, desired, "rank/small-0-0")
    (rank,) = data(answer)["ranks"]
    assert (rank["instead"]["nodes_count"], rank["instead"]["offers_count"]) == (count - 1, 200)
    assert len(rank["instead"]["nodes"]) == len(rank["instead"]["offers"]) == MOST
    assert f"… and {count - 1 - MOST} more nodes" in text(answer)
    huge = ask(world, desired, "task/huge")
    assert len(text(huge)) < 20_000
    assert len(to_json(explain_json(huge, ()))) < 100_000


# ------------------------------------------------------------------------------------- the installed command


@pytest.mark.slow
def test_the_command(project):
    """Before and after an apply, as text and as JSON; nothing is written but by `apply`."""
    project.declare(
        fleet(nodes=2),
        task("job", "sleep 600", nodes=2),
        task("big", "true", resources={"cpu": "64.."}),
    )
    before = sorted(project.path.rglob("*"))
    done = project.run("explain", "task/job")
    assert "task/job is placed by this plan (new)" in done.out
    assert "fleet/gpu launches the node for itself" in done.out
    refused = project.run("explain", "task/big", "--json", code=3).json
    assert (refused["kind"], refused["status"], refused["refusal"]["code"]) == (
        "task",
        "unplaced",
        "never-fits",
    )
    rejections = refused["refusal"]["ranks"][0]["rejections"]
    assert {r["code"] for r in rejections} == {"too-small"}
    assert sorted(project.path.rglob("*")) == before
    project.apply("--allow-unplaced")
    rank = project.run("explain", "rank/job-1", "--json").json
    assert [r["why"][0]["key"] for r in rank["ranks"]] == ["runs"]
    node = project.run("explain", "node/gpu-0", "--json", "--offline").json
    assert (node["state"], node["holders"]) == ("ready", {"0": "rank/job-0", "1": "rank/job-0"})
    assert project.run("explain", "job").out == project.run("explain", "task/job").out
    assert project.run("explain", "job/1").out == project.run("explain", "rank/job-1").out


@pytest.mark.parametrize(
    ("target", "code", "hint"),
    [
        ("task/jib", "unknown-address", "did you mean `task/job`?"),
        ("node/gpu-9", "unknown-address", "did you mean `node/gpu-"),
        ("rank/jib-0", "unknown-address", "did you mean `rank/job-0`?"),
        ("rank/job-2", "unknown-rank", "its ranks are 0 to 1"),
        ("rank/job", "unknown-address", ""),
        ("volume/data", "usage", "write `task/NAME`, `rank/NAME-0` or `node/NAME`"),
        ("task/", "usage", "write `task/NAME`"),
    ],
)
def test_an_address_that_is_not_there(project, target, code, hint):
    """An error with a code and what to type instead, on stderr or as JSON."""
    project.declare(fleet(nodes=2), task("job", "true", nodes=2))
    done = project.run("explain", target, code=1)
    assert f"error[{code}]" in done.err
    assert hint in done.err
    assert done.out == ""
    (found,) = project.run("explain", target, "--json", code=1).json["diagnostics"]
    assert found["code"] == code


def test_errors_of_the_plan_are_errors_here(project):
    """What cannot be applied is explained all the same, and the exit code says so."""
    project.declare(fleet(nodes=2, blocks=3), task("job", "true"))
    done = project.run("explain", "task/job", code=1)
    assert "error[blocks-do-not-divide]" in done.err
    assert "cannot be placed" in done.out


def test_every_reason_for_which_a_node_goes_is_explained():
    """A reason without words here would end `explain node/…` with an error."""
    of_others = {"new", "adopted", "cascade", "gone", "incomplete", "retry", "unused"}
    assert {*GOES} == {reason for reason in Reason if reason.value not in of_others}
