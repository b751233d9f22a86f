"""A rename without `moved` in the loop: what would be made in the place of something whose deletion is
refused, or waits, waits with it. An empty volume is not made for a full one, and no task runs twice.

`planner/test_loss_warnings.py` has the warnings of plans.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.inputs import RankInputs
from declarative.model.spec.project import Budget, Cause, Guarded, Limits, Reconcile
from declarative.model.state import Address
from declarative.model.status import NodeState, RankState
from declarative.planner.plan import Op
from tests.support.cli import Project, fleet, hold, lines, task, until
from tests.support.model import World
from tests.support.model import project as declared
from tests.support.rounds import Clock, Here, chosen

PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}}
DATA = {"name": "data", "size": "2GB"}
FREE = {"prevent_destroy": False}
TRAIN = {"name": "train", "resources": {"cpu": "1.."}, "mounts": {"/d": "data"}}
LEARN = {**TRAIN, "mounts": {"/d": "store"}}
ALL = tuple(Cause)


def wanted(volumes=(DATA,), tasks=(TRAIN,), fleets=(PAIR,), **rules):
    found = declared(fleets=fleets, volumes=volumes, tasks=tasks)
    return replace(found, project=replace(found.project, reconcile=Reconcile(**rules)))


def brought(*args, end=RankState.SUCCEEDED, **kwargs):
    """A world as declared, whose ranks have ended."""
    world = World()
    world.apply(world.plan(wanted(*args, **kwargs)))
    for name in world.running() if end else ():
        world.end(name, end)
    world.settle()
    return world


def made(found):
    return {str(a.address) for a in found.plan.actions if a.op is Op.CREATE}


def wait_of(found, address):
    (wait,) = [w for w in found.waits if w.address == address]
    return wait


def entry(old, new):
    return f"if it was renamed, write `moved: [{{from: {old}, to: {new}}}]` in the `project` document"


@pytest.mark.parametrize("words", [{}, FREE])
@pytest.mark.parametrize("more", [{}, {"size": "3GB"}, {"tags": {"a": "b"}}, {"region": "local"}])
def test_no_empty_volume_is_made_for_one_that_is_kept(words, more):
    """Protected or waiting for approval; with changes that `moved` would do in place, too."""
    world = brought(({**DATA, **words},))
    found = chosen(world, wanted(({**DATA, **words, **more, "name": "store"},), (LEARN,)))
    assert made(found) == set()
    why = "which waits for approval" if words else "which is protected"
    wait = wait_of(found, "volume/store")
    assert wait.why == f"takes the place of volume/data, {why}"
    keeps = "; if not, `removed: [{from: volume/data, destroy: false}]` keeps the content of volume/data"
    assert wait.hint == entry("volume/data", "volume/store") + keeps
    of_task = wait_of(found, "task/train")
    assert (of_task.why, of_task.hint) == (f"needs volume/store, which {wait.why}", wait.hint)
    assert bool(wait.digest) is bool(words)
    assert wait.digest == of_task.digest


def test_an_approval_makes_what_waits_and_none_what_is_refused():
    after = wanted(({**DATA, **FREE, "name": "store"},), (LEARN,))
    world = brought(({**DATA, **FREE},))
    first = chosen(world, after)
    new, old = (wait_of(first, a).digest for a in ("volume/store", "volume/data"))
    assert new != old
    assert {"volume/store", "rank/train-0"} <= made(chosen(world, after, [new]))
    assert {"volume/store", "rank/train-0"} <= made(chosen(world, after, [old]))
    assert not made(chosen(brought(), wanted(({**DATA, "name": "store"},), (LEARN,)), [new, old]))


def test_where_deletions_are_allowed_it_is_replaced():
    """As `apply` does it."""
    world = brought(({**DATA, **FREE},))
    found = chosen(world, wanted(({**DATA, "name": "store"},), (LEARN,), allow=ALL))
    assert {"volume/store", "rank/train-0"} <= made(found)


def test_what_is_only_forgotten_is_in_nobodys_way():
    """`removed` says that the new volume is another one; and an adopted volume is not made empty."""
    world, after = brought(), wanted(({**DATA, "name": "store"},), (LEARN,))
    removed = type(after.project.removed).parse([{"from": "volume/data", "destroy": False}])
    kept = replace(after, project=replace(after.project, removed=removed))
    assert {"volume/store", "rank/train-0"} <= made(chosen(world, kept))
    adopts = wanted(({"name": "store", "volume_id": "vol-1"},), (LEARN,))
    assert {"volume/store", "rank/train-0"} <= made(chosen(world, adopts))


@pytest.mark.parametrize("more", [{"region": "far"}, {"size": "1GB"}])
def test_a_volume_of_another_kind_waits_only_if_it_is_mounted_in_its_place(more):
    world = brought()
    other = {**DATA, **more, "name": "store"}
    assert made(chosen(world, wanted((other,), ()))) == {"volume/store"}
    assert made(chosen(world, wanted((other,), (LEARN,)))) == set()


def test_of_a_count_the_entry_is_of_all():
    world = brought(({**DATA, "count": 3},), ())
    found = chosen(world, wanted(({**DATA, "count": 4, "name": "store"},), ()))
    assert made(found) == set()
    for number in range(3):
        wait = wait_of(found, f"volume/store-{number}")
        assert wait.hint.startswith(entry("volume/data", "volume/store"))
    assert "volume/data-0 or volume/data-1" in wait_of(found, "volume/store-3").why


def test_a_count_that_is_added_is_a_rename_too():
    found = chosen(brought(tasks=()), wanted(({**DATA, "count": 2},), ()))
    assert made(found) == set()
    assert entry("volume/data", "volume/data-0") in wait_of(found, "volume/data-0").hint


def test_no_node_is_made_for_a_task_that_waits_for_its_volume():
    flexible = {**PAIR, "nodes": "0..2"}
    world = brought(fleets=(flexible,))
    for record in world.of("node"):
        del world.records[record.address]
    after = wanted(({**DATA, "name": "store"},), (LEARN,), (flexible,))
    assert "node/pair-0" in {str(a.address) for a in world.plan(after).actions}
    assert made(chosen(world, after)) == set()


def runs():
    """A world whose task runs on a node that takes no more work: another task gets the other node."""
    world = brought((), ({**TRAIN, "mounts": {}},), end=None)
    world.sick["pair-0"] = NodeState.NOT_READY
    return world


@pytest.mark.parametrize("words", [{}, FREE])
def test_none_is_made_while_a_rank_keeps_the_old_one_without_a_deletion(words):
    """Its task has no other place, so that only a later plan deletes the old volume. Were the new one made
    now, the task would run on it then.
    """
    world = brought(({**DATA, **words},), end=None)
    after = wanted(({**DATA, **words, "name": "store"},), ({**LEARN, "resources": {"cpu": "64.."}},))
    assert [a.id for a in world.plan(after).actions] == ["create:volume/store"]
    found = chosen(world, after)
    assert made(found) == set()
    wait = wait_of(found, "volume/store")
    assert wait.why == "takes the place of volume/data, which stays as long as it is used"
    assert wait.hint.startswith(entry("volume/data", "volume/store"))


def test_none_is_made_in_the_round_that_ends_a_protection_of_the_limits():
    """That round only records it, and deletes nothing: a later one asks for the deletion."""
    limits = Limits(protected=Guarded.parse(["volume/data"]))
    before = wanted(({**DATA, **FREE},))
    world = World()
    world.apply(world.plan(replace(before, project=replace(before.project, limits=limits))))
    assert world.records[Address("volume", "data")].volume.protected
    for name in world.running():
        world.end(name, RankState.SUCCEEDED)
    world.settle()
    after = wanted(({**DATA, **FREE, "name": "store"},), (LEARN,))
    found = chosen(world, after)
    assert {str(a.address) for a in found.plan.actions} == {"volume/data"}
    assert made(found) == set()
    assert wait_of(found, "volume/store").hint.startswith(entry("volume/data", "volume/store"))


def test_a_renamed_task_does_not_run_twice():
    world = runs()
    after = wanted((), ({**TRAIN, "mounts": {}, "name": "learn"},))
    assert "rank/learn-0" in {str(a.address) for a in world.plan(after).actions}
    found = chosen(world, after)
    assert made(found) == set()
    wait = wait_of(found, "task/learn")
    assert (wait.why, wait.hint) == (
        "takes the place of task/train, which waits for approval",
        entry("task/train", "task/learn"),
    )
    assert wait.digest


def test_a_renamed_task_waits_for_a_budget_with_the_old_one():
    world = runs()
    budgets = (Budget(nodes=0, reasons=(Cause.DELETE,)),)
    after = ({**TRAIN, "mounts": {}, "name": "learn"},)
    assert "rank/learn-0" in made(chosen(world, wanted((), after, allow=ALL)))
    assert made(chosen(world, wanted((), after, allow=ALL, budgets=budgets))) == set()


def test_another_task_than_the_old_one_runs():
    world = runs()
    after = wanted((), ({**TRAIN, "mounts": {}, "name": "learn", "commands": ["false"]},))
    assert "rank/learn-0" in made(chosen(world, after))


@pytest.mark.parametrize("words", [{}, {"prevent_destroy": True}])
@pytest.mark.parametrize("sick", [(), ("pair-0", "pair-1")])
def test_a_renamed_fleet_is_not_paid_for_twice(words, sick):
    old = {**PAIR, **words}
    world = brought((), (), (old,))
    for name in sick:
        world.sick[name] = NodeState.UNKNOWN
    found = chosen(world, wanted((), (), ({**old, "name": "couple"},)))
    assert made(found) == set()
    wait = wait_of(found, "node/couple-1")
    assert wait.why.startswith("takes the place of fleet/pair, and node/pair-0 ")
    assert wait.hint == entry("fleet/pair", "fleet/couple")


NAMES = st.sampled_from(["one", "two", "three", "four"])
VOLUMES = st.dictionaries(NAMES, st.fixed_dictionaries({}, optional={"count": st.integers(1, 2)}), max_size=3)


@given(VOLUMES, VOLUMES, st.booleans(), st.data())
def test_no_round_makes_an_empty_volume_while_one_like_it_is_to_go(before, after, protected, data):
    """Whatever is renamed, and whatever task mounts it: what is made is in the place of nothing."""

    def documents(volumes):
        words = [{"name": n, "size": "1GB", "prevent_destroy": protected, **w} for n, w in volumes.items()]
        names = [n if "count" not in w else f"{n}-0" for n, w in volumes.items()]
        name = data.draw(st.sampled_from(names)) if names else None
        return words, [{**TRAIN, "mounts": {"/d": name}}] if name else []

    world = brought(*documents(before))
    desired = wanted(*documents(after))
    old = {r.address.name for r in world.of("volume")} - desired.volumes.keys()
    new = desired.volumes.keys() - {r.address.name for r in world.of("volume")}
    found = chosen(world, desired)
    volumes = {a.address.name for a in found.plan.actions if (a.op, a.address.kind) == (Op.CREATE, "volume")}
    assert volumes == (set() if old else new)
    ranks = [a.typed for a in found.plan.of(Op.CREATE, "rank")]
    mounts = {n for r in ranks if isinstance(r, RankInputs) for names in r.volumes.values() for n in names}
    assert mounts.isdisjoint(new) or not old


# ------------------------------------------------------------------------------- by the installed command


@pytest.fixture
def lived(tmp_path: Path):
    """A project whose task wrote into its volume; then the volume was renamed."""
    project = Project(tmp_path)
    ran = project.path / "ran"
    kept = {"type": "volume", "size": "1GB"}

    def documents(name):
        command = f"echo >> {ran}; touch $FLEETFORM_VOLUME_{name.upper()}/written"
        return (fleet(nodes=1), {**kept, "name": name}, task("train", command, volumes=[f"{name}:/d"]))

    project.declare(*documents("data"))
    project.apply()
    until(lambda: project.ranks("train")[0]["state"] == "succeeded")
    project.declare(*documents("store"))
    yield project
    project.clean_up()


def nothing_ran(project):
    volumes = project.local / "volumes"
    return sorted(p.name for p in volumes.iterdir()) == ["data"] and len(lines(project.path / "ran")) == 1


def test_the_loop_answers_as_apply_does(lived: Project):
    assert "error[protected]" in lived.run("apply", "--auto-approve", code=1).err
    for _ in range(2):
        said = lived.run("reconcile", "--once").err
        assert nothing_ran(lived)
        assert "write `moved: [{from: volume/data, to: volume/store}]`" in said or not said
    entries = {"type": "project", "name": "lab", "moved": [{"from": "volume/data", "to": "volume/store"}]}
    lived.declare(entries, file="project.yaml")
    lived.run("reconcile", "--once")
    until(lambda: len(lines(lived.path / "ran")) == 2)
    assert (lived.data("data") / "written").exists()
    assert not lived.data("store").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        ("--target", "volume/store"),
        ("--target", "task/train"),
        ("--exclude", "volume/data"),
        ("--target", "volume/s*", "--target", "fleet/gpu"),
    ],
)
def test_a_part_does_not_get_around_it(lived: Project, part):
    for command in (("plan",), ("plan", "--out", "p.plan"), ("apply", "--auto-approve")):
        done = lived.run(*command, *part, code=1)
        assert "error[protected]: volume/data would be deleted" in done.err
    assert nothing_ran(lived)
    assert not (lived.path / "p.plan").exists()


def test_a_part_without_what_takes_its_place_is_done(lived: Project):
    lived.declare(fleet(nodes=2), {"type": "volume", "name": "store", "size": "1GB"})
    lived.apply("--target", "fleet/gpu")
    assert len(lived.status()["nodes"]) == 2


@pytest.mark.slow
def test_a_part_with_protected_nodes(tmp_path: Path):
    project = Project(tmp_path)
    try:
        project.declare(fleet("gpu", nodes=1, prevent_destroy=True))
        project.apply()
        project.declare(fleet("big", nodes=1, prevent_destroy=True))
        assert "error[protected]" in project.run("apply", "--target", "fleet/big", code=1).err
        project.declare(fleet("big", nodes=1), {"type": "project", "limits": {"protected": ["fleet/gpu"]}})
        assert "error[protected]" in project.run("apply", "--target", "fleet/big", code=1).err
    finally:
        project.clean_up()


def test_a_round_holds_back_a_running_task_under_a_new_name(tmp_path: Path):
    project = Project(tmp_path)
    ran = project.path / "ran"
    try:
        project.declare(fleet(nodes=2), task("train", hold(ran)))
        project.apply()
        until(lambda: lines(ran))
        project.declare(fleet(nodes=2), task("learn", hold(ran)))
        here = Here(project.path, Clock())
        try:
            found = here.step()
        finally:
            here.close()
        assert [a.id for a in found.actions if a.op == "create"] == []
        assert {w.address for w in found.waits} == {"task/train", "task/learn"}
        assert all(w.digest for w in found.waits)
    finally:
        project.clean_up()
