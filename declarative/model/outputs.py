"""How a struct tells of what a command prints: its fields are the keys of the JSON, in order and with texts.

`render.output_json` makes the JSON and the published schema from this description: each fact stands once. A
field is printed unless it is `TEXT_ONLY`. A key that only follows from other fields is a `ClassVar` with
`Of`.
"""

from __future__ import annotations

import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeAlias

from declarative.model.record import struct
from declarative.model.schema import Doc


@struct(frozen=True, slots=True)
class Of:
    """The value of a key: the attribute at this path, or what a function makes of the struct."""

    source: str | Callable[[Any], Any]


@struct(frozen=True, slots=True)
class Key:
    """The name of a key that is not the field's."""

    name: str


@struct(frozen=True, slots=True)
class As:
    """What describes the JSON of a value whose own type does not."""

    hint: Any


@struct(frozen=True, slots=True)
class OneOf:
    """The values that a text may have."""

    values: type[Enum] | tuple[str, ...]

    def texts(self) -> list[str]:
        """The values as they are printed."""
        values: Iterable[Any] = self.values
        return [value.value if isinstance(value, Enum) else value for value in values]


@struct(frozen=True, slots=True)
class Pattern:
    """The regular expression of a text."""

    regex: str


@struct(frozen=True, slots=True)
class Digits:
    """How many decimal places of a number are printed, if not six."""

    count: int


class Mark(Enum):
    """Marks without an argument."""

    UTC = "seconds since the epoch, printed as `2026-01-31T12:00:00Z`"
    DATE_TIME = "a text with JSON Schema's format of times"
    USD = "printed without what only the way of computing it adds"
    TEXT_ONLY = "not in the JSON"


TEXT_ONLY = Mark.TEXT_ONLY
Moment: TypeAlias = Annotated[float, Mark.UTC, Mark.DATE_TIME]
"""A time in seconds since the epoch."""
Usd: TypeAlias = Annotated[float, Mark.USD]


def address_of(kinds: Iterable[str]) -> Pattern:
    """The pattern of addresses of these kinds."""
    return Pattern(f"^({'|'.join(kinds)})/[^/]+$")


@struct(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type hint taken apart. The outer one of marks on several levels counts."""

    base: Any
    args: tuple[Any, ...]
    nullable: bool
    marks: dict[Any, Any]

    @property
    def doc(self) -> str:
        """The text of the field, else that of its struct."""
        if Doc in self.marks:
            return typing.cast("str", self.marks[Doc].text)
        return " ".join((self.base.__doc__ or "").split("\n\n")[0].split()) if self.is_struct else ""

    @property
    def is_struct(self) -> bool:
        """Whether the value is an object with keys of its own."""
        return hasattr(self.base, "__dataclass_fields__")


def kind_of(hint: Any) -> Kind:
    """The type, and what `Annotated`, `ClassVar` and `| None` say of it."""
    marks: dict[Any, Any] = {}
    nullable = False
    while True:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            hint = args[0]
            marks = {mark if isinstance(mark, Mark) else type(mark): mark for mark in args[1:]} | marks
        elif origin is ClassVar:
            (hint,) = args
        elif origin in (typing.Union, types.UnionType):
            hint, *others = (arg for arg in args if arg is not types.NoneType)
            nullable = True
            if others:
                hint = marks.pop(As).hint
        elif As in marks:
            hint = marks.pop(As).hint
        else:
            return Kind(base=origin or hint, args=args, nullable=nullable, marks=marks)


@functools.cache
def keys_of(cls: type) -> tuple[tuple[str, str | Callable[[Any], Any], Any], ...]:
    """The keys of a struct: name, source of its value, and hint. `for_` is printed as `for`."""
    out = []
    names = vars(sys.modules[cls.__module__])  # without those of the class, which hide functions
    for name, hint in typing.get_type_hints(cls, names, names, include_extras=True).items():
        marks = kind_of(hint).marks
        if TEXT_ONLY not in marks:
            key = marks[Key].name if Key in marks else name.rstrip("_")
            out.append((key, marks[Of].source if Of in marks else name, hint))
    return tuple(out)
