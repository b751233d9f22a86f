"""Attachments: a disk on a machine, for one rank.

No cloud keeps texts for them. Where something can be written on disks, the disk says it, else the machine;
the text is written first, and holds only with the disk. Where there are names alone, a disk of ours on a
machine of ours is the attachment that is recorded: the state lets a volume have one holder at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address, NodeState, Record
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from providers.cloud import claims, marks
from providers.cloud.account import look_up, pauses
from providers.cloud.any.account import Account, At
from providers.cloud.any.nodes import Nodes
from providers.cloud.any.site import Disk, Machine, claim_key
from providers.cloud.any.volumes import Volumes
from providers.cloud.claims import id_of, is_of, parse, text_of, thing_of, volume_of
from providers.cloud.hosts import OnNode
from providers.cloud.volume_checks import gone


class Attachments:
    """The attachments of one account."""

    def __init__(self, account: Account, volumes: Volumes, nodes: Nodes) -> None:
        self._account = account
        self._volumes = volumes
        self._nodes = nodes

    def things(self, disks: Iterable[Disk], machines: Iterable[Machine]) -> list[Thing]:
        """All that hold, given all disks and machines of ours. Without texts there are none to be listed."""
        alive = {machine.id: machine for machine in machines}
        out: list[Thing] = []
        for disk in disks:
            for machine in (alive[made] for made in disk.on if made in alive):
                claim = _claim(disk, machine)
                if claim:
                    out.append(thing_of(claim, _outputs(claim, disk, machine)))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        volume = volume_of(address)
        disks = [d for d in self._volumes.listed() if d.written.address == Address("volume", volume)]
        for disk in disks:
            at = self._account.at(disk.region)
            machines = at.machines() if disk.on else []
            if not at.site.keeps:
                on = next((m for m in machines if m.id in disk.on), None)
                claim = {"address": str(address), "token": token, "inputs": {}}
                return thing_of(claim, _outputs(claim, disk, on), known=False) if on else None
            for thing in self.things([disk], machines):
                if (thing.address, thing.token) == (address, token):
                    return thing
        return None

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | None]:
        """See `provider.Recalls`: None is for a disk that is there, and not on its machine."""
        out: dict[Address, Thing | None] = {}
        for record in records:
            place = self._place(record)
            disk = next((d for d in place[0].disks() if d.id == place[1]), None) if place else None
            if place and disk:
                out[record.address] = marks.again(record) if place[2] in disk.on else None
        return out

    def on_node(self, have: Record) -> OnNode | None:
        """See `provider.Attachments`. Where no link names the disk, it is known by its id or its name."""
        held = self._held(have)
        if held is None:
            return None
        at, disk, machine = held
        if machine.state is not NodeState.READY or disk.busy:
            return None
        node = self._nodes.thing(machine)
        plain = disk.id.replace("-", "")
        return OnNode(
            id=disk.id,
            node=Record(
                address=node.address,
                backend=self._account.config.backend,
                inputs=node.inputs,
                outputs=node.outputs,
            ),
            size=disk.size,
            ours=VOLUME_ID not in (disk.written.inputs or {}),
            taken=self._nodes.was_ready(at, machine),
            serials=() if disk.device else tuple(dict.fromkeys((disk.id[:20], plain[:20], disk.name))),
            links=(disk.device,) if disk.device else (),
        )

    def _held(self, have: Record) -> tuple[At, Disk, Machine] | None:
        """The disk of a volume or of this very attachment, and the machine that has it; None if none has."""
        found: Disk | None
        if have.address.kind == "volume":
            at, found = self._volumes.of(have)
            on = found.on if found else ()
        else:
            place = self._place(have)
            if place is None:
                return None
            at, made, holder = place
            found = next((d for d in at.disks() if d.id == made and holder in d.on), None)
            on = (holder,)
        machine = next((m for m in at.machines() if m.id in on), None) if found else None
        if found is None or machine is None:
            return None
        if have.address.kind != "volume" and at.site.keeps:
            claim = _claim(found, machine)
            if claim is None or not is_of(have, claim, found.id, machine.id):
                return None
        return at, found, machine

    # ------------------------------------------------------------------------------------- create

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. It ends when the machine has the disk."""
        disk_of, node, claim = claims.asked(address, token, inputs, needs)
        asked = False
        summary = f"{address}: {disk_of.outputs['id']} is not on {node.outputs['id']} yet"
        for _ in pauses(summary, str(disk_of.address)):
            look = partial(self._pair, disk_of, node)
            at, disk, machine = look_up(look) if asked else look()
            if _holds(at, disk, machine, claim):
                if not disk.busy:
                    return _outputs(claim, disk, machine)
            elif not disk.on and not disk.busy:
                try:
                    _put(at, disk, machine, claim)
                except PermanentError:
                    # It may be refused for what an earlier try asked for, and what came since the look.
                    if not _holds(*look_up(look), claim):
                        raise
                asked = True
        raise AssertionError("pauses end with a fault")

    def _pair(self, volume: Record, node: Record) -> tuple[At, Disk, Machine]:
        at, disk = self._volumes.of(volume)
        machines = {machine.id: machine for machine in at.machines()}
        machine = machines.get(str(node.outputs["id"]))
        if disk is None or machine is None:
            raise gone(volume.address if disk is None else node.address)
        if disk.broken:
            summary = f"{disk.id} is damaged: {disk.broken}"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(volume.address))
        return at, disk, machine

    # ------------------------------------------------------------------------------------- delete

    def delete(self, have: Record, *, wait: bool = True) -> None:
        """See the port. It ends when the volume is free. Nothing is done for one that another holds now."""
        place = self._place(have)
        if place is None:
            return
        at, made, holder = place
        for _ in pauses(f"{have.address}: {made} is not off {holder} yet", str(have.address)):
            disk = next((d for d in at.disks() if d.id == made), None)
            machine = next((m for m in at.machines() if m.id == holder), None)
            if disk is None or machine is None:
                return  # its end is that of its attachments
            claim = _claim(disk, machine)
            if at.site.keeps and (claim is None or not is_of(have, claim, made, holder)):
                return
            if holder not in disk.on:
                if not disk.busy:
                    _say(at, disk, machine, None)
                    return
            elif not disk.busy:
                _detach(at, disk, machine)
            if not wait:
                return

    def _place(self, have: Record) -> tuple[At, str, str] | None:
        """Where a recorded attachment is: the site, the disk's id, the machine's."""
        keys = [have.outputs.get(key) for key in ("region", "volume", "machine")]
        if all(isinstance(key, str) and key for key in keys):
            return self._account.at(keys[0]), str(keys[1]), str(keys[2])
        if have.outputs.get("id"):
            return None
        volume = volume_of(have.address)
        for disk in (d for d in self._volumes.listed() if d.written.address == Address("volume", volume)):
            at = self._account.at(disk.region)
            for thing in self.things([disk], at.machines()):
                if thing.address == have.address:
                    return at, disk.id, str(thing.outputs["machine"])
        return None


def _holds(at: At, disk: Disk, machine: Machine, claim: Mapping[str, Any]) -> bool:
    """Whether the machine has the disk for this claim; a fault if somebody else has it."""
    theirs = _claim(disk, machine) if machine.id in disk.on else None
    if machine.id in disk.on and (not at.site.keeps or (theirs and theirs["token"] == claim["token"])):
        return True
    alive = {m.id: m for m in at.machines()}
    holder = next(iter(disk.on), None)
    if holder is None:
        return False
    if holder in alive:
        theirs = _claim(disk, alive[holder])
    raise claims.held(str(disk.written.address), theirs, holder)


def _put(at: At, disk: Disk, machine: Machine, claim: Mapping[str, Any]) -> None:
    """Ask for it once. What became of it, the next look says."""
    _say(at, disk, machine, text_of(claim))
    try:
        at.site.attach(disk, machine)
    except ProviderError as error:
        if not isinstance(error, TransientError) or error.kind is not TransientKind.BUSY:
            raise


def _detach(at: At, disk: Disk, machine: Machine) -> None:
    try:
        at.site.detach(disk, machine)
    except TransientError as error:
        if error.kind is not TransientKind.BUSY:
            raise
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            raise


def _say(at: At, disk: Disk, machine: Machine, claim: str | None) -> None:
    """Write a claim, or take it away: on the disk, if there is room for texts, else on the machine."""
    on_disk = "disk" in at.site.keeps
    thing: Disk | Machine = disk if on_disk else machine
    key = claim_key(machine.id) if on_disk else claim_key(disk.id)
    if at.site.keeps and thing.written.texts.get(key) != claim:
        old = [k for k in thing.written.texts if on_disk and k.startswith("on-") and k != key]
        at.site.write(thing, {**dict.fromkeys(old), key: claim})


def _claim(disk: Disk, machine: Machine) -> Mapping[str, Any] | None:
    """What is written of a disk on a machine; None if nothing is."""
    text = disk.written.texts.get(claim_key(machine.id)) or machine.written.texts.get(claim_key(disk.id))
    return None if text is None else parse(text, disk.id)


def _outputs(claim: Mapping[str, Any], disk: Disk, machine: Machine) -> dict[str, Any]:
    found = {
        "id": id_of(claim, disk.id, machine.id),
        "region": disk.region,
        "volume": disk.id,
        "machine": machine.id,
        "device": disk.device,
    }
    return {key: value for key, value in found.items() if value}
