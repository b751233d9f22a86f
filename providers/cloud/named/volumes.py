"""Volumes: disks that are named after their token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.inputs import inputs_of
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from declarative.resource import VOLUME_ID
from declarative.state import Address, Record
from providers.cloud import marks
from providers.cloud.account import Account, gibibytes, look_up
from providers.cloud.adopted import absent, check, check_tags, is_free, left, taken_on, was_adopted
from providers.cloud.changes import check_fixed, gone, size_of
from providers.cloud.claims import ON
from providers.cloud.named.api import Api, Disk, Phase, Wanted, name_of
from providers.cloud.named.nodes import leaving, retagged, tags_of

FIXED = ("backend", "region", "zone", "volume_type", VOLUME_ID)
"""Inputs that are those of the disk: it is made anew to change them."""


class Volumes:
    """The disks of one account."""

    def __init__(self, account: Account, api: Api) -> None:
        self._account = account
        self._api = api

    def listed(self, *, name: str | None = None) -> list[Disk]:
        """All that are ours. A machine's own disk may carry the machine's marks."""
        found = [d for d in self._api.disks(name=name) if self._ours(d) and d.phase is not Phase.ENDING]
        return [d for d in found if d.tags.get(marks.ADDRESS, "").startswith("volume/")]

    def _ours(self, disk: Disk) -> bool:
        return disk.tags.get(marks.OWNER) == self._account.owner

    def thing(self, disk: Disk) -> Thing:
        """A disk of ours as a thing."""
        return marks.thing(disk.tags, disk.id, outputs(disk), partial(self._actual, disk))

    def _actual(self, disk: Disk, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, the size, the type."""
        found = self._account.strange(disk.tags, made)
        size = made.get("size")
        if isinstance(size, str) and disk.size != gibibytes(Address("volume", disk.name), size):
            found["size"] = f"{disk.size}GB"
        kind = made.get("volume_type") or (disk.type if VOLUME_ID in made else self._api.disk_type)
        if disk.type and disk.type != kind:
            found["volume_type"] = disk.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. Of what is not there the cloud says nothing: it may be another account."""
        out: dict[Address, Thing | Ended | None] = {}
        for record in records:
            made = str(record.outputs.get("id") or "")
            disk = self._api.disk(made) if made else None
            if disk is not None and disk.phase is not Phase.ENDING:
                out[record.address] = marks.again(record, disk.tags, self._actual(disk, record.inputs))
            elif disk is not None:
                out[record.address] = Ended(reason=f"it is {disk.state}")
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. One that was adopted has a name of its own."""
        for name in (name_of(address, token), None):
            things = map(self.thing, self.listed(name=name))
            found = next((t for t in things if (t.address, t.token) == (address, token)), None)
            if found is not None:
                return found
        return None

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port."""
        if VOLUME_ID in inputs:
            return outputs(self._adopted(address, token, inputs))
        asked = inputs_of("volume", inputs)
        made = self._api.disk_id(name_of(address, token), asked)
        size = gibibytes(address, asked.size)
        look = partial(self._api.disk, made)
        disk = look()
        if disk is None:
            try:
                tags = tags_of(self._account.mark(address, token, inputs))
                wanted = Wanted(id=made, address=address, inputs=asked, tags=tags)
                disk = self._api.make_disk(wanted, size)
            except PermanentError as error:
                if error.kind is not PermanentKind.CONFLICT:
                    raise
                disk = look_up(look)
                if disk is None:
                    raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        if disk.phase is Phase.ENDING:
            raise leaving(disk.name, address)
        if not self._ours(disk) or disk.tags.get(marks.TOKEN) != token:
            summary = f"{disk.id} is there, and does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self._account.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=hint)
        return outputs(disk)

    def _adopted(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Disk:
        """The disk that is named, with our tags; faults are those of `seen`."""
        disk, free = self.seen(address, token, inputs)
        if free:
            ours = tags_of(self._account.mark(address, token, inputs))
            self._api.tag_disk(disk, taken_on(disk.tags, ours))
        return disk

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[Disk, bool]:
        """The disk that is named, and whether it is still to be taken; `PermanentError` where it is not what
        is declared. There is no `token` with a plan.
        """
        mark = self._account.mark(address, token, inputs)
        asked = mark.volume
        made = self._api.disk_called(str(asked.volume_id), asked)
        disk = self._api.disk(made) if made else None
        if disk is None or disk.phase is Phase.ENDING:
            raise absent(mark, self._account.CLOUD, f"write {self._api.called}")
        free = is_free(self._account, mark, disk.tags, disk.name)
        region, zone = (asked.region, disk.region), (asked.zone, disk.zone)
        check(mark, disk.name, size=disk.size, kind=disk.type, region=region, availability_zone=zone)
        return disk, free

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It grows in place."""
        disk = self.of(have, untagged=True)
        if disk is None:
            raise gone(have.address)
        if self._account.lost(disk.tags):
            made = self._account.mark(have.address, token, have.inputs)
        else:
            made = marks.read(disk.tags, disk.id)
        check_fixed(have.address, made.inputs, inputs, FIXED)
        check_tags(have.address, inputs, made.inputs, disk.tags, disk.name)
        size = size_of(have.address, made.inputs, inputs, disk.size)
        if size > disk.size:
            self._api.grow(disk, size)
        after = tags_of(self._account.mark(made.address, made.token, inputs))
        self._api.tag_disk(disk, retagged(disk.tags, disk.id, after, have))
        return outputs(disk)

    def delete(self, have: Record) -> None:
        """See the port. One that a machine has is refused. What was adopted is let go."""
        if have.outputs.get("id"):
            disk = self.of(have, untagged=VOLUME_ID in have.inputs)
            there = [disk] if disk and not self._account.lost(disk.tags) else []
        else:
            there = [d for d in self.listed() if d.tags.get(marks.ADDRESS) == str(have.address)]
        for disk in there:
            theirs = VOLUME_ID in have.inputs or was_adopted(disk.tags, disk.id)
            self._check_free(disk, have.address, theirs=theirs)
            if theirs:
                self._api.tag_disk(disk, left(disk.tags, disk.id))
            else:
                self._api.remove(disk)

    def _check_free(self, disk: Disk, address: Address, *, theirs: bool) -> None:
        """What was adopted (`theirs`) others may have, but not a machine that got it from us."""
        ours = [m for m in disk.holders if not theirs or ON + m.rpartition("/")[2] in disk.tags]
        for made in ours:
            machine = self._api.machine(made)
            if machine is not None and machine.phase is not Phase.ENDING:
                who = machine.tags.get(marks.ADDRESS, machine.name)
                hint = "detach it first"
                summary = f"{address} is on {who} ({machine.name})"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=hint)
        if ours:
            summary = f"{disk.name} is not free yet: a machine is letting go of it"
            raise TransientError(TransientKind.BUSY, summary, about=str(address))

    def of(self, have: Record, *, untagged: bool = False) -> Disk | None:
        """The disk of a record, if it is there; one that is not ours is an error, and so is one that does not
        say whose it is, unless that is to be mended.
        """
        made = str(have.outputs.get("id") or "")
        disk = self._api.disk(made) if made else None
        if disk is None or disk.phase is Phase.ENDING:
            return None
        if not (untagged and self._account.lost(disk.tags)):
            self._account.check_owner(disk.tags, have, disk.id)
        return disk


def outputs(disk: Disk) -> dict[str, Any]:
    """What is recorded of a disk."""
    return {"id": disk.id, **({"zone": disk.zone} if disk.zone else {})}
