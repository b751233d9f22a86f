"""Notes about what commands of SkyPilot and dstack rely on and ranks here do not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from declarative.language.importers.drafts import Draft
from declarative.language.source import Path

Commands: TypeAlias = Sequence[tuple[Path, str]]
"""Texts with commands, each with its path in the file."""
_ROOT = frozenset(
    (
        *("sudo", "su", "apt", "apt-get", "add-apt-repository", "dpkg", "snap", "yum", "dnf"),
        *("apk", "chsh", "systemctl", "service", "shutdown", "reboot", "usermod", "useradd"),
        *("adduser", "groupadd", "ldconfig", "update-alternatives", "mount", "sysctl"),
        *("modprobe",),
    )
)
"""Programs that need root."""
_CONDA = frozenset(("conda", "mamba", "micromamba"))
_OF_DSTACK = frozenset(("pip", "pip3", "python", "python3", "uv", "uvx"))
"""Further programs of dstack's default image."""
_MAKES = frozenset(("mkdir", "touch", "tee", "chmod", "chown"))
"""Programs that change each path in their arguments."""
_PUTS = frozenset(("ln", "cp", "mv", "install"))
"""Programs that change the last path in their arguments."""
_WRITABLE = re.compile(r"/(?:tmp|dev|proc|home|mnt|var/tmp)(?:/|$)")
"""Folders where a plain user may write."""
_BEFORE = frozenset(
    (
        *("if", "then", "do", "else", "elif", "while", "!", "nohup", "exec", "time", "env"),
        *("yes", "{", "-"),
    )
)
"""Words that may stand before a program."""
_NEEDS_GIT = frozenset(
    (
        *("add", "am", "apply", "branch", "checkout", "cherry-pick", "commit", "describe"),
        *("diff", "fetch", "lfs", "log", "ls-files", "merge", "pull", "push", "rebase", "remote"),
        *("reset", "restore", "rev-list", "rev-parse", "show", "stash", "status", "submodule"),
        *("switch", "tag", "worktree"),
    )
)
"""Commands of git that work in a clone."""


def note_rights(draft: Draft, commands: Commands, tool: str, mounts: Iterable[str] = ()) -> None:
    """Note once what needs root, conda or a login's shell, at the first such command. `mounts` are folders
    that the task may write to.
    """
    image = "image" in draft.fields
    own = tuple(mounts)
    missing = (
        _ROOT | _CONDA | (_OF_DSTACK if tool == "dstack" and "python" not in draft.fields else frozenset())
    )
    if image:
        missing = frozenset(("sudo", "conda", "mamba")) if tool == "skypilot" else frozenset()

    def lacks(words: Sequence[str]) -> str:
        if words[0] in ("source", ".") and re.search(r"/\.(?:bashrc|bash_profile|profile)$", words[-1]):
            return f"source {words[-1]}"
        if words[0] in missing:
            return words[0]
        changed = (path for path in _changed(words) if not image and not path.startswith(own))
        return next((f"{words[0]} {path}" for path in changed), "")

    names, path, line = _of_commands(commands, lacks)
    if not names:
        return
    shown = ", ".join(f"`{name}`" for name in names)
    if image:
        why = "commands are root in an `image`, in no login's shell: leave `sudo` out, let it have the rest"
    else:
        start = (
            "dstack's default image (root, CUDA, conda, Python) is not used here, and ranks"
            if tool == "dstack"
            else "ranks"
        )
        why = (
            f"{start} are a plain user of their node, without sudo, conda and ~/.bashrc: write "
            "`image: …`, in which commands are root, or let the nodes' image have it"
        )
    draft.note(f"the commands use {shown}: {why}", path, line)


def _changed(words: Sequence[str]) -> Iterator[str]:
    """The paths of root that a command makes or changes."""
    for before, word in pairwise(words):
        is_target = words[0] in _MAKES or (words[0] in _PUTS and word is words[-1])
        is_output = before in (">", ">>") or word.startswith((">/", ">>/"))
        is_output |= before in ("-o", "-O", "--output") and words[0] not in ("echo", "printf")
        path = word.lstrip(">").strip("\"'")
        if (is_target or is_output) and path.startswith("/") and not _WRITABLE.match(path):
            yield path


def note_clone(draft: Draft, commands: Commands) -> None:
    """Note once, at the first such command, what needs `.git`, which is never sent."""

    def needs(words: Sequence[str]) -> str:
        if words[0] == "dvc" and len(words) > 1:
            return f"dvc {words[1]}"
        rest = iter(words[1:] if words[0] == "git" else ())
        for word in rest:
            if word in ("-C", "-c"):
                next(rest, None)
            elif not word.startswith("-"):
                return f"git {word}" if word in _NEEDS_GIT else ""
        return ""

    names, path, line = _of_commands(commands, needs)
    if names:
        shown = ", ".join(f"`{name}`" for name in names)
        why = "write `repos: ['https://…']` for a clone, or clone in the commands"
        draft.note(f"{shown}: `.git` is never sent, so this is no clone: {why}", path, line)


MOST_NAMED = 5
"""How many commands one note names."""


def _of_commands(commands: Commands, named: Callable[[Sequence[str]], str]) -> tuple[list[str], Path, str]:
    """The texts that `named` returns for commands, each once; and the path and the line of the first."""
    names: dict[str, tuple[Path, str]] = {}
    for path, text in commands:
        for line in text.splitlines():
            for part in () if line.lstrip().startswith("#") else re.split(r"&&|\|\||[;|&()`]", line):
                words = part.split()
                while words and (words[0] in _BEFORE or re.match(r"\w+=", words[0])):
                    del words[0]
                if words and (name := named([words[0].strip("\"'"), *words[1:]])):
                    names.setdefault(name, (path, line))
    return [*names][:MOST_NAMED], *next(iter(names.values()), ((), ""))
