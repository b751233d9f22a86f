"""Manifests of a task's `files`: which files of the project, with which content, where for a rank. Pure.

`apply` needs only the manifest to make what is sent, and to find out whether the project's files are still
those that were planned. A manifest has no file contents, only their SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from declarative.model.diagnostic import and_more
from declarative.model.record import struct

_FORMAT = "fleetform files 1"
MOST_SUMS = 500
"""The most sums of files, or of folders, that a state records, so that a plan can name the changes."""


@struct(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link. Of its mode only whether it is executable counts, as in git."""

    path: str
    """Below the rank's folder."""
    source: str
    """Below the project's directory; both with `/` between their parts, and without `.` and `..`."""
    size: int = 0
    """Bytes; of a link, none."""
    sha256: str = ""
    """The sum of its content, in hex; empty for a link."""
    executable: bool = False
    link: str | None = None
    """Where a symbolic link leads; None for a file."""


@struct(frozen=True)
class Manifest:
    """All that one task's ranks get, sorted by path."""

    entries: tuple[Entry, ...] = field(default=())

    @functools.cached_property
    def digest(self) -> str:
        """64 hex digits that show a change, and that name the files on a host. The files' place in the
        project is not part of it: the rank gets the same.
        """
        summed = hashlib.sha256(_FORMAT.encode())
        for entry in self.entries:
            what = [entry.path, entry.link, entry.executable, entry.size, entry.sha256]
            summed.update(json.dumps(what).encode() + b"\n")
        return summed.hexdigest()

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(entry.size for entry in self.entries)

    def sums(self, alone: Collection[str] = ()) -> dict[str, str]:
        """Path → short sum of each file; of whole folders (`data/`) if there are more than `MOST_SUMS`. Files
        of `alone` always have their own sum.
        """
        deepest = max((entry.path.count("/") for entry in self.entries), default=0)
        for depth in range(deepest, -1, -1):
            hashes: dict[str, Any] = {}
            for entry in self.entries:
                parts = entry.path.split("/")
                whole = entry.path in alone or len(parts) <= depth + 1
                name = entry.path if whole else "/".join(parts[: depth + 1]) + "/"
                what = [entry.path, entry.link, entry.executable, entry.size, entry.sha256]
                hashes.setdefault(name, hashlib.sha256()).update(json.dumps(what).encode())
            if len(hashes) <= MOST_SUMS:
                break
        return {name: sum_.hexdigest()[:12] for name, sum_ in sorted(hashes.items())} if self.entries else {}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The change of each path between two `sums`: `added`, `removed` or `changed`."""
    out: dict[str, str] = {}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            out[path] = "added" if path not in before else "removed" if path not in after else "changed"
    return out


def changes_text(path_changes: Mapping[str, str], most: int = 5) -> str:
    """The changes in one line: `data/x.csv added, train.py changed and 3 more`."""
    return and_more((f"{path} {what}" for path, what in path_changes.items()), most)
