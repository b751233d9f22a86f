"""The user of a command, and the project's commit, for the journal."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from declarative.store.journal import Who

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
MOST_BYTES = 4 << 20
"""Bytes that are read of a file of git."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def who(directory: Path, environ: Mapping[str, str] = os.environ) -> Who:
    """The CI's actor, else the user of this process; the CI's commit, else that which is checked out."""
    from declarative.store.journal import Who

    named = (text for name in COMMITS if _COMMIT.fullmatch(text := environ.get(name, "").lower()))
    return Who(actor=_actor(environ), revision=next(named, None) or _checked_out(directory))


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
        here = directory.resolve()
        git = next((p / ".git" for p in (here, *here.parents) if (p / ".git").exists()), None)
        if git is None:
            return None
        if git.is_file():  # a linked working tree
            git = git.parent / _text(git).removeprefix("gitdir:").strip()
        head = _text(git / "HEAD").strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else None
        return _of_branch(git, head.removeprefix("ref:").strip())
    return None


def _of_branch(git: Path, branch: str) -> str | None:
    common = git
    if (git / "commondir").is_file():
        common = git / _text(git / "commondir").strip()
    if ".." not in branch.split("/") and not branch.startswith("/") and (common / branch).is_file():
        found = _text(common / branch).strip()
        return found if _COMMIT.fullmatch(found) else None
    for line in _text(common / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch and _COMMIT.fullmatch(commit):
            return commit
    return None


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode()
