"""The parts of the published schemas of `contract`: each is a small JSON Schema with its sentence."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from declarative.model.schema import DIALECT
from declarative.model.state import KINDS

Schema: TypeAlias = dict[str, Any]


def text(about: str = "", **more: Any) -> Schema:
    """A string."""
    return described(about, {"type": "string", **more})


def whole(about: str = "", minimum: int = 0) -> Schema:
    """A whole number of at least `minimum`."""
    return described(about, {"type": "integer", "minimum": minimum})


def number(about: str = "") -> Schema:
    """A number."""
    return described(about, {"type": "number"})


def flag(about: str) -> Schema:
    """True or false."""
    return described(about, {"type": "boolean"})


def one_of(about: str, values: type[Enum] | Iterable[str]) -> Schema:
    """One of some values, or of an enumeration."""
    return described(about, {"enum": [str(v.value) if isinstance(v, Enum) else v for v in values]})


def or_null(schema: Schema, when: str) -> Schema:
    """Null, and when it is."""
    about = f"{schema.get('description', '')} Null {when}.".strip()
    rest = {k: v for k, v in schema.items() if k != "description"}
    if "enum" in rest:
        return {"description": about, "enum": [*rest["enum"], None]}
    return {"description": about, **rest, "type": [rest["type"], "null"]}


def list_of(about: str, items: Schema) -> Schema:
    """A list."""
    return described(about, {"type": "array", "items": items})


def map_of(about: str, values: Schema) -> Schema:
    """An object whose keys are data."""
    return described(about, {"type": "object", "additionalProperties": values})


def record(about: str, **fields: Schema) -> Schema:
    """All of its keys are always there."""
    return described(about, {"type": "object", "properties": fields, "required": list(fields)})


def described(about: str, schema: Schema) -> Schema:
    """A schema with its sentence."""
    return {"description": about, **schema} if about else schema


def address_of(about: str, kinds: Iterable[str] = KINDS) -> Schema:
    """An address of one of the kinds."""
    return text(about, pattern=f"^({'|'.join(kinds)})/[^/]+$")


def published(title: str, about: str, version: int, **fields: Schema) -> Schema:
    """A schema of its own: an object with its version."""
    first = {"format_version": {"description": "The version of this contract.", "const": version}}
    return {"$schema": DIALECT, "title": title, **record(about, **first, **fields)}
