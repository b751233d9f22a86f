"""Terminals on hosts, by the system's own `ssh` with the declared settings of a host.

`ssh` reads `~/.ssh/config`, asks for passphrases, uses the agent and hardware keys, and passes on the size of
the window. It checks host keys as everywhere, and never asks the user whether to trust one.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from declarative.provider import PermanentError, PermanentKind, Terminal
from providers.ssh.host import Host

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
        words += _known(str(file))
    elif host.known_hosts:
        words += _known(host.known_hosts)
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


def _known(file: str) -> list[str]:
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
