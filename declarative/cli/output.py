"""Output on stdout and stderr: text, JSON, the pager. A stranger's text must stay text, and the reader of a
pipe may go away.

Agents of CI services read the log of a job and obey some of its lines: all output passes `Tame`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import Any, TextIO

_BRACKET = re.compile(r"(##\w*)\[")
"""`##[…]` of GitHub, `##vso[…]` of Azure, `##teamcity[…]`: anywhere in a line."""
_COLONS = re.compile(r"([\n\r](?:\x1b\[[0-9;]*m|[^!-~\n\r])*:)(?=:)")
"""`::…::` of GitHub: at the start of a line, after what an agent may take for blanks."""
_BLANKS = re.compile(r"\A(?:\x1b\[[0-9;]*m|[^!-~])+")
_KEPT = 40
"""Characters of an unfinished line that the next piece may make a command of."""


class Tame:
    r"""Breaks commands to CI agents in a text that comes in pieces: `##\[…`, `:\:…`."""

    def __init__(self) -> None:
        self._line = ""
        """The end of the unfinished line, as it was printed."""

    def __call__(self, text: str) -> str:
        """The next piece."""
        before = "\n" + self._line
        whole = before + text
        if "##" in whole:
            whole = _BRACKET.sub(r"\1\\[", whole)
        if "::" in whole:
            whole = _COLONS.sub(r"\1\\", whole)
        end = whole[max(whole.rfind("\n"), whole.rfind("\r")) + 1 :]
        if len(end) > _KEPT:
            end = _BLANKS.sub("", end)
        if len(end) > _KEPT:
            end = "." + end[-_KEPT:]  # a line that has begun stays one that has
        self._line = end
        return whole[len(before) :]


class Stream(io.TextIOWrapper):
    """stdout or stderr: what is printed is no command to a CI agent."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        encoding, at_lines = stream.encoding, stream.line_buffering
        super().__init__(stream.detach(), encoding, "replace", line_buffering=at_lines)
        self._tame = Tame()

    def write(self, text: str) -> int:
        """As of every stream."""
        super().write(self._tame(text))
        return len(text)


class Unbroken:
    """Writes to a stream as long as something reads it; drops the rest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's, but for a broken pipe. At once: stdout and stderr may be one file."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """As the stream's, but for a broken pipe."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


def emit(data: Any) -> None:
    """JSON on stdout."""
    from declarative.render.data import to_json

    sys.stdout.write(to_json(data))


def emit_text(text: str) -> None:
    """Text on stdout, before anything that comes on stderr: both may be one file."""
    sys.stdout.write(text)
    Unbroken(sys.stdout).flush()


def out_style() -> dict[str, Any]:
    """Colour and width of stdout."""
    from declarative.render.text import use_color, width

    return {"color": use_color(sys.stdout, os.environ), "width": width(sys.stdout)}


def show_paged(text: str, *, paged: bool, summary: str = "") -> None:
    """Print `text`; through `$FLEETFORM_PAGER` or `$PAGER` (default `less`) if it is longer than the screen.

    An empty pager or `cat` turns it off, and so does anything but a terminal on either side. `summary` is
    printed once the pager has ended, for a user who leaves it early.
    """
    import shutil

    import click

    chosen = os.environ.get("FLEETFORM_PAGER", os.environ.get("PAGER", "less"))
    terminal = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    lines = shutil.get_terminal_size().lines
    if not paged or not terminal or chosen in ("", "cat") or text.count("\n") < lines:
        emit_text(text)
        return
    before = {name: os.environ.get(name) for name in ("PAGER", "LESS")}
    os.environ["PAGER"] = chosen
    # Colours as they are, the text stays on the screen, and no pager for what fits it.
    os.environ.setdefault("LESS", "FRX")
    try:
        click.echo_via_pager(text, color=True)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    emit_text(summary)
