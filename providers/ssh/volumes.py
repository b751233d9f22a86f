"""Volumes on one host's disk: folders that outlive nodes, and who holds them.

A `size` is a promise: there has to be so much free when a volume is made or grows. A folder has no limit of
its own, so nobody keeps others from using that room later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from declarative.inputs import VolumeInputs, inputs_of
from declarative.provider import PermanentError, PermanentKind, Thing
from declarative.spec.values import show_mib
from declarative.state import Address, Record
from providers.ownership import check_update, key_of, size_mib
from providers.runner import ANSWER_SECONDS, RunnerError
from providers.ssh import scripts
from providers.ssh.claims import ERASE_SECONDS, Claim, damaged, parsed
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost

FIXED = ("backend", "region", "zone")
"""What a volume was made as: it is made anew to change it."""
_KIB = 1024
_CLAIM = "claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What stands in a volume's folder."""

    claim: Claim
    """The volume itself: what it was made with."""
    held: Claim | None
    """The attachment that holds it, if one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is on a host: whose node it is, and the volumes on its disk. Of all owners."""

    node: Claim | None
    volumes: tuple[Volume, ...]

    def of(self, owner: str) -> Iterable[Claim]:
        """The nodes, volumes and attachments of an owner."""
        both = (claim for v in self.volumes for claim in (v.claim, v.held))
        return (claim for claim in (self.node, *both) if claim and claim.owner == owner)

    def things(self, owner: str) -> tuple[Thing, ...]:
        """As the port has them, each once."""
        mine = {(claim.address, claim.token): claim.thing for claim in self.of(owner)}
        return tuple(mine.values())


class Volumes:
    """The volumes of one host, seen with the eyes of one owner."""

    def __init__(self, transport: SshTransport, root: str | None, owner: str) -> None:
        self._transport = transport
        self._root = root
        self._owner = owner

    def look(self) -> Found:
        """All that is on the host, in one round trip."""
        return self._ask("show")

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], asked: VolumeInputs
    ) -> Mapping[str, Any]:
        """Make a volume, or find what an earlier call with this token made."""
        key = key_of(token)
        path = f"{scripts.enter(self._transport, self._root).root}/volumes/{key}/data"
        claim = self._claim(address, token, inputs, {"id": f"{address}.{key}", "path": path})
        text = claim.text()
        with_room = str(size_mib(asked) * _KIB)
        try:
            made = self._one("make", key, str(len(text)), with_room, stdin=text).claim
        except RunnerError as error:
            raise self._short_of(error, address, asked) from error
        return made.outputs

    def update(self, have: Record, inputs: Mapping[str, Any], asked: VolumeInputs) -> Mapping[str, Any]:
        """Write new inputs down; a `size` that grew has to be there."""
        key = volume_key(have)
        was = self._own(have).claim
        before = inputs_of("volume", was.inputs)
        check_update(have.address, FIXED, before, asked)
        text = replace(was, inputs=inputs).text()
        more = str((size_mib(asked) - size_mib(before)) * _KIB)
        try:
            return self._one("change", key, str(len(text)), more, stdin=text).claim.outputs
        except RunnerError as error:
            raise self._short_of(error, have.address, asked) from error

    def delete(self, have: Record) -> None:
        """Remove a volume with its data; one that is attached is refused, and what is not ours is left."""
        key = volume_key(have)
        found = next((v for v in self.look().volumes if v.claim.key == key), None)
        if found and found.claim.owner != self._owner:
            return
        if found and found.held:
            raise _held(have.address, found.held, "detach it first")
        self._ask("remove", key, seconds=ERASE_SECONDS)

    def attach(
        self, address: Address, token: str, inputs: Mapping[str, Any], volume: Record, node: str
    ) -> Mapping[str, Any]:
        """Take a volume for a rank on the node with that id, or find that it was taken with this token."""
        self._own(volume)
        outputs = {
            "id": f"{address}.{key_of(token)}",
            "path": volume.outputs["path"],
            "host": volume.volume.host,
        }
        claim = self._claim(address, token, inputs, outputs)
        text = f"{node} {claim.key}\n".encode() + claim.text()
        have = self._one("hold", volume_key(volume), str(len(text)), node, claim.key, stdin=text).held
        if have is None:
            raise ConnectionLost(f"{volume.address} was taken and given back meanwhile")
        if have.key != claim.key:
            raise _held(
                volume.address, have, "a volume has one holder at a time: wait for it to end, or stop it"
            )
        return have.outputs

    def detach(self, have: Record) -> None:
        """Let go of a volume; nothing happens if another attachment holds it, or none."""
        holder = str(have.outputs.get("id", "")).rpartition(".")[2]
        volume = str(have.outputs.get("path", "")).removesuffix("/data").rpartition("/")[2]
        if _is_key(holder) and _is_key(volume):
            self._ask("drop", volume, holder)

    def ready(self, node: str, volumes: Iterable[Record]) -> None:
        """Refuse volumes that are gone, have lost their data, or are not on the host of that node."""
        for volume in volumes:
            try:
                self._ask("ready", node, volume_key(volume))
            except RunnerError as error:
                if error.code not in {"lost", "elsewhere"}:
                    raise
                kind = PermanentKind.NOT_FOUND if error.code == "lost" else PermanentKind.INVALID
                raise PermanentError(
                    kind, f"{volume.address}: {error.text}", about=str(volume.address)
                ) from error

    def _claim(
        self, address: Address, token: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Claim:
        return Claim(owner=self._owner, address=address, token=token, inputs=inputs, outputs=outputs)

    def _own(self, volume: Record) -> Volume:
        key = volume_key(volume)
        found = next((v for v in self.look().volumes if v.claim.key == key), None)
        if found is None or found.claim.owner != self._owner:
            summary = f"{volume.address} is not there"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(volume.address))
        return found

    def _short_of(self, error: RunnerError, address: Address, asked: VolumeInputs) -> Exception:
        if error.code != "room":
            return error
        free = show_mib(int(error.text) // _KIB)
        summary = f"{self._transport.host} has {free} free, {address} is to have {asked.size}"
        hint = "make room on the host, or ask for a smaller `size`"
        return PermanentError(PermanentKind.NO_CAPACITY, summary, about=str(address), hint=hint)

    def _one(self, verb: str, key: str, *arguments: str, stdin: bytes) -> Volume:
        found = self._ask(verb, key, *arguments, stdin=stdin).volumes
        if not found:
            raise ConnectionLost(f"the volume {key} on {self._transport.host} was removed meanwhile")
        return found[0]

    def _ask(self, verb: str, *arguments: str, stdin: bytes = b"", seconds: float = ANSWER_SECONDS) -> Found:
        if verb == "make":
            entered = scripts.enter(self._transport, self._root)
        elif (there := scripts.enter_if_there(self._transport, self._root)) is not None:
            entered = there
        elif verb in ("change", "hold", "ready"):
            raise RunnerError("lost", "it is not there")
        else:
            return Found(node=None, volumes=())
        env = scripts.numbered(self._transport, self._owner)
        arguments = (verb, entered.root, *arguments)
        said = scripts.inline(self._transport, "volume.sh", arguments, stdin, seconds, env=env)
        if scripts.LEFT in said:
            self._transport.forget()
        return self.found(said)

    def found(self, said: bytes) -> Found:
        """What an answer of `volume.sh` tells of."""
        said = said.partition(b"FLEETFORM-VOLUMES\n")[2]
        node: Claim | None = None
        volumes: list[Volume] = []
        while not said.startswith(b"FLEETFORM-END"):
            head, _, said = said.partition(b"\n")
            name, *sizes = head.decode(errors="replace").split(" ")
            if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
                raise ConnectionLost(f"what is on {self._transport.host} did not come whole")
            first, second = (int(size) for size in sizes)
            about, held, said = said[:first], said[first : first + second], said[first + second :]
            claim = parsed(about)
            if claim is None:
                raise damaged(
                    self._transport, self._root, name if name == _CLAIM else f"volumes/{name}/volume"
                )
            if name == _CLAIM:
                node = claim
                continue
            holder = parsed(held.partition(b"\n")[2]) if held else None
            if held and holder is None:
                raise damaged(self._transport, self._root, f"volumes/{name}/held")
            volumes.append(Volume(claim=claim, held=holder))
        return Found(node=node, volumes=tuple(volumes))


def volume_key(volume: Record) -> str:
    """The id of a recorded volume on its host."""
    key = str(volume.outputs.get("id", "")).rpartition(".")[2]
    if volume.address.kind != "volume" or not _is_key(key):
        raise PermanentError(PermanentKind.NOT_FOUND, f"{volume.address} is no volume of a host", about="id")
    return key


def _is_key(text: str) -> bool:
    return len(text) == 16 and text.isalnum()


def _held(volume: Address, by: Claim, hint: str) -> PermanentError:
    summary = f"{volume} is held by {by.address}, on node/{by.inputs.get('node')}"
    return PermanentError(PermanentKind.CONFLICT, summary, about=str(volume), hint=hint)
