"""`fleetform apply`."""

from __future__ import annotations

from typing import Any

import click

from declarative.cli.plan import check_requested, replace_option
from declarative.cli.run import Run, parallelism_option, vanished_option
from declarative.cli.session import (
    Session,
    approve_option,
    json_option,
    lock_option,
    project_command,
    state_errors,
)
from declarative.cli.signals import INTERRUPTED, stopping

LEAVING = "leaving: the tasks go on (`fleetform status`, `fleetform logs -f`)"


@click.command("apply", short_help="do it")
@approve_option
@click.option("--wait", is_flag=True, help="Follow the tasks to their end, and fail if they fail.")
@click.option("--allow-unplaced", is_flag=True, help="Do the rest although some task cannot be placed.")
@parallelism_option
@vanished_option
@replace_option
@json_option
@lock_option
@project_command
@state_errors
def command(session: Session, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then), 4 if an action failed or, with --wait, a task; 130 when interrupted. With --json, each event is
    one line of JSON.
    """
    loaded = session.load()
    assert loaded is not None
    session.warn()
    check_requested(options["requested"], loaded.desired.tasks)
    with Run(session, loaded.desired, "apply", options) as run:
        code = run.converge(destroy=False)
        if options["wait"] and code in (0, 4) and run.done:
            return follow(run) or code
        if code == 0:
            run.say_running()
        return code


def follow(run: Run) -> int:
    """Watch the tasks to their end, and say how each ended: 0, 4, or 130."""
    from declarative.apply import follow as watch
    from declarative.cli.session import now
    from declarative.state import RankState

    tasks = run.tasks()
    if not tasks:
        return 0
    with stopping(LEAVING) as stop:
        states = watch(
            run.store,
            run.session.backends(run.desired, run.store.read()),
            tasks,
            stopping=stop,
            now=now,
            note=run.note,
        )
    if stop.is_set():
        return INTERRUPTED
    run.say_ended(states)
    return 0 if all(s is RankState.SUCCEEDED for s in states.values()) else 4
