"""Marks of fields: documentation and bounds; and the errors of bad values."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from declarative.model.record import struct

ValuePath: TypeAlias = tuple[str | int, ...]
Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

MAX_SHOWN = 40
"""Characters of a value that a message shows."""


@struct(frozen=True, slots=True)
class Doc:
    """One sentence for the schema, the editor's completion and the table of docs/language.md."""

    text: str


@struct(frozen=True, slots=True)
class Is:
    """Bounds of a plain value."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    most_items: int | None = None
    longest: int = 4096
    """Characters of a text, or of each text in a list: a plan may repeat one declaration for each node."""
    blank: bool = False
    """Whether a text may be empty, or only blanks."""
    any_case: bool = False
    """For a list: `in` compares without case."""
    true_is_default: bool = False
    """`true` means the default, as it does in dstack's durations."""


@struct(frozen=True, slots=True)
class InPlace:
    """A change of this field is applied to what exists; a change of any other field replaces it."""


class BadValueError(ValueError):
    """A value that its syntax does not allow. `path` leads from the value to the part that is wrong.

    A value of many parts may have many faults: `others` are those after the first.
    """

    def __init__(
        self,
        code: str,
        summary: str,
        hint: str | None = None,
        path: tuple[str | int, ...] = (),
        *,
        at_key: bool = False,
    ) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.hint = hint
        self.path = path
        self.at_key = at_key
        self.others: tuple[BadValueError, ...] = ()

    def each(self) -> tuple[BadValueError, ...]:
        """This fault and the others."""
        return (self, *self.others)

    def within(self, *above: str | int) -> tuple[BadValueError, ...]:
        """Each fault, as one of the value that holds this one at `above`."""
        return tuple(
            BadValueError(bad.code, bad.summary, bad.hint, (*above, *bad.path), at_key=bad.at_key)
            for bad in self.each()
        )


@struct(frozen=True, slots=True)
class Problem:
    """A finding about plain data: `path` leads to it, `at_key` means the key rather than its value."""

    path: ValuePath
    code: str
    summary: str
    hint: str | None = None
    at_key: bool = False
    warning: bool = False
    """Whether the value can be used all the same."""


def describe(value: object) -> str:
    """A value as an error message may show it: its type, and the value itself if it is short."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = str(value)
    if not text.strip():
        return "empty text"
    return f"`{text[:MAX_SHOWN]}{'…' if len(text) > MAX_SHOWN else ''}`"


def unquoted(value: object, wanted: tuple[type, ...], otherwise: str) -> str:
    """The hint for a value that is text because of its quotes: `"false"`, `"2"`; else another hint."""
    text = value.strip() if isinstance(value, str) else ""
    is_meant = (bool in wanted and text in ("true", "false")) or (
        int in wanted and text.isascii() and text.isdecimal() and len(text) <= MAX_SHOWN
    )
    return f"write it without quotes: `{text}`" if is_meant else otherwise


def raise_all(faults: Sequence[BadValueError]) -> None:
    """Raise the first, with the others in it, if there are any."""
    if faults:
        first = faults[0]
        first.others += tuple(other for bad in faults[1:] for other in bad.each())
        raise first


@runtime_checkable
class Syntax(Protocol):
    """A value with a notation of its own, such as `16GB..64GB`."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """Read the notation; `BadValueError` says what is wrong with it."""
        ...

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The schema that an editor checks while the user types: never narrower than `parse`."""
        ...

    def plain(self) -> Json:
        """The normal form: `parse(plain())` gives the same value."""
        ...


def closed_mapping(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """The schema of a mapping with these keys and no others."""
    names = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), **names, "additionalProperties": False}


class Word(str):
    """A text with a notation of its own, whose normal form is the text itself."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string"}
    """What an editor checks while the user types."""

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """`SCHEMA`."""
        return dict(cls.SCHEMA)

    def plain(self) -> Json:
        """The text itself."""
        return str(self)


@struct(frozen=True, slots=True)
class Field:
    """One field of a dataclass with its marks read."""

    name: str
    hint: Any
    required: bool
    doc: str
    bounds: Is
    in_place: bool
    default: Any


def _unwrap(hint: Any) -> Any:
    """`T` of `T | None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return hint


@functools.cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a dataclass, in order of declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    out: list[Field] = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        marks: tuple[Any, ...] = ()
        if typing.get_origin(hint) is Annotated:
            hint, *rest = typing.get_args(hint)
            marks = tuple(rest)
        hint = _unwrap(hint)
        if field.default is not dataclasses.MISSING:
            default, required = field.default, False
        elif field.default_factory is not dataclasses.MISSING:
            default, required = field.default_factory(), False
        else:
            default, required = None, True
        out.append(
            Field(
                name=field.name,
                hint=hint,
                required=required,
                doc=next((m.text for m in marks if isinstance(m, Doc)), ""),
                bounds=next((m for m in marks if isinstance(m, Is)), Is()),
                in_place=any(isinstance(m, InPlace) for m in marks),
                default=default,
            )
        )
    return tuple(out)


@functools.cache
def in_place(cls: type) -> frozenset[str]:
    """The fields whose change is applied to what exists: those that are marked `InPlace`."""
    return frozenset(field.name for field in fields_of(cls) if field.in_place)


def ignored_of(cls: type) -> Mapping[str, str]:
    """Fields of dstack that are accepted and change nothing, and why not."""
    return typing.cast("Mapping[str, str]", getattr(cls, "IGNORED", {}))
