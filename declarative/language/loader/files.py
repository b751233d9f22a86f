"""Finds and reads the files of a project.

Files outside of its directory are not opened, except those that `include` names in the same Git repository.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from declarative.language.loader.documents import Findings
from declarative.language.source import MAX_BYTES, Document, Reading, parse
from declarative.model.diagnostic import Severity, Span
from declarative.model.record import struct

SUFFIXES = (".yaml", ".yml")
MAX_FILES = 10_000
MAX_ENTRIES = 100_000
"""Entries of folders that `include` looks at."""
MAX_TOTAL_BYTES = 64 << 20
MAX_TOTAL_SIZE = 1_000_000
"""Values of all files together, whatever their size in bytes: aliases turn a few values into many."""
MAX_WRITTEN_SIZE = 4_000_000
"""Values of all files together, if each has at least `BYTES_OF_VALUE` bytes."""
BYTES_OF_VALUE = 4


HIDDEN = (".dstack.yml", ".dstack.yaml")
"""Suffixes of dstack's hidden files, which are read only if they are named."""

Steps: TypeAlias = tuple[str, ...]
Work: TypeAlias = Callable[[str, bytes, Reading], None]
"""Called for each file while its parser's events are in memory: the events of all files would not fit."""
Patterns: TypeAlias = Callable[[Sequence[Document]], Sequence[str]]
"""Finds the project document among the directory's own documents, and returns its `exclude`."""


class ProjectFiles:
    """The files of one project. Each is read once, even if found twice."""

    def __init__(
        self, directory: Path, findings: Findings, work: Work | None = None, *, without: Sequence[Path] = ()
    ) -> None:
        """`work` is done for each file that is read, with its name, its bytes and what was read in them. The
        files `without` are not read.
        """
        self.directory, self.findings = directory, findings
        self.root = directory.resolve()
        above = (self.root, *self.root.parents)
        self.repository = next((folder for folder in above if (folder / ".git").exists()), self.root)
        """The top folder for `include`."""
        self._work = work
        self._without = {path.resolve() for path in without}
        self._names: dict[Path, str] = {}
        """The files that were read, and their names in the project."""
        self._exclude: Sequence[str] = ()
        self._bytes = self._size = self._entries = 0

    def names(self) -> tuple[str, ...]:
        """The files that were read, relative to the directory."""
        return tuple(sorted(_shown(name) for name in self._names.values()))

    def own(self, named: Sequence[Path] = (), excluded: Patterns = lambda _: ()) -> list[Document]:
        """The documents of the directory's own files and of those named on the command line, without those
        that the project document excludes. That document is one of them, so all are read first.
        """
        try:
            listed = [path.name for path in self.root.iterdir() if path.name.endswith(SUFFIXES)]
        except OSError as error:
            hint = "name the project's directory"
            self.findings.add("unreadable", f"`{self.directory}` cannot be read: {_reason(error)}", hint)
            self.findings.lost = True
            return []
        names = {name for name in listed if name[0] != "."}
        if not names and not named:
            hidden = sorted(name for name in listed if name.endswith(HIDDEN))
            hint = "run `fleetform init` to begin with an example, or change into the project's directory"
            if hidden:
                hint = f"name the hidden file: `-f {hidden[0]}`"
            self.findings.add("no-documents", f"there is no YAML file in `{self.directory}`", hint)
        names.update(filter(None, map(self._inside, named)))
        reads = list(self._readings(sorted(names)))
        self._exclude = excluded([d for read in reads for d in read.documents])
        return self._not_excluded(reads)

    def hidden_documents(self) -> list[Document]:
        """The readable documents of the directory's hidden dstack files that the command does not name."""
        try:
            listed = {path.name for path in self.root.iterdir()}
        except OSError:
            return []  # reported by `own`
        names = {n for n in listed if n[0] == "." and n.endswith(HIDDEN) and not self._is_excluded(n)}
        before = dict(self._names)
        reads = list(self._readings(sorted(names)))
        self._names = before
        return [document for read in reads for document in read.documents]

    def _inside(self, path: Path) -> str | None:
        """The path within the project of a file named on the command line; None if it is elsewhere."""
        where = path.resolve()
        if where.is_relative_to(self.root):
            return where.relative_to(self.root).as_posix()
        hint = "change into its directory, or name that: `fleetform -C DIR …`"
        summary = f"`{_shown(str(path))}` is not a file of this project"
        _refuse(self.findings, "outside-project", summary, hint, None)
        return None

    def _is_excluded(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._exclude)

    def included(
        self, document: Document, patterns: Sequence[str], unmatched: dict[str, Span] | None = None
    ) -> list[Document]:
        """The documents of the files that the project document's `include` matches.

        Patterns without a match are added to `unmatched`, with their places.
        """
        out: list[Document] = []
        for i, pattern in enumerate(patterns):
            span = document.span(("include", i))
            names = self._included_names(pattern, span)
            if names is None:
                continue
            out += self._not_excluded(self._readings([n for n in names if not self._is_excluded(n)]))
            if not names:
                if unmatched is not None:
                    unmatched[pattern] = span
                summary = f"`{pattern}` matches no file"
                self.findings.add("nothing-included", summary, span=span, severity=Severity.WARNING)
        return out

    def _included_names(self, pattern: str, span: Span) -> list[str] | None:
        """The files that a pattern matches; None if the pattern is refused."""
        parts = pattern.split("/")
        up = len(list(itertools.takewhile("..".__eq__, parts)))
        above, rest = "/".join(parts[:up]), parts[up:]
        outside = pattern.startswith("/") or ".." in rest or "\0" in pattern
        if outside or not self._may_be_read((self.root / above).resolve(), up=up):
            hint = "write a pattern below the project's directory, such as `fleets/*.yaml`"
            if up and not (self.repository / ".git").exists():
                hint += "; or run `git init` in the folder that holds both, which is not in a Git repository"
            else:
                hint += ", or one in its Git repository: `../shared/*.yaml`"
            _refuse(self.findings, "outside-project", f"`{pattern}` leads outside of the project", hint, span)
            return None
        steps = tuple(part for part in rest if part not in {"", "."})
        return sorted(set(self._expand(above, steps, set(), span))) if steps else []

    def _may_be_read(self, path: Path, *, up: int | bool) -> bool:
        """Whether a path is in the project, or with `up` in the repository, and not in `.git`."""
        within = self.repository if up else self.root
        return path.is_relative_to(within) and ".git" not in path.relative_to(within).parts

    def _expand(self, folder: str, steps: Steps, visited: set[tuple[str, int]], span: Span) -> Iterator[str]:
        """The files below `folder` that match. `**` stands for any number of folders."""
        if (folder, len(steps)) in visited:
            return
        visited.add((folder, len(steps)))
        step, rest = steps[0], steps[1:]
        if step == "**":
            yield from self._expand(folder, rest or ("*",), visited, span)
            entries = [entry for entry in self._list(folder, span, links=False) if entry[0][0] != "."]
            rest = steps
        else:
            entries = self._matching(folder, step, span, last=not rest)
        if not rest:
            yield from (_join(folder, name) for name, _ in entries)
            return
        for name, is_folder in entries:
            if is_folder:
                yield from self._expand(_join(folder, name), rest, visited, span)

    def _matching(self, folder: str, step: str, span: Span, *, last: bool) -> list[tuple[str, bool]]:
        """The entries of a folder that match one step of a pattern. Hidden ones and folders must be named."""
        if not any(c in step for c in "*?["):
            path = self.root / folder / step
            return [(step, not last)] if os.path.lexists(path) else []
        return [
            (name, is_folder)
            for name, is_folder in self._list(folder, span)
            if fnmatchcase(name, step)
            and (step.startswith(".") or name[0] != ".")
            and not (last and is_folder)
        ]

    def _list(self, folder: str, span: Span, *, links: bool = True) -> list[tuple[str, bool]]:
        """The names in a folder, and whether each is a folder. With `links`, links to folders count as
        folders.
        """
        path = self.root / folder
        try:
            if not self._may_be_read(path.resolve(), up=folder.startswith("..")):
                summary = f"`{_shown(folder)}` leads outside of the project"
                self.findings.add("outside-project", summary, "put the files into the project", span=span)
                return []
            out: list[tuple[str, bool]] = []
            with os.scandir(path) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MAX_ENTRIES:
                        if self._entries == MAX_ENTRIES + 1:
                            self._too_large(f"`include` looks at more than {MAX_ENTRIES} files", span)
                        break
                    out.append((entry.name, entry.is_dir(follow_symlinks=links)))
            return sorted(out)
        except (OSError, ValueError, RuntimeError):
            return []  # missing, or not a folder: nothing matches

    def _too_large(self, summary: str, span: Span) -> None:
        self.findings.add("too-large", summary, "name fewer files, or split the project", span=span)
        self.findings.lost = True

    def _readings(self, names: Sequence[str]) -> Iterator[_Read]:
        """Read each file that was not read before, with its own findings."""
        for name in names:
            span = Span(_shown(name), 1, 1, 1, 1)
            if len(self._names) >= MAX_FILES:
                self._too_large(f"the project has more than {MAX_FILES} files", span)
                break
            read = _Read(name, Findings())
            content = self._content(name, span, read.findings)
            if content is not None:
                self._bytes += len(content)
                most = max(MAX_TOTAL_SIZE, min(self._bytes // BYTES_OF_VALUE, MAX_WRITTEN_SIZE))
                if self._bytes > MAX_TOTAL_BYTES or self._size > most:
                    mib = MAX_TOTAL_BYTES >> 20
                    self._too_large(f"the project is larger than {mib} MiB or has too many values", span)
                    break
                reading = parse(content, _shown(name), events=self._work is not None)
                if self._work is not None:
                    self._work(_shown(name), content, reading)
                self._size += sum(document.size for document in reading.documents)
                read.findings.lost |= reading.lost
                read.findings.extend(reading.diagnostics)
                read.documents += reading.documents
            yield read

    def _not_excluded(self, reads: Iterable[_Read]) -> list[Document]:
        """The documents of the files that are not excluded. Only their findings count."""
        out: list[Document] = []
        for read in reads:
            holds_project = any(d.data.get("type") == "project" for d in read.documents)
            if self._is_excluded(read.name) and not holds_project:
                self._names = {path: name for path, name in self._names.items() if name != read.name}
                continue
            self.findings.lost |= read.findings.lost
            self.findings.extend(read.findings.items)
            out += read.documents
        return out

    def _content(self, name: str, span: Span, findings: Findings) -> bytes | None:
        """A file's bytes; None if it was read before or must not be read."""
        try:
            path = (self.root / name).resolve(strict=True)
            if not self._may_be_read(path, up=name.startswith("../")):
                summary = f"`{_shown(name)}` is a link that leads outside of the project"
                hint = "put the file itself into the project"
                _refuse(findings, "outside-project", summary, hint, span)
            elif path not in self._names and path not in self._without:
                self._names[path] = name
                # Check before opening and again after: to open a pipe or a device has an effect already.
                if stat.S_ISREG(path.stat().st_mode):
                    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                    with os.fdopen(descriptor, "rb") as file:
                        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                            return file.read(MAX_BYTES + 1)
                summary = f"`{_shown(name)}` is not a regular file"
                _refuse(findings, "not-a-file", summary, "rename or remove it", span)
        except (OSError, ValueError, RuntimeError) as error:
            _refuse(findings, "unreadable", f"`{_shown(name)}` cannot be read: {_reason(error)}", None, span)
        return None


@struct(slots=True)
class _Read:
    """One file: its documents and its findings. The findings of excluded files do not count."""

    name: str
    findings: Findings
    documents: list[Document] = field(default_factory=list)


def _refuse(findings: Findings, code: str, summary: str, hint: str | None, span: Span | None) -> None:
    findings.add(code, summary, hint, span=span)
    findings.lost = True


def read_variables(path: Path, findings: Findings, check: str = "check --var-file") -> list[Document]:
    """The documents of a file anywhere on disk, since the caller names it; `check` is a hint."""
    name = _shown(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        findings.add("unreadable", f"`{name}` cannot be read: {_reason(error)}", check)
        return []
    reading = parse(content, name)
    lines = "write `name: value` lines"  # these documents have no `type`
    findings.extend(replace(d, hint=lines) if d.code == "not-a-mapping" else d for d in reading.diagnostics)
    return list(reading.documents)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _shown(name: str) -> str:
    """A file's name as printable text, whatever bytes it has."""
    return os.fsencode(name).decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    # `resolve` raises a RuntimeError for such a link before Python 3.13.
    if isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno == errno.ELOOP):
        return "it is a link that leads to itself"
    return (error.strerror if isinstance(error, OSError) else None) or "its name is not valid"
