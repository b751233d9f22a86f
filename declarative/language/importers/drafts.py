"""Drafts of our documents, made from those of dstack and SkyPilot, with notes about what was lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Self, TypeAlias

from declarative.language.source import Document, Path
from declarative.language.source.places import may_hold_secret
from declarative.language.source.reader import MAX_WHOLE
from declarative.model.inputs import always_set
from declarative.model.record import struct
from declarative.model.resource import LOCAL, SLURM, SSH
from declarative.model.schema import Problem, decode
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.values import NAME

CLOUDS: dict[str, dict[str, Any]] = {
    "aws": {"driver": "ec2", "credentials": {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}},
    "gcp": {"driver": "gce"},
    "azure": {"driver": "azure"},
    "vultr": {"driver": "vultr"},
    "hyperstack": {"driver": "hyperstack"},
    "digitalocean": {"driver": "digitalocean"},
    "lambda": {"driver": "lambda"},
    "crusoe": {"driver": "crusoe"},
    "nebius": {"driver": "nebius"},
}
"""Names of clouds in dstack and SkyPilot, and the first fields of a `backend` document for each."""
_OTHER_NAMES = {"do": "digitalocean", "remote": "ssh", "k8s": "kubernetes"}
SOME_CLOUD = "cloud"
"""The name of an undeclared backend, for documents that would otherwise run on this machine."""
_NEEDED = {
    *(("resources", "gpu"), ("image",), ("nodes",), ("backends",), ("backend",), ("fleets",), ("instances",)),
    *(("regions",), ("availability_zones",), ("instance_types",), ("spot_policy",), ("max_price",)),
    *(("region",), ("availability_zone",), ("reservation",), ("ssh_config",), ("commands",), ("volume_id",)),
    *(("schedule",), ("groups",)),
}
"""Fields that choose where something runs, or what runs. A document whose field of these is wrong is refused.
"""
_SECRET_FIELDS = frozenset(("env", "envs", "secrets", "registry_auth", "credentials"))
"""Fields whose values no note shows."""
LONGEST_SHOWN = 60
_PLAIN = re.compile(
    r"(?:[A-Za-z_/$]|\.\.?/|\.[A-Za-z])[\w ./:@%+=,$(){}<>-]*"
    r"|\.\.?|(?!\d+$)\d+(?:[MGT]B|[smhdw])?(?:\.\.(?:\d+(?:[MGT]B)?)?)?",
    re.ASCII,
)
"""Text that needs no quotes in any version of YAML, except for `_MEANS_ELSE`."""
_MEANS_ELSE = re.compile(
    r"(?i:true|false|null|~|yes|no|on|off|y|n|\.inf|\.nan)|.*(?:: | #).*|.*[: ]", re.DOTALL
)
_COMMAND = re.compile(r"##|^\s*::", re.MULTILINE)
"""Text that a CI agent may obey in a block; it is safe in quotes."""
_VARIABLE = re.compile(r"\b(?:SKYPILOT|DSTACK)_[A-Z0-9_]+\b(?![=*])")
_BLOCK = re.compile(r"(?!\s)[\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_UNSEEN = re.compile("[\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that end lines for some readers, or that nobody sees."""
MOST_ROUNDS = 200
"""The limit for leaving out invalid fields of one document."""


class Noted(str):
    """A text with a comment after it."""

    __slots__ = ("note",)
    note: str

    def __new__(cls, text: str, note: str) -> Self:
        """`note` is empty for no comment."""
        noted = super().__new__(cls, text)
        noted.note = note
        return noted


@struct(slots=True)
class Draft:
    """A draft of one document: its fields, and notes about it. `document` is where it came from."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    document: Document | None = None
    refused: str = ""
    """Why it may not be used as it is; empty if it may."""
    refused_at: Path = ()

    @property
    def backends(self) -> list[str]:
        """The backends that it names; the file may have anything there."""
        return [str(name) for name in list_of(self.fields.get("backends"))]

    def note(self, text: str, path: Path = (), line: str = "") -> None:
        """Note something about the value at `path` of the file that is converted, or about one line of it."""
        place = ""
        if self.document is not None and path:
            number = self.document.line_with(path, line) if line else self.document.span(path, key=True).line
            place = f"{self.document.file}:{number}: "
        self.notes.append(place + text)

    def drop(self, name: str, why: str, path: Path = (), value: Any = None) -> None:
        """Note that a field was left out, with its value unless that may be a secret."""
        self.note(f"left out `{name}`{_in_brackets(path, value)}: {why}", path)

    def refuse(self, why: str, path: Path = ()) -> None:
        """Note why the document becomes a comment."""
        self.note(why, path)
        self.refused, self.refused_at = why, path

    def text(self, value: Any, path: Path) -> str:
        """The text that the other tool makes of a value. A note says so if the file shows another text:
        `1.10` is `1.1`, `yes` is `True`.
        """
        if isinstance(value, str):
            return value
        text = str(value)
        if self.document is not None and self.document.written(path) != text:
            why = "YAML 1.1 reads it as a number or as true or false, and its text is another one"
            self.note(f"`{_shown_path(path)}` has no quotes: {why}", path)
        return text

    def note_variables(self, commands: object, path: Path) -> None:
        """Note the variables of the other tool that the commands name and ranks do not have."""
        own = {str(item).partition("=")[0] for item in self.fields.get("env") or ()}
        places = {
            name: line for line in reversed(str(commands).splitlines()) for name in _VARIABLE.findall(line)
        }
        why = "ranks do not have it; `FLEETFORM_TASK_NAME` names the task, docs/tasks.md has the others"
        for name, line in reversed(places.items()):
            if name not in own | always_set(siblings=True):
                self.note(f"the commands name `{name}`: {why}", path, line)

    def drop_invalid(self) -> bool:
        """Leave out fields that our documents do not allow, with a note for each. Returns whether the rest is
        a valid document.
        """
        for turn in range(MOST_ROUNDS):
            problems: list[Problem] = []
            decode(DOCUMENTS[self.kind], self.fields, (), problems)
            if not problems:
                return True
            # Of a list, the last item comes first: its removal moves none of those that follow.
            by_path = {tuple((-s, "") if isinstance(s, int) else (0, s) for s in p.path): p for p in problems}
            for _, problem in sorted(by_path.items()):
                path = problem.path
                where = path if turn == 0 else path[:1]
                value = _value_at(self.fields, path)
                needed = path in ((), ("resources",)) or path in _NEEDED or path[:1] in _NEEDED
                if needed or not remove(self.fields, path):
                    hint = f"; {problem.hint}" if problem.hint else ""
                    shown = f"`{_shown_path(path)}`{_in_brackets(path, value)}"
                    self.refuse(f"{shown}: {problem.summary}{hint}", where)
                    return False
                self.drop(_shown_path(path), problem.hint or problem.summary, where, value)
        return False


def _shown_path(path: Path) -> str:
    """The path in words: an item of `files` is `files`, as its value says which item it is."""
    steps = path[:-1] if len(path) > 1 and isinstance(path[-1], int) else path
    return ".".join(map(str, steps)) or "document"


def _in_brackets(path: Path, value: Any) -> str:
    """` (value)` if the value is short and no secret, else nothing."""
    if value is None or isinstance(value, Mapping | list | tuple) or not _SECRET_FIELDS.isdisjoint(path):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    line = f"{path[-1] if path else ''}: {text}"
    short = len(text) <= LONGEST_SHOWN and text.isprintable()
    return f" ({text})" if text and short and not may_hold_secret(line) else ""


def _value_at(data: Any, path: Path) -> Any:
    """The value at a path; None if there is none. Of a mapping in a list of files, its path."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data.get("local_path") or data.get("name") if isinstance(data, Mapping) else data


def remove(data: Any, path: Path) -> bool:
    """Remove the value at `path`; returns whether there was one."""
    *above, last = path
    try:
        for step in above:
            data = data[step]
        del data[last]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def mapping_of(value: Any) -> dict[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return dict(value) if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def unused_name(name: str, names: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    new, number = name, 2
    while new in names:
        new, number = f"{name[:37].rstrip('-')}-{number}", number + 1
    return new


def name_of(text: object, default: str | None, notes: list[str]) -> str | None:
    """A valid name: the text, or the nearest valid name, or the default. A change is added to `notes`."""
    near = re.sub(r"[^a-z0-9]+", "-", str(text or "").lower()).strip("-")
    name = near if NAME.fullmatch(near) else default
    if text and name and name != text:
        notes.append(f"the name is now `{name}`: 2 to 41 lower-case letters, digits and `-`")
    return name


def cloud_of(name: object) -> str:
    """The backend's name for a cloud of dstack or SkyPilot."""
    text = str(name).strip().lower()
    return _OTHER_NAMES.get(text, text)


def has_driver(name: str) -> bool:
    """Whether a backend of that name has a driver here."""
    return name in CLOUDS or name in (LOCAL, SSH)


def known_backends(draft: Draft, names: Sequence[Any], key: str = "backends") -> list[str]:
    """The backends that have a driver. If none of them has one, all stay: a document without `backends` would
    run anywhere, on this machine too.
    """
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        first.setdefault(cloud_of(name), i)
    usable = [name for name in first if has_driver(name)]
    for name, i in first.items():
        if name in usable:
            continue
        path: Path = (key, i)  # for a single value, this is the value itself
        if usable:
            draft.drop(key, NO_DRIVER, path, name)
        else:
            draft.note(f"`{key}` ({name}): {NO_DRIVER}. Until then `validate` refuses this document", path)
    return usable or [name_of(name, SOME_CLOUD, []) or SOME_CLOUD for name in first]


NO_DRIVER = "no driver of that name; name another backend, or declare this one if libcloud has its cloud"


def keep_off(drafts: Sequence[Draft], declared: bool) -> None:
    """Give a backend to each fleet that has none, as its nodes would be processes of this machine.
    `declared`: the project has backends that launch nodes.
    """
    clouds = {b for d in drafts for b in d.backends} & set(CLOUDS)
    files: set[str] = set()
    for draft in drafts:
        missing = not draft.fields.get("backends") and not {"ssh_config", "partition"} & set(draft.fields)
        if draft.kind == "fleet" and draft.fields and missing and not (declared or clouds):
            draft.fields["backends"] = [SOME_CLOUD]
            file = draft.document.file if draft.document else ""
            if file in files:
                continue
            files.add(file)
            draft.notes.append(
                f"no backend is named, and none is declared: name one in place of `{SOME_CLOUD}`, or `local` "
                "for this machine"
            )


def name_doubles(drafts: Sequence[Draft]) -> None:
    """Note the keys that a file has twice in one mapping: the tool takes the last one without a warning."""
    for document, draft in {id(d.document): (d.document, d) for d in reversed(drafts) if d.document}.values():
        for key, first, last in document.doubles:
            why = f"`{key}` is in line {first} too: the last counts, as for PyYAML"
            draft.notes.append(f"{document.file}:{last}: {why}")


def keep_apart(drafts: Sequence[Draft]) -> None:
    """Give each document a name of its own kind, in all files together; tasks follow their fleets."""
    taken: dict[str, set[str]] = {}
    renamed: dict[tuple[int, str], str] = {}
    for draft in drafts:
        name, names = draft.fields.get("name"), taken.setdefault(draft.kind, set())
        if not isinstance(name, str):
            continue
        new = unused_name(name, names)
        names.add(new)
        if new != name:
            draft.fields["name"] = new
            draft.notes.append(f"the name is now `{new}`: another {draft.kind} has the name `{name}`")
        if draft.kind == "fleet":
            renamed[id(draft.document), name] = new
    for draft in drafts:
        if draft.kind == "task" and isinstance(draft.fields.get("fleets"), list):
            draft.fields["fleets"] = [
                renamed.get((id(draft.document), str(name)), name) for name in draft.fields["fleets"]
            ]


def backends_of(drafts: Sequence[Draft]) -> list[Draft]:
    """A `backend` document for each cloud and each Slurm cluster that the drafts name."""
    named = {b for d in drafts for b in d.backends}
    named |= {str(d.fields["backend"]) for d in drafts if "backend" in d.fields}
    about_cloud = "see docs/clouds.md for its credentials and `image`"
    about_cluster = "its login node: write what `~/.slurm/config` has for it, see docs/slurm.md"
    clouds = [
        Draft("backend", {"name": name, **CLOUDS[name]}, [about_cloud]) for name in sorted(named & {*CLOUDS})
    ]
    clusters = {b for d in drafts if "partition" in d.fields for b in d.backends} - {*CLOUDS}
    return clouds + [
        Draft("backend", {"name": name, "driver": SLURM, "options": {"login": name}}, [about_cluster])
        for name in sorted(clusters)
    ]


# --------------------------------------------------------------- what commands need and ranks do not have

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
    if image:
        missing = frozenset(("sudo", "conda", "mamba") if tool == "skypilot" else ())
    else:
        missing = (
            _ROOT | _CONDA | (_OF_DSTACK if tool == "dstack" and "python" not in draft.fields else set())
        )

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
        why = (
            "ranks are a plain user of their node, without sudo, conda and ~/.bashrc: write "
            "`image: …`, in which commands are root, or let the nodes' image have it"
        )
        if tool == "dstack":
            why = f"dstack's default image (root, CUDA, conda, Python) is not used here, and {why}"
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


# ---------------------------------------------------------------------------------------------- as YAML


def text_of(drafts: Sequence[Draft], heading: str) -> str:
    """The documents as YAML, each below its notes. A draft without a document becomes a comment."""
    parts = []
    for draft in drafts:
        good = bool(draft.fields) and not draft.refused and draft.drop_invalid()
        lines = [f"# {line}" for note in draft.notes for line in _shown(note)]
        body = list(yaml_lines({"type": draft.kind, **draft.fields})) if draft.fields else []
        if body and not good:
            lines.insert(0, "# This could not be converted:")
            body = [f"# {line}" for line in body]
        parts.append("\n".join([*lines, *body]))
    return "\n".join(f"# {line}" for line in _shown(heading)) + "\n" + "\n---\n".join(parts) + "\n"


def _shown(text: str) -> Iterator[str]:
    """Text for a comment: its names may be a stranger's."""
    for line in text.splitlines():
        yield "".join(c if c.isprintable() else "?" for c in line)


def yaml_lines(data: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """The lines of a block mapping."""
    for key, value in data.items():
        yield from _item(f"{indent}{_scalar(str(key))}:", value, indent)


def _item(start: str, value: Any, indent: str) -> Iterator[str]:
    """Lines that begin with `start`. A value of several lines is indented by two more than `indent`."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        yield start
        yield from yaml_lines(value, inner)
    elif isinstance(value, list | tuple) and value:
        yield start
        for item in value:
            first, *rest = _item("", item, inner)
            # The first line of a mapping or a list follows the dash.
            yield f"{inner}-{first}" if first else f"{inner}- {rest.pop(0).lstrip()}"
            yield from rest
    elif isinstance(value, str) and _fits_block(value):
        yield f"{start} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{inner}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    else:
        yield f"{start} {_scalar(value)}"


def _fits_block(text: str) -> bool:
    """Whether a text of several lines can be written as a `|` block."""
    if "\n" not in text or text.endswith("\n\n"):
        return False
    return bool(_BLOCK.fullmatch(text)) and not _COMMAND.search(text) and not _UNSEEN.search(text)


def _scalar(value: Any) -> str:
    if isinstance(value, Noted) and value.note:
        return f"{_scalar(str(value))}  # {' '.join(_shown(value.note))}"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and not _MEANS_ELSE.fullmatch(value) else _quoted(value)
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        return _quoted(str(value))
    return json.dumps(value)


def _quoted(text: str) -> str:
    """The text in JSON's quotes, with one escape for each character: YAML has no surrogate pairs."""

    def escaped(match: re.Match[str]) -> str:
        number = ord(match[0])
        if match[0].isprintable():
            return match[0]
        return f"\\U{number:08x}" if number >> 16 else f"\\u{number:04x}"

    return re.sub(r"[^\x00-\x7e]", escaped, json.dumps(text, ensure_ascii=False)).replace("##", r"\u0023#")
