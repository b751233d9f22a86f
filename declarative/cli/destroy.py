"""`fleetform destroy`."""

from __future__ import annotations

import sys
from typing import Any

import click

from declarative.cli.run import Run, parallelism_option, vanished_option
from declarative.cli.session import (
    Session,
    approve_option,
    json_option,
    lock_option,
    project_command,
    state_errors,
)

ELSEWHERE = (
    "there is no YAML file here, and nothing was ever recorded: "
    "`fleetform -C DIR destroy` names the project's directory"
)


@click.command("destroy")
@approve_option
@click.option(
    "--orphans", is_flag=True, help="Delete what this state made and does not record, and nothing else."
)
@parallelism_option
@vanished_option
@json_option
@lock_option
@project_command
@state_errors
def command(session: Session, *, orphans: bool, **options: Any) -> int:
    """Stop all tasks and delete all nodes and volumes, but for those with `prevent_destroy`: as the YAML says
    now, and if it has them no more, as it said at the last apply.

    It is the plan to nothing: the same steps, in reverse. Volumes are protected unless they say otherwise;
    what is left is named. With --orphans, what is recorded stays as it is.
    """
    from declarative.resource import Desired

    loaded = session.load_if_any()
    session.warn()
    desired = loaded.desired if loaded else Desired()
    fleets = {f"fleet/{name}": fleet.prevent_destroy for name, fleet in desired.fleets.items()}
    volumes = {f"volume/{name}": v.inputs.prevent_destroy for name, v in desired.volumes.items()}
    nothing = Desired(
        project=desired.project,
        backends=desired.backends,
        places=desired.places,
        protected={**fleets, **volumes},
    )
    with Run(session, nothing, "destroy", options) as run:
        if orphans:
            from declarative.cli import orphans as forgotten

            return forgotten.destroy(run)
        code = run.converge(destroy=True)
        if run.done:
            _say_kept(run)
            if loaded is None and run.store.read().lineage is None and not run.as_json:
                sys.stderr.write(f"{ELSEWHERE}\n")
        return code


def _say_kept(run: Run) -> None:
    state = run.store.read()
    left = {str(r.address): r.node for r in state.of("node")} | {
        str(r.address): r.volume for r in state.of("volume")
    }
    names = [address for address, inputs in left.items() if run.desired.protects(address, inputs)]
    if run.as_json:
        run.event({"event": "kept", "addresses": names})
    elif names:
        run.out.write(f"Kept, because of `prevent_destroy`: {', '.join(names)}.\n")
        what = "write `prevent_destroy: false` in their fleets and volumes"
        if any(n.startswith("volume/") and n not in run.desired.protected for n in names):
            what += (
                " (of a volume without one: `removed: [{from: volume/NAME, destroy: true}]` in the project)"
            )
        run.out.write(f"To delete them too: {what}, and destroy again.\n")
