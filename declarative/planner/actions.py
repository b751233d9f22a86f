"""From decisions and placements to actions: the order of docs/architecture.md, "The plan"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.model.inputs import AttachmentInputs, ReservationInputs, differing
from declarative.model.resource import node_inputs
from declarative.model.spec import StartupOrder
from declarative.model.state import Address, Record, State, rank_name
from declarative.placement.types import Choice, Node, PlacementOutcome
from declarative.planner.fleets import Fleets
from declarative.planner.steps import Steps
from declarative.planner.tasks import Course, TaskDecision, changed_fields
from declarative.planner.types import Action, Op, Reason
from declarative.planner.volumes import VolumeDecision

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions


def build(recorded: State, state: State, found: Decisions, *, destroy: bool) -> tuple[Action, ...]:
    """All actions, joined by their needs and in order."""
    steps = Steps(state)
    fleets, outcome = found.fleets, found.outcome
    choices: dict[str, list[Choice]] = {}
    for choice in outcome.choices:
        choices.setdefault(choice.task, []).append(choice)
    _volume_actions(steps, found.volumes, recorded)
    _node_actions(steps, fleets, outcome, recorded)
    backends = {n.name: n.backend for n in outcome.launches}
    backends |= {
        f.node.name: f.node.backend for f in fleets.decisions.values() if f.node.name not in backends
    }
    for decision in found.tasks.values():
        _task_actions(steps, state, decision, choices.get(decision.name, []), backends)
    totals = {n.name: n.total for n in outcome.launches}
    totals |= {f.node.name: f.blocks for f in fleets.decisions.values() if not f.goes}
    for choice in outcome.choices:
        total, backend = totals[choice.node], backends[choice.node]
        _reserve(steps, state, choice, found.tasks[choice.task], total=total, backend=backend)
    _released(steps, state, found, Reason.DESTROY if destroy else Reason.REMOVED)
    _fence(steps, recorded)
    return steps.join()


def _fence(steps: Steps, recorded: State) -> None:
    """What a rank held on a node that was given up is free when the cloud has ended that node, not before:
    until then the rank may run. Nor is anything of its task begun that may be in vain.
    """
    for name, silence in steps.state.silent.items():
        ends = f"delete:node/{name}"
        if not silence.given_up or ends not in steps.actions:
            continue
        held = [r for r in recorded.of("reservation") if Address("node", name) in r.needs]
        tasks = {r.reservation.task for r in held}
        for key, action in steps.actions.items():
            freed = action.op is Op.DELETE and action.address.kind != "rank"  # the node waits for those
            if not freed and action.task in tasks:
                steps.after(key, (ends,))


def _delete(
    steps: Steps, record: Record, reason: Reason, because: tuple[str, ...] = (), *, forget: bool = False
) -> None:
    steps.add(
        Action(
            op=Op.DELETE,
            address=record.address,
            reason=reason,
            because=because,
            before=record.typed,
            backend=record.backend,
            forget=forget,
        )
    )


def _volume_actions(steps: Steps, volumes: Mapping[str, VolumeDecision], recorded: State) -> None:
    for decision in volumes.values():
        if decision.waits:
            continue
        address = Address("volume", decision.name)
        goes = decision.after is None or decision.unused
        if decision.record and (goes or decision.replaced) and not decision.kept_back:
            _delete(steps, decision.record, decision.reason, decision.because, forget=decision.forgotten)
        if decision.after is None or decision.unused:
            continue
        backend = decision.after.backend
        if decision.record is None or decision.replaced:
            gone = decision.record is None and address in recorded.records
            reason = Reason.GONE if gone else decision.reason
            steps.add(
                Action(
                    op=Op.CREATE,
                    address=address,
                    reason=reason,
                    because=decision.because,
                    after=decision.after,
                    backend=backend,
                )
            )
        elif decision.because:
            steps.add(
                Action(
                    op=Op.UPDATE,
                    address=address,
                    reason=decision.reason,
                    because=decision.because,
                    before=decision.record.typed,
                    after=decision.after,
                    backend=backend,
                )
            )


def _node_actions(steps: Steps, fleets: Fleets, outcome: PlacementOutcome, recorded: State) -> None:
    again = {f.node.name: f for f in fleets.decisions.values() if f.again}
    for decision in fleets.decisions.values():
        if decision.fresh:
            steps.add(
                Action(
                    op=Op.CREATE,
                    address=decision.record.address,
                    reason=Reason.NEW,
                    after=decision.after,
                    backend=decision.record.backend,
                )
            )
        elif decision.goes:
            _delete(steps, decision.record, decision.goes, decision.because)
        elif decision.changed or decision.mended:
            steps.add(
                Action(
                    op=Op.UPDATE,
                    address=decision.record.address,
                    reason=Reason.CHANGED if decision.changed else Reason.DRIFT,
                    because=decision.changed or decision.mended,
                    before=decision.record.typed,
                    after=decision.after,
                    backend=decision.record.backend,
                )
            )
    for node in outcome.launches:
        address = Address("node", node.name)
        old = again.get(node.name)
        gone = old is None and address in recorded.records and address not in steps.state.records
        assert node.offer is not None
        after = node_inputs(fleets.desired.fleets[node.fleet], node.offer)
        new = Reason.NEW if after.instance_id is None else Reason.ADOPTED
        reason = (old.goes or Reason.CHANGED) if old else Reason.GONE if gone else new
        steps.add(
            Action(
                op=Op.CREATE,
                address=address,
                reason=reason,
                because=old.because if old else (),
                after=after,
                backend=node.backend,
            )
        )
    _make_room(steps, fleets, outcome)


def _make_room(steps: Steps, fleets: Fleets, outcome: PlacementOutcome) -> None:
    """A new node waits for one that goes: no fleet's maximum and no offer's limit is ever exceeded."""
    fresh = {n.name for n in outcome.launches}
    going = [f.node for f in fleets.decisions.values() if f.goes]
    gone: dict[object, list[Node]] = defaultdict(list)
    for node in going:
        gone[_kind_of(node)].append(node)
        if node.name not in fresh:
            gone[node.fleet].append(node)
    old_names = {n.name for n in going}
    for node in outcome.launches:
        limited = node.offer is not None and node.offer.limit is not None
        keys: list[object] = [_kind_of(node)] if limited else []
        if node.name not in old_names:
            keys.append(node.fleet)
        for key in keys:
            if gone[key]:
                steps.after(f"create:node/{node.name}", (f"delete:node/{gone[key].pop(0).name}",))


def _kind_of(node: Node) -> tuple[object, ...]:
    """What a backend's quantity limit counts."""
    return (node.backend, node.region, node.instance_type, node.spot)


def _task_actions(
    steps: Steps, state: State, decision: TaskDecision, choices: list[Choice], backends: Mapping[str, str]
) -> None:
    """Ranks: start, stop and start again, or change in place."""
    have = decision.have
    if decision.course is Course.RUN:
        _stops(steps, state, decision, placed=bool(choices))
        if choices:
            _starts(steps, decision, {c.rank: (c.volumes, c.node) for c in choices}, set(have), backends)
        return
    for rank, record in have.items():
        _in_place(steps, decision, rank, record)
    if decision.course is Course.COMPLETED:
        places: dict[int, tuple[Mapping[str, str], str]] = {}
        for rank in range(decision.want.spec.nodes):
            reservation = state.get("reservation", rank_name(decision.name, rank))
            if rank not in have and reservation:
                places[rank] = (
                    _attached(state, rank_name(decision.name, rank)),
                    reservation.reservation.node,
                )
        _starts(steps, decision, places, set(), backends)


def _stops(steps: Steps, state: State, decision: TaskDecision, *, placed: bool) -> None:
    """The old gang ends where a new one starts; without a place for it, what is left of one stops too."""
    for record in decision.have.values():
        status = state.ranks.get(record.address.name)
        if placed:
            _delete(steps, record, decision.reason, decision.because)
        elif decision.incomplete and not (status and status.state.ended):
            _delete(steps, record, Reason.INCOMPLETE)


def _in_place(steps: Steps, decision: TaskDecision, rank: int, record: Record) -> None:
    """Fields that change while the rank runs on. One that has to restart and cannot is left as it is."""
    before = record.rank
    after = decision.want.rank_inputs(rank) if rank < decision.want.spec.nodes else before
    after = replace(after, retries=before.retries)
    restart, in_place = changed_fields(before, after)
    if not in_place or restart:
        return
    steps.add(
        Action(
            op=Op.UPDATE,
            address=record.address,
            reason=Reason.CHANGED,
            because=in_place,
            before=before,
            after=after,
            backend=record.backend,
            holds=tuple(sorted(record.needs)),
        )
    )


def _attached(state: State, rank: str) -> dict[str, str]:
    found = (r.attachment for r in state.of("attachment"))
    return {each.path: each.volume for each in found if each.rank == rank}


def _starts(
    steps: Steps,
    decision: TaskDecision,
    places: Mapping[int, tuple[Mapping[str, str], str]],
    replaced: set[int],
    backends: Mapping[str, str],
) -> None:
    """Start actions of a gang. The first rank to start waits for every place of the gang, the others for it.

    So no rank runs before all have their places, with edges that grow with the ranks, not their square.
    """
    ranks = sorted(places)
    workers_first = decision.want.spec.startup_order is StartupOrder.WORKERS_FIRST and len(ranks) > 1
    first = next((r for r in ranks if r != 0 or not workers_first), ranks[0])
    held: dict[int, tuple[Address, ...]] = {}
    for rank in ranks:
        name = rank_name(decision.name, rank)
        volumes, node = places[rank]
        attachments = [Address("attachment", f"{name}.{v}") for v in sorted(volumes.values())]
        held[rank] = (Address("reservation", name), *attachments)
        steps.add(
            Action(
                op=Op.CREATE,
                address=Address("rank", name),
                reason=decision.reason,
                because=decision.because,
                after=decision.rank_inputs(rank),
                holds=held[rank],
                backend=backends.get(node),
            )
        )
    gate = f"create:rank/{rank_name(decision.name, first)}"
    steps.after(gate, (f"create:{a}" for addresses in held.values() for a in addresses))
    # Its ranks are told addresses of nodes, and those may change with how a host is reached.
    steps.after(gate, (f"update:node/{node}" for _, node in places.values()))
    # A rank of the old gang may hold what a rank of the new one gets: the whole old gang ends first.
    steps.after(gate, (f"delete:rank/{rank_name(decision.name, r)}" for r in replaced))
    for rank in ranks:
        key = f"create:rank/{rank_name(decision.name, rank)}"
        if rank != first:
            steps.after(key, (gate,))
        if rank == 0 and workers_first:
            steps.after(key, (f"create:rank/{rank_name(decision.name, r)}" for r in ranks if r != 0))


def _reserve(
    steps: Steps, state: State, choice: Choice, decision: TaskDecision, *, total: int, backend: str
) -> None:
    """The blocks and the volumes of one rank: kept as they are where nothing about them changed."""
    name = rank_name(choice.task, choice.rank)
    node = Address("node", choice.node)
    reservation = Action(
        op=Op.CREATE,
        address=Address("reservation", name),
        reason=decision.reason,
        after=ReservationInputs(
            task=choice.task,
            rank=choice.rank,
            node=choice.node,
            blocks=tuple(choice.blocks),
            total_blocks=total,
        ),
        holds=(node,),
    )
    _put(steps, state, reservation)
    variables = (
        {m.path: m.variable for m in decision.want.mounts[choice.rank]} if decision.want.mounts else {}
    )
    for path, volume in choice.volumes.items():
        inputs = AttachmentInputs(
            task=choice.task,
            rank=name,
            node=choice.node,
            volume=volume,
            path=path,
            variable=variables[path],
        )
        attachment = Action(
            op=Op.CREATE,
            address=Address("attachment", f"{name}.{volume}"),
            reason=decision.reason,
            after=inputs,
            holds=(Address("volume", volume), node, reservation.address),
            backend=backend,
        )
        _put(steps, state, attachment)
        steps.after(f"create:{node}", (f"create:volume/{volume}", f"update:volume/{volume}"))


def _put(steps: Steps, state: State, wanted: Action) -> None:
    """Create it, or replace it if it differs or what it holds on to is made anew; else it is kept."""
    record = state.records.get(wanted.address)
    if record is None:
        steps.add(wanted)
        return
    renewed = tuple(str(h) for h in wanted.holds if h in record.needs and f"create:{h}" in steps.actions)
    changed = differing(record.typed, wanted.typed)
    # Before it is tried again a gang is stopped, by whoever looks first: what it held is given back then.
    again = wanted.reason in (Reason.RETRY, Reason.SCHEDULE)
    if not renewed and not changed and not again:
        return
    reason, because = (Reason.CASCADE, renewed) if renewed else (Reason.CHANGED, changed)
    if again and not renewed:
        reason, because = wanted.reason, ()
    _delete(steps, record, reason, because)
    steps.add(replace(wanted, reason=reason, because=because))


def _released(steps: Steps, state: State, found: Decisions, removed: Reason) -> None:
    """What tasks that are not declared any more hold, and what one that runs anew does not hold again."""
    for kind in ("rank", "attachment", "reservation"):
        for record in state.of(kind):
            decision = found.tasks.get(str(record.task))
            if f"delete:{record.address}" in steps.actions:
                continue
            if decision is None:
                asleep = f"task/{record.task}" in found.fleets.desired.asleep
                _delete(steps, record, Reason.SCHEDULE if asleep else removed)
            elif decision.course is Course.RUN and kind != "rank" and not _kept(steps, record):
                reason = Reason.INCOMPLETE if decision.reason is Reason.NEW else decision.reason
                _delete(steps, record, reason, decision.because)


def _rank(record: Record) -> str:
    return record.address.name if record.address.kind == "reservation" else record.attachment.rank


def _kept(steps: Steps, record: Record) -> bool:
    """Whether the new rank holds the very same thing."""
    start = steps.actions.get(f"create:rank/{_rank(record)}")
    return start is not None and record.address in start.holds
