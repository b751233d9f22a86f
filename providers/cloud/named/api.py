"""The interface of the drivers of clouds with unique names, and their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.model.state import Address
from providers.cloud.placement_groups import Reserved

__all__ = [
    "Api",
    "Device",
    "Disk",
    "FirstStart",
    "Machine",
    "Phase",
    "Reserved",
    "Sites",
    "Wanted",
    "name_of",
]

P = TypeVar("P", bound=PlacedInputs)


class Phase(StrEnum):
    """The phase of a machine, the same for all clouds."""

    STARTING = "starting"
    RUNS = "runs"
    STOPPED = "stopped"
    ENDING = "ending"
    FAILED = "failed"
    """It never ran, and never will."""


@struct(frozen=True, slots=True, kw_only=True)
class Device:
    """The place where a machine finds one of its disks, as `hosts.OnNode`."""

    links: tuple[str, ...]
    serials: tuple[str, ...] = ()


@struct(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. Its `id` identifies it and is never used again."""

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
    """Not known."""
    devices: Mapping[str, Device] = field(default_factory=dict)
    """Its disks by id, and where it finds them."""
    code: str = ""
    reason: str = ""
    """The reason for its state: the cloud's code, and its text."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The cloud's own object, for the `Api` only."""

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.phase is Phase.ENDING

    @property
    def why_gone(self) -> str:
        """Why it has ended."""
        return self.reason or f"it is {self.state}"


@struct(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk; its size is in GiB."""

    id: str
    name: str
    region: str
    zone: str | None
    size: int
    phase: Phase
    """`RUNS` means that it can be used."""
    state: str
    tags: Mapping[str, str] = field(default_factory=dict)
    type: str = ""
    holders: tuple[str, ...] = ()
    """The ids of the machines that have it or are getting it."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.phase is Phase.ENDING


@struct(frozen=True, slots=True, kw_only=True)
class Wanted(Generic[P]):
    """A thing to make: its id, its address, its inputs, and its tags.

    For a machine also: the id of its placement group (empty for none), and its reservation.
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


@struct(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """The input of a machine's first start: cloud-init's text, and the public key that may log in."""

    user_data: str
    login: str


class Sites(Protocol):
    """The placement groups of an account, by their ids."""

    @property
    def called(self) -> str:
        """The cloud's word for it."""

    @property
    def most(self) -> int | None:
        """How many machines one can hold; None if unknown."""

    def takes(self, inputs: NodeInputs) -> bool:
        """Whether a machine of the type can be in one."""

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """The id of a group by its name or another name of it; `PermanentError` if there is none."""

    def tags(self, made: str) -> Mapping[str, str] | None:
        """The tags of a group; None if it does not exist."""

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """Make a group in the place of the machines with these `inputs`; `CONFLICT` if it exists."""

    def used(self, made: str) -> bool:
        """Whether it has a machine of the owner's that is not ending."""

    def remove(self, made: str) -> None:
        """Remove it. BUSY while it has a machine; does nothing if it does not exist."""


class Api(Protocol):
    """One account of a cloud. Faults are the port's.

    `disk_type` is the default type of disks. `called` says how people name an existing disk.

    The result for a wrong name or a missing thing is None; the caller checks the owner. Listings have only
    what carries the owner's mark (`marked`: anybody's), from all pages.
    """

    disk_type: str
    called: str

    @property
    def sites(self) -> Sites:
        """Its placement groups."""

    def offers(self) -> tuple[Offer, ...]:
        """The offers that can be launched now in the backend's regions."""

    def reserved(self, inputs: NodeInputs) -> Reserved:
        """The part that a machine takes of the reservation in `inputs`; `PermanentError` if there is no such
        reservation, `NO_CAPACITY` if it is not for this machine in this place.
        """

    def machine_id(self, name: str, inputs: NodeInputs) -> str:
        """The id of a machine of that name in the place of its `inputs`; `PermanentError` if they
        name none.
        """

    def disk_id(self, name: str, inputs: VolumeInputs) -> str:
        """The same for a disk."""

    def disk_called(self, given: str, inputs: VolumeInputs) -> str | None:
        """The id of a disk that somebody else made, by the user's name for it; None if there is none."""

    def machines(self, *, name: str | None = None, states: bool = False) -> list[Machine]:
        """All of the owner's, or those of a name. `states`: with their current states."""

    def marked(self) -> list[Machine | Disk]:
        """All machines and disks with a mark, whoever's, without addresses."""

    def machine(self, made: str) -> Machine | None:
        """One machine, without its addresses if they need another request."""

    def with_addresses(self, machine: Machine) -> Machine:
        """The machine with its addresses."""

    def run(self, wanted: Wanted[NodeInputs], start: FirstStart) -> Machine:
        """Make a machine and do not wait for it; `CONFLICT` if the name exists."""

    def end(self, machine: Machine) -> None:
        """Remove it and all that was made with it. It returns when the machine is gone."""

    def clean(self, made: str) -> None:
        """Remove what may be left of a machine that is gone."""

    def tag_machine(self, machine: Machine, tags: Mapping[str, str]) -> None:
        """Replace all of its tags."""

    def disks(self, *, name: str | None = None) -> list[Disk]:
        """All of the owner's, or those of a name."""

    def disk(self, made: str) -> Disk | None:
        """One."""

    def make_disk(self, wanted: Wanted[VolumeInputs], size: int) -> Disk:
        """Make a disk of so many GiB. It returns when the disk can be used; `CONFLICT` if the name exists."""

    def grow(self, disk: Disk, size: int) -> None:
        """Grow it to so many GiB."""

    def remove(self, disk: Disk) -> None:
        """Remove it. It returns when the disk is gone."""

    def tag_disk(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Replace all of its tags."""

    def attach(self, machine: str, disk: Disk) -> None:
        """Attach the disk to a machine, by its id. BUSY means to look again."""

    def detach(self, machine: str, disk: Disk, serials: Sequence[str]) -> None:
        """Detach it. BUSY as above. `serials` are those of its `Device`, if the machine has one."""


def name_of(address: Address, token: str) -> str:
    """The name for a create with this token: `gpu-0-1c6f…`, at most 61 lower case letters, digits and dashes,
    with a letter first.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", address.name.lower()).strip("-")[:36].rstrip("-")
    head = stem if re.match(r"[a-z]", stem) else f"x{stem}"
    tail = re.sub(r"[^a-z0-9]+", "", token.lower())[:24]
    return f"{head}-{tail}" if tail else head
