"""`retry` after failures, by the installed command on the local backend."""

from __future__ import annotations

from tests.cli import ended, fleet, lines, task, until


def flaky(path, *, good: int, **fields):
    """A gang of two whose rank 1 fails until attempt number `good`; rank 0 waits to be stopped until then."""
    run = (
        f"me=$FLEETFORM_NODE_RANK; echo $me >> {path}/ran; n=$(grep -c $me {path}/ran)\n"
        f"[ $n -lt {good} ] || exit 0\n"
        f"[ $me = 0 ] || {{ while [ $(grep -c 0 {path}/ran) -lt $n ]; do sleep 0.05; done; exit 3; }}\n"
        "while :; do sleep 0.1; done"
    )
    return task("job", run, nodes=2, placement="any", resources={"cpu": 1}, **fields)


def attempts(project):
    """The attempt of each rank."""
    return [r["attempt"] for r in project.ranks("job").values()]


def test_wait_retries_the_whole_gang(project):
    """As a new attempt of every rank, once the old one has ended and given its blocks back."""
    project.declare(fleet(), flaky(project.path, good=2, retry=True))
    done = project.apply("--wait")
    assert "rank/job-0: stopped: rank/job-1 failed: exit code 3" in done.err
    assert "task/job runs again in 1 s: rank/job-1 failed: exit code 3" in done.err
    assert done.out.endswith("task/job: succeeded\n")
    assert sorted(lines(project.path / "ran")) == ["0", "0", "1", "1"]
    assert attempts(project) == [2, 2]
    assert project.busy() == {"gpu-0": 0}
    project.no_changes()


def test_plan_shows_it_and_apply_does_it(project):
    """With the reason; and what was only observed so far, too: rank 0 is stopped first."""
    project.declare(fleet(), flaky(project.path, good=3, retry={"on_events": ["error"]}))
    project.apply()
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    logs = project.run("logs", "job/1", "-f")
    assert "task/job is to run again, as its `retry` says" in logs.err
    actions = project.plan()["actions"]
    assert {a["reason"] for a in actions if a["address"].startswith("rank/")} == {"retry"}
    assert {tuple(a["because"]) for a in actions if a["address"].startswith("rank/")} == {
        ("rank/job-1 failed: exit code 3",)
    }
    project.run("plan", "--out", "plan.json")
    project.apply("plan.json")
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    assert attempts(project) == [2, 2]
    assert "# retry 2 after rank/job-1 failed: exit code 3" in project.apply("--wait").out
    assert attempts(project) == [3, 3]
    project.no_changes()


def test_other_ends_than_the_named_stay_ended_and_say_why(project):
    project.declare(fleet(), flaky(project.path, good=9, retry={"on_events": ["interruption"]}))
    done = project.apply("--wait", code=4)
    assert done.out.endswith("task/job: failed: rank/job-1 failed: exit code 3\n")
    project.no_changes()
    assert "run again" not in project.run("logs", "job/1", "-f").err
    said = project.run("status").out
    assert "rank/job-1 failed: exit code 3" in said  # why rank 0 was stopped


def test_what_is_stopped_by_the_user_is_not_started_again_by_who_follows(project):
    """Also between two attempts, when nothing runs."""
    project.declare(fleet(), flaky(project.path, good=9, retry=True))
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(lines(project.path / "ran")) >= 4)  # the second attempt; the third is 15 s away
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    project.run("stop", "job", "--lock-timeout", "60")
    ended(follower, 4)
    project.no_changes()


def test_who_follows_does_not_take_back_what_another_command_declares(project):
    """What it would do again is not what is declared by now."""
    project.declare(fleet(), flaky(project.path, good=9, retry=True))
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(lines(project.path / "ran")) >= 4)  # the second attempt; the third is 15 s away
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    project.declare(fleet(), task("job", "exit 5", retry=True))
    project.apply("--lock-timeout", "60")
    done = ended(follower, 4)
    assert "task/job was changed by another command: this one runs nothing again" in done.err
    assert [r["exit_code"] for r in project.ranks("job").values()] == [5]


def test_who_follows_says_that_another_command_took_its_task_away(project):
    """It waits until that one is done: a task that is declared anew is gone for a moment, too."""
    project.declare(fleet(), flaky(project.path, good=9, retry=True))
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(lines(project.path / "ran")) >= 4)  # the second attempt; the third is 15 s away
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    project.declare(fleet())
    project.apply("--lock-timeout", "60")
    done = ended(follower, 4)
    assert "task/job was changed by another command: this one runs nothing again" in done.err


def test_wait_waits_for_a_place(project):
    """A task that does not fit now is started when another one gives its blocks back."""
    go, ran = project.path / "go", project.path / "ran"
    busy = task("busy", f"while [ ! -e {go} ]; do sleep 0.05; done", resources={"cpu": 2})
    late = task("late", f"echo late >> {ran}", resources={"cpu": 2}, retry={"on_events": ["no-capacity"]})
    project.declare(fleet(), {**busy, "priority": 9}, late)
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: project.ranks("busy")[0]["state"] == "running")
    go.touch()
    done = ended(follower)
    assert done.out.endswith("task/busy: succeeded\ntask/late: succeeded\n")
    assert lines(ran) == ["late"]
