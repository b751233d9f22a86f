"""Instance types from the files in `catalogs`: their shapes, regions and prices.

libcloud also ships prices. Some are of GPUs long gone, and some are 0 because they are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.record import struct


@struct(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One instance type. `prices` maps each region that has it to USD an hour on demand; None if unknown."""

    name: str
    architecture: str
    shape: Shape
    prices: Mapping[str, float | None]
    clusters: bool = True
    """Whether its instances can be placed close to each other."""


@struct(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All instance types of a cloud, on the day when the file was written."""

    priced_on: str
    """The date of the prices: `2025-03-02`."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region → its zones."""
    types: Mapping[str, InstanceType] = field(default_factory=dict)


@lru_cache(maxsize=4)
def catalog(name: str) -> Catalog:
    """The catalog in `catalogs/NAME.txt`. The file's first lines explain it."""
    lines = _lines(name)
    priced_on, codes, zones, types = "", {}, {}, {}
    apart: frozenset[str] = frozenset()
    for kind, *words in lines:
        if kind == "prices":
            (priced_on,) = words
        elif kind == "region":
            code, region, letters = words
            codes[code] = region
            zones[region] = tuple(region + letter for letter in letters)
        elif kind == "apart":
            apart = frozenset(words)
        else:
            found = _type(words, codes, apart)
            types[found.name] = found
    return Catalog(priced_on=priced_on, zones=zones, types=types)


def _lines(name: str) -> Iterator[list[str]]:
    text = (files("providers.cloud") / "catalogs" / f"{name}.txt").read_text(encoding="utf-8")
    return (line.split() for line in text.splitlines() if line and not line.startswith("#"))


def _type(words: list[str], codes: Mapping[str, str], apart: frozenset[str]) -> InstanceType:
    name, architecture, cpus, memory, gpus, *places = words
    model, _, rest = gpus.partition(":")
    count, _, each = rest.partition(":")
    shape = Shape(
        cpu=int(cpus),
        memory_mib=int(memory),
        gpus=int(count or 0),
        gpu_name=model if count else None,
        gpu_memory_mib=int(each) if each else None,
        gpu_vendor="nvidia" if count else None,
    )
    prices: dict[str, float | None] = {}
    for place in places:
        code, _, price = place.partition("=")
        prices[codes[code]] = float(price) if price else None
    return InstanceType(
        name=name, architecture=architecture, shape=shape, prices=prices, clusters=name not in apart
    )


@lru_cache(maxsize=1)
def _bundle() -> tuple[Mapping[str, Any], str | None]:
    from libcloud.pricing import get_pricing_file_path

    try:
        found = json.loads(Path(get_pricing_file_path()).read_text(encoding="utf-8"))
        return found["compute"], datetime.fromtimestamp(found["updated"], UTC).date().isoformat()
    except (OSError, KeyError, TypeError, ValueError):
        return {}, None  # a type without a price is offered too


def prices(name: str) -> Mapping[str, Any]:
    """One of libcloud's price tables, empty if missing. The form depends on the driver."""
    found = _bundle()[0].get(name)
    return found if isinstance(found, dict) else {}


def day() -> str | None:
    """The date of these prices: `2025-03-02`."""
    return _bundle()[1]
