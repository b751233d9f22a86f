"""Plain data into dataclasses, with every problem and the path it is at; and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from types import NoneType
from typing import Any, TypeVar

from declarative.model.diagnostic import MAX_WORD, and_more, suggest
from declarative.model.schema.marks import (
    MAX_SHOWN,
    BadValueError,
    Field,
    Is,
    Json,
    Problem,
    Syntax,
    ValuePath,
    describe,
    fields_of,
    ignored_of,
    raise_all,
)

T = TypeVar("T")


MOST_FIELDS = 20
"""Fields that are listed if a document has an unknown one: a thousand such findings may be shown."""
FEW = 8
"""Items of a list that are looked through one by one."""
MAX_PROBLEMS = 1_000
"""Problems of one mapping. More are not readable, and each unknown field is compared with all known ones."""

_WORDS = {str: "a string", int: "a whole number", bool: "true or false", float: "a number"}


_TYPE_HINTS = {
    "a string": "write text; in quotes where it holds `: ` or begins with a bracket",
    "a whole number": "write digits, without quotes",
    "a number": "write digits, without quotes",
    "true or false": "write `true` or `false`, without quotes",
    "a list": "write `- …` lines, or `[…, …]`",
    "a mapping": "write `key: value` lines, or `{key: value}`",
}


_TRUE_FALSE = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
_NUMBERS = {int: re.compile(r"-?\d{1,18}", re.ASCII), float: re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)}
"""A number in quotes, as a template or a shell leaves it."""
_ONE_NUMBER = re.compile(r"\D*?(-?\d{1,18}(?:\.\d{1,18})?)\D*")


def _wrong_type(path: ValuePath, wanted: str, value: object, bounds: Is | None = None) -> Problem:
    hint = _type_hint(wanted, value, bounds or Is()) or _TYPE_HINTS[wanted]
    return Problem(path, "wrong-type", f"expected {wanted}, found {describe(value)}", hint)


def _type_hint(wanted: str, value: object, bounds: Is) -> str | None:
    """How this value would be written as the wanted type; None if that is unknown."""
    match wanted:
        case "a string" if isinstance(value, bool | int | float):
            text = str(value).lower() if isinstance(value, bool) else value
            return f'write it in quotes: "{text}"'
        case "a list":
            return _list_hint(value)
        case "a mapping" if isinstance(value, list | tuple):
            return "write `key: value` lines without `- ` before them, or `{key: value}`"
        case "true or false":
            meant = _TRUE_FALSE.get(str(value).lower())
            return f"write `{meant}`" if meant else None
        case "a whole number" | "a number":
            return _number_hint(wanted, value, bounds)
        case _:
            return None


def _list_hint(value: object) -> str | None:
    if not isinstance(value, bool | int | float) and not (isinstance(value, str) and value.strip()):
        return None
    shown = describe(value).strip("`")
    return f"write a list: `[{shown}]`" if len(shown) <= MAX_SHOWN else None


def _number_hint(wanted: str, value: object, bounds: Is) -> str:
    """The number in the text, such as `3` of `$3`; else which numbers there are."""
    match = _ONE_NUMBER.fullmatch(value) if isinstance(value, str) and len(value) <= MAX_SHOWN else None
    if match and (wanted == "a number" or "." not in match[1]):
        return f"write `{match[1]}`, without quotes"
    if bounds.minimum is not None and bounds.maximum is not None:
        return f"write {wanted} from {bounds.minimum:.15g} to {bounds.maximum:.15g}, without quotes"
    return "write digits, without quotes"


def _plain(hint: type, value: Json, path: ValuePath, bounds: Is, out: list[Problem]) -> Any:
    value = _as_number(hint, value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        out.append(_wrong_type(path, _WORDS[hint], value, bounds))
        return None
    if isinstance(value, str):
        out += _bad_text(value, path, bounds)
    elif isinstance(value, int | float) and hint is not bool:
        fault = _out_of_range(value, bounds)
        if fault is not None:
            out.append(Problem(path, "out-of-range", _field(path) + fault[0], fault[1]))
    return value


def _as_number(hint: type, value: Json) -> Any:
    """The number that is in quotes where one is wanted; other values are as they are."""
    if isinstance(value, str) and hint in _NUMBERS and _NUMBERS[hint].fullmatch(value):
        return hint(value)
    return float(value) if hint is float and type(value) is int else value


def _bad_text(value: str, path: ValuePath, bounds: Is) -> Iterator[Problem]:
    if not bounds.blank and not value.strip():
        yield Problem(path, "bad-value", f"{_field(path)}is empty", "write a value, or remove it")
    if len(value) > bounds.longest:
        summary = f"{_field(path)}has more than {bounds.longest} characters"
        yield Problem(path, "too-large", summary, "write less; check the quotes and the indentation")


def _field(path: ValuePath) -> str:
    """The field that a path leads to, to begin a sentence with."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return ""
    return f"`{names[-1]}` " if path[-1] == names[-1] else f"a value of `{names[-1]}` "


def _out_of_range(value: float, bounds: Is) -> tuple[str, str] | None:
    """The error of a number, and what to write."""
    if not math.isfinite(value):
        return "must be a finite number", "write digits"
    least, most, above = bounds.minimum, bounds.maximum, bounds.above
    shown = f"found {str(value).removesuffix('.0')}"
    if least is not None and value < least:
        return f"must be at least {least:.15g}, {shown}", f"write {least:.15g} or more"
    if most is not None and value > most:
        return f"must be at most {most:.15g}, {shown}", f"write {most:.15g} or less"
    if above is not None and value <= above:
        return f"must be more than {above:.15g}, {shown}", f"write a number above {above:.15g}"
    return None


def _enum(hint: type[Enum], value: Json, path: ValuePath, _bounds: Is, out: list[Problem]) -> Any:
    try:
        return hint(value)
    except ValueError:
        known = [str(member.value) for member in hint]
        listing = ", ".join(f"`{k}`" for k in known)
        near = suggest(value, known) if isinstance(value, str) and len(value) <= MAX_WORD else None
        out.append(Problem(path, "bad-value", f"expected one of {listing}, found {describe(value)}", near))
        return None


def _value(hint: Any, value: Json, path: ValuePath, bounds: Is, out: list[Problem]) -> Any:
    read, inner = _reader(hint)
    return read(inner, value, path, bounds, out)


@functools.cache
def _reader(hint: Any) -> tuple[Callable[[Any, Json, ValuePath, Is, list[Problem]], Any], Any]:
    """How values of a type are read, and the type to do it with. Kept, as taking types apart takes long."""
    if hint is typing.Any:
        return (lambda _hint, value, _path, _bounds, _out: value), hint
    if hint in _WORDS:
        return _plain, hint
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _items, args[0]
    if origin is Mapping:
        return _mapping, args[1]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum, hint
    if isinstance(hint, type) and issubclass(hint, Syntax):
        return _syntax, hint
    return (lambda cls, value, path, _bounds, out: decode(cls, value, path, out)), hint


def _mapping(hint: Any, value: Json, path: ValuePath, _bounds: Is, out: list[Problem]) -> Any:
    if not isinstance(value, Mapping):
        out.append(_wrong_type(path, "a mapping", value))
        return None
    return {str(k): _value(hint, v, (*path, k), Is(), out) for k, v in value.items()}


def _syntax(hint: type[Syntax], value: Json, path: ValuePath, _bounds: Is, out: list[Problem]) -> Any:
    try:
        return _parsed(hint, value) if type(value) is str else hint.parse(value)
    except BadValueError as bad:
        out += _problems(bad, path)
        return None


@functools.lru_cache(maxsize=1 << 12)
def _parsed(hint: type[Syntax], text: str) -> Syntax:
    """The value of a text. Cached: documents of a large project repeat the same texts."""
    return hint.parse(text)


def _problems(bad: BadValueError, path: ValuePath) -> list[Problem]:
    """The faults of a value at `path`."""
    return [Problem((*path, *b.path), b.code, b.summary, b.hint, b.at_key) for b in bad.each()]


def decode_part(cls: type[T], value: Json) -> T:
    """`decode` within a notation: every problem as one `BadValueError`."""
    problems: list[Problem] = []
    decoded = decode(cls, value, (), problems)
    wrong = [p for p in problems if not p.warning]
    raise_all([BadValueError(p.code, p.summary, p.hint, p.path, at_key=p.at_key) for p in wrong])
    assert decoded is not None
    return decoded


def _items(hint: Any, value: Json, path: ValuePath, bounds: Is, out: list[Problem]) -> Any:
    if not isinstance(value, list | tuple):
        out.append(_wrong_type(path, "a list", value))
        return None
    if bounds.most_items is not None and len(value) > bounds.most_items:
        summary = f"{_field(path)}has more than {bounds.most_items} items"
        out.append(Problem(path, "too-large", summary, "write fewer"))
        return None
    each = _of_items(bounds.longest, bounds.blank)
    list_type = AnyCase if bounds.any_case else Items
    return list_type(_value(hint, item, (*path, i), each, out) for i, item in enumerate(value))


@functools.cache
def _of_items(longest: int, blank: bool) -> Is:
    return Is(longest=longest, blank=blank)


class Items(tuple[Any, ...]):  # noqa: SLOT001  # it keeps what is in it
    """A tuple with a fast `in`: offers by the thousand are compared with lists of names."""

    def __contains__(self, item: object) -> bool:
        if len(self) < FEW:
            return super().__contains__(item)
        try:
            return item in self._known
        except TypeError:  # items that have no hash
            return super().__contains__(item)

    @functools.cached_property
    def _known(self) -> frozenset[Any]:
        return frozenset(self)


class AnyCase(Items):
    """A tuple of names that are compared without case: regions and zones."""

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str) and item.casefold() in self._known

    @functools.cached_property
    def _known(self) -> frozenset[Any]:
        return frozenset(item.casefold() for item in self)


def _unknown(cls: type, key: str, path: ValuePath) -> Problem:
    ignored, foreign = ignored_of(cls), getattr(cls, "FOREIGN", {})
    if key in ignored:
        summary = f"`{key}` changes nothing: {ignored[key]}"
        return Problem((*path, key), "ignored-field", summary, "remove it", at_key=True, warning=True)
    if key in foreign:
        summary = f"`{key}` is a field of dstack that fleetform does not have"
        return Problem((*path, key), "dstack-field", summary, foreign[key], at_key=True)
    noun = getattr(cls, "NOUN", None) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
    hint, _ = _unknown_hint(cls, key)
    return Problem((*path, key), "unknown-field", f"`{key}` is not a field of {noun}", hint, at_key=True)


def _unknown_hint(cls: type, key: str) -> tuple[str, str | None]:
    """What to write for an unknown field, and the field that was most likely meant."""
    known = [f.name for f in fields_of(cls)]
    elsewhere: Mapping[str, str] = getattr(cls, "ELSEWHERE", {})
    foreign: Mapping[str, str] = getattr(cls, "FOREIGN", {})
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower().replace("-", "_") if len(key) <= MAX_WORD else ""
    if snake in elsewhere:
        meant = elsewhere[snake]
        return (f"write `{meant}:`", meant) if meant in known else (meant, None)
    if snake in foreign:
        return foreign[snake], None
    if snake and (hint := suggest(snake, known)):
        return hint, hint.split("`")[1]
    return f"known fields: {and_more(sorted(known), MOST_FIELDS)}", None


def decode(cls: type[T], value: Json, path: ValuePath, out: list[Problem]) -> T | None:
    """Read `value` into the dataclass `cls`.

    Every problem is appended to `out`; the result is None if there was any in this value.
    """
    if not isinstance(value, Mapping):
        out.append(_wrong_type(path, "a mapping", value))
        return None
    before = len(out)
    fields = _given(cls, value, path, out)
    if any(name not in value for name in _required(typing.cast("Any", cls))):
        out += _missing(cls, value, path)
    if any(not problem.warning for problem in out[before:]):
        return None
    try:
        return cls(**fields)
    except BadValueError as bad:
        out += _problems(bad, path)
        return None


def _given(cls: Any, value: Mapping[str, Json], path: ValuePath, out: list[Problem]) -> dict[str, Any]:
    """The fields that are there. A key without a value means the field's default."""
    before, fields = len(out), _by_name(cls)
    values: dict[str, Any] = {}
    for key, item in value.items():
        if len(out) - before >= MAX_PROBLEMS:
            break
        field = fields.get(key)
        if field is None:
            out.append(_unknown(cls, str(key), path))
        elif field.required or not (item is None or (item is True and field.bounds.true_is_default)):
            values[key] = _value(field.hint, item, (*path, key), field.bounds, out)
    return values


@functools.cache
def _by_name(cls: Any) -> Mapping[Any, Field]:
    return {field.name: field for field in fields_of(cls)}


@functools.cache
def _required(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields_of(cls) if field.required)


def _missing(cls: Any, value: Mapping[Any, Json], path: ValuePath) -> Iterator[Problem]:
    """The required fields that are not there, unless an unknown field was taken for one of them."""
    fields = _by_name(cls)
    missing = [fields[name] for name in _required(cls) if name not in value]
    unknown = [str(key) for key in value if key not in fields][:MAX_PROBLEMS] if missing else []
    meant = {_unknown_hint(cls, key)[1] for key in unknown}
    for field in missing:
        if field.name not in meant:
            # The sentence as the end of another one; `CPUs of …` stays as it is.
            first = field.doc[:1] if field.doc[1:2].isupper() else field.doc[:1].lower()
            clause = (first + field.doc[1:]).rstrip(",. …")
            hint = f"add `{field.name}: …`; {clause}"
            yield Problem(path, "missing-field", f"`{field.name}` is missing", hint)


@functools.cache
def _has_notation(cls: Any) -> bool:
    """Whether the values of a class have a notation of their own: to ask a protocol takes long."""
    return issubclass(cls, Syntax)


def encode(value: Any, but: Collection[str] = ()) -> Any:
    """A dataclass as plain data, `but` some fields. What was left out stays out, notations are normal."""
    cls: Any = type(value)
    if cls in (NoneType, str, int, bool, float):
        return value
    if isinstance(value, Enum):
        return value.value
    if _has_notation(cls):
        return value.plain()
    if dataclasses.is_dataclass(cls):
        return _encoded_fields(value, but)
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def _encoded_fields(value: Any, but: Collection[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    cls: Any = type(value)
    for field in fields_of(cls):
        item = getattr(value, field.name)
        if item is not None and item is not field.default and field.name not in but and item != field.default:
            out[field.name] = encode(item)
    return out
