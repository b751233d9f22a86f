"""Everything as an ordinary user: Slurm's daemons, fleetform and the ranks. No root, no container."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons, impediment
from tests.support.cli import COMMAND, clean_env

pytestmark = pytest.mark.slow
WHO = "nobody"


@pytest.fixture
def users() -> Iterator[Daemons]:
    """A cluster of that user's own. Who is no root runs all tests of this folder as an ordinary user."""
    if reason := impediment():
        pytest.skip(reason)
    if os.getuid() != 0:
        pytest.skip("this is an ordinary user already")
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        made = Daemons(Path(name), uid=pwd.getpwnam(WHO).pw_uid)
        try:
            made.run(COMMAND, "--version")
        except AssertionError:
            pytest.skip(f"{WHO} may not read {COMMAND}")
        try:
            made.up()
            yield made
        finally:
            made.down()


def test_two_gangs_run_side_by_side(users):
    """As in `test_fleet`, by the state alone: on all blocks of both nodes."""
    folder = users.folder / "project"
    folder.mkdir()
    project = Cluster(folder, users)
    show = 'echo "$(id -un) [$CUDA_VISIBLE_DEVICES]"; sleep 2'
    project.declare(project.backend(), project.fleet(), *(half(n, show) for n in ("left", "right")))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, users.uid, users.uid)
    env = {**clean_env(), **users.env}

    def run(*args: str) -> str:
        words = [
            "setpriv",
            f"--reuid={users.uid}",
            f"--regid={users.uid}",
            "--clear-groups",
            "--",
            COMMAND,
            *args,
        ]
        done = subprocess.run(words, cwd=folder, env=env, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "  node/gpu-1  [0-3 left-1 | 4-7 right-1]  8/8 busy" in run("plan")
    run("apply", "--auto-approve", "--wait")
    said = [line.partition(" | ")[2] for name in ("left", "right") for line in run("logs", name).splitlines()]
    assert {line.partition(" ")[0] for line in said} == {WHO}
    assert sorted(said) == sorted([f"{WHO} [0,1,2,3]", f"{WHO} [4,5,6,7]"] * 2)
