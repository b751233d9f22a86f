"""`fleetform apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from declarative.cli.failure import failed
from declarative.cli.following import follow
from declarative.cli.options import check_requested, replace_option, reuse_option
from declarative.cli.run import Run, parallelism_option, vanished_option
from declarative.cli.session import (
    Session,
    approve_option,
    json_option,
    lock_option,
    project_command,
    state_errors,
)


@click.command("apply")
@click.argument("file", required=False, type=click.Path())
@approve_option
@click.option("--wait", is_flag=True, help="Follow the tasks to their end, and fail if they fail.")
@click.option("--allow-unplaced", is_flag=True, help="Do the rest although some task cannot be placed.")
@parallelism_option
@vanished_option
@click.option(
    "--signed-by",
    metavar="KEY",
    help="With FILE: refuse a plan that this public key (`ssh-ed25519 AAAA…`), or one in a file of that "
    "name, did not sign. Also FLEETFORM_SIGNED_BY.",
)
@replace_option
@reuse_option
@json_option
@lock_option
@project_command
@state_errors
def command(session: Session, *, file: str | None, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then, unless its `retry` says to wait for capacity), 4 if an action failed, a backend could not be read
    or, with --wait, a task failed; 130 when interrupted. With --json, each event is one line of JSON; the
    `result` of the summary is `done`, `unhealthy`, `waiting`, `failed` or `interrupted`.

    With --wait, a task that failed or has no place now is tried again as its `retry` says.

    With FILE it does what `fleetform plan --out FILE` saved, exactly that and without asking, or refuses and
    names what has changed since. The YAML is not read then. The operator's policy may require that it is
    signed.
    """
    with _saved(session, file, options) if file is not None else _declared(session, options) as run:
        code = run.converge(destroy=False)
        if options["wait"] and code in (0, 4) and run.done:
            return max(follow(run), code)
        if code == 0:
            run.say_running()
        return code


def _declared(session: Session, options: Mapping[str, Any]) -> Run:
    """An apply of what the YAML declares."""
    if options["signed_by"] is not None:
        raise failed("usage", "`--signed-by` is about a saved plan", "name its file: `fleetform apply FILE`")
    loaded = session.load(look="contents")
    assert loaded is not None
    session.warn()
    check_requested(options["requested"], loaded.desired)
    return Run(session, loaded.desired, "apply", options)


def _saved(session: Session, file: str, options: Mapping[str, Any]) -> Run:
    """An apply of a saved plan."""
    from declarative.cli.planfile import read
    from declarative.cli.saved import SavedRun, check_options, signers

    check_options()
    return SavedRun(session, read(file, signers(session, options["signed_by"])), options)
