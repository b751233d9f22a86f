"""The budget of a plan: work is counted without a clock, and refused at the document that costs most."""

import math
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.state import Address, Record, State
from declarative.model.text import MAX_COMPARED, Near
from declarative.placement.block_numbers import gaps, stretch
from declarative.planner import limits
from declarative.planner.inventory import Inventory
from declarative.planner.limits import planned_work, too_large
from tests.support.cli import Project
from tests.support.model import local_offer, of_node, project

FLEET = "type: fleet\nname: gpu\nnodes: 0..100000\nresources: {cpu: 8}\nblocks: 8\n"
TASK = "type: task\nname: train\nnodes: 50000\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\n"


def cli(folder, *args):
    return Project(folder).run(*args, code=None)


def units(tasks):
    declared = project(
        fleets=[{"name": "gpu", "nodes": "0..9"}], tasks=[{"name": "job", "nodes": 3, **tasks}]
    )
    return planned_work(declared, State(), Inventory())["task/job"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "infra.yaml").write_text(f"{FLEET}---\n{TASK}")
    return tmp_path


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_offline_a_plan_of_much_work_is_refused_where_it_is_declared(folder, command):
    """A stranger's few lines must not use up the machine; the error names the expensive document, and how to
    go on.
    """
    more = ("train",) if command == "explain" else ("--assume-empty",)
    done = cli(folder, command, *more, "--offline", "--json")
    (found,) = done.json["diagnostics"]
    asked = ("too-large", "task/train", "infra.yaml", 8)
    assert (done.code, asked) == (1, tuple(found[key] for key in ("code", "address", "file", "line")))
    assert found["hint"].endswith(" `--max-work 1129371`")


def test_max_work_says_how_much_a_plan_and_a_project_may_take(folder):
    """Of `validate` too. Without `--offline` there is no bound but the one asked for."""
    (folder / "infra.yaml").write_text(f"{FLEET}---\n{TASK.replace('50000', '3')}")
    for command, most in ((("validate",), 68), (("plan",), 72), (("plan", "--offline"), 72)):
        codes = [cli(folder, *command, "--max-work", str(n)).code for n in (most - 1, most)]
        assert codes == [1, 0], command
    assert cli(folder, "plan", "--offline").code == 0


@pytest.mark.parametrize(
    "tasks",
    [
        {"env": {"A": "b" * 996}},
        {"commands": ["a" * 1_000]},
    ],
    ids=["env", "commands"],
)
def test_what_ranks_are_told_counts_for_each(tasks):
    more = units(tasks) - units({})
    assert 12 <= more <= 15


def test_pins_count_for_each_node():
    """Each is looked for among all that are launched."""
    tasks = [{"name": "job", "instances": [f"gpu-{i}" for i in range(70)]}]
    declared = project(fleets=[{"name": "gpu", "nodes": 70}], tasks=tasks)
    assert 140 <= planned_work(declared, State(), Inventory())["task/job"] <= 170


TWO = {"A": "x" * 124, "B": "x" * 124}
"""Variables for two units: four entries of 250 characters together."""
TOLD = 1 / 4 + 4 / 250
"""Units for the command `true`."""
HOSTS: dict[str, Any] = {"name": "rack", "ssh_config": {"user": "me", "hosts": ["10.0.0.1", "10.0.0.2"]}}


def offers(count, cpu=8):
    """So many offers of `local`, each in a region of its own."""
    kinds = [replace(local_offer(cpu), region=f"r{i}", shaped=False) for i in range(count)]
    return Inventory(offers={"local": tuple(kinds)})


@pytest.mark.parametrize(
    ("fleets", "units"),
    [
        ([{"nodes": 3}], [21]),
        ([{"nodes": 3, "env": TWO}], [27]),
        ([{"nodes": "3..5", "env": TWO}], [27 + 2 * 2]),
        ([{"nodes": "3..50", "env": TWO}], [27 + 10 * 2]),
        ([{"nodes": "3..", "env": TWO}], [27 + 10 * 2]),
        ([{"nodes": "3..", "tags": TWO}], [27 + 10 * 2]),
        ([{"nodes": "3.."}], [21]),
        ([{**HOSTS, "env": TWO}], [2 * (7 + 2)]),
        ([{"nodes": "0..4", "env": {"A": "x" * 124}}, {"nodes": "0..4", "env": TWO}], [4, 8]),
        ([{"nodes": "0..9", "env": {"A": "x" * 124}}, {"nodes": "0..9", "env": TWO}], [1, 18]),
    ],
)
def test_the_nodes_of_fleets_are_counted_and_those_that_tasks_may_launch_once(fleets, units):
    """Ten ranks launch ten nodes at most, of the fleets whose nodes are told most."""
    named = [{"name": f"f{i}", **fleet} for i, fleet in enumerate(fleets)]
    declared = project(fleets=named, tasks=[{"name": "job", "nodes": 10}])
    for seen, offered in ((Inventory(), 0), (offers(3), 6)):
        found = planned_work(declared, State(), seen)
        more = 0 if "ssh_config" in named[0] else offered
        assert [found[f"fleet/{fleet['name']}"] for fleet in named] == [n + more for n in units]


@pytest.mark.parametrize(
    ("asks", "held"),
    [
        ({}, 1),
        ({"cpu": 4}, 4),
        ({"cpu": "..4"}, 1),
        ({"gpu": 4}, 4),
        ({"gpu": "0..4"}, 1),
        ({"cpu": 2, "gpu": 4}, 4),
        ({"cpu": 20}, 9),
        ({"memory": "1GB"}, 9),
    ],
)
def test_the_blocks_of_ranks_are_counted(asks, held):
    for blocks, seen in ((9, Inventory()), (9, offers(1, 50)), ("auto", offers(1, 9))):
        fleets = [{"name": "gpu", "nodes": 0, "blocks": blocks}, HOSTS]
        for exclusive in (False, True):
            words = {"resources": asks, "exclusive": exclusive}
            declared = project(fleets=fleets, tasks=[{"name": "job", "nodes": 1, **words}])
            units = math.ceil(22 + TOLD + (9 if exclusive else held) / 3)
            assert planned_work(declared, State(), seen)["task/job"] == units


def test_a_gang_tries_each_network():
    def units(nodes):
        task = {"name": "job", "nodes": nodes, "exclusive": False}
        return planned_work(project(fleets=[HOSTS, FLEETS[0]], tasks=[task]), State(), offers(3))["task/job"]

    assert [units(1), units(2), units(3)] == [
        math.ceil(n * (22 + TOLD + 1 / 3)) + 6 * (n > 1) for n in (1, 2, 3)
    ]


FLEETS: list[dict[str, Any]] = [
    {"name": "gpu", "nodes": 2, "env": {"AA": "b"}, "resources": {"cpu": 8}, "blocks": 8},
    HOSTS,
]
TASKS: list[dict[str, Any]] = [
    {"name": "job", "nodes": 3, "env": {"AA": "b"}, "resources": {"cpu": 1}, "commands": ["ccc"]},
    {"name": "odd", "tags": {"a": "b"}, "resources": {"cpu": 2}, "commands": ["cc"]},
    {"name": "alike", "resources": {"cpu": 2}},
]
NARROW: dict[str, Any] = {"name": "narrow", "nodes": 0, "regions": ["r0"]}


@pytest.mark.parametrize(
    ("bound", "most", "message"),
    [
        ("MOST_PLACES", 5 + 4 + 1, "3 tasks with 5 ranks, and 4 nodes, are too many"),
        ("MOST_ENTRIES", 2 * 2 + 3 * 3 + 3 + 1, "17 entries with 32 characters: too much"),
        ("MOST_TEXT", 2 * 3 + 3 * 6 + 4 + 4, "17 entries with 32 characters: too much"),
        ("MOST_OFFERED", 2 * 4, "3 fleets with 8 offers to look at are too many"),
        ("MOST_SIZES", 2 * 5, "tasks of 2 sizes and 5 offers to launch are too many"),
        (None, None, "units of work, and a plan may take"),
    ],
)
def test_each_bound_is_the_most_that_is_planned(monkeypatch, bound, most, message):
    """What is recorded and declared hosts count as well; of offers those that fleets may launch."""
    declared = project(fleets=[*FLEETS, NARROW], tasks=TASKS)
    node = Record(address=Address("node", "old-0"), backend="local", inputs=of_node())
    recorded, seen = State(records={node.address: node}), offers(4)
    if bound is None:
        most = planned_work(declared, recorded, seen).total()

    def found(most):
        if bound is None:
            return too_large(declared, recorded, seen, most)
        monkeypatch.setattr(limits, bound, most)
        return too_large(declared, recorded, seen)

    assert found(most) is None
    refused = found(most - 1)
    assert (refused.code, refused.address) == ("too-large", None)
    assert message in refused.summary


def test_names_are_compared_as_long_as_that_does_not_take_too_long():
    near, known = Near(), {f"region-{i}" for i in range(1_000)}
    found = [near("regoin-1", known) for _ in range(MAX_COMPARED // 1_000 + 1)]
    assert (found[0], found[-2], found[-1]) == (found[0], found[0], None)
    assert found[0] is not None


def test_the_idle_blocks_of_a_node_are_taken_by_stretches():
    """The shortest stretch that holds all, or scattered blocks if there is none. Taken blocks are no longer
    idle.
    """
    idle = gaps({3, 6, 7}, 12)
    assert [stretch(idle, n, 12) for n in (2, 4, 2, 1)] == [(4, 5), (8, 9, 10, 11), (0, 1), (2,)]
    assert idle == []
    assert stretch(gaps({1, 3}, 6), 3, 6) == (0, 2, 4)


@pytest.mark.parametrize(
    ("held", "wanted", "blocks"),
    [
        ({0}, 4, (4, 5, 6, 7)),
        ({0}, 2, (2, 3)),
        ({0, 5}, 4, (1, 2, 3, 4)),
        ({0}, 3, (1, 2, 3)),
        (set(), 8, tuple(range(8))),
    ],
)
def test_a_part_of_a_node_begins_where_such_parts_do(held, wanted, blocks):
    """Half a node is one of its halves, where that is idle."""
    idle = gaps(held, 8)
    assert stretch(idle, wanted, 8) == blocks
    assert sum(size for size, _ in idle) == 8 - len(held) - wanted
