"""OpenStack's calls for volumes and attachments: see `cloud.volumes` and `cloud.attachments`. Metadata are
part of the request that makes a volume; cinder's own attachments cannot have any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.inputs import VolumeInputs
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import gibibytes, if_there, look_up, pauses
from providers.cloud.attachment_driver import ClaimTags, Disk, Machine, adopted, living
from providers.cloud.checks import check, tags_left
from providers.cloud.hosts import Holder
from providers.cloud.marks import ON, Mark
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account, duplicates, made_id
from providers.cloud.openstack.answers import BAD, Volume
from providers.cloud.openstack.region import Region

CHANGING = ("detaching", "attaching", "reserved", "in-use")
"""States of a volume that is being attached or detached."""
GROWS_IN_USE = "volume 3.42"
"""The first version of cinder's API that grows a volume in use."""


class CinderVolumes:
    """Volumes of Cinder."""

    usual_type = ""

    def __init__(self, account: Account) -> None:
        self._account = account

    def _region(self, volume: Volume) -> Region:
        return self._account.region(volume.region)

    def listed(self, **narrow: str) -> list[Volume]:
        """All of ours, in all regions. `address` and `token` narrow it."""
        return self._account.each(lambda region: self._in(region, **narrow))

    def _in(self, region: Region, **narrow: str) -> list[Volume]:
        """Look them up by their metadata: an adopted volume has a name of its own.

        If a cinder ignores the filter for metadata, nothing is missed.
        """
        wanted = {marks.OURS + key: value for key, value in narrow.items()}
        found = region.volumes(**({"metadata": str(wanted)} if wanted else {}))
        return [v for v in found if self._account.mine(v.tags, **narrow) and not v.gone]

    def candidates(self, address: Address, token: str) -> list[Volume]:
        """Oldest first. A volume that failed while it was made does not count."""
        found = sorted(self.listed(token=token), key=_age)
        return [v for v in found if v.state != "error" or v.held]

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, Volume | None]]:
        """One request for each. Cinder forgets ended volumes."""
        for region, found in self._account.by_region(records):
            for record in found:
                made = made_id(record)
                yield record, region.volume(made) if made else None

    def disk(self, have: Record, *, ending: bool) -> Volume | None:
        """By the id."""
        region = self._account.region(have.volume.region)
        made = made_id(have)
        return region.volume(made) if made else None

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Volume:
        """Return when the volume can be attached."""
        token, wanted = mark.token, mark.volume
        region = self._account.region(wanted.region)
        made = self._account.made_once(
            token,
            lambda: self._make(region, mark, wanted),
            lambda: self._there(region, token),
        )
        volume = self._available(region, made)
        self._account.check_answer(volume.tags, token, volume.id)
        found = look_up(partial(self._in, region, token=token))
        for extra in duplicates(found, _age):
            self._end(region, extra.id)
            if extra.id == volume.id:
                text = f"{volume.id} is a duplicate of {mark.address}, and is deleted"
                raise TransientError(TransientKind.BUSY, text, about=str(mark.address))
        return volume

    def _there(self, region: Region, token: str) -> str | None:
        """The id of an earlier try's volume; failed ones are deleted."""
        found = sorted(self._in(region, token=token), key=_age)
        for volume in found:
            if volume.state == "error" and not volume.held:
                self._end(region, volume.id)
        return next((v.id for v in found if v.state != "error" or v.held), None)

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
        """The volume once it is made. If it failed, a fault says so, and nothing is left of it."""
        for _ in pauses(f"{made} is still being made", made):
            volume = look_up(partial(region.volume, made))
            if volume is None or volume.state in ("creating", "downloading"):
                continue
            if volume.state == "error" and not volume.held:
                self._end(region, made)
                summary = f"cinder could not make {made}: it does not say why"
                hint = "it may have no room, or none of this `volume_type`"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=volume.zone, hint=hint)
            return volume
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------------- adoption

    def named(self, mark: Mark) -> Volume | None:
        """Look it up by its id, since names are not unique. The listing is shared."""
        asked = mark.volume
        return self._account.region(asked.region).shared.volumes.find(str(asked.volume_id))

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        hint = "write its id, of the named project and `region`: `openstack volume list`"
        return asked.region, hint

    def check_adopted(self, mark: Mark, disk: Volume) -> None:
        """Also checks that cinder accepts the tags as metadata."""
        zone = names.disk_zone(self._region(disk), mark.volume.zone) or disk.zone
        check(mark, disk.id, size=disk.size, kind=disk.type, availability_zone=(zone, disk.zone))
        if disk.state in BAD:
            summary = f"{mark.address}: {disk.id} cannot be used: cinder says `{disk.state}`"
            hint = "an administrator can reset it: `openstack volume set --state available`"
            raise PermanentError(PermanentKind.INVALID, summary, about=VOLUME_ID, hint=hint)
        self._account.tags(mark)

    def take(self, disk: Volume, mark: Mark) -> None:
        self._region(disk).tag("volume", f"/volumes/{disk.id}", self._account.tags(mark))
        self._region(disk).shared.volumes.changed(disk.id)

    def let_go(self, disk: Volume) -> None:
        """All tags change in one request: half of a mark would be unreadable."""
        region, path = self._region(disk), f"/volumes/{disk.id}"
        region.write("volume", path, tags_left(region.written("volume", path), disk.id))
        region.shared.volumes.changed(disk.id)

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Volume, size: int, about: Address) -> None:
        """Request it as soon as possible, also on a server if the cloud can, and wait until it is done."""
        region = self._region(disk)
        asked = False
        for _ in pauses(f"{disk.id} does not have {size} GiB yet", disk.id):
            now = region.volume(disk.id)
            if now is None or now.state in BAD:
                state = "gone" if now is None else f"`{now.state}`"
                summary = f"{disk.id} could not grow: cinder says that it is {state}"
                hint = "its driver may not grow a volume that a server has; an administrator can reset it"
                raise PermanentError(PermanentKind.CONFLICT, summary, about="size", hint=hint)
            if now.size >= size and now.state in ("available", "in-use"):
                return
            if not asked and now.state in ("available", "in-use"):
                version = GROWS_IN_USE if now.state == "in-use" else None
                body = {"os-extend": {"new_size": size}}
                path = f"/volumes/{disk.id}/action"
                region.ask("growing a volume", "volume", "POST", path, body, about="size", version=version)
                asked = True

    def retag(self, disk: Volume, mark: Mark, have: Record) -> None:
        self._account.retag(self._region(disk), "volume", f"/volumes/{disk.id}", disk.tags, mark)

    def remove(self, disk: Volume, about: Address) -> None:
        """Return when the volume is gone."""
        region, made = self._region(disk), disk.id
        self._end(region, made)
        for _ in pauses(f"{made} is not gone yet", made):
            volume = region.volume(made)
            if volume is None or volume.state == "deleted":
                return
            if volume.state == "error_deleting":
                summary = f"cinder could not delete {made}"
                hint = "an administrator can reset it: `openstack volume set --state available`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=made, hint=hint)

    def _end(self, region: Region, made: str) -> None:
        if_there(region.ask, f"deleting volume {made}", "volume", "DELETE", f"/volumes/{made}")

    def holders(self, disk: Volume) -> list[str]:
        return [held.server for held in disk.held]

    def living(self, disk: Volume, machines: Sequence[str]) -> str | None:
        """One request for each."""
        for server in map(self._region(disk).server, machines):
            if server and not server.gone:
                return f"{server.tags.get(marks.ADDRESS, server.name)} ({server.id})"
        return None

    def busy(self, disk: Volume, machines: Sequence[str], *, theirs: bool) -> str:
        """Also while cinder names no server yet."""
        claimed = not theirs or any(key.startswith(ON) for key in disk.tags)
        changing = claimed and not disk.held and disk.state in CHANGING
        return f"it is {disk.state}" if machines or changing else ""


def _age(volume: Volume) -> tuple[str, str]:
    return volume.created, volume.id


IN_USE = "in-use"
_SERIAL = 20
"""Characters of a volume's id in the serial number of its virtual disk."""


class NovaAttachments(ClaimTags):
    """Attachments of Cinder volumes to servers."""

    regional = True

    def __init__(self, account: Account) -> None:
        self._account = account

    def disk(self, volume: Volume, machines: object = None) -> Disk:
        """A volume, as attachments need it.

        A disk on a node reports as much of the volume's id as its bus allows: SCSI all of it, virtio the
        beginning. Nova's name for the device is not the name on the node.
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
            adopted=partial(adopted, self._account, volume),
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
        """The existing ones, one request for each."""
        found = map(self._account.region(region).volume, ids)
        return {volume.id: self.disk(volume) for volume in found if volume}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """The servers that are alive."""
        found = map(self._account.region(region).server, ids)
        return {s.id: living(self._account, s, runs=s.status == "ACTIVE") for s in found if s and not s.gone}

    def machine_id(self, node: Record) -> str:
        """The id of a node's server."""
        return made_id(node) or ""

    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set metadata."""
        self._account.region(disk.region).tag("volume", f"/volumes/{disk.id}", tags)

    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Remove metadata."""
        self._account.region(disk.region).untag("volume", f"/volumes/{disk.id}", keys)

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Nova chooses the device."""
        path, body = f"/servers/{machine}/os-volume_attachments", {"volumeAttachment": {"volumeId": disk.id}}
        region = self._account.region(disk.region)
        region.ask(f"attaching {disk.id}", "compute", "POST", path, body, about=about)

    def detach(self, disk: Disk, machine: str) -> None:
        """Sends nothing while it is still being attached: nova would refuse."""
        if disk.state == IN_USE:
            path = f"/servers/{machine}/os-volume_attachments/{disk.id}"
            self._account.region(disk.region).ask(f"detaching {disk.id}", "compute", "DELETE", path)
