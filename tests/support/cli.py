"""The installed command, run as its users run it: a process in a project's directory."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tests.support.forked import Forked
from tests.support.forked import can as can_fork

COMMAND = str(Path(sys.executable).with_name("fleetform"))
PATIENCE = 120.0
"""Seconds until something that has to happen counts as not happening."""

T = TypeVar("T")
Process: TypeAlias = "subprocess.Popen[Any] | Forked"


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as JSON, which must be one JSON value."""
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its stdout as events, one per line."""
        return events_of(self.out)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events in lines of JSON. Each has to say when it was, and comes without that."""
    found = [json.loads(line) for line in text.splitlines()]
    times = [event.pop("time") for event in found]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    return found


def clean_env(**more: str) -> dict[str, str]:
    """Nothing of the tester's own settings."""
    keep = ("PATH", "HOME", "TMPDIR", "COVERAGE_PROCESS_START")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    # Variables and files of the tests' own: without these, no project may name them.
    allowed = {"FLEETFORM_ALLOW_VARIABLE": "FLEETFORM_TEST_*", "FLEETFORM_ALLOW_PATH": "/"}
    return {**env, "LANG": "C.UTF-8", **allowed, **more}


class Project:
    """A project's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[Process] = []

    def clean_up(self) -> None:
        """End everything that was started in it, commands and ranks."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
        kill_ranks(self.path)
        for process in self.started:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
            process.wait()

    @property
    def local(self) -> Path:
        """Where the local backend keeps its nodes and volumes."""
        return self.path / ".fleetform" / "local"

    def declare(self, *documents: Mapping[str, Any], file: str = "main.yaml") -> None:
        """Write documents, over what that file held before."""
        self.write(file, "---\n".join(json.dumps(d, indent=1) + "\n" for d in documents))

    def write(self, file: str, text: str) -> Path:
        """Write one file of the project."""
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        """Start `fleetform ARGS`; it reads nothing."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        options = {"stdin": subprocess.DEVNULL, **options}
        env = clean_env(**(env or {}))
        process: Process
        if can_fork(env, options):
            process = Forked([COMMAND, *args], self.path, env, **options)
        else:  # a real start
            process = subprocess.Popen([COMMAND, *args], cwd=self.path, env=env, **options)
        self.started.append(process)
        return process

    def run(self, *args: str, code: int | None = 0, env: Mapping[str, str] | None = None) -> Done:
        """Run `fleetform ARGS` to its end, which has to be this exit code."""
        return ended(self.start(*args, env=env), code)

    def apply(self, *args: str, code: int | None = 0, env: Mapping[str, str] | None = None) -> Done:
        """Run `fleetform apply --auto-approve ARGS`."""
        return self.run("apply", "--auto-approve", *args, code=code, env=env)

    def plan(self, *args: str, code: int = 0, env: Mapping[str, str] | None = None) -> Any:
        """The plan, as data."""
        return self.run("plan", "--json", *args, code=code, env=env).json

    def ids(self, *args: str, code: int = 0) -> list[str]:
        """The ids of the plan's actions."""
        return [a["id"] for a in self.plan(*args, code=code)["actions"]]

    def status(self) -> Any:
        """The status, as data."""
        return self.run("status", "--json").json

    def ranks(self, task: str) -> dict[int, dict[str, Any]]:
        """The ranks of a task, from the status."""
        found = next(t for t in self.status()["tasks"] if t["name"] == task)
        return {r["rank"]: r for r in found["ranks"]}

    def busy(self) -> dict[str, int]:
        """Node → blocks that are busy."""
        return {n["name"]: n["blocks"]["busy"] for n in self.status()["nodes"]}

    def logs(self, *args: str) -> str:
        """What ranks have printed."""
        return self.run("logs", *args).out

    def node(self, name: str) -> Path:
        """The folder of a node."""
        return self.local / "nodes" / name

    def data(self, volume: str) -> Path:
        """The folder of a volume's data."""
        return self.local / "volumes" / volume / "data"

    def no_changes(self) -> None:
        """Hold that everything is as declared, and that the state is sound."""
        plan = self.run("plan", "--json", "--detailed-exitcode").json
        assert (plan["result"], plan["actions"]) == ("none", [])
        self.run("state", "check")


def ended(process: Process, code: int | None = 0, patience: float | None = None) -> Done:
    """Wait for a command's end, and hold it to its exit code."""
    try:
        out, err = process.communicate(timeout=PATIENCE if patience is None else patience)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args!r} did not end\n{out}\n{err}") from None
    done = Done(process.wait(), out, err)
    assert code is None or done.code == code, f"{process.args!r} gave {done.code}\n{out}\n{err}"
    assert "Traceback" not in done.err, done.err
    return done


def until(found: Callable[[], T], what: str = "") -> T:
    """The first true value of `found`."""
    end = time.monotonic() + PATIENCE
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < end, f"it never came true: {what or found}"
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    """The lines of a file; none where there is no file."""
    with suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return []


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def processes(marked: Path) -> dict[int, str]:
    """Processes whose environment names a path below `marked`: ranks and their supervisors."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{marked}/".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "comm").read_text().strip()
    return {pid: name for pid, name in found.items() if pid != os.getpid()}


def kill_ranks(path: Path) -> None:
    """End everything that was started in a project, and remove what nobody is left to remove."""
    for pid in processes(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    groups = [Path(g) for file in path.rglob("ranks/*/confined") for g in file.read_text().split()[1:]]
    for _ in range(100):  # those just killed take a moment to leave
        groups = [group for group in groups if not _removed(group)]
        if not groups:
            return
        time.sleep(0.02)


def _removed(group: Path) -> bool:
    """Whether it is gone, or cannot be removed at all."""
    try:
        group.rmdir()
    except OSError as error:
        return error.errno != errno.EBUSY
    return True


def on_terminal(
    project: Project,
    *args: str,
    answer: str | bytes = "",
    env: Mapping[str, str] | None = None,
    asked: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run the command on a terminal of its own; when it asks, type `answer`. Its exit code and the screen.

    `asked` is called before the answer is typed.
    """
    master, slave = pty.openpty()
    typed = answer.encode() if isinstance(answer, str) else answer
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", COMMAND, *args],  # its own, so that Ctrl-C on it is a signal
        cwd=project.path,
        env=clean_env(**{"TERM": "xterm-256color", "FLEETFORM_PAGER": "cat", **(env or {})}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    screen = b""
    with suppress(OSError):  # how the end of the last writer reads
        while select.select([master], [], [], PATIENCE)[0] and (data := os.read(master, 65536)):
            screen += data
            if typed and b"Only `yes` is accepted: " in screen:
                asked()
                os.write(master, typed)
                typed = b""
    os.close(master)  # who still waits there hangs up
    return process.wait(PATIENCE), screen.decode()


# ------------------------------------------------------------------------------------------- documents


def fleet(name: str = "gpu", nodes: Any = 1, **fields: Any) -> dict[str, Any]:
    """A fleet of nodes with two CPUs, in as many blocks."""
    resources = {"cpu": 2, "memory": "1GB"}
    base = {"nodes": nodes, "blocks": "auto", "placement": "cluster", "resources": resources}
    return {"type": "fleet", "name": name, **base, **fields}


def task(name: str, *commands: str, **fields: Any) -> dict[str, Any]:
    """A task; its ranks are given a second to end when they are asked to."""
    return {"type": "task", "name": name, "commands": list(commands), "stop_duration": 1, **fields}


def volume(name: str = "data", **fields: Any) -> dict[str, Any]:
    """A volume that may be destroyed."""
    return {"type": "volume", "name": name, "size": "1GB", "prevent_destroy": False, **fields}


def hold(file: Path, *more: str) -> str:
    """A command that tells that it runs by making `file`, and then runs until it is stopped."""
    return "\n".join([f"echo $$ >> {file}", *more, "while :; do sleep 0.1; done"])


def release(file: Path, *more: str) -> str:
    """A command that waits until `file` is there."""
    return "\n".join([*more, f"while [ ! -e {file} ]; do sleep 0.05; done"])


def every_text(path: Path) -> Iterable[tuple[Path, bytes]]:
    """All files below `path`, with what is in them."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file, file.read_bytes()
