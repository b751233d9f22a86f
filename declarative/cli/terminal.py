"""What `ssh` and `exec` have in common: a command that is given our stdin, stdout and stderr, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from declarative.cli.failure import failed

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.provider import Terminal
    from declarative.state import Record

NOT_RUN = 125
"""The exit code where the way to the command was lost, or it was not run at its other end, as docker has it.
What is wrong before that is an error as of every command: 1."""
THEIRS = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to all of us is the command's to answer."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
"""A request to end is sent to us alone; the command's end is waited for."""


@contextlib.contextmanager
def at_node(
    backends: Backends, node: Record, attempt: str | None, words: Sequence[str]
) -> Iterator[Terminal]:
    """A terminal on a node; with an attempt, beside that rank."""
    from declarative.provider import ProviderError

    tty = _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
    with contextlib.ExitStack() as stack:
        try:
            found = backends.get(node.backend).terminal(node, attempt, words, tty=tty)
            terminal = stack.enter_context(found)
        except ProviderError as error:
            raise failed("backend", error.summary, error.hint) from None
        yield terminal


def running(terminal: Terminal, node: Record) -> int:
    """Run it to its end; its exit code, which is 128 and the signal's number if it was killed."""
    sys.stdout.flush()
    try:
        # Not ignored but heard: what is ignored here, the command would ignore as well.
        with _hearing() as heard:
            process = subprocess.Popen(  # noqa: S603  # the user's command, or a provider's way to it
                terminal.argv,
                cwd=terminal.folder,
                env=None if terminal.env is None else dict(terminal.env),
            )
            heard.process = process
            code = process.wait()
    except OSError as error:
        summary = f"cannot run `{terminal.argv[0]}`: {error.strerror or error}"
        raise failed("backend", summary, "see that it is installed") from None
    code = 128 - code if code < 0 else code
    fault = terminal.fault(code)
    if fault is not None and heard.number is not None:
        return 128 + heard.number  # it was we who ended it
    if fault is not None:
        hint = f"what is wrong with the host of {node.address}, `fleetform status --refresh` says"
        failed("backend", fault, hint).show()
        return NOT_RUN
    return code


@dataclass(slots=True)
class _Heard:
    """The last signal that came, and the command that it is for."""

    process: subprocess.Popen[bytes] | None = None
    number: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        if number in PASSED_ON and self.process is not None:
            self.process.send_signal(number)


@contextlib.contextmanager
def _hearing() -> Iterator[_Heard]:
    heard = _Heard()
    before = {number: signal.signal(number, heard) for number in (*THEIRS, *PASSED_ON)}
    try:
        yield heard
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _is_terminal(stream: Any) -> bool:
    """A closed stream (`<&-`) is None."""
    return stream is not None and os.isatty(stream.fileno())
