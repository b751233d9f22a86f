"""Volumes: cinder's, whose metadata go with the request that makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.inputs import VolumeInputs, inputs_of
from declarative.provider import Ended, PermanentError, PermanentKind, Thing, TransientError, TransientKind
from declarative.resource import VOLUME_ID
from declarative.state import Address, Record
from providers.cloud import marks
from providers.cloud.account import gibibytes, look_up, pauses
from providers.cloud.adopted import check_tags, was_adopted
from providers.cloud.changes import check_fixed, gone, size_of
from providers.cloud.claims import ON
from providers.cloud.marks import Mark
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account, made_id
from providers.cloud.openstack.adopted import adopted, let_go
from providers.cloud.openstack.answers import BAD, Volume
from providers.cloud.openstack.once import extras
from providers.cloud.openstack.region import Region

FIXED = ("backend", "region", "zone", "volume_type", VOLUME_ID)
"""Inputs that are those of the disk: it is made anew to change them."""
CHANGING = ("detaching", "attaching", "reserved", "in-use")
"""States of a volume that is on its way to a server, or from it."""
IN_USE = "volume 3.42"
"""The version of cinder's API from which on a volume grows while a server has it."""


class Volumes:
    """The volumes of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def listed(self, **narrow: str) -> list[Volume]:
        """All that are ours, in all regions; `address` and `token` narrow it."""
        return self._account.each(lambda region: self._in(region, **narrow))

    def _in(self, region: Region, **narrow: str) -> list[Volume]:
        """By what is written on them: the name of one that was adopted is not ours.

        A cinder that may not be asked for metadata leaves nothing out.
        """
        told = {marks.OURS + key: value for key, value in narrow.items()}
        found = region.volumes(**({"metadata": str(told)} if told else {}))
        return [v for v in found if self._account.mine(v.tags, **narrow) and not v.gone]

    def thing(self, volume: Volume) -> Thing:
        """A volume of ours as a thing."""
        return marks.thing(volume.tags, volume.id, outputs(volume), partial(self._actual, volume))

    def _actual(self, volume: Volume, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, the size, the type where one was asked for."""
        found = self._account.strange(volume.tags, made)
        size = made.get("size")
        if isinstance(size, str) and volume.size != gibibytes(Address("volume", volume.id), size):
            found["size"] = f"{volume.size}GB"
        if made.get("volume_type") and volume.type and volume.type != made["volume_type"]:
            found["volume_type"] = volume.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. Cinder forgets what ended."""
        out: dict[Address, Thing | Ended | None] = {}
        for region, found in self._account.by_region(records):
            for record in found:
                made = made_id(record)
                volume = region.volume(made) if made else None
                if volume is not None and not volume.gone:
                    out[record.address] = marks.again(
                        record, volume.tags, self._actual(volume, record.inputs)
                    )
                elif volume is not None:
                    out[record.address] = Ended(reason=f"it is {volume.status}")
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. One that could not be made is nothing that was made."""
        found = self.listed(token=token)
        things = (self.thing(v) for v in sorted(found, key=_age) if v.status != "error" or v.held)
        return next((t for t in things if t.address == address), None)

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the volume can be attached."""
        wanted, mark = inputs_of("volume", inputs), self._account.mark(address, token, inputs)
        region = self._account.region(wanted.region)
        if wanted.volume_id is not None:
            return outputs(adopted(self._account, region, mark))
        made = self._account.made_once(
            token,
            lambda: self._make(region, mark, wanted),
            lambda: self._there(region, token),
        )
        volume = self._available(region, made)
        self._account.check_answer(volume.tags, token, volume.id)
        found = look_up(partial(self._in, region, token=token))
        for extra in extras(found, _age):
            self._end(region, extra.id)
            if extra.id == volume.id:
                text = f"{volume.id} is a second {address}, and is taken away"
                raise TransientError(TransientKind.BUSY, text, about=str(address))
        return outputs(volume)

    def _there(self, region: Region, token: str) -> str | None:
        """The id of what an earlier try made; those that came to nothing are taken away."""
        found = sorted(self._in(region, token=token), key=_age)
        for volume in found:
            if volume.status == "error" and not volume.held:
                self._end(region, volume.id)
        return next((v.id for v in found if v.status != "error" or v.held), None)

    def _make(self, region: Region, mark: Mark, wanted: VolumeInputs) -> str:
        asked: dict[str, Any] = {
            "name": mark.address.name,
            "size": gibibytes(mark.address, wanted.size),
            "metadata": self._account.tags(mark),
        }
        if zone := names.disk_zone(region, wanted.zone):
            asked["availability_zone"] = zone
        if wanted.volume_type:
            asked["volume_type"] = wanted.volume_type
        found = region.ask(
            f"making {mark.address}",
            "volume",
            "POST",
            "/volumes",
            {"volume": asked},
            about=wanted.zone or region.name,
        )
        return str(answers.inside("making a volume", found, "volume").get("id") or "")

    def _available(self, region: Region, made: str) -> Volume:
        """The volume once it is made. One that failed instead is a fault; nothing is left of it."""
        for _ in pauses(f"{made} is still being made", made):
            volume = look_up(partial(region.volume, made))
            if volume is None or volume.status in ("creating", "downloading"):
                continue
            if volume.status == "error" and not volume.held:
                self._end(region, made)
                summary = f"cinder could not make {made}: it does not say why"
                hint = "it may have no room, or none of this `volume_type`"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=volume.zone, hint=hint)
            return volume
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------- update, delete

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It grows in place, on a server too where the cloud can."""
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
            self._grow(region, volume, size)
        mark = self._account.mark(made.address, made.token, inputs)
        self._account.retag(region, "volume", f"/volumes/{volume.id}", volume.tags, mark)
        return outputs(volume)

    def _grow(self, region: Region, volume: Volume, size: int) -> None:
        """Ask for it once it can be, and wait until it is so."""
        asked = False
        for _ in pauses(f"{volume.id} does not have {size} GiB yet", volume.id):
            now = region.volume(volume.id)
            if now is None or now.status in BAD:
                state = "gone" if now is None else f"`{now.status}`"
                summary = f"{volume.id} could not grow: cinder says that it is {state}"
                hint = "its driver may not grow a volume that a server has; an administrator can reset it"
                raise PermanentError(PermanentKind.CONFLICT, summary, about="size", hint=hint)
            if now.size >= size and now.status in ("available", "in-use"):
                return
            if not asked and now.status in ("available", "in-use"):
                version = IN_USE if now.status == "in-use" else None
                body = {"os-extend": {"new_size": size}}
                path = f"/volumes/{volume.id}/action"
                region.ask("growing a volume", "volume", "POST", path, body, about="size", version=version)
                asked = True

    def delete(self, have: Record) -> None:
        """See the port. One that a server has is refused. It ends when the volume is gone, or let go."""
        if have.outputs.get("id"):
            region, volume = self.of(have, untagged=VOLUME_ID in have.inputs)
            there = [(region, volume)] if volume and not self._account.lost(volume.tags) else []
        else:
            found = self.listed(address=str(have.address))
            there = [(self._account.region(v.region), v) for v in found]
        for region, volume in there:
            theirs = VOLUME_ID in have.inputs or was_adopted(volume.tags, volume.id)
            self._check_free(region, volume, have.address, theirs=theirs)
            if theirs:
                let_go(region, volume)
            else:
                self._removed(region, volume.id)

    def _removed(self, region: Region, made: str) -> None:
        self._end(region, made)
        for _ in pauses(f"{made} is not gone yet", made):
            volume = region.volume(made)
            if volume is None or volume.status == "deleted":
                return
            if volume.status == "error_deleting":
                summary = f"cinder could not delete {made}"
                hint = "an administrator can reset it: `openstack volume set --state available`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=made, hint=hint)

    def _end(self, region: Region, made: str) -> None:
        try:
            region.ask(f"deleting volume {made}", "volume", "DELETE", f"/volumes/{made}")
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _check_free(self, region: Region, volume: Volume, address: Address, *, theirs: bool) -> None:
        """What was adopted (`theirs`) others may have, but not a server that got it from us."""
        ours = [held for held in volume.held if not theirs or ON + held.server in volume.tags]
        for held in ours:
            server = region.server(held.server)
            if server and not server.gone:
                summary = f"{address} is on {server.tags.get(marks.ADDRESS, server.name)} ({server.id})"
                raise PermanentError(
                    PermanentKind.CONFLICT, summary, about=str(address), hint="detach it first"
                )
        claimed = not theirs or any(key.startswith(ON) for key in volume.tags)
        if ours or (claimed and not volume.held and volume.status in CHANGING):
            summary = f"{volume.id} is not free yet: it is {volume.status}"
            raise TransientError(TransientKind.BUSY, summary, about=str(address))

    def of(self, have: Record, *, untagged: bool = False) -> tuple[Region, Volume | None]:
        """The volume of a record, if it is there; one that is not ours is an error, and so is one that does
        not say whose it is, unless that is to be mended.
        """
        region = self._account.region(have.volume.region)
        made = made_id(have)
        volume = region.volume(made) if made else None
        if volume is None or volume.gone:
            return region, None
        if not (untagged and self._account.lost(volume.tags)):
            self._account.check_owner(volume.tags, have, volume.id)
        return region, volume


def outputs(volume: Volume) -> dict[str, Any]:
    """What is recorded of a volume."""
    return {"id": volume.id, "zone": volume.zone}


def _age(volume: Volume) -> tuple[str, str]:
    return volume.created, volume.id
