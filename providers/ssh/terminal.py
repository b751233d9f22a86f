"""The system's own `ssh`, told what is declared of a host: what people expect of a terminal is all in there.

It reads `~/.ssh/config` by itself, asks for passphrases, uses the agent and hardware keys, passes on the size
of the window. Host keys are checked as everywhere: nobody is asked whether to trust one.
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
"""ssh's exit code for its own faults, which a command may give as well."""
_ENDED = b"rtype exit-status"
_SIGNALLED = b"rtype exit-signal"
"""What its log says once the command on the host has ended."""


@contextlib.contextmanager
def terminal(host: Host, command: str | None, *, tty: bool) -> Iterator[Terminal]:
    """A way to run a line of shell on a host; without one, the login shell."""
    program = shutil.which("ssh")
    if program is None:
        summary = "there is no `ssh` on this machine, which terminals on hosts need"
        hint = "install an OpenSSH client (`apt install openssh-client`, `dnf install openssh-clients`)"
        raise PermanentError(PermanentKind.INVALID, summary, about="ssh", hint=hint)
    with tempfile.TemporaryDirectory(prefix="fleetform-ssh-") as name:
        folder = Path(name)
        log = folder / "log"
        # Its log tells a command that gave 255 from a connection that was lost.
        words = [program, "-E", str(log), "-o", "LogLevel=DEBUG1", "-S", "none", "-t" if tty else "-T"]
        words += _options(host, folder, program)
        if command is not None:
            words += ["-o", "RemoteCommand=none"]
        words += ["--", host.hostname, *([command] if command is not None else [])]
        yield Terminal(argv=tuple(words), fault=lambda code: _fault(host, code, log))


def _options(host: Host, folder: Path, program: str) -> list[str]:
    """How the host is reached, and which keys count for it; those of hosts on the way, too."""
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
    """No other file counts, and nothing is written into it."""
    quoted = file.replace("%", "%%")
    words = [f'UserKnownHostsFile="{quoted}"', "GlobalKnownHostsFile=/dev/null", "UpdateHostKeys=no"]
    return [word for option in words for word in ("-o", option)]


def _fault(host: Host, code: int, log: Path) -> str | None:
    """What ssh had to say, if it was its own fault and not the command's end."""
    if code != NOT_CONNECTED:
        return None
    try:
        said = log.read_bytes()
    except OSError:
        said = b""
    if _ENDED in said or _SIGNALLED in said:
        return None
    lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
    own = [line for line in lines if line and not line.startswith(("debug", "OpenSSH_", "@"))]
    return f"the connection to {host} failed: {own[-1] if own else 'ssh gives no reason'}"
