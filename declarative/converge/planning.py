"""How a plan is made: for `apply` and the loop, which carry it out, and for those that only show it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from declarative.model.diagnostic import failed, in_order
from declarative.model.record import struct
from declarative.model.resource import Desired
from declarative.model.spec.project import Moves
from declarative.model.state import Spent, State
from declarative.model.text import suggest
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.plan import Plan
from declarative.spans import span
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
    """Earlier approved plans that may not be carried out in full; the oldest first."""
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
            return span("plan")(make_plan)(
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


# -------------------------------------------------- `--replace`, `--allow-unplaced`, `--target`, `--exclude`


def check_requested(requested: Iterable[str], desired: Desired, state: State | None = None) -> None:
    """`InvalidError` unless `--replace` names declared tasks, recorded and declared volumes, or nodes that a
    declared fleet launched. Without a `state` only the declaration is checked.
    """
    known = [f"task/{name}" for name in desired.tasks]
    hosts: set[str] = set()
    if state is None:
        known += [f"volume/{name}" for name in desired.volumes]
    else:
        nodes = [r for r in state.of("node") if r.node.fleet in desired.fleets]
        known += [str(r.address) for r in nodes if not r.node.host]
        known += [f"volume/{name}" for name in desired.volumes if state.get("volume", name)]
        hosts = {str(r.address) for r in nodes if r.node.host}
    for address in requested:
        kind, _, name = address.partition("/")
        if address in known or (state is None and address.startswith("node/")):
            continue
        if address in hosts:
            hint = f"`fleetform drain {name}`, repair it, then `fleetform undrain {name}`"
            raise failed("usage", f"`{address}` is a host that exists: it cannot be made anew", hint)
        if kind == "fleet":
            hint = "write `node/NAME` for each of its nodes"
            raise failed("usage", f"`{address}` is not replaced as a whole", hint)
        task = f"task/{name.rpartition('-')[0]}" if kind == "rank" else f"task/{address}"
        near = f"write `{task}`: a task goes as a whole" if task in known else suggest(address, known)
        hint = near or "write `task/NAME` or `volume/NAME` as it is declared, or `node/NAME` of a node"
        what = {"node": "launched node", "volume": "recorded volume"}.get(kind, "task")
        raise failed("unknown-address", f"`{address}` is not a {what} of this project", hint)


def allowing(plan: Plan, unplaced: bool | None) -> Plan:
    """The plan, with what `--allow-unplaced` or `--no-allow-unplaced` says; None if neither was given."""
    return plan if unplaced is None else replace(plan, unplaced=replace(plan.unplaced, allowed=unplaced))


def part_of(
    planned: Callable[..., Plan],
    desired: Desired,
    state: State,
    inventory: Inventory,
    asked: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    spent: Spent | None,
    among: str = "in this project",
) -> Plan:
    """The part of a plan that `--target` and `--exclude` ask for, held against the project's limits;
    `InvalidError` where one of them names nothing; `among` says of what. `planned` makes the plan, without
    the tasks `aside`.
    """
    from declarative.planner.limits import with_limit_errors
    from declarative.planner.part import part_of_plan, part_with_room
    from declarative.planner.probable_renames import refused_with

    whole = plan = planned()
    if any(asked):
        _check_patterns([*asked[0], *asked[1]], plan, desired, state, among)
        sizes = {name: fleet.nodes.target for name, fleet in desired.fleets.items() if fleet.nodes}
        observed = observed_state(state, inventory)
        cut = functools.partial(
            part_of_plan, state=observed, targets=asked[0], excludes=asked[1], sizes=sizes
        )
        plan = part_with_room(whole, planned, cut, observed)
    cost = replace(plan.preview.cost, spent=spent)
    plan = with_limit_errors(replace(plan, preview=replace(plan.preview, cost=cost)), desired)
    if not any(asked):
        return plan
    errors = refused_with(plan, with_limit_errors(whole, desired), desired, observed_state(state, inventory))
    return replace(plan, diagnostics=in_order((*plan.diagnostics, *errors)))


def _check_patterns(patterns: Iterable[str], plan: Plan, desired: Desired, state: State, among: str) -> None:
    """`InvalidError` for the first of them that names nothing."""
    from declarative.planner.part import possible_targets

    by_kind = {"task": desired.tasks, "fleet": desired.fleets, "volume": desired.volumes}
    known = {*possible_targets(plan, state), *(v.declared_by for v in desired.volumes.values())}
    known |= {f"{kind}/{name}" for kind, names in by_kind.items() for name in names}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            named = [f"`{kind}/{pattern}`" for kind in by_kind if f"{kind}/{pattern}" in known]
            hint = suggest(pattern, sorted(known)) or "write `task/NAME`, `fleet/NAME`, or `volume/NAME`"
            hint = f"write {' or '.join(named)}" if named else hint
            raise failed("unknown-address", f"`{pattern}` names nothing {among}", hint)
