"""The calls for volumes of clouds that take a name once, see `cloud.volumes`; and their attachments.

The disk says which attachment it is in, under a key of the machine's own: who loses the race for a disk
does not overwrite what the winner wrote. The claim is written first, and holds only with the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.inputs import VolumeInputs
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, Thing, TransientError, TransientKind
from providers.cloud import claims, marks
from providers.cloud.account import Account, gibibytes, look_up, pauses
from providers.cloud.claims import ON, id_of, is_of, of_tags, thing_of, to_tags, volume_of
from providers.cloud.hosts import OnNode
from providers.cloud.marks import Mark
from providers.cloud.named.api import Api, Device, Disk, Machine, Phase, Wanted, name_of
from providers.cloud.named.nodes import leaving, retagged, tags_of
from providers.cloud.nodes import outputs
from providers.cloud.volume_checks import check, gone, left, taken_on, was_adopted
from providers.cloud.volumes import Volumes


class NamedVolumes:
    """See `volumes.Driver`."""

    def __init__(self, account: Account, api: Api) -> None:
        self._account = account
        self._api = api

    @property
    def usual_type(self) -> str:
        """See `volumes.Driver`."""
        return self._api.disk_type

    def listed(self, **narrow: str) -> list[Disk]:
        """All that are ours. A machine's own disk may carry the machine's marks."""
        return self._ours(self._api.disks(), **narrow)

    def _ours(self, found: Iterable[Disk], **narrow: str) -> list[Disk]:
        told = {marks.OWNER: self._account.owner, **{marks.OURS + k: v for k, v in narrow.items()}}
        ours = [d for d in found if told.items() <= d.tags.items() and not d.gone]
        return [d for d in ours if d.tags.get(marks.ADDRESS, "").startswith("volume/")]

    def candidates(self, address: Address, token: str) -> Iterable[Disk]:
        """Those of the name first. One that was adopted has a name of its own."""
        for name in (name_of(address, token), None):
            yield from self._ours(self._api.disks(name=name))

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, Disk | None]]:
        """Asked for one by one."""
        return ((record, self.disk(record, ending=False)) for record in records)

    def disk(self, have: Record, *, ending: bool) -> Disk | None:
        """By the id."""
        made = str(have.outputs.get("id") or "")
        return self._api.disk(made) if made else None

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Disk:
        """Its name is a function of the token: the cloud makes no second one."""
        address, asked = mark.address, mark.volume
        made = self._api.disk_id(name_of(address, mark.token), asked)
        size = gibibytes(address, asked.size)
        look = partial(self._api.disk, made)
        disk = look()
        if disk is None:
            try:
                wanted = Wanted(id=made, address=address, inputs=asked, tags=tags_of(mark))
                disk = self._api.make_disk(wanted, size)
            except PermanentError as error:
                if error.kind is not PermanentKind.CONFLICT:
                    raise
                disk = look_up(look)
                if disk is None:
                    raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        if disk.gone:
            raise leaving(disk.name, address)
        if disk.tags.get(marks.OWNER) != mark.owner or disk.tags.get(marks.TOKEN) != mark.token:
            summary = f"{disk.id} is there, and does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self._account.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=hint)
        return disk

    # ----------------------------------------------------------------------------------- adoption

    def named(self, asked: VolumeInputs) -> Disk | None:
        """By its name or its id."""
        made = self._api.disk_called(str(asked.volume_id), asked)
        return self._api.disk(made) if made else None

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        """See `volumes.Driver`."""
        return self._account.CLOUD, f"write {self._api.called}"

    def check_adopted(self, mark: Mark, disk: Disk) -> None:
        """See `volumes.Driver`."""
        asked = mark.volume
        region, zone = (asked.region, disk.region), (asked.zone, disk.zone)
        check(mark, disk.name, size=disk.size, kind=disk.type, region=region, availability_zone=zone)

    def take(self, disk: Disk, mark: Mark) -> None:
        """See `volumes.Driver`."""
        self._api.tag_disk(disk, taken_on(disk.tags, tags_of(mark)))

    def let_go(self, disk: Disk) -> None:
        """See `volumes.Driver`."""
        self._api.tag_disk(disk, left(disk.tags, disk.id))

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Disk, size: int, about: Address) -> None:
        """See `volumes.Driver`."""
        self._api.grow(disk, size)

    def retag(self, disk: Disk, mark: Mark, have: Record) -> None:
        """See `volumes.Driver`."""
        self._api.tag_disk(disk, retagged(disk.tags, disk.id, tags_of(mark), have))

    def remove(self, disk: Disk, about: Address) -> None:
        """See `volumes.Driver`."""
        self._api.remove(disk)

    def holders(self, disk: Disk) -> Sequence[str]:
        """See `volumes.Driver`."""
        return disk.holders

    def living(self, disk: Disk, machines: Sequence[str]) -> str | None:
        """Asked for one by one."""
        for machine in map(self._api.machine, machines):
            if machine is not None and machine.phase is not Phase.ENDING:
                return f"{machine.tags.get(marks.ADDRESS, machine.name)} ({machine.name})"
        return None

    def busy(self, disk: Disk, machines: Sequence[str], *, theirs: bool) -> str:
        """See `volumes.Driver`."""
        return "a machine is letting go of it" if machines else ""


class Attachments:
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes[Disk], api: Api) -> None:
        self._account = account
        self._volumes = volumes
        self._api = api

    def things(self, disks: Iterable[Disk], machines: Iterable[Machine]) -> list[Thing]:
        """All that hold, given disks and machines of ours."""
        known = {disk.id: disk for disk in disks}
        out: list[Thing] = []
        for machine in machines:
            for made, device in machine.devices.items():
                claim = of_tags(known[made].tags, known[made].id, machine.name) if made in known else None
                if claim:
                    out.append(thing_of(claim, _outputs(claim, known[made], machine, device)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        about = str(Address("volume", volume_of(address)))
        disks = [d for d in self._volumes.listed(address=about) if d.holders]
        ids = {made for disk in disks for made in disk.holders}
        machines = [m for m in map(self._api.machine, sorted(ids)) if m and m.phase is not Phase.ENDING]
        things = self.things(disks, machines)
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """See `provider.Recalls`: None is for a disk that is there, and not on its machine."""
        out: dict[Address, Thing | None] = {}
        for record in records:
            for made, on in self._places(record):
                if self._api.disk(made) is None:
                    continue
                machine = self._api.machine(on)
                out[record.address] = marks.again(record) if machine and made in machine.devices else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """See `provider.Attachments`."""
        if have.address.kind == "volume":
            disk = self._volumes.of(have)
            places = [(disk.id, made) for made in disk.holders] if disk else []
        else:
            places = self._places(have)
        for made, on in places:
            disk, machine = self._api.disk(made), self._api.machine(on)
            if disk is None or machine is None or made not in machine.devices:
                continue
            claim = of_tags(disk.tags, disk.id, machine.name)
            mine = claim is not None and is_of(have, claim, disk.name, machine.name)
            ours = machine.tags.get(marks.OWNER) == self._account.owner
            if machine.phase is Phase.RUNS and ours and (mine or have.address.kind == "volume"):
                return self._on_node(disk, self._api.with_addresses(machine))
        return None

    def _on_node(self, disk: Disk, machine: Machine) -> OnNode:
        device = machine.devices[disk.id]
        return OnNode(
            id=disk.name,
            node=marks.node(machine.tags, machine.id, self._account.config.backend, outputs(machine)),
            size=disk.size,
            ours=not was_adopted(disk.tags, disk.id),
            taken=bool(machine.tags.get(marks.TAKEN)),
            serials=device.serials,
            links=device.links,
        )

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. It ends when the machine has the disk."""
        volume, node, claim = claims.asked(address, token, inputs, needs)
        asked = False
        for _ in pauses(f"{address}: {volume.address} is not on {node.address} yet", str(volume.address)):
            look = partial(self._look, volume, node)
            disk, machine = look_up(look) if asked else look()
            theirs = of_tags(disk.tags, disk.id, machine.name)
            mine = theirs is not None and theirs["token"] == token
            if disk.id in machine.devices and mine:
                return _outputs(claim, disk, machine, machine.devices[disk.id])
            if not self._waits(disk, machine, theirs, mine=mine) and disk.phase is Phase.RUNS:
                self._hang(disk, machine, claim)
                asked = True
        raise AssertionError("pauses end with a fault")

    def _look(self, volume: Record, node: Record) -> tuple[Disk, Machine]:
        disk = self._volumes.of(volume)
        machine = self._api.machine(str(node.outputs["id"]))
        for found, record in ((disk, volume), (machine, node)):
            if found is None or found.phase is Phase.ENDING:
                raise gone(record.address)
        assert disk is not None
        assert machine is not None
        self._account.check_owner(machine.tags, node, machine.id)
        return disk, machine

    def _waits(self, disk: Disk, machine: Machine, theirs: Mapping[str, Any] | None, *, mine: bool) -> bool:
        """Whether one has to wait for whoever has the disk: it comes, or its holder ends. Else a fault."""
        for made in disk.holders:
            if made == machine.id and mine:
                continue
            holder = machine if made == machine.id else self._api.machine(made)
            if holder is None or holder.phase is Phase.ENDING:
                continue
            claim = theirs if made == machine.id else of_tags(disk.tags, disk.id, holder.name)
            raise claims.held(disk.tags.get(marks.ADDRESS), claim, holder.name)
        return bool(disk.holders)

    def _hang(self, disk: Disk, machine: Machine, claim: Mapping[str, Any]) -> None:
        """Ask for it once. What became of it, the next look says."""
        mine = to_tags(claim, machine.name)
        tags = {**{k: v for k, v in disk.tags.items() if not k.startswith(ON)}, **mine}
        try:
            if tags != dict(disk.tags):
                self._api.tag_disk(disk, tags)
            self._api.hang(machine, disk)
        except TransientError as error:
            if error.kind is not TransientKind.BUSY:
                raise

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """See the port. It ends when the disk is free. Nothing is done for one that another holds now."""
        for made, on in self._places(have):
            self._delete(have, made, on, wait=wait)

    def _delete(self, have: Record, made: str, on: str, *, wait: bool) -> None:
        for _ in pauses(f"{have.address}: the disk is not off its machine yet", str(have.address)):
            disk = self._api.disk(made)
            if disk is None or disk.tags.get(marks.OWNER) != self._account.owner:
                return
            machine = self._api.machine(on)
            if machine is None or machine.phase is Phase.ENDING:
                return  # its end is that of its attachments
            claim = of_tags(disk.tags, disk.id, machine.name)
            if claim is None or not is_of(have, claim, disk.name, machine.name):
                return
            if made not in machine.devices and on not in disk.holders:
                rest = {k: v for k, v in disk.tags.items() if not k.startswith(ON + machine.name)}
                self._api.tag_disk(disk, rest)
                return
            self._unhang(machine, disk)
            if not wait:
                return

    def _unhang(self, machine: Machine, disk: Disk) -> None:
        """Ask for it once, as above."""
        try:
            self._api.unhang(machine, disk)
        except (TransientError, PermanentError) as error:
            if error.kind not in (TransientKind.BUSY, PermanentKind.NOT_FOUND):
                raise

    def _places(self, have: Record) -> list[tuple[str, str]]:
        """The ids of the disk and the machine of a recorded attachment."""
        keys = [have.outputs.get(key) for key in ("volume", "instance")]
        if all(isinstance(key, str) and key for key in keys):
            return [(str(keys[0]), str(keys[1]))]
        if have.outputs.get("id"):
            return []
        about = str(Address("volume", volume_of(have.address)))
        out: list[tuple[str, str]] = []
        for disk in self._volumes.listed(address=about):
            for made in disk.holders:
                machine = self._api.machine(made)
                claim = of_tags(disk.tags, disk.id, machine.name) if machine else None
                if claim and claim["address"] == str(have.address):
                    out.append((disk.id, made))
        return out


def _outputs(claim: Mapping[str, Any], disk: Disk, machine: Machine, device: Device) -> dict[str, Any]:
    return {
        "id": id_of(claim, disk.name, machine.name),
        "volume": disk.id,
        "instance": machine.id,
        "device": device.links[0],
    }
