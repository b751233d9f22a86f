"""Claims in a host's state folder: whose node the host is, and the volumes on its disk.

A host is one node of one state at a time: two states that do not know of each other would use its blocks
twice. If two states shall share a host, each needs a state folder of its own (`options.root`).

Volumes are folders that outlive nodes. The host must have the space of a `size` free when a volume is made or
grows. A folder has no limit of its own, so others may use that space later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from declarative.model.inputs import VolumeInputs, inputs_of
from declarative.model.state import Address, Record
from declarative.model.text import show_mib
from declarative.provider import PermanentError, PermanentKind, Thing
from providers.ownership import (
    FORMAT,
    NOT_OWNED,
    VANISHED,
    Owned,
    check_update,
    key_of,
    lost,
    owned,
    size_mib,
)
from providers.runner import ANSWER_SECONDS, RunnerError, counted
from providers.ssh import scripts
from providers.transport import ConnectionLost

if TYPE_CHECKING:
    from providers.ssh.transport import SshTransport

FIXED = ("backend", "region", "zone")
"""Fields of a volume that cannot change in place."""
ERASE_SECONDS = 600.0
"""The folder of a node or a volume may hold much."""
_KIB = 1024
_CLAIM = "claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Owned):
    """The claim that one create wrote on a host: a node, a volume, or the attachment of a volume."""

    outputs: Mapping[str, Any]

    @property
    def thing(self) -> Thing:
        """The thing as the port has it."""
        return Thing(address=self.address, token=self.token, inputs=self.inputs, outputs=self.outputs)

    def text(self) -> bytes:
        """The content of its file."""
        return f"{self.key}\n{self.json(outputs=self.outputs)}\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """The claims in a volume's folder: the volume, and the attachment that holds it, if any."""

    claim: Claim
    held: Claim | None
    lost: str | None = None
    """How its content vanished: `Thing.lost`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClaims:
    """The node and the volumes of a host. Of all owners."""

    node: Claim | None
    volumes: tuple[Volume, ...]

    def of(self, owner: str) -> Iterable[Claim]:
        """The nodes, volumes and attachments of an owner."""
        both = (claim for v in self.volumes for claim in (v.claim, v.held))
        return (claim for claim in (self.node, *both) if claim and claim.owner == owner)

    def things(self, owner: str) -> tuple[Thing, ...]:
        """The things as the port has them, each once."""
        mine = {(claim.address, claim.token): claim.thing for claim in self.of(owner)}
        for volume in self.volumes:
            key = volume.claim.address, volume.claim.token
            if volume.lost and volume.claim.owner == owner:
                mine[key] = replace(mine[key], lost=volume.lost)
        return tuple(mine.values())


class Claims:
    """The claim of one host: whose node it is."""

    def __init__(self, transport: SshTransport, root: str | None, owner: str) -> None:
        """`owner` is who asks."""
        self._transport = transport
        self._root = root
        self._owner = owner

    def read(self) -> Claim | None:
        """The claim on the host; None if it is free."""
        return self._ask("@show")

    def take(self, claim: Claim) -> Claim:
        """Claim the host if it is free; the claim that holds then."""
        text = claim.text()
        holder = self._ask("@claim", claim.key, str(len(text)), stdin=text)
        if holder is None:
            raise ConnectionLost(f"{self._transport.host} was taken and given back meanwhile")
        return holder

    def change(self, claim: Claim, key: str | None = None) -> None:
        """Replace the claim with that key (by default: the same key) by this one."""
        text = claim.text()
        self._ask("@change", key or claim.key, str(len(text)), stdin=text)

    def release(self, key: str) -> None:
        """Give the host back, and remove the folder of the node. Nothing happens to another's claim."""
        if scripts.LEFT in self._run("@release", key, seconds=ERASE_SECONDS):
            self._transport.forget()

    def tidy(self, key: str, attempts: Sequence[str]) -> None:
        """Remove those of these attempts that have ended, with their folders."""
        self._run("@tidy", key, *attempts, seconds=ERASE_SECONDS)

    def taken(self, have: Claim) -> PermanentError:
        """The fault for a host that somebody else has."""
        if have.owner != self._owner:
            summary = f"{self._transport.host} is {have.address} of another state (lineage {have.owner})"
            hint = (
                "destroy it there; or, if both shall use the host without knowing of each other, "
                "give this backend another `options.root`"
            )
        else:
            summary = f"{self._transport.host} is {have.address} already"
            hint = "is one host declared under two names? else delete that node first"
        return PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def _run(self, verb: str, *arguments: str, stdin: bytes = b"", seconds: float = ANSWER_SECONDS) -> bytes:
        entered = scripts.enter(self._transport, self._root)
        env = scripts.writer(self._transport, self._owner)
        argv = ("env", *env, "sh", entered.script, verb, entered.root, *arguments)
        try:
            return scripts.ask(self._transport, argv, stdin, seconds)
        except RunnerError:
            now = scripts.enter_if_there(self._transport, self._root)
            if now and now.root == entered.root:
                raise
            # Another project removed the folder with its last thing, and the script with it; or it was moved.
            raise ConnectionLost(f"the state folder of {self._transport.host} was taken away") from None

    def _ask(self, verb: str, *arguments: str, stdin: bytes = b"") -> Claim | None:
        answer = self._run(verb, *arguments, stdin=stdin)
        text = counted(b"FLEETFORM-CLAIM ", answer, f"the claim of {self._transport.host}")
        return _parsed(text, self._transport, self._root, _CLAIM) if text else None


class Volumes:
    """The volumes of one host, as one owner may use them."""

    def __init__(self, transport: SshTransport, root: str | None, owner: str) -> None:
        self._transport = transport
        self._root = root
        self._owner = owner

    def look(self) -> HostClaims:
        """All that is on the host, in one round trip."""
        return self._ask("show")

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], volume: VolumeInputs
    ) -> Mapping[str, Any]:
        """Make a volume, or find what an earlier call with this token made."""
        key = key_of(token)
        path = f"{scripts.enter(self._transport, self._root).root}/volumes/{key}/data"
        outputs = {"id": f"{address}.{key}", "path": path}
        claim = Claim(owner=self._owner, address=address, token=token, inputs=inputs, outputs=outputs)
        return self._write("make", claim, size_mib(volume), volume)

    def update(self, have: Record, inputs: Mapping[str, Any], volume: VolumeInputs) -> Mapping[str, Any]:
        """Write the new inputs; the host must have the space that a larger `size` adds."""
        claim = self._own(have).claim
        before = inputs_of("volume", claim.inputs)
        check_update(have.address, FIXED, before, volume)
        return self._write(
            "change", replace(claim, inputs=inputs), size_mib(volume) - size_mib(before), volume
        )

    def _write(self, verb: str, claim: Claim, more_mib: int, volume: VolumeInputs) -> Mapping[str, Any]:
        text = claim.text()
        try:
            written = self._one(verb, claim.key, str(len(text)), str(more_mib * _KIB), stdin=text)
        except RunnerError as error:
            if error.code != "room":
                raise
            free = show_mib(int(error.text) // _KIB)
            summary = f"{self._transport.host} has {free} free, {claim.address} is to have {volume.size}"
            hint = "make room on the host, or ask for a smaller `size`"
            about = str(claim.address)
            raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=about, hint=hint) from error
        return written.claim.outputs

    def delete(self, have: Record) -> None:
        """Remove a volume of this owner with its data; `PermanentError` if it is attached."""
        key = id_on_host(have, "volume")
        volume = self._find(key)
        if volume and volume.claim.owner != self._owner:
            return
        if volume and volume.held:
            raise _holder_fault(have.address, volume.held, "detach it first")
        self._ask("remove", key, seconds=ERASE_SECONDS)

    def attach(
        self, address: Address, token: str, inputs: Mapping[str, Any], volume: Record, node: str
    ) -> Mapping[str, Any]:
        """Attach a volume to the node with that id for a rank, or find that this token attached it."""
        self._own(volume)
        outputs = {
            "id": f"{address}.{key_of(token)}",
            "path": self.path(volume),
            "host": volume.volume.host,
        }
        claim = Claim(owner=self._owner, address=address, token=token, inputs=inputs, outputs=outputs)
        text = f"{node} {claim.key}\n".encode() + claim.text()
        key = id_on_host(volume, "volume")
        have = self._one("hold", key, str(len(text)), node, claim.key, stdin=text).held
        if have is None:
            raise ConnectionLost(f"{volume.address} was taken and given back meanwhile")
        if have.key != claim.key:
            hint = "a volume has one holder at a time: wait for it to end, or stop it"
            raise _holder_fault(volume.address, have, hint)
        return have.outputs

    def path(self, volume: Record) -> str:
        """The present folder of a volume's data: the state folder may have moved since it was recorded."""
        root = scripts.enter(self._transport, self._root).root
        return f"{root}/volumes/{id_on_host(volume, 'volume')}/data"

    def detach(self, have: Record) -> None:
        """Detach a volume; nothing happens if another attachment holds it, or none."""
        holder = str(have.outputs.get("id", "")).rpartition(".")[2]
        volume = str(have.outputs.get("path", "")).removesuffix("/data").rpartition("/")[2]
        if _is_key(holder) and _is_key(volume):
            self._ask("drop", volume, holder)

    def ready(self, node: str, volumes: Iterable[Record]) -> None:
        """Refuse volumes that are gone, have lost their data, or are not on the host of that node."""
        for volume in volumes:
            try:
                self._ask("ready", node, id_on_host(volume, "volume"))
            except RunnerError as error:
                if error.code not in {"lost", "elsewhere"}:
                    raise
                kind = PermanentKind.NOT_FOUND if error.code == "lost" else PermanentKind.INVALID
                about = str(volume.address)
                raise PermanentError(kind, f"{about}: {error.text}", about=about) from error

    def _find(self, key: str) -> Volume | None:
        return next((volume for volume in self.look().volumes if volume.claim.key == key), None)

    def _own(self, volume: Record) -> Volume:
        on_host = self._find(id_on_host(volume, "volume"))
        if on_host is None or on_host.claim.owner != self._owner:
            summary = f"{volume.address} is not there"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(volume.address))
        return on_host

    def _one(self, verb: str, key: str, *arguments: str, stdin: bytes) -> Volume:
        volumes = self._ask(verb, key, *arguments, stdin=stdin).volumes
        if not volumes:
            raise ConnectionLost(f"the volume {key} on {self._transport.host} was removed meanwhile")
        return volumes[0]

    def _ask(
        self, verb: str, *arguments: str, stdin: bytes = b"", seconds: float = ANSWER_SECONDS
    ) -> HostClaims:
        entered = scripts.enter_if_there(self._transport, self._root)
        if entered is None:
            if verb in {"change", "hold", "ready"}:
                raise RunnerError("lost", "it is not there")
            return HostClaims(node=None, volumes=())
        env = scripts.writer(self._transport, self._owner)
        arguments = (verb, self._root or "", *arguments)  # it finds the folder itself: it may have been moved
        answer = scripts.inline(self._transport, "volume.sh", arguments, stdin, seconds, env=env)
        if scripts.LEFT in answer:
            self._transport.forget()
        return claims_in(answer, self._transport, self._root)


def claims_in(answer: bytes, transport: SshTransport, root: str | None) -> HostClaims:
    """The claims in an answer of `volume.sh`."""
    answer = answer.partition(b"FLEETFORM-VOLUMES\n")[2]
    node: Claim | None = None
    volumes: list[Volume] = []
    while not answer.startswith(b"FLEETFORM-END"):
        head, _, answer = answer.partition(b"\n")
        name, *sizes = head.decode(errors="replace").split(" ", 4)
        sizes, vanished = sizes[:2], sizes[2:]
        if len(sizes) != 2 or not all(size.isdecimal() for size in sizes):
            raise ConnectionLost(f"what is on {transport.host} did not come whole")
        first, second = map(int, sizes)
        text, holder_text, answer = answer[:first], answer[first : first + second], answer[first + second :]
        if name == _CLAIM:
            node = _parsed(text, transport, root, _CLAIM)
            continue
        claim = _parsed(text, transport, root, f"volumes/{name}/volume")
        holder = holder_text.partition(b"\n")[2]  # the first line is for scripts
        by = _parsed(holder, transport, root, f"volumes/{name}/held") if holder_text else None
        volumes.append(Volume(claim=claim, held=by, lost=_lost(vanished)))
    return HostClaims(node=node, volumes=tuple(volumes))


def _lost(vanished: Sequence[str]) -> str | None:
    """What `show` in `volume.sh` says of a volume whose content vanished: a word and a folder."""
    if len(vanished) != 2 or vanished[0] not in VANISHED:
        return None
    how, folder = vanished
    return lost(how, f"{folder}/data", f"{folder}/")


def id_on_host(record: Record, kind: str) -> str:
    """The id that a recorded node or volume has on its host."""
    key = str(record.outputs.get("id", "")).rpartition(".")[2]
    if record.address.kind != kind or not _is_key(key):
        raise PermanentError(
            PermanentKind.NOT_FOUND, f"{record.address} is not a {kind} of a host", about="id"
        )
    return key


def _is_key(text: str) -> bool:
    return len(text) == 16 and text.isalnum()


def _holder_fault(volume: Address, by: Claim, hint: str) -> PermanentError:
    summary = f"{volume} is held by {by.address}, on node/{by.inputs.get('node')}"
    return PermanentError(PermanentKind.CONFLICT, summary, about=str(volume), hint=hint)


def _parsed(text: bytes, transport: SshTransport, root: str | None, path: str) -> Claim:
    """The claim that `Claim.text` wrote to that path of the state folder; else `PermanentError`."""
    try:
        first, _, rest = text.decode().partition("\n")
        body = json.loads(rest)
        claim = Claim(**owned(body), outputs=dict(body["outputs"]))
        if body["format"] == FORMAT and first == claim.key:
            return claim
    except NOT_OWNED:
        pass
    folder = root or "its state folder"
    summary = f"the {path} of {transport.host} cannot be read: damaged, or of another version"
    hint = f"restore the file `{path}` in {folder} on it, or move it away if nothing there is needed"
    raise PermanentError(PermanentKind.INVALID, summary, about=transport.host.hostname, hint=hint)
