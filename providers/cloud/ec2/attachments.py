"""Attachments: a volume on an instance, for one rank.

EC2 has no tags for them, so the volume says it: under a key of the instance's own, so that who loses the
race for a volume does not overwrite what the winner wrote. The claim is written first, and holds only with
the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from declarative.state import Address, Record
from providers.cloud import claims, marks
from providers.cloud.account import look_up, pauses
from providers.cloud.adopted import was_adopted
from providers.cloud.changes import gone
from providers.cloud.claims import ON, id_of, is_of, of_tags, thing_of, to_tags, volume_of
from providers.cloud.disks import OnNode
from providers.cloud.ec2 import nodes
from providers.cloud.ec2.account import Account, made_id
from providers.cloud.ec2.answers import Held, Volume
from providers.cloud.ec2.region import Region
from providers.cloud.ec2.volumes import GONE, Volumes

DEVICES = tuple([f"/dev/sd{c}" for c in "fghijklmnopqrstuvwxyz"] + [f"/dev/xvdb{c}" for c in "abcdefghijklm"])
"""Names that EC2 takes for disks, besides those of the image's own."""
LEAVING = ("detaching", "busy")
"""States of an attachment that was asked to end; `busy`: the machine has it in use."""
TAKEN = "already in use"
"""What EC2 says of a device that another attachment got meanwhile."""

_TURNS = tuple(threading.Lock() for _ in range(64))
"""One attachment to an instance at a time: which devices are free is seen once the last one has its own."""


class Attachments:
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes) -> None:
        self._account = account
        self._volumes = volumes
        self._asked: set[str] = set()
        """Tokens of attachments that may have come of an earlier try."""

    def things(self, volumes: Iterable[Volume], living: Iterable[str]) -> list[Thing]:
        """All that hold, given all volumes of ours and the ids of all living instances of ours."""
        alive = set(living)
        out: list[Thing] = []
        for volume in volumes:
            for held in volume.held:
                claim = of_tags(volume.tags, volume.id, held.instance) if held.instance in alive else None
                if claim and held.state not in LEAVING:
                    out.append(thing_of(claim, _outputs(claim, volume, held)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        name = volume_of(address)
        volumes = self._volumes.listed(address=str(Address("volume", name)))
        for volume in volumes:
            ids = [held.instance for held in volume.held]
            found = self._account.region(volume.region).instances_by_id(ids) if ids else {}
            living = [i.id for i in found.values() if not i.gone]
            for thing in self.things([volume], living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """See `provider.Recalls`: None is for a disk that is there, and not on its instance."""
        out: dict[Address, Thing | None] = {}
        for region, found in self._account.by_region(records):
            disks = region.volumes_by_id(str(r.outputs.get("volume")) for r in found)
            for record in found:
                volume = disks.get(str(record.outputs.get("volume")))
                if volume is None:
                    continue
                on = (h for h in volume.held if h.instance == record.outputs.get("instance"))
                held = next((h for h in on if h.state != "detaching"), None)
                out[record.address] = marks.again(record) if held else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """See `provider.Attachments`. As NVMe it says the volume's id, on Xen nothing but its name."""
        if have.address.kind == "volume":
            region, volume = self._volumes.of(have)
            held = next(iter(volume.held), None) if volume else None
        else:
            place, made, instance = self._place(have)
            volume = place.volume(made) if place else None
            if place is None or volume is None:
                return None
            region, claim = place, of_tags(volume.tags, volume.id, instance)
            mine = claim is not None and is_of(have, claim, volume.id, instance)
            held = next((h for h in volume.held if h.instance == instance), None) if mine else None
        if volume is None or held is None or held.state in LEAVING:
            return None
        found = region.instances_by_id([held.instance]).get(held.instance)
        if found is None or found.state != "running" or found.tags.get(marks.OWNER) != self._account.owner:
            return None
        letters = held.device.removeprefix("/dev/").removeprefix("xvd").removeprefix("sd")
        return OnNode(
            id=volume.id,
            node=marks.node(found.tags, found.id, self._account.config.backend, nodes.outputs(found)),
            size=volume.size,
            ours=not was_adopted(volume.tags, volume.id),
            taken=bool(found.tags.get(marks.TAKEN)),
            serials=(volume.id.replace("-", ""),),
            names=tuple(dict.fromkeys((held.device, f"/dev/xvd{letters}"))),
        )

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. It ends when the instance has the disk."""
        disk, node, claim = claims.asked(address, token, inputs, needs)
        about = str(disk.address)
        instance = made_id(node, "i") or ""
        for _ in pauses(f"{address}: {disk.outputs.get('id')} is not on {instance} yet", about):
            look = partial(self._volumes.of, disk)
            region, volume = look_up(look) if token in self._asked else look()
            if volume is None:
                raise gone(about)
            have = self._holding(region, volume, instance, claim)
            if have and have.state == "attached":
                return _outputs(claim, volume, have)
            if have is None and volume.state == "available":
                self._attach(region, volume, instance, claim)
        raise AssertionError("pauses end with a fault")

    def _holding(
        self, region: Region, volume: Volume, instance: str, claim: Mapping[str, Any]
    ) -> Held | None:
        """Who has the disk, if that is us or somebody who lets go of it; else a fault."""
        if volume.state == "error":
            summary = f"{volume.id} is damaged: EC2 says `error`"
            raise PermanentError(PermanentKind.INVALID, summary, about=claim["address"])
        held = next(iter(volume.held), None)
        if held is None or held.state in LEAVING:
            return held
        theirs = of_tags(volume.tags, volume.id, held.instance)
        if held.instance == instance and theirs and theirs["token"] == claim["token"]:
            return held
        holder = region.instances_by_id([held.instance]).get(held.instance)
        if holder is None or holder.gone:
            return held
        raise claims.held(volume.tags.get(marks.ADDRESS), theirs, held.instance)

    def _attach(self, region: Region, volume: Volume, instance: str, claim: Mapping[str, Any]) -> None:
        """Ask for it once. What became of it, the next look says."""
        about = Address.parse(claim["address"])
        mine = to_tags(claim, instance)
        region.untag(volume.id, [key for key in volume.tags if key.startswith(ON) and key not in mine])
        region.tag(volume.id, mine)
        with _TURNS[hash(instance) % len(_TURNS)]:
            used = {
                held.device
                for other in region.volumes({"attachment.instance-id": [instance]})
                for held in other.held
                if held.instance == instance
            }
            device = next((name for name in DEVICES if name not in used), None)
            if device is None:
                summary = f"{instance} has {len(used)} disks, and takes no more"
                raise PermanentError(PermanentKind.QUOTA, summary, about=str(about))
            again = claim["token"] in self._asked
            self._asked.add(claim["token"])
            try:
                region.ask(
                    "AttachVolume",
                    str(about),
                    VolumeId=volume.id,
                    InstanceId=instance,
                    Device=device,
                )
            except ProviderError as error:
                passes = isinstance(error, TransientError) and error.kind is TransientKind.BUSY
                if (
                    not passes
                    and TAKEN not in error.summary
                    and not (again and _on(region, volume, instance))
                ):
                    raise

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """See the port. It ends when the volume is free. Nothing is done for one that another holds now."""
        region, disk, instance = self._place(have)
        if region is None:
            return
        for _ in pauses(f"{have.address}: {disk} is not off {instance} yet", str(have.address)):
            volume = region.volume(disk)
            if volume is None or volume.state in GONE or volume.tags.get(marks.OWNER) != self._account.owner:
                return
            claim = of_tags(volume.tags, volume.id, instance)
            if claim is None or not is_of(have, claim, volume.id, instance):
                return
            held = next((h for h in volume.held if h.instance == instance), None)
            if held is None:
                region.untag(disk, [key for key in volume.tags if key.startswith(ON + instance)])
                return
            if held.state in LEAVING:
                if wait:
                    continue
                return
            found = region.instances_by_id([instance]).get(instance)
            if found is None or found.gone:
                return  # its end is that of its attachments
            self._detach(region, disk, instance)

    def _detach(self, region: Region, disk: str, instance: str) -> None:
        try:
            region.ask("DetachVolume", VolumeId=disk, InstanceId=instance)
        except TransientError as error:
            if error.kind is not TransientKind.BUSY:
                raise
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _place(self, have: Record) -> tuple[Region | None, str, str]:
        """Where a recorded attachment is: the region, the volume's id, the instance's."""
        keys = [have.outputs.get(key) for key in ("region", "volume", "instance")]
        if all(isinstance(key, str) and key for key in keys):
            return self._account.region(keys[0]), str(keys[1]), str(keys[2])
        if have.outputs.get("id"):
            return None, "", ""
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(have.address)))):
            for held in volume.held:
                claim = of_tags(volume.tags, volume.id, held.instance)
                if claim and claim["address"] == str(have.address):
                    return self._account.region(volume.region), volume.id, held.instance
        return None, "", ""


def _on(region: Region, volume: Volume, instance: str) -> bool:
    """Whether an instance has the volume by now."""
    found = look_up(partial(region.volume, volume.id))
    return found is not None and any(held.instance == instance for held in found.held)


def _outputs(claim: Mapping[str, Any], volume: Volume, held: Held) -> dict[str, Any]:
    return {
        "id": id_of(claim, volume.id, held.instance),
        "region": volume.region,
        "volume": volume.id,
        "instance": held.instance,
        "device": held.device,
    }
