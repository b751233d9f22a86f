"""The published JSON Schemas of what `plan --json`, `status --json` and `state pull` print. Scripts rely on
them.

They are made from the structs that describe the outputs (`model.outputs`). The schemas are open: a
version may get new keys within one `format_version`, and scripts must accept unknown keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias

from declarative.model.outputs import Kind, Mark, OneOf, Pattern, keys_of, kind_of
from declarative.model.schema import DIALECT, Is
from declarative.planner.plan import FORMAT_VERSION
from declarative.render.plan_document import PlanOutput
from declarative.render.status_view import StatusView
from declarative.store.schema import FORMAT_VERSION as RECORDED
from declarative.store.snapshot import StateData

Schema: TypeAlias = dict[str, Any]

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_FROM_ZERO = Is(minimum=0)


def plan_schema() -> Schema:
    """The schema of `plan --json`."""
    return _published("plan", PlanOutput, FORMAT_VERSION)


def status_schema() -> Schema:
    """The schema of `status --json`."""
    return _published("status", StatusView, FORMAT_VERSION)


def state_schema() -> Schema:
    """The schema of `state pull`."""
    return _published("state", StateData, RECORDED)


def _published(name: str, cls: type, version: int) -> Schema:
    schema = _schema(cls)
    first = {"format_version": {"description": "The version of this contract.", "const": version}}
    properties = first | schema["properties"] | first
    about = {"$schema": DIALECT, "title": f"fleetform {name}"}
    return {**about, **schema, "properties": properties, "required": list(properties)}


def _schema(hint: Any) -> Schema:
    """The schema of a hint. Null is one more type, or one more value of an enumeration."""
    kind = kind_of(hint)
    schema = _of_kind(kind)
    if kind.nullable:
        more = {"enum": [*schema["enum"], None]} if "enum" in schema else {"type": [schema["type"], "null"]}
        schema |= more
    return {"description": kind.doc, **schema} if kind.doc else schema


def _of_kind(kind: Kind) -> Schema:
    base, marks = kind.base, kind.marks
    if OneOf in marks:
        return {"enum": marks[OneOf].texts()}
    if Pattern in marks:
        return {"type": "string", "pattern": marks[Pattern].regex}
    if Mark.DATE_TIME in marks:
        return {"type": "string", "format": "date-time"}
    if Mark.UTC in marks:
        return {"type": "string"}
    if base is Any:
        return {}
    if base is Literal:
        return {"const": kind.args[0]}
    if base is tuple:
        return {"type": "array", "items": _schema(kind.args[0])}
    if base is Mapping:
        values = _schema(kind.args[1])
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if base is int:
        # A number is at least 0, unless `Is` says otherwise.
        minimum = marks.get(Is, _FROM_ZERO).minimum
        return {"type": "integer"} if minimum is None else {"type": "integer", "minimum": minimum}
    if base in _NAMES:
        return {"type": _NAMES[base]}
    if issubclass(base, Enum):
        return {"enum": [member.value for member in base]}
    properties = {name: _schema(inner) for name, _, inner in keys_of(base)}
    return {"type": "object", "properties": properties, "required": list(properties)}
