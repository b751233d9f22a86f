"""Which writer changed a folder of things last: an earlier one that comes late is refused.

The highest number that came is kept in a file, and held while something is changed. So whoever has raised it
knows that nothing is changed any more for those before him: see `provider.Fence`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from declarative.provider import Fence, StaleError, TransientError, TransientKind


class Epoch:
    """The file of one owner's things. Safe to use from many threads."""

    def __init__(self, path: Path, fence: Fence, folders: Sequence[str]) -> None:
        """`folders` are those of the things: where they are empty, nothing is left to be held."""
        self._path = path
        self._folders = folders
        self._fence = fence
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def held(self, *, make: bool = True) -> Iterator[None]:
        """Change something as the present writer: nobody later comes in between. Without `make` nothing is
        kept where there is no folder yet, or where nothing is left.
        """
        epoch = self._fence()
        if epoch is None or not (make or self._path.parent.is_dir()):
            yield
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.open("a+", encoding="ascii") as file:
            with self._turn:
                newest = self._read(file, fcntl.LOCK_SH)
                if newest < epoch:
                    newest = self._read(file, fcntl.LOCK_EX)  # somebody may have been faster
                    if newest < epoch:
                        file.truncate(0)
                        file.write(f"{epoch}\n")
                        file.flush()
                    newest = self._read(file, fcntl.LOCK_SH)
            if newest > epoch:
                summary = f"a later command was here ({newest}, and this is {epoch})"
                raise StaleError(newest, summary, about=str(self._path))
            yield
        if not make:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError, BlockingIOError), self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not any(map(_has_entries, self._folders)):
                self._path.unlink()

    def _read(self, file: IO[str], how: int) -> int:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            # Of a process that was stopped in the middle, perhaps: it goes on where it is once it wakes up.
            summary = f"another command is in the middle of a change: {self._path} is locked"
            raise TransientError(TransientKind.BUSY, summary, about=str(self._path)) from None
        if os.fstat(file.fileno()).st_nlink == 0:
            summary = f"{self._path} was removed meanwhile, with all that was there"
            raise TransientError(TransientKind.BUSY, summary, about=str(self._path))
        file.seek(0)
        text = file.read().strip()
        return int(text) if text.isdecimal() else 0


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entries)
    except FileNotFoundError:
        return False
