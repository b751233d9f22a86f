"""The project's files in a loop: what they declare while they have no errors, and whether they changed since
they were read. Changed files are found only by their names, sizes and times.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from declarative.converge.actor import who
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.resource import Desired
from declarative.reconcile.checkout import Checkout, GitError
from declarative.reconcile.round import LoopObserver
from declarative.store import Actor
from declarative.store.lease import boottime
from declarative.store.loop_state import LEASE_SECONDS

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
