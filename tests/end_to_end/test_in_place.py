"""What is marked `InPlace()` is at work once it was applied: each mark has a test that looks at the thing.

A plan that says `update`, and a state that records it, prove nothing. A new mark without an entry in
`AT_WORK` fails here.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from declarative.apply.execute import HOST_TERMS
from declarative.model.schema import in_place
from declarative.model.spec import Fleet, Task, Volume
from tests.support.changing import resized_at_work, times_at_work
from tests.support.cli import fleet, hold, lines, task, until, volume

HERE, HOSTS, SLURM = (
    "end_to_end/test_in_place.py",
    "providers/ssh/test_in_place.py",
    "providers/slurm/test_in_place.py",
)
TIMES, CUT_OFF = (
    "test_the_new_times_of_a_rank_are_at_work",
    "test_a_rank_whose_host_is_cut_off_ends_by_the_new_time",
)
FALLBACKS = "planner/test_fallbacks.py"
NEW_NODES = f"{HERE}::test_what_a_fleet_allows_holds_for_its_next_node"
OF_SLURM = "providers/slurm/test_in_place.py::test_the_next_job_is_asked_for_as_the_fleet_says_now"
AT_WORK: dict[str, tuple[str, ...]] = {
    "fleet.nodes": ("end_to_end/test_changes.py::test_size_of_a_fleet",),
    "fleet.blocks": ("end_to_end/test_changes.py::test_blocks",),
    **{
        f"fleet.{name}": (NEW_NODES,)
        for name in (
            "resources",
            "backends",
            "regions",
            "availability_zones",
            "instance_types",
            "spot_policy",
            "max_price",
        )
    },
    "fleet.fallback": (f"{FALLBACKS}::test_a_fallback_that_is_allowed_later_serves_the_next_node",),
    "task.fallback": (f"{FALLBACKS}::test_a_fallback_that_is_allowed_later_serves_the_next_node",),
    "fleet.same": (f"{HERE}::test_ranks_that_are_placed_anew_go_where_the_new_rule_says",),
    "fleet.backfill": (f"{HERE}::test_a_small_task_is_let_in_from_now_on",),
    "fleet.idle_duration": (f"{HERE}::test_a_fleet_goes_by_its_new_times",),
    "fleet.schedule": (f"{HERE}::test_a_fleet_goes_by_its_new_times",),
    "fleet.unreachable_duration": (f"{HOSTS}::{CUT_OFF}",),
    "fleet.health": (
        "providers/ssh/test_fleet_health.py::test_a_node_goes_by_what_its_fleet_says_of_its_health_now",
    ),
    "fleet.tags": (f"{HERE}::test_tags_stand_on_what_is_there",),
    "fleet.prevent_destroy": (f"{HERE}::test_what_is_protected_from_now_on_stays",),
    "fleet.ssh_config": (
        "providers/ssh/test_fleet.py::test_hosts_come_and_go_and_the_others_keep_their_names",
    ),
    "fleet.instance_ids": ("providers/ssh/test_instances.py::*",),
    "fleet.partition": (OF_SLURM,),
    "fleet.constraint": (OF_SLURM,),
    "fleet.account": (OF_SLURM,),
    "fleet.qos": (OF_SLURM,),
    "volume.size": (
        "end_to_end/test_changes.py::test_volume_grows_in_place",
        "providers/cloud/test_disks.py::test_a_filesystem_grows_with_its_volume",
    ),
    "volume.tags": (f"{HERE}::test_tags_stand_on_what_is_there",),
    "volume.prevent_destroy": (f"{HERE}::test_what_is_protected_from_now_on_stays",),
    "volume.auto_cleanup_duration": (
        "planner/test_auto_cleanup.py::test_from_its_first_task_to_its_deletion_and_back",
    ),
    "task.same": (f"{HERE}::test_ranks_that_are_placed_anew_go_where_the_new_rule_says",),
    "task.spread": (f"{HERE}::test_ranks_that_are_placed_anew_go_where_the_new_rule_says",),
    "task.max_duration": (f"{HERE}::{TIMES}", f"{HOSTS}::{TIMES}", f"{SLURM}::{TIMES}"),
    "task.stop_duration": (f"{HERE}::{TIMES}", f"{HOSTS}::{TIMES}", f"{SLURM}::{TIMES}"),
    "task.priority": (f"{HERE}::test_a_higher_priority_goes_first_from_now_on",),
    "task.tags": ("end_to_end/test_changes.py::test_running_rank_in_place",),
    "task.schedule": (f"{HERE}::test_a_task_goes_by_its_new_schedule",),
    "task.retry": (f"{HERE}::test_a_running_task_is_run_again_by_its_new_retry", f"{HOSTS}::{CUT_OFF}"),
    "task.queue": ("providers/slurm/test_in_place.py::test_a_task_that_was_refused_may_wait_from_now_on",),
}
"""Mark → the tests, below `tests`, that see it at work; a file may serve as a whole."""


def test_every_mark_is_seen_at_work():
    kinds = {"fleet": Fleet, "volume": Volume, "task": Task}
    marks = [f"{kind}.{name}" for kind, spec in kinds.items() for name in in_place(spec)]
    assert sorted(AT_WORK) == sorted(marks)
    tests = Path(__file__).parents[1]
    for named in {t for tests in AT_WORK.values() for t in tests}:
        file, _, name = named.partition("::")
        parsed = ast.parse((tests / file).read_text())
        functions = {n.name for n in ast.walk(parsed) if isinstance(n, ast.FunctionDef)}
        assert name == "*" or name in functions, named


def test_what_a_host_is_told_is_seen_on_hosts():
    """Of what a running rank's host has to learn, a local look is not enough."""
    for name in HOST_TERMS:
        (found,) = (tests for mark, tests in AT_WORK.items() if mark.partition(".")[2] == name)
        assert any(t.startswith("providers/ssh/") for t in found), name


# ----------------------------------------------------------------------------------------------- fleets

SMALL = {"instance_type": "small", "cpu": 2, "memory": "1GB", "price": 1, "spot_price": 0.5}
BIG = {"instance_type": "big", "cpu": 4, "memory": "1GB", "price": 2}
ZONES = {"regions": ["east", "west"], "availability_zones": ["east-a", "east-b", "west-a"]}
LAB = {"type": "backend", "name": "lab", "driver": "local", "catalog": [SMALL, BIG], **ZONES}
DEN = {**LAB, "name": "den"}


@pytest.mark.parametrize(
    ("before", "after", "key", "values"),
    [
        ({}, {"resources": {"cpu": "4.."}}, "instance_type", ("small", "big")),
        ({"backends": ["lab"]}, {"backends": ["den"]}, "backend", ("lab", "den")),
        ({"regions": ["east"]}, {"regions": ["west"]}, "region", ("east", "west")),
        (
            {"availability_zones": ["east-a"]},
            {"availability_zones": ["east-b"]},
            "zone",
            ("east-a", "east-b"),
        ),
        ({"instance_types": ["small"]}, {"instance_types": ["big"]}, "instance_type", ("small", "big")),
        ({}, {"spot_policy": "spot"}, "spot", (False, True)),
        ({"instance_types": ["big"], "max_price": 3}, {"max_price": 1.5}, "instance_type", ("big", "small")),
    ],
)
def test_what_a_fleet_allows_holds_for_its_next_node(project, before, after, key, values):
    def node(name):
        return json.loads((nodes[name] / "fleetform.json").read_text())["inputs"].get(key, False)

    nodes = {}
    wide = fleet(resources={"cpu": "2.."}, placement="any", **before)
    project.declare(LAB, DEN, wide)
    project.apply()
    nodes["gpu-0"] = next(project.path.rglob("gpu-0"))
    assert node("gpu-0") == values[0]
    if "max_price" in after:
        del wide["instance_types"]
    project.declare(LAB, DEN, {**wide, "nodes": 2, "idle_duration": "off", **after})
    project.apply()
    nodes["gpu-1"] = next(project.path.rglob("gpu-1"))
    assert node("gpu-1") == values[1]


def test_tags_stand_on_what_is_there(project):
    def tags(folder):
        return json.loads((folder / "fleetform.json").read_text())["inputs"].get("tags", {})

    for team in ("a", "b"):
        project.declare(fleet(tags={"team": team}), volume(tags={"team": team}))
        project.apply()
        assert [tags(project.node("gpu-0")), tags(project.data("data").parent)] == [{"team": team}] * 2


def test_what_is_protected_from_now_on_stays(project):
    project.declare(fleet(), volume())
    project.apply()
    project.declare(fleet(prevent_destroy=True), volume(prevent_destroy=True))
    project.apply()
    project.declare(fleet("other"))
    refused = project.apply(code=1).err
    assert "node/gpu-0" in refused
    assert "volume/data would be deleted" in refused
    assert project.node("gpu-0").exists()
    assert project.data("data").exists()


OFF = {"start": "0 0 29 2 *", "stop": "1 0 29 2 *"}
"""Never on, but for a minute in four years."""


@pytest.mark.parametrize("new", [{"idle_duration": "1s"}, {"schedule": OFF}])
def test_a_fleet_goes_by_its_new_times(project, new):
    """A node above the target, and one outside of the schedule, go."""
    wide = {"resources": {"cpu": 2}}
    project.declare(fleet(nodes="0..1", idle_duration="1d"), task("job", "true", **wide))
    project.apply("--wait")
    project.apply()
    assert project.node("gpu-0").exists()
    project.declare(fleet(nodes="0..1", **{"idle_duration": "1d", **new}), task("job", "true", **wide))

    def gone():
        project.apply()
        return not project.node("gpu-0").exists()

    until(gone)


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.slow
def test_the_new_times_of_a_rank_are_at_work(project, tmp_path):
    times_at_work(project, lambda job: project.declare(fleet(), job), tmp_path / "up")


@pytest.mark.slow
def test_a_running_task_is_run_again_by_its_new_retry(project):
    go, ran = project.path / "go", project.path / "ran"
    job = task("job", f"echo x >> {ran}", f"while [ ! -e {go} ]; do sleep 0.05; done", "false")
    project.declare(fleet(), job)
    project.apply()
    until(ran.exists)
    project.declare(fleet(), {**job, "retry": {"on_events": ["error"], "duration": "1h"}})
    project.apply()
    go.touch()
    until(lambda: project.ranks("job")[0]["state"] == "failed")

    def twice():
        project.apply(code=None)
        return len(lines(ran)) >= 2

    until(twice)


@pytest.mark.slow
def test_a_task_goes_by_its_new_schedule(project):
    """A running one is stopped outside of it."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up)))
    project.apply()
    until(up.exists)
    project.declare(fleet(), task("job", hold(up), schedule=OFF))
    project.apply()
    assert project.busy() == {"gpu-0": 0}


def test_a_higher_priority_goes_first_from_now_on(project):
    """Of two that found no place, the one that became more important gets the first one that is free."""
    whole = {"resources": {"cpu": 2}, "exclusive": True}
    tasks = {name: task(name, "sleep 600", **whole) for name in ("first", "second")}
    project.declare(fleet(nodes="0..1"), *tasks.values())
    project.apply("--allow-unplaced", code=None)
    assert "rank/second-0" not in project.run("state", "list").out
    project.run("stop", "first")
    tasks["second"]["priority"] = 9
    project.declare(fleet(nodes="0..1"), *tasks.values())
    project.apply("--allow-unplaced", "--replace", "task/first", code=None)
    until(lambda: project.ranks("second")[0]["state"] == "running")


def test_a_small_task_is_let_in_from_now_on(project):
    """`high` waits for the whole node, and `later` takes none of it until the fleet says so."""
    low, later = (task(name, "sleep 600", resources={"cpu": 1}) for name in ("low", "later"))
    high = task("high", "sleep 600", resources={"cpu": 2}, priority=100)
    project.declare(fleet(nodes=1, blocks=2), low)
    project.apply()
    project.declare(fleet(nodes=1, blocks=2), low, high, later)
    project.apply("--allow-unplaced", code=None)
    assert "rank/later-0" not in project.run("state", "list").out
    project.declare(fleet(nodes=1, blocks=2, backfill="any"), low, high, later)
    project.apply("--allow-unplaced", code=None)
    until(lambda: project.ranks("later")[0]["state"] == "running")


DISKS = ["disk-${{ node_rank }}:/disk"]
"""Of each rank another one, in a zone of its own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "zones"),
    [
        (({"same": "zone"}, {"volumes": DISKS}), ({"same": "region"}, {"volumes": DISKS}), 0),
        (({}, {"same": "zone", "volumes": DISKS}), ({}, {"same": "region", "volumes": DISKS}), 0),
        (({}, {"same": "region"}), ({}, {"same": "region", "spread": "zone"}), 1),
    ],
)
def test_ranks_that_are_placed_anew_go_where_the_new_rule_says(project, before, after, zones):
    """By the old rule the ranks are in so many zones, in none if there is no such place; by the new one in
    two.
    """

    def placed(rules, *args):
        of_fleet, of_task = rules
        fields = {"nodes": 2, "exclusive": False, "resources": {"cpu": 1}, **of_task}
        project.declare(LAB, *disks, {**where, **of_fleet}, task("job", "true", **fields))
        project.apply("--wait", "--allow-unplaced", *args, code=None)
        nodes = {r["node"] for r in project.ranks("job").values()} - {None}
        files = [next(project.path.rglob(f"{name}/fleetform.json")) for name in nodes]
        return {json.loads(file.read_text())["inputs"]["zone"] for file in files}

    zoned = ["east-a", "east-b"]
    of_lab = {"backend": "lab", "region": "east"}
    disks = [volume(f"disk-{i}", availability_zone=z, **of_lab) for i, z in enumerate(zoned)]
    where = fleet(nodes="0..3", backends=["lab"], regions=["east"], availability_zones=zoned)
    assert len(placed(before)) == zones
    assert placed(after, "--replace", "task/job") == {*zoned}


@pytest.mark.slow
def test_ranks_come_and_go_and_the_others_run_on(project):
    resized_at_work(project, lambda job: project.declare(fleet(nodes=3), job))
