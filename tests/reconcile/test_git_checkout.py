"""`fleetform reconcile --git`: the newest commit of a branch is the declaration."""

import json
import subprocess
from pathlib import Path

import pytest

from declarative.reconcile.watched_files import Checkout, GitError, folder_of
from tests.reconcile.test_reconcile import Log, project_document
from tests.support.cli import Project, fleet, kill_ranks, until, volume


class Repository:
    """A bare repository, and somebody's clone of it."""

    def __init__(self, root: Path) -> None:
        self.bare, self.work = root / "infra.git", root / "work"
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare), at=root)
        self.git("init", "-q", "-b", "main", str(self.work), at=root)
        self.project = Project(self.work)

    def git(self, *words: str, at: Path | None = None) -> str:
        named = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        done = subprocess.run(
            ["git", *named, *words], cwd=at or self.work, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def push(self, text: str | None = None, *documents: dict[str, object]) -> str:
        """Commit the documents, or `text` as it is; the commit."""
        if text is None:
            self.project.declare(*documents)
        else:
            next(self.work.glob("*.yaml")).write_text(text)
        return self.commit()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")
        self.git("push", "-q", str(self.bare), "HEAD:main")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def here(tmp_path: Path):
    """Where the loop runs; its clone is `infra`."""
    place = tmp_path / "here"
    place.mkdir()
    made = Project(place)
    yield made
    kill_ranks(place)


def test_a_push_is_carried_out_and_the_history_names_the_commit(repository, here):
    first = repository.push(None, project_document(), fleet(nodes=1))
    loop = Log(here, "--git", str(repository.bare))
    clone = Project(here.path / "infra")
    until(lambda: clone.path.is_dir() and (clone.path / ".fleetform" / "state.db").exists())
    until(lambda: [n["name"] for n in clone.status()["nodes"]] == ["gpu-0"])
    second = repository.push(None, project_document(), fleet(nodes=1), volume(name="data"))
    until(lambda: [v["name"] for v in clone.status()["volumes"]] == ["data"])
    assert loop.stop() == 0
    commits = {entry["commit"] for entry in clone.run("state", "history", "--json").json["operations"]}
    assert commits == {first, second}


def test_a_broken_commit_is_told_once_and_the_last_good_one_holds(repository, here):
    repository.push(None, project_document(), fleet(nodes=1))
    loop = Log(here, "--git", str(repository.bare))
    loop.says('"event": "summary"')
    repository.push("type: fleet\nname: gpu\nnods: 1\n")
    loop.says("`nods` is not a field")
    repository.push(None, project_document(), fleet(nodes=2))
    clone = Project(here.path / "infra")
    until(lambda: len(clone.status()["nodes"]) == 2)
    assert loop.stop() == 0
    assert loop.text().count("`nods` is not a field") == 1


def test_who_is_told_of_a_broken_commit_can_find_the_fault(repository, here):
    good = repository.push(None, project_document(), fleet(nodes=1))
    loop = Log(here, "--git", str(repository.bare))
    loop.says('"event": "summary"')
    clone = Project(here.path / "infra")

    def events(kind: str) -> list[dict[str, object]]:
        text = clone.run("events", "--json", "--type", f"reconcile.{kind}").out
        return [json.loads(line)["detail"] for line in text.splitlines()]

    bad = repository.push("type: fleet\nname: rack\nbackends: [local]\nnodes: 1\nfoo: [\n")
    until(lambda: events("failed"), "the fault is told of")
    mended = repository.push(None, project_document(), fleet(nodes=1))
    until(lambda: events("recovered"), "its end is told of")
    assert loop.stop() == 0
    where = {"file": "main.yaml", "line": 6, "commit": bad, "commit_in_force": good}
    found = [{key: fault[key] for key in where} for fault in events("failed")]
    assert found == [where]
    assert events("recovered") == [{"commit": mended}]


def test_a_repository_that_is_away_holds_nothing_up(repository, here):
    repository.push(None, project_document(), fleet(nodes=1))
    here.run("reconcile", "--git", "../infra.git", "--once")
    repository.bare.rename(repository.bare.parent / "away")
    found = here.run("reconcile", "--git", str(repository.bare), "--once")
    assert "git-failed" in found.err
    assert [n["name"] for n in Project(here.path / "infra").status()["nodes"]] == ["gpu-0"]


def test_a_mistyped_url_leaves_no_folder_that_refuses_the_right_one(repository, here):
    repository.push(None, project_document(), fleet(nodes=1))
    (here.path / "infra.git").mkdir()
    done = here.run("reconcile", "--git", "infra.git", "--once", code=1)
    assert "error[git-failed]: `git fetch` failed" in done.err
    done = here.run("reconcile", "--git", "infra", "--once", code=1)
    assert f"there is no repository `{here.path / 'infra'}`" in done.err
    assert [p.name for p in here.path.iterdir()] == ["infra.git"]
    here.run("reconcile", "--git", str(repository.bare), "--once")


def test_nothing_of_the_repository_runs(repository, tmp_path):
    repository.push(None, project_document(), fleet(nodes=1))
    clone = Checkout(str(repository.bare), "main", tmp_path / "infra")
    assert clone.update()
    ran = tmp_path / "ran"
    for hook in ("post-checkout", "reference-transaction", "post-merge"):
        path = clone.folder / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {ran}\n")
        path.chmod(0o755)
    repository.push(None, project_document(), fleet(nodes=2))
    assert clone.update()
    assert not clone.update()
    assert not ran.exists()


def test_a_commit_does_not_write_into_the_folder_of_the_state(repository, tmp_path):
    good = repository.push(None, project_document(), fleet(nodes=1))
    clone = Checkout(str(repository.bare), "main", tmp_path / "infra")
    clone.update()
    (repository.work / ".gitignore").unlink(missing_ok=True)
    (repository.work / ".fleetform").mkdir(exist_ok=True)
    (repository.work / ".fleetform" / "state.db").write_text("mine")
    repository.git("add", "-f", ".fleetform/state.db")
    repository.commit()
    with pytest.raises(GitError, match="where the state is kept"):
        clone.update()
    assert clone.commit == good


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:secret@example.com/x.git",
        "https://secret@example.com/x",
        "ext::sh -c x",
        "--upload-pack=x",
    ],
)
def test_what_is_no_url_to_follow_is_refused_without_showing_a_secret(url, tmp_path):
    with pytest.raises(GitError) as error:
        Checkout(url, "main", tmp_path / "x")
    assert "secret" not in str(error.value)


def test_a_folder_of_somebody_is_not_touched(repository, tmp_path):
    repository.push(None, project_document(), fleet(nodes=1))
    with pytest.raises(GitError, match="is not a clone that follows this repository"):
        Checkout(str(repository.bare), "main", repository.work)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.com/team/infra.git", "infra"),
        ("git@example.com:infra.git", "infra"),
        ("/srv/git/infra/", "infra"),
        ("https://example.com/..", "repository"),
    ],
)
def test_the_folder_is_named_like_the_repository(url, name):
    assert folder_of(url) == name
