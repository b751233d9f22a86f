"""The budget of a plan: work is counted without a clock, and refused at the document that costs most."""

import pytest

from declarative.model.diagnostic import MAX_COMPARED, Near
from declarative.model.state import State
from declarative.placement.finish import gaps, stretch
from declarative.planner.inventory import Inventory
from declarative.planner.limits import work
from tests.cli import Project
from tests.model import project

FLEET = "type: fleet\nname: gpu\nnodes: 0..100000\nresources: {cpu: 8}\nblocks: 8\n"
TASK = "type: task\nname: train\nnodes: 50000\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\n"


def cli(folder, *args):
    return Project(folder).run(*args, code=None)


def units(tasks):
    declared = project(
        fleets=[{"name": "gpu", "nodes": "0..9"}], tasks=[{"name": "job", "nodes": 3, **tasks}]
    )
    return work(declared, State(), Inventory())["task/job"]


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
    assert 140 <= work(declared, State(), Inventory())["task/job"] <= 170


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
