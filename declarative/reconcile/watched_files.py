"""The project's files in a loop: what they declare while they have no errors, and whether they changed since
they were read. Changed files are found only by their names, sizes and times.

They may be those of a branch of a Git repository. `git` fetches, and the files are those of the newest
commit. The content of a repository is only data: hooks are off, submodules are left out, and only the usual
transports are allowed. git logs in by itself (a credential helper, an SSH agent or key).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from declarative.converge.actor import who
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.resource import Desired
from declarative.reconcile.loop import LoopObserver
from declarative.store import Actor
from declarative.store.lease import boottime
from declarative.store.loop_state import LEASE_SECONDS

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


Mark: TypeAlias = tuple[tuple[str, int, int, int], ...]
DOCUMENTS = (".yaml", ".yml")


def mark_of(directory: Path, files: Iterable[str | Path]) -> Mark:
    """A mark that changes when the project's documents, the files of `files`, or their folders change."""
    paths = {str(directory / file) for file in files}
    paths |= {os.path.dirname(file) for file in paths}  # noqa: PTH120  # text, for thousands of them
    try:
        with os.scandir(directory) as entries:
            paths |= {entry.path for entry in entries if entry.name.endswith(DOCUMENTS)}
    except OSError:
        pass
    return tuple(mark for path in sorted(paths) if (mark := _mark(path)) is not None)


def _mark(path: str) -> tuple[str, int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return path, status.st_mtime_ns, status.st_size, status.st_ino


def unchanged(before: Mark, after: Mark) -> Mark:
    """The mark of a project that was read between these two marks. If a file was written meanwhile, it is the
    first mark, which no longer matches the project.
    """
    known = {path: rest for path, *rest in before}
    return after if all(known.get(path, rest) == rest for path, *rest in after) else before


TRIES = 3
"""How often in a row a round may begin anew because its files have changed: some folders never rest."""


class WatchedFiles:
    """The declaration, from round to round."""

    def __init__(self, session: ProjectSession, observer: LoopObserver, checkout: Checkout | None) -> None:
        """`checkout` brings the files, where they follow a branch."""
        self._session, self._observer, self._checkout = session, observer, checkout
        self.desired: Desired | None = None
        """The last declaration without errors."""
        self.who: Actor | None = None
        """The user of the loop, and the commit of the files."""
        self.in_force: str | None = None
        """The commit of the last declaration without errors."""
        self.wrong: tuple[Diagnostic, ...] = ()
        """Errors of the files as they are now. While there are any, the last declaration holds."""
        self.git_wrong: tuple[Diagnostic, ...] = ()
        """Errors of the repository that they come from."""
        self._files: tuple[str, ...] = ()
        self._mark: Mark | None = None
        self._loaded = 0.0
        """When the files were looked at last (`boottime`)."""
        self._tries = 0

    def fetch(self) -> None:
        """Bring the newest commit of the branch. If that fails, the last one still holds."""
        if self._checkout is None:
            return
        try:
            self._checkout.update()
        except GitError as error:
            self.git_wrong = (error.diagnostic,)
        else:
            self.git_wrong = ()
        self._observer.git(self.git_wrong)

    def load(self) -> Desired | None:
        """The declaration now; None if it never was without errors."""
        self._loaded, mark = boottime(), self._marked()
        if mark != self._mark or self._checkout is not None:
            self.who = who(self._session.directory)
        sends_files = self.desired is not None and any(t.files for t in self.desired.tasks.values())
        if self.desired is None or mark != self._mark or sends_files:
            try:
                loaded = self._session.load(look="contents")
            except InvalidError as error:
                self.wrong = error.diagnostics
            else:
                self.desired, self._files, self.wrong = loaded.desired, loaded.files, ()
                self.in_force = self.who.revision if self.who else None
            self._mark = unchanged(mark, self._marked())
            self._observer.wrong(self.wrong, held=self.desired is not None)
        if self.desired is None:
            return None
        self._session.pass_time()
        return self._session.current

    def changed(self) -> bool:
        """Whether they were written since they were read."""
        return self._mark != self._marked()

    def outdated(self) -> bool:
        """Whether they, or the branch, may say something else by now. To be asked with the lock in hand: who
        waited for it, or slept before, would undo what a person has declared and applied meanwhile.
        """
        late = boottime() - self._loaded > LEASE_SECONDS or self.changed()
        self._tries = self._tries + 1 if late and self._tries < TRIES else 0
        return self._tries > 0

    def _marked(self) -> Mark:
        return mark_of(self._session.directory, (*self._files, *self._session.inputs))
