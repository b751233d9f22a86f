"""Keys: the pair of a login, which is made once and kept in a file, host keys that derive from it, and which
known host keys count for a host.

A host key must be the same for every try of one create, and the state may hold no secret. So it derives from
the login's private key and a name: only those who may log in can compute it.

Every connection checks the key: `StrictHostKeyChecking no` and `UserKnownHostsFile none` change nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from declarative.provider import PermanentError, PermanentKind

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from providers.ssh.host import Host

USERS, MACHINES = "~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
DECLARED = "the host's `host_keys`"


@dataclass(slots=True)
class Trust:
    """The keys that count for one host."""

    host: Host
    name: str
    """The host's name in a file of known hosts."""
    where: str
    """The file or field in which its key belongs."""
    listed: asyncssh.SSHKnownHosts
    known: tuple[asyncssh.SSHKey, ...] = ()
    """The keys that were found for it at the last try."""

    @classmethod
    def of(cls, host: Host, options: asyncssh.SSHClientConnectionOptions) -> Trust:
        """By what is declared and what ssh's configuration says."""
        port = options.port or 22
        name = options.host_key_alias or (options.host if port == 22 else f"[{options.host}]:{port}")
        if host.host_keys:
            text, where = "".join(f"{name} {_key(key)}\n" for key in host.host_keys), DECLARED
        elif host.known_hosts:
            text, where = _needed_text(host.known_hosts), host.known_hosts
        else:
            # asyncssh takes `UserKnownHostsFile none` for leave to trust everybody.
            given = options.known_hosts
            named = [path for path in given if isinstance(path, str)] if isinstance(given, list) else []
            paths = [*(named or [USERS]), MACHINES]
            text, where = "\n".join(map(_text, paths)), paths[0]
        return cls(host, name, where, _parsed(text, where))

    def match(self, host: str, address: str, port: int | None) -> Any:
        """What asyncssh asks for: keys, authorities, revoked keys, and the same of X.509."""
        found = self.listed.match(host, address, port)
        self.known = tuple(found[0])
        return found


@dataclass(slots=True)
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
        key = " ".join(self.offered.export_public_key().decode().split()[:2])
        prints = f"{self.offered.get_algorithm()} {self.offered.get_fingerprint()}"
        line = key if trust.where == DECLARED else f"{trust.name} {key}"
        if not trust.known:
            summary = f"the key of {host} is not known: it offers {prints}"
            also = "" if trust.where == DECLARED else f"declare it in {DECLARED}, or "
            hint = f"if that is its fingerprint, {also}add this line to {trust.where}: {line}"
        else:
            known = ", ".join(f"{k.get_algorithm()} {k.get_fingerprint()}" for k in trust.known)
            summary = f"the key of {host} has changed: known is {known}, it offers {prints}"
            hint = (
                "somebody may be posing as it; if it was set up anew, replace its line in "
                f"{trust.where} by: {line}"
            )
        return PermanentError(PermanentKind.AUTH, summary, about="host key", hint=hint)


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


KIND = b"ssh-ed25519"
_PURPOSE = b"fleetform host key\0"
_LINE = 70


@dataclass(frozen=True, slots=True)
class HostKey:
    """`private` as in a file of OpenSSH, `public` as `ssh-ed25519 AAAA…`."""

    private: str
    public: str


class Login:
    """A private key in a file."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """`PermanentError` if it cannot be read, or is encrypted; `name` is its name in messages."""
        self.path = path
        name = name or str(path)
        try:
            secret, self.public = _read(path.read_bytes())
        except OSError as error:
            summary = f"the private key {name} cannot be read: {error.strerror}"
            raise PermanentError(PermanentKind.AUTH, summary, about="identity_file") from error
        except TypeError as error:  # the library's word for a password that is missing
            summary = f"the private key {name} has a passphrase"
            hint = "name one without: nobody can type it when the key is used"
            raise PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint) from error
        except ValueError as error:
            summary = f"{name} is not a private key that can be read"
            hint = "name the private half of a pair, as OpenSSH or as PEM"
            raise PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint) from error
        self._secret = hashlib.sha256(secret).digest()
        blob = base64.b64decode(self.public.split()[1])
        self.fingerprint = f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"

    def host_key(self, name: str) -> HostKey:
        """The key of the host of that name, which is always the same."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        seed = hmac.digest(self._secret, _PURPOSE + name.encode(), "sha256")
        key = Ed25519PrivateKey.from_private_bytes(seed)
        return HostKey(_openssh(seed, key.public_key().public_bytes_raw()), _words(key))


def make(path: Path) -> bool:
    """Make a key in a file of mode 0600, whole or not at all; whether it was made. An existing key stays.

    `PermanentError` if it cannot be written.
    """
    try:
        return not path.exists() and _make(path)
    except OSError as error:
        summary = f"the private key {path} cannot be made: {error.strerror or error}"
        raise PermanentError(PermanentKind.INVALID, summary, about="identity_file") from error


def _make(path: Path) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    text = _openssh(key.private_bytes_raw(), key.public_key().public_bytes_raw())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        return True
    finally:
        Path(name).unlink()


def _read(data: bytes) -> tuple[bytes, str]:
    """The private half as PKCS #8, and the public one as OpenSSH writes it.

    `TypeError` for a key with a passphrase, `ValueError` for data that is not a key of SSH.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    own = b"-----BEGIN OPENSSH PRIVATE KEY-----" in data
    load = form.load_ssh_private_key if own else form.load_pem_private_key
    try:
        key = load(data, None)
        words = _words(key)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    return key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption()), words


def _words(key: PrivateKeyTypes) -> str:
    from cryptography.hazmat.primitives import serialization as form

    found = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return " ".join(found.decode().split()[:2])


def _openssh(seed: bytes, point: bytes) -> str:
    """OpenSSH's format, byte for byte the same each time: libraries put random bytes into it."""
    check = hashlib.sha256(point).digest()[:4]
    inner = check + check + _packed(KIND) + _packed(point) + _packed(seed + point) + _packed(b"")
    inner += bytes(range(1, 1 + -len(inner) % 8))
    none = _packed(b"none") + _packed(b"none") + _packed(b"")
    body = (
        b"openssh-key-v1\0"
        + none
        + struct.pack(">I", 1)
        + _packed(_packed(KIND) + _packed(point))
        + _packed(inner)
    )
    text = base64.b64encode(body).decode()
    lines = [text[i : i + _LINE] for i in range(0, len(text), _LINE)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _packed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
