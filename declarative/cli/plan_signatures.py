"""Signatures of saved plans: made with one key of the team's, checked against its public ones.

They are those of OpenSSH (`ssh-keygen -Y sign -n fleetform-plan`), beside the plan in FILE.sig: keys are
those that people have, in an agent too, and a key that checks plans cannot sign one. All bytes are signed:
lineage and serial of the state, backends, commands, and the sums of files that ranks get. No private key,
and nothing that was given in place of a key, is a part of a message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from declarative.cli.errors import failed
from declarative.model.schema import BadValueError
from declarative.model.spec.policy import PlanKey

VARIABLE = "FLEETFORM_SIGNED_BY"
NAMESPACE = b"fleetform-plan"
"""What the signature is for: one of a commit or a mail counts for no plan."""
BEGIN = b"-----BEGIN SSH SIGNATURE-----"
_END = b"-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG"
_KIND = b"ssh-ed25519"
_MOST = 1 << 16
_KEY_HINT = (
    "make one: `ssh-keygen -t ed25519 -N '' -f FILE`; or sign with ssh-keygen, which asks for a passphrase"
)


def path_of(name: str) -> Path:
    """Where the signature of the plan `name` is."""
    return Path(f"{name}.sig")


def check_place(name: str) -> None:
    """`Failed` if the signature would overwrite a file that is not a signature."""
    path = path_of(name)
    try:
        if os.path.lexists(path) and (path.is_symlink() or not _read(path).startswith(BEGIN)):
            hint = "name another file for the plan, or remove that one"
            raise failed(
                "not-overwritten", f"`{path}` exists, and is not a signature: it is left alone", hint
            )
    except OSError as error:
        raise failed("unwritable", f"`{path}` cannot be written: {error.strerror}") from None


def signer_of(name: str) -> Ed25519PrivateKey:
    """The private key in a file; `Failed` if that is not what it holds."""
    try:
        data = _read(Path(name))
    except OSError as error:
        raise failed("plan-key", f"`{name}` cannot be read: {error.strerror}", _KEY_HINT) from None
    own = b"-----BEGIN OPENSSH PRIVATE KEY-----" in data
    try:
        key = (form.load_ssh_private_key if own else form.load_pem_private_key)(data, None)
    except TypeError:
        raise failed("plan-key", f"the key in `{name}` has a passphrase", _by_hand("FILE", name)) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise failed("plan-key", f"`{name}` is not a private Ed25519 key", _KEY_HINT)
    return key


def keys_of(given: str) -> tuple[PlanKey, ...]:
    """Public keys: `given` is one, or names a file with one a line. `Failed` if there are none."""
    text = given
    if not given.strip().startswith("ssh-"):
        try:
            text = _read(Path(given)).decode(errors="replace")
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or "it is not the name of a file"
            hint = "name a file with public keys, or write one: `ssh-ed25519 AAAA…`"
            raise failed("plan-key", f"the keys that may sign plans cannot be read: {why}", hint) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        found = tuple(PlanKey.parse(line) for line in lines)
    except BadValueError:
        found = ()
    if not found:  # its content is not shown: it may be a private key
        raise failed("plan-key", "the key that may sign plans is not a public Ed25519 key", PlanKey.HINT)
    return found


def sign(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """The signature of a plan, as a file."""
    public = _string(_KIND) + _string(key.public_key().public_bytes_raw())
    made = key.sign(_signed(NAMESPACE, b"", b"sha512", content))
    parts = (public, NAMESPACE, b"", b"sha512", _string(_KIND) + _string(made))
    blob = _MAGIC + (1).to_bytes(4, "big") + b"".join(map(_string, parts))
    text = base64.b64encode(blob)
    lines = [text[at : at + 70] for at in range(0, len(text), 70)]
    return b"\n".join((BEGIN, *lines, _END, b""))


def check(name: str, content: bytes, keys: Collection[PlanKey]) -> None:
    """`Failed` unless one of `keys` signed the plan `name`, as it was read: exactly this `content`."""
    by_hand = _by_hand(name, "KEY")
    try:
        armored = _read(path_of(name))
    except FileNotFoundError:
        hint = f"`fleetform plan --out FILE --sign KEY`, or {by_hand}"
        raise failed(
            "plan-unsigned", f"`{name}` is not signed: there is no `{path_of(name)}`", hint
        ) from None
    except OSError as error:
        raise failed(
            "plan-unsigned", f"`{path_of(name)}` cannot be read: {error.strerror}", by_hand
        ) from None
    try:
        public, signature, signed = _parse(armored, content)
    except ValueError as error:
        raise failed(
            "plan-signature", f"`{path_of(name)}` is not the signature of a plan: {error}", by_hand
        ) from None
    if public not in {key.raw for key in keys}:
        summary = f"`{name}` is signed by a key that may not sign plans: {fingerprint(public)}"
        raise failed("plan-signature", summary, "have it signed by a key that may: docs/security.md")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
    except (InvalidSignature, ValueError):
        summary = f"`{name}` is not what was signed: it or its signature was changed since"
        raise failed("plan-signature", summary, "plan again, look at it, and sign that") from None


def fingerprint(public: bytes) -> str:
    """A public key as ssh-keygen shows it."""
    digest = hashlib.sha256(_string(_KIND) + _string(public)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _by_hand(name: str, key: str) -> str:
    return f"sign it: `ssh-keygen -Y sign -n {NAMESPACE.decode()} -f {key} {name}`"


def _signed(*parts: bytes) -> bytes:
    """What is signed: namespace, what is reserved, the hash's name, and the hash of the content."""
    *fields, content = parts
    hashed = hashlib.new(fields[-1].decode(), content).digest()
    return _MAGIC + b"".join(_string(part) for part in (*fields, hashed))


def _parse(armored: bytes, content: bytes) -> tuple[bytes, bytes, bytes]:
    """The public key, the signature, and what is signed if it is `content`; `ValueError` says why not."""
    text = armored.strip()
    if not (text.startswith(BEGIN) and text.endswith(_END)):
        raise ValueError("it does not begin or end as one")
    try:
        blob = base64.b64decode(b"".join(text[len(BEGIN) : -len(_END)].split()), validate=True)
    except binascii.Error:
        raise ValueError("it is damaged") from None
    if not blob.startswith(_MAGIC + (1).to_bytes(4, "big")):
        raise ValueError("it is of another version")
    public, namespace, reserved, algorithm, made = _strings(blob[len(_MAGIC) + 4 :], 5)
    if namespace != NAMESPACE:
        raise ValueError(f"it was made for something else; `-n {NAMESPACE.decode()}` is for plans")
    if algorithm not in (b"sha256", b"sha512"):
        raise ValueError("its hash is neither sha256 nor sha512")
    kind, key = _strings(public, 2)
    also, signature = _strings(made, 2)
    if (kind, also) != (_KIND, _KIND):
        raise ValueError("its key is not of the kind ssh-ed25519")
    return key, signature, _signed(namespace, reserved, algorithm, content)


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _strings(data: bytes, count: int) -> list[bytes]:
    """The strings of which `data` consists, exactly `count`."""
    found: list[bytes] = []
    while data and len(found) < count:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size])
        if len(data) < 4 + size:
            raise ValueError("it is cut short")
        data = data[4 + size :]
    if data or len(found) != count:
        raise ValueError("its parts are not those of a signature")
    return found


def _read(path: Path) -> bytes:
    """A small regular file. A pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
