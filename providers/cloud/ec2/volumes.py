"""Volumes, made by one request that carries their token and all of their tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.diagnostic import suggest
from declarative.inputs import VolumeInputs, inputs_of
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from declarative.resource import VOLUME_ID
from declarative.state import Address, Record
from providers.cloud import marks
from providers.cloud.account import SURE, gibibytes, look_up, waits
from providers.cloud.adopted import check_tags, was_adopted
from providers.cloud.changes import check_fixed, gone, size_of
from providers.cloud.claims import ON
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account, made_id
from providers.cloud.ec2.adopted import adopted, let_go
from providers.cloud.ec2.answers import Volume
from providers.cloud.ec2.region import Region, tagged
from providers.cloud.marks import Mark

FIXED = ("backend", "region", "zone", "volume_type", VOLUME_ID)
"""Inputs that are those of the disk: it is made anew to change them."""
TYPE = "gp3"
SIZES = {
    **dict.fromkeys(("gp2", "gp3", "io1", "io2"), (1, 65536)),
    **dict.fromkeys(("st1", "sc1"), (125, 16384)),
    "standard": (1, 1024),
}
"""The fewest and the most GiB of a type. Not a promise: what EC2 itself refuses, it says."""
GONE = ("deleting", "deleted")


class Volumes:
    """The volumes of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def listed(self, **narrow: str) -> list[Volume]:
        """All that are ours, in all regions; `address` and `token` narrow it."""
        found = self._account.each(lambda region: region.volumes(self._account.mine(**narrow)))
        return [volume for volume in found if volume.state not in GONE]

    def thing(self, volume: Volume) -> Thing:
        """A volume of ours as a thing."""
        return marks.thing(volume.tags, volume.id, outputs(volume), partial(self._actual, volume))

    def _actual(self, volume: Volume, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, the size, the type."""
        found = self._account.strange(volume.tags, made)
        size = made.get("size")
        if isinstance(size, str) and volume.size != gibibytes(Address("volume", volume.id), size):
            found["size"] = f"{volume.size}GB"
        kind = made.get("volume_type") or (volume.type if VOLUME_ID in made else TYPE)
        if volume.type and volume.type != kind:
            found["volume_type"] = volume.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`."""
        out: dict[Address, Thing | Ended | None] = {}
        for region, found in self._account.by_region(records):
            ids = {r.address: made_id(r, "vol") for r in found}
            there = region.volumes_by_id(i for i in ids.values() if i)
            for record in found:
                volume = there.get(ids[record.address] or "")
                if volume is not None and volume.state not in GONE:
                    out[record.address] = marks.again(
                        record, volume.tags, self._actual(volume, record.inputs)
                    )
                elif volume is not None:
                    out[record.address] = Ended(reason=f"it is {volume.state}")
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        things = map(self.thing, self.listed(token=token))
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the volume is listed: it may be attached while it is being made."""
        asked, mark = inputs_of("volume", inputs), self._account.mark(address, token, inputs)
        region = self._account.region(asked.region)
        if asked.volume_id is not None:
            return outputs(adopted(self._account, region, mark))
        volume = self._account.once(
            token,
            lambda: self._make(region, mark, asked),
            lambda: next((v for v in self.listed(token=token) if v.region == region.name), None),
        )
        self._account.check_answer(volume.tags, token, volume.id)
        return outputs(self._listed(region, volume, token))

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
        """The volume once EC2 lists it. What is not listed counts as gone to whoever wants to attach it."""
        summary = f"{volume.id} is not listed yet"
        for look, pause in enumerate(waits(summary, volume.zone)):
            found = look_up(partial(region.appearing.next, volume.id, pause))
            if found is not None and found.state in GONE:
                self._account.check_missed(token, f"{volume.id} ends", volume.zone, age=volume.age)
                summary = f"{volume.id} ended while it was made: may its key be used?"
                raise PermanentError(PermanentKind.INVALID, summary, about=volume.zone)
            if found is not None:
                return found
            if look >= SURE:
                self._account.check_missed(token, f"{volume.id} is not listed", volume.zone, age=volume.age)
        raise AssertionError("waits end with a fault")

    def ahead(self, region: str, address: Address, asked: VolumeInputs) -> tuple[str, str, int]:
        """Zone, type and GiB of a volume that is to be made; `PermanentError` for what cannot be."""
        zone = self.zone(region, address, asked)
        size, kind = gibibytes(address, asked.size), asked.volume_type or TYPE
        near = suggest(kind, list(SIZES)) if kind not in SIZES else None
        if near:  # another one may be newer than this
            summary = f"{address}: EC2 has no volumes of the type `{kind}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="volume_type", hint=near)
        check_size(address, kind, size)
        return zone, kind, size

    def zone(self, region: str, address: Address, asked: VolumeInputs) -> str:
        """The zone of a volume that is to be made; `PermanentError` if none is named."""
        zones = [z for z in self._account.config.zones if z.startswith(region)]
        zone = asked.zone or next(iter(zones), None)
        if not zone:
            summary = f"{address}: a volume of EC2 is in one zone, and none is named"
            hint = f"write `availability_zone: {region}a`"
            raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
        return zone

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It grows in place, at most once in six hours."""
        region, volume = self.of(have, untagged=True)
        if volume is None:
            raise gone(have.address)
        if self._account.lost(volume.tags):
            made = self._account.mark(have.address, token, have.inputs)
        else:
            made = marks.read(volume.tags, volume.id)
        check_fixed(have.address, made.inputs, inputs, FIXED)
        check_tags(have.address, inputs, made.inputs, volume.tags, volume.id)
        size = size_of(have.address, made.inputs, inputs, volume.size)
        if size > volume.size:
            check_size(have.address, volume.type, size)
            self._grow(region, volume, size)
        mark = self._account.mark(made.address, made.token, inputs)
        self._account.retag(region, volume.id, volume.tags, mark)
        return outputs(volume)

    def _grow(self, region: Region, volume: Volume, size: int) -> None:
        try:
            region.ask("ModifyVolume", "size", VolumeId=volume.id, Size=size)
        except PermanentError as error:
            now = region.volume(volume.id)
            if error.kind is PermanentKind.QUOTA and now and now.size >= size:
                return  # an earlier try has done it
            raise

    def delete(self, have: Record) -> None:
        """See the port. One that a living instance has is refused. What was adopted is let go."""
        if have.outputs.get("id"):
            region, volume = self.of(have, untagged=VOLUME_ID in have.inputs, ending=True)
            there = [(region, volume)] if volume and not self._account.lost(volume.tags) else []
        else:
            found = self.listed(address=str(have.address))
            there = [(self._account.region(v.region), v) for v in found]
        for region, volume in there:
            theirs = VOLUME_ID in have.inputs or was_adopted(volume.tags, volume.id)
            self._check_free(region, volume, have.address, theirs=theirs)
            if theirs:
                let_go(region, volume)
                continue
            try:
                region.ask("DeleteVolume", str(have.address), VolumeId=volume.id)
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise

    def _check_free(self, region: Region, volume: Volume, address: Address, *, theirs: bool) -> None:
        """What was adopted (`theirs`) others may have, but not an instance that got it from us."""
        ours = [held for held in volume.held if not theirs or ON + held.instance in volume.tags]
        holders = [held for held in ours if held.state not in ("detaching", "busy")]
        living = region.instances_by_id(held.instance for held in holders) if holders else {}
        alive = [i for i in living.values() if not i.gone]
        if alive:
            summary = f"{address} is on {alive[0].tags.get(marks.ADDRESS, alive[0].id)} ({alive[0].id})"
            hint = "detach it first"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=hint)
        if ours:
            summary = f"{volume.id} is not free yet: {ours[0].instance} is letting go of it"
            raise TransientError(TransientKind.BUSY, summary, about=str(address))

    def of(
        self, have: Record, *, untagged: bool = False, ending: bool = False
    ) -> tuple[Region, Volume | None]:
        """The volume of a record, if it is there; one that is not ours is an error, and so is one that does
        not say whose it is, unless that is to be mended. Who is `ending` it forgets what is gone.
        """
        region = self._account.region(have.volume.region)
        made = made_id(have, "vol")
        volume = region.volume(made) if made else None
        if ending and made and volume is None:
            region.check_gone("DescribeVolumes", "VolumeId", made)
        if volume is None or volume.state in GONE:
            return region, None
        if not (untagged and self._account.lost(volume.tags)):
            self._account.check_owner(volume.tags, have, volume.id)
        return region, volume


def check_size(address: Address, kind: str, size: int) -> None:
    """`PermanentError` for a size that volumes of a type do not have."""
    least, most = SIZES.get(kind, (1, size))
    if not least <= size <= most:
        summary = f"{address}: a volume of the type {kind} has {least} to {most} GB, and not {size}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size", hint="see `volume_type`")


def outputs(volume: Volume) -> dict[str, Any]:
    """What is recorded of a volume."""
    return {"id": volume.id, "zone": volume.zone}
