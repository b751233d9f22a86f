"""Attachments: a volume on a machine, for one rank.

No cloud keeps texts on an attachment, so a claim (see `claims`) is written on the volume, or on the machine
if texts can be written only there. If there are only names, a disk of ours on a machine of ours is the
recorded attachment: the state lets a volume have only one holder at a time. On a volume, each machine has its
own key, so that the loser of a race for it does not overwrite the winner's claim. The claim is written first,
and is valid only while the disk is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from declarative.model.inputs import inputs_of
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
from providers.cloud.any import nodes
from providers.cloud.any.account import Account, At
from providers.cloud.any.claims import (
    Claim,
    id_of,
    is_of,
    keys_of,
    last_part,
    of_tags,
    parse,
    text_of,
    thing_of,
    to_tags,
)
from providers.cloud.any.site import Disk, Machine, Tags, claim_key
from providers.cloud.any.volumes import Volumes
from providers.cloud.checks import gone
from providers.cloud.hosts import Holder, OnNode
from providers.cloud.marks import ON


@struct(frozen=True, slots=True, kw_only=True)
class Living:
    """A machine that has not ended and is not ending."""

    id: str
    ours: bool
    runs: bool
    taken: bool
    """It was ready once."""
    node: Callable[[], Record]
    """Its record, from what is written on it; `PermanentError` if that is damaged."""


@struct(frozen=True, slots=True, kw_only=True)
class View:
    """A volume, as attachments need it. `size` is in GiB, None if the cloud does not report it."""

    id: str
    region: str
    state: str
    """In the cloud's own words."""
    size: int | None
    tags: Mapping[str, str]
    free: bool
    """It can be attached."""
    gone: bool
    """It has ended or is ending."""
    adopted: Callable[[], bool]
    """Whether somebody else made it; `PermanentError` if that cannot be read."""
    damage: str = ""
    """Why it can never be attached; empty if it can."""
    attaching: bool = False
    """A machine is getting it, although the cloud may not yet say which."""
    holders: tuple[Holder, ...] = field(default=())
    living: Mapping[str, Living] | None = None
    """Its living holders, if they were looked up with it."""
    mute: bool = False
    """Its cloud keeps no claims: whichever machine has it holds it for the recorded attachment."""
    source: Any = field(default=None, compare=False, repr=False)
    """The cloud's own object, for the driver only."""


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
        return [t for v in volumes for t in self._holding(self.disk(v, alive), alive)]

    def _holding(self, disk: View, living: Collection[str]) -> list[Thing]:
        out: list[Thing] = []
        for holder in disk.holders:
            claim = self.claim(disk, holder.machine) if holder.machine in living else None
            if claim and not holder.leaving:
                out.append(thing_of(claim, _outputs(claim, disk, holder)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        for volume in self._volumes.listed(address=str(Address("volume", volume_of(address)))):
            disk = self.disk(volume)
            living = self._living(disk, [holder.machine for holder in disk.holders])
            if disk.mute:
                claim = {"address": str(address), "token": token, "inputs": {}}
                holder = next((h for h in disk.holders if h.machine in living), None)
                return thing_of(claim, _outputs(claim, disk, holder), known=False) if holder else None
            for thing in self._holding(disk, living):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def _living(self, disk: View, machines: Sequence[str]) -> Mapping[str, Living]:
        """The disk's holders that are alive."""
        if disk.living is None:
            return self.machines(disk.region, machines)
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
            disks = self.disks(region, [made for _, made, _ in found])
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

    def _attached(self, have: Record) -> View | None:
        """The disk of a recorded attachment with only its own holder; None if it is not attached for it."""
        region, made, machine = self._place(have)
        disk = self._disk(region, made) if made else None
        if disk is None or not self._is_of(have, disk, machine):
            return None
        return replace(disk, holders=tuple(_on(disk, machine)))

    def _is_of(self, have: Record, disk: View, machine: str) -> bool:
        """Whether the disk, if it is on the machine, is there for the recorded attachment."""
        claim = self.claim(disk, machine)
        return disk.mute or (claim is not None and is_of(have, claim, disk.id, machine))

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Return when the machine has the disk."""
        volume, node, claim = asked(address, token, inputs, needs)
        about = str(volume.address)
        machine = self.machine_id(node)
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

    def _holder(self, disk: View, machine: str, claim: Claim) -> Holder | None:
        """The machine that has the disk, if it is ours or is releasing it; a fault for any other."""
        if disk.damage:
            raise PermanentError(PermanentKind.INVALID, disk.damage, about=claim["address"])
        holder = next(iter(disk.holders), None)
        if holder is None or holder.leaving:
            return holder
        theirs = self.claim(disk, holder.machine)
        if holder.machine == machine and (disk.mute or (theirs and theirs["token"] == claim["token"])):
            return holder
        if not self._living(disk, [holder.machine]):
            return holder
        raise held(disk.tags.get(marks.ADDRESS), theirs, last_part(holder.machine))

    def _attach(self, disk: View, machine: str, claim: Claim) -> None:
        """Request it once. The next look shows the result."""
        token = claim["token"]
        self.write(disk, machine, claim)
        again = token in self._asked
        self._asked.add(token)
        try:
            self.attach(disk, machine, claim["address"])
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

    def _ended(self, disk: View, machine: str) -> bool:
        """Whether an attachment of ours has ended. If not, its end is requested, unless it is
        already ending.
        """
        holder = next(iter(_on(disk, machine)), None)
        if holder is None and not disk.attaching:
            self.erase(disk, machine)
            return True
        if holder and holder.leaving:
            return False
        if not self._living(disk, [machine]):
            return True  # the end of a machine ends its attachments
        self._detach(disk, machine)
        return False

    def _is_ours(self, have: Record, disk: View, machine: str) -> bool:
        """Whether there is something to detach: a disk of ours, held for the recorded attachment."""
        mine = not disk.gone and disk.tags.get(marks.OWNER) == self._account.owner
        return mine and self._is_of(have, disk, machine)

    def _detach(self, disk: View, machine: str) -> None:
        try:
            self.detach(disk, machine)
        except (TransientError, PermanentError) as error:
            if error.kind not in (TransientKind.BUSY, PermanentKind.NOT_FOUND):
                raise

    def _of(self, volume: Record) -> View | None:
        found = self._volumes.of(volume)
        return None if found is None else self.disk(found)

    def _disk(self, region: str, made: str) -> View | None:
        return self.disks(region, [made]).get(made)

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
        for disk in map(self.disk, volumes):
            for holder in disk.holders:
                claim = self.claim(disk, holder.machine)
                if claim and claim["address"] == str(have.address):
                    return disk.region, disk.id, holder.machine
        return NOWHERE

    # --------------------------------------------------------------------- how disks and machines are seen

    def disk(self, volume: Disk, machines: Mapping[str, Machine] | None = None) -> View:
        """Without a link, the disk is known by its id or its label."""
        at = self._account.at(volume.region)
        if machines is None:
            machines = {} if volume.holders is not None else self._holding_machines(at, volume)
        also = [made for made, machine in machines.items() if volume.id in (machine.devices or ())]
        return View(
            id=volume.id,
            region="" if self._account.TAGGED and not self._account.regional else volume.region,
            state=volume.state,
            size=volume.size,
            tags=volume.tags,
            free=not volume.busy and not (at.lists and volume.on),
            gone=volume.gone,
            adopted=lambda: VOLUME_ID in self._account.read(volume).inputs,
            damage=f"{volume.id} is damaged: {volume.broken}" if volume.broken else "",
            attaching=volume.busy and (at.lists or volume.holders is not None),
            holders=volume.holders
            or tuple(
                _holder(volume, made, machines.get(made)) for made in dict.fromkeys((*volume.on, *also))
            ),
            living=None
            if volume.holders is not None
            else {made: self._machine(machine, volume) for made, machine in machines.items()},
            mute=not self._account.TAGGED and not at.site.keeps,
            source=(volume, machines),
        )

    def _holding_machines(self, at: At, volume: Disk) -> Mapping[str, Machine]:
        """The living machines that may have a disk."""
        if at.lists:
            return {machine.id: machine for machine in at.machines()}
        there = at.machines_by_id(volume.on)
        return {made: machine for made, machine in there.items() if not machine.gone}

    def _machine(self, machine: Machine, volume: Disk | None = None) -> Living:
        """Nobody looks for the disk on it while it is being attached or detached."""
        changes = bool(volume and volume.busy and machine.devices is None)
        runs = machine.state is NodeState.READY and not changes
        return Living(
            id=machine.id,
            ours=machine.tags.get(marks.OWNER) == self._account.owner,
            runs=runs,
            taken=bool(machine.tags.get(marks.TAKEN)),
            node=lambda: marks.node(
                self._account.read(machine), self._account.config.backend, nodes.outputs(machine)
            ),
        )

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, View]:
        """If the site only lists things, one listing of disks and one of machines."""
        at = self._account.at(region)
        if not at.lists:
            return {made: self.disk(disk) for made, disk in at.disks_by_id(ids).items()}
        found = [disk for disk in at.disks() if disk.id in ids]
        machines = {machine.id: machine for machine in at.machines()} if found else {}
        return {disk.id: self.disk(disk, machines) for disk in found}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Living]:
        found = self._account.at(region).seen(ids).items()
        return {made: self._machine(machine) for made, machine in found if not machine.gone}

    def machine_id(self, node: Record) -> str:
        return str(node.outputs["id"])

    # ------------------------------------------------------------------------------------- claims

    def claim(self, disk: View, machine: str) -> Claim | None:
        """The claim on the disk, or on the machine."""
        if self._account.TAGGED:
            return of_tags(disk.tags, disk.id, machine)
        volume, machines = _parts(disk)
        text = volume.written.texts.get(claim_key(machine))
        if text is None and machine in machines:
            text = machines[machine].written.texts.get(claim_key(volume.id))
        return None if text is None else parse(text, volume.id)

    def write(self, disk: View, machine: str, claim: Claim) -> None:
        self._write(disk, machine, claim)

    def erase(self, disk: View, machine: str) -> None:
        self._write(disk, machine, None)

    def _write(self, disk: View, machine: str, claim: Claim | None) -> None:
        """Write a claim in place of all others, or remove it: on the disk if it keeps texts, else on the
        machine.
        """
        volume, machines = _parts(disk)
        site = self._account.at(volume.region).site
        if isinstance(site, Tags):
            new = to_tags(claim, machine) if claim else {}
            mine = keys_of(disk.tags, machine)
            old = [key for key in disk.tags if key.startswith(ON) and key not in new] if claim else mine
            if old or not new.items() <= disk.tags.items():
                site.tag(volume, new, old)
            return
        on_disk = "disk" in site.keeps
        thing = volume if on_disk else machines.get(machine)
        if thing is None or not site.keeps:
            return
        key, texts = claim_key(machine if on_disk else volume.id), thing.written.texts
        text = text_of(claim) if claim else None
        if texts.get(key) != text:
            others = [k for k in texts if on_disk and k.startswith("on-") and k != key]
            site.write(thing, {**dict.fromkeys(others), key: text})

    # ---------------------------------------------------------------------------- attach, detach

    def attach(self, disk: View, machine: str, about: str) -> None:
        volume, machines = _parts(disk)
        at = self._account.at(volume.region)
        found = _by_its_id(volume, machine) or machines.get(machine)
        if found is None and not at.lists:
            found = at.seen([machine]).get(machine)
        if found is None or found.gone:
            raise gone(machine)
        at.site.attach(volume, found)

    def detach(self, disk: View, machine: str) -> None:
        volume, machines = _parts(disk)
        at = self._account.at(volume.region)
        if not (at.lists and volume.busy):
            at.site.detach(volume, _by_its_id(volume, machine) or machines[machine])


def asked(
    address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
) -> tuple[Record, Record, Claim]:
    """The volume and the node of a create, and its claim; `PermanentError` if one is missing."""
    name, wanted = volume_of(address), inputs_of("attachment", inputs)
    if wanted.volume != name:
        summary = f"{address} cannot be about volume/{wanted.volume}"
        raise PermanentError(PermanentKind.INVALID, summary, about="volume")
    volume, node = needed(needs, "volume", name), needed(needs, "node", wanted.node)
    return volume, node, {"address": str(address), "token": token, "inputs": dict(inputs)}


def held(about: str | None, theirs: Claim | None, on: str) -> PermanentError:
    """The fault for a volume that somebody else holds, by the claim for the machine `on`."""
    who = f"held by {theirs['address']}" if theirs else "attached by somebody else"
    hint = "a volume has one holder at a time: wait for it to end, or stop it"
    return PermanentError(PermanentKind.CONFLICT, f"{about} is {who}, on {on}", about=about, hint=hint)


def needed(needs: Mapping[Address, Record], kind: str, name: str) -> Record:
    """The volume or node that an attachment needs; `PermanentError` if it does not exist."""
    found = needs.get(Address(kind, name))
    if found is None or not found.outputs.get("id"):
        raise PermanentError(PermanentKind.INVALID, f"{kind}/{name} is not there", about=kind)
    return found


def volume_of(address: Address) -> str:
    """The volume's name in an address: `train-2.data-2` is about `data-2`; `PermanentError` for any other."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume


def _holder(volume: Disk, made: str, machine: Machine | None) -> Holder:
    """A machine that knows its devices says whether it has the disk, and where."""
    if machine is not None and machine.devices is not None:
        device = machine.devices.get(volume.id)
        return Holder(
            machine=made,
            device=device.links[0] if device else "",
            attached=device is not None,
            leaving=device is None,
            serials=device.serials if device else (),
            links=device.links if device else (),
        )
    serials = dict.fromkeys((volume.id[:20], volume.id.replace("-", "")[:20], volume.label))
    return Holder(
        machine=made,
        device=volume.device or "",
        attached=not volume.busy,
        leaving=False,
        serials=() if volume.device else tuple(serials),
        links=(volume.device,) if volume.device else (),
    )


def _by_its_id(volume: Disk, machine: str) -> Machine | None:
    """The machine, of which a site needs no more than the id if its disks say who has them."""
    if volume.holders is None:
        return None
    return Machine(id=machine, region=volume.region, state=NodeState.READY)


def _parts(disk: View) -> tuple[Disk, Mapping[str, Machine]]:
    found: tuple[Disk, Mapping[str, Machine]] = disk.source
    return found


NOWHERE = ("", "", "")


def _on(disk: View, machine: str) -> list[Holder]:
    return [holder for holder in disk.holders if holder.machine == machine]


def _outputs(claim: Claim, disk: View, holder: Holder) -> dict[str, Any]:
    found = {
        "id": id_of(claim, disk.id, holder.machine),
        "region": disk.region,
        "volume": disk.id,
        "instance": holder.machine,
        "device": holder.device,
    }
    return {key: value for key, value in found.items() if value}
