"""Planted secrets, in a run of everything under the default policy: none of them is leaked."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.ec2.run import REGION
from tests.providers.ec2.server import AMI
from tests.providers.ssh.test_instances import Cloud, cloud
from tests.support.cli import Project, clean_env, fleet, task, volume

__all__ = ["cloud"]

pytestmark = pytest.mark.slow

MARK = "pLaNtEd"
"""In each of the secrets."""
PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIDTESTINGKEY",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}+aws/secret",
    "AWS_SESSION_TOKEN": f"{MARK}-session",
    "GITHUB_TOKEN": f"ghp_{MARK}",
    "PGPASSWORD": f"{MARK}-pg",
    "OS_PASSWORD": f"{MARK}-os",
    "HF_TOKEN": f"hf_{MARK}",
}
"""The last one is for the ranks of a task: its host may know it."""
FILES = {
    ".aws/credentials": f"[default]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = {MARK}file\n",
    ".netrc": f"machine 127.0.0.1 login me password {MARK}netrc\n",
    ".pgpass": f"*:*:*:*:{MARK}pgpass\n",
    ".docker/config.json": '{"auths": {"registry.example": {"auth": "' + MARK + '"}}}\n',
    ".ssh/known_hosts": f"{MARK}.example ssh-ed25519 AAAA\n",
    ".ssh/id_rsa": f"-----BEGIN RSA PRIVATE KEY-----\n{MARK}\n-----END RSA PRIVATE KEY-----\n",
}


class Tee(socketserver.ThreadingTCPServer):
    """A port that hands everything on to another one, and keeps what was sent there."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        self.sent = bytearray()
        server = self

        class Pipe(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", target)) as there:
                    ends = {self.request: there, there: self.request}
                    while True:
                        for end in select.select([*ends], [], [])[0]:
                            data = end.recv(1 << 16)
                            if end is self.request:
                                server.sent += data
                            if not data:
                                return
                            ends[end].sendall(data)

        super().__init__(("127.0.0.1", 0), Pipe)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


@pytest.fixture
def lines() -> Iterator[set[bytes]]:
    """The command lines, of any process here and on the machines, that hold a secret."""
    found: set[bytes] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            for process in Path("/proc").iterdir():  # a glob fails where a process has just ended
                try:
                    line = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if MARK.encode() in line:
                    found.add(line)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    over.set()
    thread.join()


class Planted(Project):
    """A project whose commands run among the secrets, and whose every output is kept."""

    def __init__(self, path: Path, home: Path) -> None:
        super().__init__(path)
        self.env = {**PLANTED, "HOME": str(home)}
        self.told = ""

    def start(self, *args: str, **options: Any) -> Any:
        env = {**clean_env(), **self.env, **(options.pop("env", None) or {})}
        allowed = {name: "" for name in env if name.startswith("FLEETFORM_ALLOW")}
        return super().start(*args, env={**env, **allowed}, **options)

    def run(self, *args: str, **options: Any) -> Any:
        done = super().run(*args, **options)
        self.told += done.out + done.err
        return done


def sky(port: int, **more: Any) -> dict[str, Any]:
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
    given = {"driver": "ec2", "regions": [REGION], "endpoint": f"http://127.0.0.1:{port}", "image": AMI}
    return {"type": "backend", "name": "aws", "credentials": names, **given, **more}


def test_no_planted_secret_comes_to_light(cloud: Cloud, tmp_path: Path, lines: set[bytes]) -> None:
    home = tmp_path / "home"
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (tmp_path / "project").mkdir()
    project = Planted(tmp_path / "project", home)
    nodes = fleet("gpu", 2, backends=["aws"], resources={"cpu": 2})
    job = task("job", "echo begun", "test -n $HF_TOKEN && sleep 600", nodes=2, env=["HF_TOKEN"])
    with Tee(cloud.port) as tee:
        port = tee.server_address[1]
        project.declare(sky(port), nodes, job, volume(backend="aws", availability_zone=f"{REGION}a"))
        run = project.run
        run("validate")
        run("plan", code=None)
        run("plan", "--json", "--out", "next.plan")
        run("show", "next.plan")
        run("apply", "next.plan")
        project.declare(sky(port), nodes, job, task("other", "exit 3", resources={"cpu": 1}))
        run("apply", "--auto-approve", "--wait", "--json", code=None)
        for words in (
            *("status", "status --json", "status --refresh", "logs job", "logs job --raw", "offers --json"),
            *("explain task/job", "explain node/gpu-0", "exec job/0 -- true", "ssh gpu-0 -- true"),
            *("state list", "state show rank/job-0", "state pull", "state check", "state history --json"),
            *("state list-backups", "drain gpu-1 --reason test", "undrain gpu-1", "stop other", "stop job"),
            *("plan --replace task/job", "fmt --check", "schema task", "completion bash"),
        ):
            run(*words.split(), code=None)
        where = "/var/lib/fleetform /var/tmp /tmp /home /root"
        search = f"grep -rhoE '[a-zA-Z_]*{MARK[:-1]}[d]' {where} 2>/dev/null || :"
        left = {found for machine in cloud.of.values() for found in machine.sh(search).split()}
        # What is refused, or fails.
        for more in (
            {"credentials": {"key": "GITHUB_TOKEN", "secret": "OS_PASSWORD"}},
            {"options": {"known_hosts": "/proc/self/environ"}},
            {"options": {"ssh_config": str(home / ".netrc")}},
            {"endpoint": "http://attacker.example"},
            {"image": "${{ env.GITHUB_TOKEN }}"},
        ):
            project.declare(sky(port, **more), nodes, job)
            run("plan", code=None)
            run("plan", "--offline", code=None)
        project.declare(sky(port), nodes, job)
        run("plan", "--state", "postgresql://127.0.0.1:1/fleet", code=None)
        run("destroy", "--auto-approve", code=None)
    project.clean_up()
    assert "begun" in project.told
    assert MARK not in project.told
    assert len(tee.sent) > 10_000
    # A session's token goes with each request, by the rules of AWS; here the server is this machine.
    assert bytes(tee.sent).replace(PLANTED["AWS_SESSION_TOKEN"].encode(), b"").count(MARK.encode()) == 0
    files = [f for f in project.path.rglob("*") if f.is_file()]
    assert [f for f in files if MARK.encode() in f.read_bytes()] == []
    assert lines == set()
    assert left <= {PLANTED["HF_TOKEN"]}
