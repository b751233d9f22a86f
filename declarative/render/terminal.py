"""What the stream at hand can show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

PLAIN_WIDTH = 100
"""What is taken for narrow where there is no terminal: fixed, so that logs do not depend on who looks."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at it; a closed stream is none."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def use_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Colours on a terminal that can show them, unless `NO_COLOR` (https://no-color.org) is set."""
    return is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def width(stream: TextIO) -> int | None:
    """The columns of the terminal, at least 40; None where there is none: then nothing is cut."""
    if not is_terminal(stream):
        return None
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return PLAIN_WIDTH
    return max(40, found) if found else PLAIN_WIDTH
