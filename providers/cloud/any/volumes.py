"""Volumes: disks of a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.inputs import inputs_of
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import gibibytes, look_up, pauses
from providers.cloud.any.account import Account, At, first_of_each
from providers.cloud.any.nodes import mended, recalled, rewrite
from providers.cloud.any.site import Disk, Found, Wanted, Written, claim_key
from providers.cloud.volume_checks import absent, check, check_fixed, gone, is_free, size_of, sized
from providers.cloud.volumes import FIXED


class Volumes:
    """The disks of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def listed(self) -> list[Disk]:
        """All that are ours, at all sites."""
        return first_of_each(self._account.each(At.disks))

    def thing(self, disk: Disk) -> Thing:
        """A disk of ours as a thing."""
        mark = disk.written
        inputs, known = mark.inputs or {}, mark.inputs is not None
        return Thing(
            address=mark.address, token=mark.token, inputs=inputs, outputs=outputs(disk), known=known
        )

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        found = (d for d in self.listed() if (d.written.address, d.written.token) == (address, token))
        return next(map(self.thing, found), None)

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`."""
        return recalled(self._account, "disk", records)

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the disk is there."""
        asked = inputs_of("volume", inputs)
        at = self._account.at(asked.region)
        written = Written(owner=self._account.owner, token=token, address=address, inputs=dict(inputs))
        if VOLUME_ID in inputs:
            disk, free = self.seen(address, token, inputs)
            if free:
                at.site.take(disk.id, written, marks.tags_in(inputs))
            return {"id": disk.id}
        wanted = Wanted(
            region=asked.region,
            zone=asked.zone,
            written=written,
            tags=marks.tags_in(inputs),
            gib=gibibytes(address, asked.size),
            volume_type=asked.volume_type,
        )
        made = self._account.only("disk", at, written, lambda: at.site.make(wanted), lambda: _of(at, written))
        return outputs(self._made(at, made))

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[Found, bool]:
        """The disk that is named, and whether it is still to be taken; `PermanentError` where it is not what
        is declared. There is no `token` with a plan.
        """
        mark = self._account.mark(address, token, inputs)
        asked = mark.volume
        at, made = self._account.at(asked.region), str(asked.volume_id)
        disk = at.site.found(made)
        if disk is None:
            raise absent(mark, self._account.CLOUD, "write its id, as its API has it")
        begun = (
            token and disk.said.get(marks.TOKEN) == token
        )  # by a try that was cut short: its tags are ours
        own = () if begun else marks.tags_in(inputs).items() & disk.tags
        free = is_free(self._account, mark, {**dict(own), **disk.said}, made)
        check(mark, made, size=disk.size, kind=None, region=(asked.region, disk.region))
        return disk, free

    def _made(self, at: At, disk: Disk) -> Disk:
        """The disk once it is there. One that fails instead is deleted; so is one that was made twice."""
        for _ in pauses(f"{disk.id} is still being made", str(disk.written.address)):
            found = look_up(partial(_of, at, disk.written))
            disk = found[0] if found else disk
            if disk.broken:
                at.site.remove(disk)
                summary = f"{disk.id} failed while it was made: {disk.broken}"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=disk.zone or disk.region)
            if found and not (disk.busy and not disk.on):
                for extra in found[1:]:
                    at.site.remove(extra)
                return disk
        raise AssertionError("pauses end with a fault")

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port."""
        at, disk = self.of(have)
        if disk is None and mended(at, self._account.owner, "disk", have, token):
            at, disk = self.of(have)
        if disk is None:
            raise gone(have.address)
        made = have.inputs if disk.written.inputs is None else disk.written.inputs
        check_fixed(have.address, made, inputs, FIXED)
        has = disk.size or sized(have.address, made, 0)  # some clouds do not tell it
        size = size_of(have.address, made, inputs, has)
        if size > has:
            if not at.site.grows:
                summary = f"{have.address}: {self._account.CLOUD} cannot make it larger in place"
                hint = "make a volume of another name, and copy what is in this one"
                raise PermanentError(PermanentKind.INVALID, summary, about="size", hint=hint)
            at.site.grow(disk, size)
        rewrite(at, disk, inputs)
        return outputs(disk)

    def delete(self, have: Record) -> None:
        """See the port. One that a machine has is refused. What was adopted is let go."""
        adopted, made = VOLUME_ID in have.inputs, have.outputs.get("id")
        at = self._account.at(have.volume.region)
        there = self._made_for(at, have)
        for disk in there:
            inputs = disk.written.inputs or {}
            theirs = adopted or VOLUME_ID in inputs
            _check_free(disk, have.address, theirs=theirs)
            if theirs:
                at.site.let_go(disk.id, marks.tags_in(inputs))
            else:
                _remove(at, disk)
        if adopted and made and not there:
            # An earlier try was cut short.
            at.site.let_go(str(made), marks.tags_in(have.inputs))

    def _made_for(self, at: At, have: Record) -> list[Disk]:
        """The disk of a record, and what its create made besides; without an id, those of its address."""
        if not have.outputs.get("id"):
            return [d for d in at.disks() if d.written.address == have.address]
        _, disk = self.of(have)
        return [d for d in at.disks() if disk and d.written.token == disk.written.token]

    def of(self, have: Record) -> tuple[At, Disk | None]:
        """The disk of a record, if it is there."""
        at = self._account.at(have.volume.region)
        made = have.outputs.get("id")
        return at, next((d for d in at.disks() if d.id == made), None)


def outputs(disk: Disk) -> dict[str, Any]:
    """What is recorded of a disk."""
    return {"id": disk.id, **({"zone": disk.zone} if disk.zone else {})}


def _of(at: At, mark: Written) -> list[Disk]:
    """The disks that the create with this mark made, the oldest first."""
    wanted = (mark.token, mark.address)
    return [d for d in at.disks() if (d.written.token, d.written.address) == wanted]


def _check_free(disk: Disk, address: Address, *, theirs: bool) -> None:
    """What was adopted (`theirs`) others may have, but not a machine that got it from us."""
    ours = [m for m in disk.on if not theirs or claim_key(m) in disk.written.texts]
    if ours:
        summary = f"{address} is on {ours[0]}"
        raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint="detach it first")
    if disk.busy:
        raise TransientError(TransientKind.BUSY, f"{disk.id} is not free yet", about=str(address))


def _remove(at: At, disk: Disk) -> None:
    try:
        at.site.remove(disk)
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            raise
