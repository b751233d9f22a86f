"""Opening what lies inner the project's directory, without ever going through a symbolic link."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20
"""Bytes that are in memory at once."""


class ChangedError(OSError):
    """A file that is written to while it is read, or that is another one than it was."""


@contextlib.contextmanager
def folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of the folder that `names` lead to; `OSError` if one of them is no folder, or a link.

    `root` itself is the user's word, and may be a link.
    """
    descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def regular(parent: int, name: str) -> Iterator[BinaryIO]:
    """A regular file of a folder; `OSError` if it is anything else. A pipe or a device is not even opened."""
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise OSError(0, "not a regular file")
    descriptor = os.open(name, _FILE, dir_fd=parent)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        yield file


def check_size(file: BinaryIO, at_most: int) -> None:
    """`ChangedError` for a file that has more bytes than it had."""
    if os.fstat(file.fileno()).st_size > at_most:
        raise ChangedError(0, "it changes while it is read")


def summed(file: BinaryIO) -> tuple[os.stat_result, str]:
    """Read a file to its end: how it is, and its SHA-256 in hex. `ChangedError` if it changes meanwhile."""
    before = os.fstat(file.fileno())
    found, left = hashlib.sha256(), before.st_size
    while left > 0 and (piece := file.read(min(PIECE, left))):
        found.update(piece)
        left -= len(piece)
    after = os.fstat(file.fileno())
    if left or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ChangedError(0, "it changes while it is read")
    return after, found.hexdigest()
