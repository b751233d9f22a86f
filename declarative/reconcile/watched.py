"""Whether the project's files have changed since they were read: by their names, sizes and times alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Mark: TypeAlias = tuple[tuple[str, int, int, int], ...]
SUFFIXES = (".yaml", ".yml")


def mark_of(directory: Path, files: Iterable[str | Path]) -> Mark:
    """What tells one content of the project from another: of its documents, of `files`, of their folders."""
    found = {str(directory / file) for file in files}
    found |= {os.path.dirname(file) for file in found}  # noqa: PTH120  # text, for thousands of them
    try:
        with os.scandir(directory) as entries:
            found |= {entry.path for entry in entries if entry.name.endswith(SUFFIXES)}
    except OSError:
        pass
    return tuple(mark for path in sorted(found) if (mark := _mark(path)) is not None)


def _mark(path: str) -> tuple[str, int, int, int] | None:
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return path, seen.st_mtime_ns, seen.st_size, seen.st_ino


def unchanged(before: Mark, after: Mark) -> Mark:
    """The mark of what was read between these two: the first one, which is not true any more, if a file was
    written meanwhile.
    """
    known = {path: rest for path, *rest in before}
    return after if all(known.get(path, rest) == rest for path, *rest in after) else before
