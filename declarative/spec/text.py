"""Names, environment variables and tags: text with rules of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from declarative.schema import BadValueError, Json
from declarative.schema.decode import describe

_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAG_KEY = re.compile(r"[_\-a-zA-Z0-9]{1,60}")
_TAG_VALUE = re.compile(r"[a-zA-Z0-9 .:/=_\-+@]{0,256}")


def check_name(text: Json) -> str:
    """A name of a fleet, volume, task or backend, matched whole."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        shown = repr(text) if isinstance(text, str) and text != text.strip() else describe(text)
        raise BadValueError(
            "bad-name",
            f"{shown} is not a name",
            "write 2 to 41 characters: a lower-case letter, then lower-case letters, digits and `-`",
        )
    return text


class Name(str):
    """A name: `[a-z][a-z0-9-]{1,40}`, matched whole."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` when it is not one."""
        return cls(check_name(value))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A pattern, so that editors mark it at once."""
        return {"type": "string", "pattern": "^[a-z][a-z0-9-]{1,40}$"}

    def plain(self) -> Json:
        """The name itself."""
        return str(self)


class Env(tuple[tuple[str, str], ...]):
    """Environment variables, as a list of `NAME=value` or a map. A bare `NAME` is taken from the caller."""

    __slots__ = ()
    HINT: ClassVar[str] = "write `NAME=value`, or `NAME` alone to pass the caller's value on"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-env`, `duplicate-key`."""
        pairs: list[tuple[str, str]] = []
        if isinstance(value, Mapping):
            items: list[tuple[str | int, Any, Any]] = [(k, k, v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            items = [(i, *cls._split(i, item)) for i, item in enumerate(value)]
        else:
            raise BadValueError(
                "wrong-type", f"expected a list or a mapping, found {describe(value)}", cls.HINT
            )
        seen: set[str] = set()
        for place, name, item in items:
            if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
                raise BadValueError(
                    "bad-env", f"{describe(name)} is not a variable's name", cls.HINT, (place,)
                )
            if name in seen:
                raise BadValueError("duplicate-key", f"`{name}` is set twice", "remove one of them", (place,))
            seen.add(name)
            if isinstance(item, Mapping | list | tuple):
                raise BadValueError(
                    "wrong-type", f"expected a string, found {describe(item)}", None, (place,)
                )
            pairs.append((name, cls._text(name, item)))
        return cls(pairs)

    @staticmethod
    def _text(name: str, item: Any) -> str:
        """A value as the shell sees it; a name alone is the caller's variable, read when the rank starts."""
        if item is None:
            return f"${{{{ env.{name} }}}}"
        return str(item).lower() if isinstance(item, bool) else str(item)

    @classmethod
    def _split(cls, place: int, item: Json) -> tuple[str, str | None]:
        if not isinstance(item, str):
            raise BadValueError(
                "wrong-type", f"expected `NAME=value`, found {describe(item)}", cls.HINT, (place,)
            )
        name, equals, text = item.partition("=")
        return name, text if equals else None

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of strings, or a mapping of plain values."""
        return {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
            ]
        }

    def plain(self) -> Json:
        """A mapping, in the order of declaration."""
        return dict(self)


class Tags(dict[str, str]):
    """Tags: letters, digits, `_` and `-` in keys (60), a little more in values (256), as dstack allows."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-tag`."""
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}")
        out = cls()
        for key, item in value.items():
            text = str(item).lower() if isinstance(item, bool) else str(item)
            if not _TAG_KEY.fullmatch(str(key)):
                raise BadValueError(
                    "bad-tag", f"`{key}` cannot be a tag's key", "use letters, digits, `_`, `-`", (key,)
                )
            if isinstance(item, Mapping | list | tuple) or item is None or not _TAG_VALUE.fullmatch(text):
                hint = "use letters, digits, spaces and `.:/=_-+@`"
                raise BadValueError("bad-tag", f"{describe(item)} cannot be a tag's value", hint, (key,))
            out[str(key)] = text
        return out

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A mapping of strings."""
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

    def plain(self) -> Json:
        """A mapping, sorted by key."""
        return dict(sorted(self.items()))
