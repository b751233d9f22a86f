"""Turns decisions and placements into actions, and orders them as docs/architecture.md says ("The plan")."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from declarative.model.inputs import (
    AttachmentInputs,
    Inputs,
    NodeInputs,
    RankInputs,
    ReservationInputs,
    VolumeInputs,
    differing,
)
from declarative.model.record import set_field
from declarative.model.resource import INSTANCE_ID, VOLUME_ID, node_inputs
from declarative.model.spec import Duration, Retry, StartupOrder
from declarative.model.state import KINDS, Address, Record, State, natural, rank_name
from declarative.model.status import RankState, RankStatus
from declarative.placement.problem import Choice, Node, PlacementOutcome
from declarative.planner.fleets import Fleets
from declarative.planner.inventory import alone_seconds, rank_holding
from declarative.planner.plan import Action, Op, Reason
from declarative.planner.tasks import Course, TaskDecision, changed_fields, due_retry
from declarative.planner.volumes import VolumeDecision

if TYPE_CHECKING:
    from declarative.planner.decisions import Decisions

_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}


class ActionGraph:
    """Collects actions, then joins them by their needs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: dict[str, Action] = {}
        self._made: dict[Address, str] = {}
        """Address → the action after which it is as planned: its creation, else its update."""
        self._gone: dict[Address, str] = {}
        """Address → the action that deletes it."""
        self.extra: dict[str, set[str]] = defaultdict(set)
        """Needs beside those that follow from `holds`: gang starts, blocks and volumes that are passed on."""

    def add(self, action: Action) -> None:
        """Add one action; one address has at most one of each op."""
        key = action.id
        self.actions[key] = action
        if action.op is Op.DELETE:
            self._gone[action.address] = key
        elif action.op is Op.CREATE or action.address not in self._made:
            self._made[action.address] = key

    def create(
        self, address: Address, after: Inputs, reason: Reason, because: tuple[str, ...] = (), **more: Any
    ) -> None:
        """Add a creation; `more` are other fields of `Action`."""
        self.add(Action(op=Op.CREATE, address=address, reason=reason, because=because, after=after, **more))

    def change(
        self, op: Op, record: Record, reason: Reason, because: tuple[str, ...] = (), **more: Any
    ) -> None:
        """Add an update or a deletion of what is recorded; `more` are other fields of `Action`."""
        action = Action(
            op=op,
            address=record.address,
            reason=reason,
            because=because,
            before=record.typed,
            backend=record.backend,
            **more,
        )
        self.add(action)

    def delete(self, record: Record, reason: Reason, because: tuple[str, ...] = (), **more: bool) -> None:
        """Add a deletion."""
        self.change(Op.DELETE, record, reason, because, **more)

    def after(self, action: str, needed: Iterable[str]) -> None:
        """`action` waits for those of `needed` that exist."""
        self.extra[action].update(needed)

    def join(self) -> tuple[Action, ...]:
        """All actions with their direct needs, in order: deletions first, then by kind and name."""
        self._pass_on()

        def place(key: str) -> tuple[object, ...]:
            action = self.actions[key]
            kind, deletion = _RANKS[action.address.kind], action.op is Op.DELETE
            return (not deletion, -kind if deletion else kind, natural(action.address.name), key)

        keys = sorted(self.actions, key=place)
        for key in keys:
            action = self.actions[key]
            needed = {other for other in self.extra.get(key, ()) if other in self.actions}
            if action.op is not Op.DELETE:
                needed.update([self._made[address] for address in action.holds if address in self._made])
            if action.op is Op.CREATE and action.address in self._gone:
                needed.add(self._gone[action.address])
            if needed:  # nobody else has the action yet, and a copy of each would take long
                set_field(action, "needs", tuple(sorted(needed)))
        return _ordered([self.actions[key] for key in keys])

    def _pass_on(self) -> None:
        """A delete waits for everything recorded as needing it; a create waits for what it takes over."""
        freed: dict[object, list[str]] = defaultdict(list)
        for action in self.actions.values():
            record = self.state.records.get(action.address)
            if action.op is Op.DELETE and record is not None:
                for needed in record.needs:  # it is deleted before what it needs
                    self.extra[f"delete:{needed}"].add(action.id)
                if record.address.kind == "reservation":  # a node is split anew once its blocks are free
                    self.extra[f"update:node/{record.reservation.node}"].add(action.id)
                for key in _places(record.typed):
                    freed[key].append(action.id)
        created = (a for a in self.actions.values() if a.op is Op.CREATE) if freed else ()
        for action in created:
            for key in _places(action.typed):
                self.extra[action.id].update(freed.get(key, ()))


def _ordered(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions in topological order, always the first that could run."""
    places = {action.id: place for place, action in enumerate(actions)}
    waiting = [len(action.needs) for action in actions]
    follow: list[list[int]] = [[] for _ in actions]
    for place, action in enumerate(actions):
        for need in action.needs:
            follow[places[need]].append(place)
    ready = [place for place, count in enumerate(waiting) if not count]  # sorted, and so a heap
    out: list[Action] = []
    while ready:
        place = heapq.heappop(ready)
        out.append(actions[place])
        for later in follow[place]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    if len(out) != len(actions):
        raise AssertionError(f"a cycle among {[actions[i].id for i, count in enumerate(waiting) if count]}")
    return tuple(out)


def _places(inputs: Inputs) -> list[object]:
    """The things that only one address can hold at a time: blocks, volumes, and adopted things."""
    if isinstance(inputs, ReservationInputs):
        return [(inputs.node, block) for block in inputs.blocks]
    if isinstance(inputs, VolumeInputs) and inputs.volume_id is not None:
        return [(VOLUME_ID, inputs.backend, inputs.volume_id)]
    if isinstance(inputs, NodeInputs) and inputs.instance_id is not None:
        return [(INSTANCE_ID, inputs.backend, inputs.instance_id)]
    return [inputs.volume] if isinstance(inputs, AttachmentInputs) else []


def build_actions(
    recorded: State, state: State, decisions: Decisions, *, destroy: bool
) -> tuple[Action, ...]:
    """All actions, joined by their needs and in order."""
    graph = ActionGraph(state)
    choices: dict[str, list[Choice]] = {}
    for choice in decisions.outcome.choices:
        choices.setdefault(choice.task, []).append(choice)
    gone = recorded.records.keys() - state.records.keys()
    _volume_actions(graph, decisions.volumes, gone)
    _node_actions(graph, decisions.fleets)
    _launch_actions(graph, decisions.fleets, decisions.outcome, gone)
    _make_room(graph, decisions.fleets, decisions.outcome)
    nodes = decisions.nodes()
    fleets = decisions.fleets.desired.fleets
    limits = {name: fleet.unreachable_duration.seconds for name, fleet in fleets.items()}
    for decision in decisions.tasks.values():
        _task_actions(graph, decision, choices.get(decision.name, []), nodes, limits, decisions.fleets.now)
    for choice in decisions.outcome.choices:
        _reserve(graph, choice, decisions.tasks[choice.task], nodes[choice.node])
    _released(graph, decisions, Reason.DESTROY if destroy else Reason.REMOVED)
    _fence(graph, recorded)
    return graph.join()


def _fence(graph: ActionGraph, recorded: State) -> None:
    """A node that was given up may still run its ranks until the cloud has ended it. So other actions of
    these tasks wait for the node's deletion.
    """
    for name, silence in graph.state.silent.items():
        ends = f"delete:node/{name}"
        if not silence.given_up or ends not in graph.actions:
            continue
        node = Address("node", name)
        tasks = {r.reservation.task for r in recorded.of("reservation") if node in r.needs}
        for key, action in graph.actions.items():
            freed = action.op is Op.DELETE and action.address.kind != "rank"  # the node waits for those
            if not freed and action.task in tasks:
                graph.after(key, (ends,))


def _volume_actions(
    graph: ActionGraph, volumes: Mapping[str, VolumeDecision], gone: Collection[Address]
) -> None:
    """Create, update and delete volumes. What is `gone` is recorded, and its thing is not there any more."""
    for decision in volumes.values():
        if decision.waits:
            continue
        address = Address("volume", decision.name)
        if decision.record and decision.deletes:
            graph.delete(decision.record, decision.reason, decision.because, forget=decision.forgotten)
        if decision.after and decision.makes:
            reason = Reason.GONE if address in gone else decision.reason
            backend = decision.after.backend
            graph.create(address, decision.after, reason, decision.because, backend=backend)
        elif decision.record and decision.after and decision.updates:
            graph.change(Op.UPDATE, decision.record, decision.reason, decision.because, after=decision.after)


def _node_actions(graph: ActionGraph, fleets: Fleets) -> None:
    """Create, update and delete recorded nodes."""
    for decision in fleets.decisions.values():
        record = decision.record
        if decision.fresh:
            graph.create(record.address, decision.after, Reason.NEW, backend=record.backend)
        elif decision.goes:
            graph.delete(record, decision.goes, decision.because)
        elif decision.changed:
            graph.change(Op.UPDATE, record, Reason.CHANGED, decision.changed, after=decision.after)
        elif decision.mended:
            graph.change(Op.UPDATE, record, Reason.DRIFT, decision.mended, after=decision.after)


def _launch_actions(
    graph: ActionGraph, fleets: Fleets, outcome: PlacementOutcome, gone: Collection[Address]
) -> None:
    remade = {f.node.name: f for f in fleets.decisions.values() if f.remade}
    for node in outcome.launches:
        assert node.offer is not None
        address, old = Address("node", node.name), remade.get(node.name)
        backend = fleets.desired.backends.get(node.offer.backend)
        after = node_inputs(fleets.desired.fleets[node.fleet], node.offer, backend)
        guarded = after.instance_id is None and fleets.desired.is_guarded(str(address), after)
        after = replace(after, protected=guarded)
        if old:
            reason = old.goes or Reason.CHANGED
        elif address in gone:
            reason = Reason.GONE
        else:
            reason = Reason.NEW if after.instance_id is None else Reason.ADOPTED
        graph.create(address, after, reason, old.because if old else (), backend=node.backend)


def _make_room(graph: ActionGraph, fleets: Fleets, outcome: PlacementOutcome) -> None:
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
                graph.after(f"create:node/{node.name}", (f"delete:node/{gone[key].pop(0)}",))


def _counted_by(node: Node, *, limited: bool, replaced: bool) -> list[object]:
    """The limits that count a node: its offer's, if it has one, and its fleet's, unless the fleet's number of
    nodes stays the same.
    """
    offer_key = (node.backend, node.region, node.instance_type, node.spot)
    keys: list[object] = [offer_key] if limited else []
    return keys if replaced else [*keys, node.fleet]


def _task_actions(
    graph: ActionGraph,
    decision: TaskDecision,
    choices: list[Choice],
    nodes: Mapping[str, Node],
    limits: Mapping[str, float | None],
    now: float,
) -> None:
    """Ranks: start, stop and start again, or change in place."""
    places: dict[int, tuple[Mapping[str, str], str]] = {c.rank: (c.volumes, c.node) for c in choices}
    if decision.course is Course.RUN:
        # The old gang stops if a new one starts. Without a place for that, only an incomplete gang stops.
        for record in decision.have.values():
            if choices:
                graph.delete(record, decision.reason, decision.because)
            elif decision.incomplete and not graph.state.has_ended(record.address.name):
                graph.delete(record, Reason.INCOMPLETE)
        if choices:
            _starts(graph, decision, places, set(decision.have), nodes)
        return
    if decision.course is Course.RESIZED:
        _resize(graph, decision, places, nodes)
    for rank, record in decision.have.items():
        if not decision.leaves(record.address.name):
            _in_place(graph, decision, rank, record, limits, now)
    if decision.course is Course.COMPLETED:
        volumes = attached_volumes(graph.state)
        for rank in decision.missing:
            name = rank_name(decision.name, rank)
            reservation = graph.state.get("reservation", name)
            if reservation:
                places[rank] = volumes.get(name, {}), reservation.reservation.node
        _starts(graph, decision, places, set(), nodes)


def _resize(
    graph: ActionGraph,
    decision: TaskDecision,
    places: Mapping[int, tuple[Mapping[str, str], str]],
    nodes: Mapping[str, Node],
) -> None:
    """Start the ranks that are missing, and stop those above the task's `nodes`.

    An apply may be cut short. So the ranks that stay record the new number once all others were started, but
    before others are stopped: a rank that seems to be missing would be waited for, and then all be stopped.
    """
    if places:
        _starts(graph, decision, places, set(), nodes)
    leaving = [r for r in decision.have.values() if decision.leaves(r.address.name)]
    updates = [f"update:{r.address}" for r in decision.have.values() if r not in leaving]
    for update in updates:
        graph.after(update, (f"create:rank/{rank_name(decision.name, rank)}" for rank in places))
    for record in leaving:
        runs = not graph.state.has_ended(record.address.name)
        graph.delete(record, Reason.SURPLUS, decision.because, ends=runs)
        if not places:  # a rank that is started may need the place of one that goes
            graph.after(f"delete:{record.address}", updates)


def _in_place(
    graph: ActionGraph,
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
    if record.alone_seconds is not None and not graph.state.has_ended(record.address.name):
        node = graph.state.node_of_rank(record.address.name)
        if node and (alone_seconds(node.node, before, limits) or 0) != record.alone_seconds:
            in_place = (*in_place, "unreachable_duration")
    if not in_place or restart:
        return
    # Whether a limit that changes in place is over already: a running rank is stopped at once, or a failed
    # task that would run again is given up.
    status, have = graph.state.ranks.get(record.address.name), decision.have.values()
    ends = before.max_duration != after.max_duration and is_used_up(status, after, now)
    if before.retry != after.retry:
        spec = replace(decision.want.spec, retry=Retry.parse(before.retry or False))
        if due_retry(replace(decision.want, spec=spec), have, graph.state, now):
            ends = due_retry(decision.want, have, graph.state, now) is None
    holds = tuple(sorted(record.needs))
    graph.change(Op.UPDATE, record, Reason.CHANGED, in_place, after=after, holds=holds, ends=ends)


def is_used_up(status: RankStatus | None, inputs: RankInputs, now: float) -> bool:
    """Whether a rank that runs has used up the `max_duration` of these inputs by now."""
    if inputs.max_duration is None or status is None or status.state is not RankState.RUNNING:
        return False
    limit = Duration.parse(inputs.max_duration).seconds
    return limit is not None and status.started_at is not None and now - status.started_at >= limit


def attached_volumes(state: State) -> dict[str, dict[str, str]]:
    """Rank → path → the volume mounted there."""
    out: dict[str, dict[str, str]] = {}
    for record in state.of("attachment"):
        attachment = record.attachment
        out.setdefault(attachment.rank, {})[attachment.path] = attachment.volume
    return out


def _starts(
    graph: ActionGraph,
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
    workers = [key for rank, key in keys.items() if rank != 0]
    workers_first = decision.want.spec.startup_order is StartupOrder.WORKERS_FIRST and len(keys) > 1
    gate = workers[0] if workers_first else next(iter(keys.values()))
    for key in keys.values():
        if key != gate:
            graph.after(key, (gate,))
    if workers_first and 0 in keys:
        graph.after(keys[0], workers)
    for rank in keys:
        name, (volumes, node_name) = rank_name(decision.name, rank), places[rank]
        attachments = [Address("attachment", f"{name}.{v}") for v in sorted(volumes.values())]
        holds = (Address("reservation", name), *attachments)
        graph.create(
            Address("rank", name),
            decision.rank_inputs(rank),
            decision.reason,
            decision.because,
            holds=holds,
            backend=nodes[node_name].backend if node_name in nodes else None,
        )
        graph.after(gate, (f"create:{address}" for address in holds))
        # Ranks get the addresses of nodes, which change if a host is reached in another way.
        graph.after(gate, (f"update:node/{node_name}",))
    # A rank of the old gang may hold what a rank of the new one gets: the whole old gang ends first.
    graph.after(gate, (f"delete:rank/{rank_name(decision.name, r)}" for r in replaced))


def _reserve(graph: ActionGraph, choice: Choice, decision: TaskDecision, site: Node) -> None:
    """Reserve the blocks and attach the volumes of one rank. Unchanged ones are kept."""
    name = rank_name(choice.task, choice.rank)
    node, reservation = Address("node", choice.node), Address("reservation", name)
    reason = Reason.NEW if decision.course is Course.RESIZED else decision.reason
    inputs = ReservationInputs(
        task=choice.task,
        rank=choice.rank,
        node=choice.node,
        blocks=tuple(choice.blocks),
        total_blocks=site.total,
    )
    _put(graph, Action(op=Op.CREATE, address=reservation, reason=reason, after=inputs, holds=(node,)))
    mounts = decision.want.mounts[choice.rank] if decision.want.mounts else ()
    variables = {mount.path: mount.variable for mount in mounts}
    for path, volume in choice.volumes.items():
        attachment = Action(
            op=Op.CREATE,
            address=Address("attachment", f"{name}.{volume}"),
            reason=reason,
            after=AttachmentInputs(
                task=choice.task,
                rank=name,
                node=choice.node,
                volume=volume,
                path=path,
                variable=variables[path],
            ),
            holds=(Address("volume", volume), node, reservation),
            backend=site.backend,
        )
        _put(graph, attachment)
        graph.after(f"create:{node}", (f"create:volume/{volume}", f"update:volume/{volume}"))


def _put(graph: ActionGraph, planned: Action) -> None:
    """Create it. Replace it if it differs, or if something that it holds is replaced. Else keep it."""
    record = graph.state.records.get(planned.address)
    if record is None:
        graph.add(planned)
        return
    renewed = tuple(str(h) for h in planned.holds if h in record.needs and f"create:{h}" in graph.actions)
    changed = differing(record.typed, planned.typed)
    if renewed:
        reason, because = Reason.CASCADE, renewed
    elif planned.reason in (Reason.RETRY, Reason.SCHEDULE):
        # A gang is stopped before it runs again, and then gives back what it held.
        reason, because = planned.reason, ()
    elif changed:
        reason, because = Reason.CHANGED, changed
    else:
        return
    graph.delete(record, reason, because)
    graph.add(replace(planned, reason=reason, because=because))


def _released(graph: ActionGraph, decisions: Decisions, removed: Reason) -> None:
    """Delete what removed tasks hold, and what a task that starts again does not hold again."""
    for kind in ("rank", "attachment", "reservation"):
        for record in graph.state.of(kind):
            decision = decisions.tasks.get(str(record.task))
            if f"delete:{record.address}" in graph.actions:
                continue
            if decision is None:
                asleep = f"task/{record.task}" in decisions.fleets.desired.asleep
                ends = False
                if asleep and kind == "rank" and not graph.state.has_ended(record.address.name):
                    # A schedule as it was at the start stops what it started: that is no surprise. One that
                    # was added, or whose hours changed, ends work that goes on.
                    scheduled, until = record.rank.scheduled, record.rank.scheduled_until
                    ends = scheduled is None or until == 0
                    ends = ends or (until is not None and decisions.fleets.now < until)
                graph.delete(record, Reason.SCHEDULE if asleep else removed, ends=ends)
            elif decision.course is Course.RUN and kind != "rank":
                start = graph.actions.get(f"create:rank/{rank_holding(record)}")
                if start is not None and record.address in start.holds:
                    continue  # the new rank holds the same thing
                reason = Reason.INCOMPLETE if decision.reason is Reason.NEW else decision.reason
                graph.delete(record, reason, decision.because)
            elif (rank := rank_holding(record)) and decision.leaves(rank):
                graph.delete(record, Reason.SURPLUS, ("nodes",))
