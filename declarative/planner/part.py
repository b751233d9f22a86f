"""The part of a plan that `--target` and `--exclude` select.

`--target` names something and takes all that it needs; `--exclude` leaves out what it names and what depends
on that. A task goes as a whole, and so does a replacement. What is left out stays as it is recorded: nothing
takes blocks, volumes or a place in its fleet that something left out still has. A task that is left out and
not recorded has nothing: it takes no place from one that is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from declarative.model.inputs import NodeInputs
from declarative.model.state import Address, Record, State, natural, rank_name
from declarative.planner.fleets import node_of
from declarative.planner.plan import (
    Action,
    NodePreview,
    Op,
    Part,
    Plan,
    Reservation,
    ReservationStatus,
    block_holders,
    group_of,
    held_by,
    names_of,
    total_price,
)

Groups = Mapping[str, Collection[str]]
KEPT = ReservationStatus.KEPT


def part_of_plan(
    plan: Plan, state: State, targets: Iterable[str], excludes: Iterable[str], sizes: Mapping[str, int]
) -> Plan:
    """The part of the plan that is asked for. `state` is the records with what was observed; `sizes` are the
    nodes that fleets have for themselves.
    """
    targets, excludes = tuple(targets), tuple(excludes)
    groups = _groups(plan.actions)
    needs = _needs(plan.actions, groups)
    aimed = _meant(groups, targets) if targets else {*groups}
    barred = _meant(groups, excludes)
    held_up = closure(barred, _reverse(needs))
    needed = closure(aimed, needs) if targets else aimed
    # An action that needs something left out is left out, too, even if it is a target.
    chosen = needed - held_up
    refused = {name: (name,) for name in (f"task/{r.task}" for r in plan.unplaced.refusals)}
    asked_about = (_meant(refused, targets) if targets else {*refused}) - _meant(refused, excludes)
    tasks = frozenset(name.removeprefix("task/") for name in asked_about)
    # A node that is a target by its own name is launched all the same, and not for its fleet's.
    named = {group for group in groups if any(fnmatchcase(group, pattern) for pattern in targets)}
    chosen -= _unused(_only(plan, state, chosen, tasks), _reverse(needs), sizes) - named
    part = Part(
        targets=targets,
        excludes=excludes,
        needed=_sorted(chosen - aimed),
        left_out=_sorted(g for g in groups if g not in chosen),
        held_up=_sorted((held_up - barred) & needed),
    )
    return replace(_only(plan, state, chosen, tasks), scope=replace(plan.scope, part=part))


def part_with_room(
    plan: Plan, plan_again: Callable[..., Plan], cut: Callable[[Plan], Plan], state: State
) -> Plan:
    """The part that `cut` makes of a plan. Tasks that are left out take no place from those of the part.

    If a task of the part is refused, this plans `plan_again` without the tasks that are left out and of which
    nothing is recorded. Otherwise places are those of the whole plan.
    """
    part = cut(plan)
    first = part.scope.part
    if not part.unplaced.refusals or first is None:
        return part
    refused = {r.task for r in plan.unplaced.refusals} - {r.task for r in part.unplaced.refusals}
    left_out = {g.removeprefix("task/") for g in first.left_out if g.startswith("task/")}
    without_tasks = (refused | left_out) - {record.task for record in state.records.values()}
    if not without_tasks:
        return part
    roomier = cut(plan_again(without_tasks=frozenset(without_tasks)))
    assert roomier.scope.part is not None
    groups = {f"task/{name}" for name in left_out & without_tasks}
    both = replace(
        roomier.scope.part,
        left_out=_sorted(groups.union(roomier.scope.part.left_out)),
        held_up=_sorted(groups.intersection(first.held_up).union(roomier.scope.part.held_up)),
    )
    return replace(roomier, scope=replace(roomier.scope, part=both))


def without_groups(plan: Plan, state: State, barred: Iterable[str]) -> Plan:
    """All but these groups and what needs them."""
    groups = _groups(plan.actions)
    held_up = closure(set(barred) & groups.keys(), _reverse(_needs(plan.actions, groups)))
    every = frozenset(r.task for r in plan.unplaced.refusals)
    return _only(plan, state, groups.keys() - held_up, every) if held_up else plan


def _unused(part: Plan, users: Mapping[str, set[str]], sizes: Mapping[str, int]) -> set[str]:
    """New nodes that were launched for tasks which are left out, and which their fleet would not launch for
    itself; the dearest first.
    """
    doing = {group_of(action) for action in part.actions}
    replaced = {group_of(action) for action in part.of(Op.DELETE, "node")}
    created = {group_of(action) for action in part.of(Op.CREATE, "node")} - replaced
    spare: dict[str, list[NodePreview]] = defaultdict(list)
    staying: dict[str, int] = defaultdict(int)
    for node in part.preview.nodes:
        staying[node.fleet] += node.stays
        group = f"node/{node.name}"
        asking = users.get(group, set())
        if group in created and not asking & doing and any(user.startswith("task/") for user in asking):
            spare[node.fleet].append(node)
    out: set[str] = set()
    for fleet, nodes in spare.items():
        nodes.sort(key=lambda n: (n.price is None, n.price or 0.0, natural(n.name)), reverse=True)
        above = max(0, staying[fleet] - sizes.get(fleet, staying[fleet]))
        out |= {f"node/{node.name}" for node in nodes[:above]}
    return out


def needs_of(plan: Plan) -> dict[str, set[str]]:
    """Group of actions → all groups that it needs, directly or not."""
    needs = _needs(plan.actions, _groups(plan.actions))
    return {group: closure(direct, needs) for group, direct in needs.items()}


def _only(plan: Plan, state: State, chosen: Container[str], tasks: frozenset[str]) -> Plan:
    """The plan with the actions of the chosen groups, and what it says of the tasks without a place."""
    part = plan.only(tuple(a for a in plan.actions if group_of(a) in chosen))
    reservations = _reservations(plan, state, chosen)
    nodes = _nodes(plan, state, chosen, reservations)
    after = total_price(n.cost for n in nodes if n.stays)
    unplaced = plan.unplaced
    return replace(
        part,
        reservations=reservations,
        unplaced=replace(
            unplaced,
            refusals=tuple(r for r in unplaced.refusals if r.task in tasks),
            remedies=tuple(r for r in unplaced.remedies if tasks.issuperset(r.tasks)),
            waiting=tuple(t for t in unplaced.waiting if t in tasks),
            once=tuple(t for t in unplaced.once if t in tasks),
            starts=tuple(a for a in unplaced.starts if a.task in tasks),
        ),
        preview=replace(
            part.preview,
            nodes=nodes,
            suggestions=(),
            cost=replace(plan.preview.cost, after=after, bound=None),
        ),
        diagnostics=tuple(d for d in plan.diagnostics if d.code != "protected" or d.address in chosen),
    )


def possible_targets(plan: Plan, state: State | None = None) -> frozenset[str]:
    """The names that `--target` may give, of a plan and of records."""
    items = (*plan.actions, *(state.records.values() if state else ()))
    tasks = (f"task/{r.task}" for r in plan.unplaced.refusals)
    return frozenset(tasks).union(*map(names_of, items))


def is_selected(item: Action | Record, targets: Sequence[str], excludes: Sequence[str]) -> bool:
    """Whether `--target` and `--exclude` ask for an action or a record by one of its names."""
    names = {str(item.address): names_of(item)}
    return bool(not targets or _meant(names, targets)) and not _meant(names, excludes)


def _groups(actions: Iterable[Action]) -> Groups:
    """Group → all names that mean it."""
    out: dict[str, set[str]] = defaultdict(set)
    for action in actions:
        out[group_of(action)] |= names_of(action)
    return {group: frozenset(names) for group, names in out.items()}


def _meant(groups: Groups, patterns: Iterable[str]) -> set[str]:
    """The groups that one of the patterns means."""
    return {
        group
        for pattern in patterns
        for group, names in groups.items()
        if any(fnmatchcase(name, pattern) for name in names)
    }


def _needs(actions: Collection[Action], groups: Groups) -> dict[str, set[str]]:
    """Group → those that it needs. New nodes need the deletes in their fleet, which make room below its
    maximum.
    """
    out: dict[str, set[str]] = {group: set() for group in groups}
    group_by_id = {action.id: group_of(action) for action in actions}
    deleted: dict[str, set[str]] = defaultdict(set)
    created: dict[str, set[str]] = defaultdict(set)
    for action in actions:
        group, inputs = group_by_id[action.id], action.typed
        out[group].update({group_by_id[need] for need in action.needs} - {group})
        if isinstance(inputs, NodeInputs) and action.op is not Op.UPDATE:
            (deleted if action.op is Op.DELETE else created)[inputs.fleet].add(group)
    for fleet, nodes in created.items():
        for node in nodes:
            out[node] |= deleted[fleet] - {node}
    return out


def _reverse(needs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {group: set() for group in needs}
    for group, needed in needs.items():
        for need in needed:
            out[need].add(group)
    return out


def closure(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    """The nodes of `start`, and all that can be reached from them along the edges."""
    reached, more = set(start), list(start)
    while more:
        new = edges[more.pop()] - reached
        reached |= new
        more += new
    return reached


def _sorted(groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(groups, key=lambda g: (g.partition("/")[0], natural(g))))


def _reservations(plan: Plan, state: State, chosen: Container[str]) -> tuple[Reservation, ...]:
    """The reservations after the chosen actions. What is left out keeps its place."""
    out: list[Reservation] = []
    touched = {group_of(a) for a in plan.actions}
    for reservation in plan.reservations:
        task = f"task/{reservation.task}"
        if task in chosen or task not in touched:
            out.append(reservation)
            continue
        record = state.get("reservation", rank_name(reservation.task, reservation.rank))
        node = record and state.get("node", record.reservation.node)
        if record and node:
            blocks = record.reservation.blocks
            out.append(
                held_by(
                    node_of(node),
                    reservation.task,
                    reservation.rank,
                    blocks,
                    volumes=reservation.volumes,
                    status=KEPT,
                )
            )
    return tuple(out)


def _nodes(
    plan: Plan, state: State, chosen: Container[str], reservations: Iterable[Reservation]
) -> tuple[NodePreview, ...]:
    """The block map after the chosen actions."""
    holders = block_holders(state, reservations)
    touched = {a.address for a in plan.actions if a.address.kind == "node"}
    left_out = {address for address in touched if str(address) not in chosen}
    out: list[NodePreview] = []
    for planned in plan.preview.nodes:
        preview, address = planned, Address("node", planned.name)
        if address in left_out:
            record = state.records.get(address)
            if record is None:
                continue
            node = node_of(record)
            preview = replace(planned, total=node.total, status="kept", price=node.price, spot=node.spot)
        out.append(replace(preview, holders=holders.get(preview.name, {}) if preview.stays else {}))
    return tuple(out)
