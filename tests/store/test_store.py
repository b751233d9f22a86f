"""The state: what is written is read back, invalid states are refused, and no write is half done."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.pq import TransactionStatus

from declarative.apply.backend_look import Observation
from declarative.apply.backends import Backends
from declarative.apply.open_intents import Resolution, resolution_notes
from declarative.apply.settle import recover, release_ended, settle
from declarative.model.state import Address, Record, State, token
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.inventory import Inventory
from declarative.provider import PermanentError, PermanentKind
from declarative.store import (
    FORMAT_VERSION,
    StateError,
    Store,
    Writer,
    journal,
    migrations,
    open_store,
    postgres_connection,
    record_changes,
    records,
)
from declarative.store.commit_queue import MOST_WRITES
from declarative.store.consistency import contradictions
from declarative.store.errors import UnreachableError, as_state_error
from declarative.store.postgres import Postgres
from declarative.store.sql import Connection, Database
from tests.support.cli import until
from tests.support.model import of_attachment, of_kind, of_node, of_volume

NODE = Address("node", "gpu-0")
VOLUME = Address("volume", "data-0")
RANK = Address("rank", "train-0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".fleetform" / "state.db"


@pytest.fixture
def store(new_state) -> Iterator[Store]:
    """In SQLite and in PostgreSQL."""
    with open_store(new_state(), clock=lambda: 1000.0) as opened:
        yield opened


@pytest.fixture
def file_store(path) -> Iterator[Store]:
    with open_store(f"sqlite:///{path}", clock=lambda: 1000.0) as opened:
        yield opened


@pytest.fixture
def server_store(postgres_url) -> Iterator[Store]:
    with open_store(postgres_url()) as opened:
        yield opened


@pytest.fixture
def writer(store) -> Iterator[Writer]:
    with store.lock("test", 0) as made:
        yield made


def make(writer: Writer, address: Address, needs: tuple[Address, ...] = (), **inputs: object) -> None:
    """Record something as if a backend had made it."""
    intent = writer.begin("create", address, "local", of_kind(address.kind, **inputs), needs)
    writer.finish(intent, {"id": f"local:{address.name}"})


def node(writer: Writer, name: str = "gpu-0", blocks: int = 4) -> None:
    inputs: Any = {
        "fleet": name.rpartition("-")[0],
        "backend": "local",
        "region": "local",
        "instance_type": "t",
    }
    make(writer, Address("node", name), **inputs, resources={"cpu": 4, "memory_mib": 4}, blocks=blocks)


def reservation(name: str, on: str, blocks: tuple[int, ...]) -> Record:
    return Record(
        address=Address("reservation", name),
        backend=None,
        inputs={
            "task": name.rpartition("-")[0],
            "rank": int(name.rpartition("-")[2]),
            "node": on,
            "blocks": list(blocks),
            "total_blocks": max(4, *blocks, 0) + 1,
        },
        needs=frozenset({Address("node", on)}),
    )


def reserve(writer: Writer, name: str, on: str, *blocks: int) -> None:
    writer.reserve(reservation(name, on, blocks), on, blocks)


def engine(store: Store) -> Database:
    assert store._database
    return store._database


def code(caught: pytest.ExceptionInfo[StateError]) -> str:
    return caught.value.code


# ------------------------------------------------------------------------------------ files


def test_reading_what_is_not_there_makes_nothing(new_state, tmp_path) -> None:
    url = new_state()
    with open_store(url, read_only=True) as store:
        assert store.read() == State()
        assert store.lock_info() is None
        assert store.check() == []
        assert store.pull()["serial"] == 0
        assert store.pull()["lineage"] is None
    with pytest.raises(StateError, match="there is no state"):
        open_store(url, create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_its_owner_can_read_it(path, umask) -> None:
    """Whatever the umask, of all its files."""
    before = os.umask(umask)
    try:
        with open_store(f"sqlite:///{path}") as store, store.lock("test", 0) as writer:
            writer.ensure_lineage()
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == ["state.db", "state.db-shm", "state.db-wal"]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


def test_a_commit_is_durable(file_store, path) -> None:
    with engine(file_store).reading() as connection:
        assert connection.execute("PRAGMA journal_mode").scalar() == "wal"
        assert connection.execute("PRAGMA synchronous").scalar() == 2
        assert connection.execute("PRAGMA foreign_keys").scalar() == 1


@pytest.mark.parametrize("content", [b"", b"x", b"type: project\n" * 400])
def test_what_is_no_state_is_refused_untouched(path, content) -> None:
    """An empty file too: it is a truncated state sooner than a new one."""
    path.parent.mkdir()
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StateError) as caught:
            open_store(f"sqlite:///{path}", read_only=read_only)
        assert code(caught) == ("not-a-state" if content else "damaged")
        assert str(path) in caught.value.summary
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


def test_what_cannot_be_opened_says_what_to_do(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("no database\n")
    for url, summary, hint in (
        ("folder", "is a directory", "move it away, or name another place"),
        ("file", "is no database", "name another file if it never was a state; else bring it back"),
        ("file/state.db", "Not a directory", "see what is there"),
    ):
        with pytest.raises(StateError, match=summary) as caught:
            open_store(f"sqlite:///{tmp_path / url}")
        assert hint in str(caught.value.hint)


def test_another_programs_database_is_refused_untouched(tmp_path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StateError) as caught:
        open_store(f"sqlite:///{path}")
    assert code(caught) == "not-a-state"
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(store) -> None:
    """With the version to install, and before anything else of it is read."""
    with engine(store).writing() as connection:
        connection.execute("UPDATE meta SET format_version = 99, tool = '7.1.0'")
        connection.execute("DROP TABLE rank_status")
    for read_only in (False, True):
        with pytest.raises(StateError) as caught:
            open_store(store.url, read_only=read_only)
        assert code(caught) == "newer-format"
        assert "7.1.0" in str(caught.value.hint)


def test_migrations_run_once_each_and_whole(store, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(migrations, "MIGRATIONS", [lambda _, n=n: ran.append(n) for n in (2, 3, 4)])
    with engine(store).writing() as connection:
        migrations.migrate(connection, 2)
        assert connection.execute("SELECT format_version FROM meta").scalar() == 4
    assert ran == [3, 4]
    assert FORMAT_VERSION == 11


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("state.db", "bad-url"),
        ("mysql://host/db", "bad-url"),
        ("sqlite://", "bad-url"),
        ("sqlite:///:memory:", "bad-url"),
        ("sqlite:///x.db?mode=ro", "bad-url"),
        ("postgresql://me@host/db", "bad-url"),
        ("postgresql://me:hunter2@host/db", "bad-url"),
        ("nonsense://me:hunter2@", "bad-url"),
    ],
)
def test_urls_that_are_refused(url, expected) -> None:
    """No password is repeated."""
    with pytest.raises(StateError) as caught:
        open_store(url)
    assert code(caught) == expected
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


def test_a_relative_path_is_the_projects(tmp_path) -> None:
    with open_store("sqlite:///.fleetform/a b?.db".replace("?", "#"), root=tmp_path):
        assert (tmp_path / ".fleetform" / "a b#.db").exists()


def test_nothing_is_made_where_that_is_not_wanted(path) -> None:
    with pytest.raises(StateError) as caught:
        open_store(f"sqlite:///{path}", create=False)
    assert code(caught) == "no-state"
    assert not path.parent.exists()


def test_many_can_make_it_at_once(new_state, path) -> None:
    """One of them does; all have the same."""
    url = new_state()
    barrier = threading.Barrier(6)
    lineages = set()

    def make_it() -> None:
        barrier.wait()
        with open_store(url) as mine, mine.lock("test", 600) as writer:
            lineages.add(writer.ensure_lineage())

    threads = [threading.Thread(target=make_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lineages) == 1
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///")).parent
        assert [file.name for file in folder.iterdir()] == ["state.db"]


def test_reading_changes_nothing(file_store, path) -> None:
    with file_store.lock("test", 0) as writer:
        node(writer)
    file_store.close()
    before = path.read_bytes()
    with open_store(f"sqlite:///{path}", read_only=True) as reader:
        assert reader.read().get("node", "gpu-0")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


def test_a_state_that_may_only_be_read_is_read(file_store, path, monkeypatch) -> None:
    """In a folder where nothing can be made, such as a read-only mount."""
    with file_store.lock("test", 0) as writer:
        node(writer)
    file_store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with open_store(f"sqlite:///{path}", read_only=True) as reader:
        assert reader.read().get("node", "gpu-0")
    with pytest.raises(StateError) as caught:
        open_store(f"sqlite:///{path}")
    assert code(caught) == "read-only"
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


# ------------------------------------------------------------------------------------ the journal


def test_an_intent_is_committed_before_the_call_and_its_result_after(store, writer) -> None:
    inputs = {"zone": "eu-1a", "blocks": 2, "tags": {"b": [1, 2.5, None, "ü"], "a": True}}
    intent = writer.begin("create", NODE, "local", inputs)
    lineage = writer.ensure_lineage()
    assert intent.token == token(lineage, NODE, 1, "eu-1a")
    seen = store.read()
    assert seen.intents == (intent,)
    assert (seen.lineage, seen.serial, seen.records) == (lineage, 0, {})
    writer.finish(intent, {"id": "i-1"})
    writer.finish(intent, {"id": "i-1"})
    seen = store.read()
    assert seen.intents == ()
    assert seen.serial == 1
    assert seen.records == {NODE: Record(address=NODE, backend="local", inputs=inputs, outputs={"id": "i-1"})}


CRASHER = """
import os, signal, sys
from declarative.model.state import Address
from declarative.store import open_store

store = open_store(sys.argv[1])
lock = store.lock("apply")
writer = lock.__enter__()
print(writer.begin("create", Address("node", "gpu-0"), "local", {"zone": "a"}).token, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_between_begin_and_finish_leaves_the_intent(store) -> None:
    """Killed after the backend was called, perhaps: the next create has the same token, and finds it."""
    done = subprocess.run(
        [sys.executable, "-c", CRASHER, store.url],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = store.read().intents
    assert (left.op, left.address, left.generation, left.token) == ("create", NODE, 1, done.stdout.strip())
    with store.lock("apply", 0) as writer:
        again = writer.begin("create", NODE, "local", {"zone": "a", "tags": {}})
        assert (again.id, again.generation, again.token) == (left.id, 1, left.token)
        assert again.inputs == {"zone": "a", "tags": {}}
        with pytest.raises(StateError) as caught:
            writer.begin("create", NODE, "local", {"zone": "b"})
        assert code(caught) == "open-intent", "in zone b nobody would find what was made in zone a"
        writer.fail(again, "none was left")
        other = writer.begin("create", NODE, "local", {"zone": "b"})
    assert other.generation == 2
    assert other.token != left.token


def test_each_life_of_an_address_has_its_generation(writer) -> None:
    """Also after its record is gone: a token never comes back."""
    tokens = set()
    for generation in (1, 2, 3):
        intent = writer.begin("create", NODE, "local", {})
        assert intent.generation == generation
        tokens.add(intent.token)
        writer.finish(intent, {"id": "i"})
        gone = writer.begin("delete", NODE, "local", {})
        assert (gone.generation, gone.token) == (generation, intent.token)
        writer.finish(gone)
    assert len(tokens) == 3
    assert writer.state().generations == {NODE: 3}


def test_an_update_changes_the_record_in_place(writer) -> None:
    make(writer, VOLUME, size="10GB", zone="a")
    intent = writer.begin("update", VOLUME, "local", {"size": "20GB", "zone": "a"})
    assert intent.token == token(writer.ensure_lineage(), VOLUME, 1, "a")
    writer.finish(intent)
    found = writer.state().get("volume", "data-0")
    assert found
    assert found.inputs["size"] == "20GB"
    assert found.outputs == {"id": "local:data-0"}, "nothing new was said of them"


def test_a_part_holds_what_is_asked_for_and_all_that_it_needs(writer) -> None:
    """One action looks at its own records; the rest of the state is not read for it."""
    node(writer)
    node(writer, "gpu-1")
    reserve(writer, "train-0", "gpu-0", 0)
    rank = Address("rank", "train-0")
    make(writer, rank, (Address("reservation", "train-0"),))
    part = writer.part([rank, Address("volume", "absent")])
    assert set(part.records) == {rank, Address("reservation", "train-0"), Address("node", "gpu-0")}
    whole = writer.state()
    assert all(whole.records[address] == record for address, record in part.records.items())
    assert (part.lineage, part.serial) == (whole.lineage, whole.serial)


def test_a_failed_call_changes_nothing(store, writer) -> None:
    node(writer)
    before = store.read()
    intent = writer.begin("delete", NODE, "local", {})
    writer.fail(intent, "not allowed")
    assert store.read() == before
    with pytest.raises(StateError) as caught:
        writer.finish(intent)
    assert code(caught) == "closed-intent"
    assert store.read() == before


def test_a_delete_settles_what_else_was_open(writer) -> None:
    node(writer)
    writer.begin("update", NODE, "local", {"blocks": 8})
    writer.finish(writer.begin("delete", NODE, "local", {}))
    assert writer.state().intents == ()


def test_a_create_waits_for_an_open_delete(writer) -> None:
    """Otherwise the rest that the delete has left would have no owner."""
    node(writer)
    writer.begin("delete", NODE, "local", {})
    with pytest.raises(StateError) as caught:
        writer.begin("create", NODE, "local", {})
    assert code(caught) == "open-intent"


def test_what_was_found_is_adopted(writer) -> None:
    intent = writer.begin("create", NODE, "local", {"blocks": 2})
    found = Record(address=NODE, backend="local", inputs={"blocks": 2}, outputs={"id": "i-9"}, generation=1)
    writer.adopt(found, intent)
    writer.adopt(found, intent)
    seen = writer.state()
    assert (seen.records, seen.intents, seen.serial) == ({NODE: found}, (), 1)
    writer.forget(NODE)
    writer.forget(NODE)
    assert (writer.state().records, writer.state().serial) == ({}, 2)


def test_a_node_is_idle_from_when_it_was_made(writer) -> None:
    """Written with it: one that was adopted, or whose command was killed then, would else be new for ever."""
    writer.finish(writer.begin("create", NODE, "local", {"blocks": 2}), {"id": "i-1"}, idle_since=5.0)
    other = Address("node", "gpu-1")
    found = Record(address=other, backend="local", inputs={"blocks": 2}, outputs={"id": "i-2"}, generation=1)
    intent = writer.begin("create", other, "local", {"blocks": 2})
    recover(writer, Observation(Inventory(), [Resolution(intent=intent, record=found)]), 6.0)
    idle = writer.state().idle_since
    assert idle.keys() == {"gpu-0", "gpu-1"}
    assert idle["gpu-0"] == 5.0
    assert idle["gpu-1"] < 6.0, "since it was asked for"


def test_what_was_begun_is_said_of_one_and_of_several(writer) -> None:
    begun = [writer.begin("create", Address("node", f"gpu-{n}"), "local", {"blocks": 2}) for n in range(3)]
    found = [Resolution(intent=begun[0], gone=True), *(Resolution(intent=intent) for intent in begun[1:])]
    assert [said.summary for said in resolution_notes(found)] == [
        f"of a command that was cut short: {words}"
        for words in (
            "create:node/gpu-1, create:node/gpu-2 are not there; those that come after all are found",
            "create:node/gpu-0 had been done, and is taken up",
        )
    ]


def test_history_is_pruned(writer, store) -> None:
    for n in range(10):
        make(writer, Address("volume", f"v-{n}"))
    open_one = writer.begin("create", NODE, "local", {})
    with engine(store).writing() as connection:
        journal.prune(connection, 3)
        assert connection.execute("SELECT count(*) FROM operations").scalar() == 3
        journal.prune(connection, 0)
        assert connection.execute("SELECT id FROM operations").scalars() == [open_one.id]


# ------------------------------------------------------------------------------------ needs


def test_what_is_needed_stays(writer) -> None:
    node(writer)
    make(writer, RANK, (NODE,))
    reserve(writer, "train-0", "gpu-0", 0)
    for act in (lambda: writer.begin("delete", NODE, "local", {}), lambda: writer.forget(NODE)):
        with pytest.raises(StateError) as caught:
            act()
        assert code(caught) == "still-needed"
        assert "rank/train-0" in caught.value.summary
        assert "reservation/train-0" in caught.value.summary
    writer.set_needs(RANK, ())
    writer.release(Address("reservation", "train-0"), 5.0)
    writer.forget(NODE)
    assert set(writer.state().records) == {RANK}


def test_what_is_not_there_cannot_be_needed(writer) -> None:
    with pytest.raises(StateError) as caught:
        writer.begin("create", RANK, "local", {}, [NODE])
    assert code(caught) == "missing-need"
    with pytest.raises(StateError) as caught:
        reserve(writer, "train-0", "gpu-0", 0)
    assert code(caught) == "missing-need"
    assert writer.state().intents == ()


def test_one_thing_has_one_address(writer) -> None:
    """Of one backend and kind."""
    make(writer, NODE)
    intent = writer.begin("create", Address("node", "gpu-1"), "local", {})
    with pytest.raises(StateError) as caught:
        writer.finish(intent, {"id": "local:gpu-0"})
    assert code(caught) == "already-owned"
    assert "node/gpu-0" in caught.value.summary
    assert writer.state().intents == (intent,), "the step was undone as a whole"
    writer.finish(intent, {"id": 7})
    make(writer, Address("volume", "gpu-0"))


# ------------------------------------------------------------------------------------ blocks


def test_no_block_is_held_twice(writer) -> None:
    node(writer)
    reserve(writer, "train-0", "gpu-0", 0, 1)
    before = writer.state()
    with pytest.raises(StateError) as caught:
        reserve(writer, "other-0", "gpu-0", 1, 2)
    assert code(caught) == "double-booking"
    assert "block 1 is held by reservation/train-0" in caught.value.summary
    assert writer.state() == before
    reserve(writer, "train-0", "gpu-0", 1, 0)
    assert writer.state() == before
    with pytest.raises(StateError) as caught:
        reserve(writer, "train-0", "gpu-0", 2)
    assert code(caught) == "exists"
    for wrong in ((4,), (-1,), ()):
        with pytest.raises(StateError) as caught:
            reserve(writer, "other-0", "gpu-0", *wrong)
        assert code(caught) == "no-such-block"


def test_a_node_is_idle_from_its_last_block_on(store, writer) -> None:
    node(writer)
    writer.set_idle("gpu-0", 1.0)
    reserve(writer, "a-0", "gpu-0", 0)
    reserve(writer, "b-0", "gpu-0", 1)
    assert writer.state().idle_since == {}
    writer.release(Address("reservation", "a-0"), 5.0)
    assert writer.state().idle_since == {}
    serial = writer.state().serial
    writer.release(Address("reservation", "b-0"), 6.0, observed=True)
    writer.release(Address("reservation", "b-0"), 7.0)
    assert writer.state().idle_since == {"gpu-0": 6.0}
    assert writer.state().serial == serial
    assert store.check() == []


def test_two_connections_racing_for_a_block_never_both_have_it(store, writer) -> None:
    """Even without the lock and our own look beforehand: the key of the row refuses the second."""
    node(writer, blocks=3)
    for block, name in ((1, "a-0"), (2, "b-0")):
        reserve(writer, name, "gpu-0", block)
    # All the 10,000 of the issue: FLEETFORM_RACES=10000.
    tries, barrier = int(os.environ.get("FLEETFORM_RACES", "300")), threading.Barrier(2)
    wins: list[list[int]] = [[], []]
    refusals: set[str] = set()

    def race(me: int, name: str) -> None:
        row = {"node": str(NODE), "block": 0, "reservation": f"reservation/{name}"}
        with open_store(store.url) as mine:
            for n in range(tries):
                barrier.wait()
                try:
                    with engine(mine).writing() as connection:
                        connection.insert("reserved_blocks", row)
                    wins[me].append(n)
                except StateError as error:
                    refusals.add(error.code)
                barrier.wait()
                if me == 0:
                    with engine(mine).writing() as connection:
                        connection.execute("DELETE FROM reserved_blocks WHERE block = 0")

    threads = [threading.Thread(target=race, args=(i, name)) for i, name in enumerate(("a-0", "b-0"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins[0] + wins[1]) == list(range(tries))
    assert refusals == {"constraint"}


def test_workers_share_a_writer(store, writer) -> None:
    """Eight threads at once: each step whole, each counted."""
    node(writer, blocks=64)

    def work(first: int) -> None:
        for block in range(first, 64, 8):
            reserve(writer, f"t-{block}", "gpu-0", block)
            make(writer, Address("volume", f"v-{block}"))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = store.read()
    assert seen.serial == 1 + 2 * 64
    assert len(seen.records) == 1 + 2 * 64
    assert store.check() == []


# ------------------------------------------------------------------------------------ observations


def test_observing_is_not_changing(store, writer) -> None:
    node(writer)
    make(writer, RANK, (NODE,))
    reserve(writer, "train-0", "gpu-0", 0)
    serial = writer.state().serial
    running = RankStatus(state=RankState.RUNNING, started_at=1.5, mounted=("/data",))
    ended = replace(running, state=RankState.FAILED, exit_code=3, cause="exit code 3", ended_at=9.25)
    ready = Readiness(state=NodeState.READY, observed_at=2.0)
    writer.observe_ranks({"train-0": running})
    writer.observe_nodes({"gpu-0": ready})
    writer.set_idle("gpu-0", None)
    assert store.read().ranks == {"train-0": running}
    assert store.read().readiness == {"gpu-0": ready}
    writer.observe_ranks({"train-0": ended})
    writer.set_needs(RANK, ())
    writer.release(Address("reservation", "train-0"), 10.0, observed=True)
    seen = store.read()
    assert seen.ranks == {"train-0": ended}
    assert set(seen.records) == {NODE, RANK}
    assert seen.records[RANK].needs == frozenset()
    assert seen.idle_since == {"gpu-0": 10.0}
    assert seen.readiness == {"gpu-0": ready}
    assert seen.serial == serial
    assert store.check() == []


def test_what_is_as_it_was_is_not_written_again(store, writer) -> None:
    """But it is once what was written is old; and any news at once, also of one node of many."""
    node(writer)
    node(writer, "gpu-1")
    ready = Readiness(state=NodeState.READY, observed_at=1000.0)
    writer.observe_nodes({"gpu-0": ready, "gpu-1": ready})
    writer.seal()
    known = writer.state()
    writer.observe_nodes(dict.fromkeys(("gpu-0", "gpu-1"), replace(ready, observed_at=1090.0, down=True)))
    assert writer.state() is known
    assert store.read().readiness == {"gpu-0": ready, "gpu-1": ready}
    sick = Readiness(state=NodeState.NOT_READY, reason="no disk", observed_at=1091.0)
    writer.observe_nodes({"gpu-0": sick, "gpu-1": replace(ready, observed_at=1091.0)})
    assert writer.state().readiness == store.read().readiness == {"gpu-0": sick, "gpu-1": ready}
    for later in (1130.0, 900.0):  # the clock may be set back
        writer.observe_nodes({"gpu-1": replace(ready, observed_at=later)})
        assert store.read().readiness["gpu-1"].observed_at == later


def test_a_known_state_is_not_read_anew_to_name_or_to_seal_it(store, writer, monkeypatch) -> None:
    node(writer)
    known = writer.state()
    assert writer.ensure_lineage() == known.lineage
    assert writer.state() is known
    with monkeypatch.context() as patch:
        patch.setattr(records, "load", None)
        writer.seal()
    assert store.check() == []


def test_a_new_life_starts_unknown(writer) -> None:
    """What was seen of an address is not true of its next generation, nor kept when it is gone."""
    node(writer)
    make(writer, RANK)
    for _ in range(2):
        writer.observe_ranks({"train-0": RankStatus(state=RankState.SUCCEEDED)})
        writer.observe_nodes({"gpu-0": Readiness(state=NodeState.READY)})
        again = writer.begin("create", RANK, "local", {})
        writer.begin("create", NODE, "local", {})
        assert (writer.state().ranks, writer.state().readiness) == ({}, {})
        writer.fail(again, "x")
        writer.fail(writer.begin("create", NODE, "local", {}), "x")
    writer.observe_ranks({"train-0": RankStatus(state=RankState.SUCCEEDED)})
    writer.finish(writer.begin("delete", RANK, "local", {}))
    assert writer.state().ranks == {}


def test_an_attachment_holds_the_blocks_until_it_is_gone(store, writer) -> None:
    node(writer)
    reserve(writer, "train-0", "gpu-0", 0)
    attachment = Address("attachment", "train-0.data-0")
    inputs = of_attachment("train-0", "gpu-0", "data-0")
    make(writer, attachment, (Address("reservation", "train-0"),), **inputs)
    make(writer, RANK, (attachment,))
    serial = writer.state().serial
    writer.observe_ranks({"train-0": RankStatus(state=RankState.SUCCEEDED)})
    writer.set_needs(RANK, ())
    with pytest.raises(StateError) as caught:
        writer.release(Address("reservation", "train-0"), 3.0, observed=True)
    assert code(caught) == "still-needed"
    assert store.check() == []
    writer.finish(writer.begin("delete", attachment, "local", {}), observed=True)
    assert store.check() == [], "a command may be killed here"
    writer.release(Address("reservation", "train-0"), 4.0, observed=True)
    assert (writer.state().serial, store.check()) == (serial, [])


def attach(writer: Writer) -> Address:
    """The volume, attached for a rank; the attachment."""
    attachment = Address("attachment", "train-0.data-0")
    inputs = {"task": "train", "rank": "train-0", "node": "gpu-0", "volume": "data-0", "path": "/data"}
    make(writer, attachment, (Address("reservation", "train-0"), VOLUME), **inputs, variable="DATA")
    return attachment


def test_a_volume_is_detached_from_when_it_was_made_or_last_attached(store, writer, monkeypatch) -> None:
    """In the transaction that makes, adopts, attaches or detaches it: nothing has to be noted later."""
    monkeypatch.setattr(writer, "_clock", lambda: 5.0)
    make(writer, VOLUME, size="1GB")
    found = Record(address=Address("volume", "old"), backend="local", inputs=of_volume(), outputs={"id": "v"})
    writer.adopt(found)
    monkeypatch.setattr(writer, "_clock", lambda: 6.0)
    writer.finish(writer.begin("update", VOLUME, "local", of_volume(size="2GB")))
    assert writer.state().detached_since == {"data-0": 5.0, "old": 5.0}
    node(writer)
    reserve(writer, "train-0", "gpu-0", 0)
    ways: list[Callable[[Address], None]] = [
        lambda a: writer.finish(writer.begin("delete", a, "local", {}), observed=True),
        lambda a: writer.forget(a, observed=True),
        lambda a: writer.drop([a]),
    ]
    for at, detach in enumerate(ways, 7):
        attachment = attach(writer)
        assert writer.state().detached_since == {"old": 5.0}
        assert store.check() == []
        monkeypatch.setattr(writer, "_clock", lambda at=at: float(at))
        detach(attachment)
        assert writer.state().detached_since == {"data-0": at, "old": 5.0}
    writer.finish(writer.begin("delete", VOLUME, "local", {}))
    assert writer.state().detached_since == {"old": 5.0}


def test_blocks_are_given_back_once_all_volumes_are_off(store, writer) -> None:
    """Else another rank might get them while a volume of the last one is still mounted there."""
    busy = PermanentError(PermanentKind.CONFLICT, "it is in use")
    stuck = {Address("attachment", "train-0.data-1")}

    class Disks(Backends):
        def get(self, backend: str | None) -> Any:
            return self

        def delete(self, have: Record) -> None:
            if have.address in stuck:
                raise busy

    node(writer)
    reserve(writer, "train-0", "gpu-0", 0)
    for volume in ("data-0", "data-1"):
        make(writer, Address("volume", volume), size="1GB")
        inputs = {"task": "train", "rank": "train-0", "node": "gpu-0", "volume": volume, "path": f"/{volume}"}
        needs = (Address("reservation", "train-0"), Address("volume", volume))
        make(writer, Address("attachment", f"train-0.{volume}"), needs, **inputs, variable="DATA")
    make(writer, RANK, (Address("reservation", "train-0"),))
    writer.observe_ranks({"train-0": RankStatus(state=RankState.SUCCEEDED)})
    backends = Disks({}, Path(), "x")
    release_ended(writer, backends, lambda: 9.0)
    assert {a.name for a in writer.state().records if a.kind == "attachment"} == {"train-0.data-1"}
    assert writer.state().get("reservation", "train-0")
    stuck.clear()
    release_ended(writer, backends, lambda: 9.0)
    assert {a.kind for a in writer.state().records} == {"node", "volume", "rank"}


def test_what_an_older_version_left_undated_is_dated_by_the_next_look(store, writer) -> None:
    """From then on: a state of an earlier format says nothing of it."""
    make(writer, VOLUME, size="1GB")
    node(writer)
    reserve(writer, "train-0", "gpu-0", 0)
    attach(writer)
    make(writer, Address("volume", "spare"), size="1GB")
    with engine(store).writing() as connection:
        connection.update("resources", {"detached_since": None})
    serial = writer.state().serial
    state = settle(writer, Backends({}, Path(), "x"), Observation(Inventory(), []), lambda: 9.0)
    assert state.detached_since == writer.state().detached_since == {"spare": 1000.0}
    assert (writer.state().serial, store.check()) == (serial, [])


def test_a_reader_sees_one_moment_and_waits_for_nobody(store, writer) -> None:
    with open_store(store.url, read_only=True) as reader:
        with engine(reader).reading() as snapshot:
            before = records.load(snapshot)
            with engine(store).writing() as connection:
                record_changes.raise_serial(connection)
                assert reader.read().serial == 0, "not committed, and not waited for"
            assert records.load(snapshot) == before
        assert reader.read().serial == 1


# ------------------------------------------------------------------------------------ proofs


def test_pull_is_json(store, writer) -> None:
    node(writer)
    reserve(writer, "train-0", "gpu-0", 2, 3)
    writer.observe_ranks({"train-0": RankStatus(state=RankState.RUNNING, mounted=("/data",))})
    writer.set_idle("gpu-9", 4.0)
    writer.begin("create", VOLUME, "local", {"zone": None})
    data = json.loads(json.dumps(store.pull()))
    assert data["format_version"] == FORMAT_VERSION
    assert data["serial"] == 2
    assert [record["address"] for record in data["records"]] == ["node/gpu-0", "reservation/train-0"]
    assert data["records"][1]["needs"] == ["node/gpu-0"]
    assert data["reserved_blocks"] == [
        {"node": "gpu-0", "block": 2, "reservation": "train-0"},
        {"node": "gpu-0", "block": 3, "reservation": "train-0"},
    ]
    assert data["ranks"]["train-0"]["state"] == "running"
    unseen = {"state": None, "reason": None, "observed_at": None, "can": None}
    assert data["nodes"] == {"gpu-9": {**unseen, "idle_since": 4.0}}
    assert data["intents"][0]["op"] == "create"
    assert data["generations"]["volume/data-0"] == 1


def test_check_finds_what_contradicts_itself() -> None:
    where = Record(address=NODE, backend="local", inputs=of_node(blocks=2))
    volume = Record(address=VOLUME, backend="local", inputs=of_volume())
    holds = reservation("train-0", "gpu-0", (0, 1))
    rank = Record(address=RANK, backend="local", inputs={}, needs=frozenset({NODE}))
    held_by = Record(
        address=Address("attachment", "a-0.data-0"),
        backend="local",
        inputs=of_attachment("a-0", "gpu-0", "data-0"),
    )
    good = State(
        lineage="x",
        serial=3,
        records={r.address: r for r in (where, holds, rank)},
        generations={r.address: 1 for r in (where, holds, rank)},
        ranks={"train-0": RankStatus(state=RankState.RUNNING)},
    )
    held = {("gpu-0", 0): "train-0", ("gpu-0", 1): "train-0"}
    assert contradictions(good, held) == []
    ended = RankStatus(state=RankState.FAILED)
    assert contradictions(replace(good, ranks={"train-0": ended}), held) == [], "a command may be killed here"
    cases = {
        "3 are busy": (good, {**held, ("gpu-0", 2): "train-0"}),
        "block 5 is reserved": (good, {("gpu-0", 0): "train-0", ("gpu-0", 5): "train-0"}),
        "and holds nothing": (good, {}),
        "reservation/ghost-0": (good, {**held, ("gpu-0", 1): "ghost-0"}),
        "node/ghost": (good, {**held, ("ghost", 1): "train-0"}),
        "holds no blocks": (good.without([holds.address]), {}),
        "needs node/gpu-0, which is not": (good.without([NODE]), {}),
        "no lineage": (replace(good, lineage=None), held),
        "the serial": (replace(good, serial=-1), held),
        "of generation 1": (replace(good, generations={}), held),
        "is noted as idle": (replace(good, idle_since={"gpu-0": 1.0}), held),
        "noted as attached to nothing, and is not": (replace(good, detached_since={"old": 1.0}), held),
        "noted as attached to nothing, and attachment/": (
            replace(
                good,
                records={**good.records, VOLUME: volume, held_by.address: held_by},
                detached_since={"data-0": 1.0},
            ),
            held,
        ),
        "need one another": (
            replace(good, records={**good.records, NODE: replace(where, needs=frozenset({RANK}))}),
            held,
        ),
    }
    for expected, (state, blocks) in cases.items():
        found = contradictions(state, blocks)
        assert any(expected in line for line in found), (expected, found)


def test_a_damaged_file_is_named_as_such(file_store, path) -> None:
    with file_store.lock("test", 0) as writer:
        for n in range(200):
            writer.set_idle(f"n-{n}", float(n))
    file_store.close()
    content = bytearray(path.read_bytes())
    for at in range(8192, len(content), 4096):
        content[at : at + 512] = b"\xff" * 512
    path.write_bytes(content)
    with pytest.raises(StateError) as caught, open_store(f"sqlite:///{path}") as broken:
        broken.read()
    assert code(caught) == "damaged"


def test_values_are_not_in_messages(store, writer) -> None:
    node(writer)
    told = {"inputs": {"x": "hunter2"}, "outputs": {}, "generation": 1}
    with pytest.raises(StateError) as caught, engine(store).writing() as connection:
        connection.insert("resources", {"address": str(NODE), "kind": "node", "name": "gpu-0", **told})
    assert code(caught) == "constraint"
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


def test_only_the_database_that_is_used_is_loaded(path) -> None:
    """Each takes its time, and every command opens the state."""
    code = (
        "import sys; from declarative.store import open_store; open_store(sys.argv[1]).close();"
        "sys.exit(bool({'psycopg'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code, f"sqlite:///{path}"], check=True)


class Blocks(RuleBasedStateMachine):
    """Random reservations and releases against a model: no block twice, 0 <= busy <= total, always."""

    TOTAL = 4
    NODES = ("gpu-0", "gpu-1")
    names = st.sampled_from(["a-0", "a-1", "b-0", "c-0"])

    def __init__(self, url: str) -> None:
        super().__init__()
        self.store = open_store(url)
        self.lock = self.store.lock("test", 0)
        self.writer = self.lock.__enter__()
        self.model: dict[str, set[tuple[str, int]]] = {}
        for name in self.NODES:
            node(self.writer, name, self.TOTAL)

    def teardown(self) -> None:
        self.lock.__exit__(None, None, None)
        self.store.close()

    @rule(name=names, on=st.sampled_from(NODES), blocks=st.sets(st.integers(-1, TOTAL), max_size=3))
    def reserve(self, name, on, blocks) -> None:
        wanted = {(on, block) for block in blocks}
        taken = set().union(*self.model.values())
        may = (
            bool(blocks)
            and blocks <= set(range(self.TOTAL))
            and name not in self.model
            and not wanted & taken
        )
        if may or (wanted and self.model.get(name) == wanted):
            reserve(self.writer, name, on, *blocks)
            self.model[name] = wanted
        else:
            with pytest.raises(StateError):
                reserve(self.writer, name, on, *blocks)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), observed=st.booleans())
    def release(self, data, observed) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.writer.release(Address("reservation", name), 1.0, observed=observed)
        del self.model[name]

    @invariant()
    def holds(self) -> None:
        pulled = self.store.pull()["reserved_blocks"]
        held = [(row["node"], row["block"]) for row in pulled]
        assert len(held) == len(set(held))
        for name in self.NODES:
            assert 0 <= sum(1 for on, _ in held if on == name) <= self.TOTAL
        assert {(row["reservation"], row["node"], row["block"]) for row in pulled} == {
            (name, *place) for name, places in self.model.items() for place in places
        }
        assert self.store.check() == []


@pytest.mark.slow
def test_blocks_against_a_model(new_state) -> None:
    run_state_machine_as_test(
        cast("Any", lambda: Blocks(new_state())),
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


# ------------------------------------------------------------------------------------- steps in groups


def queued(writer: Writer, *steps: Callable[[], object]) -> list[BaseException | None]:
    """The results of steps of several threads that wait for one another, and for a step of this one."""
    found: list[BaseException | None] = [None] * len(steps)

    def run(index: int) -> None:
        try:
            steps[index]()
        except Exception as error:  # noqa: BLE001
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(steps))]

    def first(_connection: Connection) -> None:
        if threads[0].ident:
            return  # it is done again, after the fault of another one
        for thread in threads:
            thread.start()
        until(lambda: len(writer._commits._queue) == len(steps))
        assert found == [None] * len(steps)

    with suppress(StateError):
        writer._write(first)
    for thread in threads:
        thread.join()
    return found


def counted(monkeypatch, store: Store) -> list[int]:
    """How many transactions were committed."""
    commits: list[int] = []
    database, name = engine(store), committing(store)
    commit = getattr(database, name)

    def counts(*given: object) -> object:
        commits.append(1)
        return commit(*given)

    monkeypatch.setattr(database, name, counts)
    return commits


def committing(store: Store) -> str:
    """The method of its database by which a writer's steps are committed."""
    return "send" if isinstance(engine(store), Postgres) else "commit"


def test_steps_that_wait_are_committed_together(store, writer, monkeypatch) -> None:
    names = [Address("volume", f"data-{i}") for i in range(5)]
    commits = counted(monkeypatch, store)
    steps = [partial(writer.begin, "create", name, "local", {}) for name in names]
    assert queued(writer, *steps) == [None] * 5
    assert len(commits) == 1
    begun = store.read().intents
    assert {intent.address for intent in begun} == {*names}
    commits.clear()
    assert queued(writer, *(partial(writer.finish, i, {"id": i.token}) for i in begun)) == [None] * 5
    assert len(commits) == 1
    assert {*store.read().records} == {*names}
    assert store.read().serial == 5
    assert store.check() == []


def test_a_group_waits_for_as_many_steps_as_came_before(store, writer, monkeypatch) -> None:
    """The threads that a commit wakes come back one by one; the first begins no commit without the others."""
    groups, names = writer._commits, [Address("volume", f"data-{i}") for i in range(4)]
    steps = [partial(writer.begin, "create", name, "local", {}) for name in names]
    assert queued(writer, *steps[1:]) == [None] * 3  # with that of this thread, four
    commits = counted(monkeypatch, store)
    groups._patience = 600
    threads = [threading.Thread(target=step) for step in steps]
    threads[0].start()
    until(lambda: groups._is_busy)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commits) == 1


def test_a_group_waits_for_no_step_that_did_not_come_before(store, writer, monkeypatch) -> None:
    """A thread that is alone, or whose fellows wait for their backends, commits at once."""
    groups = writer._commits
    assert queued(writer, partial(writer.log, "forget", NODE)) == [None]
    groups._patience = 0
    writer.log("forget", NODE)
    monkeypatch.setattr(groups._arrived, "wait", Mock(side_effect=AssertionError))
    writer.log("forget", NODE)


def test_an_end_that_is_left_is_committed_with_the_next_step(store, writer, monkeypatch) -> None:
    """So the end of an action and the start of the next share a commit; nothing is reported before it."""
    end = writer.finish_soon(writer.begin("create", VOLUME, "local", {}), {"id": "v"})
    assert VOLUME not in store.read().records
    commits = counted(monkeypatch, store)
    told: list[int] = []
    end.on_commit(lambda: told.append(len(commits)))
    writer.begin("create", Address("volume", "next"), "local", {})
    end.settle()
    assert told == commits == [1]
    end.on_commit(lambda: told.append(2))
    assert told == [1, 2]  # at once: it is committed
    assert VOLUME in writer.state().records


def test_an_end_that_is_left_is_committed_once_it_is_settled(store, writer, monkeypatch) -> None:
    end = writer.finish_soon(writer.begin("create", VOLUME, "local", {}), {"id": "v"})
    commits = counted(monkeypatch, store)
    end.settle()
    assert len(commits) == 1
    assert VOLUME in store.read().records
    assert store.check() == []


def test_an_end_that_is_left_is_done_again_if_its_commit_fails(store, writer, monkeypatch) -> None:
    """It is not reported before; a fault of its own does not delay the step with which it was done."""

    def fails(*_: object) -> None:
        raise UnreachableError("unreadable", "the disk is gone")

    intent, other = writer.begin("create", VOLUME, "local", {}), Address("volume", "next")
    end, told = writer.finish_soon(intent, {"id": "v"}), Mock()
    end.on_commit(told)
    monkeypatch.setattr(engine(store), committing(store), fails)
    with pytest.raises(UnreachableError):
        writer.begin("create", other, "local", {})
    monkeypatch.undo()
    told.assert_not_called()
    end.settle()
    told.assert_called_once_with()
    assert VOLUME in store.read().records
    bad = writer.finish_soon(replace(intent, id=intent.id + 1000))
    assert writer.begin("create", other, "local", {}).address == other
    with pytest.raises(StateError, match="was ended before"):
        bad.settle()


def test_what_is_to_be_done_once_a_step_is_committed_is_done_once(store, writer, monkeypatch) -> None:
    """Even if it is added while the threads of the group are informed."""
    groups, told, real = writer._commits, Mock(), writer._commits._mutex
    step = groups.leave(lambda _connection: None)

    class Turn:
        def __enter__(self) -> None:
            real.acquire()

        def __exit__(self, *_error: object) -> None:
            real.release()
            if step.is_done and not step.then:
                groups.on_commit(step, told)

    monkeypatch.setattr(groups, "_mutex", Turn())
    writer.log("forget", NODE)
    told.assert_called_once_with()


def test_steps_that_are_left_fit_in_groups(store, writer) -> None:
    """More of them than one group takes, before a step that is waited for, and before one that joins none."""
    names = [Address("volume", f"v-{i}") for i in range(MOST_WRITES + 2)]
    begun = [writer.begin("create", name, "local", {}) for name in names]
    ends = [writer.finish_soon(intent, {"id": str(intent.address)}) for intent in begun]
    writer.renew(60)
    assert not store.read().records
    writer.begin("create", VOLUME, "local", {})
    assert {*store.read().records} == {*names}
    for end in ends:
        end.settle()


def test_a_step_that_fails_takes_no_other_with_it(store, writer, monkeypatch) -> None:
    """Nor is anything of it left."""

    def half(connection: Connection) -> None:
        record_changes.raise_generation(connection, NODE, 7)
        raise StateError("odd", "it is not to be")

    begin = partial(writer.begin, "create")
    commits = counted(monkeypatch, store)
    first, bad, last = queued(
        writer,
        partial(begin, Address("volume", "a"), "local", {}),
        partial(writer._write, half),
        partial(begin, Address("volume", "b"), "local", {}),
    )
    assert (first, str(bad), last) == (None, "it is not to be", None)
    assert len(commits) == 1
    state = store.read()
    assert {i.address.name for i in state.intents} == {"a", "b"}
    assert NODE not in state.generations


def test_a_first_step_that_fails_holds_up_no_other(store, writer) -> None:
    """The steps behind it are done in a transaction of their own."""

    def fail(_connection: Connection) -> None:
        thread.start()
        until(lambda: len(writer._commits._queue) == 1)
        raise StateError("odd", "it is not to be")

    address = Address("volume", "a")
    thread = threading.Thread(target=partial(writer.begin, "create", address, "local", {}))
    with pytest.raises(StateError, match="it is not to be"):
        writer._write(fail)
    thread.join()
    assert [intent.address for intent in store.read().intents] == [address]


def test_an_interrupted_thread_leaves_nobody_waiting(store, writer) -> None:
    """Neither those behind its step, nor what is written next."""
    groups, found = writer._commits, []

    def first(_connection: Connection) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Condition, "wait", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                groups.do(lambda _connection: found.append("interrupted"))
        thread.start()
        until(lambda: len(groups._queue) == 1)

    thread = threading.Thread(target=partial(writer.begin, "create", NODE, "local", {}))
    writer._write(first)
    thread.join()
    assert found == []
    assert writer.ensure_lineage() == store.read().lineage
    assert [intent.address for intent in store.read().intents] == [NODE]


def test_what_a_failed_step_has_read_is_read_again(store, writer) -> None:
    """A lineage that was rolled back belongs to no state, and the steps before it are done again."""
    lost: list[str] = []

    def fails(connection: Connection) -> None:
        lost.append(journal.lineage(connection))
        raise StateError("odd", "it is not to be")

    found = queued(
        writer,
        partial(writer.log, "forget", NODE),
        partial(writer._write, fails),
        partial(writer.begin, "create", VOLUME, "local", {}),
    )
    assert [str(error or "") for error in found] == ["", "it is not to be", ""]
    assert store.read().lineage not in (*lost, None)
    assert [operation.op for operation in store.journal.operations()] == ["create", "forget"]
    assert store.check() == []


def test_steps_of_a_group_read_what_they_share_once(store, writer, monkeypatch) -> None:
    writer.ensure_lineage()
    seen: list[str] = []
    real = Connection._run

    def notes(self: Connection, run: Callable[..., Any], sql: str, values: object) -> Any:
        seen.append(sql)
        return real(self, run, sql, values)

    monkeypatch.setattr(Connection, "_run", notes)
    steps = [partial(writer.begin, "create", Address("volume", f"v-{i}"), "local", {}) for i in range(5)]
    assert queued(writer, *steps) == [None] * 5
    assert len([sql for sql in seen if "lineage" in sql and sql.startswith("SELECT lineage")]) == 1
    assert len([sql for sql in seen if "max(id)" in sql]) <= 1


def test_a_commit_that_fails_is_everybodys_fault(store, writer, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise UnreachableError("unreadable", "the disk is gone")

    monkeypatch.setattr(engine(store), committing(store), fails)
    found = queued(
        writer,
        *(lambda i=i: writer.begin("create", Address("volume", f"v-{i}"), "local", {}) for i in range(3)),
    )
    assert [getattr(error, "code", None) for error in found] == ["unreadable"] * 3
    monkeypatch.undo()
    assert store.read().intents == ()
    assert writer.begin("create", VOLUME, "local", {}).address == VOLUME


def test_a_lease_is_renewed_between_two_steps_that_wait(store, writer) -> None:
    """It waits for its turn as they do, and joins no transaction of theirs."""
    order: list[str] = []

    def renews() -> None:
        writer.renew(60)
        order.append("renewed")

    def step(name: str) -> Callable[[], None]:
        return lambda: writer._write(lambda _connection: order.append(name))

    def waits(number: int) -> Callable[[], bool]:
        return lambda: len(writer._commits._queue) == number

    threads = [threading.Thread(target=run) for run in (step("before"), renews, step("after"))]

    def first(_connection: Connection) -> None:
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(waits(number))

    writer._write(first)
    for thread in threads:
        thread.join()
    assert order == ["before", "renewed", "after"]


def test_a_group_of_steps_is_one_round_trip(server_store, monkeypatch) -> None:
    begins: list[bool] = []
    begin = Postgres.begin

    def notes(self: Postgres, raw: Any, *, writes: bool) -> None:
        begins.append(writes)
        begin(self, raw, writes=writes)

    with server_store.lock("test", lease_seconds=600) as writer:
        writer.ensure_lineage()
        monkeypatch.setattr(Postgres, "begin", notes)
        sent = counted(monkeypatch, server_store)
        made = [writer.begin("create", Address("volume", f"v-{i}"), "local", {}) for i in range(3)]
        assert writer.part([VOLUME]).records == {}
        for intent in made:
            writer.finish(intent, {"id": intent.token})
        assert len(writer.state().records) == 3
        assert (len(sent), begins) == (6, [])


def test_a_new_state_is_made_and_copied_in_few_round_trips(postgres_url, monkeypatch) -> None:
    """Whatever the number of tables, which are made in one and copied in one."""
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def notes(self: psycopg.Cursor, query: str | bytes, *given: Any, **options: Any) -> Any:
        sent.append(query if isinstance(query, str) else query.decode())
        return execute(self, query, *given, **options)

    url = postgres_url()
    monkeypatch.setattr(psycopg.Cursor, "execute", notes)
    with open_store(url) as opened, opened.lock("test", lease_seconds=600) as writer:
        assert writer.state().records == {}
    words = ["attname", "attname", "CREATE", "owner", "FOR UPDATE", "clock", "UPDATE", "resources"]
    assert len(sent) == len(words) + 2  # the lock is given back, and it is seen that nothing is to be pruned
    for sql, word in zip(sent, words, strict=False):
        assert word in sql
    assert len(sent) < 20


def test_a_connection_that_was_lost_before_its_last_answer_can_be_closed(server_store) -> None:
    with server_store.writable().reading() as connection:
        raw = connection.raw
        connection.execute("SELECT 1")
    assert raw.ending
    raw.pgconn.finish()
    raw.close()
    assert raw.closed


def test_a_read_on_a_server_is_one_message_and_a_second_one_waits_for_the_first(server_store) -> None:
    """The answer to its COMMIT is read with the next use."""
    database = server_store.writable()
    with database.reading() as connection:
        raw = connection.raw
        assert connection.execute("SELECT 40 + :its_more AS sum", its_more=2).scalar() == 42
        assert (raw.opening, raw.snapshot, raw.ending) == ((), True, False)
    assert raw.ending
    with database.reading() as connection:
        assert connection.raw is raw
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            raw.execute("DELETE FROM resources")
        raw.execute("ROLLBACK")
    with database.writing() as connection:
        assert connection.raw is raw
        assert raw.opening
        connection.insert("generations", *({"address": f"volume/v-{i}", "generation": 1} for i in range(2)))
        assert raw.info.transaction_status == TransactionStatus.INTRANS
    with database.reading() as connection:
        assert len(connection.select("generations").all()) == 2
    with database.writing():
        pass
    assert raw.info.transaction_status == TransactionStatus.ACTIVE  # the COMMIT of the read before
    raw.settle()
    assert raw.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.parametrize("fresh", [True, False])
def test_a_connection_that_was_lost_while_idle_is_replaced(server_store, monkeypatch, fresh) -> None:
    """It is noticed before its next transaction: at once if the server reported it, else by asking."""
    if not fresh:
        monkeypatch.setattr(postgres_connection, "FRESH", 0.0)
    database = server_store.writable()
    with database.reading() as connection:
        raw = connection.raw
        pid = raw.info.backend_pid
        connection.execute("SELECT 1")
    with database.connect() as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)
    with database.reading() as connection:
        assert connection.raw is not raw
        assert connection.execute("SELECT 1 AS one").scalar() == 1


def test_an_entry_of_a_command_without_the_lock_keeps_its_number(server_store) -> None:
    with server_store.lock("test") as writer:
        writer.log("forget", NODE)
        with open_store(server_store.url) as other:
            other.journal.note("shell", NODE, "fleetform exec")
        with pytest.raises(UnreachableError):
            writer.log("forget", VOLUME)
        writer.log("forget", VOLUME)
    assert [(entry.id, entry.op) for entry in server_store.journal.operations()] == [
        (3, "forget"),
        (2, "shell"),
        (1, "forget"),
    ]


def test_what_others_change_under_the_lock_is_noticed(server_store) -> None:
    with server_store.lock("test") as writer:
        make(writer, VOLUME, **of_volume())
        with engine(server_store).writing() as connection:
            connection.execute("DELETE FROM resources")
        with pytest.raises(StateError, match="changed by others"):
            writer.forget(VOLUME)
        assert writer.state().records == {}


def test_what_many_records_share_is_read_once(store, writer) -> None:
    """The volumes of one document have the same inputs; the next load finds what they were read as."""
    names = [Address("volume", f"data-{i}") for i in range(3)]
    for name in names:
        make(writer, name, **of_volume())
    first = {id(store.read().records[name].volume) for name in names}
    again = {id(writer.state().records[name].volume) for name in names}
    assert len(first | again) == 1
    assert store.read().records[names[0]].inputs == of_volume()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed in /proc")
def test_a_state_that_cannot_be_read_is_closed_all_the_same(tmp_path):
    """A loop that reads it anew again and again would run out of files."""
    file = tmp_path / "state.db"
    with open_store(f"sqlite:///{file}") as store, store.lock("test") as writer:
        for name in ("data-0", "data-1"):
            writer.finish(writer.begin("create", Address("volume", name), "local", {"size": "1GB"}), {})
    with closing(sqlite3.connect(file)) as made:
        made.execute("UPDATE resources SET inputs = '{' WHERE name = 'data-0'")
        made.commit()
    with pytest.raises(StateError) as error, open_store(f"sqlite:///{file}", read_only=True) as store:
        store.read()
    held = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_file()]
    assert [path for path in held if path.startswith(str(file))] == [], error


def test_a_folder_that_nobody_may_write_to_is_not_called_unreadable():
    with pytest.raises(StateError) as caught, as_state_error(".fleetform/state.db"):
        raise OSError(errno.EROFS, "Read-only file system")
    assert caught.value.code == "read-only"
    assert "`--state URL`" in (caught.value.hint or "")
