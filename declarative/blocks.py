"""How a node is split into equal blocks, and what a share of them is (DESIGN §3). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from declarative.spec.values import Count, Memory, Resources, show_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a node has, or what a share of it has. Memory and disk are MiB; a disk of None is unknown."""

    cpu: int
    memory_mib: int
    gpus: int = 0
    gpu_name: str | None = None
    gpu_memory_mib: int | None = None
    disk_mib: int | None = None
    gpu_vendor: str | None = None
    """`nvidia`, `amd`, …; None is what the model's name says."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One dimension in which a shape does not do: what was wanted, what is there, by how much."""

    dimension: str
    wanted: str
    had: str
    short: float


_VENDORS = (
    ("amd", ("mi",)),
    ("intel", ("gaudi", "max")),
    ("google", ("v2", "v3", "v4", "v5", "v6", "tpu")),
    ("tenstorrent", ("n150", "n300")),
)
"""Which beginnings of a model's name tell its vendor; all others are NVIDIA's."""


def vendor_of(model: str | None) -> str | None:
    """The vendor of a GPU model; None if there is no model."""
    if not model:
        return None
    name = model.lower()
    found = (vendor for vendor, starts in _VENDORS if name.startswith(starts))
    return next(found, "nvidia")


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


def share(shape: Shape, total: int, blocks: int) -> Shape:
    """What `blocks` of `total` have: equal shares, and the whole disk. Floors before it multiplies."""
    return Shape(
        cpu=shape.cpu // total * blocks,
        memory_mib=shape.memory_mib // total * blocks,
        gpus=shape.gpus // total * blocks,
        gpu_name=shape.gpu_name,
        gpu_memory_mib=shape.gpu_memory_mib,
        disk_mib=shape.disk_mib,
        gpu_vendor=shape.gpu_vendor,
    )


def _number(dimension: str, want: Count, had: int) -> Shortfall | None:
    if want.holds(had):
        return None
    return Shortfall(dimension, str(want.plain()), str(had), _short(want, had))


def _short(want: Count | Memory, had: int) -> int:
    """What is missing; below 0 what is too much."""
    return want.min - had if had < want.min else (want.max or 0) - had


def misfits(want: Resources, shape: Shape) -> tuple[Shortfall, ...]:
    """Where `shape` is too small (short above 0) or too large (below 0) for `want`; empty when it does."""
    out: list[Shortfall | None] = []
    if want.cpu:
        out.append(_number("cpu", want.cpu, shape.cpu))
    for name, limits, had in (
        ("memory_mib", want.memory, shape.memory_mib),
        ("disk_mib", want.disk, shape.disk_mib),
    ):
        if limits and had is not None and not limits.holds(had):
            out.append(Shortfall(name, str(limits.plain()), show_mib(had), _short(limits, had)))
    if want.gpu:
        out.append(_number("gpu", want.gpu.count, shape.gpus))
        names = tuple(n.lower() for n in want.gpu.names)
        if shape.gpus and names and (shape.gpu_name or "").lower() not in names:
            out.append(
                Shortfall(
                    "gpu_model", ",".join(want.gpu.names), shape.gpu_name or "unknown", want.gpu.count.min
                )
            )
        vendor = shape.gpu_vendor or vendor_of(shape.gpu_name)
        if shape.gpus and want.gpu.vendor and vendor != want.gpu.vendor:
            found = vendor or "unknown"
            out.append(Shortfall("gpu_vendor", want.gpu.vendor, found, want.gpu.count.min))
        memory = want.gpu.memory
        had_each = shape.gpu_memory_mib
        if shape.gpus and memory and not memory.holds(had_each or 0):
            had_text = "unknown" if had_each is None else show_mib(had_each)
            short = _short(memory, had_each or 0)
            out.append(Shortfall("gpu_memory_mib", str(memory.plain()), had_text, short))
    return tuple(item for item in out if item is not None)


def fewest(want: Resources, shape: Shape, total: int) -> int | None:
    """The fewest blocks of `total` whose share satisfies `want`, upper bounds included; None if none does."""
    least = 1
    for wanted, whole in (
        (want.cpu, shape.cpu),
        (want.memory, shape.memory_mib),
        (want.gpu.count if want.gpu else None, shape.gpus),
    ):
        each = whole // total
        if wanted and wanted.min > 0:
            if not each:
                return None
            least = max(least, -(-wanted.min // each))
    # Shares only grow: if this one is too large in some way, so are all others.
    return least if least <= total and not misfits(want, share(shape, total, least)) else None


def cpus_of(shape: Shape, total: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """The CPU numbers that `blocks` stand for: block i has the i-th equal stretch."""
    each = shape.cpu // total
    return tuple(cpu for block in blocks for cpu in range(block * each, (block + 1) * each))


def gpus_of(shape: Shape, total: int, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """The GPU numbers that `blocks` stand for."""
    each = shape.gpus // total
    return tuple(gpu for block in blocks for gpu in range(block * each, (block + 1) * each))
