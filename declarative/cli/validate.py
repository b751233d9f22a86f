"""`fleetform validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from declarative.cli.failure import Failed
from declarative.cli.options import work_option
from declarative.cli.session import Session, emit, emit_text, json_option, project_command

if TYPE_CHECKING:
    from declarative.resource import Desired


@click.command("validate")
@json_option
@work_option
@project_command
def command(session: Session, *, as_json: bool, max_work: int | None) -> int:
    """Check every document of the project. Contacts nothing, and needs no state."""
    try:
        loaded = session.load(look="names")
        if max_work is not None and loaded is not None:
            _check_work(loaded.desired, max_work)
    except Failed as error:
        if not as_json:
            raise
        from declarative.render.data import validate_json

        emit(validate_json(False, error.diagnostics))
        return 1
    assert loaded is not None
    if as_json:
        from declarative.render.data import validate_json

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


def _check_work(desired: Desired, most: int) -> None:
    """`Failed` where a plan of what is declared would take more work, offers and what is recorded aside."""
    from declarative.plan.types import Inventory
    from declarative.plan.work_limit import too_large
    from declarative.state import State

    large = too_large(desired, State(), Inventory(), most)
    if large:
        raise Failed((large,))
