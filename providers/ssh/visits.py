"""A visit: how a node's host is, what is on it and what runs there, in one round trip; see `visit.sh`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from declarative.blocks import Shape
from declarative.provider import ProviderError, Visit
from declarative.state import RankStatus
from providers.ranks import launched
from providers.runner import RunnerError, attempts_in
from providers.ssh import probe, scripts
from providers.ssh.transport import SshTransport
from providers.ssh.volumes import Volumes
from providers.transport import ConnectionLost, Finished

T = TypeVar("T")

READS = 'eval "$(cat)"'
"""A shell that reads all of a script before it begins: it is too long for a command line."""


def visit(
    transport: SshTransport,
    root: str | None,
    owner: str,
    node: str,
    *,
    declared: Mapping[str, Any],
    recorded: Shape | None,
    attempts: Callable[[], Mapping[str, RankStatus]],
) -> Visit:
    """Visit a node.

    Args:
        transport: The way to its host.
        root: Its state folder, if not the usual one.
        owner: Whose things are told of.
        node: Its id there.
        declared: See `probe.judged`.
        recorded: The same.
        attempts: Asks for them alone, once the host has the runner; it lacks that of a new version.
    """
    parts: list[Finished] = []

    def read() -> probe.Facts:
        begun = time.time()
        parts[:] = _ask(transport, root, owner, node)
        return probe.facts_in(scripts.answer(transport.host, parts[0]), (begun + time.time()) / 2)

    found = probe.judged(read, declared, recorded, node)
    facts = found.facts
    if not facts:
        return Visit(readiness=found.readiness)
    volumes = Volumes(transport, root, owner)
    return Visit(
        readiness=found.readiness,
        things=_if_told(lambda: volumes.found(scripts.answer(transport.host, parts[2])).things(owner)),
        attempts=_if_told(lambda: _attempts(transport, root, parts[1], facts.cpus, attempts)),
    )


def _ask(transport: SshTransport, root: str | None, owner: str, node: str) -> list[Finished]:
    """What each part said, with its exit code."""
    mark = secrets.token_hex(8)
    env = scripts.numbered(transport, owner)
    argv = ("sh", "-c", READS, "sh", mark, root or "", node, *scripts.runner())
    said = scripts.ask(transport, ("env", *env, *argv) if env else argv, scripts.visit(), probe.SECONDS)
    first, *more = said.split(f"\n{mark} ".encode())
    parts = []
    for piece in more:
        code, _, following = piece.partition(b"\n")
        parts.append(Finished(int(code), first, b""))
        first = following
    if len(parts) != 3:
        raise ConnectionLost(f"the answer of {transport.host} did not come whole")
    return parts


def _attempts(
    transport: SshTransport,
    root: str | None,
    part: Finished,
    cpus: tuple[int, ...],
    ask: Callable[[], Mapping[str, RankStatus]],
) -> Mapping[str, RankStatus]:
    entered, have = scripts.entered_in(part.stdout)
    if not have:
        return ask()
    scripts.note(transport, root, replace(entered, cpus=cpus))
    return launched(attempts_in(scripts.answer(transport.host, part)))


def _if_told(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except RunnerError as error:
        if error.code == "stale":
            raise
        return None
    except (ProviderError, ConnectionLost):
        return None
