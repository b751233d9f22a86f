"""A cluster that is reached through a login node, over SSH."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons
from tests.support.cli import free_port, hold, until

pytestmark = pytest.mark.slow
SSHD = "/usr/sbin/sshd"


@pytest.fixture
def login(slurm: Daemons, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An sshd of the tester's own, whose sessions find the cluster."""
    if not os.access(SSHD, os.X_OK) or shutil.which("ssh-keygen") is None:
        pytest.skip("there is no sshd here (openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = free_port()
    lines = (
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {tmp_path}/host",
        f"AuthorizedKeysFile {tmp_path}/user.pub",
        f"PidFile {tmp_path}/sshd.pid",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin yes",
        f"SetEnv SLURM_CONF={slurm.conf}",
    )
    (tmp_path / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    sshd = subprocess.Popen([SSHD, "-D", "-f", tmp_path / "sshd_config"])
    until((tmp_path / "sshd.pid").exists)
    kind, key = (tmp_path / "host.pub").read_text().split()[:2]
    yield {
        "hostname": "127.0.0.1",
        "port": port,
        "user": getpass.getuser(),
        "identity_file": str(tmp_path / "user"),
        "host_keys": [f"{kind} {key}"],
    }
    sshd.terminate()
    sshd.wait()


def test_a_gang_runs_through_a_login_node(slurm, login, tmp_path):
    """Plans, files, logs, commands beside a rank, and stops. The caller needs no Slurm."""
    folder = tmp_path / "project"
    folder.mkdir()
    project = Cluster(folder, slurm)
    (folder / "hello.txt").write_text("hello\n")
    up = tmp_path / "up"
    gang = half("gang", "cat hello.txt", hold(up), files=["hello.txt"])
    project.declare(project.backend(login=login), project.fleet(), gang)
    away = {"SLURM_CONF": "/nowhere/slurm.conf"}
    project.apply(env=away)
    until(lambda: up.exists() and len(up.read_text().split()) == 2)
    assert project.run("logs", "gang/1", env=away).out == "hello\n"
    told = project.run("exec", "gang/0", "--", "sh", "-c", "echo $SLURM_JOB_ID", env=away).out
    assert told.strip().isdigit()
    project.run("stop", "gang", env=away)
    assert project.jobs("RUNNING", "PENDING") == []
    project.clean_up()
