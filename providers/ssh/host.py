"""How a host is reached: what a node's inputs say of it, checked and completed.

What is left out is left to `~/.ssh/config`, as for ssh itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from declarative.provider import PermanentError, PermanentKind
from declarative.spec.hosts import odd_login

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds until a host counts as silent."""

    connect: float = 15.0
    """For the whole of connecting and logging in."""
    keepalive: float = 5.0
    """Between two questions whether a quiet host is still there."""
    missed: int = 3
    """After so many without an answer the connection is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The way to one host. Equal ones share a connection."""

    hostname: str
    """A name, an address, or an alias of `~/.ssh/config`."""
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    host_keys: tuple[str, ...] = ()
    """Its declared keys, as `ssh-ed25519 AAAA…`; where there are any, no others count."""
    known_hosts: str | None = None
    """The fleet's own file; None means the user's and the machine's."""
    config: str | None = None
    """ssh's configuration file; None means `~/.ssh/config`."""
    proxy_jump: Host | None = None
    timing: Timing = Timing()

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{user}{self.hostname}{port}"


def host_of(fields: object, project: Path, defaults: Host | None = None) -> Host:
    """The `host` of a node's inputs. Files are relative to the project.

    Of `defaults` it takes the files and the timing, where it has none itself.
    """
    if not isinstance(fields, Mapping) or not fields:
        summary = "the node's inputs have no `host`: how it is reached is not known"
        raise PermanentError(PermanentKind.INVALID, summary, about="host")
    defaults = defaults or Host(hostname="")
    hostname = _taken(fields, "hostname", str)
    user = _taken(fields, "user", str)
    odd = odd_login(hostname, user)
    if not hostname or odd == "hostname":
        raise PermanentError(
            PermanentKind.INVALID, f"{hostname!r} is no host's name or address", about="hostname"
        )
    if odd:
        raise PermanentError(PermanentKind.INVALID, f"{user!r} is no user's name", about="user")
    keys = fields.get("host_keys") or ()
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise PermanentError(PermanentKind.INVALID, "`host_keys` is no list of keys", about="host_keys")
    host = replace(
        defaults,
        hostname=hostname,
        port=_taken(fields, "port", int),
        user=user,
        identity_file=_file(fields, "identity_file", project),
        host_keys=tuple(keys),
        known_hosts=_file(fields, "known_hosts", project) or defaults.known_hosts,
    )
    jump = fields.get("proxy_jump")
    # The same file vouches for both; a key that is declared is the one host's alone.
    return replace(host, proxy_jump=host_of(jump, project, replace(host, host_keys=()))) if jump else host


def _taken(fields: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, kind):
        raise PermanentError(PermanentKind.INVALID, f"`{key}` cannot be {value!r}", about=key)
    return value


def _file(fields: Mapping[str, Any], key: str, project: Path) -> str | None:
    value = _taken(fields, key, str)
    return str(project.absolute() / Path(value).expanduser()) if value else None
