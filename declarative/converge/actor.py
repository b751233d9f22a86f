"""The user of a command, and the project's commit, for the journal; and whether its documents differ from it.

All of it is read from git's own files: a stranger's repository may configure commands that git itself runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pwd
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from declarative.store import Actor

ACTORS = (
    "GITHUB_ACTOR",
    "GITLAB_USER_LOGIN",
    "BUILD_REQUESTEDFOR",
    "BUILDKITE_BUILD_CREATOR",
    "CIRCLE_USERNAME",
)
COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "BUILDKITE_COMMIT", "CIRCLE_SHA1")
"""Variables by which CI systems say who started a job, and at which commit."""

LONGEST = 100
DOCUMENTS = (".yaml", ".yml")
MOST_BYTES = 4 << 20
"""Bytes that are read of a file of git."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def who(directory: Path, environ: Mapping[str, str] = os.environ) -> Actor:
    """The CI's actor, else the user of this process; the CI's commit, else that which is checked out."""
    from declarative.store import Actor

    named = (text for name in COMMITS if _COMMIT.fullmatch(text := environ.get(name, "").lower()))
    return Actor(name=_actor(environ), revision=next(named, None) or _checked_out(directory))


def _actor(environ: Mapping[str, str]) -> str:
    for name in ACTORS:
        text = "".join(c for c in environ.get(name, "") if c.isprintable()).strip()
        if text:
            return text[:LONGEST]
    try:
        return pwd.getpwuid(os.getuid()).pw_name[:LONGEST]
    except KeyError:
        return f"user {os.getuid()}"


def _checked_out(directory: Path) -> str | None:
    """The commit of the working tree that the project is in, as git's own files say."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        git = _git_of(directory.resolve())
        if git is None:
            return None
        head = _text(git / "HEAD").strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else None
        return _of_branch(git, head.removeprefix("ref:").strip())
    return None


def _git_of(here: Path) -> Path | None:
    """Git's folder for the working tree that a folder is in; None outside of any."""
    git = next((p / ".git" for p in (here, *here.parents) if (p / ".git").exists()), None)
    if git is not None and git.is_file():  # a linked working tree
        return git.parent / _text(git).removeprefix("gitdir:").strip()
    return git


def is_changed(directory: Path, read: Iterable[str] = ()) -> bool:
    """Whether one of the files that were `read`, or a tracked document below the folder, differs from what
    git's index has of it, or is new, deleted, or staged. Names are relative to the folder. False if that
    cannot be told: outside of git, or if its index has another form.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError, struct.error):
        here = directory.resolve()
        git = _git_of(here)
        if git is None:
            return False
        top = next(p for p in (here, *here.parents) if (p / ".git").exists())
        below = "" if here == top else f"{here.relative_to(top).as_posix()}/"
        status = (git / "index").stat()
        tracked, staged = _index(git / "index", below, (status.st_mtime_ns, status.st_size))
        names = {name for name in tracked if name.startswith(below) and name.endswith(DOCUMENTS)}
        paths = (
            path for name in read for path in {Path(os.path.normpath(here / name)), (here / name).resolve()}
        )
        names.update(path.relative_to(top).as_posix() for path in paths if path.is_relative_to(top))
        known = ((top / name, tracked.get(name)) for name in names)
        return staged or any(item is None or _differs(path, item, status.st_mtime_ns) for path, item in known)
    return False


class _Tracked(NamedTuple):
    """A file in git's index: its time and size when it was last compared, and the digest of its blob."""

    mtime: int
    """In nanoseconds, as all times of files here."""
    size: int
    blob: bytes


@functools.lru_cache(maxsize=16)
def _index(file: Path, below: str, mark: tuple[int, int]) -> tuple[Mapping[str, _Tracked], bool]:
    """The tracked files, by path, and whether something is staged below a folder. `mark` changes when the
    file does. ValueError for a form that is not read here.
    """
    with file.open("rb") as stream:
        data = stream.read(MOST_BYTES)
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3) or mark[1] > MOST_BYTES:
        raise ValueError(file)
    tracked: dict[str, _Tracked] = {}
    at, staged = 12, False
    for _ in range(count):
        seconds, part, size, blob, flags = struct.unpack_from(">8xII20xI20sH", data, at)
        start = at + 62 + (2 if flags & 0x4000 else 0)
        end = data.index(b"\0", start)
        name = data[start:end].decode(errors="replace")
        at += (end - at + 8) // 8 * 8
        if ".." not in name.split("/"):
            tracked[name] = _Tracked(seconds * 10**9 + part, size, blob)
            # A merge that is not finished.
            staged = staged or (bool(flags & 0x3000) and name.startswith(below) and name.endswith(DOCUMENTS))
    return tracked, staged or _has_staged(data[at:-20], below)


def _has_staged(extensions: bytes, below: str) -> bool:
    """Whether git has not written the tree of a folder yet: something in it was staged, and not committed."""
    at = 0
    while at + 8 <= len(extensions):
        name, size = struct.unpack_from(">4sI", extensions, at)
        if name == b"TREE":
            return not _is_written(extensions[at + 8 : at + 8 + size], below.rstrip("/"))
        at += 8 + size
    return False


def _is_written(trees: bytes, folder: str) -> bool:
    """Whether the tree of a folder is written, by the index's own list of trees, from the top down."""
    at = 0
    open_: list[tuple[str, int]] = []
    """The folders above, each with how many of its own are still to come."""
    while at < len(trees):
        end = trees.index(b"\0", at)
        line = trees.index(b"\n", end)
        entries, children = map(int, trees[end + 1 : line].split())
        while open_ and open_[-1][1] == 0:
            open_.pop()
        if open_:
            parent, more = open_.pop()
            open_.append((parent, more - 1))
            path = f"{parent}/{trees[at:end].decode(errors='replace')}".lstrip("/")
        else:
            path = ""
        if path == folder:
            return entries >= 0
        open_.append((path, children))
        at = line + 1 + (20 if entries >= 0 else 0)
    return True


def _differs(path: Path, known: _Tracked, compared: int) -> bool:
    """Whether a document is not as the index has it. A file of the time when git wrote the index may have
    been changed since without a trace.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        return False
    if status.st_size == known.size and status.st_mtime_ns == known.mtime < compared:
        return False
    content = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return blob.digest() != known.blob


def _of_branch(git: Path, branch: str) -> str | None:
    common = git
    if (git / "commondir").is_file():
        common = git / _text(git / "commondir").strip()
    if ".." not in branch.split("/") and not branch.startswith("/") and (common / branch).is_file():
        commit = _text(common / branch).strip()
        return commit if _COMMIT.fullmatch(commit) else None
    for line in _text(common / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch and _COMMIT.fullmatch(commit):
            return commit
    return None


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode()
