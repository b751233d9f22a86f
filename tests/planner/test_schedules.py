"""`schedule` of fleets and tasks: what exists at which time, in a time zone."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from declarative.model.spec.schedule import Cron, Schedule, Zone
from tests.support.cli import Project, fleet, hold, lines, task, until
from tests.support.rounds import Clock, Here

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(year: int, month: int, day: int, hour: int, minute: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=BERLIN).timestamp()


def schedule(start: str, stop: str | None = None, zone: str = "Europe/Berlin") -> Schedule:
    return Schedule(start=Cron(start), stop=Cron(stop) if stop else None, timezone=Zone(zone))


WORK = schedule("0 8 * * 1-5", "0 20 * * *")


@pytest.mark.parametrize(
    ("when", "on"),
    [
        ((2026, 3, 27, 7, 59), False),
        ((2026, 3, 27, 8, 0), True),
        ((2026, 3, 27, 19, 59), True),
        ((2026, 3, 27, 20, 0), False),
        ((2026, 3, 28, 12, 0), False),  # a Saturday
        ((2026, 3, 30, 7, 59), False),  # the first Monday of summer time
        ((2026, 3, 30, 8, 0), True),
        ((2026, 10, 26, 7, 59), False),
        ((2026, 10, 26, 8, 0), True),
    ],
)
def test_a_fleet_is_there_in_working_hours(when, on):
    assert WORK.on(berlin(*when)) is on


def test_what_falls_into_the_hour_that_is_left_out_starts_after_it_and_once():
    nightly = schedule("30 2 * * *")
    assert nightly.started(berlin(2026, 3, 29, 4)) == berlin(2026, 3, 29, 3, 0)
    assert nightly.started(berlin(2026, 10, 25, 12)) == berlin(2026, 10, 25, 2, 30)


def test_a_start_and_a_stop_at_once_is_a_start():
    assert schedule("0 8 * * *", "0 8,20 * * *", "UTC").on(9 * 3600.0)
    assert not schedule("0 8 * * *", "0 8,20 * * *", "UTC").on(21 * 3600.0)


@pytest.fixture
def project(tmp_path: Path):
    made = Project(tmp_path)
    yield made
    made.clean_up()


def hours(clock: Clock, start: float, stop: float | None) -> dict[str, str]:
    """A schedule that starts and stops so many hours after now, on the hour, every day."""

    def cron(after: float) -> str:
        at = datetime.fromtimestamp(clock.at + after * 3600, ZoneInfo("UTC"))
        return f"{at.minute} {at.hour} * * *"

    return {"start": cron(start), **({"stop": cron(stop)} if stop is not None else {})}


def test_a_fleet_comes_and_goes_by_its_schedule(project: Project):
    clock = Clock()
    project.declare(fleet(nodes=2, schedule=hours(clock, 1, 3)))
    here = Here(project.path, clock)
    found = [len(here.seen(after).nodes) for after in (0, 3660, 3600, 3600, 22 * 3600)]
    assert found == [0, 2, 2, 0, 2]
    here.close()


def test_a_task_is_stopped_and_started_by_its_schedule(project: Project):
    clock, ran = Clock(), project.path / "ran"
    project.declare(fleet(nodes=1), task("day", hold(ran), schedule=hours(clock, 1, 3)))
    here = Here(project.path, clock)
    here.step()
    assert lines(ran) == []
    here.step(3660)
    until(lambda: len(lines(ran)) == 1)
    assert here.step(3600).actions == ()
    stopped = here.step(3600)
    assert {a.reason for a in stopped.actions} == {"schedule"}
    assert stopped.status
    assert stopped.status.tasks[0].state == "pending"
    here.step(22 * 3600)
    until(lambda: len(lines(ran)) == 2)
    here.close()


def test_a_task_runs_anew_at_each_start_and_not_in_between(project: Project):
    clock, ran = Clock(), project.path / "ran"
    project.declare(fleet(nodes=1), task("nightly", f"echo >> {ran}", schedule=hours(clock, 1, None)))
    here = Here(project.path, clock)
    here.step()
    assert lines(ran) == [], "its last start was yesterday, and it was not there then"
    for count, after in enumerate((3660, 24 * 3600, 24 * 3600), start=1):
        here.step(after)
        until(lambda: here.seen(1).tasks[0].state == "succeeded")
        assert len(lines(ran)) == count
        assert here.step(3600).actions == ()
        clock.at -= 3601
    here.close()


def test_a_start_that_was_missed_is_made_up_for(project: Project):
    clock, ran = Clock(), project.path / "ran"
    project.declare(fleet(nodes=1), task("nightly", f"echo >> {ran}", schedule=hours(clock, 0, None)))
    first = Here(project.path, clock)
    first.step()
    until(lambda: first.seen(1).tasks[0].state == "succeeded")
    assert len(lines(ran)) == 1
    first.close()
    clock.at += 30 * 3600
    second = Here(project.path, clock)
    second.step()
    until(lambda: len(lines(ran)) == 2)
    second.close()


def test_apply_goes_by_the_schedule_too(project: Project):
    clock, ran = Clock(), project.path / "ran"
    project.declare(fleet(nodes=1), task("day", hold(ran), schedule=hours(clock, 2, 4)))
    project.apply()
    assert [n["name"] for n in project.status()["nodes"]] == ["gpu-0"]
    assert lines(ran) == []
    project.no_changes()


def test_what_waits_for_its_schedule_says_so(project: Project):
    """A task waits for its start. What would need a fleet that is off by its schedule fits again once it is
    on: no change of `nodes` is proposed, which the schedule would undo.
    """
    clock = Clock()
    project.declare(
        fleet(nodes=2, schedule=hours(clock, 2, 4)),
        task("nightly", "true", schedule=hours(clock, 3, None)),
        task("now", "true"),
        task("large", "true", resources={"gpu": 1}),
    )
    told = project.run("explain", "nightly").out
    assert told.startswith("task/nightly waits for the next start of its `schedule`\n")
    assert "its `schedule` starts it at 2" in told
    assert "pending     its `schedule` starts it at 2" in project.run("status").out
    refused = {r["task"]: r for r in project.run("plan", "--json", code=3).json["unplaced"]}
    assert {name: r["code"] for name, r in refused.items()} == {"now": "no-capacity", "large": "never-fits"}
    assert refused["now"]["summary"].startswith("does not fit now")
    assert "fleet/gpu has no nodes outside of its `schedule`, which starts at 2" in refused["now"]["hint"]


def test_a_task_that_waits_for_a_fleet_holds_up_nothing_else(project: Project):
    clock = Clock()
    retry = {"on_events": ["no-capacity"]}
    project.declare(
        fleet(nodes=1),
        fleet("day", nodes=1, schedule=hours(clock, 2, 4)),
        task("later", "true", fleets=["day"], retry=retry),
    )
    project.apply()
    assert [n["name"] for n in project.status()["nodes"]] == ["gpu-0"]


def test_a_task_whose_fleet_is_off_is_no_refusal(project: Project):
    """It waits for the fleet's hours, and nothing waits for it: not the plan's exit code, nor an apply."""
    clock = Clock()
    later = task("later", "true", fleets=["day"])
    project.declare(fleet(nodes=1), fleet("day", nodes=1, schedule=hours(clock, 2, 4)), later)
    shown = project.run("plan", "--json").json
    (waits,) = shown["unplaced"]
    assert (shown["result"], waits["task"]) == ("changes", "later")
    assert waits["starts"].startswith("2")
    assert "which starts at 2" in waits["hint"]
    project.run("plan", "--detailed-exitcode", code=2)
    done = project.apply("--wait")
    assert "task/later stays pending" in done.err
    assert [n["name"] for n in project.status()["nodes"]] == ["gpu-0"]
    project.run("plan", "--detailed-exitcode")
    assert "1 task cannot be placed now and stays pending" in project.run("plan").out
    assert "which starts at 2" in project.run("explain", "task/later").out


def test_a_task_with_a_refusal_beside_one_that_waits_for_its_fleet_is_a_refusal(project: Project):
    clock = Clock()
    later, large = task("later", "true", fleets=["day"]), task("large", "true", resources={"gpu": 1})
    project.declare(fleet(nodes=1), fleet("day", nodes=1, schedule=hours(clock, 2, 4)), later, large)
    assert project.run("plan", "--json", code=3).json["result"] == "unplaced"
    assert "nothing was done" in project.apply(code=3).err


def test_an_ended_task_does_not_run_outside_of_its_schedule(project: Project):
    """Not for a change, nor by its `retry`: both wait for the next start."""
    clock, ran = Clock(), project.path / "ran"
    more = {"schedule": hours(clock, 0, 2), "retry": {"duration": "3d"}}
    project.declare(fleet(nodes=1), task("day", f"echo >> {ran}; false", **more))
    here = Here(project.path, clock)
    here.seen(0)
    until(lambda: here.seen(1).tasks[0].state == "failed")
    clock.at += 2 * 3600
    assert here.step().actions == (), "its retry is due, and waits for its hours"
    project.declare(fleet(nodes=1), task("day", f"echo >> {ran}", **more))
    changed = here.step()
    assert changed.actions == ()
    assert changed.plan
    (found,) = changed.plan.diagnostics
    assert found.code == "outside-schedule"
    assert "task/day has ended, and runs with the changed `commands` at 2" in found.summary
    here.step(22 * 3600)
    until(lambda: here.seen(1).tasks[0].state == "succeeded")
    here.close()
