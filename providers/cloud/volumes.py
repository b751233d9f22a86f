"""Volumes of clouds that let disks carry tags: made once, found, compared, grown, adopted, let go, deleted.

A cloud is a `Driver`: its calls, and what it alone refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from declarative.model.inputs import VolumeInputs
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import Account, Tagged, gibibytes
from providers.cloud.checks import absent, check_fixed, check_tags, gone, is_free, size_of, sized
from providers.cloud.marks import ON, Mark

FIXED = ("backend", "region", "zone", "volume_type", VOLUME_ID)
"""Inputs that are those of the disk: it is made anew to change them."""


class Disk(Tagged, Protocol):
    """A disk as its cloud tells of it."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def size(self) -> int | None:
        """In GiB; None if the cloud does not say it."""

    @property
    def type(self) -> str:
        """Empty if the cloud did not say it."""

    @property
    def state(self) -> str:
        """In the cloud's own words."""


D = TypeVar("D", bound=Disk)


class Driver(Protocol[D]):
    """What a cloud is asked about disks. Faults are the port's."""

    @property
    def usual_type(self) -> str:
        """The type that a disk has by default; empty if types are not compared then."""

    def listed(self, **narrow: str) -> list[D]:
        """All that are ours and not gone; `address` and `token` narrow it."""

    def candidates(self, address: Address, token: str) -> Iterable[D]:
        """What a create with this token may have made."""

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, D | None]]:
        """Each record whose region is known, and its disk if that is there or just ended."""

    def disk(self, have: Record, *, ending: bool) -> D | None:
        """The disk of a record. With `ending`, a fault if it may be there all the same."""

    def make_once(self, mark: Mark) -> D:
        """The disk that carries this mark, made now or by an earlier try. It can be attached, or will be."""

    def named(self, mark: Mark) -> D | None:
        """The disk that somebody else made and the mark's inputs name."""

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        """Where such a disk is looked for, and the hint if it is not there."""

    def check_adopted(self, mark: Mark, disk: D) -> None:
        """`PermanentError` where such a disk is not what is declared."""

    def take(self, disk: D, mark: Mark) -> None:
        """Write the mark on a disk that is nobody's."""

    def let_go(self, disk: D) -> None:
        """Take what we wrote off a disk."""

    def grow(self, disk: D, size: int, about: Address) -> None:
        """Let it have so many GiB."""

    def retag(self, disk: D, mark: Mark, have: Record) -> None:
        """Write a new mark over the old one, or in its place if somebody removed it."""

    def remove(self, disk: D, about: Address) -> None:
        """Delete it; what is absent already is success."""

    def holders(self, disk: D) -> Sequence[str]:
        """The ids of the machines that have it, or are about to."""

    def living(self, disk: D, machines: Sequence[str]) -> str | None:
        """The first of its holders that lives and keeps it, as a message names it."""

    def busy(self, disk: D, machines: Sequence[str], *, theirs: bool) -> str:
        """Why it cannot be deleted or let go just now; empty if it can. `theirs`: it was adopted."""


class Volumes(Generic[D]):
    """The volumes of one account."""

    def __init__(self, account: Account, driver: Driver[D]) -> None:
        self._account = account
        self._driver = driver

    def listed(self, *, address: str | None = None) -> list[D]:
        """All that are ours, or those of an address."""
        return self._driver.listed(address=address) if address else self._driver.listed()

    def thing(self, disk: D) -> Thing:
        """A disk of ours as a thing."""
        return marks.thing(self._account.read(disk), outputs(disk), partial(self._actual, disk))

    def _actual(self, disk: D, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, the size, the type."""
        found = self._account.strange(disk.tags, made)
        size = made.get("size")
        if isinstance(size, str) and disk.size and disk.size != gibibytes(Address("volume", disk.name), size):
            found["size"] = f"{disk.size}GB"
        kind = made.get("volume_type") or (disk.type if VOLUME_ID in made else self._driver.usual_type)
        if kind and disk.type and disk.type != kind:
            found["volume_type"] = disk.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. A disk that is not there says nothing: it may be another account."""
        out: dict[Address, Thing | Ended | None] = {}
        for record, disk in self._driver.recorded(records):
            if disk is not None and disk.gone:
                out[record.address] = Ended(reason=f"it is {disk.state}")
            elif disk is not None:
                out[record.address] = marks.again(record, disk.tags, self._actual(disk, record.inputs))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        things = map(self.thing, self._driver.candidates(address, token))
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. A disk that is named is adopted."""
        mark = self._account.mark(address, token, inputs)
        if VOLUME_ID not in inputs:
            return outputs(self._driver.make_once(mark))
        disk, free = self.seen(address, token, inputs)
        if free:
            self._driver.take(disk, mark)
        return outputs(disk)

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[D, bool]:
        """The disk that is named, and whether it is still to be taken; `PermanentError` where it is not what
        is declared. There is no `token` with a plan.
        """
        mark = self._account.mark(address, token, inputs)
        disk = self._driver.named(mark)
        if disk is None or disk.gone:
            raise absent(mark, *self._driver.whereabouts(mark.volume))
        free = is_free(self._account, mark, disk.tags, disk.name)
        self._driver.check_adopted(mark, disk)
        return disk, free

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It grows in place."""
        disk = self.of(have, untagged=True)
        if disk is None:
            raise gone(have.address)
        if self._account.lost(disk.tags):
            made = self._account.mark(have.address, token, have.inputs)
        else:
            made = self._account.read(disk)
        before = made.inputs if made.known else have.inputs
        check_fixed(have.address, before, inputs, FIXED)
        check_tags(have.address, inputs, before, disk.tags, disk.name)
        has = disk.size or sized(have.address, before, 0)
        size = size_of(have.address, before, inputs, has)
        if size > has:
            self._driver.grow(disk, size, have.address)
        self._driver.retag(disk, self._account.mark(made.address, made.token, inputs), have)
        return outputs(disk)

    def delete(self, have: Record) -> None:
        """See the port. One that a living machine has is refused. What was adopted is let go."""
        if have.outputs.get("id"):
            disk = self.of(have, untagged=VOLUME_ID in have.inputs, ending=True)
            there = [disk] if disk and not self._account.lost(disk.tags) else []
        else:
            there = self.listed(address=str(have.address))
        for disk in there:
            theirs = VOLUME_ID in have.inputs or VOLUME_ID in self._account.read(disk).inputs
            self._check_free(disk, have.address, theirs=theirs)
            if theirs:
                self._driver.let_go(disk)
            else:
                self._driver.remove(disk, have.address)

    def _check_free(self, disk: D, address: Address, *, theirs: bool) -> None:
        """What was adopted (`theirs`) others may have, but not a machine that got it from us."""
        holders = self._driver.holders(disk)
        ours = [m for m in holders if not theirs or ON + m.rpartition("/")[2] in disk.tags]
        if ours and (who := self._driver.living(disk, ours)):
            summary = f"{address} is on {who}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint="detach it first")
        if why := self._driver.busy(disk, ours, theirs=theirs):
            raise TransientError(
                TransientKind.BUSY, f"{disk.name} is not free yet: {why}", about=str(address)
            )

    def of(self, have: Record, *, untagged: bool = False, ending: bool = False) -> D | None:
        """The disk of a record, if it is there; `PermanentError` if it is not ours.

        Args:
            have: The record.
            untagged: One that does not say whose it is is returned, too.
            ending: The driver makes sure that what it does not find is gone.
        """
        disk = self._driver.disk(have, ending=ending)
        if disk is None or disk.gone:
            return None
        if not (untagged and self._account.lost(disk.tags)):
            self._account.check_owner(disk.tags, have, disk.id)
        return disk


def outputs(disk: Disk) -> dict[str, Any]:
    """What is recorded of a disk."""
    return {"id": disk.id, **({"zone": disk.zone} if disk.zone is not None else {})}
