"""What a cloud has to be able to do: the interface of wired drivers.

A `Site` is one API of one backend: a cloud's only one, or that of one region. Its methods ask once and do
not try again; their faults are those of the port (`Connection.request` and `Connection.call` see to
that). They need not know whether something was made before: `nodes`, `volumes` and `attachments` look
first.

What a site answers are plain values: machines, disks, sizes, and what is written on the first two.
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
from declarative.model.record import dataclass
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.marks import ON
from providers.ownership import key_of

IS = "is"
"""The text that says what a thing is: JSON with its address, its inputs, and what else is known of it."""
TAKEN = "taken"
"""The text of a machine that was ready to be a node once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What is written on a thing of ours. `inputs` is None where its cloud can keep no more than a name.

    `own` are outputs that the cloud itself does not know (`user`, `host_key`). `texts` are the other texts
    that were put on it, by their key.
    """

    owner: str
    token: str
    address: Address
    inputs: Mapping[str, Any] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        """What the bases of `cloud` go by, as other clouds have it on their things. An owner that is empty
        stands for a thing that says of nobody that it is theirs.
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
    """What the texts of `thing` (its id) say; `PermanentError` if somebody damaged them."""
    try:
        found = json.loads(texts[IS])
        inputs: dict[str, Any] = {**found["inputs"]}  # `TypeError` for what is no mapping
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
    """The key of the text that says of an attachment, by the id of the machine or disk that it is not on."""
    return f"on-{key_of(other)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. `READY` is one that runs; whether it is fit to be a node is seen from within."""

    id: str
    region: str
    state: NodeState
    reason: str | None = None
    zone: str | None = None
    address: str = ""
    """The private one, or the public one where it has no other."""
    public_address: str = ""
    written: Written
    made_at: str = ""
    """Sorts as time does."""
    raw: Any = field(default=None, compare=False)
    """What the site itself wants to know of it."""

    image: str = ""
    """Not recorded."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.state is NodeState.TERMINATING

    @property
    def why_gone(self) -> str:
        """Why it has ended."""
        return self.reason or "it has ended"

    @property
    def tags(self) -> Mapping[str, str]:
        """See `Written.tags`."""
        return self.written.tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk; `size` is in GiB, None if its cloud does not say. `on`: the ids of machines that have it."""

    id: str
    region: str
    size: int | None
    zone: str | None = None
    on: tuple[str, ...] = ()
    busy: bool = False
    """It is on its way: being made, attached or detached."""
    broken: str | None = None
    """Why it will never be of use."""
    label: str = ""
    """What it is called there: the end of its link in `/dev/disk/by-id`, in some clouds."""
    device: str | None = None
    """Where a machine that has it sees it: a link below `/dev/disk` that names this disk, and stays. Without
    one it is looked for by its id and its name.
    """
    written: Written
    made_at: str = ""
    raw: Any = field(default=None, compare=False)
    theirs: Mapping[str, str] = field(default_factory=dict)
    """Tags of its own, of one that is to be adopted."""
    type: str = ""
    """Not told."""
    gone: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.id

    @property
    def state(self) -> str:
        """As far as the site says it."""
        return "on its way" if self.busy else "there"

    @property
    def tags(self) -> Mapping[str, str]:
        """See `Written.tags`; also for which machines it has claims, by the keys of `claims`."""
        claimed = {ON + made: "" for made in self.on if claim_key(made) in self.written.texts}
        return {**self.theirs, **self.written.tags, **claimed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A disk that somebody made, of `size` GiB.

    `marks`: its marks, by the keys of the module `marks`; only the token where a mark is unfinished.
    `tags`: those that are no mark's, as users write them.
    """

    id: str
    region: str
    size: int
    marks: Mapping[str, str] = field(default_factory=dict)
    tags: AbstractSet[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Something that a cloud can launch. `price` is USD an hour, None if unknown."""

    name: str
    shape: Shape
    price: float | None = None
    regions: tuple[str, ...] | None = None
    """Where there is such a thing; None: everywhere."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region → the zones that have it; a region without any has one offer for itself."""
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A machine or disk that is to be made."""

    region: str
    zone: str | None
    written: Written
    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's."""
    size: str = ""
    """Of a machine: the name of its size."""
    image: str = ""
    user_data: str = ""
    key: str | None = None
    """What `Site.bring_key` gave."""
    spot: bool = False
    gib: int = 0
    """Of a disk: GiB."""
    volume_type: str | None = None


GPU_MEMORY_GB: Mapping[str, int] = {
    "A16": 16,
    "A40": 48,
    "A100": 80,
    "L4": 24,
    "L40S": 48,
    "GH200": 96,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "MI325X": 256,
}
"""Model → GB of a whole one: where a machine has less, it has a share of one."""
_VENDORS = ("nvidia", "amd")


def gpu_model(text: str) -> tuple[str | None, str | None]:
    """The name and the vendor."""
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

    What it lists is complete, or an error: every page is read, and an answer without the element that it
    should have is a fault (`AMBIGUOUS`), never an empty list. Only what carries the mark of this state's
    owner is listed, and nothing that has ended.
    """

    settle: float = 3.0
    """Seconds after which something that was made without an answer is surely listed, where no name is
    unique: as long is waited before it is made again.
    """
    unique: frozenset[What] = frozenset()
    """What the cloud makes once for a name, by itself. A second one is `CONFLICT`, and the first is adopted
    if it carries the token. `Site` gives such things a name that is a function of the token.
    """
    keeps: frozenset[What] = frozenset()
    """What texts can be written on (`write`). Without either there is a name and nothing else: then inputs
    are those that are recorded (`Written.inputs` is None).
    """
    volumes: bool = True
    """Whether there are disks at all."""
    spots: bool = False
    """Whether machines may be had at a lower price, until the cloud wants them back."""
    grows: bool = False
    """Whether a disk can be made larger in place."""

    adopts: bool = False
    """Whether a disk that somebody else made can be given a mark, and keeps its name: `found` and the two
    after it are for what does.
    """

    # ----------------------------------------------------------------------------------- machines

    @abstractmethod
    def sizes(self) -> Sequence[Size]:
        """All that it can launch. A price is above 0, and in USD an hour, or None."""

    @abstractmethod
    def machines(self) -> Sequence[Machine]:
        """All machines of this state."""

    @abstractmethod
    def launch(self, wanted: Wanted) -> Machine:
        """Make one, with its mark, in one request: what is not marked is never found again."""

    @abstractmethod
    def end(self, machine: Machine) -> None:
        """Delete it. It may go on ending afterwards; then it is not listed any more."""

    # -------------------------------------------------------------------------------------- disks

    @abstractmethod
    def disks(self) -> Sequence[Disk]:
        """All disks of this state that were made as volumes."""

    @abstractmethod
    def make(self, wanted: Wanted) -> Disk:
        """Make one, with its mark, in one request."""

    @abstractmethod
    def remove(self, disk: Disk) -> None:
        """Delete it; nobody has it."""

    @abstractmethod
    def attach(self, disk: Disk, machine: Machine) -> None:
        """Ask for it. What became of that, `disks` says; `BUSY` if it cannot be asked for just now."""

    @abstractmethod
    def detach(self, disk: Disk, machine: Machine) -> None:
        """Ask for it, as above. That it is not there any more may be `NOT_FOUND`."""

    def grow(self, disk: Disk, gib: int) -> None:
        """Make it larger."""
        raise PermanentError(PermanentKind.INVALID, f"{disk.id} cannot be made larger", about="size")

    # -------------------------------------------------------------------------------------- marks

    def write(self, thing: Machine | Disk, texts: dict[str, str | None]) -> None:
        """Put texts on a thing, by their keys (`[a-z0-9-]{1,40}`), instead of those that it has there.

        None takes one away. May be cut short anywhere, and is tried again: at every moment what is read is
        the old text or the new one.
        """
        raise NotImplementedError(thing)  # called for what `keeps` names alone

    def retag(self, thing: Machine | Disk, before: dict[str, str], after: dict[str, str]) -> None:
        """Put the user's own tags on a thing, and take those away that were there."""
        raise NotImplementedError(thing)

    @abstractmethod
    def owners(self, kind: What) -> Mapping[str, str | None]:
        """All machines or disks of the account by their ids, and whose they say that they are, if anybody's:
        none that has ended.

        People remove what is written on things, and a thing that says nothing is still there.
        """

    def ended(self, kind: What, made: str) -> str | None:
        """Why a machine or a disk that is not among `owners` is no more, if the cloud itself says so; None if
        it does not. Where it only denies the id, something else of ours shows that it is the right account.
        """
        return None

    @abstractmethod
    def mend(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Write the mark, and the user's tags, on a thing that has lost them; `PermanentError` if only people
        can put them back.
        """

    # ----------------------------------------------------------------------------------- adoption

    def found(self, made: str) -> Found | None:
        """A disk of the account by its id, whoever's it is."""
        raise NotImplementedError(made)

    def take(self, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Write the mark, and the user's tags, on a disk that is nobody's. May be cut short."""
        raise NotImplementedError(made)

    def let_go(self, made: str, tags: Mapping[str, str]) -> None:
        """Take the user's tags and the mark off a disk, unless that is another's. May be cut short."""
        raise NotImplementedError(made)

    # --------------------------------------------------------------------------------------- keys

    def bring_key(self, name: str, public: str) -> str | None:
        """Have the cloud know a public key; what `launch` names it by. None where user data is enough."""
        return None

    def drop_key(self, name: str, public: str) -> None:
        """Have the cloud forget it: there are no machines of this state any more."""
        return
