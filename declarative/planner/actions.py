"""From decisions and placements to actions: the order of docs/architecture.md, "The plan"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.model.inputs import AttachmentInputs, RankInputs, ReservationInputs, differing
from declarative.model.resource import node_inputs
from declarative.model.spec import Duration, Retry, StartupOrder
from declarative.model.state import ALONE, Address, Record, State, rank_name
from declarative.model.status import RankState, RankStatus
from declarative.placement.problem import Choice, Node, PlacementOutcome
from declarative.planner.fleets import Fleets
from declarative.planner.health import alone_seconds
from declarative.planner.inventory import rank_of
from declarative.planner.steps import Steps
from declarative.planner.tasks import Course, TaskDecision, again, changed_fields
from declarative.planner.types import Action, Op, Reason
from declarative.planner.volumes import VolumeDecision

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions


def build(recorded: State, state: State, found: Decisions, *, destroy: bool) -> tuple[Action, ...]:
    """All actions, joined by their needs and in order."""
    steps = Steps(state)
    choices: dict[str, list[Choice]] = {}
    for choice in found.outcome.choices:
        choices.setdefault(choice.task, []).append(choice)
    _volume_actions(steps, found.volumes, recorded)
    _node_actions(steps, found.fleets)
    _launch_actions(steps, found.fleets, found.outcome, recorded)
    _make_room(steps, found.fleets, found.outcome)
    nodes = found.nodes()
    fleets = found.fleets.desired.fleets
    limits = {name: fleet.unreachable_duration.seconds for name, fleet in fleets.items()}
    for decision in found.tasks.values():
        _task_actions(steps, decision, choices.get(decision.name, []), nodes, limits, found.fleets.now)
    for choice in found.outcome.choices:
        _reserve(steps, choice, found.tasks[choice.task], nodes[choice.node])
    _released(steps, found, Reason.DESTROY if destroy else Reason.REMOVED)
    _fence(steps, recorded)
    return steps.join()


def _fence(steps: Steps, recorded: State) -> None:
    """A node that was given up may still run its ranks until the cloud has ended it. So other steps of these
    tasks wait for the node's deletion.
    """
    for name, silence in steps.state.silent.items():
        ends = f"delete:node/{name}"
        if not silence.given_up or ends not in steps.actions:
            continue
        node = Address("node", name)
        tasks = {r.reservation.task for r in recorded.of("reservation") if node in r.needs}
        for key, action in steps.actions.items():
            freed = action.op is Op.DELETE and action.address.kind != "rank"  # the node waits for those
            if not freed and action.task in tasks:
                steps.after(key, (ends,))


def _is_gone(steps: Steps, recorded: State, address: Address) -> bool:
    """Whether an address is recorded, and its thing is not there any more."""
    return address in recorded.records and address not in steps.state.records


def _volume_actions(steps: Steps, volumes: Mapping[str, VolumeDecision], recorded: State) -> None:
    for decision in volumes.values():
        if decision.waits:
            continue
        address = Address("volume", decision.name)
        if decision.record and decision.deletes:
            steps.delete(decision.record, decision.reason, decision.because, forget=decision.forgotten)
        if decision.after and decision.makes:
            reason = Reason.GONE if _is_gone(steps, recorded, address) else decision.reason
            backend = decision.after.backend
            steps.create(address, decision.after, reason, decision.because, backend=backend)
        elif decision.record and decision.after and decision.updates:
            steps.update(decision.record, decision.after, decision.reason, decision.because)


def _node_actions(steps: Steps, fleets: Fleets) -> None:
    """Create, update and delete recorded nodes."""
    for decision in fleets.decisions.values():
        record = decision.record
        if decision.fresh:
            steps.create(record.address, decision.after, Reason.NEW, backend=record.backend)
        elif decision.goes:
            steps.delete(record, decision.goes, decision.because)
        elif decision.changed:
            steps.update(record, decision.after, Reason.CHANGED, decision.changed)
        elif decision.mended:
            steps.update(record, decision.after, Reason.DRIFT, decision.mended)


def _launch_actions(steps: Steps, fleets: Fleets, outcome: PlacementOutcome, recorded: State) -> None:
    again = {f.node.name: f for f in fleets.decisions.values() if f.again}
    for node in outcome.launches:
        assert node.offer is not None
        address, old = Address("node", node.name), again.get(node.name)
        backend = fleets.desired.backends.get(node.offer.backend)
        after = node_inputs(fleets.desired.fleets[node.fleet], node.offer, backend)
        guarded = after.instance_id is None and fleets.desired.is_guarded(str(address), after)
        after = replace(after, protected=guarded)
        if old:
            reason = old.goes or Reason.CHANGED
        elif _is_gone(steps, recorded, address):
            reason = Reason.GONE
        else:
            reason = Reason.NEW if after.instance_id is None else Reason.ADOPTED
        steps.create(address, after, reason, old.because if old else (), backend=node.backend)


def _make_room(steps: Steps, fleets: Fleets, outcome: PlacementOutcome) -> None:
    """A new node waits for one that goes: no fleet's maximum and no offer's limit is ever exceeded."""
    fresh = {n.name for n in outcome.launches}
    going = {f.node.name: f.node for f in fleets.decisions.values() if f.goes}
    gone: dict[object, list[str]] = defaultdict(list)
    for name, node in going.items():
        for key in _counted_by(node, limited=True, replaced=name in fresh):
            gone[key].append(name)
    for node in outcome.launches:
        limited = node.offer is not None and node.offer.limit is not None
        for key in _counted_by(node, limited=limited, replaced=node.name in going):
            if gone[key]:
                steps.after(f"create:node/{node.name}", (f"delete:node/{gone[key].pop(0)}",))


def _counted_by(node: Node, *, limited: bool, replaced: bool) -> list[object]:
    """The limits that count a node: its offer's, if it has one, and its fleet's, unless the fleet's number of
    nodes stays the same.
    """
    keys: list[object] = [_kind_of(node)] if limited else []
    return keys if replaced else [*keys, node.fleet]


def _kind_of(node: Node) -> tuple[object, ...]:
    """The key that a backend's quantity limit counts by."""
    return (node.backend, node.region, node.instance_type, node.spot)


def _task_actions(
    steps: Steps,
    decision: TaskDecision,
    choices: list[Choice],
    nodes: Mapping[str, Node],
    limits: Mapping[str, float | None],
    now: float,
) -> None:
    """Ranks: start, stop and start again, or change in place."""
    if decision.course is Course.RUN:
        _stops(steps, decision, placed=bool(choices))
        if choices:
            places = {c.rank: (c.volumes, c.node) for c in choices}
            _starts(steps, decision, places, set(decision.have), nodes)
        return
    if decision.course is Course.RESIZED:
        _resize(steps, decision, {c.rank: (c.volumes, c.node) for c in choices}, nodes)
    for rank, record in decision.have.items():
        if not decision.leaves(record.address.name):
            _in_place(steps, decision, rank, record, limits, now)
    if decision.course is Course.COMPLETED:
        volumes = attached(steps.state)
        held: dict[int, tuple[Mapping[str, str], str]] = {}
        for rank in decision.missing:
            name = rank_name(decision.name, rank)
            reservation = steps.state.get("reservation", name)
            if reservation:
                held[rank] = volumes.get(name, {}), reservation.reservation.node
        _starts(steps, decision, held, set(), nodes)


def _stops(steps: Steps, decision: TaskDecision, *, placed: bool) -> None:
    """Stop the old gang if a new one starts. Without a place for that, stop only an incomplete gang."""
    for record in decision.have.values():
        if placed:
            steps.delete(record, decision.reason, decision.because)
        elif decision.incomplete and not steps.state.has_ended(record.address.name):
            steps.delete(record, Reason.INCOMPLETE)


def _resize(
    steps: Steps,
    decision: TaskDecision,
    places: Mapping[int, tuple[Mapping[str, str], str]],
    nodes: Mapping[str, Node],
) -> None:
    """Start the ranks that are missing, and stop those above the task's `nodes`.

    An apply may be cut short. So the ranks that stay record the new number once all others were started, but
    before others are stopped: a rank that seems to be missing would be waited for, and then all be stopped.
    """
    if places:
        _starts(steps, decision, places, set(), nodes)
    leaving = [r for r in decision.have.values() if decision.leaves(r.address.name)]
    updates = [f"update:{r.address}" for r in decision.have.values() if r not in leaving]
    for update in updates:
        steps.after(update, (f"create:rank/{rank_name(decision.name, rank)}" for rank in places))
    for record in leaving:
        runs = not steps.state.has_ended(record.address.name)
        steps.delete(record, Reason.SURPLUS, decision.because, ends=runs)
        if not places:  # a rank that is started may need the place of one that goes
            steps.after(f"delete:{record.address}", updates)


def _in_place(
    steps: Steps,
    decision: TaskDecision,
    rank: int,
    record: Record,
    limits: Mapping[str, float | None],
    now: float,
) -> None:
    """Change fields while the rank runs on. If it would have to restart, nothing is changed.

    A host ends a rank itself when it is cut off. So it has to learn a new `unreachable_duration`.
    """
    before = record.rank
    after = decision.want.rank_inputs(rank) if rank < decision.want.spec.nodes else before
    after = replace(
        after,
        retries=before.retries,
        scheduled=before.scheduled,
        scheduled_until=before.scheduled_until,
        failed_on=before.failed_on,
    )
    restart, in_place = changed_fields(before, after)
    if decision.course is Course.RESIZED:  # only `nodes` differs that is not changed in place elsewhere
        restart, in_place = (), tuple(sorted((*restart, *in_place)))
    if ALONE in record.outputs and not steps.state.has_ended(record.address.name):
        node = steps.state.node_of_rank(record.address.name)
        if node and (alone_seconds(node.node, before, limits) or 0) != record.outputs[ALONE]:
            in_place = (*in_place, "unreachable_duration")
    if not in_place or restart:
        return
    ends = _is_over(steps.state, decision, record, after, now)
    steps.update(record, after, Reason.CHANGED, in_place, holds=tuple(sorted(record.needs)), ends=ends)


def _is_over(state: State, decision: TaskDecision, record: Record, after: RankInputs, now: float) -> bool:
    """Whether a limit that changes in place is over already: a running rank is stopped at once, or a failed
    task that would run again is given up.
    """
    before, status = record.rank, state.ranks.get(record.address.name)
    if before.retry != after.retry:
        spec = replace(decision.want.spec, retry=Retry.parse(before.retry or False))
        have = decision.have.values()
        if again(replace(decision.want, spec=spec), have, state, now):
            return again(decision.want, have, state, now) is None
    return before.max_duration != after.max_duration and is_used_up(status, after, now)


def is_used_up(status: RankStatus | None, inputs: RankInputs, now: float) -> bool:
    """Whether a rank that runs has used up the `max_duration` of these inputs by now."""
    if inputs.max_duration is None or status is None or status.state is not RankState.RUNNING:
        return False
    limit = Duration.parse(inputs.max_duration).seconds
    return limit is not None and status.started_at is not None and now - status.started_at >= limit


def attached(state: State) -> dict[str, dict[str, str]]:
    """Rank → path → the volume mounted there."""
    out: dict[str, dict[str, str]] = {}
    for record in state.of("attachment"):
        found = record.attachment
        out.setdefault(found.rank, {})[found.path] = found.volume
    return out


def _starts(
    steps: Steps,
    decision: TaskDecision,
    places: Mapping[int, tuple[Mapping[str, str], str]],
    replaced: set[int],
    nodes: Mapping[str, Node],
) -> None:
    """Start actions of a gang. `places` is rank → its volumes by their paths, and its node.

    The first rank to start waits for every place of the gang, and the other ranks wait for the first. So no
    rank runs before all have their places, and the edges grow with the number of ranks, not its square.
    """
    keys = {rank: f"create:rank/{rank_name(decision.name, rank)}" for rank in sorted(places)}
    gate = _gate(steps, keys, decision.want.spec.startup_order)
    for rank in keys:
        volumes, node = places[rank]
        holds = _start(steps, decision, rank, volumes, nodes.get(node))
        steps.after(gate, (f"create:{address}" for address in holds))
        # Ranks get the addresses of nodes, which change if a host is reached in another way.
        steps.after(gate, (f"update:node/{node}",))
    # A rank of the old gang may hold what a rank of the new one gets: the whole old gang ends first.
    steps.after(gate, (f"delete:rank/{rank_name(decision.name, r)}" for r in replaced))


def _gate(steps: Steps, keys: Mapping[int, str], order: StartupOrder) -> str:
    """The id of the start action that all others wait for."""
    workers = [key for rank, key in keys.items() if rank != 0]
    workers_first = order is StartupOrder.WORKERS_FIRST and len(keys) > 1
    gate = workers[0] if workers_first else next(iter(keys.values()))
    for key in keys.values():
        if key != gate:
            steps.after(key, (gate,))
    if workers_first and 0 in keys:
        steps.after(keys[0], workers)
    return gate


def _start(
    steps: Steps, decision: TaskDecision, rank: int, volumes: Mapping[str, str], node: Node | None
) -> tuple[Address, ...]:
    """Start one rank; the addresses that it holds."""
    name = rank_name(decision.name, rank)
    attachments = [Address("attachment", f"{name}.{v}") for v in sorted(volumes.values())]
    holds = (Address("reservation", name), *attachments)
    backend, after = node.backend if node else None, decision.rank_inputs(rank)
    address = Address("rank", name)
    steps.create(address, after, decision.reason, decision.because, holds=holds, backend=backend)
    return holds


def _reserve(steps: Steps, choice: Choice, decision: TaskDecision, site: Node) -> None:
    """Reserve the blocks and attach the volumes of one rank. Unchanged ones are kept."""
    name = rank_name(choice.task, choice.rank)
    node = Address("node", choice.node)
    reason = Reason.NEW if decision.course is Course.RESIZED else decision.reason
    reservation = Action(
        op=Op.CREATE,
        address=Address("reservation", name),
        reason=reason,
        after=ReservationInputs(
            task=choice.task,
            rank=choice.rank,
            node=choice.node,
            blocks=tuple(choice.blocks),
            total_blocks=site.total,
        ),
        holds=(node,),
    )
    _put(steps, reservation)
    mounts = decision.want.mounts[choice.rank] if decision.want.mounts else ()
    variables = {mount.path: mount.variable for mount in mounts}
    for path, volume in choice.volumes.items():
        inputs = AttachmentInputs(
            task=choice.task, rank=name, node=choice.node, volume=volume, path=path, variable=variables[path]
        )
        attachment = Action(
            op=Op.CREATE,
            address=Address("attachment", f"{name}.{volume}"),
            reason=reason,
            after=inputs,
            holds=(Address("volume", volume), node, reservation.address),
            backend=site.backend,
        )
        _put(steps, attachment)
        steps.after(f"create:{node}", (f"create:volume/{volume}", f"update:volume/{volume}"))


def _put(steps: Steps, wanted: Action) -> None:
    """Create it. Replace it if it differs, or if something that it holds is made anew. Else keep it."""
    record = steps.state.records.get(wanted.address)
    if record is None:
        steps.add(wanted)
        return
    renewed = tuple(str(h) for h in wanted.holds if h in record.needs and f"create:{h}" in steps.actions)
    changed = differing(record.typed, wanted.typed)
    if renewed:
        reason, because = Reason.CASCADE, renewed
    elif wanted.reason in (Reason.RETRY, Reason.SCHEDULE):
        # A gang is stopped before it runs again, and then gives back what it held.
        reason, because = wanted.reason, ()
    elif changed:
        reason, because = Reason.CHANGED, changed
    else:
        return
    steps.delete(record, reason, because)
    steps.add(replace(wanted, reason=reason, because=because))


def _released(steps: Steps, found: Decisions, removed: Reason) -> None:
    """Delete what removed tasks hold, and what a task that runs anew does not hold again."""
    for kind in ("rank", "attachment", "reservation"):
        for record in steps.state.of(kind):
            decision = found.tasks.get(str(record.task))
            if f"delete:{record.address}" in steps.actions:
                continue
            if decision is None:
                asleep = f"task/{record.task}" in found.fleets.desired.asleep
                running = kind == "rank" and not steps.state.has_ended(record.address.name)
                ends = asleep and running and _is_early(record.rank, found.fleets.now)
                steps.delete(record, Reason.SCHEDULE if asleep else removed, ends=ends)
            elif decision.course is Course.RUN and kind != "rank" and not _kept(steps, record):
                reason = Reason.INCOMPLETE if decision.reason is Reason.NEW else decision.reason
                steps.delete(record, reason, decision.because)
            elif (rank := rank_of(record)) and decision.leaves(rank):
                steps.delete(record, Reason.SURPLUS, ("nodes",))


def _is_early(rank: RankInputs, now: float) -> bool:
    """Whether a schedule that was added, or whose hours changed, stops a rank. A schedule as it was at the
    start stops what it started: that is no surprise.
    """
    if rank.scheduled is None or rank.scheduled_until is None:
        return rank.scheduled is None
    return rank.scheduled_until == 0 or now < rank.scheduled_until


def _kept(steps: Steps, record: Record) -> bool:
    """Whether the new rank holds the same thing."""
    start = steps.actions.get(f"create:rank/{rank_of(record)}")
    return start is not None and record.address in start.holds
