"""Files with saved plans. They are written whole or not at all, readable only by their owner, never over
another file, and signed if the team wants it.

A signature is made with one key of the team, and checked against the team's public keys. Signatures are those
of OpenSSH (`ssh-keygen -Y sign -n fleetform-plan`), beside the plan in FILE.sig: people have such keys
already, in an agent too, and a public key cannot sign a plan. All bytes are signed: lineage and serial of the
state, backends, commands, and the sums of files that ranks get. Messages never contain a private key, or a
text that was given in place of a key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from declarative import __version__
from declarative.cli.output import check_writable, write_whole
from declarative.model.codec import PLAN_KIND
from declarative.model.diagnostic import failed
from declarative.model.inputs import RankInputs
from declarative.model.schema import BadValueError
from declarative.model.spec.policy import PlanKey
from declarative.planner.saved_plan import SavedPlan, dump, load

if TYPE_CHECKING:
    from declarative.converge.planning import PlanSource
    from declarative.converge.project import ProjectSession
    from declarative.planner.plan import Plan

VARIABLE = "FLEETFORM_SIGNED_BY"
NAMESPACE = b"fleetform-plan"
"""The purpose of the signature: the signature of a commit or a mail does not count for a plan."""
BEGIN = b"-----BEGIN SSH SIGNATURE-----"
_END = b"-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG"
_KIND = b"ssh-ed25519"
_KEY_HINT = (
    "make one: `ssh-keygen -t ed25519 -N '' -f FILE`; or sign with ssh-keygen, which asks for a passphrase"
)


def path_of(name: str) -> Path:
    """Where the signature of the plan `name` is."""
    return Path(f"{name}.sig")


def check_place(name: str) -> None:
    """`InvalidError` if the signature would overwrite a file that is not a signature."""
    check_writable(str(path_of(name)), "signature", re.compile(re.escape(BEGIN)))


def signer_of(name: str) -> Ed25519PrivateKey:
    """The private key in a file; `InvalidError` if that is not what it holds."""
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


def keys_of(named: str) -> tuple[PlanKey, ...]:
    """Public keys: `named` is one, or names a file with one a line. `InvalidError` if there are none."""
    text = named
    if not named.strip():
        summary = "no key may sign plans: `--signed-by` or FLEETFORM_SIGNED_BY is empty"
        raise failed("plan-key", summary, "name a file with public keys, or unset the variable")
    if not named.strip().startswith("ssh-"):
        try:
            text = _read(Path(named)).decode(errors="replace")
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or "it is not the name of a file"
            hint = "name a file with public keys, or write one: `ssh-ed25519 AAAA…`"
            raise failed("plan-key", f"the keys that may sign plans cannot be read: {why}", hint) from None
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        keys = tuple(PlanKey.parse(line) for line in lines)
    except BadValueError:
        keys = ()
    if not keys:  # its content is not shown: it may be a private key
        raise failed("plan-key", "the key that may sign plans is not a public Ed25519 key", PlanKey.HINT)
    return keys


def sign(content: bytes, key: Ed25519PrivateKey, namespace: bytes = NAMESPACE) -> bytes:
    """The signature of a plan, or of what is signed in another `namespace`, as a file."""
    public = _string(_KIND) + _string(key.public_key().public_bytes_raw())
    signature = key.sign(_signed(namespace, b"", b"sha512", content))
    parts = (public, namespace, b"", b"sha512", _string(_KIND) + _string(signature))
    text = base64.b64encode(_MAGIC + (1).to_bytes(4, "big") + b"".join(map(_string, parts)))
    lines = [text[at : at + 70] for at in range(0, len(text), 70)]
    return b"\n".join((BEGIN, *lines, _END, b""))


def check(name: str, content: bytes, keys: Collection[PlanKey]) -> None:
    """`InvalidError` unless one of `keys` signed the plan `name`, as it was read: exactly this `content`."""
    by_hand, path = _by_hand(name, "KEY"), path_of(name)
    try:
        public, signature, signed = _parse(_read(path), content)
    except FileNotFoundError:
        hint = f"`fleetform plan --out FILE --sign KEY`, or {by_hand}"
        raise failed("plan-unsigned", f"`{name}` is not signed: there is no `{path}`", hint) from None
    except OSError as error:
        raise failed("plan-unsigned", f"`{path}` cannot be read: {error.strerror}", by_hand) from None
    except ValueError as error:
        summary = f"`{path}` is not the signature of a plan: {error}"
        raise failed("plan-signature", summary, by_hand) from None
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
    """The signed bytes: namespace, a reserved field, the hash's name, and the hash of the content."""
    *fields, content = parts
    hashed = hashlib.new(fields[-1].decode(), content).digest()
    return _MAGIC + b"".join(_string(part) for part in (*fields, hashed))


def _parse(armored: bytes, content: bytes) -> tuple[bytes, bytes, bytes]:
    """The public key, the signature, and the signed bytes for `content`; `ValueError` for a faulty file."""
    text = armored.strip()
    if not (text.startswith(BEGIN) and text.endswith(_END)):
        raise ValueError("it does not begin or end as one")
    try:
        blob = base64.b64decode(b"".join(text[len(BEGIN) : -len(_END)].split()), validate=True)
    except binascii.Error:
        raise ValueError("it is damaged") from None
    if not blob.startswith(_MAGIC + (1).to_bytes(4, "big")):
        raise ValueError("it is of another version")
    public, namespace, reserved, algorithm, signature_blob = _strings(blob[len(_MAGIC) + 4 :], 5)
    if namespace != NAMESPACE:
        raise ValueError(f"it was made for something else; `-n {NAMESPACE.decode()}` is for plans")
    if algorithm not in (b"sha256", b"sha512"):
        raise ValueError("its hash is neither sha256 nor sha512")
    kind, key = _strings(public, 2)
    also, signature = _strings(signature_blob, 2)
    if (kind, also) != (_KIND, _KIND):
        raise ValueError("its key is not of the kind ssh-ed25519")
    return key, signature, _signed(namespace, reserved, algorithm, content)


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _strings(data: bytes, count: int) -> list[bytes]:
    """The strings in `data`, exactly `count`."""
    strings: list[bytes] = []
    for _ in range(count):
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise ValueError("it is cut short")
        strings.append(data[4 : 4 + size])
        data = data[4 + size :]
    if data:
        raise ValueError("it has more parts than a signature")
    return strings


def _read(path: Path, most: int = 1 << 16) -> bytes:
    """The first bytes of a regular file; none of anything else. A pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


MOST_BYTES = 256 << 20
"""A plan at the planner's own limit is about as large."""

_OURS = re.compile(rb'\s*\{\s*"kind"\s*:\s*"' + re.escape(PLAN_KIND.encode()) + rb'"')
_HEAD = 200
SUFFIXES = (".yaml", ".yml")


def check_target(name: str) -> None:
    """`InvalidError` if a plan could not be written to `name`: checked before it is made."""
    path = Path(name)
    if name == "-":
        raise failed("usage", "a plan is saved to a file", "name one, or print it: `fleetform plan --json`")
    if path.suffix in SUFFIXES:
        hint = f"write `--out {path.stem}.plan`: every `*{path.suffix}` of the project is read as its YAML"
        raise failed("usage", f"a saved plan is not called `*{path.suffix}`", hint)
    check_writable(name, "plan of fleetform", _OURS)


def save(
    session: ProjectSession,
    name: str,
    plan: Plan,
    source: PlanSource,
    key: Ed25519PrivateKey | None = None,
) -> None:
    """Put a plan with all that `apply` needs into a file of mode 0600, in one step; then its signature beside
    it, if there is a `key`.
    """
    from declarative.planner.saved_plan import facts_of
    from declarative.render.output_json import iso

    desired = source.desired
    ranks = (a.typed for a in plan.actions if a.op.value == "create" and isinstance(a.typed, RankInputs))
    digests = {rank.files.digest for rank in ranks if rank.files}
    saved = SavedPlan(
        plan=plan,
        facts=facts_of(plan, source.recorded, source.inventory),
        backends=desired.backends,
        tasks=tuple(sorted(desired.tasks)),
        files={digest: session.files[digest] for digest in sorted(digests)},
        state=session.state.url(desired),
        directory=str(session.directory.resolve()),
        made_by=__version__,
        made_at=iso(time.time()) or "",
        project=desired.project.name,
    )
    content = dump(saved).encode()
    if len(content) > MOST_BYTES:
        hint = "split the project; the plan can still be applied without a file"
        raise failed("too-large", f"the plan has {len(content) >> 20} MiB; a file may have 256", hint)
    check_target(name)  # once more: planning took its time
    write_whole(Path(name), content, 0o600)
    if key is not None:
        write_whole(path_of(name), sign(content, key), 0o600)
        who = fingerprint(key.public_key().public_bytes_raw())
        sys.stderr.write(f"signed: {path_of(name)}, by {who}\n")


def read(name: str, keys: Collection[PlanKey] | None = None) -> SavedPlan:
    """The plan in a file; `InvalidError` if there is none, or if it cannot be used. If `keys` are given, one
    of them must have signed it: otherwise its content is not looked at.
    """
    try:
        content = _read(Path(name), _HEAD)
        if _OURS.match(content):
            content = _read(Path(name), MOST_BYTES + 1)
    except OSError as error:
        hint = "`fleetform plan --out FILE` saves a plan; `fleetform apply` alone is about the whole project"
        raise failed("unreadable", f"`{name}`: {error.strerror or error}", hint) from None
    if not _OURS.match(content[:_HEAD]):
        hint = "save one: `fleetform plan --out FILE`"
        if Path(name).suffix in SUFFIXES:
            hint = f"to apply the project with this file of it, write `fleetform apply -f {name}`"
        raise failed("not-a-plan", f"`{name}` is not a plan that fleetform saved", hint)
    if len(content) > MOST_BYTES:
        hint = "plan again: `fleetform plan --out FILE`"
        raise failed("too-large", f"`{name}` has more than 256 MiB", hint)
    if keys is not None:
        check(name, content, keys)
    return load(content.decode(errors="surrogateescape"), f"`{name}`", __version__)


def say_saved(session: ProjectSession, name: str, result: str) -> None:
    """Say on stderr what `--out` did."""
    if result == "error":
        sys.stderr.write("no plan was saved: it has errors\n")
        return
    where = "" if session.directory == Path() else f" -C {shlex.quote(str(session.directory))}"
    rest = " --allow-unplaced" if result == "unplaced" else ""
    command = f"fleetform{where} apply{rest} {shlex.quote(name)}"
    sys.stderr.write(f"saved: `{command}` carries out exactly this plan\n")


def origin(saved: SavedPlan) -> str:
    """Where a saved plan comes from, in one line."""
    from declarative.model.text import clean

    where = f"for the state {saved.state} of {saved.directory}, serial {saved.plan.basis.serial}"
    return clean(f"Saved at {saved.made_at} by fleetform {saved.made_by}, {where}.") + "\n"
