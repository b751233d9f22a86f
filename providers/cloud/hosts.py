"""Nodes of a cloud as hosts, and the volumes on them: from the moment when they run, everything about them
is the driver `ssh`'s.

A recorded node becomes a record as that driver knows them, and its methods are given that. The host's
claim is taken when the node answers for the first time; by the machine's id, the same for every try.

Volumes on a node are found, formatted if they are empty, mounted, grown, and unmounted again. `disk.sh`
does it there, as root: sent along where root logs in, else the node's own, by sudo (see `keys`).
What it takes for a volume's disk is what says of itself that it is. Nothing is formatted but what is
empty as far as anybody can tell.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from declarative.model.record import dataclass
from declarative.model.spec.backend import Reach
from declarative.model.state import Record
from declarative.model.status import NodeState, Readiness
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud.keys import PROGRAM, Keys, program
from providers.faults import guarded
from providers.ownership import key_of
from providers.runner import ANSWER_SECONDS, RunnerError
from providers.ssh import Ssh, scripts
from providers.ssh.probe import unanswered
from providers.ssh.provider import AT_ONCE
from providers.ssh.transport import SshTransport

OPTIONS = ("ssh_config", "known_hosts", "connect_timeout", "root")
"""Options of the driver `ssh` that a cloud's backend has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a cloud says of a node. `taken`: it was ready once."""

    readiness: Readiness
    taken: bool
    public: str | None = None
    """The public address that it has now, an empty text if it has none; None if the cloud does not tell."""


class NoLoginError(PermanentError):
    """Nobody says how an instance that was adopted is logged in to."""


class Hosts:
    """The nodes of one backend as hosts."""

    def __init__(self, config: Config, keys: Keys, look: Callable[[Record], str | None]) -> None:
        """`keys` has the private key for them. `look` asks the cloud for `Seen.public` of a node."""
        options = {key: value for key, value in config.options.items() if key in OPTIONS}
        self.ssh = Ssh(replace(config, driver="ssh", options=options, hosts={}))
        self._reach = config.network.reach
        self._keys = keys
        self._user = config.ssh_user
        self._look = look
        self._public: dict[str, str] = {}

    @guarded
    def host(self, node: Record) -> Record:
        """The node as the driver `ssh` has it; `PermanentError` if it was not made to be reached."""
        made, key = str(node.outputs.get("id") or ""), node.outputs.get("host_key")
        if made and node.node.instance_id is not None:
            return self._of(node, made, self._adopted(node))
        if not made or not key:
            summary = f"{node.address} has no host key recorded: nobody can tell whether it is the one"
            hint = "delete it, and let it be made anew"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address), hint=hint)
        host = {
            "user": node.outputs.get("user"),
            "identity_file": str(self._keys.login().path),
            "host_keys": [key],
        }
        return self._of(node, made, host)

    def _adopted(self, node: Record) -> dict[str, Any]:
        """Nobody handed an adopted instance a key of ours: it is reached as a host of one's own is."""
        if not self._user:
            summary = f"{node.address} was adopted, and nobody says who logs in there"
            hint = (
                "write in its backend `ssh_user: NAME`, and `options: {identity_file: FILE}` unless the ssh "
                "agent has the key"
            )
            raise NoLoginError(PermanentKind.AUTH, summary, about="ssh_user", hint=hint)
        given = {"identity_file": str(self._keys.login().path)} if self._keys.given else {}
        return {"user": self._user, **given}

    def _of(self, node: Record, made: str, login: Mapping[str, Any]) -> Record:
        host = {
            **login,
            "hostname": self._way(node),
            "internal_ip": node.outputs.get("address"),
        }
        # What an instance type has by name is not all there to be used: of its memory the kernel keeps some.
        has = node.node.resources
        counted = {"cpu": has.cpu, "memory_mib": 0, "gpus": has.gpus}
        inputs: dict[str, Any] = {**node.inputs, "host": host, "resources": counted}
        return replace(node, inputs=inputs, outputs={**node.outputs, "id": f"{node.address}.{key_of(made)}"})

    def _way(self, node: Record) -> str:
        private = str(node.outputs.get("address") or "")
        if self._reach is Reach.PRIVATE:
            return private
        public = self._present(node)
        if self._reach is Reach.PUBLIC and not public:
            summary = f"{node.address} has no public address, and `network.reach` wants it"
            hint = "write `network: {reach: private}`, or `network: {public_ip: true}` and make the node anew"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.reach", hint=hint)
        return public or private

    def met(self, node: Record, public: str | None) -> None:
        """Note which public address a node has now."""
        if public is not None:
            self._public[str(node.outputs.get("id"))] = public

    def _present(self, node: Record) -> str:
        """The public address of a node: that of the record is another's once the machine was off."""
        made, recorded = str(node.outputs.get("id")), str(node.outputs.get("public_address") or "")
        if made not in self._public and recorded:
            try:
                self.met(node, self._look(node))
            except ProviderError:
                return recorded  # whoever is there has to have the host key
        return self._public.get(made, recorded)

    def readiness(
        self, nodes: Sequence[Record], taken: Mapping[str, bool], take: Callable[[Record], None]
    ) -> dict[str, Readiness]:
        """Whether nodes that run may take work.

        Args:
            nodes: Those that their cloud says are up.
            taken: By name, whether the node was ready once. Until then it is starting, whatever it says.
            take: Has the cloud remember that it was.
        """

        def one(node: Record) -> Readiness:
            try:
                host = self.host(node)
            except NoLoginError as error:
                reason = f"{error.summary}: {error.hint}"
                return Readiness(state=NodeState.UNKNOWN, reason=reason, observed_at=time.time())
            except PermanentError as error:
                return unanswered(error)
            adopted = node.node.instance_id is not None
            if not taken[node.address.name]:
                try:
                    # Its own, not the caller's: how it was made is written elsewhere.
                    way = host.node.host
                    self.ssh.take(node.address, str(node.outputs["id"]), {"host": way}, way)
                except ProviderError as error:
                    return unanswered(error) if adopted else _starting(unanswered(error))
            found = self.ssh.readiness([host])[node.address.name]
            if taken[node.address.name]:
                return found
            if found.state is not NodeState.READY:
                return found if adopted else _starting(found)
            take(node)
            return found

        if not nodes:
            return {}
        with ThreadPoolExecutor(min(AT_ONCE, len(nodes)), thread_name_prefix="hosts") as pool:
            return dict(zip([n.address.name for n in nodes], pool.map(one, nodes), strict=True))


def _starting(seen: Readiness) -> Readiness:
    """A node that was never ready may become it: whoever waits has a limit of their own."""
    return replace(seen, state=NodeState.PROVISIONING, reason=f"it is starting: {seen.reason}")


FORMAT_SECONDS = 600.0
"""For the filesystem of a large volume."""
NOWHERE = "-"
_GIB = 1024**3
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,127}", re.ASCII)
"""What may be looked for: a short text is the end of many links."""
_NAMES = uuid.UUID("5f0c5c0e-66e5-4a5e-9d53-0f1d3b1d2f6b")

_CODES: dict[str, tuple[PermanentKind, str | None]] = {
    "data": (
        PermanentKind.CONFLICT,
        "nothing is formatted that may be somebody's: empty it by hand, with zeros at its beginning",
    ),
    "kind": (
        PermanentKind.INVALID,
        "a volume has one filesystem, ext4 or xfs, on the whole disk, and can be written",
    ),
    "stranger": (PermanentKind.CONFLICT, "look at the node's disks: `lsblk -f`"),
    "tools": (PermanentKind.INVALID, "take an image that has it"),
}
"""What the script refuses for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """A volume's disk on the node that has it now.

    `serials`: what the disk says of itself; also how its link in `/dev/disk/by-id` ends, after `-` or `_`.
    `links`: the whole path of a link below `/dev/disk` that stands for this volume and no other.
    `names`: paths in `/dev` by which the cloud calls it. They prove nothing, and are tried last.
    """

    id: str
    """The volume's id in its cloud."""
    node: Record
    """The machine that has it, with its outputs."""
    size: int | None
    """In GiB, as the cloud has it; None if it does not say."""
    ours: bool
    """It was made empty for us."""
    taken: bool = True
    """The node was ready once. Before that nobody has mounted anything there."""
    serials: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """What its folder on the node is called."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", self.id[:100].lstrip("._-"))

    @property
    def words(self) -> list[str]:
        """The script's arguments for it."""
        return [
            *(f"serial:{text}" for text in self.serials if _WORD.fullmatch(text)),
            *(f"link:{path}" for path in self.links),
            *(f"name:{path}" for path in self.names),
        ]


class Disks:
    """The disks of nodes."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def mount(self, volume: Record, disk: OnNode, target: str | None = None) -> str:
        """See that the volume is mounted on its node, and as large as its disk; the folder there.

        `target`: where a rank is to see it. It is shown there to the whole node, if that path is free, for
        hosts that let a user mount nothing himself.
        """
        return self._mount(volume, disk, target)["folder"]

    def grow(self, volume: Record, disk: OnNode) -> None:
        """See that its filesystem has the size that its cloud says. BUSY as long as the node sees the old."""
        answer = self._mount(volume, disk, None)
        if int(answer["bytes"]) < (disk.size or 0) * _GIB:
            summary = f"{disk.node.address} does not see yet that {disk.id} has grown"
            raise TransientError(TransientKind.BUSY, summary, about=str(volume.address))

    def _mount(self, volume: Record, disk: OnNode, target: str | None) -> dict[str, str]:
        wanted = (
            str(uuid.uuid5(_NAMES, disk.id)),
            str((disk.size or 0) * _GIB),
            "yes" if disk.ours else "no",
        )
        arguments = (disk.folder, *wanted, target or NOWHERE, *disk.words)
        return self._ask(disk, str(volume.address), FORMAT_SECONDS, "mount", *arguments)

    def unmount(self, disk: OnNode, about: str) -> None:
        """See that nothing of it is mounted on its node."""
        self._ask(disk, about, ANSWER_SECONDS, "unmount", disk.folder)

    @guarded
    def _ask(self, disk: OnNode, about: str, seconds: float, *arguments: str) -> dict[str, str]:
        transport = self._hosts.ssh.transport(self._hosts.host(disk.node))
        try:
            adopted = disk.node.node.instance_id is not None
            command = _command(transport, adopted=adopted)
            answer = scripts.ask(transport, (*command, *arguments), seconds=seconds)
        except RunnerError as error:
            raise _fault(error, disk, about, sudo=transport.host.user != "root") from None
        return dict(line.partition("=")[::2] for line in scripts.lines(answer, "FLEETFORM-DISK 1"))


def _command(transport: SshTransport, *, adopted: bool) -> Sequence[str]:
    """No program of ours is on an adopted instance: it is sent along, and sudo has to let the user run it."""
    if transport.host.user == "root" or adopted:
        sudo = () if transport.host.user == "root" else ("sudo", "-n")
        return (*sudo, "sh", "-c", program(), "sh")
    return ("sudo", "-n", PROGRAM)


def _fault(error: RunnerError, disk: OnNode, about: str, *, sudo: bool) -> ProviderError:
    summary = f"{about} on {disk.node.address}: {error.text}"
    if error.code == "absent":
        summary = f"{disk.id} does not show on {disk.node.address} yet: {error.text}"
        return TransientError(TransientKind.BUSY, summary, about=about)
    if error.code == "busy":
        return TransientError(TransientKind.BUSY, summary, about=about)
    if error.code == "failed":  # not by the script's own word
        if not sudo:
            return TransientError(TransientKind.AMBIGUOUS, summary, about=about)
        hint = (
            "the node has to have sudo, and what its user data put there: take an image with cloud-init and "
            "sudo, or write `ssh_user: root`, and make the node anew"
        )
        return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
    kind, hint_of = _CODES.get(error.code, (PermanentKind.INVALID, None))
    return PermanentError(kind, summary, about=about, hint=hint_of)
