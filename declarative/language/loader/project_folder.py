"""Opens files in the project's folder without ever following a symbolic link, and applies the ignore rules.

The rules are those of git's `.gitignore`. They are not left to a library: pathspec turns a rule into one
regular expression, and `*a*a*a*a*a*b` then takes longer than anybody waits. The rules may be a stranger's.
Here, each part between slashes is one expression that never backtracks over a `*`. So the time grows with the
length of the path, times the number of `**` in the rule.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from declarative.model.record import struct

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20
"""Bytes of a file that are in memory at once."""


class ChangedError(OSError):
    """A file changed while it was read, or was replaced."""


@contextlib.contextmanager
def folder(root: Path, *names: str) -> Iterator[int]:
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
def regular(parent: int, name: str) -> Iterator[BinaryIO]:
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


NAMES = (".gitignore", ".dstackignore", ".fleetformignore")
"""The files with rules, in any folder. Rules of a later one override earlier ones."""
MAX_BYTES = 256 << 10
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
        return _all_fit(self.parts, path)


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


def parse(content: bytes) -> Rules:
    """The rules in a file. `ValueError` names the limit that it exceeds."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 10} KiB")
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
    line = _stripped(line)
    keeps = line.startswith("!")
    line = line.removeprefix("!") if keeps else line
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


def _stripped(line: str) -> str:
    """The line without spaces at its end, except those after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return text + " " if backslashes % 2 and len(text) < len(line) else text


def _fits(part: Part, name: str) -> bool:
    if part is None or isinstance(part, str):
        return part is None or part == name
    return part.match(name) is not None


def _all_fit(parts: Sequence[Part], path: Sequence[str]) -> bool:
    """Whether the parts match the whole path. `**` is any number of parts, or at the end one or more."""
    reached = {0}
    for i, part in enumerate(parts):
        if part is None:
            least = min(reached) + (i == len(parts) - 1)
            reached = set(range(least, len(path) + 1))
        else:
            reached = {j + 1 for j in reached if j < len(path) and _fits(part, path[j])}
        if not reached:
            return False
    return len(path) in reached


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
    return re.compile(_between_stars([*pieces, piece]), re.DOTALL)


def _between_stars(pieces: Sequence[str]) -> str:
    """An expression for the pieces with anything between them."""
    first, *middle = [pieces[0]] + [f"(?>.*?{piece})" for piece in pieces[1:-1]]
    last = f".*{pieces[-1]}" if len(pieces) > 1 else ""
    return f"{first}{''.join(middle)}{last}\\Z"


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
