"""`retry` after failures, by the installed command on the local backend."""

from __future__ import annotations

import pytest

from tests.support.cli import ended, fleet, lines, release, task, until


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_ends_than_the_named_stay_ended_and_say_why(project):
    project.declare(fleet(), flaky(project.path, good=9, retry={"on_events": ["interruption"]}))
    done = project.apply("--wait", code=4)
    assert done.out.endswith("task/job: failed: rank/job-1 failed: exit code 3\n")
    project.no_changes()
    assert "run again" not in project.run("logs", "job/1", "-f").err
    said = project.run("status").out
    assert "rank/job-1 failed: exit code 3" in said  # why rank 0 was stopped


@pytest.mark.slow
def test_what_is_stopped_by_the_user_is_not_started_again_by_who_follows(project):
    """Also between two attempts, when nothing runs."""
    project.declare(fleet(), flaky(project.path, good=9, retry=True))
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(lines(project.path / "ran")) >= 4)  # the second attempt; the third is 15 s away
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    project.run("stop", "job", "--lock-timeout", "60")
    ended(follower, 4)
    project.no_changes()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_idle_nodes_are_given_back_while_tasks_are_followed(project):
    """As docs/placement.md says; another one stays for who needs it, and the target stays."""
    go = project.path / "go"
    whole = {"resources": {"cpu": 2}}
    nodes = fleet(nodes="0..3", idle_duration=1, backends=["local"])
    tasks = (
        task("short", "true", **whole),
        task("brief", "true", **whole),
        task("long", release(go), **whole),
    )
    project.declare(nodes, *tasks)
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(nodes_of(project)) == 3)
    until(lambda: len(nodes_of(project)) == 1)
    assert nodes_of(project) == [project.ranks("long")[0]["node"]]
    go.touch()
    done = ended(watcher, 0)
    assert sum("deleted" in line for line in done.err.splitlines()) == 2
    assert "task/long: succeeded" in done.out


@pytest.mark.slow
def test_who_ends_says_what_stays_and_is_billed(project):
    """It does not go on for idle nodes alone."""
    priced = {"instance_type": "big", "cpu": 2, "memory": "1GB", "price": 2.5}
    local = {"type": "backend", "name": "lab", "driver": "local", "catalog": [priced]}
    nodes = fleet(nodes="0..1", idle_duration="2h", backends=["lab"])
    project.declare(local, nodes, task("short", "true"))
    done = project.apply("--wait")
    assert "node/gpu-0 is idle: `fleetform apply` gives it back from 20" in done.err
    project.declare(local, {**nodes, "nodes": "1..1"}, task("short", "true"))
    assert "is idle" not in project.apply("--wait", "--replace", "task/short").err


def nodes_of(project):
    """The nodes that there are."""
    folder = project.local / "nodes"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []
