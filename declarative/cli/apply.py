"""`fleetform apply` and `destroy`.

A saved plan is compared with the records and with what is there, and then carried out as it is. The YAML is
not read, and nothing is planned again. Relative paths start at the project's directory, which is the current
one or that of `-C`, as with every command.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from declarative.cli.options import (
    apply_options,
    approve_option,
    check_refresh,
    effort_option,
    examples,
    json_option,
    lock_option,
    new_state_option,
    part_options,
    project_command,
    refresh_option,
    replace_option,
    reuse_option,
    unplaced_option,
)
from declarative.cli.output import say
from declarative.cli.reports import kept_text, protected, say_kept
from declarative.cli.run import Run
from declarative.converge.project import ProjectSession
from declarative.converge.selection import allowing, check_requested
from declarative.converge.state_access import DEFAULT_STATE, StateAccess
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import PlanKey
    from declarative.model.spec.text import Name
    from declarative.model.state import State
    from declarative.planner.plan import Plan
    from declarative.planner.saved_plan import SavedPlan
    from declarative.store import Writer
    from declarative.store.rename import Declared

SENSIBLE = frozenset(
    (
        "file",
        "auto_approve",
        "wait",
        "allow_unplaced",
        "parallelism",
        "accept_vanished",
        "as_json",
        "lock_timeout",
        "signed_by",
        "state_url",
    )
)
"""Options of `apply` that a saved plan allows. All others change what is planned, which is settled."""


def signers(session: ProjectSession, given: str | None) -> Collection[PlanKey] | None:
    """The keys that may sign plans, by the operator's policy, else by the caller; None if none is needed.

    An empty variable is not a permission: `InvalidError`, as for any text that is not a key.
    """
    from declarative.cli.plan_files import VARIABLE, keys_of

    policy = session.policy()
    if policy.plan_keys is not None:
        return policy.plan_keys
    given = os.environ.get(VARIABLE) if given is None else given
    return None if given is None else keys_of(given)


def check_options() -> None:
    """`InvalidError` for options that have no effect on a saved plan."""
    ctx = click.get_current_context()
    given = [
        max(p.opts, key=len)
        for p in ctx.command.params
        if p.name
        and p.name not in SENSIBLE
        and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        names = ", ".join(f"`{name}`" for name in given)
        hint = (
            "give it to `fleetform plan --out FILE`" if len(given) == 1 else "give them to `fleetform plan`"
        )
        raise failed("usage", f"{names} has no effect on a saved plan", hint)


class SavedRun(Run):
    """One apply of a saved plan."""

    def __init__(self, session: ProjectSession, saved: SavedPlan, options: Mapping[str, Any]) -> None:
        from declarative.model.resource import Desired
        from declarative.model.spec import Project

        self.saved = saved
        desired = Desired(project=Project(state=saved.state), backends=saved.backends)
        # Before a state is made at a place that is not meant.
        name = _check_place(session, saved, desired)
        if name is None and saved.project is not None:  # a new state, or one from before it was recorded
            name = cast("Name", saved.project)
        desired = Desired(project=Project(state=saved.state, name=name), backends=saved.backends)
        super().__init__(session, desired, "apply", options)
        self.origin = saved.plan.origin
        self.names = saved.tasks
        session.files = saved.files

    def make_plan(
        self,
        writer: Writer,
        requested: frozenset[str] = frozenset(),  # noqa: ARG002
        *,
        destroy: bool = False,  # noqa: ARG002
    ) -> Plan:
        """The plan, after a check that it still holds. Also records what happened by itself."""
        from declarative.apply.backend_look import look
        from declarative.apply.settle import check_vanished, note_lost, settle
        from declarative.planner.facts import changed_facts, facts_now, stopped_by_now
        from declarative.planner.hosts import hosts_of_plan
        from declarative.planner.inventory import observed_state

        plan, facts = self.saved.plan, self.saved.facts
        state = writer.state()
        _check_record(self.session, self.saved, state)
        _check_files(self.session, self.saved)
        backends = self.session.backends(self.desired, state)
        if plan.scope.moved:
            first = look(state, backends, offers=False)
            self.check_vanished(state, first)
            settled = settle(writer, backends, first, self.now, self.note, noting=False)
            backends, state = self._renamed(_renames(plan, settled))
        seen = look(state, backends, hosts=hosts_of_plan(plan), offers=bool(facts.offers))
        known = set(plan.diagnostics)
        say(tuple(d for d in seen.inventory.diagnostics if d not in known))
        changed = (
            *changed_facts(facts, facts_now(plan, facts, state, seen.inventory), seen.inventory.readiness),
            *stopped_by_now(plan, observed_state(state, seen.inventory), self.now()),
        )
        if changed:
            raise InvalidError(changed)
        if not self.options["accept_vanished"]:
            check_vanished(state, seen.inventory, plan.actions)
        if plan.scope.moved:
            note_lost(writer, settled, first.inventory.lost, self.now)
        else:
            settle(writer, backends, seen, self.now, self.note)
        return allowing(plan, self.options["allow_unplaced"])

    def ask(self) -> None:
        """Nobody is asked: the user who saved the plan has seen it."""


def _renames(plan: Plan, state: State) -> Declared:
    """The state after the plan's renames; `InvalidError` if the plan was made from another state."""
    from declarative.model.spec.project import Moved, Moves
    from declarative.store.rename import as_declared

    renames = as_declared(state, Moves(Moved(move.source, move.target) for move in plan.scope.moved), {})
    if renames.diagnostics:
        raise InvalidError(renames.diagnostics)
    if renames.moved != plan.scope.moved:
        summary = "what is recorded under names that the plan changes is not what it was"
        raise failed("plan-outdated", summary, "plan again: `fleetform plan --out FILE`")
    return renames


def _check_place(session: ProjectSession, saved: SavedPlan, desired: Desired) -> Name | None:
    """The name of the state's project; `InvalidError` if it is not the state that the plan was made of.
    Reads, and makes nothing.
    """
    url = session.state.url(desired)
    probe = StateAccess(session.directory, session.state.named, session.policy)
    try:
        store = probe.open(desired)
        state, project = store.read(), store.project()
    finally:
        probe.close()
    here = session.directory.resolve()
    if (
        saved.plan.basis.lineage is None
        and url == saved.state
        and _place(url, here) != _place(url, Path(saved.directory))
    ):
        summary = f"the plan makes a new state in {saved.directory}, and this is {here}"
        raise failed("plan-other-state", summary, _elsewhere(saved))
    _check_record(session, saved, state)
    return cast("Name | None", project)


def _check_files(session: ProjectSession, saved: SavedPlan) -> None:
    """`InvalidError` if a file that a rank gets has changed: checked before anything is done."""
    from declarative.apply.bundles import changed_files, named

    found = {f for manifest in saved.files.values() for f in changed_files(session.directory, manifest)}
    if found:
        summary = f"{named(sorted(found))} changed since the plan was made, and tasks that it starts get it"
        raise failed("plan-files-changed", summary, "plan again: `fleetform plan --out FILE`")


def _place(url: str, directory: Path) -> str:
    path = url.removeprefix("sqlite:///")
    return url if path == url else str(directory / path)


def _check_record(session: ProjectSession, saved: SavedPlan, state: State) -> None:
    from dataclasses import replace

    from declarative.planner.facts import record_difference

    found = record_difference(saved.plan, state)
    if found is None:
        return
    if found.code == "plan-other-state" and str(session.directory.resolve()) != saved.directory:
        found = replace(found, hint=_elsewhere(saved))
    raise InvalidError((found,))


def _elsewhere(saved: SavedPlan) -> str:
    return (
        f"run it there: `fleetform -C {shlex.quote(saved.directory)} apply FILE`, or say where: `--state URL`"
    )


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
@unplaced_option
@new_state_option
@apply_options
@click.option(
    "--expect",
    metavar="DIGEST|FILE",
    help="Plan, and apply without asking if the plan has this digest, or that of this report (.md, .html or "
    ".json); else say what differs.",
)
@click.option(
    "--earlier",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="With --expect: the report of a plan that was approved before, and of which something may be left; "
    "the oldest first.",
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
def apply_command(session: ProjectSession, *, file: str | None, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then, unless its `retry` says to wait for capacity, it waits for a `schedule`, or the project says
    `allow_unplaced`), 4 if an action failed, a backend could not be read or, with --wait, a task failed; 130
    when interrupted. With --json, each event is one line of JSON; the `result` of the summary is `done`,
    `unhealthy`, `waiting`, `failed` or `interrupted`.

    With --wait, a task that failed or has no place now is tried again as its `retry` says. One that failed
    before, and is not run again, is named under `Ended` and does not change the exit code.

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


def _declared(session: ProjectSession, options: Mapping[str, Any]) -> Run:
    """An apply of what the YAML declares."""
    if options["signed_by"] is not None:
        raise failed("usage", "`--signed-by` is about a saved plan", "name its file: `fleetform apply FILE`")
    if options["expect"] is not None:
        from declarative.cli.reports import expected

        earlier = [expected(name, earlier=True) for name in options["earlier"]]
        options = {**options, "expect": expected(options["expect"]), "earlier": earlier}
    elif options["earlier"]:
        raise failed("usage", "`--earlier` is about what else was approved", "name the plan: `--expect FILE`")
    given = ("requested", "targets", "excludes", "reuse", "expect", "wait")
    check_refresh(options["refresh_only"], (options[name] for name in given))

    def read() -> Desired:
        return session.load(look="contents").desired

    desired = read()
    say(session.warnings)
    check_requested(options["requested"], desired)
    if options["expect"] is not None:
        _check_state_outlives_job(session, desired)
    run = Run(session, desired, "apply", options)
    run.read = read
    return run


def _check_state_outlives_job(session: ProjectSession, desired: Desired) -> None:
    """Refuse a CI job without a named state: the file would go with the runner, or be empty on it."""
    in_job = os.environ.get("GITHUB_ACTIONS") or os.environ.get("GITLAB_CI")
    if in_job and not session.state.named and not desired.project.state:
        hint = (
            "keep it on a server: `state: postgresql://…` in the project, or FLEETFORM_STATE; "
            f"if this runner keeps its folders: `--state {DEFAULT_STATE}`"
        )
        raise failed("runner-state", "the state would be a file in this job's folder", hint)


def _saved(session: ProjectSession, file: str, options: Mapping[str, Any]) -> Run:
    """An apply of a saved plan."""
    from declarative.cli.plan_files import read

    check_options()
    return SavedRun(session, read(file, signers(session, options["signed_by"])), options)


@click.command("destroy", epilog=examples("fleetform destroy --auto-approve"))
@approve_option
@click.option(
    "--orphans", is_flag=True, help="Delete what this state made and does not record, and nothing else."
)
@apply_options
@partial(part_options, target="what depends on it", exclude="what it needs")
@json_option
@lock_option
@project_command
def destroy_command(session: ProjectSession, *, orphans: bool, **options: Any) -> int:
    """Stop all tasks and delete all nodes and volumes, except those with `prevent_destroy`: in the present
    YAML, or at the last apply if the YAML does not have them any more.

    It does the steps of an apply in reverse. Volumes are protected unless they say otherwise; it names what
    is left. With --orphans, what is recorded stays as it is.
    """
    from declarative.model.resource import Desired

    nothing = _nothing(session)
    say(session.warnings)
    with Run(session, nothing, "destroy", options) as run:
        run.read = partial(_nothing, session)
        if orphans:
            from declarative.cli import orphans as forgotten

            return forgotten.destroy(run)
        run.remark = lambda: kept_text(protected(run))
        code = run.converge(destroy=True)
        if run.done:
            say_kept(run)
            if run.desired == Desired() and run.store.read().lineage is None and not run.as_json:
                sys.stderr.write(f"{ELSEWHERE}\n")
        return code


def _nothing(session: ProjectSession) -> Desired:
    """What `destroy` leaves: nothing but what the files protect, if there are any."""
    from declarative.model.resource import Desired

    loaded = session.load_if_any()
    desired = loaded.desired if loaded else Desired()
    fleets = {f"fleet/{name}": fleet.prevent_destroy for name, fleet in desired.fleets.items()}
    volumes = {f"volume/{name}": v.inputs.prevent_destroy for name, v in desired.volumes.items()}
    return Desired(
        project=desired.project,
        backends=desired.backends,
        places=desired.places,
        protected={**fleets, **volumes},
    )
