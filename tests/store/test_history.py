"""`state history`: who did what, from which commit of the project."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest

from declarative.converge.actor import who
from declarative.model.state import Address
from declarative.store import journal, open_store
from declarative.store.sql import Connection
from tests.support.cli import Project, fleet, task

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CI = {"GITHUB_ACTOR": "octocat", "GITHUB_SHA": COMMIT}


@pytest.mark.parametrize(
    ("actor", "commit"),
    [
        ("GITHUB_ACTOR", "GITHUB_SHA"),
        ("GITLAB_USER_LOGIN", "CI_COMMIT_SHA"),
        ("BUILD_REQUESTEDFOR", "BUILD_SOURCEVERSION"),
        ("BUILDKITE_BUILD_CREATOR", "BUILDKITE_COMMIT"),
        ("CIRCLE_USERNAME", "CIRCLE_SHA1"),
    ],
)
def test_a_ci_says_who_and_which_commit(tmp_path: Path, actor: str, commit: str) -> None:
    found = who(tmp_path, {actor: "Ada L.\n\x1b[2J", commit: COMMIT.upper()})
    assert (found.name, found.revision) == ("Ada L.[2J", COMMIT)


def test_elsewhere_it_is_the_user_and_no_commit(tmp_path: Path) -> None:
    """Long text is cut, and only a commit counts as one."""
    name = pwd.getpwuid(os.getuid()).pw_name
    found = who(tmp_path, {"GITHUB_ACTOR": "\x07", "GITHUB_SHA": "main; rm -rf /"})
    assert (found.name, found.revision) == (name, None)
    assert who(tmp_path, {"GITHUB_ACTOR": "x" * 5000}).name == "x" * 100


def test_the_commit_is_read_from_git_s_own_files(tmp_path: Path) -> None:
    """Of a branch, packed or not, of none, and in a linked working tree; broken files give none."""
    folder = tmp_path / "repository" / "fleets"
    folder.mkdir(parents=True)

    def git(*words: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main", "..")
    assert who(folder, {}).revision is None
    git("commit", "-q", "--allow-empty", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert who(folder, {}).revision == commit
    git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    assert who(tmp_path / "linked", {}).revision == commit
    git("pack-refs", "--all")
    assert who(folder, {}).revision == commit
    assert who(tmp_path / "linked", {}).revision == commit
    git("checkout", "-q", "--detach")
    assert who(folder, {}).revision == commit
    for text in ("ref: ../../../x", "ref: /etc/passwd", "", "\0", "ref: refs/heads/none", "x" * 40):
        (folder.parent / ".git" / "HEAD").write_text(text)
        assert who(folder, {}).revision is None


def test_the_history_says_who(project: Project) -> None:
    """`stop` and `exec` are in it, and a task's history is that of its ranks."""
    project.declare(fleet(nodes=1), task("job", "sleep 600"))
    project.apply(env=CI)
    project.run("exec", "job", "--", "true", env={"GITLAB_USER_LOGIN": "ada", "CI_COMMIT_SHA": COMMIT})
    project.run("stop", "job")
    found = project.run("state", "history", "task/job", "--json").json["operations"]
    name = pwd.getpwuid(os.getuid()).pw_name
    assert [(o["op"], o["address"], o["actor"], o["commit"], o["doing"]) for o in found] == [
        ("stop", "task/job", name, None, "stop"),
        ("exec", "rank/job-0", "ada", COMMIT, "exec"),
        ("create", "rank/job-0", "octocat", COMMIT, "apply"),
    ]
    times = [o[key] for o in found for key in ("begun_at", "ended_at")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time in times)
    lines = project.run("state", "history", "fleet/gpu").out.splitlines()
    assert len(lines) == 1
    assert f" by octocat at {COMMIT[:10]}" in lines[0]
    project.no_changes()


def test_an_exec_that_cannot_be_written_down_is_run(project: Project) -> None:
    """Its user may only read the state; it says that the history lacks the command."""
    project.declare(fleet(nodes=1), task("job", "sleep 600"))
    project.apply()
    state = project.path / ".fleetform" / "state.db"
    project.write("state.json", project.run("state", "pull").out)
    done = project.run("exec", "job", "--state", "state.json", "--", "echo", "hello")
    assert (done.out, "history does not tell of this exec" in done.err) == ("hello\n", True)
    assert state.exists()


def test_no_more_entries_are_read_than_are_shown(tmp_path, monkeypatch):
    """A server sends all that it is asked for. Of some addresses, a page is read after the other."""
    monkeypatch.setattr(journal, "PAGE", 10)
    fetched: list[int] = []
    select = Connection.select

    def counted(self, table, where="", **its):
        rows = tuple(select(self, table, where, **its))
        if table == "operations":
            fetched.append(len(rows))
        return iter(rows)

    with open_store(f"sqlite:///{tmp_path}/state.db") as store:
        for i in range(35):
            store.journal.note("drain", Address("node", f"gpu-{i % 5}"), "a test")
        monkeypatch.setattr(Connection, "select", counted)
        last = store.journal.operations((), 3)
        assert [o.address for o in last] == ["node/gpu-4", "node/gpu-3", "node/gpu-2"]
        assert fetched == [3]
        fetched.clear()
        assert len(store.journal.operations(["node/gpu-4"], 2)) == 2
        assert fetched == [10]
        fetched.clear()
        assert len(store.journal.operations(["node/gpu-4"], None)) == 7
        assert fetched == [10, 10, 10, 5]
