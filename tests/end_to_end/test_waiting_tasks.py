"""Tasks that have no room now: `retry` with `no-capacity`, and `--reuse`, by the installed command."""

from __future__ import annotations

import pytest

from tests.support.cli import fleet, lines, release, task

RETRY = {"retry": {"on_events": ["no-capacity"]}}


@pytest.fixture
def full(project):
    """A project whose only node is taken until `go` is there."""
    busy = task("busy", release(project.path / "go"), resources={"cpu": 2})
    project.declare(fleet(), busy, file="busy.yaml")
    project.apply()
    return project


def late(project, **fields):
    """A task that would need the whole node."""
    return task("late", f"echo late >> {project.path / 'ran'}", resources={"cpu": 2}, **fields)


@pytest.mark.slow
def test_a_task_that_waits_holds_nothing_up(full):
    """`plan` lists it and exits 3; `apply` does the rest, says that it stays pending, and exits 0. The next
    `apply` after room was made starts it.
    """
    more = {"type": "volume", "name": "data", "size": "1GB"}
    full.declare(late(full, **RETRY), more)
    assert full.plan(code=3)["unplaced"][0]["code"] == "no-capacity"
    planned = full.run("plan", code=3).out
    assert "`retry`: it stays pending, and every `fleetform apply` tries again" in planned
    assert planned.endswith("1 task cannot be placed now and stays pending.\n")
    done = full.apply()
    assert "task/late stays pending (no capacity now): the next `fleetform apply` tries again\n" in done.err
    assert full.data("data").exists()
    assert full.ranks("late")[0]["state"] == "pending"
    events = full.apply("--json").events
    assert {"event": "pending", "address": "task/late"} in events
    counts = {"done": 0, "failed": 0, "skipped": 0}
    assert events[-1] == {"event": "summary", "result": "waiting", **counts, "health": []}
    (full.path / "go").touch()
    full.apply("--wait")
    full.apply("--wait")
    assert lines(full.path / "ran") == ["late"]
    full.no_changes()


def test_status_says_since_when_and_why_a_task_waits(full):
    """Until it starts, and in an event, which comes once and not with each apply."""
    full.declare(late(full, **RETRY), file="late.yaml")
    before = {t["name"]: t for t in full.status()["tasks"]}["late"]
    assert (before["cause"], before["waiting_since"]) == ("no apply has started it yet", None)
    for _ in range(2):
        full.apply()
    found = {t["name"]: t for t in full.status()["tasks"]}["late"]
    assert found["state"] == "pending"
    assert found["cause"].startswith("has no place: does not fit now: 1 place wanted, 0 found")
    assert found["waiting_since"]
    assert f"since {found['waiting_since']}: has no place: does not fit now" in full.run("status").out
    told = full.run("events", "--json", "--type", "task.waiting").out.splitlines()
    assert len(told) == 1
    full.run("reconcile", "--once")
    assert {t["name"]: t for t in full.status()["tasks"]}["late"] == found
    (full.path / "go").touch()
    full.apply("--wait")
    full.apply("--wait")
    assert {t["name"]: t["waiting_since"] for t in full.status()["tasks"]} == {"busy": None, "late": None}


@pytest.mark.parametrize("fields", [{}, {"retry": False}, {**RETRY, "resources": {"cpu": 3}}])
def test_what_does_not_wait_stops_the_apply(full, fields):
    """Without the field, and where the task can never fit, however long it waits."""
    full.declare({**late(full), **fields})
    assert "nothing was done: a task cannot be placed" in full.apply(code=3).err
    full.apply("--allow-unplaced")


def test_one_that_waits_does_not_excuse_another(full):
    """All that cannot be placed have to be able to wait."""
    full.declare(late(full, **RETRY), {**late(full), "name": "other"})
    done = full.apply(code=3)
    assert "2 tasks cannot be placed, 1 of them stays pending.\n" in done.out
    assert "stays pending (" not in done.err


def test_a_task_that_runs_goes_on_when_its_change_has_no_room(full):
    """It is not stopped for a place that does not exist, and is not reported as pending."""
    full.declare(fleet(), {**task("busy", release(full.path / "go"), nodes=2), **RETRY}, file="busy.yaml")
    done = full.apply(code=3)  # two nodes where there is one: that can never fit
    assert "never-fits" in done.out
    wide = {**task("busy", release(full.path / "go"), "true", resources={"cpu": 2}), **RETRY}
    other = task("other", release(full.path / "go"), priority=9)
    full.declare(fleet(), {**wide, "resources": {"cpu": 1}}, other, file="busy.yaml")
    full.apply()
    full.declare(fleet(), wide, other, file="busy.yaml")
    done = full.apply()
    said = (
        "task/busy stays as it was (no capacity now for what changed): the next `fleetform apply` tries again"
    )
    assert said in done.err
    assert full.ranks("busy")[0]["state"] == "running"


def test_a_task_that_only_replace_asks_for_is_not_promised_to_later_applies(full):
    """It was stopped, or it runs. With its own change beside, the next `apply` does try again."""
    full.declare(late(full, **RETRY), file="late.yaml")
    full.run("stop", "late")
    again = "once there is room, `fleetform apply --replace task/late` again"
    planned = full.run(
        "plan", "--replace", "task/late", "--report", "report.html", "--report", "report.md", code=3
    )
    (refusal,) = full.plan("--replace", "task/late", code=3)["unplaced"]
    texts = [planned.out, *((full.path / f"report.{kind}").read_text() for kind in ("html", "md"))]
    for text in (*texts, refusal["hint"]):
        assert "fleetform apply --replace task/late" in text
        assert "tries again" not in text
    done = full.apply("--replace", "task/late")
    assert f"task/late stays ended (no capacity now to run again): {again}\n" in done.err
    assert "tries again" not in done.out + done.err
    full.no_changes()
    full.declare({**late(full, **RETRY), "env": {"A": "1"}}, file="late.yaml")
    for options in ((), ("--replace", "task/late")):
        changed = full.apply(*options).err
        assert (
            "stays ended (no capacity now to run again): the next `fleetform apply` tries again\n" in changed
        )


def test_retry_changes_in_place(full):
    """It says nothing about how the task runs."""
    busy = task("busy", release(full.path / "go"), resources={"cpu": 2})
    full.declare(
        fleet(), {**busy, "retry": {"on_events": ["no-capacity"], "duration": "2h"}}, file="busy.yaml"
    )
    (action,) = full.plan()["actions"]
    assert (action["op"], action["address"], action["because"]) == ("update", "rank/busy-0", ["retry"])
    full.apply()
    full.no_changes()


@pytest.mark.slow
def test_reuse_launches_nothing_for_tasks(project):
    """`plan --reuse` and `apply --reuse`: as if each task said `creation_policy: reuse`."""
    job = task("job", f"echo ran >> {project.path / 'ran'}")
    project.declare(fleet(nodes="0..1"), job)
    plan = project.plan("--reuse", code=3)
    assert plan["actions"] == []
    text = project.run("plan", "--reuse", code=3).out
    assert "`--reuse` launches nothing" in text
    assert "hint: it fits without `--reuse`" in text
    project.apply("--reuse", code=3)
    assert not project.local.exists()
    project.declare(fleet(nodes="1..1"), job)
    project.apply("--reuse", "--wait")  # a fleet's own nodes are not launched for a task
    assert lines(project.path / "ran") == ["ran"]
