"""EC2's calls for attachments: see `cloud.attachments`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from declarative.state import Record
from providers.cloud.attachments import Disk, Holder, Machine
from providers.cloud.ec2.account import Account, made_id
from providers.cloud.ec2.answers import BUSY, LEAVING, Held, Volume
from providers.cloud.nodes import outputs

DEVICES = tuple([f"/dev/sd{c}" for c in "fghijklmnopqrstuvwxyz"] + [f"/dev/xvdb{c}" for c in "abcdefghijklm"])
"""Names that EC2 takes for disks, besides those of the image's own."""
TAKEN = "already in use"
"""What EC2 says of a device that another attachment got meanwhile."""

_TURNS = tuple(threading.Lock() for _ in range(64))
"""One attachment to an instance at a time: which devices are free is seen once the last one has its own."""


class Driver:
    """See `attachments.Driver`."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def disk(self, volume: Volume) -> Disk:
        """A volume, as attachments see it."""
        return Disk(
            id=volume.id,
            region=volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=volume.state == "available",
            gone=volume.gone,
            damage=f"{volume.id} is damaged: EC2 says `error`" if volume.state == "error" else "",
            holders=tuple(_holder(volume, held) for held in volume.held),
        )

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """Those that there are."""
        found = self._account.region(region).volumes_by_id(ids)
        return {made: self.disk(volume) for made, volume in found.items()}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """Instances that live."""
        found = self._account.region(region).instances_by_id(ids)
        return {
            i.id: Machine(id=i.id, tags=i.tags, runs=i.state == "running", outputs=outputs(i))
            for i in found.values()
            if not i.gone
        }

    def machine_id(self, node: Record) -> str:
        """The id of a node's instance."""
        return made_id(node, "i") or ""

    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._account.region(disk.region).tag(disk.id, tags)

    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Take tags away."""
        self._account.region(disk.region).untag(disk.id, keys)

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Under the first name that the instance has free."""
        region = self._account.region(disk.region)
        with _TURNS[hash(machine) % len(_TURNS)]:
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
            told = {"VolumeId": disk.id, "InstanceId": machine, "Device": device}
            try:
                region.ask("AttachVolume", about, **told)
            except ProviderError as error:
                if TAKEN not in error.summary:
                    raise
                raise TransientError(TransientKind.BUSY, error.summary, about=about) from None

    def detach(self, disk: Disk, machine: str) -> None:
        """Also one that is not attached yet."""
        self._account.region(disk.region).ask("DetachVolume", VolumeId=disk.id, InstanceId=machine)


def _holder(volume: Volume, held: Held) -> Holder:
    """As NVMe it says the volume's id, on Xen nothing but its name."""
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
