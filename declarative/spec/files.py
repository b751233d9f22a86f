"""A task's `files`: paths of the project that its ranks find in their own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from declarative.schema import BadValueError, Json, raise_all
from declarative.schema.decode import describe


@dataclass(frozen=True, slots=True)
class File:
    """A path of the project and where it appears in the rank's working folder."""

    local_path: str
    path: str


class Files(tuple[File, ...]):
    """`src`, `src:where`, or `{local_path: src, path: where}`."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a path below the project's directory: `train.py`, or `src:code`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-path` for paths that are absolute or lead out of the project."""
        if not isinstance(value, list | tuple):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        out: list[File] = []
        faults: list[BadValueError] = []
        for i, item in enumerate(value):
            try:
                out.append(cls._file(item))
            except BadValueError as bad:
                faults += bad.below(i)
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
            if not isinstance(text, str) or not text.strip() or "\0" in text:
                raise BadValueError("bad-path", f"{describe(text)} is not a path", cls.HINT)
            if text.startswith(("/", "~")) or ".." in text.split("/"):
                raise BadValueError("bad-path", f"`{text}` leads out of the project", cls.HINT)
        return File(str(pair[0]), str(pair[1]))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of strings or mappings."""
        keys = {"local_path": {"type": "string"}, "path": {"type": "string"}}
        mapping = {
            "type": "object",
            "properties": keys,
            "required": ["local_path"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": {"anyOf": [{"type": "string"}, mapping]}}

    def plain(self) -> Json:
        """`src` or `src:where`."""
        return [f.path if f.path == f.local_path else f"{f.local_path}:{f.path}" for f in self]
