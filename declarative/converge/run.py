"""One run of `apply`, of `destroy` or of the loop: look, settle, plan, ask, carry out. A saved plan is
compared with the records and with what is there instead, and carried out as it is: no YAML is read, nothing
is planned again.

The caller holds the lock of the state, and says who is asked and told (`converge.ports`). A run records what
happened by itself before it plans. It does nothing else before the plan was shown, compared with what was
approved, and consented to.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from declarative.apply.backend_look import Observation, look
from declarative.apply.backends import Backends
from declarative.apply.gate import release_all, waiting
from declarative.apply.graph_walk import ActionResult, Tools
from declarative.apply.launch import changed_files, missing_env, named
from declarative.apply.open_intents import clear, taken_up, unwanted
from declarative.apply.preflight import foresee
from declarative.apply.retry_schedule import Lack, broken_starts, lacking, resized
from declarative.apply.settle import check_vanished, note_lost, refresh, settle
from declarative.converge.planning import PlanSource, RunOptions, allowing, check_requested, plan_from
from declarative.converge.ports import INTERRUPTED, ActionPermit, Consent, Observer, RunOutcome
from declarative.converge.project import ProjectSession
from declarative.converge.state_access import StateAccess, of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, failed
from declarative.model.inputs import RankInputs
from declarative.model.resource import Desired
from declarative.model.spec import Project
from declarative.model.spec.project import Moved, Moves
from declarative.model.spec.values import Name
from declarative.model.state import Address, State
from declarative.planner.approval import approval_of, as_approved, differences
from declarative.planner.hosts import hosts_of, hosts_of_plan
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.make import make_refresh_plan
from declarative.planner.offers import may_rehearse
from declarative.planner.plan import Plan, adopted_id
from declarative.planner.saved_plan import (
    SavedPlan,
    changed_facts,
    facts_of,
    record_difference,
    stopped_by_now,
)
from declarative.store import StateError, Store, Writer
from declarative.store.backup import keep_before
from declarative.store.rename import Declared, RenameMap, as_declared

MOST_DIFFERENCES = 100
"""Differences from an approved plan that are named; the rest are counted."""


class Run:
    """One run. `desired` is what shall be there: for `destroy`, nothing."""

    def __init__(
        self,
        session: ProjectSession,
        desired: Desired,
        doing: str,
        options: RunOptions,
        observer: Observer,
        *,
        stopping: Callable[[], AbstractContextManager[threading.Event]],
        consent: Consent | None = None,
    ) -> None:
        """`stopping` gives the event that ends the actions early. Without `consent` nobody is asked."""
        self.session = session
        self.desired = desired
        self.doing = doing
        self.options = options
        self.now = session.clock
        self.tasks: Collection[str] = desired.tasks
        """The names of the declared tasks."""
        self.observer = observer
        self._stopping = stopping
        self._consent = consent
        session.state.check_moved(desired)  # before a state is made at a place that is not meant
        makes_state = doing != "destroy" and not options.refresh_only
        self.store: Store = (
            session.state.open(desired, write=True) if makes_state else session.state.open_if_any(desired)
        )
        self.origin = session.origin(desired)
        self.plan: Plan | None = None
        self.observation: Observation | None = None
        """What the last look found."""
        self.looked_from = State()
        """The records when it looked."""
        self.faults: list[StateError] = []
        """See `Tools.faults`."""
        self.lacking: dict[str, Lack] = {}
        """The tasks that found no capacity when they were started, and whose `retry` says to wait."""
        self.unstarted: dict[str, frozenset[str]] = {}
        """The tasks whose start failed otherwise, and whose `retry` covers that, with what was not done."""
        self._taken: dict[Address, str] = {}
        """Nodes that an interrupted command started to make, by their tokens."""
        self._names: RenameMap | None = None
        """The renames to do once the plan is approved."""

    # ------------------------------------------------------------------------------------ look and plan

    def look_and_settle(self, writer: Writer) -> PlanSource:
        """Look at what is there, and record what happened by itself."""
        state = writer.state()
        backends = self.session.backends(self.desired, state)
        gpus = may_rehearse(self.desired, state)
        observation = look(state, backends, hosts=hosts_of(self.desired, state), gpus=gpus)
        self.observation, self.looked_from = observation, state
        self.check_vanished(state, observation.inventory)
        settled = settle(writer, backends, observation, self.now, self.observer.rank, noting=False)
        self._taken = taken_up(observation.resolutions)
        # Gone things are forgotten by now. The plan still gets them, to say why they are made anew.
        gone = {
            address: record
            for address, record in state.records.items()
            if address in observation.inventory.gone and address not in settled.records
        }
        recorded = replace(settled, records={**settled.records, **gone})
        inventory = replace(observation.inventory, ranks={}, recovered={})
        renames = as_declared(settled, self.desired.project.moved, self.desired.places)
        if renames.moved:
            backends, recorded = self.under_new_names(renames)
            inventory = look(recorded, backends, hosts=hosts_of(self.desired, recorded), gpus=gpus).inventory
        return PlanSource(
            desired=self.desired,
            recorded=recorded,
            inventory=inventory,
            backends=backends,
            renames=renames,
        )

    def make_plan(
        self,
        writer: Writer,
        requested: frozenset[str] = frozenset(),
        *,
        permit: ActionPermit | None = None,
        timed: Callable[[Callable[[float], Plan]], Plan] | None = None,
    ) -> Plan:
        """Look, record what happened by itself, and plan: with a `permit`, only what it chooses."""
        source = self.look_and_settle(writer)
        recorded, inventory = source.recorded, source.inventory
        check_requested(requested, self.desired, recorded)
        plan = plan_from(
            source,
            replace(self.options, requested=requested),
            self.now,
            self.store.spent(),
            destroy=self.doing == "destroy",
            timed=timed,
        )
        if permit:
            plan = permit.choose(plan, observed_state(recorded, inventory), writer)
        if not self.options.accept_vanished:
            check_vanished(source.renames.state, inventory, plan.actions)
        if self.observation:
            note_lost(writer, self.looked_from, self.observation.inventory.lost, self.now)
        new_state = self.options.new_state
        return foresee(plan, source.backends, self.desired.places, recorded, new_state=new_state)

    def check_vanished(self, state: State, inventory: Inventory) -> None:
        """`VanishedError` if so much is gone that the user has to confirm it, whatever is planned."""
        if not self.options.accept_vanished:
            check_vanished(state, inventory)

    def under_new_names(self, renames: Declared) -> tuple[Backends, State]:
        """The backends and the state under the new names, which are recorded once the plan is approved."""
        self._names = renames.names
        self._taken = {renames.names.address(a): token for a, token in self._taken.items()}
        return self.session.backends(self.desired, renames.state), renames.state

    def refresh(self, writer: Writer, backends: Backends) -> State:
        """Look, and record what happened by itself; the new state."""
        return refresh(writer, backends, self.now, self.observer.rank, accept=self.options.accept_vanished)

    # --------------------------------------------------------------------------------------------- run

    def converge(self, plan: Plan, writer: Writer, permit: ActionPermit | None = None) -> RunOutcome:
        """Show the plan, ask, and carry it out. With a `permit`, its owner tells what waits."""
        plan = replace(plan, origin=self.origin)
        if self.options.approved is not None:
            plan = as_approved(plan, self.options.approved)
        self.plan = plan
        self.observer.planned(plan, self.observation.inventory if self.observation else Inventory())
        if plan.result == "error":
            return RunOutcome(exit_code=1, result=plan.result, plan=plan)
        self._check_approved(plan, writer.state())
        if plan.result == "unplaced":
            return RunOutcome(exit_code=3, result=plan.result, plan=plan)
        state = writer.state()
        self.observer.pending(plan, state)
        if permit is None:  # else a task that lacks a variable waits, and holds nothing else up
            check_env(plan, state)
        if plan.changes:
            self._ask(plan)
        if self._names:
            self._keep(state)
            moved = writer.move(self._names)
            self.observer.renamed(plan, len(moved))
        return self.carry_out(plan, writer, permit)

    def refresh_only(self, writer: Writer) -> RunOutcome:
        """Look, ask, and record what happened by itself."""
        state = writer.state()
        backends = self.session.backends(self.desired, state)
        observation = look(state, backends, offers=False)
        plan = make_refresh_plan(self.desired, state, observation.inventory, self.now())
        plan = self.plan = replace(plan, origin=self.origin)
        self.observer.planned(plan, observation.inventory)
        if plan.result == "error":
            return RunOutcome(exit_code=1, result=plan.result, plan=plan)
        self.check_vanished(state, observation.inventory)
        if plan.changes:
            self._ask(plan)
            self._keep(state)
        settle(writer, backends, observation, self.now, self.observer.rank)
        code = 4 if plan.unreadable_backends else 0
        return RunOutcome(exit_code=code, result=self._result(plan, code), plan=plan)

    def _check_approved(self, plan: Plan, state: State) -> None:
        """`InvalidError` with what differs unless the plan is what was approved, or what is left of it."""
        approved = self.options.approved
        if approved is None or not plan.changes:
            return
        recorded = {str(address) for address in state.records}
        lines = list(differences(approved, approval_of(plan), recorded, self.options.earlier))
        if lines:
            hint = "nothing was done; let this plan be approved, and apply with its digest"
            errors = [Diagnostic(code="plan-differs", summary=line) for line in lines[:MOST_DIFFERENCES]]
            if len(lines) > len(errors):
                more = f"{len(lines) - len(errors)} more differences"
                errors.append(Diagnostic(code="plan-differs", summary=more))
            raise InvalidError((*errors[:-1], replace(errors[-1], hint=hint)))

    def _ask(self, plan: Plan) -> None:
        """Ask for consent. `InvalidError` if the plan would do something else by the time of the answer."""
        if self._consent is None:
            return
        self._consent()
        if changed := tuple(stopped_by_now(plan, self.store.read(), self.now(), "run this again")):
            raise InvalidError(changed)

    def _keep(self, state: State) -> None:
        """Keep the state as it is before it is changed; warn where that cannot be done."""
        if not state.records:
            return
        try:
            at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now()))
            keep_before(self.session.directory, self.store.pull(), at)
        except StateError as error:
            code, level = "no-backup", Severity.WARNING
            warning = Diagnostic(code=code, summary=error.summary, hint=error.hint, severity=level)
            self.observer.warn((warning,))

    # --------------------------------------------------------------------------------------- carry out

    def carry_out(self, plan: Plan, writer: Writer, permit: ActionPermit | None) -> RunOutcome:
        """Carry out a plan, and write down why tasks have no place or did not start."""
        state = writer.state()
        self._claim(plan, writer, state)
        if permit is None and plan.unplaced.refusals and (state.lineage or plan.actions):
            writer.note_waiting({r.task: f"has no place: {r.summary}" for r in plan.unplaced.refusals})
        clear(self.session.backends(self.desired, state), unwanted(plan, state))
        results: tuple[ActionResult, ...] = ()
        prepared: dict[str, str] = {}
        interrupted = False
        if plan.actions and not self._names:
            self._keep(state)
        if plan.actions or self._taken or (self.doing != "destroy" and waiting(state)):
            with self._stopping() as stop:
                if permit:
                    permit.begin(writer)
                results, prepared = self.perform(plan, writer, stop)
                if permit and not self.faults:
                    permit.end(plan, results, writer, interrupted=stop.is_set())
                interrupted = stop.is_set()
        code = INTERRUPTED
        if not interrupted:
            self._note_failed_starts(plan, results, writer)
            undone = {r.id for r in results if r.outcome != "done"}
            if self.options.follows:  # the actions of those tasks are tried again
                undone = undone.difference(*(lack.undone for lack in self.lacking.values()))
                undone = undone.difference(*self.unstarted.values())
            # A backend that could not be read is no success.
            code = 4 if undone or prepared or plan.unreadable_backends or self.faults else 0
        return RunOutcome(
            exit_code=code,
            result=self._result(plan, code),
            plan=plan,
            results=results,
            prepared=prepared,
            lacking=tuple(self.lacking),
            faults=tuple(d for f in self.faults for d in of_state(f, self.session.directory).diagnostics),
            carried_out=not interrupted and not self.faults,
        )

    def _claim(self, plan: Plan, writer: Writer, state: State) -> None:
        """Write the project's name into a state that has none; a plan that changes nothing makes no state."""
        name = self.desired.project.name
        if self.doing != "apply" or not name or writer.project() is not None:
            return
        if plan.actions or state.lineage:
            writer.claim(name)

    def perform(
        self, plan: Plan, writer: Writer, stop: threading.Event
    ) -> tuple[tuple[ActionResult, ...], dict[str, str]]:
        """Carry out the actions of a plan, and let gangs run that an earlier command had prepared; the tasks
        that are prepared and still wait, and why.
        """
        from declarative.apply.run import apply, complete  # costly, and a plan may have no actions

        writer.ensure_lineage()  # the made things carry it
        state = writer.state()
        progress = self.observer.progress()
        ids = [action.id for action in plan.actions]
        gone = [action.id for action in plan.actions if action.of_gone]
        # What ends nothing, since it was adopted or its rank has ended; and what adopts.
        records = [
            action.id
            for action in plan.actions
            if action.forgets
            or (action.op == "create" and adopted_id(action.typed) is not None)
            or (
                action.op == "delete"
                and action.address.kind == "rank"
                and state.has_ended(action.address.name)
            )
        ]
        progress.expect(len(ids), records, ids, gone)
        tools = Tools(
            writer=writer,
            backends=self.session.backends(self.desired, state),
            environ=os.environ,
            now=self.now,
            stopping=stop,
            listener=progress,
        )
        results = apply(plan, tools, parallelism=self.options.parallelism)
        touched = {action.address for action in plan.actions}
        untouched = {address: token for address, token in self._taken.items() if address not in touched}
        prepared: dict[str, str] = {}
        if not stop.is_set() and not tools.faults:
            with tools.noting_faults():
                results += complete(untouched, tools)
                prepared = {} if self.doing == "destroy" else release_all(tools)
        self.faults += tools.faults
        return results, prepared

    def _note_failed_starts(self, plan: Plan, results: Sequence[ActionResult], writer: Writer) -> None:
        """Remember the tasks whose start failed, where their `retry` covers that, and write down what failed,
        for `status`. A task with running ranks is not started anew.
        """
        goes_on = resized(plan.actions)
        retries = {name: want.spec.retry for name, want in self.desired.tasks.items() if name not in goes_on}
        broken = broken_starts(plan, results)
        for task, lack in lacking(plan, results).items():
            if task in retries and (retries[task].waits or lack.retried):
                self.lacking[task] = lack
        for task, missed in broken.items():
            if task in retries and task not in self.lacking and retries[task].of_failures:
                self.unstarted[task] = missed
        errors = {r.id: f"{r.op} {r.address}: {r.error}" for r in results if r.outcome == "failed"}
        why: dict[str, str] = {}
        for task, missed in broken.items():
            causes = [errors[a.id] for a in plan.actions if a.id in missed and a.id in errors]
            if causes:
                follows = self.options.follows and task in {*self.lacking, *self.unstarted}
                next_try = "`apply --wait` tries again" if follows else self.options.next_try
                why[task] = f"its start failed: {causes[0]}; {next_try}"
        with suppress(StateError):  # it helps `status` alone, and the report, which follows, tells all of it
            writer.note_waiting(why)

    def _result(self, plan: Plan, code: int) -> str:
        if code:
            return "interrupted" if code == INTERRUPTED else "failed"
        if plan.unplaced.pending or self.lacking:
            return "waiting"
        return "unhealthy" if plan.health else "done"

    def running_tasks(self) -> tuple[str, ...]:
        """Declared tasks that this plan started, and those that run."""
        if not self.tasks:
            return ()
        actions = self.plan.actions if self.plan else ()
        started = {a.typed.task for a in actions if isinstance(a.typed, RankInputs) and a.op == "create"}
        unfinished = unfinished_tasks(self.store.read())
        return tuple(sorted(task for task in started | unfinished if task in self.tasks))


def unfinished_tasks(state: State) -> set[str]:
    """Tasks with a rank that has not ended."""
    return {r.rank.task for r in state.of("rank") if not state.has_ended(r.address.name)}


def check_env(plan: Plan, state: State) -> None:
    """`InvalidError` if a variable that ranks need is not set: before anything is made for them."""
    errors = []
    for name, tasks in missing_env(plan, state, os.environ).items():
        users = ", ".join(f"task/{task}" for task in tasks)
        summary = f"the environment variable `{name}` is not set; {users} needs it"
        hint = f"`export {name}=…`, then run this again; nothing was done"
        address = f"task/{tasks[0]}"
        errors.append(Diagnostic(code="missing-env", summary=summary, hint=hint, address=address))
    if errors:
        raise InvalidError(errors)


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
