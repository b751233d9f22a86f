"""A state that was brought back from a backup: what its lost future did is not taken for its own doing."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from declarative.provider import token
from declarative.state import Address, Intent, Record, attempt_id, attempt_of
from declarative.store import open_store
from tests.cli import Project, fleet, lines, task

pytestmark = pytest.mark.slow


def counted(project: Project, text: str) -> dict:
    """A task that leaves a line wherever it runs."""
    return task("job", f"echo {text} >> {project.path}/ran")


def by_file(project: Project) -> Callable[[], None]:
    """Copy the state back, as a backup would be."""
    shutil.copytree(
        project.path / ".fleetform", project.path / "kept", ignore=shutil.ignore_patterns("local")
    )

    def restore() -> None:
        for old in (project.path / ".fleetform").glob("state.db*"):
            old.unlink()
        for file in (project.path / "kept").glob("state.db*"):
            shutil.copy(file, project.path / ".fleetform")

    return restore


def by_push(project: Project) -> Callable[[], None]:
    """`state pull`, then `state push` into a database that is new."""
    project.write("kept.json", project.run("state", "pull").out)

    def restore() -> None:
        for old in (project.path / ".fleetform").glob("state.db*"):
            old.unlink()
        project.run("state", "push", "kept.json")

    return restore


@pytest.mark.parametrize("way", [by_file, by_push])
def test_a_task_that_did_not_run_has_not_succeeded(project, way):
    """An attempt of the future that was lost has the generation of the new one: it is another attempt."""
    project.declare(fleet(), counted(project, "one"))
    project.apply("--wait")
    restore = way(project)
    project.declare(fleet(), counted(project, "two"))
    project.apply("--wait")
    restore()
    project.declare(fleet(), counted(project, "three"))
    project.apply("--wait")
    assert lines(project.path / "ran") == ["one", "two", "three"]
    project.no_changes()


def test_attempts_of_an_older_version_go_on():
    """Their ids have no random part, in records and in what was begun and not recorded."""
    rank = Address("rank", "job-0")
    assert attempt_id(Record(address=rank, backend="local", inputs={}, generation=2)) == "job-0.2"
    intent = Intent(
        id=1,
        op="create",
        address=rank,
        backend="local",
        generation=2,
        token=token("lineage", rank, 2, None),
        inputs={},
    )
    assert attempt_of(intent) == "job-0.2"


def test_a_crash_between_the_intent_and_the_call_is_taken_up_with_the_same_attempt(tmp_path):
    with open_store("sqlite:///state.db", root=tmp_path) as store:
        with store.lock("apply") as writer:
            first = writer.begin("create", Address("rank", "job-0"), "local", {})
        with store.lock("apply") as writer:
            assert attempt_of(writer.begin("create", Address("rank", "job-0"), "local", {})) == attempt_of(
                first
            )
            writer.fail(first, "it was refused")
            assert attempt_of(writer.begin("create", Address("rank", "job-0"), "local", {})) != attempt_of(
                first
            )
        assert store.check() == []
