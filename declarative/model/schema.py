"""From type hints to JSON Schema and back: the dataclasses of `spec` are the one truth of the language.

Fields have marks: documentation, bounds, whether a change is applied in place. `decode` reads plain data into
a dataclass, and reports every problem with its path; `encode` is its inverse. `document_schema` writes the
JSON Schema of a dataclass for editors and third parties, and `validate` runs jsonschema over plain data: it
makes sure that the schemas allow what `decode` accepts, and nothing else. `decode` gives the better messages,
so findings of `validate` are shown where `decode` has none. Pure: no files, no clock.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from declarative.model.record import struct
from declarative.model.text import MAX_WORD, and_more, suggest

T = TypeVar("T")
K = TypeVar("K", int, str)
F = TypeVar("F", bound=Callable[..., Any])
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


def unquoted(value: object, expected: tuple[type, ...], otherwise: str) -> str:
    """The hint for a value that is text because of its quotes: `"false"`, `"2"`; else another hint."""
    text = value.strip() if isinstance(value, str) else ""
    is_meant = (bool in expected and text in ("true", "false")) or (
        int in expected and text.isascii() and text.isdecimal() and len(text) <= MAX_SHOWN
    )
    return f"write it without quotes: `{text}`" if is_meant else otherwise


def raise_all(faults: Sequence[BadValueError]) -> None:
    """Raise the first, with the others in it, if there are any."""
    if faults:
        first = faults[0]
        first.others += tuple(other for bad in faults[1:] for other in bad.each())
        raise first


def each_parsed(
    items: Iterable[tuple[K, Json]], parse: Callable[[Json], T], faults: list[BadValueError]
) -> Iterator[tuple[K, T]]:
    """The items that can be parsed, each with its key; `faults` gets those of the others."""
    for key, item in items:
        try:
            parsed = parse(item)
        except BadValueError as bad:
            faults += bad.within(key)
        else:
            yield key, parsed


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


@functools.cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a dataclass, in order of declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    out: list[Field] = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        marks: list[Any] = []
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType):  # `T` of `T | None`
            rest = [a for a in typing.get_args(hint) if a is not NoneType]
            hint = rest[0] if len(rest) == 1 else hint
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


# -------------------------------------------------------------------------------- plain data into dataclasses

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


def _wrong_type(path: ValuePath, expected: str, value: object, bounds: Is | None = None) -> Problem:
    hint = _type_hint(expected, value, bounds or Is()) or _TYPE_HINTS[expected]
    return Problem(path, "wrong-type", f"expected {expected}, found {describe(value)}", hint)


def _type_hint(expected: str, value: object, bounds: Is) -> str | None:
    """How this value would be written as the expected type; None if that is unknown."""
    match expected:
        case "a string" if isinstance(value, bool | int | float):
            text = str(value).lower() if isinstance(value, bool) else value
            return f'write it in quotes: "{text}"'
        case "a list" if isinstance(value, bool | int | float) or (isinstance(value, str) and value.strip()):
            shown = describe(value).strip("`")
            return f"write a list: `[{shown}]`" if len(shown) <= MAX_SHOWN else None
        case "a mapping" if isinstance(value, list | tuple):
            return "write `key: value` lines without `- ` before them, or `{key: value}`"
        case "true or false":
            meant = _TRUE_FALSE.get(str(value).lower())
            return f"write `{meant}`" if meant else None
        case "a whole number" | "a number":
            # The number in the text, such as `3` of `$3`; else which numbers there are.
            short = isinstance(value, str) and len(value) <= MAX_SHOWN
            number = _ONE_NUMBER.fullmatch(str(value)) if short else None
            if number and (expected == "a number" or "." not in number[1]):
                return f"write `{number[1]}`, without quotes"
            if bounds.minimum is not None and bounds.maximum is not None:
                return f"write {expected} from {bounds.minimum:.15g} to {bounds.maximum:.15g}, without quotes"
        case _:
            pass
    return None


def _plain(hint: type, value: Json, path: ValuePath, bounds: Is, out: list[Problem]) -> Any:
    if isinstance(value, str) and hint in _NUMBERS and _NUMBERS[hint].fullmatch(value):
        value = hint(value)
    elif hint is float and type(value) is int:
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        out.append(_wrong_type(path, _WORDS[hint], value, bounds))
        return None
    if isinstance(value, str):
        if not bounds.blank and not value.strip():
            summary = f"{_field(path)}is empty"
            out.append(Problem(path, "bad-value", summary, "write a value, or remove it"))
        if len(value) > bounds.longest:
            summary = f"{_field(path)}has more than {bounds.longest} characters"
            less = "write less; check the quotes and the indentation"
            out.append(Problem(path, "too-large", summary, less))
    elif isinstance(value, int | float) and hint is not bool:
        fault = _out_of_range(value, bounds)
        if fault is not None:
            out.append(Problem(path, "out-of-range", _field(path) + fault[0], fault[1]))
    return value


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
    before, fields = len(out), _by_name(typing.cast("Any", cls))
    given: dict[str, Any] = {}
    for key, item in value.items():
        if len(out) - before >= MAX_PROBLEMS:
            break
        field = fields.get(key)
        if field is None:
            out.append(_unknown(cls, str(key), path))
        elif field.required or not (item is None or (item is True and field.bounds.true_is_default)):
            # Else a key without a value means the field's default.
            given[key] = _value(field.hint, item, (*path, key), field.bounds, out)
    if any(name not in value for name in _required(typing.cast("Any", cls))):
        out += _missing(cls, value, path)
    if any(not problem.warning for problem in out[before:]):
        return None
    try:
        return cls(**given)
    except BadValueError as bad:
        out += _problems(bad, path)
        return None


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
    if dataclasses.is_dataclass(value):
        return {
            field.name: encode(item)
            for field in fields_of(cls)
            if (item := getattr(value, field.name)) is not None and field.name not in but
            if item is not field.default and item != field.default
        }
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


# ------------------------------------------------------------------------------------------------ JSON Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", bool: "boolean", float: "number"}
_NUMBER_IN_QUOTES = {int: r"^\s*-?\d+\s*$", float: r"^\s*-?\d+(\.\d+)?\s*$"}

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


def object_schema(cls: type) -> dict[str, Any]:
    """The schema of a dataclass: its fields and no others."""
    fields = fields_of(cls)
    properties: dict[str, Any] = {}
    for field in fields:
        schema = dict(type_schema(field.hint, field.bounds))
        if not field.required:
            # `field:` with nothing behind it means "left out", as it does in dstack's files.
            default = [{"const": True}] if field.bounds.true_is_default else []
            schema = {"anyOf": [schema, *default, {"type": "null"}]}
        properties[field.name] = {"description": field.doc, **schema} if field.doc else schema
    for name, why in ignored_of(cls).items():
        properties[name] = {"description": f"Changes nothing: {why}."}
    defaulted = getattr(cls, "DEFAULTED", ())
    required = [field.name for field in fields if field.required and field.name not in defaulted]
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**whole, "required": required} if required else whole


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


def validate(cls: type, kind: str, value: Json) -> list[Problem]:
    """Every place where `value` is not what the schema of document type `kind` allows."""
    validator = _validator(cls, kind)
    fields, required = validator.schema["properties"], validator.schema["required"]
    # The schema taken apart: the fields that must and may be there, and the schema of each.
    if (
        isinstance(value, Mapping)
        and all(name in value for name in required)
        and all(name in fields and _allowed(cls, kind, name, item) for name, item in value.items())
    ):
        return []
    errors = validator.iter_errors(value)
    return [Problem(tuple(e.absolute_path), "schema", e.message[:200]) for e in errors]
