"""The `slurm` provider: nodes of a Slurm cluster; a task is one job there. Slurm stays the scheduler."""

from __future__ import annotations

from providers.slurm.provider import Slurm

__all__ = ["Slurm"]
