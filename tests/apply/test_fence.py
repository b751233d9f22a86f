"""A command that slept past its lease, at each call to its backend: it wakes up and changes nothing more.

The test looks at what exists: the data of volumes, and the processes on the nodes.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from declarative.apply.backend_client import BackendClient
from declarative.model.state import Address, Record
from declarative.provider import TransientError, TransientKind
from declarative.retry import Policy, call
from declarative.store import StateError, Writer, lock, open_store
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.run import SECRETS, RunningEc2
from tests.providers.ec2.test_apply import ZONE, backend, secrets, there  # noqa: F401
from tests.support.cli import Project, clean_env, ended, fleet, hold, lines, task, until, volume

pytestmark = pytest.mark.slow


def sleeper(
    project: Project, step: int, places: str, *args: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen:
    """An apply that sleeps at such a place (`sleeping.py`), or ended if it does not come there so often."""
    program = Path(__file__).parents[1] / "support" / "sleeping.py"
    process = subprocess.Popen(
        [
            *(sys.executable, str(program), str(step), places),
            *("apply", "--auto-approve", "--parallelism", "1", *args),
        ],
        cwd=project.path,
        env=clean_env(PYTHONPATH=str(program.parents[1]), **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    project.started.append(process)
    until(lambda: asleep(process) or process.poll() is not None)
    return process


def asleep(process: subprocess.Popen) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def lapse(project: Project) -> None:
    """End the lease of the lock's holder now, by every clock."""
    with closing(sqlite3.connect(project.path / ".fleetform" / "state.db", isolation_level=None)) as db:
        db.execute("UPDATE writer_lock SET expires = 1, ends = 1")


def running(file: Path) -> list[int]:
    """Which of the ranks that left their pids in a file run."""
    return [int(pid) for pid in lines(file) if Path(f"/proc/{pid}").exists()]


WHOLE = {"cpu": 2}


@pytest.mark.parametrize("step", range(1, 9))
def test_who_wakes_up_deletes_and_starts_nothing(project, step):
    """The sleeper was to delete a volume and to start `aa`. Meanwhile another one keeps the volume, and
    starts `bb` on the same blocks.
    """
    aa, bb = project.path / "aa", project.path / "bb"
    project.declare(fleet(), volume(), task("old", hold(project.path / "old"), resources=WHOLE))
    project.apply()
    kept = project.data("data") / "kept"
    kept.write_text("yes")
    project.declare(fleet(), task("aa", hold(aa), resources=WHOLE))
    process = sleeper(project, step, "call,local='start',local='stop'")
    if process.poll() is not None:
        done = ended(process)
        assert step > 5, f"it has fewer calls than that: {done}"
        return
    was_there = kept.exists()
    lapse(project)
    project.declare(fleet(), volume(), task("bb", hold(bb), resources=WHOLE))
    project.apply()
    until(lambda: running(bb))
    process.send_signal(signal.SIGCONT)
    done = ended(process, None)
    assert done.code in (1, 4), done.out + done.err
    assert "this command has lost the state's lock" in done.out + done.err
    assert kept.exists() == was_there
    project.apply()
    assert len(running(bb)) == 1
    assert running(aa) == []
    assert len(lines(bb)) == 1, "it was started once"
    project.no_changes()


class Throttled:
    """A backend that wants to be asked later, each time."""

    def __init__(self) -> None:
        self.calls = 0

    def delete(self, _: Record) -> None:
        self.calls += 1
        raise TransientError(TransientKind.THROTTLED, "too many requests")


def test_cut_off_from_postgresql_a_delete_is_not_tried_again(postgres, postgres_url, monkeypatch):
    """Neither while the server is away, for another one may have the lock by now; nor when it has."""
    url, slept, clock = postgres_url(), 0.0, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + slept)
    record = Record(address=Address("volume", "data"), backend="sky", inputs={})

    def tries(writer: Writer, then: Callable[[], None]) -> tuple[int, str]:
        """How often a delete is asked for, when that happens after the first try; and how it ends."""
        sky = Throttled()
        provider = BackendClient(sky, {}, writer.fence)  # type: ignore[arg-type]
        with pytest.raises(StateError) as caught:
            call(
                lambda: provider.delete(record),
                policy=Policy(first=0.001, longest=0.002),
                on_retry=lambda *_: then(),
            )
        return sky.calls, caught.value.code

    def cut() -> None:
        nonlocal slept
        postgres.stop()
        slept += lock.LEASE_SECONDS * 0.75

    def taken() -> None:
        nonlocal slept
        slept += lock.LEASE_SECONDS
        with open_store(url) as other, other.lock("apply"):
            pass

    with open_store(url) as store, store.lock("apply") as writer:
        try:
            assert tries(writer, cut) == (1, "unreachable")
        finally:
            postgres.start()
        assert tries(writer, taken) == (1, "stale-lease")


# ------------------------------------------------------------------------------------------- on EC2


@pytest.fixture(scope="module")
def ec2() -> Iterator[RunningEc2]:
    with RunningEc2() as running:
        yield running


CHANGES = ("RunInstances", "TerminateInstances", "CreateVolume", "DeleteVolume", "ModifyVolume", "CreateTags")
"""What EC2 is asked that changes something."""


def changes(line: Line) -> int:
    return sum(line.count(action) for action in CHANGES)


@pytest.mark.parametrize(
    "places", ["limited=DeleteVolume", "dialled=DeleteVolume", "retry", "dialled=RunInstances"]
)
def test_who_wakes_up_asks_ec2_for_nothing(project, ec2, places):
    """The sleeper was to delete a volume, or to launch a node. Meanwhile another one keeps the volume, and
    wants no node: EC2 gets no request for a change from the sleeper any more.
    """
    launches = "RunInstances" in places
    with Line(ec2.port) as line:
        sky = {**backend(line.port), "availability_zones": [ZONE]}
        place = {"backend": "aws", "region": "us-east-1", "availability_zone": ZONE}
        data = volume(**place)
        small: dict[str, Any] = {
            "instance_types": ["m5.large"],
            "availability_zones": [ZONE],
            "resources": {"cpu": 2},
        }
        machines = fleet(backends=["aws"], **small)
        project.declare(sky, data)
        project.apply(env=SECRETS)
        was = there(project, ec2.port)
        project.declare(sky, *((data, machines) if launches else ()))
        if places == "retry":
            throttled = iter(["throttled"])
            line.rules.append(lambda a: (a["Action"] == "DeleteVolume" and next(throttled, None)) or None)
        process = sleeper(project, 1, places, env=SECRETS)
        assert process.poll() is None, ended(process, None)
        lapse(project)
        project.declare(sky, data)
        project.apply(env=SECRETS)
        before = changes(line)
        process.send_signal(signal.SIGCONT)
        done = ended(process, None)
        assert changes(line) == before
        assert done.code in (1, 4), done.out + done.err
        assert "this command has lost the state's lock" in done.out + done.err
        assert there(project, ec2.port) == was
        project.apply(env=SECRETS)
        assert project.run("plan", "--json", env=SECRETS).json["actions"] == []
        assert there(project, ec2.port) == was
