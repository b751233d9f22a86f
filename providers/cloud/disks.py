"""Volumes on a node: found, formatted if they are empty, mounted, grown, and unmounted again.

`disk.sh` does it there, as root: sent along where root logs in, else the node's own, by sudo (see
`cloud_init`). What it takes for a volume's disk is what says of itself that it is. Nothing is formatted but
what is empty as far as anybody can tell.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from declarative.state import Record
from providers.cloud import cloud_init
from providers.cloud.hosts import Hosts
from providers.faults import guarded
from providers.runner import ANSWER_SECONDS, RunnerError
from providers.ssh import scripts
from providers.ssh.transport import SshTransport

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
        """How the script is told."""
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
        said = self._mount(volume, disk, None)
        if int(said["bytes"]) < (disk.size or 0) * _GIB:
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
            said = scripts.ask(transport, (*_command(transport), *arguments), seconds=seconds)
        except RunnerError as error:
            raise _fault(error, disk, about, sudo=transport.host.user != "root") from None
        return dict(line.partition("=")[::2] for line in scripts.lines(said, "FLEETFORM-DISK 1"))


def _command(transport: SshTransport) -> Sequence[str]:
    if transport.host.user == "root":
        return ("sh", "-c", cloud_init.program(), "sh")
    return ("sudo", "-n", cloud_init.PROGRAM)


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
