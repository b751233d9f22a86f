"""Carrying out a saved plan: it is compared with what is recorded and what
is there, and then done as it is.

The YAML is not read, and nothing is planned again. Relative paths are those of the project's directory, which
is the current one or that of `-C`, as with every command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from declarative.cli.errors import Failed, failed
from declarative.cli.run import Run
from declarative.cli.session import Session, now
from declarative.cli.state_access import StateAccess

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import PlanKey
    from declarative.model.spec.text import Name
    from declarative.model.state import State
    from declarative.planner.saved import Saved
    from declarative.planner.types import Plan
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
"""Options of `apply` that go with a saved plan. All others are about what is planned, which is settled."""


def signers(session: Session, given: str | None) -> Collection[PlanKey] | None:
    """Who may sign plans, by the operator's policy, else by the caller; None if plans need no signature.

    A variable that is set and empty is not a permission: `Failed`, as for everything that is not a key.
    """
    from declarative.cli.plan_signatures import VARIABLE, keys_of

    policy = session.policy()
    if policy.plan_keys is not None:
        return policy.plan_keys
    given = os.environ.get(VARIABLE) if given is None else given
    return None if given is None else keys_of(given)


def check_options() -> None:
    """`Failed` for options that have no effect on a saved plan."""
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

    def __init__(self, session: Session, saved: Saved, options: Mapping[str, Any]) -> None:
        from declarative.model.resource import Desired
        from declarative.model.spec import Project

        self.saved = saved
        desired = Desired(project=Project(state=saved.state), backends=saved.backends)
        # Before a state is made at a place that is not meant.
        name = _check_place(session, saved, desired)
        desired = Desired(project=Project(state=saved.state, name=name), backends=saved.backends)
        super().__init__(session, desired, "apply", options)
        self.names = saved.tasks
        session.files = saved.files

    def make_plan(
        self,
        writer: Writer,
        requested: frozenset[str] = frozenset(),  # noqa: ARG002
        *,
        destroy: bool = False,  # noqa: ARG002
    ) -> Plan:
        """The plan, once it is certain that it still holds; then what happened by itself is recorded."""
        from declarative.apply.inventory import look
        from declarative.apply.settle import settle
        from declarative.planner.assumptions import again, differences
        from declarative.planner.hosts import hosts_of_plan

        plan, facts = self.saved.plan, self.saved.facts
        state = writer.state()
        _check_record(self.session, self.saved, state)
        _check_files(self.session, self.saved)
        backends = self.session.backends(self.desired, state)
        if plan.scope.moved:
            first = look(state, backends, offers=False)
            self.check_vanished(state, first)
            renames = _renames(plan, settle(writer, backends, first, now, self.note))
            backends, state = self._renamed(renames)
        seen = look(state, backends, hosts=hosts_of_plan(plan), offers=bool(facts.offers))
        known = set(plan.diagnostics)
        self.session.say(tuple(d for d in seen.inventory.diagnostics if d not in known))
        found = differences(facts, again(plan, facts, state, seen.inventory), seen.inventory.readiness)
        if found:
            raise Failed(found)
        self.check_vanished(state, seen)
        if not plan.scope.moved:
            settle(writer, backends, seen, now, self.note)
        return plan

    def ask(self) -> None:
        """Nobody is asked: the user who saved the plan has seen it."""


def _renames(plan: Plan, state: State) -> Declared:
    """What the plan's renames make of the state; `Failed` if it is not what the plan was made of."""
    from declarative.model.spec.project import Moved, Moves
    from declarative.store.rename import as_declared

    renames = as_declared(state, Moves(Moved(move.source, move.target) for move in plan.scope.moved), {})
    if renames.diagnostics:
        raise Failed(renames.diagnostics)
    if renames.moved != plan.scope.moved:
        summary = "what is recorded under names that the plan changes is not what it was"
        raise failed("plan-outdated", summary, "plan again: `fleetform plan --out FILE`")
    return renames


def _check_place(session: Session, saved: Saved, desired: Desired) -> Name | None:
    """The name of the state's project; `Failed` if it is not the state that the plan was made of. Reads, and
    makes nothing.
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
    return cast("Name", project) if project else None


def _check_files(session: Session, saved: Saved) -> None:
    """`Failed` if a file that a rank gets has changed: checked before anything is done."""
    from declarative.apply.bundles import changed_files, named

    found = {f for manifest in saved.files.values() for f in changed_files(session.directory, manifest)}
    if found:
        summary = f"{named(sorted(found))} changed since the plan was made, and tasks that it starts get it"
        raise failed("plan-files-changed", summary, "plan again: `fleetform plan --out FILE`")


def _place(url: str, directory: Path) -> str:
    path = url.removeprefix("sqlite:///")
    return url if path == url else str(directory / path)


def _check_record(session: Session, saved: Saved, state: State) -> None:
    from dataclasses import replace

    from declarative.planner.assumptions import record_difference

    found = record_difference(saved.plan, state)
    if found is None:
        return
    if found.code == "plan-other-state" and str(session.directory.resolve()) != saved.directory:
        found = replace(found, hint=_elsewhere(saved))
    raise Failed((found,))


def _elsewhere(saved: Saved) -> str:
    return (
        f"run it there: `fleetform -C {shlex.quote(saved.directory)} apply FILE`, or say where: `--state URL`"
    )
