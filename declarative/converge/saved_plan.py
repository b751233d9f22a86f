"""One apply of a saved plan: it is compared with the records and with what is there, and then carried out as
it is. The YAML is not read, and nothing is planned again.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import cast

from declarative.apply.backend_look import look
from declarative.apply.bundles import changed_files, named
from declarative.apply.settle import check_vanished, note_lost, settle
from declarative.converge.planning import RunOptions, allowing
from declarative.converge.ports import Observer
from declarative.converge.project import ProjectSession
from declarative.converge.run import Run
from declarative.converge.state_access import StateAccess
from declarative.model.diagnostic import InvalidError, failed
from declarative.model.resource import Desired
from declarative.model.spec import Project
from declarative.model.spec.project import Moved, Moves
from declarative.model.spec.values import Name
from declarative.model.state import State
from declarative.planner.hosts import hosts_of_plan
from declarative.planner.inventory import observed_state
from declarative.planner.plan import Plan
from declarative.planner.saved_plan import (
    SavedPlan,
    changed_facts,
    facts_of,
    record_difference,
    stopped_by_now,
)
from declarative.store import Writer
from declarative.store.rename import Declared, as_declared


def run_of(
    session: ProjectSession,
    saved: SavedPlan,
    options: RunOptions,
    observer: Observer,
    *,
    stopping: Callable[[], AbstractContextManager[threading.Event]],
) -> Run:
    """The run of a saved plan. It asks nobody: the user who saved the plan has seen it."""
    desired = Desired(project=Project(state=saved.state), backends=saved.backends)
    # Before a state is made at a place that is not meant.
    name = _check_place(session, saved, desired)
    if name is None and saved.project is not None:  # a new state, or one from before it was recorded
        name = cast("Name", saved.project)
    desired = Desired(project=Project(state=saved.state, name=name), backends=saved.backends)
    run = Run(session, desired, "apply", options, observer, stopping=stopping)
    run.origin = saved.plan.origin
    run.tasks = saved.tasks
    session.files = saved.files
    return run


def checked_plan(run: Run, saved: SavedPlan, writer: Writer) -> Plan:
    """The plan, after a check that it still holds. Also records what happened by itself."""
    plan, facts, session = saved.plan, saved.facts, run.session
    state = writer.state()
    _check_record(session, saved, state)
    _check_files(session, saved)
    backends = session.backends(run.desired, state)
    if plan.scope.moved:
        first_look = look(state, backends, offers=False)
        run.check_vanished(state, first_look.inventory)
        settled = settle(writer, backends, first_look, run.now, run.observer.rank, noting=False)
        backends, state = run.under_new_names(_renames(plan, settled))
    observation = look(state, backends, hosts=hosts_of_plan(plan), offers=bool(facts.offers))
    run.observation, run.looked_from, inventory = observation, state, observation.inventory
    known = set(plan.diagnostics)
    run.observer.warn(tuple(d for d in inventory.diagnostics if d not in known))
    changed = (
        *changed_facts(facts, facts_of(plan, state, inventory, facts), inventory.readiness),
        *stopped_by_now(plan, observed_state(state, inventory), run.now()),
    )
    if changed:
        raise InvalidError(changed)
    if not run.options.accept_vanished:
        check_vanished(state, inventory, plan.actions)
    if plan.scope.moved:
        note_lost(writer, settled, first_look.inventory.lost, run.now)
    else:
        settle(writer, backends, observation, run.now, run.observer.rank)
    return allowing(plan, run.options.allow_unplaced)


def _renames(plan: Plan, state: State) -> Declared:
    """The state after the plan's renames; `InvalidError` if the plan was made from another state."""
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

    def file_in(directory: Path) -> str:
        path = url.removeprefix("sqlite:///")
        return url if path == url else str(directory / path)

    here = session.directory.resolve()
    makes_state = saved.plan.basis.lineage is None
    if makes_state and url == saved.state and file_in(here) != file_in(Path(saved.directory)):
        summary = f"the plan makes a new state in {saved.directory}, and this is {here}"
        raise failed("plan-other-state", summary, _elsewhere(saved))
    _check_record(session, saved, state)
    return cast("Name | None", project)


def _check_files(session: ProjectSession, saved: SavedPlan) -> None:
    """`InvalidError` if a file that a rank gets has changed: checked before anything is done."""
    changed = {f for manifest in saved.files.values() for f in changed_files(session.directory, manifest)}
    if changed:
        summary = f"{named(sorted(changed))} changed since the plan was made, and tasks that it starts get it"
        raise failed("plan-files-changed", summary, "plan again: `fleetform plan --out FILE`")


def _check_record(session: ProjectSession, saved: SavedPlan, state: State) -> None:
    difference = record_difference(saved.plan, state)
    if difference is None:
        return
    if difference.code == "plan-other-state" and str(session.directory.resolve()) != saved.directory:
        difference = replace(difference, hint=_elsewhere(saved))
    raise InvalidError((difference,))


def _elsewhere(saved: SavedPlan) -> str:
    return (
        f"run it there: `fleetform -C {shlex.quote(saved.directory)} apply FILE`, or say where: `--state URL`"
    )
