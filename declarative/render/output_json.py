"""The JSON that commands print, the one way to write it, and its published schemas, on which scripts rely.

`model.outputs` tells what is printed of a struct: the JSON and its schema are made from that. The contract:
docs/architecture.md, "The plan".
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.outputs import Digits, Kind, Mark, Of, OneOf, Pattern, keys_of, kind_of
from declarative.model.record import struct
from declarative.model.schema import DIALECT, Doc, Is
from declarative.planner.approval import number, plain

_RAW = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]|#(?=#\\w*\\[)")
"""Characters that `json` does not escape, and that a terminal, an encoder or a CI agent (`##[…]`) may
misread.
"""


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def to_json(data: Any) -> str:
    """Indented JSON with a newline at its end. The same data gives the same bytes.

    Keys keep the order of the contract. Control characters are escaped, also those that JSON allows, so that
    the text is safe to print. `NaN` raises ValueError, since it is not JSON.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return _RAW.sub(_escape, text) + "\n"


def to_line(data: Any) -> str:
    """As `to_json`, on one line and without a newline at its end: for streams of events."""
    return _RAW.sub(_escape, json.dumps(data, ensure_ascii=False, allow_nan=False))


def to_event(data: Mapping[str, Any]) -> str:
    """One event of a stream as a line, with its `time`: UTC, to the millisecond."""
    return to_line({**data, "time": iso_ms(datetime.now(tz=UTC).timestamp())})


def iso(seconds: float | None) -> str | None:
    """`2026-01-31T12:00:00Z`; None for None and for times outside the calendar."""
    with suppress(ValueError, OverflowError, OSError):
        if seconds is not None:
            return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None


def iso_ms(seconds: float) -> str:
    """`2026-01-31T12:00:00.250Z`."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _of_span(name: str) -> Of:
    return Of(lambda finding: getattr(finding.span, name) if finding.span else None)


@struct(frozen=True, slots=True, kw_only=True)
class DiagnosticOutput:
    """One finding."""

    severity: Annotated[Severity, Doc("An error stops the command, a warning does not.")]
    code: Annotated[str, Doc("Stable; docs/errors.md explains each.")]
    summary: Annotated[str, Doc("What is wrong.")]
    hint: Annotated[
        str | None,
        Of(
            lambda finding: "\n".join((finding.hint or "", *finding.block)) if finding.block else finding.hint
        ),
        Doc("What to do. Null if there is none."),
    ]
    address: Annotated[
        str | None, Doc("The address that it is about. Null if it is not about a single thing.")
    ]
    file: Annotated[
        str | None,
        _of_span("file"),
        Doc("Relative to the project's directory. Null if the finding is not about a file."),
    ]
    line: Annotated[
        int | None, _of_span("line"), Is(minimum=1), Doc("From 1. Null if the finding is not about a file.")
    ]
    column: Annotated[
        int | None, _of_span("column"), Is(minimum=1), Doc("From 1. Null if the finding is not about a file.")
    ]
    end_line: Annotated[
        int | None,
        _of_span("end_line"),
        Is(minimum=1),
        Doc("From 1. Null if the finding is not about a file."),
    ]
    end_column: Annotated[
        int | None,
        _of_span("end_column"),
        Is(minimum=1),
        Doc("From 1; exclusive. Null if the finding is not about a file."),
    ]


def diagnostics_json(diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """The findings as data, in the order given."""
    return [output(DiagnosticOutput, finding) for finding in diagnostics]


def validate_json(valid: bool, diagnostics: Iterable[Diagnostic]) -> dict[str, Any]:
    """What `validate --json` prints."""
    return {"valid": valid, "diagnostics": diagnostics_json(diagnostics)}


# ------------------------------------------------------------------------------ from a description

Writer = Callable[[Any], Any]


def output(cls: type, source: object, **ready: Any) -> dict[str, Any]:
    """What `cls` describes, with the values of `source`; `ready` are values that are data already."""
    return {name: ready[name] if name in ready else write(get(source)) for name, get, write in _columns(cls)}


@functools.cache
def _columns(cls: type) -> tuple[tuple[str, Writer, Writer], ...]:
    return tuple(
        (name, operator.attrgetter(source) if isinstance(source, str) else source, _writer(hint))
        for name, source, hint in keys_of(cls)
    )


@functools.cache
def _writer(hint: Any) -> Writer:
    """A function that makes data from values of this type. Cached: reading the hints takes long."""
    kind = kind_of(hint)
    if Mark.UTC in kind.marks:
        return iso
    if Mark.USD in kind.marks:
        return number
    if kind.base is Any:
        return plain
    write: Writer = kind.base if kind.base is str else lambda value: value
    if kind.base is float:
        digits = kind.marks[Digits].count if Digits in kind.marks else 6
        write = functools.partial(round, ndigits=digits)
    elif kind.base is tuple:
        of_item = _writer(kind.args[0])
        write = lambda values: [of_item(value) for value in values]  # noqa: E731 (one of several)
    elif kind.base is Mapping:
        # Sorted by key, since a database may return them in another order.
        of_value = _writer(kind.args[1])
        write = lambda values: {str(key): of_value(values[key]) for key in sorted(values)}  # noqa: E731
    elif kind.is_struct:
        write = functools.partial(output, kind.base)
    return (lambda value: None if value is None else write(value)) if kind.nullable else write


_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def published_schema(name: str, cls: type, version: int) -> dict[str, Any]:
    """The schema of what `cls` describes. It is open: a version may get new keys within one
    `format_version`, and scripts must accept unknown keys.
    """
    schema = _schema(cls)
    first = {"format_version": {"description": "The version of this contract.", "const": version}}
    properties = first | schema["properties"] | first
    about = {"$schema": DIALECT, "title": f"fleetform {name}"}
    return {**about, **schema, "properties": properties, "required": list(properties)}


def _schema(hint: Any) -> dict[str, Any]:
    """The schema of a hint. Null is one more type, or one more value of an enumeration."""
    kind = kind_of(hint)
    schema = _of_kind(kind)
    if kind.nullable:
        more = {"enum": [*schema["enum"], None]} if "enum" in schema else {"type": [schema["type"], "null"]}
        schema |= more
    return {"description": kind.doc, **schema} if kind.doc else schema


def _of_kind(kind: Kind) -> dict[str, Any]:
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
        minimum = marks.get(Is, Is(minimum=0)).minimum
        return {"type": "integer"} if minimum is None else {"type": "integer", "minimum": minimum}
    if base in _NAMES:
        return {"type": _NAMES[base]}
    if issubclass(base, Enum):
        return {"enum": [member.value for member in base]}
    properties = {name: _schema(inner) for name, _, inner in keys_of(base)}
    return {"type": "object", "properties": properties, "required": list(properties)}
