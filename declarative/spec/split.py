"""The value of `blocks:`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from declarative.schema import BadValueError, Json
from declarative.schema.decode import describe
from declarative.spec.values import MAX_COUNT


@dataclass(frozen=True, slots=True)
class Blocks:
    """Into how many equal blocks a node is split: a number, or `auto` (None)."""

    number: int | None = 1
    HINT: ClassVar[str] = "write a whole number of at least 1, or `auto`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-blocks`."""
        if value == "auto":
            return cls(None)
        if isinstance(value, str) and re.fullmatch(r"\d{1,6}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise BadValueError("bad-blocks", f"{describe(value)} is not a number of blocks", cls.HINT)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A number, or `auto`."""
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(auto|\d+)$"}]}

    def plain(self) -> Json:
        """The number, or `auto`."""
        return "auto" if self.number is None else self.number
