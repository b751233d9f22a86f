"""`stop` of tasks that do not run: they wait for a place, for their schedule, or for their next attempt."""

from __future__ import annotations

import re

import pytest

from tests.planner.test_schedules import hours
from tests.support.cli import Project, fleet, hold, lines, task, until
from tests.support.rounds import Clock, Here

PLACE = {"retry": {"on_events": ["no-capacity"]}}


@pytest.fixture
def full(project: Project) -> Project:
    """A project whose only node is taken, and a task that waits for it."""
    ran = project.path / "ran"
    busy = task("busy", hold(project.path / "up"), resources={"cpu": 2}, priority=9)
    late = task("late", f"echo late >> {ran}", resources={"cpu": 2}, **PLACE)
    project.declare(fleet(), busy, file="busy.yaml")
    project.declare(late, file="late.yaml")
    project.apply()
    return project


def state_of(project: Project, name: str) -> str:
    return next(str(t["state"]) for t in project.status()["tasks"] if t["name"] == name)


@pytest.mark.slow
def test_a_task_that_waits_for_a_place_stays_stopped_until_somebody_asks_for_it(full: Project):
    """In applies, in saved plans, in the loop; its declaration or `--replace` starts it."""
    done = full.run("stop", "late")
    assert done.out == "task/late is stopped.\n"
    assert state_of(full, "late") == "stopped"
    full.run("state", "check")
    full.run("stop", "busy")
    assert full.ids() == []
    full.run("plan", "--out", "all.plan")
    full.apply("--wait", code=None)
    full.run("reconcile", "--once")
    assert state_of(full, "late") == "stopped"
    assert lines(full.path / "ran") == []
    full.no_changes()
    full.apply("--replace", "task/late", "--wait", code=None)
    assert lines(full.path / "ran") == ["late"]
    full.run("state", "check")
    full.apply("--replace", "task/busy")
    full.declare(task("late", "true", resources={"cpu": 2}, **PLACE), file="late.yaml")
    full.apply()
    full.run("stop", "late")
    full.run("stop", "busy")
    full.declare(task("late", f"echo new >> {full.path / 'ran'}", **PLACE), file="late.yaml")
    full.apply("--wait", code=None)
    assert lines(full.path / "ran") == ["late", "new"]


def test_a_stopped_task_that_never_ran_goes_with_its_declaration(full: Project):
    """It has no output; `explain` says that a user stopped it."""
    full.run("stop", "late")
    assert full.run("logs", "late", code=1).err.startswith(
        "error[not-run]: task/late was stopped before it ran"
    )
    assert "stopped by the user" in full.run("explain", "late").out
    assert "stopped by the user" in full.run("status").out
    (full.path / "late.yaml").unlink()
    assert full.ids() == ["delete:rank/late-0"]
    full.apply()
    full.run("state", "check")
    full.no_changes()


def test_a_stopped_task_can_be_renamed_and_destroyed(full: Project):
    full.run("stop", "late")
    full.run("state", "mv", "task/late", "task/later")
    full.run("state", "check")
    full.run("destroy", "--auto-approve")
    assert full.run("state", "list").out == ""


def test_stop_of_what_was_never_declared_or_applied_is_an_error(project: Project):
    """Before the first `apply` nothing waits either: then the declaration is what has to change."""
    project.declare(fleet(), task("job", "true"), task("late", "true", **PLACE))
    for name in ("job", "late"):
        unapplied = project.run("stop", name, code=1).err
        assert unapplied.startswith(f"error[not-run]: task/{name} has not run")
        assert "nothing was applied yet, so there is nothing to stop" in unapplied
        assert "take the task out of the YAML" in unapplied
    for apply in (lambda: None, lambda: project.apply("--wait")):
        apply()
        other = project.run("stop", "other", code=1).err
        assert other.startswith("error[not-run]: task/other has not run")
        assert "nothing was applied yet" not in other


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_a_scheduled_task_does_not_start_any_more(project: Project, first: bool):
    """Whether it has run before or not."""
    clock, ran = Clock(), project.path / "ran"
    project.declare(fleet(nodes=1), task("nightly", f"echo >> {ran}", schedule=hours(clock, 1, None)))
    here = Here(project.path, clock)
    here.step()
    if first:
        here.step(3660)
        until(lambda: here.seen(1).tasks[0].state == "succeeded")
    done = project.run("stop", "nightly")
    before = lines(ran)
    assert done.out == (
        "task/nightly has succeeded, and does not start again by itself.\n"
        if first
        else "task/nightly is stopped.\n"
    )
    for _ in range(3):
        assert here.step(24 * 3600 + 60).actions == ()
    assert lines(ran) == before
    assert lines(ran) == [""] * first
    here.close()


@pytest.mark.slow
def test_a_task_between_two_attempts_does_not_run_again(project: Project):
    ran = project.path / "ran"
    project.declare(fleet(), task("job", f"echo >> {ran}; exit 3", retry=True))
    project.apply()
    until(lambda: state_of(project, "job") == "failed")
    assert project.run("stop", "job").out == "task/job has failed, and does not start again by itself.\n"
    project.no_changes()
    project.run("reconcile", "--once")
    assert len(lines(ran)) == 1
    (found,) = project.status()["tasks"]
    assert found["stopped"]
    assert (found["retry"]["runs_again"], found["retry"]["why"]) == (False, "it was stopped by the user")
    assert found["started_at"]
    assert found["ended_at"]
    assert re.search(
        r"task/job +failed +ended \S+Z after \d+ s; is not run again: it was stopped by the user",
        project.run("status").out,
    )


def test_what_cannot_be_asked_goes_on_until_it_can_whatever_the_project_says(project: Project):
    """The exit code tells. A project with errors keeps nobody from stopping what runs."""
    up = project.path / "up"
    project.declare(fleet(nodes=2), task("job", hold(up), nodes=2))
    project.apply()
    until(lambda: len(lines(up)) == 2)
    nodes, away = project.local / "nodes", project.local / "away"
    nodes.rename(away)
    assert "rank/job-0 could not be stopped" in project.run("stop", "job", code=4).err
    away.rename(nodes)
    project.write("main.yaml", "type: nothing")
    done = project.run("stop", "job")
    assert done.out == "task/job is stopped.\n"
    assert "The project has errors" in done.err
