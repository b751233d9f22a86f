"""What `status` shows, from what is declared, recorded and observed."""

from __future__ import annotations

from declarative.diagnostic import Diagnostic
from declarative.plan.fleets import held_blocks
from declarative.render.views import FleetView, HostView, NodeView, RankView, StatusView, TaskView, VolumeView
from declarative.resource import Desired, Host
from declarative.spec import StopCriteria
from declarative.state import (
    NodeState,
    RankState,
    RankStatus,
    Readiness,
    Record,
    State,
    drain_of,
    natural,
    readiness_of,
    task_state,
)


def host_view(host: Host, note: Diagnostic | None) -> HostView:
    """The view of a host that is no node; `note` says why it cannot be one yet."""
    reason = (
        note.summary.partition(" is left out: ")[2] if note else "ready: the next `apply` makes it a node"
    )
    return HostView(host=host.key, fleet=host.fleet, fit=note is None, reason=reason)


def status_view(desired: Desired, state: State, *, now: float | None = None) -> StatusView:
    """The view of a state; declared fleets and tasks that are not recorded yet are in it, too.

    With `now`, it is shown how old the observations of nodes are.
    """
    held = held_blocks(state)
    nodes = tuple(_node(r, state, held.get(r.address.name, {}), now) for r in state.of("node"))
    attached = {r.attachment.volume: r.attachment.node for r in state.of("attachment")}
    return StatusView(
        lineage=state.lineage,
        serial=state.serial,
        fleets=tuple(_fleet(name, nodes) for name in sorted({*desired.fleets, *(n.fleet for n in nodes)})),
        nodes=nodes,
        volumes=tuple(
            VolumeView(
                name=r.address.name,
                state="attached" if r.address.name in attached else "available",
                node=attached.get(r.address.name),
                size=r.volume.size,
            )
            for r in state.of("volume")
        ),
        tasks=_tasks(desired, state),
    )


def _fleet(name: str, nodes: tuple[NodeView, ...]) -> FleetView:
    mine = [n for n in nodes if n.fleet == name]
    return FleetView(
        name=name, nodes=len(mine), total=sum(n.total for n in mine), busy=sum(n.busy for n in mine)
    )


def _node(record: Record, state: State, held: dict[int, str], now: float | None) -> NodeView:
    inputs = record.node
    seen = readiness_of(record, state.readiness.get(record.address.name, Readiness(state=NodeState.UNKNOWN)))
    return NodeView(
        name=record.address.name,
        fleet=inputs.fleet,
        state=seen.state.value,
        reason=seen.reason,
        drained=drain_of(record),
        backend=inputs.backend,
        region=inputs.region,
        zone=inputs.zone,
        instance_type=inputs.instance_type,
        price=inputs.price,
        silence=state.silent.get(record.address.name),
        observed_at=seen.observed_at,
        age=None if now is None or seen.observed_at is None else max(0.0, now - seen.observed_at),
        resources=inputs.resources,
        total=inputs.blocks,
        holders=held,
    )


def _tasks(desired: Desired, state: State) -> tuple[TaskView, ...]:
    by_task: dict[str, dict[int, Record]] = {name: {} for name in desired.tasks}
    for record in state.of("rank"):
        by_task.setdefault(record.rank.task, {})[record.rank.rank] = record
    return tuple(_task(name, by_task[name], desired, state) for name in sorted(by_task, key=natural))


def _task(name: str, records: dict[int, Record], desired: Desired, state: State) -> TaskView:
    want = desired.tasks.get(name)
    count = max([*(r + 1 for r in records), want.spec.nodes if want else 0])
    if records:
        count = max(r.rank.nodes for r in records.values())
    statuses: dict[int, RankStatus | None] = {
        rank: state.ranks.get(f"{name}-{rank}") if rank in records else None for rank in range(count)
    }
    done = any(r.rank.stop_criteria == StopCriteria.MASTER_DONE.value for r in records.values())
    ranks = tuple(_rank(name, rank, status, records.get(rank), state) for rank, status in statuses.items())
    return TaskView(name=name, state=task_state(statuses, done).value, ranks=ranks)


def _rank(name: str, rank: int, status: RankStatus | None, record: Record | None, state: State) -> RankView:
    reservation = state.get("reservation", f"{name}-{rank}")
    node = reservation.reservation.node if reservation else (record.outputs.get("node") if record else None)
    return RankView(
        rank=rank,
        node=node,
        state=(status.state if status else RankState.PENDING).value,
        exit_code=status.exit_code if status else None,
        attempt=record.generation if record else 0,
        cause=status.cause if status else None,
        confinement=status.confinement if status else None,
    )
