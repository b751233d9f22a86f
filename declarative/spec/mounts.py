"""A task's `volumes:`: which volume appears where."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from declarative.schema import BadValueError, Json, decode, encode
from declarative.schema.decode import Problem, describe
from declarative.spec.values import Size

_INLINE = ("size", "backend", "region", "availability_zone", "prevent_destroy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """A volume that the mount itself declares, one for each rank."""

    size: Size
    backend: str | None = None
    region: str | None = None
    availability_zone: str | None = None
    prevent_destroy: bool = True


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `names` are alternatives, as written: they may hold `${{ node_rank }}`."""

    names: tuple[str, ...]
    path: str
    inline: Inline | None = None
    HINT: ClassVar[str] = "write `name:/path`, `{name: …, path: …}`, or add `size:` to create the volume"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-mount`, `bad-path`, `not-supported-yet` (a host's own folder)."""
        if isinstance(value, str):
            # A `:` inside `${{ … }}` is not a separator.
            name, path = cls._split(value)
            if name.startswith(("/", ".", "~")):
                raise cls._instance_path(())
            return cls((name,), _check_path(path, ()))
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mount, found {describe(value)}", cls.HINT)
        return cls._parse_mapping(value)

    @classmethod
    def _split(cls, text: str) -> tuple[str, str]:
        close = text.rfind("}}") + 2 if "}}" in text else 0
        head, colon, path = text[close:].partition(":")
        name = text[:close] + head
        if not colon or not name or ":" in path:
            raise BadValueError("bad-mount", f"`{text}` is not a mount", cls.HINT)
        return name, path

    @classmethod
    def _instance_path(cls, path: tuple[str | int, ...]) -> BadValueError:
        hint = "declare a volume and mount it by name; a host's own folders come with the ssh backend"
        return BadValueError("not-supported-yet", "mounting a host's folder is not supported yet", hint, path)

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        if "instance_path" in value:
            raise cls._instance_path(("instance_path",))
        for key in value:
            if key not in ("name", "path", *_INLINE):
                hint = f"known fields: name, path, {', '.join(_INLINE)}"
                raise BadValueError(
                    "unknown-field", f"`{key}` is not a field of a mount", hint, (key,), at_key=True
                )
        raw = value.get("name")
        names = [raw] if isinstance(raw, str) else raw
        if (
            not isinstance(names, list | tuple)
            or not names
            or not all(isinstance(n, str) and n for n in names)
        ):
            raise BadValueError(
                "bad-mount",
                "`name` is a volume's name or a list of them",
                cls.HINT,
                ("name",) if "name" in value else (),
            )
        if "path" not in value:
            raise BadValueError("missing-field", "`path` is missing", cls.HINT)
        inline = cls._inline(value, len(names))
        return cls(tuple(str(n) for n in names), _check_path(value["path"], ("path",)), inline)

    @classmethod
    def _inline(cls, value: Mapping[str, Json], names: int) -> Inline | None:
        given = {k: v for k, v in value.items() if k in _INLINE}
        if not given:
            return None
        if names > 1:
            raise BadValueError(
                "bad-mount", "a volume to create has one name, not alternatives", cls.HINT, ("name",)
            )
        problems: list[Problem] = []
        inline = decode(Inline, given, (), problems)
        if inline is None:
            first = problems[0]
            raise BadValueError(first.code, first.summary, first.hint, first.path, at_key=first.at_key)
        return inline

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string, or a mapping."""
        text = {"type": "string"}
        name = {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}
        keys: dict[str, Any] = {
            "name": name,
            "path": text,
            "size": Size.json_schema(),
            "backend": text,
            "region": text,
            "availability_zone": text,
            "prevent_destroy": {"type": "boolean"},
            "instance_path": text,
            "optional": {"type": "boolean"},
        }
        return {"anyOf": [text, {"type": "object", "properties": keys, "additionalProperties": False}]}

    def plain(self) -> Json:
        """`name:/path`, or the mapping where that cannot say it."""
        if len(self.names) == 1 and self.inline is None:
            return f"{self.names[0]}:{self.path}"
        name: Json = self.names[0] if len(self.names) == 1 else list(self.names)
        return {"name": name, "path": self.path, **(encode(self.inline) if self.inline else {})}


def _check_path(path: Json, where: tuple[str | int, ...]) -> str:
    """An absolute, normal path below `/`."""
    hint = "write an absolute path such as `/data`"
    if not isinstance(path, str):
        raise BadValueError("wrong-type", f"expected a path, found {describe(path)}", hint, where)
    if not path.startswith("/"):
        raise BadValueError("bad-path", f"`{path}` is not an absolute path", hint, where)
    if ".." in path.split("/"):
        raise BadValueError("bad-path", f"`{path}` leads through `..`", hint, where)
    normal = posixpath.normpath("/" + path.lstrip("/"))
    if normal == "/" or "\0" in path:
        raise BadValueError("bad-path", f"nothing can be mounted at `{path}`", hint, where)
    return normal


class Mounts(tuple[Mount, ...]):
    """All mounts of a task; no two at one path."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Mounts:
        """What `Mount` may have wrong, and `duplicate-mount`."""
        if not isinstance(value, list | tuple):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", Mount.HINT)
        out: list[Mount] = []
        paths: set[str] = set()
        for i, item in enumerate(value):
            try:
                mount = Mount.parse(item)
            except BadValueError as bad:
                raise BadValueError(
                    bad.code, bad.summary, bad.hint, (i, *bad.path), at_key=bad.at_key
                ) from None
            if mount.path in paths:
                raise BadValueError(
                    "duplicate-mount", f"two volumes are mounted at `{mount.path}`", "change one path", (i,)
                )
            paths.add(mount.path)
            out.append(mount)
        return cls(out)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of mounts."""
        return {"type": "array", "items": Mount.json_schema()}

    def plain(self) -> Json:
        """A list of mounts."""
        return [mount.plain() for mount in self]
