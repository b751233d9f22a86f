"""What `status` shows: the objects of `status --json` (`model.outputs`), and what people read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic
from declarative.model.outputs import TEXT_ONLY, As, Digits, Mark, Moment, Of, OneOf, Usd, address_of
from declarative.model.record import struct
from declarative.model.resource import Desired, Host, LeftOut
from declarative.model.schema import Doc, Is
from declarative.model.spec import StopCriteria
from declarative.model.spec.project import HOURS_A_MONTH
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
from declarative.planner.inventory import GONE, LEFT_OUT, SICK, UNREADABLE, Drift, Health
from declarative.planner.plan import FORMAT_VERSION, ROUNDING, held_price, total_price
from declarative.planner.tasks import RetryOutlook, retry_outlook
from declarative.render.output_json import output
from declarative.store.events import Waiting


@struct(frozen=True, slots=True, kw_only=True)
class BlockCount:
    """Blocks; busy and idle add up to the total."""

    total: int
    busy: int
    idle: ClassVar[Annotated[int, Of(lambda blocks: blocks.total - blocks.busy)]]


@struct(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet."""

    name: Annotated[str, Doc("Its name.")]
    nodes: Annotated[int, Doc("How many it has.")]
    blocks: ClassVar[Annotated[BlockCount, Of(lambda fleet: fleet)]]
    total: Annotated[int, TEXT_ONLY]
    busy: Annotated[int, TEXT_ONLY]
    hourly: Annotated[Usd | None, Doc("The cost of its nodes, USD an hour. Null if a price is unknown.")] = (
        0.0
    )


@struct(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One of the project's `limits`."""

    limit: Annotated[str, Doc("Its name, such as `cost_per_hour`.")]
    most: Annotated[Usd, Doc("The limit: USD, or nodes.")]
    now: Annotated[
        Usd | None, Doc("What is there: in a month, what these nodes cost. Null if a price is unknown.")
    ]

    @property
    def exceeded(self) -> bool:
        """Whether more is there than the limit allows."""
        return self.now is not None and self.now > self.most + ROUNDING


@struct(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What the whole node has."""

    cpu: Annotated[int | None, Doc("Null if unknown.")]
    memory_mib: Annotated[int | None, Doc("Null if unknown.")]
    gpus: Annotated[int | None, Doc("Null if unknown.")]


@struct(frozen=True, slots=True, kw_only=True)
class DrainOutput:
    """Set if it takes no new work. Null unless somebody drained it."""

    since: Annotated[str, Mark.DATE_TIME, Doc("Since when, in UTC.")]
    reason: Annotated[str | None, Doc("Why. Null if none was given.")]


@struct(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node."""

    name: Annotated[str, Doc("Its name.")]
    fleet: Annotated[str, Doc("Its fleet's name.")]
    state: Annotated[
        str, OneOf(NodeState), Doc("Only `ready` takes work; `unknown` is neither empty nor ready.")
    ]
    backend: Annotated[str, Doc("The backend's name.")]
    region: Annotated[str, Doc("The region.")]
    zone: Annotated[str | None, Doc("The zone. Null if the backend has none.")]
    instance_type: Annotated[str, Doc("The backend's name for its shape.")]
    price: Annotated[Usd | None, Doc("For the whole node, USD an hour. Null if unknown.")]
    observed_at: Annotated[Moment | None, Doc("When its state was seen, in UTC. Null for never.")] = None
    silent_since: ClassVar[
        Annotated[
            Moment | None,
            Of(lambda node: node.silence and node.silence.since),
            Doc("Since when it has not answered. Null if it does."),
        ]
    ]
    given_up_at: ClassVar[
        Annotated[
            Moment | None,
            Of(lambda node: node.silence and node.silence.until),
            Doc("When it is given up if it does not answer until then. Null for never."),
        ]
    ]
    resources: Annotated[Shape, As(NodeResources)]
    blocks: ClassVar[Annotated[BlockCount, Of(lambda node: node)]]
    holders: Annotated[
        Mapping[int, Annotated[str, address_of(("rank",))]], Doc("Block number → the `rank/…` that holds it.")
    ] = field(default_factory=dict)
    rehearsal: Annotated[
        bool | None, Doc("Whether this machine lacks the node's declared GPUs. Null if it was not looked at.")
    ] = False
    drained: Annotated[Drain | None, As(DrainOutput)] = None
    total: Annotated[int, TEXT_ONLY]
    reason: Annotated[str | None, TEXT_ONLY] = None
    """Why it is not ready."""
    age: Annotated[float | None, TEXT_ONLY] = None
    """Seconds from `observed_at` until now."""
    cost: Annotated[float | None, TEXT_ONLY] = 0.0
    """What it costs this project, USD an hour; None if unknown."""
    silence: Annotated[Silence | None, TEXT_ONLY] = None
    """Since when the node does not answer; None if it answers."""

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
    """A volume."""

    name: Annotated[str, Doc("Its name.")]
    state: Annotated[str, Doc("`attached`, `available`, or `gone`.")]
    node: Annotated[
        str | None, Doc("The node that it is attached to. Null while it is attached to none.")
    ] = None
    size: Annotated[str | None, TEXT_ONLY] = None
    reason: Annotated[str | None, TEXT_ONLY] = None


@struct(frozen=True, slots=True, kw_only=True)
class RankView:
    """A rank."""

    rank: Annotated[int, Doc("From 0.")]
    node: Annotated[str | None, Doc("The node that it runs or ran on. Null if it holds none.")]
    state: Annotated[str, OneOf(RankState), Doc("Its state.")]
    exit_code: Annotated[int | None, Is(), Doc("Null while it runs, and if it was not seen to end.")] = None
    attempt: Annotated[int, Doc("Counts its runs; 0 before the first.")] = 1
    cause: Annotated[
        str | None, Doc("Why it ended as it did, or what it waits for. Null if there is nothing to say.")
    ] = None
    started_at: Annotated[
        Moment | None, Doc("When this attempt started, by its host's clock. Null before that.")
    ] = None
    ended_at: Annotated[
        Moment | None, Doc("When it ended, by its host's clock. Null before that, and if nobody saw it.")
    ] = None
    confinement: Annotated[str | None, TEXT_ONLY] = None
    """How it is limited to its blocks; see `RankStatus`."""


@struct(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task."""

    name: Annotated[str, Doc("Its name.")]
    state: Annotated[str, OneOf(RankState), Doc("The state of all its ranks together.")]
    ranks: Annotated[tuple[RankView, ...], Doc("Every rank.")] = ()
    cause: Annotated[str | None, Doc("Why it waits. Null if it does not, or that is not known.")] = None
    started_at: Annotated[
        Moment | None, Doc("When the first rank of this attempt started. Null before that.")
    ] = None
    ended_at: Annotated[
        Moment | None, Doc("When its last rank ended. Null before that, and if nobody saw it.")
    ] = None
    seconds: Annotated[
        float | None, Digits(3), Doc("How long it ran, or has run. Null if that is not known.")
    ] = None
    waiting_since: Annotated[Moment | None, Doc("Since when it waits for a place. Null if it does not.")] = (
        None
    )
    stopped: Annotated[bool, Doc("Whether a user stopped it, so that it does not start by itself.")] = False
    retry: RetryOutlook | None = None


@struct(frozen=True, slots=True, kw_only=True)
class HealthOutput:
    """A node that takes no work, a declared host that is not a node, a backend that could not be read, or a
    volume that is gone.
    """

    address: Annotated[
        str,
        address_of(("node", "fleet", "backend", "volume")),
        Doc("The address; for a host, that of its fleet."),
    ]
    host: Annotated[str | None, Doc("The host that is left out. Null of all others.")]
    state: Annotated[
        str,
        OneOf((*SICK, LEFT_OUT, UNREADABLE, GONE)),
        Doc("A node's state, or the kind of the other things."),
    ]
    since: Annotated[
        Moment | None, Doc("Since when a node does not answer, in UTC. Null if that is not known.")
    ]
    given_up_at: Annotated[
        Moment | None, Of("until"), Doc("When it is given up unless it answers, in UTC. Null for never.")
    ]
    detail: Annotated[str, Doc("For people.")]
    hint: Annotated[str | None, Doc("What to do. Null if there is nothing to say.")]


@struct(frozen=True, slots=True, kw_only=True)
class DriftOutput:
    """A difference between the records and what exists."""

    address: Annotated[str, Doc("What differs.")]
    change: Annotated[
        str,
        OneOf(("gone", "changed", "orphan")),
        Doc("`gone`: it is recorded, but gone; `orphan`: it exists, but is not recorded."),
    ]
    detail: Annotated[str, Doc("For people.")]


@struct(frozen=True, slots=True, kw_only=True)
class OutageOutput:
    """One backend."""

    backend: Annotated[str, Doc("Its name.")]
    part: Annotated[
        str | None,
        Of(lambda outage: outage.part or None),
        Doc("The part that cannot be read, such as `offers`. Null for all of it."),
    ]
    since: Annotated[float, Mark.UTC, Doc("Since when, as an ISO time.")]
    until: Annotated[float, Mark.UTC, Doc("When it is asked again, as an ISO time.")]
    why: Annotated[str, Doc("Why it cannot be read.")]


@struct(frozen=True, slots=True, kw_only=True)
class StatusView:
    """What `fleetform status --json` prints.

    The caller prints `diagnostics` (such as a backend that did not answer) on stderr.
    """

    lineage: Annotated[str | None, Doc("The identity of the state. Null before the first apply.")]
    serial: Annotated[int, Doc("Grows with each change of the records.")]
    fleets: Annotated[tuple[FleetView, ...], Doc("Declared fleets, and those that still have nodes.")] = ()
    nodes: Annotated[tuple[NodeView, ...], Doc("Recorded nodes.")] = ()
    volumes: Annotated[tuple[VolumeView, ...], Doc("Recorded volumes.")] = ()
    tasks: Annotated[tuple[TaskView, ...], Doc("Declared and recorded tasks.")] = ()
    health: Annotated[tuple[Health, ...], As(tuple[HealthOutput, ...]), Doc("What is not well.")] = ()
    """In text it is shown at the nodes and hosts, and on stderr."""
    drift: Annotated[
        tuple[Drift, ...], As(tuple[DriftOutput, ...]), Doc("Differences from the records.")
    ] = ()
    """The fields above leave out nodes and ranks that are gone."""
    left_alone: Annotated[
        tuple[Outage, ...],
        As(tuple[OutageOutput, ...]),
        Doc("The unreadable backends that the leading loop leaves alone."),
    ] = ()
    limits: Annotated[
        tuple[LimitView, ...], Doc("The project's `limits` of cost and nodes, beside what is there.")
    ] = ()
    spent: Spent | None = None
    hosts: Annotated[tuple[HostView, ...], TEXT_ONLY] = ()
    """Hosts that were looked at and are not nodes."""
    diagnostics: Annotated[tuple[Diagnostic, ...], TEXT_ONLY] = ()


def status_json(view: StatusView) -> dict[str, Any]:
    """What `status --json` prints."""
    return {"format_version": FORMAT_VERSION, **output(StatusView, view)}


def health_json(items: Iterable[Health]) -> list[dict[str, Any]]:
    """The things that are not well, as data."""
    return [output(HealthOutput, health) for health in items]


def host_view(host: Host, unfit: LeftOut | None) -> HostView:
    """The view of a host that is not a node yet; `unfit` says why it cannot be one."""
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
    by_task: dict[str, dict[int, Record]] = {name: {} for name in desired.tasks}
    for record in state.of("rank"):
        by_task.setdefault(record.rank.task, {})[record.rank.rank] = record
    attached = {r.attachment.volume: r.attachment.node for r in state.of("attachment")}
    fleets = []
    for name in sorted({*desired.fleets, *(n.fleet for n in nodes)}):
        mine = [n for n in nodes if n.fleet == name]
        total, busy = sum(n.total for n in mine), sum(n.busy for n in mine)
        price = total_price(n.cost for n in mine)
        fleets.append(FleetView(name=name, nodes=len(mine), total=total, busy=busy, hourly=price))
    declared, hourly = desired.project.limits, total_price(n.cost for n in nodes)
    month = None if hourly is None else hourly * HOURS_A_MONTH  # of nodes that are there all month
    limits = (
        ("cost_per_hour", declared.cost_per_hour, hourly),
        ("cost_per_month", declared.cost_per_month, month),
        ("nodes", declared.nodes, len(nodes)),
    )
    return StatusView(
        lineage=state.lineage,
        serial=state.serial,
        fleets=tuple(fleets),
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
        tasks=tuple(_task(name, by_task[name], desired, state, at) for name in sorted(by_task, key=natural)),
        limits=tuple(
            LimitView(limit=name, most=most, now=there) for name, most, there in limits if most is not None
        ),
    )


def _node(record: Record, state: State, held: dict[int, str], now: float | None) -> NodeView:
    inputs = record.node
    readiness = readiness_of(
        record, state.readiness.get(record.address.name, Readiness(state=NodeState.UNKNOWN))
    )
    return NodeView(
        name=record.address.name,
        fleet=inputs.fleet,
        state=readiness.state.value,
        reason=readiness.reason,
        drained=drain_of(record),
        backend=inputs.backend,
        region=inputs.region,
        zone=inputs.zone,
        instance_type=inputs.instance_type,
        price=inputs.price,
        cost=held_price(inputs.price, held, inputs.blocks) if inputs.is_shared else inputs.price,
        silence=state.silent.get(record.address.name),
        observed_at=readiness.observed_at,
        age=None if now is None or readiness.observed_at is None else max(0.0, now - readiness.observed_at),
        resources=inputs.resources,
        total=inputs.blocks,
        holders=held,
    )


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
    runs = any(status and not status.state.ended for status in statuses.values())
    ran = started is not None and last is not None and (ended is not None or runs)
    return TaskView(
        name=name,
        state=task_state(statuses, done).value,
        ranks=ranks,
        cause=waits,
        started_at=started,
        ended_at=ended,
        seconds=max(0.0, last - started) if ran and started is not None and last is not None else None,
        stopped=is_stopped(records.values()),
        retry=retry_outlook(want, records.values(), state, at) if want and at is not None else None,
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
