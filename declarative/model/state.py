"""The state: records and observations. Pure.

A record says what was made and which records it needs (`needs`), so that deletions can be ordered after the
YAML is gone (as Terraform records dependencies). Observations change by themselves. They are not changes of
the record, and never touch the serial.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, cast

from declarative.model.inputs import (
    AttachmentInputs,
    Inputs,
    NodeInputs,
    RankInputs,
    ReservationInputs,
    VolumeInputs,
    inputs_of,
)
from declarative.model.outputs import TEXT_ONLY, Digits, Key
from declarative.model.record import set_field, struct
from declarative.model.schema import Doc
from declarative.model.status import BOOTING, Drain, NodeState, RankState, RankStatus, Readiness, Silence

KINDS = ("volume", "node", "reservation", "attachment", "rank")
"""The kinds of records, in the order in which they are made."""


class Address(NamedTuple):
    """`kind/name`: what every command takes and prints, without need for shell quotes."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """`node/gpu-0` as an address; ValueError if it is not one."""
        kind, slash, name = text.partition("/")
        if not slash or not kind or not name:
            raise ValueError(text)
        return cls(kind, name)

    @classmethod
    def from_data(cls, text: str) -> Address:
        """The address of something that can be recorded; ValueError if it is not one."""
        address = cls.parse(text)
        if address.kind not in KINDS:
            raise ValueError(text)
        return address


ADOPTED = ("node", "volume", "rank")
"""The kinds that `state adopt` records again."""
PROTECTABLE = ("node", "volume")
"""The kinds that may have `prevent_destroy`."""


def orphan_hint(address: Address) -> str:
    """What to do about a thing that this state made and does not record."""
    adopt = f"`fleetform state adopt {address}` records it, " if address.kind in ADOPTED else ""
    unless = ", unless it has `prevent_destroy`" if address.kind in PROTECTABLE else ""
    return f"{adopt}`fleetform destroy --orphans` deletes it{unless}"


@struct(frozen=True, slots=True, kw_only=True)
class SilentLimit:
    """An `unreachable_duration` in seconds (None for never), and since when it counts, by our clock."""

    seconds: float | None
    since: float


@struct(frozen=True, slots=True, kw_only=True)
class NamesWhenMade:
    """What the real thing of a renamed record still carries."""

    address: Address
    token: str
    inputs: Mapping[str, str]
    """The inputs that are names."""


@struct(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing that was made: its inputs, its outputs, and the records that it needs."""

    address: Address
    backend: str | None
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[Address] = frozenset()
    generation: int = 1
    _typed: Inputs | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def typed(self) -> Inputs:
        """The inputs in the type of its kind; `BadDataError` if they do not have it."""
        if self._typed is None:
            set_field(self, "_typed", inputs_of(self.address.kind, self.inputs))
        return cast("Inputs", self._typed)

    @property
    def task(self) -> str | None:
        """The task that a reservation, an attachment or a rank is of."""
        inputs = self.typed
        return None if isinstance(inputs, NodeInputs | VolumeInputs) else inputs.task

    # The inputs of one kind each; the record has to be of it.

    @property
    def node(self) -> NodeInputs:
        return cast("NodeInputs", self.typed)

    @property
    def volume(self) -> VolumeInputs:
        return cast("VolumeInputs", self.typed)

    @property
    def reservation(self) -> ReservationInputs:
        return cast("ReservationInputs", self.typed)

    @property
    def attachment(self) -> AttachmentInputs:
        return cast("AttachmentInputs", self.typed)

    @property
    def rank(self) -> RankInputs:
        return cast("RankInputs", self.typed)

    # What backends returned, and what commands recorded beside it, by the keys below.

    @property
    def external_id(self) -> str | None:
        """The backend's id of the thing."""
        return self._text("id")

    @property
    def node_name(self) -> str | None:
        """The node that a rank was started on."""
        return self._text("node")

    @property
    def node_address(self) -> str | None:
        """The address by which other nodes reach a node."""
        return self._text("address")

    @property
    def image(self) -> str | None:
        """The id of the image that a node started from."""
        return self._text(IMAGE)

    @property
    def machine(self) -> str | None:
        """The `machine_name` of the node that a rank was started on. The node of that name may be another one
        by the time that the rank's end is known.
        """
        return self._text(MACHINE)

    @property
    def started_at(self) -> float | None:
        """When the start of a rank was asked for, by our clock."""
        return cast("float | None", self.outputs.get(STARTED))

    @property
    def names_when_made(self) -> NamesWhenMade | None:
        """The names with which a thing was made that `state mv` renamed since: the real thing still carries
        them.
        """
        names = self.outputs.get(MADE_AS)
        if not names:
            return None
        address = Address.parse(names["address"])
        return NamesWhenMade(address=address, token=str(names["token"]), inputs=names["inputs"])

    @property
    def gone_since(self) -> float | None:
        """Since when a volume is known to be gone; None for one that is there."""
        return cast("float | None", self.outputs.get(GONE_SINCE))

    @property
    def noticed_at(self) -> float | None:
        """When it was first recorded that a rank failed or was lost, by our clock."""
        return cast("float | None", self.outputs.get(NOTICED))

    @property
    def alone_seconds(self) -> float | None:
        """After how many seconds without a line a rank ends itself, as its host was told; 0 for never."""
        return cast("float | None", self.outputs.get(ALONE))

    @property
    def silent_limit(self) -> SilentLimit | None:
        """The limit of a silent node, as it was last applied."""
        recorded = self.outputs.get(SILENT_LIMIT)
        return SilentLimit(seconds=recorded["seconds"], since=recorded["since"]) if recorded else None

    def _text(self, key: str) -> str | None:
        text = self.outputs.get(key)
        return str(text) if text else None


@struct(frozen=True, slots=True, kw_only=True)
class Intent:
    """A backend call that was started and whose result is not recorded: it is read back before any plan."""

    id: int
    op: str
    address: Address
    backend: str | None
    generation: int
    token: str
    inputs: Mapping[str, Any]
    needs: frozenset[Address] = frozenset()
    begun_at: float | None = field(default=None, compare=False)
    """Seconds since the epoch when the call was last started; None if that is not known."""
    place: str | None = field(default=None, compare=False)
    """The host and its boot where that was…"""
    tick: float | None = field(default=None, compare=False)
    """…and when, in seconds since that boot: this clock cannot be set."""

    @property
    def typed(self) -> Inputs:
        """The inputs in the type of its kind; `BadDataError` if they do not have it."""
        return inputs_of(self.address.kind, self.inputs)


ORPHAN = " (orphan)"
"""At the end of a holder of blocks in `State.strays`: it runs and is not recorded."""


@struct(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that is known. `lineage` is None before the first apply."""

    lineage: str | None = None
    serial: int = 0
    records: Mapping[Address, Record] = field(default_factory=dict)
    ranks: Mapping[str, RankStatus] = field(default_factory=dict)
    readiness: Mapping[str, Readiness] = field(default_factory=dict)
    idle_since: Mapping[str, float] = field(default_factory=dict)
    detached_since: Mapping[str, float] = field(default_factory=dict)
    """Volume → since when nothing has it attached, by our clock; not there while something has."""
    generations: Mapping[Address, int] = field(default_factory=dict)
    intents: tuple[Intent, ...] = ()
    strays: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Node → block → which rank runs on it that is not recorded, as it was seen just now: never kept."""
    silent: Mapping[str, Silence] = field(default_factory=dict)
    """The nodes that do not answer, as it was seen just now. Since when, their records say (`SILENT`)."""

    def has_ended(self, rank: str) -> bool:
        """Whether a rank is known to have ended."""
        status = self.ranks.get(rank)
        return status is not None and status.state.ended

    def of(self, kind: str) -> tuple[Record, ...]:
        """The records of one kind, by name."""
        records = (r for a, r in self.records.items() if a.kind == kind)
        return tuple(sorted(records, key=lambda r: natural(r.address.name)))

    def get(self, kind: str, name: str) -> Record | None:
        """One record, or None."""
        return self.records.get(Address(kind, name))

    def held_blocks(self) -> dict[str, dict[int, str]]:
        """Node name → block → the rank that holds it, from the reservations: never counted up and down. Ranks
        that run and are not recorded hold theirs, too.
        """
        holders: dict[str, dict[int, str]] = {}
        for record in self.of("reservation"):
            blocks = holders.setdefault(record.reservation.node, {})
            blocks.update(dict.fromkeys(record.reservation.blocks, f"rank/{record.address.name}"))
        for node, strays in self.strays.items():
            holders.setdefault(node, {}).update(strays)
        return holders

    def needed(self, record: Record, kind: str) -> Record:
        """The record of a kind that a record needs; None if it needs none, or if that is not recorded."""
        return self.records[next(a for a in sorted(record.needs) if a.kind == kind)]

    def node_of_rank(self, rank: str) -> Record | None:
        """The node that a rank holds blocks of."""
        reservation = self.get("reservation", rank)
        return self.get("node", reservation.reservation.node) if reservation else None

    def gangs(self) -> dict[str, list[Record]]:
        """Task → its recorded ranks, by name."""
        out: dict[str, list[Record]] = {}
        for record in self.of("rank"):
            out.setdefault(record.rank.task, []).append(record)
        return out

    def without(self, gone: Iterable[Address]) -> State:
        """This state, had `gone` never been recorded."""
        gone = set(gone)
        return replace(self, records={a: r for a, r in self.records.items() if a not in gone})


@struct(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A rename of records before anything else is done: each record's old and new address under `source`."""

    source: str
    target: str
    addresses: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key under which `gpu-2` comes before `gpu-10`. Cached: the same names are sorted often."""
    parts = name.split("-")
    # We make no longer numbers, and `int` refuses thousands of digits.
    return tuple([(0, int(p), "") if len(p) < 19 and p.isdecimal() else (1, 0, p) for p in parts])


def by_address(address: Address) -> tuple[int, object]:
    """A sort key: kinds in the order in which they are made, then names as people count."""
    return (KINDS.index(address.kind) if address.kind in KINDS else len(KINDS), natural(address.name))


def rank_name(task: str, rank: int) -> str:
    """`train-2`: the name of a rank, and of its reservation."""
    return f"{task}-{rank}"


def token(lineage: str, address: Address, generation: int, zone: str | None) -> str:
    """The idempotency token of a create: the same for every try, another for each generation and zone."""
    text = "\0".join((lineage, str(address), str(generation), zone or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# Keys among the inputs of a rank that runs again: see the fields of `RankInputs`.
SCHEDULED = "scheduled"
RETRIES = "retries"
FAILED_ON = "failed_on"

# Keys among the outputs of records, beside what backends returned. `Record` has a property, or a function
# below says, what each of them means; times are seconds since the epoch, by our clock.
NOTICED = "noticed_at"
ATTEMPT = "attempt"
STARTED = "started_at"
MACHINE = "machine"
ALONE = "alone_seconds"
STOPPED = "stopped"
GONE_SINCE = "gone_since"
COUNTED_SINCE = "cleanup_since"
MADE_AS = "made_as"
SILENT = "silent_since"
SILENT_LIMIT = "silent_limit"
GIVEN_UP = "given_up"
DRAINED = "drained"

ENDED_ATTEMPT = "attempt"
"""The journal's key for the `id` of the attempt of a rank that was deleted, and for the `node` and `machine`
where its output is."""

TAGS = "tags"
"""The key in `provider.Thing.actual` for what is left of the tags that a thing was made with, including those
that name its owner. They are put back in place."""

IMAGE = "image"
"""The output of a node with the id of the image that it started from, and the key in `Thing.actual` of the
one that it has by now. Nothing is done about that.
"""

ANOTHERS = "owner"
"""The key there for another owner that the thing's tags name. Then the thing is not touched."""


def made_as(record: Record) -> Address:
    """The address under which a thing was made: its backend knows it by no other."""
    return record.names_when_made.address if record.names_when_made else record.address


def machine_name(record: Record) -> str:
    """The name of a node's machine, which no other has, also not the one that is made in its place."""
    return f"{made_as(record).name}.{record.generation}"


def drain_of(record: Record) -> Drain | None:
    """When and why a node was drained; None if it was not."""
    drained = record.outputs.get(DRAINED)
    if not isinstance(drained, Mapping):
        return None
    reason = drained.get("reason")
    return Drain(since=str(drained.get("since")), reason=str(reason) if reason else None)


def unused_since(record: Record, since: float) -> float:
    """From when the time counts after which a volume or node is deleted that nothing uses `since` then: not
    before its present `auto_cleanup_duration` or `idle_duration` was recorded, if it was not made with it.
    """
    return max(since, float(record.outputs.get(COUNTED_SINCE) or 0.0))


def is_stopped(ranks: Iterable[Record]) -> bool:
    """Whether the user stopped the task of these ranks: no `retry` and no `schedule` starts it again."""
    return any(r.outputs.get(STOPPED) for r in ranks)


def never_ran(rank: Record) -> bool:
    """Whether a rank is recorded only because the user stopped its task before it started."""
    return is_stopped((rank,)) and STARTED not in rank.outputs and rank.node_name is None


def silent_since(record: Record) -> float | None:
    """When a node stopped answering, as recorded; None for one that answers."""
    since = record.outputs.get(SILENT)
    return float(since) if since is not None else None


def given_up(record: Record) -> tuple[str, ...]:
    """The attempts on a host that count as lost since it did not answer, and may run there all the same. Each
    is there until the host was asked about it once more, and is stopped then if it runs.
    """
    return tuple(map(str, record.outputs.get(GIVEN_UP) or ()))


def readiness_of(record: Record, observed: Readiness) -> Readiness:
    """The readiness of a node: `draining` if it would take work if it were not drained."""
    drain = drain_of(record)
    if drain is None:
        return observed
    if observed.state is NodeState.READY or observed.state in BOOTING:
        return replace(observed, state=NodeState.DRAINING, reason=str(drain))
    return replace(observed, reason=f"{observed.reason}; {drain}" if observed.reason else str(drain))


# ------------------------------------------------------------------------------------ attempts
# An attempt is one run of a rank, by its id on its host.

_BLOCKS = re.compile(r"[0-9]+\.([0-9a-f]{1,256})\.[0-9a-f]+")
_TELLING = (RankState.FAILED, RankState.LOST, RankState.RUNNING, RankState.STARTING, RankState.STOPPED)
"""The states of a rank that decide the state of its task, in this order."""


def attempt_id(record: Record) -> str:
    """`train-2.1.f.3f9c…`: the id of a rank's attempt on its host. A rank that is made anew gets another one.

    After the generation come its blocks, as a hexadecimal number with a bit for each, so that the host can
    report them to a command that does not know the attempt. The last part is random: a restored state counts
    the same generations again, and must not take an attempt of its lost future for its own. Older versions
    wrote neither part.
    """
    known = record.outputs.get(ATTEMPT)
    return str(known) if known else f"{made_as(record).name}.{record.generation}"


def attempt_of(intent: Intent) -> str:
    """The attempt that the start of a rank is about: its token, unless an older version began it."""
    return intent.token if "." in intent.token else f"{intent.address.name}.{intent.generation}"


def started_rank(intent: Intent, node: Record) -> Record:
    """The record of a rank whose start is `intent`, on its node."""
    started = {STARTED: intent.begun_at} if intent.begun_at else {}  # an older version did not write it
    return Record(
        address=intent.address,
        backend=node.backend,
        inputs=intent.inputs,
        outputs={
            "node": node.address.name,
            MACHINE: machine_name(node),
            ATTEMPT: attempt_of(intent),
            **started,
        },
        needs=intent.needs,
        generation=intent.generation,
    )


@struct(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost of the nodes in this month, by recorded prices. Null if nobody counts it."""

    month: Annotated[str, Doc("The month in UTC: `2026-03`.")]
    dollars: Annotated[float, Key("usd"), Digits(2), Doc("USD.")]
    hours: Annotated[float, TEXT_ONLY]
    """From the begin of the month until now."""


def rank_of_attempt(attempt: str) -> tuple[str, tuple[int, ...] | None]:
    """The name that an attempt's rank had at its start, and the blocks that it runs on. None if its id does
    not say: an older version started it, or its host made it up.
    """
    name, _, rest = attempt.partition(".")
    match = _BLOCKS.fullmatch(rest)
    if match is None:
        return name, None
    bits = int(match[1], 16)
    return name, tuple(block for block in range(bits.bit_length()) if bits >> block & 1)


def first_failure(statuses: Mapping[str, RankStatus | None]) -> str | None:
    """The rank that failed or was lost first, by its host's clock; by name among equals."""
    bad = [
        (s.ended_at or 0.0, name)
        for name, s in statuses.items()
        if s and s.state in (RankState.FAILED, RankState.LOST)
    ]
    return min(bad)[1] if bad else None


def task_state(ranks: Mapping[int, RankStatus | None], master_done: bool) -> RankState:
    """The state of a task from those of its ranks, by rank; None for one that was not started."""
    states = [status.state if status else RankState.PENDING for _, status in sorted(ranks.items())]
    if master_done and states[:1] == [RankState.SUCCEEDED]:
        return RankState.SUCCEEDED if all(s.ended for s in states) else RankState.RUNNING
    if set(states) == {RankState.SUCCEEDED}:
        return RankState.SUCCEEDED
    return next((state for state in _TELLING if state in states), RankState.PENDING)
