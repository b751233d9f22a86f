"""Which files a project has, and what is in them. Nothing outside of its directory is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from declarative.diagnostic import Severity, Span
from declarative.loader.findings import Findings
from declarative.source import MAX_BYTES, Document, parse

SUFFIXES = (".yaml", ".yml")
MAX_FILES = 10_000
MAX_ENTRIES = 100_000
"""Entries of folders that are looked at for `include`."""
MAX_TOTAL_BYTES = 64 << 20
MAX_TOTAL_SIZE = 1_000_000
"""Values of all files together."""


Steps: TypeAlias = tuple[str, ...]


class Files:
    """The files of one project, each read once, whichever way it was found."""

    def __init__(self, directory: Path, findings: Findings) -> None:
        self.directory, self.findings = directory, findings
        self.root = directory.resolve()
        self._seen: dict[Path, str] = {}
        self._bytes = self._size = self._entries = 0

    def names(self) -> tuple[str, ...]:
        """The files that were read, relative to the directory."""
        return tuple(sorted(_shown(name) for name in self._seen.values()))

    def own(self) -> list[Document]:
        """The documents of the directory's own files."""
        try:
            found = (path.name for path in self.root.iterdir())
            names = sorted(name for name in found if name.endswith(SUFFIXES) and name[0] != ".")
        except OSError as error:
            hint = "name the project's directory"
            self.findings.add("unreadable", f"`{self.directory}` cannot be read: {_reason(error)}", hint)
            self.findings.lost = True
            return []
        if not names:
            hint = "run `fleetform init` to begin with an example, or change into the project's directory"
            self.findings.add("no-documents", f"there is no YAML file in `{self.directory}`", hint)
        return self._read_all(names)

    def included(
        self, document: Document, patterns: Sequence[str], unmatched: dict[str, Span] | None = None
    ) -> list[Document]:
        """The documents of the files that match the project document's `include`.

        Patterns that match no file are put into `unmatched`, each with its place.
        """
        out: list[Document] = []
        for i, pattern in enumerate(patterns):
            span = document.span(("include", i))
            parts = pattern.split("/")
            if pattern.startswith("/") or ".." in parts or "\0" in pattern:
                hint = "write a pattern below the project's directory, such as `fleets/*.yaml`"
                self.findings.add(
                    "outside-project", f"`{pattern}` leads outside of the project", hint, span=span
                )
                self.findings.lost = True
                continue
            steps = tuple(p for p in parts if p not in {"", "."})
            names = sorted(set(self._expand("", steps, set(), span))) if steps else []
            if not names:
                if unmatched is not None:
                    unmatched[pattern] = span
                self.findings.add(
                    "nothing-included", f"`{pattern}` matches no file", span=span, severity=Severity.WARNING
                )
            out += self._read_all(names)
        return out

    def _expand(self, folder: str, steps: Steps, seen: set[tuple[str, int]], span: Span) -> Iterator[str]:
        """The files below `folder` that match; `**` stands for any number of folders."""
        if (folder, len(steps)) in seen:
            return
        seen.add((folder, len(steps)))
        step, rest = steps[0], steps[1:]
        if step == "**":
            yield from self._expand(folder, rest or ("*",), seen, span)
            for name, is_folder in self._list(folder, span, links=False):
                if is_folder and not name.startswith("."):
                    yield from self._expand(_join(folder, name), steps, seen, span)
            return
        for name, is_folder in self._matching(folder, step, span, last=not rest):
            if rest and is_folder:
                yield from self._expand(_join(folder, name), rest, seen, span)
            elif not rest:
                yield _join(folder, name)

    def _matching(self, folder: str, step: str, span: Span, *, last: bool) -> list[tuple[str, bool]]:
        """The entries of a folder that one step of a pattern names: hidden ones and folders only by name."""
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
        """Names in a folder, and whether each is a folder; `links` counts links to folders too."""
        path = self.root / folder
        try:
            if not path.resolve().is_relative_to(self.root):
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
            return []  # not there, or not a folder: it matches nothing

    def _too_large(self, summary: str, span: Span) -> None:
        self.findings.add("too-large", summary, "name fewer files, or split the project", span=span)
        self.findings.lost = True

    def _read_all(self, names: Sequence[str]) -> list[Document]:
        out: list[Document] = []
        for name in names:
            span = Span(_shown(name), 1, 1, 1, 1)
            if len(self._seen) >= MAX_FILES:
                self._too_large(f"the project has more than {MAX_FILES} files", span)
                break
            content = self._content(name, span)
            if content is None:
                continue
            self._bytes += len(content)
            if self._bytes > MAX_TOTAL_BYTES or self._size > MAX_TOTAL_SIZE:
                self._too_large(
                    f"the project is larger than {MAX_TOTAL_BYTES >> 20} MiB or has too many values", span
                )
                break
            reading = parse(content, _shown(name))
            self._size += sum(document.size for document in reading.documents)
            self.findings.lost |= reading.lost
            self.findings.extend(reading.diagnostics)
            out += reading.documents
        return out

    def _content(self, name: str, span: Span) -> bytes | None:
        """A file's bytes; None if they were read before or must not be read."""
        try:
            path = (self.root / name).resolve(strict=True)
            if not path.is_relative_to(self.root):
                summary = f"`{_shown(name)}` is a link that leads outside of the project"
                self._refuse("outside-project", summary, "put the file itself into the project", span)
            elif path not in self._seen:
                self._seen[path] = name
                return self._bytes_of(path, name, span)
        except (OSError, ValueError, RuntimeError) as error:
            self._refuse("unreadable", f"`{_shown(name)}` cannot be read: {_reason(error)}", None, span)
        return None

    def _bytes_of(self, path: Path, name: str, span: Span) -> bytes | None:
        # Asked before it is opened, and again after: opening a pipe or a device would already do something.
        if stat.S_ISREG(path.stat().st_mode):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file.read(MAX_BYTES + 1)
        self._refuse("not-a-file", f"`{_shown(name)}` is not a regular file", "rename or remove it", span)
        return None

    def _refuse(self, code: str, summary: str, hint: str | None, span: Span) -> None:
        self.findings.add(code, summary, hint, span=span)
        self.findings.lost = True


def read_variables(path: Path, findings: Findings) -> list[Document]:
    """The documents of a `--var-file`, which may lie anywhere: the caller names it."""
    name = _shown(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        findings.add("unreadable", f"`{name}` cannot be read: {_reason(error)}", "check --var-file")
        return []
    reading = parse(content, name)
    findings.extend(reading.diagnostics)
    return list(reading.documents)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _shown(name: str) -> str:
    """A file's name as text that can be printed, whatever bytes it has."""
    return os.fsencode(name).decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "its name is not valid"
