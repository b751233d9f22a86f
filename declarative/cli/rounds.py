"""The rounds of `fleetform reconcile`: each is an apply that asks nobody, and does only what is permitted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.apply.backend_look import backends_of
from declarative.apply.outages import PATIENT, Outages
from declarative.cli.calm import Calm, Marks, lasts, marks_of, settled
from declarative.cli.output import say
from declarative.cli.round_output import RoundOutput
from declarative.cli.run import Run
from declarative.cli.watched_files import WatchedFiles
from declarative.converge.project import ProjectSession
from declarative.converge.state_access import of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity
from declarative.model.status import Outage
from declarative.planner.health import SILENT_HINT
from declarative.planner.hosts import hosts_of
from declarative.reconcile.moment import Moment
from declarative.reconcile.permission import AllowedPart, Backoff, choose, longest, refused
from declarative.reconcile.round import Round, Stop, Wait, left_alone, unplaced
from declarative.spans import named
from declarative.store import StateError
from declarative.store.loop_state import LEASE_SECONDS
from declarative.store.records import SEEN_ANEW

if TYPE_CHECKING:
    from declarative.apply.backend_look import Observation
    from declarative.apply.backends import Backends
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.polls import PollRounds
    from declarative.model.resource import Desired
    from declarative.model.state import State
    from declarative.planner.plan import Plan
    from declarative.reconcile.checkout import Checkout
    from declarative.store import Store, Writer
    from declarative.store.loop_state import Leader

SOON = 2.0
"""Seconds after which a round is tried again that stepped back for a person."""


class RoundRun(Run):
    """One round."""

    AGAIN = "the loop tries again by itself"

    def __init__(self, rounds: Rounds, desired: Desired, options: Mapping[str, Any]) -> None:
        super().__init__(rounds.session, desired, "reconcile", options)
        self.rounds = rounds
        self.results: tuple[ActionResult, ...] = ()
        self.epoch: int | None = None
        self.whole: Plan | None = None
        self.choice: AllowedPart | None = None
        self.after: State | None = None
        """The state as the round leaves it."""
        self.gpus: dict[tuple[str, int, str], int] = {}
        """See `Round.gpus`."""
        self._before: State | None = None
        """The state as the round found it."""
        self._backends: Backends | None = None
        self._marks: Marks | None = None
        """The marks of the backends before the round looked at them."""
        self._seen: Observation | None = None
        self._moment: Moment | None = None
        """The time of the plan."""
        self._planned: State | None = None
        """The records that were planned from."""
        self._seal: str | None = None
        """The seal of the state as the round leaves it."""

    @contextmanager
    def lock(self) -> Iterator[Writer]:
        """The lock, if it is free, and only as long as this loop leads."""
        halt = self.rounds.stop.halt
        given = {"lease_seconds": LEASE_SECONDS, "on_asked": halt.set}
        with self.session.state.lock(self.store, self.doing, 0.0, **given) as writer:
            if not self.rounds.leads():
                raise _NotLeadingError
            if self.rounds.files.outdated():
                raise _OutdatedError
            self.epoch = writer.lease.epoch
            yield writer
            self.rounds.note_left_alone(self.store, writer)
            self.after = writer.state()
            with suppress(StateError):  # what was written holds without a seal
                writer.seal()
                self._seal = self.store.seal()

    def stopping(self) -> AbstractContextManager[threading.Event]:
        """Set when the loop has to stop, or is asked for the lock."""
        return nullcontext(self.rounds.stop.halt)

    def ask(self) -> None:
        """Ask nobody: the declaration says what is permitted."""

    def check_env(self, plan: Plan, state: State) -> None:
        """Do nothing: a task that lacks a variable waits, and holds nothing else up."""

    def make_plan(
        self, writer: Writer, requested: frozenset[str] = frozenset(), *, destroy: bool = False
    ) -> Plan:
        """Plan without what a backend would refuse, and without a backend that goes away meanwhile."""
        outages, before = self.rounds.outages, set[str | None]()
        state = self._before = writer.state()
        while True:
            self._backends = self._marks = self._moment = None
            if settled(state, state):
                self._backends = self.session.backends(self.desired, state)
                names = {host.backend for host in hosts_of(self.desired, state)} | backends_of(state)
                self._marks = marks_of(self._backends, names.union(self._backends.names()))
            plan = super().make_plan(writer, requested, destroy=destroy)
            if refusals := refused(plan):
                self.rounds.refused |= refusals
                for group, refusal in refusals.items():
                    self.rounds.backoff.failed(group, refusal.summary, self.now())
                continue
            wanted = {action.backend for action in plan.actions if action.op == "create"} - before
            before |= {name for name in wanted if name and outages.is_down(name)}
            if wanted.isdisjoint(before):
                return plan

    def planned(self, plan_at: Callable[..., Plan], **options: Any) -> Plan:
        """Like every apply. Where nothing is to do, it is noted for how long. A plan that does something is
        made with a plain number: it is stored.
        """
        if self._marks is not None and self.rounds.rests:
            moment = Moment(self.now())
            plan = plan_at(moment, **options)
            if plan.result == "none" and not plan.actions:
                self._moment = moment
                return plan
        return super().planned(plan_at, **options)

    def check_vanished(self, state: State, seen: Observation) -> None:
        """Like every apply; and note how GPUs are used."""
        self._seen = seen
        places = {r.address.name: r.reservation.node for r in state.of("reservation")}
        ranks = seen.inventory.ranks.items()
        self.gpus = {
            (places[name], gpu, uuid): percent
            for name, status in ranks
            if name in places
            for gpu, uuid, percent in status.gpus
        }
        super().check_vanished(state, seen)

    def chosen(self, plan: Plan, state: State, writer: Writer) -> Plan:
        """The permitted part of the plan. What waits for a person is written down."""
        from declarative.apply.launch import missing_env

        self.whole = plan
        self._planned = writer.state()
        rules = self.desired.project.reconcile
        missing = missing_env(plan, state, os.environ)
        lacking = {
            f"task/{task}": f"lacks the environment variable `{name}`"
            for name, tasks in missing.items()
            for task in tasks
        }
        found = self.choice = choose(
            plan,
            state,
            self.desired,
            now=self.now(),
            approvals=self.store.approvals(),
            before=writer.permits_since(self.now() - longest(rules))
            if plan.actions or self.rounds.lost
            else (),
            backoff=self.rounds.backoff,
            lacking=lacking,
        )
        self.rounds.lost = found.lost
        held = [wait.address for wait in found.waits]
        self.rounds.refused = {g: d for g, d in self.rounds.refused.items() if g in held}
        if found.noted:
            writer.permit(found.noted)
        if {a.digest for a in self.store.approvals()} != found.approvals.keys():
            writer.wait_for_approval(found.approvals)
        return found.plan

    def perform(
        self, plan: Plan, writer: Writer, stop: threading.Event
    ) -> tuple[tuple[ActionResult, ...], dict[str, str]]:
        """Like every apply. What budgets count is written down before, and failures are remembered."""
        choice = self.choice
        assert choice is not None
        if choice.nodes:
            writer.permit(choice.nodes)
        self.results, held = super().perform(plan, writer, stop)
        if self.faults:
            return self.results, held
        if (left := choice.unused(self.results)) != choice.approvals:
            writer.wait_for_approval(left)
        if not stop.is_set():
            self.rounds.backoff.take_in(plan, self.results, self.now())
            if lost := choice.still_lost(self.results):
                writer.permit(lost)
                self.rounds.lost |= lost.keys()
        return self.results, held

    @property
    def wrong(self) -> tuple[Diagnostic, ...]:
        """Errors of a part of the declaration; the rest is done."""
        return (*(self.choice.errors if self.choice else ()), *dict.fromkeys(self.rounds.refused.values()))

    def outcome(self, waits: tuple[Wait, ...]) -> Round:
        """The round, as its observers get it."""
        from declarative.render.views import status_view

        found = replace(
            _nothing((), held=True),
            epoch=self.epoch,
            plan=self.whole,
            results=self.results,
            waits=waits,
            gpus=self.gpus,
        )
        if self.plan:
            errors = self.wrong + tuple(d for d in self.plan.diagnostics if d.severity is Severity.ERROR)
            hourly = self.plan.preview.cost.after
            found = replace(found, hourly=hourly, actions=self.plan.actions, errors=errors)
        if self.after:
            backends = tuple(sorted({*self.desired.backends, *backends_of(self.after)}))
            found = replace(found, status=status_view(self.desired, self.after), backends=backends)
        return found

    def calm(self, found: Round) -> Calm | None:
        """The round as one to repeat, if it left nothing to do."""
        plan, after, seal, seen, at = self.whole, self.after, self._seal, self._seen, self._moment
        if plan is None or after is None or seal is None or seen is None or at is None:
            return None
        if self._before is None or self._backends is None or self._marks is None:
            return None
        done = plan.actions or plan.scope.moved or found.results or found.waits or found.errors
        if done or plan.result != "none" or self.desired.project.limits.cost_per_month is not None:
            return None
        if self._planned is not after or not settled(self._before, after):
            return None
        since, more = float.__float__(at), lasts(seen, after)
        if more is None:
            return None
        return Calm(
            desired=self.desired,
            policy=self.session.policy(),
            store=self.store,
            seal=seal,
            backends=self._backends,
            marks=self._marks,
            state=after,
            since=since,
            until=since + at.seconds,
            due=since + more,
            round=found,
        )

    # ------------------------------------------------------------------------------------- messages

    def _show(self, plan: Plan) -> None:
        new = self.rounds.output.new("plan", plan.diagnostics)
        # What it says of silent nodes has the time that is left, which differs each round.
        fresh = tuple(d for d in plan.diagnostics if d in new and d.hint != SILENT_HINT)
        if self._seen and not self.as_json:
            self.rounds.output.silences(self._seen.inventory, self.now())
        if plan.actions or plan.scope.moved:
            super()._show(replace(plan, diagnostics=fresh))
        elif fresh and not self.as_json:
            say(fresh)

    def _say_waiting(self, plan: Plan, state: State) -> None:
        """Tasks without a place are among what waits."""

    def _note_waiting(self, plan: Plan, writer: Writer) -> None:
        """The announcer writes down all that waits."""

    def _say_lacking(self) -> None:
        """See `_say_waiting`."""

    def report(self, results: tuple[ActionResult, ...], result: str, *, cut_short: bool = False) -> None:
        """Only of a round that did something."""
        if results or (self.plan and self.plan.scope.moved):
            super().report(results, result, cut_short=cut_short)


class _NotLeadingError(Exception):
    """Another loop has taken over."""


class _OutdatedError(Exception):
    """The declaration may have changed while this loop waited for the state, or slept."""


class Rounds:
    """The memory of a loop from one round to the next."""

    def __init__(
        self,
        session: ProjectSession,
        options: Mapping[str, Any],
        stop: Stop,
        checkout: Checkout | None = None,
        *,
        once: bool = False,
    ) -> None:
        """`checkout` brings the project's files, if they follow a branch. `once`: for one round only."""
        self.session = session
        self.stop = stop
        self.backoff = Backoff()
        self.outages = session.outages = Outages(session.clock, PATIENT if once else None)
        self.output = RoundOutput(session)
        self.files = WatchedFiles(session, self.output, checkout)
        self.lost: frozenset[str] = frozenset()
        """Groups that are gone, and were not permitted in the last round."""
        self.refused: dict[str, Diagnostic] = {}
        """Groups that a backend refuses to make, each with its message."""
        self.code = 0
        """The exit code of the last round, as `apply` has it."""
        self._options = {**options, "auto_approve": True, "allow_unplaced": True, "lock_timeout": 0.0}
        self._noted: list[Outage] | None = None
        self._leader: Leader | None = None
        self._again: float | None = None
        self._polls: PollRounds | None = None
        self._known: State | None = None
        """The state after the last round; None if it did not get that far."""
        self._calm: Calm | None = None
        """The last whole round, if it left nothing to do."""
        self.rests = False
        """Whether the last round had nothing to do."""

    # ------------------------------------------------------------------------------------- when

    @property
    def interval(self) -> float:
        """Seconds between two rounds."""
        desired = self.files.desired
        found = desired.project.reconcile.interval.seconds if desired else None
        return float(found or 5)

    def early(self) -> bool:
        """Whether the next round has to come at once."""
        if self._again is not None and self.session.clock() >= self._again:
            return True
        self.outages.ask_again()
        return self.outages.returned() or self.files.changed() or self._rank_ended()

    def _rank_ended(self) -> bool:
        """Whether a rank has ended since the last round. Only nodes that run some are asked, each at its own
        pace: often at first and after a change, and seldom where nothing changes for long.
        """
        if self._polls is None or self._known is None:
            return False
        before = self._known.ranks
        changed = {n: s for n, s in self._polls.poll(self._known).items() if before.get(n) != s}
        self._known = replace(self._known, ranks={**before, **changed})
        return any(status.state.ended for status in changed.values())

    def _watch(self, desired: Desired, state: State) -> None:
        """Ask from now on for the ranks that this state has."""
        from declarative.apply.polls import PollRounds

        backends = self.session.backends(desired, state)
        self._polls = self._polls.on(backends) if self._polls else PollRounds(backends)
        self._known = state

    def note_left_alone(self, store: Store, writer: Writer) -> None:
        """Write down which backends are left alone, if that has changed."""
        found = [*self.outages.backends()]
        if self._noted is None:
            self._noted = [*store.left_alone()]
        if found != self._noted:
            writer.leave_alone(found)
            self._noted = found

    # ------------------------------------------------------------------------------------- who

    def leads(self) -> bool:
        """Whether this loop acts; the lease is taken or renewed."""
        return self._leader is not None and self._leader.lead()

    def keep_lease(self) -> None:
        """Renew the lease where it is held; a state that is away is the round's concern."""
        if self._leader is not None and self._leader.leads != self._leader.lead():
            self._again = 0.0  # it changed hands: a round at once

    def close(self) -> None:
        """Let another loop take over at once."""
        if self._leader is not None:
            self._leader.resign()

    # ------------------------------------------------------------------------------------- a round

    @named("round")
    def step(self) -> Round:
        """Make one round; the result is what observers get."""
        self._again = self._known = None
        self.outages.ask_again()
        self.stop.halt.clear()
        if self.stop.is_set():
            self.stop.halt.set()
        self.files.fetch()
        desired = self.files.load()
        if desired is None:
            self.code = 1
            return self._with_checkout(_nothing(self.files.wrong))
        try:
            found = self._round(desired)
        except _NotLeadingError:
            found = _nothing(())
        except _OutdatedError:
            return self.step()
        except InvalidError as error:
            found = self._failed(error.diagnostics)
        except StateError as error:
            if error.code == "locked":
                self._step_back(str(error.lock))
                found = _nothing((), held=True)
            else:
                found = self._failed(of_state(error, self.session.directory).diagnostics)
        return self._with_checkout(replace(found, errors=(*self.files.wrong, *found.errors)))

    def _with_checkout(self, found: Round) -> Round:
        """The round with the repository's errors, and with the commit that is checked out."""
        return replace(
            found,
            errors=(*self.files.git_wrong, *found.errors),
            revision=self.files.who.revision if self.files.who else None,
            in_force=self.files.in_force,
        )

    def _round(self, desired: Desired) -> Round:
        calm, self._calm = self._calm, None
        if calm is not None and self.leads() and not self.outages.list():
            if calm.holds(desired, self.session.policy(), self.session.clock()):
                self._calm = self._recorded(calm)
            if self._calm is not None:
                self._known, self.code = self._calm.state, 0
                return self._calm.repeated()
        run = RoundRun(self, desired, self._options)
        if self._leader is None:
            self._leader = run.store.leader()
        if self.files.who is not None:
            run.store.sign_as(self.files.who)
        if not self.leads():
            raise _NotLeadingError
        with run:
            self.code = run.converge(destroy=False) or (4 if run.wrong else 0)
        if run.after:
            self._watch(desired, run.after)
        found = run.outcome(self._waits(run))
        self.output.waits(run, found.waits)
        self.output.returned(run, {found.backend for found in self.outages.backends()})
        self.output.errors(run.wrong)
        self.rests = found.plan is not None and not found.plan.actions
        if self.code == 0 and not (self.lost or self.refused or self.outages.list()):
            self._calm = run.calm(found)
        return found

    def _recorded(self, calm: Calm) -> Calm | None:
        """The same, with a record that nodes were seen once more, where that is due; None if something has
        changed meanwhile.
        """
        now = self.session.clock()
        if now < calm.due:
            return calm
        from declarative.render.views import status_view

        given = {"lease_seconds": LEASE_SECONDS, "on_asked": self.stop.halt.set}
        try:
            with self.session.state.lock(calm.store, "reconcile", 0.0, **given) as writer:
                if not self.leads() or calm.store.seal() != calm.seal:
                    return None
                state = writer.observe_again(time.time(), calm.state)
                writer.seal()
                seal = calm.store.seal()
        except StateError as error:
            if error.code != "locked":
                raise
            return calm  # a person's command goes first
        status = status_view(calm.desired, state)
        return replace(
            calm,
            state=state,
            seal=seal or "",
            due=now + SEEN_ANEW,
            round=replace(calm.round, status=status, epoch=writer.lease.epoch),
        )

    def _waits(self, run: RoundRun) -> tuple[Wait, ...]:
        """What the round did not do, including tasks without a place and unreadable backends."""
        chosen = run.choice.waits if run.choice else ()
        times = (wait.until for wait in chosen if wait.until is not None)
        self._again = min(times, default=None) if self._again is None else self._again
        self.outages.forget_unused()
        unread = map(left_alone, self.outages.backends())
        return (*chosen, *unplaced(run.whole), *unread)

    def _failed(self, diagnostics: tuple[Diagnostic, ...]) -> Round:
        self.code = 1
        self.output.errors(diagnostics)
        return _nothing(diagnostics, held=self._leader is not None)

    def _step_back(self, holder: str) -> None:
        self.code = 1
        self._again = self.session.clock() + SOON
        self.output.locked(holder)


def _nothing(errors: tuple[Diagnostic, ...], *, held: bool = False) -> Round:
    return Round(number=0, at=0.0, duration=0.0, held=held, errors=errors)
