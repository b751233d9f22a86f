"""SIGKILL at any moment of an apply or a stop, and of the controller: nothing is lost or made twice.

`FLEETFORM_SEEDS=0,20` runs other schedules of kills than those in CI. Each has up to sixteen kills, and every
other one also kills the controller in the middle. The number of kills is printed (`pytest -rP`).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons
from tests.support.cli import hold, until

pytestmark = pytest.mark.slow
SEEDS = range(*map(int, os.environ.get("FLEETFORM_SEEDS", "0,1").split(",")))
KILLS = 5


@pytest.fixture
def project(slurm: Daemons, tmp_path: Path):
    made = Cluster(tmp_path, slurm)
    yield made
    made.clean_up()


PROGRAM = """#!/bin/sh
# As {real}, but at the moment that is written down it kills itself and its callers, up to fleetform.
name="${{0##*/}} $*" pid=$$ callers=''
die() {{
  read -r last <"{folder}/pid"
  while [ "$pid" != "$last" ] && [ "$pid" -gt 1 ]; do
    pid=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 2)
    callers="$callers $pid"
  done
  [ "$pid" = "$last" ] && callers="$callers $$" || callers=$last # a rank's are Slurm's, and live
  kill -9 $callers
}}
when=''
read -r when what 2>/dev/null <"{folder}/moment"
case $when$name in
before"$what"*) rm "{folder}/moment" && die ;;
after"$what"*) rm "{folder}/moment" && {{ "{real}" "$@"; die; }} ;;
esac
exec "{real}" "$@"
"""


def killed_at(project: Cluster, moment: str, *args: str, runs: str = "") -> None:
    """Run a command and kill it, with its script on the login node, at a moment: `before sbatch`. For a task
    that `runs`, that moment may be past: on a loaded machine a killed script may have started its ranks.
    """
    folder = project.path / "programs"
    if not folder.exists():
        folder.mkdir()
        for name in ("sbatch", "scontrol", "squeue", "srun", "scancel"):
            real = shutil.which(name, path=project.daemons.env["PATH"])
            (folder / name).write_text(PROGRAM.format(real=real, folder=folder))
            (folder / name).chmod(0o755)
    (folder / "pid").write_text("0")
    process = project.start(*args, env={"PATH": f"{folder}:{project.daemons.env['PATH']}"})
    (folder / "pid").write_text(f"{process.pid}\n")
    (folder / "moment").write_text(f"{moment}\n")
    said, wrong = process.communicate(timeout=60)
    if runs and process.returncode == 0 and f"running: task/{runs}" in said:
        (folder / "moment").unlink()
        return
    assert process.returncode == -9, f"{moment} did not come\n{said}{wrong}"


def killed(project: Cluster, chance: random.Random, *args: str) -> bool:
    """Run a command and kill it after a while; whether it lived to be killed."""
    process = project.start(*args)
    try:
        process.communicate(timeout=chance.uniform(0.1, 3.0))
    except TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return False


def ran(project: Cluster, task: str) -> int:
    """How many ranks of a task have begun."""
    file = project.path / task
    return len(file.read_text().split()) if file.exists() else 0


def cut_short(project: Cluster, chance: random.Random, done: Callable[[], bool], *args: str) -> int:
    """Kill a command again and again, then let it end; how often it was killed."""
    kills = 0
    for _ in range(KILLS):
        if killed(project, chance, *args):
            kills += 1
        elif done():
            break
    project.run(*args, code=None)
    project.run(*args)
    return kills


def away_in_the_middle(project: Cluster, *args: str) -> None:
    """Kill the controller while a command runs, then the command, and let the controller come back."""
    process = project.start(*args)
    project.daemons.kill_controller()
    process.kill()
    process.communicate()
    project.daemons.start_controller()
    # Until its nodes have registered again it gives them no work, and an apply says so.
    until(lambda: known(project.daemons.run("sinfo", "-h", "-N", "-o", "%T", check=False)))


def known(states: str) -> bool:
    """Whether the controller answers, and knows its nodes."""
    return bool(states.strip()) and "unk" not in states


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_killed_is_neither_lost_nor_made_twice(project, seed):
    """One job for each gang, each rank begun once, nothing left in the queue; and all can be stopped."""
    chance = random.Random(seed)
    project.declare(project.backend(), project.fleet(), *(gang(project, n) for n in ("left", "right")))
    kills = int(killed(project, chance, "apply", "--auto-approve"))
    if seed % 2:
        away_in_the_middle(project, "apply", "--auto-approve")
    kills += cut_short(project, chance, lambda: False, "apply", "--auto-approve")
    until(lambda: ran(project, "left") >= 2 and ran(project, "right") >= 2)
    assert project.jobs("RUNNING", "PENDING", "COMPLETING") == ["left", "right"]
    assert [r["state"] for n in ("left", "right") for r in project.ranks(n).values()] == ["running"] * 4
    for name in ("left", "right"):
        kills += cut_short(project, chance, lambda: False, "stop", name)
    print(f"seed {seed}: {kills} kills")
    until(lambda: project.jobs("RUNNING", "PENDING", "COMPLETING") == [])
    assert [ran(project, name) for name in ("left", "right")] == [2, 2]
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}
    project.run("state", "check")


def test_killed_round_each_step_of_submitting_releasing_and_starting(project):
    """The script on the login node is killed, too, so that no process does the next steps."""
    project.declare(project.backend(), project.fleet(), gang(project, "left"))
    for step in ("sbatch", "scontrol release", "srun"):
        for when in ("before", "after") if step != "srun" else ("before",):
            killed_at(
                project, f"{when} {step}", "apply", "--auto-approve", runs="left" if step == "srun" else ""
            )
            assert len(project.jobs("RUNNING", "PENDING", "COMPLETING")) <= 1
    project.apply()
    until(lambda: ran(project, "left") >= 2)
    assert project.jobs("RUNNING", "PENDING", "COMPLETING") == ["left"]
    killed_at(project, "before scancel", "stop", "left")
    project.run("stop", "left")
    until(lambda: project.jobs("RUNNING", "PENDING", "COMPLETING") == [])
    assert ran(project, "left") == 2
    assert project.busy() == {"gpu-0": 0, "gpu-1": 0}
    project.run("state", "check")


def gang(project: Cluster, name: str):
    """Two ranks that say that they began, and run until they are stopped."""
    return half(name, hold(project.path / name))


IMPATIENT = """
import declarative.retry
declarative.retry.PATIENCE = declarative.retry.Policy(deadline=3.0)
"""
"""Seconds that a read waits for a controller, in place of half a minute."""


def test_the_controller_dies_in_the_middle(project, slurm, tmp_path):
    """What runs goes on, and what was asked for is done once it is back."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    project.bring(gang(project, "left"))
    until(lambda: ran(project, "left") == 2)
    slurm.kill_controller()
    try:
        project.declare(project.backend(), project.fleet(), gang(project, "left"), gang(project, "right"))
        plan = project.run("plan", "--json", code=None, env={"PYTHONPATH": str(tmp_path)}).json
        assert "backend-unreadable" in {d["code"] for d in plan["diagnostics"]}
        assert not [a for a in plan["actions"] if a["op"] == "delete"]
    finally:
        slurm.start_controller()
    until(lambda: "gpu" in slurm.run("sinfo", "-h", check=False))
    project.apply()
    until(lambda: ran(project, "right") == 2)
    assert project.jobs("RUNNING") == ["left", "right"]
    assert ran(project, "left") == 2
    project.run("stop", "left")
    project.run("stop", "right")


def test_a_node_that_fails_loses_its_rank_and_retry_runs_it_again(project, slurm):
    """By Slurm's word; the gang runs again where there is room."""
    lost = half("gang", hold(project.path / "gang"), nodes=1, retry={"on_events": ["interruption"]})
    project.bring(lost)
    until(lambda: ran(project, "gang") == 1)
    node = project.ranks("gang")[0]["node"]
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=it burns")
    try:
        until(lambda: project.ranks("gang")[0]["state"] == "lost")
        project.apply()
        until(lambda: ran(project, "gang") == 2)
        project.run("stop", "gang")
    finally:
        # Its slurmd lives: it may have come back by itself.
        slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


def test_a_job_that_an_administrator_cancels_is_stopped_and_says_so(project, slurm):
    """And is not run again by itself."""
    project.bring(gang(project, "left"))
    until(lambda: ran(project, "left") == 2)
    slurm.run("scancel", "-u", slurm.user)
    until(lambda: {r["state"] for r in project.ranks("left").values()} == {"stopped"})
    assert "was cancelled (job" in project.run("status").out
    assert project.ids() == []
