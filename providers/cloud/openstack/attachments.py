"""Attachments: a volume on a server, for one rank.

Cinder's attachments take no metadata of ours, so the volume says it: under a key of the server's own, so that
who loses the race for a volume does not overwrite what the winner wrote. The claim is written first, and
holds only with the disk.
"""

from __future__ import annotations

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
from providers.cloud.openstack import nodes
from providers.cloud.openstack.account import Account, made_id
from providers.cloud.openstack.answers import BAD, Held, Volume
from providers.cloud.openstack.region import Region
from providers.cloud.openstack.volumes import Volumes

_SERIAL = 20
"""Characters of a volume's id that a virtual disk has as its serial number."""


class Attachments:
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes) -> None:
        self._account = account
        self._volumes = volumes

    def things(self, volumes: Iterable[Volume], living: Iterable[str]) -> list[Thing]:
        """All that hold, given all volumes of ours and the ids of all living servers of ours."""
        alive = set(living)
        out: list[Thing] = []
        for volume in volumes:
            for held in volume.held:
                claim = of_tags(volume.tags, volume.id, held.server) if held.server in alive else None
                if claim and volume.status != "detaching":
                    out.append(thing_of(claim, _outputs(claim, volume, held)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(address)))):
            region = self._account.region(volume.region)
            living = [h.server for h in volume.held if _living(region, h.server)]
            for thing in self.things([volume], living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """See `provider.Recalls`: None is for a disk that is there, and not on its server."""
        out: dict[Address, Thing | None] = {}
        for region, found in self._account.by_region(records):
            for record in found:
                made = str(record.outputs.get("volume") or "")
                volume = region.volume(made) if made else None
                if volume is None:
                    continue
                held = volume.status != "detaching" and any(
                    h.server == record.outputs.get("instance") for h in volume.held
                )
                out[record.address] = marks.again(record) if held else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """See `provider.Attachments`. A disk says as much of the volume's id as its bus lets it: SCSI all of
        it, virtio its beginning. What nova calls it is not what the system on the node does.
        """
        if have.address.kind == "volume":
            region, volume = self._volumes.of(have)
            held = next(iter(volume.held), None) if volume else None
        else:
            place, made, server = self._place(have)
            volume = place.volume(made) if place else None
            if place is None or volume is None:
                return None
            region, claim = place, of_tags(volume.tags, volume.id, server)
            mine = claim is not None and is_of(have, claim, volume.id, server)
            held = next((h for h in volume.held if h.server == server), None) if mine else None
        if volume is None or held is None or volume.status == "detaching":
            return None
        found = region.server(held.server)
        if found is None or found.status != "ACTIVE" or found.gone or not self._account.mine(found.tags):
            return None
        return OnNode(
            id=volume.id,
            node=marks.node(found.tags, found.id, self._account.config.backend, nodes.outputs(found)),
            size=volume.size,
            ours=not was_adopted(volume.tags, volume.id),
            taken=bool(found.tags.get(marks.TAKEN)),
            serials=(volume.id, volume.id[:_SERIAL]),
        )

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. It ends when the server has the disk."""
        disk, node, claim = claims.asked(address, token, inputs, needs)
        about = str(disk.address)
        server = made_id(node) or ""
        asked = False
        for _ in pauses(f"{address}: {disk.outputs.get('id')} is not on {server} yet", about):
            look = partial(self._volumes.of, disk)
            region, volume = look_up(look) if asked else look()
            if volume is None:
                raise gone(about)
            have = self._holding(region, volume, server, claim)
            if have and have.server == server and volume.status == "in-use":
                return _outputs(claim, volume, have)
            if have is None and volume.status == "available":
                self._attach(region, volume, server, claim)
                asked = True
        raise AssertionError("pauses end with a fault")

    def _holding(self, region: Region, volume: Volume, server: str, claim: Mapping[str, Any]) -> Held | None:
        """Who has the disk, if that is us or somebody who lets go of it; else a fault."""
        if volume.status in BAD:
            summary = f"{volume.id} cannot be used: cinder says `{volume.status}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=claim["address"])
        held = next(iter(volume.held), None)
        if held is None or volume.status == "detaching":
            return held
        theirs = of_tags(volume.tags, volume.id, held.server)
        if held.server == server and theirs and theirs["token"] == claim["token"]:
            return held
        if not _living(region, held.server):
            return held
        raise claims.held(volume.tags.get(marks.ADDRESS), theirs, held.server)

    def _attach(self, region: Region, volume: Volume, server: str, claim: Mapping[str, Any]) -> None:
        """Ask for it once. What became of it, the next look says."""
        about = Address.parse(claim["address"])
        mine, path = to_tags(claim, server), f"/volumes/{volume.id}"
        region.untag("volume", path, [k for k in volume.tags if k.startswith(ON) and k not in mine])
        region.tag("volume", path, mine)
        try:
            region.ask(
                f"attaching {volume.id}",
                "compute",
                "POST",
                f"/servers/{server}/os-volume_attachments",
                {"volumeAttachment": {"volumeId": volume.id}},
                about=str(about),
            )
        except TransientError as error:
            if error.kind is not TransientKind.BUSY:
                raise

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """See the port. It ends when the volume is free. Nothing is done for one that another holds now."""
        region, disk, server = self._place(have)
        if region is None:
            return
        for _ in pauses(f"{have.address}: {disk} is not off {server} yet", str(have.address)):
            volume = region.volume(disk)
            if volume is None or volume.gone or volume.tags.get(marks.OWNER) != self._account.owner:
                return
            claim = of_tags(volume.tags, volume.id, server)
            if claim is None or not is_of(have, claim, volume.id, server):
                return
            if all(h.server != server for h in volume.held) and volume.status not in (
                "reserved",
                "attaching",
            ):
                region.untag(
                    "volume", f"/volumes/{disk}", [k for k in volume.tags if k.startswith(ON + server)]
                )
                return
            if volume.status == "detaching":
                if wait:
                    continue
                return
            if not _living(region, server):
                return  # its end is that of its attachments
            if volume.status == "in-use":
                self._detach(region, disk, server)

    def _detach(self, region: Region, disk: str, server: str) -> None:
        path = f"/servers/{server}/os-volume_attachments/{disk}"
        try:
            region.ask(f"detaching {disk}", "compute", "DELETE", path)
        except ProviderError as error:
            passes = isinstance(error, TransientError) and error.kind is TransientKind.BUSY
            gone = isinstance(error, PermanentError) and error.kind is PermanentKind.NOT_FOUND
            if not passes and not gone:
                raise

    def _place(self, have: Record) -> tuple[Region | None, str, str]:
        """Where a recorded attachment is: the region, the volume's id, the server's."""
        keys = [have.outputs.get(key) for key in ("region", "volume", "instance")]
        if all(isinstance(key, str) and key for key in keys):
            return self._account.region(keys[0]), str(keys[1]), str(keys[2])
        if have.outputs.get("id"):
            return None, "", ""
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(have.address)))):
            for held in volume.held:
                claim = of_tags(volume.tags, volume.id, held.server)
                if claim and claim["address"] == str(have.address):
                    return self._account.region(volume.region), volume.id, held.server
        return None, "", ""


def _living(region: Region, made: str) -> bool:
    server = region.server(made)
    return server is not None and not server.gone


def _outputs(claim: Mapping[str, Any], volume: Volume, held: Held) -> dict[str, Any]:
    """`device` is by its serial number: what nova calls it is not what the system on it does."""
    return {
        "id": id_of(claim, volume.id, held.server),
        "region": volume.region,
        "volume": volume.id,
        "instance": held.server,
        "device": f"/dev/disk/by-id/virtio-{volume.id[:_SERIAL]}",
    }
