"""One writer at a time, even if a holder sleeps or many start at once."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud.run import PLUG, RunningCloud
from tests.support.cli import clean_env, ended, fleet, task, until, volume
from tests.support.killing import ON_SKY

pytestmark = pytest.mark.slow

AT_ONCE = 8


@pytest.fixture
def cloud(tmp_path):
    with RunningCloud(tmp_path / "cloud.db", "--latency", "0.02") as cloud:
        yield cloud


def declare(project, cloud, volumes=20):
    """A project on the cloud; what it comes to."""
    gang: dict[str, Any] = {"nodes": 2, "placement": "any", "resources": {"cpu": "1.."}}
    job = task("job", "true", volumes=["data-${{ node_rank }}:/d"], **gang)
    disks = volume("data", count=volumes, backend="sky")
    project.declare(cloud.backend(), fleet(nodes=2, placement="any", **ON_SKY), disks, job)
    names = ["node/gpu-0", "node/gpu-1", "attachment/job-0.data-0", "attachment/job-1.data-1"]
    return dict.fromkeys([*names, *(f"volume/data-{i}" for i in range(volumes))], 1)


def holds(project, cloud, whole):
    """The world is as one apply leaves it: all there, made once, begun once, recorded."""
    assert cloud.things() == whole
    assert cloud.made() == whole
    assert cloud.runs() == {"job-0": 1, "job-1": 1}
    plan = project.run("plan", "--json", "--detailed-exitcode", env=PLUG).json
    assert plan["actions"] == []
    project.run("state", "check", env=PLUG)


def state_of(project):
    return sqlite3.connect(project.path / ".fleetform" / "state.db", isolation_level=None)


def lapse(project):
    """End the holder's lease, as if it had not been renewed for that long."""
    with closing(state_of(project)) as db:
        db.execute("UPDATE writer_lock SET expires = 1, ends = 1")


def waits_for(project, address, others):
    """Whether nothing is open any more but that, and all else is recorded as made."""
    rows = journal(project)
    made = [row for row in rows if row[2].split("/")[0] != "rank" and row[3] == "done"]
    still = [row[2] for row in rows if row[3] is None]
    return still == [address] and len(made) == others and ranks_run(project)


def ranks_run(project):
    """Whether both ranks are recorded as running."""
    with closing(state_of(project)) as db:
        return db.execute("SELECT count(*) FROM rank_status WHERE state = 'running'").fetchone() == (2,)


def journal(project):
    """The journal's rows with their results."""
    if not (project.path / ".fleetform" / "state.db").exists():
        return []
    with closing(state_of(project)) as db:
        return db.execute("SELECT id, op, address, result FROM operations ORDER BY id").fetchall()


def test_who_sleeps_through_the_lease_writes_nothing(project, cloud):
    """An apply is stopped in the middle of its calls, its lease lapses, another one takes over and does it
    all. It wakes up and ends with a message: nothing of it is in the state, nothing is there twice.
    """
    whole = declare(project, cloud)
    cloud.control(hold="volume/data-3")
    sleeper = project.start("apply", "--auto-approve", env=PLUG)
    # Nothing else is under way: who is stopped in the middle of a transaction keeps SQLite's lock, too.
    until(lambda: waits_for(project, "volume/data-3", len(whole) - 1), "it is in the middle of one call")
    sleeper.send_signal(signal.SIGSTOP)
    assert "the state is locked by `apply` on " in project.apply(code=1, env=PLUG).err
    lapse(project)
    project.apply(env=PLUG)
    rows = journal(project)
    serial = project.run("state", "pull").json["serial"]
    cloud.control(release=True)
    sleeper.send_signal(signal.SIGCONT)
    done = ended(sleeper, 4)
    assert "this command has lost the state's lock" in done.out + done.err
    assert journal(project) == rows
    assert project.run("state", "pull").json["serial"] == serial
    holds(project, cloud, whole)


STEPPED = """
import sys, time
from pathlib import Path
real, file = time.time, Path(sys.argv.pop(1))
time.time = lambda: real() + float(file.read_text() or 0)
from declarative import cli
cli.main()
"""
"""`fleetform` on a host whose clock is off by the seconds in a file, which may change while it runs."""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_is_set_takes_no_lock_and_hinders_no_later_apply(project, cloud, hours, killed):
    """In the middle of an apply that goes on, or is killed then: it is not taken for one of long ago, or of
    the future. Nor is anything by an apply after the clock was set back.
    """
    clock = project.write("clock", "0")

    def start(*args):
        process = subprocess.Popen(
            [sys.executable, "-c", STEPPED, str(clock), *args],
            cwd=project.path,
            env=clean_env(**{**PLUG, "PYTHONPATH": f"{Path(__file__).parents[2]}:{PLUG['PYTHONPATH']}"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        project.started.append(process)
        return process

    whole = declare(project, cloud)
    cloud.control(hold="volume/data-3")
    holder = start("apply", "--auto-approve")
    until(lambda: waits_for(project, "volume/data-3", len(whole) - 1), "it is in the middle of one call")
    clock.write_text(f"{hours * 3600}")
    refused = ended(start("apply", "--auto-approve"), 1)
    assert "the state is locked by `apply` on " in refused.err
    if killed:
        holder.kill()
    cloud.control(release=True)
    ended(holder, -signal.SIGKILL if killed else 0)
    ended(start("apply", "--auto-approve"))
    clock.write_text("0")
    ended(start("apply", "--auto-approve"))
    holds(project, cloud, whole)


@pytest.mark.parametrize("timeout", [(), ("--lock-timeout", "5m")])
def test_many_at_once(project, cloud, timeout):
    """Each ends well or says who holds the lock; those that may wait all end well."""
    whole = declare(project, cloud)
    started = [project.start("apply", "--auto-approve", *timeout, env=PLUG) for _ in range(AT_ONCE)]
    done = [ended(process, None) for process in started]
    codes = [d.code for d in done]
    assert 0 in codes
    assert set(codes) <= ({0} if timeout else {0, 1})
    for one in done:
        if one.code:
            assert "error[locked]: the state is locked by `apply` on " in one.err
            assert "--lock-timeout" in one.err
    holds(project, cloud, whole)
