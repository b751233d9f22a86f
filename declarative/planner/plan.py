"""The types of a plan. A plan is self-contained: apply never reads the YAML again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Protocol

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import Inputs, NodeInputs, OfferInputs, VolumeInputs, inputs_of
from declarative.model.outputs import TEXT_ONLY, As, Key, Moment, Of, Usd, address_of
from declarative.model.record import struct
from declarative.model.resource import Desired
from declarative.model.schema import Doc, Is
from declarative.model.state import KINDS, ORPHAN, Address, Record, Renamed, Spent, State, rank_name
from declarative.model.text import and_more
from declarative.placement.problem import Node, Refusal, Remedy, Suggestion
from declarative.planner.inventory import LEFT_OUT, UNREADABLE, Drift, Health, warning_health

FORMAT_VERSION = 1
ROUNDING = 1e-6
"""USD an hour."""


class Op(StrEnum):
    """What an action does to an address; a replacement is a delete and a create."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Reason(StrEnum):
    """Why an action is done: for people, and for what the loop may do without one (`part.causes_of`)."""

    NEW = "new"
    ADOPTED = "adopted"
    CHANGED = "changed"
    REMOVED = "removed"
    CASCADE = "cascade"
    GONE = "gone"
    INCOMPLETE = "incomplete"
    REQUESTED = "requested"
    RETRY = "retry"
    SURPLUS = "surplus"
    IDLE = "idle"
    UNUSED = "unused"
    MISMATCH = "mismatch"
    DRIFT = "drift"
    UNFIT = "unfit"
    SCHEDULE = "schedule"
    DESTROY = "destroy"


def adopted_id(inputs: Inputs | None) -> str | None:
    """The id of the adopted instance or volume; None for a node or volume that was made."""
    if isinstance(inputs, NodeInputs):
        return inputs.instance_id
    return inputs.volume_id if isinstance(inputs, VolumeInputs) else None


def finding(
    desired: Desired,
    address: str | None,
    code: str,
    summary: str,
    hint: str,
    severity: Severity = Severity.ERROR,
    place: str | None = None,
) -> Diagnostic:
    """A diagnostic of something that is declared, at its place or at another key of `Desired.places`."""
    span = desired.places.get(place or address or "")
    return Diagnostic(code=code, summary=summary, hint=hint, span=span, address=address, severity=severity)


def warning(desired: Desired, address: str | None, code: str, summary: str, hint: str) -> Diagnostic:
    """A warning about something that is declared, with its place."""
    return finding(desired, address, code, summary, hint, Severity.WARNING)


BY_KIND: Mapping[str, Any] = {"read": lambda action, data: inputs_of(action["address"].kind, data)}
"""Metadata of inputs: they are read by the kind of the action's address."""


@struct(frozen=True, slots=True, kw_only=True)
class Action:
    """One step; a replacement is a delete and a create."""

    id_: ClassVar[Annotated[str, Of("id"), Doc("`<op>:<address>`.")]]
    op: Annotated[Op, Doc("What is done.")]
    address: Annotated[Address, As(str), address_of(KINDS), Doc("The address that it changes.")]
    reason: Annotated[Reason, Doc("Why; for people.")]
    because: Annotated[
        tuple[str, ...],
        Doc("The changed fields, or the replaced addresses that this one needs; of a retry, the failure."),
    ] = ()
    before: Annotated[
        Inputs | None,
        As(Mapping[str, Any]),
        Doc("The inputs as recorded, secrets left out. Null for a create."),
    ] = field(default=None, metadata=BY_KIND)
    after: Annotated[
        Inputs | None,
        As(Mapping[str, Any]),
        Doc("The inputs as they will be, secrets left out. Null for a delete."),
    ] = field(default=None, metadata=BY_KIND)
    needs: Annotated[tuple[str, ...], Doc("Ids of the actions that have to be done before.")] = ()
    holds: Annotated[tuple[Address, ...], TEXT_ONLY] = ()
    """The addresses that the new record needs: stored in the state, so that deletions can be ordered later.
    """
    backend: Annotated[str | None, TEXT_ONLY] = None
    forget: Annotated[
        bool,
        Of("forgets"),
        Doc("Whether a delete only removes the record: the volume was adopted or is to be kept."),
    ] = False
    """Without the adopted, which `forgets` adds: those of which `removed` says `destroy: false`."""
    ends: Annotated[
        bool,
        Doc(
            "Whether it ends work that goes on, though it replaces nothing: a `max_duration` or `retry` that "
            "is over already, or a `schedule` that was added or whose hours changed."
        ),
    ] = False

    @property
    def stops(self) -> bool:
        """Whether it stops a running rank so; else a failed task is not run again."""
        return self.ends and (self.op is Op.DELETE or "max_duration" in self.because)

    @property
    def typed(self) -> Inputs:
        """The new inputs, or the old ones for a delete; `isinstance` of it tells the kinds apart."""
        inputs = self.before if self.op is Op.DELETE else self.after
        assert inputs is not None
        return inputs

    @property
    def task(self) -> str | None:
        """The task of its reservation, attachment or rank."""
        inputs = self.typed
        return None if isinstance(inputs, NodeInputs | VolumeInputs) else inputs.task

    @property
    def id(self) -> str:
        """`create:volume/data-0`: derived, never random."""
        return f"{self.op.value}:{self.address}"

    @property
    def forgets(self) -> bool:
        """Whether a delete only forgets: an adopted thing, or one to be kept, stays as it is."""
        return self.op is Op.DELETE and (self.forget or adopted_id(self.before) is not None)

    @property
    def of_gone(self) -> bool:
        """Whether it deletes the record of a thing that is gone, of which a new one is made."""
        return self.forget and self.reason not in (Reason.REMOVED, Reason.DESTROY)

    @property
    def believes(self) -> bool:
        """Whether it goes by what was observed: if that shows no volume, the record goes and the volume may
        stay. `removed` with `destroy: false` forgets it in any case.
        """
        return self.op is Op.DELETE and self.address.kind == "volume" and (self.of_gone or not self.forgets)


def group_of(action: Action) -> str:
    """The group of an action, which is done as a whole: `task/train`, `node/gpu-0`, `volume/data-0`."""
    return str(action.address) if action.task is None else f"task/{action.task}"


def names_of(item: Action | Record) -> set[str]:
    """The names that mean an action or a record: its own, and those of its task, fleet or volume."""
    out, inputs = {str(item.address)}, item.typed
    if item.task is not None:
        out.add(f"task/{item.task}")
    if isinstance(inputs, NodeInputs):
        out.add(f"fleet/{inputs.fleet}")
    base, _, number = item.address.name.rpartition("-")
    if item.address.kind == "volume" and number.isdecimal():
        out.add(f"volume/{base}")
    return out


class ReservationStatus(StrEnum):
    """Whether a rank's blocks are taken by this plan, were held before, or are given back."""

    NEW = "new"
    KEPT = "kept"
    RELEASED = "released"


@struct(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The blocks of one rank."""

    task: Annotated[str, Doc("The task's name.")]
    rank: Annotated[int, Doc("From 0.")]
    node: Annotated[str, Doc("The node's name.")]
    fleet: Annotated[str, Doc("The fleet's name.")]
    new_node: Annotated[bool, Doc("Whether this plan launches the node.")]
    blocks: Annotated[tuple[int, ...], Doc("The numbers of its blocks.")]
    total_blocks: Annotated[int, Is(minimum=1), Doc("How many blocks the node has.")]
    volumes: Annotated[Mapping[str, str], Doc("The volume's name by the path where it is mounted.")]
    backend: Annotated[str, Doc("The backend's name.")]
    region: Annotated[str, Doc("The region.")]
    zone: Annotated[str | None, Doc("The zone. Null if the backend has none.")]
    instance_type: Annotated[str, Doc("The backend's name for the node's shape.")]
    price: Annotated[Usd | None, Doc("The rank's share, USD an hour. Null if unknown.")]
    status: Annotated[ReservationStatus, Doc("`new`, `kept` as it was, or `released`.")]
    restart: Annotated[bool, Doc("Whether the rank runs, and is stopped and started again by this plan.")] = (
        False
    )


def held_by(node: Node, task: str, rank: int, blocks: tuple[int, ...], **more: Any) -> Reservation:
    """The reservation of blocks of a node by a rank."""
    return Reservation(
        task=task,
        rank=rank,
        node=node.name,
        fleet=node.fleet,
        new_node=node.new,
        blocks=blocks,
        total_blocks=node.total,
        backend=node.backend,
        region=node.region,
        zone=node.zone,
        instance_type=node.instance_type,
        price=None if node.price is None else round(node.price * len(blocks) / node.total, 6),
        **more,
    )


def block_holders(state: State, held: Iterable[Reservation]) -> dict[str, dict[int, str]]:
    """Who will hold which block: the ranks with these reservations, and what is there and not recorded."""
    holders: dict[str, dict[int, str]] = {}
    for reservation in held:
        if reservation.status is not ReservationStatus.RELEASED:
            name = f"rank/{rank_name(reservation.task, reservation.rank)}"
            holders.setdefault(reservation.node, {}).update(dict.fromkeys(reservation.blocks, name))
    for node, strays in state.strays.items():
        # A queued rank is shown, and not the jobs that it waits for.
        holders[node] = {**strays, **holders.get(node, {})}
    return holders


@struct(frozen=True, slots=True, kw_only=True)
class Difference:
    """A declared value that a node gets when it is made anew. Nothing is made anew for it."""

    address: Annotated[str, address_of(("node",)), Doc("The node.")]
    field: Annotated[str, Doc("What differs: `image`, `network.subnet`, `resources.cpu`.")]
    before: Annotated[Any, Doc("The value that it was made with; null for none.")]
    after: Annotated[
        Any, Doc("The declared value; null if it is not to be had any more; a list for one of it.")
    ]
    replaced: Annotated[bool, Doc("Whether this plan makes the node anew.")] = False


def differing_nodes(differences: Iterable[Difference]) -> list[Address]:
    """The nodes that differ until they are made anew, each once."""
    return [
        *dict.fromkeys(
            Address.parse(difference.address) for difference in differences if not difference.replaced
        )
    ]


def total_price(prices: Iterable[float | None]) -> float | None:
    """A sum with an unknown in it is unknown."""
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return round(total, 6)


def held_price(price: float | None, holders: Mapping[int, str], total: int) -> float | None:
    """The price of the blocks that this project holds of a partition's node."""
    mine = sum(holder.startswith("rank/") for holder in holders.values())
    return price if mine and price is None else (price or 0.0) * mine / total


@struct(frozen=True, slots=True, kw_only=True)
class NodePreview:
    """One line of the block map: a node as it will be, and who holds which of its blocks."""

    name: str
    fleet: str
    total: int
    holders: Mapping[int, str]
    status: str
    """`new`, `kept` or `deleted`."""
    state: str
    price: float | None = 0.0
    """USD an hour for the whole node; None if unknown."""
    spot: bool = False
    shared: bool = False
    """Whether it is a partition's: it exists anyway, and others use it, too."""

    @property
    def cost(self) -> float | None:
        """What it costs this project, USD an hour; None if unknown."""
        return held_price(self.price, self.holders, self.total) if self.shared else self.price

    @property
    def stays(self) -> bool:
        """Whether it is there after the plan."""
        return self.status != "deleted"


@struct(frozen=True, slots=True, kw_only=True)
class Queued:
    """A task that starts when others free its nodes.

    It waits in the queue of its cluster (`queue: true`).
    """

    task: Annotated[str, Doc("The task's name.")]
    holders: Annotated[
        tuple[Annotated[str, Doc("In the cluster's words.")], ...], Key("behind"), Doc("Who holds them.")
    ]
    until: Annotated[
        Moment | None,
        Key("behind_until"),
        Doc("When the last of them has to end, in UTC. Null if nobody knows."),
    ]
    expected: Annotated[
        Moment | None,
        Key("expected_start"),
        Doc("When the cluster expects it to start, in UTC. Null if it does not report this."),
    ] = None


@struct(frozen=True, slots=True, kw_only=True)
class Cost:
    """USD an hour of whole nodes, before and after; None if a price is unknown."""

    before: float | None
    after: float | None
    priced_on: Mapping[str, str] = field(default_factory=dict)
    """Backend → the day of its prices for these nodes, if known."""
    excludes: tuple[str, ...] = ()
    """What costs money and is not in the sums: `volumes`, whose prices backends do not report."""
    bound: float | None = None
    """A lower bound of `after` with the same tasks placed; None if it was not worked out."""
    unpriced: bool = False
    """Whether there are offers of unknown price: the bound takes them for dear, and they may not be."""
    spent: Spent | None = None
    """The spending of this month; None if unknown."""


@struct(frozen=True, slots=True, kw_only=True)
class Spare:
    """An offer that a node may take instead of the planned one."""

    offer: OfferInputs
    """The node's inputs that follow from the offer."""
    limit: int | None = None
    """The most nodes of this kind, including existing ones."""


@struct(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Other offers for new nodes whose own offers have no capacity after all.

    `kinds` are the names of nodes, grouped by likeness. A way has a spare for each kind. Ways are tried in
    order, and each keeps the plan's promises on limits, prices, blocks and volumes. A cluster's nodes are all
    among them, also those without another offer.
    """

    kinds: tuple[tuple[str, ...], ...]
    ways: tuple[tuple[Spare, ...], ...]
    together: bool = False
    """They are a cluster: all of them go the same way. Else each goes its own way."""
    idle: tuple[str, ...] = ()
    """The nodes among them that exist already. Nothing runs on them, so they move with the others."""
    wanted: bool = False
    """Their fleet wants nodes for itself: made nodes are kept even if the others cannot be had."""

    def moves_only(self, nodes: Container[str]) -> bool:
        """Whether all nodes that it is for are among these."""
        return all(name in nodes for kind in self.kinds for name in kind)


@struct(frozen=True, slots=True, kw_only=True)
class Origin:
    """The project of a plan, so that nobody takes one plan for another. Only shown: no digest covers it."""

    project: str | None = None
    """Its name, else its folder's."""
    environment: str | None = None
    """Its folder in the repository; None at the top, and outside of any."""
    state: str | None = None
    """Where its state is. It holds no password."""
    commit: str | None = None
    """The commit that is checked out; None if it is unknown."""
    changed: bool = False
    """Documents of the project are not as in that commit."""


@struct(frozen=True, slots=True, kw_only=True)
class Basis:
    """The basis of a plan: the recorded state, and the oldest look at a node."""

    lineage: str | None
    serial: int
    observed_at: float | None = None
    """The oldest look at a node, seconds since the epoch."""
    offline: bool = False
    """Nothing was looked at: the last observations count."""


@struct(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """The tasks that get no place, and what would follow if they did."""

    refusals: tuple[Refusal, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    """Changes that several tasks share, and the tasks that fit together with each."""
    waiting: tuple[str, ...] = ()
    """Tasks that stay pending because of their `retry`: apply still does the rest."""
    once: tuple[str, ...] = ()
    """The tasks of `waiting` that only `--replace` asks for: without it, no later apply starts them."""
    starts: tuple[Action, ...] = ()
    """The action on rank 0 of each task once there is room. Only shown."""
    allowed: bool = False
    """Whether the rest is done all the same: `allow_unplaced` of the project, or `--allow-unplaced`."""

    @property
    def counted(self) -> tuple[Refusal, ...]:
        """The refusals that decide the plan's result, without tasks that wait for a `schedule`."""
        return () if self.allowed else tuple(r for r in self.refusals if r.starts is None)

    @property
    def tried_again(self) -> frozenset[str]:
        """The tasks of `waiting` that every later apply tries to start."""
        return frozenset(self.waiting).difference(self.once)

    @property
    def pending(self) -> tuple[str, ...]:
        """The tasks that stay pending: because of their `retry`, or until a `schedule` starts."""
        return tuple(r.task for r in self.refusals if r.task in {*self.waiting} or r.starts is not None)


@struct(frozen=True, slots=True, kw_only=True)
class Observed:
    """What differs from the records, and what is unhealthy."""

    drift: tuple[Drift, ...] = ()
    vanished: tuple[str, ...] = ()
    """Things of one backend of which several vanished at once: apply asks before it makes them anew or
    forgets them.
    """
    ended: tuple[tuple[str, str], ...] = ()
    """Tasks that stay failed, lost or stopped, each with its state. Only shown."""
    unfit: tuple[Health, ...] = ()
    """Nodes that stay and take no work, and declared hosts that are no nodes."""
    differences: tuple[Difference, ...] = ()
    """Declared values that nodes were not made with. Only shown: nothing is replaced for them."""


@struct(frozen=True, slots=True, kw_only=True)
class Preview:
    """The fleets as they are once the plan is done."""

    nodes: tuple[NodePreview, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    """Other offers for nodes whose own have no capacity; a node is in at most one."""
    suggestions: tuple[Suggestion, ...] = ()
    """Moves that would let a node go. Only shown: no plan moves what runs."""
    queued: tuple[Queued, ...] = ()
    """Tasks of this plan that start when others let go of their nodes. Only shown."""
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """How clouds are reached, as declared: no record tells whether that changed. Only shown."""
    cost: Cost = Cost(before=0.0, after=0.0)


@struct(frozen=True, slots=True, kw_only=True)
class Part:
    """How `--target` and `--exclude` limit the plan. Null for the whole plan.

    All but patterns are groups: `task/NAME`, `node/NAME` and `volume/NAME`.
    """

    targets: Annotated[tuple[Annotated[str, Doc("A pattern.")], ...], Doc("As given.")] = ()
    excludes: Annotated[tuple[Annotated[str, Doc("A pattern.")], ...], Doc("As given.")] = ()
    needed: Annotated[
        tuple[Annotated[str, Doc("`node/gpu-0`.")], ...], Doc("Included because a target needs it.")
    ] = ()
    left_out: Annotated[
        tuple[Annotated[str, Doc("`task/train`.")], ...], Doc("What the whole plan would do besides.")
    ] = ()
    held_up: Annotated[
        tuple[Annotated[str, Doc("An address.")], ...], Doc("Targets among these that cannot be done now.")
    ] = ()


@struct(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of the plan."""

    moved: tuple[Renamed, ...] = ()
    part: Part | None = None
    refresh_only: bool = False
    """Only what happened by itself is recorded."""


@struct(frozen=True, slots=True, kw_only=True)
class Loss:
    """The content of a volume that the plan deletes or replaces."""

    address: str
    size: str | None = None
    task: str | None = None
    """The task that has it attached."""
    unused_since: float | None = None
    """Since when nothing has it attached, seconds since the epoch; None if something has, or if unknown."""
    file: str | None = None
    line: int | None = None
    """Where it is declared, if it still is."""


@struct(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole answer of `make`."""

    basis: Basis
    origin: Origin = Origin()
    actions: tuple[Action, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    unplaced: Unplaced = Unplaced()
    observed: Observed = Observed()
    preview: Preview = Preview()
    scope: Scope = Scope()
    diagnostics: tuple[Diagnostic, ...] = ()
    contents: tuple[Loss, ...] = ()
    """The content of all volumes that the whole plan deletes. Only shown."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The content that is lost with this plan, or with this part of it."""
        known = {loss.address: loss for loss in self.contents}
        gone = [str(a.address) for a in self.of(Op.DELETE, "volume") if not a.forgets]
        return tuple(known.get(address, Loss(address=address)) for address in gone)

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.actions or self.scope.moved or (self.scope.refresh_only and self.observed.drift))

    @property
    def health(self) -> tuple[Health, ...]:
        """All that is unhealthy and that no action fixes. Offline, hosts that are not nodes are not looked
        at.
        """
        unfit = [h for h in self.observed.unfit if not (self.basis.offline and h.state == LEFT_OUT)]
        return (*unfit, *warning_health(self.diagnostics))

    @property
    def unreadable_backends(self) -> tuple[str, ...]:
        """The backends that did not answer as they should: their things may differ from the declaration."""
        return tuple(h.address for h in self.health if h.state == UNREADABLE)

    @property
    def result(self) -> str:
        """The first that holds of `error`, `unplaced` (`waiting`, if all of those tasks wait for capacity),
        `changes`, `unhealthy` and `none`. Tasks that `Unplaced.counted` leaves out do not count.
        """
        if any(d.severity.value == "error" for d in self.diagnostics):
            return "error"
        if tasks := {r.task for r in self.unplaced.counted}:
            return "waiting" if tasks <= {*self.unplaced.waiting} else "unplaced"
        return "changes" if self.changes else "unhealthy" if self.health else "none"

    @property
    def refused(self) -> bool:
        """Whether only rules refuse the plan, `limits` and protections: there is a plan to look at."""
        errors = {d.code for d in self.diagnostics if d.severity.value == "error"}
        return bool(errors) and errors <= {"over-limit", "protected"}

    @property
    def shown(self) -> bool:
        """Whether people get to see it: it has no errors, or is refused by rules."""
        return self.result != "error" or self.refused

    @property
    def restarts(self) -> int:
        """The number of running ranks that are stopped and started again."""
        return sum(reservation.restart for reservation in self.reservations)

    @property
    def stops(self) -> int:
        """The number of running ranks that a changed limit or schedule stops."""
        return sum(action.stops for action in self.actions)

    def of(self, op: Op, kind: str) -> list[Action]:
        """The actions of one operation on one kind of thing."""
        return [a for a in self.actions if a.op is op and a.address.kind == kind]

    def only(self, actions: tuple[Action, ...]) -> Plan:
        """The plan with only these actions, and with the fallbacks of the nodes that they make."""
        created = {a.address.name for a in actions if a.op is Op.CREATE and a.address.kind == "node"}
        fallbacks = tuple(f for f in self.preview.fallbacks if f.moves_only(created))
        return replace(self, actions=actions, preview=replace(self.preview, fallbacks=fallbacks))

    def summary(self) -> dict[str, int]:
        """Counts of actions; a replacement counts once, under `replace`."""
        gone = {a.address for a in self.actions if a.op is Op.DELETE}
        replaced = sum(a.op is Op.CREATE and a.address in gone for a in self.actions) if gone else 0
        counts = Counter(a.op for a in self.actions)
        counts[Op.CREATE] -= replaced
        counts[Op.DELETE] -= replaced
        return {**{op.value: counts[op] for op in Op}, "replace": replaced}


# ----------------------------------------------------------------------------------------- shares of the cost

MOST_NAMED = 3
"""A list of shares names at most so many fleets, and tasks of each; more are counted."""


class PricedNode(Protocol):
    """A node with the price of the whole, and what of it this project pays: USD an hour, None if unknown."""

    @property
    def fleet(self) -> str: ...
    @property
    def total(self) -> int: ...
    @property
    def price(self) -> float | None: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def holders(self) -> Mapping[int, str]:
        """Busy block → its holder, `rank/train-0`."""


@struct(frozen=True, slots=True, kw_only=True)
class TaskShare:
    """One task."""

    task: Annotated[str, Doc("Its name.")]
    hourly: Annotated[Usd | None, Doc("Its blocks. Null if a price is unknown.")]


@struct(frozen=True, slots=True, kw_only=True)
class FleetShare:
    """The nodes of one fleet."""

    fleet: Annotated[str, Doc("Its name.")]
    nodes: Annotated[int, Doc("How many there would be.")]
    hourly: Annotated[Usd | None, Doc("All of them. Null if a price is unknown.")]
    tasks: Annotated[tuple[TaskShare, ...], Doc("The tasks that hold blocks of them.")]

    @property
    def idle(self) -> float | None:
        """The cost of the blocks that no task holds, USD an hour; None if unknown."""
        used = total_price(task.hourly for task in self.tasks)
        return None if self.hourly is None or used is None else max(0.0, self.hourly - used)


def fleet_shares(nodes: Iterable[PricedNode]) -> tuple[FleetShare, ...]:
    """The shares of all fleets, the largest first."""
    costs: dict[str, list[float | None]] = {}
    blocks: dict[str, dict[str, list[float | None]]] = {}
    for node in nodes:
        costs.setdefault(node.fleet, []).append(node.cost)
        tasks = blocks.setdefault(node.fleet, {})
        block = None if node.price is None else node.price / node.total
        for holder in node.holders.values():
            if holder.startswith("rank/"):
                task = holder.removeprefix("rank/").removesuffix(ORPHAN).rpartition("-")[0]
                tasks.setdefault(task, []).append(block)
    out: list[FleetShare] = []
    for fleet, prices in costs.items():
        shares = [TaskShare(task=task, hourly=total_price(held)) for task, held in blocks[fleet].items()]
        shares.sort(key=lambda share: (share.hourly is not None, -(share.hourly or 0.0), share.task))
        hourly = total_price(prices)
        out.append(FleetShare(fleet=fleet, nodes=len(prices), hourly=hourly, tasks=tuple(shares)))
    return tuple(sorted(out, key=lambda s: (s.hourly is not None, -(s.hourly or 0.0), -s.nodes, s.fleet)))


def largest_shares(nodes: Iterable[PricedNode], factor: float = 1.0) -> str:
    """`fleet/gpu 6.00 (task/train 4.00, task/eval 1.00), fleet/cpu 2.00 and 3 more`: those that cost
    something, times `factor`.
    """

    def amount(share: FleetShare | TaskShare) -> str:
        return "unknown" if share.hourly is None else f"{share.hourly * factor:,.2f}"

    texts: list[str] = []
    for fleet in (fleet for fleet in fleet_shares(nodes) if fleet.hourly != 0):
        tasks = [f"task/{task.task} {amount(task)}" for task in fleet.tasks if task.hourly != 0]
        within = f" ({and_more(tasks, MOST_NAMED)})" if tasks else ""
        texts.append(f"fleet/{fleet.fleet} {amount(fleet)}{within}")
    return and_more(texts, MOST_NAMED)
