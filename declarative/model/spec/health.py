"""A fleet's `health`: which findings of its machines count, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from declarative.model.health import NAMES
from declarative.model.record import struct
from declarative.model.schema import BadValueError, Doc, Json, Word, describe
from declarative.model.text import suggest


class RuleName(Word):
    """The name of a rule of health: `remap-pending`."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "enum": sorted(NAMES)}
    HINT: ClassVar[str] = "findings name their rule: `GPU 3 waits for a remap of its memory (remap-pending)`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value` if there is no such rule."""
        if not isinstance(value, str) or value not in NAMES:
            hint = suggest(value, sorted(NAMES)) if isinstance(value, str) else None
            raise BadValueError("bad-value", f"{describe(value)} is not a rule of health", hint or cls.HINT)
        return cls(value)


@struct(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """Which findings count, and how much."""

    ignore: Annotated[tuple[RuleName, ...], Doc("Rules that count for nothing: `[clock-off]`.")] = ()
    fail: Annotated[
        tuple[RuleName, ...], Doc("Rules that keep a node from work, whatever they mean by themselves.")
    ] = ()
    strict: Annotated[bool, Doc("A degraded node takes no work either.")] = False

    def __post_init__(self) -> None:
        for i, name in enumerate(self.fail):
            if name in self.ignore:
                summary = f"`{name}` is ignored, and fails"
                raise BadValueError("bad-value", summary, "remove it from one of the lists", ("fail", i))
