"""How a host is reached: by the inputs of its node and the options of its backend, checked and completed.

`~/.ssh/config` and the agent supply what both leave out, as for ssh itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from declarative.model.diagnostic import suggest
from declarative.model.spec.hosts import odd_login
from declarative.provider import Config, PermanentError, PermanentKind

T = TypeVar("T")

OPTIONS = ("root", "ssh_config", "known_hosts", "connect_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds until a host counts as silent."""

    connect: float = 15.0
    """For the whole of connecting and logging in."""
    keepalive: float = 5.0
    """Between two questions whether a quiet host is still there."""
    missed: int = 3
    """The connection is lost after this number of questions without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The way to one host. Equal ones share a connection."""

    hostname: str
    """A name, an address, or an alias of `~/.ssh/config`."""
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    host_keys: tuple[str, ...] = ()
    """Its declared keys, as `ssh-ed25519 AAAA…`; if there are any, no others count."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`options:` of a backend with the driver `ssh`, completed."""

    root: str | None
    """The state folder on every host, on a disk that keeps it over a reboot; None is
    `/var/tmp/fleetform-<uid>`."""
    defaults: Host
    """What holds for all hosts."""


def host_of(fields: object, project: Path, defaults: Host | None = None) -> Host:
    """The `host` of a node's inputs. Files are relative to the project.

    If it names no files or timing, those of `defaults` count.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise _invalid("host", "the node's inputs have no `host`: how it is reached is not known")
    defaults = defaults or Host(hostname="")
    hostname, user = _login(fields)
    keys = fields.get("host_keys") or ()
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise _invalid("host_keys", "`host_keys` is not a list of keys")
    identity, known_hosts = (_field(fields, key, str) for key in ("identity_file", "known_hosts"))
    host = replace(
        defaults,
        hostname=hostname,
        port=_field(fields, "port", int),
        user=user,
        identity_file=_path(project, identity),
        host_keys=tuple(keys),
        known_hosts=_path(project, known_hosts) or defaults.known_hosts,
    )
    jump = fields.get("proxy_jump")
    # Both hosts are looked up in the same file. A declared key is that of this host alone.
    return replace(host, proxy_jump=host_of(jump, project, replace(host, host_keys=()))) if jump else host


def _login(fields: Mapping[str, Any]) -> tuple[str, str | None]:
    """Host and user, if both can be the names of such."""
    hostname, user = _field(fields, "hostname", str), _field(fields, "user", str)
    odd = odd_login(hostname, user)
    if not hostname or odd == "hostname":
        raise _invalid("hostname", f"{hostname!r} is not a host name or an address")
    if odd:
        raise _invalid("user", f"{user!r} is not a user name")
    return hostname, user


def options_of(config: Config) -> Options:
    """The options, or a fault that names the wrong one."""
    given = config.options
    for key, value in given.items():
        if key not in OPTIONS:
            hint = suggest(key, OPTIONS) or f"`ssh` has these options: {', '.join(OPTIONS)}"
            raise _invalid(f"options.{key}", f"`{key}` is not an option of the driver `ssh`", hint)
        if wrong := _wrong(key, value):
            raise _invalid(f"options.{key}", f"`{key}` {wrong}")
    root = given.get("root")
    defaults = Host(
        hostname="",
        known_hosts=_path(config.project_dir, given.get("known_hosts")),
        config=_path(config.project_dir, given.get("ssh_config")),
        timing=_timing(given.get("connect_timeout", Timing().connect)),
    )
    return Options(root=None if root is None else "/" + root.strip("/"), defaults=defaults)


def _wrong(key: str, value: object) -> str | None:
    """What is wrong with the value of an option; None if nothing is."""
    if key == "connect_timeout":
        return None if type(value) is int and value >= 1 else "is not a whole number of seconds"
    if not isinstance(value, str) or not re.fullmatch(r"[^\0\n]+", value):
        return "is not a path"
    if key == "root" and not re.fullmatch(r"/.*[^/].*", value):
        return "is not an absolute path below `/`"
    return None


def _timing(seconds: float) -> Timing:
    """A host that says nothing for as long as it may take to connect is silent, connected or not."""
    usual = Timing()
    return replace(usual, connect=seconds, keepalive=min(usual.keepalive, seconds / usual.missed))


def _field(fields: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, kind):
        raise _invalid(key, f"`{key}` cannot be {value!r}")
    return value


def _path(project: Path, written: str | None) -> str | None:
    """A file of the user's, relative to the project."""
    return str(project.absolute() / Path(written).expanduser()) if written else None


def _invalid(about: str, summary: str, hint: str | None = None) -> PermanentError:
    return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
