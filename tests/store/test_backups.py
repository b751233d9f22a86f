"""Backups of states before changes, and their restoration."""

from __future__ import annotations

import stat

import pytest

from declarative import store
from declarative.converge import state_access
from declarative.model.diagnostic import InvalidError
from declarative.store.backup import KEPT, keep_before
from tests.support.cli import fleet, task, volume

STATE = ".fleetform/state.db"


@pytest.mark.slow
def test_an_apply_keeps_the_state_as_it_was(project):
    """One that changes something, from the second on; only its owner can read it."""
    project.declare(fleet(), volume())
    project.apply()
    assert project.run("state", "list-backups").out == "There are no backups.\n"
    before = project.run("state", "pull").json
    project.apply()
    assert project.run("state", "list-backups", "--json").json["backups"] == []
    project.declare(fleet(), volume(), volume("more"))
    project.apply()
    (kept,) = project.run("state", "list-backups", "--json").json["backups"]
    assert (kept["serial"], kept["records"], kept["lineage"]) == (before["serial"], 2, before["lineage"])
    file = project.path / kept["file"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kept["file"] in project.run("state", "list-backups").out
    project.run("state", "restore", kept["file"], "--auto-approve")
    assert "orphan" in project.run("state", "check", code=1).out
    assert len(project.run("state", "list-backups", "--json").json["backups"]) == 2


def test_the_last_ten_stay(tmp_path):
    """Of each state; those of changes by hand are not counted."""
    (tmp_path / ".fleetform" / "backups").mkdir(parents=True)
    by_hand = tmp_path / ".fleetform" / "backups" / "state-aaaaaaaa-1.json"
    by_hand.write_text("{}")
    for serial in range(KEPT + 3):
        for lineage in ("a" * 8, "b" * 8):
            keep_before(tmp_path, {"lineage": lineage, "serial": serial}, f"20260131T1200{serial:02}Z")
    names = sorted(p.name for p in by_hand.parent.iterdir())
    wanted = [f"apply-{x * 8}-{n}-20260131T1200{n:02}Z.json" for x in "ab" for n in range(3, KEPT + 3)]
    assert names == sorted([*wanted, by_hand.name])


@pytest.mark.slow
def test_a_state_that_was_removed_or_damaged_comes_back(project):
    """Its message names the command and the file; nothing is made a second time."""
    project.declare(fleet(), volume())
    project.apply()
    project.declare(fleet(), volume(), task("job", "true"))
    project.apply("--wait")
    (kept,) = project.run("state", "list-backups", "--json").json["backups"]
    state = project.path / STATE
    whole = state.read_bytes()
    state.unlink()
    removed = project.run("apply", "--auto-approve", code=1).err
    assert "error[no-state]" in removed
    assert f"`fleetform state restore {kept['file']}`" in removed
    for look in ("plan", "plan --json", "plan --offline", "status", "status --offline", "state list"):
        said = project.run(*look.split()).err
        assert said.count(f"`fleetform state restore {kept['file']}`") == 1, look
    assert not state.exists()
    project.run("state", "restore", "--auto-approve")
    assert project.run("state", "list").out.split() == ["volume/data", "node/gpu-0"]
    state.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    broken = project.run("apply", "--auto-approve", code=1).err
    assert "error[damaged]" in broken
    assert f"`fleetform state restore {kept['file']}`" in broken
    done = project.run("state", "restore", "--auto-approve")
    assert "What was there is in" in done.err
    assert [p.name for p in state.parent.glob("state.db.damaged-*")] != []
    project.apply("--wait")
    project.no_changes()
    project.run("state", "check")


def test_a_pulled_state_is_planned_with_where_there_are_backups(project):
    """It is a file, and none of the project's states was removed."""
    project.declare(fleet())
    project.apply()
    project.declare(fleet(), volume())
    project.apply()
    project.write("pulled.json", project.run("state", "pull").out)
    project.declare(fleet(nodes=2), volume())
    done = project.run("plan", "--offline", "--state", "pulled.json", "--json")
    assert [a["id"] for a in done.json["actions"]] == ["create:node/gpu-1"]


def test_what_a_killed_backup_left_is_removed(tmp_path):
    """The next backup removes it: nobody will complete it."""
    folder = tmp_path / ".fleetform" / "backups"
    folder.mkdir(parents=True)
    (folder / ".state-aaaaaaaa-1.json.x1y2z3.aside").write_text("half")
    keep_before(tmp_path, {"lineage": "a" * 8, "serial": 1}, "20260131T120000Z")
    assert [p.name for p in folder.iterdir()] == ["apply-aaaaaaaa-1-20260131T120000Z.json"]


def test_nobody_says_that_a_state_is_sound_which_is_not_there(project):
    done = project.run("state", "check", "--state", "sqlite:///nosuch.db", code=1)
    assert "error[no-state]" in done.err
    assert done.out == ""


@pytest.mark.parametrize("write", [True, False])
def test_a_database_that_is_away_is_waited_for_before_a_command_that_writes(
    tmp_path, monkeypatch, capsys, write
):
    """The command says so and waits; a command that only reads fails at once."""
    real, tries = store.open_store, []

    def away_twice(*args, **kwargs):
        tries.append(1)
        if len(tries) < 3:
            raise store.UnreachableError("unreachable", "the state's database cannot be reached")
        return real(*args, **kwargs)

    monkeypatch.setattr(store, "open_store", away_twice)
    access = state_access.StateAccess(tmp_path, "sqlite:///state.db")
    if write:
        access.open(None, write=True)
        access.close()
    else:
        with pytest.raises(InvalidError):
            access.open(None)
    assert len(tries) == (3 if write else 1)
    said = "waiting up to 60 s: the state's database cannot be reached\n"
    assert capsys.readouterr().err == (said if write else "")
