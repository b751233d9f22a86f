"""The `volume` document, and the `volumes:` of tasks: which volume or folder of the host is mounted at which
path.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Self

from declarative.model.diagnostic import MAX_WORD, suggest
from declarative.model.record import struct
from declarative.model.schema import (
    BadValueError,
    Doc,
    InPlace,
    Is,
    Json,
    closed_mapping,
    decode_part,
    describe,
    each_parsed,
    encode,
    raise_all,
    unquoted,
)
from declarative.model.spec.values import MAX_COUNT, IdleDuration, Name, Size, Tags


@struct(frozen=True, slots=True, kw_only=True)
class Volume:
    """A disk that outlives nodes; `count: 4` declares `<name>-0` … `<name>-3`."""

    name: Annotated[Name, Doc("The volume's name.")]
    count: Annotated[
        int | None, Is(minimum=1, maximum=MAX_COUNT), Doc("How many volumes: `<name>-0`, `<name>-1`, ….")
    ] = None
    size: Annotated[Size | None, InPlace(), Doc("`500GB`; can grow in place, never shrink.")] = None
    backend: Annotated[Name | None, Doc("The volume's backend; default: the only one declared.")] = None
    region: Annotated[str | None, Doc("The backend's region.")] = None
    availability_zone: Annotated[str | None, Doc("The region's zone.")] = None
    tags: Annotated[Tags, InPlace(), Doc("Tags on the volume.")] = field(default_factory=Tags)
    prevent_destroy: Annotated[
        bool | None,
        InPlace(),
        Doc(
            "A plan that would destroy or replace it is an error; default: true, unless there is an "
            "`auto_cleanup_duration`."
        ),
    ] = None
    volume_id: Annotated[
        str | None,
        Doc("An existing volume of a cloud to adopt; it is never deleted, nor formatted with data."),
    ] = None
    volume_type: Annotated[str | None, Doc("A cloud's type of disk, as `gp3`; default: the driver's.")] = None
    host: Annotated[
        str | None,
        Doc(
            "The host with the disk (`backend: ssh`), as in a fleet's `ssh_config.hosts`; default: "
            "the host of the rank that mounts it first."
        ),
    ] = None
    auto_cleanup_duration: Annotated[
        IdleDuration | None,
        InPlace(),
        Doc(
            "The volume is made for the first task that mounts it, and deleted by the first `apply` "
            "after it was attached to nothing for so long; default: made at once, and kept."
        ),
    ] = None

    DEFAULTED: ClassVar[tuple[str, ...]] = ("name",)
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "claim_name": "Kubernetes claims have no counterpart; use `volume_id` on a supported backend",
        "storage_class_name": "use `volume_type`",
        "access_modes": "a volume is attached to one node at a time; remove it",
        "read_only": "remove it; volumes are attached for reading and writing",
    }

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("capacity", "storage", "size_gb", "disk_size"), "size"),
        **dict.fromkeys(("zone", "availability_zones"), "availability_zone"),
        **dict.fromkeys(("replicas", "nodes"), "count"),
        **dict.fromkeys(("labels", "metadata"), "tags"),
        **dict.fromkeys(("mount_path", "path"), "remove it; a task says where: `volumes: ['<name>:/path']`"),
    }

    def __post_init__(self) -> None:
        if self.size is None and self.volume_id is None:
            raise BadValueError("missing-field", "`size` is missing", "add `size: 100GB`")
        if self.volume_id is not None and self.count is not None:
            hint = "leave `count` out, and write a document for each volume"
            raise BadValueError("bad-value", "`volume_id` is one volume, and `count` makes several", hint)
        if self.prevent_destroy and self.cleanup is not None and self.volume_id is None:
            raise BadValueError(
                "bad-value",
                "`auto_cleanup_duration` deletes the volume, and `prevent_destroy: true` forbids it",
                "remove one of the two",
                ("auto_cleanup_duration",),
                at_key=True,
            )

    @property
    def cleanup(self) -> int | None:
        """For how many seconds it is kept while nothing has it attached; None to keep it for ever."""
        return self.auto_cleanup_duration.seconds if self.auto_cleanup_duration else None

    @property
    def protected(self) -> bool:
        """Whether a plan may not destroy or replace it."""
        return self.cleanup is None if self.prevent_destroy is None else self.prevent_destroy


_ELSEWHERE = {
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
                faults.append(_unknown(key, known))
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
                faults.append(_unknown(key, known, *_HOST_ONLY))
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


def _unknown(key: str, known: Sequence[str], *also: str) -> BadValueError:
    near = _ELSEWHERE.get(key) or suggest(key, [*known, *also]) if len(key) <= MAX_WORD else None
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


def _hidden(mounts: Mapping[int, Mount]) -> list[BadValueError]:
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
        faults += _hidden(at)
        raise_all(faults)
        return cls(at.values())

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "array", "items": Mount.json_schema()}

    def plain(self) -> Json:
        return [mount.plain() for mount in self]
