"""What the cloud of a driver says about attachments, and what is written about them.

A claim says by which create a disk is on a machine, and for what. It holds only together with the disk. Disks
and machines go by the last parts of their ids in it: GCE and Azure have paths for ids.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar

from declarative.model.inputs import inputs_of
from declarative.model.record import dataclass
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import (
    PermanentError,
    PermanentKind,
    Thing,
)
from providers.cloud import marks, nodes, volumes
from providers.cloud.account import Account
from providers.cloud.marks import ON

Claim = Mapping[str, Any]
"""`address`, `token` and `inputs` of a create."""


def text_of(claim: Claim) -> str:
    """A claim as it is written: the same text for the same values."""
    return json.dumps(claim, sort_keys=True, separators=(",", ":"))


def parse(written: str, disk: str) -> Claim:
    """A claim that was written about `disk` (its id); `PermanentError` if somebody damaged it."""
    try:
        found = json.loads(written)
        Address.parse(found["address"])
        whole = isinstance(found["token"], str) and isinstance(found["inputs"], dict)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise marks.damaged(disk)
    claim: Claim = found
    return claim


def last_part(made: str) -> str:
    """Of an id."""
    return made.rpartition("/")[2]


def to_tags(claim: Claim, machine: str) -> dict[str, str]:
    """A claim as tags of the disk."""
    return marks.pack(ON + last_part(machine), text_of(claim), Address.parse(claim["address"]))


def keys_of(found: Mapping[str, str], machine: str) -> list[str]:
    """The keys of a disk's tags that are of its attachment to a machine."""
    return [key for key in found if key.startswith(ON + last_part(machine))]


def of_tags(found: Mapping[str, str], disk: str, machine: str) -> Claim | None:
    """What a disk's tags say of its attachment to a machine; None if they say nothing."""
    key = ON + last_part(machine)
    if key not in found:
        return None
    try:
        written = marks.unpack(key, found)
    except (KeyError, ValueError):
        raise marks.damaged(disk) from None
    return parse(written, disk)


def id_of(claim: Claim, disk: str, machine: str) -> str:
    """What an attachment is recorded as: two of one disk to one machine differ by their tokens."""
    return f"{last_part(disk)}:{last_part(machine)}:{str(claim['token'])[:12]}"


def is_of(have: Record, claim: Claim, disk: str, machine: str) -> bool:
    """Whether a claim is that of the record, and not of a later attachment of the same disk there."""
    return have.outputs.get("id") in (None, id_of(claim, disk, machine))


def thing_of(claim: Claim, outputs: Mapping[str, Any], *, known: bool = True) -> Thing:
    """What the port calls the attachment; see `Thing.known`."""
    return Thing(
        address=Address.parse(claim["address"]),
        token=claim["token"],
        inputs=claim["inputs"],
        outputs=outputs,
        known=known,
    )


def asked(
    address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
) -> tuple[Record, Record, Claim]:
    """The volume and the node that a create is about, and its claim; `PermanentError` if one is missing."""
    name, wanted = volume_of(address), inputs_of("attachment", inputs)
    if wanted.volume != name:
        summary = f"{address} cannot be about volume/{wanted.volume}"
        raise PermanentError(PermanentKind.INVALID, summary, about="volume")
    volume, node = needed(needs, "volume", name), needed(needs, "node", wanted.node)
    return volume, node, {"address": str(address), "token": token, "inputs": dict(inputs)}


def held(about: str | None, theirs: Claim | None, on: str) -> PermanentError:
    """The fault of a volume that another has: by the claim that is written of it, on a machine."""
    who = f"held by {theirs['address']}" if theirs else "attached by somebody else"
    hint = "a volume has one holder at a time: wait for it to end, or stop it"
    return PermanentError(PermanentKind.CONFLICT, f"{about} is {who}, on {on}", about=about, hint=hint)


def needed(needs: Mapping[Address, Record], kind: str, name: str) -> Record:
    """The volume or node that an attachment is made of; `PermanentError` if it is not there."""
    found = needs.get(Address(kind, name))
    if found is None or not found.outputs.get("id"):
        raise PermanentError(PermanentKind.INVALID, f"{kind}/{name} is not there", about=kind)
    return found


def volume_of(address: Address) -> str:
    """`train-2.data-2` is about `data-2`; `PermanentError` for the address of anything else."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that has not ended, and is not about to."""

    id: str
    ours: bool
    runs: bool
    taken: bool
    """It was ready once."""
    node: Callable[[], Record]
    """Its record, by what is written on it; `PermanentError` if somebody damaged that."""


def adopted(account: Account, disk: volumes.Disk) -> bool:
    """Whether a disk of ours says that somebody else made it."""
    return VOLUME_ID in account.read(disk).inputs


def living(account: Account, machine: nodes.Machine, *, runs: bool) -> Machine:
    """A machine that carries tags, as attachments see it."""
    backend = account.config.backend
    return Machine(
        id=machine.id,
        ours=machine.tags.get(marks.OWNER) == account.owner,
        runs=runs,
        taken=bool(machine.tags.get(marks.TAKEN)),
        node=lambda: marks.node(account.read(machine), backend, nodes.outputs(machine)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A machine that has a disk, or is about to, and where it finds it: see `hosts.OnNode`."""

    machine: str
    device: str
    """What is recorded of it."""
    attached: bool
    """The machine can use it."""
    leaving: bool
    """It was asked to let go of it."""
    busy: bool = False
    """It was asked to, and has it in use: it may keep it."""
    serials: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A volume, as far as attachments go; its size is in GiB, None if its cloud does not say it."""

    id: str
    region: str
    state: str
    """In the cloud's own words."""
    size: int | None
    tags: Mapping[str, str]
    free: bool
    """It can be attached."""
    gone: bool
    """It has ended, or is about to."""
    adopted: Callable[[], bool]
    """Whether somebody else made it; `PermanentError` if that cannot be read."""
    damage: str = ""
    """Why it cannot be attached ever; empty if it can."""
    attaching: bool = False
    """A machine is about to have it, though none may be told yet."""
    holders: tuple[Holder, ...] = field(default=())
    living: Mapping[str, Machine] | None = None
    """Those of its holders that live, where they were looked at with it."""
    mute: bool = False
    """Its cloud writes no claims: whoever has it, has it for the attachment that is recorded."""
    source: Any = field(default=None, compare=False, repr=False)
    """As the cloud has it, for the driver alone."""


V_contra = TypeVar("V_contra", contravariant=True)


class Driver(Protocol[V_contra]):
    """What a cloud is asked about attachments. Faults are the port's; BUSY is where one has to look again."""

    regional: bool
    """Whether the region has to be known, to look at a disk."""

    def disk(self, volume: V_contra, machines: Mapping[str, Any] | None = None) -> Disk:
        """A volume, as attachments see it. `machines`, by their ids: those that live, if they are known."""

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """Those that there are, by their ids."""

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """Those that live, by their ids."""

    def machine_id(self, node: Record) -> str:
        """The id of a recorded node's machine; empty if it has none that could be one."""

    def claim(self, disk: Disk, machine: str) -> Claim | None:
        """What is written of a disk on a machine; None if nothing is."""

    def write(self, disk: Disk, machine: str, claim: Claim) -> None:
        """Write it, in place of those for other machines."""

    def erase(self, disk: Disk, machine: str) -> None:
        """Take it away."""

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Ask for it once. What became of it, the next look says."""

    def detach(self, disk: Disk, machine: str) -> None:
        """Ask for it once, if it can be asked for just now."""


class ClaimTags(ABC):
    """Claims as tags of the disk, for drivers of clouds that set and take away single tags."""

    @abstractmethod
    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set tags of a disk, and leave the others."""

    @abstractmethod
    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Take tags away from a disk."""

    def claim(self, disk: Disk, machine: str) -> Claim | None:
        """See `Driver`."""
        return of_tags(disk.tags, disk.id, machine)

    def write(self, disk: Disk, machine: str, claim: Claim) -> None:
        """See `Driver`."""
        mine = to_tags(claim, machine)
        self.untag(disk, [key for key in disk.tags if key.startswith(ON) and key not in mine])
        self.tag(disk, mine)

    def erase(self, disk: Disk, machine: str) -> None:
        """See `Driver`."""
        self.untag(disk, keys_of(disk.tags, machine))
