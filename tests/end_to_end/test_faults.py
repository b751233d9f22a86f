"""Nothing is lost or made twice, whatever is interrupted, killed, removed or in the way."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from declarative.store import open_store
from tests.support.cli import ended, fleet, lines, on_terminal, processes, release, task, until, volume

CRASH = Path(__file__).parents[1] / "support" / "crash.py"


def gang(project, nodes=2):
    """A gang that tells when it runs, ends when `go` is there, and notes each rank that has ended."""
    go, runs = project.path / "go", project.path / "runs"
    command = release(go, f"touch {project.path}/up-$FLEETFORM_NODE_RANK")
    return task("job", command, f"echo $FLEETFORM_NODE_RANK >> {runs}", nodes=nodes)


# ---------------------------------------------------------------------------------------- cut short


@pytest.mark.slow
@pytest.mark.parametrize("when", ["write", "begin"])
@pytest.mark.parametrize("command", ["apply", "destroy", "cleanup"])
def test_killed_at_every_step(tmp_path, command, when):
    """SIGKILL at each write, and between each intent and its call: the next run completes it."""
    env = {**os.environ, "PYTHONPATH": str(CRASH.parents[1])}
    process = subprocess.run(
        [sys.executable, CRASH, tmp_path, command, when],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    steps = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(steps) >= (2 if (command, when) == ("cleanup", "begin") else 5)
    expected: dict[str, dict] = {
        "apply": {"looked": [0, True], "plan": 0, "runs": ["0", "1"]},
        "destroy": {"left": []},
        "cleanup": {"plan": 0, "left": []},
    }
    wanted = expected[command]
    for found in steps:
        output = found.pop("output")
        step = found.pop("step")
        assert {"killed": -signal.SIGKILL, "again": 0, "check": 0, **wanted} == found, (
            f"step {step}\n{output}"
        )


@pytest.mark.slow
def test_killed_at_any_time(project):
    """Killed again and again at chance instants, apply still comes to its end, with everything there once."""
    project.declare(
        fleet(nodes=2), volume("data", count=2), {**gang(project), "volumes": ["data-${{ node_rank }}:/d"]}
    )
    chance = random.Random(7)
    for _ in range(6):
        process = project.start("apply", "--auto-approve", start_new_session=True)
        time.sleep(chance.uniform(0.05, 0.6))  # not to wait for something: an instant like any other
        process.kill()
        ended(process, None)
    project.apply()
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    (project.path / "go").touch()
    project.apply("--wait")
    assert sorted(lines(project.path / "runs")) == ["0", "1"]
    project.no_changes()


def test_ranks_outlive_their_apply(project):
    """A rank goes on when apply is killed; the next command finds it, and its output."""
    up, go = project.path / "up", project.path / "go"
    project.declare(fleet(), task("job", "echo here", release(go, f"touch {up}"), "echo done"))
    watcher = project.start("apply", "--auto-approve", "--wait", start_new_session=True)
    until(up.exists)
    os.killpg(watcher.pid, signal.SIGKILL)
    ended(watcher, -signal.SIGKILL)
    assert project.ranks("job")[0]["state"] == "running"
    assert project.logs("job") == "here\n"
    go.touch()
    assert (
        project.apply("--wait").out.endswith("task/job: succeeded\n")
        or project.ranks("job")[0]["exit_code"] == 0
    )
    assert project.logs("job") == "here\ndone\n"
    assert project.ranks("job")[0]["attempt"] == 1


class Slow:
    """An apply that is in the middle of something: it replaces a rank that takes its time to end."""

    def __init__(self, project):
        self.project = project
        up, asked, self.leave = (project.path / n for n in ("up", "asked", "leave"))
        old = release(self.leave, f"trap 'touch {asked}' TERM", f"touch {up}")
        project.declare(fleet(), task("job", old, stop_duration="10m"))
        project.apply()
        until(up.exists)
        project.declare(fleet(), gang(project, nodes=1))
        self.process = project.start("apply", "--auto-approve", start_new_session=True)
        until(asked.exists, "the rank is asked to stop")

    def end(self, code=0):
        """Let the rank end, and the apply with it."""
        self.leave.touch()
        return ended(self.process, code)

    def complete(self):
        """Apply again: the interrupted part is done, once."""
        self.leave.touch()
        (self.project.path / "go").touch()
        done = self.project.apply("--wait")
        assert lines(self.project.path / "runs") == ["0"]
        self.project.no_changes()
        return done


@pytest.fixture
def slow(project):
    """An apply in the middle of something."""
    return Slow(project)


@pytest.mark.slow
def test_one_interrupt(project, slow):
    """No new actions, the running one ends, exit 130; the next apply does the rest, and nothing twice."""
    slow.process.send_signal(signal.SIGINT)
    until(lambda: "stopping: no new actions" in slow.process.stderr.readline())
    done = slow.end(130)
    assert "rank/job-0: stopped" in done.err
    assert "1 done, 0 failed, 1 skipped" in done.out
    assert processes(project.path) == {}
    project.run("state", "check")
    assert [i for i in project.ids() if "rank" in i] == ["create:rank/job-0"]
    slow.complete()


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_two_interrupts(slow, second):
    """The second one ends it at once; the journal covers the rest."""
    slow.process.send_signal(signal.SIGINT)
    until(lambda: "stopping:" in slow.process.stderr.readline())
    slow.process.send_signal(second)
    ended(slow.process, 130)
    slow.complete()


def test_interrupt_of_the_watcher(project):
    """Ctrl-C while `--wait` watches leaves the tasks alone."""
    project.declare(fleet(nodes=2), gang(project))
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    until(lambda: "Apply complete" in watcher.stdout.readline())
    watcher.send_signal(signal.SIGINT)
    assert "leaving: the tasks go on (`fleetform status`, `fleetform logs job -f`)" in ended(watcher, 130).err
    assert [r["state"] for r in project.ranks("job").values()] == ["running"] * 2


# ------------------------------------------------------------------------------------------ the lock


def test_lock(project, slow):
    """A second apply names the lock's holder, or waits as long as told; reading needs no lock."""
    refused = project.apply(code=1)
    assert "error[locked]: the state is locked by `apply` on " in refused.err
    assert f"pid {slow.process.pid}" in refused.err
    assert "--lock-timeout 10m" in refused.err
    assert refused.out == ""
    project.plan()
    waiting = project.start("apply", "--auto-approve", "--lock-timeout", "10m")
    assert waiting.stderr.readline().startswith("waiting for `apply` on ")
    slow.end()
    assert "No changes" in ended(waiting).out


STATE = "sqlite:///{}/.fleetform/state.db"


@pytest.mark.slow
def test_after_a_wait_the_files_are_read_again(project):
    """What somebody declared and applied meanwhile is not undone."""
    project.declare(fleet(nodes=1))
    project.apply()
    with open_store(STATE.format(project.path)) as store:
        with store.lock("apply"):
            waiting = project.start("apply", "--auto-approve", "--lock-timeout", "10m")
            assert waiting.stderr.readline().startswith("waiting for `apply` on ")
            project.declare(fleet(nodes=2), task("job", "true", env={"X": "1"}))
        done = ended(waiting)
        assert "+ node/gpu-1" in done.out
        assert "running: task/job" in done.err, "what it follows is that of the new files"
        with store.lock("apply"):
            waiting = project.start("apply", "--auto-approve", "--lock-timeout", "10m")
            assert waiting.stderr.readline().startswith("waiting for `apply` on ")
            project.declare({"type": "project", "state": "sqlite:///other.db"}, fleet(nodes=0))
        assert "names another state now" in ended(waiting, 1).err


@pytest.mark.slow
def test_after_a_wait_destroy_keeps_what_is_protected_now(project):
    project.declare(fleet(nodes=1), volume())
    project.apply()
    with open_store(STATE.format(project.path)) as store, store.lock("apply"):
        waiting = project.start("destroy", "--auto-approve", "--lock-timeout", "10m")
        assert waiting.stderr.readline().startswith("waiting for `apply` on ")
        project.declare(fleet(nodes=1, prevent_destroy=True), volume())
    ended(waiting)
    assert project.run("state", "list").out == "node/gpu-0\n"


@pytest.mark.slow
def test_lock_of_a_dead_holder(project, slow):
    """It lapses at once where the holder can be seen to be dead."""
    slow.process.kill()
    ended(slow.process, -signal.SIGKILL)
    assert "waiting" not in slow.complete().err
    assert project.run("state", "unlock").out == "Nobody holds the lock.\n"


@pytest.mark.slow
def test_unlock(project, slow):
    """Who loses the lock writes nothing more, and says so; the next run takes up what it had begun."""
    assert f"pid {slow.process.pid}" in project.run("state", "unlock").out
    assert "has lost the state's lock" in slow.end(4).out
    slow.complete()


# ------------------------------------------------------------------------------------ things that go


@pytest.mark.slow
def test_node_is_gone(project):
    """A folder that was removed by hand is drift; its rank is lost, and apply makes both anew."""
    project.declare(fleet(nodes=2), gang(project))
    project.apply()
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    shutil.rmtree(project.node("gpu-1"))
    plan = project.plan()
    assert plan["drift"] == [{"address": "node/gpu-1", "change": "gone", "detail": "not there any more"}]
    assert [(a["reason"], a["id"]) for a in plan["actions"] if a["address"] == "node/gpu-1"] == [
        ("gone", "create:node/gpu-1")
    ]
    check = project.run("state", "check", code=1)
    assert check.out == "node/gpu-1: gone: not there any more\n"
    status = project.status()
    assert ([n["name"] for n in status["nodes"]], status["drift"]) == (["gpu-0"], plan["drift"])
    assert (
        "Changed outside of fleetform:\n\n  node/gpu-1  gone  not there any more\n"
        in project.run("status").out
    )
    assert project.ranks("job")[1]["state"] == "lost"
    done = project.apply()
    assert "rank/job-1: lost: node/gpu-1 is gone" in done.err
    assert "rank/job-0: stopped: rank/job-1 lost: node/gpu-1 is gone" in done.err
    assert "+ node/gpu-1  # recorded, but gone" in done.out
    project.no_changes()  # a lost task stays lost until it is asked for
    for up in project.path.glob("up-*"):
        up.unlink()
    (project.path / "go").touch()
    project.apply("--wait", "--replace", "task/job")
    assert [r["exit_code"] for r in project.ranks("job").values()] == [0, 0]


def test_node_goes_while_apply_waits(project):
    """The watcher notices by itself, stops the rest of the gang, and exits 4."""
    project.declare(fleet(nodes=2), gang(project))
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    # Moved first: what the watcher writes there meanwhile would make its removal fail.
    shutil.rmtree(project.node("gpu-0").rename(project.path / "gone"), ignore_errors=True)
    done = ended(watcher, 4)
    assert done.out.endswith("task/job: lost: rank/job-0 lost: node/gpu-0 is gone\n")


@pytest.mark.slow
def test_a_rank_runs_on_although_its_folder_vanished(project):
    """It is not lost while its processes run, and it is not started a second time."""
    up, go = project.path / "up", project.path / "go"
    project.declare(fleet(), task("job", release(go, f"echo x >> {up}")))
    project.apply()
    until(lambda: lines(up))
    (folder,) = (project.node("gpu-0") / "ranks").glob("job-0.*")
    shutil.rmtree(folder)
    project.no_changes()
    assert project.ranks("job")[0]["state"] == "running"
    assert "No changes" in project.apply().out
    go.touch()
    project.apply("--wait")
    assert (project.ranks("job")[0]["state"], lines(up)) == ("succeeded", ["x"])


def test_several_things_are_gone(project):
    """That is more likely a fault than the truth: apply stops and asks, `--accept-vanished` goes on."""
    project.declare(fleet(nodes=3), gang(project))
    project.apply()
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    for name in ("gpu-0", "gpu-2"):
        shutil.rmtree(project.node(name))
    before = project.run("state", "pull").out
    refused = project.apply(code=1)
    assert "error[vanished]: 2 things are gone at once: node/gpu-0, node/gpu-2" in refused.err
    assert "--accept-vanished" in refused.err
    assert json.loads(before)["records"] == project.run("state", "pull").json["records"]
    assert "--accept-vanished" in project.run("destroy", "--auto-approve", code=1).err
    project.apply("--accept-vanished")
    assert {"gpu-0", "gpu-1", "gpu-2"} == {p.name for p in (project.local / "nodes").iterdir()}
    project.no_changes()


def test_several_things_go_while_apply_waits(project):
    """The watcher believes it no more than apply does: it leaves, and says what to do."""
    project.declare(fleet(nodes=2), gang(project))
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    (project.local / "nodes").rename(project.local / "hidden")
    assert "error[vanished]: 2 things are gone at once" in ended(watcher, 1).err
    assert "could not be stopped" in project.run("stop", "job", code=4).err
    (project.local / "hidden").rename(project.local / "nodes")
    (project.path / "go").touch()
    project.apply("--wait")
    assert sorted(lines(project.path / "runs")) == ["0", "1"]


@pytest.mark.slow
def test_a_watcher_that_was_told_to_accept_what_vanished_goes_on(project):
    """`--accept-vanished` is its user's word for as long as it follows: the gang runs again on new nodes."""
    project.declare(fleet(nodes="0..2"), {**gang(project), "retry": True})
    watcher = project.start("apply", "--auto-approve", "--wait", "--accept-vanished")
    until(lambda: len(list(project.path.glob("up-*"))) == 2)
    (project.local / "nodes").rename(project.local / "hidden")
    (project.path / "go").touch()
    done = ended(watcher, 0)
    assert "task/job runs again in 1 s: rank/job-0 lost: node/gpu-0 is gone" in done.err
    assert {"gpu-0", "gpu-1"} == {p.name for p in (project.local / "nodes").iterdir()}


def test_damaged_node(project):
    """A node whose `fleetform.json` cannot be read takes no work, and is neither gone nor forgotten."""
    project.declare(fleet(nodes=2))
    project.apply()
    (project.node("gpu-0") / "fleetform.json").write_text("{")
    states = {n["name"]: n["state"] for n in project.status()["nodes"]}
    assert states == {"gpu-0": "not_ready", "gpu-1": "ready"}
    project.declare(fleet(nodes=2), gang(project))
    done = project.apply(code=3)
    assert "node/gpu-0" in done.out
    assert "not_ready" in done.out
    assert "gpu-0" in project.run("state", "check", code=1).out
    project.declare(fleet(nodes=2), gang(project, nodes=1))
    assert "backend/local could not be read" in project.apply(code=4).err
    assert project.ranks("job")[0]["node"] == "gpu-1"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["damaged", "gone"])
def test_node_breaks_between_preview_and_use(project, fault):
    """The plan was made while it was ready. It is looked at once more before its blocks are taken: nothing is
    started on it, and what needs nothing of it goes on.
    """
    project.declare(fleet(nodes=2))
    project.apply()
    ran = project.path / "ran"
    tasks = [task(f"job-{n}", f"echo {n} >> {ran}", instances=[f"gpu-{n}"]) for n in "01"]
    project.declare(fleet(nodes=2), *tasks)
    assert [r["status"] for r in project.plan()["reservations"]] == ["new", "new"]

    def fault_it():
        if fault == "gone":
            shutil.rmtree(project.node("gpu-0"))
        else:
            (project.node("gpu-0") / "fleetform.json").write_text("{")

    code, screen = on_terminal(project, "apply", "--wait", answer="yes\n", asked=fault_it)
    assert code == 4, screen
    assert "Nodes: observed at " in screen
    assert "reservation/job-0-0: failed" in screen
    assert re.search(r"node/gpu-0 is (unknown|not_ready|unreachable|failed)", screen)
    assert lines(ran) == ["1"]
    assert project.ranks("job-0")[0]["state"] == "pending"
    assert project.busy().get("gpu-0", 0) == 0
    assert processes(project.path) == {}


@pytest.mark.slow
def test_conflict(project):
    """What belongs to another state is left alone: an action fails, with a hint; what needs it is skipped."""
    other = project.data("data-0").parent
    other.mkdir(parents=True)
    mark = {
        "format": 1,
        "owner": "someone",
        "address": "volume/data-0",
        "token": "x",
        "inputs": {},
        "created": 1.0,
    }
    (other / "fleetform.json").write_text(json.dumps(mark))
    project.declare(
        fleet(nodes=2),
        volume("data", count=2),
        task("bad", "true", volumes=["data-0:/data"], exclusive=True),
        task("good", "true", volumes=["data-1:/data"], exclusive=True),
    )
    done = project.apply("--wait", code=4)
    assert "failed[backend-refused]: create volume/data-0: " in done.out
    assert "= hint: " in done.out
    assert "skipped: needs create:volume/data-0, which failed" in done.out
    assert project.ranks("good")[0]["state"] == "succeeded"
    assert project.ranks("bad")[0]["state"] == "pending"
    events = project.apply("--json", code=4).events
    assert events[-1]["failed"] == 1
    ends = [e for e in events if e["event"] == "end" and e["outcome"] != "done"]
    assert {e["outcome"]: e["code"] for e in ends} == {"failed": "backend-refused", "skipped": None}
    shutil.rmtree(other)
    project.apply("--wait")
    project.no_changes()


def test_nothing_can_be_written(project):
    """No folder for the state, none for the nodes: the error is one sentence."""
    project.declare(fleet())
    blocked = project.path / ".fleetform"
    blocked.write_text("")
    assert "error[" in project.apply(code=1).err
    project.run("plan", code=0)
    blocked.unlink()
    project.apply()
    project.run("destroy", "--auto-approve")
    shutil.rmtree(project.local)
    project.local.write_text("")
    done = project.apply(code=4)
    assert "failed[backend-refused]: create node/gpu-0: " in done.out
    assert str(project.local) in done.out
