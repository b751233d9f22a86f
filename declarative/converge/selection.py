"""What a command line selects of a project: `--replace`, `--target`, `--exclude` and `--allow-unplaced`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from declarative.model.diagnostic import InvalidError, failed, in_order, suggest
from declarative.model.resource import Desired
from declarative.model.state import Spent, State
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.plan import Plan


def check_requested(requested: Iterable[str], desired: Desired, state: State | None = None) -> None:
    """`InvalidError` unless `--replace` names declared tasks, recorded and declared volumes, or nodes that a
    declared fleet launched. Without a `state` only the declaration is checked.
    """
    known, hosts = _replaceable(desired, state)
    for address in requested:
        if address not in known and (state is not None or not address.startswith("node/")):
            raise _not_replaceable(address, known, hosts)


def _replaceable(desired: Desired, state: State | None) -> tuple[list[str], set[str]]:
    """The addresses that `--replace` takes, and those of hosts, which cannot be made anew."""
    known = [f"task/{name}" for name in desired.tasks]
    if state is None:
        return known + [f"volume/{name}" for name in desired.volumes], set()
    nodes = [r for r in state.of("node") if r.node.fleet in desired.fleets]
    known += [str(r.address) for r in nodes if not r.node.host]
    known += [f"volume/{name}" for name in desired.volumes if state.get("volume", name)]
    return known, {str(r.address) for r in nodes if r.node.host}


def _not_replaceable(address: str, known: list[str], hosts: set[str]) -> InvalidError:

    kind, _, name = address.partition("/")
    if address in hosts:
        hint = f"`fleetform drain {name}`, repair it, then `fleetform undrain {name}`"
        return failed("usage", f"`{address}` is a host that exists: it cannot be made anew", hint)
    task = f"task/{name.rpartition('-')[0]}" if kind == "rank" else f"task/{address}"
    near = f"write `{task}`: a task goes as a whole" if task in known else suggest(address, known)
    hint = near or "write `task/NAME` or `volume/NAME` as it is declared, or `node/NAME` of a node"
    if kind == "fleet":
        return failed(
            "usage", f"`{address}` is not replaced as a whole", "write `node/NAME` for each of its nodes"
        )
    what = {"node": "launched node", "volume": "recorded volume"}.get(kind, "task")
    return failed("unknown-address", f"`{address}` is not a {what} of this project", hint)


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
    from declarative.planner.probable_renames import refused_with

    whole = plan = planned()
    if any(asked):
        plan = _part(whole, planned, desired, state, inventory, asked, among)
    cost = replace(plan.preview.cost, spent=spent)
    plan = with_limit_errors(replace(plan, preview=replace(plan.preview, cost=cost)), desired)
    if not any(asked):
        return plan
    errors = refused_with(plan, with_limit_errors(whole, desired), desired, observed_state(state, inventory))
    return replace(plan, diagnostics=in_order((*plan.diagnostics, *errors)))


def _part(  # what `part_of` was given
    plan: Plan,
    planned: Callable[..., Plan],
    desired: Desired,
    state: State,
    inventory: Inventory,
    asked: tuple[tuple[str, ...], tuple[str, ...]],
    among: str,
) -> Plan:
    from declarative.planner.plan_part import part_of_plan, part_with_room, possible_targets

    known = {*possible_targets(plan, state), *(v.declared_by for v in desired.volumes.values())}
    for kind, names in (("task", desired.tasks), ("fleet", desired.fleets), ("volume", desired.volumes)):
        known |= {f"{kind}/{name}" for name in names}
    targets, excludes = asked
    for pattern in (*targets, *excludes):
        _check_pattern(pattern, known, among)
    sizes = {name: fleet.nodes.target for name, fleet in desired.fleets.items() if fleet.nodes}
    observed = observed_state(state, inventory)
    cut = functools.partial(part_of_plan, state=observed, targets=targets, excludes=excludes, sizes=sizes)
    return part_with_room(plan, planned, cut, observed)


def _check_pattern(pattern: str, known: set[str], among: str) -> None:

    from declarative.model.diagnostic import suggest

    if not any(fnmatchcase(name, pattern) for name in known):
        named = [
            f"`{kind}/{pattern}`" for kind in ("task", "fleet", "volume") if f"{kind}/{pattern}" in known
        ]
        hint = suggest(pattern, sorted(known)) or "write `task/NAME`, `fleet/NAME`, or `volume/NAME`"
        hint = f"write {' or '.join(named)}" if named else hint
        raise failed("unknown-address", f"`{pattern}` names nothing {among}", hint)
