"""States of earlier formats: read, migrated completely or not at all, and saved first."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Address
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store import FORMAT_VERSION, StateError, migrations, open_store, schema
from declarative.store import lock as locks
from declarative.store.schema import JSON
from declarative.store.snapshot import parse
from declarative.store.sql import Connection

STATES = Path(__file__).with_name("states")
FORMATS = sorted(int(path.stem.partition("-")[2]) for path in STATES.glob("format-*.sql"))


def restore(path: Path, number: int) -> str:
    """A state file of that format, as that version of fleetform wrote it; its URL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as made:
        made.executescript((STATES / f"format-{number}.sql").read_text(encoding="utf-8"))
    return f"sqlite:///{path}"


def pulled(number: int) -> Any:
    """The output of `state pull` at that time."""
    return json.loads((STATES / f"format-{number}.json").read_text(encoding="utf-8"))


def expected(number: int) -> Any:
    """The output of `state pull` at that time, with what later formats add."""
    found = pulled(number) | {"format_version": FORMAT_VERSION}
    if number < 2:
        found["ranks"] = {name: {**rank, "confinement": None} for name, rank in found["ranks"].items()}
        found["nodes"] = {name: {**node, "can": None} for name, node in found["nodes"].items()}
    if number < 3:
        found["volumes"] = {}
    return found


def copy(path: Path, url: str) -> None:
    """Move the tables of a state file, of whatever format, to another database that has none yet."""
    with closing(sqlite3.connect(path)) as source, open_store(url) as store:
        source.row_factory = sqlite3.Row
        with store.writable().writing() as connection:
            for table, columns in schema.COLUMNS.items():
                connection.execute(f"DELETE FROM {table}")
                there = {row["name"] for row in source.execute(f"PRAGMA table_info({table})")}
                if not there:
                    connection.execute(f"DROP TABLE {table}")
                    continue
                for column in {*columns} - there:
                    connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
                rows = [dict(row) for row in source.execute(f"SELECT * FROM {table}")]
                for row in rows:
                    row.update({name: json.loads(row[name]) for name in JSON & row.keys() if row[name]})
                connection.insert(table, *rows)


def placed(number: int, tmp_path: Path, url: str) -> str:
    """A state of that format in a database of the kind that `url` is; its URL."""
    file = tmp_path / "old" / "state.db"
    restore(file, number)
    if url.startswith("sqlite"):
        return f"sqlite:///{file}"
    copy(file, url)
    return url


@pytest.fixture
def old(tmp_path, new_state) -> str:
    """A state of this format with everything in it, in each database: old once there is a next format."""
    return placed(FORMAT_VERSION, tmp_path, new_state())


@pytest.fixture
def next_format(monkeypatch) -> Callable[..., list[int]]:
    """Gives the tool one more format than it has; the formats that were migrated from."""

    def give(step: Callable[[Connection], None] | None = None) -> list[int]:
        ran: list[int] = []

        def migrate(connection: Connection) -> None:
            ran.append(FORMAT_VERSION)
            connection.execute("ALTER TABLE node_status ADD COLUMN seen_by TEXT")
            connection.execute("UPDATE node_status SET reason = 'migrated'")
            if step:
                step(connection)

        monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, migrate))
        monkeypatch.setattr(schema, "FORMAT_VERSION", FORMAT_VERSION + 1)
        return ran

    return give


def backups(tmp_path: Path) -> list[Path]:
    return sorted(p for p in tmp_path.rglob("*") if "backup" in str(p.relative_to(tmp_path)) and p.is_file())


def test_every_format_has_its_fixture() -> None:
    assert list(range(1, FORMAT_VERSION + 1)) == FORMATS
    assert len(migrations.MIGRATIONS) == FORMAT_VERSION - 1


@pytest.mark.parametrize("number", FORMATS)
def test_a_state_of_every_format_is_taken_over_whole(tmp_path, number) -> None:
    """All that was recorded, observed, begun and used; and it can be worked with."""
    with open_store(restore(tmp_path / "state.db", number)) as store:
        found = store.pull()
        assert found == expected(number)
        assert store.check() == []
        with store.lock("apply") as writer:
            assert writer.lease.fence == 2, "the lock of one who is long gone has lapsed"
            left = {f"{i.op}:{i.address}": i for i in writer.state().intents}
            assert set(left) == {"create:volume/data-2", "delete:rank/done-0"}
            again = writer.begin(
                "create", Address("volume", "data-2"), "local", {"size": "10GB", "zone": None}
            )
            assert again.token == left["create:volume/data-2"].token
    assert backups(tmp_path) == [] or number < FORMAT_VERSION


@pytest.mark.parametrize("number", FORMATS)
def test_every_format_is_brought_up_to_date_in_every_database(tmp_path, new_state, number) -> None:
    url = placed(number, tmp_path, new_state())
    told: list[str] = []
    with open_store(url, root=tmp_path, notify=told.append) as store:
        assert store.pull() == expected(number)
        with store.lock("apply") as writer:
            writer.observe_ranks(
                {"train-0": RankStatus(state=RankState.RUNNING, confinement="soft: affinity")}
            )
            writer.observe_nodes({"gpu-0": Readiness(state=NodeState.READY, can=frozenset({"hard"}))})
            begun = writer.begin("create", Address("volume", "new"), "local", {"size": "1GB"})
        assert store.read().ranks["train-0"].confinement == "soft: affinity"
        assert store.read().readiness["gpu-0"].can == frozenset({"hard"})
        newest, before, *_ = store.journal.operations([], None)
        assert (newest.host, newest.doing) == (socket.gethostname(), "apply")
        assert (before.host, before.doing) == ((None, None) if number < 2 else ("elsewhere", "apply"))
        with store.lock("apply") as writer:
            writer.finish(begun)
            assert "new" in writer.state().detached_since
    assert len(told) == (number < FORMAT_VERSION)


@pytest.mark.parametrize("number", FORMATS)
def test_who_only_reads_reads_every_format_and_changes_none(tmp_path, new_state, number) -> None:
    """After an upgrade `plan` and `status` work before the first `apply`; what is new is not known."""
    url = placed(number, tmp_path, new_state())
    for _ in range(2):
        with open_store(url, root=tmp_path, read_only=True) as store:
            assert store.pull() == expected(number)
            assert store.check() == []
            assert store.journal.operations([], None)
    told: list[str] = []
    open_store(url, root=tmp_path, notify=told.append).close()
    assert len(told) == (number < FORMAT_VERSION), "it was still of its own format"


SEALED = [number for number in FORMATS if number >= 6]
"""The formats that have a seal."""


def seal_as_then(url: str, path: Path, number: int) -> None:
    """Seal a state as the fleetform of its format did: a digest of what `state pull` printed then."""
    with open_store(url, read_only=True) as store:
        intents = [[i.id, i.begun_at, i.place, i.tick] for i in store.read().intents]
    digest = hashlib.sha256(schema.dumps([pulled(number), intents]).encode()).hexdigest()
    with closing(sqlite3.connect(path)) as made:
        made.execute("UPDATE meta SET seal = ?", (digest,))
        made.commit()


@pytest.mark.parametrize("number", SEALED)
def test_a_sealed_state_of_an_older_format_is_read_and_brought_up_to_date(tmp_path, number) -> None:
    """It is whole before and after, and sealed again: an upgrade takes nobody's state for damaged."""
    path = tmp_path / "state.db"
    url = restore(path, number)
    seal_as_then(url, path, number)
    with open_store(url, read_only=True) as store:
        assert store.check() == []
        assert store.pull() == expected(number)
    with open_store(url) as store:
        assert store.check() == []
        assert store.pull() == expected(number)
        assert store.seal() is not None


@pytest.mark.parametrize("number", SEALED)
def test_what_is_damaged_is_so_after_a_migration_too(tmp_path, number) -> None:
    path = tmp_path / "state.db"
    url = restore(path, number)
    seal_as_then(url, path, number)
    with closing(sqlite3.connect(path)) as made:
        made.execute("UPDATE meta SET serial = serial + 1")
        made.commit()
    for read_only in (True, False, False):
        with open_store(url, read_only=read_only) as store:
            assert any("has changed it" in fault for fault in store.check())


@pytest.mark.parametrize("number", FORMATS)
def test_what_was_pulled_in_every_format_can_be_pushed(tmp_path, number) -> None:
    with open_store(restore(tmp_path / "state.db", number)) as store:
        found = pulled(number)
        found["records"][0]["inputs"]["size"] = "11GB"
        found["serial"] += 1
        with store.lock("state push") as writer:
            assert writer.push(*parse(found), force=False)
        after = store.pull()
        assert after["records"][0]["inputs"]["size"] == "11GB"
        for kind in ("nodes", "ranks", "volumes"):
            assert after[kind] == expected(number)[kind]


@pytest.mark.parametrize("number", [0, FORMAT_VERSION + 1, True, "1"])
def test_a_format_that_there_is_not_is_not_pushed(number) -> None:
    with pytest.raises(StateError) as caught:
        parse(pulled(FORMAT_VERSION) | {"format_version": number})
    assert caught.value.code in ("older-format", "newer-format", "bad-state")


def test_a_migration_runs_once_and_keeps_what_was_before(old, tmp_path, next_format) -> None:
    ran = next_format()
    told: list[str] = []
    for _ in range(2):
        with open_store(old, root=tmp_path, notify=told.append) as store:
            assert store.read().readiness["gpu-0"].reason == "migrated"
    assert ran == [FORMAT_VERSION]
    (kept,) = backups(tmp_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    (line,) = told
    assert str(kept) in line
    assert f"from format {FORMAT_VERSION} to {FORMAT_VERSION + 1}" in line


def test_the_backup_is_the_state_as_it_was(old, tmp_path, next_format, monkeypatch) -> None:
    with open_store(old, read_only=True) as store:
        before = store.pull()
    with monkeypatch.context():
        next_format()
        open_store(old, root=tmp_path).close()
    (kept,) = backups(tmp_path)
    monkeypatch.undo()
    if kept.suffix == ".json":
        rows = json.loads(kept.read_text())
        assert {row["address"] for row in rows["resources"]} == {r["address"] for r in before["records"]}
        assert rows["meta"][0]["lineage"] == before["lineage"]
        assert set(rows) == set(schema.TABLES)
        assert all(row["reason"] != "migrated" for row in rows["node_status"])
        return
    with open_store(f"sqlite:///{kept}", read_only=True) as store:
        assert store.pull() == before


def test_a_migration_that_fails_changes_nothing(old, tmp_path, next_format) -> None:
    """The backup stays all the same; the next one has a name of its own."""

    def fail(connection: Connection) -> None:
        connection.execute("SELECT nothing FROM nowhere")

    next_format(fail)
    for _ in range(2):
        with pytest.raises(StateError):
            open_store(old, root=tmp_path)
        with pytest.raises(StateError) as caught:
            open_store(old, read_only=True)
        assert caught.value.code == "older-format"
    assert len(backups(tmp_path)) == 2


def test_without_a_backup_there_is_no_migration(old, tmp_path, next_format, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    ran = next_format()
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(StateError) as caught:
        open_store(old, root=tmp_path)
    assert caught.value.code == "backup"
    assert ran == []
    assert backups(tmp_path) == []


def test_many_migrate_at_once_and_one_does(old, tmp_path, next_format) -> None:
    ran = next_format()
    barrier = threading.Barrier(4)
    seen = []

    def open_it() -> None:
        barrier.wait()
        with open_store(old, root=tmp_path) as store:
            seen.append(store.read().readiness["gpu-0"].reason)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["migrated"] * 4
    assert ran == [FORMAT_VERSION]
    assert len(backups(tmp_path)) == 1


def test_a_state_that_an_older_tool_works_on_is_left_alone(old, tmp_path, next_format) -> None:
    with open_store(old) as older, older.lock("apply") as writer:
        ran = next_format()
        with pytest.raises(StateError) as caught:
            open_store(old, root=tmp_path)
        assert caught.value.code == "locked"
        assert caught.value.lock == writer.lease
        assert ran == []
    open_store(old, root=tmp_path).close()
    assert ran == [FORMAT_VERSION]


def test_a_holder_whose_lock_is_checked_has_the_columns_of_every_format() -> None:
    """What a newer tool asks of an older state: the lock's row, the format and who wrote it."""
    late = {name.partition(".")[2] for names in schema.ADDED.values() for name in names if "lock." in name}
    assert {*locks.FREE, "fence", "id"} - late == set(schema.COLUMNS["writer_lock"]) - late
    assert late == {"ends", "epoch", "asked"}
    assert {"format_version", "tool", "lineage", "serial"} <= set(schema.COLUMNS["meta"])
