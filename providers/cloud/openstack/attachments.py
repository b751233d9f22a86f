"""OpenStack's calls for attachments: see `cloud.attachments`. Cinder's own take no metadata of ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from declarative.state import Record
from providers.cloud.attachments import Disk, Holder, Machine
from providers.cloud.nodes import outputs
from providers.cloud.openstack.account import Account, made_id
from providers.cloud.openstack.answers import BAD, Volume

IN_USE = "in-use"
_SERIAL = 20
"""Characters of a volume's id that a virtual disk has as its serial number."""


class Driver:
    """See `attachments.Driver`."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def disk(self, volume: Volume) -> Disk:
        """A volume, as attachments see it.

        A disk on a node says as much of the volume's id as its bus lets it: SCSI all of it, virtio its
        beginning. What nova calls it is not what the system on the node does.
        """
        bad = f"{volume.id} cannot be used: cinder says `{volume.state}`"
        return Disk(
            id=volume.id,
            region=volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=volume.state == "available",
            gone=volume.gone,
            damage=bad if volume.state in BAD else "",
            attaching=volume.state in ("reserved", "attaching"),
            holders=tuple(
                Holder(
                    machine=held.server,
                    device=f"/dev/disk/by-id/virtio-{volume.id[:_SERIAL]}",
                    attached=volume.state == IN_USE,
                    leaving=volume.state == "detaching",
                    serials=(volume.id, volume.id[:_SERIAL]),
                )
                for held in volume.held
            ),
        )

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """Those that there are, asked for one by one."""
        found = map(self._account.region(region).volume, ids)
        return {volume.id: self.disk(volume) for volume in found if volume}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """Servers that live."""
        found = map(self._account.region(region).server, ids)
        return {
            s.id: Machine(id=s.id, tags=s.tags, runs=s.status == "ACTIVE", outputs=outputs(s))
            for s in found
            if s and not s.gone
        }

    def machine_id(self, node: Record) -> str:
        """The id of a node's server."""
        return made_id(node) or ""

    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set metadata."""
        self._account.region(disk.region).tag("volume", f"/volumes/{disk.id}", tags)

    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Take metadata away."""
        self._account.region(disk.region).untag("volume", f"/volumes/{disk.id}", keys)

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Nova chooses the device."""
        path, body = f"/servers/{machine}/os-volume_attachments", {"volumeAttachment": {"volumeId": disk.id}}
        region = self._account.region(disk.region)
        region.ask(f"attaching {disk.id}", "compute", "POST", path, body, about=about)

    def detach(self, disk: Disk, machine: str) -> None:
        """Nothing is asked while it is still being attached: nova refuses that."""
        if disk.state == IN_USE:
            path = f"/servers/{machine}/os-volume_attachments/{disk.id}"
            self._account.region(disk.region).ask(f"detaching {disk.id}", "compute", "DELETE", path)
