"""What a cloud calls its GPUs, as people ask for them: `nvidia_h100` is `H100` of `nvidia`."""

from __future__ import annotations

import re
from collections.abc import Mapping

MEMORY_GB: Mapping[str, int] = {
    "A16": 16,
    "A40": 48,
    "A100": 80,
    "L4": 24,
    "L40S": 48,
    "GH200": 96,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "MI325X": 256,
}
"""Model → GB of a whole one: where a machine has less, it has a share of one."""
_VENDORS = ("nvidia", "amd")


def model(text: str) -> tuple[str | None, str | None]:
    """The name and the vendor."""
    vendor, _, rest = re.sub(r"[ _-]+", " ", text.strip()).partition(" ")
    if vendor.lower() not in _VENDORS:
        vendor, rest = "", re.sub(r"[ _-]+", " ", text.strip())
    words = rest.split()
    if not words:
        return None, vendor.lower() or None
    return "".join([words[0].upper(), *(w.capitalize() for w in words[1:])]), vendor.lower() or None
