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
        if address not in known and (state is not None or not address.startswith("node/")):
            raise _not_replaceable(address, known, hosts)


def _not_replaceable(address: str, known: list[str], hosts: set[str]) -> InvalidError:
    """The error about an address that `--replace` does not take, such as that of a host."""
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
    from declarative.planner.plan_part import part_of_plan, part_with_room
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
    from declarative.planner.plan_part import possible_targets

    by_kind = {"task": desired.tasks, "fleet": desired.fleets, "volume": desired.volumes}
    known = {*possible_targets(plan, state), *(v.declared_by for v in desired.volumes.values())}
    known |= {f"{kind}/{name}" for kind, names in by_kind.items() for name in names}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            named = [f"`{kind}/{pattern}`" for kind in by_kind if f"{kind}/{pattern}" in known]
            hint = suggest(pattern, sorted(known)) or "write `task/NAME`, `fleet/NAME`, or `volume/NAME`"
            hint = f"write {' or '.join(named)}" if named else hint
            raise failed("unknown-address", f"`{pattern}` names nothing {among}", hint)
