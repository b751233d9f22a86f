"""A command that slept past its lease, at each call to its backend: it wakes up and does nothing more.

What counts is what is really there: the data of volumes, and the processes on the nodes.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from declarative.apply.renamed import Renamed
from declarative.provider import TransientError, TransientKind
from declarative.retry import Policy, call
from declarative.state import Address, Record
from declarative.store import StateError, Store, lock, open_store
from tests.cli import Project, clean_env, ended, fleet, hold, lines, task, until, volume

pytestmark = pytest.mark.slow

SLEEPER = """
import signal, sys, threading
from declarative import cli
from declarative.apply import renamed
from declarative.store import lock
from providers.local import machine

wanted, count = int(sys.argv.pop(1)), 0
real_clock, slept = lock.boottime, 0
lock.boottime = lambda: real_clock() + slept
lock.Renewal._run = lambda _: None  # who is stopped in the middle of a transaction keeps SQLite's lock, too

def step():
    global count, slept
    count += 1
    if count == wanted:
        # To this thread: it would run on for moments if another one were told to stop them all.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        slept = 3600

def before(owner, name, only=lambda *_: True):
    real = getattr(owner, name)

    def call(*args, **kwargs):
        if only(*args):
            step()
        return real(*args, **kwargs)

    setattr(owner, name, call)

for name in ("create", "update", "delete", "start", "stop"):
    before(renamed.Renamed, name)
before(machine.BareTransport, "run", lambda _, argv, *__: {"start", "stop"} & set(argv))
cli.main()
"""
"""An apply that is stopped at its Nth call: before it is asked who may write, and where that was asked and
the command to the node is about to be sent.
"""


def sleeper(project: Project, step: int) -> subprocess.Popen:
    """An apply that sleeps at its call number `step`; it has ended if there are not as many."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(step), "apply", "--auto-approve", "--parallelism", "1"],
        cwd=project.path,
        env=clean_env(PYTHONPATH=str(Path(__file__).resolve().parents[1])),
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
    """The lease of whoever holds the lock ends now, by every clock."""
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
    process = sleeper(project, step)
    if process.poll() is not None:
        assert step > 5, "it has fewer calls than that"
        ended(process)
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
    url, slept, clock = postgres_url(), 0.0, lock.boottime
    monkeypatch.setattr(lock, "boottime", lambda: clock() + slept)
    record = Record(address=Address("volume", "data"), backend="sky", inputs={})

    def tries(store: Store, then: Callable[[], None]) -> tuple[int, str]:
        """How often a delete is asked for, when that happens after the first try; and how it ends."""
        sky = Throttled()
        provider = Renamed(sky, {}, store.fence)  # type: ignore[arg-type]
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

    with open_store(url) as store, store.lock("apply"):
        try:
            assert tries(store, cut) == (1, "unreachable")
        finally:
            postgres.start()
        assert tries(store, taken) == (1, "stale-lease")
