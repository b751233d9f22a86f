"""Copies of a project's folder with its state: a command asks before it writes to a copied state.

A copied folder has the copied state's lineage: it would stop and delete what the original runs. So a file
beside the state says which folder this is. A moved folder keeps its inode, and a restored one its path; a
copy has neither. If that cannot be found out, no question is asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

from declarative.model.record import struct
from declarative.store.errors import StateError

FILE = ".place.json"
OWN_DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")
"""Filesystems of one machine: what another machine has of them, too, is a copy of the whole disk."""


@struct(frozen=True, slots=True)
class Home:
    """A folder of a host. An empty `machine` is not known, as in most containers."""

    path: str
    inode: int
    machine: str
    host: str

    @classmethod
    def of(cls, folder: Path) -> Home:
        """The identity of a folder now."""
        path = folder.resolve()
        return cls(str(path), path.stat().st_ino, _machine(), socket.gethostname())

    def is_home(self, now: Home) -> bool:
        """Whether `now` is this folder, moved or brought back perhaps."""
        elsewhere = bool(self.machine and now.machine and self.machine != now.machine)
        if self.inode == now.inode:
            return not (elsewhere and _filesystem(now.path) in OWN_DISKS) and not self._is_beside(now)
        return self.path == now.path and not elsewhere

    def _is_beside(self, now: Home) -> bool:
        """Whether it is there as well: snapshots of some filesystems keep the inodes."""
        before = Path(self.path)
        return self.path != now.path and _read(before) == self and not before.samefile(now.path)


def check(folder: Path, *, note: bool) -> None:
    """`StateError` copied-state if the state's folder is a copy. Else `note` writes down the folder."""
    kept, now = _read(folder), Home.of(folder)
    if kept is None or kept.is_home(now):
        if note and kept != now:
            _write(folder, now)
        return
    where = kept.path if kept.host == now.host else f"{kept.path} on {kept.host}"
    raise StateError(
        "copied-state",
        f"{now.path} is a copy: its state is that of {where}, and what was made from there would be changed "
        "and deleted from here",
        "if this is its place from now on: `fleetform state adopt-folder`; to begin anew, remove it; "
        "to work from several folders, keep the state on a server",
    )


def adopt(folder: Path) -> str | None:
    """Make this the state's folder; its earlier path, if it was another. Commands there ask from then on."""
    kept, now = _read(folder), Home.of(folder)
    _write(folder, now)
    if kept is None or kept.is_home(now):
        return None
    before = Path(kept.path)
    if _read(before) == kept and before.resolve() != folder.resolve():
        with contextlib.suppress(OSError):
            _write(before, now)
    return kept.path


def _read(folder: Path) -> Home | None:
    try:
        words = json.loads((folder / FILE).read_text(encoding="utf-8"))
        home = Home(str(words["path"]), int(words["inode"]), str(words["machine"]), str(words["host"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return home


def _write(folder: Path, home: Home) -> None:
    new = folder / f".{FILE}.{os.getpid()}"
    try:
        new.write_text(json.dumps(asdict(home)) + "\n", encoding="utf-8")
        new.rename(folder / FILE)
    except OSError:
        # A full disk, or one that may only be read: the state itself says so.
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def _machine() -> str:
    """A digest of this machine's id: the id itself is private."""
    try:
        text = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(f"fleetform {text}".encode()).hexdigest()[:16] if len(text) == 32 else ""


def _filesystem(path: str) -> str:
    """The type of the filesystem that a path is on; empty where that cannot be read."""
    best, kind = -1, ""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            mount, _, right = line.partition(" - ")
            at = mount.split()[4]
            if (path == at or path.startswith(at.rstrip("/") + "/")) and len(at) > best:
                best, kind = len(at), right.split()[0]
    return kind
