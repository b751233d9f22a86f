"""Type hints to JSON Schema 2020-12, and jsonschema over plain data.

`decode` gives the better messages. `validate` makes sure that the schemas published for editors and third
parties allow what `decode` accepts, and nothing else. Its findings are shown where `decode` has none.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from declarative.model.schema.marks import Field, Is, Json, Problem, Syntax, fields_of, ignored_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", bool: "boolean", float: "number"}
_NUMBER_IN_QUOTES = {int: r"^\s*-?\d+\s*$", float: r"^\s*-?\d+(\.\d+)?\s*$"}


F = typing.TypeVar("F", bound=Callable[..., Any])
UNBOUNDED = Is()


def _bounded(schema: dict[str, Any], bounds: Is) -> dict[str, Any]:
    if bounds.minimum is not None:
        schema["minimum"] = bounds.minimum
    if bounds.maximum is not None:
        schema["maximum"] = bounds.maximum
    if bounds.above is not None:
        schema["exclusiveMinimum"] = bounds.above
    return schema


def type_schema(hint: Any, bounds: Is = UNBOUNDED) -> dict[str, Any]:
    """The schema of one type hint: plain type, enum, list, map, syntax or dataclass."""
    if hint is typing.Any:
        return {}
    if hint in _PLAIN:
        plain = _bounded({"type": _PLAIN[hint]}, bounds)
        pattern = _NUMBER_IN_QUOTES.get(hint)
        return {"anyOf": [plain, {"type": "string", "pattern": pattern}]} if pattern else plain
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _bounded({"type": "array", "items": type_schema(args[0])}, bounds)
    if origin is Mapping:
        return {"type": "object", "additionalProperties": type_schema(args[1])}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint) and not issubclass(typing.cast("type", hint), Syntax):
        return object_schema(typing.cast("type", hint))
    return typing.cast("dict[str, Any]", hint.json_schema())


def _property(field: Field) -> dict[str, Any]:
    schema = dict(type_schema(field.hint, field.bounds))
    if not field.required:
        # `field:` with nothing behind it means "left out", as it does in dstack's files.
        default = [{"const": True}] if field.bounds.true_is_default else []
        schema = {"anyOf": [schema, *default, {"type": "null"}]}
    return {"description": field.doc, **schema} if field.doc else schema


def object_schema(cls: type) -> dict[str, Any]:
    """The schema of a dataclass: its fields and no others."""
    fields = fields_of(cls)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        "additionalProperties": False,
    }
    for name, why in ignored_of(cls).items():
        schema["properties"][name] = {"description": f"Changes nothing: {why}."}
    default = getattr(cls, "DEFAULTED", ())
    required = [field.name for field in fields if field.required and field.name not in default]
    if required:
        schema["required"] = required
    return schema


def document_schema(cls: type, kind: str) -> dict[str, Any]:
    """The schema of one YAML document: the dataclass plus its `type:`."""
    body = object_schema(cls)
    doc = (cls.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    return {
        "$schema": DIALECT,
        "title": kind,
        "description": " ".join(doc.split()),
        "type": "object",
        "properties": {"type": {"const": kind}, **body["properties"]},
        "required": ["type", *body.get("required", [])],
        "additionalProperties": False,
    }


TEMPLATE = {"$ref": "#/$defs/template"}


def templated(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a document as it stands in a file: a template may stand for any value of it."""
    template = {
        "description": "A template, such as `${{ var.size }}`.",
        "type": "string",
        "pattern": r"\$\{\{",
    }
    return {**_with_templates(schema), "$defs": {"template": template}}


def _with_templates(schema: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(schema)
    if "properties" in schema:
        out["properties"] = {name: _or_template(inner) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            out[key] = _or_template(schema[key])
    if "anyOf" in schema:
        out["anyOf"] = [_with_templates(inner) for inner in schema["anyOf"]]
    return out


def _or_template(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one value. A text without rules needs no more."""
    with_templates = _with_templates(schema)
    if "const" in with_templates or _takes_text(with_templates):
        return with_templates
    if "anyOf" in with_templates:
        return {**with_templates, "anyOf": [*with_templates["anyOf"], TEMPLATE]}
    described = {"description": with_templates.pop("description")} if "description" in with_templates else {}
    return {**described, "anyOf": [with_templates, TEMPLATE]}


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Whether any text is allowed."""
    if "anyOf" in schema:
        return any(map(_takes_text, schema["anyOf"]))
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) and not {"pattern", "enum"} & {*schema}


@functools.cache
def _validator(cls: type, kind: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(document_schema(cls, kind))


MAX_KEPT = 1_000


class _Shown:
    """A plain value as a key: `repr` tells 1 from 1.0 and true, which are equal."""

    __slots__ = ("text", "value")

    def __init__(self, value: Json) -> None:
        self.value, self.text = value, repr(value)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.text == other.text


def kept(size: int) -> Callable[[F], F]:
    """A cache for a function of plain data, its last argument: thousands of documents have few different
    values. What is long is not kept: it is not met again, and might be many megabytes.
    """

    def made(function: F) -> F:
        known = functools.lru_cache(size)(lambda *given: function(*given[:-1], given[-1].value))

        @functools.wraps(function)
        def run(*given: Any) -> Any:
            shown = _Shown(given[-1])
            return known(*given[:-1], shown) if len(shown.text) <= MAX_KEPT else function(*given)

        return typing.cast("F", run)

    return made


@kept(16384)
def _allowed(cls: type, kind: str, field: str, value: Json) -> bool:
    """Whether the schema of one field allows this value."""
    schema = _validator(cls, kind)
    return bool(schema.evolve(schema=schema.schema["properties"][field]).is_valid(value))


def _valid(cls: type, kind: str, value: Mapping[str, Json]) -> bool:
    """The document's schema taken apart: the fields that it must and may have, and each one's own schema."""
    schema = _validator(cls, kind).schema
    fields = schema["properties"]
    if not all(name in value for name in schema["required"]):
        return False
    return all(name in fields and _allowed(cls, kind, name, item) for name, item in value.items())


def validate(cls: type, kind: str, value: Json) -> list[Problem]:
    """Every place where `value` is not what the schema of document type `kind` allows."""
    if isinstance(value, Mapping) and _valid(cls, kind, value):
        return []
    errors = _validator(cls, kind).iter_errors(value)
    return [Problem(tuple(e.absolute_path), "schema", e.message[:200]) for e in errors]
