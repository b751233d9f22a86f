"""How many examples a law looks at; `./dev test` without arguments sets FLEETFORM_QUICK."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """The number in FLEETFORM_EXAMPLES; else `usual`, of which the quick part of the tests takes a third."""
    named = os.environ.get("FLEETFORM_EXAMPLES", "")
    if named.isdecimal():
        return int(named)
    return usual // 3 if os.environ.get("FLEETFORM_QUICK") else usual
