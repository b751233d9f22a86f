"""From fates and placements to actions: the order of DESIGN §5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative.placement import Choice, Outcome
from declarative.plan.fleets import Fleets
from declarative.plan.steps import Steps
from declarative.plan.tasks import Fate, TaskFate, changed_fields, records_of
from declarative.plan.types import Action, Op, Reason
from declarative.plan.volumes import VolumeFate
from declarative.resource import node_inputs
from declarative.spec import StartupOrder
from declarative.state import Address, Record, State, rank_name


def build(
    recorded: State,
    state: State,
    fleets: Fleets,
    volumes: Mapping[str, VolumeFate],
    fates: Mapping[str, TaskFate],
    outcome: Outcome,
) -> tuple[Action, ...]:
    """All actions, joined by their needs and in order."""
    steps = Steps(state)
    choices: dict[str, list[Choice]] = {}
    for choice in outcome.choices:
        choices.setdefault(choice.task, []).append(choice)
    _volume_actions(steps, volumes, recorded, state)
    _node_actions(steps, fleets, outcome, recorded)
    backends = {n.name: n.backend for n in outcome.launches}
    backends |= {f.node.name: f.node.backend for f in fleets.fates.values()}
    for fate in fates.values():
        _task_actions(steps, state, fate, choices.get(fate.name, []), backends)
    totals = {n.name: n.total for n in outcome.launches}
    totals |= {f.node.name: int(f.after["blocks"]) for f in fleets.fates.values() if not f.goes}
    for found in choices.values():
        for choice in found:
            _reserve(steps, state, choice, totals[choice.node], backends[choice.node], fates[choice.task])
    _released(steps, state, fates)
    return steps.join()


def _delete(steps: Steps, record: Record, reason: Reason, because: tuple[str, ...] = ()) -> None:
    steps.add(
        Action(
            op=Op.DELETE,
            address=record.address,
            reason=reason,
            because=because,
            before=record.inputs,
            backend=record.backend,
        )
    )


def _volume_actions(steps: Steps, volumes: Mapping[str, VolumeFate], recorded: State, state: State) -> None:
    for fate in volumes.values():
        address = Address("volume", fate.name)
        if fate.record and (fate.after is None or fate.replaced) and not fate.kept_back:
            _delete(steps, fate.record, fate.reason, fate.because)
        if fate.after is None:
            continue
        backend = str(fate.after["backend"])
        if fate.record is None or fate.replaced:
            gone = fate.record is None and address in recorded.records
            reason = Reason.GONE if gone else fate.reason
            steps.add(
                Action(
                    op=Op.CREATE,
                    address=address,
                    reason=reason,
                    because=fate.because,
                    after=fate.after,
                    backend=backend,
                )
            )
        elif fate.because:
            steps.add(
                Action(
                    op=Op.UPDATE,
                    address=address,
                    reason=Reason.CHANGED,
                    because=fate.because,
                    before=fate.record.inputs,
                    after=fate.after,
                    backend=backend,
                )
            )


def _node_actions(steps: Steps, fleets: Fleets, outcome: Outcome, recorded: State) -> None:
    again = {f.node.name: f for f in fleets.fates.values() if f.again}
    for fate in fleets.fates.values():
        if fate.goes:
            _delete(steps, fate.record, fate.goes, fate.because)
        elif fate.changed:
            steps.add(
                Action(
                    op=Op.UPDATE,
                    address=fate.record.address,
                    reason=Reason.CHANGED,
                    because=fate.changed,
                    before=fate.record.inputs,
                    after=fate.after,
                    backend=fate.record.backend,
                )
            )
    for node in outcome.launches:
        address = Address("node", node.name)
        old = again.get(node.name)
        gone = old is None and address in recorded.records and address not in steps.state.records
        reason = (old.goes or Reason.CHANGED) if old else Reason.GONE if gone else Reason.NEW
        assert node.offer is not None
        steps.add(
            Action(
                op=Op.CREATE,
                address=address,
                reason=reason,
                because=old.because if old else (),
                after=node_inputs(fleets.desired.fleets[node.fleet], node.offer),
                backend=node.backend,
            )
        )


def _task_actions(
    steps: Steps, state: State, fate: TaskFate, choices: list[Choice], backends: Mapping[str, str]
) -> None:
    """Ranks: start, stop and start again, or change in place."""
    have = records_of(state, fate.name)
    if fate.fate is Fate.RUN:
        if not choices:
            return
        for record in have.values():
            _delete(steps, record, fate.reason, fate.because)
        _starts(steps, fate, {c.rank: (c.volumes, c.node) for c in choices}, set(have), backends)
        return
    for rank, record in have.items():
        after = fate.want.rank_inputs(rank) if rank < fate.want.spec.nodes else dict(record.inputs)
        restart, in_place = changed_fields(record.inputs, after)
        if in_place and not restart:
            steps.add(
                Action(
                    op=Op.UPDATE,
                    address=record.address,
                    reason=Reason.CHANGED,
                    because=in_place,
                    before=record.inputs,
                    after=after,
                    backend=record.backend,
                    holds=tuple(sorted(record.needs)),
                )
            )
    if fate.fate is Fate.COMPLETED:
        places: dict[int, tuple[Mapping[str, str], str]] = {}
        for rank in range(fate.want.spec.nodes):
            reservation = state.get("reservation", rank_name(fate.name, rank))
            if rank not in have and reservation:
                places[rank] = (_attached(state, rank_name(fate.name, rank)), str(reservation.inputs["node"]))
        _starts(steps, fate, places, set(), backends)


def _attached(state: State, rank: str) -> dict[str, str]:
    found = (r for r in state.of("attachment") if r.inputs["rank"] == rank)
    return {str(r.inputs["path"]): str(r.inputs["volume"]) for r in found}


def _starts(
    steps: Steps,
    fate: TaskFate,
    places: Mapping[int, tuple[Mapping[str, str], str]],
    replaced: set[int],
    backends: Mapping[str, str],
) -> None:
    """Start actions of a gang. The first rank to start waits for every place of the gang, the others wait
    for it: no rank runs before all have their places, with edges that grow with the ranks, not their square."""
    ranks = sorted(places)
    workers_first = fate.want.spec.startup_order is StartupOrder.WORKERS_FIRST and len(ranks) > 1
    first = next((r for r in ranks if r != 0 or not workers_first), ranks[0])
    held: dict[int, tuple[Address, ...]] = {}
    for rank in ranks:
        name = rank_name(fate.name, rank)
        volumes, node = places[rank]
        attachments = [Address("attachment", f"{name}.{v}") for v in sorted(volumes.values())]
        held[rank] = (Address("reservation", name), *attachments)
        steps.add(
            Action(
                op=Op.CREATE,
                address=Address("rank", name),
                reason=fate.reason,
                because=fate.because,
                after=fate.want.rank_inputs(rank),
                holds=held[rank],
                backend=backends.get(node),
            )
        )
    gate = f"create:rank/{rank_name(fate.name, first)}"
    steps.after(gate, (f"create:{a}" for addresses in held.values() for a in addresses))
    # A rank of the old gang may hold what a rank of the new one gets: the whole old gang ends first.
    steps.after(gate, (f"delete:rank/{rank_name(fate.name, r)}" for r in replaced))
    for rank in ranks:
        key = f"create:rank/{rank_name(fate.name, rank)}"
        if rank != first:
            steps.after(key, (gate,))
        if rank == 0 and workers_first:
            steps.after(key, (f"create:rank/{rank_name(fate.name, r)}" for r in ranks if r != 0))


def _reserve(steps: Steps, state: State, choice: Choice, total: int, backend: str, fate: TaskFate) -> None:
    """The blocks and the volumes of one rank: kept as they are where nothing about them changed."""
    name = rank_name(choice.task, choice.rank)
    node = Address("node", choice.node)
    reservation = Address("reservation", name)
    after = {
        "task": choice.task,
        "rank": choice.rank,
        "node": choice.node,
        "blocks": list(choice.blocks),
        "total_blocks": total,
    }
    renewed = _put(steps, state, reservation, after, (node,), None, fate)
    variables = {m.path: m.variable for m in fate.want.mounts[choice.rank]} if fate.want.mounts else {}
    for path, volume in choice.volumes.items():
        address = Address("attachment", f"{name}.{volume}")
        holds = (Address("volume", volume), node, reservation)
        inputs = {"task": choice.task, "rank": name, "node": choice.node, "volume": volume, "path": path}
        inputs["variable"] = variables[path]
        _put(steps, state, address, inputs, holds, backend, fate, force=renewed)
        steps.after(f"create:{node}", (f"create:volume/{volume}",))
        steps.after(f"create:{node}", (f"update:volume/{volume}",))


def _put(
    steps: Steps,
    state: State,
    address: Address,
    after: dict[str, Any],
    holds: tuple[Address, ...],
    backend: str | None,
    fate: TaskFate,
    *,
    force: bool = False,
) -> bool:
    """Create it, or replace it if it differs or what it needs is made anew; True unless it is kept."""
    record = state.records.get(address)
    renewed = [h for h in holds if f"create:{h}" in steps.actions]
    if record and not renewed and not force and record.inputs == after:
        return False
    because = tuple(str(h) for h in renewed) if record else ()
    reason = (Reason.CASCADE if renewed or force else Reason.CHANGED) if record else fate.reason
    if record:
        _delete(steps, record, reason, because)
    steps.add(
        Action(
            op=Op.CREATE,
            address=address,
            reason=reason,
            because=because,
            after=after,
            holds=holds,
            backend=backend,
        )
    )
    return True


def _released(steps: Steps, state: State, fates: Mapping[str, TaskFate]) -> None:
    """What belongs to tasks that are not declared any more, and what a replaced task does not hold again."""
    for kind in ("rank", "attachment", "reservation"):
        for record in state.of(kind):
            fate = fates.get(str(record.inputs["task"]))
            if f"delete:{record.address}" in steps.actions:
                continue
            if fate is None:
                _delete(steps, record, Reason.REMOVED)
            elif fate.fate is Fate.RUN and kind != "rank" and f"delete:rank/{_rank(record)}" in steps.actions:
                if not _kept(steps, record):
                    _delete(steps, record, fate.reason, fate.because)


def _rank(record: Record) -> str:
    return record.address.name if record.address.kind == "reservation" else str(record.inputs["rank"])


def _kept(steps: Steps, record: Record) -> bool:
    """Whether the new rank holds the very same thing."""
    start = steps.actions.get(f"create:rank/{_rank(record)}")
    return start is not None and record.address in start.holds
