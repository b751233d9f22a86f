"""Long results on a terminal go through the user's pager, as git's do."""

from __future__ import annotations

import os
import shutil
import sys

import click

from declarative.cli.output import Unbroken


def show(text: str, *, paged: bool, summary: str = "") -> None:
    """Print `text`; through `$FLEETFORM_PAGER` or `$PAGER` (default `less`) if it is longer than the screen.

    An empty pager or `cat` turns it off, and so does anything but a terminal on either side. `summary` is
    printed once the pager has ended: whoever leaves it early has seen that much.
    """
    chosen = os.environ.get("FLEETFORM_PAGER", os.environ.get("PAGER", "less"))
    terminal = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    lines = shutil.get_terminal_size().lines
    if not paged or not terminal or chosen in ("", "cat") or text.count("\n") < lines:
        sys.stdout.write(text)
        Unbroken(sys.stdout).flush()  # before what follows on stderr: both may be one file
        return
    before = {name: os.environ.get(name) for name in ("PAGER", "LESS")}
    os.environ["PAGER"] = chosen
    # Colours as they are, the text stays on the screen, and no pager for what fits it.
    os.environ.setdefault("LESS", "FRX")
    try:
        click.echo_via_pager(text, color=True)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    sys.stdout.write(summary)
    Unbroken(sys.stdout).flush()
