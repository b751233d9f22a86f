"""One writer at a time: who waits, who is refused, and how a dead holder's lock expires."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import ANY

import pytest

from declarative.model.state import Address
from declarative.store import StateError, Store, UnreachableError, open_store
from declarative.store import lock as locks
from declarative.store.lease import LockInfo, is_dead, place, started_at

NODE = Address("node", "gpu-0")

HOLDER = """
import sys
from declarative.model.state import Address
from declarative.store import StateError, open_store

def tell(text):
    print(text, flush=True)

with open_store(sys.argv[1]) as store:
    with store.lock(sys.argv[2], 600, on_wait=lambda holder: tell(f"waits for {holder.doing}")) as writer:
        tell(f"holds {writer.lease.fence}")
        sys.stdin.readline()
        try:
            writer.begin("create", Address("node", "gpu-0"), "local", {})
            tell("wrote")
        except StateError as error:
            tell(error.code)
"""


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Times:
    """Lets a state's clock go on, and that of its holder's host. What cannot be set stays, and what was
    recorded by it moves back instead: a server's clock, and the host's own that nobody can set.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock(1000.0)

    def open(self) -> Store:
        return open_store(self.url, clock=self.clock)

    def go_on(self, seconds: float) -> None:
        self.clock.now += seconds
        names = ("ends",) if self.url.startswith("sqlite") else ("since", "expires", "ends")
        moved = ", ".join(f"{name} = {name} - :seconds" for name in names)
        with open_store(self.url) as store, store.writable().writing() as connection:
            connection.execute(f"UPDATE writer_lock SET {moved}", seconds=seconds)

    def left(self, info: LockInfo | None) -> float:
        """Seconds until a lease ends."""
        assert info
        with (
            open_store(self.url, clock=self.clock) as store,
            store.writable().reading() as connection,
        ):
            return info.expires - connection.database.now(connection)


@pytest.fixture
def url(new_state):
    """In SQLite and in PostgreSQL."""
    return new_state()


@pytest.fixture
def times(url):
    return Times(url)


def owner(info: LockInfo | None) -> str | None:
    return info.owner if info else None


@pytest.fixture
def store(url) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


@contextmanager
def holder(
    url: str, doing: str
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str], Callable[[], None]]]:
    """Another process that takes the lock, reports what happens, and writes when told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, doing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdin
    assert process.stdout
    heard, say = process.stdout, process.stdin

    def go_on() -> None:
        say.write("\n")
        say.flush()

    try:
        yield process, lambda: heard.readline().strip(), go_on
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_waits_and_goes_on(store, url) -> None:
    """The second writer hears whom it waits for, and gets the lock when the first one is done."""
    with holder(url, "apply") as (_, first, first_goes_on):
        assert first() == "holds 1"
        with holder(url, "destroy") as (_, second, _):
            assert second() == "waits for apply"
            first_goes_on()
            assert first() == "wrote"
            assert second() == "holds 2"


def test_a_killed_holders_lock_lapses_at_once(store, url) -> None:
    """Its pid is gone (here: a zombie, unreaped), so nobody has to wait for the lease."""
    with holder(url, "apply") as (process, heard, _):
        assert heard() == "holds 1"
        held = store.lock_info()
        assert held
        assert (held.pid, held.doing) == (process.pid, "apply")
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert store.lock_info() is None
        with store.lock("plan", 0) as writer:
            assert writer.lease.fence == 2


def test_a_stopped_holder_that_wakes_up_writes_nothing(store, url) -> None:
    """SIGSTOPped until its lease lapsed and another one has the lock: its next write is refused."""
    times = Times(url)
    times.clock.now = time.time()
    with holder(url, "apply") as (process, heard, go_on):
        assert heard() == "holds 1"
        process.send_signal(signal.SIGSTOP)
        times.go_on(3600)
        with times.open() as later, later.lock("apply", 0) as writer:
            process.send_signal(signal.SIGCONT)
            go_on()
            assert heard() == "stale-lease"
            assert writer.state().intents == ()
            writer.ensure_lineage()


def test_a_refusal_says_who_holds_it_and_what_to_type(store, url) -> None:
    with store.lock("apply", 0) as writer, open_store(url) as other:
        with pytest.raises(StateError) as caught, other.lock("destroy", 0):
            pass
        error = caught.value
        assert error.code == "locked"
        assert all(part in error.summary for part in ("`apply`", writer.lease.host, str(os.getpid()), "UTC"))
        assert "--lock-timeout" in str(error.hint)
        assert "fleetform state unlock" in str(error.hint)
        assert error.lock == writer.lease


def test_waiting_ends_after_the_timeout(store, url) -> None:
    """The time is what was waited, whatever the clock does meanwhile."""
    waited: list[float] = []
    heard: list[str] = []
    with (
        store.lock("apply", 0),
        open_store(url, wait=waited.append) as other,
        pytest.raises(StateError, match="locked"),
        other.lock("destroy", 3, on_wait=lambda info: heard.append(info.doing)),
    ):
        pytest.fail("two writers at once")
    assert sum(waited) == pytest.approx(3)
    assert heard == ["apply"]


def test_it_is_given_back(store) -> None:
    """At the end of the block, whether that ends well or not; each holder has a fence of its own."""
    with store.lock("apply", 0) as writer:
        first = writer.lease.fence
        assert store.lock_info() == writer.lease
    assert store.lock_info() is None
    with pytest.raises(ZeroDivisionError), store.lock("apply", 0) as writer:
        raise ZeroDivisionError
    assert writer.lease.fence == first + 1
    assert store.lock_info() is None


def test_a_lapsed_lease_is_taken_over_and_its_holder_refused(times) -> None:
    """Every write of the old holder is refused, and nothing of it is written."""
    with times.open() as one, times.open() as two, one.lock("apply", 0) as old:
        times.go_on(locks.LEASE_SECONDS - 5)
        assert owner(two.lock_info()) == old.lease.owner
        times.go_on(5)
        assert two.lock_info() is None
        with two.lock("apply", 0) as new:
            before = two.pull()
            for write in (
                lambda: old.begin("create", NODE, "local", {}),
                lambda: old.set_idle("gpu-0", 1.0),
                old.ensure_lineage,
                lambda: old.forget(NODE),
            ):
                with pytest.raises(StateError) as caught:
                    write()
                assert caught.value.code == "stale-lease"
            assert two.pull() == before
            new.begin("create", NODE, "local", {})
        assert two.lock_info() is None


def test_the_old_holder_does_not_give_back_the_new_ones_lock(times) -> None:
    with times.open() as one, times.open() as two:
        old = one.lock("apply", 0)
        old.__enter__()
        times.go_on(3600)
        with two.lock("apply", 0) as new:
            old.__exit__(None, None, None)
            assert two.lock_info() == new.lease


def test_a_lapsed_lease_that_nobody_took_is_still_good(times) -> None:
    """A laptop that slept for an hour goes on where it was, if nobody else has written."""
    with times.open() as store, store.lock("apply", 0) as writer:
        times.go_on(3600)
        assert store.lock_info() is None
        writer.begin("create", NODE, "local", {})
        writer.renew(600)
        assert 500 < times.left(store.lock_info()) <= 600


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_is_set_takes_no_lock_from_a_process_of_this_host(tmp_path, hours) -> None:
    """Leases on one host use a clock that nobody can set, and end with the process."""
    clock = Clock(1e9)
    url = f"sqlite:///{tmp_path}/state.db"
    with open_store(url, clock=clock) as one, open_store(url, clock=clock) as two, one.lock("apply"):
        clock.now += hours * 3600
        assert two.lock_info()
        with pytest.raises(StateError, match="locked"), two.lock("apply"):
            pass


@pytest.fixture
def asleep(monkeypatch) -> Callable[[float], None]:
    """Lets this host sleep: its own clock goes on, and nothing is renewed."""

    def sleep(seconds: float) -> None:
        then = time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda clock: then(clock) + seconds)

    return sleep


def test_who_slept_through_the_lease_calls_no_backend(store, url, asleep) -> None:
    """Before each call it is asked whether the lock is still its own."""
    with store.lock("apply") as old:
        assert old.fence() == old.lease.epoch
        assert store.writer is old
        asleep(3600)
        with open_store(url) as other, other.lock("apply") as new:
            assert new.fence() > old.lease.epoch
            with pytest.raises(StateError, match="has lost the state's lock to `apply`"):
                old.fence()
    assert store.writer is None, "who only reads has no epoch"


def test_who_renews_and_has_lost_the_lock_calls_no_backend(store, url) -> None:
    """However long its own lease would have lasted: another one is at work."""
    with store.lock("apply") as old, open_store(url) as other:
        other.unlock()
        with other.lock("destroy"):
            with pytest.raises(StateError, match="has lost the state's lock to `destroy`"):
                old.renew(locks.LEASE_SECONDS)
            with pytest.raises(StateError, match="has lost the state's lock to `destroy`"):
                old.fence()


def test_who_slept_and_still_has_the_lock_goes_on(store, asleep) -> None:
    """Nobody has taken it, and nobody takes it now: it is renewed before the call."""
    with store.lock("apply") as writer:
        asleep(3600)
        assert store.lock_info() is None
        assert writer.fence() == writer.lease.epoch
        assert store.lock_info() == replace(writer.lease, expires=ANY, ends=ANY)


def test_who_cannot_renew_calls_no_backend(store, monkeypatch) -> None:
    """The database is away: perhaps the lock is another one's by now. It is not while a third of the lease
    is left.
    """
    now = 1000.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: now)
    with store.lock("apply") as writer:

        def away(*_: object) -> None:
            raise UnreachableError("unreachable", "the database is away")

        monkeypatch.setattr(locks, "renew", away)
        now += locks.LEASE_SECONDS * 2 / 3
        with pytest.raises(UnreachableError):
            writer.renew(locks.LEASE_SECONDS)
        assert writer.fence()
        now += 0.001
        with pytest.raises(UnreachableError):
            writer.fence()
        monkeypatch.undo()


@pytest.mark.parametrize("gap", [60, 0.2])
def test_a_state_from_a_backup_has_no_epoch_that_was_used(tmp_path, gap) -> None:
    """Backends that saw a later one would refuse it; several commands may follow one another in a second."""
    clock, kept = Clock(1e9), tmp_path / "kept.db"
    url = f"sqlite:///{tmp_path}/state.db"
    with open_store(url, clock=clock) as store, store.lock("apply") as writer:
        first = writer.lease.epoch
    shutil.copy(tmp_path / "state.db", kept)
    seen = [first]
    for _ in range(3):
        clock.now += gap
        with open_store(url, clock=clock) as store, store.lock("apply") as writer:
            seen.append(writer.lease.epoch)
    shutil.copy(kept, tmp_path / "state.db")
    clock.now += gap
    with open_store(url, clock=clock) as store, store.lock("apply") as writer:
        seen.append(writer.lease.epoch)
    clock.now -= 7200
    with open_store(url, clock=clock) as store, store.lock("apply") as writer:
        seen.append(writer.lease.epoch)
    assert seen == sorted(set(seen))


def test_a_client_whose_clock_is_wrong_steals_no_lease(postgres_url) -> None:
    """On a server, leases go by the server's clock: a day fast, a day slow, all the same."""
    url = postgres_url()
    for mine, theirs in ((0.0, 86400.0), (-86400.0, 0.0), (86400.0, -86400.0)):
        with (
            open_store(url, clock=Clock(time.time() + mine)) as one,
            open_store(url, clock=Clock(time.time() + theirs)) as two,
            one.lock("apply", 0) as writer,
        ):
            writer.renew(locks.LEASE_SECONDS)
            assert owner(two.lock_info()) == writer.lease.owner
            with pytest.raises(StateError, match="locked"), two.lock("apply", 0):
                pass
            writer.ensure_lineage()


def test_taking_it_twice_is_taking_it_once(url) -> None:
    """The connection was lost while it was committed that the lock is ours: the next try finds that it is."""
    tries = 0

    def twice(step):
        nonlocal tries
        tries += 1
        step()
        return step()

    with open_store(url, retry=twice) as store:
        for fence in (1, 2):
            with store.lock("apply", 0) as writer:
                assert writer.lease.fence == fence
                writer.begin("create", NODE, "local", {})
                assert store.lock_info() == writer.lease
        assert len(store.read().intents) == 1
    assert tries > 6


def test_renewal_goes_on_until_the_lease_is_lost() -> None:
    """A fault in between (a busy disk) is tried again."""
    calls: list[int] = []
    lost = threading.Event()

    def renew() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise StateError("disk-full", "no room")
        if len(calls) == 5:
            lost.set()
            raise StateError("stale-lease", "lost")

    renewal = locks.Renewal(renew, 0.001)
    with renewal:
        assert lost.wait(60)
        renewal._thread.join(60)
        assert not renewal._thread.is_alive()
    assert len(calls) == 5


def test_unlock_takes_it_away(store, url) -> None:
    """`state unlock`: the holder writes nothing more; one that changed meanwhile is left alone."""
    with store.lock("apply", 0) as writer, open_store(url) as other:
        with pytest.raises(StateError) as caught:
            other.unlock("somebody else")
        assert caught.value.code == "lock-changed"
        assert other.unlock(writer.lease.owner) == writer.lease
        assert other.unlock() is None
        assert other.unlock("somebody else") is None
        with pytest.raises(StateError) as caught:
            writer.ensure_lineage()
        assert caught.value.code == "stale-lease"


def test_a_holder_whose_lock_was_taken_away_is_told_of_no_other_one(store) -> None:
    """And who took it over is named."""
    with store.lock("apply", 0) as writer:
        store.unlock()
        with pytest.raises(StateError) as caught:
            writer.ensure_lineage()
        assert caught.value.summary == "this command has lost the state's lock; it writes nothing more"
        with store.lock("destroy", 0), pytest.raises(StateError) as caught:
            writer.ensure_lineage()
        assert caught.value.summary.startswith("this command has lost the state's lock to `destroy` on ")


@pytest.mark.parametrize("doing", ["apply", locks.RECONCILING])
def test_only_a_loop_is_asked_for_the_lock(store, url, doing) -> None:
    """It can wait. A command that is at work is not told, and goes on to its end."""
    database = store.writable()
    with store.lock(doing, 0) as writer, open_store(url, wait=lambda _: None) as other:

        def is_asked() -> bool:
            with database.reading() as connection:
                return locks.asked(connection, writer.lease)

        assert not is_asked()
        with pytest.raises(StateError) as caught, other.lock("apply", 0):
            pass
        assert (caught.value.code, is_asked()) == ("locked", False)
        with pytest.raises(StateError), other.lock("apply", 1.0):
            pass
        assert is_asked() is (doing == locks.RECONCILING)


def test_a_lease_of_this_host_ends_by_a_clock_that_nobody_sets(monkeypatch) -> None:
    pid = os.getpid()
    info = LockInfo(
        owner="x",
        host="h",
        place=place(),
        pid=pid,
        doing="apply",
        since=0.0,
        expires=0.0,
        fence=1,
        ends=50.0,
    )
    for now, over in ((49.0, False), (50.0, True), (51.0, True)):
        monkeypatch.setattr(time, "clock_gettime", lambda _, now=now: now)
        assert info.lapsed(1.0) is over


def test_who_asks_at_once_has_asked(tmp_path) -> None:
    """At the second at which the lock was taken, too; not who asked the holder before."""
    now = [1000.0]
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: now[0]) as store:
        database = store.writable()
        with store.lock("reconcile", 0) as writer:
            locks.ask(database)
            with database.reading() as connection:
                assert locks.asked(connection, writer.lease)
                assert not locks.asked(connection, replace(writer.lease, since=1000.5))


def test_a_process_of_somebody_else_lives(monkeypatch) -> None:
    """It is no error that it takes no signal of ours."""
    pid = os.getpid()

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(pid, None)
    assert not is_dead(pid, started_at(pid))


def test_only_who_can_be_seen_to_be_dead_is() -> None:
    """A pid means something in its own host, boot and namespace, and only together with its start time."""
    pid = os.getpid()
    info = LockInfo(
        owner="x",
        host="h",
        place=place(),
        pid=pid,
        started=started_at(pid),
        doing="apply",
        since=0.0,
        expires=100.0,
        fence=1,
    )
    assert not info.lapsed(99.0)
    assert info.lapsed(100.0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    assert replace(info, pid=dead.pid).lapsed(99.0)
    away = replace(info, pid=dead.pid, place="another/boot")
    assert [away.lapsed(at) for at in (99.0, 100.0, 101.0)] == [False, True, True]
    if info.started is not None:
        assert replace(info, started="1").lapsed(99.0), "another process has its pid now"


def test_never_two_at_once(url) -> None:
    """Threads with connections of their own take turns."""
    inside, seen = [0], []

    def turn() -> None:
        with open_store(url, wait=lambda _: time.sleep(0.001)) as mine:
            for _ in range(5):
                with mine.lock("apply", 600) as writer:
                    inside[0] += 1
                    seen.append((inside[0], writer.lease.fence))
                    writer.ensure_lineage()
                    inside[0] -= 1

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [count for count, _ in seen] == [1] * 20
    assert [fence for _, fence in seen] == list(range(1, 21))


def test_reading_only_takes_no_lock(store, url) -> None:
    with open_store(url, read_only=True) as reader:
        with pytest.raises(StateError) as caught, reader.lock("apply", 0):
            pass
        assert caught.value.code == "read-only"
        with store.lock("apply", 0) as writer:
            assert reader.lock_info() == writer.lease


@pytest.mark.parametrize("since", [1e300, -1e300, float("nan"), float("inf"), 2.0**63, "x", None])
def test_a_lock_since_no_time_is_told_without_one(since) -> None:
    """The author of the state's file may have written anything there."""
    info = LockInfo(owner="o", host="h", pid=1, doing="apply", since=since, expires=0.0, fence=1)
    assert str(info) == "`apply` on h, pid 1"
