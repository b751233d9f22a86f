"""Attachments: a volume on a machine, for one rank, in clouds that let volumes carry tags.

An attachment has no tags of its own, so the volume says it: under a key of the machine's own, so that who
loses the race for a volume does not overwrite what the winner wrote. The claim is written first, and holds
only with the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from declarative.model.state import Address, Record
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from providers.cloud import claims, marks, regions
from providers.cloud.account import look_up, pauses
from providers.cloud.claims import ON, id_of, is_of, of_tags, thing_of, to_tags, volume_of
from providers.cloud.hosts import OnNode
from providers.cloud.volume_checks import gone, was_adopted


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A machine that has a disk, or is about to, and where it finds it: see `hosts.OnNode`."""

    machine: str
    device: str
    """What is recorded of it."""
    attached: bool
    """The machine can use it."""
    leaving: bool
    """It was asked to let go of it."""
    busy: bool = False
    """It was asked to, and has it in use: it may keep it."""
    serials: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A volume, as far as attachments go; its size is in GiB."""

    id: str
    region: str
    state: str
    """In the cloud's own words."""
    size: int
    tags: Mapping[str, str]
    free: bool
    """It can be attached."""
    gone: bool
    """It has ended, or is about to."""
    damage: str = ""
    """Why it cannot be attached ever; empty if it can."""
    attaching: bool = False
    """A machine is about to have it, though none may be told yet."""
    holders: tuple[Holder, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that has not ended, and is not about to."""

    id: str
    tags: Mapping[str, str]
    runs: bool
    outputs: Mapping[str, Any]


V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
V_contra = TypeVar("V_contra", contravariant=True)


class Volumes(Protocol[V_co]):
    """The volumes of an account, as its cloud tells of them."""

    def listed(self, *, address: str = ...) -> Iterable[V_co]:
        """All that are ours, or those of an address."""

    def of(self, have: Record) -> V_co | None:
        """The volume of a record; `PermanentError` if it is not ours."""


class Driver(Protocol[V_contra]):
    """What a cloud is asked about attachments. Faults are the port's; BUSY is where one has to look again."""

    def disk(self, volume: V_contra) -> Disk:
        """A volume, as attachments see it."""

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, Disk]:
        """Those that there are, by their ids."""

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Machine]:
        """Those that live, by their ids."""

    def machine_id(self, node: Record) -> str:
        """The id of a recorded node's machine; empty if it has none that could be one."""

    def tag(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """Set tags of a disk, and leave the others."""

    def untag(self, disk: Disk, keys: Sequence[str]) -> None:
        """Take tags away from a disk."""

    def attach(self, disk: Disk, machine: str, about: str) -> None:
        """Ask for it once. What became of it, the next look says."""

    def detach(self, disk: Disk, machine: str) -> None:
        """Ask for it once, if it can be asked for just now."""


class Attachments(Generic[V]):
    """The attachments of one account."""

    def __init__(self, account: regions.Account[Any], volumes: Volumes[V], driver: Driver[V]) -> None:
        self._account = account
        self._volumes = volumes
        self._driver = driver
        self._asked: set[str] = set()
        """Tokens of attachments that may have come of an earlier try."""

    def things(self, volumes: Iterable[V], living: Iterable[str]) -> list[Thing]:
        """All that hold, given volumes of ours and the ids of living machines of ours."""
        alive = set(living)
        out: list[Thing] = []
        for disk in map(self._driver.disk, volumes):
            for holder in disk.holders:
                claim = of_tags(disk.tags, disk.id, holder.machine) if holder.machine in alive else None
                if claim and not holder.leaving:
                    out.append(thing_of(claim, _outputs(claim, disk, holder)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(address)))):
            disk = self._driver.disk(volume)
            living = self._driver.machines(disk.region, [h.machine for h in disk.holders])
            for thing in self.things([volume], living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """See `provider.Recalls`: None is for a disk that is there, and not on its machine."""
        out: dict[Address, Thing | None] = {}
        for region, found in self._account.by_region(records):
            ids = [str(record.outputs.get("volume") or "") for record in found]
            disks = self._driver.disks(region.name, [made for made in ids if made])
            for record, made in zip(found, ids, strict=True):
                if made in disks:
                    holders = _on(disks[made], str(record.outputs.get("instance")))
                    held = any(h.busy or not h.leaving for h in holders)
                    out[record.address] = marks.again(record) if held else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """See `provider.Attachments`."""
        if have.address.kind == "volume":
            disk = self._of(have)
            holder = next(iter(disk.holders), None) if disk else None
        else:
            region, made, machine = self._place(have)
            disk = self._disk(region, made) if made else None
            claim = of_tags(disk.tags, disk.id, machine) if disk else None
            mine = disk and claim and is_of(have, claim, disk.id, machine)
            holder = next(iter(_on(disk, machine)), None) if disk and mine else None
        if disk is None or holder is None or holder.leaving:
            return None
        found = self._driver.machines(disk.region, [holder.machine]).get(holder.machine)
        if found is None or not found.runs or found.tags.get(marks.OWNER) != self._account.owner:
            return None
        return OnNode(
            id=disk.id,
            node=marks.node(found.tags, found.id, self._account.config.backend, found.outputs),
            size=disk.size,
            ours=not was_adopted(disk.tags, disk.id),
            taken=bool(found.tags.get(marks.TAKEN)),
            serials=holder.serials,
            names=holder.names,
        )

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. It ends when the machine has the disk."""
        volume, node, claim = claims.asked(address, token, inputs, needs)
        about = str(volume.address)
        machine = self._driver.machine_id(node)
        look = partial(self._of, volume)
        for _ in pauses(f"{address}: {volume.outputs.get('id')} is not on {machine} yet", about):
            disk = look_up(look) if token in self._asked else look()
            if disk is None:
                raise gone(about)
            holder = self._holder(disk, machine, claim)
            if holder and holder.machine == machine and holder.attached:
                return _outputs(claim, disk, holder)
            if holder is None and disk.free:
                self._attach(disk, machine, claim)
        raise AssertionError("pauses end with a fault")

    def _holder(self, disk: Disk, machine: str, claim: Mapping[str, Any]) -> Holder | None:
        """Who has the disk, if that is us or somebody who lets go of it; else a fault."""
        if disk.damage:
            raise PermanentError(PermanentKind.INVALID, disk.damage, about=claim["address"])
        holder = next(iter(disk.holders), None)
        if holder is None or holder.leaving:
            return holder
        theirs = of_tags(disk.tags, disk.id, holder.machine)
        if holder.machine == machine and theirs and theirs["token"] == claim["token"]:
            return holder
        if not self._driver.machines(disk.region, [holder.machine]):
            return holder
        raise claims.held(disk.tags.get(marks.ADDRESS), theirs, holder.machine)

    def _attach(self, disk: Disk, machine: str, claim: Mapping[str, Any]) -> None:
        """Ask for it once. What became of it, the next look says."""
        mine, token = to_tags(claim, machine), claim["token"]
        self._driver.untag(disk, [key for key in disk.tags if key.startswith(ON) and key not in mine])
        self._driver.tag(disk, mine)
        again = token in self._asked
        self._asked.add(token)
        try:
            self._driver.attach(disk, machine, claim["address"])
        except ProviderError as error:
            if isinstance(error, TransientError) and error.kind is TransientKind.BUSY:
                return
            # It may be refused for what an earlier try asked for.
            found = look_up(partial(self._disk, disk.region, disk.id)) if again else None
            if found is None or not _on(found, machine):
                raise

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """See the port. It ends when the volume is free. Nothing is done for one that another holds now."""
        region, made, machine = self._place(have)
        if not made:
            return
        for _ in pauses(f"{have.address}: {made} is not off {machine} yet", str(have.address)):
            disk = self._disk(region, made)
            if disk is None or disk.gone or disk.tags.get(marks.OWNER) != self._account.owner:
                return
            claim = of_tags(disk.tags, disk.id, machine)
            if claim is None or not is_of(have, claim, disk.id, machine):
                return
            holder = next(iter(_on(disk, machine)), None)
            if holder is None and not disk.attaching:
                self._driver.untag(disk, [key for key in disk.tags if key.startswith(ON + machine)])
                return
            if holder and holder.leaving:
                if wait:
                    continue
                return
            if not self._driver.machines(region, [machine]):
                return  # its end is that of its attachments
            self._detach(disk, machine)

    def _detach(self, disk: Disk, machine: str) -> None:
        try:
            self._driver.detach(disk, machine)
        except (TransientError, PermanentError) as error:
            if error.kind not in (TransientKind.BUSY, PermanentKind.NOT_FOUND):
                raise

    def _of(self, volume: Record) -> Disk | None:
        found = self._volumes.of(volume)
        return None if found is None else self._driver.disk(found)

    def _disk(self, region: str, made: str) -> Disk | None:
        return self._driver.disks(region, [made]).get(made)

    def _place(self, have: Record) -> tuple[str, str, str]:
        """Where a recorded attachment is: the region, the volume's id, the machine's; empty if nowhere."""
        region, made, machine = (have.outputs.get(key) for key in ("region", "volume", "instance"))
        if all(isinstance(key, str) and key for key in (region, made, machine)):
            return str(region), str(made), str(machine)
        if not have.outputs.get("id"):
            volumes = self._volumes.listed(address=str(Address("volume", volume_of(have.address))))
            for disk in map(self._driver.disk, volumes):
                for holder in disk.holders:
                    claim = of_tags(disk.tags, disk.id, holder.machine)
                    if claim and claim["address"] == str(have.address):
                        return disk.region, disk.id, holder.machine
        return "", "", ""


def _on(disk: Disk, machine: str) -> list[Holder]:
    return [holder for holder in disk.holders if holder.machine == machine]


def _outputs(claim: Mapping[str, Any], disk: Disk, holder: Holder) -> dict[str, Any]:
    return {
        "id": id_of(claim, disk.id, holder.machine),
        "region": disk.region,
        "volume": disk.id,
        "instance": holder.machine,
        "device": holder.device,
    }
