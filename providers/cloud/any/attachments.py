"""Attachments: a volume on a machine, for one rank.

No cloud keeps texts on an attachment, so a claim (see `claims`) is written on the volume if its cloud keeps
texts on disks, else on the machine. Each machine has its own key, so that the loser of a race for a volume
does not overwrite the winner's claim. The claim is written first, and is valid only while the disk is there.
If there are only names, a disk of ours on a machine of ours is the recorded attachment: the state lets a
volume have only one holder at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.record import struct
from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from providers.cloud import marks
from providers.cloud.account import look_up, pauses
from providers.cloud.any import claims, nodes
from providers.cloud.any.account import Account, At
from providers.cloud.any.claims import Claim, id_of, is_of, keys_of, last_part, of_tags, thing_of, volume_of
from providers.cloud.any.site import Disk, Machine, Tags, claim_key
from providers.cloud.any.volumes import Volumes
from providers.cloud.checks import gone
from providers.cloud.hosts import Holder, OnNode
from providers.cloud.marks import ON


@struct(frozen=True, slots=True, kw_only=True)
class Held:
    """A volume, and the machines that have it or are getting it."""

    disk: Disk
    at: At
    region: str
    """Empty if no region is needed to look at the volume."""
    machines: Mapping[str, Machine]
    """The living machines that were looked up with it, by id."""
    holders: tuple[Holder, ...]
    mute: bool
    """Its cloud keeps no claims: whichever machine has it holds it for the recorded attachment."""

    @property
    def attaching(self) -> bool:
        """A machine is getting it, although the cloud may not yet say which."""
        return self.disk.busy and (self.at.lists or self.disk.holders is not None)


class Attachments:
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes) -> None:
        self._account = account
        self._volumes = volumes
        self._asked: set[str] = set()
        """Tokens for which an earlier try may have made an attachment."""

    def things(self, volumes: Iterable[Disk], machines: Iterable[Machine]) -> list[Thing]:
        """All existing attachments, from given volumes and living machines of ours."""
        alive = {machine.id: machine for machine in machines}
        return [t for v in volumes for t in self._things(self._held(v, alive), alive)]

    def _things(self, held: Held, living: Collection[str]) -> list[Thing]:
        out: list[Thing] = []
        for holder in held.holders:
            claim = self._claim(held, holder.machine) if holder.machine in living else None
            if claim and not holder.leaving:
                out.append(thing_of(claim, _outputs(claim, held, holder)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(address)))):
            held = self._held(volume)
            living = self._living(held, [holder.machine for holder in held.holders])
            if held.mute:
                claim = {"address": str(address), "token": token, "inputs": {}}
                holder = next((h for h in held.holders if h.machine in living), None)
                return thing_of(claim, _outputs(claim, held, holder), known=False) if holder else None
            for thing in self._things(held, living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """None: the disk exists and is not on its machine."""
        by_region: dict[str, list[tuple[Record, str, str]]] = {}
        for record in records:
            region, made, machine = self._recorded(record)
            if made:
                by_region.setdefault(region, []).append((record, made, machine))
        out: dict[Address, Thing | None] = {}
        for region, found in sorted(by_region.items()):
            disks = self._disks(region, [made for _, made, _ in found])
            for record, made, machine in found:
                if made in disks:
                    held = any(h.busy or not h.leaving for h in _on(disks[made], machine))
                    out[record.address] = marks.again(record) if held else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """The place of a volume's disk, or of exactly this attachment; None if it is on no running node."""
        held = self._of(have) if have.address.kind == "volume" else self._attached(have)
        holder = next(iter(held.holders), None) if held else None
        if held is None or holder is None or holder.leaving:
            return None
        disk, found = held.disk, self._living(held, [holder.machine]).get(holder.machine)
        if found is None or found.state is not NodeState.READY:
            return None
        if disk.busy and disk.holders is None and found.devices is None:
            return None  # nobody looks for the disk while it is being attached or detached
        if found.tags.get(marks.OWNER) != self._account.owner:
            return None
        return OnNode(
            id=last_part(disk.id),
            node=marks.node(self._account.read(found), self._account.config.backend, nodes.outputs(found)),
            size=disk.size,
            ours=VOLUME_ID not in self._account.read(disk).inputs,
            taken=bool(found.tags.get(marks.TAKEN)),
            serials=holder.serials,
            links=holder.links,
            names=holder.names,
        )

    def _attached(self, have: Record) -> Held | None:
        """The disk of a recorded attachment with only its own holder; None if it is not attached for it."""
        region, made, machine = self._place(have)
        held = self._disks(region, [made]).get(made) if made else None
        if held is None or not self._is_of(have, held, machine):
            return None
        return replace(held, holders=tuple(_on(held, machine)))

    def _is_of(self, have: Record, held: Held, machine: str) -> bool:
        """Whether the disk, if it is on the machine, is there for the recorded attachment."""
        claim = self._claim(held, machine)
        return held.mute or (claim is not None and is_of(have, claim, held.disk.id, machine))

    # ---------------------------------------------------------------------------- looks, claims

    def _of(self, volume: Record) -> Held | None:
        disk = self._volumes.of(volume)
        return None if disk is None else self._held(disk)

    def _held(self, disk: Disk, machines: Mapping[str, Machine] | None = None) -> Held:
        """`machines`: the living ones by id, if known. Without a link, the disk is known by its id or its
        label.
        """
        at = self._account.at(disk.region)
        if machines is None and disk.holders is not None:
            machines = {}
        elif machines is None and at.lists:
            machines = {machine.id: machine for machine in at.machines()}
        elif machines is None:
            machines = {made: m for made, m in at.machines_by_id(disk.on).items() if not m.gone}
        also = [made for made, machine in machines.items() if disk.id in (machine.devices or ())]
        on = dict.fromkeys((*disk.on, *also))
        return Held(
            disk=disk,
            at=at,
            region="" if self._account.TAGGED and not self._account.regional else disk.region,
            machines=machines,
            holders=disk.holders or tuple(_holder(disk, made, machines.get(made)) for made in on),
            mute=not self._account.TAGGED and not at.site.keeps,
        )

    def _disks(self, region: str, ids: Collection[str]) -> Mapping[str, Held]:
        """The existing ones. If the site only lists things, one listing of disks and one of machines."""
        at = self._account.at(region)
        if not at.lists:
            return {made: self._held(disk) for made, disk in at.disks_by_id(ids).items()}
        found = [disk for disk in at.disks() if disk.id in ids]
        machines = {machine.id: machine for machine in at.machines()} if found else {}
        return {disk.id: self._held(disk, machines) for disk in found}

    def _living(self, held: Held, ids: Sequence[str]) -> Mapping[str, Machine]:
        """The disk's holders that are alive."""
        if held.disk.holders is None:
            return {made: held.machines[made] for made in ids if made in held.machines}
        return {made: machine for made, machine in held.at.seen(ids).items() if not machine.gone}

    def _claim(self, held: Held, machine: str) -> Claim | None:
        """The claim on the disk, or on the machine."""
        disk, machines = held.disk, held.machines
        if self._account.TAGGED:
            return of_tags(disk.tags, disk.id, machine)
        text = disk.written.texts.get(claim_key(machine))
        if text is None and machine in machines:
            text = machines[machine].written.texts.get(claim_key(disk.id))
        return None if text is None else claims.parse(text, disk.id)

    def _write(self, held: Held, machine: str, claim: Claim | None) -> None:
        """Write a claim in place of all others, or remove it: on the disk if it keeps texts, else on the
        machine.
        """
        disk, site = held.disk, held.at.site
        if isinstance(site, Tags):
            new = claims.to_tags(claim, machine) if claim else {}
            mine = keys_of(disk.tags, machine)
            old = [key for key in disk.tags if key.startswith(ON) and key not in new] if claim else mine
            if old or not new.items() <= disk.tags.items():
                site.tag(disk, new, old)
            return
        on_disk = "disk" in site.keeps
        thing = disk if on_disk else held.machines.get(machine)
        if thing is None or not site.keeps:
            return
        key, texts = claim_key(machine if on_disk else disk.id), thing.written.texts
        text = claims.text_of(claim) if claim else None
        if texts.get(key) != text:
            others = [k for k in texts if on_disk and k.startswith("on-") and k != key]
            site.write(thing, {**dict.fromkeys(others), key: text})

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Return when the machine has the disk."""
        volume, node, claim = claims.asked(address, token, inputs, needs)
        about = str(volume.address)
        machine = str(node.outputs["id"])
        look = partial(self._of, volume)
        for _ in pauses(f"{address}: {volume.outputs.get('id')} is not on {machine} yet", about):
            held = look_up(look) if token in self._asked else look()
            if held is None:
                raise gone(about)
            holder = self._holder(held, machine, claim)
            if holder and holder.machine == machine and holder.attached:
                return _outputs(claim, held, holder)
            if holder is None and not held.disk.busy and not (held.at.lists and held.disk.on):
                self._attach(held, machine, claim)
        raise AssertionError("pauses end with a fault")

    def _holder(self, held: Held, machine: str, claim: Claim) -> Holder | None:
        """The machine that has the disk, if it is ours or is releasing it; a fault for any other."""
        disk = held.disk
        if disk.broken:
            summary = f"{disk.id} is damaged: {disk.broken}"
            raise PermanentError(PermanentKind.INVALID, summary, about=claim["address"])
        holder = next(iter(held.holders), None)
        if holder is None or holder.leaving:
            return holder
        theirs = self._claim(held, holder.machine)
        if holder.machine == machine and (held.mute or (theirs and theirs["token"] == claim["token"])):
            return holder
        if not self._living(held, [holder.machine]):
            return holder
        raise claims.held(disk.tags.get(marks.ADDRESS), theirs, last_part(holder.machine))

    def _attach(self, held: Held, machine: str, claim: Claim) -> None:
        """Request it once. The next look shows the result."""
        token = claim["token"]
        self._write(held, machine, claim)
        again = token in self._asked
        self._asked.add(token)
        try:
            found = _by_its_id(held.disk, machine) or held.machines.get(machine)
            if found is None and not held.at.lists:
                found = held.at.seen([machine]).get(machine)
            if found is None or found.gone:
                raise gone(machine)
            held.at.site.attach(held.disk, found)
        except ProviderError as error:
            if isinstance(error, TransientError) and error.kind is TransientKind.BUSY:
                return
            # A refusal may be due to the request of an earlier try, or of a command that was killed.
            look = partial(self._disks, held.region, [held.disk.id])
            may_be_there = again or isinstance(error, PermanentError)
            now = look_up(look).get(held.disk.id) if may_be_there else None
            if now is None or not _on(now, machine):
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
            held = self._disks(region, [made]).get(made)
            ours = held and not held.disk.gone and held.disk.tags.get(marks.OWNER) == self._account.owner
            if held is None or not ours or not self._is_of(have, held, machine):
                return
            if self._ended(held, machine) or not wait:
                return

    def _ended(self, held: Held, machine: str) -> bool:
        """Whether an attachment of ours has ended. If not, its end is requested, unless it is
        already ending.
        """
        holder = next(iter(_on(held, machine)), None)
        if holder is None and not held.attaching:
            self._write(held, machine, None)
            return True
        if holder and holder.leaving:
            return False
        if not self._living(held, [machine]):
            return True  # the end of a machine ends its attachments
        if held.at.lists and held.disk.busy:
            return False
        try:
            held.at.site.detach(held.disk, _by_its_id(held.disk, machine) or held.machines[machine])
        except (TransientError, PermanentError) as error:
            if error.kind not in (TransientKind.BUSY, PermanentKind.NOT_FOUND):
                raise
        return False

    def _recorded(self, have: Record) -> tuple[str, str, str]:
        """The region, volume id and machine id of a recorded attachment; empty unless all are known."""
        on = have.outputs.get("instance") or have.outputs.get("machine")
        region, made = have.outputs.get("region") or "", have.outputs.get("volume")
        if not all(isinstance(key, str) for key in (region, made, on)):
            return NOWHERE
        known = made and on and (region or not self._account.regional)
        return (str(region), str(made), str(on)) if known else NOWHERE

    def _place(self, have: Record) -> tuple[str, str, str]:
        """Like `_recorded`. If nothing is recorded yet, the claims on volumes show it."""
        place = self._recorded(have)
        if place != NOWHERE or have.outputs.get("id"):
            return place
        volumes = self._volumes.listed(address=str(Address("volume", volume_of(have.address))))
        for held in map(self._held, volumes):
            for holder in held.holders:
                claim = self._claim(held, holder.machine)
                if claim and claim["address"] == str(have.address):
                    return held.region, held.disk.id, holder.machine
        return NOWHERE


NOWHERE = ("", "", "")


def _on(held: Held, machine: str) -> list[Holder]:
    return [holder for holder in held.holders if holder.machine == machine]


def _outputs(claim: Claim, held: Held, holder: Holder) -> dict[str, Any]:
    found = {
        "id": id_of(claim, held.disk.id, holder.machine),
        "region": held.region,
        "volume": held.disk.id,
        "instance": holder.machine,
        "device": holder.device,
    }
    return {key: value for key, value in found.items() if value}


def _holder(disk: Disk, made: str, machine: Machine | None) -> Holder:
    """A machine that knows its devices says whether it has the disk, and where."""
    if machine is not None and machine.devices is not None:
        device = machine.devices.get(disk.id)
        return Holder(
            machine=made,
            device=device.links[0] if device else "",
            attached=device is not None,
            leaving=device is None,
            serials=device.serials if device else (),
            links=device.links if device else (),
        )
    serials = dict.fromkeys((disk.id[:20], disk.id.replace("-", "")[:20], disk.label))
    return Holder(
        machine=made,
        device=disk.device or "",
        attached=not disk.busy,
        leaving=False,
        serials=() if disk.device else tuple(serials),
        links=(disk.device,) if disk.device else (),
    )


def _by_its_id(disk: Disk, machine: str) -> Machine | None:
    """The machine, of which a site needs no more than the id if its disks say who has them."""
    if disk.holders is None:
        return None
    return Machine(id=machine, region=disk.region, state=NodeState.READY)
