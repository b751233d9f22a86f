"""Ctrl-C: the first asks to stop, the second stops now; the journal covers the rest."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
        _say(f"\n{text}\n")

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
