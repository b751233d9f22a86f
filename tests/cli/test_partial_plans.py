"""`--target`, `--exclude`, `--refresh-only` and `drift`: a part of a plan, with everything that it needs."""

from __future__ import annotations

import shutil

import pytest

from tests.support.cli import Project, fleet, hold, kill_ranks, lines, release, task, until, volume


@pytest.fixture
def two(project: Project) -> Project:
    """Two fleets, each with a task that has a volume."""
    documents = []
    for name in ("red", "blue"):
        documents += [
            fleet(name, nodes=1, placement="any"),
            volume(f"{name}-data"),
            task(name, hold(project.path / name), fleets=[name], volumes=[f"{name}-data:/data"]),
        ]
    project.declare(*documents)
    return project


def test_a_target_brings_what_it_needs(two):
    plan = two.plan("--target", "task/red")
    assert {a["address"] for a in plan["actions"]} == {
        "node/red-0",
        "volume/red-data",
        "reservation/red-0",
        "attachment/red-0.red-data",
        "rank/red-0",
    }
    assert plan["selection"] == {
        "targets": ["task/red"],
        "excludes": [],
        "needed": ["node/red-0", "volume/red-data"],
        "left_out": ["node/blue-0", "task/blue", "volume/blue-data"],
        "held_up": [],
    }
    assert [r["task"] for r in plan["reservations"]] == ["red"]
    text = two.run("plan", "--target", "task/red").out
    assert "Only a part of the plan: --target task/red" in text
    assert "With it, as it is needed: node/red-0, volume/red-data" in text
    two.apply("--target", "task/red")
    assert two.ids("--target", "task/red") == []
    assert set(two.busy()) == {"red-0"}
    two.apply()
    two.no_changes()


def test_what_depends_on_the_excluded_is_left_out(two):
    plan = two.plan("--exclude", "volume/red-*")
    assert not any("red" in a["address"] for a in plan["actions"])
    assert plan["selection"]["held_up"] == ["node/red-0", "task/red"]
    two.apply("--exclude", "fleet/red")
    assert set(two.busy()) == {"blue-0"}
    done = two.run("plan", "--target", "task/red", "--exclude", "fleet/red")
    assert "Not done, because of what is excluded: task/red" in done.out


def test_a_replacement_goes_with_the_tasks_on_it(two):
    """What runs is not torn out of its node, and what is left out is not stopped."""
    two.apply()
    two.declare(
        fleet("red", nodes=1, placement="any", tags={"team": "x"}),
        fleet("blue", nodes=1, placement="any", resources={"cpu": 4, "memory": "1GB"}),
        volume("red-data"),
        volume("blue-data"),
        task("red", hold(two.path / "red"), fleets=["red"], volumes=["red-data:/data"]),
        task("blue", hold(two.path / "blue"), "true", fleets=["blue"], volumes=["blue-data:/data"]),
    )
    whole = two.plan()
    assert any(a["address"] == "rank/blue-0" for a in whole["actions"])
    part = two.plan("--exclude", "task/blue")
    assert not any("blue" in a["address"] for a in part["actions"])
    assert {(r["task"], r["status"]) for r in part["reservations"]} == {("red", "kept"), ("blue", "kept")}
    before = lines(two.path / "blue")
    two.apply("--exclude", "task/blue")
    assert lines(two.path / "blue") == before
    assert two.ranks("blue")[0]["state"] == "running"


def test_what_is_without_a_place_elsewhere_does_not_matter(project):
    project.declare(
        fleet("gpu", nodes="0..1"),
        task("small", "true"),
        task("large", "true", resources={"cpu": 64}),
    )
    project.run("plan", code=3)
    project.run("plan", "--target", "task/small")
    project.run("plan", "--exclude", "task/large")
    project.run("plan", "--target", "task/large", code=3)
    project.apply("--target", "task/small", "--wait")


@pytest.mark.parametrize("asked", [("--target", "task/bad"), ("--exclude", "task/a*")])
def test_what_is_left_out_takes_no_place(project, asked):
    """Neither a task that the whole plan places first, nor another one that waits for the same node."""
    project.declare(
        fleet(nodes="0..1", placement="any", resources={"cpu": 1, "memory": "1GB"}),
        task("aa", hold(project.path / "aa")),
        task("ab", hold(project.path / "ab")),
        task("bad", hold(project.path / "bad")),
    )
    plan = project.plan(*asked)
    assert [r["task"] for r in plan["reservations"]] == ["bad"]
    assert plan["selection"]["left_out"] == ["task/aa"]
    assert plan["unplaced"] == []
    project.run("plan", *asked, "--out", "bad.plan")
    project.run("apply", "bad.plan")
    assert project.ids(*asked) == []
    project.run("plan", "--target", "task/aa", code=3)


def test_what_holds_a_place_keeps_it(project):
    """A task that is left out and recorded has its place, and is not taken out of it."""
    project.declare(
        fleet(nodes="0..1", placement="any", resources={"cpu": 1, "memory": "1GB"}),
        task("aa", hold(project.path / "aa")),
        task("bad", "true"),
    )
    project.apply("--target", "task/aa")
    plan = project.plan("--target", "task/bad", code=3)
    assert (plan["actions"], plan["selection"]["left_out"]) == ([], [])


def test_a_volume_is_not_deleted_because_its_task_is_left_out(project):
    """Its time is over, but the task that is left out wants it."""
    tasks = task("aa", "true", volumes=["data:/data"]), task("bad", "true")
    small = fleet(nodes="0..1", placement="any", resources={"cpu": 1, "memory": "1GB"}, idle_duration="off")
    project.declare(small, volume(auto_cleanup_duration="1h"), tasks[0])
    project.apply("--wait")
    project.declare(small, volume(auto_cleanup_duration="1h"))
    project.apply()
    project.declare(small, volume(auto_cleanup_duration="0s"), *tasks)
    plan = project.plan("--exclude", "task/aa")
    assert [r["task"] for r in plan["reservations"]] == ["bad"]
    assert "delete:volume/data" not in {a["id"] for a in plan["actions"]}


def test_nothing_is_launched_for_what_is_excluded(project):
    """It would be paid for, and idle. What its fleet has for itself is launched all the same."""
    project.declare(
        fleet("any", nodes="0..3"),
        fleet("own", nodes="1..3", resources={"cpu": 4, "memory": "1GB"}),
        task("one", "true", fleets=["any"]),
        task("two", "true", fleets=["any"], nodes=2, placement="any", exclusive=True),
        task("three", "true", fleets=["own"], nodes=2, placement="any", exclusive=True),
    )
    whole = project.plan()
    assert sum(a["address"].startswith("node/") for a in whole["actions"]) == 5
    part = project.plan("--exclude", "task/t*")
    (one,) = {r["node"] for r in part["reservations"]}
    nodes = {a["address"] for a in part["actions"] if a["address"].startswith("node/")}
    assert nodes == {f"node/{one}", "node/own-0"}
    assert len(part["selection"]["left_out"]) == 5
    alone = project.plan("--target", "fleet/*")
    assert [a["address"] for a in alone["actions"]] == ["node/own-0"]
    assert [a["address"] for a in project.plan("--target", "node/any-2")["actions"]] == ["node/any-2"]
    project.apply("--exclude", "task/t*", "--wait")
    project.apply("--wait")
    project.no_changes()


def test_destroy_a_part(two):
    """What depends on a target goes with it, and what excluded things need stays."""
    two.apply()
    done = two.run("destroy", "--auto-approve", "--exclude", "task/*", code=0)
    assert done.out == "Nothing to destroy.\n"
    done = two.run("destroy", "--auto-approve", "--target", "fleet/red")
    assert "\n  With it, as it depends on this: task/red\n" in done.out
    assert set(two.busy()) == {"blue-0"}
    assert two.ranks("blue")[0]["state"] == "running"


@pytest.mark.parametrize("name", ["volume/keep", "volume/keep-1", "fleet/red", "node/red-*"])
def test_a_target_that_is_protected(project, name):
    """Nothing is to be destroyed, and the reason is named, also where a name means several things."""
    project.declare(
        fleet("red", nodes=2, placement="any", prevent_destroy=True),
        volume("keep", count=2, prevent_destroy=True),
    )
    project.apply()
    done = project.run("destroy", "--auto-approve", "--target", name)
    assert done.out.startswith("Nothing to destroy.\nKept, because of `prevent_destroy`: ")


def test_what_is_kept_is_said_of_what_was_asked_for(project):
    """Other protected things are none of this command's business."""
    project.declare(
        fleet("red", placement="any"),
        volume("keep", prevent_destroy=True),
        volume("more", prevent_destroy=True),
        task("small", "true"),
    )
    project.apply("--wait")
    done = project.run("destroy", "--auto-approve", "--target", "task/small")
    assert "Kept" not in done.out
    done = project.run("destroy", "--auto-approve", "--exclude", "volume/m*")
    assert "Kept, because of `prevent_destroy`: volume/keep.\n" in done.out


def test_a_pattern_that_names_nothing(two):
    done = two.run("plan", "--target", "task/rad", code=1)
    assert "`task/rad` names nothing in this project" in done.err
    assert "did you mean `task/red`" in done.err
    two.run("apply", "--auto-approve", "--exclude", "node/none-*", code=1)
    done = two.run("destroy", "--auto-approve", "--target", "task/red", code=1)
    assert "`task/red` names nothing that is recorded" in done.err


def test_saved_and_approved_parts(two):
    two.run("plan", "--target", "task/red", "--out", "red.plan", "--report", "red.md")
    assert "--target task/red" in (two.path / "red.md").read_text()
    two.run("apply", "red.plan")
    two.run("plan", "--target", "task/blue", "--report", "blue.json")
    two.run("apply", "--expect", "blue.json", "--target", "task/blue")
    two.no_changes()


def test_drift(two):
    """Changes by others are reported, and recorded only on request."""
    two.apply()
    assert two.run("drift").out.splitlines()[2:] == ["No drift: all is as recorded."]
    shutil.rmtree(two.local / "volumes" / "blue-data")
    kill_ranks(two.path)
    until(lambda: two.run("drift", "--json", code=None).json["drift"])
    done = two.run("drift", "--report", "drift.md", code=2)
    assert "volume/blue-data" in done.out
    assert "volume/blue-data" in (two.path / "drift.md").read_text()
    assert two.plan("--refresh-only")["actions"] == []
    before = two.run("state", "list").out
    two.run("plan", "--refresh-only", "--detailed-exitcode", code=2)
    two.run("apply", "--refresh-only", code=1)
    assert two.run("state", "list").out == before
    two.apply("--refresh-only", "--accept-vanished")
    assert "volume/blue-data" in two.run("state", "list").out, "it waits for somebody"
    assert two.run("drift", code=None).code == 2
    assert [d["address"] for d in two.plan("--refresh-only")["drift"]] == ["volume/blue-data"]


def test_a_task_that_succeeds_is_no_drift(project):
    project.declare(fleet(), task("train", release(project.path / "go")))
    project.apply()
    (project.path / "go").touch()
    until(lambda: project.ranks("train")[0]["state"] == "succeeded")
    assert project.run("drift", "--json").json["drift"] == []


@pytest.mark.parametrize(
    "option", [("--reuse",), ("--target", "task/red"), ("--out", "x.plan"), ("--offline",)]
)
def test_refresh_only_goes_with_nothing_else(two, option):
    done = two.run("plan", "--refresh-only", *option, code=1)
    assert "`--refresh-only` does nothing but to look and to record" in done.err
