"""Optional parts of the port: what some places can do besides. A provider has the methods or has them not.

A class that has the methods of a part can do it; it need not name the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from declarative.model.blocks import Shape
from declarative.model.record import struct
from declarative.model.resource import OthersShare
from declarative.model.state import Address, Record
from declarative.model.status import RankStatus, Readiness
from declarative.provider import Ended, ProviderError, Thing


@runtime_checkable
class Recalls(Protocol):
    """A provider that lists things by tags, which people may remove, and finds things by their ids, too."""

    def recall(self, records: Sequence[Record]) -> Mapping[Address, Thing | Ended | None]:
        """Look up recorded things by their ids only, whatever their tags say.

        `Ended`: the backend itself reports that the thing has ended. That is always believed, and a wanted
        thing is made anew. None: the thing is not there, in the account that it was made in. If several are
        missing at once, the user has to confirm that. A thing that the backend does not know is left out: the
        wrong account may have been asked.
        """


@struct(frozen=True, slots=True, kw_only=True)
class Existing:
    """An existing instance or volume of a cloud, made by anybody."""

    id: str
    """Its id, as in `instance_ids` and `volume_id`."""
    region: str
    zone: str | None
    type: str
    """Its instance type, or its type of volume; empty if the cloud did not say it."""
    state: str
    """In the cloud's own words."""
    name: str = ""
    """Its name for people."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Its owner's tags, without the tool's."""
    address: Address | None = None
    """Its address in the state that has it; None if no state has it."""
    lineage: str | None = None
    """That state."""
    project: str | None = None
    """The project of that state, by `Config.project`; None if it is not written on it."""
    size: int | None = None
    """GiB, for a volume."""
    spot: bool = False
    on: tuple[str, ...] = ()
    """For a volume: the ids of the instances that have it attached."""
    boots: bool = False
    """For a volume: an instance starts from it, and it is deleted with the instance."""


@runtime_checkable
class Adopts(Protocol):
    """A provider that can take on what somebody else made, and leaves it as it is."""

    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        """The existing instances (kind `node`) or volumes, made by anybody; with `ids` only those. They are
        read page by page. Ended things and unknown ids are left out.
        """


@runtime_checkable
class Checks(Protocol):
    """A provider that can tell, without making anything, that a create would fail."""

    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """Faults that creates of nodes and volumes with these inputs would have, each once.

        Capacity and quotas do not count: they change by themselves. It may also raise a fault.
        """


@runtime_checkable
class Clears(Protocol):
    """A provider whose creates make more than the thing: one that is cut short may leave some of that."""

    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """Remove what a create with this token may have left, which made nothing and is not tried again.
        What others need stays.
        """


@runtime_checkable
class FindsOthers(Protocol):
    """A place where things of other states can be found by their addresses."""

    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        """The nodes and volumes with one of these addresses that another state made: each with its id,
        `address`, `lineage` and `project`. They are read page by page. Ended things are left out.
        """


@runtime_checkable
class StartsFrom(Protocol):
    """A cloud that can tell which image a new node would start from."""

    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        """The id of the image for nodes of a region that are made now, in the form of the output `image`.

        `known` are ids that nodes started from: a declared one of them need not be looked for. None if the
        cloud does not say, or nothing is declared. `PermanentError` if there is no such image.
        """


class Look(Protocol):
    """The result of a look at a host. One with an `address` says how other hosts would reach it; one that is
    `connected` let us in, whatever became of the look.
    """

    @property
    def readiness(self) -> Readiness:
        """Whether it may take work, and if not, why."""

    @property
    def shape(self) -> Shape | None:
        """Its shape; None if it did not answer."""


@runtime_checkable
class Looks(Protocol):
    """A provider of hosts that exist: it looks at them before they are nodes."""

    def look(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Look]:
        """The shapes of hosts, and whether they are fit, by the given names. It raises for none of them."""


@runtime_checkable
class KnowsKeys(Protocol):
    """A provider of hosts that exist, some of whose keys this machine knows."""

    def known_keys(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Sequence[str]]:
        """The keys of hosts in the files of known hosts, by the given names. It contacts nothing."""


@struct(frozen=True, slots=True, kw_only=True)
class Visit:
    """All that one host reports of its node, in one answer."""

    readiness: Readiness
    things: tuple[Thing, ...] | None = None
    """The node, the volumes and the attachments on the host; None if they could not be listed."""
    attempts: Mapping[str, RankStatus] | None = None
    """Their states, by `Tells`; None if unknown."""


@runtime_checkable
class Visits(Protocol):
    """A provider of hosts that exist: of each it hears in one round trip all that there is to know."""

    def visit(self, node: Record) -> Visit:
        """The readiness of a node, its things, and its attempts. It does not raise: the readiness has the
        fault.
        """


@struct(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The bytes of an attempt's output, and the seconds since its last output, by its host's clock."""

    size: int
    quiet: float


@runtime_checkable
class LogEnds(Protocol):
    """A provider that reports where logs end, so that they need not be read to find out."""

    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """Where the logs of attempts end; without those that never started."""


@struct(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A command of this machine that leads to a node: it is given stdin, stdout and stderr as they are.

    Its exit code is that of the command on the node, unless `fault`, given that code, says what went wrong on
    the way there.
    """

    argv: tuple[str, ...]
    folder: str | None = None
    """The folder to start it in; None for the caller's."""
    env: Mapping[str, str] | None = None
    """Its environment; None for the caller's."""
    fault: Callable[[int], str | None] = lambda _code: None


@runtime_checkable
class Terminals(Protocol):
    """A provider on whose nodes people may type."""

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """A local process that runs `command` on a node, or a shell if it is empty; use it within the `with`.

        With an `attempt`, it runs beside that rank: in its folder and its container, if it has one, with its
        environment, within its limits. Then `command` is a list of words, and the exit code is 125 if the
        attempt does not run any more. Without one, `command` is joined for the shell there, as ssh does it.
        `tty` asks for a terminal.
        """


@runtime_checkable
class Reaches(Protocol):
    """A provider that can tell whether its nodes reach each other."""

    def reaches(self, node: Record, address: str) -> str | None:
        """Why `address` (a name or an IP) cannot be reached from the node; None if it can, or if that is not
        known. It may take some seconds. A firewall that lets some ports through is no reason.
        """


@struct(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts of `Launch` by which a running attempt is ended, and that may change while it runs."""

    stop_seconds: int
    max_seconds: int | None = None
    """For a place that has a limit of its own around the attempt; `change_limit` sets the attempt's."""
    alone_seconds: int | None = None
    near: tuple[str, ...] = ()


@runtime_checkable
class Adjusts(Protocol):
    """A provider that ends attempts by itself (at a limit, unused, cut off), and can get new terms."""

    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        """What the attempt is ended by from now on, if it still runs; `change_limit` comes after it."""


@runtime_checkable
class Tidies(Protocol):
    """A provider that keeps something of ended attempts until `tidy` removes it."""

    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """Remove ended attempts with their logs: for each named rank, those before the given attempt.

        Running attempts, and those of other ranks, stay as they are.
        """


@runtime_checkable
class Foretells(Protocol):
    """A provider that knows what nodes can do before it makes them."""

    def can(self) -> frozenset[str]:
        """A plan that looks asks it, if a task has `isolation: hard`."""


@runtime_checkable
class Rehearses(Protocol):
    """A provider whose nodes are parts of this machine, and may be declared with GPUs that it lacks."""

    def gpus(self) -> tuple[str, ...] | None:
        """The models of the machine's GPUs, one entry for each; None if they cannot be read."""


@runtime_checkable
class Tells(Protocol):
    """A provider whose nodes report all that runs on them, no matter who started it."""

    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        """Every attempt that was started on the node and is not forgotten. One round trip."""


@runtime_checkable
class TellsUnused(Protocol):
    """A provider that knows of many nodes at once that nothing was ever started there."""

    def unused(self, nodes: Sequence[Record]) -> Collection[str]:
        """The names of the nodes that have no attempt, and on which no earlier writer starts one from now on
        (`Fence`). Any node may be left out: then it is asked as the others are.
        """


@runtime_checkable
class TellsChange(Protocol):
    """A provider that can tell cheaply whether anything has changed. As long as nothing has, a loop asks for
    nothing else but its running ranks.
    """

    def mark(self) -> object | None:
        """A value that equals an earlier one only if the offers, the inventory and the readiness of all nodes
        are the same as then, but for times, and nothing was started on a node meanwhile. None if that is not
        certain, such as right after a change.
        """


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
        """Let prepared attempts of one gang run, once for all calls. The result is their status, None for one
        that never started here. Running and ended attempts stay as they are. `peers` are all reachable ranks
        of the gang: the address of each, a space, and the answer of `peers` for it.
        """

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """How siblings of these prepared attempts reach them: nothing secret, on one line; attempts that
        cannot be reached are left out.
        """


@struct(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of a partition. `key` tells it apart, and becomes its instance type."""

    key: str
    shape: Shape
    readiness: Readiness
    topology: tuple[tuple[str, str], ...] = ()
    """Level → where it stands there."""
    taken: tuple[OthersShare, ...] = ()


@runtime_checkable
class Partitions(Protocol):
    """A provider whose nodes are there without being made; its place gives shares of them to others, too."""

    def members(self, settings: Mapping[str, Any]) -> tuple[Member, ...]:
        """All nodes of a fleet with these settings: complete, or an error; never a part."""

    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[OthersShare, ...]]:
        """Node → what others hold on it; observed now."""


@struct(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank of a gang: an attempt that was prepared on a node."""

    node: Record
    attempt: str


@struct(frozen=True, slots=True, kw_only=True)
class Gang:
    """All ranks of a task, prepared and not released, by rank."""

    task: str
    seats: tuple[Seat, ...]


@runtime_checkable
class Gangs(Protocol):
    """A provider whose place gives nodes to whole gangs: all of one, or none. It is one that `Gates`, too."""

    def reserve(self, gang: Gang) -> None:
        """Reserve the nodes of all seats before any is released; once for all calls.

        If there is no room now, ranks that were launched with `queue` wait for it: they are `pending`.
        Without `queue` it is a `PermanentKind.NO_CAPACITY`, and nothing is held or waits.
        """

    def expected(self, task: str, ranks: Sequence[tuple[Record, Shape]], seconds: int | None) -> float | None:
        """When the place expects to have room for a gang with these shares of nodes, in seconds since the
        epoch; None if it does not say. Nothing is held. `seconds` is how long the gang may take.
        """
