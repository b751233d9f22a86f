"""What a task's commands find beside their node: a Python, a clone of a repository, a registry's login."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from declarative.schema import BadValueError, Doc, Json
from declarative.schema.decode import describe

_PYTHON = re.compile(r"3\.\d{1,2}")
_REMOTE = re.compile(r"(?:https?://|ssh://(?:[\w.-]+@)?|[\w.-]+@[\w.-]+:(?!//))[\w.~/:%+-]+", re.ASCII)
_SECRET = re.compile(r"https?://[^/]*@")
_REVISION = re.compile(r"[\w][\w./-]{0,254}", re.ASCII)
_ENV = re.compile(r"\$\{\{ env\.\w+ \}\}", re.ASCII)


class Python(str):
    """A version of Python: `"3.12"`."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value`. Without quotes YAML reads a number, of which 3.1 was written as 3.10."""
        text = "3.10" if value == 3.1 else str(value)
        if isinstance(value, bool) or not isinstance(value, str | float) or not _PYTHON.fullmatch(text):
            raise BadValueError("bad-value", f"{describe(value)} is no version of Python", 'write `"3.12"`')
        return cls(text)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Text, or the number that YAML makes of it."""
        return {"type": ["string", "number"]}

    def plain(self) -> Json:
        """The version itself."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository of git, cloned before the commands; or a folder of the project, sent like `files`."""

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
        given: dict[str, Any] = {}
        if _SECRET.match(str(item.get("url") if isinstance(item, Mapping) else item)):
            hint = "leave them out: a private repository is cloned by the key or the helper of its node"
            raise BadValueError("bad-credential", "the URL holds a user or a password", hint, (0,))
        if isinstance(item, str):
            found = re.fullmatch(r"((?:\w+://|[\w.-]+@[\w.-]+:(?!//))?[^:]*(?::\d+/[^:]*)?)(?::(.*))?", item)
            given = {"source": found[1], "path": found[2] or "."} if found else {"source": item}
        elif (
            isinstance(item, Mapping)
            and set(item) <= set(cls.KEYS)
            and ("url" in item) != ("local_path" in item)
        ):
            given = {k: v for k, v in item.items() if k in ("path", "branch", "hash") and v is not None}
            given["source"] = item.get("url") or item.get("local_path")
        if not given or not all(isinstance(v, str) and v.strip() and "\0" not in v for v in given.values()):
            raise BadValueError("wrong-type", "expected a repository", cls.HINT, (0,))
        repo = Repo(**given)
        for text in (repo.branch, repo.hash):
            if text is not None and not _REVISION.fullmatch(text):
                raise BadValueError("bad-value", f"{describe(text)} is no branch or commit", cls.HINT, (0,))
        away = repo.path.startswith(("/", "~")) if repo.local else repo.path.startswith(("~", "-"))
        if away or ".." in repo.path.split("/"):
            hint = "leave the path out: what is sent lies where the commands start"
            raise BadValueError("bad-path", f"`{repo.path}` is not below the rank's folder", hint, (0,))
        if repo.local and (repo.source.startswith(("/", "~")) or ".." in repo.source.split("/")):
            hint = "make the repository's root the project (`fleetform -C DIR`), and write `files: [.]`"
            raise BadValueError("bad-path", f"`{repo.source}` leads out of the project", hint, (0,))
        return repo

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of strings or mappings."""
        keys = {key: {"type": ["string", "null"]} for key in cls.KEYS}
        mapping = {"type": "object", "properties": keys, "additionalProperties": False}
        return {"type": "array", "maxItems": 1, "items": {"anyOf": [{"type": "string"}, mapping]}}

    def plain(self) -> Json:
        """The mapping; of a folder `{local_path: …}`."""
        return [
            {("local_path" if r.local else "url"): r.source}
            | {
                k: v
                for k, v in (("path", r.path), ("branch", r.branch), ("hash", r.hash))
                if v not in (None, ".")
            }
            for r in self
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAuth:
    """The login to the registry of the `image`."""

    username: Annotated[str, Doc("The user.")]
    password: Annotated[str, Doc("`${{ env.NAME }}`: read where the rank is started, and never recorded.")]

    def __post_init__(self) -> None:
        if not _ENV.fullmatch(self.password):
            hint = "put it into the environment where you run `fleetform`, and write `${{ env.NAME }}`"
            summary = "`password` is not the name of an environment variable"
            raise BadValueError("bad-credential", summary, hint, ("password",), at_key=True)
