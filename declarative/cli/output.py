"""A stream whose reader may go away (`| head`) without ending what is being done."""

from __future__ import annotations

import contextlib
from typing import TextIO


class Unbroken:
    """Writes to a stream until nobody reads it any more, and to nowhere from then on."""

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
