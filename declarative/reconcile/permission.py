"""Splits a plan into what a round does and what waits: the rules of `planner.unattended`, with the
loop's memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from declarative.apply.graph_walk import ActionResult, Outcome
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import NodeInputs
from declarative.model.record import struct
from declarative.model.resource import LOCAL, Desired
from declarative.model.spec.project import Cause, Reconcile
from declarative.model.state import State
from declarative.planner.approval import approval_of
from declarative.planner.plan import Op, Plan, Reason, Unplaced, group_of
from declarative.planner.tasks import DELAYS, due_retry
from declarative.planner.unattended import (
    DAY,
    EarlierChange,
    PermitInputs,
    PermittedPart,
    WaitingGroup,
    causes_of,
    components,
    permitted_part,
)
from declarative.reconcile.loop import Wait
from declarative.store.journal import Permit
from declarative.store.loop_state import ENDS, Approval

LOST, OVER = "lost", "over"
"""Notes of the loop beside the causes of permits: a group is gone and its action is held, and this has ended.
Without the note, the next plan would take a gone thing for a new one.
"""


ENVIRONMENT = "set it in the environment of the loop, and start the loop again"
"""The hint about a variable that is not set."""


class Backoff:
    """The delays of failed groups: each failure makes the next longer. They are not saved: a new process
    tries at once.
    """

    def __init__(self, delays: Sequence[float] = DELAYS) -> None:
        self._delays = delays
        self._failed: dict[str, tuple[int, float, str]] = {}

    def take_in(self, plan: Plan, results: Iterable[ActionResult], now: float) -> None:
        """Take in the results of a plan: failed groups are delayed, the delays of done groups end."""
        by_id = {result.id: result for result in results}
        groups: dict[str, str | None] = {}
        for action in plan.actions:
            result = by_id.get(action.id)
            group = group_of(action)
            if result is None or groups.get(group):
                continue
            failed = result.outcome is not Outcome.DONE
            groups[group] = (result.error or "it failed") if failed else None
        for group, error in groups.items():
            if error is None:
                self._failed.pop(group, None)
            else:
                self.failed(group, error, now)

    def failed(self, group: str, error: str, now: float) -> None:
        """Delay the group; the more often it failed, the longer."""
        count = self._failed[group][0] + 1 if group in self._failed else 1
        delay = self._delays[min(count, len(self._delays) - 1)]
        self._failed[group] = (count, now + delay, error)

    def later(self, among: Collection[str], now: float) -> dict[str, tuple[float, str]]:
        """The delayed groups, each with the time of its next try and its error. Groups not in `among` are
        forgotten.
        """
        self._failed = {group: failures for group, failures in self._failed.items() if group in among}
        return {
            group: (until, f"is tried again later: {error}")
            for group, (_, until, error) in self._failed.items()
            if until > now
        }


@struct(frozen=True, slots=True, kw_only=True)
class AllowedPart:
    """The part of a plan that a round does, and what waits."""

    plan: Plan
    causes: Mapping[str, Cause]
    waits: tuple[Wait, ...] = ()
    approvals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Digest → the `steps` that wait for this approval."""
    lost: frozenset[str] = frozenset()
    """Held groups whose thing is gone."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """Groups to write down → `LOST` or `OVER`."""
    errors: tuple[Diagnostic, ...] = ()
    """Errors of single fleets, which do not delay the others."""

    @property
    def nodes(self) -> dict[str, str]:
        """The nodes that the plan is about, and why each may be changed."""
        groups = dict.fromkeys(map(group_of, self.plan.actions))  # in the plan's order, as it is written down
        return {g: self.causes[g].value for g in groups if g in self.causes and g.startswith("node/")}

    def unused(self, results: Iterable[ActionResult]) -> dict[str, tuple[str, ...]]:
        """The approvals whose actions were not all done."""
        done = {result.id for result in results if result.outcome is Outcome.DONE}
        return {
            digest: steps
            for digest, steps in self.approvals.items()
            if not done.issuperset(step.removesuffix(ENDS) for step in steps)
        }

    def still_lost(self, results: Iterable[ActionResult]) -> dict[str, str]:
        """Lost groups that could not be made anew; the next plan must not take them for new. See `noted`."""
        undone = {result.id for result in results if result.outcome is not Outcome.DONE}
        groups = [group_of(a) for a in self.plan.actions if a.op is Op.CREATE and a.id in undone]
        return {group: LOST for group in groups if self.causes.get(group) is Cause.REPLACE_LOST}


def choose(
    plan: Plan,
    state: State,
    desired: Desired,
    *,
    now: float,
    approvals: Iterable[Approval],
    before: Iterable[Permit],
    backoff: Backoff,
    lacking: Mapping[str, str],
) -> AllowedPart:
    """Hold the actions that are not allowed, not approved, over a budget, or delayed.

    `lacking` are groups that cannot be started now, and why.
    """
    before = tuple(before)
    last_note = {permit.address: permit for permit in before if permit.cause in (LOST, OVER)}
    lost = {group: permit.at for group, permit in last_note.items() if permit.cause == LOST}
    causes = causes_of(plan, state, desired.asleep, lost)
    blocked = {group: (math.inf, why) for group, why in lacking.items()}
    inputs = PermitInputs(
        rules=desired.project.reconcile,
        now=now,
        asleep=desired.asleep,
        retry_after=_retries(desired, state, causes, now) | backoff.later(causes.keys(), now) | blocked,
        desired=desired,
        lost_groups=lost,
        earlier_changes=tuple(
            EarlierChange(group=permit.address, cause=permit.cause, at=permit.at) for permit in before
        ),
    )
    part = permitted_part(plan, state, inputs)
    approval_groups = _waiting(plan, part.waiting)
    digests = {group: digest for digest, together in approval_groups.items() for group in together.groups}
    digests_approved = {a.digest for a in approvals if a.approved_at is not None}
    approved = {group for group, digest in digests.items() if digest in digests_approved}
    if approved:
        part = permitted_part(plan, state, replace(inputs, approved=approved))
    short = tuple(d for d in plan.diagnostics if d.code == "no-offer" and d.address)
    gone = tuple(d for d in plan.diagnostics if d.code == "volume-gone")
    # Waiting groups whose thing is gone, by this plan or an earlier note.
    creates = [(group_of(a), a.reason) for a in plan.actions if a.op is Op.CREATE]
    anew = {group for group, reason in creates if group in lost or reason is Reason.GONE}
    still_lost = frozenset(anew.intersection(one.group for one in part.waiting))
    # Notes are repeated each half day, since those older than a day are not read.
    notes = {group: LOST for group in sorted(still_lost) if lost.get(group, 0.0) < now - DAY / 2}
    return AllowedPart(
        plan=_without_errors(part, short),
        causes=part.causes,
        waits=_waits(part.waiting, digests, lacking, short, gone),
        approvals={digest: together.steps for digest, together in approval_groups.items()},
        lost=still_lost,
        noted=notes | dict.fromkeys(sorted(lost.keys() - still_lost), OVER),
        errors=_errors(plan, desired, short),
    )


def refused(plan: Plan) -> dict[str, Diagnostic]:
    """The groups that would make what a backend refuses, and its finding."""
    refusals = {d.address: d for d in plan.diagnostics if d.code == "backend-refuses"}
    out: dict[str, Diagnostic] = {}
    for action in plan.actions if refusals else ():
        if action.op is Op.CREATE and action.address.kind in ("node", "volume"):
            inputs = action.typed
            fleet = inputs.fleet if isinstance(inputs, NodeInputs) else None
            for address in (str(action.address), f"fleet/{fleet}", f"backend/{action.backend or LOCAL}"):
                if address in refusals:
                    out.setdefault(group_of(action), refusals[address])
    return out


def _waits(
    waiting: Iterable[WaitingGroup],
    digests: Mapping[str, str],
    lacking: Collection[str],
    short: Iterable[Diagnostic],
    gone: Iterable[Diagnostic],
) -> tuple[Wait, ...]:
    """The waits of groups, of fleets that are `short` of nodes, and of volumes that are `gone`."""
    waits = (
        Wait(
            address=one.group,
            action=one.cause.value,
            why=one.why,
            digest=digests.get(one.group) if one.approval else None,
            until=None if one.until == math.inf else one.until,
            hint=ENVIRONMENT if one.group in lacking else one.hint,
        )
        for one in waiting
    )
    few = (Wait(address=d.address or "", action="create", why=d.summary, hint=d.hint or "") for d in short)
    why = "is gone, and an empty one is made only by `fleetform apply --replace`"
    lost = (Wait(address=d.address or "", action="replace-lost", why=why, hint=d.hint or "") for d in gone)
    return (*waits, *few, *lost)


class _ApprovalGroup(NamedTuple):
    """The groups that wait for one approval, and its `Approval.steps`."""

    groups: frozenset[str]
    steps: tuple[str, ...]


def _waiting(plan: Plan, waiting: Iterable[WaitingGroup]) -> dict[str, _ApprovalGroup]:
    """Digest → the groups that belong together and wait for one approval."""
    out = {}
    for members in components(plan, [one.group for one in waiting if one.approval]):
        actions = tuple(a for a in plan.actions if group_of(a) in members)
        part = replace(plan.only(actions), unplaced=Unplaced())
        steps = tuple(f"{a.id}{ENDS if a.ends else ''}" for a in actions)
        out[approval_of(part).digest] = _ApprovalGroup(members, steps)
    return out


def _retries(
    desired: Desired, state: State, causes: Mapping[str, Cause], now: float
) -> dict[str, tuple[float, str]]:
    """When failed tasks run again: the more often they failed, the later."""
    out = {}
    tasks = [group.removeprefix("task/") for group, cause in causes.items() if cause is Cause.RETRY]
    for task in tasks:
        want = desired.tasks.get(task)
        have = [r for r in state.of("rank") if r.rank.task == task] if want else []
        retry = due_retry(want, have, state, now) if want else None
        if retry:
            out[f"task/{task}"] = (retry.after, f"runs again later: {retry.cause}")
    return out


def _errors(plan: Plan, desired: Desired, short: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The findings about fleets that are `short` of nodes, without those due to an unreadable backend."""
    unread = {d.address for d in plan.diagnostics if d.code == "backend-unreadable"}
    waiting = {
        f"fleet/{name}"
        for name, fleet in desired.fleets.items()
        if not unread.isdisjoint(f"backend/{b}" for b in fleet.backends or desired.backends)
    }
    return tuple(d for d in short if d.address not in waiting)


def _without_errors(part: PermittedPart, short: Collection[Diagnostic]) -> Plan:
    """The plan without the errors about actions that are left out: protected things, limits,
    `short` fleets.
    """
    going = {group_of(a) for a in part.plan.actions}
    waiting = {h.group for h in part.waiting}
    kept = tuple(
        d
        for d in part.plan.diagnostics
        if d not in short
        and (d.code != "protected" or d.address in going - waiting)
        and (d.code != "over-limit" or d.severity is not Severity.ERROR)
    )
    return replace(part.plan, diagnostics=kept)


def longest(rules: Reconcile) -> float:
    """For how many seconds permits are remembered."""
    return max((DAY, *(budget.window for budget in rules.budgets)))
