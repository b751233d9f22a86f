"""Clouds in which names are unique: a thing is named after its token, so a retried create meets the thing of
the first try. This module has what such clouds share; each has an `Api` with its requests. See
`cloud.volumes` and `cloud.attachments` for the calls for volumes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import VolumeInputs, inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from declarative.provider.optional import Existing
from providers.cloud import attachment_driver, checks, marks
from providers.cloud.account import Account, gibibytes, look_up
from providers.cloud.attachment_driver import Claim, keys_of, of_tags, to_tags
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.checks import check, gone, tags_left, tags_once_adopted
from providers.cloud.faults import Kind
from providers.cloud.hosts import Holder
from providers.cloud.keys import Keys
from providers.cloud.marks import ON, Mark
from providers.cloud.named.api import Api, Disk, Machine, Phase, Wanted, name_of
from providers.cloud.named.nodes import NamedNodes, leaving, retagged, tags_of
from providers.cloud.nodes import Nodes
from providers.cloud.provider import Cloud
from providers.cloud.volumes import Volumes


class NamedVolumes:
    """Disks of a cloud with unique names."""

    def __init__(self, account: Account, api: Api) -> None:
        self._account = account
        self._api = api

    @property
    def usual_type(self) -> str:
        return self._api.disk_type

    def listed(self, **narrow: str) -> list[Disk]:
        """All of ours. A machine's own disk may carry the machine's mark."""
        return self._ours(self._api.disks(), **narrow)

    def _ours(self, found: Iterable[Disk], **narrow: str) -> list[Disk]:
        wanted = {marks.OWNER: self._account.owner, **{marks.OURS + k: v for k, v in narrow.items()}}
        ours = [d for d in found if wanted.items() <= d.tags.items() and not d.gone]
        return [d for d in ours if d.tags.get(marks.ADDRESS, "").startswith("volume/")]

    def candidates(self, address: Address, token: str) -> Iterable[Disk]:
        """First those with the token's name. An adopted one has another name."""
        for name in (name_of(address, token), None):
            yield from self._ours(self._api.disks(name=name))

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, Disk | None]]:
        """One request for each."""
        return ((record, self.disk(record, ending=False)) for record in records)

    def disk(self, have: Record, *, ending: bool) -> Disk | None:
        """By the id."""
        made = str(have.outputs.get("id") or "")
        return self._api.disk(made) if made else None

    # ------------------------------------------------------------------------------------- create

    def make_once(self, mark: Mark) -> Disk:
        """Its name is a function of the token, so the cloud makes no second one."""
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
            summary = f"{disk.id} exists, but does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self._account.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=hint)
        return disk

    # ----------------------------------------------------------------------------------- adoption

    def named(self, mark: Mark) -> Disk | None:
        """By its name or its id."""
        made = self._api.disk_called(str(mark.volume.volume_id), mark.volume)
        return self._api.disk(made) if made else None

    def whereabouts(self, asked: VolumeInputs) -> tuple[str, str]:
        return self._account.CLOUD, f"write {self._api.called}"

    def check_adopted(self, mark: Mark, disk: Disk) -> None:
        asked = mark.volume
        region, zone = (asked.region, disk.region), (asked.zone, disk.zone)
        check(mark, disk.name, size=disk.size, kind=disk.type, region=region, availability_zone=zone)

    def take(self, disk: Disk, mark: Mark) -> None:
        self._api.tag_disk(disk, tags_once_adopted(disk.tags, tags_of(mark)))

    def let_go(self, disk: Disk) -> None:
        self._api.tag_disk(disk, tags_left(disk.tags, disk.id))

    # ----------------------------------------------------------------------------- update, delete

    def grow(self, disk: Disk, size: int, about: Address) -> None:
        self._api.grow(disk, size)

    def retag(self, disk: Disk, mark: Mark, have: Record) -> None:
        self._api.tag_disk(disk, retagged(disk.tags, disk.id, tags_of(mark), have))

    def remove(self, disk: Disk, about: Address) -> None:
        self._api.remove(disk)

    def holders(self, disk: Disk) -> Sequence[str]:
        return disk.holders

    def living(self, disk: Disk, machines: Sequence[str]) -> str | None:
        """One request for each."""
        for machine in map(self._api.machine, machines):
            if machine is not None and machine.phase is not Phase.ENDING:
                return f"{machine.tags.get(marks.ADDRESS, machine.name)} ({machine.name})"
        return None

    def busy(self, disk: Disk, machines: Sequence[str], *, theirs: bool) -> str:
        return "a machine is releasing it" if machines else ""


class NamedAttachments:
    """Attachments of disks. A machine knows where its disks are; a disk knows its holders."""

    regional = False

    def __init__(self, account: Account, api: Api) -> None:
        self._account = account
        self._api = api

    def disk(self, volume: Disk, machines: Mapping[str, Machine] | None = None) -> attachment_driver.Disk:
        """One request for each holder, unless `machines` are known."""
        if machines is None:
            there = {made: self._api.machine(made) for made in volume.holders}
            machines = {made: m for made, m in there.items() if m and m.phase is not Phase.ENDING}
        also = [made for made, machine in machines.items() if volume.id in machine.devices]
        return attachment_driver.Disk(
            id=volume.id,
            region="",
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=volume.phase is Phase.RUNS,
            gone=volume.gone,
            adopted=partial(attachment_driver.adopted, self._account, volume),
            holders=tuple(
                _holder(made, machines.get(made), volume) for made in dict.fromkeys((*volume.holders, *also))
            ),
            living={made: self._machine(machine) for made, machine in machines.items()},
            source=volume,
        )

    def _machine(self, found: Machine) -> attachment_driver.Machine:
        seen = attachment_driver.living(self._account, found, runs=found.phase is Phase.RUNS)
        return replace(seen, node=lambda: self._node(found))

    def _node(self, found: Machine) -> Record:
        seen = attachment_driver.living(self._account, self._api.with_addresses(found), runs=True)
        return seen.node()

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Disk]:
        """One request for each."""
        return {disk.id: self.disk(disk) for disk in map(self._api.disk, ids) if disk}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, attachment_driver.Machine]:
        """One request for each."""
        found = {made: self._api.machine(made) for made in ids}
        return {made: self._machine(m) for made, m in found.items() if m and m.phase is not Phase.ENDING}

    def machine_id(self, node: Record) -> str:
        """The id of a machine that exists and is ours."""
        machine = self._api.machine(str(node.outputs["id"]))
        if machine is None or machine.phase is Phase.ENDING:
            raise gone(node.address)
        self._account.check_owner(machine.tags, node, machine.id)
        return machine.id

    def claim(self, disk: attachment_driver.Disk, machine: str) -> Claim | None:
        return of_tags(disk.tags, disk.id, machine)

    def write(self, disk: attachment_driver.Disk, machine: str, claim: Claim) -> None:
        """All tags of a disk are written at once."""
        others = {key: value for key, value in disk.tags.items() if not key.startswith(ON)}
        tags = {**others, **to_tags(claim, machine)}
        if tags != disk.tags:
            self._api.tag_disk(disk.source, tags)

    def erase(self, disk: attachment_driver.Disk, machine: str) -> None:
        """All tags of a disk are written at once."""
        mine = keys_of(disk.tags, machine)
        self._api.tag_disk(disk.source, {key: value for key, value in disk.tags.items() if key not in mine})

    def attach(self, disk: attachment_driver.Disk, machine: str, about: str) -> None:
        self._api.attach(machine, disk.source)

    def detach(self, disk: attachment_driver.Disk, machine: str) -> None:
        serials = next((h.serials for h in disk.holders if h.machine == machine), ())
        self._api.detach(machine, disk.source, serials)


def _holder(made: str, machine: Machine | None, disk: Disk) -> Holder:
    device = machine.devices.get(disk.id) if machine else None
    return Holder(
        machine=made,
        device=device.links[0] if device else "",
        attached=device is not None,
        leaving=machine is not None and device is None,
        serials=device.serials if device else (),
        links=device.links if device else (),
    )


KIND = ("region", "zone", "instance_type", "reservation")
"""Inputs of a node on which the use of its reservation depends."""


class Named(Cloud):
    """One account of a cloud."""

    ADOPTS = True
    RESERVES = True

    def __init__(self, account: Account, api: Api, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: the meaning of the cloud's codes."""
        keys = Keys(account)
        self._account = account
        self._account = account
        self._api = api
        self._node_calls = NamedNodes(account, keys, api, kinds)
        self._machines = Nodes(account, self._node_calls)
        self._disks = Volumes(account, NamedVolumes(account, api))
        self._held = Attachments(account, self._disks, NamedAttachments(account, api))
        super().__init__(account.config, keys, self._machines, self._disks, self._held)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """From the API."""
        return self._api.offers()

    @asked
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        """A machine's own disk may carry the machine's mark."""
        found = [
            checks.existing(
                thing.tags,
                id=thing.id,
                name=thing.name,
                region=thing.region if isinstance(thing, Disk) else "",
                zone=thing.zone,
                type=thing.type,
                state=thing.state,
            )
            for thing in self._api.marked()
            if not thing.gone
            and thing.tags.get(marks.ADDRESS, "").startswith("volume/") is isinstance(thing, Disk)
        ]
        return checks.others(found, self._account.owner, addresses)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        nodes = [inputs_of("node", inputs) for address, inputs in wanted.items() if address.kind == "node"]
        kinds = {tuple(str(getattr(node, key)) for key in KIND): node for node in nodes}
        looks = [partial(self._node_calls.reserved, kinds[key]) for key in sorted(kinds)]
        return [
            *super().check(wanted),
            *checks.unfit_volumes(self._disks.seen, wanted),
            *checks.faults_of((), looks),
            *self._node_calls.groups.unfit(nodes),
        ]

    @asked
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        self._node_calls.clear(address, token, inputs)
