"""The data that `status` shows: the keys of `status --json`, and what only people read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.resource import Desired, Host, LeftOut, TaskWant
from declarative.model.spec import StopCriteria
from declarative.model.spec.reconcile import HOURS_A_MONTH, Limits
from declarative.model.state import (
    Address,
    Record,
    Spent,
    State,
    drain_of,
    is_stopped,
    natural,
    never_ran,
    readiness_of,
    task_state,
)
from declarative.model.status import Drain, NodeState, Outage, RankState, RankStatus, Readiness, Silence
from declarative.planner.health import Health
from declarative.planner.plan import ROUNDING, Drift, held_price, total_price
from declarative.planner.tasks import retry_outlook
from declarative.store.events import Waiting


@struct(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet: its number of nodes, and how many of their blocks are busy."""

    name: str
    nodes: int
    total: int
    busy: int
    hourly: float | None = 0.0
    """The cost of its nodes, USD an hour; None if a price is unknown."""


@struct(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One of the project's `limits` beside what is there."""

    name: str
    most: float
    now: float | None
    """None if a price is unknown."""

    @property
    def exceeded(self) -> bool:
        """Whether more is there than the limit allows."""
        return self.now is not None and self.now > self.most + ROUNDING


@struct(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node. `holders` maps each busy block to its holder (`rank/train-0`); `resources` is as recorded.

    `state` is a value of `NodeState`, and `reason` says why it is not ready. `observed_at` is in seconds
    since the epoch. `age`, if set, is for people: seconds from then until now.
    """

    name: str
    fleet: str
    state: str
    backend: str
    region: str
    zone: str | None
    instance_type: str
    price: float | None
    resources: Shape
    total: int
    holders: Mapping[int, str] = field(default_factory=dict)
    observed_at: float | None = None
    reason: str | None = None
    age: float | None = None
    cost: float | None = 0.0
    """What it costs this project, USD an hour; None if unknown."""
    drained: Drain | None = None
    silence: Silence | None = None
    """Since when the node does not answer; None if it answers."""
    rehearsal: bool | None = False
    """Whether it is on this machine and claims GPUs that the machine lacks; None if not checked."""

    @property
    def busy(self) -> int:
        """The number of busy blocks, always counted from `holders`."""
        return len(self.holders)


@struct(frozen=True, slots=True, kw_only=True)
class HostView:
    """A declared host that is not a node yet, for people. `fit`: it is ready to be one."""

    host: str
    fleet: str
    fit: bool
    reason: str


@struct(frozen=True, slots=True, kw_only=True)
class VolumeView:
    """A volume, and the node that it is attached to. `size` and `reason` are for people."""

    name: str
    state: str
    node: str | None = None
    size: str | None = None
    reason: str | None = None


@struct(frozen=True, slots=True, kw_only=True)
class RankView:
    """A rank. `node` is None if it holds none; `cause` says why it ended as it did."""

    rank: int
    node: str | None
    state: str
    exit_code: int | None = None
    attempt: int = 1
    cause: str | None = None
    confinement: str | None = None
    """How it is limited to its blocks, for people; see `RankStatus`."""
    started_at: float | None = None
    """Seconds since the epoch, by its host's clock."""
    ended_at: float | None = None


@struct(frozen=True, slots=True, kw_only=True)
class RetryView:
    """What `retry` does next about a task that failed or was lost; see `planner.tasks.Outlook`."""

    runs_again: bool
    attempt: int
    max_attempts: int | None
    after: float | None
    """The loop and `apply --wait` start it from then on, any other `apply` at once; None if nobody does."""
    until: float | None
    why: str


@struct(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task and its ranks. `cause` says why it waits, or why it ended as it did if no rank says it."""

    name: str
    state: str
    ranks: tuple[RankView, ...] = ()
    cause: str | None = None
    started_at: float | None = None
    """When the first rank of this attempt started, seconds since the epoch by its host's clock."""
    ended_at: float | None = None
    """When the last of its ranks ended; None while some have not."""
    seconds: float | None = None
    """How long it ran, or has run."""
    waiting_since: float | None = None
    """Since when it waits for a place."""
    stopped: bool = False
    """Whether the user stopped it, so that it does not start by itself."""
    retry: RetryView | None = None


@struct(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The whole status. The caller prints `diagnostics` (such as a backend that did not answer) on stderr.

    `hosts` are hosts that were looked at and are not nodes.
    """

    lineage: str | None
    serial: int
    fleets: tuple[FleetView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    volumes: tuple[VolumeView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    hosts: tuple[HostView, ...] = ()
    health: tuple[Health, ...] = ()
    """What is not well. In text it is shown at the nodes and hosts, and on stderr."""
    drift: tuple[Drift, ...] = ()
    """What differs from the record. The fields above leave out nodes and ranks that are gone."""
    left_alone: tuple[Outage, ...] = ()
    """Backends that a loop leaves alone."""
    limits: tuple[LimitView, ...] = ()
    spent: Spent | None = None
    """The cost of the nodes in this month; None if nobody counts it."""
    diagnostics: tuple[Diagnostic, ...] = ()


def host_view(host: Host, unfit: LeftOut | None) -> HostView:
    """The view of a host that is not a node; `why_unfit` says why not."""
    reason = unfit.reason if unfit else "ready: `fleetform plan` shows what becomes of it"
    return HostView(host=host.key, fleet=host.fleet, fit=unfit is None, reason=reason)


def status_view(
    desired: Desired,
    state: State,
    *,
    now: float | None = None,
    at: float | None = None,
    lost: Collection[Address] | None = None,
) -> StatusView:
    """The view of a state. It includes declared fleets and tasks that are not recorded yet.

    With `now`, nodes have the age of their observations. With `at`, the present time as well, tasks that run
    have their age, and failed ones what their `retry` does. `lost` are the volumes that are gone; None for
    those of which the record says so.
    """
    if lost is None:
        lost = [r.address for r in state.of("volume") if r.gone_since is not None]
    held = state.held_blocks()
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
                state="gone"
                if r.address in lost
                else "attached"
                if r.address.name in attached
                else "available",
                node=attached.get(r.address.name),
                size=r.volume.size,
            )
            for r in state.of("volume")
        ),
        tasks=_tasks(desired, state, at),
        limits=tuple(_limits(desired.project.limits, nodes)),
    )


def _limits(limits: Limits, nodes: tuple[NodeView, ...]) -> Iterator[LimitView]:
    """The project's limits of cost and nodes. That of a month is for nodes that are there all month."""
    hourly = total_price(n.cost for n in nodes)
    month = None if hourly is None else hourly * HOURS_A_MONTH
    for name, most, now in (
        ("cost_per_hour", limits.cost_per_hour, hourly),
        ("cost_per_month", limits.cost_per_month, month),
        ("nodes", limits.nodes, len(nodes)),
    ):
        if most is not None:
            yield LimitView(name=name, most=most, now=now)


def _fleet(name: str, nodes: tuple[NodeView, ...]) -> FleetView:
    mine = [n for n in nodes if n.fleet == name]
    return FleetView(
        name=name,
        nodes=len(mine),
        total=sum(n.total for n in mine),
        busy=sum(n.busy for n in mine),
        hourly=total_price(n.cost for n in mine),
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
        cost=held_price(inputs.price, held, inputs.blocks) if inputs.is_shared else inputs.price,
        silence=state.silent.get(record.address.name),
        observed_at=seen.observed_at,
        age=None if now is None or seen.observed_at is None else max(0.0, now - seen.observed_at),
        resources=inputs.resources,
        total=inputs.blocks,
        holders=held,
    )


def _tasks(desired: Desired, state: State, at: float | None) -> tuple[TaskView, ...]:
    by_task: dict[str, dict[int, Record]] = {name: {} for name in desired.tasks}
    for record in state.of("rank"):
        by_task.setdefault(record.rank.task, {})[record.rank.rank] = record
    return tuple(_task(name, by_task[name], desired, state, at) for name in sorted(by_task, key=natural))


def _task(
    name: str, records: dict[int, Record], desired: Desired, state: State, at: float | None
) -> TaskView:
    want = desired.tasks.get(name)
    count = max([*(r + 1 for r in records), want.spec.nodes if want else 0])
    if records:
        count = max(r.rank.nodes for r in records.values())
    statuses: dict[int, RankStatus | None] = {
        rank: state.ranks.get(f"{name}-{rank}") if rank in records else None for rank in range(count)
    }
    done = any(r.rank.stop_criteria == StopCriteria.MASTER_DONE.value for r in records.values())
    ranks = tuple(_rank(name, rank, status, records.get(rank), state) for rank, status in statuses.items())
    waits = f"its `schedule` starts it at {want.starts}" if want and want.starts and not records else None
    started = min((r.started_at for r in ranks if r.started_at is not None), default=None)
    ended = None
    if ranks and all(status and status.state.ended for status in statuses.values()):
        ended = max((r.ended_at for r in ranks if r.ended_at is not None), default=None)
    last = ended if ended is not None else at
    ran = started is not None and last is not None and (ended is not None or _goes(statuses.values()))
    return TaskView(
        name=name,
        state=task_state(statuses, done).value,
        ranks=ranks,
        cause=waits,
        started_at=started,
        ended_at=ended,
        seconds=max(0.0, last - started) if ran and started is not None and last is not None else None,
        stopped=is_stopped(records.values()),
        retry=_retry(want, records.values(), state, at) if want and at is not None else None,
    )


def with_waits(view: StatusView, waiting: Mapping[str, Waiting]) -> StatusView:
    """The view with the reasons why tasks have no place, as an apply or the loop last found them."""

    def waits(task: TaskView) -> TaskView:
        if task.state != RankState.PENDING or task.cause or any(r.attempt for r in task.ranks):
            return task
        known = waiting.get(task.name)
        if known is None:
            return replace(task, cause="no apply has started it yet")
        return replace(task, cause=known.why, waiting_since=known.since)

    return replace(view, tasks=tuple(map(waits, view.tasks)))


def _goes(statuses: Iterable[RankStatus | None]) -> bool:
    return any(status and not status.state.ended for status in statuses)


def _retry(want: TaskWant, have: Collection[Record], state: State, at: float) -> RetryView | None:
    found = retry_outlook(want, have, state, at)
    if found is None:
        return None
    return RetryView(
        runs_again=found.runs_again,
        attempt=found.attempt,
        max_attempts=want.spec.retry.max_attempts,
        after=found.after,
        until=found.until,
        why=found.why,
    )


def _rank(name: str, rank: int, status: RankStatus | None, record: Record | None, state: State) -> RankView:
    reservation = state.get("reservation", f"{name}-{rank}")
    node = reservation.reservation.node if reservation else (record.node_name if record else None)
    return RankView(
        rank=rank,
        node=node,
        state=(status.state if status else RankState.PENDING).value,
        exit_code=status.exit_code if status else None,
        attempt=record.generation if record and not never_ran(record) else 0,
        cause=status.cause if status else None,
        confinement=status.confinement if status else None,
        started_at=status.started_at if status else None,
        ended_at=status.ended_at if status and status.state.ended else None,
    )
