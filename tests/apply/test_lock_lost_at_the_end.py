"""A lock that is lost after the plan's actions are done: what was done is reported, and that it was lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.apply import run
from declarative.apply.graph_walk import Tools
from declarative.cli import apply, cli
from declarative.converge import run as converge_run
from declarative.store import StateError, open_store
from tests.support.cli import Project, fleet, task

PLACES = [
    (run, "_take_back"),
    (run, "give_back"),
    (run, "_leave"),
    (run, "_late"),
    (run, "_tidy"),
    (run, "complete"),
    (converge_run, "release_all"),
]
"""All that `apply` does after the walk."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.clean_up()


@pytest.mark.parametrize(("module", "name"), PLACES, ids=[name for _, name in PLACES])
@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_done_is_reported(
    project: Project, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, as_json: bool
) -> None:
    project.declare(fleet(nodes=1), task("hello", "true"))
    whole = getattr(module, name)

    def lost(*args: Any, **more: Any) -> Any:
        (tools,) = [a for a in args if isinstance(a, Tools)]
        with open_store(f"sqlite:///{project.path}/.fleetform/state.db") as other:
            other.unlock()
        tools.writer.renew(60.0)
        return whole(*args, **more)

    monkeypatch.setattr(module, name, lost)
    words = ["-C", str(project.path), "apply", "--auto-approve", *(["--json"] if as_json else [])]
    done = CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == 4, done.output
    if as_json:
        events = [json.loads(line) for line in done.stdout.splitlines()]
        (summary,) = [e for e in events if e["event"] == "summary"]
        assert summary["result"] == "failed"
    else:
        assert "created" in done.output
        assert "Apply finished with problems: " in done.output
        assert " done, 0 failed, 0 skipped. The next `fleetform apply` does the rest." in done.output
        assert "Apply complete" not in done.output
    assert "stale-lease" in done.output
    monkeypatch.undo()
    assert CliRunner().invoke(cli, words, standalone_mode=False).return_value == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_a_lock_that_is_lost_while_a_task_runs_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    """`--wait` has done what its summary says, and not all."""
    project.declare(fleet(nodes=1), task("hello", "true"))

    def lost(*_: Any) -> Any:
        raise StateError("stale-lease", "the lock is gone", "look who has it")

    monkeypatch.setattr(apply.TaskFollowing, "_step", lost)
    words = ["apply", "--auto-approve", "--wait", *(["--json"] if as_json else [])]
    done = CliRunner().invoke(
        cli, ["-C", str(project.path), *words], catch_exceptions=False, standalone_mode=False
    )
    assert done.return_value == 4, done.output
    assert "stale-lease" in done.output
    assert ('"event": "summary"' if as_json else "created") in done.output
