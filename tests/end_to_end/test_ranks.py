"""What real ranks see and how they end, run by the installed command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import providers
from tests.support.cli import ended, every_text, fleet, hold, lines, processes, release, task, until, volume

RUNNER = Path(providers.__file__).with_name("runner") / "runner.sh"
ENVIRONMENT = "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
GANG = ("MASTER_NODE_IP", "NODES_IPS", "GPUS_PER_NODE", "GPUS_NUM", "MPI_HOSTFILE")
AFFINITY = "python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'"


def seen_by(project, rank):
    """The environment that a rank has printed."""
    return json.loads(project.logs(rank))


def both(env, name):
    """A variable with either prefix, which have to agree."""
    assert env["FLEETFORM_" + name] == env["DSTACK_" + name]
    return env["FLEETFORM_" + name]


# ------------------------------------------------------------------------------------ the environment


@pytest.mark.slow
def test_environment_of_a_cluster(project):
    """The variables of docs/tasks.md, with both prefixes; what fleet, task and volumes add; and no more."""
    project.declare(
        fleet(
            nodes=2,
            backends=["local"],
            resources={"cpu": 2, "memory": "1GB", "gpu": 8},
            env={"COLOUR": "red", "SHAPE": "round"},
        ),
        volume("data", count=2),
        task(
            "job",
            ENVIRONMENT,
            'cat "$FLEETFORM_MPI_HOSTFILE" > "$FLEETFORM_VOLUME_DATA/hosts"',
            nodes=2,
            env={"COLOUR": "blue"},
            volumes=["data-${{ node_rank }}:/data"],
        ),
    )
    project.apply("--wait", env={"CALLERS_SECRET": "hunter2"})
    for rank in (0, 1):
        env = seen_by(project, f"job/{rank}")
        assert str(rank) == both(env, "NODE_RANK")
        assert both(env, "NODES_NUM") == "2"
        assert both(env, "MASTER_NODE_IP") == "127.0.0.1"
        assert both(env, "NODES_IPS") == "127.0.0.1\n127.0.0.1"
        assert both(env, "GPUS_PER_NODE") == "8"
        assert both(env, "GPUS_NUM") == "16"
        hostfiles = [env[prefix + "_MPI_HOSTFILE"] for prefix in ("FLEETFORM", "DSTACK")]
        assert [Path(file).name for file in hostfiles] == ["plain", "openmpi"]  # as dstack's images expect
        for name, ours in (("NODE_RANK", "NODE_RANK"), ("NUM_NODES", "NODES_NUM"), ("NODE_IPS", "NODES_IPS")):
            assert env[f"SKYPILOT_{name}"] == both(env, ours)
        assert env["SKYPILOT_NUM_GPUS_PER_NODE"] == both(env, "GPUS_PER_NODE")
        assert lines(project.data(f"data-{rank}") / "hosts") == ["127.0.0.1"] * 16
        assert (env["COLOUR"], env["SHAPE"]) == ("blue", "round")
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
        assert str(project.data(f"data-{rank}")) == env["FLEETFORM_VOLUME_DATA"]
        assert "CALLERS_SECRET" not in env


@pytest.mark.slow
def test_ranks_of_placement_any_are_told_nothing_of_each_other(project):
    """`NODE_RANK` and `NODES_NUM`, and no variable about other nodes."""
    project.declare(fleet(nodes=2, placement="any"), task("job", ENVIRONMENT, nodes=2, placement="any"))
    project.apply("--wait")
    for rank in (0, 1):
        env = seen_by(project, f"job/{rank}")
        assert (str(rank), "2") == (both(env, "NODE_RANK"), both(env, "NODES_NUM"))
        assert [n for n in GANG if f"FLEETFORM_{n}" in env or f"DSTACK_{n}" in env] == []
        assert "SKYPILOT_NODE_IPS" not in env


@pytest.mark.slow
def test_folders_of_the_host(project, tmp_path):
    """At their paths in the rank, without a volume; a change of them runs the task anew."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "hello").write_text("hello\n")
    seen, other = tmp_path / "seen", tmp_path / "other"
    optional = {"instance_path": str(tmp_path / "nosuch"), "path": str(other), "optional": True}
    job = task("job", f"cat {seen}/hello", f"test ! -e {other}", volumes=[f"{tmp_path}/own:{seen}", optional])
    project.declare(fleet(nodes=1), job)
    project.apply("--wait")
    assert project.logs("job") == "hello\n"
    assert project.status()["volumes"] == []
    job["volumes"][1]["path"] = str(tmp_path / "elsewhere")
    project.declare(fleet(nodes=1), job)
    plan = project.plan()
    assert plan["summary"]["replace"] == 1
    assert {tuple(a["because"]) for a in plan["actions"] if a["address"] == "rank/job-0"} == {
        ("instance_paths",)
    }


@pytest.mark.slow
def test_a_rank_without_its_folder_of_the_host_fails_and_says_so(project, tmp_path):
    """Before its first command; its log says so too."""
    project.declare(fleet(nodes=1), task("job", "echo ran", volumes=[f"{tmp_path}/nosuch:/seen"]))
    done = project.apply("--wait", code=4)
    assert f"rank/job-0 failed: its host has no {tmp_path}/nosuch (`instance_path`)" in done.out
    assert project.logs("job") == (
        f"fleetform: this host has no {tmp_path}/nosuch, which is to be mounted at /seen\n"
    )


@pytest.mark.slow
def test_tasks_that_share_a_node_share_nothing_else(project):
    """Two tasks on one node see GPUs and CPUs that are not each other's, and threads for their own CPUs."""
    shape = {"cpu": 2, "memory": "1GB", "gpu": 8}
    go = project.path / "go"
    project.declare(
        fleet(nodes=1, backends=["local"], blocks=2, resources=shape),
        *(
            task(name, ENVIRONMENT, AFFINITY, release(go), resources={"gpu": 4, "cpu": 1})
            for name in ("left", "right")
        ),
    )
    project.apply()
    assert project.busy() == {"gpu-0": 2}
    names = ("left", "right")
    until(lambda: all(project.logs(name).count("\n") == 2 for name in names))
    found = [project.logs(name).splitlines() for name in names]
    go.touch()
    gpus = [set(json.loads(text)["CUDA_VISIBLE_DEVICES"].split(",")) for text, _ in found]
    cpus = [set(text.split()) for _, text in found]
    assert [len(g) for g in gpus] == [4, 4]
    assert len(gpus[0] | gpus[1]) == 8
    assert not cpus[0] & cpus[1] or len(cpus[0] | cpus[1]) < 2  # a machine with one CPU wraps around
    assert [json.loads(text)["OMP_NUM_THREADS"] for text, _ in found] == ["1", "1"]


@pytest.mark.slow
def test_blocks_are_real(project):
    """The kernel limits ranks to their CPUs and memory if it can; a rank that wants more gets an error."""
    look = f'. "{RUNNER.with_name("confine.sh")}"; able'
    if subprocess.run(["sh", "-c", look], capture_output=True, check=False).returncode:
        pytest.skip("this user can make no control groups here")
    go = project.path / "go"
    widen = "taskset -c -p 0-1023 $$ >/dev/null || true"
    project.declare(
        fleet(nodes=1, blocks=4, resources={"cpu": 4, "memory": "256MB"}),
        task("left", widen, AFFINITY, release(go), isolation="hard", resources={"cpu": 1}),
        task("right", AFFINITY, release(go), resources={"cpu": 1}),
        task("eats", release(go), "head -c 400M /dev/zero | tail -n 1 >/dev/null", resources={"cpu": 1}),
    )
    project.apply()
    ranks = project.node("gpu-0") / "ranks"
    folders = {name: next(ranks.glob(f"{name}-0.1.*")) for name in ("left", "right", "eats")}
    logs = [folders[name] / "log" for name in ("left", "right")]
    until(lambda: all("\n" in log.read_text() for log in logs))
    assert re.search(
        r"rank/left-0 +running +node/gpu-0 +limits hard: cgroup-v[12]\n", project.run("status").out
    )
    left, right = (set(log.read_text().split()) for log in logs)
    assert not left & right or len(left | right) < 2  # a machine with one CPU wraps around
    go.touch()
    until(lambda: all((folder / "exit").exists() for folder in folders.values()))
    said = project.run("status").out
    assert re.search(r"rank/left-0 +succeeded", said)
    assert re.search(r"rank/eats-0 +failed .*exit code 137, .*killed: out of memory \(limit 64MB\)", said)


@pytest.mark.slow
def test_old_attempts_go_and_the_last_two_stay(project):
    """Logs and folders of what was long ago, and of tasks that are forgotten."""
    job, other = task("job", "echo hello > file; cat file"), task("other", "true")
    project.declare(fleet(nodes=1), job, other)
    project.apply("--wait")
    project.declare(fleet(nodes=1), job)
    for _ in range(2):
        project.apply("--wait", "--replace", "task/job")
    ranks = sorted(path.name for path in (project.node("gpu-0") / "ranks").glob("[!.]*"))
    assert [name.split(".")[:2] for name in ranks] == [["job-0", "2"], ["job-0", "3"]]
    assert sorted(path.name for path in (project.node("gpu-0") / "work").iterdir()) == ranks
    assert project.logs("job") == "hello\n"


SECRET = "correct-horse-battery-staple"


@pytest.mark.slow
def test_secrets_reach_the_rank_and_nothing_else(project):
    """`${{ env.X }}` is in no file of the state, no plan and no output."""
    seen = project.path.parent / "seen"
    go = project.path.parent / "go"
    project.declare(
        fleet(env={"FLEETS": "${{ env.TOKEN }}"}),
        task(
            "job",
            f'printf %s "$FLEETS $MINE" > {seen}',
            release(go),
            env={"MINE": "Bearer ${{ env.TOKEN }}"},
        ),
    )
    env = {"TOKEN": SECRET}
    said = [project.run("plan", env=env), project.run("plan", "--json", env=env)]
    said.append(project.apply(env=env))
    until(seen.exists)
    assert f"{SECRET} Bearer {SECRET}" == seen.read_text()
    said += [project.run(*c.split(), env=env) for c in ("status", "status --json", "state pull", "logs job")]
    said.append(project.run("state", "show", "rank/job-0", env=env))
    leaks = [str(file) for file, data in every_text(project.path) if SECRET.encode() in data]
    assert leaks == []
    assert [d for d in said if SECRET in d.out + d.err] == []
    go.touch()
    project.apply("--wait", env=env)
    assert [str(file) for file, data in every_text(project.path) if SECRET.encode() in data] == []


@pytest.mark.slow
def test_missing_variable_is_named_before_anything_is_made(project):
    """All that are missing at once; neither nodes nor ranks are made for them."""
    project.declare(
        fleet(nodes=2, env={"A": "${{ env.FLEETS_TOKEN }}"}),
        task("job", "true", nodes=2, env={"B": "${{ env.TASKS_TOKEN }}", "C": "${{ env.SET }}"}),
    )
    done = project.apply(code=1, env={"SET": ""})
    assert (
        "error[missing-env]: the environment variable `FLEETS_TOKEN` is not set; task/job needs it"
        in done.err
    )
    assert "error[missing-env]: the environment variable `TASKS_TOKEN` is not set" in done.err
    assert "export TASKS_TOKEN=" in done.err
    assert not project.local.exists()
    assert project.run("state", "pull").json["records"] == []
    project.apply("--wait", env={"SET": "", "FLEETS_TOKEN": "x", "TASKS_TOKEN": "y"})


# ----------------------------------------------------------------------------------------- the gang


@pytest.mark.slow
def test_first_failure_stops_the_others(project):
    """`--wait` stops the gang, says which rank it was and why, and exits 4."""
    up = project.path / "up"
    project.declare(
        fleet(nodes=2),
        task("job", f"if [ $FLEETFORM_NODE_RANK = 1 ]; then {release(up)}; exit 7; fi", hold(up), nodes=2),
    )
    done = project.apply("--wait", code=4)
    assert "rank/job-1: failed: exit code 7\n" in done.err
    assert "rank/job-0: stopped: rank/job-1 failed: exit code 7\n" in done.err
    assert done.out.endswith("task/job: failed: rank/job-1 failed: exit code 7\n")
    ranks = project.ranks("job")
    assert (ranks[0]["state"], ranks[1]["state"], ranks[1]["exit_code"]) == ("stopped", "failed", 7)
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}
    assert processes(project.path) == {}
    project.no_changes()  # what has failed stays so until its declaration changes


@pytest.mark.slow
def test_next_apply_stops_a_gang_that_has_failed(project):
    """Without `--wait`, too: whichever command may act does."""
    up, go = project.path / "up", project.path / "go"
    project.declare(
        fleet(nodes=2),
        task("job", f"if [ $FLEETFORM_NODE_RANK = 1 ]; then {release(go)}; exit 7; fi", hold(up), nodes=2),
    )
    assert "running: task/job (follow with `fleetform logs job -f`)" in project.apply().err
    until(up.exists)
    go.touch()
    until(lambda: project.ranks("job")[1]["state"] == "failed")
    assert project.ranks("job")[0]["state"] == "running"
    done = project.apply()
    assert "rank/job-0: stopped: rank/job-1 failed: exit code 7\n" in done.err
    assert processes(project.path) == {}


@pytest.mark.slow
def test_master_done(project):
    """With `stop_criteria: master-done` the others are stopped once rank 0 is done, and all is well."""
    up = project.path / "up"
    command = f"if [ $FLEETFORM_NODE_RANK = 0 ]; then {release(up)}; exit 0; fi"
    project.declare(fleet(nodes=2), task("job", command, hold(up), nodes=2, stop_criteria="master-done"))
    done = project.apply("--wait")
    assert "rank/job-1: stopped: rank/job-0 is done\n" in done.err
    assert done.out.endswith("task/job: succeeded\n")


@pytest.mark.slow
@pytest.mark.parametrize(("order", "where"), [("master-first", 0), ("workers-first", -1)])
def test_startup_order(project, order, where):
    """Rank 0 is started before all others, or after all others have been."""
    project.declare(fleet(nodes=3), task("job", "true", nodes=3, startup_order=order))
    said = project.apply("--wait").err.splitlines()
    steps = [line.partition(" (")[0] for line in said if line.startswith("rank/") and "start" in line]
    pairs = [steps[i : i + 2] for i in range(0, 6, 2)] if where == 0 else [steps[-2:]]
    assert pairs[where] == ["rank/job-0: starting…", "rank/job-0: started"]


@pytest.mark.slow
def test_max_duration(project):
    """The supervisor ends a rank that takes too long, without any command; it counts as failed."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up), max_duration=1))
    done = project.apply("--wait", code=4)
    assert done.out.endswith("task/job: failed: rank/job-0 failed: max_duration reached\n")


@pytest.mark.slow
def test_stop_duration(project):
    """A rank that does not heed TERM is killed when its `stop_duration` is over; `stop` returns then."""
    up = project.path / "up"
    project.declare(fleet(), task("job", "trap '' TERM", hold(up), stop_duration=1))
    project.apply()
    until(up.exists)
    before = time.monotonic()
    done = project.run("stop", "job")
    assert time.monotonic() - before >= 1
    assert done.out == "task/job is stopped.\n"
    assert processes(project.path) == {}
    assert tuple(project.ranks("job")[0][k] for k in ("state", "exit_code")) == (
        "stopped",
        128 + signal.SIGKILL,
    )
    assert project.busy() == {"gpu-0": 0}
    project.no_changes()


@pytest.mark.slow
def test_stop_while_apply_waits(project):
    """The watcher holds the lock for moments only; it says that the task was stopped, and exits 4."""
    up = project.path / "up"
    project.declare(fleet(nodes=2), task("job", hold(up), nodes=2))
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(lines(up)) == 2)
    assert project.run("stop", "task/job", "--lock-timeout", "1m").out == "task/job is stopped.\n"
    done = ended(watcher, 4)
    assert done.out.endswith("task/job: stopped: rank/job-0 stopped: stopped by the user\n")
    project.run("stop", "job")  # again is no harm
    assert "unknown" not in project.run("stop", "jop", code=1).err


def test_task_is_removed_while_apply_waits(project):
    """The watcher of a task that somebody else destroys says so, and exits 4."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up)))
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(up.exists)
    project.run("destroy", "--auto-approve")
    assert "task/job: " in ended(watcher, 4).out.splitlines()[-1]


# ------------------------------------------------------------------------------------------- output


@pytest.mark.slow
def test_logs(project):
    """Several ranks with a prefix, one without; `-f` until the end; missing output is reported."""
    go = project.path / "go"
    project.declare(
        fleet(nodes=2),
        task("job", "echo one $FLEETFORM_NODE_RANK", release(go), "printf 'two, without an end'", nodes=2),
    )
    project.apply()
    follower = project.start("logs", "job", "-f")
    until(lambda: project.logs("job") == "0 | one 0\n1 | one 1\n")
    assert (
        "one 1\n" == project.logs("job/1") == project.logs("rank/job-1") == project.logs("job", "--rank", "1")
    )
    go.touch()
    followed = ended(follower).out
    assert sorted(followed.splitlines()) == [
        "0 | one 0",
        "0 | two, without an end",
        "1 | one 1",
        "1 | two, without an end",
    ]
    until(lambda: project.ranks("job")[0]["state"] == "succeeded")
    project.apply()  # gives the blocks back; the output stays
    assert project.logs("task/job", "--rank", "0") == "one 0\ntwo, without an end\n"
    ended_rank = project.run("exec", "job/0", "--", "true", code=1)
    assert "on its node: `fleetform ssh gpu-0`" in ended_rank.err
    project.apply("--replace", "node/gpu-1")  # its output goes with it
    for options in ([], ["-f"]):
        half = project.run("logs", "job", *options, code=1)
        assert half.out == "0 | one 0\n0 | two, without an end\n"
        assert "error[gone]: the output of rank/job-1 is gone: node/gpu-1 does not have it" in half.err
    assert "did you mean `job`?" in project.run("logs", "jobb", code=1).err
    assert "its ranks are 0 to 1" in project.run("logs", "job/2", code=1).err
