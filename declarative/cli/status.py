"""`fleetform status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from declarative.cli.session import (
    Session,
    emit,
    emit_text,
    json_option,
    out_style,
    project_command,
    state_errors,
)

if TYPE_CHECKING:
    from declarative.render import StatusView


@click.command("status", short_help="nodes, blocks, volumes and tasks as they are now")
@json_option
@click.option("--offline", is_flag=True, help="Contact nothing: show what was last observed.")
@project_command
@state_errors
def command(session: Session, as_json: bool, offline: bool) -> int:
    """Show the fleets with their block map, the volumes and the tasks. Reads the backends, keeps nothing."""
    from declarative.render import status_json, status_text

    view = gather(session, offline=offline)
    if as_json:
        emit(status_json(view))
    else:
        emit_text(status_text(view, **out_style()))
    return 0


def gather(session: Session, *, offline: bool) -> StatusView:
    """What is recorded and declared, with what is observed now."""
    from declarative.apply import look
    from declarative.cli.view import status_view
    from declarative.plan import effective
    from declarative.resource import Desired

    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else Desired()
    state = session.store(desired, offline=offline).read()
    backends = session.backends(desired, state)
    seen = look(state, backends, offline=offline, offers=False)
    session.say(seen.inventory.diagnostics)
    return status_view(desired, effective(state, seen.inventory))
