"""The port: what the tool asks of a place where things are made, and how a place is found by name.

A provider makes and finds nodes, volumes and attachments, and gives access to the ranks of its nodes.
Every create carries an idempotency token and finds before it makes: called twice with one token it
makes one thing. Faults are of two kinds only, `TransientError` (try again) and `PermanentError` (do not).
Providers hold no retry loops; `retry` has the only one.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from declarative.model.blocks import Shape
from declarative.model.diagnostic import suggest
from declarative.model.inputs import BadDataError, Inputs, inputs_of
from declarative.model.resource import Offer, Taken
from declarative.model.spec.backend import Image, Network
from declarative.model.state import Address, RankStatus, Readiness, Record

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fleetform.providers"
"""The entry point group under which an installed package offers a provider."""
OWN = {"local": "providers.local:Local", "ssh": "providers.ssh:Ssh", "slurm": "providers.slurm:Slurm"}
"""Entry points that are not looked up: to ask what is installed takes longer than what most commands do."""
ANY = "*"
"""The name of an entry point that is asked for every name that no other has. It gives `UnknownProviderError`
for those that it does not know either.
"""


class TransientKind(StrEnum):
    """Why trying again may help."""

    THROTTLED = "throttled"
    NOT_SENT = "not-sent"
    AMBIGUOUS = "ambiguous"
    BUSY = "busy"


class PermanentKind(StrEnum):
    """Why trying again does not help."""

    NO_CAPACITY = "no-capacity"
    QUOTA = "quota"
    AUTH = "auth"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    INVALID = "invalid"
    USED_UP = "used-up"
    """What this token made is gone, and it makes nothing more: another token may."""


class ProviderError(Exception):
    """A fault of a backend; `about` is the zone, field or path that it is about."""

    def __init__(self, summary: str, *, about: str | None = None, hint: str | None = None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.about = about
        self.hint = hint


class TransientError(ProviderError):
    """Try again, not before `after` seconds if the backend said so.

    `away` is for one machine that cannot be reached at all: it may be off for days, so that nobody asks it
    for as long as a cloud is asked.
    """

    def __init__(
        self,
        kind: TransientKind,
        summary: str,
        *,
        after: float | None = None,
        about: str | None = None,
        hint: str | None = None,
        away: bool = False,
    ) -> None:
        super().__init__(summary, about=about, hint=hint)
        self.kind = kind
        self.after = after
        self.away = away


class PermanentError(ProviderError):
    """Trying again does not help."""

    def __init__(
        self, kind: PermanentKind, summary: str, *, about: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(summary, about=about, hint=hint)
        self.kind = kind


class StaleError(PermanentError):
    """Something was told of a later writer: `newest` is the number of that one."""

    def __init__(self, newest: int, summary: str, *, about: str | None = None) -> None:
        hint = "run the command again: it begins with what is there now"
        super().__init__(PermanentKind.CONFLICT, summary, about=about, hint=hint)
        self.newest = newest


Fence = Callable[[], int | None]
"""To be asked before each call that leaves this process, and before it is tried again. It raises what stops
the command if this is no longer the one that may write: that goes through as it is. Else it gives the number
of this writer, higher than that of every earlier one, or None for who only reads: what can keep the highest
that it was told, refuses calls with a lower one.
"""


def reads_only() -> None:
    """The `Fence` of who never writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a provider is made with: the backend's settings, where the project is, whose things these are."""

    backend: str
    project_dir: Path
    lineage: str
    driver: str = ""
    """By which name the provider was asked for: one factory may stand for several drivers."""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """Regions that are not to be used any more, and have things of this state in them."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Names of environment variables. The provider reads their values, when it first makes contact."""
    endpoint: str | None = None
    image: Mapping[str, Image] = field(default_factory=dict)
    """Region → the image that nodes start from, by its id or by what it is looked for; under `*` that of all
    other regions.
    """
    ssh_user: str | None = None
    """Who logs in on nodes that the provider makes."""
    network: Network = field(default_factory=Network)
    options: Mapping[str, Any] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hosts that exist, by node name: where a provider that makes no machines looks for its things."""
    shared: bool = False
    """Whether the state is kept outside of the project's folder: other checkouts may work on it, too."""
    fence: Fence = reads_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A node, volume or attachment as its backend has it. `inputs` are those it was made with."""

    address: Address
    token: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    known: bool = True
    """Whether the backend knows the inputs. Where it can keep no more than a name, those that are recorded
    hold, and `inputs` is empty.
    """
    actual: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that somebody else changed since, as they are now; see also `state.TAGS` and `state.ANOTHERS`.

    Empty where the backend cannot tell, and where all is as it was made.
    """

    @property
    def typed(self) -> Inputs | None:
        """The inputs, by the type of its kind; None if they are not known, or are not of that type."""
        try:
            return inputs_of(self.address.kind, self.inputs) if self.known else None
        except BadDataError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The backend's own word that a thing has ended, and is not only missing from a listing."""

    reason: str
    """Why, in the backend's words: `Server.SpotInstanceTermination: …`."""


class Source(Protocol):
    """What bytes are read from, one piece after the other."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A tar archive, uncompressed: regular files and symbolic links, none of which leads out of it.

    `size` is in bytes, `sha256` in hex. `source` is the caller's own, at its beginning.
    """

    source: Source
    size: int
    sha256: str


class Bundle(Protocol):
    """Files that a rank finds in its own folder, below which a relative `working_dir` is.

    Each attempt gets its own copy. Whatever has the same `digest` has the same files, so that a host needs to
    be sent them once.
    """

    @property
    def digest(self) -> str:
        """64 hex digits."""

    def open(self) -> AbstractContextManager[Archive]:
        """The files, packed when they are first needed; `PermanentError` if that cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file of the host itself, and where the rank sees it; both paths are absolute.

    Where the host has no `source`, or cannot show it there, an `optional` one is left out, and the rank fails
    before its first command for any other.
    """

    source: str
    target: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One attempt of one rank. `volumes` maps the declared path to the volume's record. Without `commands` it
    runs what its image is made for.
    """

    attempt: str
    commands: tuple[str, ...]
    env: Mapping[str, str]
    cpus: tuple[int, ...]
    gpus: tuple[int, ...]
    working_dir: str | None
    volumes: Mapping[str, Record]
    max_seconds: int | None
    stop_seconds: int
    binds: tuple[Bind, ...] = ()
    """Folders of the host itself; no two, and no volume, at one path."""
    image: str | None = None
    """The container image that it runs in; None: it is a process of the node."""
    hostfile: str | None = None
    """The MPI host file's text: the provider writes it for the rank and names it in `…MPI_HOSTFILE`."""
    files: Bundle | None = None
    memory_mib: int | None = None
    """The memory that it may have, as strictly as its host can see to that; None for all that there is."""
    privileged: bool = False
    """Give its container all rights that its host's runtime can give."""
    queue: bool = False
    """For providers that are `Gangs`: where there is no room now, it waits in the place's own queue."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for the registry of its image."""
    hard: bool = False
    """Refuse to start it where the kernel would not hold it to its `cpus` and its memory."""
    gate_seconds: int | None = None
    """For providers that are `Gates`: prepare it only, up to its first command. It ends by itself if it is
    not released within this time, and `max_seconds` count from there.
    """
    alone_seconds: int | None = None
    """End it after its host was cut off for so long: no command reaches it, and it reaches no other. For
    hosts that nobody can end from outside; None for never."""
    unused: tuple[int, int] | None = None
    """Percent and seconds: end it once one of its GPUs was used less for so long, by every sample."""
    near: tuple[str, ...] = ()
    """Addresses of other nodes of its gang, by which a host tells whether it is cut off."""


class Provider(Protocol):
    """One configured backend. Every method may raise `TransientError` or `PermanentError`, nothing else."""

    def offers(self) -> tuple[Offer, ...]:
        """What it can launch, apart from the declared catalog. Reads nothing of what is there."""
        ...

    def inventory(self) -> tuple[Thing, ...]:
        """Everything of this state's owner that is there: complete, or an error; never a part."""
        ...

    def find(self, address: Address, token: str) -> Thing | None:
        """The thing that a create with this token made, or None if there is none."""
        ...

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Make it, or find what an earlier call with this token made; its outputs. Where that is gone and the
        token makes nothing more, it is a `PermanentKind.USED_UP`.
        """
        ...

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring what is there to `inputs` in place; its outputs."""
        ...

    def delete(self, have: Record) -> None:
        """Remove it; what is absent already is success."""
        ...

    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """Whether each node (by name) may take work, observed now."""
        ...

    def start(self, node: Record, launch: Launch) -> RankStatus:
        """Start the attempt on the node, at most once however often it is asked; it outlives the caller."""
        ...

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """How the attempts are doing; None for one that never started here."""
        ...

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """Stop the attempt as a whole: TERM, then KILL after the grace. Returns when it is dead."""
        ...

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """Change the `max_duration` of a running attempt; None takes it away."""
        ...

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """Up to `limit` bytes of the attempt's output from byte `offset`; empty where there is no more."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A provider that lists things by what is written on them, which people may remove: it also knows things
    by their ids.
    """

    def recall(self, records: Sequence[Record]) -> Mapping[Address, Thing | Ended | None]:
        """What recorded things are by their ids alone, whatever is written on them.

        `Ended` is for one of which the backend itself says that it has ended: as often as it is said, it is
        believed, and the thing is made anew where it is wanted. None is for one that is not there, in the
        account that it was made in: several of those at once are believed when the user says so. One that
        the backend knows nothing of is left out: it may be another account that was asked.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """An instance or a volume of a cloud, whoever made it."""

    id: str
    """What `instance_ids` and `volume_id` name it by."""
    region: str
    zone: str | None
    type: str
    """Its instance type, or its type of volume; empty if the cloud did not say it."""
    state: str
    """In the cloud's own words."""
    name: str = ""
    """What people call it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Those of its owner, without the tool's."""
    address: Address | None = None
    """What it is to the state that has it; None if none has it."""
    lineage: str | None = None
    """That state."""
    size: int | None = None
    """Of a volume, in GiB."""
    spot: bool = False
    on: tuple[str, ...] = ()
    """Of a volume, the ids of the instances that have it."""
    boots: bool = False
    """Of a volume: an instance starts from it, and it goes with that."""


@runtime_checkable
class Adopts(Protocol):
    """A provider that can take on what somebody else made, and leaves it as it is."""

    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        """The instances (kind `node`) or volumes that are there, whoever made them; with `ids` those alone.
        They are read by the page. What has ended is left out, and so are ids of which nothing is there.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """A provider that can tell, without making anything, that a create would fail."""

    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """What would go wrong with nodes and volumes that are to be made with these inputs: each fault once.

        Capacity and quotas are none of it: they change by themselves. It may also raise a fault.
        """
        ...


@runtime_checkable
class Clears(Protocol):
    """A provider whose creates make more than the thing: one that is cut short may leave some of that."""

    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """Remove what a create with this token may have left, which made nothing and is not tried again.
        What others need stays.
        """
        ...


class Look(Protocol):
    """What came of a look at a host."""

    @property
    def readiness(self) -> Readiness:
        """Whether it may take work, and if not, why."""

    @property
    def shape(self) -> Shape | None:
        """What it has; None if it did not answer."""


@runtime_checkable
class Looks(Protocol):
    """A provider of hosts that exist: it looks at them before they are nodes."""

    def look(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Look]:
        """What hosts have, and whether they are fit, by the names that were given. It fails for none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What one host said of its node, all at once."""

    readiness: Readiness
    things: tuple[Thing, ...] | None = None
    """The node, the volumes and the attachments on the host; None if they could not be listed."""
    attempts: Mapping[str, RankStatus] | None = None
    """As `Tells` has them; None if that is not known."""


@runtime_checkable
class Visits(Protocol):
    """A provider of hosts that exist: of each it hears in one round trip all that there is to know."""

    def visit(self, node: Record) -> Visit:
        """How a node is, what is there, and what runs. It fails for none: the readiness says why not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """How much an attempt has printed, in bytes, and for how many seconds nothing, by its host's clock."""

    size: int
    quiet: float


@runtime_checkable
class LogEnds(Protocol):
    """A provider that can say where logs end, so that nobody has to read them to there."""

    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """Where the logs of attempts end; without those that never started."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A command of this machine that leads to a node: it is given stdin, stdout and stderr as they are.

    Its exit code is that of the command on the node, unless `fault`, given that code, says what went wrong on
    the way there.
    """

    argv: tuple[str, ...]
    folder: str | None = None
    """Where it is to be started; None is wherever the caller is."""
    env: Mapping[str, str] | None = None
    """Its environment; None is the caller's."""
    fault: Callable[[int], str | None] = lambda _code: None


@runtime_checkable
class Terminals(Protocol):
    """A provider on whose nodes people may type."""

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """What runs `command` on a node, or a shell where it is empty; run it before the end of the `with`.

        With an `attempt`, beside that running rank: in its folder and its container, if it has one, with its
        environment, within its limits; `command` is words then, and 125 is the exit code if it does not run
        any more. Without one, `command` is what ssh makes of it: words that are put together for the shell
        there. `tty` asks for a terminal.
        """
        ...


@runtime_checkable
class Reaches(Protocol):
    """A provider that can tell whether its nodes reach each other."""

    def reaches(self, node: Record, address: str) -> str | None:
        """Why `address` (a name or an IP) cannot be reached from the node; None if it can, or if nobody
        can tell. It may take some seconds. A firewall that lets some ports through is no reason.
        """
        ...


@runtime_checkable
class Tidies(Protocol):
    """A provider that keeps something of attempts that have ended until it is told to remove it."""

    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """Remove what is left of ended attempts: of each rank named, those before that one, with their logs.

        What runs, and what is of no rank named, stays as it is.
        """


@runtime_checkable
class Rehearses(Protocol):
    """A provider whose nodes are parts of this machine, and may be declared with GPUs that it lacks."""

    def gpus(self) -> tuple[str, ...] | None:
        """The models of the machine's GPUs, one entry for each; None if they cannot be read."""
        ...


@runtime_checkable
class Tells(Protocol):
    """A provider whose nodes can be asked what runs on them, whoever started it."""

    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        """Every attempt that was started on the node and is not forgotten. One round trip."""


@runtime_checkable
class TellsUnused(Protocol):
    """A provider that knows of many nodes at once that nothing was ever started there."""

    def unused(self, nodes: Sequence[Record]) -> Collection[str]:
        """The names of those of these nodes that have no attempt, and where no earlier writer starts one from
        now on (`Fence`). Any may be left out: it is asked as the others are.
        """
        ...


@runtime_checkable
class Buries(Protocol):
    """A provider of whose nodes somebody may remove all traces while ranks run on."""

    def bury(self, node: Record) -> None:
        """End what still runs of a node that is gone."""


@runtime_checkable
class Gates(Protocol):
    """A provider that can prepare ranks before it lets them run (`Launch.gate_seconds`).

    Prepared ones are `starting`, with the cause `state.PREPARING`, then `state.WAITING`. One that ended
    before it was released, not by its own fault, is `lost`, with the cause `state.NOT_RELEASED`.
    """

    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """Let prepared attempts of one gang run, once however often it is asked; how they are now, None for
        one that never started here. Those that run or have ended stay as they are. `peers` are all ranks of
        the gang that can be reached: the address of each, a space, and what `peers` said of it.
        """
        ...

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """How siblings of these prepared attempts reach them: nothing secret, on one line; attempts that
        cannot be reached are left out.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of a partition. `key` tells it apart, and becomes its instance type."""

    key: str
    shape: Shape
    readiness: Readiness
    topology: tuple[tuple[str, str], ...] = ()
    """Level → where it stands there."""
    taken: tuple[Taken, ...] = ()


@runtime_checkable
class Partitions(Protocol):
    """A provider whose nodes are there without being made; its place gives shares of them to others, too."""

    def members(self, settings: Mapping[str, Any]) -> tuple[Member, ...]:
        """All nodes of a fleet with these settings: complete, or an error; never a part."""
        ...

    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[Taken, ...]]:
        """What others hold on nodes, by their names; observed now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank of a gang: an attempt that was prepared on a node."""

    node: Record
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All ranks of a task, prepared and not released, by rank."""

    task: str
    seats: tuple[Seat, ...]


@runtime_checkable
class Gangs(Protocol):
    """A provider whose place gives nodes to whole gangs: all of one, or none. It is one that `Gates`, too."""

    def reserve(self, gang: Gang) -> None:
        """Have the nodes of all seats, before any is released; once, however often it is asked.

        Where there is no room now, ranks that were launched with `queue` wait for it: they are `pending`.
        Else it is a `PermanentKind.NO_CAPACITY`, and nothing is held or waits.
        """
        ...

    def expected(self, task: str, ranks: Sequence[tuple[Record, Shape]], seconds: int | None) -> float | None:
        """When the place expects to have room for a gang with these shares of nodes, in seconds since the
        epoch; None if it does not say. Nothing is held. `seconds` is how long the gang may take.
        """
        ...


@functools.cache
def _others(_path: tuple[str, ...]) -> frozenset[str]:
    """What entry points of the name `*` know. To load one takes a while."""
    points = [p for p in _points() if p.name == ANY]
    return frozenset(other for point in points for other in getattr(point.load(), "names", tuple)())


def unknown(name: str) -> str | None:
    """How to mend a name that no provider has; None for one that `load` finds something for.

    An entry point of the name `*` says by its own function `names()` which ones it knows.
    """
    if name in OWN or name in (here := installed()):
        return None
    more = _others(tuple(sys.path))
    if name in more:
        return None
    known = sorted({*here, *more})
    return suggest(name, known) or f"there are {', '.join(here)}; of libcloud's others, see docs/clouds.md"


class UnknownProviderError(Exception):
    """No installed package offers a provider of that name. `known` are names that may be meant instead."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        self.hint = suggest(name, known) or f"installed: {', '.join(installed())}"
        super().__init__(f"no provider `{name}` is installed")


def _points() -> tuple[EntryPoint, ...]:
    """What is installed, where Python looks for packages now."""
    return _points_on(tuple(sys.path))


@functools.cache
def _points_on(_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Kept: to look them up reads a file of each distribution.
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=GROUP))


def installed() -> tuple[str, ...]:
    """The names of all providers that are installed."""
    return tuple(sorted({e.name for e in _points()} - {ANY}))


def load(name: str, config: Config) -> Provider:
    """The provider that an installed package offers as `name`; `UnknownProviderError` if none does."""
    if name in OWN:
        module, _, factory = OWN[name].partition(":")
        own: Provider = getattr(importlib.import_module(module), factory)(config)
        return own
    points = _points()
    known = set(installed())
    for point in [p for p in points if p.name == name][:1] + [p for p in points if p.name == ANY]:
        try:
            provider: Provider = point.load()(config)
        except UnknownProviderError as error:
            known |= set(error.known)
        else:
            return provider
    raise UnknownProviderError(name, sorted(known))
