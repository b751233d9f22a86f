"""Carries a command to a host, and its answer back.

A transport gives the whole answer of a command that ended, whatever its exit code, or it raises
`ConnectionLost`. Nobody can tell whether the command ran then, so callers only run what they may run again.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Protocol

from declarative.model.record import struct


class ConnectionLost(Exception):  # noqa: N818  # neither an error of the command nor a success
    """No answer came, or not in time. The command may have run, may be running, or may never have started."""


@struct(frozen=True, slots=True)
class Finished:
    """A command that ended. `exit_code` is minus the signal's number if one is known to have killed it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs commands on one host."""

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Finished:
        """Run `argv` there, as separate words whatever they hold, and wait for its end.

        Args:
            argv: The command and its arguments.
            stdin: What it can read.
            timeout: Seconds to wait for the end; without it, as long as it takes.

        Raises:
            ConnectionLost: No answer came, or not in time.
        """
        ...


class LocalTransport:
    """Runs commands on this machine."""

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout: float | None = None) -> Finished:
        """A command that still runs after `timeout` is killed with all its children."""
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal is meant for us
            )
        except OSError as error:
            raise ConnectionLost(f"cannot run `{argv[0]}`: {error}") from error
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired as error:
            # The whole group: a child that lives on would hold the pipes open.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise ConnectionLost(f"`{argv[0]}` gave no answer within {timeout:g} s") from error
        return Finished(process.returncode, stdout, stderr)
