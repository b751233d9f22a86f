"""`limits` of the `project` document: what no plan may go beyond."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from declarative.model.schema.decode import describe
from declarative.model.schema.marks import BadValueError, Doc, Is, Json, raise_all

HOURS_A_MONTH = 730
_PATTERN = re.compile(r"(fleet|node|volume)/[a-z0-9*?-]{1,60}")


class Guarded(tuple[str, ...]):
    """Patterns of addresses that no plan deletes or replaces."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a list such as `[fleet/prod-*, volume/data]`"

    @classmethod
    def parse(cls, value: Json) -> Guarded:
        """`wrong-type`, `bad-value`."""
        if not isinstance(value, list | tuple) or isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        faults = [
            BadValueError(
                "bad-value",
                f"expected the address of fleets, nodes or volumes, found {describe(item)}",
                "write `fleet/NAME`, `node/NAME` or `volume/NAME`; `*` is a wildcard",
                (index,),
            )
            for index, item in enumerate(value)
            if not _PATTERN.fullmatch(str(item))
        ]
        raise_all(faults)
        return cls(map(str, value))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of patterns."""
        return {"type": "array", "items": {"type": "string", "pattern": f"^{_PATTERN.pattern}$"}}

    def plain(self) -> Json:
        """As declared."""
        return list(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What no plan may go beyond. Costs are of whole nodes, in USD."""

    cost_per_hour: Annotated[float | None, Is(minimum=0), Doc("USD an hour that all nodes may cost.")] = None
    cost_per_month: Annotated[
        float | None, Is(minimum=0), Doc(f"USD that all nodes may cost in {HOURS_A_MONTH} hours.")
    ] = None
    nodes: Annotated[int | None, Is(minimum=0), Doc("How many nodes there may be.")] = None
    protected: Annotated[
        Guarded, Doc("Fleets, nodes and volumes that no plan deletes or replaces: `[fleet/prod-*]`.")
    ] = Guarded()

    @property
    def hourly(self) -> tuple[str, float] | None:
        """The stricter one of the two costs: its name, and the USD an hour that it allows."""
        found = [("cost_per_hour", self.cost_per_hour)] if self.cost_per_hour is not None else []
        if self.cost_per_month is not None:
            found.append(("cost_per_month", self.cost_per_month / HOURS_A_MONTH))
        return min(found, key=lambda item: item[1], default=None)
