"""Nodes of a cloud as hosts, and the volumes on them. Once a node runs, the driver `ssh` does everything on
it.

A recorded node becomes a record in that driver's form, which is passed to its methods. The host is claimed
when the node answers for the first time, with the machine's id, which is the same for every try.

Volumes on a node are found, formatted if empty, mounted, grown and unmounted. `disk.sh` does this on the node
as root: it is sent along if root logs in; otherwise the node has a copy, which runs by sudo (see `keys`).
Only a disk that identifies itself as the volume's is used. Only a disk that is certainly empty is formatted.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from declarative.model.record import struct
from declarative.model.spec.backend import Reach
from declarative.model.state import Record
from declarative.model.status import NodeState, Readiness
from declarative.provider import (
    Config,
    NoKeyError,
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
"""Options of the driver `ssh` that a cloud's backend accepts."""


@struct(frozen=True, slots=True, kw_only=True)
class Seen:
    """A cloud's report on a node. `taken`: it was ready once."""

    readiness: Readiness
    taken: bool
    public: str | None = None
    """Its current public address; empty without one; None if the cloud does not report it."""


class NoLoginError(PermanentError):
    """The error for an adopted instance without a known login."""


class Hosts:
    """The nodes of one backend as hosts."""

    def __init__(self, config: Config, keys: Keys, look: Callable[[Record], str | None]) -> None:
        """`keys` has the private key for the nodes. `look` asks the cloud for `Seen.public` of a node."""
        options = {key: value for key, value in config.options.items() if key in OPTIONS}
        self.ssh = Ssh(replace(config, driver="ssh", options=options, hosts={}))
        self._reach = config.network.reach
        self._keys = keys
        self._user = config.ssh_user
        self._look = look
        self._public: dict[str, str] = {}

    @guarded
    def host(self, node: Record) -> Record:
        """The node in the form of the driver `ssh`; `PermanentError` if it was made without a way to reach
        it.
        """
        made, key = str(node.outputs.get("id") or ""), node.outputs.get("host_key")
        if made and node.node.instance_id is not None:
            return self._of(node, made, self._adopted(node))
        if not made or not key:
            summary = f"{node.address} has no recorded host key, so it cannot be identified"
            hint = "delete it, and let it be made anew"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address), hint=hint)
        host = {
            "user": node.outputs.get("user"),
            "identity_file": str(self._keys.login().path),
            "host_keys": [key],
        }
        return self._of(node, made, host)

    def _adopted(self, node: Record) -> dict[str, Any]:
        """An adopted instance has no key of ours: it is reached like a user's own host."""
        if not self._user:
            summary = f"{node.address} was adopted, and its login user is not declared"
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
        # A machine cannot use all that its type promises: the kernel keeps some of the memory.
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
            summary = f"{node.address} has no public address, and `network.reach` requires one"
            hint = "write `network: {reach: private}`, or `network: {public_ip: true}` and make the node anew"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.reach", hint=hint)
        return public or private

    def note_address(self, node: Record, public: str | None) -> None:
        """Remember a node's current public address."""
        if public is not None:
            self._public[str(node.outputs.get("id"))] = public

    def _present(self, node: Record) -> str:
        """A node's public address. After a stop, the recorded one may belong to another machine."""
        made, recorded = str(node.outputs.get("id")), str(node.outputs.get("public_address") or "")
        if made not in self._public and recorded:
            try:
                self.note_address(node, self._look(node))
            except ProviderError:
                return recorded  # whoever answers there must have the host key
        return self._public.get(made, recorded)

    def readiness(
        self, nodes: Sequence[Record], taken: Mapping[str, bool], take: Callable[[Record], None]
    ) -> dict[str, Readiness]:
        """Whether running nodes may take work.

        Args:
            nodes: Those that the cloud reports as running.
            taken: By name, whether the node was ready once. Until then it is starting, whatever it reports.
            take: Makes the cloud remember that it was.
        """

        def one(node: Record) -> Readiness:
            try:
                host = self.host(node)
            except NoLoginError as error:
                reason = f"{error.summary}: {error.hint}"
                return Readiness(state=NodeState.UNKNOWN, reason=reason, observed_at=time.time())
            except NoKeyError as error:
                return replace(unanswered(error), no_key=True)
            except PermanentError as error:
                return unanswered(error)
            adopted = node.node.instance_id is not None
            if not taken[node.address.name]:
                try:
                    # The node's own error, not the caller's.
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
    """A node that was never ready may still become it: whoever waits has their own limit."""
    return replace(seen, state=NodeState.PROVISIONING, reason=f"it is starting: {seen.reason}")


FORMAT_SECONDS = 600.0
"""Seconds for making the filesystem of a large volume."""
NOWHERE = "-"
_GIB = 1024**3
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,127}", re.ASCII)
"""Texts that may be searched for: a short one is the end of many links."""
_NAMES = uuid.UUID("5f0c5c0e-66e5-4a5e-9d53-0f1d3b1d2f6b")

_CODES: dict[str, tuple[PermanentKind, str | None]] = {
    "data": (
        PermanentKind.CONFLICT,
        "a disk that may hold data is not formatted: empty it by hand, with zeros at its beginning",
    ),
    "kind": (
        PermanentKind.INVALID,
        "a volume has one filesystem, ext4 or xfs, on the whole disk, and can be written",
    ),
    "stranger": (PermanentKind.CONFLICT, "look at the node's disks: `lsblk -f`"),
    "tools": (PermanentKind.INVALID, "take an image that has it"),
}
"""The script's permanent refusals."""


@struct(frozen=True, slots=True, kw_only=True)
class Holder:
    """A machine that has a disk or is getting it, and where it finds the disk: see `OnNode`."""

    machine: str
    device: str
    """The recorded device."""
    attached: bool
    """The machine can use it."""
    leaving: bool
    """It was asked to release the disk."""
    busy: bool = False
    """It was asked to release the disk but still uses it, and may keep it."""
    serials: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@struct(frozen=True, slots=True, kw_only=True)
class OnNode:
    """A volume's disk on the node that has it now.

    `serials`: what the disk reports itself; its link in `/dev/disk/by-id` ends with one, after `-` or `_`.
    `links`: the full path of a link below `/dev/disk` for exactly this volume. `names`: paths in `/dev` from
    the cloud. They prove nothing, and are tried last.
    """

    id: str
    """The volume's id in its cloud."""
    node: Record
    """The machine that has it, with its outputs."""
    size: int | None
    """In GiB, by the cloud; None if not reported."""
    ours: bool
    """It was made empty for us."""
    taken: bool = True
    """The node was ready once. Before, nobody has mounted anything there."""
    serials: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its folder on the node."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", self.id[:100].lstrip("._-"))

    @property
    def words(self) -> list[str]:
        """The script's arguments for the disk."""
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
        """Mount the volume on its node and grow it to the size of its disk; returns the folder there.

        `target`: the path for a rank. If it is free, the folder is also shown there to the whole node, for
        hosts that do not let a user mount anything.
        """
        return self._mount(volume, disk, target)["folder"]

    def grow(self, volume: Record, disk: OnNode) -> None:
        """Grow the filesystem to the size that the cloud reports. BUSY while the node sees the old size."""
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
        """Unmount the volume on its node."""
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
    """An adopted instance has no program of ours: it is sent along, and the user must be allowed to run it
    with sudo.
    """
    if transport.host.user == "root" or adopted:
        sudo = () if transport.host.user == "root" else ("sudo", "-n")
        return (*sudo, "sh", "-c", program(), "sh")
    return ("sudo", "-n", PROGRAM)


def _fault(error: RunnerError, disk: OnNode, about: str, *, sudo: bool) -> ProviderError:
    summary = f"{about} on {disk.node.address}: {error.text}"
    if error.code == "absent":
        summary = f"{disk.id} is not visible on {disk.node.address} yet: {error.text}"
        return TransientError(TransientKind.BUSY, summary, about=about)
    if error.code == "busy":
        return TransientError(TransientKind.BUSY, summary, about=about)
    if error.code == "failed":  # not trusting the script's own report
        if not sudo:
            return TransientError(TransientKind.AMBIGUOUS, summary, about=about)
        hint = (
            "the node needs sudo, and the program of its user data: take an image with cloud-init and "
            "sudo, or write `ssh_user: root`, and make the node anew"
        )
        return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
    kind, hint_of = _CODES.get(error.code, (PermanentKind.INVALID, None))
    return PermanentError(kind, summary, about=about, hint=hint_of)
