"""`fleetform validate`."""

from __future__ import annotations

import click

from declarative.cli.failure import Failed
from declarative.cli.session import Session, emit, emit_text, json_option, project_command


@click.command("validate", short_help="check the project's files")
@json_option
@project_command
def command(session: Session, as_json: bool) -> int:
    """Check every document of the project. Contacts nothing, and needs no state."""
    try:
        loaded = session.load(look="names")
    except Failed as error:
        if not as_json:
            raise
        from declarative.render import validate_json

        emit(validate_json(False, error.diagnostics))
        return 1
    assert loaded is not None
    if as_json:
        from declarative.render import validate_json

        emit(validate_json(True, session.warnings))
        return 0
    session.warn()
    desired = loaded.desired
    counts = [
        f"{len(items)} {noun if len(items) == 1 else noun + 's'}"
        for noun, items in (("fleet", desired.fleets), ("volume", desired.volumes), ("task", desired.tasks))
        if items
    ]
    emit_text(f"Valid: {', '.join(counts) or 'nothing is declared'}.\n")
    return 0
