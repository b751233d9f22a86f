"""What was observed: the inventory, the state that results from the records with it, and the health of nodes.
Pure.

Observing is not changing: an ended rank's reservation counts as released once it is seen, before any command
records that (docs/architecture.md, "What a change does").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from declarative.model.blocks import Shape, share
from declarative.model.diagnostic import Diagnostic
from declarative.model.inputs import NodeInputs, RankInputs
from declarative.model.outputs import OneOf
from declarative.model.record import struct
from declarative.model.resource import LOCAL, Desired, Host, LeftOut, Offer, OthersShare
from declarative.model.schema import Doc
from declarative.model.spec import RetryEvent
from declarative.model.spec.values import Retry
from declarative.model.state import (
    ANOTHERS,
    GIVEN_UP,
    TAGS,
    Address,
    Record,
    State,
    drain_of,
    natural,
    silent_since,
)
from declarative.model.status import (
    BOOTING,
    START_UP_LIMIT,
    HostRefusal,
    NodeState,
    RankState,
    RankStatus,
    Readiness,
    Silence,
)

LOSABLE = ("node", "volume")
"""Kinds whose loss matters. A gone attachment only means that its rank has ended."""


@struct(frozen=True, slots=True, kw_only=True)
class Drift:
    """A difference between the records and what exists."""

    address: Annotated[str, Doc("What differs.")]
    change: Annotated[
        str,
        OneOf(("gone", "changed", "orphan", "ended")),
        Doc(
            "`gone`: it is recorded, but gone; `orphan`: it exists, but is not recorded; "
            "`ended`: with `--refresh-only`, a rank failed."
        ),
    ]
    detail: Annotated[str, Doc("For people.")]


@struct(frozen=True, slots=True, kw_only=True)
class PartitionNode:
    """A node of a partition, as it was observed. It exists without being made, and others use it, too."""

    host: Host
    shape: Shape
    readiness: Readiness
    taken: tuple[OthersShare, ...] = ()
    price: float | None = None


@struct(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What was observed, as values. A node that is not in `readiness` is unknown: neither ready nor empty."""

    readiness: Mapping[str, Readiness] = field(default_factory=dict)
    ranks: Mapping[str, RankStatus] = field(default_factory=dict)
    gone: frozenset[Address] = frozenset()
    unsure: frozenset[Address] = frozenset()
    """Gone things that may only seem so: their place showed nothing of this state."""
    deleting: frozenset[Address] = frozenset()
    """Things whose deletion was cut short: if they are gone, that is what was asked for."""
    ended: Mapping[Address, str] = field(default_factory=dict)
    """Gone things that their backend reports as ended, with its reason: there is no doubt."""
    altered: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    """Existing things that others changed, with their values now (`provider.Thing.actual`)."""
    drift: tuple[Drift, ...] = ()
    recovered: Mapping[Address, Record] = field(default_factory=dict)
    strays: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Node → block → the rank that runs there and is not recorded."""
    silent: Mapping[str, Silence] = field(default_factory=dict)
    """The nodes that do not answer."""
    offers: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()
    """Backends whose cloud has offers, and was not asked for them: nothing is, offline."""
    existing: Mapping[str, tuple[PartitionNode, ...]] = field(default_factory=dict)
    """Fleet → all nodes of its partition, recorded or not. A partition that could not be read is left out."""
    taken: Mapping[str, tuple[OthersShare, ...]] = field(default_factory=dict)
    """Recorded node → what others hold there."""
    left_out: tuple[LeftOut, ...] = ()
    """Declared hosts that are not ready to be nodes as they are declared now."""
    images: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Backend and region → the id of the image that a node made there now would start from, where nodes are
    recorded and the cloud says so.
    """
    own_gpus: tuple[str, ...] | None = None
    """The models of this machine's GPUs, for nodes of the driver `local`; None if they were not looked at."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def lost(self) -> frozenset[Address]:
        """The gone volumes that nobody was deleting. They stay recorded: a new one would be empty, so a
        person decides what becomes of them.
        """
        return frozenset(a for a in self.gone - self.deleting if a.kind == "volume")

    @property
    def unread(self) -> frozenset[str | None]:
        """The addresses of the backends that could not be read."""
        return frozenset(d.address for d in self.diagnostics if d.code == UNREAD)

    def launched(self, backends: Iterable[str]) -> list[Offer]:
        """The offers of these backends, without existing hosts and instances."""
        return [offer for name in backends for offer in self.offers.get(name, ()) if offer.host is None]

    def mendable(self, address: Address) -> tuple[str, ...]:
        """The changes by others that can be put back: tags, unless they say that the thing is another's."""
        changes = self.altered.get(address, {})
        return (TAGS,) if TAGS in changes and ANOTHERS not in changes else ()


def rank_holding(record: Record) -> str | None:
    """The rank that a reservation or an attachment is for."""
    if record.address.kind == "reservation":
        return record.address.name
    return record.attachment.rank if record.address.kind == "attachment" else None


def _lost(state: State, inventory: Inventory) -> dict[str, str]:
    """Ranks that hold something gone, or something on a node that was given up, and what that is. No rank is
    lost with a `lost` volume: one wrong listing would end it. Its node says when it has ended.
    """
    causes = {Address("node", n): lost_with(n, s) for n, s in inventory.silent.items() if s.given_up}
    for address in inventory.gone - inventory.lost:
        why = inventory.ended.get(address)
        causes[address] = f"{address} is gone" + (f": {why}" if why else "")
    out: dict[str, str] = {}
    for record in state.records.values() if causes else ():
        rank, missing = rank_holding(record), sorted(record.needs & causes.keys())
        if rank is not None and missing:
            out.setdefault(rank, causes[missing[0]])
    return out


def observed_state(state: State, inventory: Inventory) -> State:
    """The state as it would be recorded now: with recovered things, without vanished ones and ended ranks.
    A volume that is `lost` stays recorded, with the ranks that run on it.
    """
    records, gone = {**state.records, **inventory.recovered}, inventory.gone - inventory.lost
    for address in gone | unstarted(records, state, inventory):
        records.pop(address, None)
    ranks = {**state.ranks, **inventory.ranks}
    for lost, cause in _lost(state, inventory).items():
        if Address("rank", lost) in records and not (lost in ranks and ranks[lost].state.ended):
            ranks[lost] = RankStatus(state=RankState.LOST, cause=cause)
    ended = {name for name, status in ranks.items() if status.state.ended}
    staying: dict[Address, Record] = {}
    for address, record in records.items():
        rank = rank_holding(record)
        released = rank is not None and rank in ended and Address("rank", rank) in records
        if released or (rank is not None and record.needs & gone):
            continue
        free = address.kind == "rank" and address.name in ended
        staying[address] = replace(record, needs=frozenset()) if free else record
    return replace(
        state,
        records=staying,
        ranks=ranks,
        readiness={**state.readiness, **inventory.readiness},
        strays={**inventory.strays, **_others(staying, inventory)},
        silent=inventory.silent,
    )


def unstarted(records: Mapping[Address, Record], state: State, inventory: Inventory) -> frozenset[Address]:
    """The attachments of `lost` volumes for ranks that were not started: these wait for the volume."""
    begun = {*records, *(intent.address for intent in state.intents)}
    return frozenset(
        address
        for address, record in (records.items() if inventory.lost else ())
        if address.kind == "attachment" and record.needs & inventory.lost
        if Address("rank", record.attachment.rank) not in begun
    )


def _others(records: Mapping[Address, Record], inventory: Inventory) -> dict[str, dict[int, str]]:
    """Node → block → its other holder, for nodes that are shared with others."""
    our_blocks: dict[str, set[int]] = {name: {*inventory.strays.get(name, ())} for name in inventory.taken}
    for record in records.values() if our_blocks else ():
        if record.address.kind == "reservation" and record.reservation.node in our_blocks:
            our_blocks[record.reservation.node].update(record.reservation.blocks)
    out: dict[str, dict[int, str]] = {}
    for name, taken in inventory.taken.items():
        node = records.get(Address("node", name))
        if node is not None:
            holders = blocks_of_others(node.node.resources, node.node.blocks, taken, our_blocks[name])
            out[name] = {**inventory.strays.get(name, {}), **holders}
    return out


def shown_drift(inventory: Inventory, desired: Desired) -> tuple[Drift, ...]:
    """What differs from what is recorded. A volume that `removed` forgets is meant to stay, and no orphan."""
    is_forgotten = desired.project.removed.keeps
    return tuple(d for d in inventory.drift if d.change != "orphan" or not is_forgotten(d.address))


def vanished(
    recorded: State, inventory: Inventory, forgotten: Collection[Address] = ()
) -> tuple[Address, ...]:
    """Missing nodes and volumes that nobody was deleting: several of one backend at once, or any if nothing
    shows that the right place was asked.

    If the right place was asked, volumes alone do not count: none that is gone is made anew by itself,
    however many they are. They do if a plan has `forgotten` one of them, for it may err with a listing.

    This is more likely a fault than the truth, so the user decides (rule 2 of docs/architecture.md, "Rules
    for backends"). A thing that its backend reports as ended is not missing: any number of spot nodes may be
    taken away at once. A volume that was known to be gone before is not missing either.
    """
    deleting = {intent.address for intent in recorded.intents if intent.op == "delete"}
    missing = sorted(inventory.gone - deleting - inventory.ended.keys())
    by_backend: dict[str, list[Address]] = {}
    for address in missing:
        record = recorded.records.get(address)
        if record is None or address.kind not in LOSABLE or record.gone_since is not None:
            continue
        # Its cloud may have been ending it because it did not answer.
        if record.outputs.get(GIVEN_UP) is None or record.node.host:
            by_backend.setdefault(record.backend or LOCAL, []).append(address)
    doubtful: list[Address] = []
    for addresses in by_backend.values():
        matters = any(address.kind == "node" or address in forgotten for address in addresses)
        if (matters and len(addresses) > 1) or inventory.unsure & {*addresses}:
            doubtful += addresses
    return tuple(doubtful)


def blocks_of_others(
    shape: Shape, total: int, taken: Iterable[OthersShare], our_blocks: Collection[int]
) -> dict[int, str]:
    """The blocks of a node that others hold, each with its holder, from the last block on.

    A block counts as busy if others hold any of its CPUs, memory or GPUs: it cannot be given away whole.
    """
    per = share(shape, total, 1)
    free = [block for block in reversed(range(total)) if block not in our_blocks]
    out: dict[int, str] = {}
    cpus = memory = gpus = 0
    for one in taken:
        cpus, memory, gpus = cpus + one.cpu, memory + one.memory_mib, gpus + one.gpus
        sums = ((cpus, per.cpu), (memory, per.memory_mib), (gpus, per.gpus))
        busy_blocks = max(-(-has // each) if each else total if has else 0 for has, each in sums)
        for block in free[len(out) : busy_blocks]:
            out[block] = one.holder
    return out


# ------------------------------------------------------------------------------------------------- health
# Which things need somebody, which nodes do not answer and are given up, which are made anew.
#
# A node that does not answer takes no new work, and is given up after its fleet's `unreachable_duration`,
# if that is safe. A cloud ends its node before anything of the node counts as lost. A host is only out of
# reach: other hosts have to answer, to show that our own line is not the fault. Our line also counts as the
# fault if several nodes fall silent at once, and none is left that answers. While their cloud answers, that
# is believed for at most `SURE` times the limit. Its API is reached by another way than the machines, so it
# proves nothing about the line. But dead machines that their cloud reports as running would hold their gang,
# and cost money, without end.

SICK = (NodeState.NOT_READY, NodeState.UNREACHABLE, NodeState.FAILED)
"""States of nodes that need somebody. The others are ready, starting, or unobserved."""
LEFT_OUT, UNREADABLE, GONE = "left_out", "unreadable", "gone"
UNREAD = "backend-unreadable"
"""The code of the warning about a backend that does not answer."""
NO_REASON = "no reason is known"
NODE_HINT = "fix that by hand: no plan does it; `fleetform status --refresh` shows how nodes are"
SILENT_HINT = (
    "once it answers, it takes work again by itself, unless it is drained or given up; `fleetform status "
    "--refresh` shows how nodes are"
)
HOST_HINT = "once that is mended, `fleetform plan` shows what becomes of it"

TRUST_HINT = "`fleetform hosts trust` shows the fingerprints and, where you agree, writes the keys"
REPLACE_HINT = (
    "somebody may be posing as it: ask who runs it; if it was set up anew, `fleetform hosts trust --replace` "
    "shows the fingerprints and, where you agree, writes the new key"
)
LOGIN_HINT = (
    "name another private key, or let this one in: `ssh-copy-id` appends its public half to "
    "`~/.ssh/authorized_keys` there"
)


def refused_hint(refusal: HostRefusal) -> str:
    """What is to be done about a host that is refused, or refuses us."""
    if not refusal.key:
        return LOGIN_HINT
    return REPLACE_HINT if refusal.known else TRUST_HINT


@struct(frozen=True, slots=True, kw_only=True)
class Health:
    """One unhealthy thing. Times are seconds since the epoch, by our clock."""

    address: str
    """`node/NAME`, `volume/NAME`, `backend/NAME`, or `fleet/NAME` for a declared host that is not a node."""
    state: str
    """A node's state, `left_out` for a host, `unreadable` for a backend, `gone` for a volume."""
    detail: str
    host: str | None = None
    """The host that is left out."""
    since: float | None = None
    """When a node stopped answering."""
    until: float | None = None
    """When it is given up, if it does not answer before."""
    hint: str | None = None


def node_hint(state: NodeState) -> str:
    """What is to be done about a node in a state that needs somebody; nothing, if that passes by itself."""
    return SILENT_HINT if state is NodeState.UNREACHABLE else NODE_HINT


def node_health(
    readiness_of_nodes: Iterable[tuple[str, Readiness]], silent: Mapping[str, Silence], now: float
) -> tuple[Health, ...]:
    """The health of nodes that stay, by their last readiness, and what follows if they do not answer."""
    return tuple(
        Health(
            address=f"node/{name}",
            state=readiness.state.value,
            detail=silence_text(silent[name], now) if name in silent else readiness.reason or NO_REASON,
            since=silent[name].since if name in silent else None,
            until=silent[name].until if name in silent else None,
            hint=node_hint(readiness.state),
        )
        for name, readiness in sorted(readiness_of_nodes, key=lambda item: natural(item[0]))
        if readiness.state in SICK
    )


def host_health(left_out: Iterable[LeftOut]) -> tuple[Health, ...]:
    """The health of declared hosts that are not nodes."""
    return tuple(
        Health(
            address=f"fleet/{i.host.fleet}",
            state=LEFT_OUT,
            detail=i.reason,
            host=i.host.key,
            hint=refused_hint(i.refusal) if i.refusal else HOST_HINT,
        )
        for i in left_out
    )


_OF_WARNING = {UNREAD: UNREADABLE, "volume-gone": GONE}


def warning_health(diagnostics: Iterable[Diagnostic]) -> tuple[Health, ...]:
    """The health of backends that did not answer as they should, and of volumes that are gone."""
    return tuple(
        Health(address=d.address or "", state=_OF_WARNING[d.code], detail=d.summary, hint=d.hint)
        for d in diagnostics
        if d.code in _OF_WARNING
    )


LIMIT = 600.0
"""Seconds after which a node is given up if its fleet is not declared."""
ALONE = 0.65
"""The share of its fleet's `unreachable_duration` for which a rank runs on when its host is cut off. It has
the rest to notice that and end, before others count it as lost; they begin to count later than it does."""
AT_ONCE = 60.0
"""Seconds within which nodes fall silent `at once`."""
SURE = 3
"""How many times the limit nodes of a backend may be silent if all fell silent at once."""
ANSWERS = (NodeState.READY, NodeState.NOT_READY)


def silences(
    state: State, readiness: Mapping[str, Readiness], limits: Mapping[str, float | None], now: float
) -> dict[str, Silence]:
    """The recorded nodes that did not answer when `readiness` was observed.

    `limits` is fleet → seconds after which its nodes are given up, None for never.
    """
    nodes = {r.address.name: r for r in state.of("node") if r.address.name in readiness}
    silences_of = {
        name: _silence(record, observed, limits.get(record.node.fleet, LIMIT), now)
        for name, record in nodes.items()
        if (observed := readiness[name]).state is NodeState.UNREACHABLE
    }
    silent = _SilentNodes(nodes, readiness, silences_of, now)
    return {name: silent.judged(name) for name in silences_of}


def _silence(record: Record, observed: Readiness, limit: float | None, now: float) -> Silence:
    """When a node stopped answering, and until when it is waited for. A limit that became shorter since
    counts from the apply that recorded it: what was recorded before holds in this one.
    """
    known = silent_since(record)
    since = known if known is not None else min(now, observed.observed_at or now)
    start, before = since, limit
    if known is not None and (recorded := record.silent_limit):
        start, before = max(since, recorded.since), recorded.seconds
    silence = Silence(since=since, until=None, why=observed.reason, limit=limit, counts_from=start)
    if limit is None:
        return silence
    if limit == before:
        return replace(silence, until=start + limit)
    if before is not None and before < limit:
        return replace(silence, until=since + limit, counts_from=since)
    until = None if before is None else start + before
    return replace(silence, until=until, counts_from=now)


@struct(frozen=True, slots=True)
class _SilentNodes:
    """The readiness of all recorded nodes, and the silent ones among them."""

    nodes: Mapping[str, Record]
    readiness: Mapping[str, Readiness]
    silent: Mapping[str, Silence]
    now: float

    def judged(self, name: str) -> Silence:
        """What follows for a silent node: it is given up, now or later, or it is kept."""
        node, silence = self.nodes[name], self.silent[name]
        if silence.until is None or self.now < silence.until:
            return silence
        if kept := self._kept(node):
            return replace(silence, until=None, kept=kept)
        line = self._line(node)
        if line:
            silence = replace(silence, until=silence.since + SURE * (silence.until - silence.since))
            if self.now < (silence.until or 0.0):
                return replace(silence, kept=line)
        return replace(silence, given_up=True)

    def _kept(self, node: Record) -> str | None:
        """Why a node is never given up, even after its time."""
        if not node.node.host:
            if node.node.prevent_destroy:
                return "its fleet's `prevent_destroy` is true"
            return "the project's `limits.protected` names it" if node.node.protected else None
        fleet = node.node.fleet
        others = (name for name, other in self.nodes.items() if other.node.fleet == fleet)
        if any(self.readiness[name].state is NodeState.READY for name in others):
            return None
        return f"no other host of fleet/{fleet} answers, so that it may be the line from here"

    def _line(self, node: Record) -> str | None:
        """Why a cloud's node is not given up yet after its time: our own line may be the fault."""
        if node.node.host or self.readiness[node.address.name].down:
            return None
        others = [name for name, other in self.nodes.items() if other.backend == node.backend]
        if any(self.readiness[name].state in ANSWERS for name in others):
            return None
        times = [self.silent[name].since for name in others if name in self.silent]
        if len(times) == 1 or max(times) - min(times) > AT_ONCE:
            return None
        return (
            f"all nodes of backend {node.backend} fell silent at once, so that it may be the line from here"
        )


def lost_with(name: str, silence: Silence) -> str:
    """The cause of a rank's loss on a node that was given up."""
    limit = 0 if silence.until is None else round(silence.until - silence.since)
    return (
        f"node/{name} was given up: it has not answered for {duration_text(limit)} (`unreachable_duration`)"
    )


def duration_text(seconds: float) -> str:
    """`90 s`, `10 min`, `3 h`: a time in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def silence_text(silence: Silence, now: float) -> str:
    """`has not answered for 3 min (timed out): it is given up in 7 min`, for a node."""
    past = now - silence.since
    text = f"has not answered for {duration_text(past)}" if past >= 1 else "does not answer"
    why = f" ({silence.why})" if silence.why else ""
    if silence.given_up:
        then = "it is given up"
    elif silence.kept:
        then = f"it is not given up: {silence.kept}"
        if silence.until is not None:
            then += f"; if none answers, it is given up in {duration_text(max(0.0, silence.until - now))}"
    elif silence.until is None:
        then = "it is never given up (`unreachable_duration: off`)"
    else:
        then = f"it is given up in {duration_text(max(0.0, silence.until - now))}"
    return f"{text}{why}: {then}"


def alone_seconds(node: NodeInputs, rank: RankInputs, limits: Mapping[str, float | None]) -> int | None:
    """`Launch.alone_seconds` of a rank that may run again elsewhere while nobody can end it here. `limits` is
    fleet → seconds after which its nodes are given up.
    """
    limit = limits.get(node.fleet, LIMIT)
    if limit is None or not node.host:
        return None
    runs_again = RetryEvent.INTERRUPTION in Retry.parse(rank.retry or False).on_events
    return max(1, int(limit * ALONE)) if runs_again else None


DRAINED, FAILED, BROKEN, BOOTS, WORKS = range(5)


def why_unfit(
    record: Record, observed: Readiness, idle_since: float | None, now: float, silence: Silence | None = None
) -> str | None:
    """Why an idle node is replaced; None if it is fit, or may still become fit.

    A node that was ready before is never starting again. An existing host gains nothing from another try.
    """
    if record.node.host:
        return None
    if silence and silence.given_up:
        return f"it has not answered for {duration_text(now - silence.since)}"
    late = idle_since is not None and now - idle_since >= START_UP_LIMIT
    if observed.state is not NodeState.FAILED and not (observed.state in BOOTING and late):
        return None
    why = f": {observed.reason}" if observed.reason else ""
    if observed.state is NodeState.FAILED:
        return f"it failed{why}"
    return f"not ready within {START_UP_LIMIT / 60:.0f} minutes{why}"


def usefulness(record: Record, state: NodeState) -> int:
    """How much a fleet loses with an idle node, from `DRAINED` (least) to `WORKS` (most)."""
    if drain_of(record):
        return DRAINED
    if state is NodeState.FAILED:
        return FAILED
    if state is NodeState.READY:
        return WORKS
    return BOOTS if state in BOOTING else BROKEN
