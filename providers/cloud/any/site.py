"""The interface of clouds' drivers: the abilities that a cloud must have, and those that only some have.

A `Site` is one API of one backend: the cloud's only one, or that of one region. Its methods ask once and do
not retry. Their faults are those of the port, through `Connection.request` and `Connection.call`. They need
not check whether something was made before: `nodes`, `volumes` and `attachments` look first.

Sites return plain values: machines, disks, sizes, and what is written on machines and disks. A cloud with
tags keeps all of that in them, by the keys of `marks`, on machines as on disks (`Tags`); `Written` is for
the others.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from declarative.model.blocks import Shape
from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.record import struct
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.faults import Kind
from providers.cloud.hosts import Holder
from providers.cloud.marks import ON, Mark
from providers.cloud.placement_groups import Groups, Reserved
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


UNWRITTEN = Written(owner="", token="", address=Address("node", "-"))
"""That of things whose marks are tags, or which are only known to exist."""


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
class Device:
    """The place where a machine finds one of its disks, as `hosts.OnNode`."""

    links: tuple[str, ...]
    serials: tuple[str, ...] = ()


@struct(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. `READY` means that it runs; whether it can be a node is checked from within. `FAILED`: it
    never ran, and never will. `TERMINATING`: it has ended or is ending.
    """

    id: str
    region: str
    state: NodeState
    reason: str | None = None
    zone: str | None = None
    address: str = ""
    """Its private address, or its public one if it has no other."""
    public_address: str = ""
    written: Written = UNWRITTEN
    labels: Mapping[str, str] = field(default_factory=dict)
    """All its tags, if nothing is `written` on it."""
    made_at: str = ""
    """Sorts by time."""
    name: str = ""
    """Its name in messages, if that is not its id."""
    type: str = ""
    identities: tuple[str, ...] | None = None
    """Who it is for its cloud, as e-mails or whole ids; None if that is not known."""
    word: str = ""
    """Its state in the cloud's own words."""
    fault: tuple[Kind, str] | None = None
    """Why it failed or ended, if the cloud says it: the kind of fault of its create, and the text."""
    devices: Mapping[str, Device] | None = None
    """Its disks by id, and where it finds them; None if only disks say who has them."""
    image: str = ""
    """Empty if not known."""
    age: float = 0.0
    """Seconds since it was made, if the answer to its create says so."""
    raw: Any = field(default=None, compare=False)
    """Data for the site itself."""

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.name or self.id

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""
        return self.state is NodeState.TERMINATING

    @property
    def why_gone(self) -> str:
        """Why it has ended."""
        return self.reason or (f"it is {self.word}" if self.word else "it has ended")

    @property
    def tags(self) -> Mapping[str, str]:
        return self.labels if self.written is UNWRITTEN else self.written.tags


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
    holders: tuple[Holder, ...] | None = None
    """The machines of `on`, and where each finds it; None if the cloud does not say that of a disk."""
    written: Written = UNWRITTEN
    labels: Mapping[str, str] = field(default_factory=dict)
    """All its tags, if nothing is `written` on it."""
    made_at: str = ""
    age: float = 0.0
    """As for a machine."""
    raw: Any = field(default=None, compare=False)
    theirs: Mapping[str, str] = field(default_factory=dict)
    """The tags of others, for a disk to adopt."""
    type: str = ""
    """Empty if not known."""
    word: str = ""
    """Its state in the cloud's own words."""
    gone: bool = False

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.label if self.label and self.written is UNWRITTEN else self.id

    name = called

    @property
    def state(self) -> str:
        """The state, if the site reports it."""
        return self.word or ("on its way" if self.busy else "there")

    @property
    def tags(self) -> Mapping[str, str]:
        """See `Written.tags`; also the machines for which it has claims, by the keys of `claims`."""
        if self.written is UNWRITTEN:
            return self.labels
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
    mark: Mark
    """Its address, its token, and its inputs (`mark.node`, `mark.volume`)."""
    written: Written
    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's tags. For a cloud with `Tags`, all that are to be on it."""
    size: str = ""
    """The size's name of a machine."""
    image: str = ""
    user_data: str = ""
    key: str | None = None
    """The result of `Site.add_key`."""
    login: str = ""
    """The public key that may log in."""
    group: str | None = None
    """The id of its placement group."""
    reserved: Reserved | None = None
    ahead: Mapping[str, Any] = field(default_factory=dict)
    """The result of `Site.ahead`."""
    spot: bool = False
    gib: int = 0
    """The size of a disk in GiB."""
    volume_type: str | None = None


def reason_of(state: NodeState, word: str, why: str) -> str | None:
    """The reason for a machine's state, from the cloud's own `word` for it and its text."""
    text = f": {why}" if why else ""
    match state:
        case NodeState.READY:
            return None
        case NodeState.PROVISIONING:
            return "it is starting"
        case NodeState.FAILED:
            return f"it never ran{text}"
        case _:
            return f"it is {word}{text}"


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
    """Whether a disk that somebody else made can be given a mark and keep its name: by its tags (`Tags`), or
    by `found` and the next two methods.
    """
    client_token: bool = False
    """Whether a create that is repeated with its token makes nothing more: then nothing is looked for before
    it.
    """
    lingers: bool = True
    """Whether a machine that is ending has to be waited for. If not, it counts as gone."""
    batches: bool = False
    """Whether one request looks many ids up (`ById`)."""
    merges: bool = False
    """Whether tags are set one by one (`Tags`), so that nothing has to be read before."""
    called: str = "write its id, as its API has it"
    """How people name an existing disk."""
    groups: Groups | None = None
    """Its placement groups."""

    # ----------------------------------------------------------------------------------- machines

    def sizes(self) -> Sequence[Size]:
        """All sizes that it can launch. A price is above 0, in USD an hour, or None. A cloud with `offers` of
        its own is not asked.
        """
        raise NotImplementedError

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

    def owners(self, kind: What) -> Mapping[str, str | None]:
        """All machines or disks of the account by id, and the owner that each names, if any; no ended ones.

        People may remove what is written on things, and a thing without a mark still exists. A site that
        finds things `ById` needs no such listing.
        """
        raise NotImplementedError(kind)

    def ended(self, kind: What, made: str) -> str | None:
        """Why a machine or disk that is not among `owners` ended, if the cloud itself reports it; else None.
        A cloud that only denies the id must show by another thing of ours that it is the right account.
        """
        return None

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Write the mark and the user's tags on a thing that has lost them; `PermanentError` if only people
        can do that. A site with `Tags` needs it not.
        """
        raise NotImplementedError(kind)

    def missing(self, kind: What, ids: Collection[str], *, sure: bool) -> Mapping[str, str | None]:
        """What the cloud says of things that were not found: why each ended, or None if it is only missing.
        Those of which it says nothing are left out: it may be the wrong account. `sure`: it is the right one,
        since other recorded things are there.
        """
        return {made: why for made in ids if (why := self.ended(kind, made))}

    def check_gone(self, kind: What, made: str) -> None:
        """A fault unless it is certain that a thing that was not found is gone."""
        return

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

    def states(self, machines: Collection[Machine]) -> Mapping[str, tuple[NodeState, str | None]]:
        """The state of each machine by its id, and the reason, by the cloud's own checks too."""
        return {machine.id: (machine.state, machine.reason) for machine in machines}

    def ahead(self, node: NodeInputs) -> Mapping[str, Any]:
        """What is looked up before anything is made for a node. Faults are those of its create."""
        return {}

    def around(self, node: NodeInputs, *, ends: bool) -> AbstractContextManager[None]:
        """Surrounds making and ending (`ends`) a machine: what machines share is deleted with the last."""
        return nullcontext()

    def finish(self, machine: Machine) -> Machine:
        """Make what a machine that runs still needs, unless an earlier try did."""
        return machine

    def disk_zone(self, asked: str | None, has: str | None) -> str | None:
        """The zone that a disk in `has` must have to be in the zone of its inputs."""
        return asked

    def clean(self, made: str) -> None:
        """Remove what may be left of a machine that does not exist, by its id."""
        return


@runtime_checkable
class Tags(Protocol):
    """A site of a cloud that keeps tags, with the marks among them, on machines and disks."""

    def tag(self, thing: Machine | Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        """Set tags of a thing, and remove those of the keys `old`; its others stay. May be interrupted at any
        point, and is tried again: the user's tags are removed first, since only the old mark says which they
        were, and our old ones last.
        """


@runtime_checkable
class ById(Protocol):
    """A site that finds things by their ids, with any marks or none. Unknown ids are left out; ended things
    may be among the answers.
    """

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        """Those that exist, with their addresses if they run."""

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        """Those that exist."""


T = TypeVar("T", Machine, Disk)
FEW = 2
"""Up to so many things are looked at one by one; more by a listing."""


def by_ids(
    ids: Collection[str], listed: Callable[[], Iterable[T]], one: Callable[[str], T | None]
) -> dict[str, T]:
    """The existing ones, for a cloud that is asked for one thing at a time. A listing may not be whole."""
    there = {thing.id: thing for thing in listed() if thing.id in ids} if len(ids) > FEW else {}
    alone = (thing for made in ids if made not in there and (thing := one(made)))
    return {**there, **{thing.id: thing for thing in alone}}


@runtime_checkable
class Filters(Protocol):
    """A site that finds things of ours by their tags without listing all. Ended things may be among the
    answers.
    """

    def machines_with(self, tags: Mapping[str, str]) -> Sequence[Machine]:
        """The owner's machines with these tags."""

    def disks_with(self, tags: Mapping[str, str]) -> Sequence[Disk]:
        """The owner's disks with these tags."""


@runtime_checkable
class Names(Protocol):
    """A site whose things have ids that follow from their creates, since names are unique."""

    def id_of(self, kind: What, address: Address, token: str, place: PlacedInputs) -> str:
        """The id of the thing that a create makes."""


@runtime_checkable
class Everyones(Protocol):
    """A site that lists the things of all states."""

    def everyones(self, addresses: Collection[Address]) -> Sequence[Machine | Disk]:
        """The machines and disks with a mark of one of these addresses, whoever's, and perhaps more. The
        addresses of machines may be missing.
        """


@runtime_checkable
class ListsAll(Protocol):
    """A site that looks ids up one by one, and lists all things with any marks or none: of many that are
    adopted, each is looked for in a listing of a moment ago.
    """

    def all_machines(self) -> Sequence[Machine]:
        """All machines."""

    def all_disks(self) -> Sequence[Disk]:
        """All disks."""


@runtime_checkable
class CalledDisks(Protocol):
    """A site where people have other names for a disk than its id."""

    def disk_called(self, given: str, volume: VolumeInputs) -> str | None:
        """The id of a disk by a name for it; None if there is no such name."""


@runtime_checkable
class Reserves(Protocol):
    """A site with capacity reservations."""

    def reserved(self, node: NodeInputs) -> Reserved:
        """The part that a machine takes of the reservation in `node`; `PermanentError` if there is no such
        reservation, `NO_CAPACITY` if it is not for this machine in this place.
        """
