"""The `task` document: commands run on `nodes` nodes at once; and what they need: mounts of volumes and of
folders of hosts, files, a clone of a repository, a Python, a login to a registry.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeGuard

from declarative.model.record import set_field, struct
from declarative.model.schema import (
    BadValueError,
    Doc,
    InPlace,
    Is,
    Json,
    Word,
    closed_mapping,
    decode_part,
    describe,
    each_parsed,
    encode,
    raise_all,
    unquoted,
)
from declarative.model.spec.schedule import Schedule
from declarative.model.spec.values import (
    MAX_COUNT,
    PLACES,
    Duration,
    Env,
    FallbackPolicy,
    FleetName,
    Image,
    Level,
    Name,
    NodeName,
    Placement,
    Resources,
    Retry,
    Size,
    SpotPolicy,
    Tags,
    TimeLimit,
)
from declarative.model.text import MAX_WORD, suggest


@struct(frozen=True, slots=True)
class File:
    """A path in the project, and its path in the rank's working folder."""

    local_path: str
    path: str


class Files(tuple[File, ...]):
    """`src`, `src:where`, or `{local_path: src, path: where}`."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a path below the project's directory: `train.py`, or `src:code`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-path` for a path that is absolute or leads out of the project."""
        if not isinstance(value, list | tuple):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        faults: list[BadValueError] = []
        files = [file for _, file in each_parsed(enumerate(value), cls._file, faults)]
        raise_all(faults)
        return cls(files)

    @classmethod
    def _file(cls, item: Json) -> File:
        if isinstance(item, str):
            local, colon, where = item.partition(":")
            pair: tuple[Json, Json] = (local, where if colon else local)
        elif isinstance(item, Mapping) and set(item) <= {"local_path", "path"} and "local_path" in item:
            pair = (item["local_path"], item.get("path", item["local_path"]))
        else:
            raise BadValueError("wrong-type", f"expected a path, found {describe(item)}", cls.HINT)
        for text in pair:
            if not _is_text(text):
                raise BadValueError("bad-path", f"{describe(text)} is not a path", cls.HINT)
            if _leads_away(text, ("/", "~")):
                raise BadValueError("bad-path", f"`{text}` leads out of the project", cls.HINT)
        return File(str(pair[0]), str(pair[1]))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        keys = {"local_path": {"type": "string"}, "path": {"type": "string"}}
        mapping = closed_mapping(keys, ["local_path"])
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, mapping]}}

    def plain(self) -> Json:
        """`src` or `src:where`."""
        return [f.path if f.path == f.local_path else f"{f.local_path}:{f.path}" for f in self]


_PYTHON = re.compile(r"3\.\d{1,2}")
_REMOTE = re.compile(r"(?:https?://|ssh://(?:[\w.-]+@)?|[\w.-]+@[\w.-]+:(?!//))[\w.~/:%+-]+", re.ASCII)
_SECRET = re.compile(r"https?://[^/]*@")
_SOURCE_AND_PATH = re.compile(r"((?:\w+://|[\w.-]+@[\w.-]+:(?!//))?[^:]*(?::\d+/[^:]*)?)(?::(.*))?")
_REVISION = re.compile(r"[\w][\w./-]{0,254}", re.ASCII)
_ENV = re.compile(r"\$\{\{ env\.\w+ \}\}", re.ASCII)


class Python(Word):
    """A version of Python: `"3.12"`."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": ["string", "number"]}

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value`. Unquoted, YAML reads a number: 3.10 becomes 3.1."""
        text = "3.10" if value == 3.1 else str(value)
        if isinstance(value, bool) or not isinstance(value, str | float) or not _PYTHON.fullmatch(text):
            raise BadValueError(
                "bad-value", f"{describe(value)} is not a version of Python", 'write `"3.12"`'
            )
        return cls(text)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _leads_away(path: str, starts: tuple[str, ...]) -> bool:
    return path.startswith(starts) or ".." in path.split("/")


@struct(frozen=True, slots=True)
class Repo:
    """A git repository that is cloned before the commands run, or a folder of the project, sent
    like `files`.
    """

    source: str
    path: str = "."
    branch: str | None = None
    hash: str | None = None

    @property
    def local(self) -> bool:
        """Whether it is a folder of the project."""
        return not _REMOTE.fullmatch(self.source)


class Repos(tuple[Repo, ...]):
    """At most one: `https://…`, `https://…:path`, `{url: …, branch: …, hash: …, path: …}`, or `.`."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write `https://host/repo`, or `{url: …, branch: …, path: …}`; for local files `files`"
    )
    KEYS: ClassVar[tuple[str, ...]] = ("url", "local_path", "path", "branch", "hash", "if_exists")

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-path`, `bad-value`, `bad-credential` for a URL with a password, `wrong-type`."""
        if not isinstance(value, list | tuple):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        if len(value) > 1:
            hint = "keep one, and clone the others in `commands`"
            raise BadValueError("out-of-range", "`repos` has at most one item", hint)
        return cls(cls._repo(item) for item in value)

    @classmethod
    def _repo(cls, item: Json) -> Repo:
        if _SECRET.match(str(item.get("url") if isinstance(item, Mapping) else item)):
            hint = "leave them out: a private repository is cloned by the key or the helper of its node"
            raise BadValueError("bad-credential", "the URL holds a user or a password", hint, (0,))
        fields = cls._given(item)
        if not fields or not all(map(_is_text, fields.values())):
            raise BadValueError("wrong-type", "expected a repository", cls.HINT, (0,))
        repo = Repo(**fields)
        for text in filter(None, (repo.branch, repo.hash)):
            if not _REVISION.fullmatch(text):
                raise BadValueError(
                    "bad-value", f"{describe(text)} is not a branch or a commit", cls.HINT, (0,)
                )
        if _leads_away(repo.path, ("/", "~") if repo.local else ("~", "-")):
            hint = "leave the path out: what is sent lies where the commands start"
            raise BadValueError("bad-path", f"`{repo.path}` is not below the rank's folder", hint, (0,))
        if repo.local and _leads_away(repo.source, ("/", "~")):
            hint = "make the repository's root the project (`fleetform -C DIR`), and write `files: [.]`"
            raise BadValueError("bad-path", f"`{repo.source}` leads out of the project", hint, (0,))
        return repo

    @classmethod
    def _given(cls, item: Json) -> dict[str, Any]:
        """The fields of a `Repo`, unchecked; empty if `item` has the wrong form."""
        if isinstance(item, str):
            match = _SOURCE_AND_PATH.fullmatch(item)
            return {"source": match[1], "path": match[2] or "."} if match else {"source": item}
        if not isinstance(item, Mapping) or not set(item) <= set(cls.KEYS):
            return {}
        if ("url" in item) == ("local_path" in item):
            return {}
        fields = {k: item[k] for k in ("path", "branch", "hash") if item.get(k) is not None}
        return {**fields, "source": item.get("url") or item.get("local_path")}

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        keys = {key: {"type": ["string", "null"]} for key in cls.KEYS}
        return {
            "type": "array",
            "maxItems": 1,
            "items": {"anyOf": [{"type": "string"}, closed_mapping(keys)]},
        }

    def plain(self) -> Json:
        """The mapping; for a folder `{local_path: …}`."""
        return [
            {("local_path" if r.local else "url"): r.source}
            | {
                k: v
                for k, v in (("path", r.path), ("branch", r.branch), ("hash", r.hash))
                if v not in (None, ".")
            }
            for r in self
        ]


@struct(frozen=True, slots=True, kw_only=True)
class RegistryAuth:
    """The login to the `image`'s registry."""

    username: Annotated[str, Doc("The user.")]
    password: Annotated[str, Doc("`${{ env.NAME }}`: read when the rank starts, and never recorded.")]

    def __post_init__(self) -> None:
        if not _ENV.fullmatch(self.password):
            hint = "put it into the environment where you run `fleetform`, and write `${{ env.NAME }}`"
            summary = "`password` is not the name of an environment variable"
            raise BadValueError("bad-credential", summary, hint, ("password",), at_key=True)


# ------------------------------------------------------------------------------ the document

SHORTEST_WINDOW = 300
"""The shortest `time_window` in seconds: programs need time to load data and to write checkpoints."""


class CreationPolicy(StrEnum):
    """Whether nodes may be launched for the task."""

    REUSE = "reuse"
    REUSE_OR_CREATE = "reuse-or-create"


class StartupOrder(StrEnum):
    """Which rank starts first."""

    ANY = "any"
    MASTER_FIRST = "master-first"
    WORKERS_FIRST = "workers-first"


class StopCriteria(StrEnum):
    """When the task has ended."""

    ALL_DONE = "all-done"
    MASTER_DONE = "master-done"


class Isolation(StrEnum):
    """How strictly a rank is limited to its blocks."""

    BEST = "best"
    HARD = "hard"


@struct(frozen=True, slots=True, kw_only=True)
class Group:
    """Some of a task's ranks with their own commands, like dstack's node groups."""

    name: Annotated[Name | None, Doc("The group's name; it has no effect.")] = None
    nodes: Annotated[int, Is(minimum=1, maximum=MAX_COUNT), Doc("The number of its ranks.")] = 1
    commands: Annotated[tuple[str, ...], Is(longest=1 << 22, blank=True), Doc("As a task's.")]
    resources: Annotated[Resources | None, Doc("What each rank asks for, the same in all groups.")] = None

    IGNORED: ClassVar[Mapping[str, str]] = {
        "ports": "ranks listen on their node's address, in an `image` too"
    }


def _of_groups(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """The commands of all groups as one list for every rank; each rank runs its own group's."""
    out = []
    for turn in range(max(len(group.commands) for group in groups)):
        first, branches = 0, []
        for group in groups:
            if turn < len(group.commands):
                last = first + group.nodes - 1
                mine = f"[ $FLEETFORM_NODE_RANK -ge {first} ] && [ $FLEETFORM_NODE_RANK -le {last} ]"
                branches.append(f"if {mine}; then eval {shlex.quote(group.commands[turn])}")
            first += group.nodes
        out.append("\nel".join(branches) + "\nfi")
    return tuple(out)


@struct(frozen=True, slots=True, kw_only=True)
class UtilizationPolicy:
    """How much a rank has to use its GPUs."""

    min_gpu_utilization: Annotated[
        int,
        Is(minimum=0, maximum=100),
        Doc("Percent. A rank ends if all samples of one of its GPUs are below it."),
    ]
    time_window: Annotated[Duration, Doc("The time without a break: `30m`, at least `5m`.")]

    def __post_init__(self) -> None:
        seconds = self.time_window.seconds
        if seconds is None or seconds < SHORTEST_WINDOW:
            summary = f"a `time_window` is at least 5m, and this one is `{self.time_window.plain()}`"
            raise BadValueError("out-of-range", summary, "write `5m` or more", ("time_window",))


_MOUNT_ELSEWHERE = {
    **dict.fromkeys(("mountPath", "mount_path", "mountpoint", "target", "destination"), "write `path:`"),
    **dict.fromkeys(("source", "volume", "claimName", "claim_name"), "write `name:`"),
    **dict.fromkeys(("readOnly", "read_only"), "remove it; volumes are attached for reading and writing"),
}
"""Notations of other tools."""
_TEMPLATE = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)
_HOST_ONLY = ("instance_path", "optional")
_INLINE = ("size", "backend", "region", "availability_zone", "prevent_destroy")


@struct(frozen=True, slots=True, kw_only=True)
class Inline:
    """A volume that the mount itself declares, one for each rank."""

    NOUN: ClassVar[str] = "a mount"

    size: Size
    backend: str | None = None
    region: str | None = None
    availability_zone: str | None = None
    prevent_destroy: bool = True


@struct(frozen=True, slots=True)
class Mount:
    """One mount: a volume, or a folder of the host on which the rank runs.

    `names` are the alternatives, as written: they may contain `${{ node_rank }}`. They are empty with an
    `instance_path`; an `optional` one is left out if the host has no such folder.
    """

    names: tuple[str, ...]
    path: str
    inline: Inline | None = None
    instance_path: str | None = None
    optional: bool = False
    HINT: ClassVar[str] = "write `name:/path`, `{name: …, path: …}`, or add `size:` to create the volume"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-mount`, `bad-path`, `missing-field`, `unknown-field`, `node-rank-here`."""
        if isinstance(value, str):
            # A `:` inside `${{ … }}` is not a separator.
            name, path = cls._split(value)
            if "/" in _TEMPLATE.sub("", name) and not name.startswith(("/", "~")):
                folder = posixpath.normpath("/" + name)
                hint = f"write `{folder}:{path}` for a folder of the host; the project's own go into `files`"
                summary = f"{describe(name)} is neither a volume's name nor an absolute path"
                raise BadValueError("bad-mount", summary, hint if len(name) <= MAX_WORD else cls.HINT)
            if name.startswith(("/", "~")):
                return cls((), _check_path(path, ()), instance_path=_check_host_path(name, ()))
            return cls((name,), _check_path(path, ()))
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mount, found {describe(value)}", cls.HINT)
        return cls._parse_mapping(value)

    @classmethod
    def _split(cls, text: str) -> tuple[str, str]:
        close = text.rfind("}}") + 2 if "}}" in text else 0
        head, colon, path = text[close:].partition(":")
        name = text[:close] + head
        if not colon or not name:
            raise cls._no_mount(text, "" if colon else name)
        target, _, mode = path.rpartition(":")
        if mode in ("ro", "rw"):
            hint = f"write `{name}:{target}`; volumes are attached for reading and writing"
            raise BadValueError("bad-mount", f"`:{mode}` is not supported for volumes", hint)
        if ":" in path:
            raise cls._no_mount(text, "")
        return name, path

    @classmethod
    def _no_mount(cls, text: str, word: str) -> BadValueError:
        """What is wrong with `text`. `word` is the whole text if it has no `:`, else empty."""
        usable = 0 < len(word) <= MAX_WORD
        if word.startswith("/"):
            hint = f"write `name:{word}`, with the name of a volume" if usable else cls.HINT
            return BadValueError("bad-mount", f"{describe(text)} names no volume", hint)
        hint = f"write `{word}:/{word}`" if usable else cls.HINT
        return BadValueError("bad-mount", f"{describe(text)} is not a mount", hint)

    @classmethod
    def _parse_host(cls, value: Mapping[str, Json]) -> Self:
        """A mount of a folder of the host."""
        known = ("instance_path", "path", "optional")
        faults: list[BadValueError] = []
        for key in value:
            if key == "name" or key in _INLINE:
                summary = f"`{key}` and `instance_path` exclude each other"
                hint = "remove one of them: a host's own folder is no volume, and nothing is created for it"
                faults.append(BadValueError("bad-mount", summary, hint, (key,), at_key=True))
            elif key not in known:
                faults.append(_unknown_in_mount(key, known))
        raise_all(faults)
        optional = value.get("optional", False)
        if not isinstance(optional, bool):
            summary = f"expected true or false, found {describe(optional)}"
            hint = unquoted(optional, (bool,), "write `optional: true`, or remove it")
            raise BadValueError("wrong-type", summary, hint, ("optional",))
        if "path" not in value:
            hint = "write `/host/path:/path`, or `{instance_path: …, path: …}`"
            raise BadValueError("missing-field", "`path` is missing", hint)
        source = _check_host_path(value["instance_path"], ("instance_path",))
        return cls((), _check_path(value["path"], ("path",)), None, source, optional)

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        if "instance_path" in value:
            return cls._parse_host(value)
        known = ("name", "path", *_INLINE)
        faults: list[BadValueError] = []
        for key in value:
            if key == "optional":
                summary = "`optional` is only for `instance_path`"
                hint = "remove it: a volume is always there"
                faults.append(BadValueError("bad-mount", summary, hint, (key,), at_key=True))
            elif key not in known:
                faults.append(_unknown_in_mount(key, known, *_HOST_ONLY))
        raise_all(faults)
        name = value.get("name")
        texts = [name] if isinstance(name, str) else name
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) and t for t in texts):
            texts = ()
        names = tuple(map(str, texts))
        if not names:
            at = ("name",) if "name" in value else ()
            raise BadValueError("bad-mount", "`name` is a volume's name or a list of them", cls.HINT, at)
        if "path" not in value:
            raise BadValueError("missing-field", "`path` is missing", cls.HINT)
        fields = {k: v for k, v in value.items() if k in _INLINE}
        if fields and len(names) > 1:
            summary = "a volume to create has one name, not alternatives"
            raise BadValueError("bad-mount", summary, cls.HINT, ("name",))
        inline = decode_part(Inline, fields) if fields else None
        return cls(names, _check_path(value["path"], ("path",)), inline)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        text = {"type": "string"}
        maybe = {"anyOf": [text, {"type": "null"}]}
        name = {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}
        keys: dict[str, Any] = {
            "name": name,
            "path": text,
            "size": Size.json_schema(),
            "backend": maybe,
            "region": maybe,
            "availability_zone": maybe,
            "prevent_destroy": {"type": "boolean"},
            "instance_path": text,
            "optional": {"type": "boolean"},
        }
        return {"anyOf": [text, closed_mapping(keys)]}

    def plain(self) -> Json:
        """`name:/path`, or the mapping if the short form cannot express it."""
        if self.instance_path is not None:
            if not self.optional and ":" not in self.instance_path:
                return f"{self.instance_path}:{self.path}"
            body = {"instance_path": self.instance_path, "path": self.path}
            return {**body, "optional": True} if self.optional else body
        if len(self.names) == 1 and self.inline is None:
            return f"{self.names[0]}:{self.path}"
        name: Json = self.names[0] if len(self.names) == 1 else list(self.names)
        return {"name": name, "path": self.path, **(encode(self.inline) if self.inline else {})}


def _unknown_in_mount(key: str, known: Sequence[str], *also: str) -> BadValueError:
    near = _MOUNT_ELSEWHERE.get(key) or suggest(key, [*known, *also]) if len(key) <= MAX_WORD else None
    hint = near or f"known fields: {', '.join(known)}"
    return BadValueError("unknown-field", f"`{key}` is not a field of a mount", hint, (key,), at_key=True)


def _check_host_path(path: Json, where: tuple[str | int, ...]) -> str:
    """Accept only an absolute, normal path on hosts, the same for all ranks, that is not the whole host."""
    if isinstance(path, str) and "${{" in path:
        summary = "`node_rank` can be used only in the names of a task's volumes"
        raise BadValueError(
            "node-rank-here", summary, "write a path that is the same on every rank's host", where
        )
    if isinstance(path, str) and path.startswith("~"):
        summary = f"{describe(path)} is not an absolute path"
        raise BadValueError("bad-path", summary, "write the folder's path on the host, from `/` on", where)
    if isinstance(path, str) and path and not path.strip("/"):
        hint = "write a folder of it, such as `/mnt/data`"
        raise BadValueError("bad-path", f"{describe(path)} is the whole host", hint, where)
    return _check_path(path, where)


def _check_path(path: Json, where: tuple[str | int, ...]) -> str:
    """Accept only an absolute, normal path below `/`."""
    hint = "write an absolute path such as `/data`"
    if not isinstance(path, str):
        raise BadValueError("wrong-type", f"expected a path, found {describe(path)}", hint, where)
    if not path.strip():
        raise BadValueError("bad-path", "the path is empty", hint, where)
    shown, normal = describe(path), posixpath.normpath("/" + path.lstrip("/"))
    if ".." in path.split("/"):
        hint = "write the path that you mean, without `..`, such as `/data`"
        raise BadValueError("bad-path", f"{shown} contains `..`", hint, where)
    if path and not path.startswith("/"):
        hint = hint if "\0" in path or len(path) > MAX_WORD else f"write an absolute path: `{normal}`"
        raise BadValueError("bad-path", f"{shown} is not an absolute path", hint, where)
    if normal == "/" or "\0" in path:
        hint = "write a path below `/`, such as `/data`"
        raise BadValueError("bad-path", f"nothing can be mounted at {shown}", hint, where)
    return normal


def _hidden_mounts(mounts: Mapping[int, Mount]) -> list[BadValueError]:
    """Folders of the host that another mount may cover before they are mounted."""
    out: list[BadValueError] = []
    paths = {mount.path for mount in mounts.values()}
    for i, mount in mounts.items():
        if mount.instance_path is None:
            continue
        parts = mount.instance_path.split("/")
        above = ("/".join(parts[:i]) for i in range(2, len(parts) + 1))
        over = next((p for p in above if p in paths and p != mount.path), None)
        if over:
            where = "is" if mount.instance_path == over else f"lies below {describe(over)},"
            summary = f"{describe(mount.instance_path)} {where} where something else is mounted"
            hint = "mount that one at another path"
            out.append(BadValueError("bad-mount", summary, hint, (i,)))
    return out


class Mounts(tuple[Mount, ...]):
    """All mounts of a task, each at its own path."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Mounts:
        """The errors of `Mount`, and `duplicate-mount`."""
        if not isinstance(value, list | tuple):
            short = isinstance(value, str) and 0 < len(value.strip()) < 60
            hint = f'write a list: `["{value}"]`' if short else Mount.HINT
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", hint)
        faults: list[BadValueError] = []
        by_path: dict[str, list[Mount]] = {}
        at: dict[int, Mount] = {}
        for i, mount in each_parsed(enumerate(value), Mount.parse, faults):
            others = by_path.setdefault(mount.path, [])
            if others:
                what = "two volumes are mounted"
                hint = "change one of the paths; `name: [a, b]` mounts whichever of the two is there"
                if any(one.instance_path for one in (*others, mount)):
                    what, hint = "two folders or volumes are mounted", "change one of the paths"
                summary = f"{what} at {describe(mount.path)}"
                faults.append(BadValueError("duplicate-mount", summary, hint, (i,)))
            others.append(mount)
            at[i] = mount
        faults += _hidden_mounts(at)
        raise_all(faults)
        return cls(at.values())

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "array", "items": Mount.json_schema()}

    def plain(self) -> Json:
        return [mount.plain() for mount in self]


@struct(frozen=True, slots=True, kw_only=True)
class Task:
    """Commands run on `nodes: N` nodes at once; each of the N is a rank, 0 to N-1."""

    name: Annotated[Name, Doc("The task's name; its ranks are `<name>-0`, `<name>-1`, ….")]
    nodes: Annotated[int, Is(minimum=1, maximum=MAX_COUNT), Doc("The number of nodes, and of ranks.")] = 1
    placement: Annotated[Placement | None, Doc("`cluster` (default for more than one node) or `any`.")] = None
    exclusive: Annotated[
        bool | None,
        Doc("Each rank takes a whole idle node; default: true for more than one node with `cluster`."),
    ] = None
    same: Annotated[
        Level | None,
        InPlace(),
        Doc(
            "What all ranks of a cluster share: `zone`, `region`, or a label of hosts' `topology`, "
            "such as `rack`; default: the fleet's."
        ),
    ] = None
    spread: Annotated[
        Level | None,
        InPlace(),
        Doc("What is different for each rank: `node`, `zone`, `region`, or a label of hosts' `topology`."),
    ] = None
    env: Annotated[Env, Doc("Environment of every rank.")] = Env()
    working_dir: Annotated[
        str | None, Doc("The folder where the commands start; default: the rank's own.")
    ] = None
    resources: Annotated[Resources, Doc("What each rank asks for.")] = Resources()
    volumes: Annotated[
        Mounts,
        Doc(
            "`name:/path`; names may hold `${{ node_rank }}`. `/host/path:/path`, or "
            "`{instance_path: …, path: …, optional: true}`, is a folder of the host itself."
        ),
    ] = Mounts()
    fleets: Annotated[tuple[FleetName, ...], Doc("Fleets that may be used; default: all.")] = ()
    instances: Annotated[
        tuple[NodeName, ...],
        Doc("Existing nodes that may be used: `gpu-0`, `{hostname: …}`."),
    ] = ()
    creation_policy: Annotated[
        CreationPolicy,
        Doc("`reuse`: launches no node and does not decide what is launched; default `reuse-or-create`."),
    ] = CreationPolicy.REUSE_OR_CREATE
    backends: Annotated[tuple[Name, ...], Doc("Backends that may be used.")] = ()
    regions: Annotated[tuple[str, ...], PLACES, Doc("Regions that may be used.")] = ()
    spot_policy: Annotated[SpotPolicy | None, Doc("`on-demand`, `spot` or `auto`; default: the fleet's.")] = (
        None
    )
    max_price: Annotated[float | None, Is(above=0), Doc("The most that a node may cost, USD an hour.")] = None
    fallback: Annotated[
        FallbackPolicy | None,
        InPlace(),
        Doc(
            "What is launched for it if the planned offer is sold out: `same`, `any` or `none`; the "
            "strictest of the fleet and of a node's tasks counts."
        ),
    ] = None
    max_duration: Annotated[
        TimeLimit | None,
        InPlace(),
        Is(true_is_default=True),
        Doc("A rank that runs longer is stopped, and counts as failed."),
    ] = None
    stop_duration: Annotated[
        Duration,
        InPlace(),
        Is(true_is_default=True),
        Doc("The time between asking a rank to stop and killing it; default 5m."),
    ] = Duration(300)
    startup_order: Annotated[StartupOrder, Doc("`any` (default), `master-first`, `workers-first`.")] = (
        StartupOrder.ANY
    )
    stop_criteria: Annotated[StopCriteria, Doc("`all-done` (default) or `master-done`.")] = (
        StopCriteria.ALL_DONE
    )
    priority: Annotated[
        int, InPlace(), Is(minimum=0, maximum=100), Doc("0 to 100; higher is placed first.")
    ] = 0
    tags: Annotated[Tags, InPlace(), Doc("Tags of the task.")] = field(default_factory=Tags)
    commands: Annotated[
        tuple[str, ...],
        Is(longest=1 << 22, blank=True),
        Doc("Run one after the other until one fails; without any, the `image`'s own command runs."),
    ] = ()
    groups: Annotated[
        tuple[Group, ...],
        Is(most_items=100),
        Doc(
            "In place of `nodes` and `commands`: `{nodes: 2, commands: […]}`, …; all groups ask for the same."
        ),
    ] = ()
    isolation: Annotated[
        Isolation,
        Doc(
            "`best` (default): as well as the node can; `hard`: only where the kernel enforces CPUs "
            "and memory."
        ),
    ] = Isolation.BEST
    image: Annotated[
        Image | None, Doc("A container image: ranks run in it, with podman or docker on their hosts.")
    ] = None
    registry_auth: Annotated[
        RegistryAuth | None,
        Doc("Login to the image's registry: `{username: …, password: ${{ env.NAME }}}`."),
    ] = None
    privileged: Annotated[
        bool,
        Doc(
            "The container may do what its node's user may, or in docker what root may: it gets all devices."
        ),
    ] = False
    python: Annotated[
        Python | None,
        Doc(
            '`"3.12"`: a virtual environment for the commands, made by `uv` or `python3.12` of the '
            "node or image."
        ),
    ] = None
    nvcc: Annotated[
        bool, Doc("The commands need `nvcc`, which is looked for in PATH and /usr/local/cuda.")
    ] = False
    repos: Annotated[
        Repos,
        Doc("A git repository that is cloned first: `https://host/repo`, or `{url, branch, hash, path}`."),
    ] = Repos()
    files: Annotated[
        Files | None,
        Doc("Files and folders of the project for every rank's own folder: `src`, `src:code`."),
    ] = None
    schedule: Annotated[
        Schedule | None,
        InPlace(),
        Doc(
            '`{start: "0 8 * * 1-5", stop: "0 20 * * *", timezone: Europe/Berlin}`: starts anew at '
            "each `start`; is stopped at `stop` if it still runs."
        ),
    ] = None
    retry: Annotated[
        Retry,
        InPlace(),
        Doc(
            "`true`, or `{on_events: [no-capacity, interruption, error], duration: 1h, max_attempts: 3}`: "
            "runs again, with all its ranks; default `false`."
        ),
    ] = Retry(())

    utilization_policy: Annotated[
        UtilizationPolicy | None,
        Doc("`{min_gpu_utilization: 10, time_window: 1h}`: ends a rank if one of its GPUs is used less."),
    ] = None
    queue: Annotated[
        bool,
        InPlace(),
        Doc(
            "The task may wait in Slurm's queue for resources that others hold; without it, the plan "
            "refuses it."
        ),
    ] = False

    DEFAULTED: ClassVar[tuple[str, ...]] = ("name",)
    IGNORED: ClassVar[Mapping[str, str]] = {
        "ports": "ranks listen on their node's address, in an `image` too"
    }
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "docker": "remove it; ranks run where their host has podman or docker, but cannot use it themselves",
        "user": "remove it; ranks run as the user that owns the node, and in an `image` as its root",
        "entrypoint": "write it as the first of `commands`; that of the `image` is not run",
        "shell": "commands run in bash where node or image has it, else sh; call another shell in `commands`",
        "home_dir": "use `working_dir`",
        "availability_zones": "write it in the fleet",
        "instance_types": "write it in the fleet",
        "reservation": "write it in the fleet",
        "idle_duration": "write it in the fleet",
        "profiles": "write the fields of the profile here",
        "backend_options": "use `options:` of the `backend` document",
        "dstack": "remove it",
    }

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("command", "script", "run", "cmd", "args", "steps", "setup"), "commands"),
        **dict.fromkeys(("replicas", "count", "num_nodes", "node_count", "parallelism"), "nodes"),
        **dict.fromkeys(("environment", "enviroment", "envs", "variables"), "env"),
        **dict.fromkeys(("workdir", "working_directory", "cwd"), "working_dir"),
        **dict.fromkeys(("mounts", "volume_mounts"), "volumes"),
        **dict.fromkeys(("container", "docker_image"), "image"),
        "file_mounts": "files",
        "python_version": "python",
        **dict.fromkeys(("labels", "metadata", "annotations"), "tags"),
        **dict.fromkeys(("timeout", "active_deadline_seconds"), "max_duration"),
        **dict.fromkeys(("fleet", "pool"), "fleets"),
        **dict.fromkeys(("topology", "required_topology", "switches"), "same"),
        **dict.fromkeys(("anti_affinity", "topology_spread", "distinct_property"), "spread"),
        **dict.fromkeys(
            ("cpu", "cpus", "memory", "gpu", "gpus", "accelerators", "disk"), "write it in `resources: {…}`"
        ),
        **dict.fromkeys(
            ("secrets", "secret"), "write the variable's name: `env: [NAME]` takes the caller's value"
        ),
        "depends_on": "remove it; tasks wait only for their nodes and volumes",
        **dict.fromkeys(("restart", "restart_policy", "max_retries", "retries", "backoff_limit"), "retry"),
    }

    def _join_groups(self) -> None:
        """Turn all groups into one gang: the number of ranks, and the commands of each."""
        for field_name, default in (("nodes", 1), ("commands", ())):
            if getattr(self, field_name) != default:
                hint = f"remove it, or `groups`: each group has `{field_name}` of its own"
                summary = f"`groups` and `{field_name}` exclude each other"
                raise BadValueError("bad-value", summary, hint, (field_name,), at_key=True)
        names = [group.name for group in self.groups]
        for i, name in enumerate(names):
            if name is not None and name in names[:i]:
                summary = f"two groups are named `{name}`"
                hint = "change one of the names, or remove both"
                raise BadValueError("duplicate-name", summary, hint, ("groups", i, "name"))
        group_resources = [group.resources or self.resources for group in self.groups]
        for i, resources in enumerate(group_resources):
            if resources != group_resources[0]:
                hint = "ask for what the largest group needs in all, or write a task for each group"
                summary = "the ranks of one task ask for the same resources, and its groups do not"
                raise BadValueError(
                    "not-supported-yet", summary, hint, ("groups", i, "resources"), at_key=True
                )
        total = sum(group.nodes for group in self.groups)
        if total > MAX_COUNT:
            raise BadValueError(
                "out-of-range", f"`groups` have {total} ranks", f"at most {MAX_COUNT}", ("groups",)
            )
        joined = {
            "nodes": total,
            "commands": _of_groups(self.groups),
            "resources": group_resources[0],
            "groups": (),
        }
        for field_name, value in joined.items():
            set_field(self, field_name, value)

    def __post_init__(self) -> None:
        if self.groups:
            self._join_groups()
        local = [File(repo.source, repo.path) for repo in self.repos if repo.local]
        if local:  # another notation of the same field
            set_field(self, "files", Files((*(self.files or ()), *local)))
            set_field(self, "repos", Repos())
        self._check_topology()
        if self.image is None:
            self._check_processes()
        elif self.privileged and self.isolation is Isolation.HARD:
            summary = "a privileged container has no limits, and `isolation: hard` asks for them"
            raise BadValueError("bad-value", summary, "remove one of the two", ("privileged",), at_key=True)

    def _check_processes(self) -> None:
        """The fields that a task without an image needs, and those that it cannot have."""
        if not self.commands:
            hint = "add `commands: [python train.py]`, or an `image` whose own command runs"
            raise BadValueError("missing-field", "`commands` is missing", hint)
        for field_name in ("privileged", "registry_auth"):
            if getattr(self, field_name):
                summary = f"`{field_name}` is for containers, and the task has no `image`"
                hint = "add an `image`, or remove it: without one, commands are processes of the node's user"
                raise BadValueError("bad-value", summary, hint, (field_name,), at_key=True)

    def _check_topology(self) -> None:
        """Only clusters can have `same`. A level cannot be shared by all ranks and be separate for each."""
        if self.same is not None and self.placement is Placement.ANY:
            summary = "`same` keeps ranks together, and `placement: any` does not"
            raise BadValueError("bad-value", summary, "remove one of the two", ("same",), at_key=True)
        if self.same == "node":
            hint = "write `nodes: 1`, or a level above, such as `zone`"
            raise BadValueError("bad-value", "`same: node` allows only one rank", hint, ("same",))
        if self.cluster and self.nodes > 1 and self.spread in ("region", self.same or "zone"):
            summary = f"`spread: {self.spread}` keeps ranks apart, and a cluster keeps them together"
            hint = "add `placement: any`" + (", or `same: region`" if self.spread != "region" else "")
            raise BadValueError("bad-value", summary, hint, ("spread",), at_key=True)

    @property
    def cluster(self) -> bool:
        """Whether all ranks have to lie in one cluster fleet."""
        if self.placement is None:
            return self.nodes > 1
        return self.placement is Placement.CLUSTER

    @property
    def whole_nodes(self) -> bool:
        """Whether each rank takes a whole idle node (docs/architecture.md, "Blocks")."""
        if self.exclusive is None:
            return self.nodes > 1 and self.cluster
        return self.exclusive
