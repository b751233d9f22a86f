"""GPUs as their vendor's tool reports them. Pure.

Tested with what the tools are documented to print, not on hardware.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
MOST_DIGITS = 16
LONGEST = 200
"""Characters of what a tool says that are repeated."""
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
    """What `nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.used` says."""
    if code:
        raise BrokenGpuError(_failed("nvidia-smi", rows, code))
    found = []
    for row in rows:
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != 5 or not (_counts(cells[0]) and _counts(cells[3])):
            if not row.strip() or row.strip().lower().startswith("no devices"):
                continue
            raise BrokenGpuError(f"nvidia-smi says `{row.strip()[:LONGEST]}`")
        used = int(cells[4]) if _counts(cells[4]) else 0
        found.append(
            Gpu(
                index=int(cells[0]),
                uuid=cells[1],
                name=model(cells[2]),
                memory_mib=memory(int(cells[3])),
                used_mib=used,
            )
        )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def rocm(rows: Sequence[str], code: int) -> tuple[Gpu, ...]:
    """What `rocm-smi --showproductname --showmeminfo vram --csv` says."""
    if code:
        raise BrokenGpuError(_failed("rocm-smi", rows, code))
    begin = next((i for i, row in enumerate(rows) if row.startswith("device,")), len(rows))
    found = []
    for row in _table(rows[begin:]):
        device, total = row.get("device") or "", row.get("VRAM Total Memory (B)") or ""
        if not device.startswith("card"):
            continue
        if not (_counts(device[4:]) and _counts(total)):
            said = ",".join(str(cell) for cell in row.values())
            raise BrokenGpuError(f"rocm-smi says `{said[:LONGEST]}`")
        used = row.get("VRAM Total Used Memory (B)") or ""
        name = row.get("Card Series") or row.get("Card series") or row.get("Card Model") or ""
        found.append(
            Gpu(
                index=int(device[4:]),
                name=model(name),
                memory_mib=memory(int(total) // MEBIBYTE),
                used_mib=int(used) // MEBIBYTE if _counts(used) else 0,
                vendor="amd",
            )
        )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _table(rows: Sequence[str]) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO("\n".join(rows))))
    except csv.Error as error:
        raise BrokenGpuError(f"rocm-smi says no table: {error}") from None


def _counts(cell: str) -> bool:
    """Whether it is a number that a GPU may have: a host may say anything."""
    return cell.isascii() and cell.isdecimal() and len(cell) <= MOST_DIGITS


def _failed(tool: str, rows: Sequence[str], code: int) -> str:
    if code in {124, 137}:
        return f"{tool} gave no answer within 10 s"
    said = next((row.strip() for row in rows if row.strip()), "")
    return f"{tool} gave exit code {code}" + (f": {said[:LONGEST]}" if said else "")
