"""One run of `apply` or `destroy`, from looking at the backends to the last line of output."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from declarative.cli.options import confirm, going_tasks, has_ended, name_tasks
from declarative.cli.output import INTERRUPTED, STOPPING, say, stopping
from declarative.cli.reports import PENDING, RunOutput
from declarative.converge.project import ProjectSession
from declarative.converge.selection import allowing, check_requested, part_of
from declarative.converge.state_access import of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, in_order
from declarative.model.inputs import RankInputs
from declarative.model.text import clean

if TYPE_CHECKING:
    from declarative.apply.backend_look import Observation
    from declarative.apply.backends import Backends
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Lack
    from declarative.model.resource import Desired
    from declarative.model.state import Address, State
    from declarative.model.status import RankState
    from declarative.planner.plan import Plan
    from declarative.store import StateError, Store, Writer
    from declarative.store.rename import Declared, RenameMap

NOTHING_DONE = (
    "nothing was done: a task cannot be placed (`--allow-unplaced`, or `allow_unplaced: true` in the "
    "project, does the rest)"
)
MOST_DIFFERENCES = 100


class Run(RunOutput):
    """One apply or destroy. `desired` is what shall be there: for `destroy`, nothing."""

    AGAIN = "the next `fleetform apply` tries again"
    """Who starts a task whose start failed."""

    def __init__(
        self, session: ProjectSession, desired: Desired, doing: str, options: Mapping[str, Any]
    ) -> None:
        super().__init__(session, doing, as_json=options["as_json"])
        self.desired = desired
        self.now = session.clock
        self.names: Collection[str] = desired.tasks
        self.options = options
        session.state.check_moved(desired)  # before a state is made at a place that is not meant
        makes = doing != "destroy" and not options.get("refresh_only")
        opened = partial(session.state.open, write=True) if makes else session.state.open_if_any
        self.store: Store = opened(desired)
        self.origin = session.origin(desired)
        self.faults: list[StateError] = []
        """See `Tools.faults`."""
        self.done = False
        """Whether the plan was carried out, without what could not be done."""
        self.lacking: dict[str, Lack] = {}
        """The tasks that found no capacity when they were started, and whose `retry` says to wait."""
        self.unstarted: dict[str, frozenset[str]] = {}
        """The tasks whose start failed otherwise, and whose `retry` covers that, with what was not done."""
        self._taken: dict[Address, str] = {}
        """Nodes that an interrupted command started to make, by their tokens."""
        self._names: RenameMap | None = None
        """The renames to do once the plan is approved."""
        self.remark: Callable[[], str] = str
        """What the question begins with: a line, or nothing."""
        self.read: Callable[[], Desired] | None = None
        """Reads `desired` from the project's files."""

    def converge(self, *, destroy: bool) -> int:
        """Look, settle, plan, ask and do, under the lock; the exit code."""
        with self.lock() as writer:
            if self.session.state.waited:
                self._read_again()
            if self.options.get("refresh_only"):
                return self._refresh_only(writer)
            requested = frozenset(self.options.get("requested", ()))
            plan = self.make_plan(writer, requested, destroy=destroy)
            plan = replace(plan, origin=self.origin)
            if self.options.get("expect") is not None:
                from declarative.planner.approval import as_approved

                plan = as_approved(plan, self.options["expect"])
            self.plan = plan
            self._show(plan)
            if plan.result == "error":
                return 1
            self._check_expected(plan, writer.state())
            if plan.result == "unplaced":
                sys.stderr.write(f"{NOTHING_DONE}\n")
                return 3
            state = writer.state()
            self._say_waiting(plan, state)
            self.check_env(plan, state)
            if plan.changes:
                self.ask()
            if self._names:
                self._keep(state)
                moved = writer.move(self._names)
                self._say_moved(plan, len(moved))
                state = writer.state()
            return self._carry_out(plan, writer, state)

    def _read_again(self) -> None:
        """Read the files once more: during the wait, somebody may have changed and applied them."""
        if self.read is None:
            return
        before = self.session.warnings
        self.desired = self.read()
        self.names = self.desired.tasks
        say(tuple(d for d in self.session.warnings if d not in before))
        self.session.state.check_still(self.desired)

    def lock(self) -> AbstractContextManager[Writer]:
        """The state's lock."""
        return self.session.state.lock(self.store, self.doing, self.options["lock_timeout"])

    def stopping(self) -> AbstractContextManager[threading.Event]:
        """The event that ends the actions early."""
        return stopping(STOPPING)

    def chosen(self, plan: Plan, state: State, writer: Writer) -> Plan:  # noqa: ARG002
        """The part of the plan to do; `state` is the records with what was observed."""
        return plan

    def make_plan(
        self, writer: Writer, requested: frozenset[str] = frozenset(), *, destroy: bool = False
    ) -> Plan:
        """Look at what is there, record what happened by itself, and plan."""
        from declarative.apply.backend_look import look
        from declarative.apply.open_intents import taken_up
        from declarative.apply.preflight import foresee
        from declarative.apply.settle import check_vanished, note_lost, settle
        from declarative.planner.hosts import hosts_of
        from declarative.planner.inventory import observed_state
        from declarative.planner.make import make_plan
        from declarative.planner.offers import may_rehearse
        from declarative.spans import named
        from declarative.store.rename import as_declared

        state = writer.state()
        backends = self.session.backends(self.desired, state)
        gpus = may_rehearse(self.desired, state)
        seen = look(state, backends, hosts=hosts_of(self.desired, state), gpus=gpus)
        self.check_vanished(state, seen)
        settled = settle(writer, backends, seen, self.now, self.note, noting=False)
        self._taken = taken_up(seen.resolutions)
        # Gone things are forgotten by now. The plan still gets them, to say why they are made anew.
        gone = {
            a: r for a, r in state.records.items() if a in seen.inventory.gone and a not in settled.records
        }
        recorded = replace(settled, records={**settled.records, **gone})
        inventory = replace(seen.inventory, ranks={}, recovered={})
        renames = as_declared(settled, self.desired.project.moved, self.desired.places)
        if renames.moved:
            backends, recorded = self._renamed(renames)
            inventory = look(recorded, backends, hosts=hosts_of(self.desired, recorded), gpus=gpus).inventory
        check_requested(requested, self.desired, recorded)
        planned = partial(
            self.planned,
            partial(named("plan")(make_plan), self.desired, recorded, inventory),
            requested=requested,
            destroy=destroy,
            reuse=bool(self.options.get("reuse")),
            effort=self.options.get("effort") or 1,
        )
        parts = (self.options.get("targets") or (), self.options.get("excludes") or ())
        among = "that is recorded" if destroy else "in this project"
        plan = part_of(
            planned, self.desired, recorded, inventory, parts, spent=self.store.spent(), among=among
        )
        plan = replace(plan, scope=replace(plan.scope, moved=renames.moved))
        plan = allowing(plan, self.options.get("allow_unplaced"))
        plan = self.chosen(plan, observed_state(recorded, inventory), writer)
        if not self.options["accept_vanished"]:
            check_vanished(renames.state, inventory, plan.actions)
        note_lost(writer, state, seen.inventory.lost, self.now)
        plan = replace(plan, diagnostics=in_order((*renames.diagnostics, *plan.diagnostics)))
        anew = bool(self.options.get("new_state"))
        return foresee(plan, backends, self.desired.places, recorded, new_state=anew)

    def planned(self, plan_at: Callable[..., Plan], **options: Any) -> Plan:
        """The plan as of now."""
        return plan_at(self.now(), **options)

    def check_vanished(self, state: State, seen: Observation) -> None:
        """`VanishedError` if so much is gone that the user has to confirm it, whatever is planned."""
        from declarative.apply.settle import check_vanished

        if not self.options["accept_vanished"]:
            check_vanished(state, seen.inventory)

    def _renamed(self, renames: Declared) -> tuple[Backends, State]:
        """The backends and the state under the new names, which are recorded once the plan is approved."""
        self._names = renames.names
        self._taken = {renames.names.address(a): token for a, token in self._taken.items()}
        return self.session.backends(self.desired, renames.state), renames.state

    def _refresh_only(self, writer: Writer) -> int:
        """Look, ask, and record what happened by itself; the exit code."""
        from declarative.apply.backend_look import look
        from declarative.apply.settle import settle
        from declarative.planner.make import make_refresh_plan

        state = writer.state()
        backends = self.session.backends(self.desired, state)
        seen = look(state, backends, offers=False)
        plan = make_refresh_plan(self.desired, state, seen.inventory, self.now())
        plan = self.plan = replace(plan, origin=self.origin)
        self._show(plan)
        if plan.result == "error":
            return 1
        self.check_vanished(state, seen)
        if plan.changes:
            self.ask()
            self._keep(state)
        settle(writer, backends, seen, self.now, self.note)
        code = 4 if plan.unreadable_backends else 0
        self.report((), self._result(plan, code))
        return code

    def refresh(self, writer: Writer, backends: Backends) -> State:
        """Look, and record what happened by itself; the new state."""
        from declarative.apply.settle import refresh

        return refresh(writer, backends, self.now, self.note, accept=self.options["accept_vanished"])

    def check_env(self, plan: Plan, state: State) -> None:
        """`InvalidError` if a variable that ranks need is not set: before anything is made for them."""
        from declarative.apply.launch import missing_env

        found = []
        for name, tasks in missing_env(plan, state, os.environ).items():
            users = ", ".join(f"task/{task}" for task in tasks)
            summary = f"the environment variable `{name}` is not set; {users} needs it"
            hint = f"`export {name}=…`, then run this again; nothing was done"
            address = f"task/{tasks[0]}"
            found.append(Diagnostic(code="missing-env", summary=summary, hint=hint, address=address))
        if found:
            raise InvalidError(tuple(found))

    def _check_expected(self, plan: Plan, state: State) -> None:
        """`InvalidError` with what differs unless the plan is what was approved, or what is left of it."""
        approved = self.options.get("expect")
        if approved is None or not plan.changes:
            return
        from declarative.planner.approval import approval_of, differences

        lines = list(
            differences(
                approved,
                approval_of(plan),
                {str(address) for address in state.records},
                self.options.get("earlier", ()),
            )
        )
        if lines:
            hint = "nothing was done; let this plan be approved, and apply with its digest"
            found = [Diagnostic(code="plan-differs", summary=line) for line in lines[:MOST_DIFFERENCES]]
            if len(lines) > len(found):
                more = f"{len(lines) - len(found)} more differences"
                found.append(Diagnostic(code="plan-differs", summary=more))
            raise InvalidError((*found[:-1], replace(found[-1], hint=hint)))

    def ask(self) -> None:
        """Consent: by `--auto-approve`, or at the prompt of a terminal. `InvalidError` if the plan would do
        something else by the time of the answer.
        """
        from declarative.planner.facts import stopped_by_now

        self.out.flush()
        confirm(
            f"\n{self.remark()}{self.doing.capitalize()} this {'in' if self.doing == 'destroy' else 'to'} "
            f"{clean(self.origin.project)}? ",
            approved=self.options["auto_approve"] or self.options.get("expect") is not None,
            doing=self.doing,
            look="look at the plan",
            as_json=self.as_json,
        )
        if self.plan is None:
            return  # `destroy --orphans` has none
        if changed := tuple(stopped_by_now(self.plan, self.store.read(), self.now(), "run this again")):
            raise InvalidError(changed)

    def _carry_out(self, plan: Plan, writer: Writer, state: State) -> int:
        from declarative.apply.gate import waiting
        from declarative.apply.open_intents import clear, unwanted

        self._claim(plan, writer, state)
        if plan.unplaced.refusals and (state.lineage or plan.actions):
            self._note_waiting(plan, writer)
        clear(self.session.backends(self.desired, state), unwanted(plan, state))
        results: tuple[ActionResult, ...] = ()
        interrupted = False
        held: dict[str, str] = {}
        if plan.actions and not self._names:
            self._keep(state)
        if plan.actions or self._taken or (self.doing != "destroy" and waiting(state)):
            with self.stopping() as stop:
                results, held = self.perform(plan, writer, stop)
                interrupted = stop.is_set()
        self.done = not interrupted and not self.faults
        if not interrupted:
            self._note_retries(plan, results)
            self._note_unstarted(plan, results, writer)
        code = INTERRUPTED if interrupted else self._code(plan, results, held)
        self.report(results, self._result(plan, code), cut_short=bool(self.faults))
        for fault in self.faults:
            say(of_state(fault, self.session.directory).diagnostics)
        for task, why in held.items():
            self.say(f"task/{task} is prepared and waits: {why}; the next `fleetform apply` lets it run")
        if not interrupted:
            self._say_lacking()
            self._say_unreadable(plan)
        return code

    def _claim(self, plan: Plan, writer: Writer, state: State) -> None:
        """Write the project's name into a state that has none; a plan that changes nothing makes no state."""
        name = self.desired.project.name
        if self.doing != "apply" or not name or writer.project() is not None:
            return
        if plan.actions or state.lineage:
            writer.claim(name)

    def _note_waiting(self, plan: Plan, writer: Writer) -> None:
        """Write down why tasks have no place, for `status`."""
        writer.note_waiting({r.task: f"has no place: {r.summary}" for r in plan.unplaced.refusals})

    def _note_unstarted(self, plan: Plan, results: Sequence[ActionResult], writer: Writer) -> None:
        """Write down what failed of the starts of tasks, for `status`."""
        from declarative.apply.retry_schedule import broken_starts
        from declarative.store import StateError

        failed = {r.id: f"{r.op} {r.address}: {r.error}" for r in results if r.outcome == "failed"}
        why: dict[str, str] = {}
        for task, missed in broken_starts(plan, results).items() if failed else ():
            causes = [failed[a.id] for a in plan.actions if a.id in missed and a.id in failed]
            if causes:
                follows = self.options.get("wait") and task in {*self.lacking, *self.unstarted}
                again = "`apply --wait` tries again" if follows else self.AGAIN
                why[task] = f"its start failed: {causes[0]}; {again}"
        with suppress(StateError):  # it helps `status` alone, and the report, which follows, tells all of it
            writer.note_waiting(why)

    def _note_retries(self, plan: Plan, results: Sequence[ActionResult]) -> None:
        """Remember the tasks whose start failed of what their `retry` covers. A task of which
        some ranks run is not started anew.
        """
        from declarative.apply.retry_schedule import broken_starts, lacking, resized

        goes_on = resized(plan.actions)
        tasks = self.desired.tasks
        retries = {name: want.spec.retry for name, want in tasks.items() if name not in goes_on}
        for task, lack in lacking(plan, results).items():
            if task in retries and (retries[task].waits or lack.again):
                self.lacking[task] = lack
        for task, missed in broken_starts(plan, results).items():
            if task in retries and task not in self.lacking and retries[task].of_failures:
                self.unstarted[task] = missed

    def _code(self, plan: Plan, results: Sequence[ActionResult], held: Mapping[str, str]) -> int:
        """The exit code of what was done. A backend that could not be read is no success."""
        undone = {r.id for r in results if r.outcome != "done"}
        if self.options.get("wait"):  # the actions of those tasks are tried again
            undone = undone.difference(*(lack.undone for lack in self.lacking.values()))
            undone = undone.difference(*self.unstarted.values())
        return 4 if undone or held or plan.unreadable_backends or self.faults else 0

    def _result(self, plan: Plan, code: int) -> str:
        """The result in one word, for scripts."""
        if code:
            return "interrupted" if code == INTERRUPTED else "failed"
        if plan.unplaced.pending or self.lacking:
            return "waiting"
        return "unhealthy" if plan.health else "done"

    def _keep(self, state: State) -> None:
        """Keep the state as it is before it is changed; warn where that cannot be done."""
        from declarative.store import StateError
        from declarative.store.backup import keep_before

        if not state.records:
            return
        try:
            at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now()))
            keep_before(self.session.directory, self.store.pull(), at)
        except StateError as error:
            code, level = "no-backup", Severity.WARNING
            say((Diagnostic(code=code, summary=error.summary, hint=error.hint, severity=level),))

    def perform(
        self, plan: Plan, writer: Writer, stop: threading.Event
    ) -> tuple[tuple[ActionResult, ...], dict[str, str]]:
        """Carry out the actions of a plan, and let gangs run that an earlier command had prepared; those that
        still wait, and why.
        """
        from declarative.apply.gate import Tools, release_all
        from declarative.apply.run import apply, complete

        writer.ensure_lineage()  # the made things carry it
        state = writer.state()
        listener = self.listener()
        ids = [action.id for action in plan.actions]
        gone = [action.id for action in plan.actions if action.of_gone]
        listener.expect(len(ids), _only_records(plan, state), ids, gone)
        tools = Tools(
            writer=writer,
            backends=self.session.backends(self.desired, state),
            environ=os.environ,
            now=self.now,
            stopping=stop,
            listener=listener,
        )
        results = apply(plan, tools, parallelism=self.options["parallelism"])
        touched = {action.address for action in plan.actions}
        left = {address: token for address, token in self._taken.items() if address not in touched}
        held: dict[str, str] = {}
        if not stop.is_set() and not tools.faults:
            with tools.noting_faults():
                results += complete(left, tools)
                held = {} if self.doing == "destroy" else release_all(tools)
        self.faults += tools.faults
        return results, held

    def tasks(self) -> tuple[str, ...]:
        """Declared tasks that this plan started, and those that run."""
        if not self.names:
            return ()
        actions = self.plan.actions if self.plan else ()
        started = {a.typed.task for a in actions if isinstance(a.typed, RankInputs) and a.op == "create"}
        going = going_tasks(self.store.read())
        return tuple(sorted(t for t in started | going if t in self.names))

    def _say_lacking(self) -> None:
        """The hint for tasks that found no capacity, unless they are tried again anyway."""
        if self.as_json:
            self._pending_events(self.lacking)
        elif self.lacking and not self.options.get("wait"):
            verb = "stays" if len(self.lacking) == 1 else "stay"
            then = "`fleetform apply --wait` tries again until there is some"
            sys.stderr.write(f"{name_tasks(tuple(self.lacking))} {verb} {PENDING}: {then}\n")

    def say_running(self) -> None:
        """The text about what goes on after the command, and how to follow it."""
        tasks = self.tasks()
        if tasks and not self.as_json:
            sys.stderr.write(f"running: {name_tasks(tasks)} (follow with `fleetform logs {tasks[0]} -f`)\n")

    def say_ended(self, states: Mapping[str, RankState], causes: Mapping[str, str] | None = None) -> None:
        """How each task ended; `causes` are of those that never began."""
        from declarative.apply.watch import cause_of

        state = self.store.read()
        for task, found in states.items():
            cause = None if found == "succeeded" else cause_of(state, task)
            if found == "pending" and causes and task in causes:
                cause = causes[task]
            if self.as_json:
                self.event({"event": "task", "address": f"task/{task}", "state": found.value, "cause": cause})
            else:
                self.out.write(f"task/{task}: {found.value}" + (f": {cause}" if cause else "") + "\n")


def _only_records(plan: Plan, state: State) -> Iterator[str]:
    """The ids of deletes that end nothing, of ranks that have ended and of what was adopted; and of creates
    that adopt.
    """
    from declarative.planner.plan import adopted_id

    for action in plan.actions:
        ended = action.address.kind == "rank" and has_ended(state, action.address.name)
        takes = action.op == "create" and adopted_id(action.typed) is not None
        if action.forgets or takes or (action.op == "delete" and ended):
            yield action.id
