"""Which state a command works on, where that may be, and how it is opened and locked."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.converge.actor import who
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.model.state import Address
    from declarative.store import LockInfo, StateError, Store, UnreachableError, Writer

PATIENCE = 30.0
"""Seconds to wait for a lock that its holder gives back within moments."""

LOOP_PATIENCE = 600.0
"""Seconds to wait for a loop, which first ends what it has started."""

AWAY = 60.0
"""Seconds that a command which writes waits for a state's database that does not answer."""

DEFAULT_STATE = "sqlite:///.fleetform/state.db"

PULL_FIRST = (
    "where it can be reached: `fleetform state pull > state.json`; then give `--state state.json` here, "
    "or plan as if nothing was there with `plan --offline --assume-empty`"
)
MOVE_STATE = (
    f"move it: `fleetform state pull --state {DEFAULT_STATE} > old.json`, `fleetform state push old.json`; "
    "or, if an empty one is meant, name it once with `--state URL`"
)

OTHER_PROJECT = (
    "change into the folder of that project, or name this one's state; if the project was renamed: "
    "`fleetform state adopt-project`"
)

T = TypeVar("T")


class Patience:
    """Waits for a state's database that does not answer: a minute in all, for all threads of the command.

    After that minute no thread waits any more: each further step fails at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    def __call__(self, step: Callable[[], T], /) -> T:
        """Return what the step returns."""
        from declarative.store import UnreachableError

        try:
            result = step()
        except UnreachableError:
            from declarative.retry import Policy, call

            result = call(
                step,
                transient=UnreachableError,
                policy=Policy(deadline=AWAY, first=0.2, longest=5.0),
                on_retry=self._on_retry,
                stopping=lambda: self._since is not None and time.monotonic() - self._since >= AWAY,
            )
        self._since = None
        return result

    def _on_retry(self, error: UnreachableError, _wait: float) -> None:
        with self._lock:
            first, self._since = self._since is None, self._since or time.monotonic()
        if first:
            _note(f"waiting up to {AWAY:.0f} s: {error.summary}")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def of_state(error: StateError, project: Path) -> InvalidError:
    """An error of the state as one of the command. Its hint names the newest backup where one helps."""
    from declarative.store.backup import kept
    from declarative.store.errors import FROM_BACKUP

    hint = error.hint
    if hint is not None and FROM_BACKUP in hint:
        newest = next(iter(kept(project)), "FILE")
        hint = hint.replace("`fleetform state restore`", f"`fleetform state restore {newest}`")
    return failed(error.code, error.summary, hint)


class StateAccess:
    """The state of one command."""

    def __init__(
        self, directory: Path, named: str | None, policy: Callable[[], OperatorPolicy] | None = None
    ) -> None:
        """`named` is what `--state` or FLEETFORM_STATE says; `policy` tells what a project may name."""
        self._policy = policy
        self.directory = directory
        self.named = named
        self._store: Store | None = None
        self._aside: tempfile.TemporaryDirectory[str] | None = None
        self.clock: Callable[[], float] = time.time
        self._compared = False
        self.waited = False
        """Whether this command waited for the lock: what it read before may be outdated."""

    def close(self) -> None:
        """Give up the connections."""
        if self._store:
            self._store.close()
        if self._aside:
            self._aside.cleanup()

    def url(self, desired: Desired | None) -> str:
        """`--state`, else FLEETFORM_STATE, else the project's, else the default one."""
        declared = desired.project.state if desired else None
        return self.named or declared or DEFAULT_STATE

    @property
    def default(self) -> Path:
        """The file of the default state."""
        return self.directory / DEFAULT_STATE.removeprefix("sqlite:///")

    @property
    def known(self) -> bool:
        """Whether a state was named, or the default one is there or was removed."""
        return bool(self.named or self.default.exists() or self._lost(DEFAULT_STATE))

    def open(
        self,
        desired: Desired | None,
        *,
        write: bool = False,
        offline: bool = False,
        create: bool = True,
        typed: bool = True,
        anew: bool = False,
        own: bool = False,
    ) -> Store:
        """The state, opened once. It need not exist for reading, and is made for writing. If it was removed
        and backups are left, a command that writes fails, unless it makes the state `anew`; others warn.

        `typed` refuses damaged records; commands that show or correct records leave it out. A state of
        another project is refused for writing and if it has to be this project's `own`; else it is a warning.
        """
        from declarative.store import StateError, project_copy

        if self._store is not None:
            return self._store
        url = self.url(desired)
        if offline:
            self._check_within(url)
        lost = None if anew else self._lost(url)
        if lost and write:
            raise failed("no-state", *lost)
        self._store = self._open(url, write=write, create=write and create, typed=typed)
        if typed or not write:
            self._check_project(desired, self._store, refuse=write or own)
        if not write and not offline and (folder := self.folder(url)):
            try:
                project_copy.check(folder, note=False)
            except StateError as error:
                _note(f"warning: {error.summary}; {error.hint}")
        if lost:
            _note(f"warning: {lost[0]}; {lost[1]}")
        return self._store

    def open_if_any(self, desired: Desired | None) -> Store:
        """The state, opened to write. If there is none, an empty one in a temporary folder: a command that
        only ends things finds nothing there, and leaves no state behind.
        """
        try:
            return self.open(desired, write=True, create=False)
        except InvalidError as error:
            if any(d.code != "no-state" for d in error.diagnostics) or self._lost(self.url(desired)):
                raise
        self._aside = tempfile.TemporaryDirectory(prefix="fleetform-")
        self._store = self._open(
            f"sqlite:///{self._aside.name}/state.db", write=True, create=True, typed=True
        )
        return self._store

    def read_anew(self, desired: Desired | None) -> Store:
        """The state, opened to read once. A command that looks repeatedly may see it made or restored
        meanwhile.
        """
        store = self._open(self.url(desired))
        if not self._compared:
            self._compared = True
            self._check_project(desired, store, refuse=False)
        return store

    def write_anew(self, desired: Desired | None) -> Store:
        """Like `read_anew`, for writes that need no lock."""
        return self._open(self.url(desired), write=True, create=True)

    def folder(self, url: str) -> Path | None:
        """The folder of a state that is kept within the project's; None for one that several may share."""
        file = self._file(url)
        return file.parent if file and file.exists() else None

    def _file(self, url: str) -> Path | None:
        """The file of a state that is or would be kept within the project's folder."""
        from declarative.store import file_of

        file = None if "://" not in url else file_of(url, self.directory)
        within = file is not None and self._is_within(file)
        return file if within else None

    def _is_within(self, file: Path) -> bool:
        """Whether a file lies in the project. By `realpath`: `resolve` fails of a link to itself."""
        return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.directory))

    def _open(self, url: str, *, write: bool = False, create: bool = False, typed: bool = False) -> Store:
        from declarative.store import StateError, open_store

        patience = Patience()
        policy = None if self.named or self._policy is None else self._policy()

        def opened() -> Store:
            return open_store(
                url,
                create=create,
                read_only=not write,
                typed=typed,
                actor=who(self.directory) if write else None,
                root=self.directory,
                retry=patience,
                notify=lambda text: _note(f"note: {text}"),
                policy=policy,
                clock=self.clock,
            )

        try:
            # A command that only reads fails at once where the database is away.
            return patience(opened) if write else opened()
        except StateError as error:
            raise of_state(error, self.directory) from None

    def _lost(self, url: str) -> tuple[str, str] | None:
        """A summary and a hint if the project's state was removed: its things would be made a second time."""
        from declarative.store import file_of
        from declarative.store.backup import FOLDER, kept

        backups = kept(self.directory) if "://" in url else ()  # else it is a file that was pulled
        if not backups or file_of(url, self.directory) != file_of(DEFAULT_STATE, self.directory):
            return None
        if self.default.exists():
            return None
        return (
            f"there is no state in {self.default}, and there was one: backups of it are in {FOLDER}",
            f"`fleetform state restore {backups[0]}`; or, to begin anew, move {FOLDER} away",
        )

    def note(self, desired: Desired | None, op: str, address: Address) -> None:
        """Write an entry into the journal for a user's action that changes no record. If the state cannot be
        written, the command says so and goes on.
        """
        from declarative.store import StateError

        try:
            with self._open(self.url(desired), write=True) as store:
                store.journal.note(op, address, op)
        except (InvalidError, StateError) as error:
            _note(f"warning: the state's history does not tell of this {op}: {error}")

    def check_moved(self, desired: Desired) -> None:
        """`InvalidError` if the project names a state in which nothing was ever recorded, while its default
        one holds things: a plan would make all of them a second time. A state that was named with `--state`
        is meant.
        """
        from declarative.store import file_of

        declared = desired.project.state
        if self.named or declared is None or not self.default.exists():
            return
        if file_of(declared, self.directory) == file_of(DEFAULT_STATE, self.directory):
            return
        with self._open(declared) as store:
            if store.read().lineage is not None:
                return
        with self._open(DEFAULT_STATE) as store:
            count = len(store.read().records)
        if count:
            summary = (
                f"the state that the project names is empty, and its default one, {self.default}, holds "
                f"{count} record{'s' if count > 1 else ''}: all of it would be made a second time"
            )
            raise failed("state-moved", summary, MOVE_STATE)

    def check_still(self, desired: Desired) -> None:
        """`InvalidError` if the project, read anew, names another state than the one that was opened."""
        assert self._store is not None
        self._check_project(desired, self._store, refuse=True)
        if self._aside is None and self._store.url != self.url(desired):
            summary = "while this waited for the lock, the project was changed, and names another state now"
            raise failed("locked", summary, "run this again")

    def _check_project(self, desired: Desired | None, store: Store, *, refuse: bool) -> None:
        """`InvalidError`, or else a warning, if the state is that of a project of another name, wherever it
        was named: nothing that is recorded there is declared here.
        """
        if desired is None:
            return
        name, owner = desired.project.name, store.project()
        nothing = name is None and not desired.places  # `destroy` works where the files are gone as well
        if owner is None or owner == name or nothing:
            return
        here = f"this is project `{name}`" if name else "this project has no `name`"
        summary = f"the state is that of project `{owner}`, and {here}"
        if refuse:
            raise failed("other-project", summary, OTHER_PROJECT)
        _note(f"warning: {summary}; {OTHER_PROJECT}")

    def _check_within(self, url: str) -> None:
        """`InvalidError` for a state on a server or outside of the project: a stranger's YAML or link may
        name it, and must not show its records. A state that the user named is allowed.
        """
        from declarative.store import StateError, file_of

        if self.named:
            return
        try:
            file = file_of(url, self.directory)
        except StateError as error:
            raise of_state(error, self.directory) from None
        if file is None:
            summary = "the project keeps its state on a server, and `--offline` contacts none"
            raise failed("offline-state", summary, PULL_FIRST)
        if not self._is_within(file):
            summary = f"the state {file} leads out of the project"
            hint = "name the state that is to be read: `--state sqlite:///PATH`"
            raise failed("outside-project", summary, hint)

    @contextlib.contextmanager
    def lock(self, store: Store, doing: str, timeout: float | None, **more: Any) -> Iterator[Writer]:
        """The state's lock; prints on stderr which holder it waits for. For `more` see `Store.lock`.

        A command that follows tasks holds it only for moments, and a loop gives it back when asked. So it
        waits for both even without a timeout.
        """
        from declarative.store import StateError, project_copy
        from declarative.store.lock import FOLLOWING, RECONCILING

        folder = self.folder(store.url)
        if folder:
            project_copy.check(folder, note=True)

        def on_wait(info: LockInfo) -> None:
            self.waited = True
            if info.doing != FOLLOWING:
                sys.stderr.write(f"waiting for {info}\n")

        with contextlib.ExitStack() as stack:
            try:
                writer = stack.enter_context(store.lock(doing, timeout or 0.0, on_wait=on_wait, **more))
            except StateError as error:
                waits = {FOLLOWING: PATIENCE, RECONCILING: LOOP_PATIENCE}
                if timeout is not None or error.lock is None or error.lock.doing not in waits:
                    raise
                patience = waits[error.lock.doing]
                writer = stack.enter_context(store.lock(doing, patience, on_wait=on_wait, **more))
            yield writer

    def writer(self) -> Writer | None:
        """The writer, while this command holds the lock."""
        return self._store.writer if self._store else None

    def shared(self) -> bool:
        """Whether the state that was opened is kept outside of the project's folder."""
        return self._store is not None and self._file(self._store.url) is None
