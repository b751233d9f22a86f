"""Commands that people type at a node: those that both kinds of hosts have in common."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent


@cache
def _script(name: str) -> str:
    return "".join((_HERE / part).read_text() for part in ("environ.sh", name))


def beside(node: str, attempt: str, command: Sequence[str]) -> tuple[str, ...]:
    """What runs `command` beside a running attempt; without one, a shell. `node` is the node's folder."""
    return ("sh", "-c", _script("exec.sh"), "sh", _script("inside.sh"), node, attempt, *command)


def joins(node: str, attempt: str) -> str:
    """The script that does the same with the command of an ssh session, `$SSH_ORIGINAL_COMMAND`."""
    words = shlex.join((_script("inside.sh"), node, attempt, "sh", "-c"))
    return f'set -- {words} "$SSH_ORIGINAL_COMMAND"\n{_script("exec.sh")}'
