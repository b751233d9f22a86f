"""Finds the files that tasks' `files` name in the project's directory, applies ignore rules, and hashes them.

The directory may be a stranger's. Links are not followed, and only regular files are opened. The numbers and
sizes of files are limited before any file is read.

The ignore rules are those of git's `.gitignore`. They are not left to a library: pathspec turns a rule into
one regular expression, and `*a*a*a*a*a*b` then takes longer than anybody waits. Here, each part between
slashes is one expression that never backtracks over a `*`. So the time grows with the length of the path,
times the number of `**` in the rule.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from declarative.language.loader.documents import Findings, shown_span
from declarative.language.source import Document
from declarative.model.codec import PLAN_KIND
from declarative.model.diagnostic import Severity
from declarative.model.record import struct
from declarative.model.resource import LOCAL, Desired, Entry, Manifest, TaskWant
from declarative.model.schema import BadValueError
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

Levels: TypeAlias = "tuple[tuple[int, Rules], ...]"
"""The rules for a folder, outermost first, each with the depth of its own folder."""

_SQLITE = "sqlite:///"
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""


def with_files(
    desired: Desired,
    documents: Mapping[str, Document],
    findings: Findings,
    *,
    root: Path,
    names: Collection[str],
    state: str | None,
    read: bool,
) -> Desired:
    """`desired` with the manifests of all tasks that have `files`.

    `names` are the project's own documents. If the project has errors already, no file is read.
    """
    read = read and all(diagnostic.severity is not Severity.ERROR for diagnostic in findings.items)
    sender = Sender(root, hidden=frozenset(_hidden(desired, root, state)), documents=names, read=read)
    tasks: dict[str, TaskWant] = {}
    for name, want in desired.tasks.items():
        tasks[name] = want
        if not want.spec.files:
            continue
        document = documents[f"task/{name}"]
        if (want.spec.working_dir or "").startswith("/"):
            span = shown_span(document, ("working_dir",))
            summary = (
                f"the files are in the rank's own folder, and its commands start in `{want.spec.working_dir}`"
            )
            findings.add("files-elsewhere", summary, span=span, address=f"task/{name}")
            continue
        try:
            tasks[name] = replace(want, files=sender.manifest(want.spec.files))
        except CannotSendError as error:
            span = shown_span(document, ("files", *error.path))
            findings.add(error.code, error.summary, error.hint, span=span, address=f"task/{name}")
            if error.code == "too-large":
                break  # all have the same limits
    return replace(desired, tasks={**desired.tasks, **tasks})


def _hidden(desired: Desired, root: Path, state: str | None) -> Iterator[str]:
    """The paths that ranks never get: the state, the folders of local backends, and private keys to hosts."""
    paths: list[str] = []
    for url in filter(None, (state, desired.project.state)):
        if url.startswith(_SQLITE):
            paths += [url.removeprefix(_SQLITE) + suffix for suffix in _SQLITE_ENDS]
    for backend in desired.backends.values():
        folder = backend.options.get("root") if backend.provider == LOCAL else None
        if isinstance(folder, str):
            paths.append(folder)
    for config in filter(None, (fleet.ssh_config for fleet in desired.fleets.values())):
        jumps = [jump for each in (config, *config.hosts) if (jump := each.proxy_jump)]
        keys = {each.identity_file for each in (config, *config.hosts, *jumps)}
        # `expanduser` never raises: without a home directory, `~` stays.
        paths += [os.path.expanduser(key) for key in sorted(filter(None, keys))]  # noqa: PTH111
    for written in paths:
        path = Path(os.path.realpath(root / written))  # `resolve` fails on a link to itself
        if path.is_relative_to(root) and path != root:
            yield path.relative_to(root).as_posix()


class CannotSendError(BadValueError):
    """Something cannot be sent. `path` is the index of the item in `files`, if it is one item's fault."""


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
    _walks: dict[str, tuple[Entry, ...]] = field(default_factory=dict, init=False)
    _hashes: dict[str, tuple[int, str, bool]] = field(default_factory=dict, init=False)

    def manifest(self, files: Files) -> Manifest:
        """The files that the ranks of a task get; `CannotSendError` if they cannot be sent."""
        if files in self._made:
            return self._made[files]
        places: dict[str, Entry] = {}
        for i, item in enumerate(files):
            try:
                self._place(item, places)
            except CannotSendError as error:
                error.path = (i,)
                raise
        for path, entry in places.items():
            parts = path.split("/")
            for above in ("/".join(parts[:i]) for i in range(1, len(parts))):
                if above in places:  # a file at the path of another file's folder
                    raise _collides(above, places[above].source, entry.source)
        self._sent += len(places)
        if self._sent > 4 * MAX_FILES:
            raise _too_large(f"the `files` of all tasks are more than {4 * MAX_FILES}")
        if sum(entry.size for entry in places.values()) > MAX_TOTAL_BYTES:
            raise _too_large(f"`files` names more than {MAX_TOTAL_BYTES >> 30} GiB")
        entries = (self._hashed(places[path]) for path in sorted(places))
        self._made[files] = Manifest(tuple(entry for entry in entries if entry is not None))
        return self._made[files]

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
            places[path] = replace(file, path=path)
            if len(places) > MAX_FILES:
                raise _too_large(f"`files` names more than {MAX_FILES} files")

    # -------------------------------------------------------------------------- files of the project

    def _named(self, item: File) -> tuple[Entry, ...]:
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

    def _look(self, name: str) -> Iterator[Entry]:
        parts = tuple(p for p in name.split("/") if p)
        if never := next((p for p in parts if p in NEVER), None):
            raise CannotSendError("never-sent", f"`{name}` is never sent: it lies in `{never}`")
        if self._is_hidden(name):
            summary = f"`{name}` is never sent: it is fleetform's own, or a private key to hosts"
            raise CannotSendError("never-sent", summary)
        if not parts:
            yield from self._folder(parts, ())
            return
        levels: Levels = ()
        for depth in range(len(parts)):
            with open_folder(self.root, *parts[:depth]) as parent:
                levels += self._rules(parent, depth)
        with open_folder(self.root, *parts[:-1]) as parent:
            try:
                mode = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                raise _missing(name) from None
            # Ignore rules do not apply to a file that is named itself.
            if stat.S_ISDIR(mode.st_mode):
                yield from self._folder(parts, levels)
            else:
                yield self._single(parent, name, mode)

    def _folder(self, parts: tuple[str, ...], levels: Levels) -> Iterator[Entry]:
        """The files of a folder that the rules do not exclude, sorted by name."""
        if len(parts) > MAX_FOLDERS:
            raise _too_large(f"`{'/'.join(parts[:3])}/…` has folders more than {MAX_FOLDERS} deep")
        folders: list[str] = []
        with open_folder(self.root, *parts) as here:
            levels += self._rules(here, len(parts))
            entries: list[os.DirEntry[str]] = []
            with os.scandir(here) as listed:
                for entry in listed:
                    self._entries += 1
                    if self._entries > MAX_ENTRIES:
                        raise _too_large(f"`files` looks at more than {MAX_ENTRIES} files")
                    entries.append(entry)
            for entry in sorted(entries, key=lambda entry: entry.name):
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
                    folders.append(entry.name)
                elif shown not in self.documents:
                    yield self._single(here, shown, entry.stat(follow_symlinks=False))
        for name in folders:
            yield from self._folder((*parts, name), levels)

    def _single(self, parent: int, source: str, status: os.stat_result) -> Entry:
        try:
            source.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(source).decode("utf-8", "replace")
            raise CannotSendError("unreadable", f"the name of `{shown}` is not UTF-8", "rename it") from None
        if stat.S_ISLNK(status.st_mode):
            link = os.readlink(source.rpartition("/")[2], dir_fd=parent)
            return Entry(path=source, source=source, size=0, executable=False, link=link)
        if not stat.S_ISREG(status.st_mode):
            hint = "remove it, or name it in `.fleetformignore`"
            raise CannotSendError("not-a-file", f"`{source}` is a pipe, a socket or a device", hint)
        executable = bool(status.st_mode & stat.S_IXUSR)
        return Entry(path=source, source=source, size=status.st_size, executable=executable, link=None)

    # -------------------------------------------------------------------------------------- the rules

    def _rules(self, folder: int, depth: int) -> Levels:
        """The ignore rules in a folder. As in git, a link is not read as a file of rules."""
        out: Levels = ()
        for name in IGNORE_FILES:
            try:
                with open_file(folder, name) as file:
                    content = file.read(MAX_RULE_BYTES + 1)
            except OSError:
                continue
            try:
                rules = parse_rules(content)
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
        return replace(entry, size=size, sha256=digest, executable=executable) if digest else None


def _read(root: Path, source: str, at_most: int) -> tuple[int, str, bool]:
    """A file's size in bytes, its SHA-256, and whether it is executable. The checksum of a saved plan is
    empty.

    `CannotSendError` if it cannot be read, or changes meanwhile.
    """
    *above, name = source.split("/")
    try:
        with open_folder(root, *above) as parent, open_file(parent, name) as file:
            if _PLAN.match(file.read(200)):
                return 0, "", False
            file.seek(0)
            check_size(file, at_most)
            status, digest = summed(file)
    except ChangedError as error:
        hint = "wait until nobody writes to it, or name it in `.fleetformignore`"
        raise CannotSendError("unreadable", f"`{source}` cannot be sent: {error.strerror}", hint) from None
    except OSError as error:
        raise _unreadable(source, error) from None
    return status.st_size, digest, bool(status.st_mode & stat.S_IXUSR)


def _clean(path: str) -> str:
    """The path without `.` and empty parts; empty for the project's directory or the rank's folder itself."""
    return "/".join(p for p in path.split("/") if p not in {"", "."})


def _check_link(file: Entry, path: str) -> None:
    """Refuse a link whose text leads out of the rank's folder. The link is not followed here."""
    assert file.link is not None
    depth = path.count("/")
    for part in file.link.split("/"):
        depth += 0 if part in {"", "."} else -1 if part == ".." else 1
        if depth < 0 or file.link.startswith("/"):
            hint = "put the file itself there, or name the link in `.fleetformignore`"
            summary = f"`{file.source}` is a link that leads out of what is sent"
            raise CannotSendError("outside-project", summary, hint)


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


# -------------------------------------------------------------------------------------------------- opening

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20
"""Bytes of a file that are in memory at once."""


class ChangedError(OSError):
    """A file changed while it was read, or was replaced."""


@contextlib.contextmanager
def open_folder(root: Path, *names: str) -> Iterator[int]:
    """A descriptor of the folder that `names` lead to; `OSError` if one of them is a link or not a folder.

    `root` itself may be a link, since the user names it.
    """
    descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_file(parent: int, name: str) -> Iterator[BinaryIO]:
    """A regular file of a folder, opened; `OSError` if it is anything else. Pipes and devices are
    not opened.
    """
    if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise OSError(0, "not a regular file")
    descriptor = os.open(name, _FILE, dir_fd=parent)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        yield file


def check_size(file: BinaryIO, at_most: int) -> None:
    """`ChangedError` if a file is larger than `at_most` bytes."""
    if os.fstat(file.fileno()).st_size > at_most:
        raise ChangedError(0, "it changes while it is read")


def summed(file: BinaryIO) -> tuple[os.stat_result, str]:
    """Read a file to its end: its status, and its SHA-256 in hex. `ChangedError` if it changes meanwhile."""
    before = os.fstat(file.fileno())
    digest, unread = hashlib.sha256(), before.st_size
    while unread > 0 and (piece := file.read(min(PIECE, unread))):
        digest.update(piece)
        unread -= len(piece)
    after = os.fstat(file.fileno())
    if unread or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ChangedError(0, "it changes while it is read")
    return after, digest.hexdigest()


# --------------------------------------------------------------------------------------------- ignore rules

IGNORE_FILES = (".gitignore", ".dstackignore", ".fleetformignore")
"""The files with rules, in any folder. Rules of a later one override earlier ones."""
MAX_RULE_BYTES = 256 << 10
MAX_RULES = 5_000
"""The limit for one file."""
MAX_PARTS = 20
"""The limit for the parts of one rule. No real folder is deeper."""

Part: TypeAlias = "re.Pattern[str] | str | None"
"""A part of a rule: an expression, or a text that a path's part must equal. None is `**`."""

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t\\n\\r\\f\\v",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


class NoMatchError(ValueError):
    """A rule that can match nothing in git, such as `[a`."""


@struct(frozen=True, slots=True)
class Rule:
    """One line of an ignore file."""

    parts: tuple[Part, ...]
    keeps: bool
    """`!rule`: sends what an earlier rule excluded."""
    folders_only: bool
    anywhere: bool
    """Without a slash: it applies to names at any depth."""

    def matches(self, path: Sequence[str], *, folder: bool) -> bool:
        """Whether it matches the path, which is relative to the folder of the rules."""
        if self.folders_only and not folder:
            return False
        if self.anywhere:
            return _fits(self.parts[0], path[-1])
        reached = {0}
        """How many of the path's parts the rule's parts so far can match."""
        for i, part in enumerate(self.parts):
            if part is None:  # any number of parts, or at the end one or more
                least = min(reached) + (i == len(self.parts) - 1)
                reached = set(range(least, len(path) + 1))
            else:
                reached = {j + 1 for j in reached if j < len(path) and _fits(part, path[j])}
            if not reached:
                return False
        return len(path) in reached


class Rules:
    """The rules of one file. The last one that matches decides."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._names: dict[str, list[tuple[int, Rule]]] = {}
        self._others: list[tuple[int, Rule]] = []
        for number, rule in reversed(list(enumerate(rules))):
            part = rule.parts[0]
            is_name = rule.anywhere and isinstance(part, str)
            (self._names.setdefault(str(part), []) if is_name else self._others).append((number, rule))

    @property
    def cost(self) -> int:
        """The number of rules that must be compared with a path."""
        return len(self._others)

    def leave_out(self, path: Sequence[str], *, folder: bool) -> bool | None:
        """Whether a path is excluded; None if no rule matches. It is relative to the folder of the rules."""
        last, keeps = -1, True
        for rules in (self._names.get(path[-1], ()), self._others):
            for i, rule in rules:
                if rule.matches(path, folder=folder):
                    if i > last:
                        last, keeps = i, rule.keeps
                    break
        return None if last < 0 else not keeps


def parse_rules(content: bytes) -> Rules:
    """The rules in a file. `ValueError` names the limit that it exceeds."""
    if len(content) > MAX_RULE_BYTES:
        raise ValueError(f"more than {MAX_RULE_BYTES >> 10} KiB")
    text = content.decode(errors="surrogateescape")
    out: list[Rule] = []
    for line in text.removeprefix("\ufeff").split("\n"):
        rule = _rule(line.removesuffix("\r"))
        if rule is not None:
            out.append(rule)
        if len(out) > MAX_RULES:
            raise ValueError(f"more than {MAX_RULES} rules")
    return Rules(out)


def _rule(line: str) -> Rule | None:
    if line.startswith("#"):
        return None
    # Spaces at its end go, except one after a backslash.
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    line = text + " " if backslashes % 2 and len(text) < len(line) else text
    keeps = line.startswith("!")
    line = line.removeprefix("!")
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    if not line or len(line) > 4096:
        return None
    anywhere = "/" not in line
    line = line.removeprefix("/")
    texts = line.split("/")
    if len(texts) > MAX_PARTS:
        raise ValueError(f"a rule with more than {MAX_PARTS} folders")
    try:
        parts = tuple(None if text == "**" and not anywhere else _part(text) for text in texts)
    except NoMatchError:
        return None
    return Rule(parts, keeps, folders_only, anywhere)


def _fits(part: Part, name: str) -> bool:
    return part == name if isinstance(part, str) else part is None or part.match(name) is not None


@functools.lru_cache(maxsize=MAX_RULES)
def _part(text: str) -> Part:
    """One part between slashes, compiled. `NoMatchError` if it can match nothing."""
    pieces: list[str] = []
    """Expressions between the `*`. Each has a fixed length."""
    piece, plain, i = "", "", 0
    while i < len(text):
        if text[i] == "*":
            if piece or not pieces:
                pieces.append(piece)
            piece, i = "", i + 1
        elif text[i] == "[":
            expression, i = _class(text, i + 1)
            piece += expression
        elif text[i] == "?":
            piece, i = piece + ".", i + 1
        else:
            char, i = _char(text, i)
            piece += re.escape(char)
            plain += char
    if not pieces and piece == re.escape(plain):
        return plain
    if pieces:
        middle = "".join(f"(?>.*?{each})" for each in pieces[1:])
        piece = f"{pieces[0]}{middle}.*{piece}"
    return re.compile(rf"{piece}\Z", re.DOTALL)


_NAMED_CLASS = re.compile(r"\[:(\w*):\]")


def _class_piece(text: str, i: int) -> tuple[str, int]:
    """The expression of one named class, range or character inside of `[…]`, and its end."""
    if i >= len(text):
        raise NoMatchError
    if named := _NAMED_CLASS.match(text, i):
        if named[1] not in _CLASSES:
            raise NoMatchError
        return _CLASSES[named[1]], named.end()
    low, i = _char(text, i)
    if text[i : i + 1] != "-" or text[i + 1 : i + 2] in {"", "]"}:
        return re.escape(low), i
    high, i = _char(text, i + 1)
    return (f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""), i


def _class(text: str, i: int) -> tuple[str, int]:
    """The expression of a `[…]`, from after its bracket on, and its end."""
    negated = i < len(text) and text[i] in "!^"
    i += negated
    start, pieces = i, ""
    while text[i : i + 1] != "]" or i == start:
        piece, i = _class_piece(text, i)
        pieces += piece
    if not pieces:
        return ("." if negated else "(?!)"), i + 1
    return f"[{'^' if negated else ''}{pieces}]", i + 1


def _char(text: str, i: int) -> tuple[str, int]:
    if text[i] == "\\":
        i += 1
    if i >= len(text):
        raise NoMatchError
    return text[i], i + 1
