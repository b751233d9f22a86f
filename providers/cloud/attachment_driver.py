"""The interface of drivers for attachments, and the claims that are written about them.

A claim says which create put a disk on a machine, and for what. It is valid only while the disk is there. It
names disks and machines by the last part of their ids, since ids of GCE and Azure are paths.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar

from declarative.model.inputs import inputs_of
from declarative.model.record import struct
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import (
    PermanentError,
    PermanentKind,
    Thing,
)
from providers.cloud import marks, nodes, volumes
from providers.cloud.account import Account
from providers.cloud.hosts import Holder
from providers.cloud.marks import ON

Claim = Mapping[str, Any]
"""`address`, `token` and `inputs` of a create."""


def text_of(claim: Claim) -> str:
    """A claim as text. The same values give the same text."""
    return json.dumps(claim, sort_keys=True, separators=(",", ":"))


def parse(written: str, disk: str) -> Claim:
    """The claim in a text about `disk` (its id); `PermanentError` if it is damaged."""
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
    """The last part of an id."""
    return made.rpartition("/")[2]


def to_tags(claim: Claim, machine: str) -> dict[str, str]:
    """A claim as tags of the disk."""
    return marks.pack(ON + last_part(machine), text_of(claim), Address.parse(claim["address"]))


def keys_of(found: Mapping[str, str], machine: str) -> list[str]:
    """The keys of a disk's tags for its attachment to a machine."""
    return [key for key in found if key.startswith(ON + last_part(machine))]


def of_tags(found: Mapping[str, str], disk: str, machine: str) -> Claim | None:
    """The claim in a disk's tags for a machine; None if there is none."""
    key = ON + last_part(machine)
    if key not in found:
        return None
    try:
        written = marks.unpack(key, found)
    except (KeyError, ValueError):
        raise marks.damaged(disk) from None
    return parse(written, disk)


def id_of(claim: Claim, disk: str, machine: str) -> str:
    """The recorded id of an attachment. Two of one disk to one machine differ by their tokens."""
    return f"{last_part(disk)}:{last_part(machine)}:{str(claim['token'])[:12]}"


def is_of(have: Record, claim: Claim, disk: str, machine: str) -> bool:
    """Whether a claim belongs to the record, and not to a later attachment of the same disk there."""
    return have.outputs.get("id") in (None, id_of(claim, disk, machine))


def thing_of(claim: Claim, outputs: Mapping[str, Any], *, known: bool = True) -> Thing:
    """The attachment as the port's thing; see `Thing.known`."""
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
    """The volume and the node of a create, and its claim; `PermanentError` if one is missing."""
    name, wanted = volume_of(address), inputs_of("attachment", inputs)
    if wanted.volume != name:
        summary = f"{address} cannot be about volume/{wanted.volume}"
        raise PermanentError(PermanentKind.INVALID, summary, about="volume")
    volume, node = needed(needs, "volume", name), needed(needs, "node", wanted.node)
    return volume, node, {"address": str(address), "token": token, "inputs": dict(inputs)}


def held(about: str | None, theirs: Claim | None, on: str) -> PermanentError:
    """The fault for a volume that somebody else holds, by the claim for the machine `on`."""
    who = f"held by {theirs['address']}" if theirs else "attached by somebody else"
    hint = "a volume has one holder at a time: wait for it to end, or stop it"
    return PermanentError(PermanentKind.CONFLICT, f"{about} is {who}, on {on}", about=about, hint=hint)


def needed(needs: Mapping[Address, Record], kind: str, name: str) -> Record:
    """The volume or node that an attachment needs; `PermanentError` if it does not exist."""
    found = needs.get(Address(kind, name))
    if found is None or not found.outputs.get("id"):
        raise PermanentError(PermanentKind.INVALID, f"{kind}/{name} is not there", about=kind)
    return found


def volume_of(address: Address) -> str:
    """The volume's name in an address: `train-2.data-2` is about `data-2`; `PermanentError` for any other."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume


@struct(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that has not ended and is not ending."""

    id: str
    ours: bool
    runs: bool
    taken: bool
    """It was ready once."""
    node: Callable[[], Record]
    """Its record, from what is written on it; `PermanentError` if that is damaged."""


def adopted(account: Account, disk: volumes.Disk) -> bool:
    """Whether a disk of ours was made by somebody else."""
    return VOLUME_ID in account.read(disk).inputs


def living(account: Account, machine: nodes.Machine, *, runs: bool) -> Machine:
    """A machine with tags, as attachments need it."""
    backend = account.config.backend
    return Machine(
        id=machine.id,
        ours=machine.tags.get(marks.OWNER) == account.owner,
        runs=runs,
        taken=bool(machine.tags.get(marks.TAKEN)),
        node=lambda: marks.node(account.read(machine), backend, nodes.outputs(machine)),
    )


@struct(frozen=True, slots=True, kw_only=True)
class Disk:
    """A volume, as attachments need it. `size` is in GiB, None if the cloud does not report it."""

    id: str
    region: str
    state: str
    """In the cloud's own words."""
    size: int | None
    tags: Mapping[str, str]
    free: bool
    """It can be attached."""
    gone: bool
    """It has ended or is ending."""
    adopted: Callable[[], bool]
    """Whether somebody else made it; `PermanentError` if that cannot be read."""
    damage: str = ""
    """Why it can never be attached; empty if it can."""
    attaching: bool = False
    """A machine is getting it, although the cloud may not yet say which."""
    holders: tuple[Holder, ...] = field(default=())
    living: Mapping[str, Machine] | None = None
    """Its living holders, if they were looked up with it."""
    mute: bool = False
    """Its cloud keeps no claims: whichever machine has it holds it for the recorded attachment."""
    source: Any = field(default=None, compare=False, repr=False)
    """The cloud's own object, for the driver only."""


V_contra = TypeVar("V_contra", contravariant=True)


class Driver(Protocol[V_contra]):
    """A cloud's calls for attachments. Faults are the port's; BUSY means to look again."""

    regional: bool
    """Whether a disk can be looked at only in a known region."""

    def disk(self, volume: V_contra, machines: Mapping[str, Any] | None = None) -> Disk:
        """A volume, as attachments need it. `machines`: the living ones by id, if known."""

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """The existing ones, by id."""

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """The living ones, by id."""

    def machine_id(self, node: Record) -> str:
        """The id of a recorded node's machine; empty if it has no valid one."""

    def claim(self, disk: Disk, machine: str) -> Claim | None:
        """The claim for a disk on a machine; None if there is none."""

    def write(self, disk: Disk, machine: str, claim: Claim) -> None:
        """Write the claim, in place of those for other machines."""

    def erase(self, disk: Disk, machine: str) -> None:
        """Remove the claim."""

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Request it once. The next look shows the result."""

    def detach(self, disk: Disk, machine: str) -> None:
        """Request it once, if possible now."""


class ClaimTags(ABC):
    """Claims as tags of the disk, for clouds that can set and remove single tags."""

    @abstractmethod
    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set tags of a disk, and keep its others."""

    @abstractmethod
    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Remove tags from a disk."""

    def claim(self, disk: Disk, machine: str) -> Claim | None:
        return of_tags(disk.tags, disk.id, machine)

    def write(self, disk: Disk, machine: str, claim: Claim) -> None:
        mine = to_tags(claim, machine)
        self.untag(disk, [key for key in disk.tags if key.startswith(ON) and key not in mine])
        self.tag(disk, mine)

    def erase(self, disk: Disk, machine: str) -> None:
        self.untag(disk, keys_of(disk.tags, machine))
