"""The one way to a provider: each call is timed, and asks the fence before it changes something.

A thing carries the address, the token and the inputs that it was made with. `state mv` touches nothing real,
so a record of a renamed thing keeps those (`state.MADE_AS`), and here they replace its present ones.
Likewise, the declared way to a host replaces the recorded one. What a provider cannot do (its optional
parts) gets an answer here that is true for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from declarative.model.blocks import Shape
from declarative.model.inputs import zone_asked
from declarative.model.resource import Offer, OthersShare
from declarative.model.spec.health import HealthPolicy
from declarative.model.spec.policy import OperatorPolicy
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
from declarative.planner.node_health import judged
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
    optional,
    reads_only,
)
from declarative.provider.optional import Existing, Gang, LogEnd, Look, Member, Seat, Terminal, Terms, Visit
from declarative.spans import timed


def as_made(record: Record) -> Record:
    """The record with the names that its backend knows."""
    names = record.names_when_made
    if not names:
        return record
    return replace(record, address=names.address, inputs={**record.inputs, **names.inputs})


def as_recorded(thing: Thing, record: Record) -> dict[str, Any]:
    """A thing's inputs with the names that its record has."""
    names = record.names_when_made
    return {**thing.inputs, **{key: record.inputs.get(key) for key in (names.inputs if names else ())}}


OUR_OUTPUTS = (MADE_AS, DRAINED, SILENT, SILENT_LIMIT, GIVEN_UP, GONE_SINCE, COUNTED_SINCE)
"""The recorded outputs that a backend knows nothing of."""


def with_our_outputs(outputs: Mapping[str, Any], record: Record | None) -> dict[str, Any]:
    """New outputs of a thing, with those of its record that its backend knows nothing of."""
    ours = {key: value for key, value in record.outputs.items() if key in OUR_OUTPUTS} if record else {}
    return {**outputs, **ours}


def record_token(state: State, record: Record) -> str:
    """The token with which a recorded thing was made."""
    if record.names_when_made:
        return record.names_when_made.token
    return token(state.lineage or "", record.address, record.generation, zone_asked(record.typed))


def names_at_backend(
    address: Address, inputs: Mapping[str, Any], its_token: str, needs: Mapping[Address, Record]
) -> dict[str, Any] | None:
    """The value of `MADE_AS` for a new attachment of renamed things; None if nothing is renamed."""
    names: dict[str, str] = {}
    for kind in ("volume", "node") if address.kind == "attachment" else ():
        record = needs.get(Address(kind, str(inputs.get(kind))))
        name = made_as(record).name if record else inputs.get(kind)
        if name != inputs.get(kind):
            names[kind] = str(name)
    if not names:
        return None
    rank, _, volume = address.name.partition(".")
    own = Address(address.kind, f"{rank}.{names.get('volume', volume)}")
    return {"address": str(own), "token": its_token, "inputs": names}


Learn = Callable[[int], bool]
"""Gets the number of a later writer that a look met; whether to look once more, as a still later writer."""

T = TypeVar("T")


class BackendClient:
    """A provider that takes and gives records by their present names.

    `inventory` and `find` go by the addresses that things were made with, and so do the things of a `visit`.
    """

    def __init__(
        self,
        provider: Provider,
        ways: Mapping[str, Mapping[str, Any]] | None = None,
        fence: Fence = reads_only,
        learn: Learn = lambda _: False,
        backend: str = "",
        policy: OperatorPolicy | None = None,
        health: Mapping[str, HealthPolicy] | None = None,
    ) -> None:
        """`ways` is how hosts are declared to be reached, by the present names of their nodes. `health` is
        fleet → which findings of machines count.
        """
        self._health = health or {}
        self._provider = provider
        self._policy = policy or OperatorPolicy()
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

    def _by_present_names(
        self, nodes: Sequence[Record], ask: Callable[[Sequence[Record]], Mapping[str, T]]
    ) -> dict[str, T]:
        """What the provider answers about nodes, which it knows by the names that they were made with."""
        names = {made_as(node).name: node.address.name for node in nodes}
        return {names[name]: answer for name, answer in ask([self._own(node) for node in nodes]).items()}

    @timed
    def offers(self) -> tuple[Offer, ...]:
        return self._provider.offers()

    def gpus(self) -> tuple[str, ...] | None:
        return self._provider.gpus() if isinstance(self._provider, optional.Rehearses) else None

    def can(self) -> frozenset[str] | None:
        return self._provider.can() if isinstance(self._provider, optional.Foretells) else None

    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        if not isinstance(self._provider, optional.Adopts):
            summary = "it cannot take on instances or volumes that are there"
            raise PermanentError(PermanentKind.INVALID, summary, hint="docs/import.md names those that can")
        return self._provider.existing(kind, ids)

    @timed
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        return self._provider.others(addresses) if isinstance(self._provider, optional.FindsOthers) else ()

    @timed
    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        return (
            self._provider.starts_from(region, known)
            if isinstance(self._provider, optional.StartsFrom)
            else None
        )

    @timed
    def look(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Look]:
        if not isinstance(self._provider, optional.Looks):
            raise PermanentError(
                PermanentKind.INVALID, "it has no hosts that exist", hint="`driver: ssh` has"
            )
        return self._provider.look(hosts)

    def known_keys(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Sequence[str]]:
        return self._provider.known_keys(hosts) if isinstance(self._provider, optional.KnowsKeys) else {}

    def members(self, settings: Mapping[str, Any]) -> tuple[Member, ...]:
        if not isinstance(self._provider, optional.Partitions):
            raise PermanentError(PermanentKind.INVALID, "it has no partitions", hint="`driver: slurm` has")
        return self._provider.members(settings)

    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[OthersShare, ...]]:
        """Nodes of providers without partitions are shared with nobody."""
        if not isinstance(self._provider, optional.Partitions):
            return {}
        return self._by_present_names(nodes, self._provider.taken)

    def reserve(self, gang: Gang) -> None:
        """With providers that reserve nothing for gangs, each rank holds its own place."""
        if isinstance(self._provider, optional.Gangs):
            self._fence()
            seats = (Seat(node=self._own(s.node), attempt=s.attempt) for s in gang.seats)
            self._provider.reserve(replace(gang, seats=tuple(seats)))

    def expected(self, task: str, ranks: Sequence[tuple[Record, Shape]], seconds: int | None) -> float | None:
        if not isinstance(self._provider, optional.Gangs):
            return None
        return self._provider.expected(task, [(self._own(node), share) for node, share in ranks], seconds)

    @timed
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        if not isinstance(self._provider, optional.LogEnds):
            summary = f"the backend {node.backend} cannot say where logs end"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address))
        return self._provider.log_ends(self._own(node), attempts)

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        if not isinstance(self._provider, optional.Terminals):
            summary = f"the backend {node.backend} has no terminals on its nodes"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address))
        return self._provider.terminal(self._own(node), attempt, command, tty=tty)

    def reaches(self, node: Record, address: str) -> str | None:
        if not isinstance(self._provider, optional.Reaches):
            return None
        return self._provider.reaches(self._own(node), address)

    @timed
    def inventory(self) -> tuple[Thing, ...]:
        return self._look(self._provider.inventory)

    @timed
    def find(self, address: Address, token: str) -> Thing | None:
        return self._look(lambda: self._provider.find(address, token))

    @property
    def checks(self) -> bool:
        """Whether it can tell what a create would fail with."""
        return isinstance(self._provider, optional.Checks)

    @timed
    def check(self, planned: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        refused = {str(inputs.get("identity")): self._refused(a, inputs) for a, inputs in planned.items()}
        faults = self._provider.check(planned) if isinstance(self._provider, optional.Checks) else ()
        return [*filter(None, refused.values()), *faults]

    def _refused(self, address: Address, inputs: Mapping[str, Any]) -> PermanentError | None:
        """The error of a node whose identity the operator's policy does not allow."""
        identity = inputs.get("identity")
        if not identity or not (why := self._policy.refused_identity(str(identity))):
            return None
        hint = "a policy may allow it (`identities`): docs/security.md"
        return PermanentError(PermanentKind.INVALID, f"{address}: {why}", about="identity", hint=hint)

    @timed
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        if isinstance(self._provider, optional.Clears):
            self._fence()
            self._provider.clear(address, token, inputs)

    @timed
    def recall(self, records: Sequence[Record]) -> Mapping[Address, Thing | Ended | None] | None:
        """By present addresses; None if the provider cannot look things up by their ids."""
        if not isinstance(self._provider, optional.Recalls):
            return None
        names = {made_as(record): record.address for record in records}
        things = self._provider.recall([self._own(record) for record in records])
        return {names[address]: thing for address, thing in things.items()}

    @timed
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        if refused := self._refused(address, inputs):
            raise refused
        self._fence()
        names = names_at_backend(address, inputs, token, needs)
        if names is None:
            return self._provider.create(address, token, inputs, needs)
        own, own_inputs = Address.parse(names["address"]), {**inputs, **names["inputs"]}
        own_needs = {made_as(record): as_made(record) for record in needs.values()}
        return {**self._provider.create(own, token, own_inputs, own_needs), MADE_AS: names}

    @timed
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self._fence()
        names = have.names_when_made
        own_inputs = {**inputs, **names.inputs} if names else inputs
        return with_our_outputs(self._provider.update(self._own(have), token, own_inputs), have)

    @timed
    def delete(self, have: Record) -> None:
        self._fence()
        self._provider.delete(self._own(have))

    @timed
    def bury(self, node: Record) -> None:
        if isinstance(self._provider, optional.Buries):
            self._fence()
            self._provider.bury(self._own(node))

    @timed
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        answers = self._by_present_names(nodes, self._provider.readiness)
        fleets = {node.address.name: node.node.fleet for node in nodes}
        return {name: judged(answer, self._health.get(fleets[name])) for name, answer in answers.items()}

    @timed
    def visit(self, node: Record) -> Visit:
        """Providers without visits report only the readiness."""
        own = self._own(node)
        if isinstance(self._provider, optional.Visits):
            visits = self._provider
            visit = self._look(lambda: visits.visit(own))
        else:
            visit = Visit(readiness=self._provider.readiness([own])[own.address.name])
        return replace(visit, readiness=judged(visit.readiness, self._health.get(node.node.fleet)))

    @timed
    def start(self, node: Record, launch: Launch) -> RankStatus:
        self._fence()
        volumes = {path: as_made(volume) for path, volume in launch.volumes.items()}
        return self._provider.start(self._own(node), replace(launch, volumes=volumes))

    @property
    def gates(self) -> bool:
        """Whether ranks can be prepared before they run."""
        return isinstance(self._provider, optional.Gates)

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        return (
            self._provider.peers(self._own(node), attempts)
            if isinstance(self._provider, optional.Gates)
            else {}
        )

    @timed
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """With providers that do not gate, all that was started runs."""
        if not isinstance(self._provider, optional.Gates):
            return self.poll(node, attempts)
        self._fence()
        return self._provider.release(self._own(node), attempts, peers)

    @timed
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        return self._look(lambda: self._provider.poll(self._own(node), attempts))

    @timed
    def attempts(self, node: Record, known: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """All attempts on the node if the provider lists them, and the `known` ones in any case."""
        if isinstance(self._provider, optional.Tells):
            tells = self._provider
            return {**dict.fromkeys(known), **self._look(lambda: tells.attempts(self._own(node)))}
        return self.poll(node, known) if known else {}

    @timed
    def mark(self) -> object | None:
        return self._provider.mark() if isinstance(self._provider, optional.TellsChange) else None

    @timed
    def unused(self, nodes: Sequence[Record]) -> frozenset[str]:
        if not isinstance(self._provider, optional.TellsUnused):
            return frozenset()
        unused = self._provider.unused
        return frozenset(self._by_present_names(nodes, lambda own: dict.fromkeys(unused(own))))

    @timed
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        self._fence()
        return self._provider.stop(self._own(node), attempt, grace_seconds)

    @timed
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        self._fence()
        self._provider.change_limit(self._own(node), attempt, seconds)

    @timed
    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        """Other providers end nothing by themselves but at a limit."""
        if isinstance(self._provider, optional.Adjusts):
            self._fence()
            self._provider.adjust(self._own(node), attempt, terms)

    @timed
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        if isinstance(self._provider, optional.Tidies):
            self._fence()
            self._provider.tidy(self._own(node), oldest)

    @timed
    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        return self._provider.read_log(self._own(node), attempt, offset, limit)
