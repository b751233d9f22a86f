"""How a command says what went wrong."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import click

from declarative.diagnostic import Diagnostic

Form = Literal["text", "object", "event"]


class Failed(click.ClickException):
    """An error with its diagnostics; shown as text on stderr, or as the command's JSON."""

    exit_code = 1

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(d.summary for d in diagnostics))
        self.diagnostics = diagnostics
        self.form: Form = "text"

    def show(self, file: Any = None) -> None:
        from declarative.render.data import diagnostics_json, to_event, to_json
        from declarative.render.diagnostics import diagnostics_text
        from declarative.render.terminal import use_color

        found = diagnostics_json(self.diagnostics)
        locked = any(d.code == "locked" for d in self.diagnostics)
        data = {"result": "locked" if locked else "error", "diagnostics": found}
        if self.form == "object":
            sys.stdout.write(to_json(data))
            return
        if self.form == "event":
            sys.stdout.write(to_event({"event": "error", **data}) + "\n")
            return
        stream = file or sys.stderr
        stream.write(diagnostics_text(self.diagnostics, color=use_color(stream, os.environ)))


def failed(code: str, summary: str, hint: str | None = None) -> Failed:
    """One error without a place."""
    return Failed((Diagnostic(code=code, summary=summary, hint=hint),))
