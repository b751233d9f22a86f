"""What the drivers of such clouds are asked, and what they answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from declarative.model.inputs import NodeInputs, Placed, VolumeInputs
from declarative.model.record import dataclass
from declarative.model.resource import Offer
from declarative.model.state import Address

P = TypeVar("P", bound=Placed)


class Phase(StrEnum):
    """How a machine is, whatever its cloud calls it."""

    STARTING = "starting"
    RUNS = "runs"
    STOPPED = "stopped"
    ENDING = "ending"
    FAILED = "failed"
    """It never ran and never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a machine finds one of its disks: see `hosts.OnNode`."""

    links: tuple[str, ...]
    serials: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. Its `id` leads to it and is never given again."""

    id: str
    name: str
    zone: str | None
    phase: Phase
    state: str
    """In the cloud's own words."""
    address: str = ""
    public_address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    type: str = ""
    image: str = ""
    """Not recorded."""
    devices: Mapping[str, Device] = field(default_factory=dict)
    """The disks that it has, by their ids, and where it finds them."""
    code: str = ""
    reason: str = ""
    """Why it is as it is: the cloud's code, and its text."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """As the cloud has it, for the `Api` alone."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.phase is Phase.ENDING

    @property
    def why_gone(self) -> str:
        """Why it has ended."""
        return self.reason or f"it is {self.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk; its size is in GiB."""

    id: str
    name: str
    region: str
    zone: str | None
    size: int
    phase: Phase
    """`RUNS` is one that can be used."""
    state: str
    tags: Mapping[str, str] = field(default_factory=dict)
    type: str = ""
    holders: tuple[str, ...] = ()
    """The ids of the machines that have it, or are about to."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.phase is Phase.ENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What a machine takes of a reservation."""

    body: Mapping[str, Any]
    """What stands in the request of it, for the `Api` alone."""
    group: str = ""
    """The id of the placement group that goes with it."""
    grouped: bool = False
    """Whether a machine of it can be in another placement group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Generic[P]):
    """What is to be made: under which id, for which address, from what, and with which tags.

    Of a machine besides: the id of its placement group, empty for none, and the reservation that it is of.
    """

    id: str
    address: Address
    inputs: P
    tags: Mapping[str, str]
    group: str = ""
    reserved: Reserved | None = None

    @property
    def name(self) -> str:
        """The last part of the id."""
        return self.id.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """What a machine gets for its first start: cloud-init's text, and the public key that may log in."""

    user_data: str
    login: str


class Sites(Protocol):
    """The placement groups of an account, by their ids."""

    @property
    def called(self) -> str:
        """What the cloud calls one."""

    @property
    def most(self) -> int | None:
        """Machines that one takes; None if nobody says."""

    def takes(self, inputs: NodeInputs) -> bool:
        """Whether a machine of the type can be in one."""

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """The id of one by its name, or by what else people call it; `PermanentError` if nothing is."""

    def tags(self, made: str) -> Mapping[str, str] | None:
        """What one says of itself; None if there is none."""

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """Make it, where `inputs` put its machines; `CONFLICT` if there is one."""

    def used(self, made: str) -> bool:
        """Whether a machine of the owner's is in it that does not end."""

    def remove(self, made: str) -> None:
        """Remove it; BUSY while a machine is in it, nothing to do where it is not there."""


class Api(Protocol):
    """One account of a cloud. Faults are the port's.

    `disk_type` is that of disks of which nobody says it. `called` says how people name a disk that is there.

    What carries a wrong name or none is None; whose it is, the caller looks at. `listed` and `find` give what
    carries the owner's mark, all pages of it.
    """

    disk_type: str
    called: str

    @property
    def sites(self) -> Sites:
        """Its placement groups."""

    def offers(self) -> tuple[Offer, ...]:
        """What it could launch now, in the backend's regions."""

    def reserved(self, inputs: NodeInputs) -> Reserved:
        """What a machine takes of the reservation that `inputs` name; `PermanentError` if there is none such,
        `NO_CAPACITY` if it is not for this machine, here.
        """

    def machine_id(self, name: str, inputs: NodeInputs) -> str:
        """The id that a machine of that name has, where `inputs` put it; `PermanentError` if they do not."""

    def disk_id(self, name: str, inputs: VolumeInputs) -> str:
        """The same of a disk."""

    def disk_called(self, given: str, inputs: VolumeInputs) -> str | None:
        """The id of a disk that somebody else made, by what he calls it; None if no disk is called so."""

    def machines(self, *, name: str | None = None, states: bool = False) -> list[Machine]:
        """All of the owner's, or those of a name. `states`: with what the cloud sees them do just now."""

    def machine(self, made: str) -> Machine | None:
        """One; without its addresses, if these are told elsewhere."""

    def with_addresses(self, machine: Machine) -> Machine:
        """The same with its addresses."""

    def run(self, wanted: Wanted[NodeInputs], start: FirstStart) -> Machine:
        """Make a machine and do not wait for it; `CONFLICT` if there is one of that name."""

    def end(self, machine: Machine) -> None:
        """Remove it and all that was made with it. Returns when it is gone."""

    def clean(self, made: str) -> None:
        """Remove what may be left of a machine that is gone."""

    def tag_machine(self, machine: Machine, tags: Mapping[str, str]) -> None:
        """Let these be its tags, and no others."""

    def disks(self, *, name: str | None = None) -> list[Disk]:
        """All of the owner's, or those of a name."""

    def disk(self, made: str) -> Disk | None:
        """One."""

    def make_disk(self, wanted: Wanted[VolumeInputs], size: int) -> Disk:
        """Make a disk of so many GiB. Returns when it can be used; `CONFLICT` if its name is taken."""

    def grow(self, disk: Disk, size: int) -> None:
        """Let it have more GiB."""

    def remove(self, disk: Disk) -> None:
        """Remove it. Returns when it is gone."""

    def tag_disk(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Let these be its tags, and no others."""

    def attach(self, machine: str, disk: Disk) -> None:
        """Give the disk to a machine, by its id. BUSY where one has to look again."""

    def detach(self, machine: str, disk: Disk, serials: Sequence[str]) -> None:
        """Take it away again. BUSY as above. `serials` are those of its `Device`, if the machine has one."""


def name_of(address: Address, token: str) -> str:
    """The name of what a create with this token makes: `gpu-0-1c6f…`, at most 61 lower case letters, digits
    and dashes, a letter first.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", address.name.lower()).strip("-")[:36].rstrip("-")
    head = stem if re.match(r"[a-z]", stem) else f"x{stem}"
    tail = re.sub(r"[^a-z0-9]+", "", token.lower())[:24]
    return f"{head}-{tail}" if tail else head
