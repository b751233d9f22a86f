"""Whether hosts reach each other: asked on the one, before ranks are told the other's address."""

from __future__ import annotations

from collections.abc import Iterable

from providers.ssh import scripts
from providers.ssh.transport import SshTransport

SECONDS = 5
"""Of a try. A neighbour that is not there is found out within three."""
PORTS = (29500, 49151)
"""Tried beside ssh's: one that jobs meet at, and a high one. A firewall may let through nothing but those of
jobs, and nobody need listen: a port that is refused will do."""
SSH_PORT = 22


def reaches(transport: SshTransport, address: str, port: int | None) -> str | None:
    """Why `address` cannot be reached from a host; None if it can, or if nobody can tell.

    `port` is that of ssh. It takes some seconds where nothing answers.
    """
    ports = tuple(map(str, (port or SSH_PORT, *PORTS)))
    said = scripts.inline(transport, "reach.sh", (address, str(SECONDS), *ports))
    return verdict(scripts.lines(said, "FLEETFORM-REACH"))


def verdict(lines: Iterable[str]) -> str | None:
    """Why the tries mean that an address cannot be reached, or None.

    One that answers is enough; else the kernel has to say that there is no way, or all have to be in vain.
    """
    tries = dict(line.removeprefix("try=").split(" ", 1) for line in lines if line.startswith("try="))
    answers = tries.values()
    if "yes" in answers:
        return None
    refusals = [answer.removeprefix("no ") for answer in answers if answer.startswith("no ")]
    if refusals:
        return refusals[0]
    if not tries or set(answers) != {"silent"}:
        return None
    return f"no answer within {SECONDS} s at its ports {', '.join(tries)}, nor to ping"
