"""Splits a node into equal blocks, and computes shares (docs/architecture.md, "Blocks"). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from declarative.model.codec import ALWAYS
from declarative.model.record import struct
from declarative.model.spec.gpu_models import KNOWN, model_of, parts, vendor_of
from declarative.model.text import show_mib

if TYPE_CHECKING:
    from declarative.model.spec.values import Count, Gpu, Memory, Resources


@struct(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a node, or of a share of it. Memory and disk are MiB; a disk of None is unknown."""

    cpu: int
    memory_mib: int
    gpus: int = field(default=0, metadata=ALWAYS)
    gpu_name: str | None = None
    gpu_memory_mib: int | None = None
    disk_mib: int | None = None
    gpu_vendor: str | None = None
    """`nvidia`, `amd`, …; None: the model's name decides."""


@struct(frozen=True, slots=True)
class Shortfall:
    """One dimension in which a shape is too small or too large: wanted, present, and the difference."""

    dimension: str
    wanted: str
    had: str
    short: float


UNKNOWN = "unknown"


def maker_of(shape: Shape) -> str | None:
    """The key that the GPUs of a gang have in common: their vendor, or their model if that is unknown.

    None if there are no GPUs. Unknown GPUs are alike.
    """
    if not shape.gpus:
        return None
    return shape.gpu_vendor or vendor_of(shape.gpu_name) or (shape.gpu_name or UNKNOWN).lower()


def gpu_order(shape: Shape) -> tuple[float, int, str]:
    """An order of GPUs, the least first: by the memory of each, then by model. Unknown memory comes last."""
    if not shape.gpus:
        return (0.0, 0, "")
    model = model_of(shape.gpu_name) if shape.gpu_name else None
    memory = shape.gpu_memory_mib or (model.gb * 1024 if model else math.inf)
    return (memory, model.rank if model else len(KNOWN), (shape.gpu_name or "").lower())


def divisors(shape: Shape) -> tuple[int, ...]:
    """Every number of blocks that divides both the CPUs and the GPUs."""
    whole = math.gcd(shape.cpu, shape.gpus) if shape.gpus else shape.cpu
    return tuple(n for n in range(1, whole + 1) if whole % n == 0)


def split(shape: Shape, blocks: int | None) -> int | None:
    """The number of blocks of a node: `auto` (None) is the largest that divides CPUs and GPUs.

    None when the number does not divide both; `divisors` names those that do.
    """
    if blocks is None:
        return math.gcd(shape.cpu, shape.gpus) if shape.gpus else shape.cpu
    return blocks if shape.cpu % blocks == 0 and shape.gpus % blocks == 0 else None


def as_declared(shape: Shape, declared: Mapping[str, Any]) -> Shape:
    """A shape of which fields are declared: they count instead of those that were found.

    The name of GPUs, `A100-80GB`, says model and memory. One that lists several, `A100,H100`, leaves open
    which they are.
    """
    fields = dict(declared)
    names = [parts(name) for name in str(fields.pop("gpu_name", None) or "").split(",") if name]
    if len(names) == 1:
        fields["gpu_name"], gb = names[0]
        if gb:
            fields["gpu_memory_mib"] = max(gb * 1024, fields.get("gpu_memory_mib") or 0)
    return replace(shape, **fields)


def share(shape: Shape, total: int, blocks: int) -> Shape:
    """The shape of `blocks` of `total`: equal shares, and the whole disk. Floors before it multiplies."""
    return Shape(
        cpu=shape.cpu // total * blocks,
        memory_mib=shape.memory_mib // total * blocks,
        gpus=shape.gpus // total * blocks,
        gpu_name=shape.gpu_name,
        gpu_memory_mib=shape.gpu_memory_mib,
        disk_mib=shape.disk_mib,
        gpu_vendor=shape.gpu_vendor,
    )


def _outside(dimension: str, limits: Count | Memory | None, had: int | None, shown: str) -> list[Shortfall]:
    """At most one shortfall; an excess is below 0. A value of None counts as 0."""
    number = had or 0
    if limits is None or limits.holds(number):
        return []
    short = limits.min - number if number < limits.min else (limits.max or 0) - number
    return [Shortfall(dimension, str(limits.plain()), shown, short)]


def misfits(want: Resources, shape: Shape) -> tuple[Shortfall, ...]:
    """Where `shape` is too small (short above 0) or too large (below 0) for `want`; empty when it does."""
    out = _outside("cpu", want.cpu, shape.cpu, str(shape.cpu))
    out += _outside("memory_mib", want.memory, shape.memory_mib, show_mib(shape.memory_mib))
    if shape.disk_mib is not None:
        out += _outside("disk_mib", want.disk, shape.disk_mib, show_mib(shape.disk_mib))
    if want.gpu:
        out += _outside("gpu", want.gpu.count, shape.gpus, str(shape.gpus))
        if shape.gpus:
            out += _gpu_misfits(want.gpu, shape)
    return tuple(out)


def _gpu_misfits(want: Gpu, shape: Shape) -> list[Shortfall]:
    """Where model, vendor or memory of a shape's GPUs do not suffice."""
    out: list[Shortfall] = []
    if not want.allows(shape.gpu_name, shape.gpu_memory_mib):
        out.append(Shortfall("gpu_model", ",".join(want.names), shape.gpu_name or UNKNOWN, want.count.min))
    vendor = shape.gpu_vendor or vendor_of(shape.gpu_name)
    if want.vendor and vendor != want.vendor:
        out.append(Shortfall("gpu_vendor", want.vendor, vendor or UNKNOWN, want.count.min))
    each = shape.gpu_memory_mib
    return out + _outside("gpu_memory_mib", want.memory, each, UNKNOWN if each is None else show_mib(each))


def fewest(want: Resources, shape: Shape, total: int) -> int | None:
    """The fewest blocks of `total` whose share satisfies `want`, upper bounds included; None if none does."""
    least = 1
    for size, whole in (
        (want.cpu, shape.cpu),
        (want.memory, shape.memory_mib),
        (want.gpu.count if want.gpu else None, shape.gpus),
    ):
        each = whole // total
        if size and size.min > 0:
            if not each:
                return None
            least = max(least, -(-size.min // each))
    # Shares only grow: if this one is too large in some way, so are all others.
    return least if least <= total and _suffices(want, shape, total, least) else None


def _suffices(want: Resources, shape: Shape, total: int, blocks: int) -> bool:
    """Whether the share has no misfits, without naming them: this is called most of all."""
    if want.cpu and not want.cpu.holds(shape.cpu // total * blocks):
        return False
    if want.memory and not want.memory.holds(shape.memory_mib // total * blocks):
        return False
    if want.disk and shape.disk_mib is not None and not want.disk.holds(shape.disk_mib):
        return False
    gpus = shape.gpus // total * blocks
    if want.gpu and not want.gpu.count.holds(gpus):
        return False
    return not want.gpu or not gpus or not _gpu_misfits(want.gpu, shape)


def cpus_of(shape: Shape, total: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """The CPU numbers that `blocks` stand for: block i has the i-th equal stretch."""
    each = shape.cpu // total
    return tuple(cpu for block in blocks for cpu in range(block * each, (block + 1) * each))


def gpus_of(shape: Shape, total: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """The GPU numbers that `blocks` stand for."""
    each = shape.gpus // total
    return tuple(gpu for block in blocks for gpu in range(block * each, (block + 1) * each))
