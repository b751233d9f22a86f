"""A branch of a Git repository, checked out for a loop.

`git` fetches, and the files are those of the newest commit. The content of a repository is only data: hooks
are off, submodules are left out, and only the usual transports are allowed. git logs in by itself (a
credential helper, an SSH agent or key).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from declarative.model.diagnostic import Diagnostic

SECONDS = 120.0
"""The limit for one git command, in seconds."""
STATE = ".fleetform"
_OURS = "fleetform.follows"
"""The entry in the clone's own configuration that marks it as ours; its value is the URL."""
_LOGIN = re.compile(r"^https?://[^/]*@", re.IGNORECASE)
_SHOWN = re.compile(r"(?<=://)[^/@\s]*@")
_SAFE = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.symlinks": "true",
    "submodule.recurse": "false",
    "protocol.ext.allow": "never",
    "gc.auto": "0",
}
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}


class GitError(Exception):
    """A repository, branch or commit that cannot be used; `diagnostic` says why."""

    def __init__(self, summary: str, hint: str) -> None:
        self.diagnostic = Diagnostic(code="git-failed", summary=summary, hint=hint)
        super().__init__(summary)


class Checkout:
    """A branch, checked out in `folder`."""

    def __init__(self, url: str, branch: str, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        """`GitError` if the URL is invalid or contains a login, if the branch's name is invalid, or if
        `folder` holds something else.
        """
        self.folder = folder
        self._url = url
        self._branch = branch
        # Variables such as GIT_DIR would lead git to another repository.
        self._environ = {k: v for k, v in environ.items() if not k.startswith("GIT_") or k in _LOGINS}
        if _LOGIN.match(url):
            hint = "keep it in a credential helper (`git help credentials`), and leave it out of the URL"
            raise GitError("the URL carries a user name or a password", hint)
        if not url or url.startswith("-") or "::" in url:
            hint = "write https://…, ssh://…, user@host:path, or a folder"
            raise GitError(f"`{_SHOWN.sub('', url)}` is not a URL of a Git repository", hint)
        self._git("check-ref-format", f"refs/heads/{branch}", hint="write a branch, such as `main`", at=None)
        if folder.exists() and self._output("config", "--local", "--get", _OURS) != url:
            hint = "run this in another folder, or move that one away"
            raise GitError(f"`{folder}` exists, and is not a clone that follows this repository", hint)

    @property
    def commit(self) -> str | None:
        """The commit that is checked out; None before the first update."""
        return (
            self._output("rev-parse", "--verify", "-q", "HEAD^{commit}") or None
            if self.folder.exists()
            else None
        )

    def update(self) -> bool:
        """Fetch the branch and check out its newest commit. True if it is another commit than before.

        `GitError` leaves the files of the last commit in place.
        """
        if self.folder.exists():
            return self._fetched()
        if ":" not in self._url and not Path(self._url).exists():
            raise GitError(
                f"there is no repository `{self._url}`", "write its URL, or the folder that it is in"
            )
        self._git("init", "-q", "--", str(self.folder), at=None)
        try:
            self._git("config", "--local", _OURS, self._url)
            return self._fetched()
        except GitError:  # the folder would refuse the right URL
            shutil.rmtree(self.folder)
            raise

    def _fetched(self) -> bool:
        before = self.commit
        where = f"+refs/heads/{self._branch}:refs/remotes/origin/{self._branch}"
        hint = f"check the URL, the branch `{self._branch}` and the login: `git ls-remote --heads URL`"
        options = ("-q", "--no-tags", "--no-recurse-submodules", "--depth", "1")
        self._git("fetch", *options, "--", self._url, where, hint=hint)
        commit = self._git("rev-parse", "--verify", f"refs/remotes/origin/{self._branch}^{{commit}}")
        if commit == before:
            return False
        names = self._git("ls-tree", "-r", "-z", "--name-only", commit).split("\0")
        inside = next((name for name in names if STATE in name.split("/")), None)
        if inside is not None:
            hint = f"`git rm -r --cached {STATE}`, and put `{STATE}/` into .gitignore"
            raise GitError(f"commit {commit[:12]} has the file `{inside}`, where the state is kept", hint)
        self._git("checkout", "-q", "--force", "--detach", commit)
        return True

    def _output(self, *words: str) -> str:
        """The output of git; empty if it fails."""
        try:
            return self._git(*words)
        except GitError:
            return ""

    def _git(self, *words: str, hint: str = "run it by hand to see more", at: str | None = "") -> str:
        place = () if at is None else ("-C", str(self.folder))
        options = [word for item in _SAFE.items() for word in ("-c", "=".join(item))]
        try:
            done = subprocess.run(  # noqa: S603
                ["git", *place, *options, *words],  # noqa: S607
                env={**self._environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise GitError("there is no `git` here", "install git") from None
        except subprocess.TimeoutExpired:
            raise GitError(f"`git {words[0]}` took longer than {SECONDS:.0f} seconds", hint) from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            why = _SHOWN.sub("", lines[-1]) if lines else f"exit code {done.returncode}"
            raise GitError(f"`git {words[0]}` failed: {why[:300]}", hint)
        return done.stdout.decode(errors="replace").strip()


_LOGINS = frozenset({"GIT_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL"})
"""git's variables for logging in."""


def folder_of(url: str) -> str:
    """The name of the folder that `git clone` would choose."""
    name = url.rstrip("/").replace("\\", "/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-") or "repository"
