"""No apply both ends a protection and uses that: what is recorded as protected, by `prevent_destroy` or by
`limits.protected`, is not deleted by the plan that records it as free. And what deletes content is `delete`
in the loop, whatever led to it.

`laws/test_planner.py` has the law for volumes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.model.inputs import VolumeInputs
from declarative.model.spec.project import Cause, Moves
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState
from declarative.placement.problem import PlacementOutcome
from declarative.planner.inventory import Inventory
from declarative.planner.limits import with_limit_errors
from declarative.planner.plan import Op
from declarative.planner.unattended import causes_of
from declarative.planner.volumes import decide_volumes, keeps_content, with_cleanup
from tests.support.cli import Project, fleet, task
from tests.support.model import World
from tests.support.model import project as declared
from tests.support.rounds import Clock, Here

PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}, "idle_duration": "1h"}
DATA = {"name": "data", "size": "2GB"}
FREE = {**DATA, "prevent_destroy": False}
MANY_DAYS = 10**6


def ids(plan):
    return [a.id for a in plan.actions]


def codes(plan):
    return [d.code for d in plan.diagnostics]


def with_volume(words, **more):
    return declared(fleets=[PAIR], volumes=[words] if words else [], **more)


def brought(desired):
    world = World()
    world.apply(world.plan(desired))
    world.now += MANY_DAYS
    return world


# ----------------------------------------------------------------------------------------------- volumes

DISK = Address("volume", "data")
TAKEN = {"name": "data", "volume_id": "v"}
ADOPTED = "volume/data is one that was adopted: it cannot be made anew"


@pytest.mark.parametrize("words", [{"region": "far"}, {"size": "3GB"}, None])
def test_a_volume_that_ranks_hold_only_changes_in_place(words):
    """It is neither made anew nor deleted; what can change goes on."""
    world = brought(with_volume(FREE))
    desired = with_volume(words and {**FREE, **words})
    pinned, _ = decide_volumes(desired, world.state(), Inventory(), destroy=False, pinned=frozenset({DISK}))
    found = pinned["data"]
    assert (found.deletes, found.makes, found.updates) == (False, False, words == {"size": "3GB"})


@pytest.mark.parametrize("held", [True, False])
def test_a_volume_that_a_rank_keeps_is_made_anew_at_once(held):
    """Another one waits for its next rank."""
    cache = {**FREE, "auto_cleanup_duration": "1h"}
    desired = with_volume(cache, tasks=[MOUNTS])
    world = brought(desired)
    given: Any = {"destroy": False, "requested": {"volume/data"}}
    decisions, _ = decide_volumes(desired, world.state(), Inventory(), **given)
    freed = () if held else ("fill-0",)
    more = {"freed": freed, "now": world.now, "waiting_tasks": ()}
    found = with_cleanup(desired, world.state(), decisions, PlacementOutcome(), **more)["data"]
    assert (found.replaced, found.unused) == (True, not held)


REPLACES = [
    ({"region": "far"}, frozenset(), "`region` changed"),
    ({"size": "1GB"}, frozenset(), "`size` changed"),
    ({"availability_zone": "z"}, frozenset(), "`zone` changed"),
    ({"volume_type": "fast"}, frozenset(), "`volume_type` changed"),
    ({}, frozenset({"volume/data"}), "`--replace`"),
]


def test_a_zone_that_was_chosen_with_the_first_rank_stays():
    """It is no change that the declaration does not name it; in another region it is another volume's."""
    world = brought(with_volume({**FREE, "availability_zone": "z"}))
    assert ids(world.plan(with_volume(FREE))) == []
    moved = world.plan(with_volume({**FREE, "region": "far"}))
    (made,) = moved.of(Op.CREATE, "volume")
    assert made.typed.zone is None


@pytest.mark.parametrize(
    ("before", "after", "smaller"),
    [
        ("2GB", "1GB", True),
        ("1GB", "1GB", False),
        ("1GB", "2GB", False),
        (None, "1GB", False),
        ("1GB", None, False),
    ],
)
def test_an_adopted_volume_need_not_say_its_size(before, after, smaller):
    """Without both sizes nothing shrinks."""
    sizes = [
        VolumeInputs(backend="local", region="local", volume_id="v", size=size) for size in (before, after)
    ]
    assert keeps_content(*sizes) is not smaller


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            DATA,
            DATA,
            "volume/data would be made anew (`--replace`), empty, but its `prevent_destroy` is true",
        ),
        (
            FREE,
            {"name": "data", "volume_id": "v"},
            "volume/data is one that was adopted: it cannot be made anew",
        ),
        (
            {"name": "data", "volume_id": "v"},
            FREE,
            "volume/data is one that was adopted: it cannot be made anew",
        ),
        (FREE, FREE, None),
    ],
)
def test_no_request_makes_a_protected_or_adopted_volume_anew(before, after, said):
    found = refusals(brought(with_volume(before)).plan(with_volume(after), requested=frozenset({str(DISK)})))
    assert [summary for _, summary, _ in found] == ([said] if said else [])


@pytest.mark.parametrize(("words", "requested", "why"), REPLACES)
def test_a_plan_that_ends_a_protection_replaces_nothing(words, requested, why):
    """It says to apply it and to plan again; that plan then replaces the volume."""
    world, free = brought(with_volume(DATA)), with_volume({**FREE, **words})
    plan = world.plan(free, requested=requested)
    assert [(a.id, a.because) for a in plan.actions] == [("update:volume/data", ("prevent_destroy",))]
    assert plan.result == "changes"
    (said,) = plan.diagnostics
    assert said.code == "protection-ends"
    assert said.summary == f"volume/data is not replaced by this plan ({why}): it is recorded as protected"
    assert "apply it, then plan again" in str(said.hint)
    world.apply(plan)
    plan = world.plan(free, requested=requested)
    assert ids(plan) == ["delete:volume/data", "create:volume/data"]
    assert codes(plan) == []


def test_what_is_free_from_the_start_is_replaced_at_once():
    assert ids(brought(with_volume(FREE)).plan(with_volume({**FREE, "region": "far"}))) == [
        "delete:volume/data",
        "create:volume/data",
    ]


@pytest.mark.parametrize("duration", ["1h", "0s"])
def test_a_new_cleanup_counts_from_the_apply_that_recorded_it(duration):
    """The volume was attached to nothing for days: its first plan only ends its protection."""
    world, cleaned = brought(with_volume(DATA)), with_volume({**DATA, "auto_cleanup_duration": duration})
    plan = world.plan(cleaned)
    assert [(a.id, a.because) for a in plan.actions] == [
        ("update:volume/data", ("auto_cleanup_duration", "prevent_destroy"))
    ]
    world.apply(plan)
    if duration == "1h":
        world.now += 3599
        assert ids(world.plan(cleaned)) == []
        world.now += 1
    assert ids(world.plan(cleaned)) == ["delete:volume/data"]


def test_a_shorter_cleanup_counts_from_its_apply_too():
    world = brought(with_volume({**DATA, "auto_cleanup_duration": "52w"}, tasks=[MOUNTS]))
    world.end("fill-0", RankState.SUCCEEDED)
    world.settle()
    world.now += MANY_DAYS
    shorter = with_volume({**DATA, "auto_cleanup_duration": "1h"}, tasks=[MOUNTS])
    plan = world.plan(shorter)
    assert ids(plan) == ["update:volume/data"]
    world.apply(plan)
    world.now += 3599
    assert ids(world.plan(shorter)) == []
    world.now += 1
    assert ids(world.plan(shorter)) == ["delete:volume/data"]


def test_a_protection_that_ends_is_not_used_for_a_clean_up():
    """The plan that ends it only records that, though no declaration has both."""
    free = with_volume({**FREE, "auto_cleanup_duration": "1h"}, tasks=[MOUNTS])
    world = brought(free)
    world.end("fill-0", RankState.SUCCEEDED)
    world.settle()
    world.now += 3600
    disk = world.records[DISK]
    world.records[DISK] = replace(disk, inputs={**disk.inputs, "prevent_destroy": True})
    plan = world.plan(free)
    assert ids(plan) == ["update:volume/data"]
    world.apply(plan)
    assert ids(world.plan(free)) == ["delete:volume/data"]


MOUNTS = {"name": "fill", "resources": {"cpu": "1.."}, "mounts": {"/d": "data"}}


def lost_by(how):
    """A world, and the plan that deletes or replaces its volume in that way."""
    if how == "unused":
        cleaned = {**DATA, "auto_cleanup_duration": "1h"}
        world = brought(with_volume(cleaned, tasks=[MOUNTS]))
        world.end("fill-0", RankState.SUCCEEDED)
        world.settle()
        world.now += 3600
        return world, world.plan(with_volume(cleaned, tasks=[MOUNTS]))
    world = brought(with_volume(FREE, tasks=[MOUNTS]))
    if how == "removed":
        return world, world.plan(with_volume(None))
    words = {"region": "far"} if how == "changed" else {}
    return world, world.plan(with_volume({**FREE, **words}), requested=frozenset({"volume/data"}))


@pytest.mark.parametrize("how", ["unused", "removed", "changed", "requested"])
def test_the_loop_takes_what_deletes_content_for_a_deletion(how):
    world, plan = lost_by(how)
    assert [a.id for a in plan.of(Op.DELETE, "volume")] == ["delete:volume/data"]
    causes = causes_of(plan, world.state())
    assert causes["volume/data"] is Cause.DELETE
    assert set(causes.values()) <= {Cause.DELETE, Cause.REPLACE}


def test_a_volume_that_was_adopted_is_only_released():
    """Nothing of it is lost: a loop may do so, as it may forget others."""
    adopted = {"name": "data", "volume_id": "vol-1", "auto_cleanup_duration": "1h"}
    world = brought(with_volume(adopted, tasks=[MOUNTS]))
    world.end("fill-0", RankState.SUCCEEDED)
    world.settle()
    world.now += 3600
    plan = world.plan(with_volume(adopted, tasks=[MOUNTS]))
    assert ids(plan) == ["delete:volume/data"]
    assert causes_of(plan, world.state())["volume/data"] is Cause.UPDATE


GUARDED = {"protected": ["volume/data", "fleet/pair"]}


@pytest.mark.parametrize(("words", "requested", "why"), REPLACES)
def test_an_entry_that_is_taken_out_goes_on_to_hold_for_one_apply(words, requested, why):
    """As a `prevent_destroy` that is taken away; the entry that is there is an error."""
    world, free = brought(with_volume(FREE, limits=GUARDED)), with_volume({**FREE, **words})
    guarded = with_volume({**FREE, **words}, limits=GUARDED)
    assert codes(with_limit_errors(world.plan(guarded, requested=requested), guarded)) == ["protected"]
    plan = world.plan(free, requested=requested)
    assert ids(plan) == ["update:volume/data", "update:node/pair-0", "update:node/pair-1"]
    assert {a.because for a in plan.actions} == {("protected",)}
    assert [d.summary for d in plan.diagnostics] == [
        f"volume/data is not replaced by this plan ({why}): it is recorded as protected"
    ]
    world.apply(plan)
    assert ids(world.plan(free, requested=requested)) == ["delete:volume/data", "create:volume/data"]


@pytest.mark.parametrize("removed", [False, True])
def test_an_entry_goes_together_with_what_it_protects(removed):
    """The document of the volume, its fleet, and the entry are taken out in one change."""
    world, nothing = brought(with_volume(FREE, limits=GUARDED)), declared()
    if removed:
        nothing = declared(removed=[{"from": "volume/data", "destroy": True}])
    plan = world.plan(nothing)
    assert ids(plan) == ["update:volume/data", "update:node/pair-0", "update:node/pair-1"]
    assert codes(plan) == ["protection-ends"] * 2
    assert "volume/data is not deleted by this plan (it is not declared any more)" in str(plan.diagnostics)
    world.apply(plan)
    assert ids(world.plan(nothing)) == ["delete:node/pair-0", "delete:node/pair-1", "delete:volume/data"]


def test_an_entry_holds_against_removed_and_goes_on_to_hold_for_one_apply():
    """A plan that is refused later is refused now; nothing ends a protection whose entry is there."""
    world, removed = brought(with_volume(FREE, limits=GUARDED)), [{"from": "volume/data", "destroy": True}]
    guarded = declared(fleets=[PAIR], removed=removed, limits=GUARDED)
    plan = with_limit_errors(world.plan(guarded), guarded)
    assert (ids(plan), codes(plan)) == (["delete:volume/data"], ["protected"])
    free = declared(fleets=[PAIR], removed=removed)
    assert "delete:volume/data" not in ids(world.plan(free))
    world.apply(world.plan(free))
    assert ids(world.plan(free)) == ["delete:volume/data"]


def test_what_is_only_forgotten_needs_no_apply_before():
    world = brought(with_volume(FREE, limits=GUARDED))
    plan = world.plan(declared(fleets=[PAIR], removed=[{"from": "volume/data", "destroy": False}]))
    assert "delete:volume/data" in ids(plan)
    assert next(a for a in plan.actions if a.op is Op.DELETE).forgets


def test_what_destroy_only_forgets_is_not_called_gone():
    world = brought(with_volume(FREE))
    removed = declared(removed=[{"from": "volume/data", "destroy": False}])
    (action,) = world.plan(removed, destroy=True).of(Op.DELETE, "volume")
    assert (action.forgets, action.of_gone) == (True, False)


def test_an_entry_keeps_unused_content_for_one_apply():
    cleaned = {**DATA, "auto_cleanup_duration": "1h"}
    world = brought(with_volume(cleaned, tasks=[MOUNTS], limits=GUARDED))
    world.end("fill-0", RankState.SUCCEEDED)
    world.settle()
    world.now += 3600
    free = with_volume(cleaned, tasks=[MOUNTS])
    plan = world.plan(free)
    assert "delete:volume/data" not in ids(plan)
    world.apply(plan)
    assert ids(world.plan(free)) == ["delete:volume/data"]


def test_a_new_entry_is_recorded_with_what_it_protects():
    """One that is adopted is only released, and needs no protection."""
    adopted = {"name": "theirs", "volume_id": "vol-1"}
    world = brought(declared(fleets=[PAIR], volumes=[DATA, adopted]))
    found = {"protected": ["volume/*", "node/pair-1"]}
    guarded = declared(fleets=[PAIR], volumes=[DATA, adopted], limits=found)
    plan = world.plan(guarded)
    assert ids(plan) == ["update:volume/data", "update:node/pair-1"]
    world.apply(plan)
    assert ids(world.plan(guarded)) == []


# ----------------------------------------------------------------------------------------------- fleets


def idle_too_long(world):
    return {"nodes": "0..2"}, frozenset()


def failed(world):
    world.sick["pair-1"] = NodeState.FAILED
    return {}, frozenset()


def refusals(plan):
    return [(d.address, d.summary, d.hint) for d in plan.diagnostics if d.code == "protected"]


@pytest.mark.parametrize(
    ("words", "requested", "why"),
    [
        (None, (), "its fleet is not declared any more"),
        ({"env": {"A": "1"}}, (), "`env` changed"),
        ({}, ("node/pair-0", "node/pair-1"), "`--replace`"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_protected_fleet_keeps_its_nodes(words, requested, why, before):
    """As it is declared now; as it was recorded, if it is declared no more."""
    world = brought(declared(fleets=[{**PAIR, "prevent_destroy": before}]))
    fleets = [] if words is None else [{**PAIR, **words, "prevent_destroy": True}]
    found = refusals(world.plan(declared(fleets=fleets), requested=frozenset(requested)))
    kept = before or words is not None
    assert [address for address, _, _ in found] == (["node/pair-0", "node/pair-1"] if kept else [])
    for address, summary, _ in found:
        assert summary == f"{address} would be deleted ({why}), but its fleet's `prevent_destroy` is true"


def test_no_error_is_about_what_destroy_leaves_or_what_is_only_let_go():
    kept = {**PAIR, "prevent_destroy": True}
    world = brought(declared(fleets=[kept]))
    assert refusals(world.plan(declared(), destroy=True)) == []
    assert refusals(world.plan(declared(fleets=[kept]))) == []
    for node in world.of("node"):
        adopted = {**node.inputs, "host": {"instance_id": f"i-{node.address.name}"}}
        world.records[node.address] = Record(address=node.address, backend=node.backend, inputs=adopted)
    assert refusals(world.plan(declared())) == []


@pytest.mark.parametrize("count", [None, 1, 3])
def test_a_protected_volume_that_is_declared_no_more_is_kept(count):
    """One without a number has no others of its name; a wrong `moved` is corrected first."""
    words = DATA if count is None else {**DATA, "count": count}
    world = brought(with_volume(words))
    names = ["volume/data"] if count is None else [f"volume/data-{i}" for i in range(count)]
    found = refusals(world.plan(with_volume(None)))
    assert [address for address, _, _ in found] == names
    whole = "volume/data" if count != 1 else "volume/data-0"
    for address, summary, hint in found:
        assert summary == f"{address} would be deleted, but its `prevent_destroy` is true"
        assert f"`removed: [{{from: {whole}, destroy: false}}]` to keep what is in it" in hint
    desired = with_volume(None, tasks=())
    moved = Moves.parse([{"from": "volume/old", "to": "volume/data"}])
    desired = replace(desired, project=replace(desired.project, moved=moved))
    for _, _, hint in refusals(world.plan(desired)):
        assert hint.startswith("`moved` renames it to `volume/data`")
        assert (
            "which is not declared: correct that `to`. If it is to go, write in the `project` document"
            in hint
        )
    near = replace(with_volume({**DATA, "name": "dataa"}), project=desired.project)
    for _, _, hint in refusals(world.plan(near)):
        assert "which is not declared: did you mean `volume/dataa`" in hint
        assert "? If it is to go, write" in hint


WAYS = {
    "changed": lambda world: ({"env": {"A": "1"}}, frozenset()),
    "fewer": lambda world: ({"nodes": 1}, frozenset()),
    "misfit": lambda world: ({"resources": {"cpu": "64.."}}, frozenset()),
    "requested": lambda world: ({}, frozenset({"node/pair-1"})),
    "idle": idle_too_long,
    "failed": failed,
}


@pytest.mark.parametrize("guarded", [False, True], ids=["prevent_destroy", "protected"])
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_that_ends_a_fleets_protection_deletes_no_node(way, guarded):
    """Whatever the reason; the next plan does."""
    kept = {**PAIR, "prevent_destroy": not guarded}
    world = brought(declared(fleets=[kept], limits=GUARDED if guarded else {}))
    words, requested = WAYS[way](world)
    free = declared(fleets=[{**PAIR, **words}])
    plan = world.plan(free, requested=requested)
    assert ids(plan) == ["update:node/pair-0", "update:node/pair-1"]
    field = "protected" if guarded else "prevent_destroy"
    assert all(field in a.because for a in plan.actions)
    assert ("protection-ends" in codes(plan)) is (way not in ("idle", "failed"))
    world.apply(plan)
    assert "delete:node/pair-1" in ids(world.plan(free, requested=requested))


@pytest.mark.parametrize("before", ["52w", "off", None], ids=str)
@pytest.mark.parametrize("after", ["1h", None, "0s"], ids=str)
def test_a_new_idle_duration_counts_from_its_apply(before, after):
    """The node was idle for years, and is kept for as long as the fleet says now."""

    def fleet(nodes, duration):
        spare = {**PAIR, "nodes": nodes, "idle_duration": duration}
        return declared(fleets=[{key: value for key, value in spare.items() if value is not None}])

    world = brought(fleet("2..3", before))
    lower = fleet("1..3", after)
    plan = world.plan(lower)
    if before == after:
        assert ids(plan) == ["delete:node/pair-1"]
        return
    assert [(a.id, a.because) for a in plan.actions] == [
        (f"update:node/pair-{number}", ("idle_duration",)) for number in range(2)
    ]
    world.apply(plan)
    seconds = {"1h": 3600, None: 3 * 86400, "0s": 0}[after]
    if seconds:
        world.now += seconds - 1
        assert ids(world.plan(lower)) == []
        world.now += 1
    assert ids(world.plan(lower)) == ["delete:node/pair-1"]


# ------------------------------------------------------------------------------- by the installed command


@pytest.mark.slow
def test_a_loop_deletes_no_content_that_was_protected(tmp_path: Path):
    """A duration is added to a volume that holds something: rounds end its protection, and then wait for a
    person, however long ago it was used.
    """
    project = Project(tmp_path)
    kept = {"type": "volume", "name": "data", "size": "1GB"}
    write = task("fill", "echo all > $FLEETFORM_VOLUME_DATA/results", volumes=["data:/data"])
    here = Here(tmp_path, Clock())
    try:
        project.declare(fleet(), kept, write)
        project.apply("--wait")
        results = project.data("data") / "results"
        here.step(MANY_DAYS)
        project.declare(fleet(), {**kept, "auto_cleanup_duration": "1h"}, write)
        assert [r.id for r in here.step(60).results] == ["update:volume/data"]
        assert [w.address for w in here.step(60).waits] == []
        project.declare(fleet(), {**kept, "auto_cleanup_duration": "1h", "tags": {"a": "b"}}, write)
        assert [r.id for r in here.step(60).results] == ["update:volume/data"]
        assert [w.address for w in here.step(3479).waits] == []
        (wait,) = here.step(1).waits
        assert (wait.address, wait.action, wait.why) == ("volume/data", "delete", "waits for approval")
        assert results.read_text() == "all\n"
        project.run("approve", str(wait.digest))
        here.step(60)
        assert not results.exists()
    finally:
        here.close()
        project.clean_up()
