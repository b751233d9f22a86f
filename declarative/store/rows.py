"""Rows as values of a class, and back: a column is the field of its name.

So a new column of a table whose rows have a class is a line of `schema`, a field of that class, and a
migration.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from declarative.model.codec import DataReader, reader, struct_reader
from declarative.store.schema import COLUMNS

T = TypeVar("T")
Convert = Callable[[Any], Any]


def value_of(cls: type[T], row: Any, **more: Any) -> T:
    """A row as that class, by the columns that it has fields for; `more` are other fields."""
    kind: Any = cls
    for field, stored in zip(_from_columns(kind, row._fields), row, strict=True):
        if field is not None:
            name, convert = field
            more[name] = stored if convert is None else convert(stored)
    return cls(**more)


def columns(table: str, value: Any) -> dict[str, Any]:
    """The fields of a value that a table has columns for."""
    return plain(value, stored_fields(table, value.__class__))


def plain(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields of a value as columns and JSON have them."""
    out: dict[str, Any] = {}
    for name, convert in _to_columns(value.__class__, names):
        field = getattr(value, name)
        out[name] = field if convert is None or field is None else convert(field)
    return out


@functools.cache
def stored_fields(table: str, cls: Any) -> tuple[str, ...]:
    """The names of the fields of a class that a table has columns for."""
    return tuple(field.name for field in fields(cls) if field.name in COLUMNS[table])


@functools.cache
def plain_reader(cls: Any, names: tuple[str, ...]) -> DataReader:
    """Reads what `plain` made."""
    hints = typing.get_type_hints(cls)
    return struct_reader({name: reader(hints[name]) for name in names}, names, cls)


@functools.lru_cache(maxsize=64)
def _from_columns(cls: Any, names: tuple[str, ...]) -> tuple[tuple[str, Convert | None] | None, ...]:
    """For each of these columns its field and the conversion to it; None for a column without a field."""
    hints = typing.get_type_hints(cls)
    return tuple((name, _from_column(hints[name])) if name in hints else None for name in names)


def _from_column(hint: Any) -> Convert | None:
    args = typing.get_args(hint)
    if types.NoneType in args:
        inner = _from_column(next(arg for arg in args if arg is not types.NoneType))
        return inner and (lambda value: None if value is None else inner(value))
    if args and hasattr(args[0], "parse"):
        return lambda texts: frozenset(map(args[0].parse, texts))
    if hasattr(hint, "parse"):  # an address: it is stored as its text
        return typing.cast("Convert", hint.parse)
    kind = typing.get_origin(hint) or hint
    is_made = kind in (tuple, frozenset) or (isinstance(kind, type) and issubclass(kind, Enum))
    return typing.cast("Convert", kind) if is_made else None


@functools.cache
def _to_columns(cls: Any, names: tuple[str, ...]) -> tuple[tuple[str, Convert | None], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((name, _to_column(hints[name])) for name in names)


def _to_column(hint: Any) -> Convert | None:
    args = typing.get_args(hint)
    if types.NoneType in args:
        return _to_column(next(arg for arg in args if arg is not types.NoneType))
    kind = typing.get_origin(hint) or hint
    if kind is frozenset and hasattr(args[0], "parse"):
        return lambda values: sorted(map(str, values))
    if kind is frozenset:  # a damaged state may hold anything there, which its check is to see as it is
        return lambda values: sorted(values, key=str)
    if kind is tuple:
        return list
    if hasattr(kind, "parse"):
        return str
    return (lambda member: member.value) if isinstance(kind, type) and issubclass(kind, Enum) else None
