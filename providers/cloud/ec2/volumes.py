"""EC2's calls for volumes and attachments: see `cloud.volumes` and `cloud.attachments`.

One request makes a volume with its token and its tags.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from declarative.model.inputs import VolumeInputs
from declarative.model.state import Address, Record
from declarative.model.text import suggest
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import SURE, gibibytes, if_there, look_up, waits
from providers.cloud.attachment_driver import ClaimTags, Disk, Holder, Machine, adopted, living
from providers.cloud.checks import TOGETHER, check
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import VOLUME, Account, let_go, made_id
from providers.cloud.ec2.answers import BUSY, LEAVING, Held, Volume
from providers.cloud.ec2.region import Region, tagged
from providers.cloud.marks import Mark

TYPE = "gp3"
SIZES = {
    **dict.fromkeys(("gp2", "gp3", "io1", "io2"), (1, 65536)),
    **dict.fromkeys(("st1", "sc1"), (125, 16384)),
    "standard": (1, 1024),
}
"""The least and greatest size of a type in GiB. EC2 itself may refuse further sizes."""


class Ec2Volumes:
    """EBS volumes."""

    usual_type = TYPE

    def __init__(self, account: Account) -> None:
        self._account = account

    def _region(self, volume: Volume) -> Region:
        return self._account.region(volume.region)

    def listed(self, **narrow: str) -> list[Volume]:
        """All of ours, in all regions."""
        found = self._account.each(lambda region: region.volumes(self._account.mine(**narrow)))
        return [volume for volume in found if not volume.gone]

    def candidates(self, address: Address, token: str) -> list[Volume]:
        """The volumes with the token."""
        return self.listed(token=token)

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, Volume | None]]:
        """One request per region."""
        for region, found in self._account.by_region(records):
            ids = {r.address: made_id(r, "vol") for r in found}
            there = region.volumes_by_id(i for i in ids.values() if i)
            yield from ((record, there.get(ids[record.address] or "")) for record in found)

    def disk(self, have: Record, *, ending: bool) -> Volume | None:
        """Look it up by its id. If it is missing, EC2 is asked once more."""
        region = self._account.region(have.volume.region)
        made = made_id(have, "vol")
        volume = region.volume(made) if made else None
        if ending and made and volume is None:
            region.check_gone("DescribeVolumes", "VolumeId", made)
        return volume

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Volume:
        """Return when the volume is listed: it may be attached while it is still being made."""
        asked, token = mark.volume, mark.token
        region = self._account.region(asked.region)
        volume = self._account.once(
            token,
            lambda: self._make(region, mark, asked),
            lambda: next((v for v in self.listed(token=token) if v.region == region.name), None),
        )
        self._account.check_answer(volume.tags, token, volume.id)
        return self._listed(region, volume, token)

    def _make(self, region: Region, mark: Mark, asked: VolumeInputs) -> Volume:
        zone, kind, size = self.ahead(region.name, mark.address, asked)
        action = "CreateVolume"
        tags = self._account.tags(mark)
        found, date = region.dated(
            action,
            zone,
            ClientToken=mark.token,
            AvailabilityZone=zone,
            Size=size,
            VolumeType=kind,
            Iops=self._account.options.get("volume_iops"),
            Throughput=self._account.options.get("volume_throughput"),
            TagSpecification=tagged("volume", tags),
        )
        return answers.volume(action, found, region.name, date)

    def _listed(self, region: Region, volume: Volume, token: str) -> Volume:
        """The volume once EC2 lists it. An unlisted one counts as gone for attachments."""
        summary = f"{volume.id} is not listed yet"
        for look, pause in enumerate(waits(summary, volume.zone)):
            found = look_up(partial(region.appearing.next, volume.id, pause))
            if found is not None and found.gone:
                self._account.check_missed(token, f"{volume.id} ends", volume.zone, age=volume.age)
                summary = f"{volume.id} ended while it was made: check the right to use its encryption key"
                raise PermanentError(PermanentKind.INVALID, summary, about=volume.zone)
            if found is not None:
                return found
            if look >= SURE:
                self._account.check_missed(token, f"{volume.id} is not listed", volume.zone, age=volume.age)
        raise AssertionError("waits end with a fault")

    def ahead(self, region: str, address: Address, asked: VolumeInputs) -> tuple[str, str, int]:
        """Zone, type and GiB of a planned volume; `PermanentError` for an impossible one."""
        zone = self.zone(region, address, asked)
        size, kind = gibibytes(address, asked.size), asked.volume_type or TYPE
        near = suggest(kind, list(SIZES)) if kind not in SIZES else None
        if near:  # another zone may be newer than this list
            summary = f"{address}: EC2 has no volumes of the type `{kind}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="volume_type", hint=near)
        check_size(address, kind, size)
        return zone, kind, size

    def zone(self, region: str, address: Address, asked: VolumeInputs) -> str:
        """The zone of a volume to make; `PermanentError` if none is named."""
        zones = [z for z in self._account.config.zones if z.startswith(region)]
        zone = asked.zone or next(iter(zones), None)
        if not zone:
            summary = f"{address}: a volume of EC2 is in one zone, and none is named"
            hint = f"write `availability_zone: {region}a`"
            raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
        return zone

    # ----------------------------------------------------------------------------------- adoption

    def named(self, mark: Mark) -> Volume | None:
        """By its id."""
        made = str(mark.volume.volume_id)
        region = self._account.region(mark.volume.region)
        return region.appearing.next(made, TOGETHER) if re.fullmatch(VOLUME, made) else None

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        return asked.region, "volumes are of one region: write the `region` that it is in"

    def check_adopted(self, mark: Mark, disk: Volume) -> None:
        zone = (mark.volume.zone, disk.zone)
        check(mark, disk.id, size=disk.size, kind=disk.type, availability_zone=zone)

    def take(self, disk: Volume, mark: Mark) -> None:
        self._region(disk).tag(disk.id, self._account.tags(mark))

    def let_go(self, disk: Volume) -> None:
        """Our name goes last: until then it can be found again."""
        let_go(self._region(disk), disk.id, disk.tags)

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Volume, size: int, about: Address) -> None:
        """EC2 allows it at most once in six hours."""
        check_size(about, disk.type, size)
        region = self._region(disk)
        try:
            region.ask("ModifyVolume", "size", VolumeId=disk.id, Size=size)
        except PermanentError as error:
            now = region.volume(disk.id)
            if error.kind is PermanentKind.QUOTA and now and now.size >= size:
                return  # an earlier try did it
            raise

    def retag(self, disk: Volume, mark: Mark, have: Record) -> None:
        self._account.retag(self._region(disk), disk.id, disk.tags, mark)

    def remove(self, disk: Volume, about: Address) -> None:
        if_there(self._region(disk).ask, "DeleteVolume", str(about), VolumeId=disk.id)

    def holders(self, disk: Volume) -> list[str]:
        return [held.instance for held in disk.held]

    def living(self, disk: Volume, machines: Sequence[str]) -> str | None:
        """A machine that was asked to release it does not keep it."""
        keep = [h.instance for h in disk.held if h.instance in machines and h.state not in LEAVING]
        found = self._region(disk).instances_by_id(keep) if keep else {}
        alive = next((i for i in found.values() if not i.gone), None)
        return f"{alive.tags.get(marks.ADDRESS, alive.id)} ({alive.id})" if alive else None

    def busy(self, disk: Volume, machines: Sequence[str], *, theirs: bool) -> str:
        return f"{machines[0]} is releasing it" if machines else ""


def check_size(address: Address, kind: str, size: int) -> None:
    """`PermanentError` for a size that volumes of a type cannot have."""
    least, most = SIZES.get(kind, (1, size))
    if not least <= size <= most:
        summary = f"{address}: a volume of the type {kind} has {least} to {most} GB, and not {size}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size", hint="see `volume_type`")


DEVICES = tuple([f"/dev/sd{c}" for c in "fghijklmnopqrstuvwxyz"] + [f"/dev/xvdb{c}" for c in "abcdefghijklm"])
"""Device names that EC2 accepts for disks, besides those of the image."""
TAKEN = "already in use"
"""EC2's message for a device that another attachment took meanwhile."""

_LOCKS = tuple(threading.Lock() for _ in range(64))
"""One attachment to an instance at a time: free devices are known only once the last attachment
has its own.
"""


class Ec2Attachments(ClaimTags):
    """Attachments of EBS volumes to instances."""

    regional = True

    def __init__(self, account: Account) -> None:
        self._account = account

    def disk(self, volume: Volume, machines: object = None) -> Disk:
        """A volume, as attachments see it."""
        return Disk(
            id=volume.id,
            region=volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=volume.state == "available",
            gone=volume.gone,
            adopted=partial(adopted, self._account, volume),
            damage=f"{volume.id} is damaged: EC2 says `error`" if volume.state == "error" else "",
            holders=tuple(_holder(volume, held) for held in volume.held),
        )

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """The existing ones."""
        found = self._account.region(region).volumes_by_id(ids)
        return {made: self.disk(volume) for made, volume in found.items()}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """Instances that live."""
        found = self._account.region(region).instances_by_id(ids)
        there = [i for i in found.values() if not i.gone]
        return {i.id: living(self._account, i, runs=i.state == "running") for i in there}

    def machine_id(self, node: Record) -> str:
        """The id of a node's instance."""
        return made_id(node, "i") or ""

    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._account.region(disk.region).tag(disk.id, tags)

    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Remove tags."""
        self._account.region(disk.region).untag(disk.id, keys)

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Under the first free name of the instance."""
        region = self._account.region(disk.region)
        with _LOCKS[hash(machine) % len(_LOCKS)]:
            used = {
                held.device
                for other in region.volumes({"attachment.instance-id": [machine]})
                for held in other.held
                if held.instance == machine
            }
            device = next((name for name in DEVICES if name not in used), None)
            if device is None:
                summary = f"{machine} has {len(used)} disks, and takes no more"
                raise PermanentError(PermanentKind.QUOTA, summary, about=about)
            asked = {"VolumeId": disk.id, "InstanceId": machine, "Device": device}
            try:
                region.ask("AttachVolume", about, **asked)
            except ProviderError as error:
                if TAKEN not in error.summary:
                    raise
                raise TransientError(TransientKind.BUSY, error.summary, about=about) from None

    def detach(self, disk: Disk, machine: str) -> None:
        """Also if it is not attached yet."""
        self._account.region(disk.region).ask("DetachVolume", VolumeId=disk.id, InstanceId=machine)


def _holder(volume: Volume, held: Held) -> Holder:
    """On NVMe, the device reports the volume's id; on Xen it has only its name."""
    letters = held.device.removeprefix("/dev/").removeprefix("xvd").removeprefix("sd")
    return Holder(
        machine=held.instance,
        device=held.device,
        attached=held.state == "attached",
        leaving=held.state in LEAVING,
        busy=held.state == BUSY,
        serials=(volume.id.replace("-", ""),),
        names=tuple(dict.fromkeys((held.device, f"/dev/xvd{letters}"))),
    )
