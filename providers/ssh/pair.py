"""Key pairs: a login's, made once and kept in a file, and host keys that are computed from it.

A host key has to be the same for every try of one create, and nothing secret may be kept in the state. So it
is derived from the login's private key and a name: whoever may log in can compute it, and nobody else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from declarative.provider import PermanentError, PermanentKind

if TYPE_CHECKING:
    import asyncssh  # else with the first key: to find its libraries it runs the linker

KIND = b"ssh-ed25519"
_SEED_AS_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of an Ed25519 key's seed (RFC 8410)."""
_PURPOSE = b"fleetform host key\0"
_LINE = 70


@dataclass(frozen=True, slots=True)
class HostKey:
    """`private` as a file of OpenSSH has it, `public` as `ssh-ed25519 AAAA…`."""

    private: str
    public: str


class Login:
    """A private key in a file."""

    def __init__(self, path: Path) -> None:
        """`PermanentError` if it cannot be read, or is encrypted."""
        import asyncssh

        self.path = path
        try:
            key = asyncssh.import_private_key(path.read_bytes())
        except OSError as error:
            summary = f"the private key {path} cannot be read: {error.strerror}"
            raise PermanentError(PermanentKind.AUTH, summary, about="identity_file") from error
        except asyncssh.KeyImportError as error:
            if "passphrase" in str(error).lower():
                summary = f"the private key {path} has a passphrase"
                hint = "name one without: it is used when nobody is there to type"
            else:
                summary = f"{path} is no private key: {error}"
                hint = None
            raise PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint) from error
        self._secret = hashlib.sha256(key.export_private_key("pkcs8-der")).digest()
        self.public = _words(key)
        self.fingerprint = key.get_fingerprint()

    def host_key(self, name: str) -> HostKey:
        """The key of the host of that name: always the same."""
        import asyncssh

        seed = hmac.digest(self._secret, _PURPOSE + name.encode(), "sha256")
        key = asyncssh.import_private_key(_SEED_AS_PKCS8 + seed)
        return HostKey(_openssh(seed, key.public_data), _words(key))


def make(path: Path) -> bool:
    """Make a key in a file of mode 0600, whole or not at all; whether it was made. One that is there stays.

    `PermanentError` where it cannot be written.
    """
    try:
        return not path.exists() and _make(path)
    except OSError as error:
        summary = f"the private key {path} cannot be made: {error.strerror or error}"
        raise PermanentError(PermanentKind.INVALID, summary, about="identity_file") from error


def _make(path: Path) -> bool:
    import asyncssh

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(asyncssh.generate_private_key("ssh-ed25519", comment="fleetform").export_private_key())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        return True
    finally:
        Path(name).unlink()


def _words(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


def _openssh(seed: bytes, public: bytes) -> str:
    """OpenSSH's format, byte for byte the same each time: libraries put random bytes into it."""
    # `public` is the kind and the point, each with its length before it.
    point = public[-32:]
    check = hashlib.sha256(point).digest()[:4]
    inner = check + check + _text(KIND) + _text(point) + _text(seed + point) + _text(b"")
    inner += bytes(range(1, 1 + -len(inner) % 8))
    none = _text(b"none") + _text(b"none") + _text(b"")
    body = (
        b"openssh-key-v1\0" + none + struct.pack(">I", 1) + _text(_text(KIND) + _text(point)) + _text(inner)
    )
    text = base64.b64encode(body).decode()
    lines = [text[i : i + _LINE] for i in range(0, len(text), _LINE)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
