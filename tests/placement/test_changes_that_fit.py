"""The single change that would make a refused task fit: it does so, alone."""

import random
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from ruamel.yaml import YAML

from declarative.model.blocks import Shape
from declarative.model.status import NodeState
from declarative.placement import search
from declarative.placement.assignment import SEAT_WORK
from declarative.placement.explain import changes as changing
from declarative.placement.place import place
from declarative.placement.problem import VolumeAt
from declarative.placement.program import solve
from tests.placement.test_placement import ask, fleet, node, offer, refused, run
from tests.support.model import World
from tests.support.planned import GPU, H100, bring, declared, small


def gpus(count):
    """An offer with so many GPUs."""
    return offer(float(count), shape=Shape(cpu=8 * count, memory_mib=65536, gpus=count, gpu_name="T4"))


SPOT = {**H100, "spot_price": 20.0}
SMALL = {**H100, "instance_type": "h100x4", "cpu": 48, "memory": "512GB", "gpu": "H100:4", "price": 40.0}
WEST = {"name": "west", "nodes": "0..2", "blocks": 8, "regions": ["west"]}


def plan_of(world, words, **project):
    """The plan with one more task than runs already."""
    more = {"regions": ["east", "west"], **project}
    fleets = more.pop("fleets", [GPU])
    tasks = [*more.pop("running", []), {"name": "more", **words}]
    return world.plan(declared(fleets, tasks, **more))


def changes_of(plan):
    """The changes named in the one refusal."""
    (refusal,) = plan.unplaced.refusals
    return refusal.changes


def make(change, words, project):
    """Make a change as a user would: edit the YAML as it says."""
    words, project = deepcopy(words), deepcopy(project)

    def value(text):
        return YAML(typ="safe").load(text)

    if found := re.fullmatch(r"with `(\w+): (.+)` of fleet/(\S+)", change):
        (target,) = (f for f in project["fleets"] if f["name"] == found[3])
        target[found[1]] = value(found[2])
    elif found := re.fullmatch(r"with `limit: (\d+)` for (\S+)(?: \(spot\))? of sky", change):
        (target,) = (c for c in project["catalog"] if c["instance_type"] == found[2])
        target["limit"] = int(found[1])
    elif found := re.fullmatch(r"with `(\w+): (.+)` in `resources`", change):
        words["resources"][found[1]] = value(found[2])
    elif found := re.fullmatch(r"without `(\S+)` in `(\w+)`", change):
        words[{"volumes": "mounts"}.get(found[2], found[2])].pop(found[1])
    elif found := re.fullmatch(r"with `(\w+): (.+)`(?: of the task)?", change):
        words[found[1]] = value(found[2])
    else:
        found = re.fullmatch(r"without `(\w+)`(?: \(.*\))?", change)
        assert found, change
        words.pop(found[1])
    return words, project


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spot": ({"spot_policy": "on-demand"}, {"fleets": [{**GPU, "nodes": "0..2", "spot_policy": "spot"}]}),
    "price": ({"max_price": 60}, {"fleets": [{**GPU, "nodes": "0..2"}]}),
    "fleet": ({"fleets": ["aa"]}, {"fleets": [{**GPU, "name": "aa", "nodes": 0}, {**GPU, "name": "bb"}]}),
    "region": ({"regions": ["east"]}, {"fleets": [WEST]}),
    "pin": ({"instances": ["west-0"]}, {}),
    "reuse": ({"creation_policy": "reuse"}, {"fleets": [{**GPU, "nodes": "0..2"}]}),
    "room": ({"nodes": 3}, {}),
    "limit": ({"nodes": 2}, {"fleets": [{**GPU, "nodes": "0..4"}], "catalog": [{**H100, "limit": 1}]}),
    "whole": ({"nodes": 4, "resources": {"gpu": "2..8"}}, {}),
    "upper": ({"exclusive": True, "resources": {"cpu": 12}}, {}),
    "model": ({"resources": {"gpu": "A100:8"}}, {}),
    "lower": ({"resources": {"memory": "4TB.."}}, {}),
    "mount": ({"mounts": {"/data": "data", "/old": "old"}}, {"volumes": [{"name": "data"}]}),
    "fewer": ({"nodes": 5, "exclusive": True, "resources": {"gpu": "8"}}, {}),
}
NAMED = {
    "spot": ("with `spot_policy: auto`",),
    "price": ("with `max_price: 80`",),
    "fleet": ("with `nodes: 0..1` of fleet/aa", "with `fleets: [aa, bb]`"),
    "region": ("with `regions: [east, west]`",),
    "pin": ("without `instances`",),
    "reuse": ("with `creation_policy: reuse-or-create`",),
    "room": ("with `nodes: 2..3` of fleet/gpu", "with `exclusive: false`", "with `placement: any`"),
    "limit": ("with `limit: 2` for h100x8 of sky", "with `exclusive: false`", "with `placement: any`"),
    "whole": ("with `nodes: 2..4` of fleet/gpu", "with `exclusive: false`", "with `placement: any`"),
    "upper": ("with `exclusive: false`", "with `cpu: 12..` in `resources`"),
    "model": ("with `gpu: 8` in `resources`",),
    "lower": ("with `memory: 1TB..` in `resources`",),
    "mount": ("without `/old` in `volumes`",),
    "fewer": ("with `nodes: 2..5` of fleet/gpu", "with `nodes: 2` of the task"),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_named_fits_when_it_is_made(name):
    """Each change alone, written into the YAML as it is named."""
    words, more = CASES[name]
    project: dict[str, Any] = {"fleets": [GPU], "catalog": [SPOT] if name == "spot" else [H100]}
    project |= more
    changes = changes_of(plan_of(World(), words, **project))
    assert NAMED[name] == changes[: len(NAMED[name])]
    for change in changes:
        edited, whole = make(change, words, project)
        assert plan_of(World(), edited, **whole).unplaced.refusals == (), change


def test_nothing_alone_is_enough():
    """Two things are in the way: the hint says that no single change mends it."""
    words = {"regions": ["north"], "resources": {"gpu": "A100:8"}}
    plan = plan_of(World(), words)
    assert changes_of(plan) == ()
    assert plan.unplaced.refusals[0].hint == (
        "no single change that was tried makes it fit (task, `nodes` of fleets, `limit` of offers)"
    )


def test_no_more_than_is_needed_is_named():
    """The least price, the least `nodes`, the least `limit`: one less does not do."""
    catalog = [H100, {**H100, "instance_type": "dear", "price": 99.5}]
    plan = plan_of(World(), {"max_price": 1.5}, fleets=[{**GPU, "nodes": "0..2"}], catalog=catalog)
    assert changes_of(plan)[0] == "with `max_price: 80`"
    world = bring(World(), tasks=small(9, gpus=1))  # eight on one node, one on the other
    plan = plan_of(world, {"nodes": 3}, running=small(9, gpus=1))
    assert changes_of(plan)[0] == "with `nodes: 2..5` of fleet/gpu"
    fleets = [{**GPU, "nodes": {"min": 0, "target": 1, "max": 2}}]
    assert changes_of(plan_of(World(), {"nodes": 3}, fleets=fleets))[0] == (
        "with `nodes: {min: 0, target: 1, max: 3}` of fleet/gpu"
    )


def test_a_limit_is_that_of_all_entries_of_an_instance_type():
    """Each region has an entry of its own, and it is not known which one is meant: three of each
    are enough.
    """
    catalog = [{**H100, "regions": ["east"], "limit": 2}, {**H100, "regions": ["west"], "limit": 1}]
    whole, fleets = {"resources": {"gpu": 8}}, [{"name": "gpu", "nodes": "0..9", "blocks": 8}]
    tasks = [{"name": f"first-{i}", **whole} for i in range(5)]

    def plan(*limits):
        entries = [{**entry, "limit": limit} for entry, limit in zip(catalog, limits, strict=True)]
        return plan_of(World(), whole, running=tasks, fleets=fleets, catalog=entries)

    (remedy,) = plan(2, 1).unplaced.remedies
    assert (remedy.text, len(remedy.tasks)) == ("with `limit: 3` for h100x8 of sky", 3)
    assert not plan(3, 3).unplaced.refusals
    assert len(plan(2, 2).unplaced.refusals) == 2


def test_it_is_about_what_is_left_by_the_others():
    """What another task of the same plan gets is not offered a second time."""
    tasks = [{"name": "first", "nodes": 2, "priority": 9}]
    plan = plan_of(World(), {"nodes": 2}, running=tasks)
    assert [r.task for r in plan.unplaced.refusals] == ["more"]
    assert changes_of(plan) == ("with `nodes: 2..4` of fleet/gpu",)
    assert plan.unplaced.refusals[0].hint == (
        "it fits with `nodes: 2..4` of fleet/gpu, or wait until running tasks have ended"
    )


def test_the_flag_is_named_where_the_flag_is_in_the_way():
    """`--reuse`, and not the task's own `creation_policy`."""
    world = World()
    desired = declared([{**GPU, "nodes": "0..2"}], [{"name": "one", "resources": {"gpu": 1}}])
    plan = world.plan(desired, reuse=True)
    assert changes_of(plan) == ("without `--reuse`",)
    (rejection,) = plan.unplaced.refusals[0].ranks[0].rejections
    assert (rejection.code, rejection.detail) == ("reuse-only", "`--reuse` launches nothing")


def test_a_node_that_is_not_ready_is_no_change_of_the_yaml():
    """It is waited for; the pin may be dropped."""
    nodes = [node("gpu-0", state=NodeState.UNREACHABLE), node("gpu-1")]
    refusal = refused(run(ask(instances=["gpu-0"]), nodes))
    assert refusal.hint == (
        "wait until the pinned node is ready, or pin another one; it fits without `instances`"
    )


def test_the_work_is_bounded(monkeypatch):
    """Tasks that are alike are asked about once; after so many others nothing is claimed any more."""
    tries = []
    real = vars(changing)["best_try"]

    def counted(*args):
        tries.append(1)
        return real(*args)

    monkeypatch.setattr(changing, "best_try", counted)
    nodes = [node("gpu-0", held=[0, 1, 2, 3])]
    alike = run([ask(f"t{i}", resources={"cpu": "8.."}) for i in range(300)], nodes)
    assert len({r.hint for r in alike.refusals}) == 1
    assert len(tries) < 20
    monkeypatch.setattr(changing, "MOST_PLANNED", 10**9)
    monkeypatch.setattr(changing, "MOST_PLANS", 200)
    different = run([ask(f"t{i}", resources={"cpu": f"{9 + i}.."}) for i in range(60)], nodes)
    known = [r.changes is not None for r in different.refusals]
    assert known.count(True) == changing.MOST_REFUSALS
    unknown = {r.hint for r in different.refusals if r.changes is None}
    assert unknown == {"`fleetform explain task/NAME` looks for what makes it fit"}
    monkeypatch.setattr(changing, "MOST_TRIES", 2)
    (given_up,) = run(ask(nodes=2, resources={"cpu": "99.."}), nodes).refusals
    assert given_up.changes is None


def test_trying_changes_nothing():
    """What is placed is the same whether or not another task is refused and asked about."""
    fleets = [fleet(offers=[offer(), offer(2.0, region="s")], placement="cluster", nodes="0..3")]
    tasks = [ask("aa", nodes=2), ask("bb", resources={"cpu": "4.."})]
    late = ask("zz", nodes=3, regions=["s"], max_price=1)
    alone, both = run(tasks, [], fleets), run([*tasks, late], [], fleets)
    assert (alone.choices, alone.launches) == (both.choices, both.launches)
    assert len(both.refusals) == 1


def chance(rng):
    """A project with tasks that run, and a task that asks for much."""
    running = [
        {"name": f"small-{i}", "resources": {"gpu": rng.randint(1, 6)}} for i in range(rng.randint(0, 3))
    ]
    fleets = [
        {**GPU, "nodes": rng.choice([2, "1..3"]), "placement": rng.choice(["cluster", "any"])},
        {**WEST, "placement": "cluster", "spot_policy": rng.choice(["auto", "on-demand"])},
    ]
    catalog = [{**SPOT, "limit": rng.randint(2, 4)}, {**SMALL, "price": rng.choice([None, 40.0])}]
    catalog = [{k: v for k, v in c.items() if v is not None} for c in catalog]
    limits = {
        "nodes": rng.randint(1, 4),
        "exclusive": rng.choice([True, False]),
        "max_price": rng.choice([30, 60, 90]),
        "regions": rng.choice([["east"], ["west"]]),
        "spot_policy": rng.choice(["on-demand", "spot"]),
        "fleets": rng.choice([["gpu"], ["west"]]),
        "creation_policy": "reuse",
    }
    words = {k: v for k, v in limits.items() if rng.random() < 0.4}
    words["resources"] = {
        "gpu": rng.choice(["1..8", "8", "A100:2", "H100:6"]),
        "cpu": rng.choice(["2..", "12", 48]),
    }
    return running, words, {"fleets": fleets, "catalog": catalog}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_named_fits_in_any_project(seed):
    """Beside tasks that run already: with the change made, the very plan places it."""
    rng = random.Random(seed)
    running, words, project = chance(rng)
    world = World()
    first = world.plan(
        declared(project["fleets"], running, catalog=project["catalog"], regions=["east", "west"])
    )
    world.apply(first, rng)
    kept = [t for t in running if t["name"] not in {r.task for r in first.unplaced.refusals}]
    plan = plan_of(world, words, running=kept, **project)
    for refusal in plan.unplaced.refusals:
        for change in refusal.changes:
            edited, whole = make(change, words, project)
            assert plan_of(world, edited, running=kept, **whole).unplaced.refusals == (), change


def test_what_several_tasks_share_is_enough_for_all_of_them():
    """One more node would go to the first task: the hint names three for all three, and no more."""
    tasks = [ask(f"t{i}", resources={"gpu": 8}) for i in range(3)]
    tasks += [ask("held", resources={"gpu": 8}, priority=9)]
    rules = [fleet(offers=[gpus(8)], nodes="0..1")]
    out = run(tasks, [], rules)
    text = "with `nodes: 0..4` of fleet/gpu"
    assert [(r.text, r.tasks) for r in out.remedies] == [(text, ("t0", "t1", "t2"))]
    assert {r.changes[0] for r in out.refusals} == {f"{text} (fits 3 tasks)"}
    assert not run(tasks, [], [fleet(offers=[gpus(8)], nodes="0..4")]).refusals
    assert run(tasks, [], [fleet(offers=[gpus(8)], nodes="0..3")]).refusals


def test_no_change_takes_the_place_of_another_task():
    """With `gpu: 1..` the large task would fit where the small one is: nothing that is placed is given up."""
    small_, large = ask("small", resources={"gpu": 1}), ask("large", resources={"gpu": 4})
    out = run([small_, large], [], [fleet(offers=[gpus(1)], nodes="0..1")])
    (refusal,) = out.refusals
    assert refusal.task == "large"
    assert "with `gpu: 1..` in `resources`" not in refusal.changes


@pytest.mark.parametrize("about", [None, "t1"])
def test_one_task_is_looked_into_more_closely(monkeypatch, about):
    """As many plans as are made for all tasks do not do for one: `explain` makes more of them."""
    monkeypatch.setattr(changing, "MOST_PLANS", 1)
    tasks = [ask(f"t{i}", resources={"cpu": f"{9 + i}.."}) for i in range(3)]
    rules = {"gpu": fleet()}
    out = place(tasks, [node("gpu-0")], rules, {}, about=about)
    found = {r.task: r.changes for r in out.refusals}
    assert found["t1"] == (("with `cpu: 8..` in `resources`",) if about else None)
    assert found["t2"] is None


@pytest.mark.parametrize("about", [None, "t1"])
def test_one_task_is_looked_into_however_large_the_plan_is(monkeypatch, about):
    """All tasks of a very large one are not: there is no time for one more plan."""
    monkeypatch.setattr(changing, "PASSES", 10**6)
    tasks = [ask(f"t{i}", resources={"cpu": f"{9 + i}.."}) for i in range(3)]
    out = place(tasks, [node("gpu-0")], {"gpu": fleet()}, {}, about=about)
    found = {r.task: r.changes for r in out.refusals}
    assert found["t1"] == (("with `cpu: 8..` in `resources`",) if about else None)


@pytest.mark.parametrize("work", [0.0, SEAT_WORK])
def test_to_seat_tasks_is_work_of_a_plan_that_is_made_for_hints(monkeypatch, work):
    """Without more work than the plan took, one plan is made: the second task is not looked into."""
    for name in ("MOST_WORK", "LEAST_WORK", "PASSES"):
        monkeypatch.setattr(changing, name, 0)
    monkeypatch.setattr(search, "SEAT_WORK", work)
    tasks = [ask(f"t{i}", resources={"cpu": f"{9 + i}.."}) for i in range(2)]
    found = {r.task: r.changes for r in run(tasks, [node("gpu-0")]).refusals}
    assert found["t0"]
    assert bool(found["t1"]) == (not work)


def test_no_more_is_looked_for_where_programs_took_long(monkeypatch):
    monkeypatch.setattr(changing, "MOST_WORK", -1)
    monkeypatch.setattr(changing, "LEAST_WORK", -1)
    assert refused(run(ask(resources={"cpu": "9.."}), [node("gpu-0")])).changes is None


def test_a_limit_is_not_named_if_less_of_it_was_not_tried(monkeypatch):
    """With `nodes: 0..4` all three fit, and it is unknown whether they do with 0..3."""
    tasks = [ask(f"t{i}", resources={"gpu": 8}) for i in range(4)]
    rules = [fleet(offers=[gpus(8)], nodes="0..1")]
    (remedy,) = run(tasks, [], rules).remedies
    assert remedy.text == "with `nodes: 0..4` of fleet/gpu"
    real = changing.ConfirmedChanges._seated

    def first(self, *args):
        monkeypatch.setattr(changing.ConfirmedChanges, "_seated", lambda *_: None)
        return real(self, *args)

    monkeypatch.setattr(changing.ConfirmedChanges, "_seated", first)
    out = run(tasks, [], rules)
    assert not out.remedies
    assert {r.changes for r in out.refusals} == {None}


def test_a_refusal_that_was_not_proved_says_so(monkeypatch):
    """No program is solved that is too large."""
    monkeypatch.setattr(solve, "CUT_COLUMNS", 0)
    monkeypatch.setattr(solve, "MOST_COLUMNS", 0)
    shared = {"/data": ["data", "more"]}
    volumes = {n: VolumeAt(backend="b", region="r", zone=None) for n in ("data", "more")}
    tasks = [ask(f"t{i}", mounts=shared) for i in range(3)]
    refusal = refused(run(tasks, [node(f"gpu-{i}") for i in range(3)], None, volumes))
    assert not refusal.proved
    assert refusal.summary.endswith("; not proved")
    monkeypatch.undo()
    proved = refused(run([ask(f"t{i}", resources={"cpu": 8}) for i in range(2)], [node("gpu-0")]))
    assert proved.proved
    assert "proved" not in proved.summary


def test_what_is_shared_is_found_for_one_task_as_well():
    """Though the other tasks would take the first nodes."""
    tasks = [ask(f"t{i}", resources={"gpu": f"{8 - i}.."}) for i in range(3)]
    out = place(tasks, [], {"gpu": fleet(offers=[gpus(8)], nodes="0..0")}, {}, about="t2")
    found = {r.task: r.changes for r in out.refusals}
    assert found["t2"] is not None
    assert found["t2"][0] == "with `nodes: 0..3` of fleet/gpu (fits 3 tasks)"


def test_a_refusal_names_the_fleets_that_turned_its_task_down_and_why():
    """As data: what waits for a fleet's schedule is told by that, and not by words."""
    rules = [
        fleet("day", nodes=0, offers=[offer()]),
        fleet("small", offers=[offer(cpu=1)]),
        fleet("other", offers=[offer()]),
    ]
    refusal = refused(run(ask(resources={"cpu": "4.."}, fleets=["day", "small"]), fleets=rules))
    assert refusal.causes == (("day", "fleet-max"), ("other", "fleet"), ("small", "too-small"))
    later = replace(refusal, code="never-fits", summary="can never fit: why", changes=()).until("wait")
    assert (later.code, later.summary, later.hint) == ("no-capacity", "does not fit now: why", "wait")
    assert later.changes is None


def test_a_remedy_names_the_fleet_that_it_changes():
    (remedy,) = run(ask(resources={"cpu": "4.."}), fleets=[fleet("day", nodes=0, offers=[offer()])]).remedies
    assert (remedy.fleet, remedy.text) == ("day", "with `nodes: 0..1` of fleet/day")
