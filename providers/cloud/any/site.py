"""What a cloud has to be able to do: the interface of wired drivers.

A `Site` is one API of one backend: a cloud's only one, or that of one region. Its methods ask once and do not
try again; their faults are those of the port (`Connection.request` and `Connection.call` see to that). They
need not know whether something was made before: `nodes`, `volumes` and `attachments` look first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

from declarative.provider import PermanentError, PermanentKind
from providers.cloud.any.plain import Disk, Found, Machine, Size, Wanted, Written

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
