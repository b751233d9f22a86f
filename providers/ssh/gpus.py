"""GPUs as the tool of their vendor reports them. Pure.

The tests use the documented output of the tools; nothing was tried on hardware.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from declarative.model.record import dataclass

MEBIBYTE = 1024 * 1024
MOST_DIGITS = 16
LONGEST = 200
"""Characters of a tool's output that a message repeats."""
SOLD_GIB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)
"""Sizes that GPUs are sold and asked for by; a driver reports up to a tenth less."""

_MAKERS = frozenset(("nvidia", "amd", "instinct", "tesla", "quadro", "geforce", "radeon", "graphics", "pro"))
_EDITIONS = frozenset(("ada", "ti", "super", "max-q", "blackwell"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a host."""

    index: int
    name: str
    """As declarations write it: `H100`, `RTX4090`, `MI300X`."""
    memory_mib: int
    used_mib: int = 0
    uuid: str | None = None
    vendor: str = "nvidia"


class BrokenGpuError(ValueError):
    """The tool answered, but not with a list of GPUs that work."""


def model(reported: str) -> str:
    """`NVIDIA H100 80GB HBM3` → `H100`, `NVIDIA GeForce RTX 4090` → `RTX4090`, `Tesla T4` → `T4`."""
    words = [w for w in re.split(r"[\s_]+", reported.strip()) if w.lower() not in _MAKERS]
    if not words:
        return reported.strip()
    first = words.pop(0)
    if first.upper() in {"RTX", "GTX", "TITAN"} and words:
        second = words.pop(0)
        # `RTX A6000` is the A6000; `RTX 4090` is the RTX4090.
        first = second if re.match(r"[A-Z]\d", second) else first + second
        if words and words[0].lower() in _EDITIONS:
            first += words[0]
    return first.split("-")[0]


def memory(mib: int) -> int:
    """The size as it is sold, where it is close to one."""
    for gib in SOLD_GIB:
        if mib * 0.995 <= gib * 1024 <= mib * 1.1:
            return gib * 1024
    return mib


def nvidia(rows: Sequence[str], code: int) -> tuple[Gpu, ...]:
    """The GPUs in the output of `nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.used`."""
    _check_code("nvidia-smi", rows, code)
    found = []
    for row in filter(None, map(str.strip, rows)):
        if row.lower().startswith("no devices"):
            continue
        cells = [cell.strip() for cell in row.split(",")]
        index, uuid, name, total, used = cells if len(cells) == 5 else [""] * 5
        mib = _number("nvidia-smi", total, row)
        spent = int(used) if _counts(used) else 0
        number = _number("nvidia-smi", index, row)
        found.append(Gpu(index=number, uuid=uuid, name=model(name), memory_mib=memory(mib), used_mib=spent))
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def rocm(rows: Sequence[str], code: int) -> tuple[Gpu, ...]:
    """The GPUs in the output of `rocm-smi --showproductname --showmeminfo vram --csv`."""
    _check_code("rocm-smi", rows, code)
    found = []
    for row in _table(rows):
        device = row.get("device") or ""
        if not device.startswith("card"):
            continue
        line = ",".join(map(str, row.values()))
        mib = _number("rocm-smi", row.get("VRAM Total Memory (B)") or "", line) // MEBIBYTE
        used = row.get("VRAM Total Used Memory (B)") or ""
        spent = int(used) // MEBIBYTE if _counts(used) else 0
        number = _number("rocm-smi", device.removeprefix("card"), line)
        name = next(filter(None, map(row.get, ("Card Series", "Card series", "Card Model"))), "")
        found.append(
            Gpu(index=number, name=model(name), memory_mib=memory(mib), used_mib=spent, vendor="amd")
        )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _table(rows: Sequence[str]) -> list[dict[str, str]]:
    begin = next((i for i, row in enumerate(rows) if row.startswith("device,")), len(rows))
    try:
        return list(csv.DictReader(io.StringIO("\n".join(rows[begin:]))))
    except csv.Error as error:
        raise BrokenGpuError(f"rocm-smi does not print a table: {error}") from None


def _number(tool: str, cell: str, row: str) -> int:
    if not _counts(cell):
        raise BrokenGpuError(f"{tool} says `{row[:LONGEST]}`")
    return int(cell)


def _counts(cell: str) -> bool:
    """Whether it is a number that a GPU may have: a host may say anything."""
    return cell.isascii() and cell.isdecimal() and len(cell) <= MOST_DIGITS


def _check_code(tool: str, rows: Sequence[str], code: int) -> None:
    if code in {124, 137}:
        raise BrokenGpuError(f"{tool} gave no answer within 10 s")
    if code:
        line = next((row.strip() for row in rows if row.strip()), "")
        raise BrokenGpuError(f"{tool} gave exit code {code}" + (f": {line[:LONGEST]}" if line else ""))
