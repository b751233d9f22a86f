"""Shell completion and the pager: what they offer, and that they cost almost no time."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from declarative.model.state import Address, Record
from declarative.store import open_store

COSTLY = ("libcloud", "jinja2", "psycopg", "jsonschema", "asyncssh")
PROJECT = """\
type: task
name: train
nodes: 3
commands: ["true"]
---
type: task
name: other
commands: ["true"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks.yaml").write_text(PROJECT)
    with open_store("sqlite:///.fleetform/state.db", root=tmp_path) as store, store.lock("test") as writer:
        for kind, name in (("volume", "data-0"), ("node", "gpu-0")):
            writer.adopt(Record(address=Address(kind, name), backend="local", inputs={"blocks": 1}))
    return tmp_path


def complete(folder: Path, *words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    env = {
        **os.environ,
        "_FLEETFORM_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("fleetform", *words)),
        "COMP_CWORD": str(len(words)),
    }
    argv = [sys.executable, "-m", "declarative"]
    result = subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_commands_are_offered(project):
    assert complete(project, "pl") == ["plan"]
    assert complete(project, "hosts", "t") == ["trust"]
    assert complete(project, "hosts", "trust", "--re") == ["--replace"]


def test_tasks_and_ranks_are_offered(project):
    """Declared tasks, also before they ran; after a slash the task's ranks."""
    assert complete(project, "logs", "t") == ["train"]
    assert complete(project, "logs", "train/") == ["train/0", "train/1", "train/2"]
    assert complete(project, "stop", "o") == ["other"]
    assert complete(project, "apply", "--replace", "task/o") == ["task/other"]


def test_nodes_and_ranks_to_type_on_are_offered(project):
    assert complete(project, "ssh", "") == ["gpu-0"]
    assert complete(project, "exec", "train/") == ["train/0", "train/1", "train/2"]


def test_addresses_are_offered(project):
    """A kind first, then its names."""
    assert complete(project, "state", "show", "") == ["node/", "volume/"]
    assert complete(project, "state", "show", "volume/") == ["volume/data-0"]


def test_what_can_be_explained_is_offered(project):
    """Tasks and ranks, also before they ran, and recorded nodes."""
    assert complete(project, "explain", "") == ["node/", "rank/", "task/"]
    assert complete(project, "explain", "task/") == ["task/other", "task/train"]
    assert complete(project, "explain", "rank/t") == ["rank/train-0", "rank/train-1", "rank/train-2"]
    assert complete(project, "explain", "node/") == ["node/gpu-0"]


def test_groups_are_offered(project):
    """What `state mv` and `state rm` take: records, and a count of volumes, a fleet, a task as a whole."""
    assert complete(project, "state", "mv", "") == ["fleet/", "node/", "volume/"]
    assert complete(project, "state", "mv", "volume/") == ["volume/data", "volume/data-0"]
    assert complete(project, "state", "rm", "fleet/") == ["fleet/gpu"]
    assert complete(project, "state", "history", "node/") == ["node/gpu-0"]


def test_a_broken_project_offers_nothing(tmp_path):
    """A press of a key never ends in an error."""
    (tmp_path / "broken.yaml").write_text("type: [task\n\0")
    (tmp_path / ".fleetform").mkdir()
    (tmp_path / ".fleetform/state.db").write_text("no database")
    assert complete(tmp_path, "logs", "") == []
    assert complete(tmp_path, "state", "show", "") == []


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("plan", "--help"), ("completion", "bash")], ids=" ".join
)
def test_help_imports_nothing_costly(tmp_path, words):
    result = imported(tmp_path, words, {})
    assert [name for name in COSTLY if name in result] == []


def test_completion_imports_nothing_costly(project):
    """It runs at every press of a key."""
    env = {"_FLEETFORM_COMPLETE": "bash_complete", "COMP_WORDS": "fleetform logs t", "COMP_CWORD": "2"}
    assert [name for name in COSTLY if name in imported(project, (), env)] == []


def imported(folder: Path, words: tuple[str, ...], env: dict[str, str]) -> set[str]:
    """The top-level packages that a command imports."""
    argv = [sys.executable, "-X", "importtime", "-m", "declarative", *words]
    result = subprocess.run(
        argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 50
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_the_command(tmp_path, shell):
    argv = [sys.executable, "-m", "declarative", "completion", shell]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "_FLEETFORM_COMPLETE" in result.stdout


def test_what_can_be_drained_and_replaced_is_offered(project):
    assert complete(project, "drain", "g") == complete(project, "undrain", "g") == ["gpu-0"]
    assert complete(project, "apply", "--replace", "n") == ["node/gpu-0"]


HOSTILE = ("$(touch owned)", "`touch owned`", "a;touch owned", "a\x1b[2J", "a b", "a\nb", "-x", "../a", "A")


@pytest.mark.parametrize("words", [("logs", ""), ("explain", "task/"), ("explain", "rank/"), ("offers", "")])
def test_names_that_the_language_has_not_are_not_offered(tmp_path, words):
    """What is offered is put into the command line of a shell."""
    documents = [
        {"type": kind, "name": name} for kind in ("task", "fleet") for name in (*HOSTILE, 7, None, "good")
    ]
    (tmp_path / "a.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    found = complete(tmp_path, *words)
    assert [text for text in found if "good" not in text] == []
    assert len(found) == 1


def test_addresses_that_no_state_has_are_not_offered(tmp_path):
    state(
        tmp_path,
        "CREATE TABLE resources (address)",
        ["rank/good-0", *(f"rank/{name}-0" for name in HOSTILE), None],
    )
    assert complete(tmp_path, "state", "show", "rank/") == ["rank/good-0"]
    assert complete(tmp_path, "logs", "") == ["good"]


def test_what_never_ends_is_not_waited_for(tmp_path):
    """A pipe, a device, a link, a state that is a view without an end, and a pipe in the place of its log."""
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").symlink_to("/dev/zero")
    (tmp_path / "c.yaml").write_text("type: task\nname: good\n")
    numbers = "n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    endless = f"WITH RECURSIVE {numbers} SELECT 'x' AS address FROM n WHERE i < 0"
    state(tmp_path, f"CREATE VIEW resources AS {endless}", [])
    assert complete(tmp_path, "logs", "") == ["good"]
    os.mkfifo(tmp_path / ".fleetform/state.db-wal")
    assert complete(tmp_path, "logs", "") == ["good"]


def state(folder: Path, schema: str, addresses: list[str | None]) -> None:
    """A state that a stranger has made."""
    (folder / ".fleetform").mkdir()
    with contextlib.closing(sqlite3.connect(folder / ".fleetform/state.db")) as connection:
        connection.execute(schema)
        for address in addresses:
            connection.execute("INSERT INTO resources VALUES (?)", (address,))
        connection.commit()
