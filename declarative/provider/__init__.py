"""The port: what the tool asks of a place where things are made.

A provider makes and finds nodes, volumes and attachments, and gives access to the ranks of its nodes. Every
create carries an idempotency token and finds before it makes: called twice with one token it makes one thing.
What only some places can do is in `optional`. A provider is found by the name that YAML gives it. Faults are
of two kinds only, `TransientError` (try again) and `PermanentError` (do not). Providers hold no retry loops;
`retry` has the only one.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from declarative.model.inputs import BadDataError, Inputs, inputs_of
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.model.spec.backend import Image, Network
from declarative.model.state import Address, Record
from declarative.model.status import HostRefusal, RankStatus, Readiness
from declarative.model.text import suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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
    INSTANCES = "instances"
    """A quota on the number of instances: no other type helps, whatever its size."""
    AUTH = "auth"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    INVALID = "invalid"
    USED_UP = "used-up"
    """The thing of this token is gone, and the token makes nothing more: another token may."""


QUOTAS = (PermanentKind.QUOTA, PermanentKind.INSTANCES)


class ProviderError(Exception):
    """A fault of a backend; `about` is the zone, field or path that it is about."""

    def __init__(self, summary: str, *, about: str | None = None, hint: str | None = None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.about = about
        self.hint = hint


class TransientError(ProviderError):
    """Try again, not before `after` seconds if the backend asks for that.

    `away` is for one machine that cannot be reached at all: it may be off for days, so it is tried for a
    shorter time than a cloud.
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


class NoKeyError(PermanentError):
    """The caller lacks the private key that logs in to nodes, and others may have it: nothing is wrong there.

    A command that only plans goes by what is recorded. One that acts cannot.
    """

    def __init__(self, summary: str, *, hint: str) -> None:
        super().__init__(PermanentKind.AUTH, summary, about="identity_file", hint=hint)


class RefusedError(PermanentError):
    """A host that answers is not used: its key does not count, or it does not let us in."""

    def __init__(self, summary: str, refusal: HostRefusal, *, about: str, hint: str) -> None:
        super().__init__(PermanentKind.AUTH, summary, about=about, hint=hint)
        self.refusal = refusal


class StaleError(PermanentError):
    """Something knows of a later writer: `newest` is its number."""

    def __init__(self, newest: int, summary: str, *, about: str | None = None) -> None:
        hint = "run the command again: it begins with what is there now"
        super().__init__(PermanentKind.CONFLICT, summary, about=about, hint=hint)
        self.newest = newest


Fence = Callable[[], int | None]
"""Is called before each call that leaves this process, and before each retry. If this process may not
write any more, it raises an error that stops the command, and that is passed on as it is. Else it returns the
number of this writer, higher than that of every earlier one, or None for a reader. A backend that can keep
the highest number refuses calls with a lower one.
"""


def reads_only() -> None:
    """The `Fence` of who never writes."""


def _nothing() -> None:
    """Nobody wants to know."""


@struct(frozen=True, slots=True, kw_only=True)
class Config:
    """The arguments of a provider: the backend's settings, the project's folder, the owner of its things."""

    backend: str
    project_dir: Path
    lineage: str
    project: str = ""
    """The project's name: letters, digits, `.`, `_` and `-`, at most 63 of them; empty if unknown. It is
    written on things beside their owner, where a place can hold it, so that a state that was lost is noticed.
    """
    driver: str = ""
    """The driver's name: one factory may stand for several drivers."""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """Regions that are not to be used any more, and have things of this state in them."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Names of environment variables. The provider reads their values, when it first makes contact."""
    endpoint: str | None = None
    image: Mapping[str, Image] = field(default_factory=dict)
    """Region → the image that nodes start from, as an id or a filter; `*` stands for all other regions."""
    ssh_user: str | None = None
    """The user that logs in on nodes that the provider makes."""
    network: Network = field(default_factory=Network)
    options: Mapping[str, Any] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hosts that exist, by node name: where a provider that makes no machines looks for its things."""
    shared: bool = False
    """Whether the state is kept outside of the project's folder: other checkouts may work on it, too."""
    fence: Fence = reads_only
    answered: Callable[[], None] = _nothing
    """Called after each request to a cloud that got its answer. What it raises is the request's fault."""


@struct(frozen=True, slots=True, kw_only=True)
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
    lost: str | None = None
    """How the content of a volume vanished, and what to do once it is back. Such a volume counts as gone."""

    @property
    def typed(self) -> Inputs | None:
        """The inputs, by the type of its kind; None if they are not known, or are not of that type."""
        try:
            return inputs_of(self.address.kind, self.inputs) if self.known else None
        except BadDataError:
            return None


@struct(frozen=True, slots=True, kw_only=True)
class Ended:
    """The backend's own word that a thing has ended, and is not only missing from a listing."""

    reason: str
    """Why, in the backend's words: `Server.SpotInstanceTermination: …`."""


class Source(Protocol):
    """A stream that bytes are read from, piece by piece."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


@struct(frozen=True, slots=True, kw_only=True)
class Archive:
    """A tar archive, uncompressed: regular files, and symbolic links that stay within it.

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


@struct(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file of the host itself, and where the rank sees it; both paths are absolute.

    Where the host has no `source`, or cannot show it there, an `optional` one is left out, and the rank fails
    before its first command for any other.
    """

    source: str
    target: str
    optional: bool = False


@struct(frozen=True, slots=True, kw_only=True)
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
    """The container image that it runs in; None for a process of the node."""
    hostfile: str | None = None
    """The MPI host file's text: the provider writes it for the rank and names it in `…MPI_HOSTFILE`."""
    hostfiles: Mapping[str, str] = field(default_factory=dict)
    """The same in the forms of single launchers: `openmpi`, `hydra`, `intel`. A provider whose ranks reach
    each other's programs may write these files, and set the variables by which the launchers find them.
    """
    files: Bundle | None = None
    memory_mib: int | None = None
    """Its memory limit, enforced as strictly as its host can; None for no limit."""
    privileged: bool = False
    """Give its container all rights that its host's runtime can give."""
    queue: bool = False
    """For providers that are `Gangs`: if there is no room now, it waits in the place's own queue."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for the registry of its image."""
    hard: bool = False
    """Refuse to start it where the kernel would not hold it to its `cpus` and its memory."""
    gate_seconds: int | None = None
    """For providers that are `Gates`: prepare it only, up to its first command. It ends by itself if it is
    not released within this time; `max_seconds` count from its release.
    """
    alone_seconds: int | None = None
    """End it after its host was cut off for so long: no command reaches the host, and it reaches no other.
    For hosts that cannot be ended from outside; None for never."""
    unused: tuple[int, int] | None = None
    """Percent and seconds: end it once one of its GPUs was used less for so long, by every sample."""
    near: tuple[str, ...] = ()
    """Addresses of other nodes of its gang, by which a host tells whether it is cut off."""


class Provider(Protocol):
    """One configured backend. Every method may raise `TransientError` or `PermanentError`, nothing else."""

    def offers(self) -> tuple[Offer, ...]:
        """The offers that it can launch, without the declared catalog. It does not read existing things."""

    def inventory(self) -> tuple[Thing, ...]:
        """Everything of this state's owner that is there: complete, or an error; never a part."""

    def find(self, address: Address, token: str) -> Thing | None:
        """The thing that a create with this token made, or None if there is none."""

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Make it, or find what an earlier call with this token made; its outputs. Where that is gone and the
        token makes nothing more, it is a `PermanentKind.USED_UP`.
        """

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the existing thing to `inputs` in place; its outputs."""

    def delete(self, have: Record) -> None:
        """Remove it. A thing that is absent already is a success."""

    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """Whether each node (by name) may take work, observed now."""

    def start(self, node: Record, launch: Launch) -> RankStatus:
        """Start the attempt on the node, at most once for all calls. It outlives the caller."""

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """How the attempts are doing; None for one that never started here."""

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """Stop the attempt as a whole: TERM, then KILL after the grace. Returns when it is dead."""

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """Change the `max_duration` of a running attempt; None takes it away."""

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """Up to `limit` bytes of the attempt's output from byte `offset`; empty where there is no more."""


GROUP = "fleetform.providers"
"""The entry point group under which an installed package offers a provider."""
OWN = {"local": "providers.local:Local", "ssh": "providers.ssh:Ssh", "slurm": "providers.slurm:Slurm"}
"""Entry points that are not looked up: to ask what is installed takes longer than what most commands do."""
ANY = "*"
"""The name of an entry point that is asked for every name that no other has. It gives `UnknownProviderError`
for those that it does not know either.
"""

OTHERS = {
    "aws": "ec2",
    "gcp": "gce",
    "amazon": "ec2",
    "google": "gce",
    "azurerm": "azure",
    "do": "digitalocean",
    "lambdalabs": "lambda",
}
"""Names that others have for clouds. dstack's users may have named their backends by its own."""


class UnknownProviderError(Exception):
    """No installed package offers a provider of that name. `known` are names that may be meant instead."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        self.hint = suggest(name, known) or f"installed: {', '.join(installed())}"
        super().__init__(f"no provider `{name}` is installed")


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
    if name in OTHERS:
        return f"write `driver: {OTHERS[name]}`"
    known = sorted({*here, *more})
    return suggest(name, known) or f"there are {', '.join(here)}; of libcloud's others, see docs/clouds.md"


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
