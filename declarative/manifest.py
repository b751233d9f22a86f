"""What a task's `files` come to: which files of the project, with what in them, where for a rank. Pure.

A manifest says it all: from it, and from nothing else, `apply` makes what is sent, and finds out whether the
project's files are still those that were planned. File contents are in no manifest, only their SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field

_FORMAT = "fleetform files 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link. Of its mode only whether it is executable counts, as in git."""

    path: str
    """Below the rank's folder."""
    source: str
    """Below the project's directory; both with `/` between their parts, and without `.` and `..`."""
    size: int = 0
    """Bytes; of a link, none."""
    sha256: str = ""
    """Of what is in it, in hex; empty for a link."""
    executable: bool = False
    link: str | None = None
    """Where a symbolic link leads; None for a file."""


@dataclass(frozen=True)
class Manifest:
    """All that one task's ranks get, sorted by path."""

    entries: tuple[Entry, ...] = field(default=())

    @functools.cached_property
    def digest(self) -> str:
        """By which a change is seen and a host tells what it has: 64 hex digits. Where the files lie in the
        project is no part of it: what a rank gets is the same.
        """
        found = hashlib.sha256(_FORMAT.encode())
        for entry in self.entries:
            what = [entry.path, entry.link, entry.executable, entry.size, entry.sha256]
            found.update(json.dumps(what).encode() + b"\n")
        return found.hexdigest()

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(entry.size for entry in self.entries)
