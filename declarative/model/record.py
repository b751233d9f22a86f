"""`struct` for records: to type checkers `dataclass` of the standard library, when run a struct of msgspec.

There are more than 300 such classes, and the standard library writes and compiles the methods of each, which
took a third of the time of a short command. Structs are made in C, 30 times as fast, and filled 9 times as
fast. They behave the same: keyword-only, frozen and compared as asked. `fields`, `replace` and `asdict` of
`dataclasses` take them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field
from typing import Any

import msgspec

__all__ = ["set_field", "struct"]

_Struct: Any = type(msgspec.Struct)

LEFT_OUT = ("__dict__", "__weakref__", "__annotate_func__", "__annotations_cache__")
"""What of a class belongs to that class alone; the last two are of Python 3.14."""


class _Fields:
    """`__dataclass_fields__` of a struct, made when first asked for: most classes are never asked."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        """The annotations of the class, and its defaults."""
        self.made: Mapping[str, Field[Any]] | None = None

    def __get__(self, _: object, cls: type) -> Mapping[str, Field[Any]]:
        if self.made is None:
            bare: Any = dataclasses.dataclass(kw_only=True)(type(cls.__name__, (), dict(self.body)))
            self.made = {f.name: f for f in dataclasses.fields(bare)}
        return self.made


def _record(**options: Any) -> Callable[[type], type]:
    """A decorator. Classes that ask for what structs lack are made by the standard library."""

    def made(cls: type) -> type:
        assert not isinstance(cls, _Struct), f"make {cls.__name__} and its base by `dataclasses` itself"
        body, hints = dict(vars(cls)), cls.__annotations__
        defaults = {name: body.pop(name) for name in hints if name in body}
        if _is_beyond(cls, defaults, options):
            return dataclasses.dataclass(**options)(cls)
        for name in LEFT_OUT:
            body.pop(name, None)
        for name, default in defaults.items():
            if not isinstance(default, Field):
                body[name] = default
            elif default.default_factory is not MISSING:
                body[name] = msgspec.field(default_factory=default.default_factory)
            elif default.default is not MISSING:
                body[name] = default.default
        body |= {"__annotations__": hints, "__qualname__": cls.__qualname__}
        body["__dataclass_fields__"] = _Fields(
            {"__annotations__": hints, "__module__": cls.__module__, **defaults}
        )
        bases = (msgspec.Struct, *(b for b in cls.__bases__ if b is not object))
        asked_options = {name: options[name] for name in ("frozen", "kw_only", "eq") if name in options}
        return typing.cast("type", _Struct(cls.__name__, bases, body, **asked_options))

    return made


def _is_beyond(cls: type, given: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether it has a base, a `__dict__`, or a field that is not filled, shown or compared."""
    based = any(b not in (object, typing.Generic) for b in cls.__bases__)
    fields = [default for default in given.values() if isinstance(default, Field)]
    special = any(not (f.init and f.repr and f.compare) or f.hash is not None for f in fields)
    return based or special or not options.get("slots") or options.get("repr") is False


def set_field(record: Any, name: str, value: Any) -> None:
    """Set a field of a frozen record that nobody else has yet, in its `__post_init__` or where it is made."""
    if isinstance(record, msgspec.Struct):
        msgspec.structs.force_setattr(record, name, value)
    else:
        object.__setattr__(record, name, value)


if typing.TYPE_CHECKING:
    from dataclasses import dataclass as struct
else:
    struct = _record
