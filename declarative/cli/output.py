"""The terminal: output on stdout and stderr as text and JSON, the pager, and Ctrl-C. A stranger's text must
stay text, and the reader of a pipe may go away.

Agents of CI services read the log of a job and obey some of its lines: all output passes `CommandEscaper`.
The first Ctrl-C asks to stop, the second stops now; the journal covers the rest.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from declarative.model.diagnostic import Diagnostic

INTERRUPTED = 130
STOPPING = "stopping: no new actions, the running ones end (again to stop now)"
SHOW_CURSOR = "\x1b[?25h"
"""The live display hides it."""


@contextmanager
def stopping(text: str, event: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, after printing `text`; the second ends the process.

    Only while something is done that must not be cut short: elsewhere Ctrl-C ends the command at once.
    """
    event = event or threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if event.is_set():
            _say(SHOW_CURSOR if sys.stderr.isatty() else "")
            # Nothing may run any more, not even exit handlers that wait for threads.
            os._exit(INTERRUPTED)
        event.set()
        stamp = sys.stderr.stamp() if isinstance(sys.stderr, TimedLines) else ""
        _say(f"\n{stamp}{text}\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _say(text: str) -> None:
    # Past Python's buffers: the signal may have come in the middle of a write to them.
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def pause(seconds: float) -> None:
    """Sleep. `BrokenPipeError` as soon as nobody reads stdout any more: no write would tell."""
    stdout = select.poll()
    stdout.register(sys.stdout, 0)
    if stdout.poll(seconds * 1000):
        raise BrokenPipeError


def say(diagnostics: tuple[Diagnostic, ...]) -> None:
    """Show diagnostics on stderr."""
    if diagnostics:
        from declarative.render.diagnostics import diagnostics_text
        from declarative.render.text import use_color

        sys.stderr.write(diagnostics_text(diagnostics, color=use_color(sys.stderr, os.environ)))


def say_line(text: str) -> None:
    """A line on stderr, for what goes on whether it is read or not."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def say_late(names: Sequence[str]) -> None:
    """Say which backends the command waits for."""
    sys.stderr.write(f"waiting for an answer of {', '.join(f'backend {name}' for name in names)} …\n")
    sys.stderr.flush()


_BRACKET = re.compile(r"(##\w*)\[")
"""`##[…]` of GitHub, `##vso[…]` of Azure, `##teamcity[…]`: anywhere in a line."""
_COLONS = re.compile(r"([\n\r](?:\x1b\[[0-9;]*m|[^!-~\n\r])*:)(?=:)")
"""`::…::` of GitHub: at the start of a line, after what an agent may take for blanks."""
_BLANKS = re.compile(r"\A(?:\x1b\[[0-9;]*m|[^!-~])+")
_KEPT = 40
"""Characters of an unfinished line that the next piece may make a command of."""


class CommandEscaper:
    r"""Breaks commands to CI agents in a text that comes in pieces: `##\[…`, `:\:…`."""

    def __init__(self) -> None:
        self._line = ""
        """The end of the unfinished line, as it was printed."""

    def __call__(self, text: str) -> str:
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
            end = "." + end[-_KEPT:]  # a line that was started stays one
        self._line = end
        return whole[len(before) :]


class Stream(io.TextIOWrapper):
    """stdout or stderr, where no text can be a command to a CI agent."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        encoding, at_lines = stream.encoding, stream.line_buffering
        super().__init__(stream.detach(), encoding, "replace", line_buffering=at_lines)
        self._escape = CommandEscaper()

    def write(self, text: str) -> int:
        super().write(self._escape(text))
        return len(text)


class PipeSafeStream:
    """Writes to a stream as long as something reads it; drops the rest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write and flush, or drop the text if the pipe is broken. stdout and stderr may be one file."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


class TimedLines:
    """A stream whose lines begin with the time, in UTC. All else is that of the stream itself."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._lock = threading.Lock()
        self._begun = False
        """Whether a line was begun and not ended."""

    def stamp(self) -> str:
        """The time that a line begins with now."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(self._clock()))

    def write(self, text: str) -> int:
        """Write it, with the time before each line that is not empty."""
        stamp, out = self.stamp(), []
        with self._lock:
            for line in io.StringIO(text, newline="\n"):  # of bytes, by which click asks, a TypeError
                out += [line] if self._begun or not line.strip() else [stamp, line]
                self._begun = not line.endswith("\n")
            self._stream.write("".join(out))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def timed_lines(clock: Callable[[], float]) -> Iterator[None]:
    """Let the lines on stdout and stderr begin with the time, unless a terminal shows them."""
    before = sys.stdout, sys.stderr
    if not sys.stdout.isatty():
        sys.stdout = cast("TextIO", TimedLines(sys.stdout, clock))
    if not sys.stderr.isatty():
        sys.stderr = cast("TextIO", TimedLines(sys.stderr, clock))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def emit(data: Any) -> None:
    """JSON on stdout."""
    from declarative.render.output_json import to_json

    sys.stdout.write(to_json(data))


def emit_event(event: Mapping[str, Any]) -> None:
    """One event as a line of JSON on stdout."""
    from declarative.render.output_json import to_event

    PipeSafeStream(sys.stdout).write(to_event(event) + "\n")


def emit_text(text: str) -> None:
    """Text on stdout, before anything that comes on stderr: both may be one file."""
    sys.stdout.write(text)
    PipeSafeStream(sys.stdout).flush()


def out_style() -> dict[str, Any]:
    """Colour and width of stdout."""
    from declarative.render.text import use_color, width

    return {"color": use_color(sys.stdout, os.environ), "width": width(sys.stdout)}


def show_paged(text: str, *, paged: bool, after: Callable[[], str] = str) -> None:
    """Print `text`; through `$FLEETFORM_PAGER` or `$PAGER` (default `less`) if it is longer than the screen.

    An empty pager or `cat` turns it off, and so does anything but a terminal on either side. What `after`
    returns is printed once the pager has ended, for a user who leaves it early.
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
    emit_text(after())


def write_whole(path: Path, content: bytes, mode: int, like: os.stat_result | None = None) -> None:
    """Put a file in its place, whole or not at all, with this mode less the user's umask, or with the mode
    and the owner of a file `like` it.
    """
    from declarative.model.diagnostic import failed

    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if like is not None:
                    with contextlib.suppress(OSError):
                        os.fchown(file.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise failed("unwritable", f"`{path}` cannot be written: {error.strerror}") from None
    with contextlib.suppress(OSError):  # make the new name last, where the file system can
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_writable(name: str, what: str, begin: re.Pattern[bytes]) -> None:
    """`InvalidError` unless the file is not there and can be, or is empty, or begins as a `what` does."""
    from declarative.model.diagnostic import failed

    path = Path(name)
    try:
        status = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise failed("unwritable", f"`{path.parent}` is not a directory", "make it first") from None
        return
    except OSError as error:
        raise failed("unwritable", f"`{name}` cannot be written: {error.strerror}") from None
    is_ours = False
    if stat.S_ISREG(status.st_mode):
        with contextlib.suppress(OSError), path.open("rb") as file:
            is_ours = not status.st_size or begin.match(file.read(200)) is not None
    if not is_ours:
        summary = f"`{name}` exists, and is not a {what}: it is left alone"
        raise failed("not-overwritten", summary, "name another file, or remove that one")
