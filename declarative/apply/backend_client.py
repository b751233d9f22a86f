"""Things that `state mv` renamed: their backend is asked by the names that it knows them by.

A thing carries the address, the token and the inputs of its making, and a rename touches nothing real. So
the record keeps those (`state.MADE_AS`), and here, at the one way to a provider, names are put
back. So is the way to a host, where another one is declared by now than was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from declarative.model.blocks import Shape
from declarative.model.inputs import zone_asked
from declarative.model.resource import Offer, Taken
from declarative.model.state import (
    COUNTED_SINCE,
    DRAINED,
    GIVEN_UP,
    GONE_SINCE,
    MADE_AS,
    SILENT,
    SILENT_LIMIT,
    Address,
    Record,
    State,
    made_as,
    token,
)
from declarative.model.status import RankStatus, Readiness
from declarative.planner.hosts import reached_by
from declarative.provider import (
    Ended,
    Fence,
    Launch,
    PermanentError,
    PermanentKind,
    Provider,
    ProviderError,
    StaleError,
    Thing,
    reads_only,
)
from declarative.provider.optional import (
    Adjusts,
    Adopts,
    Buries,
    Checks,
    Clears,
    Existing,
    FindsOthers,
    Foretells,
    Gang,
    Gangs,
    Gates,
    KnowsKeys,
    LogEnd,
    LogEnds,
    Look,
    Looks,
    Member,
    Partitions,
    Reaches,
    Recalls,
    Rehearses,
    Seat,
    StartsFrom,
    Tells,
    TellsChange,
    TellsUnused,
    Terminal,
    Terminals,
    Terms,
    Tidies,
    Visit,
    Visits,
)
from declarative.spans import timed


def as_made(record: Record) -> Record:
    """The record with the names that its backend knows."""
    known = record.outputs.get(MADE_AS)
    if not known:
        return record
    return replace(record, address=made_as(record), inputs={**record.inputs, **known["inputs"]})


def as_recorded(thing: Thing, record: Record) -> dict[str, Any]:
    """A thing's inputs with the names that its record has."""
    known = record.outputs.get(MADE_AS)
    return {**thing.inputs, **{key: record.inputs.get(key) for key in (known["inputs"] if known else ())}}


def kept(outputs: Mapping[str, Any], record: Record | None) -> dict[str, Any]:
    """New outputs of a thing, with what its backend does not know of it."""
    ours = (MADE_AS, DRAINED, SILENT, SILENT_LIMIT, GIVEN_UP, GONE_SINCE, COUNTED_SINCE)
    return {**outputs, **({k: v for k, v in record.outputs.items() if k in ours} if record else {})}


def record_token(state: State, record: Record) -> str:
    """The token with which a recorded thing was made."""
    known = record.outputs.get(MADE_AS)
    if known:
        return str(known["token"])
    return token(state.lineage or "", record.address, record.generation, zone_asked(record.typed))


def to_make(
    address: Address, inputs: Mapping[str, Any], its_token: str, held: Mapping[Address, Record]
) -> dict[str, Any] | None:
    """The names that an attachment was made with (the value of `MADE_AS`); None if nothing is renamed."""
    names: dict[str, str] = {}
    for kind in ("volume", "node") if address.kind == "attachment" else ():
        record = held.get(Address(kind, str(inputs.get(kind))))
        known = made_as(record).name if record else inputs.get(kind)
        if known != inputs.get(kind):
            names[kind] = str(known)
    if not names:
        return None
    rank, _, volume = address.name.partition(".")
    own = Address(address.kind, f"{rank}.{names.get('volume', volume)}")
    return {"address": str(own), "token": its_token, "inputs": names}


Learn = Callable[[int], bool]
"""See `Renamed`."""

T = TypeVar("T")


def never(_: int) -> bool:
    """The `Learn` of who stays refused."""
    return False


class BackendClient:
    """A provider that takes and gives records by their present names; `inventory` and `find` by its own."""

    def __init__(
        self,
        provider: Provider,
        ways: Mapping[str, Mapping[str, Any]] | None = None,
        fence: Fence = reads_only,
        learn: Learn = never,
        backend: str = "",
    ) -> None:
        """`ways` is how hosts are declared to be reached, by the present names of their nodes. `fence` is
        asked before each call that changes something. `learn` is told of a later writer that a look met, and
        says whether to look once more as a later one still.
        """
        self._provider = provider
        self.backend = backend
        self._ways = ways or {}
        self._fence = fence
        self._learn = learn

    def _look(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except StaleError as error:
            if not self._learn(error.newest):
                raise
        return ask()

    def _own(self, node: Record) -> Record:
        """A record as the provider knows it, to be reached as it is declared."""
        way = self._ways.get(node.address.name) if node.address.kind == "node" else None
        if way and (host := node.node.host):
            node = replace(node, inputs={**node.inputs, "host": reached_by(host, way)})
        return as_made(node)

    @timed
    def offers(self) -> tuple[Offer, ...]:
        """See the port."""
        return self._provider.offers()

    def gpus(self) -> tuple[str, ...] | None:
        """See `provider.Rehearses`."""
        return self._provider.gpus() if isinstance(self._provider, Rehearses) else None

    def can(self) -> frozenset[str] | None:
        """See `provider.Foretells`; None of others."""
        return self._provider.can() if isinstance(self._provider, Foretells) else None

    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        """See `provider.Adopts`."""
        if not isinstance(self._provider, Adopts):
            summary = "it cannot take on instances or volumes that are there"
            raise PermanentError(PermanentKind.INVALID, summary, hint="docs/import.md names those that can")
        return self._provider.existing(kind, ids)

    @timed
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        """See `provider.FindsOthers`; none if it cannot find them."""
        return self._provider.others(addresses) if isinstance(self._provider, FindsOthers) else ()

    @timed
    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        """See `provider.StartsFrom`; None if it cannot tell."""
        return self._provider.starts_from(region, known) if isinstance(self._provider, StartsFrom) else None

    @timed
    def look(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Look]:
        """See `provider.Looks`."""
        if not isinstance(self._provider, Looks):
            raise PermanentError(
                PermanentKind.INVALID, "it has no hosts that exist", hint="`driver: ssh` has"
            )
        return self._provider.look(hosts)

    def known_keys(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Sequence[str]]:
        """See `provider.KnowsKeys`."""
        return self._provider.known_keys(hosts) if isinstance(self._provider, KnowsKeys) else {}

    def members(self, settings: Mapping[str, Any]) -> tuple[Member, ...]:
        """See `provider.Partitions`."""
        if not isinstance(self._provider, Partitions):
            raise PermanentError(PermanentKind.INVALID, "it has no partitions", hint="`driver: slurm` has")
        return self._provider.members(settings)

    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[Taken, ...]]:
        """See `provider.Partitions`; nodes of others are shared with nobody."""
        if not isinstance(self._provider, Partitions):
            return {}
        names = {made_as(node).name: node.address.name for node in nodes}
        found = self._provider.taken([self._own(node) for node in nodes])
        return {names[name]: held for name, held in found.items()}

    def reserve(self, gang: Gang) -> None:
        """See `provider.Gangs`; with others each rank holds its own place."""
        if isinstance(self._provider, Gangs):
            self._fence()
            self._provider.reserve(self._own_gang(gang))

    def expected(self, task: str, ranks: Sequence[tuple[Record, Shape]], seconds: int | None) -> float | None:
        """See `provider.Gangs`; others have no queue."""
        if not isinstance(self._provider, Gangs):
            return None
        return self._provider.expected(task, [(self._own(node), share) for node, share in ranks], seconds)

    def _own_gang(self, gang: Gang) -> Gang:
        return replace(gang, seats=tuple(Seat(node=self._own(s.node), attempt=s.attempt) for s in gang.seats))

    @timed
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """See `provider.LogEnds`."""
        if not isinstance(self._provider, LogEnds):
            summary = f"the backend {node.backend} cannot say where logs end"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address))
        return self._provider.log_ends(self._own(node), attempts)

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """See `provider.Terminals`."""
        if not isinstance(self._provider, Terminals):
            summary = f"the backend {node.backend} has no terminals on its nodes"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address))
        return self._provider.terminal(self._own(node), attempt, command, tty=tty)

    def reaches(self, node: Record, address: str) -> str | None:
        """See `provider.Reaches`; other providers cannot tell."""
        if not isinstance(self._provider, Reaches):
            return None
        return self._provider.reaches(self._own(node), address)

    @timed
    def inventory(self) -> tuple[Thing, ...]:
        """See the port. Addresses are those that the things were made with."""
        return self._look(self._provider.inventory)

    @timed
    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. The address is the one that it was made with."""
        return self._look(lambda: self._provider.find(address, token))

    @property
    def checks(self) -> bool:
        """Whether it can tell what a create would fail with."""
        return isinstance(self._provider, Checks)

    @timed
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`; others find out when it is done."""
        return self._provider.check(wanted) if isinstance(self._provider, Checks) else ()

    @timed
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """See `provider.Clears`; others leave nothing."""
        if isinstance(self._provider, Clears):
            self._fence()
            self._provider.clear(address, token, inputs)

    @timed
    def recall(self, records: Sequence[Record]) -> Mapping[Address, Thing | Ended | None] | None:
        """See `provider.Recalls`, by present addresses; None for a provider that cannot."""
        if not isinstance(self._provider, Recalls):
            return None
        names = {made_as(record): record.address for record in records}
        found = self._provider.recall([self._own(record) for record in records])
        return {names[address]: thing for address, thing in found.items()}

    @timed
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. What is made of renamed things goes by the names that the backend knows."""
        self._fence()
        known = to_make(address, inputs, token, needs)
        if known is None:
            return self._provider.create(address, token, inputs, needs)
        held = {made_as(record): as_made(record) for record in needs.values()}
        own = Address.parse(known["address"])
        outputs = self._provider.create(own, token, {**inputs, **known["inputs"]}, held)
        return {**outputs, MADE_AS: known}

    @timed
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port."""
        self._fence()
        known = have.outputs.get(MADE_AS)
        wanted = {**inputs, **known["inputs"]} if known else inputs
        return kept(self._provider.update(self._own(have), token, wanted), have)

    @timed
    def delete(self, have: Record) -> None:
        """See the port."""
        self._fence()
        self._provider.delete(self._own(have))

    @timed
    def bury(self, node: Record) -> None:
        """See `provider.Buries`; of others nothing runs on."""
        if isinstance(self._provider, Buries):
            self._fence()
            self._provider.bury(self._own(node))

    @timed
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """See the port."""
        names = {made_as(node).name: node.address.name for node in nodes}
        seen = self._provider.readiness([self._own(node) for node in nodes])
        return {names[name]: readiness for name, readiness in seen.items()}

    @timed
    def visit(self, node: Record) -> Visit:
        """See `provider.Visits`; of others the readiness alone is known. Things go by their own names."""
        own = self._own(node)
        if isinstance(self._provider, Visits):
            visits = self._provider
            return self._look(lambda: visits.visit(own))
        return Visit(readiness=self._provider.readiness([own])[own.address.name])

    @timed
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """See the port."""
        self._fence()
        volumes = {path: as_made(volume) for path, volume in launch.volumes.items()}
        return self._provider.start(self._own(node), replace(launch, volumes=volumes))

    @property
    def gates(self) -> bool:
        """Whether ranks can be prepared before they run."""
        return isinstance(self._provider, Gates)

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """See `provider.Gates`; of others no rank can be reached."""
        return self._provider.peers(self._own(node), attempts) if isinstance(self._provider, Gates) else {}

    @timed
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """See `provider.Gates`; with others all that was started runs."""
        if not isinstance(self._provider, Gates):
            return self.poll(node, attempts)
        self._fence()
        return self._provider.release(self._own(node), attempts, peers)

    @timed
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See the port."""
        return self._look(lambda: self._provider.poll(self._own(node), attempts))

    @timed
    def attempts(self, node: Record, wanted: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See `provider.Tells`; of others the `wanted` ones alone, which are always in the answer."""
        if isinstance(self._provider, Tells):
            tells = self._provider
            return {**dict.fromkeys(wanted), **self._look(lambda: tells.attempts(self._own(node)))}
        return self.poll(node, wanted) if wanted else {}

    @timed
    def mark(self) -> object | None:
        """See `provider.TellsChange`; of others None."""
        return self._provider.mark() if isinstance(self._provider, TellsChange) else None

    @timed
    def unused(self, nodes: Sequence[Record]) -> frozenset[str]:
        """See `provider.TellsUnused`; of others none."""
        if not isinstance(self._provider, TellsUnused):
            return frozenset()
        names = {made_as(node).name: node.address.name for node in nodes}
        return frozenset(names[name] for name in self._provider.unused([self._own(node) for node in nodes]))

    @timed
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See the port."""
        self._fence()
        return self._provider.stop(self._own(node), attempt, grace_seconds)

    @timed
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """See the port."""
        self._fence()
        self._provider.change_limit(self._own(node), attempt, seconds)

    @timed
    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        """See `provider.Adjusts`; others end nothing by themselves but at a limit."""
        if isinstance(self._provider, Adjusts):
            self._fence()
            self._provider.adjust(self._own(node), attempt, terms)

    @timed
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """See `provider.Tidies`; nothing happens where there is nothing to tidy."""
        if isinstance(self._provider, Tidies):
            self._fence()
            self._provider.tidy(self._own(node), oldest)

    @timed
    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """See the port."""
        return self._provider.read_log(self._own(node), attempt, offset, limit)
