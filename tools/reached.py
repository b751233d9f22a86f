"""The part of `tools/mutate.py` that is inside of the tests' processes.

`mutate.py` copies this file into the environment of a copy of the clone, where each Python loads it at its
start. While FOLDER has a file `now`, each process notes which lines of the guards' files it reaches, for that
test. While FOLDER has a file `mutant`, each forked process has that code in place of a function's. The file
is a plugin of pytest, too: it says which test runs now, picks tests, and runs them for mutants, in forks.
(PYTEST_DONT_REWRITE: it is there before pytest.)
"""

from __future__ import annotations

import atexit
import json
import marshal
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

FOLDER = Path(sys.prefix) / "reached"
"""`files` names the files to watch. `now` holds the number of the test that runs. `lines` gets what was
reached, and `tests` the tests in the order of their numbers, with the seconds that each took. `chosen` names
the tests to run, in their order; without it, all run. `mutant` holds a module, the way to a function in it,
and its code; `unpatched` is made if there is no such function. `failed` names the test that failed.
"""
NUMBER = struct.Struct("=i")
ALL, IMPORT = 0, -1
"""In place of a test's number: what a line does for several tests, or while a module is imported."""
SERVES = "REACHED_SERVES"
"""The variable for a pytest that runs tests for mutants: two descriptors, for questions and answers."""
HUNG = 3
"""The exit code of a fork in which a test did not end in time."""
OPTIMIZED = 1
"""The flag of a function's code. The bodies of modules and classes lack it: they run once for all tests."""


def _while_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        ours = str(frame.f_globals.get("__name__")).startswith(("declarative.", "providers."))
        if ours and not frame.f_code.co_flags & OPTIMIZED:
            return True
        frame = frame.f_back
    return False


def _watch() -> None:
    """Note from here on which lines this process and its forks reach, at once: it may be killed."""
    files = frozenset((FOLDER / "files").read_text().splitlines())
    with (FOLDER / "now").open("rb") as file:
        now = mmap.mmap(file.fileno(), NUMBER.size, prot=mmap.PROT_READ)
    out = os.open(FOLDER / "lines", os.O_WRONLY | os.O_APPEND)
    known: set[tuple[bytes, str, int]] = set()

    def line(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        key = now[:], frame.f_code.co_filename, frame.f_lineno
        if event == "line" and key not in known:
            known.add(key)
            number = IMPORT if _while_importing(frame) else NUMBER.unpack(key[0])[0]
            os.write(out, f"{number} {key[2]} {key[1]}\n".encode())
        return line

    def call(frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
        return line if frame.f_code.co_filename in files else None

    threading.settrace(call)
    sys.settrace(call)


def _patch() -> None:
    """Put the mutant's code in the place of its function's."""
    if not (FOLDER / "mutant").exists():
        return
    module, names, code = marshal.loads((FOLDER / "mutant").read_bytes())  # noqa: S302 (from `mutate.py`)
    if module not in sys.modules:
        return  # whoever imports it finds the mutant's file
    try:
        found: Any = sys.modules[module]
        for name in names:
            found = vars(found)[name]
        _function(found, code).__code__ = code
    except (LookupError, ValueError):
        (FOLDER / "unpatched").touch()


def _function(found: Any, code: CodeType) -> FunctionType:
    """The function of a code, in what decorators have made of it; `LookupError` if there is none."""
    known, more = set(), [found]
    while more:
        one = more.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        if isinstance(one, FunctionType):
            old = one.__code__
            if (old.co_name, old.co_firstlineno) == (code.co_name, code.co_firstlineno):
                return one
            more += [cell.cell_contents for cell in one.__closure__ or ()]
        inside = ("__wrapped__", "__func__", "fget", "fset", "func", "callback")
        more += [getattr(one, part) for part in inside if hasattr(one, part)]
    raise LookupError(code.co_name)


class _Tests:
    """The tests of this process: their numbers and seconds, and which of them runs."""

    now: mmap.mmap | None = None
    current = ALL
    seconds: dict[str, float] = {}  # noqa: RUF012 (the one process has one)


def _say(number: int) -> None:
    if _Tests.now is not None:
        _Tests.now[:] = NUMBER.pack(number)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the chosen tests, in their order."""
    if (FOLDER / "chosen").exists():
        named = {item.nodeid: item for item in items}
        items[:] = [named[name] for name in json.loads((FOLDER / "chosen").read_text())]
    if (FOLDER / "now").exists():
        with (FOLDER / "now").open("r+b") as file:
            _Tests.now = mmap.mmap(file.fileno(), NUMBER.size)
    _Tests.seconds = dict.fromkeys((item.nodeid for item in items), 0.0)


def pytest_runtest_setup(item: Any) -> None:
    """Say that this test runs now."""
    _Tests.current = [*_Tests.seconds].index(item.nodeid) + 1
    _say(_Tests.current)


def pytest_fixture_setup(fixturedef: Any) -> None:
    """What a fixture for several tests reaches, it reaches for each of them."""
    _say(_Tests.current if fixturedef.scope == "function" else ALL)


def pytest_runtest_call() -> None:
    """The fixtures are made."""
    _say(_Tests.current)


def pytest_runtest_logreport(report: Any) -> None:
    """Count the seconds of a test with its fixtures."""
    _Tests.seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    """Write what was counted."""
    (FOLDER / "tests").write_text(json.dumps([*_Tests.seconds.items()]))


def _end(name: str) -> None:
    (FOLDER / "failed").write_text(name)
    os._exit(HUNG)


def _run(session: Any, tests: list[tuple[str, float]]) -> None:
    """Run these tests, each for so many seconds, until one fails, and end this process: 1 if one failed."""
    named = {item.nodeid: item for item in session.items}
    items = [named[name] for name, _ in tests]
    try:
        for item, following, (name, seconds) in zip(items, [*items[1:], None], tests, strict=True):
            late = threading.Timer(seconds, _end, (name,))
            late.daemon = True
            late.start()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            late.cancel()
            if session.testsfailed:
                (FOLDER / "failed").write_text(item.nodeid)
                break
        session._setupstate.teardown_exact(None)  # noqa: SLF001 (what a session does at its end)
        atexit._run_exitfuncs()  # noqa: SLF001 (pytest's own end is none of a fork's)
    finally:
        os._exit(1 if session.testsfailed else 0)


def pytest_runtestloop(session: Any) -> bool | None:
    """Run no test by itself, but those that are asked for, in a fork."""
    if SERVES not in os.environ:
        return None
    from tests.support import cli, forked

    # What commands are forked from has to have imported all before there is a mutant.
    forked.Forked([cli.COMMAND, "--version"], FOLDER, forked.STARTED_WITH, stdout=-3, stderr=-3).wait()
    read, write = map(int, os.environ[SERVES].split())
    with os.fdopen(read) as asks, os.fdopen(write, "w", buffering=1) as answers:
        answers.write("ready\n")
        for line in asks:
            pid = os.fork()
            if not pid:
                os.setsid()
                _run(session, json.loads(line))
            answers.write(f"{pid}\n")
            _, status = os.waitpid(pid, 0)
            answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
    return True


if __name__ == "reached":
    os.register_at_fork(after_in_child=_patch)
    if (FOLDER / "now").exists():
        _watch()
