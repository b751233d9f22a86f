"""`fleetform stop`."""

from __future__ import annotations

import sys

import click

from declarative.cli.logs import parse_target, ranks_of
from declarative.cli.session import (
    Session,
    emit_text,
    failed,
    lock_option,
    now,
    project_command,
    state_errors,
)


@click.command("stop", short_help="stop a task")
@click.argument("target", metavar="TASK")
@lock_option
@project_command
@state_errors
def command(session: Session, target: str, lock_timeout: float) -> int:
    """Stop every rank of a task: TERM, then KILL after its `stop_duration`, and give its blocks back.

    It stays stopped until its declaration changes or `apply --replace task/NAME` asks for it.
    """
    from declarative.apply import refresh, state_of, stop_task
    from declarative.render import Progress

    loaded = session.load(required=False)
    desired = loaded.desired if loaded else None
    task, rank = parse_target(target, None)
    if rank is not None:
        raise failed("usage", "a rank cannot be stopped alone", f"write `fleetform stop {task}`")
    store = session.store(desired, write=True)
    records = ranks_of(store.read(), task)
    if not records:
        raise failed("not-run", f"task/{task} has not run", "`fleetform status` lists the tasks")
    with store.lock("stop", lock_timeout) as writer, Progress(sys.stderr, "plain", 0) as progress:
        backends = session.backends(desired, writer.state())

        def note(name: str, status: object) -> None:
            progress.rank(f"rank/{name}", status.state.value, status.cause)  # type: ignore[attr-defined]

        refresh(writer, backends, now)
        stop_task(writer, backends, task, now, note)
        state = state_of(writer.state(), task)
    emit_text(f"task/{task} is {state.value}.\n")
    return 0
