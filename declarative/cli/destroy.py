"""`fleetform destroy`."""

from __future__ import annotations

from typing import Any

import click

from declarative.cli.apply import Run, STOPPING, parallelism_option, vanished_option
from declarative.cli.session import (
    Session,
    approve_option,
    emit_text,
    json_option,
    lock_option,
    project_command,
    state_errors,
)
from declarative.cli.signals import INTERRUPTED, stopping


@click.command("destroy", short_help="delete everything but what is protected")
@approve_option
@parallelism_option
@vanished_option
@json_option
@lock_option
@project_command
@state_errors
def command(session: Session, **options: Any) -> int:
    """Stop all tasks and delete all nodes and volumes, but for those with `prevent_destroy`.

    It is the plan to nothing: the same steps, in reverse. Volumes are protected unless they say otherwise;
    what is left is named.
    """
    from declarative.resource import Desired

    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else Desired()
    nothing = Desired(project=desired.project, backends=desired.backends)
    options = {**options, "wait": False}
    with Run(session, nothing, "destroy", options) as run, stopping(STOPPING) as stop:
        with run.lock() as writer:
            outcome = run.locked(writer, stop, destroy=True)
            state = writer.state()
        if isinstance(outcome, int):
            return outcome
        left = [r for r in (*state.of("node"), *state.of("volume")) if r.inputs.get("prevent_destroy")]
        if left and not options["as_json"]:
            names = ", ".join(str(r.address) for r in left)
            emit_text(f"Kept, because of `prevent_destroy`: {names}.\n")
            emit_text("To delete them too: set `prevent_destroy: false`, apply, and destroy again.\n")
        if stop.is_set():
            return INTERRUPTED
        return 4 if any(r.outcome != "done" for r in outcome[0]) else 0
