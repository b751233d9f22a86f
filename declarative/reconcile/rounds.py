"""The rounds of `fleetform reconcile`: each is a run that asks nobody, and does only what is permitted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from declarative.apply.backend_look import backends_of
from declarative.apply.backends import Backends
from declarative.apply.graph_walk import ActionResult
from declarative.apply.launch import missing_env
from declarative.apply.outages import PATIENT, Outages
from declarative.apply.ranks import PollRounds
from declarative.converge.planning import RunOptions
from declarative.converge.project import ProjectSession
from declarative.converge.run import Run
from declarative.converge.state_access import of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity
from declarative.model.resource import Desired
from declarative.model.state import State
from declarative.model.status import Outage
from declarative.planner.hosts import hosts_of
from declarative.planner.plan import Plan
from declarative.reconcile.loop import LoopObserver, Round, RunObserver, Stop, Wait, left_alone
from declarative.reconcile.permission import AllowedPart, Backoff, choose, longest, refused
from declarative.reconcile.repeatable import Marks, Moment, RepeatableRound, lasts, marks_of, settled
from declarative.reconcile.watched_files import Checkout, WatchedFiles
from declarative.render.status_view import status_view
from declarative.spans import span
from declarative.store import StateError, Store, Writer
from declarative.store.loop_state import LEASE_SECONDS, Leader
from declarative.store.records import SEEN_ANEW

SOON = 2.0
"""Seconds after which a round is tried again that stepped back for a person."""


class RoundRun:
    """One round. It is the `ActionPermit` of its run."""

    def __init__(self, rounds: Rounds, desired: Desired, observer: RunObserver) -> None:
        self.rounds = rounds
        self.desired = desired
        self.run = Run(
            rounds.session,
            desired,
            "reconcile",
            rounds.options,
            observer,
            stopping=lambda: nullcontext(rounds.stop.halt),
        )
        self._observer = observer
        self.allowed: AllowedPart | None = None
        self.after: State | None = None
        """The state as the round leaves it."""
        self._results: tuple[ActionResult, ...] = ()
        self._epoch: int | None = None
        self._whole: Plan | None = None
        """The plan with all that waits."""
        self._before: State | None = None
        """The state as the round found it."""
        self._backends: Backends | None = None
        self._marks: Marks | None = None
        """The marks of the backends before the round looked at them."""
        self._moment: Moment | None = None
        """The time of the plan."""
        self._planned_from: State | None = None
        """The records that were planned from."""
        self._seal: str | None = None
        """The seal of the state as the round leaves it."""

    def converge(self) -> int:
        """Look, plan and do what is permitted; the exit code, as `apply` has it."""
        rounds, store = self.rounds, self.run.store
        with rounds.locked(store) as writer:
            if not rounds.leads():
                raise _NotLeadingError
            if rounds.files.outdated():
                raise _OutdatedError
            self._epoch = writer.lease.epoch
            outcome = self.run.converge(self._make_plan(writer), writer, self)
            self._results = outcome.results
            if not outcome.is_refused:
                self._observer.finished(outcome)
            rounds.note_outages(store, writer)
            self.after = writer.state()
            with suppress(StateError):  # what was written holds without a seal
                writer.seal()
                self._seal = store.seal()
        return outcome.exit_code

    def _make_plan(self, writer: Writer) -> Plan:
        """Plan without what a backend would refuse, and without a backend that goes away meanwhile."""
        outages, known = self.rounds.outages, set[str | None]()
        session, desired = self.rounds.session, self.desired
        state = self._before = writer.state()
        while True:
            self._backends = self._marks = self._moment = None
            if settled(state, state):
                self._backends = session.backends(desired, state)
                names = {host.backend for host in hosts_of(desired, state)} | backends_of(state)
                self._marks = marks_of(self._backends, names.union(self._backends.names()))
            plan = self.run.make_plan(writer, permit=self, timed=self._timed)
            if refusals := refused(plan):
                self.rounds.refused |= refusals
                for group, refusal in refusals.items():
                    self.rounds.backoff.failed(group, refusal.summary, self.run.now())
                continue
            unknown = {action.backend for action in plan.actions if action.op == "create"} - known
            known |= {name for name in unknown if name and outages.is_down(name)}
            if unknown.isdisjoint(known):
                return plan

    def _timed(self, plan_at: Callable[[float], Plan]) -> Plan:
        """Plan as of now. Where nothing is to do, it is noted for how long. A plan that does something is
        made with a plain number: it is stored.
        """
        if self._marks is not None and self.rounds.rests:
            moment = Moment(self.run.now())
            plan = plan_at(moment)
            if plan.result == "none" and not plan.actions:
                self._moment = moment
                return plan
        return plan_at(self.run.now())

    # --------------------------------------------------------------------------------- what is permitted

    def choose(self, plan: Plan, state: State, writer: Writer) -> Plan:
        """The permitted part of the plan. What waits for a person is written down."""
        rounds, store, now = self.rounds, self.run.store, self.run.now()
        self._whole = plan
        self._planned_from = writer.state()
        rules = self.desired.project.reconcile
        lacking = {
            f"task/{task}": f"lacks the environment variable `{name}`"
            for name, tasks in missing_env(plan, state, os.environ).items()
            for task in tasks
        }
        allowed = self.allowed = choose(
            plan,
            state,
            self.desired,
            now=now,
            approvals=store.loop.approvals(),
            before=store.journal.permits_since(now - longest(rules)) if plan.actions or rounds.lost else (),
            backoff=rounds.backoff,
            lacking=lacking,
        )
        rounds.lost = allowed.lost
        held = [wait.address for wait in allowed.waits]
        rounds.refused = {group: error for group, error in rounds.refused.items() if group in held}
        if allowed.noted:
            writer.permit(allowed.noted)
        if {approval.digest for approval in store.loop.approvals()} != allowed.approvals.keys():
            writer.wait_for_approval(allowed.approvals)
        return allowed.plan

    def begin(self, writer: Writer) -> None:
        """Write down what budgets count, before it is done."""
        if self.allowed and self.allowed.nodes:
            writer.permit(self.allowed.nodes)

    def end(
        self, plan: Plan, results: tuple[ActionResult, ...], writer: Writer, *, interrupted: bool
    ) -> None:
        """Remember failures, and write down which approvals are used up."""
        allowed = self.allowed
        assert allowed is not None
        if (unused := allowed.unused(results)) != allowed.approvals:
            writer.wait_for_approval(unused)
        if not interrupted:
            self.rounds.backoff.take_in(plan, results, self.run.now())
            if lost := allowed.still_lost(results):
                writer.permit(lost)
                self.rounds.lost |= lost.keys()

    # -------------------------------------------------------------------------------------- afterwards

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Errors of a part of the declaration; the rest is done."""
        return (*(self.allowed.errors if self.allowed else ()), *dict.fromkeys(self.rounds.refused.values()))

    def waits(self) -> tuple[Wait, ...]:
        """What the round did not do of the plan, including tasks without a place."""
        waits = list(self.allowed.waits if self.allowed else ())
        for refusal in self._whole.unplaced.refusals if self._whole else ():
            why, hint = f"has no place: {refusal.summary}", refusal.hint or ""
            waits.append(Wait(address=f"task/{refusal.task}", action="create", why=why, hint=hint))
        return tuple(waits)

    def as_round(self, waits: tuple[Wait, ...]) -> Round:
        """The round, as its observers get it."""
        places = {r.address.name: r.reservation.node for r in self.run.looked_from.of("reservation")}
        statuses = self.run.observation.inventory.ranks if self.run.observation else {}
        done = Round(
            held=True,
            epoch=self._epoch,
            plan=self._whole,
            results=self._results,
            waits=waits,
            gpus={
                (places[rank], gpu, uuid): percent
                for rank, status in statuses.items()
                if rank in places
                for gpu, uuid, percent in status.gpus
            },
        )
        if plan := self.run.plan:
            errors = self.errors + tuple(d for d in plan.diagnostics if d.severity is Severity.ERROR)
            done = replace(done, hourly=plan.preview.cost.after, actions=plan.actions, errors=errors)
        if self.after:
            backends = tuple(sorted({*self.desired.backends, *backends_of(self.after)}))
            done = replace(done, status=status_view(self.desired, self.after), backends=backends)
        return done

    def as_repeatable(self, done: Round) -> RepeatableRound | None:
        """The round as one to repeat, if it left nothing to do."""
        plan, after, seal, moment = self._whole, self.after, self._seal, self._moment
        observation = self.run.observation
        if plan is None or after is None or seal is None or observation is None or moment is None:
            return None
        if self._before is None or self._backends is None or self._marks is None:
            return None
        acted = plan.actions or plan.scope.moved or done.results or done.waits or done.errors
        if acted or plan.result != "none" or self.desired.project.limits.cost_per_month is not None:
            return None
        if self._planned_from is not after or not settled(self._before, after):
            return None
        since, seconds = float.__float__(moment), lasts(observation, after)
        if seconds is None:
            return None
        return RepeatableRound(
            desired=self.desired,
            policy=self.rounds.session.policy(),
            store=self.run.store,
            seal=seal,
            backends=self._backends,
            marks=self._marks,
            state=after,
            since=since,
            until=since + moment.seconds,
            due=since + seconds,
            round=done,
        )


class _NotLeadingError(Exception):
    """Another loop has taken over."""


class _OutdatedError(Exception):
    """The declaration may have changed while this loop waited for the state, or slept."""


class Rounds:
    """The memory of a loop from one round to the next."""

    def __init__(
        self,
        session: ProjectSession,
        observer: LoopObserver,
        stop: Stop,
        checkout: Checkout | None = None,
        *,
        accept_vanished: bool,
        parallelism: int,
        once: bool = False,
    ) -> None:
        """`checkout` brings the project's files, if they follow a branch. `once`: for one round only."""
        self.session = session
        self.stop = stop
        self.options = RunOptions(
            allow_unplaced=True,
            accept_vanished=accept_vanished,
            parallelism=parallelism,
            next_try="the loop tries again by itself",
        )
        self.backoff = Backoff()
        self.outages = session.outages = Outages(session.clock, PATIENT if once else None)
        self.files = WatchedFiles(session, observer, checkout)
        self.lost: frozenset[str] = frozenset()
        """Groups that are gone, and were not permitted in the last round."""
        self.refused: dict[str, Diagnostic] = {}
        """Groups that a backend refuses to make, each with its message."""
        self.rests = False
        """Whether the last round had nothing to do."""
        self.code = 0
        """The exit code of the last round, as `apply` has it."""
        self._observer = observer
        self._noted_outages: list[Outage] | None = None
        self._leader: Leader | None = None
        self._next_round: float | None = None
        """When the next round has to come, whatever the interval is."""
        self._polls: PollRounds | None = None
        self._known: State | None = None
        """The state after the last round; None if it did not get that far."""
        self._repeatable: RepeatableRound | None = None
        """The last whole round, if it left nothing to do."""

    # ------------------------------------------------------------------------------------- when

    @property
    def interval(self) -> float:
        """Seconds between two rounds."""
        desired = self.files.desired
        return float((desired.project.reconcile.interval.seconds if desired else None) or 5)

    def early(self) -> bool:
        """Whether the next round has to come at once."""
        if self._next_round is not None and self.session.clock() >= self._next_round:
            return True
        self.outages.ask_again()
        if self.outages.returned() or self.files.changed():
            return True
        # Has a rank ended? Only nodes that run some are asked, each at its own pace: often at first and after
        # a change, and seldom where nothing changes for long.
        if self._polls is None or self._known is None:
            return False
        before = self._known.ranks
        changed = {n: s for n, s in self._polls.poll(self._known).items() if before.get(n) != s}
        self._known = replace(self._known, ranks={**before, **changed})
        return any(status.state.ended for status in changed.values())

    def note_outages(self, store: Store, writer: Writer) -> None:
        """Write down which backends are left alone, if that has changed."""
        outages = [*self.outages.backends()]
        if self._noted_outages is None:
            self._noted_outages = [*store.loop.left_alone()]
        if outages != self._noted_outages:
            writer.leave_alone(outages)
            self._noted_outages = outages

    # ------------------------------------------------------------------------------------- who

    def locked(self, store: Store) -> AbstractContextManager[Writer]:
        """The lock, if it is free. The round ends when another command asks for it."""
        return self.session.state.lock(
            store, "reconcile", 0.0, lease_seconds=LEASE_SECONDS, on_asked=self.stop.halt.set
        )

    def leads(self) -> bool:
        """Whether this loop acts; the lease is taken or renewed."""
        return self._leader is not None and self._leader.lead()

    def keep_lease(self) -> None:
        """Renew the lease where it is held; a state that is away is the round's concern."""
        if self._leader is not None and self._leader.leads != self._leader.lead():
            self._next_round = 0.0  # it changed hands: a round at once

    def close(self) -> None:
        """Let another loop take over at once."""
        if self._leader is not None:
            self._leader.resign()

    # ------------------------------------------------------------------------------------- a round

    @span("round")
    def step(self) -> Round:
        """Make one round; the result is what observers get."""
        self._next_round = self._known = None
        self.outages.ask_again()
        self.stop.halt.clear()
        if self.stop.is_set():
            self.stop.halt.set()
        files = self.files
        files.fetch()
        desired = files.load()
        done = Round()
        try:
            if desired is None:
                self.code = 1
            else:
                done = self._round(desired)
        except _NotLeadingError:
            pass
        except _OutdatedError:
            return self.step()
        except InvalidError as error:
            done = self._failed(error.diagnostics)
        except StateError as error:
            if error.code == "locked":
                self.code = 1
                self._next_round = self.session.clock() + SOON
                self._observer.locked(str(error.lock))
                done = Round(held=True)
            else:
                done = self._failed(of_state(error, self.session.directory).diagnostics)
        return replace(
            done,
            errors=(*files.git_wrong, *files.wrong, *done.errors),
            revision=files.who.revision if files.who else None,
            in_force=files.in_force,
        )

    def _round(self, desired: Desired) -> Round:
        last, self._repeatable = self._repeatable, None
        if last is not None and self.leads() and not self.outages.list():
            if last.holds(desired, self.session.policy(), self.session.clock()):
                self._repeatable = self._recorded(last)
            if self._repeatable is not None:
                self._known, self.code = self._repeatable.state, 0
                return self._repeatable.repeated()
        with self._observer.round() as observer:
            work = RoundRun(self, desired, observer)
            store = work.run.store
            if self._leader is None:
                self._leader = store.loop.leader()
            if self.files.who is not None:
                store.sign_as(self.files.who)
            if not self.leads():
                raise _NotLeadingError
            self.code = work.converge() or (4 if work.errors else 0)
        if work.after:
            # Ask from now on for the ranks that this state has.
            backends = self.session.backends(desired, work.after)
            self._polls = self._polls.on(backends) if self._polls else PollRounds(backends)
            self._known = work.after
        waits = work.waits()
        times = (wait.until for wait in waits if wait.until is not None)
        self._next_round = min(times, default=None) if self._next_round is None else self._next_round
        self.outages.forget_unused()
        done = work.as_round((*waits, *map(left_alone, self.outages.backends())))
        self._observer.waits(done.waits)
        self._observer.returned({outage.backend for outage in self.outages.backends()})
        self._observer.errors(work.errors)
        self.rests = done.plan is not None and not done.plan.actions
        if self.code == 0 and not (self.lost or self.refused or self.outages.list()):
            self._repeatable = work.as_repeatable(done)
        return done

    def _recorded(self, last: RepeatableRound) -> RepeatableRound | None:
        """The same, with a record that nodes were seen once more, where that is due; None if something has
        changed meanwhile.
        """
        now = self.session.clock()
        if now < last.due:
            return last
        try:
            with self.locked(last.store) as writer:
                if not self.leads() or last.store.seal() != last.seal:
                    return None
                state = writer.observe_again(time.time(), last.state)
                writer.seal()
                seal = last.store.seal()
        except StateError as error:
            if error.code != "locked":
                raise
            return last  # a person's command goes first
        status = status_view(last.desired, state)
        return replace(
            last,
            state=state,
            seal=seal or "",
            due=now + SEEN_ANEW,
            round=replace(last.round, status=status, epoch=writer.lease.epoch),
        )

    def _failed(self, diagnostics: tuple[Diagnostic, ...]) -> Round:
        self.code = 1
        self._observer.errors(diagnostics)
        return Round(held=self._leader is not None, errors=diagnostics)
