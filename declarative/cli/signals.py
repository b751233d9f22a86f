"""Ctrl-C: the first asks to stop, the second stops now; the journal covers the rest."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


@contextmanager
def stopping(text: str) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, after printing `text`; the second ends the process."""
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            # Nothing may run any more, not even exit handlers that wait for threads.
            os._exit(INTERRUPTED)
        event.set()
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)
