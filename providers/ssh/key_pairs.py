"""Key pairs: that of a login, which is made once and kept in a file, and host keys that derive from it.

A host key must be the same for every try of one create, and the state may hold no secret. So it derives from
the login's private key and a name: only those who may log in can compute it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import tempfile
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING

from declarative.model.record import struct
from declarative.provider import PermanentError, PermanentKind

if TYPE_CHECKING:
    # Otherwise imported with the first key. Not asyncssh, which takes ten times as long to load.
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

KIND = b"ssh-ed25519"
_PURPOSE = b"fleetform host key\0"
_LINE = 70


@struct(frozen=True, slots=True)
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

    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return " ".join(public.decode().split()[:2])


def _openssh(seed: bytes, point: bytes) -> str:
    """OpenSSH's format, byte for byte the same each time: libraries put random bytes into it."""
    check = hashlib.sha256(point).digest()[:4]
    inner = check + check + _text(KIND) + _text(point) + _text(seed + point) + _text(b"")
    inner += bytes(range(1, 1 + -len(inner) % 8))
    none = _text(b"none") + _text(b"none") + _text(b"")
    body = b"openssh-key-v1\0" + none + pack(">I", 1) + _text(_text(KIND) + _text(point)) + _text(inner)
    text = base64.b64encode(body).decode()
    lines = [text[i : i + _LINE] for i in range(0, len(text), _LINE)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _text(data: bytes) -> bytes:
    return pack(">I", len(data)) + data
