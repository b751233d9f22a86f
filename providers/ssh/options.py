"""The options of an ssh backend: where its state is on hosts, and ssh's own files here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from declarative.diagnostic import suggest
from declarative.provider import Config, PermanentError, PermanentKind
from providers.ssh.host import Host, Timing

NAMES = ("root", "ssh_config", "known_hosts", "connect_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`options:` of a backend with the driver `ssh`, completed."""

    root: str | None
    """The state folder on every host, on a disk of its own that outlives a reboot; None is
    `/var/tmp/fleetform-<uid>`."""
    defaults: Host
    """What holds for all hosts."""


def options_of(config: Config) -> Options:
    """The options, or a fault that names the wrong one."""
    given = config.options
    for key, value in given.items():
        if key not in NAMES:
            hint = suggest(key, NAMES) or f"`ssh` has these options: {', '.join(NAMES)}"
            summary = f"`{key}` is no option of the driver `ssh`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{key}", hint=hint)
        if key == "connect_timeout":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _bad(key, "is no whole number of seconds")
        elif not isinstance(value, str) or not value or "\0" in value or "\n" in value:
            raise _bad(key, "is not a path")
    root = given.get("root")
    if root is not None and (not root.startswith("/") or root.strip("/") == ""):
        raise _bad("root", "is not an absolute path below `/`")
    return Options(
        root=None if root is None else "/" + root.strip("/"),
        defaults=Host(
            hostname="",
            known_hosts=_path(config, "known_hosts"),
            config=_path(config, "ssh_config"),
            timing=timing_of(given.get("connect_timeout", Timing().connect)),
        ),
    )


def timing_of(seconds: float) -> Timing:
    """A host that says nothing for as long as it may take to connect is silent, connected or not."""
    usual = Timing()
    return replace(usual, connect=seconds, keepalive=min(usual.keepalive, seconds / usual.missed))


def _path(config: Config, key: str) -> str | None:
    given = config.options.get(key)
    return str(config.project_dir.absolute() / Path(given).expanduser()) if given else None


def _bad(key: str, why: str) -> PermanentError:
    return PermanentError(PermanentKind.INVALID, f"`{key}` {why}", about=f"options.{key}")
