"""A copied project folder: it changes nothing of the original's until it is told to."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from declarative.store import StateError, project_copy
from tests.support.cli import Project, fleet, hold, lines, processes, task, until, volume


def running(project: Project, **more: str) -> Path:
    """A project with a rank that runs; the file with its pid."""
    pids = project.path / "job"
    project.declare({"type": "project", "name": "test", **more}, fleet(), volume(), task("job", hold(pids)))
    project.apply()
    until(lambda: lines(pids))
    return pids


def copied(project: Project) -> Project:
    folder = project.path.parent / "copy"
    shutil.copytree(project.path, folder)
    return Project(folder)


@pytest.mark.slow
def test_a_copy_asks_and_the_original_runs_on(project):
    (pid,) = lines(running(project))
    copy = copied(project)
    for command in (("apply", "--auto-approve"), ("destroy", "--auto-approve"), ("stop", "job")):
        done = copy.run(*command, code=1)
        assert "error[copied-state]" in done.err
        assert str(project.path) in done.err
        assert "fleetform state adopt-folder" in done.err
    assert "is a copy: its state is that of" in copy.run("plan").err
    assert copy.run("plan", "--offline").err == ""
    assert Path(f"/proc/{pid}").exists()
    project.no_changes()

    assert f"and was {project.path}/.fleetform" in copy.run("state", "adopt-folder").out
    copy.run("stop", "job")
    assert "error[copied-state]" in project.run("apply", "--auto-approve", code=1).err
    project.run("state", "adopt-folder")
    project.run("destroy", "--auto-approve")
    assert processes(project.path) == {}


@pytest.mark.slow
def test_a_folder_that_was_moved_or_brought_back_is_the_same(project):
    (pid,) = lines(running(project))
    moved = Project(project.path.rename(project.path.parent / "moved"))
    moved.apply()
    moved.no_changes()
    shutil.copytree(moved.path / ".fleetform", moved.path / "kept")
    shutil.rmtree(moved.path / ".fleetform")
    (moved.path / "kept").rename(moved.path / ".fleetform")
    moved.run("stop", "job")
    assert not Path(f"/proc/{pid}").exists()
    moved.run("destroy", "--auto-approve")


@pytest.mark.slow
def test_folders_that_share_a_state_are_no_copies(project, tmp_path):
    """As checkouts of CI, wherever they are: nothing is written down, and nothing asked."""
    running(project, state=f"sqlite:///{tmp_path}/elsewhere/state.db")
    copy = copied(project)
    copy.run("plan")
    copy.run("state", "history")
    copy.run("drain", "gpu-0")
    assert not list(tmp_path.rglob(project_copy.FILE))
    assert "no folder's" in copy.run("state", "adopt-folder", code=1).err
    project.run("undrain", "gpu-0")
    project.run("destroy", "--auto-approve")


@pytest.fixture
def folder(tmp_path):
    """A state's folder that is known."""
    found = tmp_path / "a" / ".fleetform"
    found.mkdir(parents=True)
    project_copy.check(found, note=True)
    return found


def kept(folder: Path) -> dict:
    found: dict = json.loads((folder / project_copy.FILE).read_text())
    return found


def is_copy(folder: Path) -> bool:
    try:
        project_copy.check(folder, note=False)
    except StateError as error:
        return error.code == "copied-state"
    return False


def test_another_machine_has_a_copy_unless_they_share_the_disk(folder, monkeypatch):
    """A clone of a whole machine has the inodes, too. Where no machine is known, as in a container that shows
    a folder of its host, nothing is asked.
    """
    for machine, disk, expected in (
        ("other", "ext4", True),
        ("other", "nfs4", False),
        ("other", "overlay", False),
        ("", "ext4", False),
    ):
        monkeypatch.setattr(project_copy, "_machine", lambda machine=machine: machine)
        monkeypatch.setattr(project_copy, "_filesystem", lambda _, disk=disk: disk)
        if not kept(folder)["machine"]:
            (folder / project_copy.FILE).write_text(json.dumps({**kept(folder), "machine": "here"}))
        assert is_copy(folder) == expected, (machine, disk)


def test_a_snapshot_with_the_same_inodes_is_a_copy(folder, monkeypatch):
    """As long as the original is there."""
    snapshot = folder.parent.parent / "b"
    shutil.copytree(folder.parent, snapshot)
    real = project_copy.Home.of
    inode = kept(folder)["inode"]
    monkeypatch.setattr(project_copy.Home, "of", lambda path: replace(real(path), inode=inode))
    assert is_copy(snapshot / ".fleetform")
    shutil.rmtree(folder)
    assert not is_copy(snapshot / ".fleetform")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"path": "/x", "inode": "y"}', "\udcff"])
def test_a_file_that_cannot_be_read_hinders_nobody(folder, text):
    (folder / project_copy.FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not is_copy(folder)
    project_copy.check(folder, note=True)
    assert kept(folder)["path"] == str(folder.resolve())
