"""jsonschema over plain data: the same verdict as `decode`, by the published schema.

`decode` gives the better messages; this pass makes sure that what we publish for editors and third
parties and what we accept are one language. Its findings are shown where `decode` has none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from declarative.schema.decode import Problem
from declarative.schema.generate import document_schema
from declarative.schema.marks import Json


@functools.cache
def _validator(cls: type, kind: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(document_schema(cls, kind))


MAX_KEPT = 1_000


@functools.lru_cache(maxsize=16384)
def _allowed(cls: type, kind: str, field: str, value: _Shown) -> bool:
    """Whether the schema of one field allows this value. Thousands of documents have few different values."""
    schema = _validator(cls, kind)
    return bool(schema.evolve(schema=schema.schema["properties"][field]).is_valid(value.value))


class _Shown:
    """A plain value as a key: `repr` tells 1 from 1.0 and true, which are equal."""

    __slots__ = ("text", "value")

    def __init__(self, value: Json) -> None:
        self.value, self.text = value, repr(value)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.text == other.text


def _valid(cls: type, kind: str, value: Mapping[str, Json]) -> bool:
    """The document's schema taken apart: the fields that it must and may have, and each one's own schema."""
    schema = _validator(cls, kind).schema
    fields = schema["properties"]
    if not all(name in value for name in schema["required"]):
        return False
    for name, item in value.items():
        shown = _Shown(item)
        # What is long is not kept: it is not met again, and might be many megabytes.
        allowed = _allowed if len(shown.text) <= MAX_KEPT else _allowed.__wrapped__
        if name not in fields or not allowed(cls, kind, name, shown):
            return False
    return True


def validate(cls: type, kind: str, value: Json) -> list[Problem]:
    """Every place where `value` is not what the schema of document type `kind` allows."""
    if isinstance(value, Mapping) and _valid(cls, kind, value):
        return []
    found = _validator(cls, kind).iter_errors(value)
    return [Problem(tuple(e.absolute_path), "schema", e.message[:200]) for e in found]
