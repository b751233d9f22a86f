"""What a task's commands need: files, a clone of a repository, a Python, a login to a registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeGuard

from declarative.model.record import struct
from declarative.model.schema.marks import BadValueError, Doc, Json, Word, closed_mapping, describe, raise_all


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
        out: list[File] = []
        faults: list[BadValueError] = []
        for i, item in enumerate(value):
            try:
                out.append(cls._file(item))
            except BadValueError as bad:
                faults += bad.within(i)
        raise_all(faults)
        return cls(out)

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
