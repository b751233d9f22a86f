"""Runs the installed command without its start-up time: forked from a process that has imported everything.

Each run is a process with its own folder, environment, streams, signals and exit code. Forking saves the
start of Python and of the libraries, most of the time of a short command. Each process that runs tests has
one process to fork from, and one more for each other program that takes long to start.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

NUMBER = struct.Struct("=i")
LONGEST = 1 << 20
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "COVERAGE", "MALLOC")
"""Variables that count when a process starts, by how they begin: who sets them gets a start of its own."""
STARTED_WITH = {"LANG": "C.UTF-8"}
PATH = os.environ["PATH"]
"""As it is before any test: the first one that starts a command may have its own folders in it."""
OPTIONS = {"stdin", "stdout", "stderr", "text", "start_new_session"}
"""The options of `subprocess.Popen` that are taken."""

FORK = "--fork"
"""What a program is started with that is forked from; then comes the number of its line."""

LATE = (
    "asyncssh",
    "jinja2",
    "jsonschema",
    "libcloud.compute.providers",
    "ruamel.yaml",
    "psycopg",
    "sqlite3",
)
"""What modules import only when they use it."""

EVERY_KIND = """\
{type: backend, name: lab, driver: local, regions: [here]}
---
{type: fleet, name: gpu, nodes: 1, resources: {cpu: 1}}
---
{type: volume, name: data, size: 1GB}
---
{type: task, name: train, commands: [x], env: {N: "${{ 1 }}"}}
"""
MACHINE = ("PATH", "DOCKER_HOST")
"""Variables by which the `local` backend finds what this machine can do."""


def can(env: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Whether a process with this environment and these options of `subprocess.Popen` can be forked."""
    own = {n: v for n, v in env.items() if n.startswith(AT_START)}
    at_start = any([*folder.glob("*customize.py")] for folder in map(Path, _added(own.pop("PYTHONPATH", ""))))
    return own == STARTED_WITH and not at_start and options.keys() <= OPTIONS


def _added(path: str) -> list[str]:
    """The folders of a `PYTHONPATH`."""
    return [folder for folder in path.split(os.pathsep) if folder]


class Forked:
    """One such process, with what tests use of `subprocess.Popen`.

    `program` is what it is forked from: a file which imports all that it needs, and then calls `stand_by`.
    """

    def __init__(
        self,
        args: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *,
        program: str = __file__,
        **options: Any,
    ) -> None:
        self.args = [*args]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._read: dict[str, str] = {}
        theirs: list[int] = []
        self.stdin, stdin = _ours("wb", options.get("stdin"), theirs)
        self.stdout, stdout = _ours("rb", options.get("stdout"), theirs)
        again = options.get("stderr") == subprocess.STDOUT
        self.stderr, stderr = (None, stdout) if again else _ours("rb", options.get("stderr"), theirs)
        self._told, tells = os.pipe()
        what = {"args": self.args, "cwd": str(cwd), "env": dict(env), **options}
        what = {k: v for k, v in what.items() if k in ("args", "cwd", "env", "start_new_session")}
        socket.send_fds(_parent(program), [json.dumps(what).encode()], [stdin, stdout, stderr, tells])
        for fd in (*theirs, tells):
            os.close(fd)
        if options.get("text"):
            for name in ("stdin", "stdout", "stderr"):
                if (stream := getattr(self, name)) is not None:
                    setattr(self, name, io.TextIOWrapper(stream, write_through=name == "stdin"))
        self.pid = self._number()

    def _number(self) -> int:
        said = os.read(self._told, NUMBER.size)
        if len(said) != NUMBER.size:
            raise RuntimeError("what commands are forked from has ended")
        number: int = NUMBER.unpack(said)[0]
        return number

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; minus a signal's number where that has ended it."""
        if self.returncode is None:
            ended = select.poll()  # `select` takes no descriptor beyond 1,023
            ended.register(self._told, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = self._number()
                os.close(self._told)
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """All of its output, and all of its errors, once it has ended. `input` has to fit into a pipe."""
        end = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
                self.stdin.close()
        if not self._threads:
            for name in ("stdout", "stderr"):
                if getattr(self, name) is not None:
                    self._threads.append(threading.Thread(target=self._drain, args=(name,), daemon=True))
                    self._threads[-1].start()
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self._read.get("stdout", ""), self._read.get("stderr", "")

    def _drain(self, name: str) -> None:
        with getattr(self, name) as stream:
            self._read[name] = stream.read()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def _ours(mode: str, wanted: Any, theirs: list[int]) -> tuple[IO[Any] | None, int]:
    """Our end of a stream, if it is a pipe, and its end. What is to be closed here is added to `theirs`."""
    if wanted == subprocess.PIPE:
        ends = os.pipe()
        mine, other = ends if mode == "rb" else ends[::-1]
        theirs.append(other)
        return os.fdopen(mine, mode), other
    if wanted == subprocess.DEVNULL:
        theirs.append(os.open(os.devnull, os.O_RDWR))
        return None, theirs[-1]
    if wanted is None:
        return None, 0 if mode == "wb" else 1
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


@cache
def _parent(program: str) -> socket.socket:
    """The line to the process that is forked from; it ends with us."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    # Nothing of a test's: whatever has one of its folders in its environment is ended with it.
    env = {"PATH": PATH, **STARTED_WITH}
    process = subprocess.Popen(
        [sys.executable, program, FORK, str(its.fileno())],
        env=env,
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )
    its.close()
    atexit.register(process.wait, 30)
    atexit.register(mine.close)
    return mine


# ----------------------------------------------------------------------------- in the one that is forked from


def import_all() -> None:
    """All that commands import, also late."""
    for name in LATE:
        with suppress(ImportError):  # what an extra would bring
            importlib.import_module(name)
    for package in ("declarative", "providers"):
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__") and ".testing" not in module.name:
                with suppress(ImportError):
                    importlib.import_module(module.name)


def warm_up() -> None:
    """Import everything, and make what each command would make for itself: the fields of records, and what
    reads each kind of document.
    """
    import_all()
    import msgspec

    from declarative.language.loader import load

    for record in msgspec.Struct.__subclasses__():
        getattr(record, "__dataclass_fields__", None)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.yaml").write_text(EVERY_KIND)
        load(Path(folder))
    gc.freeze()


def _serve(line: socket.socket) -> dict[str, Any]:
    """What to be, in each process that is forked; the one that is forked from ends with the line."""
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tells: dict[int, int] = {}
    ready = select.poll()
    ready.register(line, select.POLLIN)
    ready.register(woken, select.POLLIN)
    while True:
        found = {fd for fd, _ in ready.poll()}
        if woken in found:
            os.read(woken, LONGEST)
            _tell_ends(tells)
        if line.fileno() not in found:
            continue
        data, fds, _, _ = socket.recv_fds(line, LONGEST, 4)
        if not data:
            os._exit(0)
        *streams, told = fds
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd, stream in enumerate(streams):
                os.dup2(stream, fd)
            for fd in (*fds, *tells.values(), woken, wakes, line.detach()):
                os.close(fd)
            return json.loads(data)  # type: ignore[no-any-return]
        os.write(told, NUMBER.pack(pid))
        tells[pid] = told
        for fd in streams:
            os.close(fd)


def _tell_ends(tells: dict[int, int]) -> None:
    """How those have ended that have."""
    while tells and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        told = tells.pop(ended[0])
        with suppress(BrokenPipeError):  # nobody asks
            os.write(told, NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
        os.close(told)


def _become(what: Mapping[str, Any]) -> None:
    if what.get("start_new_session"):
        os.setsid()
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["env"])
    time.tzset()
    sys.argv = what["args"]
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *_added(what["env"].get("PYTHONPATH", ""))]
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = os.fdopen(fd, "rb" if fd == 0 else "wb", closefd=False)
        buffered = os.isatty(fd) or fd == 2
        new = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=buffered)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def stand_by() -> None:
    """Returns in each process that is forked, which is then one that was started with these arguments."""
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[2]))))


def _main() -> None:
    warm_up()
    from declarative.cli import main
    from providers.local import machine

    machine.can()
    before = [os.environ.get(name) for name in MACHINE]
    stand_by()
    if before != [os.environ.get(name) for name in MACHINE]:
        machine.can.cache_clear()
    try:
        sys.exit(main())
    except SystemExit as end:
        _leave(end.code)
        raise  # what Python itself has to say or do about it


def _leave(code: object) -> None:
    """End as Python does, but do not take apart what was imported: that costs more than most commands."""
    if not isinstance(code, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()
