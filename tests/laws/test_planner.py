"""Laws of the planner, on generated projects and worlds (docs/architecture.md).

FLEETFORM_EXAMPLES=5000 pytest tests/laws/test_planner.py looks at that many examples of each law.
"""

import functools
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from declarative.model.state import KINDS, RETRIES, Address, natural
from declarative.model.status import BOOTING, NodeState, RankState
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.limits import with_limit_errors
from declarative.planner.make import make_plan
from declarative.planner.part import part_of_plan, part_with_room, possible_targets
from declarative.planner.plan import Op, Reason, ReservationStatus, group_of
from declarative.render.output_json import to_json
from declarative.render.plan_document import plan_json
from tests.support.examples import examples
from tests.support.model import World, offers_of, project, set_limits
from tests.support.strategies import BACKENDS, happen, pairs, words

LATER = {"prevent_destroy", "protected", "auto_cleanup_duration", "idle_duration"}
SEEDS = st.integers(0, 1 << 16)
SICK = sorted({*NodeState} - BOOTING - {NodeState.READY})
LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(80),
)


def declared(found):
    return project(backends=BACKENDS, **found)


def step(world, desired, rng=None, **options):
    """Settle, plan, apply in any order; the plan, or None if it is an error and nothing was done."""
    world.settle()
    set_limits(world, desired)
    plan = world.plan(desired, **options)
    if plan.result == "error":
        event("error")
        return None
    world.apply(plan, rng)
    return plan


def carried_on(world, desired, rng, plan):
    """The plan, or the one after it: what ends a protection, or begins to count, counts from its apply on."""
    if plan is None or not any(LATER.intersection(a.because) for a in plan.actions):
        return plan
    return step(world, desired, rng)


def completed(world, desired, rng):
    """As `step`, and once more where a task pins a node that was launched for another: now it is there."""
    plan = carried_on(world, desired, rng, step(world, desired, rng))
    made = {a.address.name for a in plan.of(Op.CREATE, "node")} if plan else set()
    pins = [desired.tasks[r.task].spec.instances for r in plan.unplaced.refusals] if plan else []
    return step(world, desired, rng) if any(map(made.intersection, pins)) else plan


def ids(plan):
    return [a.id for a in plan.actions]


def lived(found, rng):
    """A world that was brought to a project and in which time has passed."""
    world = World()
    step(world, declared(found), rng)
    happen(world, rng)
    return world


def wanted_of(world, kind):
    """What is recorded of them, but for which retry a rank is: that counts anew if its old one is gone."""
    return {r.address: {k: v for k, v in r.inputs.items() if k != RETRIES} for r in world.of(kind)}


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS)
def test_after_apply_the_plan_is_empty(found, seed):
    """A world that was brought to any project, by actions in any order that their needs allow, with ranks
    that ended and things that vanished before, needs nothing more.
    """
    rng = random.Random(seed)
    world = World()
    for side in (*found, found[1]):
        desired = declared(side)
        if completed(world, desired, rng):
            event(f"unplaced: {bool(world.plan(desired).unplaced.refusals)}")
            assert ids(world.plan(desired)) == []
        happen(world, rng)


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS)
def test_a_plan_that_was_cut_short_is_completed_by_the_next(found, seed):
    """Whatever part of a plan was done (any set that is closed under needs, as after Ctrl-C or failures):
    the next plan brings the world to where the whole plan would have brought it, also while the nodes that
    were made are booting.
    """
    rng = random.Random(seed)
    world = lived(found[0], rng)
    desired = declared(found[1])
    set_limits(world, desired)
    plan = world.plan(desired)
    if plan.result == "error":
        return
    whole = world.copy()
    whole.apply(plan, rng)
    done = world.apply(plan, rng, stop_after=rng.randint(0, len(plan.actions)))
    used = {str(r.inputs["node"]) for r in world.of("reservation")}
    fresh = {i.removeprefix("create:node/") for i in done if i.startswith("create:node/")} - used
    world.sick |= {name: rng.choice(sorted(BOOTING)) for name in sorted(fresh) if rng.random() < 0.7}
    carried_on(whole, desired, rng, plan)
    second = carried_on(world, desired, rng, step(world, desired, rng))
    assert second is not None
    second = carried_on(world, desired, rng, plan) or second  # the first part may have ended a protection
    assert ids(world.plan(desired)) == []
    if not plan.unplaced.refusals and not second.unplaced.refusals:
        assert len(world.of("node")) <= len(whole.of("node"))
        for kind in ("volume", "rank"):
            assert wanted_of(whole, kind) == wanted_of(world, kind)
        # Which of several equal nodes a rank got may differ, and so may an idle node that is left.
        assert {r.address for r in whole.of("reservation")} == {r.address for r in world.of("reservation")}


@LAW
@given(words(), SEEDS)
def test_destroy_then_plan_is_a_first_plan_but_for_protected_volumes(found, seed):
    """`destroy` leaves protected volumes alone and nothing else; what is planned then is what was planned
    first, but for those.
    """
    rng = random.Random(seed)
    desired = declared(found)
    first = World().plan(desired)
    if first.result == "error":
        return
    world = lived(found, rng)
    nothing = project(backends=BACKENDS)
    destroyed = step(world, nothing, rng, destroy=True)
    assert destroyed is not None
    assert {a.op for a in destroyed.actions} <= {Op.DELETE}
    kept = {r.address for r in world.records.values()}
    assert all(a.kind == "volume" and world.records[a].inputs["prevent_destroy"] for a in kept)
    assert ids(world.plan(nothing, destroy=True)) == []
    world.limits = {}
    world.gone.clear()  # a protected volume comes back: without it, what mounts it would wait
    again = world.plan(desired)
    skipped = {f"create:{a}" for a in kept}
    rest = [
        replace(a, needs=tuple(n for n in a.needs if n not in skipped))
        for a in first.actions
        if a.id not in skipped
    ]
    assert [(a.id, a.after, a.needs, a.holds) for a in rest] == [
        (a.id, a.after, a.needs, a.holds) for a in again.actions
    ]


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS)
def test_the_order_of_input_does_not_matter(found, seed):
    """The same documents in another order, and the same state in another order: the same plan to the byte."""
    rng = random.Random(seed)
    world = lived(found[0], rng)

    def shuffled(mapping):
        items = list(mapping.items())
        rng.shuffle(items)
        return dict(items)

    texts = set()
    for _ in range(3):
        desired = declared({kind: rng.sample(list(docs), len(docs)) for kind, docs in found[1].items()})
        desired = replace(
            desired,
            backends=shuffled(desired.backends),
            fleets=shuffled(desired.fleets),
            volumes=shuffled(desired.volumes),
            tasks=shuffled(desired.tasks),
        )
        state, seen = world.state(), world.inventory(desired)
        state = replace(state, records=shuffled(state.records), ranks=shuffled(state.ranks))
        seen = replace(seen, readiness=shuffled(seen.readiness), offers=shuffled(seen.offers))
        texts.add(to_json(plan_json(make_plan(desired, state, seen, world.now))))
    assert len(texts) == 1


def place_of(action):
    """Where an action stands in a plan: deletions first, in reverse; by kind; by name."""
    kind = KINDS.index(action.address.kind)
    deletion = action.op is Op.DELETE
    return (not deletion, -kind if deletion else kind, natural(action.address.name))


@LAW
@given(pairs(), SEEDS)
def test_actions_are_in_an_order_in_which_they_could_run(found, seed):
    """One by one in the order of the plan, each after its needs; and among those that could run next the
    first by deletion, kind and name.
    """
    world = lived(found[0], random.Random(seed))
    desired = declared(found[1])
    plan = world.plan(desired)
    assert len(set(ids(plan))) == len(plan.actions)
    done: set[str] = set()
    for action in plan.actions:
        assert set(action.needs) <= done
        could = [a for a in plan.actions if a.id not in done and set(a.needs) <= done]
        assert action.id == min(could, key=place_of).id
        done.add(action.id)
    counts = plan.summary()
    assert counts["create"] + counts["update"] + counts["delete"] + 2 * counts["replace"] == len(done)


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS)
def test_a_gang_has_all_its_places_or_none(found, seed):
    """After a plan each declared task has as many places as ranks, or it has ended, or it has none.

    A task that is refused gets nothing new.
    """
    rng = random.Random(seed)
    world = lived(found[0], rng)
    desired = declared(found[1])
    plan = step(world, desired, rng)
    if plan is None:
        return
    refused = {r.task for r in plan.unplaced.refusals}
    for name, want in desired.tasks.items():
        places = [r for r in world.of("reservation") if r.inputs["task"] == name]
        ranks = [r for r in world.of("rank") if r.inputs["task"] == name]
        open_ranks = [r for r in ranks if not world.ranks[r.address.name].state.ended]
        assert len(places) == len(open_ranks)
        wanted = int(ranks[0].inputs.get("nodes", 1)) if ranks else 0
        assert len(ranks) == wanted or name in refused
        if name in refused:
            assert not [a for a in plan.actions if a.op is Op.CREATE and a.task == name]
        else:
            assert wanted == want.spec.nodes
    for refusal in plan.unplaced.refusals:
        assert [v.rank for v in refusal.ranks] == list(range(desired.tasks[refusal.task].spec.nodes))
        assert [v for v in refusal.ranks if v.verdict.value == "cause"]


@pytest.mark.slow
@LAW
@given(words(), words(), SEEDS)
def test_a_change_of_tasks_touches_no_other_task(found, other, seed):
    """Tasks that are added, changed or removed: nothing of any other task is changed or deleted."""
    rng = random.Random(seed)
    world = lived(found, rng)
    if step(world, declared(found), rng) is None:
        return
    tasks = {t["name"]: t for t in found["tasks"]}
    changed = set()
    for words_ in rng.sample(other["tasks"], min(1, len(other["tasks"]))):
        changed.add(words_["name"])
        tasks[words_["name"]] = {k: v for k, v in words_.items() if k not in ("mounts", "fleets")}
    for name in rng.sample(sorted(tasks), min(1, len(tasks))):
        changed.add(name)
        del tasks[name]
    desired = declared({**found, "tasks": list(tasks.values())})
    before = {r.address: r for r in world.records.values()}
    plan = world.plan(desired)
    for action in plan.actions:
        record = before.get(action.address)
        if record is not None and "task" in record.inputs:
            assert record.inputs["task"] in changed, action.id


@LAW
@given(words(), SEEDS)
def test_what_is_in_place_touches_no_rank(found, seed):
    """Tags, sizes of fleets, idle times and protection change while ranks run on."""
    rng = random.Random(seed)
    world = World()
    if step(world, declared(found), rng) is None:
        return
    fleets = [
        {**f, "tags": {"new": "1"}, "idle_duration": "1h", "nodes": rng.choice([0, "0..9"])}
        for f in found["fleets"]
    ]
    volumes = [{**v, "size": "9GB", "tags": {"new": "1"}} for v in found["volumes"]]
    tasks = [{**t, "priority": 7, "tags": {"new": "1"}, "max_duration": "9h"} for t in found["tasks"]]
    plan = world.plan(declared({"fleets": fleets, "volumes": volumes, "tasks": tasks}))
    held = {
        r.address for r in world.records.values() if r.address.kind in ("rank", "reservation", "attachment")
    }
    assert plan.result != "error"
    assert not [a.id for a in plan.actions if a.address in held and a.op is not Op.UPDATE]


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS)
def test_protected_volumes_are_never_lost(found, seed):
    """A plan that deletes a volume whose `prevent_destroy` is true, as declared or as recorded, is an error
    that names it; and no error is without such a cause.
    """
    world = lived(found[0], random.Random(seed))
    desired = declared(found[1])
    plan = world.plan(desired)
    lost = set()
    for action in plan.actions:
        if action.op is Op.DELETE and action.address.kind == "volume":
            want = desired.volumes.get(action.address.name)
            recorded = world.records[action.address].volume.prevent_destroy
            if recorded or (want and want.inputs.prevent_destroy):
                lost.add(str(action.address))
    named = {d.address for d in plan.diagnostics if d.code == "protected"}
    assert lost <= named
    event(f"put off: {any(d.code == 'protection-ends' for d in plan.diagnostics)}")
    assert bool(named) <= (plan.result == "error")


PATTERNS = st.lists(
    st.sampled_from(["fleet/*", "fleet/aa", "node/bb-0", "node/*-1", "volume/data", "volume/*-0"]),
    unique=True,
)


@LAW
@given(pairs(), PATTERNS, PATTERNS, SEEDS)
def test_no_plan_ends_a_protection_and_uses_it(found, before, after, seed):
    """What is recorded as protected by `limits.protected` is not deleted by a plan that can be applied."""
    world = lived(found[0], random.Random(seed))
    guarded = declared({**found[0], "limits": {"protected": before}})
    for address, record in world.records.items():
        if address.kind in ("node", "volume") and guarded.is_guarded(str(address), record.typed):
            world.records[address] = replace(record, inputs={**record.inputs, "protected": True})
    desired = declared({**found[1], "limits": {"protected": after}})
    plan = with_limit_errors(world.plan(desired), desired)
    event(f"put off: {any(d.code == 'protection-ends' for d in plan.diagnostics)}")
    if plan.result != "error":
        assert not [a.id for a in plan.actions if a.op is Op.DELETE and getattr(a.before, "protected", False)]
        world.apply(plan)


@LAW
@given(pairs(), SEEDS)
def test_a_volume_that_is_gone_is_not_made_anew_by_itself(found, seed):
    """Whatever is declared then: no plan makes it, or gives it to a rank, until somebody asks for another. A
    rank that runs on it keeps it.
    """
    rng = random.Random(seed)
    world = lived(found[0], rng)
    for record in world.of("volume"):
        if rng.random() < 0.5:
            world.gone.add(record.address)
    desired = declared(found[1])
    gone = {a for a in world.gone if a.name in desired.volumes}
    event(f"gone: {bool(gone)}")
    plan = world.plan(desired)
    assert not gone.intersection(a.address for a in plan.actions)
    assert not {a.name for a in gone}.intersection(
        volume
        for place in plan.reservations
        if place.status is ReservationStatus.NEW
        for volume in place.volumes.values()
    )
    known = observed_state(world.state(), world.inventory(desired))
    assert world.running() == [
        r.address.name for r in known.of("rank") if known.ranks[r.address.name].state is RankState.RUNNING
    ]
    assert {str(a) for a in gone} == {d.address for d in plan.diagnostics if d.code == "volume-gone"}
    anew = world.plan(desired, requested=frozenset(map(str, gone)))
    # Others are made for the next task. A task without a place runs on as it is, with what it has.
    refused = {r.task for r in anew.unplaced.refusals}
    used = {a.attachment.volume for a in known.of("attachment") if a.task in refused}
    kept = {a for a in gone if desired.volumes[a.name].cleanup is None and a.name not in used}
    assert kept <= {a.address for a in anew.of(Op.CREATE, "volume")}


@LAW
@given(pairs(), SEEDS)
def test_what_is_cleaned_up_is_there_for_tasks_alone(found, seed):
    """A volume with an `auto_cleanup_duration` is made for a rank that gets it in the same plan. After a plan
    it is gone if its time had come, and no rank has it, and no task that finds no place waits for it. One
    that its backend does not know any more waits for a person.
    """
    rng = random.Random(seed)
    kept = [{**v, "auto_cleanup_duration": None} if rng.random() < 0.7 else v for v in found[0]["volumes"]]
    world = lived({**found[0], "volumes": kept}, rng)
    world.now += rng.choice((0, 3600))
    desired = declared(found[1])
    plan = step(world, desired, rng)
    if plan is None:
        return
    attached = {r.inputs["volume"] for r in world.of("attachment")}
    made = {a.address.name for a in plan.actions if a.id == f"create:{a.address}"}
    unused = {a.address.name: a.op for a in plan.actions if a.reason is Reason.UNUSED}
    updated = {a.address.name: a.because for a in plan.of(Op.UPDATE, "volume")}
    assert set(unused.values()) <= {Op.DELETE}
    waiting = [desired.tasks[r.task].mounts for r in plan.unplaced.refusals]
    waited = {name for ranks in waiting for rank in ranks for mount in rank for name in mount.names}
    lost = {d.address for d in plan.diagnostics if d.code == "volume-gone"}
    for name, want in desired.volumes.items():
        if f"volume/{name}" in lost:
            assert name not in made.union(unused, updated)
        elif want.cleanup is None:
            assert world.state().get("volume", name)
            assert name not in unused
        elif name not in attached:
            event("cleaned up" if name in unused else "left alone")
            assert name not in made
            over = world.now - world.detached_since.get(name, world.now) >= want.cleanup
            begun = "auto_cleanup_duration" in updated.get(name, ())
            assert not (begun and name in unused)
            assert name in waited or world.state().get("volume", name) is None or not over or begun
        assert name not in unused.keys() & attached


@LAW
@given(pairs(), SEEDS)
def test_sick_nodes_get_no_new_work(found, seed):
    """A node that is neither ready nor booting gets no rank that it does not have, in any plan."""
    rng = random.Random(seed)
    world = lived(found[0], rng)
    for record in world.of("node"):
        world.sick[record.address.name] = rng.choice(SICK)
    held = {r.address: r.inputs for r in world.of("reservation")}
    plan = world.plan(declared(found[1]))
    replaced = {a.address.name for a in plan.actions if a.op is Op.CREATE and a.address.kind == "node"}
    for place in plan.reservations:
        if place.status is not ReservationStatus.RELEASED and place.node not in replaced:
            before = held[Address("reservation", f"{place.task}-{place.rank}")]
            assert (before["node"], tuple(before["blocks"])) == (place.node, place.blocks)
            assert f"create:rank/{place.task}-{place.rank}" not in ids(plan)


@LAW
@given(pairs(), SEEDS)
def test_observing_is_not_changing(found, seed):
    """A rank's end counts from the moment it is observed: the plan is the same before and after it is
    recorded.
    """
    rng = random.Random(seed)
    world = World()
    desired = declared(found[0])
    if step(world, desired, rng) is None:
        return
    desired = declared(found[1])
    ended = {
        n: replace(world.ranks[n], state=RankState.SUCCEEDED) for n in world.running() if rng.random() < 0.6
    }
    seen = world.inventory(desired)
    observed = make_plan(desired, world.state(), replace(seen, ranks=ended), world.now)
    world.ranks |= ended
    world.settle()
    if all(world.ranks[n].state is RankState.SUCCEEDED for n in ended):
        settled = make_plan(desired, world.state(), seen, world.now)
        stopped = [n for n in world.ranks if world.ranks[n].state is RankState.STOPPED]
        if not stopped:
            assert observed.actions == settled.actions


@LAW
@given(pairs(), SEEDS)
def test_the_preview_is_what_comes(found, seed):
    """The reservations and the block map that a plan shows are those that are there after it."""
    rng = random.Random(seed)
    world = lived(found[0], rng)
    desired = declared(found[1])
    plan = step(world, desired, rng)
    if plan is None:
        return
    shown = {
        f"{r.task}-{r.rank}": (r.node, list(r.blocks), r.total_blocks)
        for r in plan.reservations
        if r.status is not ReservationStatus.RELEASED
    }
    there = {
        r.address.name: (r.inputs["node"], list(r.inputs["blocks"]), r.inputs["total_blocks"])
        for r in world.of("reservation")
    }
    assert shown == there
    nodes = {n.name: (n.total, dict(n.holders)) for n in plan.preview.nodes if n.status != "deleted"}
    held = {r.address.name: (r.inputs["blocks"], dict[int, str]()) for r in world.of("node")}
    for record in world.of("reservation"):
        for block in record.inputs["blocks"]:
            held[record.inputs["node"]][1][block] = f"rank/{record.address.name}"
    assert nodes == held
    prices = [r.inputs.get("price") for r in world.of("node")]
    if None in prices:
        assert plan.preview.cost.after is None
    else:
        assert plan.preview.cost.after is not None
        assert abs(plan.preview.cost.after - sum(prices)) < 1e-6


def test_offers_are_those_of_the_catalogs():
    """The generated worlds have offers of both backends, else the laws would hold of nothing."""
    desired = project(backends=BACKENDS)
    assert {"lab", "local", "sky"} == set(offers_of(desired))
    assert Inventory().offers == {}


@LAW
@given(pairs(), SEEDS)
def test_a_cluster_lies_in_one_place(found, seed):
    """All nodes of a cluster fleet, and all ranks of a cluster task, are in one backend and one region."""
    rng = random.Random(seed)
    world = lived(found[0], rng)
    desired = declared(found[1])
    plan = step(world, desired, rng)
    if plan is None or plan.unplaced.refusals:
        return  # a task that cannot be moved keeps a node that has to go
    places = {r.address.name: (r.inputs["backend"], r.inputs["region"]) for r in world.of("node")}
    for name, fleet in desired.fleets.items():
        if fleet.placement.value == "cluster":
            assert len({places[r.address.name] for r in world.of("node") if r.inputs["fleet"] == name}) <= 1
    for name, want in desired.tasks.items():
        if want.spec.cluster:
            held = [str(r.inputs["node"]) for r in world.of("reservation") if r.inputs["task"] == name]
            fleets = {world.records[Address("node", n)].inputs["fleet"] for n in held}
            assert len(fleets) <= 1
            assert all(desired.fleets[f].placement.value == "cluster" for f in fleets)
            assert len({places[n] for n in held}) <= 1


@LAW
@given(pairs(), SEEDS)
def test_a_part_of_a_plan_keeps_all_rules(found, seed):
    """Nothing that is chosen needs what is left out, no task is torn apart, the preview is what comes, and
    the next whole plan does the rest. No task loses its place where the plan is made again for the part.
    """
    rng = random.Random(seed)
    world = lived(found[0], rng)
    desired = declared(found[1])
    world.settle()
    set_limits(world, desired)
    plan = world.plan(desired)
    names = sorted(possible_targets(plan))
    if plan.result == "error" or not names:
        return
    targets = tuple(rng.sample(names, rng.randint(0, min(2, len(names)))))
    excludes = tuple(rng.sample(names, rng.randint(0 if targets else 1, 1)))
    before, state = world.copy(), observed_state(world.state(), world.inventory(desired))
    sizes = {name: fleet.nodes.target for name, fleet in desired.fleets.items() if fleet.nodes}
    cut = functools.partial(part_of_plan, state=state, targets=targets, excludes=excludes, sizes=sizes)
    plans = [plan]

    def again(**options):
        plans.append(world.plan(desired, **options))
        return plans[-1]

    part = part_with_room(plan, again, cut, state)
    assert {r.task for r in part.unplaced.refusals} <= {r.task for r in plan.unplaced.refusals}
    event(f"planned again: {len(plans) > 1}")
    plan = plans[-1]
    done = set(ids(part))
    event(f"{len(done) > 0}, left out: {len(plan.actions) > len(done)}")
    assert all(done.issuperset(action.needs) for action in part.actions)
    groups = {group_of(action) for action in part.actions}
    assert [a for a in plan.actions if group_of(a) in groups] == list(part.actions)
    assert part.scope.part is not None
    assert not groups.intersection(part.scope.part.left_out)
    world.apply(part, rng)
    world.check()
    touched = {a.address for a in part.actions}
    for address, record in before.records.items():
        if address not in touched:
            assert world.records[address].inputs == record.inputs
    held = {r.address.name: (r.inputs["blocks"], dict[int, str]()) for r in world.of("node")}
    for record in world.of("reservation"):
        for block in record.inputs["blocks"]:
            held[record.inputs["node"]][1][block] = f"rank/{record.address.name}"
    assert {n.name: (n.total, dict(n.holders)) for n in part.preview.nodes if n.status != "deleted"} == held
    used = {need for action in part.actions for need in action.needs}
    fleets = {node.name: node.fleet for node in part.preview.nodes}
    for action in part.of(Op.CREATE, "node"):
        fleet_name, anew = fleets[action.address.name], f"delete:{action.address}" in done
        mine = [n for n in part.preview.nodes if n.stays and n.fleet == fleet_name]
        named = str(action.address) in targets
        assert action.id in used or anew or named or len(mine) <= sizes.get(fleet_name, len(mine))
    for name, fleet in desired.fleets.items():
        there, was = (sum(r.inputs["fleet"] == name for r in w.of("node")) for w in (world, before))
        assert fleet.nodes is None or fleet.nodes.max is None or there <= max(was, fleet.nodes.max)
    if completed(world, desired, rng):
        assert ids(world.plan(desired)) == []
