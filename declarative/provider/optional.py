"""Optional parts of the port: what some places can do besides. A provider has the methods or has them not.

Whatever has the methods of a part counts as one that can do it; it need not name the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from declarative.model.blocks import Shape
from declarative.model.resource import Taken
from declarative.model.state import Address, Record
from declarative.model.status import RankStatus, Readiness
from declarative.provider import Ended, ProviderError, Thing


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
