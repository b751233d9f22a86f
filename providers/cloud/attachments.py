"""Attachments: a volume on a machine, for one rank.

No cloud keeps texts on an attachment, so a claim (see `claims`) is written on the volume. Each machine has
its own key, so that the loser of a race for a volume does not overwrite the winner's claim. The claim is
written first, and is valid only while the disk is there. A cloud is a `Driver`: its calls, and where it keeps
claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
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
from providers.cloud import attachment_driver, marks
from providers.cloud.account import Account, look_up, pauses
from providers.cloud.attachment_driver import (
    Claim,
    Disk,
    Driver,
    Machine,
    id_of,
    is_of,
    last_part,
    thing_of,
    volume_of,
)
from providers.cloud.checks import gone
from providers.cloud.hosts import Holder, OnNode

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Volumes(Protocol[V_co]):
    """The volumes of an account, as its cloud reports them."""

    def listed(self, *, address: str = ...) -> Iterable[V_co]:
        """All of ours, or those of an address."""

    def of(self, have: Record) -> V_co | None:
        """The volume of a record; `PermanentError` if it is not ours."""


class Attachments(Generic[V]):
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes[V], driver: Driver[V]) -> None:
        self._account = account
        self._volumes = volumes
        self._driver = driver
        self._asked: set[str] = set()
        """Tokens for which an earlier try may have made an attachment."""

    def things(self, volumes: Iterable[V], machines: Iterable[Any]) -> list[Thing]:
        """All existing attachments, from given volumes and living machines of ours."""
        alive = {machine.id: machine for machine in machines}
        return [t for v in volumes for t in self._holding(self._driver.disk(v, alive), alive)]

    def _holding(self, disk: Disk, living: Collection[str]) -> list[Thing]:
        out: list[Thing] = []
        for holder in disk.holders:
            claim = self._driver.claim(disk, holder.machine) if holder.machine in living else None
            if claim and not holder.leaving:
                out.append(thing_of(claim, _outputs(claim, disk, holder)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(address)))):
            disk = self._driver.disk(volume)
            living = self._living(disk, [holder.machine for holder in disk.holders])
            if disk.mute:
                claim = {"address": str(address), "token": token, "inputs": {}}
                holder = next((h for h in disk.holders if h.machine in living), None)
                return thing_of(claim, _outputs(claim, disk, holder), known=False) if holder else None
            for thing in self._holding(disk, living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def _living(self, disk: Disk, machines: Sequence[str]) -> Mapping[str, Machine]:
        """The disk's holders that are alive."""
        if disk.living is None:
            return self._driver.machines(disk.region, machines)
        return {made: disk.living[made] for made in machines if made in disk.living}

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """None: the disk exists and is not on its machine."""
        by_region: dict[str, list[tuple[Record, str, str]]] = {}
        for record in records:
            region, made, machine = self._recorded(record)
            if made:
                by_region.setdefault(region, []).append((record, made, machine))
        out: dict[Address, Thing | None] = {}
        for region, found in sorted(by_region.items()):
            disks = self._driver.disks(region, [made for _, made, _ in found])
            for record, made, machine in found:
                if made in disks:
                    held = any(h.busy or not h.leaving for h in _on(disks[made], machine))
                    out[record.address] = marks.again(record) if held else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """The place of a volume's disk, or of exactly this attachment; None if it is on no running node."""
        disk = self._of(have) if have.address.kind == "volume" else self._attached(have)
        holder = next(iter(disk.holders), None) if disk else None
        if disk is None or holder is None or holder.leaving:
            return None
        found = self._living(disk, [holder.machine]).get(holder.machine)
        if found is None or not found.runs or not found.ours:
            return None
        return OnNode(
            id=last_part(disk.id),
            node=found.node(),
            size=disk.size,
            ours=not disk.adopted(),
            taken=found.taken,
            serials=holder.serials,
            links=holder.links,
            names=holder.names,
        )

    def _attached(self, have: Record) -> Disk | None:
        """The disk of a recorded attachment with only its own holder; None if it is not attached for it."""
        region, made, machine = self._place(have)
        disk = self._disk(region, made) if made else None
        if disk is None or not self._is_of(have, disk, machine):
            return None
        return replace(disk, holders=tuple(_on(disk, machine)))

    def _is_of(self, have: Record, disk: Disk, machine: str) -> bool:
        """Whether the disk, if it is on the machine, is there for the recorded attachment."""
        claim = self._driver.claim(disk, machine)
        return disk.mute or (claim is not None and is_of(have, claim, disk.id, machine))

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Return when the machine has the disk."""
        volume, node, claim = attachment_driver.asked(address, token, inputs, needs)
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

    def _holder(self, disk: Disk, machine: str, claim: Claim) -> Holder | None:
        """The machine that has the disk, if it is ours or is releasing it; a fault for any other."""
        if disk.damage:
            raise PermanentError(PermanentKind.INVALID, disk.damage, about=claim["address"])
        holder = next(iter(disk.holders), None)
        if holder is None or holder.leaving:
            return holder
        theirs = self._driver.claim(disk, holder.machine)
        if holder.machine == machine and (disk.mute or (theirs and theirs["token"] == claim["token"])):
            return holder
        if not self._living(disk, [holder.machine]):
            return holder
        raise attachment_driver.held(disk.tags.get(marks.ADDRESS), theirs, last_part(holder.machine))

    def _attach(self, disk: Disk, machine: str, claim: Claim) -> None:
        """Request it once. The next look shows the result."""
        token = claim["token"]
        self._driver.write(disk, machine, claim)
        again = token in self._asked
        self._asked.add(token)
        try:
            self._driver.attach(disk, machine, claim["address"])
        except ProviderError as error:
            if isinstance(error, TransientError) and error.kind is TransientKind.BUSY:
                return
            # The refusal may be due to the request of an earlier try.
            found = look_up(partial(self._disk, disk.region, disk.id)) if again else None
            if found is None or not _on(found, machine):
                raise

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """Return when the volume is free, or without `wait`, once that was requested: a
        node that does not answer may release the disk only when it ends. A volume that another holds by now
        is left alone.
        """
        region, made, machine = self._place(have)
        if not made:
            return
        for _ in pauses(f"{have.address}: {made} is not off {machine} yet", str(have.address)):
            disk = self._disk(region, made)
            if disk is None or not self._is_ours(have, disk, machine):
                return
            if self._ended(disk, machine) or not wait:
                return

    def _ended(self, disk: Disk, machine: str) -> bool:
        """Whether an attachment of ours has ended. If not, its end is requested, unless it is
        already ending.
        """
        holder = next(iter(_on(disk, machine)), None)
        if holder is None and not disk.attaching:
            self._driver.erase(disk, machine)
            return True
        if holder and holder.leaving:
            return False
        if not self._living(disk, [machine]):
            return True  # the end of a machine ends its attachments
        self._detach(disk, machine)
        return False

    def _is_ours(self, have: Record, disk: Disk, machine: str) -> bool:
        """Whether there is something to detach: a disk of ours, held for the recorded attachment."""
        mine = not disk.gone and disk.tags.get(marks.OWNER) == self._account.owner
        return mine and self._is_of(have, disk, machine)

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

    def _recorded(self, have: Record) -> tuple[str, str, str]:
        """The region, volume id and machine id of a recorded attachment; empty unless all are known."""
        on = have.outputs.get("instance") or have.outputs.get("machine")
        region, made = have.outputs.get("region") or "", have.outputs.get("volume")
        if not all(isinstance(key, str) for key in (region, made, on)):
            return NOWHERE
        known = made and on and (region or not self._driver.regional)
        return (str(region), str(made), str(on)) if known else NOWHERE

    def _place(self, have: Record) -> tuple[str, str, str]:
        """Like `_recorded`. If nothing is recorded yet, the claims on volumes show it."""
        place = self._recorded(have)
        if place != NOWHERE or have.outputs.get("id"):
            return place
        volumes = self._volumes.listed(address=str(Address("volume", volume_of(have.address))))
        for disk in map(self._driver.disk, volumes):
            for holder in disk.holders:
                claim = self._driver.claim(disk, holder.machine)
                if claim and claim["address"] == str(have.address):
                    return disk.region, disk.id, holder.machine
        return NOWHERE


NOWHERE = ("", "", "")


def _on(disk: Disk, machine: str) -> list[Holder]:
    return [holder for holder in disk.holders if holder.machine == machine]


def _outputs(claim: Claim, disk: Disk, holder: Holder) -> dict[str, Any]:
    found = {
        "id": id_of(claim, disk.id, holder.machine),
        "region": disk.region,
        "volume": disk.id,
        "instance": holder.machine,
        "device": holder.device,
    }
    return {key: value for key, value in found.items() if value}
