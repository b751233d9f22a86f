"""Commands that people type at a node: those that both kinds of hosts have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def _script() -> str:
    return Path(__file__).resolve().with_name("exec.sh").read_text()


def beside(node: str, attempt: str, command: Sequence[str]) -> tuple[str, ...]:
    """What runs `command` beside a running attempt; without one, a shell. `node` is the node's folder."""
    return ("sh", "-c", _script(), "sh", node, attempt, *command)
