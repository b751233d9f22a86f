"""Values that fleets and tasks share: what a rank asks for (above all GPUs), where ranks and nodes lie, and
which capacity they use. `amounts` has the amounts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from declarative.model.diagnostic import suggest
from declarative.model.record import struct
from declarative.model.schema.marks import MAX_SHOWN, BadValueError, Doc, Json, Word, describe, raise_all
from declarative.model.spec.amounts import MAX_COUNT, Count, Memory, unpadded
from declarative.model.spec.gpu_models import fits

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


class FallbackPolicy(StrEnum):
    """What may be launched in place of a node whose own offer cannot be had."""

    SAME = "same"
    ANY = "any"
    NONE = "none"


class Level(Word):
    """A level of topology: `node`, `zone`, `region`, or a label that hosts have in `topology`."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{_LEVEL.pattern}$"}
    HINT: ClassVar[str] = "write `zone`, `region`, or a label that hosts have in `topology`, such as `rack`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` if it is not a level."""
        if not isinstance(value, str) or not _LEVEL.fullmatch(value):
            raise BadValueError("bad-name", f"{describe(value)} is not a level of topology", cls.HINT)
        return cls(value)


class Topology(tuple[tuple[str, str], ...]):
    """Where a host stands: level → value, `{rack: r1, row: "4"}`; sorted by level."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a mapping such as `{rack: r1}`"
    MOST: ClassVar[int] = 10
    BUILT_IN: ClassVar[tuple[str, ...]] = ("node", "region")

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`; `bad-name` if a key is not a level, or is a level that every host has anyway."""
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
        return {
            "type": "object",
            "maxProperties": cls.MOST,
            "propertyNames": {"pattern": f"^{_LEVEL.pattern}$"},
            "additionalProperties": {"type": ["string", "integer"]},
        }

    def plain(self) -> Json:
        return dict(self)


_PARTS = {"count": "counts", "memory": "amounts of memory", "model": "lists of models", "vendor": "vendors"}
"""The names of the parts of a GPU, for the error that a part is given twice."""
_TIMES = re.compile(
    r"([A-Za-z][\w-]*\d[\w-]*?)\s*[x*;=]\s*(\d{1,3})|(\d{1,3})\s*[x*]?\s*([A-Za-z][A-Za-z]*\d[\w-]*)"
)
"""`H100x8`, `8xH100`: other tools' notation for a number of GPUs."""
_MODEL = re.compile(r"[A-Za-z][\w .+/()-]{0,60}", re.ASCII)
MAX_GPU, MAX_MODELS = 1_000, 100
VENDORS = ("nvidia", "amd", "intel", "google", "tenstorrent")


@struct(frozen=True, slots=True)
class Gpu:
    """GPUs of one rank or node: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`.

    The parts may come in any order: a word is a vendor or a list of models, a part with a unit is the memory
    of each GPU, a number is the count. Without a count, it is one or more.
    """

    count: Count = Count(1, None)
    names: tuple[str, ...] = ()
    memory: Memory | None = None
    vendor: str | None = None
    HINT: ClassVar[str] = (
        "write a count, a model, or both: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`"
    )
    KEYS: ClassVar[tuple[str, ...]] = ("vendor", "name", "memory", "count")
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "total_memory": "write `memory:` of each GPU, and a `count:`",
        "compute_capability": "name the models instead: `name: [A100, H100]`",
    }

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-gpu`, `bad-range`, `bad-unit`."""
        if isinstance(value, Mapping):
            return cls._parse_mapping(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise BadValueError(
                "wrong-type", f"expected GPUs, found {describe(value)}", cls._list_hint(value)
            )
        text = str(value)
        if not text.strip():
            raise BadValueError("bad-gpu", "expected GPUs, found empty text", cls.HINT)
        if len(text) > MAX_GPU:
            raise BadValueError("bad-gpu", f"{describe(value)} is too long", cls.HINT)
        unpadded(text, "bad-gpu")
        parts: dict[str, Any] = {}
        for part in text.split(":"):
            key, item = cls._part(part.strip(), value)
            if key in parts:
                hint, counts = cls.HINT, re.fullmatch(r"(.+):(\d{2,3}):(\d{1,3})", text)
                if counts and key == "count":
                    hint = f"write `{counts[1]}:{counts[2]}GB:{counts[3]}`: memory has a unit"
                raise BadValueError("bad-gpu", f"`{value}` names two {_PARTS[key]}", hint)
            parts[key] = item
        return cls._make(parts)

    @classmethod
    def _make(cls, parts: Mapping[str, Any]) -> Self:
        return cls(
            count=parts.get("count", Count(1, None)),
            names=tuple(parts.get("model", ())),
            memory=parts.get("memory"),
            vendor=parts.get("vendor"),
        )

    @classmethod
    def _part(cls, part: str, value: Json) -> tuple[str, Any]:
        if not part:
            raise BadValueError("bad-gpu", f"{describe(value)} has an empty part", cls.HINT)
        if part.lower() in VENDORS:
            return "vendor", part.lower()
        if match := _TIMES.fullmatch(part):
            name, number = match[1] or match[4], match[2] or match[3]
            raise BadValueError(
                "bad-gpu", f"{describe(value)} is not a way to write GPUs", f"write `{name}:{number}`"
            )
        if part[0].isalpha():
            return "model", [cls._model(name.strip(), value) for name in part.split(",")]
        if re.search(r"[A-Za-z]", part):
            return "memory", Memory.parse(part)
        return "count", Count.parse(part)

    def allows(self, model: str | None, mib: int | None = None) -> bool:
        """Whether a GPU of this model and memory fits, however it is spelled; without `names` any does."""
        return not self.names or any(fits(name, model or "", mib) for name in self.names)

    @classmethod
    def _model(cls, name: str, value: Json) -> str:
        if not name and isinstance(value, str) and "," in value:
            meant = re.sub(r",+(?=:|$)|(?<=,),+", "", re.sub(r"\s*,\s*", ",", value))
            summary = f"a `,` in {describe(value)} has no model beside it"
            raise BadValueError("bad-gpu", summary, f"write `{meant}`")
        if not _MODEL.fullmatch(name):
            raise BadValueError("bad-gpu", f"{describe(name)} in {describe(value)} is not a model", cls.HINT)
        return name

    @classmethod
    def _list_hint(cls, value: Json) -> str:
        """The texts of a list joined to one value, as a hint."""
        items = value if isinstance(value, list | tuple) else ()
        models = ",".join(item for item in items if isinstance(item, str))
        return f"write `{models}`" if 0 < len(models) <= MAX_SHOWN else cls.HINT

    @classmethod
    def _models(cls, item: Json) -> list[str]:
        """`name:` of the long form: one model, or a list of them."""
        names = [item] if isinstance(item, str) else item
        if not isinstance(names, list | tuple):
            names = [None]
        for wrong, summary in (
            (len(names) > MAX_MODELS, f"more than {MAX_MODELS} models"),
            (not all(isinstance(n, str) for n in names), "`name` is a model or a list of models"),
            (not names, "`name` holds no model"),
            (not all(str(n).strip() for n in names), "`name` has an empty model"),
        ):
            if wrong:
                raise BadValueError("bad-gpu", summary, cls.HINT)
        return [cls._model(str(name).strip(), str(name)) for name in names]

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        parts: dict[str, Any] = {}
        faults: list[BadValueError] = []
        if not value or all(item is None for item in value.values()):
            raise BadValueError("bad-gpu", "the mapping of GPUs is empty", cls.HINT)
        for key, item in value.items():
            if item is None and key in cls.KEYS:
                continue
            try:
                parts |= cls._field(key, item)
            except BadValueError as bad:
                faults += bad.within(key)
        raise_all(faults)
        return cls._make(parts)

    @classmethod
    def _field(cls, key: str, item: Json) -> dict[str, Any]:
        """One field of the long form, as an argument of `_make`."""
        if key == "vendor" and isinstance(item, str) and item.lower() in VENDORS:
            return {"vendor": item.lower()}
        if key == "vendor":
            hint = f"write one of {', '.join(VENDORS)}"
            raise BadValueError("bad-gpu", f"{describe(item)} is not a vendor", hint)
        if key == "name":
            return {"model": cls._models(item)}
        if key in ("memory", "count"):
            return {key: Memory.parse(item) if key == "memory" else Count.parse(item)}
        if key in cls.FOREIGN:
            summary = f"`{key}` is a field of dstack that fleetform does not have"
            raise BadValueError("dstack-field", summary, cls.FOREIGN[key], at_key=True)
        hint = suggest(key[:MAX_SHOWN], cls.KEYS) or f"known fields: {', '.join(cls.KEYS)}"
        raise BadValueError("unknown-field", f"`{key}` is not a field of gpu", hint, at_key=True)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "object"}]}

    def plain(self) -> Json:
        """Vendor, models, memory, count, joined by `:`."""
        parts = [self.vendor or "", ",".join(self.names), str(self.memory.plain()) if self.memory else ""]
        return ":".join([p for p in (*parts, str(self.count.plain())) if p])


class Cpu(Count):
    """A count of CPUs; dstack's long form `{count: 4..}` is the same."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-range`; `not-supported-yet` for an architecture, as in `arm:4..`."""
        if isinstance(value, Mapping) and set(value) == {"count"}:
            return super().parse(value["count"])
        named = isinstance(value, str) and ":" in value
        if named or (isinstance(value, Mapping) and "arch" in value):
            hint = "write the number alone; an architecture is chosen by the fleet's `instance_types`"
            raise BadValueError("not-supported-yet", "a CPU architecture cannot be asked for yet", hint)
        return super().parse(value)


class Disk(Memory):
    """A range of sizes; dstack's long form `{size: 100GB..}` is the same."""

    @classmethod
    def parse(cls, value: Json) -> Self:
        """As `Memory`."""
        return super().parse(
            value["size"] if isinstance(value, Mapping) and set(value) == {"size"} else value
        )


@struct(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a rank asks for, or what a node must have. A field left out sets no limit."""

    cpu: Annotated[Cpu | None, Doc("CPUs: `4`, `4..`, `2..8`.")] = None
    memory: Annotated[Memory | None, Doc("Memory: `16GB..64GB`; MB, GB, TB in powers of 1024.")] = None
    disk: Annotated[Disk | None, Doc("Disk of the node, shared by its blocks: `100GB..`.")] = None
    gpu: Annotated[
        Gpu | None,
        Doc("GPUs: `1`, `H100:8`, `A100:80GB:1..4`; of one vendor, unless models of several are named."),
    ] = None

    IGNORED: ClassVar[Mapping[str, str]] = {"shm_size": "ranks share the host's /dev/shm, in an `image` too"}
    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("cpus", "vcpu", "vcpus", "cores"), "cpu"),
        **dict.fromkeys(("ram", "mem"), "memory"),
        **dict.fromkeys(("gpus", "accelerator", "accelerators", "nvidia.com/gpu"), "gpu"),
        **dict.fromkeys(
            ("gpu_count", "gpu_name", "gpu_memory"), "write `gpu: H100:80GB:8`: model, memory, count"
        ),
        **dict.fromkeys(("storage", "disk_size", "ephemeral_storage"), "disk"),
        **dict.fromkeys(("limits", "requests"), "write `cpu`, `memory` and `gpu` right below `resources`"),
    }


@struct(frozen=True, slots=True)
class Blocks:
    """The number of equal blocks into which a node is split: a number, or `auto` (None)."""

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
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(auto|\d+)$"}]}

    def plain(self) -> Json:
        return "auto" if self.number is None else self.number
