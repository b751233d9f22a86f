"""`fleetform apply` and `destroy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.errors import failed
from declarative.cli.options import (
    apply_options,
    approve_option,
    effort_option,
    examples,
    json_option,
    lock_option,
    part_options,
    refresh_option,
    replace_option,
    reuse_option,
)
from declarative.cli.run import Run
from declarative.cli.session import Session, check_refresh, check_requested, project_command
from declarative.cli.state_access import DEFAULT_STATE

if TYPE_CHECKING:
    from declarative.model.resource import Desired

ELSEWHERE = (
    "there is no YAML file here, and nothing was ever recorded: "
    "`fleetform -C DIR destroy` names the project's directory"
)


@click.command(
    "apply",
    epilog=examples(
        "fleetform apply --auto-approve --wait",
        "fleetform apply --lock-timeout 5m",
        "fleetform apply --reuse",
        "fleetform apply next.plan",
        "fleetform apply --expect plan.json",
    ),
)
@click.argument("file", required=False, type=click.Path())
@approve_option
@click.option("--wait", is_flag=True, help="Follow the tasks to their end, and fail if they fail.")
@click.option("--allow-unplaced", is_flag=True, help="Do the rest although some task cannot be placed.")
@apply_options
@click.option(
    "--expect",
    metavar="DIGEST|FILE",
    help="Plan, and apply without asking if the plan has this digest, or that of this report (.md, .html or "
    ".json); else say what differs.",
)
@click.option(
    "--signed-by",
    metavar="KEY",
    help="With FILE: refuse a plan that this public key (`ssh-ed25519 AAAA…`), or one in a file of that "
    "name, did not sign. Also FLEETFORM_SIGNED_BY.",
)
@part_options
@refresh_option
@replace_option
@reuse_option
@effort_option
@json_option
@lock_option
@project_command
def apply_command(session: Session, *, file: str | None, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then, unless its `retry` says to wait for capacity), 4 if an action failed, a backend could not be read
    or, with --wait, a task failed; 130 when interrupted. With --json, each event is one line of JSON; the
    `result` of the summary is `done`, `unhealthy`, `waiting`, `failed` or `interrupted`.

    With --wait, a task that failed or has no place now is tried again as its `retry` says.

    With FILE it does what `fleetform plan --out FILE` saved, exactly that and without asking, or refuses and
    names what has changed since. The YAML is not read then. The operator's policy may require that it is
    signed.

    With --expect it plans again, and does what was approved or nothing: CI can apply what a pull request
    showed, without keeping files. Where nothing is left to do, it succeeds.
    """
    with _saved(session, file, options) if file is not None else _declared(session, options) as run:
        code = run.converge(destroy=False)
        if options["wait"] and code in (0, 4) and run.done:
            from declarative.cli.following import follow

            return max(follow(run), code)
        if code == 0:
            run.say_running()
        return code


def _declared(session: Session, options: Mapping[str, Any]) -> Run:
    """An apply of what the YAML declares."""
    if options["signed_by"] is not None:
        raise failed("usage", "`--signed-by` is about a saved plan", "name its file: `fleetform apply FILE`")
    if options["expect"] is not None:
        from declarative.cli.reports import expected

        options = {**options, "expect": expected(options["expect"])}
    given = ("requested", "targets", "excludes", "reuse", "expect", "wait")
    check_refresh(options["refresh_only"], (options[name] for name in given))
    desired = session.load(look="contents").desired
    session.say(session.warnings)
    check_requested(options["requested"], desired)
    if options["expect"] is not None:
        _check_state_outlives_job(session, desired)
    return Run(session, desired, "apply", options)


def _check_state_outlives_job(session: Session, desired: Desired) -> None:
    """`Failed` in a CI job without a named state: the file would go with the runner, or be empty on it."""
    in_job = os.environ.get("GITHUB_ACTIONS") or os.environ.get("GITLAB_CI")
    if in_job and not session.state.named and not desired.project.state:
        hint = (
            "keep it on a server: `state: postgresql://…` in the project, or FLEETFORM_STATE; "
            f"if this runner keeps its folders: `--state {DEFAULT_STATE}`"
        )
        raise failed("runner-state", "the state would be a file in this job's folder", hint)


def _saved(session: Session, file: str, options: Mapping[str, Any]) -> Run:
    """An apply of a saved plan."""
    from declarative.cli.plan_files import read
    from declarative.cli.saved_plans import SavedRun, check_options, signers

    check_options()
    return SavedRun(session, read(file, signers(session, options["signed_by"])), options)


@click.command("destroy", epilog=examples("fleetform destroy --auto-approve"))
@approve_option
@click.option(
    "--orphans", is_flag=True, help="Delete what this state made and does not record, and nothing else."
)
@apply_options
@part_options
@json_option
@lock_option
@project_command
def destroy_command(session: Session, *, orphans: bool, **options: Any) -> int:
    """Stop all tasks and delete all nodes and volumes, but for those with `prevent_destroy`: as the YAML says
    now, and if it has them no more, as it said at the last apply.

    It is the plan to nothing: the same steps, in reverse. Volumes are protected unless they say otherwise;
    what is left is named. With --orphans, what is recorded stays as it is.
    """
    from declarative.model.resource import Desired

    loaded = session.load_if_any()
    session.say(session.warnings)
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
            _say_protected(run)
            if loaded is None and run.store.read().lineage is None and not run.as_json:
                sys.stderr.write(f"{ELSEWHERE}\n")
        return code


def _say_protected(run: Run) -> None:
    state = run.store.read()
    left = {str(r.address): r.node for r in state.of("node")} | {
        str(r.address): r.volume for r in state.of("volume")
    }
    kept = [address for address, inputs in left.items() if run.desired.protects(address, inputs)]
    guarded = [address for address in kept if run.desired.is_guarded(address, left[address])]
    names = [address for address in kept if address not in guarded]
    undeclared = any(n.startswith("volume/") and n not in run.desired.protected for n in names)
    also = " (of a volume without one: `removed: [{from: volume/NAME, destroy: true}]` in the project)"
    what = "write `prevent_destroy: false` in their fleets and volumes" + (also if undeclared else "")
    run.say_protected(names, f"To delete them too: {what}, and destroy again.", guarded)
