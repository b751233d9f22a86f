"""Finds the files that tasks' `files` name in the project's directory, applies ignore rules, and hashes them.

The directory may be a stranger's. Links are not followed, and only regular files are opened. The numbers and
sizes of files are limited before any file is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path

from declarative.language.loader import project_folder
from declarative.language.loader.project_folder import Rules
from declarative.model.codec import PLAN_KIND
from declarative.model.manifest import Entry, Manifest
from declarative.model.record import struct
from declarative.model.spec.task import File, Files

MAX_FILES = 20_000
"""For one task. All tasks together may have four times as many; equal `files` count once."""
MAX_TOTAL_BYTES = 2 << 30
MAX_ENTRIES = 100_000
"""Entries of folders that one load looks at, including ignored ones."""
MAX_COMPARED = 1_000_000
"""Comparisons of entries with ignore rules, plain names aside: 50 for each of 20,000 files."""
MAX_FOLDERS = 60
"""The limit for nested folders."""
NEVER = (".git", ".fleetform")
"""Left out at any depth: ranks do not need them."""

_PLAN = re.compile(rb'\s*\{\s*"kind"\s*:\s*"' + re.escape(PLAN_KIND.encode()) + rb'"')

Levels = tuple[tuple[int, Rules], ...]
"""The rules for a folder, outermost first, each with the depth of its own folder."""


class CannotSendError(Exception):
    """Something cannot be sent: a finding's code, text and hint."""

    def __init__(self, code: str, summary: str, hint: str | None = None) -> None:
        super().__init__(summary)
        self.code, self.summary, self.hint = code, summary, hint
        self.item: int | None = None
        """The index of the item in `files`."""


@struct(slots=True)
class _Unread:
    """A file or link that is not read yet."""

    source: str
    size: int
    executable: bool
    link: str | None


@struct(slots=True)
class Sender:
    """Finds and reads one project's files, each once, however many tasks name them.

    `hidden` holds paths below the project that are never sent: its state, the folders of its backends, and
    the private keys of its fleets. `documents` are its own YAML files, which are sent only if named by
    themselves: ranks do not need them, and a change of one task must not restart the others.
    """

    root: Path
    hidden: Collection[str] = ()
    documents: Collection[str] = ()
    read: bool = True
    """Whether files are read. `validate` only checks whether they can be sent."""
    _entries: int = field(default=0, init=False)
    _compared: int = field(default=0, init=False)
    _sent: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    _made: dict[Files, Manifest] = field(default_factory=dict, init=False)
    _walks: dict[str, tuple[_Unread, ...]] = field(default_factory=dict, init=False)
    _hashes: dict[str, tuple[int, str, bool]] = field(default_factory=dict, init=False)

    def manifest(self, files: Files) -> Manifest:
        """The files that the ranks of a task get; `CannotSendError` if they cannot be sent."""
        if files not in self._made:
            self._made[files] = self._manifest(files)
        return self._made[files]

    def _manifest(self, files: Files) -> Manifest:
        places: dict[str, Entry] = {}
        for i, item in enumerate(files):
            try:
                self._place(item, places)
            except CannotSendError as error:
                error.item = i
                raise
        _check_folders(places)
        self._sent += len(places)
        if self._sent > 4 * MAX_FILES:
            raise _too_large(f"the `files` of all tasks are more than {4 * MAX_FILES}")
        if sum(entry.size for entry in places.values()) > MAX_TOTAL_BYTES:
            raise _too_large(f"`files` names more than {MAX_TOTAL_BYTES >> 30} GiB")
        entries = (self._hashed(places[path]) for path in sorted(places))
        return Manifest(tuple(entry for entry in entries if entry is not None))

    def _place(self, item: File, places: dict[str, Entry]) -> None:
        """Add the files that an item names to `places`, each at its own path."""
        for file in self._named(item):
            inner = file.source.removeprefix(_clean(item.local_path)).removeprefix("/")
            if not inner and (item.path.endswith("/") or not _clean(item.path)):
                inner = file.source.rpartition("/")[2]  # the target is a folder
            path = "/".join(filter(None, (_clean(item.path), inner)))
            if file.link is not None:
                _check_link(file, path)
            other = places.get(path)
            if other is not None and other.source != file.source:
                raise _collides(path, other.source, file.source)
            places[path] = Entry(
                path=path,
                source=file.source,
                size=file.size,
                executable=file.executable,
                link=file.link,
            )
            if len(places) > MAX_FILES:
                raise _too_large(f"`files` names more than {MAX_FILES} files")

    # -------------------------------------------------------------------------- files of the project

    def _named(self, item: File) -> tuple[_Unread, ...]:
        """The files of one item of `files`, with everything in them."""
        name = _clean(item.local_path)
        if name not in self._walks:
            try:
                self._walks[name] = tuple(self._look(name))
            except OSError as error:
                raise _unreadable(name, error) from None
        if not self._walks[name]:
            summary = f"nothing of `{name or '.'}` is left to send: it is empty, or all of it is ignored"
            raise CannotSendError("nothing-to-send", summary)
        return self._walks[name]

    def _look(self, name: str) -> Iterator[_Unread]:
        parts = tuple(p for p in name.split("/") if p)
        self._refuse_hidden(name, parts)
        if not parts:
            yield from self._folder(parts, ())
            return
        levels: Levels = ()
        for depth in range(len(parts)):
            with self._parent(parts, depth) as parent:
                levels += self._rules(parent, depth)
        with self._parent(parts, len(parts) - 1) as parent:
            try:
                mode = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                raise _missing(name) from None
            # Ignore rules do not apply to a file that is named itself.
            if stat.S_ISDIR(mode.st_mode):
                yield from self._folder(parts, levels)
            else:
                yield self._single(parent, name, mode)

    def _refuse_hidden(self, name: str, parts: tuple[str, ...]) -> None:
        if never := next((p for p in parts if p in NEVER), None):
            raise CannotSendError("never-sent", f"`{name}` is never sent: it lies in `{never}`")
        if self._is_hidden(name):
            summary = f"`{name}` is never sent: it is fleetform's own, or a private key to hosts"
            raise CannotSendError("never-sent", summary)

    def _parent(self, parts: tuple[str, ...], depth: int) -> AbstractContextManager[int]:
        return project_folder.folder(self.root, *parts[:depth])

    def _folder(self, parts: tuple[str, ...], levels: Levels) -> Iterator[_Unread]:
        """The files of a folder that the rules do not exclude, sorted by name."""
        if len(parts) > MAX_FOLDERS:
            raise _too_large(f"`{'/'.join(parts[:3])}/…` has folders more than {MAX_FOLDERS} deep")
        inner: list[str] = []
        with project_folder.folder(self.root, *parts) as here:
            levels += self._rules(here, len(parts))
            for entry in self._listed(here):
                path = (*parts, entry.name)
                shown = "/".join(path)
                is_folder = entry.is_dir(follow_symlinks=False)
                if (
                    entry.name in NEVER
                    or self._is_hidden(shown)
                    or self._ignored(path, levels, folder=is_folder)
                ):
                    continue
                if is_folder:
                    inner.append(entry.name)
                elif shown not in self.documents:
                    yield self._single(here, shown, entry.stat(follow_symlinks=False))
        for name in inner:
            yield from self._folder((*parts, name), levels)

    def _listed(self, folder: int) -> list[os.DirEntry[str]]:
        out: list[os.DirEntry[str]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    raise _too_large(f"`files` looks at more than {MAX_ENTRIES} files")
                out.append(entry)
        return sorted(out, key=lambda entry: entry.name)

    def _single(self, parent: int, source: str, status: os.stat_result) -> _Unread:
        try:
            source.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(source).decode("utf-8", "replace")
            raise CannotSendError("unreadable", f"the name of `{shown}` is not UTF-8", "rename it") from None
        if stat.S_ISLNK(status.st_mode):
            return _Unread(source, 0, False, os.readlink(source.rpartition("/")[2], dir_fd=parent))
        if not stat.S_ISREG(status.st_mode):
            hint = "remove it, or name it in `.fleetformignore`"
            raise CannotSendError("not-a-file", f"`{source}` is a pipe, a socket or a device", hint)
        return _Unread(source, status.st_size, bool(status.st_mode & stat.S_IXUSR), None)

    # -------------------------------------------------------------------------------------- the rules

    def _rules(self, folder: int, depth: int) -> Levels:
        """The ignore rules in a folder. As in git, a link is not read as a file of rules."""
        out: Levels = ()
        for name in project_folder.NAMES:
            try:
                with project_folder.regular(folder, name) as file:
                    content = file.read(project_folder.MAX_BYTES + 1)
            except OSError:
                continue
            try:
                rules = project_folder.parse(content)
            except ValueError as error:
                raise _too_large(f"a `{name}` has {error}") from None
            out += ((depth, rules),)
        return out

    def _ignored(self, path: tuple[str, ...], levels: Levels, *, folder: bool) -> bool:
        """Whether the last rule that matches excludes the path. Rules of inner folders come first."""
        for depth, rules in reversed(levels):
            self._compared += rules.cost
            if self._compared > MAX_COMPARED:
                raise _too_large(f"ignore rules are compared with files more than {MAX_COMPARED} times")
            is_ignored = rules.leave_out(path[depth:], folder=folder)
            if is_ignored is not None:
                return is_ignored
        return False

    def _is_hidden(self, path: str) -> bool:
        return any(path == name or path.startswith((f"{name}/", f"{name}.backup-")) for name in self.hidden)

    # ---------------------------------------------------------------------------------------- reading

    def _hashed(self, entry: Entry) -> Entry | None:
        """The entry with its size and checksum. None for a saved plan, which would change with every plan."""
        if entry.link is not None or not self.read:
            return entry
        if entry.source not in self._hashes:
            self._bytes += entry.size
            if self._bytes > 2 * MAX_TOTAL_BYTES:
                raise _too_large(f"the `files` of all tasks are more than {2 * MAX_TOTAL_BYTES >> 30} GiB")
            self._hashes[entry.source] = _read(self.root, entry.source, entry.size)
        size, digest, executable = self._hashes[entry.source]
        if not digest:
            return None
        return Entry(path=entry.path, source=entry.source, size=size, sha256=digest, executable=executable)


def _read(root: Path, source: str, at_most: int) -> tuple[int, str, bool]:
    """A file's size in bytes, its SHA-256, and whether it is executable. The checksum of a saved plan is
    empty.

    `CannotSendError` if it cannot be read, or changes meanwhile.
    """
    *above, name = source.split("/")
    try:
        with project_folder.folder(root, *above) as parent, project_folder.regular(parent, name) as file:
            if _PLAN.match(file.read(200)):
                return 0, "", False
            file.seek(0)
            project_folder.check_size(file, at_most)
            status, digest = project_folder.summed(file)
    except project_folder.ChangedError as error:
        hint = "wait until nobody writes to it, or name it in `.fleetformignore`"
        raise CannotSendError("unreadable", f"`{source}` cannot be sent: {error.strerror}", hint) from None
    except OSError as error:
        raise _unreadable(source, error) from None
    return status.st_size, digest, bool(status.st_mode & stat.S_IXUSR)


def _clean(path: str) -> str:
    """The path without `.` and empty parts; empty for the project's directory or the rank's folder itself."""
    return "/".join(p for p in path.split("/") if p not in {"", "."})


def _check_link(file: _Unread, path: str) -> None:
    """Refuse a link whose text leads out of the rank's folder. The link is not followed here."""
    assert file.link is not None
    depth = path.count("/")
    for part in file.link.split("/"):
        depth += 0 if part in {"", "."} else -1 if part == ".." else 1
        if depth < 0 or file.link.startswith("/"):
            hint = "put the file itself there, or name the link in `.fleetformignore`"
            summary = f"`{file.source}` is a link that leads out of what is sent"
            raise CannotSendError("outside-project", summary, hint)


def _check_folders(places: dict[str, Entry]) -> None:
    """Refuse a file at the path of another file's folder."""
    for path, entry in places.items():
        parts = path.split("/")
        for above in ("/".join(parts[:i]) for i in range(1, len(parts))):
            if above in places:
                raise _collides(above, places[above].source, entry.source)


def _collides(path: str, first: str, second: str) -> CannotSendError:
    summary = f"`{first}` and `{second}` would both be at `{path}`"
    return CannotSendError("same-place", summary, "give one of them another place: `src:where`")


def _missing(name: str) -> CannotSendError:
    return CannotSendError("missing-file", f"there is no `{name}` in the project")


def _unreadable(name: str, error: OSError) -> CannotSendError:
    if isinstance(error, FileNotFoundError):
        return _missing(name)
    if isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP:
        summary = f"`{name}` leads through a link, or through something that is not a folder"
        return CannotSendError("outside-project", summary, "name it by the folder in which it is")
    return CannotSendError("unreadable", f"`{name}` cannot be read: {error.strerror or error}")


def _too_large(summary: str) -> CannotSendError:
    hint = "name fewer files, or leave some out in `.fleetformignore`; large data belongs on a volume"
    return CannotSendError("too-large", summary, hint)
