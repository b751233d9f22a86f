"""A plan's values as JSON-able data, and back, strictly by the types that the dataclasses declare.

Not `schema`'s decoder: that reads a language, with defaults, notations and words for its users. This reads
what a program wrote, so anything else is a fault of the file and gets one short sentence.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

DataReader: TypeAlias = Callable[[Any], Any]

PLAN_KIND = "fleetform plan"
"""The begin of a saved plan: `"kind": "fleetform plan"`."""
LARGEST = 1 << 53
"""No plan has larger whole numbers, and not every reader of JSON keeps them."""


MOST_LEVELS = 40
"""Levels of nested data that is passed on as it is."""


class BadDataError(ValueError):
    """Data that is not what its type says; `path` leads to it, innermost part first until it is shown."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path: list[str] = []

    def at(self, part: object) -> BadDataError:
        """This error, with one more part in front of its path."""
        self.path.append(f"[{part}]" if isinstance(part, int) else f".{part}")
        return self

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).removeprefix(".")
        return f"`{where}` is not {self.expected}" if where else f"it is not {self.expected}"


SCALARS = frozenset({str, int, float, bool, type(None)})
"""Values of these very classes are data already."""


class Stored(dict[str, Any]):
    """Data as they are stored, only to be looked at. The things of one document share them, and what they
    were read as is kept with them.
    """

    __slots__ = ("text", "typed")
    text: str
    """Their stored text, if it is known."""
    typed: tuple[str, Any]


def to_data(value: Any) -> Any:
    """A value as dicts, lists and scalars. Fields that are as they are by default stay out."""
    return _writer(value.__class__)(value)


@functools.cache
def _writer(cls: type) -> Callable[[Any], Any]:
    """A function that makes data from values of a class. Cached: reading the fields takes long."""
    if cls in SCALARS:
        return _as_it_is
    if issubclass(cls, Enum):
        return lambda value: value.value
    if issubclass(cls, str | int):
        return _as_it_is
    if hasattr(cls, "from_data"):
        return str
    if issubclass(cls, Mapping):
        return lambda value: {str(key): to_data(item) for key, item in value.items()}
    if issubclass(cls, list | tuple):
        return lambda value: [to_data(item) for item in value]
    missing = dataclasses.MISSING
    defaults = [(f.name, missing if "always" in f.metadata else _default(f)) for f in _fields(cls)]

    def written_fields(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, default in defaults:
            item = getattr(value, name)
            if item is not default and item != default:
                out[name] = item if item.__class__ in SCALARS else to_data(item)
        return out

    return written_fields


def _as_it_is(value: Any) -> Any:
    return value


FIRST: Mapping[str, Any] = {"first": True}
"""Metadata of a field that is written before the others."""
ALWAYS: Mapping[str, Any] = {"always": True}
"""Metadata of a field that is written also where it has its default."""


def _fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """The fields that a value is made of, in the order in which they are written; caches are left out."""
    fields = [f for f in dataclasses.fields(cls) if f.init]
    return sorted(fields, key=lambda f: "first" not in f.metadata)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def reader(hint: Any) -> DataReader:
    """A function that makes a value of this type from data, or raises `BadDataError`."""
    if hint is Any:
        return functools.partial(_anything, MOST_LEVELS)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if args := typing.get_args(hint):
        origin = typing.get_origin(hint)
        if origin is tuple:
            return functools.partial(read_items, reader(args[0]))
        if origin is frozenset:
            return functools.partial(_members, reader(args[0]))
        if origin is Mapping:
            return functools.partial(read_mapping, _number_key if args[0] is int else str, reader(args[1]))
        inner = reader(next(a for a in args if a is not types.NoneType))
        return lambda data: None if data is None else inner(data)
    if hasattr(hint, "from_data"):
        return functools.partial(_from_text, hint)
    if issubclass(hint, Enum):
        return functools.partial(_member, hint)
    return _whole_of(hint)


def _anything(levels: int, data: Any) -> Any:
    if isinstance(data, list | dict):
        if not levels:
            raise BadDataError("so deep")
        for item in data.values() if isinstance(data, dict) else data:
            _anything(levels - 1, item)
    return data


def outline(hint: Any, outlined: dict[str, list[str]]) -> None:
    """Collect what values of this type are made of: the names of all fields and members, class by class."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint.__name__ not in outlined:
        names = outlined[hint.__name__] = [f.name for f in _fields(hint)]
        inner = typing.get_type_hints(hint)
        for name in names:
            outline(inner[name], outlined)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        outlined[hint.__name__] = [str(member.value) for member in hint]
    else:
        for part in typing.get_args(hint):
            outline(part, outlined)


def _scalar(kind: type, expected: str) -> DataReader:
    def read(data: Any) -> Any:
        if not isinstance(data, kind):  # names of the language are texts of their own types
            raise BadDataError(expected)
        return data

    return read


def _whole(data: Any) -> int:
    if type(data) is not int or abs(data) > LARGEST:
        raise BadDataError("a whole number")
    return data


def _number(data: Any) -> Any:
    if type(data) not in (int, float) or abs(data) > LARGEST:
        raise BadDataError("a number")
    return data  # a whole one stays whole, so that it is written again as it was


def _from_text(hint: Any, data: Any) -> Any:
    """A value that is written as a text of its own, as an address is."""
    try:
        if type(data) is str:
            return hint.from_data(data)
    except ValueError:
        pass
    raise BadDataError(f"an {hint.__name__.lower()}")


_PLAIN: dict[Any, DataReader] = {
    str: _scalar(str, "text"),
    bool: _scalar(bool, "true or false"),
    int: _whole,
    float: _number,
}


def _number_key(data: str) -> int:
    if not data.isdecimal() or len(data) > 9:
        raise BadDataError("a mapping by number")
    return int(data)


def read_items(item: DataReader, data: Any) -> tuple[Any, ...]:
    """A list of what `item` reads."""
    if not isinstance(data, list | tuple):
        raise BadDataError("a list")
    out: list[Any] = []
    try:
        for value in data:
            out.append(item(value))  # noqa: PERF401  # how many there are tells which one is wrong
    except BadDataError as bad:
        raise bad.at(len(out)) from None
    return tuple(out)


def _members(item: DataReader, data: Any) -> frozenset[Any]:
    items = read_items(item, data)
    members = frozenset(items)
    if len(members) != len(items):
        raise BadDataError("a list without repetitions")
    return members


def read_mapping(key: Callable[[str], Any], item: DataReader, data: Any) -> dict[Any, Any]:
    """A mapping of what `key` and `item` read."""
    if not isinstance(data, dict):
        raise BadDataError("a mapping")
    out: dict[Any, Any] = {}
    for name, value in data.items():
        try:
            out[key(name)] = item(value)
        except BadDataError as bad:
            raise bad.at(name) from None
    return out


def _member(hint: type[Enum], data: Any) -> Enum:
    try:
        return hint(data)
    except ValueError:
        raise BadDataError(f"one of {', '.join(str(m.value) for m in hint)}") from None


def _whole_of(cls: Any) -> DataReader:
    """A dataclass: every field that has no default is there, and nothing else is."""
    hints = typing.get_type_hints(cls)
    dependent = {f.name: f.metadata["read"] for f in _fields(cls) if "read" in f.metadata}
    readers = {f.name: reader(Any if f.name in dependent else hints[f.name]) for f in _fields(cls)}
    required = [f.name for f in _fields(cls) if _default(f) is dataclasses.MISSING]

    def make(**values: Any) -> Any:
        for name in dependent.keys() & values.keys():
            if values[name] is not None:
                try:
                    values[name] = dependent[name](values, values[name])
                except BadDataError as bad:
                    raise bad.at(name) from None
        return cls(**values)

    return struct_reader(readers, required, make if dependent else cls)


def struct_reader(
    readers: Mapping[str, DataReader], required: Iterable[str], make: Callable[..., Any]
) -> DataReader:
    """Makes a value of the fields that `readers` read: nothing else is there, and all that is required is."""

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise BadDataError("a mapping")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, value in data.items():
                values[name] = readers.get(name, _unknown)(value)
        except BadDataError as bad:
            raise bad.at(name) from None
        for name in required:
            if name not in values:
                raise BadDataError("there").at(name)
        return make(**values)

    return read


def _unknown(_data: Any) -> Any:
    raise BadDataError("known")
