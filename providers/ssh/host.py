"""How a host is reached: by the inputs of its node and the options of its backend, checked and completed; and
terminals there, by the system's own `ssh` with the same settings.

`~/.ssh/config` and the agent supply what both leave out, as for ssh itself. In a terminal `ssh` also asks for
passphrases, uses hardware keys, and passes on the size of the window. It checks host keys as everywhere, and
never asks the user whether to trust one.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from declarative.model.record import struct
from declarative.model.spec.fleet import odd_login
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind
from declarative.provider.optional import Terminal

T = TypeVar("T")


@struct(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds until a host counts as silent."""

    connect: float = 15.0
    """Seconds for connecting and logging in together."""
    keepalive: float = 5.0
    """Between two questions whether a quiet host is still there."""
    missed: int = 3
    """The connection is lost after this number of questions without an answer."""


@struct(frozen=True, slots=True, kw_only=True)
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


@struct(frozen=True, slots=True, kw_only=True)
class Options:
    """`options:` of a backend with the driver `ssh`, completed."""

    root: str | None
    """The state folder on every host, on a disk of its own that keeps it over a reboot; None is the usual
    one (`root.sh`)."""
    defaults: Host
    """The options of all hosts."""


def host_of(fields: object, project: Path, defaults: Host | None = None) -> Host:
    """The `host` of a node's inputs. Files are relative to the project.

    If it names no files or timing, those of `defaults` count.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise _invalid("host", "the node's inputs have no `host`: how it is reached is not known")
    defaults = defaults or Host(hostname="")
    hostname, user = _login(fields)
    identity, known_hosts = (_field(fields, key, str) for key in ("identity_file", "known_hosts"))
    host = replace(
        defaults,
        hostname=hostname,
        port=_field(fields, "port", int),
        user=user,
        identity_file=_path(project, identity),
        host_keys=_host_keys(fields),
        known_hosts=_path(project, known_hosts) or defaults.known_hosts,
    )
    jump = fields.get("proxy_jump")
    # Both hosts are looked up in the same file. A declared key is only for this host.
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


def _host_keys(fields: Mapping[str, Any]) -> tuple[str, ...]:
    keys = fields.get("host_keys") or ()
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise _invalid("host_keys", "`host_keys` is not a list of keys")
    return tuple(keys)


def options_of(config: Config) -> Options:
    """The options, or a fault that names the wrong one."""
    options = config.options
    check_options(options, "ssh", _OPTIONS)
    root = options.get("root")
    defaults = Host(
        hostname="",
        known_hosts=_path(config.project_dir, options.get("known_hosts")),
        config=_path(config.project_dir, options.get("ssh_config")),
        timing=_timing(options.get("connect_timeout", Timing().connect)),
    )
    return Options(root=None if root is None else "/" + root.strip("/"), defaults=defaults)


Wrong = Callable[[object], str | None]
"""The error of an option's value; None if it is valid."""


def check_options(options: Mapping[str, object], driver: str, allowed: Mapping[str, Wrong]) -> None:
    """`PermanentError` for an option that a driver does not have, or one with a wrong value."""
    for key, value in options.items():
        if key not in allowed:
            hint = suggest(key, list(allowed)) or f"`{driver}` has these options: {', '.join(allowed)}"
            raise _invalid(f"options.{key}", f"`{key}` is not an option of the driver `{driver}`", hint)
        if wrong := allowed[key](value):
            raise _invalid(f"options.{key}", f"`{key}` {wrong}")


def wrong_path(value: object) -> str | None:
    """What is wrong with the value as a path; None if nothing is."""
    return None if isinstance(value, str) and re.fullmatch(r"[^\0\n]+", value) else "is not a path"


def wrong_root(value: object) -> str | None:
    """What is wrong with the value as a folder for everything on a host; None if nothing is."""
    absolute = isinstance(value, str) and value.startswith("/") and value.strip("/")
    return wrong_path(value) or (None if absolute else "is not an absolute path below `/`")


def _wrong_timeout(value: object) -> str | None:
    return None if type(value) is int and value >= 1 else "is not a whole number of seconds"


_OPTIONS: Mapping[str, Wrong] = {
    "root": wrong_root,
    "ssh_config": wrong_path,
    "known_hosts": wrong_path,
    "connect_timeout": _wrong_timeout,
}


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


NOT_CONNECTED = 255
"""The exit code of ssh for its own faults. A command may have it, too."""
_ENDED = b"rtype exit-status"
_SIGNALLED = b"rtype exit-signal"
"""Lines of its log after the end of the command on the host."""


@contextlib.contextmanager
def terminal(host: Host, command: str | None, *, tty: bool) -> Iterator[Terminal]:
    """Runs a line of shell on a host; without one, the login shell."""
    program = shutil.which("ssh")
    if program is None:
        summary = "there is no `ssh` on this machine, which terminals on hosts need"
        hint = "install an OpenSSH client (`apt install openssh-client`, `dnf install openssh-clients`)"
        raise PermanentError(PermanentKind.INVALID, summary, about="ssh", hint=hint)
    with tempfile.TemporaryDirectory(prefix="fleetform-ssh-") as name:
        folder = Path(name)
        log = folder / "log"
        # The log shows whether a command gave 255, or the connection was lost.
        words = [program, "-E", str(log), "-o", "LogLevel=DEBUG1", "-S", "none", "-t" if tty else "-T"]
        words += _options(host, folder, program)
        if command is not None:
            words += ["-o", "RemoteCommand=none"]
        words += ["--", host.hostname, *([command] if command is not None else [])]
        yield Terminal(argv=tuple(words), fault=lambda code: _fault(host, code, log))


def _options(host: Host, folder: Path, program: str) -> list[str]:
    """The options for a host, and for hosts on the way: how to reach it, and which host keys count."""
    words = ["-F", host.config] if host.config else []
    words += ["-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={max(1, int(host.timing.connect))}"]
    words += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]
    if host.host_keys:
        file = folder / f"keys-{len(tuple(folder.iterdir()))}"
        file.write_text("".join(f"* {key}\n" for key in host.host_keys))
        words += _only_keys_of(str(file))
    elif host.known_hosts:
        words += _only_keys_of(host.known_hosts)
    words += ["-p", str(host.port)] if host.port else []
    words += ["-l", host.user] if host.user else []
    if host.identity_file:
        words += ["-i", host.identity_file, "-o", "IdentitiesOnly=yes"]
    if host.proxy_jump:
        jump = host.proxy_jump
        through = [program, "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", *_options(jump, folder, program)]
        line, name = (text.replace("%", "%%") for text in (shlex.join(through), shlex.quote(jump.hostname)))
        words += ["-o", f"ProxyCommand={line} -W '[%h]:%p' -- {name}"]
    return words


def _only_keys_of(file: str) -> list[str]:
    """Let only the keys of that file count, and write nothing into it."""
    quoted = file.replace("%", "%%")
    words = [f'UserKnownHostsFile="{quoted}"', "GlobalKnownHostsFile=/dev/null", "UpdateHostKeys=no"]
    return [word for option in words for word in ("-o", option)]


def _fault(host: Host, code: int, log: Path) -> str | None:
    """The last message of ssh, if it failed itself; None if the command on the host ended."""
    if code != NOT_CONNECTED:
        return None
    try:
        text = log.read_bytes()
    except OSError:
        text = b""
    if _ENDED in text or _SIGNALLED in text:
        return None
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    own = [line for line in lines if line and not line.startswith(("debug", "OpenSSH_", "@"))]
    return f"the connection to {host} failed: {own[-1] if own else 'ssh gives no reason'}"
