"""The interface of drivers without client tokens: the abilities that a cloud must have.

A `Site` is one API of one backend: the cloud's only one, or that of one region. Its methods ask once and do
not retry. Their faults are those of the port, through `Connection.request` and `Connection.call`. They need
not check whether something was made before: `nodes`, `volumes` and `attachments` look first.

Sites return plain values: machines, disks, sizes, and what is written on machines and disks.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Any, Literal

from declarative.model.blocks import Shape
from declarative.model.record import struct
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.marks import ON
from providers.ownership import key_of

IS = "is"
"""The key of the text that describes a thing: JSON with its address, its inputs, and more."""
TAKEN = "taken"
"""The key of the text on a machine that was ready once."""


@struct(frozen=True, slots=True, kw_only=True)
class Written:
    """The marks on a thing of ours. `inputs` is None if its cloud keeps only a name.

    `own` are outputs that the cloud itself does not know (`user`, `host_key`). `texts` are the other texts on
    it, by key.
    """

    owner: str
    token: str
    address: Address
    inputs: Mapping[str, Any] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        """The tags as other clouds keep them, which the shared code uses. An empty owner means that the thing
        names none.
        """
        if not self.owner:
            return {}
        more = {marks.USER: self.own.get("user"), marks.HOST_KEY: self.own.get("host_key")}
        return {
            marks.OWNER: self.owner,
            marks.TOKEN: self.token,
            marks.ADDRESS: str(self.address),
            **{key: value for key, value in more.items() if value},
            **({marks.TAKEN: "yes"} if TAKEN in self.texts else {}),
        }

    def text(self) -> str:
        """The text under `IS`."""
        body = {
            "address": str(self.address),
            "inputs": self.inputs,
            **({"own": self.own} if self.own else {}),
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read(owner: str, token: str, texts: Mapping[str, str], thing: str) -> Written:
    """The content of the texts on `thing` (its id); `PermanentError` if they are damaged."""
    try:
        found = json.loads(texts[IS])
        inputs: dict[str, Any] = {**found["inputs"]}  # `TypeError` if it is not a mapping
        return Written(
            owner=owner,
            token=token,
            address=Address.parse(found["address"]),
            inputs=inputs,
            own=dict(found.get("own") or {}),
            texts={key: text for key, text in texts.items() if key != IS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise marks.damaged(thing) from error


def claim_key(other: str) -> str:
    """The key of the text about an attachment. `other` is the id of the machine or disk at the other end."""
    return f"on-{key_of(other)}"


@struct(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. `READY` means that it runs; whether it can be a node is checked from within."""

    id: str
    region: str
    state: NodeState
    reason: str | None = None
    zone: str | None = None
    address: str = ""
    """Its private address, or its public one if it has no other."""
    public_address: str = ""
    written: Written
    made_at: str = ""
    """Sorts by time."""
    raw: Any = field(default=None, compare=False)
    """Data for the site itself."""

    image: str = ""
    """Not known."""

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.state is NodeState.TERMINATING

    @property
    def why_gone(self) -> str:
        """Why it has ended."""
        return self.reason or "it has ended"

    @property
    def tags(self) -> Mapping[str, str]:
        return self.written.tags


@struct(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk. `size` is in GiB, None if the cloud does not report it. `on`: the ids of machines that have
    it.
    """

    id: str
    region: str
    size: int | None
    zone: str | None = None
    on: tuple[str, ...] = ()
    busy: bool = False
    """It is being made, attached or detached."""
    broken: str | None = None
    """Why it will never be usable."""
    label: str = ""
    """Its name in the cloud. In some clouds, its link in `/dev/disk/by-id` ends with it."""
    device: str | None = None
    """A permanent link below `/dev/disk` on the machine that names this disk. Without one, the disk is found
    by its id and its name.
    """
    written: Written
    made_at: str = ""
    raw: Any = field(default=None, compare=False)
    theirs: Mapping[str, str] = field(default_factory=dict)
    """The tags of others, for a disk to adopt."""
    type: str = ""
    """Not known."""
    gone: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.id

    @property
    def state(self) -> str:
        """The state, if the site reports it."""
        return "on its way" if self.busy else "there"

    @property
    def tags(self) -> Mapping[str, str]:
        """See `Written.tags`; also the machines for which it has claims, by the keys of `claims`."""
        claimed = {ON + made: "" for made in self.on if claim_key(made) in self.written.texts}
        return {**self.theirs, **self.written.tags, **claimed}


@struct(frozen=True, slots=True, kw_only=True)
class Found:
    """A disk that somebody made, of `size` GiB.

    `marks`: its marks, by the keys of the module `marks`; only the token of an incomplete mark. `tags`: the
    other tags, in the user's notation.
    """

    id: str
    region: str
    size: int
    marks: Mapping[str, str] = field(default_factory=dict)
    tags: AbstractSet[tuple[str, str]] = frozenset()


@struct(frozen=True, slots=True, kw_only=True)
class Size:
    """Something that a cloud can launch. `price` is USD an hour, None if unknown."""

    name: str
    shape: Shape
    price: float | None = None
    regions: tuple[str, ...] | None = None
    """The regions that have it; None: all."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region → the zones that have it. A region without zones has one offer for itself."""
    spot: bool | None = None
    """Whether all its machines are spot machines, at this price, or none is. None: as the site has it."""
    raw: Any = field(default=None, compare=False)


@struct(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A machine or disk to make."""

    region: str
    zone: str | None
    written: Written
    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's tags."""
    size: str = ""
    """The size's name of a machine."""
    image: str = ""
    user_data: str = ""
    key: str | None = None
    """The result of `Site.add_key`."""
    spot: bool = False
    gib: int = 0
    """The size of a disk in GiB."""
    volume_type: str | None = None


GPU_MEMORY_GB: Mapping[str, int] = {
    "A16": 16,
    "A40": 48,
    "A100": 80,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "GH200": 96,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "MI325X": 256,
}
"""Model → the memory of a whole GPU in GB. A machine with less has a share of one."""
_VENDORS = ("nvidia", "amd")


def gpu_model(text: str) -> tuple[str | None, str | None]:
    """The GPU's name and vendor."""
    vendor, _, rest = re.sub(r"[ _-]+", " ", text.strip()).partition(" ")
    if vendor.lower() not in _VENDORS:
        vendor, rest = "", re.sub(r"[ _-]+", " ", text.strip())
    words = rest.split()
    if not words:
        return None, vendor.lower() or None
    return "".join([words[0].upper(), *(w.capitalize() for w in words[1:])]), vendor.lower() or None


What = Literal["machine", "disk"]


class Site(ABC):
    """One API. Safe to use from many threads.

    A listing is complete, or an error: every page is read, and an answer without the expected element is a
    fault (`AMBIGUOUS`), never an empty list. Only things with the mark of this state's owner are listed, and
    no ended ones.
    """

    settle: float = 3.0
    """Seconds after which a thing made without an answer is certainly listed, if names are not unique. The
    driver waits that long before it makes the thing again.
    """
    unique: frozenset[What] = frozenset()
    """Kinds for which the cloud accepts a name once. A second create is `CONFLICT`, and the first thing is
    adopted if it carries the token. The driver gives them a name that is a function of the token.
    """
    keeps: frozenset[What] = frozenset()
    """Kinds on which texts can be written (`write`). Without any, a thing has only its name, and its inputs
    are those in the record (`Written.inputs` is None).
    """
    volumes: bool = True
    """Whether there are disks."""
    spots: bool = False
    """Whether there are machines at a lower price that the cloud may take back."""
    grows: bool = False
    """Whether a disk can be made larger in place."""

    adopts: bool = False
    """Whether a disk that somebody else made can be given a mark and keep its name: by `found` and the next
    two methods.
    """

    # ----------------------------------------------------------------------------------- machines

    @abstractmethod
    def sizes(self) -> Sequence[Size]:
        """All sizes that it can launch. A price is above 0, in USD an hour, or None."""

    @abstractmethod
    def machines(self) -> Sequence[Machine]:
        """All machines of this state."""

    @abstractmethod
    def launch(self, wanted: Wanted) -> Machine:
        """Make one with its mark, in one request: a machine without a mark would be lost."""

    @abstractmethod
    def end(self, machine: Machine) -> None:
        """Delete it. It may take time to end, but is no longer listed."""

    # -------------------------------------------------------------------------------------- disks

    @abstractmethod
    def disks(self) -> Sequence[Disk]:
        """All disks of this state that were made as volumes."""

    @abstractmethod
    def make(self, wanted: Wanted) -> Disk:
        """Make one with its mark, in one request."""

    @abstractmethod
    def remove(self, disk: Disk) -> None:
        """Delete it; no machine has it."""

    @abstractmethod
    def attach(self, disk: Disk, machine: Machine) -> None:
        """Request it. `disks` shows the result. `BUSY` if it cannot be requested now."""

    @abstractmethod
    def detach(self, disk: Disk, machine: Machine) -> None:
        """Request it, as above. `NOT_FOUND` is allowed if it is no longer attached."""

    def grow(self, disk: Disk, gib: int) -> None:
        """Make it larger."""
        raise PermanentError(PermanentKind.INVALID, f"{disk.id} cannot be made larger", about="size")

    # -------------------------------------------------------------------------------------- marks

    def write(self, thing: Machine | Disk, texts: dict[str, str | None]) -> None:
        """Put texts on a thing, by key (`[a-z0-9-]{1,40}`), in place of its old ones.

        None deletes a text. The call may be interrupted at any point and is tried again: at every moment, the
        old or the new text can be read.
        """
        raise NotImplementedError(thing)  # called only for kinds in `keeps`

    def retag(self, thing: Machine | Disk, before: dict[str, str], after: dict[str, str]) -> None:
        """Put the user's tags on a thing, and remove the ones before."""
        raise NotImplementedError(thing)

    @abstractmethod
    def owners(self, kind: What) -> Mapping[str, str | None]:
        """All machines or disks of the account by id, and the owner that each names, if any; no ended ones.

        People may remove what is written on things, and a thing without a mark still exists.
        """

    def ended(self, kind: What, made: str) -> str | None:
        """Why a machine or disk that is not among `owners` ended, if the cloud itself reports it; else None.
        A cloud that only denies the id must show by another thing of ours that it is the right account.
        """
        return None

    @abstractmethod
    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Write the mark and the user's tags on a thing that has lost them; `PermanentError` if only people
        can do that.
        """

    # ----------------------------------------------------------------------------------- adoption

    def found(self, made: str) -> Found | None:
        """A disk of the account by its id, of any owner."""
        raise NotImplementedError(made)

    def take(self, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Write the mark and the user's tags on a disk without an owner. May be interrupted."""
        raise NotImplementedError(made)

    def let_go(self, made: str, tags: Mapping[str, str]) -> None:
        """Remove the user's tags and the mark from a disk, unless it has another owner. May be
        interrupted.
        """
        raise NotImplementedError(made)

    # --------------------------------------------------------------------------------------- keys

    def add_key(self, name: str, public: str) -> str | None:
        """Make a public key known to the cloud; returns its name for `launch`. None if user data
        is enough.
        """
        return None

    def delete_key(self, name: str, public: str) -> None:
        """Make the cloud forget the key: this state has no machines left."""
        return
