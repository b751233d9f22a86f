"""The calls for volumes and attachments of sites: see `cloud.volumes` and `cloud.attachments`.

The disk says to which attachment it belongs if texts can be written on disks, else the machine says it. If
there are only names, a disk of ours on a machine of ours is the recorded attachment: the state lets a volume
have only one holder at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from declarative.model.inputs import VolumeInputs
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import attachment_driver, marks, volumes
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
from providers.cloud.any.site import ById, CalledDisks, Disk, Machine, Tags, Wanted, Written, claim_key
from providers.cloud.attachment_driver import Claim, keys_of, of_tags, parse, text_of, to_tags
from providers.cloud.checks import TOGETHER, check, gone
from providers.cloud.hosts import Holder
from providers.cloud.marks import ON, Mark


class SiteVolumes:
    """The volumes of a site."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.usual_type = account.DISK_TYPE

    def _at(self, disk: Disk) -> At:
        return self._account.at(disk.region)

    def listed(self, **narrow: str) -> list[Disk]:
        """All of ours, at all sites, without duplicates of one create."""
        return self._account.each(lambda at: first_of_each(at, at.disks_with(**narrow)))

    def candidates(self, address: Address, token: str) -> Iterable[Disk]:
        found = self._account.each(lambda at: at.disks_of(address, token))
        return [disk for disk in found if not disk.broken or disk.on]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Disk | None]]:
        """The disks that exist by their ids, with their marks or without."""
        for at, found in self._account.by_site(records):
            ids = {record.address: str(record.outputs.get("id") or "") for record in found}
            there = at.disks_by_id([made for made in ids.values() if made])
            yield from ((record, there.get(ids[record.address])) for record in found)

    def disk(self, have: Record, *, ending: bool) -> Disk | None:
        """The disk by its id, with its mark or without."""
        at, made = self._account.at(have.volume.region), str(have.outputs.get("id") or "")
        found = at.disks_by_id([made]).get(made) if made else None
        if ending and made and found is None:
            at.site.check_gone("disk", made)
        return found

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Disk:
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

    def named(self, mark: Mark) -> Disk | None:
        """Look it up by its id. A mark left by an interrupted try counts as ours."""
        at, given = self._account.at(mark.volume.region), str(mark.volume.volume_id)
        site = at.site
        if isinstance(site, ById):
            made = site.disk_called(given, mark.volume) if isinstance(site, CalledDisks) else given
            return at.disk(made, TOGETHER) if made else None
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

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        place = asked.region if self._account.regional else self._account.CLOUD
        return place, self._account.at(asked.region).site.called

    def check_adopted(self, mark: Mark, disk: Disk) -> None:
        asked = mark.volume
        places: dict[str, tuple[str | None, str | None]] = {"region": (asked.region, disk.region)}
        if self._account.TAGGED:
            places["availability_zone"] = (self._at(disk).site.disk_zone(asked.zone, disk.zone), disk.zone)
            self._account.tags(mark)  # whether the cloud takes them
        check(mark, disk.name, size=disk.size or 0, kind=disk.type or None, **places)
        if disk.broken:
            summary = f"{mark.address}: {disk.name} cannot be used: {disk.broken}"
            raise PermanentError(PermanentKind.INVALID, summary, about=VOLUME_ID)

    def take(self, disk: Disk, mark: Mark) -> None:
        site = self._at(disk).site
        if isinstance(site, Tags):
            take(self._account, site, disk, mark)
        else:
            site.take(disk.id, written_of(mark, {}), mark.tags)

    def let_go(self, disk: Disk) -> None:
        site = self._at(disk).site
        if isinstance(site, Tags):
            let_go(site, disk)
        else:
            site.let_go(disk.id, marks.tags_in(disk.written.inputs or {}))

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Disk, size: int, about: Address) -> None:
        site = self._at(disk).site
        if not site.grows:
            summary = f"{about}: {self._account.CLOUD} cannot make it larger in place"
            hint = "make a volume of another name, and copy what is in this one"
            raise PermanentError(PermanentKind.INVALID, summary, about="size", hint=hint)
        site.grow(disk, size)

    def retag(self, disk: Disk, mark: Mark, have: Record) -> None:
        rewrite(self._account, self._account.at(have.volume.region), disk, mark, have, {})

    def remove(self, disk: Disk, about: Address) -> None:
        """Including duplicates of the same create."""
        at = self._at(disk)
        token = disk.tags.get(marks.TOKEN)
        every = [d for d in at.disks() if d.tags.get(marks.TOKEN) == token] if at.lists else [disk]
        for made in every:
            if_there(at.site.remove, made)

    def holders(self, disk: Disk) -> Sequence[str]:
        return disk.on

    def living(self, disk: Disk, machines: Sequence[str]) -> str | None:
        """A site that only lists things is not asked whether the machines are alive."""
        at = self._at(disk)
        if at.lists:
            return machines[0]
        leaving = {holder.machine for holder in disk.holders or () if holder.leaving}
        for machine in at.machines_by_id([made for made in machines if made not in leaving]).values():
            if not machine.gone:
                return f"{machine.tags.get(marks.ADDRESS, machine.called)} ({machine.called})"
        return None

    def busy(self, disk: Disk, machines: Sequence[str], *, theirs: bool) -> str:
        if not self._at(disk).lists and machines:
            return "a machine is releasing it"
        # The cloud does not say yet who gets it.
        claimed = not theirs or any(key.startswith(ON) for key in disk.tags)
        return (
            f"it is {disk.state}" if disk.busy and claimed and not (disk.on and self._account.TAGGED) else ""
        )


class Volumes(volumes.Volumes[Disk]):
    """The volumes of one account."""

    def __init__(self, account: Account, driver: SiteVolumes) -> None:
        super().__init__(account, driver)
        self._sites = account

    def delete(self, have: Record) -> None:
        """A disk whose mark is removed may still have other tags of ours, if an earlier try was
        interrupted.
        """
        made = have.outputs.get("id")
        if VOLUME_ID in have.inputs and made and not self._sites.TAGGED:
            disk = self._driver.disk(have, ending=True)
            if disk is None or self._account.has_no_owner(disk.tags):
                self._sites.at(have.volume.region).site.let_go(str(made), marks.tags_in(have.inputs))
                return
        super().delete(have)


class SiteAttachments:
    """The attachments of a site."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.regional = account.regional

    def disk(self, volume: Disk, machines: Mapping[str, Machine] | None = None) -> attachment_driver.Disk:
        """Without a link, the disk is known by its id or its label."""
        at = self._account.at(volume.region)
        if machines is None:
            machines = {} if volume.holders is not None else self._holding(at, volume)
        also = [made for made, machine in machines.items() if volume.id in (machine.devices or ())]
        return attachment_driver.Disk(
            id=volume.id,
            region="" if self._account.TAGGED and not self.regional else volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=not volume.busy and not (at.lists and volume.on),
            gone=volume.gone,
            adopted=lambda: VOLUME_ID in self._account.read(volume).inputs,
            damage=f"{volume.id} is damaged: {volume.broken}" if volume.broken else "",
            attaching=volume.busy and (at.lists or volume.holders is not None),
            holders=volume.holders
            or tuple(
                _holder(volume, made, machines.get(made)) for made in dict.fromkeys((*volume.on, *also))
            ),
            living=None
            if volume.holders is not None
            else {made: self._machine(machine, volume) for made, machine in machines.items()},
            mute=not self._account.TAGGED and not at.site.keeps,
            source=(volume, machines),
        )

    def _holding(self, at: At, volume: Disk) -> Mapping[str, Machine]:
        """The living machines that may have a disk."""
        if at.lists:
            return {machine.id: machine for machine in at.machines()}
        there = at.machines_by_id(volume.on)
        return {made: machine for made, machine in there.items() if not machine.gone}

    def _machine(self, machine: Machine, volume: Disk | None = None) -> attachment_driver.Machine:
        """Nobody looks for the disk on it while it is being attached or detached."""
        changes = bool(volume and volume.busy and machine.devices is None)
        runs = machine.state is NodeState.READY and not changes
        return attachment_driver.living(self._account, machine, runs=runs)

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Disk]:
        """If the site only lists things, one listing of disks and one of machines."""
        at = self._account.at(region)
        if not at.lists:
            return {made: self.disk(disk) for made, disk in at.disks_by_id(ids).items()}
        found = [disk for disk in at.disks() if disk.id in ids]
        machines = {machine.id: machine for machine in at.machines()} if found else {}
        return {disk.id: self.disk(disk, machines) for disk in found}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Machine]:
        found = self._account.at(region).seen(ids).items()
        return {made: self._machine(machine) for made, machine in found if not machine.gone}

    def machine_id(self, node: Record) -> str:
        return str(node.outputs["id"])

    # ------------------------------------------------------------------------------------- claims

    def claim(self, disk: attachment_driver.Disk, machine: str) -> Claim | None:
        """The claim on the disk, or on the machine."""
        if self._account.TAGGED:
            return of_tags(disk.tags, disk.id, machine)
        volume, machines = _parts(disk)
        text = volume.written.texts.get(claim_key(machine))
        if text is None and machine in machines:
            text = machines[machine].written.texts.get(claim_key(volume.id))
        return None if text is None else parse(text, volume.id)

    def write(self, disk: attachment_driver.Disk, machine: str, claim: Claim) -> None:
        self._write(disk, machine, claim)

    def erase(self, disk: attachment_driver.Disk, machine: str) -> None:
        self._write(disk, machine, None)

    def _write(self, disk: attachment_driver.Disk, machine: str, claim: Claim | None) -> None:
        """Write a claim in place of all others, or remove it: on the disk if it keeps texts, else on the
        machine.
        """
        volume, machines = _parts(disk)
        site = self._account.at(volume.region).site
        if isinstance(site, Tags):
            new = to_tags(claim, machine) if claim else {}
            mine = keys_of(disk.tags, machine)
            old = [key for key in disk.tags if key.startswith(ON) and key not in new] if claim else mine
            if old or not new.items() <= disk.tags.items():
                site.tag(volume, new, old)
            return
        on_disk = "disk" in site.keeps
        thing = volume if on_disk else machines.get(machine)
        if thing is None or not site.keeps:
            return
        key, texts = claim_key(machine if on_disk else volume.id), thing.written.texts
        text = text_of(claim) if claim else None
        if texts.get(key) != text:
            others = [k for k in texts if on_disk and k.startswith("on-") and k != key]
            site.write(thing, {**dict.fromkeys(others), key: text})

    # ---------------------------------------------------------------------------- attach, detach

    def attach(self, disk: attachment_driver.Disk, machine: str, about: str) -> None:
        volume, machines = _parts(disk)
        at = self._account.at(volume.region)
        found = _by_its_id(volume, machine) or machines.get(machine)
        if found is None and not at.lists:
            found = at.seen([machine]).get(machine)
        if found is None or found.gone:
            raise gone(machine)
        at.site.attach(volume, found)

    def detach(self, disk: attachment_driver.Disk, machine: str) -> None:
        volume, machines = _parts(disk)
        at = self._account.at(volume.region)
        if not (at.lists and volume.busy):
            at.site.detach(volume, _by_its_id(volume, machine) or machines[machine])


def _holder(volume: Disk, made: str, machine: Machine | None) -> Holder:
    """A machine that knows its devices says whether it has the disk, and where."""
    if machine is not None and machine.devices is not None:
        device = machine.devices.get(volume.id)
        return Holder(
            machine=made,
            device=device.links[0] if device else "",
            attached=device is not None,
            leaving=device is None,
            serials=device.serials if device else (),
            links=device.links if device else (),
        )
    serials = dict.fromkeys((volume.id[:20], volume.id.replace("-", "")[:20], volume.label))
    return Holder(
        machine=made,
        device=volume.device or "",
        attached=not volume.busy,
        leaving=False,
        serials=() if volume.device else tuple(serials),
        links=(volume.device,) if volume.device else (),
    )


def _by_its_id(volume: Disk, machine: str) -> Machine | None:
    """The machine, of which a site needs no more than the id if its disks say who has them."""
    if volume.holders is None:
        return None
    return Machine(id=machine, region=volume.region, state=NodeState.READY)


def _parts(disk: attachment_driver.Disk) -> tuple[Disk, Mapping[str, Machine]]:
    found: tuple[Disk, Mapping[str, Machine]] = disk.source
    return found
