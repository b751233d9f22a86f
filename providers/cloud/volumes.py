"""Volumes of clouds with tags on disks: made once, found, compared, grown, adopted, released, deleted.

A cloud is a `Driver`: its calls, and its own checks.
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
"""Inputs that are fixed when the disk is made: a change needs a new disk."""


class Disk(Tagged, Protocol):
    """A disk as its cloud reports it."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def size(self) -> int | None:
        """In GiB; None if the cloud does not report it."""

    @property
    def type(self) -> str:
        """Empty if the cloud did not report it."""

    @property
    def state(self) -> str:
        """In the cloud's own words."""


D = TypeVar("D", bound=Disk)


class Driver(Protocol[D]):
    """A cloud's calls for disks. Faults are the port's."""

    @property
    def usual_type(self) -> str:
        """The default type of disks; empty if types are not compared."""

    def listed(self, **narrow: str) -> list[D]:
        """All of ours that are not gone. `address` and `token` narrow it."""

    def candidates(self, address: Address, token: str) -> Iterable[D]:
        """The disks that a create with this token may have made."""

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, D | None]]:
        """The records with a known region, and the disk of each if it exists or has just ended."""

    def disk(self, have: Record, *, ending: bool) -> D | None:
        """The disk of a record. With `ending`, a fault unless it is certain that it is gone."""

    def make_once(self, mark: Mark) -> D:
        """The disk with this mark, made now or by an earlier try. It can be attached, now or soon."""

    def named(self, mark: Mark) -> D | None:
        """The disk of somebody else that is named in the mark's inputs."""

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        """The place where such a disk is looked for, and a hint if it does not exist."""

    def check_adopted(self, mark: Mark, disk: D) -> None:
        """`PermanentError` if such a disk is not as declared."""

    def take(self, disk: D, mark: Mark) -> None:
        """Write the mark on a disk without an owner."""

    def let_go(self, disk: D) -> None:
        """Remove what we wrote from a disk."""

    def grow(self, disk: D, size: int, about: Address) -> None:
        """Grow it to so many GiB."""

    def retag(self, disk: D, mark: Mark, have: Record) -> None:
        """Write a new mark over the old one, or in its place if it was removed."""

    def remove(self, disk: D, about: Address) -> None:
        """Delete it; does nothing if it does not exist."""

    def holders(self, disk: D) -> Sequence[str]:
        """The ids of the machines that have it or are getting it."""

    def living(self, disk: D, machines: Sequence[str]) -> str | None:
        """The first living holder that keeps it, as named in a message."""

    def busy(self, disk: D, machines: Sequence[str], *, theirs: bool) -> str:
        """Why it cannot be deleted or released now; empty if it can. `theirs`: it was adopted."""


class Volumes(Generic[D]):
    """The volumes of one account."""

    def __init__(self, account: Account, driver: Driver[D]) -> None:
        self._account = account
        self._driver = driver

    def listed(self, *, address: str | None = None) -> list[D]:
        """All of ours, or those of an address."""
        return self._driver.listed(address=address) if address else self._driver.listed()

    def thing(self, disk: D) -> Thing:
        """A disk of ours as the port's thing."""
        return marks.thing(self._account.read(disk), outputs(disk), partial(self._actual, disk))

    def _actual(self, disk: D, made: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that others changed: the tags, the size, the type."""
        found = self._account.changed_tags(disk.tags, made)
        size = made.get("size")
        if isinstance(size, str) and disk.size and disk.size != gibibytes(Address("volume", disk.name), size):
            found["size"] = f"{disk.size}GB"
        kind = made.get("volume_type") or (disk.type if VOLUME_ID in made else self._driver.usual_type)
        if kind and disk.type and disk.type != kind:
            found["volume_type"] = disk.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """A missing disk proves nothing: it may be another account."""
        out: dict[Address, Thing | Ended | None] = {}
        for record, disk in self._driver.recorded(records):
            if disk is not None and disk.gone:
                out[record.address] = Ended(reason=f"it is {disk.state}")
            elif disk is not None:
                out[record.address] = marks.again(record, disk.tags, self._actual(disk, record.inputs))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        things = map(self.thing, self._driver.candidates(address, token))
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A named disk is adopted."""
        mark = self._account.mark(address, token, inputs)
        if VOLUME_ID not in inputs:
            return outputs(self._driver.make_once(mark))
        disk, free = self.seen(address, token, inputs)
        if free:
            self._driver.take(disk, mark)
        return outputs(disk)

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[D, bool]:
        """The named disk, and whether it still has to be adopted; `PermanentError` if it is not as declared.
        In a plan there is no `token`.
        """
        mark = self._account.mark(address, token, inputs)
        disk = self._driver.named(mark)
        if disk is None or disk.gone:
            raise absent(mark, *self._driver.whereabouts(mark.volume))
        free = is_free(self._account, mark, disk.tags, disk.name)
        self._driver.check_adopted(mark, disk)
        return disk, free

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A disk grows in place."""
        disk = self.of(have, untagged=True)
        if disk is None:
            raise gone(have.address)
        if self._account.has_no_owner(disk.tags):
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
        """A disk on a living machine is refused. An adopted one is released."""
        if have.outputs.get("id"):
            disk = self.of(have, untagged=VOLUME_ID in have.inputs, ending=True)
            there = [disk] if disk and not self._account.has_no_owner(disk.tags) else []
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
        """Others may hold an adopted disk (`theirs`), but not a machine that got it from us."""
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
        """The disk of a record, if it exists; `PermanentError` if it is not ours.

        Args:
            have: The record.
            untagged: A disk that does not name its owner is returned, too.
            ending: The driver makes sure that a disk that it does not find is gone.
        """
        disk = self._driver.disk(have, ending=ending)
        if disk is None or disk.gone:
            return None
        if not (untagged and self._account.has_no_owner(disk.tags)):
            self._account.check_owner(disk.tags, have, disk.id)
        return disk


def outputs(disk: Disk) -> dict[str, Any]:
    """The outputs of a disk."""
    return {"id": disk.id, **({"zone": disk.zone} if disk.zone is not None else {})}
