"""An apply of 200 resources, sixteen at once, is interrupted again and again: nothing is lost or made twice,
the state is always valid, and nobody has to repair anything. `benchmarks/crash` does the same for longer, and
with Terraform.
"""

import os
import random
import signal
import subprocess
from contextlib import contextmanager

import pytest

from declarative.store import StateError, open_store
from tests.providers.cloud.run import RunningCloud
from tests.support.forked import warm_up
from tests.support.killing import (
    APPLY,
    GROUPED,
    Chain,
    Kill,
    Size,
    at_any_time,
    at_each_begin,
    at_each_finish,
    at_each_group,
    at_each_write,
    steps,
)

pytestmark = pytest.mark.slow

BIG = Size()
SMALL = Size(volumes=30, nodes=4, tasks=4)
KILLED = {"local": 12, "cloud": 8, "late": 8}
OPTIONS = {
    "local": (),
    "late": ("--latency", "0.02", "--late", "0.1", "--slow", "1.5"),
    "cloud": ("--latency", "0.05"),
    "faulty": ("--latency", "0.02", "--faults", "0.1"),
}


@contextmanager
def chain(tmp_path, where, size=BIG, state=None):
    """A project on one of the backends."""
    warm_up()
    cloud = None if where == "local" else RunningCloud(tmp_path / "cloud.db", *OPTIONS[where])
    made = Chain(tmp_path / "project", size, cloud, *([state] if state else []))
    try:
        yield made
    finally:
        made.close()
        if cloud:
            cloud.close()


def clean(count):
    """Nothing of what must not be; else what was noted of it."""
    assert (count.lost, count.duplicates, count.torn, count.manual) == (0, 0, 0, 0), count.notes


@pytest.mark.parametrize("where", KILLED)
def test_killed(tmp_path, where):
    """SIGKILL at journal steps and at chance instants, on one project of 202 resources."""
    assert BIG.resources >= 200
    chance = random.Random(5)
    ways = [at_each_finish, at_each_begin, at_each_write]
    late = at_any_time(chance, 0.5)
    half = KILLED[where] // 2
    with chain(tmp_path, where) as project:
        # The clock comes last: half a second may be enough for all that is left.
        count = steps(project, lambda n: ways[n % len(ways)](n) if n < half else late(n), KILLED[where])
        clean(count)
        assert count.kills >= half


@pytest.mark.parametrize("step", range(1, 60, 6))
def test_killed_at_a_step_of_a_first_apply(tmp_path, step):
    """From nothing: before the first write, in the middle of the first sixteen, and on."""
    with chain(tmp_path, "local", SMALL) as project:
        assert project.kill(Kill("write", step))
        clean(project.finish())


@pytest.mark.parametrize("when", GROUPED)
@pytest.mark.parametrize("step", [1, 4, 9])
def test_killed_round_a_group_of_a_first_apply(tmp_path, when, step):
    """With workers that wait for one commit: before it, during it, before and after they hear of it."""
    with chain(tmp_path, "local", SMALL) as project:
        assert project.kill(Kill(when, step))
        clean(project.finish())


@pytest.mark.parametrize("where", ["local", "late"])
def test_killed_round_groups(tmp_path, where):
    """Again and again, on one project."""
    with chain(tmp_path, where) as project:
        count = steps(project, at_each_group, 8)
        clean(count)
        assert count.kills >= 4


def test_a_cloud_that_fails(tmp_path):
    """Throttling, 5xx and resets on either side of the effect: one apply comes to its end all the same."""
    with chain(tmp_path, "faulty", SMALL) as project:
        project.kill(Kill("finish", 9))
        clean(project.finish())


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
    ids=["term", "int", "int-int", "int-term"],
)
def test_asked_to_stop(tmp_path, numbers):
    """Once: what runs is finished. Twice: at once. Exit code 130, and the next apply does the rest."""
    with chain(tmp_path, "local", SMALL) as project:
        assert project.kill(Kill("finish", 7, signals=numbers), expect=(130,))
        clean(project.finish())


@pytest.fixture
def small_disk(tmp_path):
    """A disk that can be made larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=360k", "none", folder]
    if os.getuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_new_state_is_whole_or_not_there(small_disk):
    """However little room its disk has: half of one would be refused from then on as damaged."""
    path, outcomes = small_disk / "state.db", set()
    for size in range(40, 320, 20):
        subprocess.run(["mount", "-o", f"remount,size={size}k", small_disk], check=True)
        try:
            open_store(f"sqlite:///{path}").close()
            outcomes.add("made")
        except StateError as error:
            outcomes.add(error.code)
        assert [*small_disk.glob(".*")] == []
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        with open_store(f"sqlite:///{path}") as opened:
            assert opened.read().serial == 0
        path.unlink()
    assert {"disk-full", "made"} == outcomes


def test_the_disk_of_the_state_is_full(tmp_path, small_disk):
    """The error says so, the records stay, and with room again the next apply does the rest."""
    with chain(tmp_path, "local", state=f"sqlite:///{small_disk}/state.db") as project:
        code = project.command(*APPLY)
        assert code in (1, 4), project.output()
        assert "disk is full" in project.output()
        assert "Traceback" not in project.output()
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        project.check_whole()
        assert len(list(project.project.glob(".fleetform/local/*/*"))) > 0
        clean(project.finish())
