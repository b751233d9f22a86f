"""The calls for volumes and attachments of sites: see `cloud.volumes` and `cloud.attachments`.

The disk says to which attachment it belongs if texts can be written on disks, else the machine says it. If
there are only names, a disk of ours on a machine of ours is the recorded attachment: the state lets a volume
have only one holder at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from declarative.model.inputs import VolumeInputs
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import Ended, PermanentError, PermanentKind
from providers.cloud import attachment_driver, marks, volumes
from providers.cloud.account import gibibytes, if_there, look_up, pauses
from providers.cloud.any.account import Account, At, first_of_each, of_mark, recalled, rewrite, unmarked
from providers.cloud.any.site import Disk, Machine, Wanted, Written, claim_key
from providers.cloud.attachment_driver import Claim, parse, text_of
from providers.cloud.checks import check, gone
from providers.cloud.marks import Mark


class SiteVolumes:
    """The volumes of a site. It lists only things of ours, so nothing is asked for by its id."""

    usual_type = ""

    def __init__(self, account: Account) -> None:
        self._account = account

    def listed(self, **narrow: str) -> list[Disk]:
        """All of ours, at all sites, without duplicates of one create."""
        wanted = {marks.OURS + key: value for key, value in narrow.items()}
        found = first_of_each(self._account.each(At.disks))
        return [disk for disk in found if wanted.items() <= disk.tags.items()]

    def candidates(self, address: Address, token: str) -> Iterable[Disk]:
        return self.listed(address=str(address), token=token)

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Disk | None]]:
        """The disks that exist by their ids although their owner's mark is missing."""
        for record, found in recalled(self._account, "disk", records):
            if not isinstance(found, Ended):
                yield record, _disk(record, found)

    def disk(self, have: Record, *, ending: bool) -> Disk | None:
        """The disk by its id. One without its mark counts too, unless `ending`."""
        at, made = self._account.at(have.volume.region), str(have.outputs.get("id") or "")
        found = next((d for d in at.disks() if d.id == made), None)
        if found or ending or not made or not unmarked(at, "disk", made):
            return found
        return _disk(have, Written(owner="", token="", address=have.address))

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Disk:
        """Return when the disk exists. A failed disk and a duplicate are deleted."""
        asked = mark.volume
        at = self._account.at(asked.region)
        wanted = Wanted(
            region=asked.region,
            zone=asked.zone,
            written=_written(mark),
            tags=mark.tags,
            gib=gibibytes(mark.address, asked.size),
            volume_type=asked.volume_type,
        )
        disk = self._account.create_once(
            "disk", at, mark, lambda: at.site.make(wanted), lambda: of_mark(at.disks(), mark)
        )
        for _ in pauses(f"{disk.id} is still being made", str(mark.address)):
            found = look_up(lambda: of_mark(at.disks(), mark))
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

    # ----------------------------------------------------------------------------------- adoption

    def named(self, mark: Mark) -> Disk | None:
        """Look it up by its id. A mark left by an interrupted try counts as ours."""
        found = self._account.at(mark.volume.region).site.found(str(mark.volume.volume_id))
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
        return self._account.CLOUD, "write its id, as its API has it"

    def check_adopted(self, mark: Mark, disk: Disk) -> None:
        check(mark, disk.id, size=disk.size or 0, kind=None, region=(mark.volume.region, disk.region))

    def take(self, disk: Disk, mark: Mark) -> None:
        self._account.at(disk.region).site.take(disk.id, _written(mark), mark.tags)

    def let_go(self, disk: Disk) -> None:
        self._account.at(disk.region).site.let_go(disk.id, marks.tags_in(disk.written.inputs or {}))

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Disk, size: int, about: Address) -> None:
        site = self._account.at(disk.region).site
        if not site.grows:
            summary = f"{about}: {self._account.CLOUD} cannot make it larger in place"
            hint = "make a volume of another name, and copy what is in this one"
            raise PermanentError(PermanentKind.INVALID, summary, about="size", hint=hint)
        site.grow(disk, size)

    def retag(self, disk: Disk, mark: Mark, have: Record) -> None:
        rewrite(self._account.at(disk.region), disk, mark, {})

    def remove(self, disk: Disk, about: Address) -> None:
        """Including duplicates of the same create."""
        at = self._account.at(disk.region)
        for made in (d for d in at.disks() if d.written.token == disk.written.token):
            if_there(at.site.remove, made)

    def holders(self, disk: Disk) -> Sequence[str]:
        return disk.on

    def living(self, disk: Disk, machines: Sequence[str]) -> str | None:
        """It does not check whether the machines are alive."""
        return machines[0]

    def busy(self, disk: Disk, machines: Sequence[str], *, theirs: bool) -> str:
        return f"it is {disk.state}" if disk.busy else ""


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
        if VOLUME_ID in have.inputs and made and self._driver.disk(have, ending=True) is None:
            site = self._sites.at(have.volume.region).site
            site.let_go(str(made), marks.tags_in(have.inputs))
        else:
            super().delete(have)


def _written(mark: Mark) -> Written:
    return Written(owner=mark.owner, token=mark.token, address=mark.address, inputs=mark.inputs)


def _disk(record: Record, written: Written) -> Disk:
    """A disk of which only the id and the mark are known."""
    made = str(record.outputs.get("id") or "")
    return Disk(id=made, region=record.volume.region, size=None, written=written)


class SiteAttachments:
    """The attachments of a site."""

    regional = True

    def __init__(self, account: Account) -> None:
        self._account = account

    def disk(self, volume: Disk, machines: Mapping[str, Machine] | None = None) -> attachment_driver.Disk:
        """Without a link, the disk is known by its id or its label."""
        at = self._account.at(volume.region)
        if machines is None:
            machines = {machine.id: machine for machine in at.machines()}
        return attachment_driver.Disk(
            id=volume.id,
            region=volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=not volume.on and not volume.busy,
            gone=False,
            adopted=lambda: VOLUME_ID in (volume.written.inputs or {}),
            damage=f"{volume.id} is damaged: {volume.broken}" if volume.broken else "",
            attaching=volume.busy,
            holders=tuple(_holder(volume, made) for made in volume.on),
            living={made: self._machine(machine, volume) for made, machine in machines.items()},
            mute=not at.site.keeps,
            source=(volume, machines),
        )

    def _machine(self, machine: Machine, volume: Disk | None = None) -> attachment_driver.Machine:
        """Nobody looks for the disk on it while it is being attached or detached."""
        runs = machine.state is NodeState.READY and not (volume and volume.busy)
        return attachment_driver.living(self._account, machine, runs=runs)

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Disk]:
        """One listing for both."""
        at = self._account.at(region)
        found = [disk for disk in at.disks() if disk.id in ids]
        machines = {machine.id: machine for machine in at.machines()} if found else {}
        return {disk.id: self.disk(disk, machines) for disk in found}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Machine]:
        return {m.id: self._machine(m) for m in self._account.at(region).machines() if m.id in ids}

    def machine_id(self, node: Record) -> str:
        return str(node.outputs["id"])

    # ------------------------------------------------------------------------------------- claims

    def claim(self, disk: attachment_driver.Disk, machine: str) -> Claim | None:
        """The claim on the disk, or on the machine."""
        volume, machines = _parts(disk)
        text = volume.written.texts.get(claim_key(machine))
        if text is None and machine in machines:
            text = machines[machine].written.texts.get(claim_key(volume.id))
        return None if text is None else parse(text, volume.id)

    def write(self, disk: attachment_driver.Disk, machine: str, claim: Claim) -> None:
        self._say(disk, machine, text_of(claim))

    def erase(self, disk: attachment_driver.Disk, machine: str) -> None:
        self._say(disk, machine, None)

    def _say(self, disk: attachment_driver.Disk, machine: str, claim: str | None) -> None:
        """Write a claim or remove it: on the disk if it keeps texts, else on the machine."""
        volume, machines = _parts(disk)
        site = self._account.at(volume.region).site
        on_disk = "disk" in site.keeps
        thing = volume if on_disk else machines.get(machine)
        if thing is None or not site.keeps:
            return
        key, texts = claim_key(machine if on_disk else volume.id), thing.written.texts
        if texts.get(key) != claim:
            old = [k for k in texts if on_disk and k.startswith("on-") and k != key]
            site.write(thing, {**dict.fromkeys(old), key: claim})

    # ---------------------------------------------------------------------------- attach, detach

    def attach(self, disk: attachment_driver.Disk, machine: str, about: str) -> None:
        volume, machines = _parts(disk)
        if machine not in machines:
            raise gone(machine)
        self._account.at(volume.region).site.attach(volume, machines[machine])

    def detach(self, disk: attachment_driver.Disk, machine: str) -> None:
        volume, machines = _parts(disk)
        if not volume.busy:
            self._account.at(volume.region).site.detach(volume, machines[machine])


def _holder(volume: Disk, machine: str) -> attachment_driver.Holder:
    serials = dict.fromkeys((volume.id[:20], volume.id.replace("-", "")[:20], volume.label))
    return attachment_driver.Holder(
        machine=machine,
        device=volume.device or "",
        attached=not volume.busy,
        leaving=False,
        serials=() if volume.device else tuple(serials),
        links=(volume.device,) if volume.device else (),
    )


def _parts(disk: attachment_driver.Disk) -> tuple[Disk, Mapping[str, Machine]]:
    found: tuple[Disk, Mapping[str, Machine]] = disk.source
    return found
