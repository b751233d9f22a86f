"""GPUs as the tool of their vendor reports them, and which of them are a node's. Pure.

The tests use the documented output of the tools; nothing was tried on hardware.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from declarative.model.record import struct
from declarative.model.spec.gpu_models import known, parts, spelling
from declarative.model.text import show_mib

MEBIBYTE = 1024 * 1024
MOST_DIGITS = 16
LONGEST = 200
"""Characters of a tool's output that a message repeats."""
SOLD_OVER = 1.1
"""A GPU is sold with up to so many times the memory that its driver reports."""
SOLD_GIB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)
"""Sizes that GPUs are sold and asked for by."""

_MAKERS = frozenset(
    ("nvidia", "amd", "instinct", "tesla", "quadro", "geforce", "radeon", "graphics", "pro", "ai")
)
_UUID = re.compile(r"GPU-[A-Za-z0-9-]{1,60}")
_EDITIONS = frozenset(("ada", "ti", "super", "max-q", "blackwell", "xt", "xtx", "gre"))

_NO_VALUE = frozenset(("n/a", "not supported", "not available", "insufficient permissions", "no permission"))
"""The tools' words for a value that a GPU does not have, or does not show to this user: one that shares the
host's memory has none of its own. They may stand in brackets.
"""
LEAST_AMD_MIB = 2048
"""An AMD GPU with less memory of its own is the display of a CPU: cards of ROCm have 4 GB or more."""
_MIG = re.compile(r"MIG (\S+)\s+Device\s+(\d{1,3}): \(UUID: (MIG-[A-Za-z0-9/-]{1,100})\)")
_MIG_MEMORY = re.compile(r"\.(\d{1,4})gb")


@struct(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a host, or one MIG instance of a GPU."""

    index: int
    """The GPU's index in the order of PCI addresses."""
    name: str
    """The name as declarations write it: `H100`, `RTX4090`, `MI300X`, `A100-3g.20gb` for a MIG instance."""
    memory_mib: int | None
    """None if it has none of its own."""
    used_mib: int = 0
    uuid: str | None = None
    vendor: str = "nvidia"
    instance: int = 0
    """The number of a MIG instance within its GPU."""
    reported: str = ""
    """The name that its driver has for it, with the board: `NVIDIA H100 NVL`. Empty for a MIG instance."""

    @property
    def id(self) -> str:
        """The recorded id: the UUID, which stays with the GPU, or the index if the tool reports none."""
        return self.uuid or str(self.index)


class BrokenGpuError(ValueError):
    """The tool answered, but not with a list of GPUs that all work; `working` are those that do."""

    def __init__(self, text: str, working: Sequence[Gpu] = ()) -> None:
        super().__init__(text)
        self.working = tuple(working)


def model(reported: str) -> str:
    """`NVIDIA H100 80GB HBM3` → `H100`, `NVIDIA GeForce RTX 4090` → `RTX4090`, `Tesla T4` → `T4`."""
    if listed := known(reported):
        return listed[0]
    words = [w for w in re.split(r"[\s_]+", reported.strip()) if w.lower() not in _MAKERS]
    if not words:
        return reported.strip()
    first = words.pop(0)
    if first.upper() in {"RTX", "GTX", "RX", "TITAN"} and words:
        second = words.pop(0)
        # `RTX A6000` is the A6000; `RTX 4090` is the RTX4090.
        first = second if re.match(r"[A-Z]\d", second) else first + second
        if words and words[0].lower() in _EDITIONS:
            first += words[0]
    return first.split("-")[0]


def memory(mib: int) -> int:
    """The size as it is sold, where it is close to one."""
    for gib in SOLD_GIB:
        if mib * 0.995 <= gib * 1024 <= mib * SOLD_OVER:
            return gib * 1024
    return mib


def nvidia(rows: Sequence[str], code: int, instances: Sequence[str] = ()) -> tuple[Gpu, ...]:
    """The GPUs in the output of `nvidia-smi`, queried for index, UUID, name, memory.total, memory.used and
    mig.mode.current, which older drivers do not know. A GPU that is in MIG mode counts as its instances,
    which `instances` lists, the output of `nvidia-smi -L`.
    """
    sliced = _instances(instances)
    gpus: list[Gpu] = []
    faults: list[tuple[BrokenGpuError, str]] = []
    for row in filter(None, map(str.strip, rows)):
        if row.lower().startswith("no devices"):
            continue
        try:
            gpu = _nvidia(row)
        except BrokenGpuError as error:
            faults.append((error, row))
            continue
        mig = row.rpartition(",")[2].strip().lower() == "enabled"
        gpus += _slices(gpu, sliced.get(gpu.index, ())) if mig else [gpu]
    gpus.sort(key=lambda gpu: (gpu.index, gpu.instance))
    _check("nvidia-smi", faults, code, gpus)
    return tuple(gpus)


def _nvidia(row: str) -> Gpu:
    cells = [value(cell, f"nvidia-smi says `{row[:LONGEST]}`") for cell in row.split(",")]
    index, uuid, name, total, used = cells[:5] if len(cells) in (5, 6) else [""] * 5
    return Gpu(
        index=_number("nvidia-smi", index, row),
        uuid=uuid if uuid and _UUID.fullmatch(uuid) else None,
        name=model(name or ""),
        reported=name or "",
        memory_mib=None if total is None else memory(_number("nvidia-smi", total, row)),
        used_mib=0 if used is None else _number("nvidia-smi", used, row),
    )


def value(cell: str, text: str) -> str | None:
    """The value in a cell of a tool's table; None if the GPU does not have it, or does not show it.

    `BrokenGpuError` with `text` for a fault in its place, as `[GPU requires reset]`, `[Unknown Error]` and
    `ERR!`. A value never begins with a bracket, so a word for a fault that is not known here counts, too.
    """
    cell = cell.strip()
    word = cell.strip("[]").lower()
    if word in _NO_VALUE:
        return None
    if cell.startswith("[") or word in {"err!", "unknown error"}:
        raise BrokenGpuError(text)
    return cell


def _instances(rows: Sequence[str]) -> dict[int, list[tuple[str, int, str]]]:
    """Index of a GPU → profile, number and UUID of each of its MIG instances."""
    instances: dict[int, list[tuple[str, int, str]]] = {}
    index = -1
    for row in map(str.strip, rows):
        if gpu := re.match(r"GPU (\d{1,4}): ", row):
            index = int(gpu[1])
        elif mig := _MIG.fullmatch(row):
            instances.setdefault(index, []).append((mig[1], int(mig[2]), mig[3]))
    return instances


def _slices(gpu: Gpu, instances: Iterable[tuple[str, int, str]]) -> list[Gpu]:
    out = []
    for profile, number, uuid in instances:
        size = _MIG_MEMORY.search(profile)
        mib = int(size[1]) * 1024 if size else None
        out.append(
            Gpu(index=gpu.index, name=f"{gpu.name}-{profile}", memory_mib=mib, uuid=uuid, instance=number)
        )
    return out


def rocm(rows: Sequence[str], code: int) -> tuple[Gpu, ...]:
    """The GPUs in the output of `rocm-smi --showproductname --showmeminfo vram --showuniqueid --csv`."""
    gpus: list[Gpu] = []
    faults = []
    for row in _table(rows):
        if (row.get("device") or "").startswith("card"):
            try:
                gpu = _rocm(row)
            except BrokenGpuError as error:
                faults.append((error, str(error)))
                continue
            if gpu.memory_mib is None or gpu.memory_mib >= LEAST_AMD_MIB:
                gpus.append(gpu)
    gpus.sort(key=lambda gpu: gpu.index)
    if not gpus and not faults and code:
        faults = [(BrokenGpuError(""), next(filter(None, map(str.strip, rows)), ""))]
    _check("rocm-smi", faults, code, gpus)
    return tuple(gpus)


def _rocm(row: Mapping[str, str]) -> Gpu:
    line = ",".join(map(str, row.values()))

    def cell(column: str) -> str:
        return value(row.get(column) or "", f"rocm-smi says `{line[:LONGEST]}`") or ""

    used, unique = cell("VRAM Total Used Memory (B)"), cell("Unique ID")
    mib = _number("rocm-smi", cell("VRAM Total Memory (B)"), line) // MEBIBYTE
    name = next(filter(None, map(cell, ("Card Series", "Card series", "Card Model"))), "")
    return Gpu(
        index=_number("rocm-smi", (row.get("device") or "").removeprefix("card"), line),
        name=model(name),
        reported=name,
        memory_mib=memory(mib),
        used_mib=int(used) // MEBIBYTE if _counts(used) else 0,
        uuid=unique if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", unique) else None,
        vendor="amd",
    )


def _table(rows: Sequence[str]) -> list[dict[str, str]]:
    begin = next((i for i, row in enumerate(rows) if row.startswith("device,")), len(rows))
    try:
        return list(csv.DictReader(io.StringIO("\n".join(rows[begin:]))))
    except csv.Error as error:
        raise BrokenGpuError(f"rocm-smi does not print a table: {error}") from None


def _number(tool: str, cell: str | None, row: str) -> int:
    if cell is None or not _counts(cell):
        raise BrokenGpuError(f"{tool} says `{row[:LONGEST]}`")
    return int(cell)


def _counts(cell: str) -> bool:
    """Whether it is a number that a GPU may have: a host may say anything."""
    return cell.isascii() and cell.isdecimal() and len(cell) <= MOST_DIGITS


def _check(
    tool: str, faults: Sequence[tuple[BrokenGpuError, str]], code: int, working: Sequence[Gpu]
) -> None:
    """`BrokenGpuError` for rows that are no GPU that works, and for an exit code; it names the first row."""
    if code in {124, 137}:
        raise BrokenGpuError(f"{tool} gave no answer within 10 s")  # what it had printed may not be all
    error, row = faults[0] if faults else (None, "")
    if code:
        text = f"{tool} gave exit code {code}" + (f": {row[:LONGEST]}" if row else "")
        raise BrokenGpuError(text, working)
    if error:
        raise BrokenGpuError(str(error), working)


# ------------------------------------------------------------------------------------- a node's GPUs


def chosen(gpus: Sequence[Gpu], choice: Sequence[int | str], declared: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs of a host that its node has, in the order of its blocks.

    Args:
        gpus: All of the host.
        choice: The indexes, UUIDs and models of the host's `gpus`; empty: all of them.
        declared: Fields of `Shape` that were declared of it: of those with that model, memory and vendor it
            has as many.
    """
    named = [gpu for gpu in gpus if not choice or any(_is(gpu, one) for one in choice)]
    if "gpus" not in declared:
        return tuple(named)
    names, vendor = declared.get("gpu_name"), declared.get("gpu_vendor")
    alike = [
        gpu
        for gpu in named
        if (not names or any(_is_a(gpu, name) for name in names.split(",")))
        and (not vendor or gpu.vendor == vendor)
        and _has(gpu, declared.get("gpu_memory_mib"))
    ]
    return tuple(alike[: declared["gpus"]])


def absent(gpus: Sequence[Gpu], choice: Sequence[int | str]) -> list[str]:
    """The parts of a choice that name no GPU of the host."""
    return [str(one) for one in choice if not any(_is(gpu, one) for gpu in gpus)]


def _is(gpu: Gpu, one: int | str) -> bool:
    """Whether an index, a UUID (or its beginning, as CUDA takes it) or a model means this GPU."""
    if isinstance(one, int):
        return gpu.index == one
    if is_model(one):
        return _is_a(gpu, one)
    return gpu.uuid is not None and gpu.uuid.lower().startswith(one.lower())


def is_model(one: int | str) -> bool:
    """Whether a part of a choice is neither an index nor a UUID."""
    return isinstance(one, str) and not one.lower().startswith(("gpu-", "mig-", "0x"))


def _is_a(gpu: Gpu, name: str) -> bool:
    """Whether the name means this GPU, in whatever spelling: its model, or the board on which it is, with at
    least the memory that the name says.
    """
    model, gb = parts(name)
    own = (gpu.name, parts(gpu.reported)[0])
    return spelling(model) in map(spelling, own) and _has(gpu, gb and gb * 1024)


def _has(gpu: Gpu, mib: int | None) -> bool:
    return not mib or gpu.memory_mib is None or gpu.memory_mib * SOLD_OVER >= mib


def listing(gpus: Sequence[Gpu], *, sizes: bool = False) -> str:
    """`2 A6000, 1 T400`; with their memory `2 A6000 with 48GB, 1 T400 with 4GB`; `none`."""
    counts = Counter(
        f"{gpu.name} with {show_mib(gpu.memory_mib)}" if sizes and gpu.memory_mib else gpu.name
        for gpu in gpus
    )
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"
