"""A task's files on a host: sent once, however many ranks there use them, and unpacked for each attempt."""

from __future__ import annotations

import threading
from collections import defaultdict

from declarative.provider import Bundle, TransientError, TransientKind
from providers.runner import ANSWER_SECONDS
from providers.ssh import scripts
from providers.ssh.host import Host
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost

UNPACK_SECONDS = 600.0
SLOWEST = 100_000
"""Bytes a second, below which a way to a host is none. One that is cut is noticed long before."""
TRIES = 3
"""Another command on the same host may clear away what was just put there."""

_turns: dict[tuple[Host, str], threading.Lock] = defaultdict(threading.Lock)
_turns_turn = threading.Lock()


def place(transport: SshTransport, root: str, node: str, attempt: str, files: Bundle) -> None:
    """Make the attempt's folder, with the files in it, on a node's host; `root` is the state folder there."""
    for _ in range(TRIES):
        if _placed(transport, root, node, attempt, files.digest):
            return
        with _turn(transport.host, files.digest):
            # Whoever waited here finds that they are there by now.
            if not _placed(transport, root, node, attempt, files.digest):
                _put(transport, root, node, files)
    if not _placed(transport, root, node, attempt, files.digest):
        summary = f"the files of {attempt} did not stay on {transport.host}"
        raise TransientError(TransientKind.BUSY, summary, about=attempt)


def _turn(host: Host, digest: str) -> threading.Lock:
    with _turns_turn:
        return _turns[host, digest]


def _placed(transport: SshTransport, root: str, node: str, attempt: str, digest: str) -> bool:
    arguments = ("place", root, node, digest, attempt)
    said = scripts.inline(transport, "files.sh", arguments, seconds=UNPACK_SECONDS)
    if b"FLEETFORM-FILES missing" in said:
        return False
    if b"FLEETFORM-FILES placed" not in said:
        raise ConnectionLost(f"{transport.host} did not say whether it has the files")
    return True


def _put(transport: SshTransport, root: str, node: str, files: Bundle) -> None:
    with files.open() as archive:
        arguments = ("put", root, node, files.digest, str(archive.size), archive.sha256)
        seconds = ANSWER_SECONDS + UNPACK_SECONDS + archive.size / SLOWEST
        scripts.inline(transport, "files.sh", arguments, archive.source, seconds=seconds)
