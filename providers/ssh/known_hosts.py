"""Known host keys: which ones count for a host, and what the user may write down if it offers another one.

Every connection checks the key: `StrictHostKeyChecking no` and `UserKnownHostsFile none` change nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from declarative.model.record import struct
from declarative.model.spec.fleet import fingerprint
from declarative.model.status import HostRefusal
from declarative.provider import PermanentError, PermanentKind, RefusedError

if TYPE_CHECKING:
    from providers.ssh.host import Host

USERS, MACHINES = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
DECLARED = "the host's `host_keys`"


@struct(slots=True)
class Trust:
    """The keys that count for one host."""

    host: Host
    name: str
    """The host's name in a file of known hosts."""
    where: str
    """The file or field in which its key belongs."""
    listed: asyncssh.SSHKnownHosts
    known: tuple[str, ...] = ()
    """The keys that were found for it at the last try, as `ssh-ed25519 AAAA…`."""

    @classmethod
    def of(cls, host: Host, options: asyncssh.SSHClientConnectionOptions) -> Trust:
        """The trusted keys, from the declaration and from ssh's configuration."""
        port = options.port or 22
        name = options.host_key_alias or (options.host if port == 22 else f"[{options.host}]:{port}")
        if host.host_keys:
            text, where = "".join(f"{name} {_key(key)}\n" for key in host.host_keys), DECLARED
        elif host.known_hosts:
            text, where = _needed_text(host.known_hosts), host.known_hosts
        else:
            paths = [*(_named(options) or [USERS]), MACHINES]
            text, where = "\n".join(map(_text, paths)), paths[0]
        return cls(host, name, where, _parsed(text, where))

    def by_name(self) -> tuple[str, ...]:
        """The keys that are listed under the host's name, without those that were revoked."""
        port = re.fullmatch(r"\[(.*)\]:(\d+)", self.name)
        matches = self.listed.match(port[1] if port else self.name, "", int(port[2]) if port else None)
        revoked = {*map(_text_of, matches[2])}
        return tuple(key for key in dict.fromkeys(map(_text_of, matches[0])) if key not in revoked)

    def match(self, host: str, address: str, port: int | None) -> Any:
        """The lists that asyncssh wants: keys, authorities, revoked keys, and the same for X.509."""
        matches = self.listed.match(host, address, port)
        self.known = tuple(dict.fromkeys(map(_text_of, matches[0])))  # listed by its name and by its address
        return matches


def _named(options: asyncssh.SSHClientConnectionOptions) -> list[str]:
    """The files that ssh's configuration names. asyncssh takes `UserKnownHostsFile none` for leave to trust
    everybody.
    """
    files = options.known_hosts
    return [path for path in files if isinstance(path, str)] if isinstance(files, list) else []


@struct(slots=True)
class Checked(asyncssh.SSHClient):
    """Remembers the key that was refused."""

    trust: Trust
    offered: asyncssh.SSHKey | None = field(default=None)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """The library asks about a key that is not among the known ones."""
        self.offered = key
        return False

    def refusal(self, reason: str) -> PermanentError:
        """The fault for a host with another key, with the line that would make it count."""
        host, trust = self.trust.host, self.trust
        if self.offered is None:  # revoked, or a certificate
            summary = f"{host} is not to be trusted: {reason}"
            return PermanentError(PermanentKind.AUTH, summary, about="host key")
        key = _text_of(self.offered)
        line = key if trust.where == DECLARED else f"{trust.name} {key}"
        if not trust.known:
            summary = f"the key of {host} is not known: it offers {fingerprint(key)}"
            also = "" if trust.where == DECLARED else f"declare it in {DECLARED}, or "
            hint = f"if that is its fingerprint, {also}add this line to {trust.where}: {line}"
        else:
            prints = ", ".join(map(fingerprint, trust.known))
            summary = f"the key of {host} has changed: known is {prints}, it offers {fingerprint(key)}"
            hint = (
                "somebody may be posing as it; if it was set up anew, replace its line in "
                f"{trust.where} by: {line}"
            )
        refusal = HostRefusal(
            hostname=host.hostname,
            port=host.port,
            user=host.user,
            name=trust.name,
            key=key,
            known=trust.known,
            file=None if trust.where == DECLARED else trust.where,
        )
        return RefusedError(summary, refusal, about="host key", hint=hint)


def _text_of(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


def _key(text: str) -> str:
    try:
        asyncssh.import_public_key(text)
    except ValueError as error:
        summary = f"`{text}` is not a public key: {error}"
        hint = "write it as in /etc/ssh/ssh_host_ed25519_key.pub on the host: `ssh-ed25519 AAAA…`"
        raise PermanentError(PermanentKind.INVALID, summary, about="host_keys", hint=hint) from error
    return text.strip()


def _text(path: str) -> str:
    """A file that may be absent."""
    real = Path(path).expanduser()
    return real.read_text(errors="replace") if os.access(real, os.R_OK) and real.is_file() else ""


def _needed_text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise PermanentError(
            PermanentKind.INVALID, f"{path}: {error.strerror}", about="known_hosts"
        ) from error


def _first_bad(text: str) -> int:
    """The line that cannot be read, counted from 1."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            asyncssh.import_known_hosts(line)
        except ValueError:
            return number
    return 1


@lru_cache(maxsize=16)
def _parsed(text: str, where: str) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.import_known_hosts(text)
    except ValueError as error:
        # The text is not shown: the path may lead to another file, which may hold secrets.
        line = "" if where == DECLARED else f": line {_first_bad(text)} is not one of known hosts"
        summary = f"{where} cannot be read{line}"
        about = "host_keys" if where == DECLARED else "known_hosts"
        raise PermanentError(PermanentKind.INVALID, summary, about=about) from error
