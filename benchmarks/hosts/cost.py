"""What something costs this process and its children."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """Seconds: by the clock, and of computing, user and system."""

    wall: float
    cpu: float


def cost_of(work: Callable[[], object]) -> Cost:
    """Of a call, with all that it started and waited for."""
    begun, spent = time.monotonic(), _cpu()
    work()
    return Cost(time.monotonic() - begun, _cpu() - spent)


def _cpu() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    """A command that has to succeed; what it says is for errors only."""
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(argv)} gave {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
