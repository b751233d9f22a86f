"""Volumes of all clouds: made once, found, compared, grown, adopted, released, deleted.

A cloud is a `Site`: it asks once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import SURE, gibibytes, if_there, look_up, waits
from providers.cloud.any.account import (
    Account,
    At,
    duplicates,
    first_of_each,
    let_go,
    of_mark,
    rewrite,
    take,
    written_of,
)
from providers.cloud.any.site import ById, CalledDisks, Disk, Tags, Wanted, Written
from providers.cloud.checks import (
    absent,
    check,
    check_fixed,
    check_tags,
    gone,
    is_free,
    size_of,
    sized,
)
from providers.cloud.marks import ON, Mark

FIXED = ("backend", "region", "zone", "volume_type", VOLUME_ID)
"""Inputs that are fixed when the disk is made: a change needs a new disk."""


class Volumes:
    """The volumes of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def _at(self, disk: Disk) -> At:
        return self._account.at(disk.region)

    def listed(self, *, address: str | None = None) -> list[Disk]:
        """All of ours, or those of an address, at all sites, without duplicates of one create."""
        narrow = {"address": address} if address else {}
        return self._account.each(lambda at: first_of_each(at, at.disks_with(**narrow)))

    def thing(self, disk: Disk) -> Thing:
        """A disk of ours as the port's thing."""
        return marks.thing(self._account.read(disk), outputs(disk), partial(self._actual, disk))

    def _actual(self, disk: Disk, made: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that others changed: the tags, the size, the type."""
        found = self._account.changed_tags(disk.tags, made)
        size = made.get("size")
        if isinstance(size, str) and disk.size and disk.size != gibibytes(Address("volume", disk.name), size):
            found["size"] = f"{disk.size}GB"
        kind = made.get("volume_type") or (disk.type if VOLUME_ID in made else self._account.DISK_TYPE)
        if kind and disk.type and disk.type != kind:
            found["volume_type"] = disk.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """A missing disk proves nothing: it may be another account."""
        out: dict[Address, Thing | Ended | None] = {}
        for at, found in self._account.by_site(records):
            ids = {record.address: str(record.outputs.get("id") or "") for record in found}
            there = at.disks_by_id([made for made in ids.values() if made])
            for record in found:
                disk = there.get(ids[record.address])
                if disk is not None and disk.gone:
                    out[record.address] = Ended(reason=f"it is {disk.state}")
                elif disk is not None:
                    out[record.address] = marks.again(record, disk.tags, self._actual(disk, record.inputs))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """A disk that failed while it was made does not count."""
        found = self._account.each(lambda at: at.disks_of(address, token))
        things = (self.thing(disk) for disk in found if not disk.broken or disk.on)
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A named disk is adopted."""
        mark = self._account.mark(address, token, inputs)
        if VOLUME_ID not in inputs:
            return outputs(self._make(mark))
        disk, free = self.seen(address, token, inputs)
        site = self._at(disk).site
        if free and isinstance(site, Tags):
            take(self._account, site, disk, mark)
        elif free:
            site.take(disk.id, written_of(mark, {}), mark.tags)
        return outputs(disk)

    def _make(self, mark: Mark) -> Disk:
        """Return when the disk exists. A failed disk and a duplicate are deleted."""
        asked = mark.volume
        at = self._account.at(asked.region)
        wanted = Wanted(
            region=asked.region,
            zone=asked.zone,
            mark=mark,
            written=written_of(mark, {}),
            tags=self._account.tags(mark) if self._account.TAGGED else mark.tags,
            gib=gibibytes(mark.address, asked.size),
            volume_type=asked.volume_type,
        )
        look = partial(at.disks_of, mark.address, mark.token, asked)
        disk = self._account.create_once("disk", at, mark, lambda: wanted, at.site.make, look)
        if not at.lists and not at.site.client_token and not disk.busy and not disk.broken:
            return disk
        made, age, unseen, about = disk.id, disk.age, 0, str(mark.address)
        for pause in waits(f"{made} is still being made", about):
            found = look_up(partial(self._look, at, disk, mark, pause))
            if found and made not in {one.id for one in found}:
                continue  # an earlier try's is listed first: the one made now would be left behind
            unseen = 0 if found else unseen + 1
            disk = found[0] if found else disk
            if at.site.client_token and (unseen > SURE or disk.gone):
                missed = f"{disk.id} is not listed"
                self._account.check_missed(mark.token, missed, disk.zone, age=age)
            if disk.gone:
                summary = f"{disk.id} ended while it was made: {disk.broken or 'the reason is unknown'}"
                raise PermanentError(PermanentKind.INVALID, summary, about=disk.zone or disk.region)
            if disk.broken:
                at.site.remove(disk)
                summary = f"{disk.id} failed while it was made: {disk.broken}"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=disk.zone or disk.region)
            if found and (at.site.client_token or not (disk.busy and not disk.on)):
                extras = found[1:] if at.lists else duplicates(at, "disk", mark)
                if not at.lists:
                    self._account.check_answer(disk.tags, mark.token, disk.id)
                for extra in extras:
                    if_there(at.site.remove, extra)
                if disk.id in {extra.id for extra in extras}:
                    summary = f"{disk.id} is a duplicate of {mark.address}, and is deleted"
                    raise TransientError(TransientKind.BUSY, summary, about=about)
                return disk
        raise AssertionError("pauses end with a fault")

    def _look(self, at: At, disk: Disk, mark: Mark, pause: float) -> list[Disk]:
        """What there is of a create, oldest first."""
        if not at.lists:
            seen = at.disk(disk.id, pause)
            return [] if seen is None else [seen]
        time.sleep(pause)
        return of_mark(at.disks(), mark)

    # ----------------------------------------------------------------------------------- adoption

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[Disk, bool]:
        """The named disk, and whether it still has to be adopted; `PermanentError` if it is not as declared.
        In a plan there is no `token`.
        """
        mark = self._account.mark(address, token, inputs)
        asked, disk = mark.volume, self._named(mark)
        if disk is None or disk.gone:
            place = asked.region if self._account.regional else self._account.CLOUD
            raise absent(mark, place, self._account.at(asked.region).site.called)
        free = is_free(self._account, mark, disk.tags, disk.name)
        places: dict[str, tuple[str | None, str | None]] = {"region": (asked.region, disk.region)}
        if self._account.TAGGED:
            places["availability_zone"] = (self._at(disk).site.disk_zone(asked.zone, disk.zone), disk.zone)
            self._account.tags(mark)  # whether the cloud takes them
        check(mark, disk.name, size=disk.size or 0, kind=disk.type or None, **places)
        if disk.broken:
            summary = f"{mark.address}: {disk.name} cannot be used: {disk.broken}"
            raise PermanentError(PermanentKind.INVALID, summary, about=VOLUME_ID)
        return disk, free

    def _named(self, mark: Mark) -> Disk | None:
        """Look it up by its id. A mark left by an interrupted try counts as ours."""
        at, given = self._account.at(mark.volume.region), str(mark.volume.volume_id)
        site = at.site
        if isinstance(site, ById):
            made = site.disk_called(given, mark.volume) if isinstance(site, CalledDisks) else given
            return at.disk_to_adopt(made) if made else None
        found = site.found(given)
        if found is None:
            return None
        has, token = found.marks, found.marks.get(marks.TOKEN, "")
        address = Address.parse(has[marks.ADDRESS]) if marks.ADDRESS in has else mark.address
        unfinished = mark.token and token == mark.token
        return Disk(
            id=found.id,
            region=found.region,
            size=found.size,
            written=Written(owner=has.get(marks.OWNER, ""), token=token, address=address),
            theirs={} if unfinished else dict(mark.tags.items() & found.tags),
        )

    # ----------------------------------------------------------------------------- update, delete

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
        at = self._account.at(have.volume.region)
        if size > has:
            if not at.site.grows:
                summary = f"{have.address}: {self._account.CLOUD} cannot make it larger in place"
                hint = "make a volume of another name, and copy what is in this one"
                raise PermanentError(PermanentKind.INVALID, summary, about="size", hint=hint)
            at.site.grow(disk, size)
        rewrite(self._account, at, disk, self._account.mark(made.address, made.token, inputs), have, {})
        return outputs(disk)

    def delete(self, have: Record) -> None:
        """A disk on a living machine is refused. An adopted one is released."""
        made = have.outputs.get("id")
        if made:
            disk = self.of(have, untagged=VOLUME_ID in have.inputs, ending=True)
            there = [disk] if disk and not self._account.has_no_owner(disk.tags) else []
            if not there and VOLUME_ID in have.inputs and not self._account.TAGGED:
                # If an earlier try was interrupted, it may still have other tags of ours.
                site = self._account.at(have.volume.region).site
                site.let_go(str(made), marks.tags_in(have.inputs))
        else:
            there = self.listed(address=str(have.address))
        for disk in there:
            theirs = VOLUME_ID in have.inputs or VOLUME_ID in self._account.read(disk).inputs
            self._check_free(disk, have.address, theirs=theirs)
            at = self._at(disk)
            if not theirs:
                # Including duplicates of the same create.
                token = disk.tags.get(marks.TOKEN)
                every = [d for d in at.disks() if d.tags.get(marks.TOKEN) == token] if at.lists else [disk]
                for one in every:
                    if_there(at.site.remove, one)
            elif isinstance(at.site, Tags):
                let_go(at.site, disk)
            else:
                at.site.let_go(disk.id, marks.tags_in(disk.written.inputs or {}))

    def _check_free(self, disk: Disk, address: Address, *, theirs: bool) -> None:
        """Others may hold an adopted disk (`theirs`), but not a machine that got it from us."""
        ours = [m for m in disk.on if not theirs or ON + m.rpartition("/")[2] in disk.tags]
        if ours and (who := self._living(disk, ours)):
            summary = f"{address} is on {who}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint="detach it first")
        if why := self._busy(disk, ours, theirs=theirs):
            raise TransientError(
                TransientKind.BUSY, f"{disk.name} is not free yet: {why}", about=str(address)
            )

    def _living(self, disk: Disk, machines: Sequence[str]) -> str | None:
        """The first living holder that keeps it, as named in a message. A site that only lists
        things is not asked whether the machines are alive.
        """
        at = self._at(disk)
        if at.lists:
            return machines[0]
        leaving = {holder.machine for holder in disk.holders or () if holder.leaving}
        for machine in at.machines_by_id([made for made in machines if made not in leaving]).values():
            if not machine.gone:
                return f"{machine.tags.get(marks.ADDRESS, machine.called)} ({machine.called})"
        return None

    def _busy(self, disk: Disk, machines: Sequence[str], *, theirs: bool) -> str:
        if not self._at(disk).lists and machines:
            return "a machine is releasing it"
        # The cloud does not say yet who gets it.
        claimed = not theirs or any(key.startswith(ON) for key in disk.tags)
        return (
            f"it is {disk.state}" if disk.busy and claimed and not (disk.on and self._account.TAGGED) else ""
        )

    def of(self, have: Record, *, untagged: bool = False, ending: bool = False) -> Disk | None:
        """The disk of a record, if it exists; `PermanentError` if it is not ours.

        Args:
            have: The record.
            untagged: A disk that does not name its owner is returned, too.
            ending: A fault unless it is certain that a disk that is not found is gone.
        """
        at, made = self._account.at(have.volume.region), str(have.outputs.get("id") or "")
        disk = at.disks_by_id([made]).get(made) if made else None
        if ending and made and disk is None:
            at.site.check_gone("disk", made)
        if disk is None or disk.gone:
            return None
        if not (untagged and self._account.has_no_owner(disk.tags)):
            self._account.check_owner(disk.tags, have, disk.id)
        return disk


def outputs(disk: Disk) -> dict[str, Any]:
    """The outputs of a disk."""
    return {"id": disk.id, **({"zone": disk.zone} if disk.zone is not None else {})}
