"""The log of a loop: each line has its time, and nothing else changes."""

from __future__ import annotations

import io
import json
import re
import signal
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.cli.output import TimedLines, timed_lines
from tests.support.cli import ended, fleet, on_terminal, until

AT = 1_772_366_400.9
STAMP = "2026-03-01T12:00:00Z "
TIMED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")


def written(pieces: list[str]) -> str:
    out = io.StringIO()
    stream = TimedLines(out, lambda: AT)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    return out.getvalue()


@given(st.lists(st.text("ab \n:", max_size=6), max_size=8))
def test_each_line_has_its_time_however_its_text_comes(pieces):
    """An empty line stays empty. Where a line is cut into pieces, only the first one has the time."""
    whole = "".join(pieces)
    assert written(pieces).replace(STAMP, "") == whole
    for line in written([whole]).splitlines():
        assert line.startswith(STAMP) is bool(line.strip())


def test_a_line_that_comes_in_pieces():
    assert written(["node/", "gpu-0: up\n", "\n", "  more\n"]) == f"{STAMP}node/gpu-0: up\n\n{STAMP}  more\n"


def test_a_stream_of_text_takes_no_bytes():
    """Click asks so what a stream is."""
    with pytest.raises(TypeError):
        TimedLines(io.StringIO(), lambda: AT).write(b"")  # type: ignore[arg-type]


def test_the_stream_is_what_it_was_afterwards(capsys):
    before = sys.stderr
    with timed_lines(lambda: AT):
        sys.stderr.write("x\n")
        assert sys.stderr.isatty() is False
    assert sys.stderr is before
    assert capsys.readouterr().err == f"{STAMP}x\n"


def test_the_log_of_a_loop_has_times(project):
    """Not what is JSON, and not what a terminal shows."""
    project.declare(fleet(nodes=1))
    done = project.run("reconcile", "--once")
    lines = [line for line in (done.out + done.err).splitlines() if line.strip()]
    assert lines
    assert [line for line in lines if not TIMED.match(line)] == []
    project.declare(fleet(nodes=2))
    found = project.run("reconcile", "--once", "--json")
    assert all(json.loads(line) for line in found.out.splitlines())
    assert not TIMED.search(found.err)
    project.declare(fleet(nodes=3))
    code, screen = on_terminal(project, "reconcile", "--once")
    assert (code, "node/gpu-2" in screen) == (0, True)
    assert not TIMED.search(screen)


def test_the_word_of_a_loop_that_is_asked_to_stop_has_a_time_too(project):
    project.declare(fleet(nodes=1))
    loop = project.start("reconcile")
    until(lambda: project.run("state", "list", code=None).out)
    loop.send_signal(signal.SIGTERM)
    done = ended(loop)
    assert re.search(TIMED.pattern + "stopping: no new actions", done.err)
