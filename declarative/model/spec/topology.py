"""Where ranks and nodes lie, and on which capacity: the words that fleets and tasks share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from declarative.model.schema.decode import describe
from declarative.model.schema.marks import BadValueError, Json, raise_all

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,40}")


class Placement(StrEnum):
    """`cluster`: one backend, region and network for all; `any`: wherever it is cheapest."""

    ANY = "any"
    CLUSTER = "cluster"


class SpotPolicy(StrEnum):
    """Whether interruptible capacity may be used."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    AUTO = "auto"


class Level(str):
    """A level of topology: `node`, `zone`, `region`, or a label that hosts have in `topology`."""

    __slots__ = ()
    HINT: ClassVar[str] = "write `zone`, `region`, or a label that hosts have in `topology`, such as `rack`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` if it is not a level."""
        if not isinstance(value, str) or not _LEVEL.fullmatch(value):
            raise BadValueError("bad-name", f"{describe(value)} is not a level of topology", cls.HINT)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A pattern, so that editors mark it at once."""
        return {"type": "string", "pattern": f"^{_LEVEL.pattern}$"}

    def plain(self) -> Json:
        """The level itself."""
        return str(self)


class Topology(tuple[tuple[str, str], ...]):
    """Where a host stands: level → its value there, `{rack: r1, row: "4"}`; sorted by level."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a mapping such as `{rack: r1}`"
    MOST: ClassVar[int] = 10
    BUILT_IN: ClassVar[tuple[str, ...]] = ("node", "region")

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`; `bad-name` if a key is not a level, or is a level that every host has by itself."""
        if not isinstance(value, Mapping) or len(value) > cls.MOST:
            summary = f"expected a mapping of at most {cls.MOST} levels, found {describe(value)}"
            raise BadValueError("wrong-type", summary, cls.HINT)
        faults: list[BadValueError] = []
        for key, item in value.items():
            if not _LEVEL.fullmatch(str(key)) or key in cls.BUILT_IN:
                summary = f"{describe(key)} is not a level that a host can declare"
                hint = "name it after what the hosts share, such as `rack`"
                faults.append(BadValueError("bad-name", summary, hint, (key,), at_key=True))
            elif isinstance(item, bool) or not isinstance(item, str | int) or not 1 <= len(str(item)) <= 255:
                summary = f"expected the name of a {key}, found {describe(item)}"
                faults.append(BadValueError("wrong-type", summary, cls.HINT, (key,)))
        raise_all(faults)
        return cls(sorted((str(key), str(item)) for key, item in value.items()))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A mapping of names."""
        return {
            "type": "object",
            "maxProperties": cls.MOST,
            "propertyNames": {"pattern": f"^{_LEVEL.pattern}$"},
            "additionalProperties": {"type": ["string", "integer"]},
        }

    def plain(self) -> Json:
        """The mapping."""
        return dict(self)
