"""How a plan is made: for `apply` and the loop, which carry it out, and for those that only show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.converge.selection import allowing, check_requested, part_of
from declarative.model.diagnostic import in_order
from declarative.model.record import struct
from declarative.model.resource import Desired
from declarative.model.spec.project import Moves
from declarative.model.state import Spent, State
from declarative.planner.inventory import Inventory
from declarative.planner.plan import Plan
from declarative.spans import named
from declarative.store.rename import Declared, as_declared

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.converge.project import ProjectSession
    from declarative.planner.approval import PlanDigest


@struct(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a plan and of its run, beside what is declared."""

    requested: frozenset[str] = frozenset()
    """The addresses to replace although nothing changed."""
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    reuse: bool = False
    effort: int = 1
    allow_unplaced: bool | None = None
    new_state: bool = False
    refresh_only: bool = False
    accept_vanished: bool = False
    parallelism: int = 8
    follows: bool = False
    """Whether the command follows the tasks, and tries failed starts again by itself."""
    approved: PlanDigest | None = None
    """The plan that was approved: no other one is carried out."""
    earlier: tuple[PlanDigest, ...] = ()
    """Plans that were approved before, and of which something may be left; the oldest first."""
    next_try: str = "the next `fleetform apply` tries again"
    """Who starts a task whose start failed."""


@struct(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What a plan is made from."""

    desired: Desired
    recorded: State
    """The records, under the names that the declaration gives, and things that are gone."""
    inventory: Inventory
    backends: Backends
    renames: Declared


def observe(
    session: ProjectSession,
    requested: Iterable[str] = (),
    *,
    offline: bool,
    assume_empty: bool = False,
    rename: bool = True,
) -> PlanSource:
    """The declaration, the records and what is there, for those that record nothing."""
    from declarative.apply.backend_look import look
    from declarative.planner.hosts import hosts_of
    from declarative.planner.offers import may_rehearse

    desired = session.load(look="contents").desired
    recorded = State() if assume_empty else session.state.open(desired, offline=offline, own=True).read()
    renames = as_declared(recorded, desired.project.moved if rename else Moves(), desired.places)
    state = renames.state
    check_requested(requested, desired, state)
    if not assume_empty:
        session.state.check_moved(desired)
    backends = session.backends(desired, state)
    backends.only_plans = True
    hosts, gpus = hosts_of(desired, state), may_rehearse(desired, state)
    inventory = look(state, backends, hosts=hosts, offline=offline, gpus=gpus).inventory
    return PlanSource(
        desired=desired, recorded=state, inventory=inventory, backends=backends, renames=renames
    )


def plan_from(
    source: PlanSource,
    options: RunOptions,
    clock: Callable[[], float],
    spent: Spent | None,
    *,
    destroy: bool = False,
    max_work: int | None = None,
    timed: Callable[[Callable[[float], Plan]], Plan] | None = None,
) -> Plan:
    """The plan, or the part of it that the options select. `timed` calls the planner with its own time."""
    from declarative.planner.make import make_plan

    desired, recorded, inventory = source.desired, source.recorded, source.inventory

    def planned(**changes: Any) -> Plan:
        def plan_at(now: float) -> Plan:
            return named("plan")(make_plan)(
                desired,
                recorded,
                inventory,
                now,
                requested=options.requested,
                destroy=destroy,
                reuse=options.reuse,
                effort=options.effort,
                max_work=max_work,
                **changes,
            )

        return timed(plan_at) if timed else plan_at(clock())

    plan = part_of(
        planned,
        desired,
        recorded,
        inventory,
        (options.targets, options.excludes),
        spent=spent,
        among="that is recorded" if destroy else "in this project",
    )
    plan = replace(
        plan,
        scope=replace(plan.scope, moved=source.renames.moved),
        diagnostics=in_order((*source.renames.diagnostics, *plan.diagnostics)),
    )
    return allowing(plan, options.allow_unplaced)


def preview(
    session: ProjectSession,
    options: RunOptions,
    *,
    offline: bool = False,
    assume_empty: bool = False,
    max_work: int | None = None,
) -> tuple[Plan, PlanSource]:
    """The plan of the project as it is now, and what it was made from. Nothing is recorded."""
    from declarative.apply.preflight import foresee
    from declarative.planner.make import make_refresh_plan

    source = observe(
        session,
        options.requested,
        offline=offline,
        assume_empty=assume_empty,
        rename=not options.refresh_only,
    )
    desired, recorded = source.desired, source.recorded
    if options.refresh_only:
        plan = make_refresh_plan(desired, recorded, source.inventory, session.clock())
    else:
        spent = None if assume_empty else session.state.open(desired, offline=offline).spent()
        plan = plan_from(source, options, session.clock, spent, max_work=max_work)
    if not offline:
        plan = foresee(plan, source.backends, desired.places, recorded, new_state=options.new_state)
    plan = replace(
        plan,
        origin=session.origin(desired),
        diagnostics=in_order((*session.warnings, *plan.diagnostics)),
        basis=replace(plan.basis, offline=offline),
    )
    return plan, source
