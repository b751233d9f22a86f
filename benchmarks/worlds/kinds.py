"""What can be had in the worlds: instance types, and hosts of one's own."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """An instance type: CPUs, memory in GB, GPUs with their model and memory, and about what it costs."""

    name: str
    cpu: int
    memory: int
    model: str
    gpus: int
    gpu_memory: int
    price: float

    @property
    def gpu(self) -> str:
        """Its GPUs as YAML has them."""
        return f"{self.model}:{self.gpu_memory}GB:{self.gpus}"


KINDS = (
    Kind("c8", 8, 32, "", 0, 0, 0.38),
    Kind("c32", 32, 128, "", 0, 0, 1.50),
    Kind("m16", 16, 128, "", 0, 0, 1.00),
    Kind("t4x1", 8, 30, "T4", 1, 16, 0.60),
    Kind("t4x2", 16, 60, "T4", 2, 16, 1.15),
    Kind("t4x4", 48, 192, "T4", 4, 16, 3.90),
    Kind("l4x1", 8, 32, "L4", 1, 24, 0.85),
    Kind("l4x4", 48, 192, "L4", 4, 24, 4.60),
    Kind("a10x1", 16, 64, "A10", 1, 24, 1.20),
    Kind("a100x1", 12, 85, "A100", 1, 80, 3.40),
    Kind("a100x8", 96, 1100, "A100", 8, 80, 30.00),
    Kind("h100x8", 192, 2000, "H100", 8, 80, 62.00),
)
LARGE = (
    Kind("r64", 64, 512, "", 0, 0, 3.90),
    Kind("c96", 96, 192, "", 0, 0, 3.80),
    Kind("m192", 192, 768, "", 0, 0, 8.80),
)
"""Nodes of many blocks, for broad worlds."""
OWN = (
    Kind("", 32, 128, "", 0, 0, 0),
    Kind("", 16, 64, "T4", 2, 16, 0),
    Kind("", 16, 64, "A10", 1, 24, 0),
    Kind("", 64, 512, "A100", 4, 80, 0),
)
"""What hosts of one's own are."""
