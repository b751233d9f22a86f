"""A state restored from a backup: what its lost future did is not mistaken for its own work."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from declarative.model.state import Address, Intent, Record, attempt_id, attempt_of, token
from declarative.store import StateError, open_store
from declarative.store.writer import LATEST
from tests.support.cli import Project, fleet, hold, lines, task, until


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_clock_that_was_set_back_with_the_state_refuses_nobody(project):
    """What is recorded of a later writer, by the clock of then, is checked by one with a higher number."""
    project.declare(
        fleet(), counted(project, "one"), task("on", hold(project.path / "on"), resources={"cpu": 1})
    )
    project.apply()
    until(lambda: lines(project.path / "on"))
    files = list((project.path / ".fleetform" / "local").rglob(".epoch*"))
    told = max(int(file.read_text()) for file in files) + 86_400_000
    for file in files:
        file.write_text(f"{told}\n")
    assert len(files) == 2, "of the folders, and of the node"
    project.declare(fleet(), counted(project, "two"))
    project.apply("--wait")
    assert "two" in lines(project.path / "ran")
    assert all(int(file.read_text()) > told for file in files)
    project.no_changes()


def test_only_who_has_changed_nothing_yet_counts_above_a_later_writer(tmp_path):
    """A writer that was overtaken stays refused, and so does one that lost the lock."""
    with open_store("sqlite:///state.db", root=tmp_path) as store:
        with store.lock("apply") as writer:
            newest = writer.fence() + 1000
            assert writer.learn(newest)
            assert writer.fence() == newest + 1
            assert not writer.learn(LATEST), "a number that somebody made up"
            writer.begin("create", Address("volume", "data"), "local", {})
            assert not writer.learn(newest + 5)
        with store.lock("apply") as writer:
            assert writer.fence() > newest
            writer.changing()
            assert not writer.learn(newest + 5)
        with store.lock("apply") as writer:
            store.unlock()
            with pytest.raises(StateError, match="lost the state's lock"):
                writer.learn(newest + 5)


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
